"""Watches the node: runs each check on schedule, and receives reports of kernel and driver.

Every check has its own look, and each look has a time limit, so none blocks another. A check with a bug becomes a
finding UNKNOWN, and never ends the watch.
"""

import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus
from anyio.lowlevel import checkpoint

from muster.agent.config.schema import Config
from muster.probes.calls.heartbeat import EARLY_S
from muster.probes.cards.accelerator import CardEvent
from muster.probes.cards.driver import Driver
from muster.probes.checks.precheck import UnknownItem
from muster.probes.checks.result import Action, CheckResult, Code, Status
from muster.probes.kernel.dataclass import dataclass
from muster.probes.node import node_checks
from muster.probes.node.node_checks import Finding, Inventory, KeptCounts, NodeCheck, NodeSettings, Position

#: Seconds after the start in which every check has its first turn, one after the other.
FIRST_S = 5.0
#: A look is abandoned when it takes so many seconds longer than the limits of its parts.
MARGIN_S = 2.0
#: Seconds between two looks at the configuration.
RELOAD_S = 5.0
#: Seconds of pause after the watch of kernel or driver failed because of a bug.
REST_S = 5.0
#: Checks with so long an interval have their turns on whole seconds, when the daemon is awake anyway (`until_tick`).
WHOLE_S = 5.0
#: A periodic look uses a driver reading up to so many seconds old, if telemetry does not read the driver anyway.
FRESH_S = 5.0

#: While health checks are switched off.
_NO_CHECKS: Mapping[str, NodeCheck] = MappingProxyType({})

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Turn:
    interval: float
    #: When it is due, and by how much the second turn comes before a whole interval is over.
    due: float
    early: float


class CheckSchedule:
    """Seconds of a monotonic clock. First turns come soon; second ones at different parts of each interval, and from
    then on the checks stay apart."""

    def __init__(self, first_s: float = FIRST_S) -> None:
        self._first_s = first_s
        self._turns: dict[str, _Turn] = {}

    def arrange(self, intervals: Mapping[str, float], now: float) -> None:
        """Takes over which checks there are, with their intervals in seconds; those that stay keep their turn."""
        self._turns = {item: turn for item, turn in self._turns.items() if item in intervals}
        new = [item for item in intervals if item not in self._turns]
        for place, item in enumerate(new):
            interval = intervals[item]
            apart = place / len(new)
            first = now + min(self._first_s, interval) * apart
            self._turns[item] = _Turn(interval, first, interval * (1 - apart) / 2)
        for item, interval in intervals.items():
            turn = self._turns[item]
            if turn.interval != interval:
                turn.interval, turn.early = interval, 0.0
                turn.due = min(turn.due, now + interval)

    def due(self, now: float) -> list[str]:
        """Those whose turn it is; their next one is set. Turns that were missed are not made up for."""
        found = []
        for item, turn in self._turns.items():
            if turn.due > now:
                continue
            found.append(item)
            turn.due += turn.interval - turn.early
            if turn.early and turn.interval >= WHOLE_S:
                turn.due = math.ceil(turn.due)  # to wake an idle daemon costs more than most checks
            turn.early = 0.0
            if turn.due <= now:
                turn.due = now + turn.interval
        return found

    def next_at(self) -> float | None:
        """When somebody is due next; None where there is nobody."""
        return min((turn.due for turn in self._turns.values()), default=None)


class Looks(Protocol):
    """The part of `muster.probes.node.node_checks.Looker` that is used here."""

    @property
    def position(self) -> Position | None: ...
    def applicable(self, item: str) -> str: ...
    async def look(
        self,
        items: Sequence[str] = (),
        cards: Collection[int] | None = None,
        *,
        held: Mapping[int, str] | None = None,
        max_age_s: float = 0.0,
    ) -> list[CheckResult]: ...
    async def kernel_events(self) -> list[Finding]: ...
    def driver_events(self, events: Sequence[CardEvent]) -> list[Finding]: ...
    def forget(self, code: Code, device: str) -> None: ...
    def follow(self, number_now: Callable[[int, str], int | None]) -> None: ...
    @property
    def inventory(self) -> Inventory: ...
    def counts(self) -> KeptCounts: ...
    async def accept(self, code: Code, device: str) -> None: ...
    def close(self) -> None: ...


class NodeWatch:
    """Passes results (with the examined cards) and findings to its two listeners, on the loop."""

    def __init__(
        self,
        settings: Callable[[], Config],
        driver: Driver,
        looker: Looks,
        held: Callable[[], Mapping[int, str]],
        looked: Callable[[Sequence[CheckResult], Collection[int] | None], None],
        happened: Callable[[Sequence[Finding], bool], None],
    ) -> None:
        """`held`: jobs by the cards that they hold. `happened` also receives whether the kernel log reported it."""
        self._settings = settings
        self._driver = driver
        self._looker = looker
        self._held = held
        self._looked = looked
        self._happened = happened
        self._rota = CheckSchedule()
        self._running: set[str] = set()
        #: Set once the driver has reported its cards, or has not answered in time.
        self._begun: anyio.Event | None = None
        self._config: Config | None = None
        self._catalogue: dict[str, NodeCheck] = {}

    @property
    def on(self) -> bool:
        """Whether periodic checks are switched on; looks on demand always run."""
        return self._settings().health.policy != "off"

    @property
    def catalogue(self) -> Mapping[str, NodeCheck]:
        """The checks that are switched on, by item."""
        config = self._settings()
        if config is not self._config:
            self._config = config
            self._catalogue = {check.item: check for check in node_checks.catalogue(self._node_settings())}
        return self._catalogue

    async def look(self, items: Sequence[str], cards: Collection[int] | None) -> list[CheckResult]:
        """Looks now, with fresh readings. Raises UnknownItem.

        If the look as a whole did not end in time, each item's result says so, and the listeners get nothing: a
        caller's short time limit is no finding about the node.
        """
        results, ended = await self._look(items, cards, max_age_s=0.0)
        if ended and self.on:
            self._looked(results, cards)
        return results

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """For ever."""
        self._begun = begun = anyio.Event()
        task_status.started()
        try:
            # Understanding the kernel log needs the driver's list of cards.
            await self._driver.ready()
            async with anyio.create_task_group() as group:
                # Before the first look, which would read the log itself if nothing followed it.
                group.start_soon(self._watch, self._looker.kernel_events, True, name="kernel log")
                group.start_soon(self._watch, self._driver_events, False, name="events of the driver")
                await checkpoint()
                begun.set()
                await self._take_turns(group)
        finally:
            self._looker.close()

    async def _take_turns(self, group: TaskGroup) -> None:
        arranged: Mapping[str, NodeCheck] | None = None
        while True:
            checks = self.catalogue if self.on else _NO_CHECKS
            now = anyio.current_time()
            if checks is not arranged:  # of one configuration they are always the same
                arranged = checks
                intervals = {check.item: check.interval_s for check in checks.values() if check.interval_s > 0}
                self._rota.arrange(intervals, now)
            for item in self._rota.due(now + EARLY_S):
                if item not in self._running:
                    self._running.add(item)
                    group.start_soon(self._turn, item, name=f"check {item}")
            until = self._rota.next_at()
            await anyio.sleep(min(RELOAD_S, RELOAD_S if until is None else max(until - now, 0.0)))

    async def _turn(self, item: str) -> None:
        telemetry = self._settings().telemetry
        # Telemetry reads the same values: no card is read twice.
        max_age_s = 1.5 * telemetry.health_s if telemetry.enabled else FRESH_S
        try:
            results, _ = await self._look((item,), None, max_age_s=min(max_age_s, self.catalogue[item].interval_s))
            if self.on:
                self._looked(results, None)
        except (UnknownItem, KeyError):
            pass  # a new configuration has just switched it off
        finally:
            self._running.discard(item)

    async def _look(
        self, items: Sequence[str], cards: Collection[int] | None, *, max_age_s: float
    ) -> tuple[list[CheckResult], bool]:
        """The results, and whether the look itself returned them."""
        config = self._settings()
        limit = self._node_settings().look_deadline_s + config.cards.driver_deadline_s + MARGIN_S
        if cards is not None:  # a job is waiting
            limit = min(limit, config.checks.deadline_s)
        results: list[CheckResult] | None = None
        why, code = f"no answer within {limit:g} s", Code.PROBE_TIMED_OUT
        try:
            with anyio.move_on_after(limit):
                if self._begun is not None:
                    await self._begun.wait()
                results = await self._looker.look(items, cards, held=self._held(), max_age_s=max_age_s)
        except UnknownItem:
            raise
        except Exception as error:  # a bug in a check is a finding of its own
            _log.exception("check.failed", items=list(items))
            why, code = f"the check itself failed (a bug): {type(error).__name__}: {error}", Code.PROBE_FAILED
        if results is not None:
            return results, True
        named = [i for i, check in self.catalogue.items() if _chosen(i, items) and check.interval_s > 0]
        action, threshold = Action.INVESTIGATE, f"answers within {limit:g} s"
        return [CheckResult(i, Status.UNKNOWN, code, why, threshold=threshold, action=action) for i in named], False

    async def _driver_events(self) -> list[Finding]:
        return self._looker.driver_events(await self._driver.wait_events())

    async def _watch(self, events: Callable[[], Awaitable[list[Finding]]], of_kernel: bool) -> None:
        while True:
            try:
                self._tell(await events(), of_kernel)
            except Exception:  # a bug, such as an unexpected line, must end neither this watch nor the daemon
                _log.exception("kernel_log.failed" if of_kernel else "driver_events.failed")
                await anyio.sleep(REST_S)

    def _tell(self, found: Sequence[Finding], of_kernel: bool) -> None:
        wanted = [finding for finding in found if finding.item in self.catalogue]
        if wanted and self.on:
            self._happened(wanted, of_kernel)

    def _node_settings(self) -> NodeSettings:
        return self._settings().health


def _chosen(item: str, items: Sequence[str]) -> bool:
    return not items or any(wanted in (item, item.partition(" ")[0]) for wanted in items)
