"""The daemon's client of the nursery: finds or starts it, keeps the connection, asks it to tend jobs."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskStatus

from muster.agent import threads
from muster.agent.changes import Changes
from muster.agent.errors import StartupError
from muster.agent.link import connection as control
from muster.agent.link import nursery_start, silent_nursery
from muster.agent.link.connection import Connection, LinkLost, OtherProtocol, Refused, Silent
from muster.agent.link.nursery_start import Begun
from muster.probes.calls import children
from muster.probes.calls.heartbeat import tick
from muster.probes.checks.result import one_line
from muster.probes.kernel import endings
from muster.probes.kernel.backoff import Backoff
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.paths import Root
from muster.supervisors.system import trust
from muster.supervisors.wire import messages
from muster.supervisors.wire.messages import MAX_TOLD

#: Seconds: a new nursery is up, it then answers, a supervisor listens, a connection counts as one that held.
START_S = 10.0
LISTEN_S = 0.5
TEND_S = 20.0
HELD_S = 5.0
#: Seconds after which the daemon tests with a hello a nursery that did not answer a request for a supervisor; and
#: seconds between two such tests.
LATE_S, LOOK_S = 3.0, 1.0
#: Maximum characters that a sentence quotes of the last line of a nursery's stderr.
MAX_LINE = 300
#: A death: the pid of the supervisor, and how often its successor could not be started since.
Which = tuple[int, int]

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Answer:
    """The answer to a `tend`; `message` stays None if the nursery died before. `late`, `last`: as in `tend`."""

    done: anyio.Event = field(default_factory=anyio.Event)
    since: float = field(default_factory=anyio.current_time)
    message: messages.Message | None = None
    late: Callable[[int, int], None] | None = None
    last: tuple[int, int] | None = None

    def is_late(self, pid: int, start: int) -> None:
        """The supervisor that is waited for is this process."""
        self.last = (pid, start)
        if self.late is not None:
            self.late(pid, start)


def _which(message: messages.Message) -> Which | None:
    """None if a nursery of an earlier release does not report it."""
    pid, refused = message.get("pid"), message.get("refused")
    return (pid, refused) if isinstance(pid, int) and isinstance(refused, int) else None


class NurseryClient:
    """One connection for the whole daemon. `generation` counts the nurseries that this daemon was connected to: when it
    grows, every live job must be tended again, because the new nursery knows none."""

    def __init__(
        self,
        root: Root,
        died: Callable[[str, str, str, bool, Which | None], None] = lambda *_: None,
        owner_fd: int | None = None,
        begun: Begun | None = None,
    ) -> None:
        """`died` is called for each death of a supervisor with its job's id, how it died, the end of its traceback, and
        whether it had lived: False if none could be started. For a nursery the id is empty. One death may be reported
        twice, with the same `Which` if the nursery sends it. `owner_fd`: of the pipe in
        supervisors/system/owner_pipe.py. `begun`: a nursery that is being started already."""
        self._root = root
        self._begun = begun
        self._owner_fd = owner_fd
        self.died = died
        self._connection: Connection | None = None
        self._waiting: dict[str, _Answer] = {}
        self._changed = Changes()
        self._explained = False
        self.generation = 0
        self.pid = 0
        #: A sentence for an operator while there is no nursery.
        self.trouble = ""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keeps a nursery running until cancelled; started after the first try.

        Raises StartupError if a nursery of another protocol version serves this root: it cannot be replaced while it
        has jobs.
        """
        pause = Backoff(0.05, 5.0)
        started = False
        while True:
            since = anyio.current_time()
            try:
                async with self._opened() as connection:
                    self._take(connection)
                    if not started:
                        started = True
                        task_status.started()
                    lost = await self._follow(connection)
                raise lost
            except OtherProtocol as error:
                raise StartupError(
                    f"{self._root.nursery_socket}: a nursery of another version serves this root: {error}; start the "
                    "musterd of that version, or end its jobs: the nursery then exits"
                ) from error
            except (LinkLost, Refused, OSError) as error:
                told = error.said if isinstance(error, NotStarted) else ""
                self.trouble = f"no nursery: {error}; trying again. Running jobs continue, new jobs wait"
                _log.warning("nursery.lost", pid=self.pid, error=str(error))
                if not (self._explained or isinstance(error, Silent)):  # a silent nursery has not died
                    how = f"(pid {self.pid}) died" if self.pid else "cannot be started"
                    self.died("", how, told or str(error), bool(self.pid), None)
                self._explained = False
            finally:
                self._lose()
            if not started:
                started = True
                task_status.started()
            if anyio.current_time() - since > HELD_S:
                pause.reset()
            await anyio.sleep(pause.next())

    async def tend(self, job_id: str, late: Callable[[int, int], None] | None = None) -> int:
        """Makes sure that a job has a living supervisor; returns the generation of the nursery that now knows it.
        `late` gets pid and start of a supervisor that was forked a while ago, and is not ready.

        Raises LinkLost if this took over 20 s or the nursery died, Refused with the nursery's reason.
        """
        try:
            with anyio.fail_after(TEND_S):
                while self._connection is None:
                    await self._changed.next()
                generation = self.generation
                answer = self._waiting.get(job_id)
                if answer is None:
                    answer = await self._ask(self._connection, job_id)
                if late is not None:
                    answer.late = late
                    if answer.last is not None:
                        late(*answer.last)
                await answer.done.wait()
        except TimeoutError:
            raise LinkLost(self.trouble or f"the nursery did not bring a supervisor up in {TEND_S:g} s") from None
        if answer.message is None:
            raise LinkLost("the nursery died")
        if answer.message.get("ok") is not True:
            raise Refused(str(answer.message.get("error", "no reason was given")))
        return generation

    async def _ask(self, connection: Connection, job_id: str) -> _Answer:
        answer = self._waiting[job_id] = _Answer()
        self._changed.tell()
        try:
            await connection.send({"op": "tend", "job": job_id})
        except BaseException:  # cancelled, say, while the nursery takes nothing: the next caller asks again
            self._waiting.pop(job_id, None)
            answer.done.set()
            raise
        return answer

    def expect(self, job_id: str, folder: str) -> None:
        """The daemon has the lock of this job and records it in `folder`: a supervisor may get ready. Best effort."""
        if self._connection is not None:
            self._connection.send_now({"op": "expect", "job": job_id, "folder": folder})

    async def wait_other(self, generation: int) -> None:
        """Returns when a nursery of a later generation is connected."""
        while self._connection is None or self.generation == generation:
            await self._changed.next()

    def _take(self, connection: Connection) -> None:
        self._connection = connection
        self.pid = connection.pid
        self.generation += 1
        self.trouble = ""
        self._changed.tell()
        _log.info("nursery.found", pid=self.pid)

    def _lose(self) -> None:
        self._connection = None
        self.pid = 0
        for answer in self._waiting.values():
            answer.done.set()
        self._waiting.clear()

    async def _follow(self, connection: Connection) -> LinkLost:
        """Follows the nursery until it has exited or does not answer. Returns the error, because a task group would
        wrap a raised one."""
        found: list[LinkLost] = []
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                found.append(await self._silence())
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            try:
                await self._listen(connection)
            except LinkLost as error:
                found.append(error)
                tasks.cancel_scope.cancel()
        return found[0]

    async def _silence(self) -> Silent:
        """Returns when the nursery does not answer a request for a supervisor, nor another client's hello."""
        while True:
            while not self._waiting:
                await self._changed.next()
            await tick(LOOK_S)
            now = anyio.current_time()
            if not any(now - answer.since >= LATE_S for answer in self._waiting.values()):
                continue
            try:
                async with control.connect(self._root.nursery_socket):
                    pass  # the nursery answers: only the supervisor is slow
            except Silent as error:
                return error
            except (LinkLost, Refused, OSError) as error:  # `_listen` notices a loss; or it is full
                _log.info("nursery.not_asked", pid=self.pid, error=str(error))

    async def _listen(self, connection: Connection) -> None:
        """Raises LinkLost."""
        while True:
            message = await connection.receive()
            if message["op"] == "died":
                said = [str(message.get(name, "")) for name in ("job", "how", "error")]
                self._explained |= not said[0]
                self.died(said[0], said[1], said[2], message.get("lived") is not False, _which(message))
            elif message["op"] == "late":
                waited = self._waiting.get(str(message.get("job")))
                pid, start = message.get("pid"), message.get("start")
                if waited is not None and isinstance(pid, int) and isinstance(start, int):
                    waited.is_late(pid, start)
            elif message["op"] == "notice":
                _log.warning("nursery.notice", pid=self.pid, text=str(message.get("text", "")))
            elif message["op"] == "tend":
                answer = self._waiting.pop(str(message.get("job")), None)
                if answer is not None:
                    answer.message = message
                    answer.done.set()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Connection]:
        """A connection to the running nursery, or to a new one. Raises LinkLost, Refused, OSError."""
        begun, self._begun = self._begun, None
        async with AsyncExitStack() as stack:
            try:
                if begun is None:
                    connection = await stack.enter_async_context(control.connect(self._root.nursery_socket))
                else:
                    connection = await self._start(stack, begun)
            except Silent:
                await self._step_around()
                connection = await self._start(stack)
            except NurseryLeft:  # begun before the daemon's imports, which took longer than it waits for a daemon
                connection = await self._start(stack)
            except LinkLost:
                if begun is not None:
                    raise
                connection = await self._start(stack)
            yield connection

    async def _step_around(self) -> None:
        """Raises OSError."""
        said = await threads.run(silent_nursery.step_around, self._root)
        _log.warning("nursery.silent", text=said)
        self.died("", "does not answer", said, True, None)

    async def _start(self, stack: AsyncExitStack, begun: Begun | None = None) -> Connection:
        code: int | None = None
        said_from, last = -1, "did not listen"
        pause = Backoff(0.01, 0.2)
        with anyio.move_on_after(START_S):
            if begun is None:
                begun = await threads.run(nursery_start.begin, self._root, self._owner_fd)
            said_from = begun.said_from
            code = await _ended(begun.pid)
            # It listened when its starter ended: if nobody answers it has died since, and another one is due. Unless
            # there was one already (its lock was held), which may be about to listen, or about to be gone.
            late = anyio.current_time() + LISTEN_S
            while True:
                try:
                    return await stack.enter_async_context(control.connect(self._root.nursery_socket))
                except LinkLost as error:
                    last = str(error)
                    if code != 0 or anyio.current_time() > late:
                        break
                await anyio.sleep(pause.next())
        if code:
            said = await threads.run(_said, self._root.nursery_log, said_from)
            raise NotStarted(code, said, self._root.nursery_log)
        text = f"the nursery did not start ({last}); see {self._root.nursery_log}"
        raise LinkLost(text) if code is None else NurseryLeft(text)


class NurseryLeft(LinkLost):
    """Raised when a nursery has listened, and is gone: it ends without jobs and without a daemon."""


class NotStarted(LinkLost):
    """Raised when a nursery exited before it listened. `said`: the end of its stderr, perhaps a traceback."""

    def __init__(self, code: int, said: str, log: Path) -> None:
        last = one_line(said.strip().rpartition("\n")[2])[:MAX_LINE]
        super().__init__(f"the nursery {endings.describe_code(code)}" + (f": {last}" if last else "") + f"; see {log}")
        self.said = said


def _said(path: Path, start: int) -> str:
    """The end of the nursery's log, from the offset `start` on; empty if the log cannot be read. Blocks."""
    if start < 0:
        return ""
    try:
        folder = trust.open_logs(path.parent)
        try:
            fd, _ = trust.open_log(path.name, os.O_RDONLY, folder=folder)
        finally:
            os.close(folder)
        with open(fd, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - MAX_TOLD))
            return file.read(MAX_TOLD).decode("utf-8", "replace")
    except OSError:
        return ""


async def _ended(pid: int) -> int:
    """Waits for a child of ours; returns its exit code (negative for a signal)."""
    pidfd = os.pidfd_open(pid)
    try:
        await anyio.wait_readable(pidfd)
    except BaseException:
        # It hangs, or we are ending: no zombie and no half-started nursery is left behind.
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        raise
    finally:
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(children.wait(pid))
    return code
