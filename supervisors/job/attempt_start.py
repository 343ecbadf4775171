"""The start of an attempt: prepares what it needs, runs its steps one by one, and starts its services and its ranks."""

import time

from muster.probes.kernel import process
from muster.supervisors.job import steps
from muster.supervisors.job.attempt_end import AttemptEnd
from muster.supervisors.job.context import JobContext
from muster.supervisors.job.ends import Ends
from muster.supervisors.job.escalation import Escalation
from muster.supervisors.job.step_run import StepRun
from muster.supervisors.launch import card_numbers, environment, spawning
from muster.supervisors.launch.child import Account, ProcessSpec
from muster.supervisors.launch.creation.underway import Underway, Waiting
from muster.supervisors.launch.modes import boot
from muster.supervisors.model import rank_ends, verdict
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import Kind, StopCause
from muster.supervisors.supervision_errors import NotStartable, explain
from muster.supervisors.system import oom
from muster.supervisors.system.cgroups import make_cgroup, name_of
from muster.supervisors.system.controllers import job_limits


class RankStart:
    """The ranks of an attempt, or the launchers that make them, from the spec to the moment when they are let go."""

    def __init__(self, context: JobContext, ends: Ends) -> None:
        self._context, self._ends = context, ends
        self._builder: spawning.ProcessBuilder | None = None
        self._built_for: JobSpec | None = None

    def prepare(self, account: Account) -> str:
        """All that an attempt needs in the job's folder, and the folder for further logs. Returns a sentence about what
        is not as usual, or nothing. Raises OSError, NotStartable."""
        return self._build(account).make_folders()

    def builder(self) -> spawning.ProcessBuilder:
        """Raises NotStartable where the job's user is not known (any more)."""
        if self._builder is None or self._built_for != self._context.spec:
            return self._build(Account.of(self._context.spec.user))
        return self._builder

    def _build(self, account: Account) -> spawning.ProcessBuilder:
        context = self._context
        self._built_for = context.spec
        self._builder = spawning.ProcessBuilder(context.root, self._built_for, context.job, account)
        return self._builder

    def spawn(self) -> Waiting[None]:
        """Raises OSError, NotStartable, with no rank left."""
        context, builder, job = self._context, self.builder(), self._context.job
        # All is ready before the first fork: each fork makes us copy again every page that we touch behind it.
        specs, processes = builder.gang(self._changes(builder))
        owner = (specs[0].account.uid, specs[0].account.gid)
        context.output.make_fifos(job.ranks, owner)

        def open_output() -> None:
            context.link.hold(context.output.open(job.ranks, owner, fresh=True))
            if job.past:
                context.output.mark(job.ranks, attempt_line(job))

        def record(pids: list[int]) -> None:
            self._record(pids, processes)

        yield from spawning.spawn(specs, context.paths.unborn, open_output, record, context.refusals.say)

    def beside(self, rank: Rank) -> ProcessSpec:
        """The process spec of what runs beside a rank. Raises OSError, NotStartable."""
        builder = self.builder()
        return builder.beside(rank, self._changes(builder))

    def spawn_services(self) -> Waiting[None]:
        """Raises OSError, NotStartable, with no service left."""
        context, builder, job = self._context, self.builder(), self._context.job
        specs = builder.services(self._changes(builder))
        owner = (builder.account.uid, builder.account.gid)
        context.output.make_fifos(job.services, owner)

        def open_output() -> None:
            context.link.hold(context.output.open(job.services, owner, fresh=True))
            if job.past:
                context.output.mark(job.services, attempt_line(job))

        def record(pids: list[int]) -> None:
            made = [[one.rank, *process.identity(pid)] for one, pid in zip(job.services, pids, strict=True)]
            context.link.tell("ranks", pids=pids)
            began = {"boot": process.boot_id(), "up": process.uptime()}
            context.ledger.commit({"kind": Kind.SERVICES, "services": made} | began)
            self._ends.watch()

        try:
            yield from spawning.spawn(specs, context.paths.unborn, open_output, record, context.refusals.say)
        except OSError:
            if job.has_services:  # on record, though none was let go
                self._ends.take_back()
            raise
        for service in job.services:
            context.output.say(f"{rank_ends.service_name(service)}: begins")

    def _changes(self, builder: spawning.ProcessBuilder) -> environment.Changes:
        if not self._context.spec.pre_start:
            return {}
        return environment.read_exports(self._context.paths.exports, builder.common)

    def _record(self, pids: list[int], processes: list[boot.Process]) -> None:
        ranks = self._context.job.ranks
        spawned = [[rank.rank, *process.identity(pid)] for rank, pid in zip(ranks, pids, strict=True)]
        record: dict[str, object] = {"kind": Kind.SPAWNED, "ranks": spawned, "boot": process.boot_id()}
        if any(made.role != "rank" for made in processes):
            record["argv"] = [list(made.argv) for made in processes]
            record["roles"] = [made.role for made in processes]
            record["serves"] = [made.serves for made in processes]
        others = [one.pid for one in self._context.job.processes() if one.outcome is None]
        self._context.link.tell("ranks", pids=[*pids, *others])
        self._context.ledger.commit(record)
        self._ends.watch()


def attempt_line(job: Job) -> str:
    """What stands in a log before the output of another attempt."""
    return f"attempt {job.attempt} {time.strftime('%Y-%m-%dT%H:%M:%S')}"


class AttemptStart:
    """What a failure at the start leads to is in attempt_end.py."""

    def __init__(
        self,
        context: JobContext,
        ends: Ends,
        ranks: RankStart,
        step: StepRun,
        escalation: Escalation,
        attempt_end: AttemptEnd,
        underway: Underway,
    ) -> None:
        """`underway`: of the gang, or step, that is being created."""
        self._underway = underway
        self._context, self._ends, self._ranks, self._step = context, ends, ranks, step
        self._escalation, self._attempt_end = escalation, attempt_end

    def begin(self) -> None:
        """Makes all ready for an attempt, and begins with its first step or its ranks.

        Raises OSError where it cannot even be recorded.
        """
        context, job, spec = self._context, self._context.job, self._context.spec
        cards = card_numbers.read(context.paths.cards_now, job)
        counted, said = card_numbers.counted_anew(job, cards)
        cgroup, trouble = make_cgroup(context.root, spec.job_id)
        wanted = self._limits()
        v1_cgroups = job_limits.make_folders(name_of(context.root, spec.job_id), wanted.wanted())
        own = v1_cgroups.get("memory", cgroup)
        preparing = {"kind": Kind.PREPARING, "attempt": job.attempt, "cgroup": cgroup, "oom_kills": oom.kills(own)}
        preparing |= {} if own else {"oom_kills_around": oom.kills_around()}
        preparing |= {"v1_cgroups": v1_cgroups} if v1_cgroups else {}
        context.ledger.commit(preparing | counted, sync=False, tell=False)
        context.containment.renew(cgroup)
        context.warn(trouble)
        try:
            account = Account.of(spec.user)
            context.output.open_job((account.uid, account.gid))
            if job.unchecked and not (job.past or job.takeovers):
                context.output.say(f"pre-check: left out: {job.unchecked}")
            if said:
                context.output.say(said)
            context.warn(job_limits.set_limits(cgroup, v1_cgroups, wanted))
            context.warn(self._ranks.prepare(account))
        except (OSError, NotStartable) as error:
            self._failed(error)
            return
        if cards is not None and cards.missing:
            self._attempt_end.over(*verdict.card_missing(job, cards.missing), again=False)
            return
        self.go_on()

    def _limits(self) -> job_limits.JobLimits:
        asked, pids = self._context.spec.limits, self._context.job.hardening.pids
        return job_limits.JobLimits(asked.get("memory"), asked.get("cpus"), pids, usual_pids="pids" not in asked)

    def go_on(self) -> None:
        """The next step before the ranks, the services, or the ranks; nothing of a job that is to end."""
        self._escalation.take_order()
        if self._context.job.stop is not None:
            return
        self._underway.begin(self._creation())

    def _creation(self) -> Waiting[None]:
        name = steps.due(self._context.spec, self._context.job)
        try:
            if name:
                yield from self._step.begin(self._ranks.builder(), name, {})
            elif self._context.job.services and not self._context.job.has_services:
                yield from self._ranks.spawn_services()
            else:
                yield from self._ranks.spawn()
        except (OSError, NotStartable) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """At the limit of descriptors with those in reserve the next time."""
        context, job = self._context, self._context.job
        if job.spawned or job.in_step:  # on record, though none was let go
            self._ends.take_back()
        if self._context.refusals.makes_room(error):
            return
        text = explain(error) if isinstance(error, OSError) else str(error)
        if job.has_services:  # these are ended first
            # Not owed: where the journal takes no record, the start is tried again.
            context.ledger.commit({"kind": Kind.WARNING, "text": f"the ranks were not started: {text}"}, sync=False)
            self._escalation.begin(StopCause.NOT_STARTED, "muster", text)
            return
        end = verdict.not_prepared(f"the job could not be prepared: {text}", elsewhere=True)
        self._attempt_end.over(*end)
