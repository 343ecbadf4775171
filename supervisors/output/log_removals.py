"""Records of removed output, in `<name>.removed` beside the log (log_segments.py)."""

import contextlib
import errno
import fcntl
import json
import os
import time
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.output import gzip_members
from muster.supervisors.output.log_segments import Piece, forget, removed_path
from muster.supervisors.system import trust

#: No record of what was removed is longer, in bytes.
_RECORD = 4096
#: A record is written in less than a millisecond: the lock is tried so often, with this pause.
_LOCK_TRIES, _LOCK_PAUSE_S = 20, 0.002


@dataclass(frozen=True, slots=True)
class Removed:
    """Output that is not kept any more. `at`: when the last of it was removed, which began at `last`, in seconds since
    the epoch. `lost`: somebody took it away; otherwise muster removed it, as a setting or a command said."""

    start: int
    end: int
    at: float
    why: str
    last: int
    lost: bool = False


def removals(log: Path) -> list[Removed]:
    """What was removed of a log, in the order of time. Lines that are no records are left out. Raises OSError."""
    try:
        fd = gzip_members.open_read(removed_path(log))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.EINVAL):  # none, or nothing of ours
            return []
        raise
    with open(fd, "rb") as file:
        _lock(fd, fcntl.LOCK_SH)
        return [found for line in file if (found := _removed(line)) is not None]


def record_removal(log: Path, start: int, end: int, why: str, *, lost: bool = False) -> None:
    """To be called before the bytes are removed; `lost`: see `Removed`. What lies right behind what the last record
    tells, and goes for the same reason, becomes part of that one: a job of weeks may give up a segment each second.
    Raises OSError, with no record made that would count."""
    fd = _open(removed_path(log))
    try:
        _lock(fd, fcntl.LOCK_EX)
        size = os.fstat(fd).st_size
        tail = os.pread(fd, _RECORD, max(0, size - _RECORD))
        old = tail[tail.rfind(b"\n", 0, -1) + 1 :]
        record, fields, place = _removed(old), {"start": start, "end": end, "at": round(time.time(), 3)}, size
        if record is not None and old.endswith(b"\n") and (record.end, record.why) == (start, why):
            fields |= {"start": record.start, "last": start}
            place -= len(old)
        body = json.dumps(fields | {"why": why} | ({"lost": True} if lost else {})).encode()
        line = body.ljust(len(old) - 1 if place < size else 0) + b"\n"
        if place == size and old and not old.endswith(b"\n"):  # somebody was killed, or found no room, in one
            line = b"\n" + line
        if os.pwrite(fd, line, place) < len(line):
            os.pwrite(fd, old if place < size else b"", place)
            os.ftruncate(fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(removed_path(log)))
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    """Raises OSError, also for what somebody put there that is no file, or another name of one elsewhere."""
    folder = trust.open_logs(path.parent)
    try:
        return trust.open_log(path.name, os.O_RDWR | os.O_CREAT, folder=folder)[0]
    finally:
        os.close(folder)


def _removed(line: bytes) -> Removed | None:
    """None: it is no record."""
    try:
        record = json.loads(line)
        start = int(record["start"])
        end, at, last = int(record["end"]), float(record["at"]), int(record.get("last", start))
        return Removed(start, end, at, str(record["why"]), last, record.get("lost") is True)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def _lock(fd: int, how: int) -> None:
    """So that nobody reads a record that is being written. Best effort: not every file system has it, and in a folder
    of others somebody may keep the lock for ever."""
    with contextlib.suppress(OSError):
        for _ in range(_LOCK_TRIES):
            try:
                return fcntl.flock(fd, how | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOCK_PAUSE_S)


def remove(log: Path, piece: Piece, why: str) -> None:
    """Removes a segment, with a record of it. Raises OSError; what is recorded then counts as gone all the same."""
    record_removal(log, piece.start, piece.end, why)
    forget(log, piece.start, piece.end)
