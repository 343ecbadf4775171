"""Files of the event store, and how an event is found again in them.

A segment is named `<number of its first event>.log`. Each line is an event: eight hexadecimal digits of CRC-32 over the
rest, a space, a JSON object.
"""

import os
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

import msgspec

from muster.probes import typed
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model import journal

#: Every so many bytes an offset is remembered, so that a reader need not begin at a file's begin.
STEP = 16384
_NAME = re.compile(r"(\d{20})\.log")


class Line(msgspec.Struct, omit_defaults=True):
    """An event as it is written: number, time, kind, job id, the job's time of acceptance, number of the record, rank,
    message, seconds, attributes."""

    q: int
    t: float
    k: str
    j: str = ""
    i: float = 0.0
    n: int = -1
    r: int | None = None
    m: str = ""
    s: float = 0.0
    a: dict[str, str] = {}  # msgspec copies it


@dataclass(slots=True)
class Segment:
    """One file. `size` and `damaged` are of whole lines; `_noted` has (number, offset) of some of them."""

    path: Path
    first: int
    size: int = 0
    next_number: int = 0
    damaged: int = 0
    _noted: list[tuple[int, int]] = field(default_factory=list)

    def note(self, number: int, offset: int) -> None:
        """A line with this number begins at this offset."""
        if not self._noted or offset - self._noted[-1][1] >= STEP:
            self._noted.append((number, offset))

    def offset_of(self, number: int) -> int:
        """Where a reader that wants this number may begin."""
        at = bisect_right(self._noted, number, key=lambda noted: noted[0]) - 1
        return self._noted[at][1] if at >= 0 else 0


_decoder = typed.decoder(Line)


def encode(line: Line) -> bytes:
    """With checksum and newline."""
    return journal.sealed(msgspec.json.encode(line))


def decode(data: bytes) -> Line | None:
    """None for what is not as it was written."""
    body = journal.unsealed(data)
    try:
        return None if body is None else _decoder.decode(body)
    except (ValueError, msgspec.DecodeError):
        return None


def create(folder: Path, first: int) -> Segment:
    """A new, empty segment. Raises OSError."""
    path = folder / f"{first:020}.log"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    return Segment(path, first, next_number=first)


def scan(folder: Path, told: Callable[[Line], None], *, mend: bool = True) -> list[Segment]:
    """All segments, oldest first; `told` is called with each line. A torn end is cut off, where it is to be mended.
    Raises OSError."""
    names = [match for name in sorted(os.listdir(folder)) if (match := _NAME.fullmatch(name))]
    found: list[Segment] = []
    for match in names:
        segment = Segment(folder / match[0], int(match[1]), next_number=int(match[1]))
        torn = False
        for offset, data in journal.lines(segment.path.read_bytes()):
            line = decode(data)
            torn = not data.endswith(b"\n")
            if torn:
                break
            segment.size = offset + len(data)
            if line is None:
                segment.damaged += 1
                continue
            segment.note(line.q, offset)
            segment.next_number = max(segment.next_number, line.q + 1)
            told(line)
        found.append(segment)
        if torn and mend and match is names[-1]:
            os.truncate(segment.path, segment.size)
    return found


def read(parts: list[tuple[Path, int, int]], after: int, limit: int) -> list[Line]:
    """At most `limit` lines with numbers over `after`, from files with offsets of begin and end. Raises OSError."""
    found: list[Line] = []
    for path, start, end in parts:
        with open(path, "rb") as file:
            file.seek(start)
            while file.tell() < end and len(found) < limit:
                line = decode(file.readline())
                if line is not None and line.q > after:
                    found.append(line)
        if len(found) >= limit:
            break
    return found
