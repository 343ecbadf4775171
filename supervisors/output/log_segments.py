"""The files of a log, by name: the live one, and the segments that were rotated away from it.

    <name>                          the live file, which the supervisor writes
    <name>.<start>-<end>            a segment: bytes [start, end) of all output ever, in 16 digits each or more
    <name>.<start>-<end>.gz         the same, compressed (gzip_members.py)
    <name>.removed                  removed output: a JSON line {"start", "end", "at", "why"} each; with "last", the
                                    start of the part that was removed last

Offsets count all output of the log, kept or removed. The name of a segment counts, not its size: the bytes after its
end are in the live file too. The live file begins at the largest end in names and records. A segment that a record
covers counts as removed, although its file may exist for another moment. So no two files must agree, and a process
killed at any step leaves a whole log.
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass

#: Name of the log, start, end, ".gz", ".part" of a file that lies beside a live one; the numbers of segments only.
NAME = re.compile(r"(.+)\.(?:(\d{16,})-(\d{16,})(\.gz)?(\.part)?|removed|new)", re.DOTALL)


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


def segment_path(log: Path, start: int, end: int) -> Path:
    """The file of a segment."""
    return log.with_name(f"{log.name}.{start:016d}-{end:016d}")


def plain_segment(path: Path) -> tuple[Path, Piece] | None:
    """The log of a segment that is not compressed, and what it has of it, by its name; None of any other file."""
    found = NAME.fullmatch(path.name)
    if found is None or found[2] is None or found[4] or found[5]:
        return None
    start, end = int(found[2]), int(found[3])
    return path.with_name(found[1]), Piece(start, end, path, start)


def plain_size(path: Path) -> int:
    """Bytes of a segment that is not compressed, as its name says; 0 of any other file."""
    found = plain_segment(path)
    return found[1].end - found[1].start if found is not None else 0


def removed_path(log: Path) -> Path:
    """The records of what was removed."""
    return log.with_name(f"{log.name}.removed")


def new_path(log: Path) -> Path:
    """A live file in the making."""
    return log.with_name(f"{log.name}.new")


def names(folder: Path) -> Iterator[str]:
    """Of all that is in a folder, one after the other: a list of a hundred thousand names takes ten megabytes. Raises
    OSError."""
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name


def companions(folder: Path, logs: Collection[str]) -> list[tuple[str, Path]]:
    """All files beside the live ones that belong to logs of these names: name of the log and path. Raises OSError."""
    found = []
    for entry in names(folder):
        # Most are not, and it may be long.
        if entry[-1:].isdigit() or entry.endswith((".gz", ".part", ".removed", ".new")):
            match = NAME.fullmatch(entry)
            if match is not None and match[1] in logs:
                found.append((match[1], folder / entry))
    return found


def forget(log: Path, start: int, end: int) -> None:
    """Unlinks a segment under all of its names. Raises OSError."""
    path = segment_path(log, start, end)
    for name in (path, Path(f"{path}.gz"), Path(f"{path}.gz.part")):
        name.unlink(missing_ok=True)


def put_aside(files: Iterable[tuple[Path, Path]]) -> None:
    """Logs of these names (and time indexes), with what was rotated away from them, are the output of an earlier job
    whose record was removed: they are kept under other names. All lie in one folder. Raises OSError."""
    names = {log.name: (log, index) for log, index in files}
    parts: dict[str, list[Path]] = {name: [] for name in names}
    with contextlib.suppress(FileNotFoundError):
        # Whatever is left of it: where only records of what was removed are, reading would begin behind their end.
        for name, path in companions(next(iter(names.values()))[0].parent, names):
            parts[name].append(path)
    for name, (log, index) in names.items():
        if os.path.lexists(log) and (parts[name] or log.lstat().st_size):
            parts[name].append(log)
        there = [*parts[name], *([index] if os.path.lexists(index) else [])]
        if not there:
            continue
        aside = str(int(max(path.lstat().st_mtime for path in parts[name] or there)))
        wanted = [*there, log, removed_path(log)]
        while any(os.path.lexists(_aside(path, log, index, aside)) for path in wanted):  # two such jobs in one second
            aside += "+"
        for path in there:
            path.rename(_aside(path, log, index, aside))


def _aside(path: Path, log: Path, index: Path, aside: str) -> Path:
    """The name of a file of a log that is set aside."""
    if path == index:
        return Path(f"{index}.{aside}")
    return Path(f"{log}.{aside}{path.name.removeprefix(log.name)}")
