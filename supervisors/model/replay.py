"""What each record changes of a job. Supervisor and daemon both replay the journal through here, so that both see the
same job. The table in states.py defines which record may come in which state.
"""

from typing import Any

from muster.supervisors.model.hardening import Hardening
from muster.supervisors.model.journal import FORMAT, Record
from muster.supervisors.model.lifecycle import Asked, Attempt, Job, OpenGap, Rank, Stop, Usage, Verdict
from muster.supervisors.model.staging_progress import OUTPUTS
from muster.supervisors.model.states import (
    JOB,
    SERVICE,
    STEP,
    TRANSITIONS,
    Kind,
    Outcome,
    State,
    StopCause,
    service_number,
)
from muster.supervisors.supervision_errors import IllegalTransition


def replay(records: list[Record]) -> Job:
    """The job that these records add up to. Raises IllegalTransition, also for an empty journal."""
    if not records or records[0].get("kind") != Kind.ACCEPTED:
        raise IllegalTransition("the journal does not begin with the record 'accepted'")
    job = Job()
    for record in records:
        try:
            apply(job, record)
        except (KeyError, TypeError, ValueError) as error:
            raise IllegalTransition(f"record {record.get('n')}: {record.get('kind')}: {error!r}") from error
    return job


def apply(job: Job, record: Record) -> None:
    """Moves the job by one record. Raises IllegalTransition where the table does not allow it."""
    kind = refuse_illegal(job, record)
    target: State | None = None
    if kind is Kind.ACCEPTED:
        if record["n"] != 0:
            raise IllegalTransition("a job is accepted once, by its first record")
    else:
        target = TRANSITIONS[kind][1]
    _HANDLERS[kind](job, record)
    if target is not None:
        job.state = target
    job.clock_back += max(0.0, job.last_time - record["t"])
    job.last_time = record["t"]


def refuse_illegal(job: Job, record: Record) -> Kind:
    """The kind of a record that may come now. Raises IllegalTransition if it may not."""
    try:
        kind = Kind(record["kind"])
    except ValueError:
        raise IllegalTransition(f"record {record.get('n')}: unknown kind {record.get('kind')!r}") from None
    if kind is not Kind.ACCEPTED and job.state not in TRANSITIONS[kind][0]:
        raise IllegalTransition(f"record {record.get('n')}: {kind} in state {job.state}")
    return kind


def _accepted(job: Job, r: Record) -> None:
    """format, digest, boot, up (seconds of CLOCK_BOOTTIME), card_kind, master_addr, master_port, by, where the
    ranks are (`place`); services[[name, command[]]]; hardening{} (see model/hardening.py); beside{}: see
    lifecycle.Job."""
    if r["format"] != FORMAT:
        raise IllegalTransition(f"journal of format {r['format']}, this version reads {FORMAT}")
    job.accepted_at, job.digest, job.boot_id = r["t"], r["digest"], r["boot"]
    job.accepted_up = r.get("up", 0.0)
    job.card_kind, job.master_addr, job.master_port = r["card_kind"], r["master_addr"], r["master_port"]
    job.accepted_by = r["by"]
    services = enumerate(r.get("services", ()))
    job.services = [Rank(service_number(i), i, 0, argv=tuple(argv), role=name) for i, (name, argv) in services]
    job.hardening = Hardening.from_record(r.get("hardening", {}))
    job.beside = r.get("beside", {})
    place(job, r)


def place(job: Job, r: Record) -> None:
    """Puts a job where a record says: first_rank or numbers[], devices[], cards[], node_rank, node_count, node_name,
    local_ranks, world_size; cpus[] (per rank), card_nodes{card: path}, card_used{card: bytes}, doubts[],
    card_uuids{card: uuid}; card_visible{card: word}: what the job's processes call the card, where that is not its
    index, card_parents{card: card}: of which card it is a MIG instance."""
    numbers = r.get("numbers") or range(r["first_rank"], r["first_rank"] + len(r["devices"]))
    job.ranks = [Rank(n, i, device) for i, (n, device) in enumerate(zip(numbers, r["devices"], strict=True))]
    for rank, cpus in zip(job.ranks, r.get("cpus", ()), strict=False):
        rank.cpus = cpus
    job.cards = tuple(r["cards"])
    if (nodes := r.get("card_nodes")) is not None:
        job.card_nodes = _by_card(nodes)
    job.doubts += r.get("doubts", ())
    job.card_uuids = _by_card(r.get("card_uuids", {}))
    job.card_used = {int(card): used for card, used in r.get("card_used", {}).items()}
    job.card_parents = {int(card): parent for card, parent in r.get("card_parents", {}).items()}
    job.card_visible = _by_card(r.get("card_visible", {}))
    job.node_rank, job.node_count, job.node_name = r["node_rank"], r["node_count"], r["node_name"]
    job.local_ranks, job.world_size = r["local_ranks"], r["world_size"]


def _planned(job: Job, r: Record) -> None:
    """As `accepted`, once the rank table exists: card_kind, master_addr, master_port, the places of the ranks, and
    table: the path of the table that they get (a table without devices counts as none)."""
    job.card_kind, job.master_addr, job.master_port = r["card_kind"], r["master_addr"], r["master_port"]
    job.planned, job.table = True, r["table"]
    place(job, r)


def _checked(job: Job, r: Record) -> None:
    """ok, results[] (probes' results as dictionaries), skipped: why there was no pre-check."""
    job.checks, job.unchecked = r["results"], r.get("skipped", "")


def _taken(job: Job, r: Record) -> None:
    """pid, takeover: a supervisor has the lock."""
    job.supervisor_pid = r["pid"]
    job.takeovers += bool(r["takeover"])


def _preparing(job: Job, r: Record) -> None:
    """attempt, cgroup (path of the job's own cgroup, or empty), v1_cgroups{controller: path}, oom_kills (its count of
    them so far), oom_kills_around (where it has none: that of the cgroup around it); card_visible and card_nodes as in
    `place`, where the driver counts the cards otherwise than before."""
    if r["attempt"] != job.attempt:
        job.steps_done.discard("pre_start")
    job.attempt, job.cgroup, job.oom_kills = r["attempt"], r["cgroup"], r["oom_kills"]
    job.v1_cgroups, job.oom_kills_around = r.get("v1_cgroups", {}), r.get("oom_kills_around")
    job.spawned = False
    job.started_at = job.started_up = 0.0
    if "card_visible" in r:
        job.card_visible = _by_card(r["card_visible"])
        job.card_nodes = _by_card(r["card_nodes"])


def _by_card(words: dict[str, str]) -> dict[int, str]:
    return {int(card): word for card, word in words.items()}


def _step(job: Job, r: Record) -> None:
    """name, pid, start, boot, up, argv[]: a process that runs before or after the ranks waits behind a gate. Again,
    with ending and kill_up, where muster ends it: see lifecycle.Job."""
    if "ending" in r:
        job.step_ending, job.step_kill_up = r["ending"], r["kill_up"]
        return
    job.step_ending, job.step_kill_up = "", 0.0
    job.step = Rank(STEP, 0, 0, r["pid"], r["start"], r["t"], argv=tuple(r["argv"]), role=r["name"])
    job.step_name, job.step_up, job.boot_id = r["name"], r["up"], r["boot"]
    job.step_counts[job.step_name] = job.step_counts.get(job.step_name, 0) + 1


def _services(job: Job, r: Record) -> None:
    """services[[number, pid, start]], boot, up: they exist and wait behind the gate; from here on they may run."""
    for number, pid, start in r["services"]:
        service = job.rank(number)
        service.pid, service.start, service.started_at = pid, start, r["t"]
    job.step = None
    job.services_up, job.services_told, job.boot_id = r["up"], False, r["boot"]


def _spawned(job: Job, r: Record) -> None:
    """ranks[[rank, pid, start]], boot: every process exists and waits behind the gate; from here on they may run.

    In boot modes other than "ranks" also argv[[...]], roles[], serves[bool].
    """
    for number, pid, start in r["ranks"]:
        rank = job.rank(number)
        rank.pid, rank.start, rank.started_at = pid, start, r["t"]
    for rank, argv, role, serves in zip(
        job.ranks, r.get("argv", ()), r.get("roles", ()), r.get("serves", ()), strict=False
    ):
        rank.argv, rank.role, rank.serves = tuple(argv), role, serves
    job.step = None
    job.spawned, job.boot_id = True, r["boot"]


def _unborn(job: Job, r: Record) -> None:
    """The gate closed before the ranks, a step, or the services: none of them ran, and they are to be made again."""
    if job.in_step:
        job.step = None
        job.step_counts[job.step_name] -= 1
    elif job.has_services and not job.spawned:
        _forget_services(job)
    else:
        _forget_ranks(job)


def _forget_services(job: Job) -> None:
    job.services = [
        Rank(one.rank, one.local_rank, 0, argv=one.argv, role=one.role, lost_bytes=one.lost_bytes)
        for one in job.services
    ]
    job.services_up, job.services_told = 0.0, False


def _forget_ranks(job: Job) -> None:
    job.ranks = [
        Rank(rank.rank, rank.local_rank, rank.device, lost_bytes=rank.lost_bytes, cpus=rank.cpus) for rank in job.ranks
    ]
    job.ends = []
    job.spawned = False


def _restarting(job: Job, r: Record) -> None:
    """attempt (the next), verdict{} and log_ends{rank: bytes} of the one that failed, delay_s, up (now, seconds of
    CLOCK_BOOTTIME)."""
    verdict = _verdict(r["verdict"])
    ends = {int(rank): size for rank, size in dict(r["log_ends"]).items()}
    past = Attempt(job.attempt, job.started_at, r["t"], verdict.exit_code, verdict.summary, verdict.first_failed, ends)
    job.past.append(past)
    if job.started_up:
        job.ran_s += max(0.0, r["up"] - job.started_up)
    job.attempt = r["attempt"]
    job.restart_up, job.restart_at = r["up"] + r["delay_s"], r["t"] + r["delay_s"]
    job.steps_done.discard("pre_start")
    job.hang_restarts += job.stop is not None and job.stop.cause is StopCause.HUNG
    job.stop, job.asked, job.terminated, job.killed, job.step = None, None, False, False, None
    job.started_at = job.started_up = 0.0
    _forget_ranks(job)
    _forget_services(job)


def _running(job: Job, r: Record) -> None:
    """up (seconds of CLOCK_BOOTTIME): the gate was opened; max_pids: the limit of its cgroup, 0 for none."""
    job.started_at, job.started_up = r["t"], r["up"]
    job.max_pids = r.get("max_pids", 0)


def _exited(job: Job, r: Record) -> None:
    """rank, outcome, status (wait(2)'s, or null), usage{}, detail; found_by, memory_limit: see lifecycle.Rank; of the
    step `code` beside{}: see lifecycle.Job."""
    rank = job.rank(r["rank"])
    rank.outcome, rank.status, rank.ended_at = Outcome(r["outcome"]), r["status"], r["t"]
    rank.detail, rank.found_by = r.get("detail", ""), r.get("found_by", 0)
    rank.memory_limit = r.get("memory_limit", 0)
    rank.usage = Usage(**_known(Usage, r.get("usage", {})))
    if rank is job.step:
        if rank.outcome is Outcome.EXITED and rank.status == 0:
            job.steps_done.add(job.step_name)
            job.beside = r.get("beside", job.beside)
            job.outputs_kept &= job.step_name != OUTPUTS
    elif rank.rank > SERVICE:
        job.ends.append(rank.rank)


def _usage(job: Job, r: Record) -> None:
    """rank, max_rss: known only once the process was waited for."""
    job.rank(r["rank"]).usage.max_rss = r["max_rss"]


def _stopping(job: Job, r: Record) -> None:
    """cause, by, reason, steps[], up (seconds of CLOCK_BOOTTIME); of a hang ranks[] and again. May come again: a
    person's stop shortens the grace, and keeps the job from being started again. For it asked_up, where `up` is
    that of the stop under way, signal_up, and hung{since, how} of a job that hung (see lifecycle.Asked)."""
    if r["cause"] == StopCause.REQUESTED:
        job.halted = True
        if job.asked is None:
            up, hung = r.get("asked_up") or r["up"], r.get("hung") or {}
            signal_up = r.get("signal_up") or 0.0
            job.asked = Asked(r["by"], r["reason"], up, signal_up, hung.get("since", 0.0), hung.get("how", ""))
    if job.stop is None:
        hang = tuple(r.get("ranks", ())), bool(r.get("again"))
        job.stop = Stop(StopCause(r["cause"]), r["by"], r["reason"], tuple(r["steps"]), r["t"], r["up"], *hang, r["up"])
    else:
        job.stop.steps, job.stop.up = tuple(r["steps"]), r["up"]
        if job.stop.cause is StopCause.LEFTOVERS:
            job.stop.by, job.stop.reason = r["by"], r["reason"]


def _escalated(job: Job, r: Record) -> None:
    """signal (SIGTERM or SIGKILL), processes: how many it was sent to; services: the services, too."""
    job.services_told |= bool(r.get("services"))
    job.terminated = True
    job.killed |= r["signal"] == "SIGKILL"


def _warning(job: Job, r: Record) -> None:
    """text."""
    job.warnings.append(r["text"])


def _lost_bytes(job: Job, r: Record) -> None:
    """rank (or JOB: of the job's log), bytes, since, until, error: output that could not be written. While the gap is
    `open` more records of it follow, not before `due` (CLOCK_BOOTTIME): `bytes` is what came since the last one,
    `total` what the gap has in all. `line`: the gap's line, of a gap that was still open when the job ended."""
    number = r["rank"]
    if number == JOB:
        job.lost_bytes += r["bytes"]
    else:
        rank = job.rank(number)
        rank.lost_bytes += r["bytes"]
        rank.lost_why = r["error"]
    if r.get("open"):
        job.gaps[number] = OpenGap(r["total"], r["since"], r["error"], r.get("due", 0.0))
        return
    job.gaps.pop(number, None)
    if number == JOB:
        lost = r.get("total", r["bytes"])
        job.warnings.append(f"{lost} bytes of the job's own log could not be written: {r['error']}")
    if line := r.get("line"):
        job.missing_lines[number] = line


def _concluded(job: Job, r: Record) -> None:
    """state, verdict{}: how the job will end, whatever its epilog does; after[]: the steps that are left, where that is
    not the epilog alone. Again once the first of several is through, which may change the end."""
    job.concluded = _final(r), _verdict(r["verdict"])
    job.after = tuple(r.get("after") or ("epilog",))
    job.outputs_kept |= OUTPUTS in job.after


def _ended(job: Job, r: Record) -> None:
    """state, verdict{}, log_ends{rank: bytes} (JOB: of the job's own log), kept: as `Job.outputs_kept` has it."""
    job.log_ends = {int(rank): size for rank, size in r.get("log_ends", {}).items()}
    job.state, job.verdict = _final(r), _verdict(r["verdict"])
    job.ended_at = r["t"]
    job.supervisor_pid = 0


def _final(r: Record) -> State:
    state = State(r["state"])
    if not state.final:
        raise IllegalTransition(f"record {r['n']}: {r['kind']} with {state}, which is not a final state")
    return state


def _verdict(fields: dict[str, Any]) -> Verdict:
    if not isinstance(fields, dict):
        raise TypeError(f"a verdict is an object, not {type(fields).__name__}")
    lists = {name: tuple(fields.get(name, ())) for name in ("last_lines", "victims")}
    return Verdict(**_known(Verdict, fields | lists))


def _known(cls: type, fields: dict[str, Any]) -> dict[str, Any]:
    """Without those that only a newer version knows: what it has added must not cost a job. Raises TypeError."""
    if not isinstance(fields, dict):
        raise TypeError(f"{cls.__name__} is an object, not {type(fields).__name__}")
    return {name: value for name, value in fields.items() if name in cls.__slots__}  # type: ignore[attr-defined]


def _nothing(job: Job, r: Record) -> None:
    """Says only that a state began."""


_HANDLERS = {
    Kind.ACCEPTED: _accepted,
    Kind.CHECKING: _nothing,
    Kind.CHECKED: _checked,
    Kind.PLANNED: _planned,
    Kind.TAKEN: _taken,
    Kind.PREPARING: _preparing,
    Kind.SERVICES: _services,
    Kind.SPAWNED: _spawned,
    Kind.UNBORN: _unborn,
    Kind.RUNNING: _running,
    Kind.EXITED: _exited,
    Kind.USAGE: _usage,
    Kind.STOPPING: _stopping,
    Kind.ESCALATED: _escalated,
    Kind.WARNING: _warning,
    Kind.LOST_BYTES: _lost_bytes,
    Kind.STEP: _step,
    Kind.RESTARTING: _restarting,
    Kind.CONCLUDED: _concluded,
    Kind.ENDED: _ended,
}
