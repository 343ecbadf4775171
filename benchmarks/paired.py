"""What paired rounds say about a ratio, on a machine that does other things as well."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measure import median, percentile

#: With fewer rounds an interval says nothing.
FEWEST_ROUNDS = 8
_RESAMPLES = 4000
#: Of a hundred intervals so many hold the ratio: several figures are looked at together, and each may raise the alarm.
CONFIDENCE = 99.5


@dataclass(frozen=True, slots=True)
class Interval:
    """The median of ratios, and between what it is."""

    ratio: float
    low: float
    high: float

    def slower(self, threshold: float) -> bool:
        """Whether even the low end is above it."""
        return self.low > threshold


def interval(old: Sequence[float], new: Sequence[float]) -> Interval | None:
    """Of new to old, round by round, by the bootstrap: which medians do rounds have that are drawn from these rounds?
    None where there are too few."""
    ratios = [after / before for before, after in zip(old, new, strict=True)]
    if len(ratios) < FEWEST_ROUNDS:
        return None
    chance = random.Random(0)
    medians = [median(chance.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES)]
    outside = (100 - CONFIDENCE) / 2
    return Interval(median(ratios), percentile(medians, outside), percentile(medians, 100 - outside))
