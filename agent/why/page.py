"""The report of a job as a page for people: what to know first stands first, and what is not known is said."""

import datetime
from collections.abc import Iterator
from typing import Any

from muster.agent.text import local, numbers, span, table
from muster.agent.why import curves
from muster.agent.why.report import Report, Told
from muster.agent.why.words import apart, of_this_attempt, shown, spark

#: Rows of what happened, attempts, cards and lines of stacks on the page.
MAX_ROWS, MAX_ATTEMPTS, MAX_CARDS, MAX_STACKS = 14, 10, 16, 40
_LAST_LINES = 15
_SUCCEEDED = "JOB_STATE_SUCCEEDED"
_HUNG = "RANK_OUTCOME_HUNG"
#: Rows that each job has.
_ROUTINE = frozenset({"job.running", "rank.exited", "job.stopping", "job.ended"})


def page(report: Report) -> str:
    """All of it, ended by a newline."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield from _head(report)
    yield from _cause(report)
    yield from _what_to_do(report)
    yield from _first_failure(report)
    yield from _last_lines(report)
    yield from _victims(report)
    yield from _around(report)
    yield from _telemetry(report)
    yield from _stacks(report)
    yield from _attempts(report)
    yield from _checks(report)
    yield from _list("Also:", report.notes)
    if report.state != _SUCCEEDED:
        yield from _list("Not known:", report.unknown)


def _head(report: Report) -> Iterator[str]:
    state = report.state.removeprefix("JOB_STATE_")
    final = report.ended_at is not None
    at = _at(report.ended_at) if report.ended_at else 0.0
    yield f"{report.job_id}: {state}" + (f" at {local(at, report.now)}" if final else "")
    yield f"  {report.headline}"
    facts = []
    if final and report.verdict is not None:
        facts.append(f"exit code {report.verdict['exitCode']}")
    if report.started_at:
        end = (report.end_of_ranks if final else 0.0) or report.now
        facts.append(f"the ranks {'ran' if final else 'have run'} for {span(end - report.started_at)}")
    if report.max_restarts:
        facts.append(f"attempt {report.attempt} of at most {report.max_restarts}")
    if facts:
        yield f"  {', '.join(facts)}"


def _cause(report: Report) -> Iterator[str]:
    if report.cause is None:
        return
    yield ""
    yield from _told("Probable cause" if report.ended_at else "What is wrong", report.cause, report)
    for other in report.other_causes:
        yield from _told("Also possible" if report.ended_at else "Also", other, report)
    if report.repeated:
        yield f"  {report.repeated}"


def _told(title: str, cause: Told, report: Report) -> Iterator[str]:
    sure = {"certain": "certain", "none": ""}.get(cause.confidence, f"{cause.confidence} confidence")
    named = ", ".join(word for word in (sure, cause.signature) if word)
    yield f"{title}{f' ({named})' if named else ''}: {cause.text}"
    if cause.line:
        where = f"rank {cause.rank}" if cause.rank is not None else "the job's log"
        where = f"worker {cause.worker} of {where}" if cause.worker is not None else where
        when = ""
        if cause.seconds is not None and report.zero_is == "now":
            when = f", {span(-cause.seconds)} ago"
        elif cause.seconds is not None:
            zero = "its end" if report.zero_is == f"the end of {where}" else report.zero_is
            when = f", {span(abs(cause.seconds))} {'before' if cause.seconds <= 0 else 'after'} {zero}"
        yield f"  {where}{when}:"
        yield f"  | {cause.line}"
    for text in cause.evidence:
        yield f"  {text}"


def _what_to_do(report: Report) -> Iterator[str]:
    known = report.verdict or {}
    name = str(known.get("recommendation", "")).removeprefix("RECOMMENDATION_")
    if report.ended_at is not None and name not in ("", "NONE", "UNSPECIFIED"):
        reason = shown(str(known.get("recommendationReason", "")), 500)
        yield ""
        yield f"Recommendation: {name}" + (f": {reason}" if reason else "")
    yield from _list("What to do:", [f"{number}. {text}" for number, text in enumerate(report.next_steps, 1)])


def _first_failure(report: Report) -> Iterator[str]:
    first = report.first_failure
    if first is None:
        return
    status = next((one.status for one in report.failed if one.rank == first["rank"]), "failed")
    pid = f" (pid {first['pid']})" if first["pid"] else ""
    at = ""
    if "endedAt" in first:
        ended = _at(first["endedAt"])
        after = f", {span(ended - report.started_at)} after the start" if report.started_at and first["pid"] else ""
        at = f" at {local(ended, report.now)}{after}"
    yield ""
    title = "Ended first, by muster" if first["outcome"] == _HUNG else "First failure"
    if report.verdict and (several := report.verdict.get("unordered")):
        title += f", one of ranks {numbers(several)}, not known which"
    yield f"{title}: rank {first['rank']} on device {first['device']}{pid} {status}{at}"
    yield f"  log: {shown(first['logPath'], 1000)}"
    others = [one for one in report.failed if one.rank != first["rank"]]
    for other in others[:4]:
        yield f"  then rank {other.rank} {other.status}, {apart(other.seconds)}"
    if len(others) > 4:
        yield f"  then {len(others) - 4} more"


def _last_lines(report: Report) -> Iterator[str]:
    lines = (report.verdict or {}).get("lastLines", [])
    lines = of_this_attempt(lines)[-_LAST_LINES:]
    if not lines and report.ended_at and report.first_failure and report.first_failure["pid"]:
        yield ""
        yield "Last lines: there are none"
    elif lines:
        yield ""
        yield "Last lines:"
        yield from (f"  | {shown(line)}" for line in lines)


def _victims(report: Report) -> Iterator[str]:
    victims = (report.verdict or {}).get("victims", [])
    if victims:
        yield ""
        yield f"Victims: rank {numbers(victims)} (ended because another rank had failed)"
    by = (report.verdict or {}).get("stoppedBy", "")
    if by and (report.cause is None or report.cause.kind != "stop"):
        yield ""
        yield f"Stopped by: {shown(by)}"


def _around(report: Report) -> Iterator[str]:
    rows = report.timeline
    if report.state == _SUCCEEDED and all(row.kind in _ROUTINE for row in rows):
        return
    if len(rows) > MAX_ROWS:
        kept = sorted(rows, key=lambda row: (not row.grave, abs(row.seconds)))[:MAX_ROWS]
        rows = sorted(kept, key=lambda row: row.at)
    if not rows:
        return
    yield ""
    moment = "now" if report.zero_is == "now" else f"{report.zero_is}, {local(report.zero, report.now)}"
    yield f"What happened (times from {moment}):"
    for row in rows:
        yield f"  {apart(row.seconds):>8}  {'! ' if row.grave else ''}{shown(row.text, 200)}"
    if len(rows) < len(report.timeline):
        yield f"  {len(report.timeline) - len(rows)} more: `muster events {report.job_id}`"


def _telemetry(report: Report) -> Iterator[str]:
    found = report.telemetry
    if not found.series:
        return
    yield ""
    length = max((len(one.utilization) or len(one.cpu) for one in found.series), default=0) * found.step
    yield f"Telemetry of the {span(length)} before (each sign {found.step:g} s, a mean; the numbers are the last ones):"
    cards = [one for one in found.series if one.card is not None]
    rows = [
        [
            f"card {one.card}",
            str(one.rank) if one.rank is not None else "-",
            spark(one.utilization),
            _number(curves.last(one.utilization)),
            _number(curves.last(one.memory)),
            spark(one.power, max((curves.peak(c.power) or 0.0 for c in cards), default=0.0)),
            _number(curves.last(one.power)),
        ]
        for one in cards[:MAX_CARDS]
    ]
    if rows:
        head = ["CARD", "RANK", "UTILIZATION", "%", "MEMORY %", "POWER", "W"]
        yield from (f"  {line}" for line in table(head, rows).splitlines())
    if len(cards) > MAX_CARDS:
        yield f"  {len(cards) - MAX_CARDS} more cards: `-o json`"
    for one in found.series:
        if one.card is None and any(value is not None for value in (*one.cpu, *one.memory)):
            cpu, memory = _number(curves.last(one.cpu)), _number(curves.last(one.memory))
            yield (
                f"  its processes: {cpu} % of the node's CPUs {spark(one.cpu)}, "
                f"{memory} % of its memory {spark(one.memory)}"
            )
    yield from (f"  {text}" for text in found.remarks)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _stacks(report: Report) -> Iterator[str]:
    lines = report.stacks.splitlines()
    if lines:
        yield ""
        yield "Stacks that were kept:"
        yield from (f"  {shown(line, 200)}" for line in lines[:MAX_STACKS])
        if len(lines) > MAX_STACKS:
            yield f"  {len(lines) - MAX_STACKS} more lines: `muster stacks {report.job_id} --kept`"


def _attempts(report: Report) -> Iterator[str]:
    if report.past_attempts:
        yield ""
        count = len(report.past_attempts)
        yield f"Attempts before ({count} of {report.max_restarts} restarts were used):"
        for past in report.past_attempts[-MAX_ATTEMPTS:]:
            yield f"  {past['number']}: code {past['exitCode']}: {shown(past['summary'], 500)}"
            if past.get("cause"):
                yield f"     {past['cause']['signature']}: {past['cause']['line']}"


def _checks(report: Report) -> Iterator[str]:
    if report.checks:
        yield ""
        yield "Checks of the node:"
        for check in report.checks:
            yield f"  {shown(check['item'])}: {check['status']} ({check['code']}): {shown(check['reason'], 500)}"


def _list(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"  {line}" for line in lines)


def _at(stamp: Any) -> float:
    """Seconds since the epoch of an RFC 3339 time."""
    return datetime.datetime.fromisoformat(str(stamp)).timestamp()
