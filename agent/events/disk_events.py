"""The events of a node as they lie on disk, for a reader beside the daemon or after it."""

from collections.abc import Callable
from pathlib import Path

from muster.agent import threads
from muster.agent.events import segments
from muster.agent.events.event_store import Event


class DiskEvents:
    """Reads the events that `chosen` wants, once, and changes nothing: a torn end stays."""

    def __init__(self, folder: Path, chosen: Callable[[Event], bool] = lambda event: True) -> None:
        self.folder, self._chosen = folder, chosen
        self._found: list[Event] | None = None
        #: Lines that could not be read.
        self.damaged = 0

    async def read(self, cursor: str | None, limit: int) -> list[tuple[Event, str]]:
        """At most `limit` events behind `cursor` (None: from the oldest), each with the cursor behind it. Raises
        OSError."""
        if self._found is None:
            self._found = await threads.run(self._read)
        begin = 0 if cursor is None else int(cursor)
        part = self._found[begin : begin + limit]
        return [(event, str(number)) for number, event in enumerate(part, begin + 1)]

    def _read(self) -> list[Event]:
        found: list[Event] = []

        def told(x: segments.Line) -> None:
            event = Event(x.t, x.k, x.j, x.r, x.m, x.s, x.a)
            # The first one tells how far back the events go.
            if not found or self._chosen(event):
                found.append(event)

        self.damaged = sum(one.damaged for one in segments.scan(self.folder, told, mend=False))
        return found
