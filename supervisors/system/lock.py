"""Who has a job, a nursery's name: a lock that a living process holds, also on a file system that takes no write.

Two locks are taken. flock(2), which needs no more than a descriptor for reading, keeps holders apart: of a job it is on
the folder, which always exists. Beside it a POSIX lock on the lock file, which tells the holder's pid (F_GETLK) and
keeps supervisors of an earlier release away, which know no other: for writing, or on a read-only file system for
reading, which a later F_WRLCK conflicts with all the same. Where the lock file cannot be opened at all, the first one
must do.
"""

import contextlib
import errno
import fcntl
import os
import struct
from pathlib import Path

from muster.supervisors.supervision_errors import AlreadySupervised, Untrusted
from muster.supervisors.system import trust

#: struct flock on 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi")
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
#: Of file systems that have no flock(2) for what is open for reading only (NFS).
_NO_FLOCK = (errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


#: Descriptors of ours that hold a flock: a child has them, too, until it executes a program, which may take for ever.
_flocks: set[int] = set()


class Lock:
    """Held until `close`, or the end of the process."""

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds
        _flocks.update(fds)

    def is_at(self, path: Path) -> bool:
        """False where another file has taken the place of the one that is locked; True also where there is none."""
        try:
            found = os.stat(path)
            return not self._fds or os.path.samestat(found, os.fstat(self._fds[0]))
        except OSError:
            return True

    def close(self) -> None:
        """Lets go."""
        for fd in self._fds:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)
        _flocks.difference_update(self._fds)
        self._fds = []


def close_inherited() -> None:
    """In a child that was forked: it does not hold its parent's locks."""
    while _flocks:
        with contextlib.suppress(OSError):
            os.close(_flocks.pop())


def take(path: Path, folder: Path | None = None) -> Lock:
    """Takes the lock with the file `path`; `folder`: what flock(2) is taken on in the place of the file.

    Raises AlreadySupervised where a living process has it, Untrusted where file or folder belong to another user, and
    OSError where there is no descriptor to be had.
    """
    fds: list[int] = []
    try:
        trouble = _posix(path, fds)
        if folder is not None:
            fds.append(trust.open_folder(folder, flags=os.O_RDONLY))
        if not (bool(fds) and _flock(fds[-1], path)) and trouble is not None:
            raise trouble
    except BaseException:
        Lock(fds).close()
        raise
    return Lock(fds)


def holder(path: Path) -> int:
    """Pid of the process that has the lock with this file; 0 for none, also where the file, or its folder, does not
    exist. Must not be called by the holder itself, whose lock the closing of the file would release. Raises OSError."""
    try:
        # Whosever it is: nothing in it is believed, and a job whose files are another's is to be removed, too.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    finally:
        os.close(fd)
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def is_open(path: Path, pid: int) -> bool:
    """Whether a process has this file open, as a supervisor has its lock. Asks /proc alone, and so no disk, which may
    not answer."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"/proc/{pid}/fd/{name}") == os.fspath(path):
                    return True
    return False


def _posix(path: Path, fds: list[int]) -> OSError | None:
    """Returns why the file cannot be opened or locked. Raises AlreadySupervised, OSError (no descriptor to be had)."""
    trouble: OSError | None = None
    for flags, kind in ((os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX), (os.O_RDONLY, fcntl.LOCK_SH)):
        try:
            fd = trust.open_own(path, flags)
        except OSError as error:
            if error.errno in _NO_DESCRIPTOR or isinstance(error, Untrusted):
                raise
            trouble = trouble or error
            continue
        fds.append(fd)
        try:
            fcntl.lockf(fd, kind | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise AlreadySupervised(f"{path}: another process holds the lock") from None
        except OSError as error:
            return error
        return None
    return trouble


def _flock(fd: int, path: Path) -> bool:
    """False on a file system that has no such lock. Raises AlreadySupervised, OSError."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AlreadySupervised(f"{path}: another process holds the lock") from None
    except OSError as error:
        if error.errno in _NO_FLOCK:
            return False
        raise
    return True
