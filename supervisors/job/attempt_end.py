"""The end of an attempt: when muster may judge it, and what follows: another attempt, the epilog, or the job's end."""

import contextlib
import time
from pathlib import Path

from muster.probes.kernel import process
from muster.supervisors.job import hardware, steps, stop_order
from muster.supervisors.job.context import JobContext
from muster.supervisors.job.ends import Ends
from muster.supervisors.job.escalation import Escalation
from muster.supervisors.job.remains import Remains
from muster.supervisors.job.stop_causes import StopCauses
from muster.supervisors.launch.hardening import private_tmp
from muster.supervisors.model import node_ends, rank_ends, restart, verdict
from muster.supervisors.model.job_logs import fifo_of, log_of
from muster.supervisors.model.lifecycle import Verdict
from muster.supervisors.model.staging_progress import OUTPUTS
from muster.supervisors.model.states import JOB, Kind, State, log_owner
from muster.supervisors.output import tee
from muster.supervisors.output.gaps import remove_counts
from muster.supervisors.session.sessions import Sessions
from muster.supervisors.supervision_errors import explain
from muster.supervisors.system.controllers import job_limits
from muster.supervisors.wire.control import JournalServer


class AttemptEnd:
    """Everything here that writes a record raises OSError where the journal does not take it, with nothing changed."""

    def __init__(
        self,
        context: JobContext,
        ends: Ends,
        remains: Remains,
        escalation: Escalation,
        causes: StopCauses,
        sessions: Sessions,
        control: JournalServer,
    ) -> None:
        self._context, self._ledger, self._output = context, context.ledger, context.output
        self._ends, self._remains, self._escalation, self._causes = ends, remains, escalation, causes
        self._sessions, self._control = sessions, control
        #: Where each log ended, as it was when all logs were closed.
        self._log_ends: dict[int, int] = {}

    def must_settle(self) -> bool:
        """Whether to wait a moment, now that nothing of the attempt is left: for what kernel and driver say of the
        cards, before a failure is judged; for the stop that belongs to a signal which the ranks have got themselves."""
        job = self._context.job
        failed = rank_ends.first_failure(job) is not None and hardware.may_speak(job)
        if failed and not hardware.fault(job, self._context.root.faults) and self._settles(hardware.SETTLE_S):
            return True
        return rank_ends.stop_may_come(job, self._escalation.signal_up) and self._settles(rank_ends.STOP_SETTLE_S)

    def _settles(self, seconds: float) -> bool:
        """Whether the last rank has ended less than so long ago; it is looked again then."""
        left = seconds - (time.time() - max(rank.ended_at for rank in self._context.job.ranks))
        if not 0 < left <= seconds:  # or the clock was set
            return False
        self._context.loop.later(left, self._remains.look)
        return True

    def conclude(self) -> None:
        """All processes of the attempt have exited."""
        self._escalation.take_order()
        if self._output.unopened:
            try:
                self._context.open_output_again()
            except OSError as error:
                which = ", ".join(map(log_owner, sorted(self._output.unopened)))
                text = f"the last output of {which} is lost: its FIFO cannot be opened: {explain(error)}"
                self._context.warn(text)
        self._output.drain()
        state, end = self.reached()
        self.over(state, end, again=not node_ends.is_stop(end.summary))

    def reached(self) -> tuple[State, Verdict]:
        """How the ranks' ends are judged."""
        job, root = self._context.job, self._context.root
        first = rank_ends.first_failure(job)
        last: tuple[str, ...] = ()
        if (whose := first or rank_ends.ended_service(job)) is not None:
            last = tee.tail(log_of(root, self._context.spec.job_id, job, whose).path)
        return verdict.reach(job, first, last, hardware.fault(job, root.faults))

    def over(self, state: State, end: Verdict, again: bool = True) -> None:
        """The attempt ends so: another one, or the epilog, or the end. `again`: another one may help."""
        job, spec = self._context.job, self._context.spec
        if again and not self._remains.stuck and restart.allowed(spec, job, state):
            number = len(job.past) + 1
            delay = restart.delay(spec, number)
            with contextlib.suppress(OSError):  # where there is no room, the record itself will say so
                self._ledger.reserve(len(job.ranks))
            fields = {"attempt": job.attempt + 1, "verdict": _fields(end), "log_ends": self._output.ends()}
            now = {"delay_s": delay, "up": process.uptime()}
            self._ledger.commit({"kind": Kind.RESTARTING} | fields | now)
            self._output.say(f"{end.summary}: restart {number} of {spec.max_restarts} in {delay:.1f} s")
        elif after := steps.after(spec, job, state, stuck=self._remains.stuck):
            self._ledger.commit({"kind": Kind.CONCLUDED, "state": state, "verdict": _fields(end), "after": after})
            if self._remains.stuck:  # they may still write what would be copied
                self.step_over("outputs: not copied: processes of the job that cannot be killed are left")
        else:
            self.end(state, end)
        self._remains.over_at = 0.0
        self._causes.forget_time()
        self._escalation.halt()
        self._ends.forget_all()
        self._remains.look()

    def step_over(self, trouble: str) -> None:
        """A step after the ranks has ended, with this `trouble` or none: the next one follows, or the end."""
        job = self._context.job
        assert job.concluded is not None
        if job.after[0] == OUTPUTS and trouble:
            trouble += self._in_private_tmp()
        self._context.warn(trouble)
        state, end = job.concluded
        if job.after[0] == OUTPUTS and trouble:
            state, end = steps.undelivered(state, end, trouble)
        if left := job.after[1:]:
            self._ledger.commit({"kind": Kind.CONCLUDED, "state": state, "verdict": _fields(end), "after": left})
        else:
            self.end(state, end)

    def end(self, state: State, end: Verdict) -> None:
        """Everything is put away, then the verdict."""
        if self._context.spec.max_restarts and state is State.FAILED:
            left = self._context.job.attempt < self._context.spec.max_restarts
            self._output.say("is not restarted" if left else "no restart is left")
        self._output.say(f"{state}: {end.summary}")
        self._output.drain(last=True)
        self._output.commit_gaps()
        self._log_ends = self._log_ends or self._output.ends() | self._output.job_end()
        self._put_away()
        ended: dict[str, object] = {
            "kind": Kind.ENDED,
            "state": state,
            "verdict": _fields(end),
            "log_ends": self._log_ends,
        }
        if self._context.job.outputs_kept:
            ended["kept"] = True
        over_at = self._remains.over_at
        try:
            self._ledger.commit(ended | ({"t": over_at} if over_at else {}))
        except OSError:
            self._remains.over_at = over_at or time.time()  # it ended now, whenever that can be written
            raise
        # Until here a successor would need it.
        stop_order.remove(self._context.root.stop_order(self._context.spec.job_id))
        self._context.link.tell("done")
        self._sessions.close()
        self._control.close()
        self._context.loop.stop()
        job = self._context.job
        if not job.hardening.private_tmp or job.outputs_kept:
            return
        try:
            private_tmp.begin_removal(job.hardening.tmp_name(self._context.spec.job_id))
        except OSError as error:
            self._context.refusals.say(f"its private /tmp is left to musterd: {explain(error)}")

    def _in_private_tmp(self) -> str:
        """Where on the node outputs are that the job has in a /tmp of its own, as the end of a sentence."""
        job_id, hardening = self._context.spec.job_id, self._context.job.hardening
        same = [str(self._context.paths.folder), str(self._context.root.log), self._context.spec.workdir]
        real = [hardening.on_node(job_id, path, same) for path in self._context.spec.outputs]
        moved = [path for path, own in zip(real, self._context.spec.outputs, strict=True) if path != own]
        return f"; this node has them at {', '.join(moved)}" if moved else ""

    def _put_away(self) -> None:
        """What cannot be removed (a read-only file system) goes with the job's folder."""
        self._output.close()
        self._ends.forget_all()
        self._context.containment.remove()
        for folder in self._context.job.v1_cgroups.values():
            job_limits.remove(Path(folder))
        paths, job = self._context.paths, self._context.job
        fifos = [fifo_of(paths, number) for number in (JOB, *(one.rank for one in (*job.ranks, *job.services)))]
        for path in [*fifos, paths.unborn, paths.exports, paths.staging_order, paths.staging_progress]:
            with contextlib.suppress(OSError):
                path.unlink()
        remove_counts(paths)


def _fields(end: Verdict) -> dict[str, object]:
    return {name: getattr(end, name) for name in Verdict.__slots__}
