"""The report of a node as one HTML file, of the same parts as that of a job."""

import datetime
from collections.abc import Iterator, Sequence

from muster.agent.report import html_page, html_parts, pictures, svg
from muster.agent.report.escaping import escaped
from muster.agent.report.html_parts import clock, lasted, until
from muster.agent.report.job_report import Axis, Bar
from muster.agent.report.lanes import LOOKS as JOB_LOOKS
from muster.agent.report.node import node_lanes
from muster.agent.report.node.node_overview import NodeJob, NodeOverview
from muster.agent.text import numbers, span
from muster.agent.why.report import Row

#: Pixels of a row of the Gantt chart, by their number; and rows of conditions that are drawn.
_ROWS = ((8, 22), (16, 16), (32, 10), (128, 5))
_MOST_CONDITIONS = 24
#: The row of jobs without cards.
NO_CARD = -1
_CONDITION_LOOKS = {look: status for status, look in node_lanes.LOOKS.items()}


def page(report: NodeOverview) -> str:
    """The whole file."""
    parts = [
        f'<header><p class="brand">muster report</p><h1>node {escaped(report.node)}</h1>'
        f'<p class="hint">{escaped(_days(report))}</p></header>\n<main id="main">\n',
        _verdict(report),
        _time_line(report),
        _tables(report),
        html_parts.unknown(report.unknown),
        "</main>\n",
        html_parts.footer(
            report.versions.get("muster", ""),
            report.made_at,
            report.axis,
            ["muster node", "muster events", "muster report JOB"],
        ),
    ]
    data = html_page.data_of(report.axis, report.plots)
    return html_page.document(f"node {report.node} - muster report", parts, data)


def _days(report: NodeOverview) -> str:
    axis = report.axis
    ends = [datetime.datetime.fromtimestamp(at + axis.zone, datetime.UTC) for at in (axis.begin, axis.end)]
    return f"{ends[0]:%Y-%m-%d %H:%M} to {ends[1]:%Y-%m-%d %H:%M}, {html_parts.zone(axis)}"


def _verdict(report: NodeOverview) -> str:
    out = ['<section id="verdict" aria-labelledby="h-verdict">\n<h2 id="h-verdict" class="sr">State</h2>\n']
    out.append(f'<p class="headline">{escaped(report.headline)}</p>\n')
    out += [f'<p class="advice">{escaped(bar.text)}</p>\n' for bar in report.drains if bar.end is None]
    now = [f"{bar.text}, since {clock(bar.begin, report.axis)}" for bar in report.conditions if bar.end is None]
    if now:
        out.append(f"<h3>Conditions now</h3>\n{html_parts.listed(now)}")
    return "".join([*out, html_parts.facts_list(report.facts), "</section>\n"])


def _time_line(report: NodeOverview) -> str:
    axis = report.axis
    shades = svg.shades([Bar("", bar.begin, bar.end, "drained") for bar in report.drains], axis)
    label = escaped("Pictures on one time axis. With the keyboard: arrows move, + and - zoom.")
    parts = [
        '<section id="time" aria-labelledby="h-time">\n<h2 id="h-time">Time line</h2>\n',
        f'<p class="hint">Each step of the pictures is {escaped(pictures.step_of(axis))}. The light band goes from the '
        "least to the most reading of all cards, the line in it is the median.</p>\n",
        pictures.controls(report.plots),
        f'<div class="chart" id="chart" tabindex="0" role="group" aria-label="{label}">\n',
        pictures.axis_line(axis),
    ]
    parts += _bars_lanes(report, shades)
    parts += pictures.plot_lanes(report.plots, axis, shades)
    parts += [pictures.axis_line(axis), "</div>\n"]
    if not report.plots:
        parts.append('<p class="hint" id="no-readings">There are no readings of cards.</p>\n')
    return "".join([*parts, "</section>\n"])


def _bars_lanes(report: NodeOverview, shades: str) -> Iterator[str]:
    axis = report.axis
    for name, bars, table in (("Drained", report.drains, "drains"), ("No daemon", report.stops, "stops")):
        if bars:
            picture = svg.bars(bars, axis, escaped(pictures.said_of(name, bars, axis)))
            yield pictures.lane(name, bars[-1].text, picture, "thin", table=table)
    if report.conditions:
        yield _conditions(report, shades)
    yield _gantt(report, shades)
    happened = sorted([*report.reports, *report.losses], key=lambda row: row.at)
    grave = sum(row.grave for row in happened)
    reports, losses = len(report.reports), len(report.losses)
    text = f"{reports} report{'s' * (reports != 1)} of kernel and drivers, {losses} loss{'es' * (losses != 1)}"
    text += f"; {grave} grave: the long strokes" if grave else ""
    picture = svg.marks(happened, axis, escaped(f"{text}; the tables below have them"), shades)
    table = "reports" if report.reports else "losses" if report.losses else ""
    yield pictures.lane("Reports and losses", text, picture, "thin", table=table)


def _conditions(report: NodeOverview, shades: str) -> str:
    names = list(dict.fromkeys(bar.name for bar in reversed(report.conditions)))[:_MOST_CONDITIONS]
    rows = [
        Bar(bar.name, bar.begin, bar.end, bar.look, bar.text, names.index(bar.name))
        for bar in report.conditions
        if bar.name in names
    ]
    used = [look for look in _CONDITION_LOOKS if any(bar.look == look for bar in rows)]
    picture = svg.rows(rows, range(len(names)), report.axis, escaped(f"Conditions: {', '.join(names)}"), shades)
    return pictures.lane(
        "Conditions", "; ".join(names[:6]) + ("; ..." if len(names) > 6 else ""), picture, "rows", table="conditions",
        height=max(28, 14 * len(names)), extra=_legend({look: _CONDITION_LOOKS[look] for look in used}),
    )  # fmt: skip


def _gantt(report: NodeOverview, shades: str) -> str:
    """A row for each card; a bar for the time that a job had it."""
    axis = report.axis
    bars = [
        Bar(job.job_id, job.begin, job.end, job.look, _said(job), card)
        for job in report.jobs
        for card in job.cards or [NO_CARD]
    ]
    rows = sorted({*report.cards, *(bar.rank for bar in bars if bar.rank is not None)})
    used = [look for look in JOB_LOOKS if any(bar.look == look for bar in bars)]
    label = escaped(f"Jobs over the cards: {len(report.jobs)} jobs; the table below has them")
    each = next((pixels for most, pixels in _ROWS if len(rows) <= most), 2)
    picture = svg.rows(bars, rows, axis, label, shades) + _labels(rows) + _names(report.jobs, rows, axis)
    return pictures.lane(
        "Jobs", f"{len(report.jobs)} job{'s' * (len(report.jobs) != 1)}, a row for each card", picture, "rows gantt",
        table="jobs" if report.jobs else "", height=max(28, each * len(rows)),
        extra=_legend({look: JOB_LOOKS[look] for look in used}),
    )  # fmt: skip


def _labels(rows: Sequence[int]) -> str:
    """The numbers of the cards; of many some."""
    apart = max(1, -(-len(rows) // 16))
    return "".join(
        f'<span class="side" style="top:{100 * (place + 0.5) / len(rows):.2f}%">'
        f"{'none' if card == NO_CARD else card}</span>"
        for place, card in enumerate(rows)
        if place % apart == 0
    )


def _names(jobs: Sequence[NodeJob], rows: Sequence[int], axis: Axis) -> str:
    """The names of jobs that are wide enough, in the middle of their cards."""
    out = ""
    for job in jobs:
        bar = Bar(job.job_id, job.begin, job.end, job.look)
        x, width = svg.extent(bar, axis)
        if width / axis.count >= max(0.05, 0.009 * len(job.job_id)) and len(rows) <= 32:
            mine = [rows.index(card) for card in job.cards or [NO_CARD]]
            top = 100 * (sorted(mine)[len(mine) // 2] + (0.0 if len(mine) % 2 == 0 else 0.5)) / len(rows)
            out += (
                f'<span class="in" data-x="{x:g}" data-w="{width:g}" style="left:{100 * x / axis.count:.2f}%;'
                f'max-width:{100 * width / axis.count:.2f}%;top:{top:.2f}%">{escaped(job.job_id)}</span>'
            )
    return out


def _said(job: NodeJob) -> str:
    use = "" if job.use is None else f", its cards {job.use:.0f} % on average"
    return f"{job.state}{use}" + (f": {job.text}" if job.text else "")


def _legend(looks: dict[str, str]) -> str:
    return "".join(f'<span class="key"><i class="{look}"></i>{escaped(text)}</span>' for look, text in looks.items())


def _tables(report: NodeOverview) -> str:
    axis = report.axis
    out = ['<section id="tables" aria-labelledby="h-tables">\n<h2 id="h-tables">Tables behind the pictures</h2>\n']
    for name, title, head, rows in tables(report):
        out.append(html_parts.table(name, title, head, rows, is_open=len(rows) <= html_parts.OPEN and name != "stops"))
    out += [html_parts.readings(plot, axis) for plot in report.plots]
    return "".join([*out, "</section>\n"])


def tables(report: NodeOverview) -> Iterator[tuple[str, str, list[str], list[list[str]]]]:
    """Name, title, head and rows of all tables but those of the readings; some have no rows."""
    axis = report.axis
    low = [job for job in report.jobs if job.underused]
    yield (
        "underused", f"Jobs whose cards average below {report.underused_percent:g} %",
        ["Job", "Use", "Unused card hours", "Over", "Cards", "State"],
        [
            [job.job_id, f"{job.use or 0:.0f} %", f"{job.idle_card_h or 0:g}", span(job.use_s), numbers(job.cards),
             job.state]
            for job in sorted(low, key=lambda job: -(job.idle_card_h or 0))
        ],
    )  # fmt: skip
    yield (
        "jobs", "Jobs", ["Job", "State", "Begin", "End", "Lasted", "Cards", "Use", "How it ended"],
        [
            [job.job_id, job.state, clock(job.begin, axis), until(job.end, axis), lasted(job.begin, job.end),
             numbers(job.cards) or "-", "-" if job.use is None else f"{job.use:.0f} %", job.text]
            for job in report.jobs
        ],
    )  # fmt: skip
    spans = ["What", "Begin", "End", "Lasted", "Text"]
    for name, title, bars in (
        ("conditions", "Conditions", report.conditions), ("drains", "Drains", report.drains),
        ("stops", "Times without a daemon", report.stops),
    ):  # fmt: skip
        rows = [
            [bar.name, clock(bar.begin, axis), until(bar.end, axis), lasted(bar.begin, bar.end), bar.text]
            for bar in bars
        ]
        yield name, title, spans, rows
    yield (
        "counts", "Xids and other reports, counted", ["Code", "Number", "Device", "Count", "Grave", "Last"],
        [
            [one.code, one.number or "-", one.device or "the node", str(one.count), "!" * one.grave,
             clock(one.last, axis)]
            for one in report.counts
        ],
    )  # fmt: skip
    happened = ["Time", "Grave", "Of", "Code", "What"]
    yield "reports", "What kernel and drivers reported", happened, [_row(row, axis) for row in report.reports]
    yield "losses", "Losses", happened, [_row(row, axis) for row in report.losses]


def _row(row: Row, axis: Axis) -> list[str]:
    of = " ".join(f"{name} {number}" for name, number in (("rank", row.rank), ("card", row.card)) if number is not None)
    return [clock(row.at, axis), "!" * row.grave, of, row.code or row.kind, row.text]
