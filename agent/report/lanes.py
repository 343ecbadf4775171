"""The bars of the time line: attempts, steps, ranks and hangs, from the journal and the events. Pure."""

from collections.abc import Iterable, Sequence

from muster.agent.events.event_store import Event
from muster.agent.jobs.entry import Entry
from muster.agent.report.job_report import Bar, RankLine
from muster.agent.text import plain
from muster.agent.why.words import shown
from muster.probes.kernel import endings
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.states import Outcome, State

#: How a bar is drawn.
DONE, FAILED, VICTIM, STOPPED, LOST, RUNNING, SUSPECT, HUNG, STEP = (
    "done", "failed", "victim", "stopped", "lost", "running", "suspect", "hung", "step",
)  # fmt: skip
LOOKS = {
    DONE: "ended with code 0",
    FAILED: "failed",
    VICTIM: "ended because another rank had failed",
    STOPPED: "stopped",
    LOST: "lost or unknown",
    RUNNING: "running",
    SUSPECT: "suspected hang",
    HUNG: "hung",
    STEP: "a step of muster",
}
#: At most so many bars of ranks of earlier attempts.
MAX_PAST_BARS = 2000
#: Steps that muster's events tell of: the kinds that begin them, the kinds that end them, their name.
_STEPS = (
    ("job.waiting", ("job.planned", "job.checking", "job.preparing", "job.ended"), "wait"),
    ("job.checking", ("job.checked", "job.preparing", "job.ended"), "checks"),
    ("job.preparing", ("job.running", "job.stopping", "job.restarting", "job.ended"), "start"),
    ("job.stopping", ("job.restarting", "job.ended"), "stop"),
    ("job.restarting", ("job.preparing", "job.ended"), "pause"),
)


def of_rank(rank: Rank, job: Job) -> RankLine:
    """A rank of the last attempt."""
    usage, status = rank.usage, "running"
    if rank.outcome is Outcome.NOT_STARTED:
        status = "was not started"
    elif rank.outcome is not None:
        status = endings.describe(rank.status)
    elif not rank.pid or not job.spawned:
        status = "not started"
    cpu = None if usage.cpu_user_s is None else round(usage.cpu_user_s + (usage.cpu_system_s or 0.0), 2)
    return RankLine(
        rank.rank, rank.device, rank.pid or None, "" if rank.outcome is None else str(rank.outcome),
        shown(plain(status)), look_of(rank), rank.started_at or None, rank.ended_at or None, cpu, usage.max_rss,
        shown(plain(rank.detail), 500),
    )  # fmt: skip


def look_of(rank: Rank) -> str:
    """How a rank is drawn."""
    match rank.outcome:
        case None:
            return RUNNING
        case Outcome.EXITED if rank.status == 0:
            return DONE
        case Outcome.GANG_VICTIM:
            return VICTIM
        case Outcome.STOPPED:
            return STOPPED
        case Outcome.LOST | Outcome.NOT_STARTED:
            return LOST
        case Outcome.HUNG:
            return HUNG
    return FAILED


def attempts(entry: Entry) -> list[Bar]:
    """All attempts, the last one included."""
    job = entry.job
    found = [
        Bar(f"attempt {past.number}", past.started_at or past.ended_at, past.ended_at, FAILED, _text(past.summary))
        for past in job.past
    ]
    if job.started_at and not (job.past and job.past[-1].started_at == job.started_at):
        ends = [rank.ended_at for rank in job.ranks]
        end = (max(ends) if ends and all(ends) else 0.0) or job.ended_at or None
        look = {State.SUCCEEDED: DONE, State.STOPPED: STOPPED, State.FAILED: FAILED, State.LOST: LOST}
        name = f"attempt {job.attempt}"
        said = job.verdict.summary if job.verdict is not None else ""
        found.append(Bar(name, job.started_at, end, look.get(job.state, RUNNING), _text(said)))
    return found


def steps(events: Sequence[Event], end: float | None) -> list[Bar]:
    """What muster did for the job: its own steps, and the scripts of the job. `end`: that of the job; None: it has not
    ended. `events`: those of the job, oldest first."""
    found: list[Bar] = []
    for kind, ends, name in _STEPS:
        begun: float | None = None
        for event in events:
            if event.kind == kind and begun is None:
                begun = event.time
            elif event.kind in ends and begun is not None:
                found.append(Bar(name, begun, max(begun, event.time), STEP, _text(event.message)))
                begun = None
        if begun is not None:
            found.append(Bar(name, begun, end, STEP))
    open_at: dict[str, float] = {}
    for event in events:
        step = shown(plain(event.attributes.get("step", "")), 80)
        if event.kind == "job.step":
            open_at[step] = event.time
        elif event.kind == "job.step_ended":
            begun = open_at.pop(step, event.time - event.seconds)
            # Events of an earlier version have no exit code.
            well = event.attributes.get("exit_code") == "0" or event.message.endswith("with code 0")
            found.append(Bar(step, begun, max(begun, event.time), STEP if well else FAILED, _text(event.message)))
    found += [Bar(step, begun, end, STEP) for step, begun in open_at.items()]
    return sorted(found, key=lambda bar: bar.begin)


def rank_bars(entry: Entry, events: Sequence[Event]) -> list[Bar]:
    """A bar for each rank and attempt."""
    job = entry.job
    found: list[Bar] = []
    for past in job.past:
        for event in events:
            inside = event.kind == "rank.exited" and past.started_at <= event.time <= past.ended_at
            if inside and event.rank is not None and len(found) < MAX_PAST_BARS:
                look = _look_told(event)
                found.append(
                    Bar(f"rank {event.rank}", past.started_at, event.time, look, _text(event.message), event.rank)
                )
    if job.spawned or not job.past:
        for rank in job.ranks:
            if rank.pid and (begin := rank.started_at or job.started_at):
                line = of_rank(rank, job)
                end = max(begin, rank.ended_at) if rank.ended_at else job.ended_at or None
                found.append(Bar(f"rank {rank.rank}", begin, end, line.look, line.status, rank.rank))
    return found


def hangs(events: Iterable[Event], end: float | None) -> list[Bar]:
    """The times in which the job was suspected to hang, or hung, as the hang rule told."""
    found: list[Bar] = []
    begun: Event | None = None

    def close(at: float | None) -> None:
        nonlocal begun
        if begun is not None:
            look = SUSPECT if begun.kind == "job.suspected_hang" else HUNG
            stop = None if at is None else max(begun.time, at)
            found.append(Bar(LOOKS[look], begun.time, stop, look, _text(begun.message), begun.rank))
            begun = None

    for event in events:
        if event.kind in ("job.suspected_hang", "job.hung", "job.driver_hang"):
            close(event.time)
            begun = event
        elif event.kind in ("job.recovered", "job.restarting", "job.stopping", "job.ended"):
            close(event.time)
    close(end)
    return found


def _look_told(event: Event) -> str:
    outcome = event.attributes.get("outcome", "")
    told = {
        Outcome.GANG_VICTIM: VICTIM, Outcome.STOPPED: STOPPED, Outcome.LOST: LOST, Outcome.NOT_STARTED: LOST,
        Outcome.HUNG: HUNG,
    }  # fmt: skip
    if outcome == Outcome.EXITED and event.attributes.get("exit_code") == "0":
        return DONE
    return next((look for one, look in told.items() if one == outcome), FAILED)


def _text(text: str) -> str:
    return shown(plain(text), 500)
