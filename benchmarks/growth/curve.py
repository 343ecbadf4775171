"""A curve: what is varied, what is measured of it, and how steep that is."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: From a value on, times more for so many times more of what is varied: above this exponent it is more than linear.
STEEP = 1.1


@dataclass(frozen=True, slots=True)
class Curve:
    """`points` in ascending order. `measure` has a value by the name and unit of each line, such as `CPU, s`; it raises
    BenchmarkFailed, and Skipped where this machine has no room for the point."""

    name: str
    varied: str
    points: Sequence[float]
    #: Of a short run.
    few: Sequence[float]
    measure: Callable[[float], Mapping[str, float]]


class Skipped(Exception):
    """This machine has no room for a point; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured at one point."""

    x: float
    values: Mapping[str, float]


def exponents(found: Sequence[Found], line: str) -> tuple[float, float]:
    """How steep a line is over the upper half of the points: the exponent p of x**p, by least squares of logarithms.
    First of the values, then of what they have more than at the first point: a large constant hides a steep rest. 0
    where it cannot be known."""
    upper = found[len(found) // 2 - 1 :] if len(found) > 3 else found
    first = found[0]
    return (
        _slope([(one.x, one.values[line]) for one in upper]),
        _slope([(one.x - first.x, one.values[line] - first.values[line]) for one in upper]),
    )


def _slope(points: Sequence[tuple[float, float]]) -> float:
    logs = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len(logs) < 2:
        return 0.0
    middle_x, middle_y = (sum(each) / len(logs) for each in zip(*logs, strict=True))
    spread = sum((x - middle_x) ** 2 for x, _ in logs)
    return sum((x - middle_x) * (y - middle_y) for x, y in logs) / spread if spread else 0.0
