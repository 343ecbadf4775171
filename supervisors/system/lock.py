"""Which process supervises a job, or has a nursery's name: a lock that a living process holds, even on a read-only file
system.

There are two locks. flock(2) keeps holders apart and needs only a descriptor for reading; for a job it is on the
folder, which always exists. A POSIX lock on the lock file tells the holder's pid (F_GETLK) and keeps out supervisors of
an earlier release, which know no other lock. It is a lock for writing, or for reading on a read-only file system, which
still conflicts with a later F_WRLCK. If the lock file cannot be opened at all, the first lock must do.
"""

import contextlib
import errno
import fcntl
import os
import struct
from pathlib import Path

from muster.probes.kernel import open_files
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


def wait(name: str, folder: int) -> None:
    """Waits until nobody has the lock with the file `name` in the folder with this descriptor, as `take` takes both.
    The holder may rename the folder meanwhile. It ends the wait by its death, too. Must not be called by the holder of
    any other lock with this file. Raises OSError where the file cannot be opened."""
    fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX)
    finally:
        os.close(fd)
    with contextlib.suppress(OSError):  # a file system that has none
        fcntl.flock(folder, fcntl.LOCK_EX)
        fcntl.flock(folder, fcntl.LOCK_UN)


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
    return os.fspath(path) in open_files.targets(pid)


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
