"""Output that the daemon names and that a reader on the same machine reads from its files.

A gigabyte through a call costs daemon and reader six seconds of CPU, and from the file one. Where lines are searched
for in much output, it is read in pieces, which several processes search (pieces/).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from muster.probes.kernel.process import boot_id
from muster.v1 import job_pb2, log_pb2

if TYPE_CHECKING:
    from muster.agent.logs.labels import LabelledLines
    from muster.agent.logs.line_filter import LineMatch
    from muster.agent.logs.pieces.piece_search import Found, Piece
    from muster.agent.logs.pieces.search_pool import SearchPool
    from muster.supervisors.output.log_reader import Reader

#: Bytes that are read at once, up to a multiple of that. The C library maps larger pieces anew each time, and the
#: kernel clears them.
BLOCK = 120 * 1024
#: Bytes of the largest piece: a multiple of BLOCK. What is named at once is read in pieces from here on.
PIECE = 32 * BLOCK
#: Bytes of output from which on other processes help to search, one for each: less is searched before they have begun.
HELPED = 32 << 20


class NotInPlace(Exception):
    """What the daemon named cannot be read from here, or not any more."""


def identity(path: Path) -> log_pb2.LogFolder | None:
    """Of a folder, by which two processes find out that they see the same one; None if it cannot be seen from here."""
    try:
        seen = os.stat(path)
        return log_pb2.LogFolder(boot_id=boot_id(), device=seen.st_dev, inode=seen.st_ino)
    except OSError:
        return None


class LogsInPlace:
    """The logs of one job's ranks. To be closed."""

    def __init__(self, job: job_pb2.Job) -> None:
        """Opens nothing yet."""
        self._paths = {rank.rank: Path(rank.log_path) for rank in job.ranks}
        self._accepted = job.accepted_at
        self._search: tuple[LineMatch, LabelledLines] | None = None
        self._follow = False
        self._pool: SearchPool | None = None
        #: Bytes that were named since there is a pool.
        self._named = 0

    @staticmethod
    def seen(job: job_pb2.Job, request: log_pb2.ReadLogsRequest) -> "LogsInPlace | None":
        """The logs, if all of them can be read from here; the request then says so."""
        logs = LogsInPlace(job)
        folders = {path.parent for path in logs._paths.values()}
        readable = all(
            os.access(path, os.R_OK) or not os.path.lexists(path) for path in (*folders, *logs._paths.values())
        )
        found = identity(folders.pop()) if len(folders) == 1 and readable else None
        if found is None:
            return None
        request.folder.CopyFrom(found)
        return logs

    def are_of(self, job: job_pb2.Job) -> bool:
        """Whether this is the job, and no later one under its name."""
        return bool(job.accepted_at == self._accepted)

    def search(self, match: "LineMatch", lines: "LabelledLines", *, follow: bool) -> None:
        """From now on `lines` gets what was found in much output, and all of what is little. `follow`: there may be
        long pauses, in which nothing that helps is kept."""
        self._search, self._follow = (match, lines), follow

    def show(self, source: str, found: "Found", time: float) -> None:
        """Passes on what was found in a part."""
        assert self._search is not None
        self._search[1].feed_found(source, found, time)

    def close(self) -> None:
        """Ends what helps to search."""
        if self._pool is not None:
            self._pool.close()
            self._pool, self._named = None, 0

    def read(
        self, named: log_pb2.ReadLogsResponse, source: str
    ) -> Iterator[tuple[log_pb2.ReadLogsResponse, "bytes | Found"]]:
        """What a message names, in parts, each with its own message, which is another with the next part; of a part
        that was searched what was found in it. `source`: as of the lines. Raises NotInPlace."""
        # Only now: little output comes with the messages.
        from muster.agent.host.log_folder import folder
        from muster.supervisors.output.log_reader import Reader

        path = self._paths.get(named.rank)
        if path is None:
            raise NotInPlace
        part = log_pb2.ReadLogsResponse(rank=named.rank)
        part.time.CopyFrom(named.time)
        begin, end = named.offset, named.next_offset
        self._named += end - begin
        try:
            with Reader(folder(path.parent)) as reader:
                found: Iterator[tuple[int, int, bytes | Found]] = _blocks(reader, path, begin, end, end)
                if self._search is not None and end - begin >= PIECE:
                    found = self._searched(reader, path, begin, end, source)
                for part.offset, part.next_offset, data in found:
                    yield part, data
        except OSError as error:
            raise NotInPlace from error

    def _searched(
        self, reader: "Reader", path: Path, position: int, end: int, source: str
    ) -> "Iterator[tuple[int, int, bytes | Found]]":
        """As `_blocks`. What was found in a piece is what the blocks of it would show; where it may not be, because of
        a long line, and where something is missing, come blocks."""
        from muster.agent.logs.pieces import search_pool

        assert self._search is not None
        match, lines = self._search
        if self._pool is None:
            self._pool = search_pool.SearchPool(match, block=BLOCK, piece=PIECE)
        self._pool.start(min(search_pool.helpers(), self._named // HELPED))
        for piece, found in self._pool.results(_pieces(reader, path, position, end)):
            *_, begin, stop = piece
            if found is not None and begin == position and lines.joins(source, len(found[0])):
                yield begin, stop, found
                position = stop
                continue
            while position < stop:
                for at, behind, data in _blocks(reader, path, position, stop, end):
                    yield at, behind, data
                    position = behind
        if self._follow:
            self.close()


def _blocks(reader: "Reader", path: Path, position: int, stop: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """Begin and end of each block of [position, stop), and the bytes. What was removed shows as a gap, which may go
    beyond `stop`, up to `end`. Raises OSError, NotInPlace."""
    while position < stop:
        begin, data = reader.read(path, position, min(BLOCK - position % BLOCK, stop - position))
        if not data:
            raise NotInPlace
        begin = min(begin, end)
        data = data[: end - begin]
        position = begin + len(data)
        yield begin, position, data


def _pieces(reader: "Reader", path: Path, position: int, end: int) -> "Iterator[Piece]":
    """Pieces of [position, end), each in one file: as the files are when each is asked for. One without a path is not
    there. Raises OSError."""
    while position < end:
        stop = min(end, position - position % PIECE + PIECE)
        part = reader.layout(path).find(position)
        if part is None or part.start > position:
            stop = min(stop, part.start) if part is not None else stop
            yield "", 0, False, 0, 0, position, stop
        else:
            stop = min(stop, part.end)
            yield str(part.path), part.inode, part.packed, part.base, part.end, position, stop
        position = stop
