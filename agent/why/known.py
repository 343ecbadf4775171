"""The parts of the daemon that a report needs. Few imports: the daemon names these parts when it starts."""

from collections.abc import Callable
from typing import Protocol

from muster.agent.config.schema import Config
from muster.agent.events.event_store import EventStore
from muster.agent.node.health import NodeHealth
from muster.agent.telemetry.sampling import Telemetry
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.paths import Root


class Known(Protocol):
    """The parts of the daemon that a report needs."""

    @property
    def events(self) -> EventStore: ...
    @property
    def telemetry(self) -> Telemetry: ...
    @property
    def health(self) -> NodeHealth: ...
    @property
    def config(self) -> Callable[[], Config]: ...
    @property
    def root(self) -> Root: ...


@dataclass(frozen=True, slots=True)
class Sources:
    """`Known` from parts that are created one after the other."""

    events: EventStore
    telemetry: Telemetry
    health: NodeHealth
    config: Callable[[], Config]
    root: Root
