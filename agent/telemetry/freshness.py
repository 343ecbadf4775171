"""How long a reading of a card or a process counts as fresh and is shown."""

from collections.abc import Mapping
from typing import TypeVar

from muster.probes.cards.driver import Seen

T = TypeVar("T")

#: A reading is old after this many of its periods, but not before this many seconds: with a short period, a driver that
#: is slow for a moment must not hide the readings.
OLD_PERIODS = 4
OLD_S = 30.0


def lasts(period_s: float) -> float:
    """Seconds for which a reading with the period `period_s` is shown."""
    return max(OLD_PERIODS * period_s, OLD_S)


def latest(seen: Mapping[int, Seen[T]], index: int, period_s: float, now: float) -> Seen[T] | None:
    """The reading of a card and its time, unless it is old at `now` (seconds since the epoch)."""
    found = seen.get(index)
    return found if found is not None and now - found.at <= lasts(period_s) else None


def fresh(seen: Mapping[int, Seen[T]], index: int, period_s: float, now: float) -> T | None:
    """The reading of a card, unless it is old."""
    found = latest(seen, index, period_s, now)
    return None if found is None else found.value
