"""One daemon per root: a lock in the run folder, for its sockets, and one on the state folder, for what it writes."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.agent.errors import StartupError
from muster.agent.host.state_folder import DEGRADES, OTHER_ROOT
from muster.supervisors.supervision_errors import AlreadySupervised, Untrusted, explain, remedy
from muster.supervisors.system import lock


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Holds the lock on `path` as long as the context lives; the file names the pid of the holder.

    Raises StartupError where another process has it, naming that process. The file stays: who removed it could not
    know that nobody has just opened it.
    """
    fd = _opened(path)
    try:
        with contextlib.suppress(OSError):
            os.fchmod(fd, 0o600)  # one of before may be open to all, and flock(2) asks only that it can be read
        _take(fd, path)
        yield
    finally:
        os.close(fd)


@contextmanager
def state_held(path: Path) -> Iterator[None]:
    """Holds the state folder that `path` is in, as long as the context lives. It outlives the run folder, which anybody
    who cleans up may remove with the lock in it; two daemons would write over each other's events.

    Raises StartupError where another process has it, naming that process.
    """
    try:
        kept = lock.take(path, path.parent)
    except AlreadySupervised:
        with contextlib.suppress(OSError):
            if pid := lock.holder(path):
                raise StartupError(
                    f"{path.parent}: another musterd (pid {pid}) writes to this state folder: end it first "
                    f"(`kill {pid}`; jobs run on), or choose another --root"
                ) from None
        raise StartupError(
            f"{path.parent}: another musterd (an unknown pid; in another container?) writes to this state folder: end "
            "it first, or choose another --root"
        ) from None
    except Untrusted as error:
        raise StartupError(str(error)) from None
    except OSError as error:
        raise StartupError(f"cannot take the lock {path}: {explain(error)}") from error
    with contextlib.closing(kept):
        yield


def _opened(path: Path) -> int:
    """For reading only where the disk takes no write: flock(2) asks for no more. Raises StartupError."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        with contextlib.suppress(OSError):
            if error.errno in DEGRADES:
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        raise StartupError(f"cannot open the lock {path}: {error.strerror}; {remedy(error, OTHER_ROOT)}") from error


def _take(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(OSError):  # the disk is full: readers then report an unknown pid
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        who = f"pid {holder}" if holder.isdigit() else "an unknown pid"
        raise StartupError(
            f"{path}: another musterd ({who}) serves this root: stop it first, or choose another --root"
        ) from None
    except OSError as error:
        raise StartupError(f"cannot take the lock {path}: {error.strerror}; {remedy(error, OTHER_ROOT)}") from error
