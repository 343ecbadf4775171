"""The reasons to stop a job before its ranks end by themselves: a request over the control socket; the end of the
command that owns the job; systemd, which stops its scope; its time limit; a failed rank; service ranks with no rank
left to serve; processes that outlive their ranks."""

import contextlib
import signal

from muster.probes.kernel import endings, process
from muster.probes.kernel.process import Stat
from muster.supervisors.job.context import JobContext
from muster.supervisors.job.escalation import Escalation
from muster.supervisors.job.step_run import StepRun
from muster.supervisors.job.steps import STEP_GRACE_S
from muster.supervisors.model import rank_ends
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import MAX_GRACE_S
from muster.supervisors.model.states import State, StopCause
from muster.supervisors.system import owner_pipe, scope
from muster.supervisors.system.loop import Alarm
from muster.supervisors.wire.control import ControlClient, Handler
from muster.supervisors.wire.messages import Message

#: Of how a job hung, in characters.
MAX_HOW = 400


class StopCauses:
    """Sees them, and has the escalation carry the stop out."""

    def __init__(self, context: JobContext, escalation: Escalation, step: StepRun, owned: bool) -> None:
        """`owned`: the job ends with the command that started it (owner_pipe.py)."""
        self._context, self._escalation, self._step = context, escalation, step
        self._runtime = Alarm(context.loop)
        #: systemd ends the scope in which this supervisor is.
        self._scope_ends = False
        signal.signal(signal.SIGTERM, self._on_sigterm)
        if owned:
            context.loop.add(owner_pipe.FD, self._on_owner_end)

    def handlers(self) -> dict[str, Handler]:
        """What is asked for over the control socket."""
        return {"stop": self._on_stop, "hung": self._on_hung}

    # --- asked for ----------------------------------------------------------------------------------------------------

    def _on_stop(self, message: Message, _: ControlClient) -> Message:
        return self._requested(message)

    def _requested(self, message: Message) -> Message:
        """`message`: by, reason; steps of the grace, in seconds; up, sent and hung as in `Escalation.begin`."""
        job, steps = self._context.job, message.get("steps")
        if steps is not None and not _are_seconds(steps):
            return {"ok": False, "error": f"steps must be a list of seconds, together at most {MAX_GRACE_S:.0f}"}
        if job.asked is not None and job.asked.reason == message.get("reason") == owner_pipe.GONE:
            return {"ok": True}  # its epilog is not to end sooner because two have seen the same
        if job.concluded is not None:  # only its epilog is left to be ended
            grace = STEP_GRACE_S if steps is None else sum(float(s) for s in steps)
            self._step.end_early("was ended by a stop", grace)
            return {"ok": True}
        up, sent = message.get("up"), message.get("sent", [])
        self._escalation.begin(
            StopCause.REQUESTED,
            str(message.get("by", "")),
            str(message.get("reason", "")),
            steps,
            up=up if isinstance(up, float) else None,
            sent=tuple(map(str, sent)) if isinstance(sent, list) else (),
            hung=_hung(message.get("hung")),
        )
        return {"ok": True}

    def _on_hung(self, message: Message, _: ControlClient) -> Message:
        """The daemon finds that the ranks do not get on: `ranks` are to blame (none: all), `again` after a restart."""
        with contextlib.suppress(OSError):
            self._look_first()
        job = self._context.job
        if not _some_run(job):
            return {"ok": False, "error": f"all ranks of attempt {job.attempt} have ended"}
        if job.state is not State.RUNNING or job.stop is not None or message.get("attempt") != job.attempt:
            return {"ok": False, "error": f"attempt {job.attempt} of the job is {job.state}"}
        named = message.get("ranks")
        if not isinstance(named, list):
            return {"ok": False, "error": "ranks must be a list of numbers"}
        ranks = tuple(rank.rank for rank in job.ranks if rank.rank in named)
        reason = str(message.get("reason", ""))
        self._escalation.begin(StopCause.HUNG, "muster", reason, ranks=ranks, again=bool(message.get("again")))
        self._context.output.say(f"hung, muster stops it: {reason}")
        return {"ok": True}

    def _on_owner_end(self) -> None:
        """The daemon, if it lives, asks for the same."""
        self._context.loop.remove(owner_pipe.FD)
        self._requested({"by": "muster", "reason": owner_pipe.GONE})

    def _on_sigterm(self, *_: object) -> None:
        """`of_scope` comes next: the signal wakes the loop. In a scope it is how systemd ends that: by a SIGTERM to all
        in it, to us first, by the order of the leaves' names. Elsewhere it ends nothing, and only tells that everybody
        may have got it."""
        self._escalation.signal_up = process.uptime()
        self._scope_ends = self._scope_ends or bool(scope.own())

    def of_scope(self) -> None:
        """A stop, if systemd ends the scope."""
        if self._scope_ends:
            reason = f"SIGTERM to the supervisor, as by `systemctl stop {scope.own()}`"
            self._scope_ends = not self._requested({"by": "systemd", "reason": reason})["ok"]

    # --- of the ranks -------------------------------------------------------------------------------------------------

    def of_time(self) -> None:
        """A stop when the job has run for as long as it may, from now on until `forget_time`."""
        job, limit = self._context.job, self._context.spec.max_runtime
        if limit is not None and job.stop is None and not self._runtime.is_set and _some_run(job):
            self._runtime.set(limit - job.ran_s - (process.uptime() - job.started_up), self._out_of_time)

    def _out_of_time(self) -> None:
        """Raises OSError where it cannot be known now who has ended."""
        self._look_first()
        if self._context.job.stop is None and _some_run(self._context.job):
            reason = f"{self._context.spec.max_runtime:g} s have passed"
            self._escalation.begin(StopCause.MAX_RUNTIME, "max_runtime", reason)

    def _look_first(self) -> None:
        """We may be late ourselves: who ended in time is not out of time, and a failure came before. Raises OSError
        where it cannot be known now who has ended."""
        self._escalation.note_ends()
        self.of_services()
        self.of_ranks()
        self._escalation.take_order()

    def forget_time(self) -> None:
        """The attempt is over."""
        self._runtime.cancel()

    def of_ranks(self) -> None:
        """A stop for the others, where a rank has failed, or only those are left that serve the rest."""
        job = self._context.job
        if job.stop is not None:
            return
        first = rank_ends.first_failure(job)
        if first is not None:
            reason = f"it {endings.describe(first.status)}"
            self._escalation.begin(StopCause.RANK_FAILED, f"rank {first.rank}", reason)
        elif any(r.outcome is None for r in (*_serving(job), *job.services)) and all(
            r.serves or r.outcome for r in job.ranks
        ):
            self._escalation.begin(StopCause.SERVED, "muster", "the ranks that it served have ended")

    def of_services(self) -> None:
        """A stop where a service has ended and a rank is left, or is still to come, that would run without it."""
        job = self._context.job
        service = rank_ends.ended_service(job)
        ranks_over = job.spawned and all(rank.outcome is not None for rank in job.ranks)
        if service is not None and job.stop is None and not ranks_over:
            name = rank_ends.service_name(service)
            self._escalation.begin(StopCause.SERVICE_ENDED, name, f"it {endings.describe(service.status)}")

    def of_leftovers(self, left: list[Stat]) -> None:
        """These outlive the ranks."""
        if left and self._context.job.stop is None:
            reason = f"{len(left)} process(es) outlive their ranks: {process.names(left)}"
            self._escalation.begin(StopCause.LEFTOVERS, "muster", reason)


def _some_run(job: Job) -> bool:
    return any(rank.outcome is None for rank in job.ranks)


def _serving(job: Job) -> list[Rank]:
    return [rank for rank in job.ranks if rank.serves]


def _hung(told: object) -> dict[str, object] | None:
    """None if the message cannot be understood."""
    if not isinstance(told, dict) or not isinstance(told.get("since"), float):
        return None
    return {"since": told["since"], "how": str(told.get("how", ""))[:MAX_HOW]}


def _are_seconds(steps: object) -> bool:
    """Whether these are steps of a grace: finite, none negative, together no longer than is allowed."""
    if not isinstance(steps, list) or not all(type(s) in (int, float) and 0 <= s <= MAX_GRACE_S for s in steps):
        return False
    return sum(steps) <= MAX_GRACE_S
