"""Text for people: durations, times, sizes, lists of numbers, tables, and harmless forms of what a job controls."""

import datetime
import re
import shlex
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from muster.probes.kernel import number_lists

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
#: Colours of the states of a job on a terminal.
STATE_COLOURS = {"SUCCEEDED": "green", "RUNNING": "green", "FAILED": "red", "LOST": "red", "STOPPED": "yellow"}
# Escape sequences: CSI, the strings (OSC, DCS, SOS, PM, APC) with their ends, and the short ones. The bounds keep
# a job from hiding all that follows.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,16}[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]{0,512}(?:\x07|\x1b\\|$)"
    r"|\x1b[ -/]{0,4}[0-~]?"
)
# Would turn the direction of what follows, and so show another text than the real one.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: str) -> str:
    """What a job controls (ids, words of a command, its last lines), fit for a terminal: escape sequences are dropped,
    tabs stay, other control characters are shown as \\xNN."""
    text = _ESCAPES.sub("", text)
    return "".join(c if c == "\t" or not _harmful(c) else _shown(c) for c in text)


def uncapitalized(text: str) -> str:
    """A sentence as it stands behind a colon: with a small first letter, unless its first word is spelled so (CUDA,
    InfiniBand)."""
    word = text.partition(" ")[0]
    return text[:1].lower() + text[1:] if word[1:].islower() or not word[1:] else text


def plain(text: str) -> str:
    """Text as protobuf and JSON take it: bytes that are not UTF-8 (lone surrogates here) become U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if not text.isascii() else text


def _harmful(char: str) -> bool:
    return char in _BIDI or unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")


def _shown(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def duration(text: str) -> float:
    """Seconds of `15s`, `500ms`, `10m`, `2h`, `1d`, `1h30m` or of a plain number. Raises ValueError."""
    stripped = text.strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", stripped):
        return float(stripped)
    if not stripped or _PART.sub("", stripped):
        raise ValueError(f"{text!r} is not a duration: write 15s, 500ms, 10m, 2h, 1d, 1h30m or a number of seconds")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(stripped))


def moment(text: str, now: float) -> float:
    """Seconds since the epoch of an RFC 3339 time (local where it has no offset), or of a duration before `now`.
    Raises ValueError."""
    try:
        return now - duration(text)
    except ValueError:
        pass
    try:
        return datetime.datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is neither a duration (10m, 2h) nor a time (2030-01-31T08:00:00Z)") from None


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


def size(count: int) -> str:
    """Bytes with a binary unit: 512B, 3.4KiB, 1.2GiB."""
    if count < 1024:
        return f"{count}B"
    power = min((count.bit_length() - 1) // 10, len(_BINARY))
    return f"{count / 1024**power:.1f}{_BINARY[power - 1]}"


def local(seconds: float, now: float | None = None) -> str:
    """A time of day here, with the date unless it is that of `now`; "-" for 0, which stands for no time."""
    if not seconds:
        return "-"
    then = time.localtime(seconds)
    same_day = time.localtime(now)[:3] == then[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", then)


def time_of_day(seconds: float) -> str:
    """Here: 08:00:00."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def utc(seconds: float) -> str:
    """To the second: 2030-01-31T08:00:00Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def rfc3339(seconds: float) -> str:
    """UTC, with milliseconds."""
    whole = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return whole.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def command_line(words: Iterable[str]) -> str:
    """A command as one would type it, fit for a terminal."""
    return clean(shlex.join(words))


#: "0-3,7" and "ranks 0-3,7".
numbers, ranks = number_lists.numbers, number_lists.ranks


def cut(text: str, most: int) -> str:
    """At most `most` characters; three dots, which any encoding has, say that something was left out."""
    return text if len(text) <= most else text[: most - 3] + "..."


def shorten(text: str, width: int) -> str:
    """At most `width` characters, with an ellipsis where something was left out."""
    return text if len(text) <= width else text[: width - 1] + "…"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns, two spaces apart, ended by a newline. Cells are cleaned here; the last column is not padded."""
    return "".join(table_parts(head, [rows]))


def table_parts(head: Sequence[str], parts: Iterable[Sequence[Sequence[str]]]) -> Iterator[str]:
    """The same of rows that come in parts, each as soon as it comes. A column gets wider where a later part needs
    it; the lines before are not aligned with it then. Without any rows there is the head alone."""
    widths = [0] * len(head)
    lines = [list(head)]
    for rows in parts:
        lines += [[clean(cell) or "-" for cell in row] for row in rows]
        yield _aligned(lines, widths)
        lines = []
    if lines:
        yield _aligned(lines, widths)


def _aligned(lines: Sequence[Sequence[str]], widths: list[int]) -> str:
    """Lines in columns, which are made as wide as these lines need."""
    for line in lines:
        widths[:] = (max(width, _columns(cell)) for cell, width in zip(line, widths, strict=True))
    out = []
    for line in lines:
        cells = [cell + " " * (width - _columns(cell)) for cell, width in zip(line, widths, strict=True)]
        out.append("  ".join(cells).rstrip() + "\n")
    return "".join(out)


def _columns(text: str) -> int:
    """Columns of a terminal; wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
