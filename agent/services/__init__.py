"""The gRPC services of muster.v1, one module each, and what they share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from agent import access
from agent.config import Config
from agent.events import EventStore
from agent.hang_watch import HangWatch
from agent.log_keeping import LogKeeping
from agent.metrics import Metrics
from agent.node_health import NodeHealth
from agent.notify import Notifier
from agent.registry import Registry
from agent.slots import Listeners
from agent.stacks import Stacks
from agent.telemetry import Telemetry
from agent.tls import Credentials
from probes.driver import Driver
from supervisors.paths import Root

if TYPE_CHECKING:
    from grpc import aio


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What the services serve. `tls` is for the TCP listener, if there is one; `config` gives the present
    configuration, `started_at` is in seconds since the epoch, and the server ends when `stopping` is set."""

    registry: Registry
    events: EventStore
    driver: Driver
    health: NodeHealth
    telemetry: Telemetry
    metrics: Metrics
    notifier: Notifier
    stacks: Stacks
    hangs: HangWatch
    keeping: LogKeeping
    slots: Listeners
    tls: Credentials | None
    config: Callable[[], Config]
    root: Root
    started_at: float
    stopping: anyio.Event


def caller(context: "aio.ServicerContext[Any, Any]") -> str:
    """Who calls, for journal and events: the name in the certificate, if there is one, and what the client says."""
    says, names = access.claimed(context), access.certified(context)
    if names:
        return f"{says} (certificate {names[0]})" if says else f"certificate {names[0]}"
    return says or "a client of the unix socket"
