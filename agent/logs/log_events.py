"""Events among the output of ranks: those that are not in the job's own log, as lines in order of time."""

from collections import deque
from collections.abc import Callable

from muster.agent.errors import CursorTooOld
from muster.agent.events.event_store import Event, EventStore
from muster.supervisors.model import job_logs

#: Events read from the store at once; also the limit of `last`.
PAGE = 256
#: Events that a job's own log already reports in its own words.
_IN_THE_LOG = frozenset(
    (
        "job.checking",
        "job.checked",
        "job.preparing",
        "job.services",
        "job.service_ended",
        "job.step",
        "job.step_ended",
        "job.running",
        "job.restarting",
        "job.ended",
        "rank.exited",
    )
)


class EventLines:
    """The events that a reader has not received yet. It holds one page of them, however many there are."""

    def __init__(
        self,
        events: EventStore,
        job_id: str,
        cursor: str,
        *,
        since: int | None = None,
        until: int | None = None,
        losses_of: Callable[[int | None], bool] | None = None,
        may_see: Callable[[Event], bool] = lambda _: True,
    ) -> None:
        """Events of one job, or of all jobs and the node (`job_id` empty), after `cursor` (empty: from the oldest),
        reported at or after `since` and not after `until` (nanoseconds since the epoch). `losses_of`: only events about
        lost output of these ranks (called with None: of the job's own log). `may_see`: whether the reader
        may see an event."""
        self._events = events
        self._job_id = job_id
        self._behind = cursor or None
        self._since = since or 0
        self._until = until
        self._losses_of = losses_of
        self._may_see = may_see
        self._page: deque[tuple[Event, str]] = deque()

    @property
    def more(self) -> bool:
        """Whether `take` may return events."""
        return bool(self._page) or self._behind != self._events.newest_cursor()

    @property
    def cursor(self) -> str:
        """The cursor after all events that were read; valid once `take` has no more."""
        return self._behind or ""

    async def last(self, count: int) -> None:
        """Skips all but the last `count` events (at most PAGE). Raises InvalidRequest."""
        kept: deque[tuple[Event, str]] = deque(maxlen=min(count, PAGE))
        while await self._read():
            kept.extend(self._page)
            self._page.clear()
        self._page = deque(kept)

    async def take(self, when: int | None = None) -> list[tuple[bytes, int, str]]:
        """The next events reported at or before `when` (nanoseconds; None: at any time): line, time, and the cursor
        after it. Empty: there are no more. Raises InvalidRequest for an invalid cursor."""
        if not self._page:
            await self._read()
        found = []
        while self._page and (when is None or self._page[0][0].time * 1e9 <= when):
            event, cursor = self._page.popleft()
            found.append((self._line(event), round(event.time * 1e6) * 1000, cursor))
        return found

    async def _read(self) -> bool:
        """Fills the page; False if the store has no more events."""
        while not self._page:
            newest = self._events.newest_cursor()
            if self._behind == newest:
                return False
            try:
                batch = await self._events.read(self._behind, PAGE)
            except CursorTooOld:
                self._behind = None  # removed events are skipped
                continue
            self._behind = batch[-1][1] if batch else newest
            self._page.extend((event, cursor) for event, cursor in batch if self._wanted(event))
        return True

    def _wanted(self, event: Event) -> bool:
        if event.kind in _IN_THE_LOG or (self._job_id and event.job_id != self._job_id):
            return False
        if not self._may_see(event):
            return False
        if self._losses_of is not None and (event.kind != "job.output_lost" or not self._losses_of(event.rank)):
            return False
        if event.kind == "job.stopping" and event.attributes.get("cause") == "requested":
            return False
        return event.time * 1e9 >= self._since and (self._until is None or event.time * 1e9 <= self._until)

    def _line(self, event: Event) -> bytes:
        """In the form of a job's own log: the local time, then the message."""
        whose = f"{event.job_id} " if event.job_id and not self._job_id else ""
        return f"{job_logs.stamp(event.time)} {whose}{event.kind}: {' '.join(event.message.splitlines())}\n".encode(
            "utf-8", "replace"
        )
