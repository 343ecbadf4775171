"""The files of a log: the live one, and the segments that were rotated away from it.

    <name>                          the live file, which the supervisor writes
    <name>.<start>-<end>            a segment: bytes [start, end) of all output ever, in 16 digits each or more
    <name>.<start>-<end>.gz         the same, compressed (gzip_members.py)
    <name>.removed                  what is not kept any more: a JSON line {"start", "end", "at", "why"} each; with
                                    "last", where what was removed last began

Offsets are those of all output of the log, whatever has become of it. The name of a segment counts, not its size: what
is behind its end stands in the live file too. The live file begins at the largest end that names and records tell; a
segment that a record covers is gone, though it may still be there for a moment. So no file tells what another has to
agree with, and whoever is killed at whatever step leaves a whole log behind.
"""

import bisect
import contextlib
import errno
import fcntl
import json
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisors import gzip_members

_NAME = re.compile(r"(.+)\.(?:(\d{16,})-(\d{16,})(\.gz)?(\.part)?|removed|new)", re.DOTALL)
#: The time of a folder's last change moves in steps of at most 10 ms: a change right behind a look may not show in it.
_TICK_S = 0.02
_TRIES = 100
#: No record of what was removed is longer, in bytes.
_RECORD = 4096


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [start, end) of a log, in a file whose first byte is the one at `base`. `inode`: of the live file, which
    may be another by the time it is opened; 0 of a segment, whose name says what is in it."""

    start: int
    end: int
    path: Path
    base: int
    packed: bool = False
    inode: int = 0


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


_NEVER_ROTATED = Layout((), 0)


@dataclass(frozen=True, slots=True)
class Removed:
    """Output that is not kept any more. `at`: when the last of it was removed, which began at `last`, in seconds since
    the epoch."""

    start: int
    end: int
    at: float
    why: str
    last: int


def segment_path(log: Path, start: int, end: int) -> Path:
    """The file of a segment."""
    return log.with_name(f"{log.name}.{start:016d}-{end:016d}")


def removed_path(log: Path) -> Path:
    """The records of what was removed."""
    return log.with_name(f"{log.name}.removed")


def new_path(log: Path) -> Path:
    """A live file in the making."""
    return log.with_name(f"{log.name}.new")


def removals(log: Path) -> list[Removed]:
    """What was removed of a log, in the order of time. Lines that are no records are left out. Raises OSError."""
    try:
        fd = gzip_members.open_read(removed_path(log))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.EINVAL):  # none, or nothing of ours
            return []
        raise
    with open(fd, "rb") as file:
        _lock(fd, fcntl.LOCK_SH)
        return [found for line in file if (found := _removed(line)) is not None]


def record_removal(log: Path, start: int, end: int, why: str) -> None:
    """To be called before the bytes are removed. What lies right behind what the last record tells, and goes for the
    same reason, becomes part of that one: a job of weeks may give up a segment each second. Raises OSError, with no
    record made that would count."""
    fd = os.open(removed_path(log), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    try:
        _lock(fd, fcntl.LOCK_EX)
        size = os.fstat(fd).st_size
        tail = os.pread(fd, _RECORD, max(0, size - _RECORD))
        old = tail[tail.rfind(b"\n", 0, -1) + 1 :]
        record, fields, place = _removed(old), {"start": start, "end": end, "at": round(time.time(), 3)}, size
        if record is not None and old.endswith(b"\n") and (record.end, record.why) == (start, why):
            fields |= {"start": record.start, "last": start}
            place -= len(old)
        line = json.dumps(fields | {"why": why}).encode().ljust(len(old) - 1 if place < size else 0) + b"\n"
        if place == size and old and not old.endswith(b"\n"):  # somebody was killed, or found no room, in one
            line = b"\n" + line
        if os.pwrite(fd, line, place) < len(line):
            os.pwrite(fd, old if place < size else b"", place)
            os.ftruncate(fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(removed_path(log)))
    finally:
        os.close(fd)


def _removed(line: bytes) -> Removed | None:
    """None: it is no record."""
    try:
        record = json.loads(line)
        start = int(record["start"])
        end, at, last = int(record["end"]), float(record["at"]), int(record.get("last", start))
        return Removed(start, end, at, str(record["why"]), last)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def _lock(fd: int, how: int) -> None:
    """So that nobody reads a record that is being written. Best effort: not every file system has it."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, how)


def remove(log: Path, piece: Piece, why: str) -> None:
    """Removes a segment, with a record of it. Raises OSError; what is recorded then counts as gone all the same."""
    record_removal(log, piece.start, piece.end, why)
    forget(log, piece.start, piece.end)


def companions(folder: Path, names: Collection[str]) -> Iterator[tuple[str, Path]]:
    """All files beside the live ones that belong to logs of these names: name of the log and path. Raises OSError."""
    for entry in os.listdir(folder):
        if entry[-1:].isdigit() or entry.endswith(
            (".gz", ".part", ".removed", ".new")
        ):  # most are not, and it may be long
            found = _NAME.fullmatch(entry)
            if found is not None and found[1] in names:
                yield found[1], folder / entry


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
            found = self._kept[log] = self._look(log) if log.name in self._spans else _NEVER_ROTATED
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
            before = [_stat(log) for log in waiting]
            names = self._refresh()
            moved = []
            for log, stat in zip(waiting, before, strict=True):
                layout = _with_live(names.kept(log), log, stat)
                if not (stat and names.generation == generation) and _inode(stat) != _inode(_stat(log)):
                    moved.append(log)
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
            for entry in os.listdir(self.path):
                if not (entry[-1:].isdigit() or entry.endswith((".gz", ".removed"))):
                    continue
                found = _NAME.fullmatch(entry)
                if found is not None:
                    log = spans.setdefault(found[1], {})
                    if found[2]:
                        log[int(found[2]), int(found[3])] = bool(found[4])


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
            fd = gzip_members.open_read(piece.path)
            if piece.inode and os.fstat(fd).st_ino != piece.inode:
                os.close(fd)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(piece.path))
            if len(self._open) == self._most:
                os.close(self._open.popitem(last=False)[1])
            self._open[key] = fd
        return fd


def compress(log: Path, piece: Piece, level: int = 6) -> Generator[int, None, None]:
    """Puts a compressed segment in the place of a plain one (of `Layout.segments`), which readers may go on reading.

    Yields after each member how many bytes are done, so that it can be paced; whoever stops in the middle closes the
    generator, and nothing is left of it. Raises OSError, with the plain segment still there.
    """
    target = Path(f"{piece.path}.gz")
    part = Path(f"{target}.part")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()  # of one that was killed
    source = gzip_members.open_read(piece.path)
    try:
        stat = os.fstat(source)
        out = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with open(out, "wb", buffering=0) as file:
                done, size = 0, piece.end - piece.start
                while done < size:
                    data = os.pread(source, min(gzip_members.MEMBER, size - done), done)
                    if len(data) < min(gzip_members.MEMBER, size - done):
                        raise OSError(errno.EIO, "is shorter than its name says", str(piece.path))
                    member = memoryview(gzip_members.pack(data, level))
                    while member:
                        member = member[file.write(member) :]
                    done += len(data)
                    yield done
                if (stat.st_uid, stat.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(out, stat.st_uid, stat.st_gid)
                os.fchmod(out, stat.st_mode & 0o777)
                os.utime(out, ns=(stat.st_atime_ns, stat.st_mtime_ns))
                os.fsync(out)
            part.rename(target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                part.unlink()
            raise
    finally:
        os.close(source)
    try:
        piece.path.unlink()
        gone = any(record.start <= piece.start and piece.end <= record.end for record in removals(log))
    except FileNotFoundError:
        gone = True
    if gone:
        target.unlink(missing_ok=True)  # it was removed meanwhile, under its old name


def forget(log: Path, start: int, end: int) -> None:
    """Unlinks a segment under all of its names. Raises OSError."""
    path = segment_path(log, start, end)
    for name in (path, Path(f"{path}.gz"), Path(f"{path}.gz.part")):
        name.unlink(missing_ok=True)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _inode(stat: os.stat_result | None) -> int:
    return stat.st_ino if stat is not None else 0
