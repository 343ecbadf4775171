"""Things that are done again and again at a rate of their own: staggered, never behind.

Time is the monotonic clock's, so a step of the other one changes nothing. Who takes longer than its period leaves beats
out and counts them; they never pile up. Each beat begins a part of a second beside the others, so that not all of them
want the machine at once.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

#: Seconds after which a changed period is noticed, however long the one before it was.
NOTICE_S = 5.0


@dataclass(slots=True, eq=False)
class Beat:
    """Something to be done each `period()` seconds (over 0), first `phase_s` seconds after the start.

    `act` raises nothing but cancellation. `done` counts how often it was through, `skipped` the beats that were left
    out since it took too long, `took_s` is the time of the last one in seconds.
    """

    name: str
    period: Callable[[], float]
    act: Callable[[], Awaitable[None]]
    phase_s: float = 0.0
    done: int = 0
    skipped: int = 0
    took_s: float = 0.0

    async def run(self) -> None:
        """For ever."""
        last = anyio.current_time() + self.phase_s - self.period()
        while True:
            begin = anyio.current_time()
            if (left := last + self.period() - begin) > 0:
                await anyio.sleep(min(left, NOTICE_S))
                continue
            await self.act()
            now, period = anyio.current_time(), self.period()
            self.done += 1
            self.took_s = now - begin
            self.skipped += int(self.took_s // period)
            last += max(1, int((now - last) // period)) * period
