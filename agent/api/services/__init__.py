"""The gRPC services of muster.v1, one module each, and what they share.

The server registers `job_service`, `exec_service`, `log_service`, `event_service`, `node_service`, `probe_service` and
`telemetry_service`. `ServerContext` is what all of them work on. `card_message` and `condition_message` make messages
that several services send; `node_log_service` is the part of LogService that reads all jobs at once.
"""

from collections.abc import Callable

import anyio

from muster.agent.api import access, own_jobs
from muster.agent.api.audit import Audit
from muster.agent.api.slots import Listeners
from muster.agent.api.tls import Credentials
from muster.agent.config.schema import Config
from muster.agent.errors import JournalUnreadable
from muster.agent.events.event_store import Event, EventStore
from muster.agent.hang.hang_watch import HangWatch
from muster.agent.hang.job_stacks import Stacks
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.registry import Registry
from muster.agent.logs.log_keeping import LogKeeping
from muster.agent.metrics.exporter import Metrics
from muster.agent.node.health import NodeHealth
from muster.agent.notify.sender import Notifier
from muster.agent.reset.resets import Resets
from muster.agent.telemetry.sampling import Telemetry
from muster.probes.cards.driver import Driver
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.paths import Root


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """What the services serve. `tls` is for the TCP listener, if there is one; `config` gives the present
    configuration, `started_at` is in seconds since the epoch, and the server ends when `stopping` is set."""

    registry: Registry
    events: EventStore
    driver: Driver
    health: NodeHealth
    resets: Resets
    telemetry: Telemetry
    metrics: Metrics
    notifier: Notifier
    stacks: Stacks
    hangs: HangWatch
    keeping: LogKeeping
    slots: Listeners
    audit: Audit
    tls: Credentials | None
    config: Callable[[], Config]
    root: Root
    started_at: float
    stopping: anyio.Event

    def may_see(self, event: Event) -> bool:
        """Whether the present caller may see an event: one of the node, or of a job that it reaches."""
        reach = access.reach()
        return not event.job_id or event.time >= own_jobs.since(reach, self.registry, event.job_id)

    async def readable(self, job_id: str) -> Entry:
        """A job whose records can be trusted. Raises InvalidRequest, JobNotFound, JournalUnreadable, NotTheirs."""
        if not job_id:  # of the first request of a stream
            raise own_jobs.no_job_id()
        await own_jobs.check_job(access.reach(), "", job_id, self.registry)
        entry = await self.registry.get(job_id)
        if entry.damaged:
            raise JournalUnreadable(job_id, entry.damaged)
        return entry
