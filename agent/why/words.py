"""Words of the report: safe forms of what a job wrote, ranks, distances in time, curves."""

from collections.abc import Sequence

from muster.agent.text import clean, shorten, span
from muster.probes.checks.result import one_line
from muster.supervisors.model.job_logs import OWN_LINE

#: At most so many characters of a line of output in the report.
MAX_LINE = 300
#: How the line between two attempts begins (docs/concepts/logs.md).
_ATTEMPT = f"{OWN_LINE}attempt "
_LEVELS = "▁▂▃▄▅▆▇█"


def shown(text: str, width: int = MAX_LINE) -> str:
    """Text that a job controls, as one line that is safe on a terminal: without escape sequences, with visible control
    characters, not longer than `width`."""
    return shorten(one_line(clean(text[: 4 * width]).replace("\t", "    ")), width)


def of_this_attempt(lines: Sequence[str]) -> Sequence[str]:
    """The lines among a log's last lines that the last attempt wrote."""
    begins = [number for number, line in enumerate(lines) if line.startswith(_ATTEMPT)]
    return lines[begins[-1] + 1 if begins else 0 :]


def apart(seconds: float) -> str:
    """ "-3m05s" before the moment, "+0.25s" after it."""
    return ("-" if seconds < 0 else "+") + span(abs(seconds))


def spark(values: Sequence[float | None], most: float = 100.0) -> str:
    """A curve of percentages (of values up to `most`), a character each; a dot for a missing value."""
    out = []
    for value in values:
        if value is None:
            out.append("·")
        else:
            level = int(max(0.0, min(1.0, value / most)) * len(_LEVELS)) if most > 0 else 0
            out.append(_LEVELS[min(level, len(_LEVELS) - 1)])
    return "".join(out)
