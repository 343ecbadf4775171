"""One job under one supervisor: its ranks from start to verdict.

Everything that happens is a record (states.py, replay.py), committed to the journal first. `phases.phase` computes from
the records what comes next, and the table `RankGang.NEXT` has the handler. The successor of a dead supervisor replays
the same records and continues: a fresh start is the special case in which nothing has happened yet. Each part of the
gang has one concern, and remembers nothing that a successor would need.
"""

import socket
from collections.abc import Callable
from typing import ClassVar

from muster.probes.kernel import process
from muster.supervisors.job import steps
from muster.supervisors.job.attempt_end import AttemptEnd
from muster.supervisors.job.attempt_start import AttemptStart, RankStart
from muster.supervisors.job.context import JobContext, Refusals
from muster.supervisors.job.ends import Ends
from muster.supervisors.job.escalation import Escalation
from muster.supervisors.job.phases import Phase, phase
from muster.supervisors.job.remains import Remains
from muster.supervisors.job.step_run import StepRun
from muster.supervisors.job.stop_causes import StopCauses
from muster.supervisors.job.takeover import Takeover
from muster.supervisors.launch import environment
from muster.supervisors.launch.containment import Containment
from muster.supervisors.launch.creation.underway import Underway, Waiting
from muster.supervisors.model import verdict
from muster.supervisors.model.journal import Contents
from muster.supervisors.model.ledger import Ledger
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import Kind
from muster.supervisors.output.job_output import Output
from muster.supervisors.paths import Root
from muster.supervisors.session.sessions import Sessions
from muster.supervisors.supervision_errors import NotStartable
from muster.supervisors.system.controllers import job_limits
from muster.supervisors.system.loop import AGAIN_S, Alarm, Loop
from muster.supervisors.wire.control import JournalServer
from muster.supervisors.wire.explained_end import ExplainedEnd
from muster.supervisors.wire.link import NurseryLink


class RankGang:
    """The ranks of one job and all that belongs to them. The caller holds the job's lock."""

    def __init__(
        self, root: Root, spec: JobSpec, contents: Contents, job: Job, sock: socket.socket, owned: bool
    ) -> None:
        """`job`: what `contents` add up to. `sock` leads to the nursery. `owned`: the job ends with the command that
        started it (owner_pipe.py). Raises OSError."""
        refusals = Refusals(spec.job_id)
        self.loop = loop = Loop(refusals.note)
        paths = root.job(spec.job_id)
        self._control = control = JournalServer(loop, paths.controls, refusals.spare)
        self._ledger = ledger = Ledger(paths, contents, control.publish, job)
        self._job = job
        link = NurseryLink(loop, sock)
        refusals.begin(loop, link)
        self._output = Output(root, spec.job_id, loop, ledger, control.publish_gaps, refusals.spare.make_room)
        self._ends = ends = Ends(paths, spec.command[0], loop, ledger, link)
        nonce = environment.nonce(root, spec.job_id, job)
        contained = Containment(job.cgroup, job.processes, nonce, adopted=job.was_taken)
        self._context = context = JobContext(root, spec, loop, ledger, link, self._output, contained, refusals)

        #: Creates the gang, or a step.
        self._underway = Underway(loop)
        self._ranks = RankStart(context, ends)
        self._sessions = Sessions(loop, spec.boot, job, contained, self._ranks.beside)
        self._remains = Remains(context, ends, self._sessions, self._underway)
        self._escalation = Escalation(context, ends, self._remains)
        self._step = StepRun(context, ends, self._remains, self._escalation)
        self._causes = StopCauses(context, self._escalation, self._step, owned)
        self._attempt_end = AttemptEnd(
            context, ends, self._remains, self._escalation, self._causes, self._sessions, control
        )
        self._start = AttemptStart(
            context, ends, self._ranks, self._step, self._escalation, self._attempt_end, self._underway
        )
        self._explained = ExplainedEnd(loop, control)
        takeover = Takeover(context, ends, self._step, self._escalation, self._attempt_end, self._sessions)

        #: The next attempt; the next try of what the disk or the node refused, and of records that are owed.
        self._restart, self._again, self._settle_again = Alarm(loop), Alarm(loop), Alarm(loop)
        #: When the services have run for long enough.
        self._services_up = Alarm(loop)
        #: Whether the journal lacked records at the last look.
        self._owed = False
        control.serve(self._causes.handlers() | self._sessions.handlers() | self._explained.handlers())
        loop.on_child, loop.after = self._remains.wait_for_orphans, self._turn
        # The first thing that the loop does, so that what has ended already is an event like any other.
        loop.once(takeover.begin)

    # --- behind every batch of events ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._work()
        if not self._job.state.final:
            waits = self._ledger.owes or self._again.is_set
            self._control.publish_refusal(self._ledger.refusal if waits else "")

    def _work(self) -> None:
        """Records the ended ranks, then does what follows."""
        self._sessions.turn()
        if self._job.state.final:
            return
        self._output.commit_gaps()
        self._settle()
        if self._ends.undecided:
            return
        self._causes.of_scope()
        try:
            self._escalation.note_ends(look=False)
            if self._job.stop is not None and self._job.concluded is None:
                self._underway.cancel()
            self._underway.go_on()
            if self._ends.unreaped:
                self._go_on_unrecorded()
            elif not self._again.is_set:
                while not self._underway.lasts and self.NEXT[phase(self._job, process.uptime())](self):
                    pass
        except OSError as error:
            # The journal takes no record (its disk is full, broken or read-only), and what comes next must be on disk
            # before it is done. Nothing is lost: what follows is decided anew.
            self._context.refusals.note(error)
            if not self._again.is_set:
                self._again.set(AGAIN_S, self._remains.look)

    def _settle(self) -> None:
        """Writes owed records to the journal, each second. Once they are written, here or by a commit, this reaps the
        processes whose ends they record."""
        owed = self._owed or self._ledger.owes
        if self._ledger.owes and not self._settle_again.is_set:
            try:
                self._ledger.settle()
            except OSError as error:
                self._context.refusals.note(error)
                self._settle_again.set(AGAIN_S)
        self._owed = self._ledger.owes
        if owed and not self._owed:
            self._ends.reap()
            self._remains.look()

    def _go_on_unrecorded(self) -> None:
        """The journal takes no record of ends: the others are ended all the same. Raises OSError."""
        if self._job.concluded is None:
            self._causes.of_services()
        if self._job.spawned and self._job.concluded is None:
            self._causes.of_ranks()
        if self._remains.gone_unrecorded():
            self._escalation.halt()

    # --- what each phase leads to: False where there is only to wait --------------------------------------------------

    def _wait(self) -> bool:
        return False

    def _begin_attempt(self) -> bool:
        self._start.begin()
        return True

    def _conclude(self) -> bool:
        self._attempt_end.conclude()
        return True

    def _end_step(self) -> bool:
        """It has ended, and then all that it started."""
        if not self._remains.due:
            return False
        if not self._remains.all_gone():
            if left := self._context.containment.members():
                self._step.leaves(left)
            self._remains.look_later(bool(left))
            return False
        trouble = self._step.close()
        if steps.is_taken_up(self._job) and (self._job.concluded is not None or self._job.stop is None):
            self._output.say(f"{self._job.step_name}: continues")
            self._remains.look()  # for where it cannot be started at this moment
            return self._run_after() if self._job.concluded is not None else self._go_on()
        if self._job.concluded is not None:
            self._attempt_end.step_over(trouble)
        elif self._job.stop is not None:
            self._attempt_end.conclude()
        elif trouble:
            self._attempt_end.over(*self._step.failure(trouble))
        else:
            self._start.go_on()
        return True

    def _watch_services(self) -> bool:
        """The ranks begin once the services have run for a moment; or these end."""
        self._causes.of_services()
        if self._job.stop is None:
            left = steps.SERVICE_START_S - (process.uptime() - self._job.services_up)
            if left > 0:
                self._services_up.set(left, self._remains.look)
                return False
            self._escalation.note_ends()  # we may be late ourselves: also of one that no event has told of yet
            self._causes.of_services()
            if self._job.stop is None:
                self._start.go_on()
            return True
        if not self._remains.due:
            return False
        if self._is_over():
            self._attempt_end.conclude()
            return True
        self._escalation.end_services()
        self._remains.look_later(bool(self._context.containment.members()))
        return False

    def _go_on(self) -> bool:
        self._start.go_on()
        return True

    def _record_running(self) -> bool:
        job = self._job
        most = job_limits.pids_in_force(job.cgroup, job.v1_cgroups)
        running = {"kind": Kind.RUNNING, "up": process.uptime()}
        self._ledger.owe(running | ({"max_pids": most} if most else {}), sync=False)
        count = f"{len(job.ranks)} rank{'s' if len(job.ranks) != 1 else ''}"
        self._output.say(f"attempt {job.attempt}: {count} started")
        return True

    def _watch_ranks(self) -> bool:
        self._causes.of_time()
        self._causes.of_services()
        self._causes.of_ranks()
        return all(rank.outcome is not None for rank in self._job.ranks)  # a stop notes ends before it sends a signal

    def _end_ranks(self) -> bool:
        """They have ended, and then all that they started."""
        job = self._job
        self._causes.of_time()
        self._causes.of_ranks()
        if not self._remains.due:
            return False
        self._sessions.ends.end_with_ranks(job.attempt, job.terminated)
        if self._is_over():
            if self._attempt_end.must_settle():
                return False
            self._attempt_end.conclude()
            return True
        left = self._context.containment.members()
        self._causes.of_leftovers(self._sessions.ends.others(left))
        self._escalation.end_services()
        self._remains.look_later(bool(left))
        return False

    def _is_over(self) -> bool:
        """Whether nothing is left, and each end is recorded. A service of a supervisor that died is a child of the
        nursery, whose zombies count as gone: this can be before its end is an event here. `Ends` bounds the wait for
        its status. Raises OSError."""
        if not self._remains.all_gone():
            return False
        if any(one.outcome is None for one in self._job.processes()):
            self._escalation.note_ends()
        return self._remains.stuck or all(one.outcome is not None for one in self._job.processes())

    def _wait_for_restart(self) -> bool:
        self._restart.set(self._job.restart_up - process.uptime(), self._remains.look)
        return False

    def _run_after(self) -> bool:
        """The next step after the ranks."""
        job = self._job
        assert job.concluded is not None
        name, more = job.after[0], {}
        if name == steps.EPILOG:
            if self._explained.is_due(job.concluded[0]):
                return False
            more = steps.environment_of_epilog(*job.concluded, verdict.reason(job), self._explained.found)
        self._underway.begin(self._creation_after(name, more))
        return True

    def _creation_after(self, name: str, more: dict[str, str]) -> Waiting[None]:
        try:
            builder = self._ranks.builder()
            self._output.open_job((builder.account.uid, builder.account.gid))
            yield from self._step.begin(builder, name, more)
        except (OSError, NotStartable) as error:
            if self._context.refusals.makes_room(error):
                return
            text = f"{steps.shown(name, self._context.spec)} could not be started: {error}"
            # Not owed: where the journal takes no record, the step is tried again.
            self._ledger.commit({"kind": Kind.WARNING, "text": text}, sync=False)
            self._attempt_end.step_over(text)

    NEXT: ClassVar[dict[Phase, Callable[["RankGang"], bool]]] = {
        Phase.ATTEMPT_DUE: _begin_attempt,
        Phase.STOPPED_EARLY: _conclude,
        Phase.STEP_RUNS: _wait,
        Phase.STEP_ENDED: _end_step,
        Phase.SERVICES_RUN: _watch_services,
        Phase.RANKS_LET_GO: _record_running,
        Phase.RANKS_RUN: _watch_ranks,
        Phase.RANKS_ENDED: _end_ranks,
        Phase.PAUSED: _wait_for_restart,
        Phase.AFTER_DUE: _run_after,
        Phase.OVER: _wait,
    }
