"""Reads the files of ranks: by offset, by time, from the end, several merged in order of time, and following.

A reader holds no file open and no file in memory, however long the file is: it keeps an offset per rank and a kilobyte
of the time index, and opens a file for one batch only. So 200 followers of 256 ranks need no descriptors, and a reader
notices a replaced file.

Offsets and sizes count all output of a rank, in whatever files it is now (supervisors/output/log_segments.py). Reading
skips output that was removed.
"""

import heapq
import time
from collections.abc import Awaitable, Callable, Container
from pathlib import Path

import anyio

from muster.agent.errors import OffsetOutOfRange
from muster.agent.host.log_folder import folder
from muster.agent.host.turns import in_turn
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.states import JOB
from muster.supervisors.output.log_layout import Layout
from muster.supervisors.output.log_reader import Reader
from muster.supervisors.output.time_index import INDEX_INTERVAL_S
from muster.supervisors.output.time_lookup import NoTimes, TimeIndex, first_after

#: Limits: bytes in a chunk; bytes and chunks in a batch, which is what one reader has in memory.
CHUNK = 64 * 1024
BATCH_BYTES = 4 * CHUNK
BATCH_CHUNKS = 256
#: Bytes in a chunk that only names output, at most and at least: what is less comes sooner in a message.
PLACE, PLACE_LEAST = 1 << 30, 128 * 1024
#: Seconds between two looks at the files of a followed job: the first while output arrives, the second at rest.
POLL_MIN_S = 0.02
POLL_MAX_S = 0.25
#: Bytes in one step of the search for lines from the end; between two steps it can be cancelled, and others can read.
TAIL_STEP = 4 << 20


@dataclass(frozen=True, slots=True)
class RankLogFile:
    """Output and time index of one rank."""

    rank: int
    path: Path
    index: Path

    def size(self) -> int:
        """Bytes of all output so far; 0 if the file does not exist (yet). Raises OSError for other errors."""
        return look([self])[0].end


@dataclass(frozen=True, slots=True)
class Chunk:
    """Output of one rank. `time` in nanoseconds since the epoch, None if no index has it. `truncated`: the file is
    shorter than what was already read; reading continues at `offset`. `next`: `data` is only what was searched for in
    the output from `offset` up to there; with `in_file` all of that is wanted and the reader reads it. `completed`: the
    time of its last byte, if another."""

    rank: int
    offset: int
    data: bytes
    time: int | None = None
    truncated: bool = False
    next: int | None = None
    completed: int | None = None
    in_file: bool = False

    @property
    def behind(self) -> int:
        """Where reading goes on."""
        return self.offset + len(self.data) if self.next is None else self.next

    @property
    def order(self) -> int:
        """By this, what comes of several ranks is put in order."""
        return self.completed or self.time or 0


def look(files: list[RankLogFile]) -> list[Layout]:
    """The present layout of files of one folder. Raises OSError."""
    return folder(files[0].path.parent).look([file.path for file in files]) if files else []


def time_index(file: RankLogFile, *, timed: bool) -> TimeIndex:
    """The times of a rank's output, or none."""
    return TimeIndex(file.index) if timed else NoTimes(file.index)


def offset_since(file: RankLogFile, when: int, size: int) -> int:
    """Where the output at or after `when` (nanoseconds since the epoch) begins; `size` if there is none.

    The index is accurate to 100 ms: it reports bytes as up to that much older than they are, so reading begins with the
    record that may contain younger bytes. Bytes before the first record are known only to be no younger than it,
    because the index may have been rebuilt. Without an index only the file's own time helps.
    """
    found = first_after(file.index, when - int(INDEX_INTERVAL_S * 1e9), first=0)
    if found is not None:
        return min(found, size)
    try:
        return size if file.path.stat().st_mtime_ns < when else 0
    except FileNotFoundError:
        return 0


def offset_until(file: RankLogFile, when: int, size: int) -> int:
    """Where the first output written after `when` (nanoseconds since the epoch) begins; `size` if there is none, or if
    no index has it. Output that the index reports as up to 100 ms older than it is may be before that offset."""
    found = first_after(file.index, when)
    return size if found is None else min(found, size)


async def tail_offset(file: RankLogFile, lines: int, size: int) -> int:
    """Where the last `lines` lines before `size` begin, searched from the end. A last line without newline counts."""
    if lines == 0:
        return size
    position, missing = size, lines
    while missing > 0:
        position, missing = await in_turn(_tail_step, file.path, position, missing, position == size)
    return position


def _tail_step(path: Path, end: int, missing: int, at_end: bool) -> tuple[int, int]:
    """Searches the bytes before `end`. Returns the offset of the wanted line, or of the first stored byte, and 0; or
    where to continue and the number of missing lines."""
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
                stop -= 1  # the newline at the end of the last line starts no new line
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
    """Where to begin reading each rank: at its offset if it has one, else at the later of `tail_lines` and `since`
    (nanoseconds since the epoch). Nothing begins before the stored output. Raises OffsetOutOfRange."""
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
    """One rank in a merge: [position, limit) is unread, and [position, end) of it was written at `time`."""

    file: RankLogFile
    index: TimeIndex
    position: int
    limit: int = 0
    end: int = 0
    time: int | None = None


class Merge:
    """Reads several ranks in order of time: always the rank with the oldest next bytes.

    It works in rounds, each up to the sizes seen at its start: the first round is the history, later ones are new
    output. So the order holds within a round, and a rank that writes without end does not hold up the others.
    """

    def __init__(
        self, files: list[RankLogFile], positions: dict[int, int], *, timed: bool = True, in_file: bool = False
    ) -> None:
        """Reading begins at `positions` (bytes, by rank). `timed`: chunks have times; without, nothing is put in order.
        `in_file`: chunks name the output of ranks where it is much."""
        self._streams = [_Stream(f, time_index(f, timed=timed), positions[f.rank]) for f in files]
        self._in_file = in_file
        self._heap: list[tuple[int, int]] | None = None

    def begin(self, sizes: dict[int, int], final: Container[int] = ()) -> bool:
        """Begins a round up to `sizes`; `final` changes nothing. True if there is something to read or to report in
        it."""
        for stream in self._streams:
            stream.limit = sizes[stream.file.rank]
        self._heap = None
        return any(stream.limit != stream.position for stream in self._streams)

    @property
    def left(self) -> bool:
        """Whether the round may have unread output."""
        return self._heap is None or bool(self._heap)

    async def batch(self) -> list[Chunk]:
        """The next chunks of the round; an empty list: it is over. Raises OSError."""
        return await in_turn(self._batch)

    def _batch(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        if self._heap is None:
            self._heap = []
            for number, stream in enumerate(self._streams):
                # The sizes of a round may be older than the last read: a look now shows whether the file shrank.
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
                if self._in_file and stream.file.rank != JOB and stream.end - stream.position >= PLACE_LEAST:
                    chunks.append(self._place(stream))
                    if stream.position >= stream.end:
                        heapq.heappop(self._heap)
                        self._push(number)
                    continue
                count = min(CHUNK, stream.end - stream.position)
                begin, data = reader.read(stream.file.path, stream.position, count)
                if begin > stream.position:  # that output was removed
                    stream.position = min(begin, stream.limit)
                    heapq.heappop(self._heap)
                    self._push(number)
                    continue
                if not data:  # it shrank meanwhile: the next round reports it
                    heapq.heappop(self._heap)
                    continue
                chunks.append(Chunk(stream.file.rank, stream.position, data, stream.time))
                total += len(data)
                stream.position += len(data)
                if stream.position >= stream.end:
                    heapq.heappop(self._heap)
                    self._push(number)
        return chunks

    def _place(self, stream: _Stream) -> Chunk:
        start = stream.position
        stream.position = min(stream.end, start + PLACE)
        return Chunk(stream.file.rank, start, b"", stream.time, next=stream.position, in_file=True)

    def _push(self, number: int) -> None:
        stream = self._streams[number]
        if stream.position < stream.limit:
            stream.time, stream.end = stream.index.segment(stream.position, stream.limit)
            assert self._heap is not None
            heapq.heappush(self._heap, (stream.time or 0, number))


class Watcher:
    """Sees the files of one job grow, once for all its followers. The first of them that waits does the looking, so no
    task can outlive them.

    It polls sizes instead of using inotify, which is silent on network file systems, has a small number of instances
    per user, and cannot watch files that do not exist yet. A look at a rank costs about two microseconds.
    """

    def __init__(
        self, files: list[RankLogFile], job_changed: Callable[[], Awaitable[None]], job_ended: Callable[[], bool]
    ) -> None:
        """`job_changed` returns at the next change of the job's state; there is none after its end."""
        self.files = files
        self.sizes: dict[int, int] = {}
        #: Counts the changes of `sizes`.
        self.generation = 0
        self._job_changed = job_changed
        self._job_ended = job_ended
        #: Set at the end of the look in progress; None: there is none.
        self._looking: anyio.Event | None = None
        self._interval = POLL_MIN_S

    async def wait(self, seen: int, enough: Callable[[], bool] = lambda: False) -> None:
        """Returns once `generation` is beyond `seen` because a file has another size, or the job has ended, or `enough`
        is true, which each follower checks after each look."""
        while self.generation == seen and not self._job_ended() and not enough():
            if self._looking is not None:
                await self._looking.wait()
                continue
            looked = self._looking = anyio.Event()
            try:
                await self._look()
            finally:  # if this follower leaves in the middle, another one takes over
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
        # With many ranks or a slow disk: spend at most a tenth of a core on looking.
        cost = time.monotonic() - began
        self._interval = min(max(self._interval * 1.3, cost * 10), POLL_MAX_S)


def _sizes(files: list[RankLogFile]) -> dict[int, int]:
    return {file.rank: layout.end for file, layout in zip(files, look(files), strict=True)}
