"""Runs one step at a time, before or after the ranks: from its start until none of its processes is left."""

import signal
from collections.abc import Sequence

from muster.probes.kernel import endings, process
from muster.probes.kernel.process import Stat
from muster.supervisors.job import steps
from muster.supervisors.job.context import JobContext
from muster.supervisors.job.ends import Ends
from muster.supervisors.job.escalation import Escalation
from muster.supervisors.job.remains import Remains
from muster.supervisors.launch import spawning
from muster.supervisors.launch.creation.underway import Waiting
from muster.supervisors.launch.spawning import ProcessBuilder
from muster.supervisors.model.job_logs import is_ours, job_log_files
from muster.supervisors.model.journal import Record
from muster.supervisors.model.lifecycle import Verdict
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.staging_progress import STEPS
from muster.supervisors.model.states import Kind, Outcome, State
from muster.supervisors.output import tee
from muster.supervisors.system.ladder import Climb
from muster.supervisors.system.loop import Alarm


class StepRun:
    """Runs steps; what follows from their ends is decided elsewhere (gang.py)."""

    def __init__(self, context: JobContext, ends: Ends, remains: Remains, escalation: Escalation) -> None:
        self._context, self._output = context, context.output
        self._ends, self._remains, self._escalation = ends, remains, escalation
        self._alarm = Alarm(context.loop)
        #: How the step that is being created is to be ended.
        self._early: tuple[str, float] | None = None
        self._climb = Climb(context.loop, self._terminate, self._kill, escalation.give_up)

    @property
    def _spec(self) -> JobSpec:
        return self._context.spec

    def begin(self, builder: ProcessBuilder, name: str, more: dict[str, str]) -> Waiting[None]:
        """Starts a step, with `more` in its environment. Raises OSError and NotStartable, with no process and no step
        left."""
        self._early = None
        context, paths, spec = self._context, self._context.paths, self._spec
        self._make_files(builder, name)
        if name in STEPS:
            argv = steps.copying(paths)
        else:
            argv = steps.command(name, spec, builder.common, str(paths.packages), str(paths.exports))
        self._output.say(f"{steps.shown(name, spec)}: begins")

        def record(pids: list[int]) -> None:
            pid, start = process.identity(pids[0])
            context.link.tell("ranks", pids=pids)
            began = {"pid": pid, "start": start, "up": process.uptime()}
            context.ledger.commit(_record(name, argv, began))
            self._ends.watch()

        def hold() -> None:
            context.link.hold(context.output.fds())

        try:
            yield from spawning.spawn(
                [builder.step(name, argv, more)], paths.unborn, hold, record, context.refusals.say
            )
        except OSError:
            if context.job.in_step:  # on record, though it was not let go
                self._ends.take_back()
            raise
        self.arm()
        if self._early is not None:
            self.end(*self._early)

    def end_early(self, why: str, grace: float) -> None:
        """As `end`, of the step that runs, or is being created."""
        if self._context.job.in_step:
            self.end(why, grace)
        else:
            self._early = why, grace

    def _make_files(self, builder: ProcessBuilder, name: str) -> None:
        """Files of the job's user, in which the step leaves its results, or has its order. Raises OSError,
        NotStartable."""
        paths = self._context.paths
        if name == steps.PRE_START:
            builder.make_private(paths.exports)
        elif name == steps.REQUIREMENTS:
            builder.make_own(paths.packages)
        elif name in STEPS:
            for path in (paths.staging_progress, paths.staging_order):
                path.unlink(missing_ok=True)  # of a copy before: to open it could wait for a lease of the user's
            builder.make_private(paths.staging_progress)
            builder.make_private(paths.staging_order)
            with open(paths.staging_order, "r+b") as file:
                file.write(steps.order(name, self._spec, self._context.job, builder.code_folder))

    def arm(self) -> None:
        """Counts the time of the running step, even if a predecessor began it, and goes on to end it."""
        job = self._context.job
        if job.step_ending:
            self._climb.begin(max(0.0, job.step_kill_up - process.uptime()))
        else:
            self._alarm.set(self._time_left(), self._out_of_time)

    def _time_left(self) -> float:
        """Seconds of its own time."""
        job = self._context.job
        return steps.time_limit(job.step_name, self._spec) - (process.uptime() - job.step_up)

    def _out_of_time(self) -> None:
        """Raises OSError where it cannot be known now whether it has ended."""
        self._escalation.note_ends()  # we may be late ourselves
        step = self._context.job.step
        if step is None or step.outcome is not None:
            return
        limit = steps.time_limit(self._context.job.step_name, self._spec)
        self.end(f"did not end within {limit:g} s", steps.STEP_GRACE_S)

    def end(self, why: str, grace: float) -> None:
        """SIGTERM to all of it, and SIGKILL behind the grace (seconds). A second call can only shorten that."""
        job = self._context.job
        assert job.step is not None
        grace = max(0.0, min(grace, self._time_left() + steps.STEP_GRACE_S))
        kill_up = process.uptime() + grace
        if not job.step_ending or kill_up < job.step_kill_up:
            began = {"pid": job.step.pid, "start": job.step.start, "up": job.step_up}
            ending = {"ending": job.step_ending or why, "kill_up": kill_up}
            self._context.ledger.owe(_record(job.step_name, job.step.argv, began | ending), sync=False)
        if self._climb.kill_at:
            self._climb.shorten(grace)
        else:
            self._climb.begin(grace)

    def leaves(self, left: list[Stat]) -> None:
        """It has ended, and these of it have not. A step is over when all of it is: they would run beside the ranks,
        and outlive the job."""
        if not self._climb.kill_at:
            names = process.names(left)
            self.end(f"left {len(left)} process(es) running, and muster ended them: {names}", steps.STEP_GRACE_S)

    def close(self) -> str:
        """Nothing of it is left: says so in the job's log. Returns a sentence about what went wrong, if anything."""
        job, step = self._context.job, self._context.job.step
        assert step is not None
        self._alarm.cancel()
        self._climb.stop()
        self._output.drain()
        name = steps.shown(job.step_name, self._spec)
        if steps.succeeded(step) and not job.step_ending:
            self._output.say(f"{name}: is done")
            return ""
        unborn = step.outcome is Outcome.NOT_STARTED
        how = job.step_ending or ("could not be started" if unborn else endings.describe(step.status))
        if step.detail and job.step_name in STEPS and step.outcome is Outcome.EXITED:  # better than its exit code
            self._output.say(f"{name}: {how}")
            return f"{job.step_name}: {job.step_ending}{': ' if job.step_ending else ''}{step.detail}"
        if step.detail and not job.step_ending:
            how += f": {step.detail}"
        self._output.say(f"{name}: {how}")
        return f"{name} {how}"

    def failure(self, trouble: str) -> tuple[State, Verdict]:
        """Of a job whose step before the ranks failed; `trouble` is what `close` said."""
        job, step = self._context.job, self._context.job.step
        assert step is not None
        log, _ = job_log_files(self._context.root, self._spec.job_id, job.node_rank)
        said = tuple(line for line in tee.tail(log) if not is_ours(line))
        return steps.failure(job, step, trouble, said)

    def _terminate(self) -> None:
        self._context.containment.signal(signal.SIGTERM)
        self._remains.look()

    def _kill(self) -> None:
        self._context.containment.kill()
        self._remains.look()


def _record(name: str, argv: Sequence[str], more: Record) -> Record:
    return {"kind": Kind.STEP, "name": name, "argv": argv, "boot": process.boot_id(), **more}
