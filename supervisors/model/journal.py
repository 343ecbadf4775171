"""The journal of a job: the one thing on disk that says what happened.

A record is a line: eight hexadecimal digits of CRC-32 over the rest, a space, a JSON object with the keys `n` (number
of the record, from 0), `t` (seconds since the epoch), `kind` and what belongs to the kind (see replay.py). Only
one process writes at a time: the holder of the job's lock. A last line that is torn (a crash in the middle of a write)
is dropped, since no process can have relied on it; any other damage is reported.
"""

import contextlib
import ctypes
import errno
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.supervision_errors import JournalDamaged
from muster.supervisors.system import trust

Record = dict[str, Any]

#: Written into the first record; a reader refuses others.
FORMAT = 2
#: Room set aside for a job's later records, so that a full disk cannot lose an exit code: bytes, and bytes per rank.
RESERVE = 65536
RESERVE_PER_RANK = 4096
_FALLOC_FL_KEEP_SIZE = 1
#: Made once: `json.dumps` makes one for each call.
_compact = json.JSONEncoder(separators=(",", ":")).encode
_libc = ctypes.CDLL(None, use_errno=True)


def sealed(body: bytes) -> bytes:
    """A line of it, with checksum and newline; the events on disk have the same (agent/events/segments.py)."""
    return b"%08x %s\n" % (zlib.crc32(body), body)


def unsealed(line: bytes) -> bytes | None:
    """The body of a line with its newline; None where it is not as it was written."""
    body = line[9:-1]
    return body if line[:9] == b"%08x " % zlib.crc32(body) else None


def encode(record: Record) -> bytes:
    """One line, with checksum and newline."""
    return sealed(_compact(record).encode())


@dataclass(frozen=True, slots=True)
class Contents:
    """What was read: the records, and the offset behind the last whole one."""

    records: list[Record]
    end: int
    torn: bool


def read(path: Path, offset: int = 0, first: int = 0) -> Contents:
    """Reads the records from `offset` on, the first of which must have the number `first`.

    A last line without its newline is torn: it is left out, and `torn` says so. Raises JournalDamaged where any other
    record is not as it was written, Untrusted for a file of another user, and OSError as open(2) does.
    """
    with open(trust.open_own(path, os.O_RDONLY), "rb") as file:
        file.seek(offset)
        data = file.read()
    records: list[Record] = []
    end = offset
    for _, line in lines(data):
        number = first + len(records)
        if not line.endswith(b"\n"):
            return Contents(records, end, torn=True)
        record = decode(line)
        if record is None:
            what = "the checksum does not match; the record cannot be trusted"
            raise JournalDamaged(str(path), number + 1, what, records)
        if record.get("n") != number:
            what = f"found record {record.get('n')}, expected record {number}"
            raise JournalDamaged(str(path), number + 1, what, records)
        records.append(record)
        end += len(line)
    return Contents(records, end, torn=False)


def lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines with their newlines, and the offset of each; the last one may have no newline."""
    start = 0
    while start < len(data):
        stop = data.find(b"\n", start) + 1 or len(data)
        yield start, data[start:stop]
        start = stop


def decode(line: bytes) -> Record | None:
    """Of one line with its newline; None where it is not as it was written."""
    body = unsealed(line)
    if body is None:
        return None
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def room(ranks: int) -> int:
    """Bytes that are set aside for the records of a job with so many ranks."""
    return RESERVE + ranks * RESERVE_PER_RANK


def set_aside(fd: int, length: int) -> None:
    """Reserves disk space for the first `length` bytes of a file without changing its size.

    Raises OSError where there is no room; does nothing on a file system that has no such call.
    """
    if _libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(length)) != 0:
        error = ctypes.get_errno()
        if error in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(error, os.strerror(error))


class Writer:
    """Appends records. The caller holds the job's lock."""

    def __init__(self, path: Path, contents: Contents) -> None:
        """Opens `path` for appending after what was read from it; a torn tail is cut off. A journal that has records
        and cannot be opened now (a read-only file system) is opened with the next record. Raises OSError for a new
        one."""
        self._path = path
        self._fd = -1
        self._end = contents.end
        self._next = len(contents.records)
        self._torn = contents.torn
        with contextlib.suppress(*[OSError] if contents.records else []):
            self._open()

    @property
    def size(self) -> int:
        """Bytes of whole records."""
        return self._end

    @property
    def next_number(self) -> int:
        """The number of the next record."""
        return self._next

    def reserve(self, ranks: int) -> None:
        """Sets disk space aside, without changing the file's size. Raises OSError (ENOSPC); where the file system has
        no such call there is no reserve."""
        self._open()
        set_aside(self._fd, self._end + room(ranks))

    def append(self, records: list[Record], *, sync: bool = True) -> None:
        """Writes records (numbering them) in one go, by default onto the disk.

        Raises OSError; the file then is as it was before, and the call may be tried again.
        """
        data = b"".join(encode({"n": self._next + i} | record) for i, record in enumerate(records))
        self._open()
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self._end + written)
            if sync:
                os.fdatasync(self._fd)
        except OSError:
            # Should this fail too, the tail is a torn line, which the next reader drops.
            with contextlib.suppress(OSError):
                self._cut()
            raise
        self._end += len(data)
        self._next += len(records)

    def close(self) -> None:
        """Closes the file; the next append opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _open(self) -> None:
        """Opens the file if that was not done; a torn tail is cut off. Raises OSError."""
        if self._fd < 0:
            self._fd = trust.open_own(self._path, os.O_WRONLY | os.O_CREAT)
        if self._torn:
            self._cut()
            os.fdatasync(self._fd)
            self._torn = False

    def _cut(self) -> None:
        """Back to the last whole record, keeping the room that was set aside: a truncation gives it back."""
        allocated = os.fstat(self._fd).st_blocks * 512
        os.ftruncate(self._fd, self._end)
        with contextlib.suppress(OSError):
            set_aside(self._fd, allocated)
