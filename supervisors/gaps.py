"""Output that could not be written: gaps, and the small file in which they outlive their supervisor."""

import contextlib
import errno
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

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
    output that were written, ever; -1 where that is not known."""

    lost: int = 0
    told: int = 0
    since: float = 0.0
    end: int = -1
    number: int = 0

    @property
    def open_gap(self) -> Gap | None:
        """The gap that is open, if one is."""
        if self.lost <= self.told:
            return None
        error = os.strerror(self.number) if self.number else "the file could not be written"
        return Gap(self.since, error, self.number, self.lost - self.told)


class Counts:
    """Keeps a `Count` for each rank in a small file, so that a successor goes on with it.

    The file is a header of 16 bytes, then for each rank 40 bytes, little endian: `u64 lost`, `u64 told`, `f64 since`,
    `u64 end + 1`, `i32 errno`, 4 bytes of zeros. It has all its bytes before the ranks start, so it needs no room
    later. A file of release 0.1 has no header and 24 bytes for each rank: the first three fields.

    A file that cannot be opened or written stops nothing: the counts then live in memory, and the file is tried again.
    """

    HEADER = b"muster output 2\n"
    RECORD = struct.Struct("<QQdQi4x")
    OLD_RECORD = struct.Struct("<QQd")

    def __init__(self, path: Path, ranks: int) -> None:
        self._path = path
        self._counts = [Count() for _ in range(ranks)]
        for count, found in zip(self._counts, read_counts(path), strict=False):
            count.lost, count.told, count.since = found.lost, found.told, found.since
            count.end, count.number = found.end, found.number
        self._fd = -1
        self._open_at = 0.0
        self._open()

    def __getitem__(self, slot: int) -> Count:
        """To be changed in place; `store` then writes it."""
        return self._counts[slot]

    def store(self, slot: int) -> None:
        """Writes the count of one rank into the file. Best effort: a count that cannot be kept must not stop output."""
        if self._fd < 0:
            if time.monotonic() < self._open_at:
                return
            self._open()
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, self._packed(slot), len(self.HEADER) + slot * self.RECORD.size)

    def close(self) -> None:
        """Closes the file, which stays."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _open(self) -> None:
        self._open_at = time.monotonic() + _AGAIN_S
        data = self.HEADER + b"".join(self._packed(slot) for slot in range(len(self._counts)))
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if os.pwrite(fd, data, 0) < len(data):
                os.close(fd)
                return
            self._fd = fd

    def _packed(self, slot: int) -> bytes:
        count = self._counts[slot]
        return self.RECORD.pack(count.lost, count.told, count.since, count.end + 1, count.number)


def read_counts(path: Path) -> list[Count]:
    """The counts of all ranks, as the file has them; the job's own log comes last. None where there is no such file,
    or it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            data = os.read(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
    except OSError:
        return []
    if not data.startswith(Counts.HEADER):
        whole = len(data) - len(data) % Counts.OLD_RECORD.size
        return [Count(*fields) for fields in Counts.OLD_RECORD.iter_unpack(data[:whole])]
    data = data[len(Counts.HEADER) :]
    whole = len(data) - len(data) % Counts.RECORD.size
    found = Counts.RECORD.iter_unpack(data[:whole])
    return [Count(lost, told, since, end - 1, number) for lost, told, since, end, number in found]


def no_room(path: Path) -> OSError:
    """The error of a write that took less than it was given."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
