"""Stretches of a log, as `log_signs` searches them: without escape sequences, and each byte with its place in the file.

Blocks: everything here reads files that may lie on a disk that hangs.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from muster.agent.host.log_folder import folder
from muster.agent.logs.log_reading import RankLogFile, offset_since
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.output.log_reader import Reader
from muster.supervisors.output.time_lookup import TimeIndex

#: How far back an error is looked for whose rank wrote much before it ended: bytes, seconds before its last output.
FURTHER, FURTHER_S = 8 << 20, 120.0
#: Bytes around its last traceback that are searched then; without one, so many bytes at its end.
AROUND, WITHOUT = 64 << 10, 1 << 20
_TRACEBACK = b"Traceback (most recent call last)"
#: Colours and other sequences of terminals: rich, loguru and Python 3.13 colour their tracebacks.
_ESCAPE = re.compile(
    rb"\x1b\[[0-?]{0,64}[ -/]{0,16}[@-~]|\x1b[\]PX^_][^\x07\x1b\r\n]{0,512}(?:\x07|\x1b\\)|\x1b[ -/]{0,4}[0-~]?"
)


@dataclass(frozen=True, slots=True)
class Stretch:
    """`data`: from the start of a line; `start`: its offset in the file; `end`: where the file's next byte is. `cut`:
    where in `data` bytes were left out, and how many up to there."""

    data: bytes
    start: int
    end: int
    cut: tuple[Sequence[int], Sequence[int]] = ((), (0,))

    def place(self, at: int) -> int:
        """The offset in the file of a byte of `data`."""
        places, sums = self.cut
        return self.start + at + sums[bisect_right(places, at)]


def without_escapes(raw: bytes, start: int = 0) -> Stretch:
    """A stretch of these bytes of a file. A search for words would not find those that are coloured in part."""
    if b"\x1b" not in raw:
        return Stretch(raw, start, start + len(raw))
    found = [(match.start(), match.end() - match.start()) for match in _ESCAPE.finditer(raw)]
    sums = [0, *accumulate(length for _, length in found)]
    places = [at - before for (at, _), before in zip(found, sums, strict=False)]
    return Stretch(_ESCAPE.sub(b"", raw), start, start + len(raw), (places, sums))


def tail(file: RankLogFile, begin: int, end: int | None, most: int) -> Stretch:
    """At most `most` bytes before `end` (None: the end of the file), none before `begin`. Raises OSError."""
    with Reader(folder(file.path.parent)) as reader:
        layout = reader.layout(file.path)
        if not layout.pieces:
            raise FileNotFoundError
        end = layout.end if end is None else min(end, layout.end)
        start, data = reader.stretch(file.path, max(min(begin, end), end - most), end)
    if start > begin and (cut := data.find(b"\n") + 1):
        data, start = data[cut:], start + cut
    return without_escapes(data, start)


def before(file: RankLogFile, begin: int, following: Stretch) -> Stretch | None:
    """What is worth a search before a stretch: around the last traceback there, or else the end of it. None if the rank
    wrote nothing then, or if its last output came much later."""
    last, _ = TimeIndex(file.index).segment(max(following.end - 1, 0), following.end)
    if following.start <= begin or last is None:
        return None
    since = offset_since(file, last - int(FURTHER_S * 1e9), following.start)
    found = tail(file, max(begin, since), following.start, FURTHER)
    if not found.data:
        return None
    at = found.data.rfind(_TRACEBACK)
    low, high = (len(found.data) - WITHOUT, len(found.data)) if at < 0 else (at - AROUND // 4, at + 3 * AROUND // 4)
    low = found.data.find(b"\n", low) + 1 if low > 0 else 0
    places, sums = found.cut
    skipped = bisect_right(places, low)
    cut = [place - low for place in places[skipped:]], [one - sums[skipped] for one in sums[skipped:]]
    return Stretch(found.data[low:high], found.place(low), following.start, cut)
