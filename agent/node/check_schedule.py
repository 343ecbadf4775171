"""When each periodic check is due: each by its own interval, never all of them at once."""

from collections.abc import Mapping
from dataclasses import dataclass

#: Seconds after the start in which every check has its first turn, one after the other.
FIRST_S = 5.0


@dataclass(slots=True)
class _Turn:
    interval: float
    #: When it is due, and by how much the second turn comes before a whole interval is over.
    due: float
    early: float


class CheckSchedule:
    """Seconds of a monotonic clock. First turns come soon; second ones at different parts of each interval, and from
    then on the checks stay apart."""

    def __init__(self, first_s: float = FIRST_S) -> None:
        self._first_s = first_s
        self._turns: dict[str, _Turn] = {}

    def arrange(self, intervals: Mapping[str, float], now: float) -> None:
        """Takes over which checks there are, with their intervals in seconds; those that stay keep their turn."""
        self._turns = {item: turn for item, turn in self._turns.items() if item in intervals}
        new = [item for item in intervals if item not in self._turns]
        for place, item in enumerate(new):
            interval = intervals[item]
            apart = place / len(new)
            first = now + min(self._first_s, interval) * apart
            self._turns[item] = _Turn(interval, first, interval * (1 - apart) / 2)
        for item, interval in intervals.items():
            turn = self._turns[item]
            if turn.interval != interval:
                turn.interval, turn.early = interval, 0.0
                turn.due = min(turn.due, now + interval)

    def due(self, now: float) -> list[str]:
        """Those whose turn it is; their next one is set. Turns that were missed are not made up for."""
        found = []
        for item, turn in self._turns.items():
            if turn.due > now:
                continue
            found.append(item)
            turn.due += turn.interval - turn.early
            turn.early = 0.0
            if turn.due <= now:
                turn.due = now + turn.interval
        return found

    def next_at(self) -> float | None:
        """When somebody is due next; None where there is nobody."""
        return min((turn.due for turn in self._turns.values()), default=None)
