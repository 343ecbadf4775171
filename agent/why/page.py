"""The report of a job as a page for people: the most important facts come first, and unknown facts are named."""

from collections.abc import Iterator

from muster.agent.text import STATE_COLOURS, local, numbers, plain, span, table
from muster.agent.why import curves
from muster.agent.why.report import Report, ReportedCause
from muster.agent.why.words import apart, of_this_attempt, shown, spark
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.states import Outcome, State

#: Limits of the page: rows of "What happened", attempts, cards, lines of stacks.
MAX_ROWS, MAX_ATTEMPTS, MAX_CARDS, MAX_STACKS = 14, 10, 16, 40
_LAST_LINES = 15
_COLOURS = {"": "", "red": "31;", "green": "32;", "yellow": "33;"}
#: A launcher ends the other workers with SIGTERM when one has failed.
_ENDED_BY_LAUNCHER = frozenset({-15})
#: Events that every job has.
_ROUTINE = frozenset({"job.running", "rank.exited", "job.stopping", "job.ended"})


def page(report: Report, *, colour: bool = False) -> str:
    """The whole page with a final newline. `colour`: with escape sequences of a terminal."""
    return "\n".join(_lines(report, Pen(colour))) + "\n"


@dataclass(frozen=True, slots=True)
class Pen:
    """Marks titles and states, if the page has colours."""

    colour: bool

    def title(self, text: str) -> str:
        """`text` in bold."""
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def state(self, state: State) -> str:
        """The state in its colour."""
        if not self.colour:
            return str(state)
        return f"\x1b[{_COLOURS[STATE_COLOURS.get(state, '')]}1m{state}\x1b[0m"


def _lines(report: Report, pen: Pen) -> Iterator[str]:
    yield from _head(report, pen)
    yield from _cause(report, pen)
    yield from _what_to_do(report, pen)
    yield from _first_failure(report, pen)
    yield from _workers(report, pen)
    yield from _last_lines(report, pen)
    yield from _victims(report, pen)
    yield from _around(report, pen)
    yield from _telemetry(report, pen)
    yield from _stacks(report, pen)
    yield from _attempts(report, pen)
    yield from _checks(report, pen)
    yield from _list(pen.title("Also") + ":", report.notes)
    if report.state is not State.SUCCEEDED:
        yield from _list(pen.title("Not known") + ":", report.unknown)


def _head(report: Report, pen: Pen) -> Iterator[str]:
    ended = report.ended_at
    yield f"{report.job_id}: {pen.state(report.state)}" + (f" at {local(ended, report.now)}" if ended else "")
    yield f"  {report.headline}"
    facts = []
    if ended and report.verdict is not None:
        facts.append(f"exit code {report.verdict.exit_code}")
    if started := report.job.started_at:
        end = (report.end_of_ranks if ended else 0.0) or report.now
        facts.append(f"the ranks {'ran' if ended else 'have run'} for {span(end - started)}")
    if report.max_restarts:
        facts.append(f"attempt {report.job.attempt} of at most {report.max_restarts}")
    if facts:
        yield f"  {', '.join(facts)}"


def _cause(report: Report, pen: Pen) -> Iterator[str]:
    if report.cause is None:
        return
    yield ""
    yield from _one_cause(pen.title("Probable cause" if report.ended_at else "What is wrong"), report.cause, report)
    for other in report.other_causes:
        yield from _one_cause(pen.title("Also possible" if report.ended_at else "Also"), other, report)
    if report.repeated:
        yield f"  {report.repeated}"


def _one_cause(title: str, cause: ReportedCause, report: Report) -> Iterator[str]:
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
        if cause.file:
            where, when = f"{where}, in {cause.file}", ""
        yield f"  {where}{when}:"
        yield f"  | {cause.line}"
    for text in cause.evidence:
        yield f"  {text}"


def _what_to_do(report: Report, pen: Pen) -> Iterator[str]:
    reached = report.verdict
    if report.ended_at and reached is not None and reached.recommendation not in ("NONE", "UNSPECIFIED"):
        reason = shown(plain(reached.recommendation_reason), 500)
        yield ""
        yield f"{pen.title('Recommendation')}: {reached.recommendation}" + (f": {reason}" if reason else "")
    steps = [f"{number}. {text}" for number, text in enumerate(report.next_steps, 1)]
    yield from _list(pen.title("What to do") + ":", steps)


def _first_failure(report: Report, pen: Pen) -> Iterator[str]:
    first, started = report.first, report.job.started_at
    if first is None:
        return
    pid = f" (pid {first.pid})" if first.pid else ""
    at = ""
    if first.ended_at:
        after = f", {span(first.ended_at - started)} after the start" if started and first.pid else ""
        at = f" at {local(first.ended_at, report.now)}{after}"
    yield ""
    title = "Ended first, by muster" if first.outcome is Outcome.HUNG else "First failure"
    if report.unordered:
        title += f", one of ranks {numbers(report.unordered)} (unknown which)"
    yield f"{pen.title(title)}: rank {first.rank} on device {first.device}{pid} {report.first_status}{at}"
    yield f"  log: {shown(plain(report.first_log), 1000)}"
    others = [one for one in report.failed if one.rank != first.rank]
    for other in others[:4]:
        order = "then" if other.seconds + report.zero >= first.ended_at else "before its end"
        yield f"  {order} rank {other.rank} {other.status}, {apart(other.seconds)}"
    if len(others) > 4:
        yield f"  then {len(others) - 4} more"


def _workers(report: Report, pen: Pen) -> Iterator[str]:
    """The workers of a launcher, and the last lines of the worker that failed first."""
    if not report.workers:
        return
    first = report.workers[0]
    known = [
        f"local rank {first.local_rank}" if first.local_rank is not None else "",
        f"pid {first.pid}" if first.pid else "",
        f"host {first.host}" if first.host else "",
    ]
    about = ", ".join(word for word in known if word)
    at = f" at {local(first.at, report.now)}" if first.at else ""
    yield f"  {first.launcher} reports: {first.status}{f' ({about})' if about else ''}{at}"
    if first.error_file:
        yield f"    error file: {first.error_file}"
    others = [one for one in report.workers[1:] if one.code not in _ENDED_BY_LAUNCHER]
    ended = len(report.workers) - 1 - len(others)
    for other in others[:4]:
        yield f"    then {other.status}"
    if len(others) > 4:
        yield f"    then {len(others) - 4} more"
    if ended:
        yield f"    {ended} other{'s were' if ended > 1 else ' was'} ended with SIGTERM after that"
    words = report.worker_words
    if words.lines:
        title = f"Last lines of rank {first.rank}" if first.rank is not None else ""
        title = title or "Last lines of the worker"
        if words.whose == "all workers":
            title = f"Last lines of the workers, before the report of {first.launcher}"
        elif words.whose != "the worker":
            title += f" ({words.whose})"
        yield from _list(pen.title(title) + ":", [f"| {line}" for line in words.lines])


def _last_lines(report: Report, pen: Pen) -> Iterator[str]:
    written = report.verdict.last_lines if report.verdict is not None else ()
    lines = of_this_attempt(written)[-_LAST_LINES:]
    if report.worker_words.lines:
        return  # they are the launcher's report, printed above
    if not lines and report.ended_at and report.first is not None and report.first.pid:
        yield ""
        yield f"{pen.title('Last lines')}: none"
    else:
        yield from _list(pen.title("Last lines") + ":", [f"| {shown(plain(line))}" for line in lines])


def _victims(report: Report, pen: Pen) -> Iterator[str]:
    reached = report.verdict
    if reached is None:
        return
    if reached.victims:
        yield ""
        yield f"{pen.title('Victims')}: rank {numbers(reached.victims)} (ended because another rank had failed)"
    if reached.stopped_by and (report.cause is None or report.cause.kind != "stop"):
        yield ""
        yield f"{pen.title('Stopped by')}: {shown(plain(reached.stopped_by))}"


def _around(report: Report, pen: Pen) -> Iterator[str]:
    rows = report.timeline
    if report.state is State.SUCCEEDED and all(row.kind in _ROUTINE for row in rows):
        return
    if len(rows) > MAX_ROWS:
        kept = sorted(rows, key=lambda row: (not row.grave, abs(row.seconds)))[:MAX_ROWS]
        rows = sorted(kept, key=lambda row: row.at)
    if not rows:
        return
    yield ""
    moment = "now" if report.zero_is == "now" else f"{report.zero_is}, {local(report.zero, report.now)}"
    yield f"{pen.title('What happened')} (times from {moment}):"
    for row in rows:
        yield f"  {apart(row.seconds):>8}  {'! ' if row.grave else ''}{shown(row.text, 200)}"
    if len(rows) < len(report.timeline):
        yield f"  {len(report.timeline) - len(rows)} more: `muster events {report.job_id}`"


def _telemetry(report: Report, pen: Pen) -> Iterator[str]:
    found = report.telemetry
    if not found.series:
        return
    yield ""
    length = max((len(one.utilization) or len(one.cpu) for one in found.series), default=0) * found.step
    yield (
        f"{pen.title('Telemetry')} of the {span(length)} before "
        f"(each character is a mean of {found.step:g} s; the numbers are the last values):"
    )
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


def _stacks(report: Report, pen: Pen) -> Iterator[str]:
    lines = report.stacks.splitlines()
    if lines:
        yield ""
        yield pen.title("Stored stacks") + ":"
        yield from (f"  {shown(line, 200)}" for line in lines[:MAX_STACKS])
        if len(lines) > MAX_STACKS:
            yield f"  {len(lines) - MAX_STACKS} more lines: `muster stacks {report.job_id} --kept`"


def _attempts(report: Report, pen: Pen) -> Iterator[str]:
    if report.past:
        yield ""
        count = len(report.past)
        yield f"{pen.title('Attempts before')} ({count} of {report.max_restarts} restarts used):"
        for past in report.past[-MAX_ATTEMPTS:]:
            attempt = past.attempt
            yield f"  {attempt.number}: code {attempt.exit_code}: {shown(plain(attempt.summary), 500)}"
            if past.cause is not None:
                yield f"     {past.cause.signature}: {past.cause.line}"


def _checks(report: Report, pen: Pen) -> Iterator[str]:
    rows = []
    for check in report.checks:
        item, status, code, reason = (plain(str(check.get(name, ""))) for name in ("item", "status", "code", "reason"))
        rows.append(f"{shown(item)}: {status} ({code}): {shown(reason, 500)}")
    yield from _list(pen.title("Checks of the node") + ":", rows)


def _list(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"  {line}" for line in lines)
