"""The report of a job as `muster why -o json` prints it: docs/guides/why.md has its keys."""

from typing import Any

import msgspec
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from muster.agent.jobs.entry import Entry
from muster.agent.messages import convert
from muster.agent.why.report import PastAttempt, Report
from muster.supervisors.paths import Root


def encode(report: Report, entry: Entry, root: Root) -> str:
    """An object on one line; `entry` is what the report was made of. A verdict, a rank, an attempt and a check have the
    names and forms of the API's messages."""
    job = convert.job_to(entry, root)
    first = next((rank for rank in job.ranks if report.first is not None and rank.rank == report.first.rank), None)
    found = {
        "jobId": report.job_id,
        "state": f"JOB_STATE_{report.state}",
        "endedAt": job.ended_at.ToJsonString() if job.HasField("ended_at") else None,
        "verdict": _dict(job.verdict) if job.HasField("verdict") else None,
        "firstFailure": _dict(first) if first is not None else None,
        "warnings": report.warnings,
        "pastAttempts": [_past(past) for past in report.past],
        "checks": [_dict(convert.check_to(check)) for check in report.checks],
        "headline": report.headline,
        "zero": report.zero,
        "zeroIs": report.zero_is,
        "cause": report.cause,
        "otherCauses": report.other_causes,
        "repeated": report.repeated,
        "nextSteps": report.next_steps,
        "failed": report.failed,
        "workers": report.workers,
        "workerWords": report.worker_words,
        "timeline": report.timeline,
        "telemetry": report.telemetry,
        "stacks": report.stacks,
        "notes": report.notes,
        "unknown": report.unknown,
        "damaged": report.damaged,
    }
    return msgspec.json.encode(found).decode()


def _past(past: PastAttempt) -> dict[str, Any]:
    found = _dict(convert.attempt_to(past.attempt))
    return found if past.cause is None else {**found, "cause": past.cause}


def _dict(message: Message) -> dict[str, Any]:
    """With the API's JSON names; includes zeros and empty lists."""
    found: dict[str, Any] = MessageToDict(message, always_print_fields_with_no_presence=True)
    return found
