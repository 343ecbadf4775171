"""Reads of the files of ranks only the lines that a filter lets through, in the order in which all of them are read.

A search holds nothing between two batches but where it is in each file, and what it has found in one block of each. It
goes on at the beginning of a line: the end of a block that is not the end of a line is read again. A line over MAX_LINE
is wanted if its first MAX_LINE bytes are.
"""

import heapq
from collections import deque
from collections.abc import Container
from dataclasses import field, replace

from muster.agent.host.log_folder import folder
from muster.agent.host.turns import in_turn
from muster.agent.logs.line_filter import MAX_LINE, LineFilter
from muster.agent.logs.log_reading import BATCH_BYTES, BATCH_CHUNKS, CHUNK, Chunk, RankLogFile, time_index
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.output.log_reader import Reader
from muster.supervisors.output.time_lookup import TimeIndex

#: Bytes searched in one batch, and so without a turn for others: a few milliseconds.
SEARCH_BYTES = 4 << 20
#: Bytes of a file that are searched at once, of one file and of many.
BLOCK, SMALL_BLOCK = 1 << 20, 16 * 1024


@dataclass(slots=True)
class _SearchedLog:
    """One rank in a search. Reading goes on at `position`; the reader has been told of everything before `told`."""

    file: RankLogFile
    index: TimeIndex
    position: int
    told: int
    limit: int = 0
    #: Nothing is written behind `limit` any more: the rest without a newline is a line.
    final: bool = False
    #: Whether the line over MAX_LINE in which `position` is is wanted; None: at the beginning of a line.
    inside: bool | None = None
    found: deque[Chunk] = field(default_factory=deque)


class Search:
    """As log_reading.Merge, of the lines that may be wanted."""

    def __init__(
        self,
        files: list[RankLogFile],
        positions: dict[int, int],
        lines: LineFilter,
        resumed: Container[int] = (),
        *,
        timed: bool = True,
    ) -> None:
        """Reading begins at `positions` (bytes, by rank). Of a rank in `resumed` that may be in a line that the reader
        has the beginning of: the rest of that is read in any case. `timed`: as of Merge."""
        self._filter = lines
        self._streams = [
            _SearchedLog(f, time_index(f, timed=timed), positions[f.rank], positions[f.rank]) for f in files
        ]
        self._resumed = {n for n, file in enumerate(files) if file.rank in resumed and positions[file.rank]}
        self._block = max(SMALL_BLOCK, min(BLOCK, SEARCH_BYTES // max(1, len(files))))
        self._heap: list[tuple[int, int]] | None = None
        #: Ranks of which it is not known what comes next.
        self._unknown: list[int] = []

    def begin(self, sizes: dict[int, int], final: Container[int] = ()) -> bool:
        """Begins a round up to `sizes`; ranks in `final` write nothing more behind that. True if there is something to
        read or to report in it."""
        for stream in self._streams:
            stream.limit, stream.final = sizes[stream.file.rank], stream.file.rank in final
        self._heap = None
        return any(stream.limit != stream.position or stream.position != stream.told for stream in self._streams)

    @property
    def left(self) -> bool:
        """Whether the round may have unread output."""
        return self._heap is None or bool(self._heap or self._unknown)

    async def batch(self) -> list[Chunk]:
        """The next chunks of the round, if any were found meanwhile. Raises OSError."""
        return await in_turn(self._batch)

    def _batch(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        if self._heap is None:
            self._heap = []
            self._unknown = list(reversed(range(len(self._streams))))
            for stream in self._streams:
                if stream.limit < stream.position and (size := stream.file.size()) < stream.position:
                    stream.position = stream.told = stream.limit = size
                    stream.inside = None
                    stream.index.forget()
                    chunks.append(Chunk(stream.file.rank, size, b"", None, truncated=True))
        searched = total = 0
        if not self._streams:
            return chunks
        with Reader(folder(self._streams[0].file.path.parent)) as reader:
            while total < BATCH_BYTES and len(chunks) < BATCH_CHUNKS:
                while self._unknown:
                    if searched >= SEARCH_BYTES:
                        return chunks
                    number = self._unknown[-1]
                    stream = self._streams[number]
                    searched += (size := self._search(reader, number))
                    if stream.found:
                        self._unknown.pop()
                        heapq.heappush(self._heap, (stream.found[0].order, number))
                    elif not size:
                        self._unknown.pop()
                        chunks += _searched(stream)
                if not self._heap:
                    break
                number = self._heap[0][1]
                stream = self._streams[number]
                chunks.append(chunk := stream.found.popleft())
                total += len(chunk.data)
                if stream.found:
                    heapq.heapreplace(self._heap, (stream.found[0].order, number))
                else:
                    heapq.heappop(self._heap)
                    self._unknown.append(number)
        return chunks

    def _search(self, reader: Reader, number: int) -> int:
        """Searches the next block of a rank. Returns its size; 0: there is no more in this round."""
        stream = self._streams[number]
        start, path = stream.position, stream.file.path
        if start >= stream.limit:
            return 0
        if number in self._resumed:
            self._resumed.discard(number)
            first, before = reader.read(path, start - 1, 1)
            if first == start - 1 and before not in (b"", b"\n"):
                stream.inside = True
        begin, data = reader.read(path, start, min(self._block, stream.limit - start))
        if begin > start:  # that output was removed
            _gap(stream, min(begin, stream.limit))
            return 1
        cut = not data  # it shrank meanwhile: the next round reports it
        while not cut and b"\n" not in data and len(data) < MAX_LINE and start + len(data) < stream.limit:
            # The end of a file, or of a compressed block, in the middle of a line.
            behind, more = reader.read(path, start + len(data), min(self._block, stream.limit - start - len(data)))
            cut = behind > start + len(data) or not more
            data += b"" if cut else more
        if not data:
            return 0
        end = data.rfind(b"\n") + 1
        if stream.inside is None and not end and len(data) >= MAX_LINE:
            stream.inside = bool(self._filter.view(data, MAX_LINE).lines(0, MAX_LINE))
        if stream.inside is not None:
            end = data.find(b"\n") + 1 or len(data)
            stream.position = start + end
            if stream.inside:
                _put(stream, data[:end], stream.index.segment(start, stream.limit)[0], stream.position)
            if data[end - 1] == ord("\n"):
                stream.inside = None
            return end
        if cut or (stream.final and start + len(data) >= stream.limit):
            end = len(data)
        if end:
            self._collect(stream, data, end)
        return end

    def _collect(self, stream: _SearchedLog, data: bytes, end: int) -> None:
        """Searches the whole lines in `data[:end]`, which are at the stream's position, and goes on behind them."""
        start, position, first = stream.position, 0, True
        view = self._filter.view(data, end)
        while (hit := view.next(position)) < end:
            if first:
                stream.index.forget()  # it would be read up to here, record by record
                first = False
            begin = data.rfind(b"\n", position, hit) + 1 or position
            time, until = stream.index.segment(start + begin, start + end)
            until = min(until - start, begin + CHUNK)
            completed = None
            if until >= end:
                position = end
            elif (whole := data.rfind(b"\n", begin, until) + 1) > begin:
                position = whole
            else:  # the next line is written later, or is a long one
                position = data.find(b"\n", until, end) + 1 or end
                completed = stream.index.segment(start + position - 1, start + end)[0]
            if lines := view.lines(begin, position):
                _put(stream, lines, time, start + position, completed)
        stream.position = start + end


def _put(stream: _SearchedLog, data: bytes, time: int | None, behind: int, completed: int | None = None) -> None:
    """Lines were found in the output up to `behind`. More than a chunk of them is what is right before that."""
    if stream.found and completed is None:
        last = stream.found[-1]
        if (last.time, last.completed) == (time, None) and len(last.data) + len(data) <= CHUNK:
            stream.found[-1] = replace(last, data=last.data + data, next=behind)
            stream.told = behind
            return
    for i in range(0, len(data), CHUNK):
        piece = data[i : i + CHUNK]
        after = behind - len(data) + i + len(piece)
        stream.found.append(Chunk(stream.file.rank, stream.told, piece, time, next=after, completed=completed))
        stream.told = after


def _gap(stream: _SearchedLog, begin: int) -> None:
    """What was between here and `begin` is not kept any more."""
    stream.found.extend(_searched(stream))
    stream.position = stream.told = begin
    stream.inside = None


def _searched(stream: _SearchedLog) -> list[Chunk]:
    """That the output up to here was searched, if that is to be told. A line of which the end is not known is not."""
    passed_over = stream.inside is False and not (stream.final and stream.position >= stream.limit)
    if stream.told >= stream.position or passed_over:
        return []
    chunk = Chunk(stream.file.rank, stream.told, b"", None, next=stream.position)
    stream.told = stream.position
    return [chunk]
