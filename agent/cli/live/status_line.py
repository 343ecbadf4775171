"""A status line on the terminal below the output: rewritten in place, never mixed with output, erased at the end.

The output of a job is written as it comes. Before it, the line is erased; after it, the line is drawn again, with the
cursor, the colours and the character set of the output saved and restored. If it is not certain that this damages
nothing (`OutputTail`), nothing is drawn. Nothing is ever drawn into a pipe or a file, nor from the background.
"""

import os
import re
import signal
import stat
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from types import FrameType, TracebackType
from typing import Self

from muster.agent.cli import printing
from muster.agent.cli.exits import StdoutFailed
from muster.agent.text import span
from muster.probes.kernel.dataclass import dataclass

_SAVE, _RESTORE, _PLAIN = b"\x1b7", b"\x1b8", b"\x1b[0m"
_ERASE, _DOWN = b"\x1b[J", b"\x1b[B\r"
#: Makes room below the cursor's line, at the bottom of the screen, too, and leaves the cursor where it was.
_ROOM = b"\x1bD\x1b[A"
#: Fewer columns and rows are left alone.
_NARROWEST, _FEWEST = 12, 3
#: Seconds for which a message waits for the terminal to take what is being written.
_WAIT_S = 1.0
#: Longer unfinished lines are not looked at.
_LONGEST = 2048
#: Sequences that leave the cursor where it is: colours, erasing in the line, hiding the cursor, titles and links.
_HARMLESS = re.compile(rb"\x1b\[[0-9;:]*m|\x1b\[[0-2]?K|\x1b\[\?25[hl]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
#: A sequence that has begun, and may still become one of them.
_BEGUN = re.compile(rb"\x1b(?:\[[0-9;:?]{0,32}|\][^\x07\x1b]{0,1024}\x1b?)?\Z")
#: C1 controls as UTF-8, which some terminals obey; and controls that move the cursor or change the characters.
_C1 = re.compile(rb"\xc2[\x80-\x9f]")
_CONTROLS = (b"\x0b", b"\x0c", b"\x0e", b"\x0f")


@dataclass(frozen=True, slots=True)
class Part:
    """A word or two of the line; `look`: parameters of a colour, as `1;32`; `cut`: what does not fit is cut off, not
    left out."""

    text: str
    look: str = ""
    cut: bool = False


def wanted() -> bool:
    """Whether there is a place for it: stderr is a terminal that can be drawn on, and stdout the same one or a file.
    Who reads a pipe may show on the terminal what it reads, and would not step aside."""
    try:
        if not os.isatty(2) or os.environ.get("TERM", "") in ("dumb", ""):
            return False
        mode = os.fstat(1).st_mode
        return printing.is_terminal_of_stderr(1) or not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(1))
    except OSError:
        return False


class StatusLine:
    """The line, for the length of a `with` in the main thread. Any thread may `show` and write."""

    def __init__(self) -> None:
        self._one = threading.RLock()
        self._tail = OutputTail()
        self._parts: Sequence[Part] = ()
        self._drawn: LinePlace | None = None
        self._shares_stdout = printing.is_terminal_of_stderr(1)
        self._colours = not os.environ.get("NO_COLOR")
        self._writing = self._asked_to_stop = False
        self._before: object = None

    def __enter__(self) -> Self:
        printing.step_aside(self)
        # Ctrl-Z: the shell that is in front then gets a terminal without the line. Where somebody ignores it, so do we.
        if threading.current_thread() is threading.main_thread() and (
            signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
        ):
            self._before = signal.signal(signal.SIGTSTP, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        printing.step_aside(None)
        if self._before is not None:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        self.show(())

    def show(self, parts: Sequence[Part]) -> None:
        """Draws these parts, the most important one first, and as many as there is room for; none of none."""
        if self._one.acquire(timeout=_WAIT_S):
            try:
                self._parts = parts
                self._write(2, b"")
            except StdoutFailed:
                pass  # the terminal was closed; the command goes on
            finally:
                self._one.release()

    def passing(self, fd: int, data: bytes) -> None:
        """Writes output to stdout or stderr, and keeps out of its way. Raises StdoutFailed."""
        if fd == 1 and not self._shares_stdout:
            printing.write_through(data, fd)
        elif not self._one.acquire(timeout=-1 if fd == 1 else _WAIT_S):
            printing.write_through(data, fd)  # the terminal takes nothing; a message waits for no lock as well
        else:
            try:
                self._write(fd, data)
            finally:
                self._one.release()

    def _write(self, fd: int, data: bytes) -> None:
        """One write for all: the line does not flicker, and nothing comes between."""
        with self._held_up():
            gone = self._erasing() if data else b""
            self._tail.take(data)
            if whole := gone + data + self._drawing():
                printing.write_through(whole, fd)

    @contextmanager
    def _held_up(self) -> Iterator[None]:
        """Inside, Ctrl-Z waits until all is written, where it interrupts the writing thread: the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        outer, self._writing = self._writing, True
        try:
            yield
        finally:
            self._writing = outer
        if self._asked_to_stop and not outer:
            self._stop(signal.SIGTSTP, None)

    def _erasing(self) -> bytes:
        place, self._drawn = self._drawn, None
        if place is None:
            return b""
        # Below, the room is made once more: where the terminal has become lower, the cursor is in its last line.
        there = b"\r" + _SAVE if place is LinePlace.HERE else _ROOM + _SAVE + _DOWN
        return there + _PLAIN + _ERASE + _RESTORE

    def _drawing(self) -> bytes:
        rows, columns = _size()
        place = self._tail.place(columns)
        fits = rows >= _FEWEST and columns >= _NARROWEST and place in (LinePlace.HERE, LinePlace.BELOW)
        text = self._fitting(columns - 1) if fits and self._parts and _in_front() else b""
        if not text:
            return self._erasing()
        self._drawn = place
        there = b"\r" + _SAVE if place is LinePlace.HERE else _ROOM + _SAVE + _DOWN
        return there + _PLAIN + text + _PLAIN + _ERASE + _RESTORE

    def _fitting(self, columns: int) -> bytes:
        out, used = "", 0
        for part in self._parts:
            text = part.text if out and not part.cut else part.text[: max(0, columns - used - 2 * bool(out))]
            if not text or used + len(text) + 2 * bool(out) > columns:
                break
            used += len(text) + 2 * bool(out)
            coloured = f"\x1b[{part.look}m{text}\x1b[0m" if part.look and self._colours else text
            out += ("  " if out else "") + coloured
        return out.encode("ascii", "replace")

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z."""
        self._asked_to_stop = self._writing
        if self._writing:
            return
        held = self._one.acquire(timeout=_WAIT_S)
        try:
            if held:
                with suppress(StdoutFailed):
                    printing.write_through(self._erasing(), 2)
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, self._stop)
            if held:  # it goes on, in front or behind; meanwhile the shell has written, and ended its line
                self._tail.begin_line()
                with suppress(StdoutFailed):
                    self._write(2, b"")
        finally:
            if held:
                self._one.release()


def clock(seconds: float) -> str:
    """A running time, in whole seconds at first."""
    return f"{int(seconds)}s" if seconds < 60 else span(seconds)


def _size() -> tuple[int, int]:
    """Rows and columns; zeros if unknown."""
    try:
        columns, rows = os.get_terminal_size(2)
    except OSError:
        return 0, 0
    return rows, columns


def _in_front() -> bool:
    """False in the background of a shell. True where there is no job control."""
    try:
        return os.tcgetpgrp(2) == os.getpgrp()
    except OSError:
        return True


class LinePlace(Enum):
    """Where something may be drawn that is not the job's: in the line of the cursor, which is empty; in the line below
    it; nowhere at the moment; nowhere any more, since the job moves the cursor itself."""

    HERE = "here"
    BELOW = "below"
    NOT_NOW = "not now"
    NEVER = "never"


class OutputTail:
    """Where the cursor is after output that a job wrote to the terminal, as far as that is certain. Follows the output
    byte by byte, without a model of the screen: what is not certain is NOT_NOW."""

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
        if len(self._line) > _LONGEST:  # full; a sequence that has not ended at its end must stay whole
            self._line = b"\r" + b"x" * _LONGEST + self._line[-1100:]

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
