"""Refuses a second run with the same job id and log folder, because both would write the same files."""

import contextlib
import fcntl
import os
import socket
import time
from pathlib import Path

from muster.agent.cli.client.patience import within
from muster.agent.cli.exits import CommandFailed, Exit

#: Seconds that the file system has to lock a file: a server that is down may never answer.
ANSWER_S = 5.0
_MAX_WORDS = 500


class LogClaim:
    """A lock on the names of a job's logs. A process that inherits `fd` holds it, too; -1 if they cannot be locked."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self.fd = path, fd

    def close(self, *, over: bool) -> None:
        """`over`: nobody else holds it any more, so that the file can be removed."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                if over:
                    self._path.unlink()
            os.close(self.fd)
        self.fd = -1


def claim(log_dir: Path, job_id: str, node_rank: int) -> LogClaim:
    """Raises CommandFailed where another run has these names."""
    path = log_dir / f".{job_id}-{node_rank}@{socket.gethostname()}.run"
    try:
        fd = _locked(path)
    except BlockingIOError:
        words = path.read_text("utf-8", "replace")[:_MAX_WORDS].strip() or "an unknown process"
        raise CommandFailed(
            f"job {job_id}: another run ({words}) writes logs of this name into {log_dir}: wait for its end, or give "
            "another --job-id or --log-dir",
            Exit.REFUSED,
        ) from None
    except OSError:  # another user's folder, a file system without locks: existing logs are set aside, as ever
        return LogClaim(path, -1)
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"pid {os.getpid()} on {socket.gethostname()}, begun {when}\n".encode(), 0)
    return LogClaim(path, fd)


def _locked(path: Path) -> int:
    """Raises BlockingIOError where somebody has it, OSError where it cannot be locked."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            _lock(fd)
            with contextlib.suppress(FileNotFoundError):
                found, ours = path.stat(follow_symlinks=False), os.fstat(fd)
                if (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # it was removed by its holder at this very moment


def _lock(fd: int) -> None:
    mine = os.dup(fd)  # if this hangs, the thread has a descriptor of its own

    def work() -> None:
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(mine)

    within(ANSWER_S, work)
