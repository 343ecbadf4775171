"""Active tests of the free cards while the node is drained: each card once a drain, by the setting `in_drain`.

Nobody waits for them. They are ended, and leave nothing, as soon as the node is back in service, a job gets one of the
cards, a reset begins, or the daemon ends.
"""

import time
from collections.abc import Callable, Collection

import anyio
import structlog

from muster.agent.errors import ApiError
from muster.agent.events.event_store import Event
from muster.agent.node import active_look
from muster.agent.reset.reset_report import ResetParts
from muster.probes.active.card_limits import BadLimits
from muster.probes.checks.card_checks import CardsWanted
from muster.probes.checks.result import CheckResult, Status
from muster.probes.kernel.number_lists import numbers

#: Seconds between two looks at the node, also while a test runs.
LOOK_S = 1.0

_log = structlog.get_logger(__name__)


class DrainTests:
    """Belongs to one event loop."""

    def __init__(self, parts: ResetParts, resets: Callable[[], bool]) -> None:
        """`resets`: whether a card is being reset."""
        self._parts, self._resets = parts, resets
        #: When the drain began in which the cards were tested; by UUID, or number where there is none.
        self._since = 0.0
        self._tested: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await anyio.sleep(LOOK_S)
            if free := self._due():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._watch, free, tasks.cancel_scope)
                    await self._test(free)
                    tasks.cancel_scope.cancel()

    def _due(self) -> list[int]:
        """The cards to test now, by index."""
        drain, leasing = self._parts.health.drain, self._parts.registry.leasing
        if drain is None or not self._parts.config().active.in_drain or self._resets() or not leasing.settled.is_set():
            return []
        if drain.since != self._since:
            self._since, self._tested = drain.since, set()
        whole = self._parts.driver.view.whole
        taken = self._taken()
        return [index for index in whole if index not in taken and self._name(index) not in self._tested]

    def _taken(self) -> Collection[int]:
        leases = self._parts.registry.leasing.all()
        held = (lease.card for lease in leases if lease.job_id)
        return {card.index if card.parent is None else card.parent for card in held}

    def _name(self, index: int) -> str:
        card = self._parts.driver.view.whole.get(index)
        return card.uuid if card is not None and card.uuid else f"card {index}"

    async def _watch(self, cards: list[int], tests: anyio.CancelScope) -> None:
        """Ends the tests when the cards are wanted for something else."""
        while True:
            drain = self._parts.health.drain
            if drain is None or drain.since != self._since or self._resets() or set(cards) & set(self._taken()):
                _log.info("drain_tests.broken_off", cards=numbers(cards))
                tests.cancel()
                return
            await anyio.sleep(LOOK_S)

    async def _test(self, cards: list[int]) -> None:
        config, past = self._parts.config(), self._parts.root.active_figures
        names = {self._name(index) for index in cards}
        try:
            wanted = CardsWanted(indices=tuple(cards))
            results, trouble = await active_look.look(self._parts.driver, wanted, config.active, past)
            await self._parts.health.report(results, "musterd, while the node is drained (in_drain of [active])")
        except (OSError, BadLimits, ApiError) as error:
            _log.warning("drain_tests.failed", error=str(error))
            self._tested |= names  # a card that cannot be tested is not tried again and again
            return
        if trouble:
            _log.warning("drain_tests.history", error=trouble)
        self._tested |= names  # not before: tests that were broken off are made once the cards are free again
        self._tell(cards, results)

    def _tell(self, cards: list[int], results: list[CheckResult]) -> None:
        bad = [r for r in results if r.status not in (Status.OK, Status.NOT_APPLICABLE)]
        what = "; ".join(f"{r.device}: {r.code}: {r.reason}" for r in bad[:8]) or "all is well"
        text = f"tested while the node is drained: cards {numbers(cards)}: {what}"
        facts = {"cards": ",".join(map(str, cards)), "bad": str(len(bad))}
        _log.info("node.tested", text=text, **facts)
        self._parts.events.append([(None, Event(time.time(), "node.tested", message=text, attributes=facts))])
