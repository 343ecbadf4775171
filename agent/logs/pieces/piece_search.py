"""Searches a piece of a log: in the command, and in the processes that help it, which run `main`.

Such a process lives as long as its standard input is open, opens only logs, and writes into the memory that it was
given. It is started for a fraction of a second: what it imports counts.
"""

import marshal
import os
import re

from muster.agent.logs.line_filter import MAX_LINE, LineFilter, LineMatch, whole_lines
from muster.supervisors.output.gzip_members import open_read, unpack

#: A piece: path of its file; inode, if that must be the one; whether it is compressed; offset of the first byte of the
#: file and of what is behind the last; begin and end of the piece. Offsets count all output of the log.
Piece = tuple[str, int, bool, int, int, int, int]
#: What was found in it: all up to its first newline, which ends a line of which the beginning may be elsewhere; the
#: whole lines behind it that match; what is behind its last newline.
Found = tuple[bytes, list[bytes], bytes]

#: In the memory, before what was found in a piece: the piece, and then the sizes of what was found. The longest path
#: fits.
HEADER = 8192
#: What a process writes once it can search.
READY = b"\xff"


def search(piece: Piece, match: LineMatch, block: int) -> Found | None:
    """`block`: bytes that are read at once, at most. None where it must be read from its beginning: it has no newline
    or a line over MAX_LINE, or cannot be read."""
    path, inode, packed, base, behind, position, end = piece
    head, found = b"", list[bytes]()
    try:
        fd = -1 if packed else open_read(path, inode=inode)
    except OSError:
        return None

    def read(first: int) -> bytes:
        count = min(block, end - first)
        return unpack(path, first - base, count, behind - base) if packed else os.pread(fd, count, first - base)

    try:
        while position < end:
            data = read(position)
            whole = data.rfind(b"\n") + 1
            while not whole and data and len(data) < MAX_LINE and position + len(data) < end:
                more = read(position + len(data))
                if not more:
                    return None
                data += more
                whole = data.rfind(b"\n") + 1
            if not whole:
                # The rest, if it may be the beginning of a line that is not too long.
                rest = position + len(data) == end and len(data) < MAX_LINE
                return (head, found, data) if rest and head else None
            start = 0
            if not head:
                start = data.find(b"\n") + 1
                head = data[:start]
            if any(stop - begin > MAX_LINE for begin, stop in whole_lines(data, 0, whole, MAX_LINE)):
                return None
            if start < whole and (lines := match.lines(data, start, whole)):
                found.append(lines)
            position += whole
        return head, found, b""
    except OSError:
        return None
    finally:
        if fd >= 0:
            os.close(fd)


def settings(match: LineMatch, block: int) -> bytes:
    """How `main` is to search."""
    lines = match.filter
    any_of = None if lines is None else list(lines.any_of)
    ignore_case = lines is not None and lines.ignore_case
    return marshal.dumps((match.pattern.pattern, match.pattern.flags, any_of, ignore_case, block))


def main(memory: int, size: int) -> None:
    """Searches pieces until its standard input is at its end. A byte there is the number of a place in the memory, each
    of `size` bytes, where a piece is; the same byte is the answer. Before the places is how to search."""
    expression, flags, any_of, ignore_case, block = marshal.loads(os.pread(memory, size, 0))
    lines = None if any_of is None else LineFilter(any_of, ignore_case=ignore_case)
    match = LineMatch(re.compile(expression, flags), lines)
    os.write(1, READY)
    while number := os.read(0, 1):
        at = number[0] * size
        found = search(marshal.loads(os.pread(memory, HEADER, at)), match, block)
        sizes = None
        if found is not None:
            head, wanted, tail = found
            sizes = len(head), sum(map(len, wanted)), len(tail)
            position = at + HEADER
            for data in (head, *wanted, tail):
                put(memory, data, position)
                position += len(data)
        put(memory, marshal.dumps(sizes), at)
        os.write(1, number)


def put(memory: int, data: bytes, position: int) -> None:
    """Writes all of it. Raises OSError."""
    while data:
        written = os.pwrite(memory, data, position)
        data, position = data[written:], position + written
