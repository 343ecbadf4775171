"""Where the cursor is after output that a job wrote to the terminal, as far as that is certain. Pure."""

import re
import unicodedata
from enum import Enum

#: Longer unfinished lines are not looked at.
_MOST = 2048
#: Sequences that leave the cursor where it is: colours, erasing in the line, hiding the cursor, titles and links.
_HARMLESS = re.compile(rb"\x1b\[[0-9;:]*m|\x1b\[[0-2]?K|\x1b\[\?25[hl]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
#: A sequence that has begun, and may still become one of them.
_BEGUN = re.compile(rb"\x1b(?:\[[0-9;:?]{0,32}|\][^\x07\x1b]{0,1024}\x1b?)?\Z")
#: C1 controls as UTF-8, which some terminals obey; and controls that move the cursor or change the characters.
_C1 = re.compile(rb"\xc2[\x80-\x9f]")
_CONTROLS = (b"\x0b", b"\x0c", b"\x0e", b"\x0f")


class LinePlace(Enum):
    """Where something may be drawn that is not the job's: in the line of the cursor, which is empty; in the line below
    it; nowhere at the moment; nowhere any more, since the job moves the cursor itself."""

    HERE = "here"
    BELOW = "below"
    NOT_NOW = "not now"
    NEVER = "never"


class OutputTail:
    """Follows the output byte by byte, without a model of the screen: what is not certain is NOT_NOW."""

    def __init__(self) -> None:
        self._line = b""
        self._moves = False

    def take(self, data: bytes) -> None:
        """Takes output in the order in which the terminal gets it."""
        if self._moves:
            return
        whole = self._line + data
        # Of what came before only an unfinished line is left: sequences that it holds are judged once more, whole.
        if b"\x1b" in whole:
            self._moves = b"\x1b" in _BEGUN.sub(b"", _HARMLESS.sub(b"", whole))
        self._moves = self._moves or any(one in whole for one in _CONTROLS)
        self._moves = self._moves or (not whole.isascii() and _C1.search(whole) is not None)
        line = whole[whole.rfind(b"\n") + 1 :]
        self._line = line[max(0, line.rfind(b"\r")) :]  # with the \r: something stands in the line from its begin on
        if len(self._line) > _MOST:  # full; a sequence that has not ended at its end must stay whole
            self._line = b"\r" + b"x" * _MOST + self._line[-1100:]

    def begin_line(self) -> None:
        """The cursor is in an empty line: another program has moved it there."""
        self._line = b""

    def place(self, columns: int) -> LinePlace:
        """On a terminal that is so wide."""
        if self._moves:
            return LinePlace.NEVER
        if _BEGUN.search(self._line):
            return LinePlace.NOT_NOW
        try:
            text = _HARMLESS.sub(b"", self._line).decode()
        except UnicodeDecodeError:  # a character that has not ended, or another encoding
            return LinePlace.NOT_NOW
        if not text:
            return LinePlace.HERE
        # A line that may be full, or more than one, may have its cursor behind its last column: any move loses that.
        return LinePlace.BELOW if _at_most(text) < columns else LinePlace.NOT_NOW


def _at_most(text: str) -> int:
    """How many columns a text takes at most."""
    if text.isascii():
        return len(text) + 7 * text.count("\t")
    return sum(8 if char == "\t" else 0 if unicodedata.combining(char) else 1 if char.isascii() else 2 for char in text)
