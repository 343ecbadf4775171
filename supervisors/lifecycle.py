"""The life of a job: its states, the records that move it, and the one table that says which may follow which.

A job's state is never set: it is what its journal's records add up to. Supervisor and daemon both replay them through
`Job.apply`, so that both see the same job.
"""

import enum
from dataclasses import dataclass, field
from typing import Any

from supervisors.errors import IllegalTransition
from supervisors.journal import FORMAT, Record


class State(enum.StrEnum):
    """States of a job; the last four are final."""

    ACCEPTED = "ACCEPTED"
    CHECKING = "CHECKING"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    RESTARTING = "RESTARTING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    LOST = "LOST"

    @property
    def final(self) -> bool:
        return self in _FINAL


_FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.STOPPED, State.LOST})


class Outcome(enum.StrEnum):
    """How a rank ended."""

    EXITED = "EXITED"
    SIGNALLED = "SIGNALLED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    GANG_VICTIM = "GANG_VICTIM"
    STOPPED = "STOPPED"
    HUNG = "HUNG"
    LOST = "LOST"
    NOT_STARTED = "NOT_STARTED"


class Cause(enum.StrEnum):
    """Why a job is being stopped."""

    REQUESTED = "requested"  # somebody asked
    MAX_RUNTIME = "max_runtime"  # its time is over
    RANK_FAILED = "rank_failed"  # a rank failed: the others are its victims
    LEFTOVERS = "leftovers"  # all ranks have ended, but processes of theirs have not


class Kind(enum.StrEnum):
    """Kinds of records. What each carries is told at `Job.apply`'s handlers."""

    ACCEPTED = "accepted"
    CHECKING = "checking"
    CHECKED = "checked"
    TAKEN = "taken"
    PREPARING = "preparing"
    SPAWNED = "spawned"
    UNBORN = "unborn"
    RUNNING = "running"
    EXITED = "exited"
    USAGE = "usage"
    STOPPING = "stopping"
    ESCALATED = "escalated"
    WARNING = "warning"
    LOST_BYTES = "lost_bytes"
    ENDED = "ended"


_LIVE = frozenset(State) - _FINAL
_WITH_RANKS = frozenset({State.PREPARING, State.RUNNING, State.STOPPING})

#: kind -> (states in which it may come, state that it leads to; None: stays). `ended` carries its own final state.
TRANSITIONS: dict[Kind, tuple[frozenset[State], State | None]] = {
    Kind.CHECKING: (frozenset({State.ACCEPTED, State.CHECKING}), State.CHECKING),
    Kind.CHECKED: (frozenset({State.CHECKING}), None),
    Kind.TAKEN: (_LIVE, None),
    Kind.PREPARING: (frozenset({State.ACCEPTED, State.CHECKING, State.PREPARING, State.RESTARTING}), State.PREPARING),
    Kind.SPAWNED: (frozenset({State.PREPARING}), None),
    Kind.UNBORN: (frozenset({State.PREPARING, State.STOPPING}), None),
    Kind.RUNNING: (frozenset({State.PREPARING}), State.RUNNING),
    Kind.EXITED: (_WITH_RANKS, None),
    Kind.USAGE: (_LIVE, None),
    Kind.STOPPING: (_LIVE, State.STOPPING),
    Kind.ESCALATED: (frozenset({State.STOPPING}), None),
    Kind.WARNING: (_LIVE, None),
    Kind.LOST_BYTES: (_LIVE, None),
    Kind.ENDED: (_LIVE, None),
}


@dataclass(slots=True)
class Usage:
    """What a process used, with the descendants that it waited for; times in seconds, the rest in bytes."""

    cpu_user_s: float = 0.0
    cpu_system_s: float = 0.0
    max_rss: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    rchar: int = 0
    wchar: int = 0


@dataclass(slots=True)
class Rank:
    """One process of the gang. `status` is as wait(2) gives it; None: not ended, or nobody can tell."""

    rank: int
    local_rank: int
    device: int
    pid: int = 0
    start: int = 0
    started_at: float = 0.0
    outcome: Outcome | None = None
    status: int | None = None
    ended_at: float = 0.0
    detail: str = ""
    usage: Usage = field(default_factory=Usage)
    lost_bytes: int = 0


@dataclass(slots=True)
class Stop:
    """A stop under way: why, asked by whom, the steps of its grace in seconds, and when it began: seconds of
    CLOCK_BOOTTIME, which no one can set."""

    cause: Cause
    by: str = ""
    reason: str = ""
    steps: tuple[float, ...] = ()
    at: float = 0.0
    up: float = 0.0


@dataclass(slots=True)
class Verdict:
    """Why a job ended; see proto/muster/v1/job.proto."""

    exit_code: int
    summary: str
    first_failed: int | None = None
    last_lines: tuple[str, ...] = ()
    victims: tuple[int, ...] = ()
    recommendation: str = "NONE"
    recommendation_reason: str = ""
    stopped_by: str = ""


@dataclass(slots=True)
class Job:
    """What the records so far add up to."""

    state: State = State.ACCEPTED
    digest: str = ""
    boot_id: str = ""
    card_kind: str = "slot"
    master_addr: str = ""
    master_port: int = 0
    accepted_by: str = ""
    accepted_at: float = 0.0
    started_at: float = 0.0
    started_up: float = 0.0
    ended_at: float = 0.0
    attempt: int = 0
    takeovers: int = 0
    supervisor_pid: int = 0
    cgroup: str = ""
    spawned: bool = False
    ranks: list[Rank] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stop: Stop | None = None
    terminated: bool = False
    killed: bool = False
    verdict: Verdict | None = None
    last_time: float = 0.0

    def rank(self, number: int) -> Rank:
        """The rank with this number over all nodes. Raises IllegalTransition for one that the job does not have."""
        index = number - self.ranks[0].rank if self.ranks else -1
        if not 0 <= index < len(self.ranks):
            raise IllegalTransition(f"the job has no rank {number}")
        return self.ranks[index]

    def apply(self, record: Record) -> None:
        """Moves the job by one record. Raises IllegalTransition where the table does not allow it."""
        try:
            kind = Kind(record["kind"])
        except ValueError:
            raise IllegalTransition(f"record {record.get('n')}: unknown kind {record.get('kind')!r}") from None
        target: State | None = None
        if kind is Kind.ACCEPTED:
            if record["n"] != 0:
                raise IllegalTransition("a job is accepted once, by its first record")
        else:
            states, target = TRANSITIONS[kind]
            if self.state not in states:
                raise IllegalTransition(f"record {record['n']}: {kind} in state {self.state}")
        _HANDLERS[kind](self, record)
        if target is not None:
            self.state = target
        self.last_time = record["t"]


def _accepted(job: Job, r: Record) -> None:
    """format, digest, boot, card_kind, master_addr, master_port, by, first_rank, devices[]."""
    if r["format"] != FORMAT:
        raise IllegalTransition(f"journal of format {r['format']}, this version reads {FORMAT}")
    job.accepted_at, job.digest, job.boot_id = r["t"], r["digest"], r["boot"]
    job.card_kind, job.master_addr, job.master_port = r["card_kind"], r["master_addr"], r["master_port"]
    job.accepted_by = r["by"]
    job.ranks = [Rank(r["first_rank"] + i, i, device) for i, device in enumerate(r["devices"])]


def _checked(job: Job, r: Record) -> None:
    """ok, results[] (probes' results as dictionaries), skipped."""
    job.checks = r["results"]


def _taken(job: Job, r: Record) -> None:
    """pid, takeover: a supervisor has the lock."""
    job.supervisor_pid = r["pid"]
    job.takeovers += bool(r["takeover"])


def _preparing(job: Job, r: Record) -> None:
    """attempt, cgroup (path of the job's own cgroup, or empty)."""
    job.attempt, job.cgroup = r["attempt"], r["cgroup"]
    job.spawned = False
    job.started_at = job.started_up = 0.0


def _spawned(job: Job, r: Record) -> None:
    """ranks[[rank, pid, start]]: every process exists and waits behind the gate; from here on they may run."""
    for number, pid, start in r["ranks"]:
        rank = job.rank(number)
        rank.pid, rank.start, rank.started_at = pid, start, r["t"]
    job.spawned = True


def _unborn(job: Job, r: Record) -> None:
    """The gate closed before the ranks: none of them ran, and they are to be made again."""
    for rank in job.ranks:
        rank.pid, rank.start, rank.started_at = 0, 0, 0.0
        rank.outcome, rank.status, rank.detail = None, None, ""
    job.spawned = False


def _running(job: Job, r: Record) -> None:
    """up (seconds of CLOCK_BOOTTIME): the gate was opened."""
    job.started_at, job.started_up = r["t"], r["up"]


def _exited(job: Job, r: Record) -> None:
    """rank, outcome, status (wait(2)'s, or null), usage{}, detail."""
    rank = job.rank(r["rank"])
    rank.outcome, rank.status, rank.ended_at = Outcome(r["outcome"]), r["status"], r["t"]
    rank.detail = r.get("detail", "")
    rank.usage = Usage(**r.get("usage", {}))


def _usage(job: Job, r: Record) -> None:
    """rank, max_rss: known only once the process was waited for."""
    job.rank(r["rank"]).usage.max_rss = r["max_rss"]


def _stopping(job: Job, r: Record) -> None:
    """cause, by, reason, steps[], up (seconds of CLOCK_BOOTTIME). May come again: a person's stop replaces another
    cause, and shortens the grace."""
    if job.stop is None:
        job.stop = Stop(Cause(r["cause"]), r["by"], r["reason"], tuple(r["steps"]), r["t"], r["up"])
    else:
        job.stop.steps, job.stop.up = tuple(r["steps"]), r["up"]
        if job.stop.cause is Cause.LEFTOVERS:
            job.stop.by, job.stop.reason = r["by"], r["reason"]


def _escalated(job: Job, r: Record) -> None:
    """signal (SIGTERM or SIGKILL), processes: how many it was sent to."""
    job.terminated = True
    job.killed |= r["signal"] == "SIGKILL"


def _warning(job: Job, r: Record) -> None:
    """text."""
    job.warnings.append(r["text"])


def _lost_bytes(job: Job, r: Record) -> None:
    """rank, bytes, since, until, error: output that could not be written."""
    job.rank(r["rank"]).lost_bytes += r["bytes"]


def _ended(job: Job, r: Record) -> None:
    """state, verdict{}."""
    state = State(r["state"])
    if not state.final:
        raise IllegalTransition(f"record {r['n']}: ended with {state}, which is no final state")
    verdict = dict(r["verdict"])
    verdict["last_lines"] = tuple(verdict.get("last_lines", ()))
    verdict["victims"] = tuple(verdict.get("victims", ()))
    job.verdict = Verdict(**verdict)
    job.state = state
    job.ended_at = r["t"]
    job.supervisor_pid = 0


def _nothing(job: Job, r: Record) -> None:
    """Says only that a state began."""


_HANDLERS = {
    Kind.ACCEPTED: _accepted,
    Kind.CHECKING: _nothing,
    Kind.CHECKED: _checked,
    Kind.TAKEN: _taken,
    Kind.PREPARING: _preparing,
    Kind.SPAWNED: _spawned,
    Kind.UNBORN: _unborn,
    Kind.RUNNING: _running,
    Kind.EXITED: _exited,
    Kind.USAGE: _usage,
    Kind.STOPPING: _stopping,
    Kind.ESCALATED: _escalated,
    Kind.WARNING: _warning,
    Kind.LOST_BYTES: _lost_bytes,
    Kind.ENDED: _ended,
}


def replay(records: list[Record]) -> Job:
    """The job that these records add up to. Raises IllegalTransition, also for an empty journal."""
    if not records or records[0].get("kind") != Kind.ACCEPTED:
        raise IllegalTransition("the journal does not begin with the record 'accepted'")
    job = Job()
    for record in records:
        try:
            job.apply(record)
        except (KeyError, TypeError, ValueError) as error:
            raise IllegalTransition(f"record {record.get('n')}: {record.get('kind')}: {error!r}") from error
    return job
