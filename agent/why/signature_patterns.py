"""The dialect of regular expressions for signatures, and the reason for it.

Python's engine tries all ways to match, holds the interpreter's lock meanwhile, and has no time limit; and jobs write
the text that it searches. So a pattern must have a small worst case. This module proves that by reading the pattern:
every repetition has a bound, no group is repeated, nothing looks back or ahead, and there are at most `MAX_WAYS` ways
to match from one place. A pattern also contains a run of plain characters that every match has, so most lines need no
regular expression at all.
"""

import re

from muster.probes.kernel.dataclass import dataclass

#: Characters of a pattern; ways to match from one place; repetitions of one element.
MAX_LENGTH, MAX_WAYS, MAX_REPEAT = 400, 5000, 400
#: Characters in a row that every match must have.
MIN_LITERAL = 4
_QUANTIFIER = re.compile(r"\{([0-9]{1,4})?(,)?([0-9]{1,4})?\}")
_CLASSES = frozenset("dDwWsSbBt")


class BadPattern(ValueError):
    """Raised for a pattern outside the dialect. The message is the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern, and the longest run of characters that a line must have to match."""

    source: str
    literal: str

    @property
    def regex(self) -> re.Pattern[str]:
        """`re` keeps those that are used. Of the thousand that muster has hardly one is, because most lines lack the
        literal; all of them compiled would be a good part of what the daemon needs to explain a job."""
        return re.compile(self.source)

    @property
    def anchored(self) -> bool:
        """Whether it matches only at the start of a line."""
        return self.source.startswith("^")


def read(source: str, *, proven: bool = False) -> Pattern:
    """`proven`: of muster's own table, which a test compiles. Raises BadPattern."""
    if not 0 < len(source) <= MAX_LENGTH:
        raise BadPattern(f"has {len(source)} characters: must have 1 to {MAX_LENGTH}")
    if not source.isprintable():
        raise BadPattern(r"has an invisible character: write \t for a tab; a pattern is one line")
    reader = _Reader(source)
    literal = reader.read()
    if reader.ways > MAX_WAYS:
        raise BadPattern(
            f"can match in {reader.ways} ways from one place, at most {MAX_WAYS} are allowed: "
            "use tighter bounds for its repetitions, or split it into two patterns"
        )
    if len(literal) < MIN_LITERAL:
        raise BadPattern(f"needs {MIN_LITERAL} plain characters in a row, outside groups, that each match has")
    if not proven:
        try:
            re.compile(source)
        except re.error as error:
            raise BadPattern(f"is not a regular expression: {error}") from None
    return Pattern(source, literal)


class _Reader:
    """Reads one pattern from left to right."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._depth = 0
        #: Branches of the groups that are open.
        self._branches: list[int] = []
        self._run = ""
        self._longest = ""
        self.ways = 1

    def read(self) -> str:
        """The longest run of plain characters outside of groups."""
        while self._at < len(self._source):
            char = self._source[self._at]
            if char == "(":
                self._open()
            elif char == ")":
                self._close()
            elif char == "|":
                self._branch()
            else:
                self._element(char)
        if self._depth:
            raise BadPattern("has a group that is not closed")
        self._end_run()
        return self._longest

    def _open(self) -> None:
        self._end_run()
        self._at += 1
        if self._source.startswith("?", self._at):
            if not self._source.startswith("?:", self._at):
                raise BadPattern("has an unsupported group: only (...) and (?:...) are allowed")
            self._at += 2
        self._depth += 1
        self._branches.append(1)

    def _close(self) -> None:
        if not self._depth:
            raise BadPattern("closes a group that it did not open")
        self._at += 1
        self._depth -= 1
        least, most = self._repetition()
        if most > 1:
            raise BadPattern("repeats a group: only ? may follow a group")
        self.ways *= self._branches.pop() + (least == 0)

    def _branch(self) -> None:
        if not self._depth:
            raise BadPattern("has a | outside a group: write two patterns instead")
        self._branches[-1] += 1
        self._at += 1

    def _element(self, char: str) -> None:
        plain = ""
        if char in "*+?{":
            raise BadPattern(f"has a {char} that repeats nothing; write a plain one as \\{char}")
        if char == "\\":
            following = self._source[self._at + 1 : self._at + 2]
            if following.isalnum() and following not in _CLASSES:
                raise BadPattern(
                    f"has \\{following}: the only letters allowed after a backslash are {' '.join(sorted(_CLASSES))}"
                )
            if not following:
                raise BadPattern("ends with a backslash")
            plain = "" if following.isalnum() else following
            self._at += 2
        elif char == "[":
            self._at = self._end_of_set()
        else:
            plain = "" if char in ".^$" else char
            self._at += 1
        least, most = self._repetition()
        self.ways *= most - least + 1
        if self._depth:
            return
        if plain and (least, most) == (1, 1):
            self._run += plain
        else:
            self._end_run()

    def _end_of_set(self) -> int:
        at = self._at + 1
        if self._source.startswith("^", at):
            at += 1
        if self._source.startswith("]", at):
            at += 1
        while at < len(self._source):
            char = self._source[at]
            if char == "]":
                return at + 1
            if char == "[":
                raise BadPattern("has a [ in a set: write a plain one as \\[")
            at += 2 if char == "\\" else 1
        raise BadPattern("has a set that is not closed")

    def _repetition(self) -> tuple[int, int]:
        """How often the element just read may occur, at least and at most."""
        rest = self._source[self._at : self._at + 1]
        bounds = (1, 1)
        if rest in ("*", "+"):
            raise BadPattern(f"repeats without a bound: write a bound such as {{0,80}} instead of {rest}")
        if rest == "?":
            self._at += 1
            bounds = (0, 1)
        elif rest == "{":
            match = _QUANTIFIER.match(self._source, self._at)
            if match is None or (match[1] is None and match[3] is None):
                raise BadPattern("has a { that is not a repetition: write a plain one as \\{")
            if match[2] and match[3] is None:
                raise BadPattern(f"repeats without a bound: {match[0]}")
            least = int(match[1] or 0)
            most = int(match[3]) if match[2] else least
            if not least <= most <= MAX_REPEAT:
                raise BadPattern(
                    f"has {match[0]}: at most {MAX_REPEAT} repetitions are allowed, and a maximum not below the minimum"
                )
            self._at = match.end()
            bounds = (least, most)
        if bounds != (1, 1) and self._source.startswith("?", self._at):
            self._at += 1  # as few as possible
        if bounds != (1, 1) and self._source.startswith(("*", "+", "?", "{"), self._at):
            raise BadPattern("repeats a repetition")
        return bounds

    def _end_run(self) -> None:
        self._longest = max(self._longest, self._run, key=len)
        self._run = ""
