"""Which log files to remove, and why: only the rule, which touches no file.

The unit of removal is all files of one job. Files are removed by age, and earlier if space runs short; files of the
jobs that ended first are removed first. Files of a running job stay. If a program takes files over, files that it has
not taken stay, too. Files of an unknown job are removed by age only: the job may run on another node.
"""

from collections.abc import Collection

from muster.probes.kernel.dataclass import dataclass

#: A lack of space does not remove a job's files within so many seconds after its end: somebody may want to read them.
YOUNG_S = 600.0


@dataclass(frozen=True, slots=True)
class Kept:
    """Log files of one job. `ended_at` in seconds since the epoch; for an `orphan`, whose job is unknown here, the time
    of its last change. `bytes`: their size on disk."""

    name: str
    ended_at: float
    bytes: int
    running: bool = False
    uploaded: bool = False
    orphan: bool = False


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of the log folder, in bytes."""

    size: int
    free: int


@dataclass(frozen=True, slots=True)
class Caps:
    """The settings from [logs]; 0 is no limit. `upload`: whether a program takes files over."""

    keep_s: float
    min_free_percent: float = 0.0
    max_node_bytes: int = 0
    upload: bool = False


def doomed(kept: Collection[Kept], now: float, disk: Disk, caps: Caps) -> list[tuple[Kept, str]]:
    """The files to remove, in this order, each with the reason, a part of a sentence."""
    used, free = sum(each.bytes for each in kept), disk.free
    wanted = disk.size * caps.min_free_percent / 100
    found = []
    for each in sorted(kept, key=lambda each: (each.ended_at, each.name)):
        if each.running or (caps.upload and not each.uploaded and not each.orphan):
            continue
        age = now - each.ended_at
        if caps.keep_s and age > caps.keep_s:
            why = f"it ended over {caps.keep_s / 86400:g} days ago (keep_days in [logs])"
        elif each.orphan or not each.bytes or age < YOUNG_S:
            continue
        elif free < wanted:
            why = f"less than {caps.min_free_percent:g} % of the disk was free (min_free_percent in [logs])"
        elif caps.max_node_bytes and used > caps.max_node_bytes:
            why = f"all logs had over {caps.max_node_bytes} bytes (max_node_bytes in [logs])"
        else:
            continue
        found.append((each, why))
        used, free = used - each.bytes, free + each.bytes
    return found
