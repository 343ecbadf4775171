"""The time line and the plots of the page: pictures below each other, on one time axis."""

from collections.abc import Iterable, Iterator, Sequence

from muster.agent.report import html_parts, svg
from muster.agent.report.escaping import escaped
from muster.agent.report.html_parts import clock
from muster.agent.report.job_report import Axis, Bar, JobReport, Plot, PlotSeries
from muster.agent.report.lanes import LOOKS
from muster.agent.text import numbers, span

#: Seconds between two ticks of the axis; and how many there are at most.
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400, 172800,
          604800)  # fmt: skip
_MOST_TICKS = 7
#: So wide is a character of a tick's text, as part of the axis; one for which too little room is left is not shown:
#: nowhere, or on narrow screens and paper (`page.css`; `page.js` does the same).
_NO_ROOM = {"bare": 0.0122, "late": 0.0265}
#: A job that has ended in less may have ended before its ranks were read (`telemetry.processes_s`).
_SHORT_S = 60.0
#: Series of a plot of which each can be drawn.
MAX_DRAWABLE = 72
#: Bars that are at least so wide (part of the axis) have their name in them.
_NAMED = 0.08
#: Pixels of a row of the ranks, by their number.
_ROWS = ((8, 14.0), (16, 10.0), (32, 5.0), (64, 2.5), (128, 1.5))
#: And of all together, if there is nothing to see but one colour, or too many of them.
_PLAIN, _TALL = 64, 200


def time_line(report: JobReport) -> str:
    """The section with everything that has a time."""
    parts = ['<section id="time" aria-labelledby="h-time">\n<h2 id="h-time">Time line</h2>\n']
    causes = [report.said.cause, *report.said.other_causes]
    known = {text for cause in causes if cause is not None for text in cause.evidence}
    parts += [f"<p>{escaped(text)}</p>\n" for text in report.remarks if text not in known]
    parts.append(_pictures(report))
    if not report.plots:
        why = ": a job of some seconds has none" if report.axis.end - report.axis.begin < _SHORT_S else ""
        where = ' <a href="#unknown">Not known</a> has what is missing.' if report.unknown else ""
        parts.append(f'<p class="hint" id="no-readings">There are no readings of cards and ranks{why}.{where}</p>\n')
    return "".join([*parts, "</section>\n"])


def moment(title: str, report: JobReport) -> str:
    """The section with a part of that time, `report`, once more and larger."""
    head = f'<section id="moment" aria-labelledby="h-moment">\n<h2 id="h-moment">{escaped(title)}</h2>\n'
    return f"{head}{_pictures(report, '-moment')}</section>\n"


def _pictures(report: JobReport, part: str = "") -> str:
    """`part`: of the ids of what the script looks for."""
    axis = report.axis
    first, last = clock(axis.begin, axis), clock(axis.end, axis)
    shades = svg.shades(report.hangs, axis)
    each = f"each step of the pictures is {step_of(axis)}"
    label = escaped(f"Pictures on one time axis, from {first} to {last}. With the keyboard: arrows move, + and - zoom.")
    parts = [
        f'<p class="hint">{escaped(first)} to {escaped(last)}, {escaped(html_parts.zone(axis))}; {escaped(each)}.',
        " The light band goes from the least to the most reading of all, the line in it is the median."
        * bool(report.plots),
        "</p>\n",
        controls(report.plots, part),
        f'<div class="chart" id="chart{part}" tabindex="0" role="group" aria-label="{label}">\n',
        axis_line(axis),
    ]
    parts += _bars_lanes(report, shades)
    parts += plot_lanes(report.plots, axis, shades)
    return "".join([*parts, axis_line(axis), "</div>\n"])


def step_of(axis: Axis) -> str:
    """How long a step is."""
    return f"{axis.step:g} s" if axis.step < 60 else span(axis.step)


def drawable(plot: Plot) -> Sequence[PlotSeries]:
    """The series that the script may draw: of very many only those that stand out, so that the file stays small."""
    if len(plot.series) <= MAX_DRAWABLE:
        return plot.series
    return [s for s in plot.series if s.odd or s.culprit]


def controls(plots: Sequence[Plot], part: str = "") -> str:
    """Of the script: without it they are not shown. `part`: of their ids."""
    found = [s for plot in plots for s in drawable(plot)]
    ranks = sorted({s.rank for s in found if s.rank is not None})
    cards = sorted({s.card for s in found if s.card is not None and s.rank is None})
    options = [f'<option value="r{rank}">rank {rank}</option>' for rank in ranks]
    options += [f'<option value="c{card}">card {card}</option>' for card in cards]
    buttons = "".join(
        f'<button type="button" data-do="{do}">{text}</button>'
        for do, text in (("in", "Zoom in"), ("out", "Zoom out"), ("back", "Earlier"), ("on", "Later"), ("all", "All"))
    )
    none = "" if options else " hidden"
    return (
        f'<div class="controls" id="controls{part}" role="group" aria-label="Zoom and values" hidden>{buttons}'
        f'<label{none}>Also draw <select id="also{part}">'
        f'<option value="">nothing else</option>{"".join(options)}</select></label>'
        f'<label class="at">Time <input type="range" id="at{part}" min="0" value="0"></label>'
        f'<output id="readout{part}" aria-live="polite" aria-label="Values">'
        "Point at a picture, or drag over it to zoom.</output></div>\n"
    )


def _bars_lanes(report: JobReport, shades: str) -> Iterator[str]:
    axis = report.axis
    if report.attempts:
        text = "; ".join(f"{bar.name}: {bar.text or LOOKS.get(bar.look, '')}" for bar in report.attempts[-3:])
        label = escaped(said_of("Attempts", report.attempts, axis))
        nodes = sorted({bar.rank for bar in report.attempts if bar.rank is not None})
        if nodes:
            picture = svg.rows(report.attempts, nodes, axis, label)
            yield lane("Attempts", text, picture, "rows", table="bars", height=max(28, 12 * len(nodes)))
        else:
            picture = svg.bars(report.attempts, axis, label)
            yield lane("Attempts", text, picture + names(report.attempts, axis), "thin", table="bars")
    if report.steps:
        picture = svg.bars(report.steps, axis, escaped(said_of("Steps", report.steps, axis)))
        text = ", ".join(dict.fromkeys(bar.name for bar in report.steps))
        yield lane("Steps", text, picture + names(report.steps, axis), "thin", table="bars")
    if report.rank_bars:
        yield _ranks(report, shades)
    if report.hangs:
        picture = svg.bars(report.hangs, axis, escaped(said_of("Hangs", report.hangs, axis)))
        yield lane("Hang", report.hangs[-1].text, picture + names(report.hangs, axis), "thin", table="bars")
    happened = sorted([*report.events, *report.node_reports], key=lambda row: row.at)
    grave = sum(row.grave for row in happened)
    text = f"{len(happened)} event{'s' * (len(happened) != 1)}" + (
        f", {grave} grave: the long strokes" if grave else ""
    )
    picture = svg.marks(happened, axis, escaped(f"{text}; the table below has them"), shades)
    yield lane("Events", text, picture, "thin", table="events" if happened else "")


def _ranks(report: JobReport, shades: str) -> str:
    axis, ranks = report.axis, sorted({bar.rank for bar in report.rank_bars if bar.rank is not None})
    counts: dict[str, list[int]] = {}
    for line in report.ranks:
        counts.setdefault(LOOKS.get(line.look, line.look), []).append(line.rank)
    said = "; ".join(f"rank {numbers(of)} {look}" for look, of in counts.items())
    used = [look for look in LOOKS if any(bar.look == look for bar in report.rank_bars)]
    legend = "".join(f'<span class="key"><i class="{look}"></i>{escaped(LOOKS[look])}</span>' for look in used)
    height = min(len(ranks) * next((pixels for most, pixels in _ROWS if len(ranks) <= most), 1.0), _TALL)
    if len(used) == 1:
        height = min(height, _PLAIN)
    picture = svg.rows(report.rank_bars, ranks, axis, escaped(f"Ranks: {said}"), shades)
    ends = ""
    if len(ranks) > 1:
        ends = f'<span class="top">{ranks[0]}</span><span class="bottom">{ranks[-1]}</span>'
    return lane("Ranks", "", picture + ends, "rows", table="ranks", height=max(round(height), 28), extra=legend)


def plot_lane(one: Plot, axis: Axis, shades: str) -> str:
    """A plot with its name and sentence."""
    keys = ""
    if len(one.series) > 1:
        for s in one.series:
            if s.odd or s.culprit:
                look, why = ("odd", "stands out") if s.odd else ("culprit", s.why)
                keys += f'<span class="key"><i class="{look}"></i>{escaped(s.name)} {why}</span>'
    ends = f'<span class="top">{one.most:g}</span><span class="bottom">0</span>'
    title = f"{one.title}, {one.unit}"
    return lane(title, one.sentence, svg.plot(one, axis, shades) + ends, "curve", table=one.name, extra=keys)


def lane(title: str, text: str, picture: str, look: str, *, table: str = "", height: int = 0, extra: str = "") -> str:
    """A picture with its name; `table`: the one behind it; `extra`: markup."""
    size = f' style="height:{height}px"' if height else ""
    link = (
        f' <a class="to-table" href="#t-{table}">table<span class="sr"> of {escaped(title)}</span></a>' if table else ""
    )
    name = f' data-plot="{table}"' if look == "curve" else ""
    return (
        f'<div class="lane {look}"><div class="name"><h3>{escaped(title)}</h3>{link}'
        f'{extra}<p>{escaped(text)}</p></div><div class="plot"{size}{name}>{picture}</div></div>\n'
    )


def plot_lanes(plots: Sequence[Plot], axis: Axis, shades: str) -> list[str]:
    """All plots, below the times once more: the lanes before them may fill a screen or a sheet of paper."""
    return [axis_line(axis)] * bool(plots) + [plot_lane(one, axis, shades) for one in plots]


def axis_line(axis: Axis) -> str:
    """Times below or above the pictures."""
    ticks = ""
    for at, text in _ticks(axis):
        place = svg.position(at, axis) / axis.count
        name = "".join(f" {name}" for name, each in _NO_ROOM.items() if place > 1 - each * len(text))
        ticks += f'<span class="tick{name}" style="left:{100 * place:.2f}%"><span>{escaped(text)}</span></span>'
    return f'<div class="lane axis" aria-hidden="true"><div class="name"></div><div class="plot">{ticks}</div></div>\n'


def _ticks(axis: Axis) -> Iterator[tuple[float, str]]:
    length = axis.step * axis.count
    apart = next((one for one in _TICKS if length / one <= _MOST_TICKS), max(_TICKS[-1], length / _MOST_TICKS))
    at = axis.begin + -(axis.begin + axis.zone) % apart
    while at < axis.begin + length:
        yield at, clock(at, axis, short=apart >= 60)
        at += apart


def names(found: Sequence[Bar], axis: Axis) -> str:
    """The names of wide bars, over the picture."""
    out = ""
    for bar in found:
        x, width = svg.extent(bar, axis)
        if width / axis.count >= max(_NAMED, 0.012 * len(bar.name)):
            out += (
                f'<span class="in {bar.look}" data-x="{x:g}" data-w="{width:g}" '
                f'style="left:{100 * x / axis.count:.2f}%;max-width:{100 * width / axis.count:.2f}%">'
                f"{escaped(bar.name)}</span>"
            )
    return out


def said_of(what: str, found: Iterable[Bar], axis: Axis) -> str:
    """A lane in words."""
    each = [
        f"{bar.name} from {clock(bar.begin, axis)}" + (f" to {clock(bar.end, axis)}" if bar.end is not None else " on")
        for bar in list(found)[-20:]
    ]
    return f"{what}: {'; '.join(each)}"
