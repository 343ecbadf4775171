"""The lag of the event loop: code that blocks the loop makes every caller wait."""

import time
from bisect import bisect_left

import anyio

from muster.agent.exposition import Distribution

#: Seconds between two measurements. At this rate they cost an idle loop 0.05 % of a core, nearly all for waking.
PERIOD_S = 0.5
#: Upper bounds in seconds.
BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)


class LoopLag:
    """Sleeps repeatedly, and counts how many seconds late it wakes."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0

    async def run(self) -> None:
        """Measures until cancelled."""
        while True:
            due = time.monotonic() + PERIOD_S
            await anyio.sleep(PERIOD_S)
            self.observe(max(time.monotonic() - due, 0.0))

    def observe(self, seconds: float) -> None:
        """Counts one delay."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._total += seconds

    @property
    def seen(self) -> Distribution:
        """All delays so far."""
        up_to, count = [], 0
        for bound, found in zip(BOUNDS, self._counts, strict=False):
            count += found
            up_to.append((bound, count))
        return Distribution(tuple(up_to), count + self._counts[-1], self._total)
