"""Lists of numbers (of CPUs, cards, ranks) as the kernel writes those of CPUs: "0-15,32-47"."""

from collections.abc import Collection, Iterable


def parse(text: str) -> frozenset[int]:
    """The numbers in a list (cpuset(7), "List format"); none in an empty one. Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        found.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(found)


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
