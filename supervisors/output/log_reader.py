"""Reads a log at offsets of all its output, whatever files hold it."""

import os
from collections import OrderedDict
from pathlib import Path

from muster.supervisors.output import gzip_members
from muster.supervisors.output.log_layout import Folder, Layout
from muster.supervisors.output.log_segments import Piece

#: Looks for bytes that were rotated, compressed or removed just now, one behind the other.
_TRIES = 100


class Reader:
    """Reads logs of a folder at offsets of all their output, for the time of one batch: holds open what it has read,
    and goes by what it found when it first read from a log, unless that has been renamed. For one thread."""

    def __init__(self, folder: Folder, most_open: int = 32) -> None:
        self._folder = folder
        self._most = most_open
        self._open: OrderedDict[tuple[Path, int], int] = OrderedDict()
        self._layouts: dict[Path, Layout] = {}

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def layout(self, log: Path) -> Layout:
        """Raises OSError."""
        found = self._layouts.get(log)
        if found is None:
            found = self._layouts[log] = self._folder.look([log])[0]
        return found

    def read(self, log: Path, offset: int, count: int) -> tuple[int, bytes]:
        """At most `count` bytes, and where they begin: at `offset`, or behind what is not kept any more. No bytes:
        there are none behind `offset`. Raises OSError."""
        tries = 0
        while (piece := self.layout(log).find(offset)) is not None:
            first = max(offset, piece.start)
            size = min(count, piece.end - first)
            try:
                if piece.packed:
                    data = gzip_members.unpack(piece.path, first - piece.base, size, piece.end - piece.base)
                else:
                    data = os.pread(self._fd(piece), size, first - piece.base)
            except FileNotFoundError:
                if tries == _TRIES:
                    raise
            else:
                if data:
                    return first, data
                if tries and piece.inode:
                    break
                if tries:
                    offset = piece.end
            # Rotated, compressed or removed meanwhile; or, if it is the same at a second look, cut by somebody.
            tries += 1
            del self._layouts[log]
        return offset, b""

    def stretch(self, log: Path, start: int, end: int) -> tuple[int, bytes]:
        """What is kept of [start, end), and where that begins; where something is missing in between, what is behind
        it. Raises OSError."""
        position, found = start, b""
        while position < end:
            first, data = self.read(log, position, end - position)
            if first > position:
                start, found = min(first, end), b""
            if not data or first >= end:
                break
            found += data[: end - first]
            position = first + len(data)
        return start, found

    def _fd(self, piece: Piece) -> int:
        key = piece.path, piece.inode
        fd = self._open.get(key)
        if fd is None:
            fd = gzip_members.open_read(piece.path, inode=piece.inode)
            if len(self._open) == self._most:
                os.close(self._open.popitem(last=False)[1])
            self._open[key] = fd
        return fd
