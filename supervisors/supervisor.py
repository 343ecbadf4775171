"""The process of one job: forked by the nursery, ended by the job."""

import contextlib
import fcntl
import os
import signal
import socket
import struct
import sys
from pathlib import Path

from supervisors import journal
from supervisors.errors import AlreadySupervised, SupervisionError
from supervisors.gang import Gang
from supervisors.paths import Root
from supervisors.replay import replay
from supervisors.spec import JobSpec

#: How a supervisor leaves: the job has ended; another one has the job; the job's files cannot be worked with.
DONE, BUSY, UNUSABLE = 0, 3, 4
#: struct flock on 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi")


def take_lock(path: Path) -> int:
    """The job's lock, for as long as the returned descriptor is open. A POSIX lock: a forked rank does not inherit it.

    Raises AlreadySupervised where a living process has it, and OSError.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(fd)
        raise AlreadySupervised(f"{path}: another process has the lock") from None
    except OSError:
        os.close(fd)
        raise
    return fd


def lock_holder(path: Path) -> int:
    """Pid of the process that has a job's lock; 0 for none. Must not be called by the holder itself, whose lock the
    closing of the file would release. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return 0
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    finally:
        os.close(fd)
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def supervise(root: Root, job_id: str, sock: socket.socket) -> int:
    """Runs a job to its end; `sock` leads to the nursery. Returns the exit status for this process.

    Raises OSError where the job's files cannot be read or written: the nursery then tries again.
    """
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Nothing but the job's end or a SIGKILL ends a supervisor; jobs are stopped over the control socket.
        signal.signal(number, signal.SIG_IGN)
    paths = root.job(job_id)
    try:
        lock = take_lock(paths.lock)
    except AlreadySupervised:
        return BUSY
    try:
        # Only here can a job be given up: whatever goes wrong later, its ranks live, and a successor tries again.
        contents = journal.read(paths.journal)
        if replay(contents.records).state.final:
            return DONE
        spec = JobSpec.from_json(paths.spec.read_text())
    except (SupervisionError, ValueError, TypeError) as error:
        with contextlib.suppress(OSError):
            print(f"supervisor {job_id}: {error}", file=sys.stderr)
        return UNUSABLE
    Gang(root, spec, contents, sock).loop.run()
    os.close(lock)
    return DONE
