"""Periodic actions: each at its own rate, staggered, never behind.

Time is the monotonic clock, so a step of the wall clock changes nothing. An action that takes longer than its period
skips turns and counts them; turns never pile up. Each action begins a part of a second beside the others, so that not
all of them need the machine at once.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import field

from muster.probes.kernel.dataclass import dataclass

#: Seconds after which a changed period is noticed, however long the one before it was.
NOTICE_S = 5.0
#: A loop counts whole milliseconds, so its timers fire up to half of one early. Who wakes up so close before a turn
#: takes it: to sleep again would cost two more wake-ups each time.
EARLY_S = 0.001
#: What is asked for out of turn begins no sooner than so many seconds after the time before.
APART_S = 1.0


def until_tick(period_s: float, now: float | None = None) -> float:
    """Seconds until the next multiple of a period on the monotonic clock, which says `now`; at least a quarter of the
    period. Tasks that look every so often at something cheap wait so, and wake up together: to wake an idle process
    costs more than such a look."""
    left = period_s - (time.monotonic() if now is None else now) % period_s
    return left if left >= period_s / 4 else left + period_s


async def tick(period_s: float) -> None:
    """Sleeps for so long."""
    await asyncio.sleep(until_tick(period_s))


class Nap:
    """A sleep that may be ended, for one task: a scope of anyio for each costs more than most of what is done behind
    it."""

    __slots__ = ("_over",)

    def __init__(self) -> None:
        self._over: asyncio.Future[None] | None = None

    async def sleep(self, seconds: float) -> None:
        """At most for so long."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        timer = loop.call_later(seconds, self.end)
        try:
            await self._over
        finally:
            timer.cancel()
            self._over = None

    def end(self) -> None:
        """Ends the present sleep, if there is one. To be called on the loop."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


@dataclass(slots=True, eq=False)
class Beat:
    """An action every `period()` seconds (over 0), first `phase_s` (under 1) after the whole second of the start.

    `act` raises nothing but cancellation. `done` counts how often it completed, `skipped` the turns that it missed
    because it took too long; `took_s` is the duration of the last one in seconds.
    """

    name: str
    period: Callable[[], float]
    act: Callable[[], Awaitable[None]]
    phase_s: float = 0.0
    done: int = 0
    skipped: int = 0
    took_s: float = 0.0
    _soon: bool = field(default=False, init=False)
    _nap: Nap = field(default_factory=Nap, init=False)

    def soon(self) -> None:
        """Has it done out of turn, at once or APART_S after it was begun last; the next time is a period after that. To
        be called on the loop."""
        self._soon = True
        self._nap.end()

    async def run(self) -> None:
        """For ever."""
        time_of = asyncio.get_running_loop().time
        now = time_of()
        last = now - now % 1 + self.phase_s - self.period()  # turns on whole seconds are those of `until_tick`
        begun = -math.inf
        while True:
            begin = time_of()
            due = last + self.period()
            wanted = min(due, begun + APART_S) if self._soon else due
            if (left := wanted - begin) > EARLY_S:
                await self._nap.sleep(min(left, until_tick(NOTICE_S, begin)))
                continue
            if begin < due - EARLY_S:
                last = begin - self.period()
            self._soon, begun = False, begin
            await self.act()
            now, period = time_of(), self.period()
            self.done += 1
            self.took_s = now - begin
            self.skipped += int(self.took_s // period)
            last += max(1, int((now - last) // period)) * period
