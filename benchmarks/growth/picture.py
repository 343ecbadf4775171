"""A curve as SVG: both axes logarithmic, so that a straight line of slope one is linear growth.

The pictures of reports (agent/report/svg.py) have a time axis and no text; these have neither the one nor that lack.
"""

import math
from collections.abc import Sequence
from html import escape

from benchmarks.growth.curve import Found

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 44
#: Colours that are told apart by who does not see red and green (Okabe and Ito), and marks for who sees none.
_LOOKS = (("#0072b2", "circle"), ("#d55e00", "square"), ("#009e73", "triangle"), ("#cc79a7", "diamond"))
#: Below the smallest value that is not 0.
_ROOM = 0.8


def draw(title: str, varied: str, found: Sequence[Found]) -> str:
    """All lines of a curve. A value of 0 or below cannot be drawn and is left out."""
    lines = list(found[0].values)
    xs = [one.x for one in found if one.x > 0]
    ys = [value for one in found for value in one.values.values() if value > 0]
    across = _Axis(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT)
    upwards = _Axis(min(ys, default=1) * _ROOM, max(ys, default=1) / _ROOM, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-family="sans-serif" '
        f'font-size="11"><title>{escape(title)}</title><rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>'
    ]
    parts += _grid(across, upwards, varied)
    for number, line in enumerate(lines):
        colour, mark = _LOOKS[number % len(_LOOKS)]
        places = [(across.at(o.x), upwards.at(o.values[line])) for o in found if o.x > 0 and o.values[line] > 0]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [_mark(mark, x, y, colour) for x, y in places]
        x, y = _LEFT + 16, _TOP + 12 + 16 * number
        parts.append(f'{_mark(mark, x, y, colour)}<text x="{x + 10}" y="{y + 4}">{escape(line)}</text>')
    return "\n".join([*parts, "</svg>\n"])


class _Axis:
    """Where a value is, in units of the picture."""

    def __init__(self, least: float, most: float, begin: float, end: float) -> None:
        self.least, self.most = least, max(most, least * 1.01)
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        part = math.log(value / self.least) / math.log(self.most / self.least)
        return self._begin + part * (self._end - self._begin)

    def ticks(self) -> list[float]:
        """Powers of ten; between them 2 and 5 where there are few."""
        powers = range(math.floor(math.log10(self.least)), math.ceil(math.log10(self.most)) + 1)
        steps = (1, 2, 5) if len(powers) <= 4 else (1,)
        return [
            step * 10.0**power for power in powers for step in steps if self.least <= step * 10.0**power <= self.most
        ]


def _grid(across: _Axis, upwards: _Axis, varied: str) -> list[str]:
    bottom, parts = _HEIGHT - _BOTTOM, []
    for value in across.ticks():
        x = across.at(value)
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{value:,g}</text>')
    for value in upwards.ticks():
        y = upwards.at(value)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,g}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(varied)}</text>')
    return parts


def _mark(kind: str, x: float, y: float, colour: str) -> str:
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
    corners = {
        "square": ((-3, -3), (3, -3), (3, 3), (-3, 3)),
        "triangle": ((0, -4), (4, 3), (-4, 3)),
        "diamond": ((0, -4), (4, 0), (0, 4), (-4, 0)),
    }[kind]
    return f'<polygon points="{" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)}" fill="{colour}"/>'
