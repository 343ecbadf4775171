"""What each line that matches a regular expression contains: so the daemon needs to send only lines that contain it.

It reads what Python's own parser makes of the pattern. Whatever it does not know (a class, a reference, another version
of the parser) it takes for something that can match anything, so it finds less, but nothing wrong.
"""

import re
from collections.abc import Iterable
from typing import Any

from muster.agent.logs.line_filter import MOST_ALTERNATIVES, MOST_BYTES, MOST_PARTS
from muster.v1 import log_pb2

#: Parts that come in this order, and characters that come right behind the last of them and may go on.
_State = tuple[tuple[str, ...], str]


def wanted_lines(pattern: "re.Pattern[str]") -> log_pb2.LineFilter | None:
    """What to ask the daemon for; None: a match may be any line."""
    try:
        parser: Any = re._parser  # type: ignore[attr-defined]  # its public name is deprecated, and gone from 3.13 on
        parsed = parser.parse(pattern.pattern, pattern.flags)
        states = _walk(parsed, [((), "")], ignore_case=bool(pattern.flags & re.IGNORECASE))
    except (AttributeError, TypeError, ValueError, IndexError, RecursionError, re.error):
        return None
    found = {_bounded(parts) for parts, _ in _closed(states)}
    if not all(found) or len(found) > MOST_ALTERNATIVES:
        return None
    any_of = [log_pb2.LineParts(parts=[part.encode() for part in parts]) for parts in sorted(found)]
    return log_pb2.LineFilter(any_of=any_of, ignore_case=bool(pattern.flags & re.IGNORECASE))


def _walk(items: Iterable[tuple[Any, Any]], states: list[_State], *, ignore_case: bool) -> list[_State]:
    """What is known behind these items, by what was known before them."""
    for operation, value in items:
        name = str(operation)
        if name == "LITERAL" and _plain(value, ignore_case):
            states = [(parts, run + chr(value)) for parts, run in states]
        elif name in ("AT", "ASSERT", "ASSERT_NOT"):
            pass  # takes no characters
        elif name == "SUBPATTERN" and not (value[1] or value[2]):  # no flags of its own
            states = _walk(value[3], states, ignore_case=ignore_case)
        elif name == "ATOMIC_GROUP":
            states = _walk(value, states, ignore_case=ignore_case)
        elif name == "BRANCH" or (name == "IN" and all(str(kind) == "LITERAL" for kind, _ in value)):
            each = value[1] if name == "BRANCH" else [[literal] for literal in value]
            branches = [_walk(branch, states, ignore_case=ignore_case) for branch in each]
            few = sum(map(len, branches)) <= MOST_ALTERNATIVES
            states = [state for branch in branches for state in branch] if few else _closed(states)
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            least, most, repeated = value
            written, before = 0, list[_State]()
            while written < least and states != before and sum(map(_size, states)) < MOST_BYTES:
                before, states = states, _walk(repeated, states, ignore_case=ignore_case)
                written += 1
            if written < most:
                states = _closed(states)
        else:
            states = _closed(states)
    return states


def _plain(character: int, ignore_case: bool) -> bool:
    """Whether only these bytes are this character: not of a newline, which no line contains; of what stands for bytes
    that are not UTF-8; of a surrogate. With a case only ASCII has bytes of one length."""
    if ignore_case:
        return character < 0x80 and character != ord("\n")
    return character != ord("\n") and character != 0xFFFD and not 0xD800 <= character < 0xE000


def _closed(states: list[_State]) -> list[_State]:
    """What comes next is not right behind what came last."""
    closed = [((*parts, run) if run else parts, "") for parts, run in states]
    return list(dict.fromkeys(closed))


def _size(state: _State) -> int:
    return sum(map(len, state[0])) + len(state[1])


def _bounded(parts: tuple[str, ...]) -> tuple[str, ...]:
    """As much of it as the daemon takes."""
    kept: list[str] = []
    left = MOST_BYTES
    for part in parts[:MOST_PARTS]:
        fits = part.encode()[:left].decode("utf-8", "ignore")
        left -= len(fits.encode())
        if fits:
            kept.append(fits)
        if fits != part:
            break
    return tuple(kept)
