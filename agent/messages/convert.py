"""Between protobuf messages and the data model. Nothing else knows both."""

import hmac
import json
import os
from collections.abc import Sequence
from typing import Any

from muster.agent.errors import InvalidRequest
from muster.agent.events.event_store import Event
from muster.agent.hang import slow_sentence
from muster.agent.hang.current_hang import CurrentHang
from muster.agent.jobs.admission import new_job_id
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.explained import Worker, applied, applied_to_attempt
from muster.agent.messages.spec_message import said_in, spec_to
from muster.agent.protobuf_times import timestamp
from muster.agent.text import plain
from muster.probes.hang.slow import SlowChange
from muster.supervisors.launch.modes import modelarts, presets
from muster.supervisors.launch.spec_rules import violations
from muster.supervisors.model import lifecycle, node_ends, rank_ends, verdict
from muster.supervisors.model.hardening import Hardening
from muster.supervisors.model.job_logs import log_of
from muster.supervisors.model.spec import JobSpec, Violation
from muster.supervisors.model.staging_progress import StagingProgress
from muster.supervisors.model.states import JOB, State
from muster.supervisors.paths import Root, rank_log_name
from muster.v1 import event_pb2, job_pb2


def spec_from(message: job_pb2.JobSpec) -> JobSpec:
    """The spec of a request; one without an id gets one. Raises InvalidRequest with all that is wrong with it."""
    found: list[Violation] = []
    if message.HasField("cards") and not message.cards.ListFields():
        found.append(Violation("cards", "is empty: give count, the number of cards, indices, which ones, or all"))
    said = said_in(message, found)
    spec = JobSpec(**{"job_id": new_job_id(), "command": (), "boot": ""} | said)
    if text := modelarts.missing_node_rank(spec, node_rank_said="node_rank" in said):
        found.append(Violation("node_rank", text))
    spec = modelarts.understood(spec, node_rank_said="node_rank" in said)
    found += violations(spec)
    if found:
        raise InvalidRequest(found)
    return spec


def job_to(entry: Entry, root: Root, digest_key: bytes = b"") -> job_pb2.Job:
    """A job as its journal tells it; `add_present` adds the rest. One that is damaged on disk is LOST, and its verdict
    and a warning say why.

    Without `digest_key` the message has no digest of its spec: the plain one would let readers try what a short value
    of the environment is.
    """
    job = entry.job
    digest = hmac.digest(digest_key, job.digest.encode(), "sha256").hex() if digest_key and job.digest else ""
    message = job_pb2.Job(
        job_id=entry.job_id,
        state=state_to(job.state),
        spec_digest=digest,
        spec=spec_to(entry.spec),
        attempt=job.attempt,
        accepted_at=timestamp(job.accepted_at),
        started_at=timestamp(job.started_at),
        ended_at=timestamp(job.ended_at),
        verdict=verdict_of(entry),
        supervisor_pid=job.supervisor_pid,
        takeovers=job.takeovers,
        warnings=[plain(text) for text in entry.warnings()],
        master_addr=plain(job.master_addr),
        master_port=job.master_port,
        past_attempts=[attempt_to(applied_to_attempt(past, entry.past)) for past in job.past],
        log_path=plain(str(root.job_log(entry.job_id, job.node_rank))),
        restart_at=timestamp(job.restart_at) if job.state is State.RESTARTING else None,
        preset_env=presets.of(entry.spec.training_mode),
        world_size=job.world_size,
        step=job.step_name if job.in_step and not job.state.final else "",
        outputs_kept=job.outputs_kept,
        hardening=_hardening(job),
    )
    logs = str(root.log)  # a Path for each of a thousand ranks would be a third of what a List takes
    for rank in job.ranks:
        made = rank_to(rank, job.state.final, f"{logs}/{rank_log_name(entry.job_id, rank.rank, rank.device)}")
        if (gap := entry.gap(rank.rank)) is not None:
            made.output_gap.CopyFrom(_gap(gap))
            made.lost_log_bytes += gap.bytes - job.gaps[rank.rank].bytes
        made.command.extend(plain(word) for word in rank.argv or entry.spec.command)
        message.ranks.append(made)
    for service in job.services:
        log = log_of(root, entry.job_id, job, service)
        made = rank_to(service, job.state.final, str(log.path))
        made.rank = service.local_rank
        made.command.extend(plain(word) for word in service.argv)
        if (gap := entry.gap(service.rank)) is not None:
            made.output_gap.CopyFrom(_gap(gap))
        message.services.append(made)
    if (gap := entry.gap(JOB)) is not None:
        message.log_gap.CopyFrom(_gap(gap))
    for check in job.checks:
        message.checks.append(check_to(check))
    return message


def staging_to(found: StagingProgress) -> job_pb2.StagingProgress:
    """How far a copy of inputs or outputs is."""
    return job_pb2.StagingProgress(
        files=found.files,
        files_done=found.files_done,
        bytes=found.size,
        bytes_done=found.size_done,
        retries=found.retries,
        error=plain(found.error),
        now=plain(found.now),
    )


def _hardening(job: lifecycle.Job) -> job_pb2.Hardening | None:
    """None: it has nothing of that, as most jobs."""
    found = job.hardening
    if found == Hardening() and not job.max_pids:
        return None
    return job_pb2.Hardening(
        no_new_privs=found.no_new_privs,
        bounded=found.capabilities is not None,
        capabilities=found.capabilities,
        max_pids=job.max_pids,
        private_tmp=bool(found.private_tmp),
        read_only=[plain(path) for path in found.read_only],
        seccomp=plain(found.seccomp),
    )


def _gap(gap: lifecycle.OpenGap) -> job_pb2.OutputGap:
    return job_pb2.OutputGap(lost_bytes=gap.bytes, since=timestamp(gap.since), error=plain(gap.error))


def add_present(
    message: job_pb2.Job,
    entry: Entry,
    held_by: Sequence[str] | None,
    found: CurrentHang | None,
    slow: SlowChange | None = None,
) -> None:
    """Adds what no journal has.

    `held_by`: the processes that are still on the cards of an ended job; None: no process. `found`: what the hang rule
    says of it; `slow`: its slow ranks.
    """
    message.cards_free = not entry.job.cards or (entry.job.state.final and held_by is None)
    message.held_by.extend(plain(text) for text in held_by or ())
    message.warnings.extend(plain(text) for text in (entry.notes or {}).values())
    message.supervisor_stuck = entry.stuck
    message.awaits_release = entry.awaits_release
    if (entry.ordered or entry.gone) and not entry.job.state.final:
        # The journal does not say so, because nobody can write it: it is being stopped all the same.
        message.state = job_pb2.JOB_STATE_STOPPING
    if found is not None:
        message.hang.CopyFrom(hang_to(found))
    if slow is not None:
        message.slow.CopyFrom(slow_to(slow))


def hang_to(found: CurrentHang) -> job_pb2.HangVerdict:
    """What the hang rule says of a job."""
    change = found.change
    return job_pb2.HangVerdict(
        verdict=str(change.verdict),
        kind=str(change.kind or ""),
        ranks=change.ranks,
        confidence=change.confidence,
        since=timestamp(found.since),
        reason=plain(found.reason),
        evidence=plain(json.dumps(dict(found.evidence))),
    )


def slow_to(slow: SlowChange) -> job_pb2.SlowRanks:
    """The slow ranks of a job."""
    return job_pb2.SlowRanks(
        ranks=slow.ranks,
        since=timestamp(slow.since),
        confidence=slow.confidence,
        reason=plain(slow_sentence.sentence(slow)),
        evidence=plain(json.dumps(dict(slow.evidence))),
    )


def attempt_to(past: lifecycle.Attempt) -> job_pb2.Attempt:
    """An attempt that has ended."""
    return job_pb2.Attempt(
        number=past.number,
        started_at=timestamp(past.started_at),
        ended_at=timestamp(past.ended_at),
        exit_code=past.exit_code,
        summary=plain(past.summary),
        first_failed_rank=past.first_failed,
        log_ends={rank: size for rank, size in past.log_ends.items() if rank >= 0},
    )


def state_to(state: State) -> "job_pb2.JobState.ValueType":
    """The state's number in the API."""
    return job_pb2.JobState.Value(f"JOB_STATE_{state.value}")


def rank_to(rank: lifecycle.Rank, job_ended: bool, log_path: str) -> job_pb2.Rank:
    """A rank; `job_ended` distinguishes a rank that is still to start from one that never started."""
    message = job_pb2.Rank(
        rank=max(rank.rank, 0),
        local_rank=rank.local_rank,
        device=rank.device,
        pid=rank.pid,
        start_ticks=rank.start,
        outcome=_outcome(rank, job_ended),
        started_at=timestamp(rank.started_at),
        ended_at=timestamp(rank.ended_at),
        log_path=plain(log_path),
        lost_log_bytes=rank.lost_bytes,
        detail=plain(rank.detail),
        role=rank.role,
        cpus=rank.cpus,
    )
    if rank.status is not None:
        if os.WIFSIGNALED(rank.status):
            message.signal = os.WTERMSIG(rank.status)
            message.core_dumped = os.WCOREDUMP(rank.status)
        else:
            message.exit_code = os.WEXITSTATUS(rank.status)
    if rank.outcome is not None:
        message.usage.CopyFrom(_usage(rank.usage))
    return message


def _outcome(rank: lifecycle.Rank, job_ended: bool) -> "job_pb2.RankOutcome.ValueType":
    if rank.outcome is not None:
        return job_pb2.RankOutcome.Value(f"RANK_OUTCOME_{rank.outcome.value}")
    if not job_ended:
        return job_pb2.RANK_OUTCOME_UNSPECIFIED
    # A process that ran and whose end is on no record: reported as unknown.
    return job_pb2.RANK_OUTCOME_LOST if rank.pid else job_pb2.RANK_OUTCOME_NOT_STARTED


def _usage(usage: lifecycle.Usage) -> job_pb2.Usage:
    return job_pb2.Usage(
        cpu_user_seconds=usage.cpu_user_s,
        cpu_system_seconds=usage.cpu_system_s,
        max_rss_bytes=usage.max_rss,
        read_bytes=usage.read_bytes,
        write_bytes=usage.write_bytes,
        read_chars=usage.rchar,
        write_chars=usage.wchar,
    )


def verdict_of(entry: Entry) -> job_pb2.Verdict | None:
    """Why a job ended; for a job that is ending, the facts so far; None for a running job."""
    job = entry.job
    known = verdict.so_far(job)
    if known is None:
        return None
    explained = entry.explained
    is_known = known.first_failed is None or (explained is not None and explained.first_failed is not None)
    message = _verdict(applied(known, explained), () if is_known else rank_ends.unordered(job))
    if explained is not None:
        message.cause, message.cause_kind = plain(explained.cause), explained.kind
        message.cause_signature = explained.signature
        if explained.rank is not None:
            message.cause_rank = explained.rank
        if explained.worker is not None:
            message.failed_worker.CopyFrom(_failed_worker(explained.worker))
    if not message.cause and job.state is State.STOPPED and job.asked is not None and job.asked.hang:
        message.cause, message.cause_kind = plain(job.asked.hang), "hang"  # known with the stop
    message.reason = verdict.reason(job)
    message.explained = job.state.final and not entry.lacks_explanation
    return message


def _failed_worker(worker: Worker) -> job_pb2.FailedWorker:
    code = worker.code
    return job_pb2.FailedWorker(
        launcher=worker.launcher,
        launcher_rank=worker.launcher_rank,
        rank=worker.rank,
        local_rank=worker.local_rank,
        host=plain(worker.host),
        pid=worker.pid,
        exit_code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        status=plain(worker.status),
    )


def _verdict(known: lifecycle.Verdict, unordered: Sequence[int] = ()) -> job_pb2.Verdict:
    return job_pb2.Verdict(
        exit_code=known.exit_code,
        summary=plain(known.summary),
        first_failed_rank=known.first_failed,
        last_lines=[plain(line) for line in known.last_lines],
        victims=known.victims,
        recommendation=job_pb2.Recommendation.Value(f"RECOMMENDATION_{known.recommendation}"),
        recommendation_reason=plain(known.recommendation_reason),
        stopped_by=plain(known.stopped_by),
        unordered=unordered,
        faulty_node=plain(node_ends.faulty(known.summary, (known.recommendation, known.recommendation_reason))),
    )


def check_to(result: dict[str, Any]) -> job_pb2.CheckResult:
    """A result as the journal holds it: a dictionary with the names of CheckResult; what is missing stays empty."""
    names = ("item", "status", "code", "reason", "observed", "threshold", "action")
    texts = {name: plain(str(result.get(name, ""))) for name in names}
    return job_pb2.CheckResult(**texts, seconds=float(result.get("seconds", 0.0)))


def event_to(event: Event) -> event_pb2.Event:
    """An event, without characters that a terminal would act on."""
    return event_pb2.Event(
        time=timestamp(event.time),
        kind=event.kind,
        job_id=event.job_id,
        rank=event.rank,
        message=plain(event.message),
        seconds=event.seconds,
        attributes={plain(key): plain(str(value)) for key, value in event.attributes.items()},
    )
