"""The stop of a job, as its journal records it: begun, continued by a successor, shortened, given up.

If the daemon stops the job in our place, it leaves an order in the run folder (stop_order.py). The order must be read
before the ends of ranks are judged, so this module notes the ends: `note_ends`.
"""

import contextlib
import signal
import time
from collections.abc import Mapping, Sequence

from muster.probes.kernel import endings, process
from muster.probes.kernel.process import Stat
from muster.supervisors.job import stop_order
from muster.supervisors.job.context import JobContext
from muster.supervisors.job.ends import Ends
from muster.supervisors.job.remains import Remains
from muster.supervisors.job.stop_order import SAME_S, StopOrder, unrecorded
from muster.supervisors.launch.service_processes import of_services
from muster.supervisors.model import node_ends, rank_ends
from muster.supervisors.model.states import SERVICE, STEP, Kind, StopCause, log_owner
from muster.supervisors.system.ladder import KILL_WAIT_S, Climb


class Escalation:
    """Ends the processes of one job. What must be true behind a stop is in the journal, so that a successor goes on."""

    def __init__(self, context: JobContext, ends: Ends, remains: Remains) -> None:
        self._context, self._ledger, self._ends, self._remains = context, context.ledger, ends, remains
        self._nonce, self._file = context.nonce, context.root.stop_order(context.spec.job_id)
        self._climb = Climb(context.loop, self._terminate, self._kill, self.give_up)
        #: Whether an order may be there that was never read.
        self._order_due = True
        #: When this supervisor itself got SIGTERM (seconds of CLOCK_BOOTTIME); 0: it did not.
        self.signal_up = 0.0

    # --- begin --------------------------------------------------------------------------------------------------------

    def begin(
        self,
        cause: StopCause,
        by: str,
        reason: str,
        steps: Sequence[float] | None = None,
        ranks: tuple[int, ...] = (),
        again: bool = False,
        up: float | None = None,
        sent: tuple[str, ...] = (),
        hung: Mapping[str, object] | None = None,
    ) -> None:
        """Begins a stop, or shortens a running one. `steps`: of the grace, in seconds; None: the job's own.
        `ranks`, `again`: see lifecycle.Stop. `up`: when it began, if the daemon has begun it already (seconds of
        CLOCK_BOOTTIME), and `sent`: the signals that it sent. `hung`: since and how, see lifecycle.Asked.

        A stop waits for no disk: where it cannot be recorded now, it is recorded later.
        """
        job = self._context.job
        if cause is StopCause.REQUESTED and job.stop is None:
            self._context.output.say(f"is stopped by {by or 'somebody'}" + (f": {reason}" if reason else ""))
        self._remains.look()
        if job.state.final:
            return
        grace = self._context.spec.stop_steps(steps)
        now = process.uptime()
        up = now if up is None else min(up, now)
        left = sum(grace) - (now - up)
        stop = {"cause": cause, "by": by, "reason": reason, "steps": grace, "up": up}
        if cause is StopCause.REQUESTED and self.signal_up and now - self.signal_up <= rank_ends.SAME_SIGNAL_S:
            stop["signal_up"] = self.signal_up
        if hung is not None:
            stop["hung"] = dict(hung)
        if job.stop is None:
            hang = {"ranks": ranks, "again": again} if cause is StopCause.HUNG else {}
            self._ledger.owe({"kind": Kind.STOPPING} | stop | hang)
            self._note_sent(sent)
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
        self._note_sent(sent)

    def go_on(self) -> None:
        """What follows the record of a stop, ours or a predecessor's: SIGTERM if not sent, the rest of the grace."""
        job = self._context.job
        assert job.stop is not None
        grace = sum(job.stop.steps)
        self._remains.look()
        left = max(0.0, grace - max(0.0, process.uptime() - job.stop.up))
        self._climb.begin(left, terminated=job.terminated)

    def halt(self) -> None:
        """All that was to be ended has ended. Another stop may begin later, of another attempt."""
        self._climb.stop()

    # --- what the daemon does in our place ----------------------------------------------------------------------------

    def note_ends(self, look: bool = True) -> None:
        """Records how ranks ended, once it is known what the daemon did by then. `look`: see Ends.collect. Raises
        OSError where /proc, or an order, cannot be read."""
        if self._ends.undecided:
            return
        if self._order_due:
            self.take_order()
        for number in self._ends.collect(self.take_order, look=look):
            rank = self._context.job.rank(number)
            if number != STEP and (rank.status != 0 or number <= SERVICE):
                how = endings.describe(rank.status) + (f": {rank.detail}" if rank.detail else "")
                self._context.output.say(f"{log_owner(number)} {how}")
            self._remains.look()

    def take_order(self) -> None:
        """A stop that no supervisor took, or signals of a stop in the journal with which its supervisor was late.
        Raises OSError where that cannot be known now."""
        order, job = self._order(), self._context.job
        self._order_due = False
        if order is None or not (due := stop_order.due(job, order)):
            return
        if order.is_asked:
            self.begin(StopCause.REQUESTED, order.by, order.reason, order.steps, up=order.up, sent=order.sent)
        else:
            self._ledger.owe(*due, sync=False)

    def record_order(self) -> None:
        """As `take_order`, where there is nobody any more to whom a signal could go. Raises OSError likewise."""
        if (order := self._order()) is not None and (due := stop_order.due(self._context.job, order)):
            self._ledger.owe(*due)

    def _order(self) -> StopOrder | None:
        return stop_order.read(self._file, self._nonce)

    def _note_sent(self, names: tuple[str, ...]) -> None:
        """Records the signals that the daemon sent in our place, those of which the journal does not tell: what ends of
        them was ended by the stop that is under way."""
        for name in unrecorded(self._context.job, names):
            self._record(name, 0)

    # --- signals ------------------------------------------------------------------------------------------------------

    def _terminate(self) -> None:
        with contextlib.suppress(OSError):  # /proc without a descriptor, say; the signal must not wait for it
            self.note_ends()
        job, contained = self._context.job, self._context.containment
        if not job.terminated:  # by the daemon, as that has just read
            self._say_why()
            sent = contained.signal_all_but(signal.SIGTERM, self._services_of) if job.has_services else None
            self._record("SIGTERM", contained.signal(signal.SIGTERM) if sent is None else sent)
        self.end_services()

    def _say_why(self) -> None:
        """To the program on a node of an MPI job, which tells the other nodes."""
        job = self._context.job
        number = node_ends.signal_of(job.stop.cause) if job.stop is not None else 0
        for rank in job.ranks if number else ():
            if rank.of_mpi and rank.outcome is None and rank.pid:
                process.send(rank.pid, rank.start, number)

    def end_services(self) -> None:
        """SIGTERM to the services, once nothing but them is left. The grace is that of the stop, for all together."""
        job = self._context.job
        if job.stop is None or not job.has_services or job.services_told or self._ends.undecided:
            return
        members = self._context.containment.members()
        if not members or len(self._services_of(members)) < len(members):
            return
        sent = self._context.containment.signal(signal.SIGTERM)
        self._record("SIGTERM", sent, services=True)

    def _services_of(self, members: list[Stat]) -> set[int]:
        job = self._context.job
        return of_services(job.services, members) if job.has_services else set()

    def _kill(self) -> None:
        job, contained = self._context.job, self._context.containment
        # Looked before: whom the cgroup's kill reaches may be gone by the time that `kill` looks. Of ranks whose ends
        # are known and only cannot be written yet, no process is left to be killed.
        needed = any(r.outcome is None for r in job.processes()) or bool(contained.members())
        left = contained.kill()
        if (needed or left) and not job.killed:
            self._record("SIGKILL", len(left))
        elif needed and not left:
            with contextlib.suppress(OSError):
                self.note_ends()
        self._remains.look()

    def give_up(self) -> None:
        """Kills once more. Each that is left is waited for in the kernel (state D, mostly): only the driver or a reboot
        can end it. Raises OSError, and is to be called again then."""
        left = self._context.containment.kill()
        self.note_ends()
        if not left and self._ends.unreaped and self._context.containment.gone(kept=True):
            return  # they have ended, which only cannot be written yet
        for s in left:
            self._context.warn(
                f"process {s.pid} ({s.comm}) could not be killed: it was in state {s.state} {KILL_WAIT_S:.0f} s after "
                f"SIGKILL; while it exists it may hold a card, and `cat /proc/{s.pid}/stack` shows where it waits"
            )
        self._ends.lose([r for r in self._context.job.processes() if r.outcome is None], "it cannot be killed")
        self._remains.stuck = True
        self._remains.look()

    def _record(self, name: str, processes: int, services: bool = False) -> None:
        """From here on muster has ended every rank that ends."""
        more = {"services": True} if services else {}
        self._ledger.owe({"kind": Kind.ESCALATED, "signal": name, "processes": processes} | more, sync=False)
        self._keep()

    def _keep(self) -> None:
        """Where the journal does not take the stop that somebody asked for, before it is carried out: a successor is to
        know it as if the daemon had given the order. Best effort."""
        job = self._context.job
        stop, asked = job.stop, job.asked
        if not self._ledger.owes or stop is None or asked is None:
            return
        names = (("SIGTERM", job.terminated), ("SIGKILL", job.killed))
        sent = tuple(name for name, was_sent in names if was_sent)
        order = StopOrder(self._nonce, stop.steps, asked.by, asked.reason, stop.up, sent)
        with contextlib.suppress(OSError):
            stop_order.write(self._file, order)
