"""What is mounted for a process, as the kernel lists it (proc(5), /proc/PID/mountinfo)."""

import re
from collections.abc import Iterator
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountEntry:
    """A mount: of its file system `root`, at `path`. `options` are its own, `system_options` the file system's."""

    root: str
    path: str
    options: tuple[str, ...]
    type: str
    source: str
    system_options: tuple[str, ...]


def parse(text: str, kind: str = "") -> Iterator[MountEntry]:
    """In the order of the list: of several at one path the last hides the others. `kind`: of this type of file system
    alone, which takes a node with thousands of mounts a twentieth of the time. Lines that are not understood are left
    out."""
    wanted = f" - {kind} " if kind else ""
    for line in text.split("\n"):
        if wanted not in line:
            continue
        head, dash, tail = line.partition(" - ")
        words, rest = head.split(" "), tail.split(" ")
        if dash and len(words) >= 6 and len(rest) >= 2:
            system = tuple(rest[2].split(",")) if len(rest) > 2 else ()
            root, path, source = _unescaped(words[3]), _unescaped(words[4]), _unescaped(rest[1])
            yield MountEntry(root, path, tuple(words[5].split(",")), rest[0], source, system)


def read(proc: Path = Path("/proc"), kind: str = "") -> Iterator[MountEntry]:
    """What is mounted where this process is; `kind` as of `parse`. Raises OSError."""
    return parse((proc / "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"), kind)


def _unescaped(path: str) -> str:
    """A space is written as \\040, for example."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), path) if "\\" in path else path
