"""The memory of checks between two looks: looks in a row, shares of a window, values that were seen once.

All times are seconds of CLOCK_BOOTTIME, so a step of the wall clock has no effect. Looks in quick succession count
once: otherwise five calls of a command would be five looks in a row.
"""

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import field
from itertools import pairwise

from muster.probes.kernel.dataclass import dataclass
from muster.probes.node.npu_repeats import Repeats
from muster.probes.node.odd_processes import OddProcesses
from muster.probes.node.remembered import Inventory

#: The name of the check, and what of it is counted.
Key = tuple[Hashable, ...]


@dataclass(slots=True)
class Streak:
    """How many looks in a row something was so, since when, and when it was counted last."""

    looks: int
    since: float
    counted: float


class Streaks:
    """Counts looks in a row for each key, a tuple that begins with the name of who counts."""

    def __init__(self) -> None:
        self._rows: dict[Key, Streak] = {}

    def note(self, key: Key, so: bool, now: float, gap_s: float) -> Streak:
        """Whether it is so at `now`; a look less than `gap_s` after the last counted look is not counted."""
        if not so:
            self._rows.pop(key, None)
            return Streak(0, now, now)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = Streak(1, now, now)
        elif now - row.counted >= gap_s:
            row.looks, row.counted = row.looks + 1, now
        return row

    def keep(self, name: str, keys: Collection[Key]) -> None:
        """Forgets the keys of `name` that are not among `keys`: their devices no longer exist."""
        for key in [k for k in self._rows if k[0] == name and k not in keys]:
            del self._rows[key]


@dataclass(slots=True)
class Share:
    """In which share of the looks of a window something was so."""

    looks: deque[tuple[float, bool]] = field(default_factory=deque)

    def note(self, so: bool, now: float, window_s: float, gap_s: float) -> tuple[int, int]:
        """How many looks of the window, this one among them, and in how many it was so."""
        while self.looks and self.looks[0][0] <= now - window_s:
            self.looks.popleft()
        if not self.looks or now - self.looks[-1][0] >= gap_s:
            self.looks.append((now, so))
        return len(self.looks), sum(so for _, so in self.looks)


@dataclass(slots=True)
class Rate:
    """Growth of a counter per minute, over the last looks; a counter that became smaller begins anew."""

    looks: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, count: int, now: float, window_s: float) -> float | None:
        """Growth per minute within the window; None with the first look."""
        self.growth(count, now, window_s)
        first_at, first = self.looks[0]
        if now - first_at < 1.0:
            return None
        return (count - first) * 60.0 / (now - first_at)

    def changed(self) -> list[tuple[float, int]]:
        """The counts after each change, the first with the count before it; empty where nothing changed."""
        grown = [(then, count) for (_, before), (then, count) in pairwise(self.looks) if count != before]
        return [(grown[0][0], self.looks[0][1]), *grown] if grown else []

    def growth(self, count: int, now: float, window_s: float) -> int:
        """By how much it grew within the window; 0 with the first look."""
        if self.looks and count < self.looks[-1][1]:
            self.looks.clear()
        while len(self.looks) > 1 and self.looks[1][0] <= now - window_s:
            self.looks.popleft()
        self.looks.append((now, count))
        return count - self.looks[0][1]


class Memory:
    """Everything that the checks of one node remember; lives as long as its Looker. The inventory, and what is counted
    over hours (kept_counts), are kept for longer."""

    def __init__(self, inventory: Inventory | None = None) -> None:
        self.streaks = Streaks()
        self._shares: dict[Key, Share] = {}
        self._rates: dict[Key, Rate] = {}
        #: Cards that existed.
        self.inventory = Inventory() if inventory is None else inventory
        #: The most links of each card that were up at one time, by what it is.
        self.links: dict[str, int] = {}
        #: What was in order once: networks of cards, file systems that were writable.
        self.once: set[Key] = set()
        self.ports: dict[str, PortPast] = {}
        self.odd = OddProcesses()
        #: Error codes of Ascend cards, by the card's UUID.
        self.repeats = Repeats()

    def share(self, key: Key) -> Share:
        """How often something was seen; the same object each time."""
        return self._shares.setdefault(key, Share())

    def rates(self, of: Key) -> dict[str, Rate]:
        """Those whose keys begin with `of`, by what follows."""
        return {str(key[-1]): rate for key, rate in self._rates.items() if key[:-1] == of}

    def rate(self, key: Key) -> Rate:
        """How fast a count grows; the same object each time."""
        return self._rates.setdefault(key, Rate())


@dataclass(slots=True)
class PortPast:
    """Of one InfiniBand port: whether it was ever up, since when it is down (0: it is up), when it came up again after
    having been down for long."""

    was_up: bool = False
    down_since: float = 0.0
    flaps: deque[float] = field(default_factory=deque)
