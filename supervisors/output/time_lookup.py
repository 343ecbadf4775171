"""When output was written, and which output was written by when, by the time index beside a log (time_index.py).

A reader keeps a kilobyte of the index, and opens it for one look only.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from muster.supervisors.output.gzip_members import open_read
from muster.supervisors.output.time_index import INDEX_RECORD

#: Bytes of the index that are read at once.
_INDEX_AHEAD = 64 * INDEX_RECORD.size


class TimeIndex:
    """Finds when the bytes at an offset were written, for ascending offsets."""

    def __init__(self, path: Path) -> None:
        """Does not open the file yet."""
        self._path = path
        #: Number of the next record, None: to be found; and the record before it.
        self._next: int | None = None
        self._last = b""
        self._ahead: list[tuple[int, int]] = []
        self._time: int | None = None

    def segment(self, position: int, limit: int) -> tuple[int | None, int]:
        """When the byte at `position` was written, and up to which offset (at most `limit`) that holds."""
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
        """Drops records read ahead: the file was cut, so they describe bytes that no longer exist, as did index records
        that were removed before new ones (IndexWriter in supervisors/output/time_index.py)."""
        self._ahead = []
        self._next = self._time = None

    def _read_ahead(self, position: int) -> None:
        fd = _open(self._path)
        if fd is None:
            return
        size = INDEX_RECORD.size
        try:
            if self._next and os.pread(fd, size, (self._next - 1) * size) != self._last:
                self.forget()  # it has become shorter, or was replaced
            if self._next is None:
                # The record for `position` is the one before the first record beyond it.
                self._next = max(0, _bisect(fd, lambda offset, _: offset > position) - 1)
            data = os.pread(fd, _INDEX_AHEAD, self._next * size)
        finally:
            os.close(fd)
        if whole := len(data) // size:
            self._next += whole
            self._last = data[(whole - 1) * size : whole * size]
        self._ahead = [INDEX_RECORD.unpack_from(data, i * size) for i in reversed(range(whole))]


class NoTimes(TimeIndex):
    """Of output that is read without its times."""

    def segment(self, position: int, limit: int) -> tuple[int | None, int]:
        return None, limit

    def forget(self) -> None:
        """Does nothing: no record is held."""


def first_after(index: Path, when: int, first: int | None = None) -> int | None:
    """The offset of the first record after a time; beyond any offset if all are before it; None without records.
    `first`, if given, replaces the offset of the very first record."""
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


def _open(index: Path) -> int | None:
    """None if the index cannot be read: output is then read without it, and its times are unknown."""
    try:
        return open_read(index)
    except OSError:
        return None


def _bisect(fd: int, beyond: Callable[[int, int], bool]) -> int:
    """Number of the first record for which `beyond` is true, as for all after it. Ignores a torn last record."""
    low, high = 0, os.fstat(fd).st_size // INDEX_RECORD.size
    while low < high:
        middle = (low + high) // 2
        record = os.pread(fd, INDEX_RECORD.size, middle * INDEX_RECORD.size)
        if len(record) < INDEX_RECORD.size or beyond(*INDEX_RECORD.unpack(record)):
            high = middle
        else:
            low = middle + 1
    return low
