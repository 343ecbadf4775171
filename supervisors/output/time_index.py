"""The time index beside a log: which bytes were written when.

Records of 16 bytes, little endian, `u64 offset, u64 nanoseconds since the epoch`, at most one each 100 ms: "from this
offset on, the bytes were written at this time". Reading by time and merging of ranks use it; its loss does not harm the
output.
"""

import contextlib
import os
import struct
import time
from bisect import bisect_left
from pathlib import Path

from muster.supervisors.output.rotation import open_log

INDEX_INTERVAL_S = 0.1
INDEX_RECORD = struct.Struct("<QQ")
#: How often the writer checks whether somebody has deleted the index, in seconds.
INDEX_LOOK_S = 1.0


class IndexWriter:
    """Appends records. Best effort: without room for the index times become coarser, and the output goes on."""

    def __init__(self, path: Path, owner: tuple[int, int]) -> None:
        """Opens nothing yet. `owner`: uid and gid of a new file."""
        self._path, self._owner = path, owner
        self._fd, self._look_at = -1, 0.0

    def note(self, offset: int) -> None:
        """The bytes from `offset` on are written now."""
        record = INDEX_RECORD.pack(offset, time.time_ns())
        with contextlib.suppress(OSError):
            if self._fd >= 0 and (now := time.monotonic()) >= self._look_at:
                self._look_at = now + INDEX_LOOK_S
                if not os.fstat(self._fd).st_nlink:  # somebody has deleted it
                    self.close()
            if self._fd < 0:
                self._open()
                self._cut(offset)  # records of bytes that no longer exist: no time is found in an index that falls
            if os.write(self._fd, record) < len(record):
                self._whole_records()

    def close(self) -> None:
        """Closes the file; the next record opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _open(self) -> None:
        self._fd = open_log(self._path, self._owner, os.O_RDWR | os.O_APPEND)
        self._whole_records()

    def _cut(self, end: int) -> None:
        """To its records of bytes before `end`."""
        size = os.fstat(self._fd).st_size

        def offset(number: int) -> int:
            data = os.pread(self._fd, INDEX_RECORD.size, number * INDEX_RECORD.size)
            return int(INDEX_RECORD.unpack(data)[0]) if len(data) == INDEX_RECORD.size else end

        kept = bisect_left(range(size // INDEX_RECORD.size), end, key=offset) * INDEX_RECORD.size
        if kept < size:
            os.ftruncate(self._fd, kept)

    def _whole_records(self) -> None:
        size = os.fstat(self._fd).st_size
        if size % INDEX_RECORD.size:
            os.ftruncate(self._fd, size - size % INDEX_RECORD.size)
