"""How the output of several ranks becomes one stream: whole lines, each with the rank it came from."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.cli.text import rfc3339
from supervisors.states import JOB

#: A line that is longer (no newline in sight) is passed on in pieces of about this many bytes.
MAX_LINE = 65536

Write = Callable[[bytes], None]


@dataclass(slots=True)
class _Held:
    """A line of one rank that has not ended, and when it began (seconds since the epoch)."""

    data: bytes = b""
    since: float = 0.0


class Raw:
    """One rank: the bytes as they are."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def feed(self, rank: int, data: bytes, time: float) -> None:
        self._write(data)

    def finish(self) -> None:
        """Nothing is held."""


class Lines:
    """Whole lines, each with what `prefix` says: `[rank 3] ` and, if wanted, its time.

    A line that has not ended is held until its newline comes or until `finish`, so that lines of several ranks never
    mix. Of a line over MAX_LINE bytes every piece becomes a line with a prefix of its own.
    """

    def __init__(self, write: Write, *, label: bool, timestamps: bool) -> None:
        self._write = write
        self._label = label
        self._timestamps = timestamps
        self._held: dict[int, _Held] = {}

    def feed(self, rank: int, data: bytes, time: float) -> None:
        """Takes output of a rank that was written at `time`."""
        held = self._held.setdefault(rank, _Held())
        if not held.data:
            held.since = time
        cut = data.rfind(b"\n") + 1
        if cut:
            first = data.find(b"\n") + 1
            out = self._prefix(rank, held.since) + held.data + data[:first]
            if first < cut:
                prefix = self._prefix(rank, time)
                out += prefix + data[first : cut - 1].replace(b"\n", b"\n" + prefix) + b"\n"
            held.data, held.since = data[cut:], time
            self._write(out)
        else:
            held.data += data
        if len(held.data) >= MAX_LINE:
            self._flush(rank, held)

    def finish(self) -> None:
        """Passes on what is held; a newline is added, since nothing else will end these lines."""
        for rank, held in sorted(self._held.items()):
            if held.data:
                self._flush(rank, held)

    def _flush(self, rank: int, held: _Held) -> None:
        data, held.data = held.data, b""
        self._write(self._prefix(rank, held.since) + data + b"\n")

    def _prefix(self, rank: int, time: float) -> bytes:
        label = ("[job] " if rank == JOB else f"[rank {rank}] ") if self._label else ""
        stamp = f"{rfc3339(time)} " if self._timestamps else ""
        return (label + stamp).encode()
