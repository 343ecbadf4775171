"""Reading the files of ranks: by offset, by time, from the end, several merged in the order of time, and following.

Nothing is held open and no file is held in memory, however long it is: a reader keeps an offset per rank and a kilobyte
of its time index, and opens a file for as long as one batch takes. So 200 followers of 256 ranks cost no descriptors,
and a file that was replaced is noticed.

Offsets and sizes are those of all output of a rank, in whatever files it lies by now
(supervisors/output/log_segments.py). Where something was removed, reading goes on behind it.
"""

import heapq
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import anyio

from muster.agent.errors import OffsetOutOfRange
from muster.agent.host.log_folder import folder
from muster.agent.host.turns import in_turn
from muster.supervisors.output.gzip_members import open_read
from muster.supervisors.output.log_layout import Layout
from muster.supervisors.output.log_reader import Reader
from muster.supervisors.output.time_index import INDEX_INTERVAL_S, INDEX_RECORD

#: Most bytes in a chunk; and most bytes and chunks in a batch, which is what one reader has in memory.
CHUNK = 64 * 1024
BATCH_BYTES = 4 * CHUNK
BATCH_CHUNKS = 256
#: Seconds between two looks at the files of a job that is followed: the first while output comes, the second at rest.
POLL_MIN_S = 0.02
POLL_MAX_S = 0.25
#: A step of the search for lines from the end, in bytes; between two steps it can be cancelled, and others read.
TAIL_STEP = 4 << 20
_INDEX_AHEAD = 64 * INDEX_RECORD.size


@dataclass(frozen=True, slots=True)
class RankLogFile:
    """Output and time index of one rank."""

    rank: int
    path: Path
    index: Path

    def size(self) -> int:
        """Bytes of output ever; 0 for a file that is not there (yet). Raises OSError for other reasons."""
        return look([self])[0].end


@dataclass(frozen=True, slots=True)
class Chunk:
    """Output of one rank. `time` in nanoseconds since the epoch, None where no index tells it. `truncated`: the file
    has become shorter than what was read of it; reading goes on at `offset`."""

    rank: int
    offset: int
    data: bytes
    time: int | None = None
    truncated: bool = False


def look(files: list[RankLogFile]) -> list[Layout]:
    """How files of one folder lie there now. Raises OSError."""
    return folder(files[0].path.parent).look([file.path for file in files]) if files else []


class TimeIndex:
    """Tells when the bytes at an offset were written, for offsets that grow."""

    def __init__(self, path: Path) -> None:
        """Opens nothing yet."""
        self._path = path
        #: Number of the record that is read next, None: to be found; and the one before it.
        self._next: int | None = None
        self._last = b""
        self._ahead: list[tuple[int, int]] = []
        self._time: int | None = None

    def segment(self, position: int, limit: int) -> tuple[int | None, int]:
        """When the byte at `position` was written, and up to where this holds: at most `limit`."""
        while True:
            if not self._ahead:
                self._read_ahead(position)
            if not self._ahead:
                return self._time, limit
            offset, when = self._ahead[-1]
            if offset > position:
                return self._time, min(offset, limit)
            self._time = when
            self._ahead.pop()

    def forget(self) -> None:
        """The file was cut: records read ahead speak of bytes that are gone, and so do those that went from the index
        before others came (IndexWriter in supervisors/output/time_index.py)."""
        self._ahead = []
        self._next = self._time = None

    def _read_ahead(self, position: int) -> None:
        fd = _open(self._path)
        if fd is None:
            return
        size = INDEX_RECORD.size
        try:
            if self._next and os.pread(fd, size, (self._next - 1) * size) != self._last:
                self.forget()  # it has become shorter since, or is another
            if self._next is None:
                # The record before the first that is beyond `position` is the one that holds for it.
                self._next = max(0, _bisect(fd, lambda offset, _: offset > position) - 1)
            data = os.pread(fd, _INDEX_AHEAD, self._next * size)
        finally:
            os.close(fd)
        if whole := len(data) // size:
            self._next += whole
            self._last = data[(whole - 1) * size : whole * size]
        self._ahead = [INDEX_RECORD.unpack_from(data, i * size) for i in reversed(range(whole))]


def offset_since(file: RankLogFile, when: int, size: int) -> int:
    """Where the output at or after `when` (nanoseconds since the epoch) begins; `size` where there is none.

    The index is good for 100 ms: bytes are told to be up to so much older than they are, so reading begins with the
    record that may hold younger ones. Of what is before the first record it is only known that it is not younger than
    that: the index may have been made anew. Without an index only the file's own time helps.
    """
    found = _first_after(file.index, when - int(INDEX_INTERVAL_S * 1e9), first=0)
    if found is not None:
        return min(found, size)
    try:
        return size if file.path.stat().st_mtime_ns < when else 0
    except FileNotFoundError:
        return 0


def offset_until(file: RankLogFile, when: int, size: int) -> int:
    """Where the first output that was written after `when` (nanoseconds since the epoch) begins; `size` where there is
    none, or no index that tells it. What the index tells to be up to 100 ms older than it is may still be before it."""
    found = _first_after(file.index, when)
    return size if found is None else min(found, size)


def _first_after(index: Path, when: int, first: int | None = None) -> int | None:
    """The offset of the first record after a time; beyond any offset where all are before it; None without records.
    `first`, if it is given, comes in the place of the very first one's."""
    fd = _open(index)
    if fd is None:
        return None
    try:
        number = _bisect(fd, lambda _, at: at > when)
        found = os.pread(fd, INDEX_RECORD.size, number * INDEX_RECORD.size)
    finally:
        os.close(fd)
    if len(found) < INDEX_RECORD.size:
        return sys.maxsize if number else None
    if not number and first is not None:
        return first
    return int(INDEX_RECORD.unpack(found)[0])


async def tail_offset(file: RankLogFile, lines: int, size: int) -> int:
    """Where the last `lines` lines before `size` begin, found from the end. A last line without newline counts."""
    if lines == 0:
        return size
    position, missing = size, lines
    while missing > 0:
        position, missing = await in_turn(_tail_step, file.path, position, missing, position == size)
    return position


def _tail_step(path: Path, end: int, missing: int, at_end: bool) -> tuple[int, int]:
    """Looks at the bytes before `end`. Returns the offset of the line sought, or of the first byte that is kept, and 0;
    or where to go on and the lines still missing."""
    with Reader(folder(path.parent)) as reader:
        lowest = end - TAIL_STEP
        while end > lowest:
            piece = reader.layout(path).before(end)
            if piece is None:
                return end, 0
            end = min(end, piece.end)
            first = max(piece.start, lowest, end - CHUNK)
            start, block = reader.stretch(path, first, end)
            stop = len(block)
            if at_end and block.endswith(b"\n"):
                stop -= 1  # the newline that ends the last line begins no other
            at_end = False
            while (found := block.rfind(b"\n", 0, stop)) >= 0:
                missing -= 1
                if missing == 0:
                    return start + found + 1, 0
                stop = found
            end = first
        return end, missing


async def sizes_of(files: list[RankLogFile]) -> dict[int, int]:
    """Sizes in bytes by rank. Raises OSError."""
    return await in_turn(_sizes, files)


async def starts(
    files: list[RankLogFile],
    sizes: dict[int, int],
    offsets: dict[int, int],
    tail_lines: int | None,
    since: int | None,
) -> dict[int, int]:
    """Where to begin reading each rank: at its offset if it has one, else where `tail_lines` and `since` (nanoseconds
    since the epoch) say, the later of the two. Nothing begins before what is kept. Raises OffsetOutOfRange."""
    layouts = await in_turn(look, files)
    begins = {file.rank: min(layout.begin, sizes[file.rank]) for file, layout in zip(files, layouts, strict=True)}
    for rank, offset in offsets.items():
        if not begins[rank] <= offset <= sizes[rank]:
            raise OffsetOutOfRange(rank, offset, sizes[rank], begins[rank])
    positions: dict[int, int] = {}
    for file in files:
        size = sizes[file.rank]
        if file.rank in offsets:
            positions[file.rank] = offsets[file.rank]
            continue
        positions[file.rank] = begins[file.rank]
        if since is not None:
            found = await in_turn(offset_since, file, since, size)
            positions[file.rank] = max(positions[file.rank], found)
        if tail_lines is not None:
            positions[file.rank] = max(positions[file.rank], await tail_offset(file, tail_lines, size))
    return positions


@dataclass(slots=True)
class _Stream:
    """One rank in a merge: what is to be read is [position, limit), of which [position, end) was written at `time`."""

    file: RankLogFile
    index: TimeIndex
    position: int
    limit: int = 0
    end: int = 0
    time: int | None = None


class Merge:
    """Reads several ranks in the order of time: always the rank whose next bytes are the oldest.

    It goes in rounds, each up to sizes that were seen: the first is the history, those after it what came since. So
    the order holds within a round, and a rank that writes without end keeps nobody waiting.
    """

    def __init__(self, files: list[RankLogFile], positions: dict[int, int]) -> None:
        """Reading begins at `positions` (bytes, by rank)."""
        self._streams = [_Stream(f, TimeIndex(f.index), positions[f.rank]) for f in files]
        self._heap: list[tuple[int, int]] | None = None

    def begin(self, sizes: dict[int, int]) -> bool:
        """Begins a round up to `sizes`. True when there is something to read (or to tell) in it."""
        for stream in self._streams:
            stream.limit = sizes[stream.file.rank]
        self._heap = None
        return any(stream.limit != stream.position for stream in self._streams)

    @property
    def left(self) -> bool:
        """Whether something of the round may be left to read."""
        return self._heap is None or bool(self._heap)

    async def batch(self) -> list[Chunk]:
        """The next chunks of the round; none: it is over. Raises OSError."""
        return await in_turn(self._batch)

    def _batch(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        if self._heap is None:
            self._heap = []
            for number, stream in enumerate(self._streams):
                # The sizes of a round may be older than what was read before it: a look now tells whether it shrank.
                if stream.limit < stream.position and (size := stream.file.size()) < stream.position:
                    stream.position = stream.limit = size
                    stream.index.forget()
                    chunks.append(Chunk(stream.file.rank, size, b"", None, truncated=True))
                self._push(number)
        if not self._heap:
            return chunks
        total = 0
        with Reader(folder(self._streams[0].file.path.parent)) as reader:
            while self._heap and total < BATCH_BYTES and len(chunks) < BATCH_CHUNKS:
                number = self._heap[0][1]
                stream = self._streams[number]
                count = min(CHUNK, stream.end - stream.position)
                begin, data = reader.read(stream.file.path, stream.position, count)
                if begin > stream.position:  # what was there is not kept any more
                    stream.position = min(begin, stream.limit)
                    heapq.heappop(self._heap)
                    self._push(number)
                    continue
                if not data:  # it shrank meanwhile: the next round tells
                    heapq.heappop(self._heap)
                    continue
                chunks.append(Chunk(stream.file.rank, stream.position, data, stream.time))
                total += len(data)
                stream.position += len(data)
                if stream.position >= stream.end:
                    heapq.heappop(self._heap)
                    self._push(number)
        return chunks

    def _push(self, number: int) -> None:
        stream = self._streams[number]
        if stream.position < stream.limit:
            stream.time, stream.end = stream.index.segment(stream.position, stream.limit)
            assert self._heap is not None
            heapq.heappush(self._heap, (stream.time or 0, number))


class Watcher:
    """Sees the files of one job grow, once for all its followers. Whichever of them waits first does the looking, so
    that there is no task that could outlive them.

    It polls sizes instead of using inotify, which is silent on network file systems, has a small number of instances
    per user, and would have to be told of files that are not there yet. A look at a rank costs about two microseconds.
    """

    def __init__(
        self, files: list[RankLogFile], job_changed: Callable[[], Awaitable[None]], job_ended: Callable[[], bool]
    ) -> None:
        """`job_changed` returns at the next change of the job's state; after the end there is none."""
        self.files = files
        self.sizes: dict[int, int] = {}
        #: Counts the changes of `sizes`.
        self.generation = 0
        self._job_changed = job_changed
        self._job_ended = job_ended
        #: Set at the end of the look that somebody is at; None: nobody is.
        self._looking: anyio.Event | None = None
        self._interval = POLL_MIN_S

    async def wait(self, seen: int, enough: Callable[[], bool] = lambda: False) -> None:
        """Returns once `generation` is beyond `seen`, since a file has another size, or the job has ended, or what is
        followed is `enough`, which each asks of its own behind each look."""
        while self.generation == seen and not self._job_ended() and not enough():
            if self._looking is not None:
                await self._looking.wait()
                continue
            looked = self._looking = anyio.Event()
            try:
                await self._look()
            finally:  # whoever leaves in the middle of it is replaced
                self._looking = None
                looked.set()

    async def _look(self) -> None:
        with anyio.move_on_after(self._interval):
            await self._job_changed()
        began = time.monotonic()
        sizes = await sizes_of(self.files)
        if sizes != self.sizes:
            self.sizes = sizes
            self.generation += 1
            self._interval = POLL_MIN_S
        # With many ranks or a slow disk: never more than a tenth of a core for looking.
        cost = time.monotonic() - began
        self._interval = min(max(self._interval * 1.3, cost * 10), POLL_MAX_S)


def _open(index: Path) -> int | None:
    """None where the index cannot be read, whatever is there: output is read without it, only its times are unknown."""
    try:
        return open_read(index)
    except OSError:
        return None


def _bisect(fd: int, beyond: Callable[[int, int], bool]) -> int:
    """Number of the first record for which `beyond` is true, as it is for all after it. A torn last one is ignored."""
    low, high = 0, os.fstat(fd).st_size // INDEX_RECORD.size
    while low < high:
        middle = (low + high) // 2
        record = os.pread(fd, INDEX_RECORD.size, middle * INDEX_RECORD.size)
        if len(record) < INDEX_RECORD.size or beyond(*INDEX_RECORD.unpack(record)):
            high = middle
        else:
            low = middle + 1
    return low


def _sizes(files: list[RankLogFile]) -> dict[int, int]:
    return {file.rank: layout.end for file, layout in zip(files, look(files), strict=True)}
