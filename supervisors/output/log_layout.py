"""The layout of a log: which output is kept in which file. It follows from the names in the log folder and from the
records of removals."""

import bisect
import contextlib
import os
import stat as stat_bits
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.output import log_segments
from muster.supervisors.output.log_removals import Removed, removals
from muster.supervisors.output.log_segments import NAME, Piece, segment_path

#: The time of a folder's last change moves in steps of at most 10 ms: a change right behind a look may not show in it.
_TICK_S = 0.02
#: Looks at a folder in which files are renamed all the time.
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Layout:
    """What is kept of a log, in order; `end` is the end of all its output."""

    pieces: tuple[Piece, ...]
    end: int

    @property
    def begin(self) -> int:
        """The first byte that is kept; `end` where nothing is."""
        return self.pieces[0].start if self.pieces else self.end

    @property
    def segments(self) -> tuple[Piece, ...]:
        """What was rotated and may be compressed, copied or removed: none that the live file still hangs on."""
        found = tuple(piece for piece in self.pieces if not piece.inode and piece.start == piece.base)
        return found[:-1] if self.pieces and self.pieces[-1].start != self.pieces[-1].base else found

    def before(self, offset: int) -> Piece | None:
        """The piece with the byte before `offset`, or else the one before; None: there is nothing before it."""
        number = bisect.bisect_left(self.pieces, offset, key=lambda piece: piece.start)
        return self.pieces[number - 1] if number else None

    def find(self, offset: int) -> Piece | None:
        """The piece with the byte at `offset`, or else the next; None: there is nothing behind it."""
        number = bisect.bisect_right(self.pieces, offset, key=lambda piece: piece.end)
        return self.pieces[number] if number < len(self.pieces) else None


#: Of a log beside which there is nothing.
NEVER_ROTATED = Layout((), 0)


class _Names:
    """Names in a folder at one moment: start and end of each segment -> whether it is compressed, by log."""

    def __init__(self, generation: int, spans: dict[str, dict[tuple[int, int], bool]]) -> None:
        self.generation = generation
        #: Inode of each live file that was found to belong to these names.
        self.live: dict[Path, int] = {}
        self._spans = spans
        self._kept: dict[Path, Layout] = {}

    def kept(self, log: Path) -> Layout:
        """The segments; the live file begins at the end. Raises OSError."""
        found = self._kept.get(log)
        if found is None:
            found = self._kept[log] = self._look(log) if log.name in self._spans else NEVER_ROTATED
        return found

    def _look(self, log: Path) -> Layout:
        spans, removed = self._spans[log.name], _joined(removals(log))
        pieces = []
        for (start, end), packed in sorted(spans.items()):
            if not any(first <= start and end <= last for first, last in removed):
                path = segment_path(log, start, end)
                pieces.append(Piece(start, end, path.with_name(f"{path.name}.gz") if packed else path, start, packed))
        return Layout(tuple(pieces), max((end for _, end in [*spans, *removed]), default=0))


def _joined(removed: Sequence[Removed]) -> list[tuple[int, int]]:
    """As few spans as there can be: of a long job there are many records, mostly one behind the other."""
    spans: list[tuple[int, int]] = []
    for start, end in sorted((record.start, record.end) for record in removed):
        if spans and start <= spans[-1][1]:
            start, end = spans[-1][0], max(end, spans.pop()[1])
        spans.append((start, end))
    return spans


class Folder:
    """The logs of a folder as they lie there. Looking again costs a stat for the folder and one for each log, unless
    something was made, renamed or removed in the folder. For any number of threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._names = _Names(0, {})
        self._changed = -1

    def look(self, logs: Sequence[Path]) -> list[Layout]:
        """The layouts of logs in this folder. Raises OSError."""
        found: dict[Path, Layout] = {}
        waiting = list(logs)
        for _ in range(_TRIES):
            # A live file that is the same before and after the names were read, or since which no name has changed, is
            # the one that belongs to these names. Where there is none, a rotation may just be going on.
            generation = self._names.generation
            before = [_stat_log(log) for log in waiting]
            names = self._refresh()
            moved = []
            for log, stat in zip(waiting, before, strict=True):
                kept = names.kept(log)
                layout = _with_live(kept, log, stat)
                if not (stat and names.generation == generation) and _inode(stat) != _inode(_stat_log(log)):
                    moved.append(log)
                elif stat is None and self._refresh().kept(log) != kept:
                    moved.append(log)  # absent twice: in one rotation before these names were read, in the next behind
                elif names.live.setdefault(log, _inode(stat)) != _inode(stat):
                    self._changed = -1  # a file system whose clock did not tell that something was renamed
                    moved.append(log)
                else:
                    found[log] = layout
            waiting = moved
            if not waiting:
                break
        # Rotated faster than the folder can be read: what is in segments is most of it.
        found |= {log: names.kept(log) for log in waiting}
        return [found[log] for log in logs]

    def _refresh(self) -> _Names:
        with self._lock:
            stat = _stat(self.path)
            changed = stat.st_mtime_ns if stat is not None else 0
            if changed != self._changed:
                now = time.time()
                spans: dict[str, dict[tuple[int, int], bool]] = {}
                # Twice: what is renamed while a folder is read may show under neither name, but in one of two readings.
                self._read(spans)
                self._read(spans)
                self._names = _Names(self._names.generation + 1, spans)
                self._changed = changed if now - changed / 1e9 > _TICK_S else -1
            return self._names

    def _read(self, spans: dict[str, dict[tuple[int, int], bool]]) -> None:
        with contextlib.suppress(FileNotFoundError):
            for entry in log_segments.names(self.path):
                if not (entry[-1:].isdigit() or entry.endswith((".gz", ".removed"))):
                    continue
                found = NAME.fullmatch(entry)
                if found is not None:
                    log = spans.setdefault(found[1], {})
                    if found[2]:
                        # Of both the plain one counts: a compressor that was killed between making the other and
                        # removing this one is so made up for.
                        span = int(found[2]), int(found[3])
                        log[span] = bool(found[4]) and log.get(span, True)


def _with_live(kept: Layout, log: Path, stat: os.stat_result | None) -> Layout:
    if stat is not None:
        live = Piece(kept.end, kept.end + stat.st_size, log, kept.end, inode=stat.st_ino)
        return Layout((*kept.pieces, live), live.end)
    if kept.pieces and kept.pieces[-1].end == kept.end and not kept.pieces[-1].packed:
        # Killed in the middle of a rotation: what is to be in the live file is behind the end of the last segment.
        last = kept.pieces[-1]
        behind = _stat(last.path)
        if behind is not None and last.base + behind.st_size > last.end:
            rest = Piece(last.end, last.base + behind.st_size, last.path, last.base)
            return Layout((*kept.pieces, rest), rest.end)
    return kept


def _stat(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _stat_log(path: Path) -> os.stat_result | None:
    """None also for what is no file: somebody put a directory or a link in its place. It holds no output."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if stat_bits.S_ISREG(found.st_mode) else None


def _inode(stat: os.stat_result | None) -> int:
    return stat.st_ino if stat is not None else 0
