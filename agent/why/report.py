"""The report of a job as data, built from its facts. docs/guides/why.md describes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from muster.agent.jobs.entry import Entry
from muster.agent.jobs.explained import applied, applied_to_attempt
from muster.agent.text import plain, span
from muster.agent.why import around, curves
from muster.agent.why.around import Happening
from muster.agent.why.causes import past_attempts, probable_cause, sign_words
from muster.agent.why.causes.found import CERTAIN, LOW, NONE, Cause
from muster.agent.why.explained_verdict import explanation
from muster.agent.why.facts import Facts, gather
from muster.agent.why.known import Known
from muster.agent.why.words import of_this_attempt, shown
from muster.probes.kernel import endings
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model import rank_ends, verdict
from muster.supervisors.model.lifecycle import Attempt, Job, Rank, Verdict
from muster.supervisors.model.states import Outcome, State
from muster.supervisors.paths import Root

#: Limits of lists: causes beside the first, rows of the timeline, notes, past attempts.
MAX_ALSO, MAX_ROWS, MAX_NOTES, MAX_PAST = 2, 60, 40, 200
#: Seconds by which a clock may go back, as NTP sets it, without a word.
CLOCK_S = 5.0
_FINE = frozenset({"OK", "NOT_APPLICABLE"})


class ReportedCause(msgspec.Struct, frozen=True, rename="camel"):
    """A cause. `line`: the line of output that names it, written by `rank` (by this `worker` of it, if the rank is a
    launcher), `seconds` from the moment of the report (negative: before). `file`: the log, if it is not the output."""

    text: str
    confidence: str
    kind: str
    signature: str = ""
    rank: int | None = None
    worker: int | None = None
    line: str = ""
    seconds: float | None = None
    evidence: list[str] = []  # msgspec copies it
    file: str = ""


class Row(msgspec.Struct, frozen=True, rename="camel"):
    """Something that happened, `seconds` from the moment of the report."""

    at: float
    seconds: float
    kind: str
    text: str
    rank: int | None = None
    card: int | None = None
    code: str = ""
    grave: bool = False


class Series(msgspec.Struct, frozen=True, rename="camel"):
    """A card, or (without one) the job's processes; a mean for each step."""

    card: int | None
    rank: int | None
    utilization: list[float | None] = []
    memory: list[float | None] = []
    power: list[float | None] = []
    cpu: list[float | None] = []


class TelemetryExcerpt(msgspec.Struct, frozen=True, rename="camel"):
    """Percent and watts from `begin` (seconds since the epoch), in steps of `step` seconds."""

    begin: float = 0.0
    step: float = 0.0
    series: list[Series] = []
    remarks: list[str] = []
    missing: str = ""


class FailedRank(msgspec.Struct, frozen=True, rename="camel"):
    """A rank that failed by itself, in the order of the ends."""

    rank: int
    device: int
    status: str
    seconds: float


class FailedWorker(msgspec.Struct, frozen=True, rename="camel"):
    """A worker that failed, as its launcher reports it: `launcher_rank` is the rank of the job that the launcher is.
    `code`: the exit code, -9 for SIGKILL; null if the launcher does not report it; so are the other fields."""

    launcher: str
    launcher_rank: int
    rank: int | None
    local_rank: int | None
    host: str
    pid: int | None
    code: int | None
    at: float | None
    status: str
    error_file: str


class WorkerWords(msgspec.Struct, frozen=True, rename="camel"):
    """The last lines of the worker that failed first. `whose`: "the worker"; "all workers", if their lines cannot be
    told apart; or a file of the worker."""

    lines: list[str] = []
    whose: str = ""


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """An earlier attempt, with the cause in the log of the rank that failed, if it is known."""

    attempt: Attempt
    cause: ReportedCause | None


@dataclass(frozen=True, slots=True)
class Report:
    """One typed structure: `page` prints it for people, agent/api/report_json.py as JSON.

    Times are seconds since the epoch. Other times are relative to `zero`, and `zero_is` says what that moment is: "the
    end of rank 3". `warnings` are the newest; `first_status` and `first_log` are of the rank that
    failed first.
    """

    job_id: str
    state: State
    job: Job
    verdict: Verdict | None
    unordered: tuple[int, ...]
    first: Rank | None
    first_status: str
    first_log: str
    warnings: list[str]
    past: list[PastAttempt]
    checks: list[dict[str, Any]]
    headline: str
    zero: float
    zero_is: str
    cause: ReportedCause | None
    other_causes: list[ReportedCause]
    repeated: str
    next_steps: list[str]
    failed: list[FailedRank]
    workers: list[FailedWorker]
    worker_words: WorkerWords
    timeline: list[Row]
    telemetry: TelemetryExcerpt
    stacks: str
    notes: list[str]
    unknown: list[str]
    damaged: str
    now: float
    end_of_ranks: float
    max_restarts: int

    @property
    def ended_at(self) -> float | None:
        """None while the job runs."""
        return self.job.ended_at or None


async def report(known: Known, entry: Entry, *, signatures: Path | None = None, stacks: str = "") -> Report:
    """The report of a job in any state, damaged ones too. `signatures`: the folder of an operator's own signatures;
    None: there is none. `stacks`: the stored stacks of the job, as text.

    Takes about ten seconds at most, if a disk does not answer. Raises only cancellation.
    """
    return made(await gather(known, entry, signatures), known.root, stacks)


def made(facts: Facts, root: Root, stacks: str) -> Report:
    """Builds the report from the facts."""
    job, entry = facts.job, facts.entry
    warnings = [*entry.warnings(), *(entry.notes or {}).values()]
    causes = probable_cause.causes(facts)
    main = causes[0] if causes else None
    also = [one for one in causes[1:] if main is not None and _adds(main, one)][:MAX_ALSO]
    steps = [step for one in (main, *also) if one is not None for step in one.steps]
    reached = _reached(facts, causes)
    first = facts.first if reached is None or reached.first_failed is None else job.rank(reached.first_failed)
    is_moved = first is not None and facts.first is not None and first.rank != facts.first.rank
    begin = max(job.started_at or (0.0 if entry.damaged else job.accepted_at), facts.zero - 3600.0)
    rows = around.chosen(facts.happenings, begin - 1.0, facts.zero, MAX_ROWS)
    ends = [rank.ended_at for rank in job.ranks]
    return Report(
        job_id=plain(entry.job_id),
        state=job.state,
        job=job,
        verdict=reached,
        unordered=() if reached is None or reached.first_failed is None or is_moved else rank_ends.unordered(job),
        first=first,
        first_status="" if first is None else shown(plain(_ending(first))),
        first_log="" if first is None else str(root.rank_log(entry.job_id, first.rank, first.device)),
        warnings=[plain(text) for text in warnings[-MAX_NOTES:]],
        past=_past(facts),
        checks=[check for check in job.checks if check.get("status") not in _FINE],
        headline=_headline(facts, reached, len(warnings)),
        zero=facts.zero,
        zero_is=facts.around,
        cause=_reported(main, facts) if main is not None else None,
        other_causes=[_reported(one, facts) for one in also],
        repeated=past_attempts.repeated(facts),
        next_steps=_steps(facts, first, steps),
        failed=[
            FailedRank(rank.rank, rank.device, shown(plain(_ending(rank))), rank.ended_at - facts.zero)
            for rank in facts.failed
        ],
        workers=_workers(facts),
        worker_words=_worker_words(facts),
        timeline=[_row(one, facts.zero) for one in rows],
        telemetry=_telemetry(facts),
        stacks=plain(stacks),
        notes=_notes(facts, reached, warnings),
        unknown=_unknown(facts),
        damaged=plain(entry.damaged),
        now=facts.now,
        end_of_ranks=max(ends) if ends and all(ends) else job.ended_at,
        max_restarts=entry.spec.max_restarts,
    )


def _workers(facts: Facts) -> list[FailedWorker]:
    launched = facts.launched
    if launched is None:
        return []
    return [
        FailedWorker(
            one.launcher, launched.rank, one.rank, one.local_rank, shown(plain(one.host)), one.pid, one.code, one.at,
            shown(plain(f"{one.who} {one.ending}")), shown(plain(one.error_file), 1000),
        )
        for one in launched.workers
    ]  # fmt: skip


def _worker_words(facts: Facts) -> WorkerWords:
    if facts.launched is None:
        return WorkerWords()
    words = facts.launched.words
    return WorkerWords([shown(plain(line)) for line in words.lines], shown(plain(words.whose), 1000))


def _reached(facts: Facts, causes: Sequence[Cause]) -> Verdict | None:
    """The verdict so far; if the job has ended, corrected by the cause."""
    reached = verdict.so_far(facts.job)
    if reached is None or not facts.job.state.final:
        return reached
    return applied(reached, explanation(facts, causes))


def _row(one: Happening, zero: float) -> Row:
    text = shown(plain(one.text), 500)
    return Row(one.at, round(one.at - zero, 3), one.kind, text, one.rank, one.card, one.code, one.grave)


def _adds(main: Cause, other: Cause) -> bool:
    """Whether another cause adds something to the first one."""
    if (other.sign is not None and other.sign == main.sign) or other.text == main.text:
        return False
    if main.confidence == CERTAIN:
        return other.kind == "node" and other.confidence not in (LOW, NONE)
    return other.confidence not in (LOW, NONE) or main.confidence in (LOW, NONE)


def _reported(cause: Cause, facts: Facts) -> ReportedCause:
    sign = cause.sign
    return ReportedCause(
        shown(plain(cause.text), 1000),
        cause.confidence,
        cause.kind,
        cause.signature,
        sign.rank if sign is not None else cause.rank,
        sign_words.who(sign, facts)[1] if sign is not None else None,
        shown(plain(sign.hit.line)) if sign is not None else "",
        round(sign.at - facts.zero, 3) if sign is not None and sign.at is not None else None,
        [shown(plain(text)) for text in cause.evidence],
        shown(plain(sign.file), 1000) if sign is not None else "",
    )


def _headline(facts: Facts, reached: Verdict | None, warnings: int) -> str:
    if reached is not None and reached.summary:
        first = facts.launched.workers[0] if facts.launched is not None else None
        reported = f"; {first.launcher} reports: {first.who} {first.ending}" if first is not None else ""
        return shown(plain(reached.summary + reported), 1000)
    if facts.job.state is State.RESTARTING and facts.job.past:
        past = facts.job.past[-1]
        return shown(plain(f"attempt {past.number} failed: {past.summary}; muster will start it again"), 1000)
    if any(one.grave for one in facts.happenings) or probable_cause.causes(facts):
        return "it has not ended; problems so far:"
    if warnings:
        return f"it has not ended; {warnings} warning{'s' if warnings > 1 else ''} about it, listed below"
    found = "it has not ended; no problem is known"
    spec = facts.entry.spec
    if spec.node_count > 1:
        # Daemons do not ask each other: a part whose peers have failed looks like this.
        found += (
            f" on this node, {spec.node_rank} of {spec.node_count}: `muster why {spec.job_id} --hosts A,B` asks all"
        )
    return found


def _steps(facts: Facts, first: Rank | None, steps: Sequence[str]) -> list[str]:
    """What to do: the cause's own steps first, a command that shows more last."""
    found = list(dict.fromkeys(steps))[:5]
    job_id, reached = facts.entry.job_id, facts.job.verdict
    if (
        first is not None
        and first.outcome is not Outcome.NOT_STARTED
        and (reached is None or of_this_attempt(reached.last_lines))
        and not any("muster logs" in step for step in found)
    ):
        found.append(f"Read all its output: `muster logs {job_id} -r {first.rank} --tail 200`.")
    return found


def _ending(rank: Rank) -> str:
    """exited with code 7; was killed by SIGSEGV (core dumped)."""
    if rank.outcome is Outcome.NOT_STARTED:
        return "was not started"
    if rank.outcome is Outcome.GANG_VICTIM:
        return f"{endings.describe(rank.status)}, ended by muster"
    return "was lost" if rank.outcome is Outcome.LOST else endings.describe(rank.status)


def _past(facts: Facts) -> list[PastAttempt]:
    first = past_attempts.first_failures(facts)
    found = []
    for past in facts.job.past[-MAX_PAST:]:
        cause = past_attempts.cause(past, facts)
        reported = None if cause is None else msgspec.structs.replace(_reported(cause, facts), evidence=[])
        found.append(PastAttempt(applied_to_attempt(past, first), reported))
    return found


def _telemetry(facts: Facts) -> TelemetryExcerpt:
    minutes = facts.minutes
    return TelemetryExcerpt(
        minutes.begin,
        minutes.step,
        [
            Series(c.card, c.rank, _rounded(c.util), _rounded(c.memory), _rounded(c.power), _rounded(c.cpu))
            for c in minutes.curves
        ],
        curves.remarks(minutes),
        minutes.missing,
    )


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 1) for value in values]


def _notes(facts: Facts, reached: Verdict | None, warnings: Sequence[str]) -> list[str]:
    found = [text for text in warnings if text != facts.entry.damaged]
    summary = reached.summary if reached is not None else ""
    found += [f"rank {rank.rank}: {rank.detail}" for rank in facts.job.ranks if rank.detail not in summary]
    if facts.job.takeovers:
        found.append(
            f"a supervisor died {facts.job.takeovers} time(s) and another took over; "
            f"see `muster events {facts.entry.job_id}`"
        )
    return [shown(plain(text), 1000) for text in found[-MAX_NOTES:]]


def _unknown(facts: Facts) -> list[str]:
    """Facts that are missing, a sentence each."""
    found = [*facts.searched.missing, *facts.problems]
    if facts.events.trouble:
        found.append(facts.events.trouble)
    elif not facts.events.reach:
        found.append("the event store does not go back to the start of the job; earlier events are missing")
    if facts.minutes.missing and facts.job.started_at:
        found.append(f"telemetry: {facts.minutes.missing}")
    if (back := facts.job.clock_back) >= CLOCK_S:
        found.append(
            f"the clock of the node went back by {span(back)} or more during the job: times before and after that "
            f"cannot be compared, and the job may have run {span(back)} longer than they say"
        )
    return [shown(plain(text), 500) for text in found[:MAX_NOTES]]
