"""From SIGTERM over the grace to SIGKILL, and to the point where somebody must be told that it did not help."""

import contextlib
import signal
import time
from collections.abc import Callable

from supervisors import process
from supervisors.containment import Containment
from supervisors.ledger import Ledger
from supervisors.loop import Loop, Timer
from supervisors.process import Stat
from supervisors.states import Cause, Kind

#: How long SIGKILL may take before a process counts as one that cannot be killed, and how often it is sent, in seconds.
KILL_WAIT_S = 30.0
KILL_AGAIN_S = 0.02


class Escalation:
    """Ends the processes of one job. What must be true behind a stop is in the journal, so that a successor goes on."""

    def __init__(
        self,
        loop: Loop,
        ledger: Ledger,
        containment: Callable[[], Containment],
        before_signal: Callable[[], object],
        look: Callable[[], None],
        give_up: Callable[[list[Stat]], None],
    ) -> None:
        """`before_signal`: notes who has ended by itself by now. `look`: processes may be gone. `give_up`: these cannot
        be killed; it raises OSError where that cannot be recorded, and is called again then."""
        self._loop = loop
        self._ledger = ledger
        self._containment = containment
        self._before_signal = before_signal
        self._look = look
        self._give_up = give_up
        self._timer: Timer | None = None
        self._kill_at = 0.0
        self._give_up_at = 0.0
        self._over = False

    def begin(
        self,
        cause: Cause,
        by: str,
        reason: str,
        steps: tuple[float, ...],
        ranks: tuple[int, ...] = (),
        again: bool = False,
    ) -> None:
        """Begins a stop, or shortens one that is under way. `ranks`, `again`: see lifecycle.Stop.

        Raises OSError where it cannot be recorded.
        """
        job = self._ledger.job
        if job.state.final:
            return
        stop = {"cause": cause, "by": by, "reason": reason, "steps": steps, "up": process.uptime()}
        if job.stop is None:
            hang = {"ranks": ranks, "again": again} if cause is Cause.HUNG else {}
            self._ledger.commit({"kind": Kind.STOPPING} | stop | hang)
            self.go_on()
        elif time.monotonic() + sum(steps) < self._kill_at:
            self._ledger.commit({"kind": Kind.STOPPING} | stop)
            self._arm(sum(steps))
        elif cause is Cause.REQUESTED and not job.halted:  # it ends no sooner for it, but it is not started again
            self._ledger.commit({"kind": Kind.STOPPING} | stop | {"steps": job.stop.steps, "up": job.stop.up})

    def halt(self) -> None:
        """All that was to be ended has ended. Another stop may begin later, of another attempt."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def go_on(self) -> None:
        """What follows the record of a stop, ours or a predecessor's: SIGTERM if not sent, the rest of the grace."""
        job = self._ledger.job
        assert job.stop is not None
        self._over = False
        grace = sum(job.stop.steps)
        self._arm(max(0.0, grace - max(0.0, process.uptime() - job.stop.up)))
        self._look()
        if job.terminated or grace == 0:
            return
        self._loop.attempt(self._terminate)

    def _terminate(self) -> None:
        if self._ledger.job.terminated or self._over:
            return
        with contextlib.suppress(OSError):  # tried again behind this batch; the signal must not wait for it
            self._before_signal()
        self._record("SIGTERM", self._containment().signal(signal.SIGTERM))

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._kill_at = time.monotonic() + seconds
        self._timer = self._loop.later(seconds, self._kill)

    def _kill(self) -> None:
        if self._over:
            return
        self._give_up_at = time.monotonic() + KILL_WAIT_S
        self._record("SIGKILL", len(self._containment().kill()))
        self._look()
        self._timer = self._loop.later(KILL_AGAIN_S, self._kill_again)

    def _kill_again(self) -> None:
        if self._over:
            return
        left = self._containment().kill()
        self._look()
        if time.monotonic() < self._give_up_at:
            self._timer = self._loop.later(KILL_AGAIN_S, self._kill_again)
        else:
            self._give_up(left)

    def _record(self, name: str, processes: int) -> None:
        """From here on whoever ends was ended by us, whether or not that could be written down."""
        self._ledger.job.terminated = True
        with contextlib.suppress(OSError):
            self._ledger.commit({"kind": Kind.ESCALATED, "signal": name, "processes": processes}, sync=False)
