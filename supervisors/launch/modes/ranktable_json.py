"""JSON that another program wrote, read strictly: every value knows at which place of its file it stands."""

import json
import re
from collections.abc import Iterator
from typing import Any

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.supervision_errors import SupervisionError

#: Counts, device numbers and ranks are far below it; HCCL reads them into 32 bits.
MAX_NUMBER = 2**31 - 1
#: Objects and lists of a document. A device is one; 4096 servers of 16 devices make 70,000. Python takes 70 bytes for
#: each even if it is empty, so that a file of nothing but `{},` would take 25 times its own size of memory.
MAX_PARTS = 1 << 21
#: Characters of a value that an error shows.
_SHOWN = 60
_BLANK = " \t\r\n"


class RankTableError(SupervisionError):
    """Raised when a rank table is damaged, contradicts itself, or does not have this node.

    `name` is the file and `place` where in it: `group_list[0].device_count`, `line 3 column 5`, or empty for the whole
    file. `torn` says that the text ends too early: somebody may still be writing it, so that it is worth a later look.
    """

    def __init__(self, name: str, place: str, what: str, *, torn: bool = False) -> None:
        super().__init__(f"{name}: {place}: {what}" if place else f"{name}: {what}")
        self.name = name
        self.place = place
        self.what = what
        self.torn = torn


class _Twice(dict[str, Any]):
    """An object in which a key stands twice."""

    __slots__ = ("key",)
    key: str


class _NotJson(str):
    """NaN or Infinity, which Python's reader knows and JSON does not."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value of the document `name`, and how one came to it. Its methods raise RankTableError, with that place."""

    name: str
    raw: Any
    within: "Value | None" = None
    key: str | int = ""

    @property
    def place(self) -> str:
        """Such as `group_list[0].device_count`; empty for the document itself."""
        steps: list[str] = []
        at: Value = self
        while at.within is not None:
            plain = isinstance(at.key, str) and at.key.isidentifier() and len(at.key) <= _SHOWN
            steps.append(f".{at.key}" if plain else f"[{shown(at.key)}]")
            at = at.within
        return "".join(reversed(steps)).removeprefix(".")

    def error(self, what: str) -> RankTableError:
        """An error that names file and place. `what`: what is wrong there."""
        return RankTableError(self.name, self.place, what)

    def has(self, key: str) -> bool:
        """Whether it is an object with that key."""
        return isinstance(self.raw, dict) and key in self.raw

    def member(self, key: str) -> "Value":
        """The value of a key that must be there."""
        if not isinstance(self.raw, dict):
            raise self.error(f"must be an object with {key}, is {shown(self.raw)}")
        if key not in self.raw:
            raise self.error(f"has no {key}")
        return Value(self.name, self.raw[key], self, key)

    def elements(self, *, nullable: bool = False) -> "list[Value]":
        """The elements of a list; `nullable`: null is an empty one."""
        if nullable and self.raw is None:
            return []
        if not isinstance(self.raw, list):
            raise self.error(f"must be a list, is {shown(self.raw)}")
        return [Value(self.name, raw, self, i) for i, raw in enumerate(self.raw)]

    def number(self) -> int:
        """A whole number from 0 to MAX_NUMBER, written as a number or as a string."""
        raw = self.raw
        if isinstance(raw, str) and re.fullmatch("[0-9]{1,10}", raw):
            raw = int(raw)
        if type(raw) is not int or not 0 <= raw <= MAX_NUMBER:
            raise self.error(f"must be a whole number from 0 to {MAX_NUMBER}, is {shown(self.raw)}")
        return raw

    def text(self, *, empty: bool = False) -> str:
        """A string of printable characters; `empty`: there may be none."""
        if not isinstance(self.raw, str) or not self.raw.isprintable() or not (self.raw or empty):
            raise self.error(f"must be {'' if empty else 'a name, '}a string that can be printed, is {shown(self.raw)}")
        return self.raw


def shown(raw: Any) -> str:
    """A value as an error shows it: whatever it is, one line that is not long."""
    match raw:
        case dict():
            return "an object"
        case list():
            return "a list"
        case None | bool():
            return json.dumps(raw)
        case str():
            return repr(raw) if len(raw) <= _SHOWN else f"{raw[:_SHOWN]!r}... ({len(raw)} characters)"
        case _:
            return f"{raw:g}" if isinstance(raw, float) else str(raw)


def load(data: bytes, name: str) -> Value:
    """Reads one JSON document. `name` is what errors call it.

    Raises RankTableError for what is no JSON, for keys that stand twice in one object, and for documents so deep or of
    so many parts that they cannot be a rank table; `torn` where only the end is missing.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        place = f"line {before.count(chr(10)) + 1} column {len(before) - before.rfind(chr(10))}"
        torn = error.reason == "unexpected end of data"
        raise RankTableError(name, place, f"is not UTF-8: {error.reason}", torn=torn) from None
    if data.count(b"{") + data.count(b"[") > MAX_PARTS:
        raise RankTableError(name, "", f"has more than {MAX_PARTS} objects and lists: this is not a rank table")
    odd: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        twice = _Twice(found)
        for key, _ in pairs:
            if key not in found:
                twice.key = key
                break
            del found[key]
        odd.append(twice.key)
        return twice

    def constant(word: str) -> _NotJson:
        odd.append(word)
        return _NotJson(word)

    try:
        raw = json.loads(text, object_pairs_hook=members, parse_constant=constant, parse_int=_whole)
    except json.JSONDecodeError as error:
        torn = _ends_too_early(text, error)
        place = f"line {error.lineno} column {error.colno}"
        what = "ends too early" if torn else "is not JSON"
        raise RankTableError(name, place, f"{what}: {error.msg}", torn=torn) from None
    except RecursionError:
        raise RankTableError(name, "", "is nested too deeply: this is not a rank table") from None
    top = Value(name, raw)
    if odd:
        raise _first_odd(top)
    return top


def _whole(digits: str) -> int | float:
    # int() refuses more than 4300 digits with an error that has no place; no number here has twenty.
    return int(digits) if len(digits) < 20 else float(digits)


def _ends_too_early(text: str, error: json.JSONDecodeError) -> bool:
    """Whether more text could have followed: nothing but a piece of one word, number or string stands behind the error.

    In doubt yes: looking again costs less than failing a job whose table is being written at this moment.
    """
    if not text.lstrip(_BLANK).startswith("{") or error.msg == "Extra data":
        return False
    rest = text[error.pos :].rstrip(_BLANK)
    return error.msg.startswith("Unterminated string") or re.fullmatch(r"[\w.+-]*", rest) is not None


def _first_odd(top: Value) -> RankTableError:
    """The error for the first thing, in the order of the document, that JSON does not have."""
    stack = [iter([top])]
    while stack:
        at = next(stack[-1], None)
        if at is None:
            stack.pop()
        elif isinstance(at.raw, _Twice):
            return at.member(at.raw.key).error("occurs twice in the same object: remove one of the two")
        elif isinstance(at.raw, _NotJson):
            return at.error(f"{at.raw} is not a JSON number")
        else:
            stack.append(_telling(at))
    raise AssertionError("what was odd while reading is in the document")


def _telling(at: Value) -> Iterator[Value]:
    """What stands directly in an object or a list and may be odd, or have something odd in it."""
    inner = at.raw.items() if isinstance(at.raw, dict) else enumerate(at.raw)
    return (Value(at.name, raw, at, key) for key, raw in inner if isinstance(raw, dict | list | _NotJson))
