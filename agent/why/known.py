"""The parts of the daemon that a report needs. Few imports: the daemon names these parts when it starts."""

from collections.abc import Callable, Iterable
from typing import Protocol

from muster.agent.config.schema import Config
from muster.agent.events.event_store import Event, EventStore
from muster.agent.hang.current_hang import CurrentHang
from muster.agent.hang.hang_watch import HangWatch
from muster.agent.jobs.entry import Entry
from muster.agent.node.conditions import Condition
from muster.agent.node.health import NodeHealth
from muster.agent.telemetry.history.history_rows import FoundSeries
from muster.agent.telemetry.sampling import Telemetry
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.paths import Root


class ReadableEvents(Protocol):
    """The events of the node: the daemon's store, or its files (agent/events/disk_events.py)."""

    async def read(self, cursor: str | None, limit: int) -> list[tuple[Event, str]]:
        """As `EventStore.read`."""


class ReadableHistory(Protocol):
    """The history: the daemon's, or its file (history_disk.py)."""

    async def job(self, name: str, start: float, end: float, step: float, *, ranks: bool = False) -> list[FoundSeries]:
        """As `History.job`."""


class HasHistory(Protocol):
    """What knows the history."""

    @property
    def history(self) -> ReadableHistory: ...


class HasConditions(Protocol):
    """What knows the present conditions of the node."""

    @property
    def conditions(self) -> Iterable[Condition]: ...


class HasHangs(Protocol):
    """What knows the present verdicts of the hang rule."""

    def found(self, entry: Entry) -> CurrentHang | None:
        """As `HangWatch.found`."""


class Known(Protocol):
    """What a report is made of: parts of the daemon, or what they have left on disk."""

    @property
    def events(self) -> ReadableEvents: ...
    @property
    def telemetry(self) -> HasHistory: ...
    @property
    def health(self) -> HasConditions: ...
    @property
    def config(self) -> Callable[[], Config]: ...
    @property
    def root(self) -> Root: ...
    @property
    def hangs(self) -> HasHangs: ...


@dataclass(frozen=True, slots=True)
class Sources:
    """`Known` from parts that are created one after the other."""

    events: EventStore
    telemetry: Telemetry
    health: NodeHealth
    config: Callable[[], Config]
    root: Root
    hangs: HangWatch
