"""The daemon's parts: each is made here, once, and told of the others it works with; then their tasks are started, in
order, and ended.

`musterd` imports this only when gRPC's environment is set.
"""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio.abc import TaskStatus

from muster.agent import orphans
from muster.agent.api.audit import Audit
from muster.agent.api.own_logs import OwnLogs
from muster.agent.api.server import serve as serve_api
from muster.agent.api.services import ServerContext
from muster.agent.api.slots import Listeners
from muster.agent.api.tls import Credentials
from muster.agent.changes import Changes
from muster.agent.config.live_config import LiveConfig
from muster.agent.ending import Ending
from muster.agent.errors import StartupError
from muster.agent.events.event_store import Event, EventStore
from muster.agent.hang.hang_watch import HangWatch
from muster.agent.hang.job_stacks import Stacks
from muster.agent.host import build, heap, log_setup, systemd
from muster.agent.host.early_signals import is_init
from muster.agent.jobs.cards.leasing import Leasing
from muster.agent.jobs.crashes import Crashes
from muster.agent.jobs.ended.collected_logs import CollectedLogs
from muster.agent.jobs.hardening.private_tmps import PrivateTmps
from muster.agent.jobs.output_losses import OutputLosses
from muster.agent.jobs.registry import Registry
from muster.agent.link import connection
from muster.agent.link.connection import LinkLost, Refused
from muster.agent.link.nursery_client import NurseryClient
from muster.agent.link.nursery_start import Begun
from muster.agent.logs.collecting import Collecting
from muster.agent.logs.log_keeping import LogKeeping
from muster.agent.metrics.exporter import Metrics
from muster.agent.metrics.slow_metrics import SlowMetrics
from muster.agent.node.degraded import Degraded
from muster.agent.node.health import NodeHealth
from muster.agent.notify.sender import Notifier
from muster.agent.report.failed_jobs import FailedReports
from muster.agent.reset.reset_report import ResetParts
from muster.agent.reset.resets import Resets
from muster.agent.telemetry.sampling import Telemetry
from muster.agent.why.explaining import Explaining
from muster.agent.why.known import Sources
from muster.probes.cards.driver import Driver
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import explain

if TYPE_CHECKING:
    from muster.agent.node.driver_crashes import DriverCrash

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon(ServerContext):
    """All parts: those that the services use, and those that work by themselves."""

    config: LiveConfig
    nursery: NurseryClient
    leasing: Leasing
    limits: Degraded
    own_logs: OwnLogs
    crashes: Crashes
    losses: OutputLosses
    collecting: Collecting
    explaining: Explaining
    ending: Ending
    owner_fd: int | None
    crash: "DriverCrash | None"

    def note(self, kind: str, message: str) -> None:
        """An event about the daemon itself."""
        event = Event(time.time(), kind, message=message, attributes={"pid": str(os.getpid())})
        self.events.append([(None, event)])


async def serve(
    root: Root, config: LiveConfig, owner_fd: int | None, begun: Begun | None, crash: "DriverCrash | None"
) -> None:
    """All between start and end. `owner_fd`: the pipe of the command that this daemon serves; None: there is none.
    `begun`: the nursery that is being started; `crash`: what the daemon before this one left, None where there
    was none. Raises StartupError, alone or in groups: also for an end that nobody asked for."""
    try:
        daemon = await _build(root, config, owner_fd, begun, crash)
        await _load(daemon)
    except OSError as error:
        raise StartupError(f"cannot use the state folder {root.state}: {explain(error)}") from error
    try:
        await _run(daemon)
    finally:
        with anyio.CancelScope(shield=True):
            await daemon.driver.close()
            await daemon.events.close()
            await daemon.audit.written()
    _log.info("ended")
    if daemon.ending.failure:
        raise StartupError(daemon.ending.failure)


async def _build(
    root: Root, config: LiveConfig, owner_fd: int | None, begun: Begun | None, crash: "DriverCrash | None"
) -> Daemon:
    """Raises OSError, StartupError."""
    stopping = anyio.Event()
    tls = Credentials(config.now.tls) if config.now.tls.listen else None
    events = await EventStore.open(root.events, config.now.jobs.keep_events_bytes)
    nursery = NurseryClient(root, owner_fd=owner_fd, begun=begun)

    # Cards and node.
    driver = Driver(config.cards, closed=crash.closed if crash is not None else "")
    health = NodeHealth(root, config, events, driver)
    leasing = Leasing(config, events, driver, health)
    health.holders = leasing.holders
    limits = Degraded(root, health.found)

    # Jobs.
    registry = Registry(root, config, events, nursery, driver, leasing, health, limits)
    # A daemon of one job has its log folder from who asked for it, for logs of the job alone.
    audit = Audit(root.audit_log if owner_fd is None else root.state / root.audit_log.name)
    own_logs = OwnLogs(root, audit, events, health.found)
    crashes = Crashes(events, health.found, registry.known)
    nursery.died = crashes.died
    losses = OutputLosses(root, health.found, registry)
    registry.ended.on_ended.append(losses.ended)
    registry.ended.on_lacking.append(losses.ended)
    registry.ended.on_removed.append(losses.removed)

    resets = Resets(
        ResetParts(root=root, config=config, events=events, driver=driver, health=health, registry=registry)
    )

    # What watches them, and what tells of them.
    telemetry = Telemetry(root, config, driver, registry, owned=owner_fd is not None)
    stacks = Stacks(registry, driver)
    hangs = HangWatch(root, config, events, registry, telemetry.records, stacks)
    known = Sources(events, telemetry, health, config, root, hangs)
    explaining = Explaining(known, registry)
    if owner_fd is None:  # the command writes that of a standalone run
        explaining.on_explained = FailedReports(known, config).explained
    notifier = Notifier(root, config, events, registry)
    slots = Listeners(config)
    slow = SlowMetrics(hangs, registry.live, driver)
    metrics = Metrics(config, registry, driver, telemetry, health, events, [slots, own_logs, slow])

    # What is kept of them.
    collected = CollectedLogs(root.collected_logs)
    keeping = LogKeeping(root, config, events, registry, collected)
    collecting = Collecting(config, registry, keeping, collected, telemetry.history)
    registry.of_daemon = (limits, own_logs, resets, notifier, keeping, hangs, *([tls] if tls is not None else []))

    return Daemon(
        registry=registry,
        events=events,
        driver=driver,
        health=health,
        resets=resets,
        telemetry=telemetry,
        metrics=metrics,
        notifier=notifier,
        stacks=stacks,
        hangs=hangs,
        keeping=keeping,
        slots=slots,
        audit=audit,
        own_logs=own_logs,
        tls=tls,
        config=config,
        root=root,
        started_at=time.time(),
        stopping=stopping,
        nursery=nursery,
        leasing=leasing,
        limits=limits,
        crashes=crashes,
        losses=losses,
        collecting=collecting,
        explaining=explaining,
        ending=Ending(config, registry, notifier, keeping, stopping, owned=owner_fd is not None),
        owner_fd=owner_fd,
        crash=crash,
    )


async def _load(daemon: Daemon) -> None:
    """What the parts keep on disk. Raises OSError, StartupError."""
    await daemon.notifier.load()
    await daemon.health.load()
    await daemon.resets.load()
    await daemon.registry.load()
    await daemon.telemetry.load()


async def _run(daemon: Daemon) -> None:
    """Returns when the daemon is to end. Raises StartupError, alone or in groups."""
    root = daemon.root
    async with anyio.create_task_group() as tasks:
        await tasks.start(_handle_signals, daemon)
        tasks.start_soon(heap.trim)
        tasks.start_soon(daemon.crashes.run)
        tasks.start_soon(daemon.limits.run)
        tasks.start_soon(daemon.own_logs.run)
        tasks.start_soon(daemon.losses.run)
        tasks.start_soon(PrivateTmps(root, daemon.health.found).run)
        if is_init():
            tasks.start_soon(orphans.reap, daemon.registry)
        await tasks.start(daemon.events.run)
        await tasks.start(daemon.nursery.run)
        await tasks.start(daemon.keeping.run)
        await tasks.start(daemon.registry.run)
        tasks.start_soon(daemon.explaining.run)
        # Not waited for: a driver may hang, and the daemon answers all the same.
        tasks.start_soon(_open_driver, daemon)
        await tasks.start(daemon.health.run)
        await tasks.start(daemon.resets.run)
        await tasks.start(daemon.hangs.run)
        await tasks.start(daemon.telemetry.run)
        await tasks.start(daemon.metrics.run)
        await tasks.start(daemon.notifier.run)
        # Only now: webhooks are in the records of jobs, those that ended while no daemon ran among them.
        tasks.start_soon(daemon.collecting.run)
        async with anyio.create_task_group() as serving:
            await serving.start(serve_api, daemon)
            crash = daemon.crash
            before = f"; {crash.text}, before this one" if crash is not None and crash.text else ""
            daemon.note("node.started", f"musterd {build.FULL} started{before}")
            systemd.notify("READY=1")
            if daemon.owner_fd is not None:
                tasks.start_soon(daemon.ending.end_with_owner, daemon.owner_fd)
            tasks.start_soon(daemon.ending.end_without, (root.socket, root.reader_socket, root.identity_socket))
            tasks.start_soon(_feed_watchdog, daemon.events, root.nursery_socket)
            await daemon.stopping.wait()
            systemd.notify("STOPPING=1")
            daemon.registry.close()
            running = "" if daemon.ending.stops_jobs else "; jobs run on"
            daemon.note("node.stopping", f"musterd is ending{running}")
        daemon.ending.hurry()
        tasks.cancel_scope.cancel()


async def _open_driver(daemon: Daemon) -> None:
    await daemon.resets.settle()
    crash = daemon.crash
    if crash is not None and crash.closed:
        daemon.leasing.known.set()  # that the cards are unknown
        await anyio.sleep(crash.pause_s)
        sick = daemon.driver.view.driver
        if sick is not None and sick.text == crash.closed:  # a reset may have taken it over
            await daemon.driver.take_again()
    else:
        await daemon.driver.open()
    daemon.leasing.known.set()


async def _handle_signals(daemon: Daemon, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    ending, asked = daemon.ending, Changes()
    with anyio.open_signal_receiver(*ending.signals()) as signals:
        task_status.started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_reload_when_asked, daemon, asked)
            async for number in signals:
                if ending.is_meant(number):
                    ending.take(number, tasks)
                else:
                    asked.tell()


async def _reload_when_asked(daemon: Daemon, asked: Changes) -> None:
    """One reload after another, beside the signals: a file that hangs must not keep SIGTERM waiting."""
    seen = 0
    while True:
        await asked.beyond(seen)
        seen = asked.count
        await _reload(daemon)


async def _reload(daemon: Daemon) -> None:
    systemd.notify("RELOADING=1")
    await daemon.config.reload()
    now = daemon.config.now
    log_setup.configure(now.daemon.log_level, now.daemon.log_format)
    daemon.events.keep_bytes = now.jobs.keep_events_bytes
    daemon.registry.reload(daemon.config.trouble)
    daemon.metrics.reload()
    daemon.keeping.reload()
    daemon.collecting.reload()
    systemd.notify("READY=1")


async def _feed_watchdog(events: EventStore, nursery_socket: Path) -> None:
    """Sends WATCHDOG=1 to systemd about three times in each period that systemd asks for (WatchdogSec), each time after
    the store and the nursery have answered. That it runs proves that the event loop turns. Returns without a watchdog.

    A full disk counts as an answer, and so does one that hangs: a new start of the daemon would not mend it.
    """
    period = systemd.watchdog_s()
    while period:
        with anyio.move_on_after(period) as late:
            await events.answers()
            try:
                async with connection.connect(nursery_socket):
                    systemd.notify("WATCHDOG=1")
            except (LinkLost, Refused) as error:
                _log.warning("watchdog.nursery", error=str(error))
        if late.cancelled_caught:
            _log.error("watchdog.store", error=f"no answer in {period:g} s")
        await anyio.sleep(period / 3)
