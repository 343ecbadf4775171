"""`muster run --hosts`: one job on several nodes, with one output, one verdict and one exit code."""

import math
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from types import FrameType

from muster.agent.cli import show
from muster.agent.cli.client import follow
from muster.agent.cli.client.address import Address
from muster.agent.cli.client.calls import DaemonConnection, caller_name, connect, credentials_of
from muster.agent.cli.client.interrupts import Interrupts
from muster.agent.cli.exits import BadSpec, CommandFailed, Exit, NoDaemon, StdoutFailed
from muster.agent.cli.nodes.hosts import GangHost
from muster.agent.cli.printing import note, write
from muster.agent.host import end_signals
from muster.agent.host.end_signals import Ask
from muster.agent.logs import labels
from muster.agent.messages.spec_message import spec_to
from muster.client import BlockingClient, FailedAsk, Gang, GangNotStarted, GangPart, connect_blocking
from muster.client.gang import ATTEMPT, FINAL, SIZE, attempt_id, find, label_number, labels_of
from muster.client.together import PATIENCE_S
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model import restart
from muster.supervisors.model.spec import JobSpec, Violation
from muster.v1 import job_pb2, log_pb2

#: Where a port is chosen at which the ranks meet, and how often another one is tried that is in use.
PORTS, TRIES = range(20_000, 30_000), 3
#: Seconds between two looks at parts that say nothing, and for which a daemon may be silent.
LOOK_S, SILENT_S = 2.0, 60.0
#: Seconds for which a daemon that was given up is asked to stop its part, once the job is over on the other nodes.
LEFT_S = 300.0
MAX_ID = 128
#: Exit codes of a command that cannot be executed: another try would end in the same way.
_NEVER = (126, 127)


@dataclass(frozen=True, slots=True)
class _End:
    """How a part ended, as far as it is known: the last message of its output, or why that could not be read."""

    part: int
    last: log_pb2.ReadLogsResponse | None = None
    failure: CommandFailed | None = None

    @property
    def succeeded(self) -> bool:
        last = self.last
        return last is not None and last.state == job_pb2.JOB_STATE_SUCCEEDED and last.verdict.exit_code == 0


class GangRun:
    """A job on several nodes, at the terminal (or pipe) of this command."""

    def __init__(self, hosts: list[GangHost], *, show: bool, quiet: bool, label: bool) -> None:
        self._hosts = hosts
        self._show, self._quiet, self._label = show, quiet, label
        self._gang = Gang(())
        self._ends: queue.SimpleQueue[_End] = queue.SimpleQueue()
        self._name = ""
        #: Orders to stop, reason and grace, that a daemon has not taken yet, by part.
        self._owed: dict[int, tuple[str, float | None]] = {}
        #: When parts ended that had ended before this command read their output; seconds since the epoch, by part.
        self._ended_at: dict[int, float] = {}

    def run(self, spec: JobSpec, port_given: bool) -> int:
        """Starts the job and follows it to its end, over its restarts; the exit code. `spec`: of the first node.
        `port_given`: its master_port is not to be changed. Raises CommandFailed."""
        self._name = spec.job_id
        longest = len(attempt_id(spec.job_id, spec.max_restarts))
        if spec.max_restarts and longest > MAX_ID:
            text = (
                f"{spec.job_id!r}: with the number of a restart behind it it has {longest} characters: at most {MAX_ID}"
            )
            raise BadSpec([Violation("--job-id", text)])
        begun, attempt = time.monotonic(), 0
        with self._clients() as clients:
            while True:
                self._start(spec, attempt, port_given, clients)
                code, again = self._follow_all()
                if not again or attempt >= spec.max_restarts or code in _NEVER or not self._all_over():
                    return code
                if spec.max_runtime is not None:  # of all tries together
                    left = spec.max_runtime - (time.monotonic() - begun)
                    if left <= 0:
                        return code
                    spec, begun = replace(spec, max_runtime=left), time.monotonic()
                attempt += 1
                delay = restart.delay(spec, attempt)
                note(f"restart {attempt} of {spec.max_restarts} on all {len(self._hosts)} nodes in {delay:.1f} s")
                with _taken_back(lambda: "no longer restarted"):
                    time.sleep(delay)

    def _all_over(self) -> bool:
        """Whether no part of the last try runs any more, as its daemon says: else two tries would run at once."""
        for part, job in self._gang.jobs(PATIENCE_S).items():
            node = self._gang.parts[part].node
            if isinstance(job, FailedAsk):
                note(f"{node}: {job}; the job is not restarted: its part there may still run")
                return False
            if job.state not in FINAL:
                note(f"{node}: its part has not ended; the job is not restarted")
                return False
        return True

    def attach(self, name: str) -> int:
        """Takes a job up again that another command started; the exit code. Raises CommandFailed."""
        self._name = name
        with self._clients() as clients:
            by_node = {host.label: clients[host.label] for host in self._hosts}
            gang, silent = find(name, by_node, SILENT_S)
            for node, failed in silent.items():
                note(f"{node}: {failed}")
            if gang is None:
                raise CommandFailed(
                    f"no job {name!r} of several nodes at {', '.join(host.label for host in self._hosts)}",
                    Exit.NO_DAEMON if silent else Exit.NO_SUCH_JOB,
                )
            self._gang = gang
            jobs = {part: job for part, job in gang.jobs().items() if not isinstance(job, FailedAsk)}
            self._ended_at = {
                part: job.ended_at.ToNanoseconds() / 1e9 for part, job in jobs.items() if job.HasField("ended_at")
            }
            size = label_number(gang.parts[0].spec, SIZE)
            bad = {job.state for job in jobs.values()} & FINAL - {job_pb2.JOB_STATE_SUCCEEDED}
            if len(jobs) == size and not bad and any(job.awaits_release for job in jobs.values()):
                # The command died before the last part was released.
                try:
                    with _taken_back(lambda: "stopped before the job started"):
                        gang.begin()
                except GangNotStarted as failure:
                    raise self._not_started(failure, label_number(gang.parts[0].spec, ATTEMPT)) from None
            code = self._follow_all()[0]
            if missing := size - len(gang.parts):
                note(f"{missing} of {size} parts of the job are on other hosts: name all of them with --hosts")
            return code or (Exit.MUSTER_FAILED if missing else 0)

    # --- start --------------------------------------------------------------------------------------------------------

    def _start(self, spec: JobSpec, attempt: int, port_given: bool, clients: dict[str, BlockingClient]) -> None:
        for tried in range(TRIES):
            if not port_given:
                spec = replace(spec, master_port=random.choice(PORTS))
            self._gang = Gang(self._parts(spec, attempt, clients))
            try:
                with _taken_back(lambda: "stopped before the job started"):
                    self._gang.start()
            except GangNotStarted as failure:
                if set(failure.reasons.values()) == {"PORT_IN_USE"} and not port_given and tried + 1 < TRIES:
                    continue
                raise self._not_started(failure, attempt) from None
            if self._show:
                where = ", ".join(host.label for host in self._hosts)
                note(f"job {self._name} runs on {where}" + (f" (restart {attempt})" if attempt else ""))
            return

    def _not_started(self, failure: GangNotStarted, attempt: int) -> CommandFailed:
        for host in self._hosts:
            if failure.reasons.get(host.label) == "UNAVAILABLE":
                try:
                    host.address.probe()
                except NoDaemon as found:  # knows more than gRPC, and what to do
                    note(f"{host.label}: {found.message}")
        code = Exit.NO_DAEMON if set(failure.reasons.values()) <= _NO_ANSWER else Exit.REFUSED
        text = f"job {self._name} was not started on any node: {failure}"
        return CommandFailed(text, Exit.MUSTER_FAILED if attempt else code)

    def _parts(self, spec: JobSpec, attempt: int, clients: dict[str, BlockingClient]) -> list[GangPart]:
        size = len(self._hosts)
        job_id = attempt_id(self._name, attempt)
        parts = []
        for number, host in enumerate(self._hosts):
            env = spec.env | ({"TORCHELASTIC_RESTART_COUNT": str(attempt)} if attempt else {})
            marks = spec.labels | labels_of(self._name, number, size, attempt)
            # A failure is for all nodes: this command starts all of them again.
            on_hang = "stop" if spec.on_hang == "restart" else spec.on_hang
            mine = replace(
                spec, job_id=job_id, node_rank=number, env=env, labels=marks, max_restarts=0, on_hang=on_hang
            )
            parts.append(GangPart(host.label, clients[host.label], spec_to(mine, secrets=True)))
        return parts

    @contextmanager
    def _clients(self) -> Iterator[dict[str, BlockingClient]]:
        with ExitStack() as stack:
            yield {
                host.label: stack.enter_context(
                    connect_blocking(str(host.address), caller_name(), credentials_of(host.address))
                )
                for host in self._hosts
            }

    # --- to the end ---------------------------------------------------------------------------------------------------

    def _follow_all(self) -> tuple[int, bool]:
        """The exit code, and whether the job may be started again: it failed, and nobody stopped it."""
        lines = labels.LabelledLines(write, label=True) if self._label else labels.Raw(write)
        one = threading.Lock()
        places = {host.label: host.address for host in self._hosts}
        with Interrupts() as interrupts:
            for number, part in enumerate(self._gang.parts):
                sink = _Merged(lines, part.node, one)
                reader = threading.Thread(
                    target=self._read, args=(number, part, places[part.node], sink), name=part.node, daemon=True
                )
                reader.start()
            with interrupts.calling(self._order):
                try:
                    ends = self._collect()
                except KeyboardInterrupt:
                    note(f"no longer waiting; {self._goes_on()}")
                    return 128 + interrupts.first, False
                except StdoutFailed as failure:
                    note(f"{failure.message}; {self._goes_on()}")
                    code = failure.exit_code if failure.exit_code == Exit.PIPE_CLOSED else Exit.MUSTER_FAILED
                    return code, False
            with one:
                lines.finish()
            code, failed = self._verdict(ends)
            self._insist(interrupts)
            return code, failed and not interrupts.first

    def _read(self, number: int, part: GangPart, address: Address, sink: "_Merged") -> None:
        """In a thread of its own: the output of one part to its end."""
        request = log_pb2.ReadLogsRequest(job_id=part.spec.job_id, follow=True, events=True, only_losses=True)
        try:
            with connect(address) as connection:
                connection.quiet, connection.met = self._quiet, True  # it started the part: it may be restarting now
                last = follow.read(connection, request, sink)
                self._ends.put(_End(number, self._complete(connection, part, last)))
        except CommandFailed as failure:
            self._ends.put(_End(number, failure=failure))

    def _complete(
        self, connection: DaemonConnection, part: GangPart, last: log_pb2.ReadLogsResponse
    ) -> log_pb2.ReadLogsResponse:
        """The last message, with the verdict."""
        if not last.HasField("verdict"):
            request = job_pb2.WaitRequest(job_id=part.spec.job_id)
            job = connection.patiently(connection.jobs.Wait, request, None).job
            last.verdict.CopyFrom(job.verdict)
            last.state = job.state
        return last

    def _collect(self) -> list[_End]:
        """All ends in the order in which they came. With the first that is no success the others are stopped. Raises
        StdoutFailed, and CommandFailed where no daemon answers any more: then the job goes on without this command."""
        ends: dict[int, _End] = {}
        silent: dict[int, float] = {}
        every, stopped = set(range(len(self._gang.parts))), False
        while len(ends) < len(every):
            self._order_again()
            found: list[_End] = []
            with suppress(queue.Empty):
                found.append(self._ends.get(timeout=LOOK_S))
            if not found:
                found, reason = self._look(every - set(ends), silent)
                if reason and not stopped:
                    stopped = True
                    self._stop(reason, None, every - set(ends))
            for end in found:
                if isinstance(end.failure, StdoutFailed):
                    raise end.failure
                if end.last is None and not stopped and self._cut_off(silent):
                    raise CommandFailed(f"no node answers any more; {self._goes_on()}", Exit.MUSTER_FAILED)
                ends.setdefault(end.part, end)  # one that was given up may end after all
                if end.last is not None:
                    self._owed.pop(end.part, None)
                if not end.succeeded and not stopped:
                    stopped = True
                    if others := every - set(ends):
                        self._stop(f"{self._node(end)}: {_summary(end)}", None, others)
                if end.last is None:  # the job is over without this part, which may still run
                    self._owed.setdefault(end.part, (f"{self._node(end)}: {_summary(end)}", None))
        return list(ends.values())

    def _look(self, parts: set[int], silent: dict[int, float]) -> tuple[list[_End], str]:
        """What the readers of the output do not notice: parts whose daemon has not answered for SILENT_S, and, as a
        reason to stop the others, one that has failed while its output cannot be passed on. `silent`: since when a
        daemon does not answer."""
        given_up, reason = [], ""
        for part, job in self._gang.jobs(0.0, parts, LOOK_S).items():
            if not isinstance(job, FailedAsk):
                silent.pop(part, None)
                if job.state in (job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_LOST):
                    reason = reason or f"{self._gang.parts[part].node}: {job.verdict.summary}"
            elif time.monotonic() - silent.setdefault(part, time.monotonic()) >= SILENT_S:
                text = f"the daemon has not answered for {SILENT_S:g} s"
                given_up.append(_End(part, failure=CommandFailed(text, Exit.MUSTER_FAILED)))
        return given_up, reason

    def _cut_off(self, silent: dict[int, float]) -> bool:
        """Whether all daemons are silent, for longer than a restart takes: it is this node that reaches none."""
        return len(silent) == len(self._gang.parts) and time.monotonic() - max(silent.values()) > PATIENCE_S

    def _insist(self, interrupts: Interrupts) -> None:
        """A part that was given up, or that could not be stopped, runs on without the others: its daemon is asked
        again for LEFT_S, or until a signal comes."""
        asked, end = interrupts.asked, time.monotonic() + LEFT_S
        if self._owed:
            nodes = ", ".join(self._gang.parts[part].node for part in sorted(self._owed))
            note(f"{nodes}: trying to stop the part there for up to {LEFT_S / 60:g} min; Ctrl-C leaves it")
        while self._owed and interrupts.asked == asked and time.monotonic() < end:
            self._order_again()
            if self._owed:
                time.sleep(LOOK_S / 4)
        for part in sorted(self._owed):
            again = f"`muster stop {self._gang.parts[part].spec.job_id}` there, once it answers"
            note(f"{self._gang.parts[part].node}: its part may still run: run {again}")

    def _order(self, ask: Ask, number: int) -> None:
        """Called in the thread of `Interrupts`."""
        name, kill = end_signals.name(number), ask is not Ask.STOP
        if not self._quiet:
            again = "press Ctrl-C again to kill it" if number == signal.SIGINT else "another one kills it"
            note(f"{name}: killing the job on all nodes" if kill else f"{name}: stopping the job; {again}")
        self._stop(name, 0.0 if kill else None, None)

    def _stop(self, reason: str, grace_s: float | None, among: set[int] | None) -> None:
        """Orders parts to stop, all with None. Called in two threads. A daemon that does not take the order now gets it
        later (`_order_again`)."""
        refused = self._gang.stop(reason, grace_s, among)
        for part in range(len(self._gang.parts)) if among is None else among:
            if part not in refused:
                self._owed.pop(part, None)
                continue
            self._owed[part] = (reason, grace_s)
            note(f"{self._gang.parts[part].node}: cannot be stopped now, trying again: {refused[part]}")

    def _order_again(self) -> None:
        owed = dict(self._owed)
        for order in set(owed.values()):
            parts = {part for part, same in owed.items() if same == order}
            for part in parts - set(self._gang.stop(*order, parts, patience_s=0.0, answer_s=LOOK_S)):
                note(f"{self._gang.parts[part].node}: its part is being stopped")
                if self._owed.get(part) == order:  # the user has not asked for more meanwhile
                    self._owed.pop(part, None)

    def _verdict(self, ends: list[_End]) -> tuple[int, bool]:
        """Says how the job ended. Returns its exit code, that of the part that failed first, and whether it failed in
        such a way that another try is in order: not where somebody stopped it, nor at the end of its time."""
        failed = [end for end in ends if not end.succeeded]
        if not failed:
            if self._show:
                note(f"job {self._name} SUCCEEDED on {len(ends)} nodes")
            return 0, False
        # Of a job that is taken up again the ends come in any order.
        failed.sort(key=lambda end: self._ended_at.get(end.part, math.inf))
        # What was ended because of another part is no cause; nor is a node that only fell silent, if one says why.
        first = min(failed, key=_innocence)
        last = first.last
        again = last is not None and last.state == job_pb2.JOB_STATE_FAILED and last.verdict.reason != "TIMED_OUT"
        code = _code(first)
        if last is not None and last.state == job_pb2.JOB_STATE_STOPPED:  # so are all: as on one node, the first not 0
            code = next(filter(None, map(_code, failed)), 0)
        if self._quiet:
            return code, again
        if last is None:
            assert first.failure is not None
            told = f"{self._node(first)}: {first.failure.message}"
            note(f"job {self._name} LOST: {told}; the other nodes were stopped; its part there may still run")
            return code, False
        state = job_pb2.JobState.Name(last.state).removeprefix("JOB_STATE_")
        note(f"job {self._name} {state}: {self._node(first)}: {last.verdict.summary}")
        verdict, job_id = last.verdict, self._gang.parts[first.part].spec.job_id
        if advice := show.advice_of(verdict):
            cause = f"{verdict.cause}; " if verdict.cause else ""
            note(f"{self._node(first)}: {cause}{advice} (muster why {job_id}, at {self._address(first)})")
        for end in failed:
            if end.failure is not None and end is not first:
                note(f"{self._node(end)}: {end.failure.message}")
        return code, again

    def _node(self, end: _End) -> str:
        return self._gang.parts[end.part].node

    def _address(self, end: _End) -> Address:
        return next(host.address for host in self._hosts if host.label == self._node(end))

    def _goes_on(self) -> str:
        hosts = ",".join(host.written for host in self._hosts)
        return f"the job continues: `muster run --attach {self._name} --hosts {hosts}` takes it up again"


class _Merged:
    """The output of one node among that of the others, each line as `[node/rank]`. Any thread may feed it."""

    def __init__(self, lines: "labels.LabelledLines | labels.Raw", node: str, one: threading.Lock) -> None:
        self._lines, self._node, self._one = lines, node, one

    def feed(self, source: str, data: bytes, time: float) -> None:
        if source == "muster":
            note(f"{self._node}: " + data.decode("utf-8", "replace").rstrip("\n"))
            return
        with self._one:
            self._lines.feed(self._named(source), data, time)

    def cut(self, source: str) -> None:
        with self._one:
            self._lines.cut(self._named(source))

    def finish(self) -> None:
        """The lines that have not ended are passed on at the end of all nodes."""

    def _named(self, source: str) -> str:
        return f"{self._node}/{source.removeprefix('rank ')}"


#: Reasons of daemons that did not answer at all.
_NO_ANSWER = {"UNAVAILABLE", "DEADLINE_EXCEEDED"}


def _summary(end: _End) -> str:
    if end.last is not None:
        return end.last.verdict.summary
    assert end.failure is not None
    return end.failure.message


def _code(end: _End) -> int:
    if end.last is None:
        return Exit.MUSTER_FAILED
    stopped = end.last.state == job_pb2.JOB_STATE_STOPPED  # 0 where all ranks ended well within the grace
    return end.last.verdict.exit_code or (0 if stopped else Exit.MUSTER_FAILED)


def _innocence(end: _End) -> int:
    """The least is to blame; of equal ones the first that ended."""
    if end.last is None:
        return 1
    return 2 if end.last.state == job_pb2.JOB_STATE_STOPPED else 0


@contextmanager
def _taken_back(told: Callable[[], str]) -> Iterator[None]:
    """Inside, the first SIGINT or SIGTERM is a KeyboardInterrupt, so that what was begun is taken back, which a second
    one does not cut short. Outside it is a CommandFailed with 128 and its number, which says `told`."""
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        raise CommandFailed(f"{end_signals.name(came[0])}: {told()}", 128 + came[0]) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
