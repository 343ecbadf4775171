"""Thins readings to the steps of a time axis, and keeps the least and the greatest of each step. Pure."""

import math
from collections.abc import Callable, Sequence

#: At most so many steps: a picture is some thousand pixels wide.
STEPS = 480
#: The history has rows of a minute before its last hour: over so many seconds, steps are whole minutes.
MINUTES_FROM_S = 4 * 3600.0
#: A line joins readings that are at most so many seconds apart: two rows of the history.
JOIN_S = 120.0
#: Ends of scales, times a power of ten.
_ROUND = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)


def axis_step(seconds: float, readings_s: float) -> float:
    """The length of a step, in seconds, where `seconds` are shown that were read each `readings_s`."""
    unit = 60.0 if seconds > MINUTES_FROM_S else max(readings_s, 0.1)
    return unit * max(1, math.ceil(seconds / STEPS / unit))


def runs(values: Sequence[float | None], step: float) -> list[list[int]]:
    """The places of values that a line joins: where the readings pause for longer than JOIN_S, another begins."""
    apart = max(1, math.ceil(JOIN_S / step))
    found: list[list[int]] = []
    for place, value in enumerate(values):
        if value is None:
            continue
        if found and place - found[-1][-1] <= apart:
            found[-1].append(place)
        else:
            found.append([place])
    return found


def envelope(
    series: Sequence[tuple[Sequence[float | None], Sequence[float | None]]],
) -> tuple[list[float | None], list[float | None]]:
    """Least and most of all series (each with its leasts and its mosts), step by step."""
    least = [_extreme(min, values) for values in zip(*(one[0] for one in series), strict=True)]
    most = [_extreme(max, values) for values in zip(*(one[1] for one in series), strict=True)]
    return least, most


def medians(series: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The median of all series, step by step."""
    found: list[float | None] = []
    for values in zip(*series, strict=True):
        told = sorted(value for value in values if value is not None)
        half = len(told) // 2
        found.append(None if not told else told[half] if len(told) % 2 else (told[half - 1] + told[half]) / 2)
    return found


def odd_one(series: Sequence[Sequence[float | None]], most: float) -> int | None:
    """The series that stands out, over the whole time or in the last steps: three times as far from the median as the
    series usually are, and by a tenth of the scale. None: no series does, or there are fewer than three."""
    if len(series) < 3 or most <= 0:
        return None
    for far in distances(series):
        usual = sorted(far)[len(far) // 2]
        top = max(range(len(far)), key=far.__getitem__)
        if far[top] >= max(3 * usual, most / 10):
            return top
    return None


def distances(series: Sequence[Sequence[float | None]]) -> tuple[list[float], list[float]]:
    """How far each series is from the median of all, on average: over the whole time, and in the last 20 steps."""
    middle = medians(series)
    ends = len(middle) - next((n for n, value in enumerate(reversed(middle)) if value is not None), 0)

    def far(begin: int) -> list[float]:
        return [_distance(one[begin:ends], middle[begin:ends]) for one in series]

    return far(0), far(max(0, ends - 20))


def nice(value: float) -> float:
    """The upper end of a scale: a round number, not below `value`."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in _ROUND if factor * power >= value * (1 - 1e-9))


def _distance(one: Sequence[float | None], middle: Sequence[float | None]) -> float:
    apart = [abs(a - b) for a, b in zip(one, middle, strict=True) if a is not None and b is not None]
    return sum(apart) / len(apart) if apart else 0.0


def _extreme(choose: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return choose(told) if told else None
