"""A picture of a terminal: the cells that an emulator has drawn, as an SVG with real text.

Each run of cells of one look is a `text` element that is stretched to the width of its cells, so that columns stay in
line whichever font a browser takes. No font, script or other file is loaded.
"""

from collections.abc import Sequence
from html import escape
from itertools import groupby

from pyte.screens import Char

#: Of a cell, and of the border around all.
WIDTH, HEIGHT, BORDER, BAR = 8.4, 19.0, 14.0, 30.0
BACKGROUND, FOREGROUND = "#16181d", "#d7dae0"
#: Colours by pyte's names; contrast with the background is at least 4.5.
_COLOURS = {
    "default": FOREGROUND, "black": "#7b8494", "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341",
    "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#76e3ea", "white": "#ffffff", "brightblack": "#8b949e",
    "brightred": "#ffa198",
    "brightgreen": "#a5f3b0", "brightbrown": "#f2cc60", "brightblue": "#a5d6ff", "brightmagenta": "#e2c5ff",
    "brightcyan": "#b3f0ff", "brightwhite": "#ffffff",
}  # fmt: skip
_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def svg(lines: Sequence[Sequence[Char]], columns: int, title: str) -> str:
    """The picture; `title` is what a screen reader says."""
    width, height = columns * WIDTH + 2 * BORDER, len(lines) * HEIGHT + 2 * BORDER + BAR
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(title)}" font-family="{_FONT}" font-size="14">',
        f"<title>{escape(title)}</title>",
        f'<rect width="100%" height="100%" rx="9" fill="{BACKGROUND}"/>',
        *(f'<circle cx="{BORDER + 6 + 20 * n:g}" cy="17" r="5.5" fill="#3a3f4a"/>' for n in range(3)),
    ]
    for row, line in enumerate(lines):
        top = BAR + BORDER + row * HEIGHT
        column = 0
        for look, run in groupby(line[:columns], key=_look):
            text = "".join(char.data for char in run)
            parts += _run(text, look, BORDER + column * WIDTH, top)
            column += len(text)
    return "\n".join((*parts, "</svg>", ""))


def _look(char: Char) -> tuple[str, str, bool]:
    """Colour of the text and behind it, and whether it is bold."""
    front, behind = _COLOURS.get(char.fg, f"#{char.fg}"), _COLOURS.get(char.bg, f"#{char.bg}")
    if char.bg == "default":
        behind = ""
    if char.reverse:
        front, behind = behind or BACKGROUND, front
    return front, behind, char.bold


def _run(text: str, look: tuple[str, str, bool], x: float, top: float) -> list[str]:
    front, behind, bold = look
    parts = []
    if behind:
        parts.append(f'<rect x="{x:g}" y="{top:g}" width="{len(text) * WIDTH:g}" height="{HEIGHT:g}" fill="{behind}"/>')
    bare = text.strip()
    if bare:
        x += (len(text) - len(text.lstrip())) * WIDTH
        weight = ' font-weight="600"' if bold else ""
        parts.append(
            f'<text x="{x:.1f}" y="{top + 14:g}" textLength="{len(bare) * WIDTH:.1f}" lengthAdjust="spacingAndGlyphs" '
            f'fill="{front}"{weight} xml:space="preserve">{escape(bare)}</text>'
        )
    return parts
