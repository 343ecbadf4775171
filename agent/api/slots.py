"""How many calls a listener, and each of its clients, may have at once. This is the only place that decides it.

Each listener has slots of its own: no number of streams on the readers' socket keeps an operator's away. On a listener
that operators and readers share (TCP), readers leave a part of the slots to operators. A client that can be told from
others (by its certificate; gRPC does not identify the peer of a unix socket) gets a part of them, too.

Calls that do something (a Stop) need no slot. A client that finds none is refused at once; muster's own commands then
try again until they get one (`SlotWait` in cli/slot_wait.py).
"""

import enum
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from muster.agent.api import access
from muster.agent.api.access import Caller, Role
from muster.agent.api.own_jobs import PACKAGE
from muster.agent.errors import NoSlot
from muster.agent.exposition import Catalogue, Page

#: Concurrent read-only calls of a listener; and bytes of their answers that clients have not read yet.
MAX_CALLS = 1024
MAX_UNTAKEN = 64 << 20
#: Seconds for which a refused client counts as waiting (NoSlot.retry_after tells it when to ask again).
WAITS_S = 5.0
#: Maximum number of waiting clients that a listener remembers.
_MAX_WAITING = 4096

OWN = Catalogue()
USED = OWN.gauge("muster_streams", "Calls that hold a slot now, by listener and kind.", "listener", "kind")
MOST = OWN.gauge("muster_streams_limit", "Slots of a listener, by kind.", "listener", "kind")
WAITING = OWN.gauge(
    "muster_streams_waiting",
    "Clients that found no free slot and ask again, by listener and kind.",
    "listener",
    "kind",
)
REFUSED = OWN.counter(
    "muster_streams_refused_total", "Calls that found no free slot, by listener and kind.", "listener", "kind"
)


class SlotKind(enum.StrEnum):
    """Kinds of calls that are counted separately."""

    LOGS = "logs"
    EVENTS = "events"
    RECORDS = "records"
    EXEC = "exec"
    CALLS = "calls"


_STREAMS = {
    f"{PACKAGE}LogService/ReadLogs": SlotKind.LOGS,
    f"{PACKAGE}LogService/ReadNodeLogs": SlotKind.LOGS,
    f"{PACKAGE}EventService/Watch": SlotKind.EVENTS,
    f"{PACKAGE}TelemetryService/RecordTelemetry": SlotKind.RECORDS,
    f"{PACKAGE}ExecService/Exec": SlotKind.EXEC,
    f"{PACKAGE}ExecService/RunCommand": SlotKind.EXEC,
}
_SHOWN = {
    SlotKind.LOGS: "readers of logs",
    SlotKind.EVENTS: "watchers of events",
    SlotKind.RECORDS: "readers of telemetry records",
    SlotKind.EXEC: "commands and sessions",
    SlotKind.CALLS: "calls that look",
}
_SETTINGS = {
    SlotKind.LOGS: "max_followers in [limits]",
    SlotKind.EVENTS: "max_watchers in [limits]",
    SlotKind.RECORDS: "max_watchers in [limits]",
    SlotKind.EXEC: "max_streams in [exec]",
}


def kind_of(method: str) -> SlotKind | None:
    """The kind of a method ("/muster.v1.JobService/Get"); None if it needs no slot."""
    found = _STREAMS.get(method)
    return found or (SlotKind.CALLS if access.is_look(method) else None)


class Limits(Protocol):
    """The settings that this module needs from [limits]."""

    @property
    def max_followers(self) -> int: ...
    @property
    def max_watchers(self) -> int: ...
    @property
    def client_percent(self) -> int: ...
    @property
    def reserved_percent(self) -> int: ...


class SlotSettings(Protocol):
    """The part of the configuration that this module needs."""

    @property
    def limits(self) -> Limits: ...
    @property
    def exec(self) -> "_Exec": ...


class _Exec(Protocol):
    @property
    def max_streams(self) -> int: ...


class Listeners:
    """The slots of all listeners."""

    def __init__(self, settings: Callable[[], SlotSettings]) -> None:
        """`settings` returns the settings now in force."""
        self._settings = settings
        self._all: list[Slots] = []

    def add(self, name: str, where: object, *, shared: bool = False) -> "Slots":
        """The slots of a new listener: its name for metrics, and for people. `shared`: by operators and readers."""
        made = Slots(name, str(where), self._settings, shared)
        self._all.append(made)
        return made

    def fill(self, page: Page) -> None:
        """Adds the metrics of all."""
        for slots in self._all:
            slots.fill(page)


class HeldSlot:
    """A slot of one call. It is given back when the handler has ended and gRPC is done with the call: a handler is over
    while its answer waits for a client that does not read, and runs on for a moment behind a client that left."""

    def __init__(self, give_back: Callable[[], None], count_bytes: Callable[[int], None]) -> None:
        self._give_back = give_back
        self._count_bytes = count_bytes
        self._left = 2
        self._size = 0

    def answered(self, size: int) -> None:
        """The call has its answer, of this many bytes, which the client has not read yet."""
        self._size = size
        self._count_bytes(size)

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Holds the slot while the handler runs."""
        try:
            yield
        finally:
            self._over()

    def done(self, _: object = None) -> None:
        """gRPC is done with the call."""
        self._count_bytes(-self._size)
        self._over()

    def _over(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._give_back()


class Slots:
    """The slots of one listener. Belongs to one event loop."""

    def __init__(self, name: str, where: str, settings: Callable[[], SlotSettings], shared: bool) -> None:
        """See `Listeners.add`."""
        self.name, self._where = name, where
        self._settings = settings
        self._shared = shared
        self._used = {kind: _Count() for kind in SlotKind}
        self._untaken = _Count()
        self._refused: Counter[SlotKind] = Counter()
        self._waiting: dict[tuple[SlotKind, str], float] = {}

    def take(self, kind: SlotKind, caller: Caller, says: str = "") -> HeldSlot:
        """Takes a slot for a call of this kind; `says`: the name that the client claims. Raises NoSlot."""
        used, untaken = self._used[kind], self._untaken
        who = kind, caller.client or says
        try:
            self._refuse(used, self.most(kind), _SHOWN[kind], caller, kind)
            if kind is SlotKind.CALLS:
                self._refuse(untaken, MAX_UNTAKEN, "bytes of answers that clients have not taken", caller, kind)
        except NoSlot:
            self._refused[kind] += 1
            self._waiting.pop(who, None)
            if len(self._waiting) < _MAX_WAITING:
                self._waiting[who] = time.monotonic()
            raise
        self._waiting.pop(who, None)
        used.add(caller, 1)
        return HeldSlot(lambda: used.add(caller, -1), lambda size: untaken.add(caller, size))

    def most(self, kind: SlotKind) -> int:
        """The number of slots of a kind."""
        settings = self._settings()
        if kind is SlotKind.CALLS:
            return MAX_CALLS
        if kind is SlotKind.EXEC:
            return settings.exec.max_streams
        return settings.limits.max_followers if kind is SlotKind.LOGS else settings.limits.max_watchers

    def fill(self, page: Page) -> None:
        """Adds the metrics."""
        since = time.monotonic() - WAITS_S
        self._waiting = {who: at for who, at in self._waiting.items() if at >= since}
        waiting = Counter(kind for kind, _ in self._waiting)
        for kind in SlotKind:
            page.add(USED, self._used[kind].total, self.name, kind)
            page.add(MOST, self.most(kind), self.name, kind)
            page.add(WAITING, waiting[kind], self.name, kind)
            page.add(REFUSED, self._refused[kind], self.name, kind)

    def _refuse(self, count: "_Count", most: int, what: str, caller: Caller, kind: SlotKind) -> None:
        """Raises NoSlot."""
        limits = self._settings().limits
        remedy, reason = _SETTINGS.get(kind, ""), "TOO_MANY" if kind is SlotKind.EXEC else ""
        share = max(1, most * limits.client_percent // 100)
        if caller.client and count.clients[caller.client] >= share:
            raise NoSlot(f"{what} of {caller.client}", share, self._where, "client_percent in [limits]", reason)
        left = max(1, most - math.ceil(most * limits.reserved_percent / 100))
        if self._shared and caller.role is not Role.OPERATOR and count.readers >= left:
            raise NoSlot(f"{what} with the role reader", left, self._where, remedy, reason)
        if count.total >= most:
            raise NoSlot(what, most, self._where, remedy, reason)


class _Count:
    """How many slots are in use, by which clients."""

    def __init__(self) -> None:
        self.total = self.readers = 0
        self.clients: Counter[str] = Counter()

    def add(self, caller: Caller, number: int) -> None:
        self.total += number
        self.readers += number if caller.role is not Role.OPERATOR else 0
        if caller.client:
            self.clients[caller.client] += number
            if not self.clients[caller.client]:
                del self.clients[caller.client]
