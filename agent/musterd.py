"""musterd, the daemon: its command line, its start, its end."""

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click
import msgspec
import structlog
from anyio.abc import TaskStatus

from muster.agent import threads, watchdog
from muster.agent.config import config
from muster.agent.config.config import Config
from muster.agent.errors import StartupError
from muster.agent.host import build, heap, lockfile, log_setup, ownership, state_folder, systemd
from muster.agent.host.pid_one import is_init, leave_when_asked
from muster.agent.node import degraded
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import explain

if TYPE_CHECKING:
    from muster.agent.ending import Ending
    from muster.agent.events.event_store import EventStore
    from muster.agent.jobs.cards.leasing import Leasing
    from muster.agent.jobs.registry import Registry
    from muster.agent.logs.collecting import Collecting
    from muster.agent.logs.log_keeping import LogKeeping
    from muster.agent.metrics.metrics import Metrics
    from muster.probes.cards.driver import Driver

#: For GRPC_SSL_CIPHER_SUITES: gRPC has no setting for the oldest version of TLS. TLS 1.3 has ciphers of its own, which
#: this does not touch; of those of TLS 1.2 it leaves one that needs a pre-shared key, which nobody has.
_NO_TLS_1_2 = "ECDHE-PSK-AES128-CBC-SHA"

_log = structlog.get_logger(__name__)


class LiveConfig:
    """The present configuration; SIGHUP reads it again."""

    def __init__(self, root: Root, path: Path | None, record: str = "") -> None:
        """Raises StartupError. A file that is named must exist, the default one need not. `record`: in the place of
        what the file says of telemetry.record."""
        self._record = record
        self._path = path or root.config
        self._named = path is not None
        self.now = self._read()
        #: Why the last reload did not work, for an operator.
        self.trouble = ""

    def __call__(self) -> Config:
        return self.now

    @property
    def origin(self) -> str:
        """A sentence about the file."""
        return f"{self._path}: " + (
            "good" if self._path.exists() else "there is no such file: every key has its default"
        )

    def reload(self) -> None:
        """Reads the file again; a bad one is reported and changes nothing. Blocks."""
        try:
            new = self._read()
        except StartupError as error:
            self.trouble = f"the configuration was not reloaded, the one before is in force: {error}"
            _log.error("config.refused", error=str(error))
            return
        late = config.restart_needed(self.now, new)
        self.now, self.trouble = new, ""
        if late:
            self.trouble = f"{', '.join(late)}: the new value takes effect when musterd is started again"
            _log.warning("config.needs_restart", keys=late)
        _log.info("config.loaded", path=str(self._path))

    def _read(self) -> Config:
        there = self._named or self._path.exists()
        read = config.load(self._path, own=True) if there else Config()
        if not self._record:
            return read
        return msgspec.structs.replace(read, telemetry=msgspec.structs.replace(read.telemetry, record=self._record))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="MUSTER_ROOT",
    help="Keep run, state and log folders under DIR instead of /run/muster, /var/lib/muster and /var/log/muster. "
    "Needs no root user. [env: MUSTER_ROOT]",
    metavar="DIR",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Configuration. [default: /etc/muster/musterd.toml, with --root DIR/musterd.toml; may be missing]",
)
@click.option("--check-config", is_flag=True, help="Say whether the daemon starts with the configuration, and leave.")
@click.option("--version", is_flag=True, help="Show the version and leave.")
@click.option(
    "--record",
    metavar="FILE",
    default="",
    help="Append the telemetry records of all jobs to FILE, a JSON object a line, for `muster hang replay`.",
)
@click.option(
    "--trust-environment",
    is_flag=True,
    help="Start as root although other users can change the Python environment that musterd runs from, and so what "
    "root runs.",
)
@click.option("--owner-fd", type=click.IntRange(min=0), hidden=True)
def main(
    root: Path | None,
    config_file: Path | None,
    check_config: bool,
    version: bool,
    record: str,
    trust_environment: bool,
    owner_fd: int | None,
) -> None:
    """The node agent: takes jobs over gRPC on a unix socket and keeps them.

    SIGTERM ends the daemon and leaves the jobs running; as PID 1 of a container it stops them first, with their grace
    (daemon.stop_jobs). SIGHUP reads the configuration again.
    """
    log_setup.open_standard_streams()
    if version:
        click.echo(f"musterd {build.FULL}")
        return
    if is_init():
        leave_when_asked()
    # Absolute: the nursery, which outlives us, works in another folder.
    places = Root.under(root.absolute()) if root is not None else Root.system()
    failure: StartupError | None = None
    try:
        if not trust_environment and owner_fd is None:  # who brings a daemon of their own has run all this already
            ownership.refuse_environment_of_others()
        settings = LiveConfig(places, config_file, record and os.path.abspath(record))
        if check_config:
            from muster.agent.api import server

            state_folder.check(places)
            server.check(places, settings.now)
            click.echo(settings.origin)
            return
        degraded.take_descriptors()
        log_setup.configure(settings.now.daemon.log_level, settings.now.daemon.log_format)
        if owner_fd is not None:
            os.set_inheritable(owner_fd, False)
        state_folder.prepare(places)
        with lockfile.held(places.daemon_lock):
            # Whoever left it is dead, or could not have lost the lock.
            for path in (places.socket, places.reader_socket):
                path.unlink(missing_ok=True)
            # Before gRPC is imported: the daemon never forks, and gRPC's handlers for it cost and can hang.
            os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
            os.environ["GRPC_SSL_CIPHER_SUITES"] = _NO_TLS_1_2
            _prefer_our_session()
            heap.keep_one()
            anyio.run(_serve, places, settings, owner_fd, backend="asyncio", backend_options={"use_uvloop": True})
            for path in (places.socket, places.reader_socket):
                path.unlink(missing_ok=True)
    except* StartupError as group:
        failure = _first(group)
    if failure is not None:
        click.echo(f"musterd: {failure}", err=True)
        sys.exit(1)


def _prefer_our_session() -> None:
    """Gives the session that we lead our own nice value, if that is below 0.

    Where the kernel groups processes by session (sched_autogroup_enabled, on by default) and no cgroup with the
    controller cpu is between, a nice value counts only among the processes of one session: the unit's `Nice=` would do
    nothing against 256 ranks that are let go at once, each of which leads its own. Nursery and supervisors lead theirs,
    too, and keep the usual weight: an answer must not wait for a start. Best effort: it needs CAP_SYS_NICE.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if nice < 0 and os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))


def _first(group: ExceptionGroup[StartupError]) -> StartupError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


async def _serve(root: Root, settings: LiveConfig, owner_fd: int | None) -> None:
    """Everything between start and end. Raises StartupError, alone or in groups."""
    from muster.agent import orphans
    from muster.agent.api.server import ServerContext, serve
    from muster.agent.api.slots import Listeners
    from muster.agent.api.tls import Credentials
    from muster.agent.ending import Ending
    from muster.agent.events.event_store import Event, EventStore
    from muster.agent.hang.hang_watch import HangWatch
    from muster.agent.hang.job_stacks import Stacks
    from muster.agent.jobs.cards.leasing import Leasing
    from muster.agent.jobs.crashes import Crashes
    from muster.agent.jobs.ended.collected_logs import CollectedLogs
    from muster.agent.jobs.output_losses import OutputLosses
    from muster.agent.jobs.registry import Registry
    from muster.agent.link.nursery_client import NurseryClient
    from muster.agent.logs.collecting import Collecting
    from muster.agent.logs.log_keeping import LogKeeping
    from muster.agent.metrics.metrics import Metrics
    from muster.agent.node.health import NodeHealth
    from muster.agent.notify.sender import Notifier
    from muster.agent.telemetry.sampling import Telemetry
    from muster.probes.cards.driver import Driver, DriverSettings

    started_at = time.time()
    tls = Credentials(settings.now.tls) if settings.now.tls.listen else None
    stopping = anyio.Event()
    try:
        events = await EventStore.open(root.events, settings.now.jobs.keep_events_bytes)
        nursery = NurseryClient(root, owner_fd=owner_fd)
        driver = Driver(lambda: DriverSettings(settings.now.cards.driver_deadline_s, settings.now.cards.slots))
        health = NodeHealth(root, settings, events, driver)
        leasing = Leasing(settings, events, driver, health)
        health.holder = leasing.holder
        registry = Registry(root, settings, events, nursery, driver, leasing, health)
        limits = degraded.Degraded(root, health.found)
        registry.of_daemon = lambda: limits.trouble
        registry.on_no_room = limits.refused
        crashes = Crashes(events, health.found, registry.known)
        losses = OutputLosses(root, health.found, registry.live)
        registry.ended.on_ended.append(losses.ended)
        registry.ended.on_lacking.append(losses.ended)
        nursery.died = crashes.died
        telemetry = Telemetry(root, settings, driver, registry)
        notifier = Notifier(root, settings, events, registry)
        stacks = Stacks(registry, driver)
        hangs = HangWatch(settings, events, registry, telemetry.records, stacks.take)
        slots = Listeners(settings)
        metrics = Metrics(settings, registry, driver, telemetry, health, events, slots)
        collected = CollectedLogs(root.collected_logs)
        keeping = LogKeeping(root, settings, events, registry, collected)
        collecting = Collecting(settings, registry, keeping, collected, telemetry.history, events)
        ending = Ending(settings, registry, notifier, stopping, owned=owner_fd is not None)
        await notifier.load()
        await health.load()
        await registry.load()
        await telemetry.load()
    except OSError as error:
        raise StartupError(f"{root.state}: cannot be worked with: {explain(error)}") from error
    context = ServerContext(
        registry,
        events,
        driver,
        health,
        telemetry,
        metrics,
        notifier,
        stacks,
        hangs,
        keeping,
        slots,
        tls,
        settings,
        root,
        started_at,
        stopping,
    )

    def note(kind: str, message: str) -> None:
        events.append([(None, Event(time.time(), kind, message=message, attributes={"pid": str(os.getpid())}))])

    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(_handle_signals, settings, events, registry, metrics, keeping, collecting, ending)
            tasks.start_soon(heap.trim)
            tasks.start_soon(crashes.run)
            tasks.start_soon(limits.run)
            tasks.start_soon(losses.run)
            if is_init():
                tasks.start_soon(orphans.reap, registry)
            await tasks.start(events.run)
            await tasks.start(nursery.run)
            await tasks.start(keeping.run)
            await tasks.start(registry.run)
            tasks.start_soon(collecting.run)
            # Not waited for: a driver may hang, and the daemon answers all the same.
            tasks.start_soon(_open, driver, leasing)
            await tasks.start(health.run)
            await tasks.start(hangs.run)
            await tasks.start(telemetry.run)
            await tasks.start(metrics.run)
            await tasks.start(notifier.run)
            async with anyio.create_task_group() as serving:
                await serving.start(serve, context)
                note("node.started", f"musterd {build.FULL} started")
                systemd.notify("READY=1")
                if owner_fd is not None:
                    tasks.start_soon(ending.end_with_owner, owner_fd)
                tasks.start_soon(watchdog.feed, events, root.nursery_socket)
                await stopping.wait()
                systemd.notify("STOPPING=1")
                registry.close()
                running = "" if ending.stops_jobs else "; jobs run on"
                note("node.stopping", f"musterd is ending{running}")
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await driver.close()
            await events.close()
    _log.info("ended")


async def _open(driver: "Driver", leasing: "Leasing") -> None:
    await driver.open()
    leasing.known.set()


async def _handle_signals(
    settings: LiveConfig,
    events: "EventStore",
    registry: "Registry",
    metrics: "Metrics",
    keeping: "LogKeeping",
    collecting: "Collecting",
    ending: "Ending",
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    with anyio.open_signal_receiver(*ending.signals()) as signals:
        task_status.started()
        async with anyio.create_task_group() as tasks:
            async for number in signals:
                if ending.is_meant(number):
                    ending.take(number, tasks)
                    continue
                systemd.notify("RELOADING=1")
                await threads.run(settings.reload)
                log_setup.configure(settings.now.daemon.log_level, settings.now.daemon.log_format)
                events.keep_bytes = settings.now.jobs.keep_events_bytes
                registry.reload(settings.trouble)
                metrics.reload()
                keeping.reload()
                collecting.reload()
                systemd.notify("READY=1")


if __name__ == "__main__":
    main()
