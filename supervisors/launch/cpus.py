"""Lists of CPUs as the kernel writes them: "0-15,32-47"."""

from collections.abc import Iterable


def parse(text: str) -> frozenset[int]:
    """The numbers in a list (cpuset(7), "List format"); none in an empty one. Raises ValueError."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        numbers.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(numbers)


def shown(numbers: Iterable[int]) -> str:
    """The shortest list of these numbers."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
