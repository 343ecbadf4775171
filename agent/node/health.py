"""The health of the node: latches what its checks find, tells of it, and says whether jobs may come.

`NodeWatch` looks; here it is decided what follows. All that must be known after a restart is in `node.json`, what a
supervisor needs for a verdict in `faults.json`.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import anyio
from anyio.abc import TaskStatus

from muster.agent.config.schema import Config
from muster.agent.errors import ConditionNotFound
from muster.agent.events.event_store import EventStore
from muster.agent.node import acceptance
from muster.agent.node.check_results import CheckResults
from muster.agent.node.condition_rules import explained, refuses, rule, still
from muster.agent.node.conditions import XID, Condition, ConditionChange, Conditions, Moment, said
from muster.agent.node.drill import drill
from muster.agent.node.faults_file import FaultsFile
from muster.agent.node.node_file import DrainState, Fault, NodeState, node_file
from muster.agent.node.node_notes import Notes
from muster.agent.node.node_watch import Looks, NodeWatch
from muster.agent.node.xid_memory import XidMemory
from muster.probes.cards.driver import Driver
from muster.probes.checks.result import CheckResult, Status
from muster.probes.kernel import process
from muster.probes.node.node_checks import Finding, Inventory, InventoryState, Looker, NodeCheck, NodeSettings, Position
from muster.supervisors.paths import Root

__all__ = ["Clock", "Condition", "DrainState", "NodeHealth"]

#: The item of the node's cards as they were.
INVENTORY = "inventory"
#: Seconds between two rounds of upkeep, in which what is old goes.
UPKEEP_S = 5.0


@dataclass(frozen=True, slots=True)
class Clock:
    """Where time and boot come from: seconds since the epoch, seconds since the boot, the boot's id."""

    now: Callable[[], float] = time.time
    up: Callable[[], float] = process.uptime
    boot: Callable[[], str] = process.boot_id

    def moment(self, at: float | None = None) -> Moment:
        """Now, or when it was `at` by the wall clock."""
        now, up = self.now(), self.up()
        ago = 0.0 if at is None else max(0.0, now - at)
        return Moment(now - ago, up - ago)


class NodeHealth:
    """Belongs to one event loop. `load`, then `run` make it usable."""

    def __init__(
        self,
        root: Root,
        settings: Callable[[], Config],
        events: EventStore,
        driver: Driver,
        *,
        looker: Callable[..., Looks] = Looker,
        clock: Clock | None = None,
    ) -> None:
        """`settings` gives the present configuration."""
        self._settings = settings
        self._root = root
        self._driver = driver
        self._clock = clock or Clock()
        self._boot = self._clock.boot()
        self._make_looker = looker
        self._notes = Notes(events)
        self._notes.uuid_of = self._uuid
        self._file = node_file(root.state / "node.json", self._snapshot)
        self._faults = FaultsFile(root.faults, self._boot)
        self._xids = XidMemory(self._boot, {})
        self._conditions = Conditions(
            rule, still, lambda: settings().health.clear_looks, self._spacing, lambda: driver.view.uuids
        )
        self._results = CheckResults()
        self._told: Position | None = None
        self._drain: DrainState | None = None
        #: Changes of the inventory that the file has, or will have.
        self._remembered = 0
        self._looker: Looks | None = None
        self._watch: NodeWatch | None = None

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def conditions(self) -> list[Condition]:
        """What is wrong now, the gravest first."""
        return self._conditions.all

    @property
    def results(self) -> list[CheckResult]:
        """The newest result of each check, good ones too."""
        return self._results.all

    @property
    def drain(self) -> DrainState | None:
        """Set while the node is out of service."""
        return self._drain

    @property
    def holder(self) -> Callable[[int], str]:
        """Gives the job that holds a card, empty for none; may be set."""
        return self._notes.holder

    @holder.setter
    def holder(self, value: Callable[[int], str]) -> None:
        self._notes.holder = value

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator about the files of this part, not about the node's health."""
        many = self._conditions.refused
        return [
            *self._file.trouble,
            *([self._faults.trouble] if self._faults.trouble else []),
            *([f"too many conditions at once: {many} are not stored; see `muster events`"] if many else []),
        ]

    def checks(self) -> list[tuple[NodeCheck, str]]:
        """The checks that are switched on, each with why it does not apply to this node (empty: it does)."""
        watch, looker = self._ready()
        return [(check, looker.applicable(item)) for item, check in watch.catalogue.items()]

    def refusal(self, cards: Collection[int], *, wants_cards: bool = True) -> Condition | None:
        """The CRITICAL condition of the node, or of one of these cards, that refuses a job; None: it may come.

        One that is about all cards, such as their driver's, refuses no job that wants none.
        """
        if self._settings().health.policy != "enforce":
            return None
        return next((c for c in self._conditions.all if refuses(c, cards, wants_cards)), None)

    def unfit_cards(self) -> Mapping[int, Condition]:
        """The cards that no job is to get, each with its gravest condition."""
        if self._settings().health.policy != "enforce":
            return {}
        grave = [c for c in self._conditions.all if c.status is Status.CRITICAL]
        return self._driver.view.shared({c.card: c for c in reversed(grave) if c.card is not None})

    # --- what is done -------------------------------------------------------------------------------------------------

    async def look(self, items: Sequence[str] = (), cards: Collection[int] | None = None) -> list[CheckResult]:
        """Runs checks now (by item, or by its first word; none: all) and latches what they find.

        `cards`: only what is about these, or about the node; for a job that waits, so it takes [checks] deadline_s at
        most. Where the checks are switched off nothing is latched. Raises UnknownItem.
        """
        watch, _ = self._ready()
        return await watch.look(items, cards)

    async def set_drain(self, reason: str, by: str) -> None:
        """Takes the node out of service; of a drained one it changes the reason. Raises NoRoom: done, but not kept."""
        now = self._clock.moment()
        if self._drain is None or (self._drain.reason, self._drain.by) != (reason, by):
            self._drain = DrainState(reason, by, self._drain.since if self._drain is not None else now.at)
            self._notes.drained(self._drain, now)
            self._file.changed()
        await self._file.written()

    async def undrain(self, by: str) -> None:
        """Takes it into service again. Raises NoRoom: done, but not kept."""
        if self._drain is not None:
            before, self._drain = self._drain, None
            self._notes.undrained(before, by, self._clock.moment())
            self._file.changed()
        await self._file.written()

    async def clear(self, code: str, device: str, by: str) -> list[Condition]:
        """Takes conditions of a code away, of one device or (empty) of all; what is still so comes back with a look.

        Raises InvalidRequest for a code that there is not, ConditionNotFound, NoRoom (done, but not kept).
        """
        known, _ = explained(code)
        there = [f"{c.code} of {c.device or 'the node'}" for c in self._conditions.all]
        changes = self._conditions.clear(code, device, f"{by} cleared it")
        if not changes:
            raise ConditionNotFound(code, device, there)
        _, looker = self._ready()
        for gone in (change.condition for change in changes):
            if not gone.injected:
                looker.forget(known, gone.device)
            self._faults.forget(gone.code, gone.card)
        self._changed(changes, by)
        await self._file.written()
        return [change.condition for change in changes]

    async def accept(self, cards: Sequence[str], by: str) -> list[tuple[str, str, str]]:
        """Takes what the checks find to differ about these cards (by number, uuid, serial number or bus id; none: all
        cards) for how the node is to be. Returns what was accepted: codes, devices and reasons.

        Raises NothingToAccept, InvalidRequest, NoRoom (done, but not kept).
        """
        _, looker = self._ready()
        results = await self.look([INVENTORY])
        found = acceptance.pending(self._conditions.all, results)
        shown = self._driver.view.cards
        pairs = acceptance.chosen(found, cards, lambda device: looker.inventory.names_of(device, shown))
        changes: list[ConditionChange] = []
        for code, device in pairs:
            await looker.accept(code, device)
            gone = self._conditions.clear(str(code), device, f"{by} accepted it")
            changes += gone
            self._notes.accepted(str(code), device, found[code, device], by, self._clock.moment())
        if pairs:
            here = shown.keys() | {card.index for card in looker.inventory.cards}
            for old in [c for c in self._conditions.all if c.card is not None and c.card not in here]:
                changes += self._conditions.clear(old.code, old.device, f"{by} accepted the removal of the card")
            self._changed(changes, by)
            self._remember()
            await self.look([INVENTORY])
        await self._file.written()
        return [(str(code), device, found[code, device]) for code, device in pairs]

    async def inject(self, code: str, card: int | None, reason: str, by: str) -> Condition:
        """Makes a condition for a drill, of a card or (None) of the node. It ends with `clear`, a reboot, or after
        [health] inject_s. Raises InvalidRequest; NoRoom (done, but not kept)."""
        watch, _ = self._ready()
        now = self._clock.moment()
        condition = drill(code, card, reason, by, now.at, self._driver.view.cards, watch.catalogue.values())
        change = self._conditions.inject(condition, self._settings().health.inject_s, now)
        self._changed([change] if change is not None else [], by)
        await self._file.written()
        return condition

    # --- life ---------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Takes up what was known. Raises OSError."""
        state = await self._file.load() or NodeState()
        same_boot = state.boot == self._boot
        self._drain = state.drain
        self._xids = XidMemory(self._boot, state.xids)
        if same_boot:
            self._faults.add(state.faults)
            self._told = Position(self._boot, state.kernel_seq) if state.kernel_seq >= 0 else None
        self._looker = self._make_looker(
            self._node_settings,
            self._driver,
            after=self._told,
            earlier_boots=self._xids.earlier,
            inventory=Inventory(state.inventory),
            own_paths=tuple(map(str, (self._root.state, self._root.log, self._root.run))),
        )
        self._watch = NodeWatch(self._settings, self._driver, self._looker, self._held, self._looked, self._happened)
        self._changed(self._conditions.restore(state.conditions, same_boot, self._clock.moment()))
        if not same_boot:
            self._file.changed()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watches the node and keeps the files, for ever."""
        watch, _ = self._ready()
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._file.run)
            await tasks.start(self._faults.run)
            await tasks.start(watch.run)
            task_status.started()
            while True:
                await anyio.sleep(UPKEEP_S)
                self.upkeep()

    def upkeep(self) -> None:
        """Lets go what is old, and what nobody looks at any more."""
        watch, _ = self._ready()
        now = self._clock.moment()
        self._follow()
        changes = self._conditions.expire(now)
        items = watch.catalogue.keys() if watch.on else ()
        self._results.keep_only(items)
        changes += self._conditions.unwatched(items, "the check that found it is switched off")
        self._changed(changes)
        self._notes.flush(now)

    # --- what follows -------------------------------------------------------------------------------------------------

    def _looked(self, results: Sequence[CheckResult], cards: Collection[int] | None) -> None:
        self._results.take(results, cards)
        self._follow()
        # What happened was latched as it happened: a look tells of it again, and would keep it young for ever.
        periodic = {item for item, check in self._ready()[0].catalogue.items() if check.interval_s > 0}
        lasting = [result for result in results if result.item in periodic]
        self._remember()
        self._changed(self._conditions.look(lasting, cards, self._clock.moment()))

    def _follow(self) -> None:
        """Conditions go with their cards. Those of a driver that does not answer have the numbers that they had."""
        view = self._driver.view
        if view.driver is None and view.cards:
            self._changed(self._conditions.follow())

    def found(self, result: CheckResult) -> None:
        """Latches what the daemon finds of itself."""
        change = self._conditions.found(result, self._clock.moment())
        self._changed([change] if change is not None else [])

    def _happened(self, findings: Sequence[Finding], of_kernel: bool) -> None:
        changes = []
        for finding in findings:
            # The kernel's log tells of what was before the daemon was there.
            then = self._clock.moment(finding.at)
            if finding.item == XID and finding.number is not None:
                self._xids.note(self._names(finding), finding.number)
            if (result := finding.condition) is not None:
                if (change := self._conditions.found(result, then)) is not None:
                    changes.append(change)
                if result.status is Status.CRITICAL and (finding.item != XID or finding.card is not None):
                    text = said(result.reason, result.device)
                    uuid = self._uuid(result.card)
                    self._faults.add([Fault(text, str(result.code), result.card, then.at, then.up, uuid)])
            self._notes.event(finding, self._clock.moment())
        if of_kernel:
            self._told = self._ready()[1].position
        self._file.changed()
        self._changed(changes)

    def _changed(self, changes: Sequence[ConditionChange], by: str = "") -> None:
        now = self._clock.moment()
        if changes:
            self._notes.changes(changes, now, by)
            self._file.changed()
        self._faults.put(self._conditions.all, now)

    def _remember(self) -> None:
        """Sees to it that the file has the cards that are remembered now."""
        changes = self._ready()[1].inventory.changes
        if changes != self._remembered:
            self._remembered = changes
            self._file.changed()

    def _snapshot(self) -> NodeState:
        seq = self._told.seq if self._told is not None else -1
        return NodeState(
            boot=self._boot,
            kernel_seq=seq,
            drain=self._drain,
            conditions=self._conditions.kept(),
            faults=self._faults.faults,
            xids=self._xids.kept(),
            inventory=self._looker.inventory.state() if self._looker is not None else InventoryState(),
        )

    def _uuid(self, card: int | None) -> str:
        return self._driver.view.uuids.get(card, "") if card is not None else ""

    def _names(self, finding: Finding) -> list[str]:
        card = self._driver.view.cards.get(finding.card) if finding.card is not None else None
        return [finding.bus_id, card.uuid if card is not None else ""]

    def _held(self) -> dict[int, str]:
        jobs = {card: self.holder(card) for card in self._driver.view.cards}
        return {card: job for card, job in jobs.items() if job}

    def _spacing(self, item: str) -> float:
        check = self._watch.catalogue.get(item) if self._watch is not None else None
        return check.interval_s / 2 if check is not None else 0.0

    def _node_settings(self) -> NodeSettings:
        return self._settings().health

    def _ready(self) -> tuple[NodeWatch, Looks]:
        assert self._watch is not None and self._looker is not None, "load comes first"
        return self._watch, self._looker
