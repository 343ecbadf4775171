"""The form of a stack in which two that are the same place in the same program are equal."""

import re
from collections.abc import Sequence

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_LINE = re.compile(r":\d+\)$")


def frame(text: str, pid: int) -> str:
    """A frame without what differs from process to process: addresses, the process' own number."""
    text = _ADDRESS.sub("0x*", text)
    # A word of its own: a temporary file that has the pid in its name, say. Line numbers stay.
    return re.sub(rf"(?<![0-9A-Za-z:]){pid}(?![0-9A-Za-z])", "PID", text)


def without_line(text: str) -> str:
    """`f (a.py:12)` as `f (a.py)`."""
    return _LINE.sub(")", text)


def held(looks: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The outer frames that stayed the same over all looks; where frames were left out, the innermost of those that
    stayed has no line, since it went on to others between the looks.

    A thread that runs is somewhere else at each look, but its caller's callers are the same; ranks that do the same
    are equal in these.
    """
    first, *others = [tuple(reversed(look)) for look in looks]  # outermost first
    same = 0
    while same < len(first) and all(same < len(look) and look[same] == first[same] for look in others):
        same += 1
    if all(len(look) == same for look in (first, *others)):
        return tuple(reversed(first))
    kept = list(first[:same])
    names = {without_line(look[same]) if same < len(look) else None for look in (first, *others)}
    if len(names) == 1 and (name := names.pop()) is not None:  # the same function, at other lines
        kept.append(name)
    elif kept:
        kept[-1] = without_line(kept[-1])
    return tuple(reversed(kept))
