"""How a supervisor begins: it takes the job over in whatever state it is. A new job has nothing to take over. After
the death of a supervisor the successor takes over output and processes, and spawns again those that never started.
"""

import contextlib
import os
import time

from muster.probes.kernel import process
from muster.supervisors.job.attempt_end import AttemptEnd
from muster.supervisors.job.context import JobContext
from muster.supervisors.job.ends import Ends
from muster.supervisors.job.escalation import Escalation
from muster.supervisors.job.step_run import StepRun
from muster.supervisors.launch import child
from muster.supervisors.model import verdict
from muster.supervisors.model.job_logs import fifo_of, log_of
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.states import Kind, State, log_owner
from muster.supervisors.output import tee
from muster.supervisors.session.sessions import Sessions
from muster.supervisors.system.cgroups import enter_scope, is_leaf

_GATE_LOOK_S = 0.002
_GATE_WAIT_S = 10.0
_UNHELD = (
    "while supervisor, nursery and daemon were dead, and nobody else held what it had written last: that is missing "
    "from its log (at most 512 KiB)"
)


class Takeover:
    """Until it is through nothing is decided: `Ends.undecided`."""

    def __init__(
        self,
        context: JobContext,
        ends: Ends,
        step: StepRun,
        escalation: Escalation,
        attempt_end: AttemptEnd,
        sessions: Sessions,
    ) -> None:
        self._context, self._ends, self._step = context, ends, step
        self._escalation, self._attempt_end, self._sessions = escalation, attempt_end, sessions
        #: Until when it may take to see whether the gate was opened (time.monotonic()).
        self._deadline = 0.0
        #: Ranks and services that took output with them, if they have ended.
        self._last_is_gone: list[int] = []

    def begin(self) -> None:
        """Reports what disk or node refuses, and tries again: a successor would meet the same."""
        context, job = self._context, self._context.job
        adopted = job.was_taken
        if adopted:
            self._last_is_gone = [rank.rank for rank in (*job.ranks, *job.services) if self._took_its_last(rank)]
        taken = {"kind": Kind.TAKEN, "pid": os.getpid(), "takeover": adopted}
        context.ledger.owe(taken, sync=False, tell=adopted)  # a crash of the node ends us anyway
        context.link.tell("ready")
        if adopted and is_leaf(job.cgroup):  # a new one is with the nursery
            enter_scope(context.root, context.spec.job_id)
        if job.state not in (State.ACCEPTED, State.CHECKING) and (adopted or job.boot_id != process.boot_id()):
            context.loop.attempt(context.open_output_again)
        context.loop.attempt(self._adopt)

    def _adopt(self) -> None:
        """Raises OSError, with nothing adopted: nothing is decided until it works."""
        context, job = self._context, self._context.job
        if job.boot_id != process.boot_id():
            self._end_after_reboot()
        elif job.processes():
            context.link.tell("ranks", pids=[r.pid for r in job.processes() if r.outcome is None])
            self._ends.watch()
            for number in self._last_is_gone:
                if number in self._ends.found:
                    context.warn(f"{log_owner(number)} ended {_UNHELD}")
            if job.in_step or not job.started_up:
                self._deadline = time.monotonic() + _GATE_WAIT_S
                self._look_at_gate()
                return
            self._carry_on()
        self._ends.undecided = False

    def _took_its_last(self, rank: Rank) -> bool:
        if not rank.pid or rank.outcome is not None:
            return False
        context = self._context
        log = log_of(context.root, context.spec.job_id, context.job, rank)
        with contextlib.suppress(OSError):
            return tee.took_its_last(fifo_of(context.paths, rank.rank), log.path)
        return False

    def _look_at_gate(self) -> None:
        """Finds out whether the predecessor opened it: once no child is before its exec any more, the `unborn` file
        tells. Raises OSError."""
        ranks = self._context.job.made_last()
        for rank in ranks:
            stat = process.read_stat(rank.pid)
            waiting = stat is not None and stat.start == rank.start and stat.before_exec and not stat.ended
            if waiting and time.monotonic() < self._deadline:
                self._context.loop.later(_GATE_LOOK_S, self._look_at_gate)
                return
        entries = child.read_unborn(self._context.paths.unborn)
        if any(entries.get(r.pid, {}).get("reason") == child.GATE_CLOSED for r in ranks):
            self._ends.take_back()
        else:
            self._carry_on()
        self._ends.undecided = False

    def _carry_on(self) -> None:
        """They were let go. A pending stop continues before an end is judged: a predecessor may have sent SIGTERM, and
        not have lived to write so. Raises OSError."""
        job = self._context.job
        self._sessions.ends.end_strays()
        if job.in_step:
            self._step.arm()
        if job.state is State.STOPPING and job.stop is not None and job.concluded is None:
            self._escalation.go_on()

    def _end_after_reboot(self) -> None:
        """Nothing of another boot lives: what had not ended by then is lost, what never ran has failed."""
        job = self._context.job
        self._escalation.record_order()
        left = [r for r in job.processes() if r.outcome is None]
        self._ends.lose(left, "the node was rebooted while it ran")
        if job.concluded is not None:
            return  # its epilog, if that did not begin before, is still to come
        if job.spawned or job.stop is not None:
            self._attempt_end.over(*self._attempt_end.reached(), again=False)
        else:
            self._attempt_end.over(*verdict.rebooted(job), again=False)
