"""What a soak does all the time: each loop goes round and round, checks what came of it, and leaves nothing."""

import contextlib
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from benchmarks.measure import percentile
from benchmarks.node import CALL_S, BenchmarkFailed, Node
from muster.v1 import event_pb2, exec_pb2, job_pb2, log_pb2

#: Bytes that a rank writes in a round, less than a job may keep; seconds between two calls that look; events after
#: which a watcher begins anew, and how rarely it leaves in the middle of what is sent: for each such call gRPC's server
#: leaks 240 bytes (https://github.com/grpc/grpc/issues/43360); calls that are reckoned with.
_WRITES = 500_000
_LOOK_S = 0.1
_EVENTS = 5
_LEAVES = 100
_KEPT = 10_000
_WRITER = ["sh", "-c", f"yes $(printf %098d $RANK) | head -c {_WRITES}"]
#: Ignores SIGTERM and has a child that left its session.
_STUBBORN = ["sh", "-c", "trap '' TERM; setsid sleep 100000 & sleep 100000"]


class Gate:
    """Lets rounds begin, unless somebody wants all to rest."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._shut = False

    @contextlib.contextmanager
    def round(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._shut)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def rest(self) -> Iterator[None]:
        """Within the block no round is under way."""
        with self._changed:
            self._shut = True
            self._changed.wait_for(lambda: not self._running)
        try:
            yield
        finally:
            with self._changed:
                self._shut = False
                self._changed.notify_all()


class Loops:
    """The loops of one node. Where its daemon is killed now and then, what cannot be reached is called again: muster's
    calls are safe to repeat."""

    def __init__(self, here: Node, resident: str, killed: bool, gate: Gate) -> None:
        """`resident`: a job that runs all the time."""
        self._gate = gate
        self._here, self._resident, self._killed = here, resident, killed
        self._numbers = itertools.count()
        self._rounds: Counter[str] = Counter()
        self._ms: deque[float] = deque(maxlen=_KEPT)
        rounds = (self._follow, self._stop, self._fail, self._command, self._session, self._look)
        #: Each is for a thread of its own, and returns when the event is set. Raises BenchmarkFailed, grpc.RpcError.
        self.bodies = [self._again(each) for each in rounds] + [self._watch]

    def __str__(self) -> str:
        rounds = ", ".join(f"{count} x {name}" for name, count in sorted(self._rounds.items()))
        p50, p99 = (percentile(list(self._ms) or [0.0], percent) for percent in (50, 99))
        return f"{rounds}; Get p50 {p50:.1f} ms, p99 {p99:.1f} ms"

    @property
    def done(self) -> int:
        """Rounds of all loops."""
        return self._rounds.total()

    def _again(self, one: Callable[[], None]) -> Callable[[threading.Event], None]:
        def body(over: threading.Event) -> None:
            while not over.is_set():
                with self._gate.round():
                    one()
                self._rounds[one.__name__[1:]] += 1

        return body

    def _call(self, method: Any, request: Any, gone: bool = False) -> Any:
        """`gone`: NOT_FOUND is good: an earlier try may have got through."""
        deadline = time.monotonic() + CALL_S
        while True:
            try:
                return method(request, timeout=CALL_S)
            except grpc.RpcError as error:
                if gone and self._killed and error.code() is grpc.StatusCode.NOT_FOUND:
                    return None
                self._gone_on(error, deadline)

    def _gone_on(self, error: Any, deadline: float) -> None:
        """Raises the error unless the daemon was killed."""
        if not self._killed or error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
            raise error
        time.sleep(0.1)

    @contextlib.contextmanager
    def _job(self, command: list[str], ranks: int, **fields: Any) -> Iterator[str]:
        """Deleted behind the block, in which it ends."""
        jobs = self._here.jobs
        job_id = f"soak-{next(self._numbers)}"
        spec = self._here.spec(command, ranks, job_id=job_id, **fields)
        self._call(jobs.Start, job_pb2.StartRequest(spec=spec))
        yield job_id
        self._call(jobs.Delete, job_pb2.DeleteRequest(job_id=job_id), gone=True)

    def _ended(self, job_id: str, state: str) -> Any:
        job = self._call(self._here.jobs.Wait, job_pb2.WaitRequest(job_id=job_id)).job
        self._expect(job_id, job_pb2.JobState.Name(job.state), f"JOB_STATE_{state}")
        return job

    def _expect(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            raise BenchmarkFailed(f"{self._here.folder}: {what}: {found!r} instead of {wanted!r}")

    def _follow(self) -> None:
        """Two ranks write, and all of it is followed to the end."""
        with self._job(_WRITER, 2) as job_id:
            got = {0: bytearray(), 1: bytearray()}
            deadline = time.monotonic() + CALL_S
            ended = False
            while not ended:
                offsets = {rank: len(data) for rank, data in got.items()}
                request = log_pb2.ReadLogsRequest(
                    job_id=job_id, follow=True, offsets=offsets if any(offsets.values()) else {}
                )
                try:
                    for chunk in self._here.logs.ReadLogs(request, timeout=CALL_S):
                        ended = chunk.eof
                        if chunk.data:
                            self._expect(f"{job_id}: offset of rank {chunk.rank}", chunk.offset, len(got[chunk.rank]))
                            got[chunk.rank] += chunk.data
                except grpc.RpcError as error:
                    self._gone_on(error, deadline)
            for rank, data in got.items():
                line = b"%098d\n" % rank
                self._expect(
                    f"{job_id}: output of rank {rank}", bytes(data) == (line * (_WRITES // 99 + 1))[:_WRITES], True
                )
            self._ended(job_id, "SUCCEEDED")

    def _stop(self) -> None:
        with self._job(_STUBBORN, 2) as job_id:
            self._until_running(job_id)
            request = job_pb2.StopRequest(job_id=job_id)
            request.grace.FromMilliseconds(50)
            self._call(self._here.jobs.Stop, request)
            self._ended(job_id, "STOPPED")

    def _until_running(self, job_id: str) -> None:
        running = job_pb2.JOB_STATE_RUNNING
        while self._call(self._here.jobs.Get, job_pb2.GetRequest(job_id=job_id)).job.state != running:
            time.sleep(0.02)

    def _fail(self) -> None:
        pause = Duration(nanos=50_000_000)
        command = ["sh", "-c", "echo failing; exit 3"]
        with self._job(command, 2, max_restarts=1, restart_backoff=pause) as job_id:
            job = self._ended(job_id, "FAILED")
            self._expect(f"{job_id}: attempt", job.attempt, 1)

    def _command(self) -> None:
        request = exec_pb2.RunCommandRequest(job_id=self._resident, argv=["sh", "-c", "cat; exit 7"], input=b"asked")
        answer = self._call(self._here.execs.RunCommand, request)
        self._expect("a command", (answer.stdout, answer.exited.exit_code), (b"asked", 7))

    def _session(self) -> None:
        """A session that is lost with its daemon is ended by the next one; it has a time limit of its own."""
        start = exec_pb2.ExecStart(job_id=self._resident, argv=["sh", "-c", "echo here; exit 5"])
        start.time_limit.FromSeconds(30)
        deadline = time.monotonic() + CALL_S
        while True:
            try:
                answers = list(self._here.execs.Exec(iter([exec_pb2.ExecRequest(start=start)]), timeout=CALL_S))
                break
            except grpc.RpcError as error:
                self._gone_on(error, deadline)
        data = b"".join(answer.output.data for answer in answers if answer.HasField("output"))
        self._expect("a session", (data, answers[-1].exited.exit_code), (b"here\n", 5))

    def _look(self) -> None:
        begin = time.perf_counter()
        self._call(self._here.jobs.Get, job_pb2.GetRequest(job_id=self._resident))
        self._ms.append((time.perf_counter() - begin) * 1e3)
        self._call(self._here.jobs.List, job_pb2.ListRequest(page_size=100))
        time.sleep(_LOOK_S)

    def _watch(self, over: threading.Event) -> None:
        """One watcher begins anew behind every few events; another watches on. Both see the same."""
        behind = cursor = self._next_events("")[-1][0]
        ahead, anew = deque[str](), deque[str]()
        deadline = time.monotonic() + CALL_S
        while not over.is_set():
            request = event_pb2.WatchRequest(cursor=cursor)
            try:
                for answer in self._here.events.Watch(request, timeout=CALL_S):
                    cursor = answer.cursor
                    if answer.HasField("event"):
                        ahead.append(cursor)
                    if len(ahead) >= _EVENTS and not anew:
                        leaves = self._rounds["resume"] % _LEAVES == 0
                        told = self._next_events(behind, _EVENTS if leaves else None)
                        behind = told[-1][0]
                        anew.extend(at for at, is_event in told if is_event)
                        self._rounds["resume"] += 1
                        self._rounds["leave"] += leaves
                    while ahead and anew:
                        self._expect("the next event of a resumed watch", anew.popleft(), ahead.popleft())
                    deadline = time.monotonic() + CALL_S
                    if over.is_set():
                        break
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    self._gone_on(error, deadline)

    def _next_events(self, cursor: str, most: int | None = None) -> list[tuple[str, bool]]:
        """What there is behind a cursor: the cursor behind each answer, and whether it is an event. With `most` the
        call is left behind so many, while there are more."""
        deadline = time.monotonic() + CALL_S
        while True:
            call = self._here.events.Watch(event_pb2.WatchRequest(cursor=cursor, no_follow=True), timeout=CALL_S)
            try:
                return [(answer.cursor, answer.HasField("event")) for answer in itertools.islice(call, most)]
            except grpc.RpcError as error:
                self._gone_on(error, deadline)
            finally:
                call.cancel()
