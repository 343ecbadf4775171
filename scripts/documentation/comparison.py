"""Whether a command printed what its page shows, with holes for what varies from run to run.

A line `...` stands for any lines, and `...` within a line for any text. Times, durations, sizes, percentages, process
ids and ports (numbers of four digits and more), hexadecimal ids and spark lines match others of their kind; runs of
spaces match runs of spaces. Lines of several ranks may come in any order; those of one rank may not.
"""

import re
from collections.abc import Sequence
from functools import cache

_NUMBER = r"\d+(?:\.\d+)?"
#: What varies, and what may stand in its place.
_HOLES: tuple[tuple[str, str], ...] = (
    (r"\.\.\.", r".*"),
    (r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?)?",) * 2,
    (r"\d\d:\d\d:\d\d(?:\.\d+)?",) * 2,
    (rf"[+-]?(?:\d+d)?(?:\d+h)?(?:\d+m)?{_NUMBER} ?(?:ms|s|min|h|d)(?![\w/])",
     rf"[+-]?(?:\d+d)?(?:\d+h)?(?:\d+m)?{_NUMBER} ?(?:ms|s|min|h|d)"),
    (rf"{_NUMBER} ?(?:[KMGT]i?B|kB|B)(?!\w)", rf"{_NUMBER} ?(?:[KMGT]i?B|kB|B)"),
    (rf"{_NUMBER} ?%",) * 2,
    (r"(?<![\w-])(?=[0-9a-f-]*\d)[0-9a-f]{8,}(?:-[0-9a-f]+)*(?!\w)", r"[0-9a-f-]+"),
    (r"(?<![\w.])\d{4,}(?![\w.])", r"\d+"),
    (r"[▁▂▃▄▅▆▇█]+", r"[▁▂▃▄▅▆▇█ ]*"),
    (r"(?<=\S) +", r" +"),
)  # fmt: skip
_VARYING = re.compile("|".join(f"(?P<h{number}>{wanted})" for number, (wanted, _) in enumerate(_HOLES)))
_LABEL = re.compile(r"\[(?:\w+/)?(?:rank )?\d+\] ")
ANY_LINES = "..."


def differs(shown: Sequence[str], printed: Sequence[str]) -> str:
    """Empty if they agree, else the first line that is not as shown."""
    wanted, found = _trimmed(shown), _trimmed(printed)
    for rank in dict.fromkeys(map(_rank, [*wanted, *found])):
        theirs = tuple(line for line in wanted if _rank(line) == rank or _is_hole(line))
        if said := _difference(theirs, tuple(line for line in found if _rank(line) == rank)):
            return said
    return ""


def _difference(wanted: tuple[str, ...], found: tuple[str, ...]) -> str:
    if _matches(wanted, found):
        return ""
    # How far the page is right tells where to look.
    known = max(n for n in range(len(wanted) + 1) if n == 0 or _matches((*wanted[:n], ANY_LINES), found))
    return f"not printed: {wanted[known]}" if known < len(wanted) else f"also printed: {found[-1]}"


def _rank(line: str) -> str:
    """The label of a rank's line; empty: another line."""
    match = _LABEL.match(line)
    return match[0] if match else ""


def _is_hole(line: str) -> bool:
    return line.strip() == ANY_LINES


def _trimmed(lines: Sequence[str]) -> list[str]:
    found = [line.rstrip() for line in lines]
    while found and not found[-1]:
        found.pop()
    return found


def _matches(wanted: tuple[str, ...], found: tuple[str, ...]) -> bool:
    """Whether the lines are those, by what may follow each place: no line is looked at more than once for each."""
    places = {0}
    for line in wanted:
        if _is_hole(line):
            places = set(range(min(places), len(found) + 1)) if places else places
        else:
            places = {at + 1 for at in places if at < len(found) and pattern(line).fullmatch(found[at])}
    return len(found) in places


@cache
def pattern(line: str) -> re.Pattern[str]:
    """What a line that a page shows matches."""
    parts, at = [], 0
    for match in _VARYING.finditer(line):
        parts.append(re.escape(line[at : match.start()]))
        assert match.lastgroup is not None
        parts.append(_HOLES[int(match.lastgroup[1:])][1])
        at = match.end()
    return re.compile("".join(parts) + re.escape(line[at:]))
