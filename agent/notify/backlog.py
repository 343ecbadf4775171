"""Notifications that wait to be sent, one queue per receiver, in memory and in a file.

The file holds the queues together with the cursor of the events. So a restart of the daemon loses no notification, and
at worst sends again what was sent just before a kill. The file is replaced as a whole, soon after a change. If the disk
cannot be written, notifications are sent all the same.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

import anyio
import msgspec
import structlog

from muster.agent.host.state_file import StateFile
from muster.agent.notify.notification import Item
from muster.probes.kernel.dataclass import dataclass

VERSION = 1
#: The node's own receivers; every other key of a queue is the URL of a job's webhook, and perhaps a secret (notify.py).
COMMAND, WEBHOOK = "command", "webhook"
#: Seconds between two writes, and between two tries while writing fails.
SAVE_S = 0.5
#: Seconds after which the cursor is written if no event since then needed a notification.
IDLE_SAVE_S = 60.0
#: Seconds for which a warning about dropped notifications is shown.
LOSS_SHOWN_S = 3600.0

_log = structlog.get_logger(__name__)


class _BacklogFile(msgspec.Struct):
    """The file."""

    version: int = VERSION
    cursor: str = ""
    waiting: dict[str, list[Item]] = {}  # msgspec copies it


@dataclass(slots=True)
class Queue:
    """The notifications for one receiver, the oldest first, and its state: `failures` failed tries in a row, and
    `why` the last one failed."""

    items: deque[Item] = field(default_factory=deque)
    #: The notification that is being sent: it is not dropped.
    sending: Item | None = None
    failures: int = 0
    why: str = ""

    def __len__(self) -> int:
        return len(self.items) + (self.sending is not None)

    def __iter__(self) -> Iterator[Item]:
        if self.sending is not None:
            yield self.sending
        yield from self.items


@dataclass(slots=True)
class _Loss:
    """The number of dropped notifications; the reason and the time (monotonic) of the last one."""

    count: int
    why: str
    up: float


class Outbox:
    """Belongs to one event loop. `cursor` is the position in the events. A caller that sets it after `put`, without
    an await in between, gets both into the file or neither."""

    def __init__(self, path: Path) -> None:
        self._queues: dict[str, Queue] = {}
        self._losses: dict[str, _Loss] = {}
        self._file = StateFile(
            path,
            _BacklogFile,
            self._snapshot,
            version=VERSION,
            forgotten="its waiting notifications are lost",
            unwritten="a restart of musterd would lose waiting notifications, or send them twice",
            save_s=SAVE_S,
        )
        self._saved_cursor = self.cursor = ""

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator: about the file, and about what was dropped."""
        now = time.monotonic()
        shown = {name: loss for name, loss in self._losses.items() if now - loss.up < LOSS_SHOWN_S}
        lost = [f"notify: {loss.count} event(s) for {name} were dropped: {loss.why}" for name, loss in shown.items()]
        return [*self._file.trouble, *lost]

    @property
    def keys(self) -> list[str]:
        """Receivers with waiting notifications, or with failures."""
        return list(self._queues)

    def queue(self, key: str) -> Queue:
        """The queue of a receiver; an empty queue if nothing waits."""
        return self._queues.get(key, Queue())

    # --- what is done -------------------------------------------------------------------------------------------------

    def put(self, key: str, item: Item, keep: int) -> None:
        """Appends to a queue. At most `keep` notifications wait for a receiver, and for the webhooks of all jobs
        together. The longest queue drops first: a dead receiver does not displace the others' notifications."""
        queue = self._queues.setdefault(key, Queue())
        queue.items.append(item)
        why = f"over {keep} waited (keep in [notify]); the oldest were dropped"
        if key in (COMMAND, WEBHOOK):
            while len(queue) > keep and queue.items:
                self._drop(key, queue, why)
        else:
            jobs = {name: queue for name, queue in self._queues.items() if name not in (COMMAND, WEBHOOK)}
            while sum(map(len, jobs.values())) > keep:
                longest = max(jobs, key=lambda name: len(jobs[name].items))
                if not jobs[longest].items:
                    break
                self._drop(longest, jobs[longest], why)
        self._file.changed()

    def take(self, key: str, now: float, max_age_s: float) -> Item | None:
        """The next notification to send; None if nothing waits. Drops those that are older than `max_age_s` at `now`
        (seconds since the epoch)."""
        queue = self.queue(key)
        while queue.items:
            if now - queue.items[0].time <= max_age_s:
                queue.sending = queue.items.popleft()
                return queue.sending
            self._drop(key, queue, f"they were older than {max_age_s:g} s (max_age_s in [notify])")
        return None

    def put_back(self, key: str) -> None:
        """The receiver did not accept the notification: it stays the next one."""
        queue = self.queue(key)
        if queue.sending is not None:
            queue.items.appendleft(queue.sending)
            queue.sending = None

    def done(self, key: str) -> None:
        """The receiver accepted the notification."""
        self.queue(key).sending = None
        self._file.changed()

    def refused(self, key: str, why: str) -> None:
        """The receiver will never accept the notification."""
        self._lost(key, 1, f"the receiver refused them: {why}")
        self.done(key)

    def close(self, key: str) -> None:
        """Drops the queue: it is empty, or its receiver no longer exists."""
        if len(self._queues.pop(key, Queue())):
            self._file.changed()

    def _drop(self, key: str, queue: Queue, why: str) -> None:
        queue.items.popleft()
        self._file.changed()
        self._lost(key, 1, why)

    def _lost(self, key: str, count: int, why: str) -> None:
        name = {COMMAND: "the command", WEBHOOK: "the webhook"}.get(key, "webhooks of jobs")
        before = self._losses.get(name)
        now = time.monotonic()
        fresh = before is None or now - before.up >= LOSS_SHOWN_S
        if fresh or before is None or before.why != why:
            _log.warning("notify.dropped", receiver=name, why=why)
        self._losses[name] = _Loss(count if fresh or before is None else before.count + count, why, now)

    # --- the file -----------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Loads the queues and the cursor ("" if unknown). Sets a damaged file aside. Raises OSError, and StartupError
        if a newer musterd wrote the file."""
        if (saved := await self._file.load()) is not None:
            self.cursor = self._saved_cursor = saved.cursor
            self._queues = {key: Queue(deque(items)) for key, items in saved.waiting.items() if items}

    async def run(self) -> None:
        """Writes changes to the file until cancelled, and once more at the end."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._file.run)
                while True:
                    await anyio.sleep(IDLE_SAVE_S)
                    self._note_cursor()
        finally:
            self._note_cursor()
            await self._file.save()

    def _note_cursor(self) -> None:
        if self.cursor != self._saved_cursor:
            self._file.changed()

    def _snapshot(self) -> _BacklogFile:
        self._saved_cursor = self.cursor
        waiting = {key: list(queue) for key, queue in self._queues.items() if len(queue)}
        return _BacklogFile(VERSION, self.cursor, waiting)
