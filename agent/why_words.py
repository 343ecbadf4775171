"""Words of the report: spans, moments, numbers, and harmless forms of what a job wrote."""

import re
import time
from collections.abc import Iterable, Sequence

from probes.result import one_line

#: Characters of a line of output in the report.
MAX_LINE = 300
# Escape sequences: CSI, the strings (OSC, DCS, SOS, PM, APC) with their ends, and the short ones.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]{0,64}[ -/]{0,16}[@-~]|\x1b[\]PX^_][^\x07\x1b]{0,512}(?:\x07|\x1b\\|$)|\x1b[ -/]{0,4}[0-~]?"
)
_LEVELS = "▁▂▃▄▅▆▇█"


def shown(text: str, width: int = MAX_LINE) -> str:
    """What a job controls, as one line that is fit for a terminal: without escape sequences, other control characters
    made visible, and not longer than `width`."""
    cut = _ESCAPES.sub("", text[: 4 * width])
    line = one_line(cut.replace("\t", "    "))
    return line if len(line) <= width else line[: width - 1] + "…"


def span(seconds: float) -> str:
    """A duration in at most two units: 0.25s, 12s, 3m05s, 2h10m, 4d03h."""
    if seconds < 10:
        return f"{max(seconds, 0):.2f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def apart(seconds: float) -> str:
    """-3m05s for what came so long before, +0.25s after."""
    return ("-" if seconds < 0 else "+") + span(abs(seconds))


def clock(seconds: float, now: float) -> str:
    """A local time of day, with the date unless it is that of `now`."""
    then = time.localtime(seconds)
    same_day = time.localtime(now)[:3] == then[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", then)


def numbers(values: Iterable[int]) -> str:
    """0-3,7 for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def ranks(values: Sequence[int]) -> str:
    """ "rank 3", "ranks 0-3,7"."""
    return f"rank{'s' if len(values) > 1 else ''} {numbers(values)}"


def spark(values: Sequence[float | None], most: float = 100.0) -> str:
    """A curve of percentages (of values up to `most`), a character each; a dot where there is none."""
    out = []
    for value in values:
        if value is None:
            out.append("·")
        else:
            level = int(max(0.0, min(1.0, value / most)) * len(_LEVELS)) if most > 0 else 0
            out.append(_LEVELS[min(level, len(_LEVELS) - 1)])
    return "".join(out)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns, two spaces apart; the last one is not padded."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
