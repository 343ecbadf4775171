"""Turns the output of several ranks into one stream: whole lines, each with its origin."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from muster.agent.logs.line_filter import MAX_LINE, LineMatch
from muster.agent.text import rfc3339
from muster.probes.kernel.dataclass import dataclass

if TYPE_CHECKING:
    from muster.agent.logs.pieces.piece_search import Found

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
        grep: LineMatch | None = None,
    ) -> None:
        self._write = write
        self.label = label
        self._timestamps = timestamps
        self._several = several
        self._grep = grep
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

    def joins(self, source: str, size: int) -> bool:
        """Whether so many more bytes, which end the line of a source, are not passed on in pieces."""
        return self.held(source) + size <= MAX_LINE

    def feed_found(self, source: str, found: "Found", time: float) -> None:
        """As `feed`, of output that was searched for lines that match `grep`, and of which `joins` says so."""
        head, lines, tail = found
        held = self._held.pop(source, None) or _Held(since=time)
        self._line(source, held, head)
        for data in lines:
            self._show(source, data, time)
        if tail:
            self._held[source] = _Held(tail, time)

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
            held.shown = self._grep is None or self._grep.wanted(held.data)
        if held.shown:
            prefix = self._prefix(source, held.since) if begins or self._several else b""
            self._write(prefix + held.data + (b"\n" if self._several else b""))
        held.data = b""

    def _lines(self, source: str, data: bytes, time: float) -> None:
        """Whole lines."""
        if self._grep is not None:
            data = self._grep.lines(data, 0, len(data))
        self._show(source, data, time)

    def _show(self, source: str, data: bytes, time: float) -> None:
        """Whole lines that match."""
        if data:
            prefix = self._prefix(source, time)
            self._write(prefix + data[:-1].replace(b"\n", b"\n" + prefix) + b"\n" if prefix else data)

    def _prefix(self, source: str, time: float) -> bytes:
        label = f"[{source}] " if self.label else ""
        stamp = (rfc3339(time) if time else "-".ljust(24)) + " " if self._timestamps else ""
        return (label + stamp).encode()
