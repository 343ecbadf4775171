"""Gaps: output that could not be written, and the small files that keep the gaps when a supervisor dies."""

import contextlib
import errno
import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.job_logs import OWN_LINE
from muster.supervisors.paths import JobPaths
from muster.supervisors.system import trust

#: Seconds between two tries to open a file of counts that could not be opened.
_AGAIN_S = 1.0
#: Most bytes that are thrown away at a time.
_BATCH = 1 << 17
#: Bytes that a sink holds before their room is given back.
HELD = 1 << 19


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

    def begin(self) -> str:
        """How that line begins, as long as no more is lost."""
        return f"{OWN_LINE}{self.bytes} bytes lost "

    def line(self) -> str:
        """The line that stands in the log in place of the output."""

        def clock(t: float) -> str:
            return time.strftime("%H:%M:%S", time.localtime(t))

        return f"{self.begin()}{clock(self.since)}-{clock(self.until)}: {self.error}]\n"


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


class GapSink:
    """Takes the output of one rank that nothing else takes. It is a file whose size says how much that was in the gap
    that is open: the kernel moves output into it and makes it longer in one step. A reader that reads first and then
    counts may be killed in between.

    Best effort: where there can be no such file, output is read and then counted.
    """

    def __init__(self, path: str) -> None:
        """Opens nothing. Empty: no file."""
        self._path = path
        #: -1: not open.
        self._fd = -1
        self._size = self._emptied = 0

    def left(self) -> int:
        """Bytes that a predecessor threw away in the gap in which it was killed."""
        try:
            return os.stat(self._path, follow_symlinks=False).st_size if self._path else 0
        except OSError:
            return 0

    def begin(self, size: int = 0) -> None:
        """A gap begins, or goes on with this size, which its count has by now."""
        self.close()
        if not self._path:
            return
        with contextlib.suppress(OSError):
            own = Path(self._path).parent
            for folder in (own.parent, own):
                folder.mkdir(mode=0o700, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._size = size
            self._empty()

    def take(self, fifo: int) -> int:
        """Throws away what is in the FIFO, some of it; returns how much. The caller has counted all that came before.
        Raises BlockingIOError where it is empty."""
        if self._fd < 0:
            return len(os.read(fifo, _BATCH))
        try:
            if self._size - self._emptied > HELD:
                self._empty()
            taken = os.splice(fifo, self._fd, _BATCH, offset_dst=self._size, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            raise
        except OSError:
            taken = len(os.read(fifo, _BATCH))
            self.add(taken)
            return taken
        self._size += taken
        return taken

    def add(self, count: int) -> None:
        """So much was lost otherwise."""
        self._size += count
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)

    def end(self) -> None:
        """The gap is over, and settled in its count."""
        self.close()
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def close(self) -> None:
        """The file stays: it is the successor's."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _empty(self) -> None:
        """What it holds is not kept: only the size stays. Raises OSError."""
        os.ftruncate(self._fd, 0)
        os.ftruncate(self._fd, self._size)
        self._emptied = self._size


class Counts:
    """Keeps a `Count` for each rank in two small files, so that a successor goes on with it.

    `lost` has 24 bytes for each rank, little endian: `u64 lost`, `u64 told`, `f64 since`, as in release 0.1, whose
    supervisors may take the job over. `ends` has 16: `u64 end + 1`, `i32 errno`, `u32 inode`. Both have all their
    bytes before the ranks start, so they need no room later.

    A file that cannot be opened or written stops nothing: the counts are then kept in the run folder, which is in
    memory as a rule, and it is tried again each second.
    """

    LOST = struct.Struct("<QQd")
    END = struct.Struct("<QiI")

    def __init__(
        self, lost: Path, ends: Path, ranks: int, spare: tuple[Path, Path] | None = None, sinks: Path | None = None
    ) -> None:
        """`spare`: where they are kept while `lost` and `ends` take nothing; None: nowhere. `sinks`: the folder of the
        ranks' sinks, which is made when it is needed; None: there are none."""
        self._sinks = sinks
        self._counts = [Count() for _ in range(ranks)]
        for slot, found in enumerate(read_counts(lost, ends, spare)[:ranks]):
            self._counts[slot] = found
        lost_too, ends_too = spare or (None, None)
        self._lost = _Table(lost, lost_too, self.LOST.size, lambda: b"".join(map(self._packed_lost, self._counts)))
        self._ends = _Table(ends, ends_too, self.END.size, lambda: b"".join(map(self._packed_end, self._counts)))

    def __getitem__(self, slot: int) -> Count:
        """To be changed in place; `store` or `store_end` then writes it."""
        return self._counts[slot]

    def sink(self, slot: int) -> GapSink:
        """Where a rank's output goes in a gap."""
        return GapSink(f"{self._sinks}/{slot}" if self._sinks is not None else "")

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


def remove_counts(paths: JobPaths) -> None:
    """Removes what is kept of a job's lost output. Best effort."""
    for path in (paths.lost, paths.ends, *(paths.spare_counts or ())):
        with contextlib.suppress(OSError):
            path.unlink()
    if paths.sinks is not None:
        shutil.rmtree(paths.sinks, ignore_errors=True)


class _Table:
    """A file of records of one size, and the one in its place while it takes nothing."""

    def __init__(self, path: Path, spare: Path | None, size: int, whole: Callable[[], bytes]) -> None:
        self._path, self._spare, self._size, self._whole = path, spare, size, whole
        #: -1: not open. The spare one is open while the other is not.
        self._fd = self._spare_fd = -1
        self._open_at = 0.0
        self._open()

    def store(self, slot: int, record: bytes) -> None:
        if self._fd < 0 and time.monotonic() >= self._open_at:
            self._open()
        if self._fd >= 0:
            try:
                os.pwrite(self._fd, record, slot * self._size)
                return
            except OSError:
                os.close(self._fd)
                self._fd, self._open_at = -1, time.monotonic() + _AGAIN_S
                self._open_spare()
        if self._spare_fd >= 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._spare_fd, record, slot * self._size)

    def close(self) -> None:
        for fd in (self._fd, self._spare_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._spare_fd = -1

    def _open(self) -> None:
        self._open_at = time.monotonic() + _AGAIN_S
        self._fd = self._opened(self._path)
        if self._fd < 0:
            self._open_spare()
        elif self._spare is not None:  # what is in it now counts
            if self._spare_fd >= 0:
                os.close(self._spare_fd)
                self._spare_fd = -1
            with contextlib.suppress(OSError):
                self._spare.unlink()

    def _open_spare(self) -> None:
        if self._spare is not None and self._spare_fd < 0:
            with contextlib.suppress(OSError):
                self._spare.parent.mkdir(mode=0o700, exist_ok=True)
            self._spare_fd = self._opened(self._spare)

    def _opened(self, path: Path) -> int:
        """A descriptor of the file with all counts in it; -1 where that cannot be had."""
        data = self._whole()
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with contextlib.suppress(OSError):
                if os.pwrite(fd, data, 0) == len(data):
                    return fd
            os.close(fd)
        return -1


def read_counts(lost: Path, ends: Path, spare: tuple[Path, Path] | None = None) -> list[Count]:
    """The counts of all ranks, as the files have them; the job's own log comes last. None where there is no such file,
    or it cannot be read. A `spare` file exists only while the other could not be written."""
    lost_too, ends_too = spare or (None, None)
    all_lost = (_read(lost_too, Counts.LOST.size) if lost_too else b"") or _read(lost, Counts.LOST.size)
    all_ends = (_read(ends_too, Counts.END.size) if ends_too else b"") or _read(ends, Counts.END.size)
    counts = [Count(*fields) for fields in Counts.LOST.iter_unpack(all_lost)]
    for count, (end, number, inode) in zip(counts, Counts.END.iter_unpack(all_ends), strict=False):
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
