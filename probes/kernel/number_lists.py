"""Lists of numbers (of CPUs, cards, ranks) as the kernel writes those of CPUs: "0-15,32-47"."""

import re
from collections.abc import Collection, Iterable

_PART = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
#: No machine has more processors: what a file says is not allowed to take all memory.
_MOST = 1 << 16


def parse(text: str) -> frozenset[int]:
    """The numbers in a list (cpuset(7), "List format"); none in an empty one. Raises ValueError."""
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        match = _PART.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (0, -1)
        if last < first or last >= _MOST:
            raise ValueError(f"{text[:80]!r} is no list of numbers below {_MOST}")
        found.update(range(first, last + 1))
    return frozenset(found)


def processors(text: str) -> tuple[int, ...]:
    """The processors in a list as sysfs or a driver tells it; empty where it cannot be read as one."""
    try:
        return tuple(sorted(parse(text)))
    except ValueError:
        return ()


def numbers(values: Iterable[int]) -> str:
    """The shortest list of these numbers."""
    runs: list[list[int]] = []
    for number in sorted(set(values)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def ranks(values: Collection[int]) -> str:
    """ "rank 3", "ranks 0-3,7"."""
    return f"rank{'s' if len(values) > 1 else ''} {numbers(values)}"
