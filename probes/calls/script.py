"""One run of a script whose output and lifetime are bounded, in a session of its own, with the usual priority and OOM
score; its process group is killed whole.

It is started by posix_spawn, since a process with threads must not fork, and by and from one thread that stays
with it until it was waited for, so that neither a zombie nor a hanging execve is left to anybody else.
"""

import contextlib
import fcntl
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator

from muster.probes.calls import children
from muster.probes.kernel import open_files
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.known_names import DEFAULT_PATH

#: In bytes: what is kept of each of stdout and stderr unless somebody wants more, and how much is read and thrown away
#: before the script is ended.
KEPT = 4096
FLOOD = 1 << 20
#: What an operator's script gets beside what says what it is run for: never our own variables, which may be secrets.
ENV = {"PATH": DEFAULT_PATH, "LANG": "C.UTF-8"}
#: Seconds that a killed one may take to be gone before its thread is left alone with it.
LINGER_S = 1.0
#: All that can be reset; Python ignores SIGPIPE and SIGXFSZ, and a script must not inherit that.
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


@dataclass(frozen=True, slots=True)
class ScriptEnd:
    """How a script ended. `returncode` is negative for a signal (-9: SIGKILL)."""

    returncode: int
    stdout: bytes
    stderr: bytes
    flooded: bool


class Script:
    """A script that is run once, by `run` in a thread; `kill` may be called from any other."""

    def __init__(
        self,
        path: str,
        env: dict[str, str],
        args: tuple[str, ...] = (),
        kept: int = KEPT,
        stdin: bytes = b"",
        patient: bool = False,
        begun: Callable[[int], None] | None = None,
        outlives: bool = False,
    ) -> None:
        """`kept`: bytes that are kept of each of stdout and stderr: the first ones. `stdin`: what it can read; it need
        not. `patient`: it may write without end, and what is kept are the last bytes. `begun` is called with its pid,
        in the thread that runs it. `outlives`: it is to go on if we are killed, so what it writes then must not end it
        (SIGPIPE)."""
        self._argv = [path, *args]
        self._env = env
        self._kept = -kept if patient else kept
        self._stdin = stdin
        self._begun = begun
        self._outlives = outlives
        self._lock = threading.Lock()
        self.pid = 0
        self._killed = False

    def run(self) -> ScriptEnd:
        """Starts the script, waits for its end and kills what is left of its process group.

        Raises OSError where it cannot be executed (also for `kill` before it was started).
        """
        out, out_w = _pipe(self._outlives)
        err, err_w = _pipe(self._outlives)
        try:
            try:
                pid = self._spawn(out_w, err_w)
            finally:
                os.close(out_w)
                os.close(err_w)
            return self._attend(pid, out, err)
        finally:
            os.close(out)
            os.close(err)

    def kill(self) -> None:
        """Kills the script and its process group; before it was started: it then ends right after its start."""
        with self._lock:
            self._killed = True
            self._kill_group()

    def _kill_group(self) -> None:
        # Under the lock, and `pid` is reset before the leader is waited for: the number cannot be another group's.
        if self.pid:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # nothing is left, or a set-user-id program that is not ours to kill

    def _spawn(self, stdout: int, stderr: int) -> int:
        # In memory: unlike a pipe it takes all at once, whether anybody reads it or not, and unlike a file no disk.
        with os.fdopen(os.memfd_create("stdin", os.MFD_CLOEXEC), "w+b") as stdin:
            stdin.write(self._stdin)
            stdin.seek(0)
            with _usual_priority():
                pid = children.spawn(
                    self._argv[0],
                    self._argv,
                    self._env,
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, stdin.fileno(), 0),
                        (os.POSIX_SPAWN_DUP2, stdout, 1),
                        (os.POSIX_SPAWN_DUP2, stderr, 2),
                        *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable()),
                    ],
                    # Not in the daemon's session, whose priority may be a high one.
                    setsid=True,
                    setsigmask=[],
                    setsigdef=_SIGNALS,
                )
        # The daemon's is for the daemon. It was not reaped, so the number is still its own.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write("0")
        with self._lock:
            self.pid = pid
            if self._killed:
                self._kill_group()
        if self._begun is not None:
            self._begun(pid)
        return pid

    def _attend(self, pid: int, out: int, err: int) -> ScriptEnd:
        outputs = {out: bytearray(), err: bytearray()}
        flooded = False
        try:
            pidfd = os.pidfd_open(pid)
            try:
                flooded = _drain(pidfd, outputs, self._kept)
            finally:
                os.close(pidfd)
        finally:
            # The leader is still unreaped here. Whatever it left behind in its group goes with it.
            with self._lock:
                self._kill_group()
                self.pid = 0
            status = children.wait(pid)
        return ScriptEnd(os.waitstatus_to_exitcode(status), bytes(outputs[out]), bytes(outputs[err]), flooded)


def _pipe(own_reader: bool) -> tuple[int, int]:
    """Its ends. `own_reader`: who has the second is a reader as well, so that it always has one."""
    reading, writing = os.pipe()
    if own_reader:
        both = os.open(f"/proc/self/fd/{writing}", os.O_RDWR | os.O_CLOEXEC)
        os.close(writing)
        writing = both
        with contextlib.suppress(OSError):  # nobody may empty it: room for as much as is read at all
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, FLOOD)
    return reading, writing


@contextlib.contextmanager
def _usual_priority() -> Iterator[None]:
    """For this thread and whom it starts: a daemon's high one is for its answers."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(before, 0))
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):  # without root it may only be lowered
            os.setpriority(os.PRIO_PROCESS, 0, before)


def _inheritable() -> list[int]:
    """Descriptors that would leak into a script: not Python's own, but those of libraries and of our parent."""
    found = []
    for fd in open_files.numbers():
        try:
            if fd > 2 and os.get_inheritable(fd):
                found.append(fd)
        except OSError:
            pass  # closed since the folder was listed, as is the one with which it was
    return found


def _drain(pidfd: int, outputs: dict[int, bytearray], limit: int) -> bool:
    """Reads until the process has ended. True: it wrote more than anybody wants to read and has to be ended. `limit`:
    bytes kept; where it is negative, of the end, however much there is.

    The process's end is what counts, not the end of its output: a background child may hold that open for ever.
    """
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    for fd in outputs:
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    total = 0
    while True:
        ready = [fd for fd, _ in poll.poll()]
        ended = pidfd in ready
        # What was written before the end is in the pipes by now.
        for fd in outputs if ended else ready:
            total += _read(fd, outputs[fd], limit, poll, ended)
        if ended:
            return False
        if total > FLOOD and limit >= 0:
            return True


def _read(fd: int, kept: bytearray, limit: int, poll: select.poll, to_end: bool) -> int:
    total = 0
    while total <= FLOOD:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            break
        if not data:
            if not to_end:
                poll.unregister(fd)
            break
        total += len(data)
        if limit < 0:
            kept += data
            del kept[:limit]
        else:
            kept += data[: limit - len(kept)]
        if not to_end:
            break
    return total
