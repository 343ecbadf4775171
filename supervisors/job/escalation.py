"""The stop of a job, as its journal tells it: begun, gone on with by a successor, shortened, given up."""

import contextlib
import signal
import time
from collections.abc import Callable

from muster.probes.kernel import process
from muster.probes.kernel.process import Stat
from muster.supervisors.job.stop_order import SAME_S, unrecorded
from muster.supervisors.launch.containment import Containment
from muster.supervisors.model.ledger import Ledger
from muster.supervisors.model.states import Kind, StopCause
from muster.supervisors.system.ladder import Climb
from muster.supervisors.system.loop import Loop


class Escalation:
    """Ends the processes of one job. What must be true behind a stop is in the journal, so that a successor goes on."""

    def __init__(
        self,
        loop: Loop,
        ledger: Ledger,
        containment: Callable[[], Containment],
        before_signal: Callable[[], object],
        unrecorded: Callable[[], object],
        look: Callable[[], None],
        give_up: Callable[[list[Stat]], None],
    ) -> None:
        """`before_signal`: notes who has ended by itself by now. `unrecorded` is called where the journal did not take
        what is done next, before it is done: a successor is to know of it. `look`: processes may be gone. `give_up`:
        these cannot be killed; it is called again where it raises OSError."""
        self._ledger = ledger
        self._containment = containment
        self._before_signal = before_signal
        self._unrecorded = unrecorded
        self._look = look
        self._give_up = give_up
        self._climb = Climb(loop, self._terminate, self._kill, self._end_in_vain)

    def begin(
        self,
        cause: StopCause,
        by: str,
        reason: str,
        steps: tuple[float, ...],
        ranks: tuple[int, ...] = (),
        again: bool = False,
        up: float | None = None,
        sent: tuple[str, ...] = (),
        signal_up: float = 0.0,
    ) -> None:
        """Begins a stop, or shortens one that is under way. `ranks`, `again`: see lifecycle.Stop; `signal_up`: see
        lifecycle.Asked. `up`: when it began, if the daemon has begun it already (seconds of CLOCK_BOOTTIME), and
        `sent`: the signals that it sent.

        A stop waits for no disk: where it cannot be recorded now, it is recorded later.
        """
        job = self._ledger.job
        if job.state.final:
            return
        now = process.uptime()
        up = now if up is None else min(up, now)
        left = sum(steps) - (now - up)
        stop = {"cause": cause, "by": by, "reason": reason, "steps": steps, "up": up}
        if signal_up:
            stop["signal_up"] = signal_up
        if job.stop is None:
            hang = {"ranks": ranks, "again": again} if cause is StopCause.HUNG else {}
            self._ledger.owe({"kind": Kind.STOPPING} | stop | hang)
            self.note_sent(sent)
            self._keep()
            self.go_on()
        elif time.monotonic() + left < self._climb.kill_at - SAME_S:
            self._ledger.owe({"kind": Kind.STOPPING} | stop)
            self._keep()
            self._climb.shorten(left)
        elif cause is StopCause.REQUESTED and not job.halted:  # it ends no sooner for it, but it is not started again
            under_way = {"steps": job.stop.steps, "up": job.stop.up, "asked_up": up}
            self._ledger.owe({"kind": Kind.STOPPING} | stop | under_way)
            self._keep()
        self.note_sent(sent)

    def note_sent(self, names: tuple[str, ...]) -> None:
        """Records the signals that the daemon sent in our place, those of which the journal does not tell: what ends of
        them was ended by the stop that is under way."""
        for name in unrecorded(self._ledger.job, names):
            self._record(name, 0)

    def halt(self) -> None:
        """All that was to be ended has ended. Another stop may begin later, of another attempt."""
        self._climb.stop()

    def go_on(self) -> None:
        """What follows the record of a stop, ours or a predecessor's: SIGTERM if not sent, the rest of the grace."""
        job = self._ledger.job
        assert job.stop is not None
        grace = sum(job.stop.steps)
        self._look()
        left = max(0.0, grace - max(0.0, process.uptime() - job.stop.up))
        self._climb.begin(left, terminated=job.terminated)

    def _terminate(self) -> None:
        with contextlib.suppress(OSError):  # /proc without a descriptor, say; the signal must not wait for it
            self._before_signal()
        if self._ledger.job.terminated:  # by the daemon, as that has just read
            return
        self._record("SIGTERM", self._containment().signal(signal.SIGTERM))

    def _kill(self) -> None:
        job, contained = self._ledger.job, self._containment()
        # Looked before: whom the cgroup's kill reaches may be gone by the time that `kill` looks. Of ranks whose ends
        # are known and only cannot be written yet nobody is left to be killed.
        needed = any(r.outcome is None for r in job.processes()) or bool(contained.members())
        left = contained.kill()
        if (needed or left) and not job.killed:
            self._record("SIGKILL", len(left))
        self._look()

    def _end_in_vain(self) -> None:
        self._give_up(self._containment().kill())

    def _record(self, name: str, processes: int) -> None:
        """From here on whoever ends was ended by us."""
        self._ledger.owe({"kind": Kind.ESCALATED, "signal": name, "processes": processes}, sync=False)
        self._keep()

    def _keep(self) -> None:
        if self._ledger.owes:
            self._unrecorded()
