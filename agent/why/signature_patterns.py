"""The dialect of regular expressions in which signatures are written, and why it is one.

Python's engine tries all ways to match, holds the interpreter's lock for as long as that takes, and knows no time
limit; and what it looks at is written by jobs. So a pattern may only be one whose worst case is small, which this
module finds out by reading it: every repetition has a bound, no group is repeated, nothing looks back or ahead, and all
ways to match from one place are at most `MAX_WAYS`. And it holds a run of plain characters that every match has, so
that most lines need no regular expression at all.
"""

import re
from dataclasses import dataclass

#: Characters of a pattern; ways to match from one place; repetitions of one element.
MAX_LENGTH, MAX_WAYS, MAX_REPEAT = 400, 5000, 400
#: Characters in a row that every match must have.
MIN_LITERAL = 4
_QUANTIFIER = re.compile(r"\{([0-9]{1,4})?(,)?([0-9]{1,4})?\}")
_CLASSES = frozenset("dDwWsSbBt")


class BadPattern(ValueError):
    """Raised for a pattern that is not of the dialect. The message is a sentence's end."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern, and the longest run of characters that a line must have to match."""

    source: str
    regex: re.Pattern[str]
    literal: str

    @property
    def anchored(self) -> bool:
        """It matches at the begin of a line only."""
        return self.source.startswith("^")


def compiled(source: str) -> Pattern:
    """Reads a pattern. Raises BadPattern."""
    if not 0 < len(source) <= MAX_LENGTH:
        raise BadPattern(f"has {len(source)} characters: allowed are 1 to {MAX_LENGTH}")
    if not source.isprintable():
        raise BadPattern(r"holds a character that cannot be seen: write \t for a tab; a pattern is one line")
    reader = _Reader(source)
    literal = reader.read()
    if reader.ways > MAX_WAYS:
        raise BadPattern(
            f"can match in {reader.ways} ways from one place, and {MAX_WAYS} are the most: "
            "bound its repetitions more closely, or make two patterns of it"
        )
    if len(literal) < MIN_LITERAL:
        raise BadPattern(f"needs {MIN_LITERAL} plain characters in a row, outside of groups, that each match has")
    try:
        return Pattern(source, re.compile(source), literal)
    except re.error as error:
        raise BadPattern(f"is no regular expression: {error}") from None


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
                raise BadPattern("may have groups (...) and (?:...) only")
            self._at += 2
        self._depth += 1
        self._branches.append(1)

    def _close(self) -> None:
        if not self._depth:
            raise BadPattern("closes a group that is not open")
        self._at += 1
        self._depth -= 1
        least, most = self._repetition()
        if most > 1:
            raise BadPattern("repeats a group: only ? may stand behind one")
        self.ways *= self._branches.pop() + (least == 0)

    def _branch(self) -> None:
        if not self._depth:
            raise BadPattern("has a | outside of a group: give two patterns instead")
        self._branches[-1] += 1
        self._at += 1

    def _element(self, char: str) -> None:
        plain = ""
        if char in "*+?{":
            raise BadPattern(f"has a {char} that repeats nothing; a plain one is written \\{char}")
        if char == "\\":
            following = self._source[self._at + 1 : self._at + 2]
            if following.isalnum() and following not in _CLASSES:
                raise BadPattern(
                    f"has \\{following}: of letters only {' '.join(sorted(_CLASSES))} may be behind a backslash"
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
                raise BadPattern("has a [ within a set: a plain one is written \\[")
            at += 2 if char == "\\" else 1
        raise BadPattern("has a set that is not closed")

    def _repetition(self) -> tuple[int, int]:
        """How often what was just read may be there, at least and at most."""
        rest = self._source[self._at : self._at + 1]
        bounds = (1, 1)
        if rest in ("*", "+"):
            raise BadPattern(f"repeats without a bound: write {{0,80}}, say, in the place of {rest}")
        if rest == "?":
            self._at += 1
            bounds = (0, 1)
        elif rest == "{":
            match = _QUANTIFIER.match(self._source, self._at)
            if match is None or (match[1] is None and match[3] is None):
                raise BadPattern("has a { that is no repetition: a plain one is written \\{")
            if match[2] and match[3] is None:
                raise BadPattern(f"repeats without a bound: {match[0]}")
            least = int(match[1] or 0)
            most = int(match[3]) if match[2] else least
            if not least <= most <= MAX_REPEAT:
                raise BadPattern(f"has {match[0]}: at most {MAX_REPEAT} repetitions, and not fewer than at least")
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
