"""Sends selected events to a program and to webhooks: those of the node, and one of each job that names one.

The sender reads events from their store by a cursor. Selected events wait in a queue per receiver (backlog.py). Each
receiver has its own task, which sends in order and repeats until the receiver accepts or refuses, or the notification
is too old. So a dead receiver affects no other. A notification has the id of its event: a receiver can detect
duplicates.
"""

import random
import socket
import time
from collections.abc import Callable
from typing import Protocol

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from muster.agent.config.notify_settings import NotifyTable
from muster.agent.errors import CursorTooOld, InvalidRequest, JobNotFound
from muster.agent.events.event_store import Event, EventStore
from muster.agent.notify import command, notification, webhook
from muster.agent.notify.backlog import COMMAND, WEBHOOK, Outbox, Queue
from muster.agent.notify.notification import Item, NotificationRefused, NotTaken
from muster.agent.notify.webhook import WebhookTarget
from muster.probes.kernel.backoff import Backoff
from muster.supervisors.model.rules.notify_rules import USUAL_JOB_EVENTS, shown
from muster.supervisors.paths import Root

#: Events taken at a time.
_PAGE = 512
#: Seconds until the first retry; each further retry waits twice as long, up to retry_max_s.
FIRST_RETRY_S = 1.0
#: Seconds between two checks for changed settings, during the pause of a receiver.
NOTICE_S = 5.0
#: Seconds between two checks whether all was sent, when the daemon exits for good.
SETTLED_S = 0.02
#: Webhooks of jobs that are called at the same time. The node's own receivers never wait for them.
JOBS_AT_ONCE = 32

_log = structlog.get_logger(__name__)


class NotifySettings(Protocol):
    """What is taken from the configuration."""

    @property
    def notify(self) -> NotifyTable:
        """[notify]"""


class Spec(Protocol):
    """What is taken from a job's spec."""

    @property
    def notify_webhook(self) -> str:
        """A URL, or empty."""

    @property
    def notify_events(self) -> tuple[str, ...]:
        """The events that this receiver gets; empty for all."""

    @property
    def notify_secret(self) -> str:
        """Signs what is posted; empty for none."""


class NotifiedJob(Protocol):
    """A job."""

    @property
    def spec(self) -> Spec:
        """What was asked for."""


class NotifiedJobs(Protocol):
    """What is taken from the registry."""

    async def get(self, job_id: str) -> NotifiedJob:
        """Raises JobNotFound."""


class Notifier:
    """Belongs to one event loop. `load`, then `run` make it usable."""

    def __init__(
        self, root: Root, settings: Callable[[], NotifySettings], events: EventStore, registry: NotifiedJobs
    ) -> None:
        """`settings` gives the present configuration."""
        self._settings = settings
        self._events = events
        self._registry = registry
        self._outbox = Outbox(root.outbox)
        self._node = socket.gethostname()
        self._serving: set[str] = set()
        self._slots = anyio.CapacityLimiter(JOBS_AT_ONCE)
        self._group: TaskGroup | None = None
        self._missed = ""

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator. They show only the host of a webhook, because its URL may contain a password."""
        found = [*self._outbox.trouble, *([self._missed] if self._missed else [])]
        failing = {key: queue for key in self._outbox.keys if (queue := self._outbox.queue(key)).failures}
        for key in (COMMAND, WEBHOOK):
            if key in failing:
                queue = failing.pop(key)
                found.append(f"notify: {key}: {queue.why}; tried {queue.failures} time(s), {len(queue)} event(s) wait")
        if failing:
            first = next(iter(failing.values()))
            waiting = sum(map(len, failing.values()))
            found.append(
                f"notify: {len(failing)} webhook(s) of jobs accept nothing, {waiting} event(s) wait; one of them: "
                f"{first.why}"
            )
        return found

    async def load(self) -> None:
        """Loads the unsent notifications. Without a stored cursor, past events are not sent. Call it before the events
        of the time without a daemon are reported. Raises OSError."""
        await self._outbox.load()
        if not self._outbox.cursor:
            self._outbox.cursor = self._events.newest_cursor()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Sends until cancelled."""
        async with anyio.create_task_group() as self._group:
            for key in self._outbox.keys:
                self._wake(key)
            await self._catch_up()
            self._group.start_soon(self._outbox.run)
            task_status.started()
            while True:
                try:
                    await self._events.wait_beyond(self._outbox.cursor)
                except (CursorTooOld, InvalidRequest):
                    pass  # `_catch_up` continues with the rest
                await self._catch_up()

    async def told(self) -> None:
        """Returns when each receiver has accepted all events until now, or has failed once."""
        while True:
            queues = [self._outbox.queue(key) for key in self._outbox.keys]
            waits = any(len(queue) and not queue.failures for queue in queues)
            if not waits and self._outbox.cursor == self._events.newest_cursor():
                return
            await anyio.sleep(SETTLED_S)

    # --- events to send -----------------------------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        """Queues all events until now."""
        while True:
            try:
                batch = await self._events.read(self._outbox.cursor, _PAGE)
            except CursorTooOld as error:
                self._missed = f"notify: events were dropped before they were sent: {error}"
                _log.warning("notify.events_missed", error=str(error))
                self._outbox.cursor = error.oldest
                continue
            except InvalidRequest as error:  # a crash of the machine lost the newest events, or the file is damaged
                _log.warning("notify.cursor_unknown", cursor=self._outbox.cursor, error=str(error))
                self._outbox.cursor = self._events.newest_cursor()
                continue
            if not batch:
                return
            table = self._settings().notify
            for event, cursor in batch:
                await self._take(event, cursor, table)
                self._outbox.cursor = cursor

    async def _take(self, event: Event, cursor: str, table: NotifyTable) -> None:
        names = notification.names(event)
        if not names:
            return
        for key, wanted in await self._receivers(event.job_id, table):
            # A receiver that asks for "failed" and "ended" gets only one of them.
            name = next((name for name in names if name in wanted), None)
            if name is not None:
                self._outbox.put(key, notification.item(event, cursor, name), table.keep)
                self._wake(key)

    async def _receivers(self, job_id: str, table: NotifyTable) -> list[tuple[str, tuple[str, ...]]]:
        """Keys of queues, with the events that each receiver selects."""
        found: list[tuple[str, tuple[str, ...]]] = []
        if table.command:
            found.append((COMMAND, table.events))
        if table.webhook:
            found.append((WEBHOOK, table.events))
        try:
            spec = (await self._registry.get(job_id)).spec if job_id else None
        except JobNotFound:  # the job was deleted meanwhile
            spec = None
        if spec is not None and spec.notify_webhook:
            found.append((_job_key(spec), spec.notify_events or USUAL_JOB_EVENTS))
        return found

    # --- sending ------------------------------------------------------------------------------------------------------

    def _wake(self, key: str) -> None:
        """Sends while something waits, then ends."""
        if self._group is not None and key not in self._serving:
            self._serving.add(key)
            self._group.start_soon(self._serve, key, name=f"notify {len(self._serving)}")

    async def _serve(self, key: str) -> None:
        queue = self._outbox.queue(key)
        while True:
            table = self._settings().notify
            if not _wanted(key, table):
                _log.info("notify.forgotten", receiver=_shown(key), events=len(queue))
                break
            item = self._outbox.take(key, time.time(), table.max_age_s)
            if item is None:
                break
            after = await self._try(key, queue, item, table)
            if after is not None:
                await self._pause(queue, table, after)
        # No await between the last check and this: a later notification starts another task.
        self._serving.discard(key)
        self._outbox.close(key)

    async def _try(self, key: str, queue: Queue, item: Item, table: NotifyTable) -> float | None:
        """Sends one notification. Returns None if it is finished, otherwise the pause that the receiver asked for, in
        seconds."""
        after = 0.0
        try:
            await self._send(key, item, table)
        except NotificationRefused as error:
            queue.failures, queue.why = 0, ""
            self._outbox.refused(key, str(error))
            return None
        except NotTaken as error:
            why, after = str(error), error.after
        except Exception as error:  # a defect must not stop the other receivers
            _log.exception("notify.defect", error=repr(error))
            why = f"a defect: {error!r}"
        else:
            if queue.failures:
                _log.info("notify.taken_again", receiver=_shown(key), tries=queue.failures + 1)
            queue.failures, queue.why = 0, ""
            self._outbox.done(key)
            return None
        if why != queue.why:
            _log.warning("notify.not_taken", receiver=_shown(key), about=item.event, job=item.job, error=why)
        queue.failures, queue.why = queue.failures + 1, why
        self._outbox.put_back(key)
        return after

    async def _send(self, key: str, item: Item, table: NotifyTable) -> None:
        body = notification.body(item, self._node)
        if key == COMMAND:
            await command.run(table.command, item, body, table.timeout_s)
        elif key == WEBHOOK:
            target = WebhookTarget(table.webhook, table.timeout_s, "", table.secret_file, table.proxy, table.ca_file)
            await webhook.post(target, item, body)
        else:  # the node's secret is between it and its own receiver
            url, secret = _of_job_key(key)
            async with self._slots:
                target = WebhookTarget(url, table.timeout_s, secret, "", table.proxy, table.ca_file)
                await webhook.post(target, item, body)

    async def _pause(self, queue: Queue, table: NotifyTable, after: float) -> None:
        """Pauses before the next try, longer after each failure, with jitter, because other nodes often share the
        receiver. Changed settings end the pause."""
        wait = Backoff(FIRST_RETRY_S, table.retry_max_s).after(queue.failures) * random.uniform(0.5, 1.0)
        end = anyio.current_time() + max(wait, min(after, table.retry_max_s))
        while (left := end - anyio.current_time()) > 0:
            await anyio.sleep(min(left, NOTICE_S))
            if self._settings().notify != table:
                queue.failures = 0
                return


def _job_key(spec: Spec) -> str:
    """The key of the queue for a job's webhook: the URL, which contains no blank, a blank, and the secret. Jobs with
    the same URL and secret share a queue; notifications of a deleted job are still sent and signed."""
    return f"{spec.notify_webhook} {spec.notify_secret}" if spec.notify_secret else spec.notify_webhook


def _of_job_key(key: str) -> tuple[str, str]:
    """URL and secret."""
    url, _, secret = key.partition(" ")
    return url, secret


def _wanted(key: str, table: NotifyTable) -> bool:
    return bool(table.command if key == COMMAND else table.webhook if key == WEBHOOK else True)


def _shown(key: str) -> str:
    return key if key in (COMMAND, WEBHOOK) else f"a job's webhook {shown(_of_job_key(key)[0])}"
