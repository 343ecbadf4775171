"""One step at a time, before the ranks or after them: from its start to the moment when nothing of it is left."""

import math
import signal
import time
from collections.abc import Callable

from muster.probes.kernel import endings, process
from muster.probes.kernel.process import Stat
from muster.supervisors.job import steps
from muster.supervisors.job.ends import Ends
from muster.supervisors.launch import spawning
from muster.supervisors.launch.containment import Containment
from muster.supervisors.launch.spawning import ProcessBuilder
from muster.supervisors.model.ledger import Ledger
from muster.supervisors.model.lifecycle import Verdict
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import Kind, Outcome, State
from muster.supervisors.output import tee
from muster.supervisors.output.output import Output, is_ours, job_log_files
from muster.supervisors.paths import Root
from muster.supervisors.system.ladder import Climb
from muster.supervisors.system.loop import Alarm, Loop
from muster.supervisors.wire.link import NurseryLink


class StepRun:
    """Runs steps; what follows from their ends is decided elsewhere (gang.py)."""

    def __init__(
        self,
        root: Root,
        spec: JobSpec,
        ledger: Ledger,
        loop: Loop,
        output: Output,
        ends: Ends,
        link: NurseryLink,
        containment: Callable[[], Containment],
        look: Callable[[], None],
        give_up: Callable[[list[Stat]], None],
    ) -> None:
        """`look`: processes may be gone. `give_up`: these cannot be killed."""
        self._root, self._spec, self._ledger, self._output = root, spec, ledger, output
        self._paths = root.job(spec.job_id)
        self._ends, self._link = ends, link
        self._containment, self._look, self._give_up = containment, look, give_up
        self._alarm = Alarm(loop)
        self._climb = Climb(loop, self._terminate, self._kill, lambda: self._give_up(self._containment().kill()))
        #: Why we end it, if we do.
        self._trouble = ""
        #: When its own time is over (time.monotonic()); not known behind its end, to a successor.
        self._time_up = math.inf

    def begin(self, builder: ProcessBuilder, name: str, more: dict[str, str]) -> None:
        """Starts a step, with `more` in its environment. Raises OSError, with no process left."""
        paths, spec = self._paths, self._spec
        if name == steps.PRE_START:
            builder.make_private(paths.exports)
        elif name == steps.REQUIREMENTS:
            builder.make_own(paths.packages)
        argv = steps.command(name, spec, builder.common, str(paths.packages), str(paths.exports))
        self._trouble = ""
        self._output.say(f"{steps.shown(name, spec)}: begins")

        def record(pids: list[int]) -> None:
            pid, start = process.identity(pids[0])
            self._link.tell("ranks", pids=pids)
            born = {"pid": pid, "start": start, "boot": process.boot_id(), "up": process.uptime()}
            self._ledger.commit({"kind": Kind.STEP, "name": name, "argv": argv} | born)
            self._ends.watch()

        spawning.spawn(
            [builder.step(name, argv, more)], paths.unborn, lambda: self._link.hold(self._output.fds()), record
        )
        self.arm()

    def arm(self) -> None:
        """Counts the time of the step that is run, also of one that a predecessor began."""
        job = self._ledger.job
        limit = steps.time_limit(job.step_name, self._spec)
        left = limit - (process.uptime() - job.step_up)
        self._time_up = time.monotonic() + left
        self._alarm.set(left, lambda: self.end(f"did not end within {limit:g} s", steps.STEP_GRACE_S))

    def end(self, why: str, grace: float) -> None:
        """SIGTERM to all of it, and SIGKILL behind the grace (seconds). A second call can only shorten that."""
        grace = min(grace, self._time_up + steps.STEP_GRACE_S - time.monotonic())
        if self._climb.kill_at:
            self._climb.shorten(grace)
            return
        self._trouble = self._trouble or why
        self._climb.begin(grace)

    def leaves(self, left: list[Stat]) -> None:
        """It has ended, and these of it have not. A step is over when all of it is: they would run beside the ranks,
        and outlive the job."""
        if not self._trouble:
            names = process.names(left)
            self.end(f"left {len(left)} process(es) behind, which were ended: {names}", steps.STEP_GRACE_S)

    def close(self) -> str:
        """Nothing of it is left: says so in the job's log. Returns a sentence about what went wrong, if anything."""
        job, step = self._ledger.job, self._ledger.job.step
        assert step is not None
        self._alarm.cancel()
        self._climb.stop()
        self._output.drain()
        name = steps.shown(job.step_name, self._spec)
        if steps.succeeded(step) and not self._trouble:
            self._output.say(f"{name}: is done")
            return ""
        unborn = step.outcome is Outcome.NOT_STARTED
        how = self._trouble or ("could not be started" if unborn else endings.describe(step.status))
        if step.detail and not self._trouble:
            how += f": {step.detail}"
        self._output.say(f"{name}: {how}")
        return f"{name} {how}"

    def failure(self, trouble: str) -> tuple[State, Verdict]:
        """Of a job whose step before the ranks failed; `trouble` is what `close` said."""
        job, step = self._ledger.job, self._ledger.job.step
        assert step is not None
        log, _ = job_log_files(self._root, self._spec.job_id, job.node_rank)
        said = tuple(line for line in tee.tail(log) if not is_ours(line))
        return steps.failure(step, trouble, said)

    def _terminate(self) -> None:
        self._containment().signal(signal.SIGTERM)
        self._look()

    def _kill(self) -> None:
        self._containment().kill()
        self._look()
