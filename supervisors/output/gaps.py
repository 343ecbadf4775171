"""Output that could not be written: gaps, and the small files in which they outlive their supervisor."""

import contextlib
import errno
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from muster.supervisors.system import trust

#: Seconds between two tries to open a file of counts that could not be opened.
_AGAIN_S = 1.0


@dataclass(slots=True)
class Gap:
    """Output that could not be written: how much, since when (seconds since the epoch), and why.

    `number` is the errno; 0 where no call failed. `until`: when the gap was closed; 0 while it is open. `line_missing`:
    the job ended inside the gap, so its line is not in the file.
    """

    since: float
    error: str
    number: int = 0
    bytes: int = 0
    until: float = 0.0
    line_missing: bool = False

    @classmethod
    def of(cls, error: OSError) -> "Gap":
        """A gap that begins now, because of this error."""
        return cls(time.time(), error.strerror or str(error), error.errno or 0)

    def line(self) -> str:
        """The line that stands in the log in place of the output."""

        def clock(t: float) -> str:
            return time.strftime("%H:%M:%S", time.localtime(t))

        return f"[muster: {self.bytes} bytes lost {clock(self.since)}-{clock(self.until)}: {self.error}]\n"


@dataclass(slots=True)
class Count:
    """What is known of one rank's output. `lost`: bytes that could not be written, ever; `told`: how many of them a
    gap line or a record tells; `since` (seconds since the epoch) and `number` (errno): of the open gap. `end`: bytes of
    output that were written, ever; -1 where that is not known. `inode`: its low 32 bits, of the file that was written
    last; 0 where that is not known."""

    lost: int = 0
    told: int = 0
    since: float = 0.0
    end: int = -1
    number: int = 0
    inode: int = 0

    @property
    def open_gap(self) -> Gap | None:
        """The gap that is open, if one is."""
        if self.lost <= self.told:
            return None
        error = os.strerror(self.number) if self.number else "the file could not be written"
        return Gap(self.since, error, self.number, self.lost - self.told)


class Counts:
    """Keeps a `Count` for each rank in two small files, so that a successor goes on with it.

    `lost` has 24 bytes for each rank, little endian: `u64 lost`, `u64 told`, `f64 since`, as in release 0.1, whose
    supervisors may take the job over. `ends` has 16: `u64 end + 1`, `i32 errno`, `u32 inode`. Both have all their
    bytes before the ranks start, so they need no room later.

    A file that cannot be opened or written stops nothing: the counts then live in memory, and it is tried again.
    """

    LOST = struct.Struct("<QQd")
    END = struct.Struct("<QiI")

    def __init__(self, lost: Path, ends: Path, ranks: int) -> None:
        self._counts = [Count() for _ in range(ranks)]
        for slot, found in enumerate(read_counts(lost, ends)[:ranks]):
            self._counts[slot] = found
        self._lost = _Table(lost, self.LOST.size, lambda: b"".join(map(self._packed_lost, self._counts)))
        self._ends = _Table(ends, self.END.size, lambda: b"".join(map(self._packed_end, self._counts)))

    def __getitem__(self, slot: int) -> Count:
        """To be changed in place; `store` or `store_end` then writes it."""
        return self._counts[slot]

    def store(self, slot: int) -> None:
        """Writes all of a rank's count. Best effort: a count that cannot be kept must not stop the output."""
        self._lost.store(slot, self._packed_lost(self._counts[slot]))
        self.store_end(slot)

    def store_end(self, slot: int) -> None:
        """Writes where a rank's output ends, and the errno of its gap. Best effort."""
        self._ends.store(slot, self._packed_end(self._counts[slot]))

    def close(self) -> None:
        """Closes the files, which stay."""
        self._lost.close()
        self._ends.close()

    def _packed_lost(self, count: Count) -> bytes:
        return self.LOST.pack(count.lost, count.told, count.since)

    def _packed_end(self, count: Count) -> bytes:
        return self.END.pack(count.end + 1, count.number, count.inode)


class _Table:
    """A file of records of one size."""

    def __init__(self, path: Path, size: int, whole: Callable[[], bytes]) -> None:
        self._path, self._size, self._whole = path, size, whole
        self._fd, self._open_at = -1, 0.0
        self._open()

    def store(self, slot: int, record: bytes) -> None:
        if self._fd < 0:
            if time.monotonic() < self._open_at:
                return
            self._open()
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, record, slot * self._size)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _open(self) -> None:
        self._open_at = time.monotonic() + _AGAIN_S
        data = self._whole()
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if os.pwrite(fd, data, 0) < len(data):
                os.close(fd)
                return
            self._fd = fd


def read_counts(lost: Path, ends: Path) -> list[Count]:
    """The counts of all ranks, as the files have them; the job's own log comes last. None where there is no such file,
    or it cannot be read."""
    counts = [Count(*fields) for fields in Counts.LOST.iter_unpack(_read(lost, Counts.LOST.size))]
    for count, (end, number, inode) in zip(counts, Counts.END.iter_unpack(_read(ends, Counts.END.size)), strict=False):
        count.end, count.number, count.inode = end - 1, number, inode
    return counts


def _read(path: Path, size: int) -> bytes:
    """Whole records of a file; none where it cannot be read."""
    try:
        data = trust.read(path)
    except OSError:
        return b""
    return data[: len(data) - len(data) % size]


def no_room(path: Path) -> OSError:
    """The error of a write that took less than it was given."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
