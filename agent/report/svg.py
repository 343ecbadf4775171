"""The pictures: one unit of x is a step of the time axis, y goes from 0 (top) to 100. Pure.

They are stretched to the width of the page, so they hold no text; what is written beside them is HTML.
"""

from collections.abc import Iterable, Sequence

from muster.agent.report import thinning
from muster.agent.report.escaping import escaped
from muster.agent.report.job_report import Axis, Bar, Plot
from muster.agent.why.report import Row

#: A bar has at least this part of the width, so that it can be seen.
LEAST = 0.003
#: And that of a rank which failed this part of the height.
LEAST_ROW = 0.012
#: Looks that are marked beside their colour.
GRAVE = ("failed", "hung")


def plot(one: Plot, axis: Axis, shades: str) -> str:
    """The band of all series, their median, and above it those that stand out."""
    series = one.series
    least, most = thinning.envelope([(s.least, s.most) for s in series])
    middle = thinning.medians([s.mean for s in series])
    paths = []
    if drawn := _band(least, most, one.most, axis.step):
        paths.append(f'<path class="band" d="{drawn}"/>')
    paths.append(shades)  # over the band, which a hang makes wide
    if drawn := _line(middle, one.most, axis.step):
        paths.append(f'<path class="mid" d="{drawn}"/>')
    if len(series) > 1:
        for s in series:
            if s.odd or s.culprit:
                look = "odd" if s.odd else "culprit"
                paths.append(f'<path class="{look}" d="{_line(s.mean, one.most, axis.step)}"/>')
    label = escaped(f"{one.title}: {one.sentence}")
    return _picture(axis, 100, label, "".join(paths))


def bars(found: Sequence[Bar], axis: Axis, label: str, shades: str = "") -> str:
    """Bars in one row; a later one is drawn over an earlier one."""
    drawn = "".join(_rect(bar, axis, 15, 70) for bar in found)
    return _picture(axis, 100, label, shades + drawn)


def rows(found: Sequence[Bar], ranks: Sequence[int], axis: Axis, label: str, shades: str = "") -> str:
    """A row for each of these ranks."""
    place = {rank: number for number, rank in enumerate(ranks)}
    # One that failed among a thousand is to be seen: it comes on top, and is never thinner than this.
    found = sorted(found, key=lambda bar: bar.look in GRAVE)
    least = 10 * len(ranks) * LEAST_ROW
    drawn = "".join(
        _row(bar, axis, 10 * place[bar.rank] + 1.5, least)
        for bar in found
        if bar.rank is not None and bar.rank in place
    )
    height = 10 * max(1, len(ranks))
    return _picture(axis, height, label, shades.replace('height="100"', f'height="{height}"') + drawn)


def marks(found: Iterable[Row], axis: Axis, label: str, shades: str = "") -> str:
    """A stroke for each event: long and thick for a grave one."""
    drawn = ""
    for row in found:
        at = position(row.at, axis)
        if 0 <= at <= axis.count:
            look, top = ("grave", 5) if row.grave else ("mark", 45)
            drawn += f'<path class="{look}" d="M{at:g} {top}V95"><title>{escaped(row.text)}</title></path>'
    return _picture(axis, 100, label, shades + drawn)


def shades(found: Iterable[Bar], axis: Axis) -> str:
    """Hangs, behind every picture."""
    return "".join(
        f'<rect class="shade {bar.look}" x="{x:g}" y="0" width="{width:g}" height="100"/>'
        for bar in found
        for x, width in [extent(bar, axis)]
    )


def extent(bar: Bar, axis: Axis) -> tuple[float, float]:
    """Where a bar begins, and its width; within the axis."""
    begin = min(max(position(bar.begin, axis), 0.0), float(axis.count))
    end = axis.count if bar.end is None else min(max(position(bar.end, axis), 0.0), float(axis.count))
    width = max(end - begin, axis.count * LEAST)
    return round(min(begin, axis.count - width), 3), round(width, 3)


def position(at: float, axis: Axis) -> float:
    """A time in steps from the begin of the axis."""
    return round((at - axis.begin) / axis.step, 3)


def _row(bar: Bar, axis: Axis, y: float, least: float) -> str:
    height = max(7.0, least) if bar.look in GRAVE else 7.0
    return _rect(bar, axis, round(max(0.0, y - (height - 7) / 2), 2), round(height, 2))


def _rect(bar: Bar, axis: Axis, y: float, height: float) -> str:
    x, width = extent(bar, axis)
    said = escaped(f"{bar.name}: {bar.text}" if bar.text else bar.name)
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    shape = f'<rect class="bar {bar.look}" {place}><title>{said}</title></rect>'
    if bar.look in GRAVE:  # seen without colours, too: its end is marked
        shape += f'<path class="stroke" d="M{x + width:g} {y:g}v{height:g}"/>'
    return shape


def _picture(axis: Axis, height: int, label: str, content: str) -> str:
    return (
        f'<svg viewBox="0 0 {axis.count} {height}" preserveAspectRatio="none" role="img" aria-label="{label}" '
        f'data-h="{height}">{content}</svg>'
    )


def _line(values: Sequence[float | None], most: float, step: float) -> str:
    out = []
    for run in thinning.runs(values, step):
        points = [(place + 0.5, _y(value, most)) for place in run if (value := values[place]) is not None]
        if len(points) == 1:
            out.append(f"M{points[0][0] - 0.5:g} {points[0][1]:g}h1")
        else:
            out.append("M" + "L".join(f"{x:g} {y:g}" for x, y in points))
    return "".join(out)


def _band(least: Sequence[float | None], most: Sequence[float | None], top: float, step: float) -> str:
    out = []
    for run in thinning.runs(least, step):
        upper = [(place + 0.5, _y(value, top)) for place in run if (value := most[place]) is not None]
        lower = [(place + 0.5, _y(value, top)) for place in run if (value := least[place]) is not None]
        if len(upper) == 1:
            (x, y), (_, base) = upper[0], lower[0]
            out.append(f"M{x - 0.5:g} {y:g}h1V{base:g}h-1z")
        else:
            out.append("M" + "L".join(f"{x:g} {y:g}" for x, y in [*upper, *reversed(lower)]) + "z")
    return "".join(out)


def _y(value: float, most: float) -> float:
    """One decimal; a value beyond the scale is at its end."""
    return round(98 - 96 * min(max(value / most if most > 0 else 0.0, 0.0), 1.0), 1)
