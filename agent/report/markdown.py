"""The report as Markdown: for an issue, a chat, a terminal."""

from collections.abc import Iterator, Sequence

from muster.agent.report.escaping import code_block, marked_down, sentence_marked_down
from muster.agent.report.html_parts import clock, day, named_by, number, zone
from muster.agent.report.job_report import JobReport, Plot
from muster.agent.report.plots import last
from muster.agent.text import span
from muster.agent.why.report import ReportedCause
from muster.agent.why.words import spark

#: Characters of a curve; series of a plot; lines of a stack.
_CURVE, _SERIES, _STACK = 60, 8, 40


def page(report: JobReport) -> str:
    """The same as the HTML page; of the pictures curves of characters."""
    return "\n".join(_lines(report)).rstrip() + "\n"


def _lines(report: JobReport) -> Iterator[str]:
    said, axis = report.said, report.axis
    yield f"# {marked_down(report.job_id)}: {marked_down(said.state)}"
    yield ""
    yield f"**{marked_down(said.headline)}**"
    if said.recommendation:
        reason = f": {marked_down(said.reason)}" if said.reason else ""
        yield f"\nRecommendation: `{said.recommendation}`{reason}"
    for cause in [*([said.cause] if said.cause is not None else []), *said.other_causes]:
        yield from _cause(cause)
    if said.next_steps:
        yield "\n## What to do\n"
        yield from (f"{number}. {sentence_marked_down(step)}" for number, step in enumerate(said.next_steps, 1))
    yield from facts(report.facts)
    yield f"\n## Time line\n\n{marked_down(day(report))}, {zone(axis)}.\n"
    bars = [*report.attempts, *report.steps, *report.hangs]
    rows = [
        [bar.name, clock(bar.begin, axis), "-" if bar.end is None else clock(bar.end, axis),
         "-" if bar.end is None else span(max(0.0, bar.end - bar.begin)), bar.text]
        for bar in sorted(bars, key=lambda bar: bar.begin)
    ]  # fmt: skip
    yield from table(["What", "Begin", "End", "Lasted", ""], rows)
    rows = [[str(one.rank), str(one.device), str(one.pid or "-"), one.status] for one in report.ranks]
    yield from table(["Rank", "Device", "Pid", "Status"], rows)
    happened = sorted([*report.events, *report.node_reports], key=lambda row: row.at)
    yield from table(["Time", "", "What"], [[clock(row.at, axis), "!" * row.grave, row.text] for row in happened])
    yield from plots("Telemetry", report.plots, report.remarks)
    if report.moment is not None:
        yield from plots(report.moment.title, report.moment.plots, [])
    yield from _checks(report)
    for taken in reversed(report.stacks):
        yield f"\n## Stacks of {clock(taken.at, axis)} ({marked_down(taken.occasion)})"
        for group in taken.groups:
            yield f"\n{marked_down(group.head)}:\n"
            yield code_block(group.lines[:_STACK])
    if report.last_words.lines:
        yield f"\n## Last lines of {marked_down(report.last_words.whose or 'the job')}\n"
        yield code_block(report.last_words.lines)
    yield "\n## Job\n"
    if report.command:
        yield code_block([report.command])
    yield from facts(report.settings)
    if report.environment:
        names = ", ".join(marked_down(name) for name in report.environment)
        yield f"\nEnvironment (values hidden): {names}"
    cards = [[str(c.card), c.kind, "-" if c.rank is None else str(c.rank), c.uuid or "-"] for c in report.cards]
    yield from table(["Card", "Kind", "Rank", "UUID"], cards)
    yield from facts(report.versions)
    if report.unknown:
        yield "\n## Not known\n"
        yield from (f"- {marked_down(text)}" for text in report.unknown)


def _cause(cause: ReportedCause) -> Iterator[str]:
    named = named_by(cause)
    yield f"\nProbable cause{f' ({marked_down(named)})' if named else ''}: {marked_down(cause.text)}"
    if cause.line:
        yield "\n" + code_block([cause.line])
    yield from (f"\n{marked_down(text)}" for text in cause.evidence)


def facts(found: dict[str, str]) -> Iterator[str]:
    """Names and values."""
    if found:
        yield ""
        yield from (f"- {marked_down(name)}: {marked_down(value)}" for name, value in found.items())


def plots(title: str, drawn: Sequence[Plot], remarks: Sequence[str]) -> Iterator[str]:
    """Curves of characters."""
    if drawn or remarks:
        yield f"\n## {marked_down(title)}"
    for text in remarks:
        yield f"\n{marked_down(text)}"
    for plot in drawn:
        yield f"\n### {plot.title}, {plot.unit}\n\n{marked_down(plot.sentence)}\n"
        chosen = sorted(plot.series, key=lambda one: not (one.odd or one.culprit))[:_SERIES]
        width = max(len(one.name) for one in chosen)
        yield code_block(
            [
                f"{one.name:<{width}}  {spark(_thinned(one.mean), plot.most)}  {number(last(one.mean))}"
                for one in sorted(chosen, key=lambda one: (one.card or 0, one.rank or 0))
            ]
        )
        if len(plot.series) > len(chosen):
            yield f"\n{len(plot.series) - len(chosen)} more: `-o json`"


def _thinned(values: Sequence[float | None]) -> list[float | None]:
    """The means of at most _CURVE parts."""
    wide = max(1, -(-len(values) // _CURVE))
    found: list[float | None] = []
    for begin in range(0, len(values), wide):
        told = [value for value in values[begin : begin + wide] if value is not None]
        found.append(sum(told) / len(told) if told else None)
    return found


def _checks(report: JobReport) -> Iterator[str]:
    found = [one for one in report.checks if one.status not in ("OK", "NOT_APPLICABLE")]
    if found or report.warnings:
        yield "\n## Checks and warnings\n"
        for one in found:
            yield f"- {marked_down(one.item)}: {one.status} ({marked_down(one.code)}): {marked_down(one.reason)}"
        yield from (f"- {marked_down(text)}" for text in report.warnings)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Nothing without rows."""
    if rows:
        yield ""
        yield f"| {' | '.join(head)} |"
        yield f"|{'---|' * len(head)}"
        yield from (f"| {' | '.join(marked_down(cell) for cell in row)} |" for row in rows)
