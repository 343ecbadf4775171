"""The gRPC services of muster.v1, one module each, and what they share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from agent.config import Config
from agent.errors import TooMany
from agent.events import EventStore
from agent.hang_watch import HangWatch
from agent.metrics import Metrics
from agent.node_health import NodeHealth
from agent.notify import Notifier
from agent.registry import Registry
from agent.stacks import Stacks
from agent.telemetry import Telemetry
from probes.driver import Driver
from supervisors.paths import Root

if TYPE_CHECKING:
    from grpc import aio


_MAX_CALLER = 128


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What the services serve. `config` gives the present configuration, `started_at` is in seconds since the epoch,
    and the server ends when `stopping` is set."""

    registry: Registry
    events: EventStore
    driver: Driver
    health: NodeHealth
    telemetry: Telemetry
    metrics: Metrics
    notifier: Notifier
    stacks: Stacks
    hangs: HangWatch
    config: Callable[[], Config]
    root: Root
    started_at: float
    stopping: anyio.Event


class Slots:
    """Counts streams of one kind against a limit of their own, so that no number of them keeps another call out."""

    def __init__(self, what: str, limit: Callable[[], int]) -> None:
        self._what = what
        self._limit = limit
        self._taken = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Holds a slot. Raises TooMany."""
        if self._taken >= self._limit():
            raise TooMany(self._what, self._limit())
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


def caller(context: "aio.ServicerContext[Any, Any]") -> str:
    """Who calls, for journal and events: what the client says in the metadata `muster-caller`, cut to 128 printable
    characters. It is a courtesy, not an identity: whoever may open the socket may say anything here."""
    for key, value in context.invocation_metadata() or ():
        if key == "muster-caller":
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            shown = "".join(char for char in text if char.isprintable())[:_MAX_CALLER].strip()
            if shown:
                return shown
    return "a client of the unix socket"
