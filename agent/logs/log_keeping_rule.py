"""Which log files go, and why: the rule alone, which touches no file.

What goes is always all of one job's. Files go by age, and before that for want of room; the jobs that ended first go
first. Never a running job's, and, as long as they are to be handed to a program, none that it has not taken. Files
whose job is not known go by age alone: they may be of a job that runs on another node.
"""

from collections.abc import Collection
from dataclasses import dataclass

#: Seconds after its end for which a job's files do not go for want of room: somebody may be about to read them.
YOUNG_S = 600.0


@dataclass(frozen=True, slots=True)
class Kept:
    """Log files of one job. `ended_at` in seconds since the epoch; of an `orphan`, whose job is not known here any more
    or never was, when they were changed last. `bytes`: what they have on disk."""

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
    """What is taken from [logs]; 0 is no limit. `upload`: whether there is a program that files are handed to."""

    keep_s: float
    min_free_percent: float = 0.0
    max_node_bytes: int = 0
    upload: bool = False


def doomed(kept: Collection[Kept], now: float, disk: Disk, caps: Caps) -> list[tuple[Kept, str]]:
    """What is to be removed, in this order, each with the reason, a part of a sentence."""
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
