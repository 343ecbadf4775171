"""The checks of the node and its cards: which there are, and how they are looked at, by period, on demand and at
events."""

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel

from muster.probes.calls import watched
from muster.probes.cards.accelerator import ASCEND, NVIDIA, CardEvent
from muster.probes.cards.driver import Driver, What
from muster.probes.checks.codes import EXPLANATIONS, Clears
from muster.probes.checks.precheck import UnknownItem
from muster.probes.checks.result import CheckResult, Code
from muster.probes.kernel import kmsg, pci, process
from muster.probes.kernel.kmsg import KernelLog, Position
from muster.probes.node import filesystems, infiniband, kept_counts, nics, processes
from muster.probes.node.cards import card_health, fabric_service, inventory, leftovers, links, npus, presence
from muster.probes.node.kept_counts import KeptCounts
from muster.probes.node.memory import Memory
from muster.probes.node.node_check import About, Look, NodeCheck, NodeRule, Roots, everywhere, for_kinds
from muster.probes.node.node_settings import NodeSettings, words
from muster.probes.node.remembered import Inventory, InventoryState, Remembered
from muster.probes.node.reported import event_checks, kernel_log
from muster.probes.node.reported.findings import Finding, Findings
from muster.probes.node.reported.kernel_log import Following
from muster.probes.node.results import folded, still

__all__ = [
    "Finding",
    "Inventory",
    "InventoryState",
    "KeptCounts",
    "Looker",
    "NodeCheck",
    "NodeSettings",
    "Position",
    "Remembered",
    "UnknownItem",
    "catalogue",
    "folded",
    "still",
]

_PERIODIC: tuple[NodeRule, ...] = (
    *presence.RULES,
    *inventory.RULES,
    *card_health.RULES,
    *links.RULES,
    *fabric_service.RULES,
    *leftovers.RULES,
    *npus.RULES,
    *infiniband.RULES,
    *nics.RULES,
    *filesystems.RULES,
    *processes.RULES,
)
_BY_EVENTS = (
    event_checks.XID,
    event_checks.NVSWITCH,
    event_checks.STORAGE,
    event_checks.KERNEL,
    event_checks.MEMORY,
    event_checks.OOM,
)
#: Of NVIDIA cards alone; and what is known without the kernel's log.
_NVIDIA_ITEMS = frozenset({event_checks.XID.item, event_checks.NVSWITCH.item})
#: Seconds between two openings of a driver that misses a card: some libraries list a card that came back only then.
_RELIST_S = 60.0
#: Kinds of findings that are remembered, at most; the oldest go first.
_REMEMBERED = 1000


def catalogue(settings: NodeSettings) -> list[NodeCheck]:
    """All checks but those that `skip` names, in the order in which results are given."""
    skipped = set(words(settings.skip))
    return [check for check in _checks() if check.item not in skipped]


def _moment() -> tuple[str, float, float]:
    """The boot, and now by both clocks: since the boot, and since the epoch."""
    return process.boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time()


def _checks() -> list[NodeCheck]:
    return [*(rule.check for rule in _PERIODIC), kernel_log.CHECK, *_BY_EVENTS]


class Looker:
    """Looks at one node, and keeps what checks need over time. One for a daemon's life, or for one run of a command."""

    def __init__(
        self,
        settings: Callable[[], NodeSettings],
        driver: Driver,
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        dev: Path = Path("/dev"),
        log: Path = kmsg.PATH,
        after: Position | None = None,
        earlier_boots: Callable[[str, int], int] = lambda _card, _xid: 0,
        inventory: Inventory | None = None,
        counts: KeptCounts | None = None,
        own_paths: tuple[str, ...] = (),
    ) -> None:
        """`after`: what of the kernel's log was read before. `earlier_boots`: in how many boots before this one a card
        (its uuid, or its bus id) had an Xid. `inventory`: the cards that the node had; none are known by default.
        `counts`: what an earlier one had counted. `own_paths`: folders of muster itself, whose file systems are
        watched, too."""
        self._settings = settings
        self._driver = driver
        self._roots = Roots(proc, sys, dev)
        self._own_paths = own_paths
        self._memory = Memory(inventory)
        if counts is not None:
            kept_counts.restore(self._memory, counts, *_moment())
        self.rules = {rule.check.item: rule for rule in self._all_rules()}
        self._relisted_at = time.monotonic()
        self._following = Following(KernelLog(log, after))
        # A missing card is still known by its place on the bus.
        remembered = self._memory.inventory
        self._findings = Findings(
            settings, lambda: [*driver.view.whole.values(), *remembered.absent(driver.view.cards)], earlier_boots
        )
        #: What happened, by code and device, and how often; event items tell of it.
        self._happened: dict[tuple[str, Code, str], Finding] = {}

    # --- looking ------------------------------------------------------------------------------------------------------

    def applicable(self, item: str) -> str:
        """Why an item does not apply to this node; empty where it does. Quick: memory, and the kernel's small files.

        Raises UnknownItem.
        """
        (found,) = self._choose([item])[:1]
        return self.rules[found].applies(self._look(None, None))

    async def look(
        self,
        items: Sequence[str] = (),
        cards: Collection[int] | None = None,
        *,
        held: Mapping[int, str] | None = None,
        max_age_s: float = 0.0,
    ) -> list[CheckResult]:
        """Looks at all items, or at those that `items` name (in full, or by their first word), side by side.

        `cards`: only of these cards, and of the node itself. `held`: the job that has a card, by index. Readings of
        the driver that are not older than `max_age_s` serve; others are asked for. Takes at most the
        driver's deadline and `look_deadline_s`, whatever hangs. Findings are results, never exceptions. Raises
        UnknownItem.
        """
        chosen = self._choose(items) if items else [c.item for c in catalogue(self._settings())]
        only = None if cards is None else frozenset(cards)
        if inventory.INVENTORY.item in chosen and held is not None and only is None:
            await self._look_for_missing(held, anew=max_age_s == 0.0)
        if self._driver.view.driver is not None:
            await self._driver.ready()  # it may be back by now: what this look says of it is not older than the look
        before = self._look(only, held)
        needs = {what for item in chosen if not self.rules[item].applies(before) for what in self.rules[item].needs}
        await self._freshen(needs, only, max_age_s)
        if not self._following.followed:
            await self._catch_up()
        look = self._look(only, held)
        if len(chosen) == 1:  # as all looks by the clock are: a task of its own costs more than most checks
            return await self._guarded(self.rules[chosen[0]], look)
        results: dict[str, list[CheckResult]] = {}

        async def one(item: str) -> None:
            results[item] = await self._guarded(self.rules[item], look)

        async with anyio.create_task_group() as group:
            for item in chosen:
                group.start_soon(one, item)
        return [result for item in chosen for result in results[item]]

    async def _look_for_missing(self, held: Mapping[int, str], *, anew: bool) -> None:
        """A card that is missing may have come back. The numbers of cards do not change under a job."""
        view, now = self._driver.view, time.monotonic()
        if view.driver is None and not held and self.inventory.compare(view.cards.values(), view.kind, {}).missing:
            if anew := anew or now - self._relisted_at >= _RELIST_S:
                self._relisted_at = now
            await self._driver.relist(anew=anew)

    async def _guarded(self, rule: NodeRule, look: Look) -> list[CheckResult]:
        """Its results with their time; UNKNOWN where it hangs, or is itself broken."""
        began, say, limit = time.monotonic(), About(rule.check.item), look.settings.look_deadline_s
        results: list[CheckResult] | None = None
        try:
            why_not = rule.applies(look)
            if why_not:
                results = [say.off(why_not)]
            else:
                with anyio.move_on_after(limit):
                    results = await rule.judge(look)
            if results is None:
                late = f"no answer within {limit:g} s"
                results = [say.found(Code.PROBE_TIMED_OUT, late, threshold=f"answers within {limit:g} s")]
        except watched.StillHanging as error:
            results = [say.found(Code.PROBE_TIMED_OUT, str(error))]
        except (
            Exception
        ) as error:  # a defect of one check must neither stop the others nor pass for a fault of the node
            results = [
                say.found(Code.PROBE_FAILED, f"the check itself failed (a defect): {type(error).__name__}: {error}")
            ]
        seconds = round(time.monotonic() - began, 6)
        return [replace(result, seconds=seconds) for result in results]

    async def _freshen(self, needs: Collection[What], only: frozenset[int] | None, max_age_s: float) -> None:
        """Asks the driver for what is older than it may be. One kind after the other: a card that hangs is then
        skipped."""
        for what in sorted(needs, key=lambda need: need.value):
            view, now = self._driver.view, time.time()
            read_at = {
                What.READINGS: {index: seen.at for index, seen in view.readings.items()},
                What.HEALTH: {index: seen.at for index, seen in view.health.items()},
                What.HOLDERS: {index: seen.at for index, seen in view.holders.items()},
            }[what]
            mine = None if only is None else view.owners(only)
            wanted = [index for index in view.cards if mine is None or index in mine]
            old = [i for i in wanted if i not in read_at or not 0 <= now - read_at[i] < max_age_s]
            if old or not wanted or view.driver is not None:
                await self._driver.refresh(what, old or None)

    def _look(self, only: frozenset[int] | None, held: Mapping[int, str] | None) -> Look:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        view = self._driver.view
        only = None if only is None else view.owners(only)
        held = {owner: job for index, job in (held or {}).items() for owner in view.owners([index])}
        return Look(self._settings(), view, self._memory, now, self._roots, held, only, self._own_paths)

    def _choose(self, items: Sequence[str]) -> list[str]:
        chosen: set[str] = set()
        for wanted in items:
            matching = [item for item in self.rules if wanted in (item, item.partition(" ")[0])]
            if not matching:
                raise UnknownItem(wanted, self.rules)
            chosen.update(matching)
        return [item for item in self.rules if item in chosen]

    # --- events -------------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position | None:
        """What of the kernel's log was read, to be remembered; None while nothing was."""
        return self._following.position

    async def kernel_events(self) -> list[Finding]:
        """What the kernel's log says of interest, as soon as it does; empty after a while, or where it cannot be read.

        For one task that does nothing else. With the first call begins what the log has kept since the boot.
        """
        return self._note(self._findings.of_records(await self._following.next()))

    def driver_events(self, events: Sequence[CardEvent]) -> list[Finding]:
        """What the driver reported (Driver.wait_events) as findings, without those that the kernel's log told of
        already."""
        now = time.clock_gettime(time.CLOCK_MONOTONIC)
        for event in events:
            card = self._driver.view.cards.get(event.index) if event.index is not None else None
            if event.kind == ASCEND and card is not None:
                boot = time.clock_gettime(time.CLOCK_BOOTTIME)
                whose, repeats = card.uuid or f"card {card.index}", self._memory.repeats
                if event.over:
                    repeats.went(whose, event.code, boot)
                else:
                    repeats.came(whose, event.code, boot, stays=event.stays)
        return self._note(self._findings.of_events(events, now, time.time()))

    @property
    def inventory(self) -> Inventory:
        """The cards that the node had."""
        return self._memory.inventory

    def counts(self) -> KeptCounts:
        """What was counted so far, to be kept over a restart of the daemon."""
        return kept_counts.kept(self._memory, *_moment())

    async def accept(self, code: Code, device: str) -> None:
        """Takes what the item `inventory` found for how the node is to be."""
        view, slots = self._driver.view, dict[str, str]()
        with contextlib.suppress(watched.StillHanging), anyio.move_on_after(self._settings().look_deadline_s):
            slots = await watched.call("read the slots of the PCI bus", partial(pci.slots, self._roots.sys))
        self.inventory.accept(code, device, view.whole, view.kind, slots, time.time())

    def forget(self, code: Code, device: str) -> None:
        """After somebody cleared a condition: a look does not tell again of what had happened before that."""
        for key in [key for key in self._happened if key[1:] == (code, device)]:
            del self._happened[key]
        if code is Code.NPU_FAULT_REPEATED:
            for card in self._driver.view.cards.values():
                if device == f"card {card.index}":
                    self._memory.repeats.forget(card.uuid or device)

    def follow(self, number_now: Callable[[int, str], int | None]) -> None:
        """What happened to a card goes with it where the driver has given it another number. `number_now`: of the card
        with this number and UUID then; None: it is not there, and another one has its number."""
        moved = []
        for key, finding in list(self._happened.items()):
            if finding.card is None or not finding.uuid:
                continue
            number = number_now(finding.card, finding.uuid)
            if number == finding.card:
                continue
            del self._happened[key]
            if number is not None:
                device = f"card {number}" if finding.device == f"card {finding.card}" else finding.device
                moved.append(replace(finding, card=number, device=device))
        self._note(moved)

    def close(self) -> None:
        """Closes the kernel's log."""
        self._following.close()

    async def _catch_up(self) -> None:
        """Reads the kernel's log to its end, where nobody follows it."""
        while True:
            self._note(self._findings.of_records(self._following.read()))
            if not self._following.more:
                return
            await anyio.lowlevel.checkpoint()

    def _note(self, findings: list[Finding]) -> list[Finding]:
        for finding in findings:
            key = (finding.item, finding.code, finding.device)
            before = self._happened.pop(key, None)
            count = finding.count + (before.count if before is not None else 0)
            self._happened[key] = replace(finding, count=count)
        while len(self._happened) > _REMEMBERED:
            del self._happened[next(iter(self._happened))]
        return findings

    def _all_rules(self) -> list[NodeRule]:
        async def readable(_look: Look) -> list[CheckResult]:
            return [self._following.judge()]

        def by_events(check: NodeCheck) -> NodeRule:
            async def judge(look: Look) -> list[CheckResult]:
                return self._judge_events(check.item, look)

            return NodeRule(check, judge, self._events_apply(check.item))

        return [*_PERIODIC, NodeRule(kernel_log.CHECK, readable, everywhere), *map(by_events, _BY_EVENTS)]

    def _events_apply(self, item: str) -> Callable[[Look], str]:
        kinds = for_kinds(NVIDIA)

        def applies(look: Look) -> str:
            if any(its == item for its, _, _ in self._happened):
                return ""
            if item in _NVIDIA_ITEMS and (why_not := kinds(look)):
                return why_not
            if item != event_checks.XID.item and self._following.trouble:
                return f"the kernel's log cannot be read: see `{kernel_log.CHECK.item}`"
            return ""

        return applies

    def _judge_events(self, item: str, look: Look) -> list[CheckResult]:
        """What lasts of that which happened; the rest is counted."""
        results, rest = [], 0
        now = time.time()
        for (its, code, _), finding in list(self._happened.items()):
            if its != item or (finding.card is not None and look.only is not None and finding.card not in look.only):
                continue
            row, condition = EXPLANATIONS[code], finding.condition
            if condition is not None and not (row.clears is Clears.AGE and now - finding.at > row.age_s):
                results.append(condition)
            else:
                rest += finding.count
        say = About(item)
        told = f"{rest} events that are over" if rest else "nothing happened"
        return results or [say.ok(told, f"{rest} events")]
