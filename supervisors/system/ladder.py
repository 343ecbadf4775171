"""The signal ladder: SIGTERM, the grace period, repeated SIGKILL, and giving up.

`Ladder` only computes which of these is due; it reads no clock and sends no signal. Its users: the supervisor for its
ranks (escalation.py), a step (step_run.py) and sessions (session_ends.py), which climb it on their event loop with a
`Climb`; and the daemon, in a thread, if no supervisor can (agent/jobs/live/last_resort.py).
"""

import enum
import math
import time
from collections.abc import Callable

from muster.probes.kernel.backoff import Backoff
from muster.supervisors.system.loop import Alarm, Loop
from muster.supervisors.system.urgency import Urgency

#: Seconds until a process that survives SIGKILL counts as unkillable, and between two SIGKILLs.
KILL_WAIT_S = 30.0
KILL_AGAIN_S = 0.02
#: Where the first SIGKILLs do not do, the next ones are sent ahead of everything else, for so many seconds: processes
#: that fork all the time end only if muster is faster. Not longer: what is left then hangs, and others need the core.
URGENT_AFTER, URGENT_S = 2, 5.0


class Rung(enum.Enum):
    """What is due."""

    NOTHING = enum.auto()
    TERMINATE = enum.auto()
    KILL = enum.auto()
    GIVE_UP = enum.auto()


class Ladder:
    """One climb. Times are seconds of a clock that never goes back."""

    __slots__ = ("_give_up_at", "_kill_next", "_kills", "_pause", "_terminate", "kill_at")

    def __init__(self, now: float, grace: float, *, terminated: bool = False, pause_most: float = KILL_AGAIN_S) -> None:
        """`terminated`: SIGTERM was sent already. `pause_most`: the pause between two SIGKILLs doubles up to it."""
        self.kill_at = self._kill_next = now + max(0.0, grace)
        self._terminate = not terminated and grace > 0
        self._give_up_at = math.inf
        self._kills = 0
        self._pause = Backoff(KILL_AGAIN_S, pause_most)

    def shorten(self, now: float, grace: float) -> bool:
        """Brings the first SIGKILL forward; False where it would come no sooner."""
        if now + grace >= self.kill_at:
            return False
        self.kill_at = self._kill_next = now + max(0.0, grace)
        return True

    def due(self, now: float) -> Rung:
        """What is to be done now. It stays due until `done`, so that what failed is tried again."""
        if now < self.kill_at:
            return Rung.TERMINATE if self._terminate else Rung.NOTHING
        if self._give_up_at == math.inf:  # counted from the first try: we may have been stopped until now
            self._give_up_at = now + KILL_WAIT_S
        if now >= self._give_up_at:
            return Rung.GIVE_UP
        return Rung.KILL if now >= self._kill_next else Rung.NOTHING

    def done(self, rung: Rung, now: float) -> None:
        """This was done."""
        if rung is Rung.TERMINATE:
            self._terminate = False
        elif rung is Rung.KILL:
            self._kills += 1
            self._kill_next = now + self._pause.next()

    def is_urgent(self, now: float) -> bool:
        """Whether SIGKILL is to be sent ahead of everything else (urgency.py)."""
        return self._kills >= URGENT_AFTER and now < self._give_up_at - KILL_WAIT_S + URGENT_S

    def next_at(self) -> float:
        """When something is due next."""
        return min(self._kill_next, self._give_up_at)


class Climb:
    """A ladder on an event loop. An OSError of the work is retried each second; the ladder does not stop for it."""

    def __init__(
        self,
        loop: Loop,
        terminate: Callable[[], object],
        kill: Callable[[], object],
        give_up: Callable[[], object],
        pause_most: float = KILL_AGAIN_S,
    ) -> None:
        self._loop, self._alarm = loop, Alarm(loop)
        self._terminate, self._kill, self._give_up = terminate, kill, give_up
        self._pause_most = pause_most
        self._ladder: Ladder | None = None
        self._urgency = Urgency()

    @property
    def kill_at(self) -> float:
        """When SIGKILL comes, or came (time.monotonic()); 0 where nothing is being ended."""
        return self._ladder.kill_at if self._ladder is not None else 0.0

    def begin(self, grace: float, *, terminated: bool = False) -> None:
        """From the start, with `grace` seconds until SIGKILL."""
        self._ladder = Ladder(time.monotonic(), grace, terminated=terminated, pause_most=self._pause_most)
        self._loop.attempt(self._step)

    def shorten(self, grace: float) -> None:
        """SIGKILL in `grace` seconds, if that is sooner."""
        if self._ladder is not None and self._ladder.shorten(time.monotonic(), grace):
            self._alarm.set(grace, self._step)

    def stop(self) -> None:
        """All has ended that was to be ended."""
        self._urgency.end()
        self._ladder = None
        self._alarm.cancel()

    def _step(self) -> None:
        ladder = self._ladder
        if ladder is None:
            return
        rung = ladder.due(time.monotonic())
        if rung is Rung.TERMINATE:
            self._terminate()
        elif rung is Rung.KILL:
            if ladder.is_urgent(time.monotonic()):
                self._urgency.begin()
            else:
                self._urgency.end()
            self._kill()
        elif rung is Rung.GIVE_UP:
            self._give_up()
        if self._ladder is not ladder:  # the work has stopped it
            return
        if rung is Rung.GIVE_UP:
            self.stop()
            return
        ladder.done(rung, time.monotonic())
        self._alarm.set(ladder.next_at() - time.monotonic(), self._step)
