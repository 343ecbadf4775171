"""How long what was read is shown: as readings of cards, and of processes, wherever they are shown."""

from collections.abc import Mapping
from typing import TypeVar

from muster.probes.cards.driver import Seen

T = TypeVar("T")

#: A reading is old after so many of its periods, and never before so many seconds: where the period is short, a driver
#: that is slow for a moment is no reason to show nothing.
OLD_PERIODS = 4
OLD_S = 30.0


def lasts(period_s: float) -> float:
    """Seconds for which something is shown that is read each `period_s`."""
    return max(OLD_PERIODS * period_s, OLD_S)


def latest(seen: Mapping[int, Seen[T]], index: int, period_s: float, now: float) -> Seen[T] | None:
    """What was read of a card and when, while it is not old at `now` (seconds since the epoch)."""
    found = seen.get(index)
    return found if found is not None and now - found.at <= lasts(period_s) else None


def fresh(seen: Mapping[int, Seen[T]], index: int, period_s: float, now: float) -> T | None:
    """What was read of a card, while it is not old."""
    found = latest(seen, index, period_s, now)
    return None if found is None else found.value
