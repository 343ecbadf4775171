"""`muster why`: one page about why a job ended, or what is wrong with it."""

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.printing import as_dict, coloured, emit, emit_json, format_option
from muster.agent.text import clean, numbers, span

if TYPE_CHECKING:
    from muster.v1 import job_pb2

_COLOURS = {"SUCCEEDED": "green", "RUNNING": "green", "FAILED": "red", "LOST": "red", "STOPPED": "yellow"}
_FINE = frozenset({"OK", "NOT_APPLICABLE"})
#: Seconds that a report may take: the daemon waits for disks that do not answer.
REPORT_S = 60.0


@click.command()
@pass_address
@click.argument("job", metavar="JOB")
@format_option
def why(address: Address, job: str, as_json: bool) -> None:
    """Show why a job ended, with the evidence and what to do; of one that runs, what is wrong with it."""
    from muster.agent.cli.client.calls import connect, get_job, utf8
    from muster.agent.cli.exits import CallFailed
    from muster.v1 import job_pb2

    with connect(address) as connection:
        request = job_pb2.GetReportRequest(job_id=utf8(job, "JOB"))
        try:
            answer = connection.call(connection.jobs.GetReport, request, REPORT_S)
        except CallFailed as failure:
            if failure.status != "UNIMPLEMENTED":
                raise
            _of_earlier_daemon(get_job(connection, job), as_json)
            return
    if as_json:
        emit_json(json.loads(answer.json))
    else:
        emit(_with_colours(answer.text) if coloured() else answer.text)


def _with_colours(page: str) -> str:
    """The state in the first line, and the titles."""
    lines = page.split("\n")
    title, colon, rest = lines[0].partition(": ")
    state, at, when = rest.partition(" at ")
    lines[0] = f"{title}{colon}{click.style(state, fg=_COLOURS.get(state), bold=True)}{at}{when}"
    for number, line in enumerate(lines[1:], 1):
        name, colon, rest = line.partition(":")
        if line[:1].isalpha() and colon:
            lines[number] = f"{click.style(name, bold=True)}{colon}{rest}"
    return "\n".join(lines)


# --- a daemon of a version without reports ----------------------------------------------------------------------------


def _of_earlier_daemon(found: "job_pb2.Job", as_json: bool) -> None:
    if as_json:
        emit_json(_why_json(found))
    else:
        emit("\n".join(_why(found)) + "\n")


def _why_json(job: "job_pb2.Job") -> dict[str, Any]:
    whole = as_dict(job)
    first = job.verdict.first_failed_rank if job.verdict.HasField("first_failed_rank") else None
    return {
        "jobId": whole["jobId"],
        "state": whole["state"],
        "endedAt": whole.get("endedAt"),
        "verdict": whole.get("verdict"),
        "firstFailure": next((rank for rank in whole["ranks"] if rank["rank"] == first), None),
        "warnings": whole["warnings"],
        "pastAttempts": whole.get("pastAttempts", []),
        "checks": [check for check in whole["checks"] if check["status"] not in _FINE],
    }


def _why(job: "job_pb2.Job") -> Iterator[str]:
    from muster.agent.cli import show
    from muster.v1 import job_pb2

    name, verdict = show.state(job.state), job.verdict
    ended = job.HasField("ended_at")
    when = f" at {show.when(job.ended_at)}" if ended else ""
    yield f"{clean(job.job_id)}: {_coloured(name)}{when}"
    if not job.HasField("verdict"):
        yield "  it has not ended; nothing is known against it"
    else:
        yield f"  {clean(verdict.summary)}"
    if ended:
        yield f"  exit code {verdict.exit_code}, the ranks ran for {show.lasted(job, time.time())}"
    if verdict.HasField("first_failed_rank"):
        yield from _first_failure(job)
    if verdict.victims:
        yield ""
        yield f"Victims: rank {numbers(verdict.victims)} (ended because another rank had failed)"
    if verdict.stopped_by:
        yield ""
        yield f"Stopped by: {clean(verdict.stopped_by)}"
    if verdict.last_lines:
        yield ""
        yield "Last lines:"
        yield from (f"  | {clean(line)}" for line in verdict.last_lines)
    if job.past_attempts:
        yield ""
        yield f"Attempts before ({len(job.past_attempts)} of {job.spec.max_restarts} restarts were used):"
        for past in job.past_attempts[-10:]:
            yield f"  {past.number}: code {past.exit_code}: {clean(past.summary)}"
    failed_checks = [check for check in job.checks if check.status not in _FINE]
    if failed_checks:
        yield ""
        yield "Checks of the node:"
        for check in failed_checks:
            yield f"  {clean(check.item)}: {clean(check.status)} ({clean(check.code)}): {clean(check.reason)}"
    notes = [*job.warnings, *(f"rank {rank.rank}: {rank.detail}" for rank in job.ranks if rank.detail)]
    if job.takeovers:
        notes.append(
            f"a supervisor died {job.takeovers} time(s) and another took over; see `muster events {job.job_id}`"
        )
    if notes:
        yield ""
        yield "Also:"
        yield from (f"  {clean(text)}" for text in notes)
    if ended and verdict.recommendation != job_pb2.RECOMMENDATION_NONE:
        reason = f": {clean(verdict.recommendation_reason)}" if verdict.recommendation_reason else ""
        yield ""
        yield f"Recommendation: {show.recommendation(verdict.recommendation)}{reason}"


def _first_failure(job: "job_pb2.Job") -> Iterator[str]:
    from muster.agent.cli import show

    for rank in job.ranks:
        if rank.rank == job.verdict.first_failed_rank:
            started = show.seconds(job.started_at)
            after = f", {span(show.seconds(rank.ended_at) - started)} after the start" if started and rank.pid else ""
            at = f" at {show.when(rank.ended_at)}{after}" if rank.HasField("ended_at") else ""
            yield ""
            pid = f" (pid {rank.pid})" if rank.pid else ""
            several = job.verdict.unordered
            title = f"First failure, one of ranks {numbers(several)}, not known which" if several else "First failure"
            yield f"{title}: rank {rank.rank} on device {rank.device}{pid} {show.ending(rank)}{at}"
            yield f"  log: {clean(rank.log_path)}"


def _coloured(state: str) -> str:
    return click.style(state, fg=_COLOURS.get(state), bold=True) if coloured() else state
