"""What processes hold, and whether it grows."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import median, pss_mb

#: Megabytes.
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6
#: Part of a series that is warming up, and is not judged.
_WARMING = 0.1


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds at a moment. Memory in MB (10^6 bytes); children without those that nobody has waited for,
    which are the zombies."""

    rss: float
    pss: float
    descriptors: int
    threads: int
    children: int
    zombies: int


def held(pid: int) -> Held:
    """Raises OSError where the process is gone or not ours to read."""
    below = children(pid)
    states = [_state(child) for child in below]
    return Held(
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MB,
        pss_mb(pid),
        len(os.listdir(f"/proc/{pid}/fd")),
        len(os.listdir(f"/proc/{pid}/task")),
        sum(state not in "ZX" for state in states),
        states.count("Z"),
    )


def children(pid: int) -> list[int]:
    """Of all threads; those that have ended and were not waited for, too. None of a process that is gone."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    found, waiting = [], [pid]
    while waiting:
        below = children(waiting.pop())
        found += below
        waiting += below
    return found


def folder_size(folder: Path, without: Sequence[str] = ()) -> tuple[int, int]:
    """Bytes and number of the files in a folder, but those of these names. What goes meanwhile does not count."""
    size = count = 0
    for where, _, names in os.walk(folder):
        for name in names:
            if name not in without:
                try:
                    size += os.lstat(os.path.join(where, name)).st_size
                    count += 1
                except FileNotFoundError:
                    pass
    return size, count


def thirds(values: Sequence[float]) -> tuple[float, float, float]:
    """Medians of the three thirds behind the first tenth, in which everything warms up."""
    judged = values[int(len(values) * _WARMING) :]
    third = max(len(judged) // 3, 1)
    return median(judged[:third]), median(judged[third : 2 * third] or judged), median(judged[2 * third :] or judged)


def grows(values: Sequence[float], tolerance: float) -> bool:
    """Whether it has grown by more than `tolerance` over the time that is judged, and still did at its end: a cache
    that has filled stays where it is."""
    first, second, last = thirds(values)
    return last - first > tolerance and last - second > tolerance / 3


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
