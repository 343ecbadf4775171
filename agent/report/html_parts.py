"""All parts of the page except the pictures."""

import datetime
from collections.abc import Iterable, Sequence

from muster.agent.report.escaping import COMMAND, escaped
from muster.agent.report.job_report import Axis, JobReport, Plot, PlotSeries
from muster.agent.text import size, span
from muster.agent.why.report import ReportedCause

#: Rows of a table by time; rows up to which a table of events is open.
TIMES, OPEN = 24, 12
#: Characters from which on the last cell of a row holds a sentence.
SENTENCE = 24


def clock(at: float, axis: Axis, *, short: bool = False) -> str:
    """A time of the node, with the date where the axis has more than one day."""
    try:
        then = datetime.datetime.fromtimestamp(at + axis.zone, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return "-"
    text = then.strftime("%H:%M" if short else "%H:%M:%S")
    many = int((axis.begin + axis.zone) // 86400) != int((axis.end + axis.zone) // 86400)
    return then.strftime("%m-%d ") + text if many else text


def zone(axis: Axis) -> str:
    """The time zone of all times."""
    sign, minutes = "-" if axis.zone < 0 else "+", abs(axis.zone) // 60
    return f"times are UTC{sign}{minutes // 60:02d}:{minutes % 60:02d}"


def header(report: JobReport) -> str:
    """Name and state."""
    state = report.said.state
    place = report.node + (f" ({report.node_rank} of {report.node_count})" if report.node_count > 1 else "")
    return (
        f'<header><p class="brand">muster report</p><h1>{escaped(report.job_id)} '
        f'<span class="state s-{escaped(state.lower())}">{escaped(state)}</span></h1>'
        f'<p class="hint">on {escaped(place)}, {escaped(day(report))}</p></header>\n'
    )


def day(report: JobReport) -> str:
    """The date of the job's begin."""
    try:
        then = datetime.datetime.fromtimestamp(report.axis.begin + report.axis.zone, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    return then.strftime("%Y-%m-%d")


def verdict(report: JobReport) -> str:
    """What happened, in a sentence, and what to do."""
    said = report.said
    out = ['<section id="verdict" aria-labelledby="h-verdict">\n<h2 id="h-verdict" class="sr">Verdict</h2>\n']
    out.append(f'<p class="headline">{escaped(said.headline)}</p>\n')
    if said.recommendation:
        reason = f": {escaped(said.reason)}" if said.reason else ""
        out.append(f'<p class="advice"><b>Recommendation</b> <code>{escaped(said.recommendation)}</code>{reason}</p>\n')
    ended = bool(report.facts.get("ended"))
    if said.cause is not None:
        out.append(_cause("Probable cause" if ended else "What is wrong", said.cause))
    out += [_cause("Also possible" if ended else "Also", other) for other in said.other_causes]
    if said.repeated:
        out.append(f"<p>{escaped(said.repeated)}</p>\n")
    if said.next_steps:
        steps = "".join(f"<li>{with_commands(step)}</li>" for step in said.next_steps)
        out.append(f"<h3>What to do</h3>\n<ol>{steps}</ol>\n")
    out.append(facts_list(report.facts))
    return "".join([*out, "</section>\n"])


def with_commands(text: str) -> str:
    """A sentence of muster's, with its commands as such."""
    return COMMAND.sub(r"<code>\1</code>", escaped(text))


def _cause(title: str, cause: ReportedCause) -> str:
    named = named_by(cause)
    text = f'<div class="cause"><p><b>{title}</b>{f" ({escaped(named)})" if named else ""}: {escaped(cause.text)}</p>'
    if cause.line:
        where = f"rank {cause.rank}" if cause.rank is not None else "the job's log"
        where = f"worker {cause.worker} of {where}" if cause.worker is not None else where
        text += f'<p class="hint">{escaped(where)}:</p>{block(escaped(cause.line), f"Line of {where}")}'
    text += "".join(f"<p>{escaped(one)}</p>" for one in cause.evidence)
    return text + "</div>\n"


def named_by(cause: ReportedCause) -> str:
    """How sure it is, and the signature of the error."""
    sure = {"certain": "certain", "none": ""}.get(cause.confidence, f"{cause.confidence} confidence")
    return ", ".join(word for word in (sure, cause.signature) if word)


def facts_list(facts: dict[str, str]) -> str:
    """Names and values."""
    rows = "".join(f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{rows}</dl>\n' if rows else ""


def tables(report: JobReport, closer: JobReport | None = None) -> str:
    """What is behind the pictures; `closer`: behind those of a moment."""
    axis = report.axis
    out = ['<section id="tables" aria-labelledby="h-tables">\n<h2 id="h-tables">Tables behind the pictures</h2>\n']
    happened = sorted([*report.events, *report.node_reports], key=lambda row: row.at)
    rows = [
        [clock(row.at, axis), "!" if row.grave else "", _who(row.rank, row.card), row.kind, row.text]
        for row in happened
    ]
    out.append(table("events", "Events", ["Time", "Grave", "Of", "Kind", "What"], rows, is_open=len(rows) <= OPEN))
    bars = [*report.attempts, *report.steps, *report.hangs]
    rows = [
        [bar.name, clock(bar.begin, axis), until(bar.end, axis), lasted(bar.begin, bar.end), bar.text] for bar in bars
    ]
    out.append(table("bars", "Attempts, steps, hangs", ["What", "Begin", "End", "Lasted", "How it ended"], rows))
    rows = [
        [
            str(one.rank), str(one.device), str(one.pid or "-"), one.status + (f": {one.detail}" if one.detail else ""),
            one.outcome.lower() or "-", until(one.started_at, axis), until(one.ended_at, axis),
            "-" if one.cpu_s is None else f"{one.cpu_s:g}", "-" if one.max_rss is None else size(one.max_rss),
        ]
        for one in report.ranks
    ]  # fmt: skip
    head = ["Rank", "Device", "Pid", "Status", "Outcome", "Start", "End", "CPU s", "Max RSS"]
    out.append(table("ranks", "Ranks", head, rows))
    out += [readings(plot, axis) for plot in report.plots]
    if closer is not None and closer.moment is not None:
        again = "".join(readings(plot, closer.axis) for plot in closer.plots)
        out.append(f'<div class="again"><h3>{escaped(closer.moment.title)}</h3>\n{again}</div>\n')
    return "".join([*out, "</section>\n"]) if any(out[1:]) else ""


def readings(plot: Plot, axis: Axis) -> str:
    """Each series as a whole, and all of them by time."""
    rows = [
        [
            s.name + (" (stands out)" if s.odd else f" ({s.why})" if s.culprit else ""),
            *(number(value) for value in (_least(s.least), _mean_of(s.mean), _most(s.most), _last(s))),
        ]
        for s in plot.series
    ]
    whole = rows_of(["Series", "Least", "Mean", "Most", "Last"], rows, f"{plot.title} of each")
    chosen = [s for s in plot.series if s.odd or s.culprit] if len(plot.series) > 1 else []
    wide = max(1, -(-axis.count // TIMES))
    times = []
    for begin in range(0, axis.count, wide):
        part = slice(begin, begin + wide)
        low = _least(value for s in plot.series for value in s.least[part])
        high = _most(value for s in plot.series for value in s.most[part])
        mean = _mean_of(value for s in plot.series for value in s.mean[part])
        odd = [number(_mean_of(s.mean[part])) for s in chosen]
        times.append([clock(axis.begin + begin * axis.step, axis), *map(number, (low, mean, high)), *odd])
    by_time = rows_of(
        [f"From ({span(wide * axis.step)} each)", "Least", "Mean", "Most", *(s.name for s in chosen)],
        times,
        f"{plot.title} by time",
    )
    title = f"{plot.title}, {plot.unit}"
    return (
        f'<details id="t-{plot.name}"><summary>{escaped(title)}</summary><p>{escaped(plot.sentence)}</p>'
        f"{whole}{by_time}</details>\n"
    )


def checks(report: JobReport) -> str:
    """Checks, warnings, what the node reported."""
    out = ['<section id="checks" aria-labelledby="h-checks">\n<h2 id="h-checks">Checks, warnings, node</h2>\n']
    wrong = [one for one in report.checks if one.status not in ("OK", "NOT_APPLICABLE")]
    if report.checks:
        many = f"{len(report.checks)} check{'s' * (len(report.checks) != 1)}"
        out.append(f"<p>{many} before the start, {len(wrong) or 'none'} of them with a finding.</p>\n")
    fine = [one for one in report.checks if one not in wrong]
    rows = [[one.item, one.status, one.code, one.reason] for one in wrong + fine]
    head = ["Item", "Status", "Code", "Reason"]
    out.append(table("checks", "Checks of the node", head, rows, is_open=bool(wrong)))
    if report.warnings:
        out.append(f"<h3>Warnings</h3>\n{listed(report.warnings)}")
    if report.node_reports:
        rows = [
            [clock(row.at, report.axis), "!" if row.grave else "", _who(row.rank, row.card), row.code, row.text]
            for row in report.node_reports
        ]
        head = ["Time", "Grave", "Of", "Code", "What"]
        out.append(table("node", "What the node reported", head, rows, is_open=len(rows) <= OPEN))
    if not (report.checks or report.warnings or report.node_reports):
        out.append("<p>No checks, no warnings, and no report of the node.</p>\n")
    return "".join([*out, "</section>\n"])


def stacks(report: JobReport) -> str:
    """Stacks, the newest set first; of each set the smallest group first."""
    if not report.stacks:
        return ""
    out = ['<section id="stacks" aria-labelledby="h-stacks">\n<h2 id="h-stacks">Stacks</h2>\n']
    for number, taken in enumerate(reversed(report.stacks)):
        why = f", {taken.occasion}" if taken.occasion else ""
        head = f"{clock(taken.at, report.axis)}{why}, attempt {taken.attempt}: {len(taken.groups)} places"
        groups = "".join(
            f"<h3>{escaped(group.head)}</h3>{block(escaped_lines(group.lines), f'Stack of {group.head}')}"
            for group in taken.groups
        )
        notes = "".join(f"<p>{escaped(note)}</p>" for note in taken.notes)
        out.append(f"<details{' open' * (number == 0)}><summary>{escaped(head)}</summary>{groups}{notes}</details>\n")
    return "".join([*out, "</section>\n"])


def last_words(report: JobReport) -> str:
    """The last lines of the culprit."""
    words = report.last_words
    if not words.lines:
        return ""
    file = f'<p class="hint">{escaped(words.file)}</p>' if words.file else ""
    whose = f" of {words.whose}" if words.whose else ""
    return (
        f'<section id="last" aria-labelledby="h-last">\n<h2 id="h-last">Last lines{escaped(whose)}</h2>\n'
        f"{file}{block(escaped_lines(words.lines), f'Last lines{whose}')}\n</section>\n"
    )


def job(report: JobReport) -> str:
    """Command, environment, cards, versions."""
    out = ['<section id="job" aria-labelledby="h-job">\n<h2 id="h-job">Job</h2>\n']
    if report.command:
        out.append(f"<h3>Command</h3>\n{block(escaped(report.command), 'Command')}\n")
    if report.settings:
        out.append("<h3>Settings</h3>\n" + facts_list(report.settings))
    if report.environment:
        names = " ".join(f"<code>{escaped(name)}</code>" for name in report.environment)
        out.append(
            f"<details><summary>Environment: {len(report.environment)} variables, values hidden</summary>"
            f'<p class="names">{names}</p></details>\n'
        )
    if report.cards:
        rows = [[str(c.card), c.kind, "-" if c.rank is None else str(c.rank), c.uuid or "-"] for c in report.cards]
        out.append(table("cards", "Cards", ["Card", "Kind", "Rank", "UUID"], rows, is_open=len(rows) <= OPEN))
    out.append("<h3>Versions</h3>\n" + facts_list(report.versions))
    return "".join([*out, "</section>\n"])


def unknown(missing: Sequence[str]) -> str:
    """Facts that are missing."""
    if not missing:
        return ""
    title = '<h2 id="h-unknown">Not known</h2>'
    return f'<section id="unknown" aria-labelledby="h-unknown">\n{title}\n{listed(missing)}</section>\n'


def footer(version: str, made_at: float, axis: Axis, more: Sequence[str]) -> str:
    """Who made it, when, and commands that tell more."""
    try:
        at = datetime.datetime.fromtimestamp(made_at + axis.zone, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        at = "-"
    commands = ", ".join(f"<code>{escaped(one)}</code>" for one in more)
    made = f"Made by muster {escaped(version)} at {at}, {escaped(zone(axis))}. More: {commands}"
    return f'<footer><p class="hint">{made}</p></footer>\n'


def block(markup: str, label: str) -> str:
    """Text as it is, which may be wider than the page: it can be moved with the keyboard, and has a name."""
    return f'<pre tabindex="0" role="region" aria-label="{escaped(label)}">{markup}</pre>'


def escaped_lines(lines: Sequence[str]) -> str:
    """Lines of a `pre`."""
    return "\n".join(escaped(line) for line in lines)


def listed(texts: Sequence[str]) -> str:
    """Sentences of muster's."""
    return "<ul>" + "".join(f"<li>{with_commands(text)}</li>" for text in texts) + "</ul>\n"


def table(name: str, title: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, is_open: bool = False) -> str:
    """A table that can be opened, `t-<name>`; "" without rows."""
    if not rows:
        return ""
    return (
        f'<details id="t-{name}"{" open" * is_open}><summary>{escaped(title)} ({len(rows)})</summary>'
        f"{rows_of(head, rows, title)}</details>\n"
    )


def rows_of(head: Sequence[str], rows: Sequence[Sequence[str]], label: str) -> str:
    # On a phone a row with a sentence becomes two lines: its other cells with their names, and the sentence below them.
    # Roles, because some browsers forget what a table is that is drawn otherwise.
    stacked = any(len(row[-1]) > SENTENCE for row in rows)
    row_role, cell_role, head_role = (
        (' role="row"', ' role="cell"', ' role="columnheader"') if stacked else ("", "", "")
    )
    top = "".join(f'<th scope="col"{head_role}>{escaped(text)}</th>' for text in head)
    cell = f"<td{cell_role}>"
    body = "".join(f"<tr{row_role}>" + "".join(f"{cell}{escaped(one)}</td>" for one in row) + "</tr>" for row in rows)
    wide = f'<div class="wide" tabindex="0" role="region" aria-label="{escaped(label)}">'
    look = ""
    if stacked:
        named = ";".join(f"--h{place}:'{escaped(text)} '" for place, text in enumerate(head[1:-1], 2))
        look = f' class="sentences" role="table" style="{named}"'
    parts = f"<thead><tr{row_role}>{top}</tr></thead><tbody>{body}</tbody>"
    return f'{wide}<table{look} aria-label="{escaped(label)}">{parts}</table></div>'


def _who(rank: int | None, card: int | None) -> str:
    return " ".join(f"{name} {number}" for name, number in (("rank", rank), ("card", card)) if number is not None)


def until(at: float | None, axis: Axis) -> str:
    """A time, or a dash."""
    return "-" if not at else clock(at, axis)


def lasted(begin: float, end: float | None) -> str:
    """A length of time, or a dash."""
    return "-" if end is None else span(max(0.0, end - begin))


def number(value: float | None) -> str:
    """A reading as a table has it."""
    return "-" if value is None else f"{value:.4g}"


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _mean_of(values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return sum(told) / len(told) if told else None


def _last(series: PlotSeries) -> float | None:
    return next((value for value in reversed(series.mean) if value is not None), None)
