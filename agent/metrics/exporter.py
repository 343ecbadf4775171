"""Metrics for Prometheus: the present state of daemon, jobs, node and cards, and counts since the start.

Each request makes a page from what the other parts know. Between requests only events are counted (tally.py) and the
loop's lag is measured (`LoopLag`). The page is served on a loopback port or a unix socket, and in a file for
node_exporter; no fault of these ends the daemon.
"""

import contextlib
import os
import socket
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from muster.agent.changes import Changes
from muster.agent.config import listen_address
from muster.agent.config.listen_address import Tcp, Unix
from muster.agent.config.schema import Config, MetricsTable
from muster.agent.events.event_store import EventStore
from muster.agent.exposition import Distribution, Page
from muster.agent.jobs.cards.leases import Lease
from muster.agent.jobs.entry import Entry
from muster.agent.metrics import card_metrics, node_metrics, scrape_server, vendor_metrics
from muster.agent.metrics.tally import Tally
from muster.agent.metrics.textfile import Textfile
from muster.agent.node.conditions import Condition
from muster.probes.calls.heartbeat import until_tick
from muster.probes.cards.driver import View
from muster.probes.checks.result import CheckResult
from muster.supervisors.model.states import State

#: Seconds until the next try if the port is in use.
RETRY_S = 5.0
#: Seconds between two measurements of the loop's lag. They cost an idle loop 0.05 % of a core, nearly all for waking.
LAG_PERIOD_S = 0.5
#: Upper bounds in seconds.
LAG_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)

_log = structlog.get_logger(__name__)


class CountedJobs(Protocol):
    """The part of the registry that this module needs."""

    @property
    def cards(self) -> Sequence[Lease]:
        """By index, with who holds them."""

    def live(self) -> Sequence[Entry]:
        """Jobs that have not ended."""

    def has_ended(self, job_id: str) -> bool:
        """Whether there is such a job, and it has ended."""

    def states(self) -> Mapping[State, int]:
        """How many jobs are in each state."""

    def warnings(self) -> Sequence[str]:
        """Sentences for an operator."""


class CountedCards(Protocol):
    """The part of the driver that this module needs."""

    @property
    def view(self) -> View:
        """The state of the cards."""


class Node(Protocol):
    """The part of the node's health that this module needs."""

    @property
    def conditions(self) -> Sequence[Condition]:
        """What is wrong now."""

    @property
    def results(self) -> Collection[CheckResult]:
        """The newest result of each check."""

    @property
    def drain(self) -> object | None:
        """None while the node is in service."""

    @property
    def trouble(self) -> Sequence[str]:
        """Sentences for an operator."""

    def refusal(self, cards: Sequence[int]) -> Condition | None:
        """What keeps jobs off the node, or off one of these cards."""

    def unfit_cards(self) -> Mapping[int, Condition]:
        """What keeps jobs off cards."""


class JobUsages(Protocol):
    """The part of the telemetry that this module needs."""

    @property
    def underused(self) -> Sized:
        """Jobs that are marked UNDERUSED."""

    @property
    def trouble(self) -> Sequence[str]:
        """Sentences for an operator."""


class Filler(Protocol):
    """A part with metrics of its own."""

    def fill(self, page: Page) -> None:
        """Puts their metrics on the page."""


class Metrics:
    """Makes the page and serves it. Belongs to one event loop."""

    def __init__(
        self,
        settings: Callable[[], Config],
        registry: CountedJobs,
        driver: CountedCards,
        telemetry: JobUsages,
        health: Node,
        events: EventStore,
        others: Sequence[Filler],
    ) -> None:
        """Counts events from now on. Create it before the registry is loaded: then it also counts what happened while
        no daemon ran."""
        self._settings = settings
        self._registry = registry
        self._driver = driver
        self._telemetry = telemetry
        self._health = health
        self._others = others
        self._tally = Tally(events, registry.live)
        self._lag = LoopLag()
        self._hostname = socket.gethostname()
        self._started_at = time.time()
        self._reloaded = Changes()
        self._unbound = ""
        self._textfile: Textfile | None = None

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator: why metrics are not served as configured."""
        return [text for text in (self._unbound, self._textfile.trouble if self._textfile else "") if text]

    def reload(self) -> None:
        """Applies a reloaded configuration."""
        self._reloaded.tell()

    async def page(self, openmetrics: bool = False) -> bytes:
        """The page of all metrics, as for a scrape."""
        await self._tally.catch_up()
        page = Page()
        now, config, view = time.time(), self._settings(), self._driver.view
        jobs, conditions, health = self._registry, self._health.conditions, self._health
        warnings = [*self._registry.warnings(), *health.trouble, *self._telemetry.trouble, *self.trouble]
        node_metrics.daemon(page, self._started_at, self._lag.seen, len(warnings))
        node_metrics.jobs(page, jobs.states(), jobs.live(), len(self._telemetry.underused))
        self._tally.fill(page)
        for other in self._others:
            other.fill(page)
        drained, refused = health.drain is not None, health.refusal(()) is not None
        node_metrics.health(page, health.results, conditions, drained=drained, refused=refused)
        ended = {lease.job_id for lease in jobs.cards if jobs.has_ended(lease.job_id)}
        card_metrics.cards(page, view, jobs.cards, ended, health.unfit_cards())
        if config.metrics.job_info:
            card_metrics.jobs(page, jobs.cards)
        card_metrics.readings(page, view, config.telemetry, now)
        if config.metrics.dcgm_names:
            vendor_metrics.dcgm(page, view, config.telemetry, self._tally.last_xid, self._hostname, now)
        if config.metrics.npu_names:
            vendor_metrics.npu(page, view, config.telemetry, now)
        return page.text(openmetrics=openmetrics)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Counts, measures and serves until cancelled. Then it removes the textfile."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tally.run)
            for setting, work in (
                (lambda table: table.listen or table.textfile, self._measure),
                (lambda table: table.listen, self._serve),
                (lambda table: table.textfile, self._write),
            ):
                tasks.start_soon(self._while_set, setting, work)
            task_status.started()

    async def _while_set(
        self, setting: Callable[[MetricsTable], str], work: Callable[[str], Coroutine[Any, Any, None]]
    ) -> None:
        """Does what a setting says, until it says something else."""
        while True:
            value = setting(self._settings().metrics)
            async with anyio.create_task_group() as tasks:
                if value:
                    tasks.start_soon(work, value)
                while setting(self._settings().metrics) == value:
                    await self._reloaded.next()
                tasks.cancel_scope.cancel()

    async def _measure(self, _: str) -> None:
        """Measures the lag only while metrics are served, because waking twice a second has a cost."""
        await self._lag.run()

    async def _serve(self, listen: str) -> None:
        where = listen_address.parse(listen)
        assert where is not None
        try:
            while True:
                await self._serve_once(where)
                await anyio.sleep(RETRY_S)
        finally:
            self._unbound = ""

    async def _serve_once(self, where: Tcp | Unix) -> None:
        """Serves until cancelled; returns if the address cannot be bound."""
        try:
            sock = scrape_server.bind(where)
        except OSError as error:
            text = f"cannot serve metrics at {where}: {os.strerror(error.errno or 0)}; the daemon tries again; "
            text += "see listen in [metrics]"
            if text != self._unbound:
                _log.warning("metrics.not_bound", where=str(where), error=str(error))
            self._unbound = text
            return
        self._unbound = ""
        _log.info("metrics.shown", where=str(where))
        with sock:
            try:
                await scrape_server.serve(sock, self.page)
            finally:
                if isinstance(where, Unix):
                    with contextlib.suppress(OSError):
                        where.path.unlink()

    async def _write(self, path: str) -> None:
        self._textfile = Textfile(Path(path), self.page)
        try:
            await self._textfile.run(lambda: self._settings().metrics.textfile_s)
        finally:
            self._textfile = None


class LoopLag:
    """The lag of the event loop: code that blocks the loop makes every caller wait. Sleeps repeatedly, and counts how
    many seconds late it wakes."""

    def __init__(self) -> None:
        self._counts = [0] * (len(LAG_BOUNDS) + 1)
        self._total = 0.0

    async def run(self) -> None:
        """Measures until cancelled."""
        while True:
            left = until_tick(LAG_PERIOD_S)
            due = time.monotonic() + left
            await anyio.sleep(left)
            self.observe(max(time.monotonic() - due, 0.0))

    def observe(self, seconds: float) -> None:
        """Counts one delay."""
        self._counts[bisect_left(LAG_BOUNDS, seconds)] += 1
        self._total += seconds

    @property
    def seen(self) -> Distribution:
        """All delays so far."""
        up_to, count = [], 0
        for bound, found in zip(LAG_BOUNDS, self._counts, strict=False):
            count += found
            up_to.append((bound, count))
        return Distribution(tuple(up_to), count + self._counts[-1], self._total)
