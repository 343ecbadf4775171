"""What became of each byte that a rank wrote: it is in a file, or a gap line or a record of a removal counts it."""

import contextlib
import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from muster.supervisors.output.log_layout import Folder
from muster.supervisors.output.log_reader import Reader
from muster.supervisors.output.log_removals import Removed, removals
from tests.chaos import paced

#: muster's own lines in a rank's file.
_OURS = re.compile(rb"\[muster: ([^\n]*)\]\n")
_GAP = re.compile(rb"(\d+) bytes lost \d\d:\d\d:\d\d-\d\d:\d\d:\d\d: .+", re.DOTALL)
_SEGMENT = re.compile(r"\.(\d+)-(\d+)(\.gz)?")
#: Most bytes that are in the FIFO (512 KiB), or on their way, without being lost.
UNDER_WAY = 700_000


class Wrong(AssertionError):
    """Raised where a byte is neither kept nor counted, doubled, or somebody else's."""


@dataclass
class Found:
    """Of one rank. `kept`: stretches of its output in files; `holes`: those that records say are gone; `gaps`: those
    that lines count; `end`: where it all ends."""

    kept: list[tuple[int, int]] = field(default_factory=list)
    holes: list[tuple[int, int]] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0

    @property
    def lost(self) -> int:
        return sum(end - start for start, end in self.gaps)

    @property
    def removed(self) -> int:
        return sum(end - start for start, end in self.holes)


def parse(rank: int, data: bytes, start: int, found: Found) -> None:
    """One contiguous piece of a log whose first byte is byte `start` of the rank's output. Raises Wrong."""
    position = 0
    found.end = start
    for line in [*_OURS.finditer(data), None]:
        chunk = data[position : line.start() if line is not None else len(data)]
        expected = stream(rank, found.end, found.end + len(chunk))
        if chunk != expected:
            # Where output ended in the middle of a line, a line of muster's begins a new one.
            if line is None or not chunk.endswith(b"\n") or chunk[:-1] != expected[:-1]:
                same = next((i for i, (a, b) in enumerate(zip(chunk, expected, strict=True)) if a != b), 0)
                raise Wrong(
                    f"rank {rank}: byte {found.end + same} of the output should follow here, and what is there is "
                    f"{chunk[same : same + 120]!r}, behind {data[max(0, position - 120) : position]!r}"
                )
            chunk = chunk[:-1]
        if chunk:
            found.kept.append((found.end, found.end + len(chunk)))
        found.end += len(chunk)
        if line is not None:
            gap = _GAP.fullmatch(line[1])
            if gap is not None and int(gap[1]):
                found.gaps.append((found.end, found.end + int(gap[1])))
                found.end += int(gap[1])
            position = line.end()


def stream(rank: int, start: int, end: int) -> bytes:
    """Bytes [start, end) of all that a rank writes."""
    first = start // paced.SIZE
    text = paced.text(rank, first, -(-end // paced.SIZE))
    return text[start - first * paced.SIZE : end - first * paced.SIZE]


def _are_told(removed: list[Removed], start: int, end: int) -> bool:
    """Whether records tell of all these bytes: one may say that a file was moved away, and the next one, whose bytes
    follow, that the file made in its place was deleted."""
    for one in sorted(removed, key=lambda one: one.start):
        if one.start <= start < one.end:
            start = one.end
    return start >= end


def walk(rank: int, log: Path) -> Found:
    """A rank's log, in whatever files it is. Raises Wrong, OSError."""
    found = Found()
    with Reader(Folder(log.parent)) as reader:
        offset, piece, begin, removed = 0, b"", 0, removals(log)
        while True:
            first, data = reader.read(log, offset, 1 << 20)
            if first > offset:
                parse(rank, piece, begin, found)
                piece, begin = b"", found.end + first - offset
                found.holes.append((found.end, begin))
                if not _are_told(removed, offset, first):
                    raise Wrong(f"rank {rank}: no record tells what became of bytes {offset}-{first} of {log}")
            if not data:
                break
            piece += data
            offset = first + len(data)
        parse(rank, piece, begin, found)
        # A removal behind all that is kept: the file was deleted, and nothing came after it.
        end = reader.layout(log).end
        if end > offset:
            found.holes.append((found.end, found.end + end - offset))
            found.end += end - offset
    return found


def settle(rank: int, log: Path, moved: Sequence[Path]) -> Found:
    """As `walk`, with files of the rank that somebody moved away: what is in them is not gone. Raises Wrong."""
    found = walk(rank, log)
    for path in moved:
        data = path.read_bytes() if path.exists() else b""
        if data := gzip.decompress(data) if path.name.endswith(".gz") else data:
            apart = Found()
            parse(rank, data, _begin(data), apart)
            found.kept += apart.kept
            found.gaps += apart.gaps
            found.end = max(found.end, apart.end)
    place = 0
    for start, end in sorted(found.kept + found.gaps):
        if start < place:
            raise Wrong(f"rank {rank}: bytes {start}-{min(place, end)} are there twice, or kept and told as lost")
        if start > place and not any(first <= place and start <= last for first, last in found.holes):
            raise Wrong(f"rank {rank}: bytes {place}-{start} are neither kept nor counted")
        place = end
    found.holes = [(max(start, first), min(end, last)) for start, end in found.holes for first, last in _free(found)]
    found.holes = [(start, end) for start, end in found.holes if start < end]
    return found


def _free(found: Found) -> list[tuple[int, int]]:
    """What is in no file and in no line."""
    place, free = 0, []
    for start, end in sorted(found.kept + found.gaps):
        free.append((place, start))
        place = end
    return [*free, (place, found.end)]


def _begin(data: bytes) -> int:
    """Which byte of a rank's output is the first that a file tells of: by the first whole line in it."""
    line = re.search(rb"^rank \d\d line (\d{8}) ", data, re.MULTILINE)
    if line is None:
        raise Wrong(f"no whole line in {data[:200]!r}")
    start = int(line[1]) * paced.SIZE
    for ours in _OURS.finditer(data, 0, line.start()):
        gap = _GAP.fullmatch(ours[1])
        start -= int(gap[1]) if gap is not None else 0
    # muster's line may have got a break of its own before it, which is not the rank's.
    before = _OURS.sub(b"", data[: line.start()])
    return start - len(before)


def size_of(logs: Sequence[Path]) -> int:
    """About how much of a rank's output is in files: as names and sizes tell, without reading it."""
    total = 0
    for log in logs:
        with contextlib.suppress(OSError):
            total += log.stat().st_size if log.is_file() else 0
        for path in log.parent.glob(f"{log.name}.*"):
            if span := _SEGMENT.fullmatch(path.name.removeprefix(log.name)):
                total += int(span[2]) - int(span[1])
    return total


def last_line(*logs: Path) -> int:
    """Number of the last whole line in any of these files; -1 where there is none."""
    last = -1
    for log in logs:
        try:
            with open(log, "rb") as file:
                file.seek(max(0, log.stat().st_size - 4096))
                for line in re.finditer(rb"line (\d{8}) \.+\n", file.read()):
                    last = max(last, int(line[1]))
        except OSError:
            continue
    return last
