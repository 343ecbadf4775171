"""Turns the output of several ranks into one stream: whole lines, each with its origin."""

import re
from collections.abc import Callable, Iterator
from itertools import compress

from muster.agent.text import rfc3339
from muster.probes.kernel.dataclass import dataclass

#: A line that is longer (no newline in sight) is passed on in pieces of about this many bytes.
MAX_LINE = 65536

Write = Callable[[bytes], None]


@dataclass(slots=True)
class _Held:
    """A line that has not ended: the part that was not passed on, when it began (seconds since the epoch; 0: unknown),
    and, once a piece of it was passed on, whether it is `shown`."""

    data: bytes = b""
    since: float = 0.0
    shown: bool | None = None


class Raw:
    """One rank: the bytes as they are. What muster has to say of it goes `aside`, or, without that, among them."""

    def __init__(self, write: Write, aside: Callable[[str], object] | None = None) -> None:
        self._write, self._aside = write, aside

    def feed(self, source: str, data: bytes, time: float) -> None:
        if self._aside is not None and source == "muster":
            self._aside(data.decode("utf-8", "replace").rstrip("\n"))
        else:
            self._write(data)

    def cut(self, source: str) -> None:
        """Does nothing: no line is held."""

    def finish(self) -> None:
        """Does nothing: no line is held."""


class LabelledLines:
    """Whole lines, each with its label, `[rank 3] `, and its time on request; only lines that match `grep`, if given.

    A line that has not ended is held until its newline arrives or until `finish`, so lines of several sources never
    mix. A line over MAX_LINE bytes is passed on in pieces, and its first piece decides whether it matches. With
    `several` sources every piece becomes a line with its own label.
    """

    def __init__(
        self,
        write: Write,
        *,
        label: bool,
        timestamps: bool = False,
        several: bool = True,
        grep: "re.Pattern[str] | None" = None,
        lines: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """`lines`: of whole lines all that match `grep`, and few others."""
        self._write = write
        self.label = label
        self._timestamps = timestamps
        self._several = several
        self._grep = grep
        self._few = lines
        #: Whether each of these matches; ignoring case, only those of a block without text beyond ASCII.
        self._exact = lines is not None and grep is not None and _is_word(grep)
        self._ignore_case = grep is not None and bool(grep.flags & re.IGNORECASE)
        #: Whether most lines matched where they were looked at last.
        self._dense = False
        self._held: dict[str, _Held] = {}

    def feed(self, source: str, data: bytes, time: float) -> None:
        """Takes output of a source (`rank 3`, `job`, ...) that was written at `time`."""
        held = self._held.pop(source, None) or _Held(since=time)
        first = data.find(b"\n") + 1
        if first:
            self._line(source, held, data[:first])
            end = data.rfind(b"\n") + 1
            if first < end:
                self._lines(source, data[first:end], time)
            held, data = _Held(since=time), data[end:]
        held.data += data
        if len(held.data) >= MAX_LINE:
            self._piece(source, held)
        if held.data or held.shown is not None:
            self._held[source] = held

    def held(self, source: str) -> int:
        """Bytes of a source that were not passed on yet."""
        held = self._held.get(source)
        return len(held.data) if held is not None else 0

    def cut(self, source: str) -> None:
        """The next output of `source` does not continue the last one."""
        held = self._held.pop(source, None)
        if held is not None and (held.data or (held.shown and not self._several)):
            # Adds a newline: nothing else will end this line.
            self._line(source, held, b"\n")

    def finish(self) -> None:
        """Passes on the held lines."""
        for source in sorted(self._held):
            self.cut(source)

    def _line(self, source: str, held: _Held, end: bytes) -> None:
        """Ends the held line."""
        if held.shown is None:
            self._lines(source, held.data + end, held.since)
        elif held.shown and not self._several:
            self._write(held.data + end)
        elif held.shown and (held.data or end != b"\n"):
            self._write(self._prefix(source, held.since) + held.data + end)

    def _piece(self, source: str, held: _Held) -> None:
        """Passes on a piece of a line that continues."""
        begins = held.shown is None
        if held.shown is None:
            held.shown = self._wanted(held.data)
        if held.shown:
            prefix = self._prefix(source, held.since) if begins or self._several else b""
            self._write(prefix + held.data + (b"\n" if self._several else b""))
        held.data = b""

    def _lines(self, source: str, data: bytes, time: float) -> None:
        """Whole lines."""
        if self._grep is not None:
            data = self._matching(data)
        if data:
            prefix = self._prefix(source, time)
            self._write(prefix + data[:-1].replace(b"\n", b"\n" + prefix) + b"\n" if prefix else data)

    def _matching(self, data: bytes) -> bytes:
        """Those of whole lines that match."""
        exact = self._exact and (not self._ignore_case or data.isascii())
        # Where most lines match, to look first for those that may saves nothing.
        if self._few is not None and (exact or not self._dense):
            data = self._few(data)
        pieces = whole_lines(data, 0, len(data), MAX_LINE)
        return b"".join([self._matching_piece(data[begin:end], exact) for begin, end in pieces])

    def _matching_piece(self, data: bytes, exact: bool) -> bytes:
        """Of whole lines with no more than MAX_LINE bytes together, or of a longer one; `exact`: each matches."""
        assert self._grep is not None
        if len(data) > MAX_LINE:
            return data if self._wanted(data[:-1]) else b""
        if exact:
            return data
        ascii_only = data.isascii()
        texts = whole = data[:-1].decode("utf-8", "replace").split("\n")
        if b"\r" in data:
            texts = [text.rstrip("\r") for text in whole]
        found = [bool(match) for match in map(self._grep.search, texts)]
        few = sum(found)
        self._dense = few * 2 > len(texts)
        if few == len(texts):
            return data
        if ascii_only:
            return "".join([f"{line}\n" for line in compress(whole, found)]).encode()
        return b"".join([line + b"\n" for line in compress(data.split(b"\n"), found)])

    def _wanted(self, line: bytes) -> bool:
        # Decoded, so a dot matches a character; bytes that are not UTF-8 match no literal pattern.
        return self._grep is None or bool(self._grep.search(line[:MAX_LINE].rstrip(b"\r").decode("utf-8", "replace")))

    def _prefix(self, source: str, time: float) -> bytes:
        label = f"[{source}] " if self.label else ""
        stamp = (rfc3339(time) if time else "-".ljust(24)) + " " if self._timestamps else ""
        return (label + stamp).encode()


def _is_word(pattern: "re.Pattern[str]") -> bool:
    """Whether it matches what contains it, and nothing else."""
    if pattern.flags & re.IGNORECASE and not pattern.pattern.isascii():
        return False
    return not (pattern.flags & re.VERBOSE or re.search(r"[\\.^$*+?{}\[\]|()\r\n\ufffd]", pattern.pattern))


def whole_lines(data: bytes, start: int, stop: int, most: int) -> Iterator[tuple[int, int]]:
    """Begin and end of pieces of [start, stop), which begins with a line: whole lines of at most `most` bytes together,
    or one that is longer."""
    while start < stop:
        end = data.rfind(b"\n", start, min(start + most, stop)) + 1
        if not end:
            end = data.find(b"\n", start, stop) + 1 or stop
        yield start, end
        start = end
