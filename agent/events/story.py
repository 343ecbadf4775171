"""Turns the records of a journal into events: the same records always give the same events."""

import os
from typing import Any

from muster.agent.events.event_store import Event
from muster.agent.text import plain, time_of_day
from muster.probes.kernel import endings
from muster.supervisors.model import node_ends, rank_ends, verdict
from muster.supervisors.model.journal import Record
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.staging_progress import CODE, INPUTS, OUTPUTS
from muster.supervisors.model.states import JOB, SERVICE, STEP, Kind, Outcome, StopCause, log_owner

_WHY = {
    Outcome.GANG_VICTIM: "muster ended it because another rank had failed",
    Outcome.STOPPED: "the stop ended it",
    Outcome.OUT_OF_MEMORY: "the kernel was out of memory",
    Outcome.HUNG: "muster ended it because it hung",
}
_CAUSES = {
    StopCause.REQUESTED: "requested by {by}",
    StopCause.MAX_RUNTIME: "its time limit was reached",
    StopCause.RANK_FAILED: "{by} failed",
    StopCause.LEFTOVERS: "it left processes behind",
    StopCause.HUNG: "it hangs",
    StopCause.SERVICE_ENDED: "{by} has ended",
    StopCause.NOT_STARTED: "its ranks could not be started",
    StopCause.SERVED: "the ranks that it served have ended",
}
#: By step: that it copies, that all is copied, and that it is not.
_COPYING = {
    CODE: ("downloading training code", "training code is local", "the training code was not downloaded"),
    INPUTS: ("downloading inputs", "inputs are local", "the inputs were not downloaded"),
    OUTPUTS: ("uploading outputs", "outputs are delivered", "the outputs were not delivered"),
}


class Story:
    """The events of one job. Feed it every record in order, each after the job has applied it."""

    def __init__(self) -> None:
        self._since = 0.0

    def tell(self, record: Record, job: Job, job_id: str) -> Event | None:
        """The event of a record; None for a record that does not interest a watcher. At most one per record."""
        kind, now = Kind(record["kind"]), record["t"]
        took = max(now - self._since, 0.0) if self._since else 0.0
        if kind in (Kind.CHECKING, Kind.PREPARING, Kind.RUNNING, Kind.STOPPING):
            # A repeated stop (with a shorter grace) is no new step.
            if kind is not Kind.STOPPING or job.stop is None or job.stop.at == now:
                self._since = now
            else:
                took = 0.0
        told = _told(kind, record, job, took)
        if told is None:
            return None
        name, rank, message, seconds, attributes = told
        shown = {key: plain(str(value)) for key, value in attributes.items()}
        return Event(now, name, job_id, rank, plain(message), round(seconds, 6), shown)


_Told = tuple[str, int | None, str, float, dict[str, Any]]


def _told(kind: Kind, r: Record, job: Job, took: float) -> _Told | None:
    match kind:
        case Kind.ACCEPTED:
            ranks = len(job.ranks)
            message = f"accepted from {job.accepted_by} with {ranks} rank{'s' if ranks != 1 else ''}"
            return "job.accepted", None, message, 0.0, {"ranks": ranks, "by": job.accepted_by}
        case Kind.CHECKING:
            if what := r.get("what"):
                return "job.waiting", None, f"the job waits for the {what}", 0.0, {}
            return "job.checking", None, "muster checks the node", 0.0, {}
        case Kind.PLANNED:
            numbers = ", ".join(str(rank.rank) for rank in job.ranks[:8]) + (", ..." if len(job.ranks) > 8 else "")
            message = (
                f"its place is known: node {job.node_rank} of {job.node_count}, rank {numbers} of {job.world_size}"
            )
            return "job.planned", None, message, took, {"node_rank": job.node_rank, "world_size": job.world_size}
        case Kind.CHECKED:
            return _checked(r, took)
        case Kind.PREPARING:
            return "job.preparing", None, "muster starts its processes", 0.0, {"attempt": job.attempt}
        case Kind.RUNNING:
            return "job.running", None, "all ranks have started", took, {"attempt": job.attempt}
        case Kind.STEP if "ending" not in r:
            message = _COPYING.get(r["name"], ("",))[0] or f"{r['name']} begins"
            return "job.step", None, message, 0.0, {"step": r["name"], "pid": r["pid"]}
        case Kind.EXITED if r["rank"] == STEP:
            return _step_ended(job)
        case Kind.SERVICES:
            message = ", ".join(rank_ends.service_name(one) for one in job.services) + ": started"
            return "job.services", None, message, 0.0, {"pids": ",".join(str(one.pid) for one in job.services)}
        case Kind.EXITED if r["rank"] <= SERVICE:
            return _service_ended(job.rank(r["rank"]))
        case Kind.RESTARTING:
            past = job.past[-1]
            message = f"attempt {past.number} failed: {past.summary}; the next one begins in {r['delay_s']:.1f} s"
            return "job.restarting", None, message, took, {"attempt": r["attempt"], "exit_code": past.exit_code}
        case Kind.EXITED:
            return _exited(job.rank(r["rank"]))
        case Kind.STOPPING:
            message = "the job is being ended: " + _CAUSES[StopCause(r["cause"])].format(by=r["by"] or "somebody")
            message += f": {r['reason']}" if r["reason"] and not message.endswith(r["reason"]) else ""
            return "job.stopping", None, message, took, {"cause": r["cause"], "by": r["by"]}
        case Kind.ENDED:
            return _ended(job, took)
        case Kind.TAKEN if r["takeover"]:
            message = f"a supervisor (pid {r['pid']}) took over after another one died"
            return "job.taken_over", None, message, 0.0, {"pid": r["pid"]}
        case Kind.WARNING:
            return "job.warning", None, r["text"], 0.0, {}
        case Kind.LOST_BYTES:
            return _output_lost(r)
        case Kind.ESCALATED if r["signal"] == "SIGKILL":
            # Counts processes that still existed a moment later: usually none.
            left = f" to {r['processes']} process(es)" if r["processes"] else ""
            message = f"the grace has ended: SIGKILL was sent{left}"
            return "job.warning", None, message, 0.0, {"processes": r["processes"]}
    return None


def _checked(r: Record, took: float) -> _Told:
    results = r["results"]
    bad = [x for x in results if x["status"] not in ("OK", "NOT_APPLICABLE")]
    found = [f"{x['item']}{of} {x['status']}" for x in bad for of in [f" of {x['device']}" if x.get("device") else ""]]
    if r["skipped"]:
        message = f"the checks were skipped: {r['skipped']}"
    elif not found:
        message = f"{len(results)} checks found no problem"
    else:
        message = ("the node can be used: " if r["ok"] else "the node is not fit: ") + ", ".join(found)
    return "job.checked", None, message, took, {"ok": str(bool(r["ok"])).lower()}


def _output_lost(r: Record) -> _Told:
    """`bytes`: lost since the previous event; `total`: lost in the whole gap."""
    rank: int | None = None if r["rank"] <= JOB else r["rank"]
    total: int = r["total"] if "total" in r else r["bytes"]
    is_open = bool(r.get("open"))
    attributes = {"bytes": r["bytes"], "total": total, "since": f"{r['since']:.3f}", "error": r["error"]}
    attributes["open"] = str(is_open).lower()
    lost = lost_output(r["rank"], total, r["since"], r["error"], is_open=is_open)
    return "job.output_lost", rank, lost, 0.0, attributes


def lost_output(number: int, lost: int, since: float, error: str, *, is_open: bool) -> str:
    """A sentence about a gap in the output of a rank or service, or in the job's own log (JOB). `lost` in bytes,
    `since` in seconds since the epoch."""
    what = "the job's own log" if number == JOB else f"output of {log_owner(number)}"
    at = time_of_day(since)
    if is_open:
        return f"{what} has been lost since {at}: {lost} bytes so far: {error}"
    return f"{lost} bytes of {what} were lost from {at} on: {error}"


def _how(process: Rank) -> str:
    if process.outcome is Outcome.NOT_STARTED:
        return process.detail or "could not be started"
    return endings.describe(process.status) + (f": {process.detail}" if process.detail else "")


def _step_ended(job: Job) -> _Told:
    step = job.step
    assert step is not None
    how = _how(step)
    message = f"{job.step_name} {how}"
    if job.step_name in _COPYING:
        how = step.detail if step.detail and step.outcome is Outcome.EXITED else how  # better than its exit code
        _, done, failed = _COPYING[job.step_name]
        message = done if step.outcome is Outcome.EXITED and step.status == 0 else f"{failed}: {how}"
    took = max(step.ended_at - step.started_at, 0.0)
    attributes: dict[str, Any] = {"step": job.step_name, "outcome": step.outcome}
    if step.status is not None and os.WIFEXITED(step.status):
        attributes["exit_code"] = os.WEXITSTATUS(step.status)
    return "job.step_ended", None, message, took, attributes


def _service_ended(service: Rank) -> _Told:
    message = f"{rank_ends.service_name(service)} {_how(service)}"
    took = max(service.ended_at - service.started_at, 0.0)
    said = {"service": service.local_rank, "outcome": service.outcome, "pid": service.pid}
    return "job.service_ended", None, message, took, said


def _exited(rank: Rank) -> _Told:
    attributes: dict[str, Any] = {"outcome": rank.outcome, "device": rank.device, "pid": rank.pid}
    if rank.outcome is Outcome.NOT_STARTED:
        message = f"rank {rank.rank} could not be started"
    else:
        message = f"rank {rank.rank} {endings.describe(rank.status)}"
    if rank.status is not None:
        if os.WIFSIGNALED(rank.status):
            attributes["signal"] = os.WTERMSIG(rank.status)
            attributes["core_dumped"] = str(os.WCOREDUMP(rank.status)).lower()
        else:
            attributes["exit_code"] = os.WEXITSTATUS(rank.status)
    why = rank.detail or (_WHY.get(rank.outcome, "") if rank.outcome is not None else "")
    seconds = max(rank.ended_at - rank.started_at, 0.0) if rank.started_at else 0.0
    return "rank.exited", rank.rank, message + (f": {why}" if why else ""), seconds, attributes


def _ended(job: Job, took: float) -> _Told:
    attributes: dict[str, Any] = {"state": job.state}
    message = f"ended as {job.state}"
    if job.verdict is not None:
        message = job.verdict.summary
        attributes["exit_code"] = job.verdict.exit_code
        attributes["recommendation"] = job.verdict.recommendation
        advice = job.verdict.recommendation, job.verdict.recommendation_reason
        if node := node_ends.faulty(job.verdict.summary, advice):
            attributes["faulty_node"] = node
        if reason := verdict.reason(job):
            attributes["reason"] = reason
        if job.verdict.first_failed is not None:
            attributes["first_failed_rank"] = job.verdict.first_failed
    return "job.ended", None, message, took, attributes
