"""The start of a nursery. Few imports: the daemon begins it before its own, so that both start side by side."""

import fcntl
import os
import signal
import sys
from pathlib import Path
from stat import S_ISREG

from muster.probes.calls import children
from muster.probes.kernel import process
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.paths import Root
from muster.supervisors.system import descriptors, lock, owner_pipe, trust

#: The only variables of the daemon's environment that the nursery, and through it a supervisor, gets.
_ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")


@dataclass(frozen=True, slots=True)
class Begun:
    """A nursery that is being started. It detaches from its starter, which has the number `pid` and ends once it
    listens. `said_from`: the offset in the log at which its output begins; -1: no log."""

    pid: int
    said_from: int


def begin_early(root: Root, owner_fd: int | None) -> Begun | None:
    """Starts a nursery if there is none. None if there is one, or it cannot be started: the client tries again, and
    says why."""
    try:
        return None if lock.holder(root.nursery_lock) else begin(root, owner_fd)
    except OSError:
        return None


def begin(root: Root, owner_fd: int | None) -> Begun:
    """Starts a nursery. `owner_fd`: of the pipe in supervisors/system/owner_pipe.py. Raises OSError. Blocks."""
    argv = [sys.executable, "-I", "-m", "muster.supervisors.nursery.nursery"]
    argv += ["--run", str(root.run), "--state", str(root.state), "--log", str(root.log), "--name", root.nursery_name]
    # Everybody can see what ranks get (probes/checks/ulimits.py): daemon and nursery raise their own.
    argv += ["--nofile", str(descriptors.given_limit())]
    if owner_fd is not None:
        argv.append("--owned")
    try:
        said = _opened_log(root.nursery_log)
    except OSError as error:  # it also reports over its socket why its supervisors die
        import structlog  # only now: it takes as long as all the rest

        structlog.get_logger(__name__).warning(
            "nursery.log_unwritten", path=str(root.nursery_log), error=error.strerror
        )
        said = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    try:
        stat = os.fstat(said)
        return Begun(_started(argv, said, owner_fd), stat.st_size if S_ISREG(stat.st_mode) else -1)
    except OSError as error:
        raise OSError(error.errno, f"{sys.executable} cannot be started: {error.strerror}") from error
    finally:
        os.close(said)


def _opened_log(path: Path) -> int:
    """Opens the log. Raises OSError: in another user's folder (a volume) it may be a link, or a FIFO whose open() would
    wait forever."""
    folder = trust.open_logs(path.parent)
    try:
        fd, _ = trust.open_log(path.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, folder=folder)
    finally:
        os.close(folder)
    os.set_blocking(fd, True)
    return fd


def _started(argv: list[str], said: int, owner_fd: int | None) -> int:
    """`said`: its stderr."""
    owned = []
    if owner_fd is not None:
        # Of another number: what is duplicated onto itself stays close-on-exec in older C libraries.
        owner_fd = fcntl.fcntl(owner_fd, fcntl.F_DUPFD_CLOEXEC, owner_pipe.FD + 1)
        owned = [(os.POSIX_SPAWN_DUP2, owner_fd, owner_pipe.FD)]
    try:
        return _posix_spawned(argv, said, owned)
    finally:
        if owner_fd is not None:
            os.close(owner_fd)


def _posix_spawned(argv: list[str], said: int, owned: list[tuple[int, int, int]]) -> int:
    return children.spawn(
        sys.executable,
        argv,
        {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, said, 2),
            *owned,
        ],
        setsid=True,
        # This thread's mask and the daemon's ignored signals are not the nursery's. None ends it before it
        # ignores those that go to everybody.
        setsigmask=(*process.END_SIGNALS, *process.USER_SIGNALS),
        setsigdef=sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}),
    )
