"""Events among the output of ranks: those that a job's own log does not tell already, as lines in the order of time."""

import time
from collections import deque
from collections.abc import Callable

from muster.agent.errors import CursorTooOld
from muster.agent.events.event_store import Event, EventStore

#: Events taken from the store at once; and the most that `last` gives.
PAGE = 256
#: What a job's own log says in words of its own.
_IN_THE_LOG = frozenset(
    (
        "job.checking",
        "job.checked",
        "job.preparing",
        "job.step",
        "job.step_ended",
        "job.running",
        "job.restarting",
        "job.ended",
        "rank.exited",
    )
)


class EventLines:
    """What a reader is still to be told. It holds one page of events, however many there are."""

    def __init__(
        self,
        events: EventStore,
        job_id: str,
        cursor: str,
        *,
        since: int | None = None,
        until: int | None = None,
        losses_of: Callable[[int | None], bool] | None = None,
    ) -> None:
        """Of one job, or of all jobs and the node (`job_id` empty), behind `cursor` (empty: from the oldest), told at
        or after `since` and not after `until` (nanoseconds since the epoch).
        `losses_of`: only events of output that is lost, of these ranks (asked with None: of the job's own log)."""
        self._events = events
        self._job_id = job_id
        self._behind = cursor or None
        self._since = since or 0
        self._until = until
        self._losses_of = losses_of
        self._page: deque[tuple[Event, str]] = deque()

    @property
    def more(self) -> bool:
        """Whether `take` may have something."""
        return bool(self._page) or self._behind != self._events.newest_cursor()

    @property
    def cursor(self) -> str:
        """Behind all that was looked at; once `take` had nothing more."""
        return self._behind or ""

    async def last(self, count: int) -> None:
        """Passes over all but the last `count` events (at most PAGE). Raises InvalidRequest."""
        kept: deque[tuple[Event, str]] = deque(maxlen=min(count, PAGE))
        while await self._read():
            kept.extend(self._page)
            self._page.clear()
        self._page = deque(kept)

    async def take(self, when: int | None = None) -> list[tuple[bytes, int, str]]:
        """The next events that were told at or before `when` (nanoseconds; None: at any time): line, time, and the
        cursor behind it. Empty: there are no more. Raises InvalidRequest for a cursor that is none."""
        if not self._page:
            await self._read()
        found = []
        while self._page and (when is None or self._page[0][0].time * 1e9 <= when):
            event, cursor = self._page.popleft()
            found.append((self._line(event), round(event.time * 1e6) * 1000, cursor))
        return found

    async def _read(self) -> bool:
        """Fills the page; False where the store has nothing more for it."""
        while not self._page:
            newest = self._events.newest_cursor()
            if self._behind == newest:
                return False
            try:
                batch = await self._events.read(self._behind, PAGE)
            except CursorTooOld:
                self._behind = None  # what is no longer kept is not told
                continue
            self._behind = batch[-1][1] if batch else newest
            self._page.extend((event, cursor) for event, cursor in batch if self._wanted(event))
        return True

    def _wanted(self, event: Event) -> bool:
        if event.kind in _IN_THE_LOG or (self._job_id and event.job_id != self._job_id):
            return False
        if self._losses_of is not None and (event.kind != "job.output_lost" or not self._losses_of(event.rank)):
            return False
        if event.kind == "job.stopping" and event.attributes.get("cause") == "requested":
            return False
        return event.time * 1e9 >= self._since and (self._until is None or event.time * 1e9 <= self._until)

    def _line(self, event: Event) -> bytes:
        """As the lines of a job's own log: the local time, then what there is to say."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(event.time)) + f".{int(event.time % 1 * 1000):03d}"
        whose = f"{event.job_id} " if event.job_id and not self._job_id else ""
        return f"{stamp} {whose}{event.kind}: {' '.join(event.message.splitlines())}\n".encode("utf-8", "replace")
