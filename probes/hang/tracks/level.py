"""What is usual for a reading of this card in this job."""

import math

import msgspec

#: Bins to an octave: 2.2 % each, much finer than any threshold.
_TO_OCTAVE = 32
#: After so many readings (a day, each 15 s) the old ones count half, so that a level can follow a slow drift.
_MOST = 6000.0
#: Bin of what is nothing.
_NONE = -100_000


class Level(msgspec.Struct):
    """A histogram of positive readings in constant room."""

    bins: dict[int, float] = {}
    weight: float = 0.0
    #: What was computed last, and for how long that will do.
    known: float = 0.0
    fresh_until: float = 0.0

    def add(self, value: float) -> None:
        """Counts a reading."""
        at = round(_TO_OCTAVE * math.log2(value)) if value > 1e-9 else _NONE
        self.bins[at] = self.bins.get(at, 0.0) + 1
        self.weight += 1
        if self.weight > _MOST:
            self.bins = {at: count / 2 for at, count in self.bins.items() if count >= 0.5}
            self.weight = sum(self.bins.values())
            self.fresh_until = 0.0

    def median(self) -> float:
        """0 where nothing was counted."""
        return _value(_quantile(sorted(self.bins.items()), 0.5))

    def typical(self) -> float:
        """The median of what is at least half of the highest (without the top 5 %): of a card that works and pauses in
        turns it is that of the work. 0 where nothing was counted. Computed anew when a twentieth more is known."""
        if self.weight <= self.fresh_until:
            return self.known
        ordered = sorted(self.bins.items())
        top = _quantile(ordered, 0.95)
        self.known = _value(_quantile([(at, n) for at, n in ordered if at >= top - _TO_OCTAVE], 0.5))
        self.fresh_until = self.weight * 1.05
        return self.known


def _quantile(ordered: list[tuple[int, float]], share: float) -> int:
    wanted = share * sum(count for _, count in ordered)
    for at, count in ordered:
        wanted -= count
        if wanted <= 0:
            return at
    return ordered[-1][0] if ordered else _NONE


def _value(at: int) -> float:
    return 0.0 if at == _NONE else 2.0 ** (at / _TO_OCTAVE)
