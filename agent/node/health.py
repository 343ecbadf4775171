"""The health of the node: latches the findings of its checks, writes events, and decides whether jobs are accepted.

`NodeWatch` looks; this module decides what follows. Everything needed after a restart is in `node.json`, everything
that a supervisor needs for a verdict in `faults.json`.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence

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
from muster.agent.node.node_file import DrainState, Fault, NodeState, XidMemory, node_file
from muster.agent.node.node_notes import Notes
from muster.agent.node.node_watch import Looks, NodeWatch
from muster.probes.active import active_settings
from muster.probes.calls.heartbeat import tick
from muster.probes.cards.driver import Driver
from muster.probes.checks.result import CheckResult, Status
from muster.probes.kernel import process
from muster.probes.kernel.dataclass import dataclass
from muster.probes.node.node_checks import Finding, Inventory, KeptCounts, Looker, NodeCheck, NodeSettings, Position
from muster.supervisors.model.card_identity import number_now
from muster.supervisors.paths import Root

__all__ = ["Clock", "Condition", "DrainState", "NodeHealth"]

#: The item that compares the node's cards with its inventory.
INVENTORY = "inventory"
#: Seconds between two rounds of upkeep, which drops old conditions.
UPKEEP_S = 5.0


@dataclass(frozen=True, slots=True)
class Clock:
    """The sources of time and boot: seconds since the epoch, seconds since the boot, the boot's id."""

    now: Callable[[], float] = time.time
    up: Callable[[], float] = process.uptime
    boot: Callable[[], str] = process.boot_id

    def moment(self, at: float | None = None) -> Moment:
        """Now, or the moment `at` of the wall clock."""
        now, up = self.now(), self.up()
        ago = 0.0 if at is None else max(0.0, now - at)
        return Moment(now - ago, up - ago)


#: Of checks that nobody makes in a period: their conditions end with a good result, however long that takes.
ACTIVE_ITEMS = frozenset(active_settings.ITEMS)


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
        """`settings` returns the present configuration."""
        self._settings = settings
        self._root = root
        self._driver = driver
        self._clock = clock or Clock()
        self._boot = self._clock.boot()
        self._make_looker = looker
        self._notes = Notes(events)
        self._notes.uuid_of = self._uuid
        self._file = node_file(root.node, self._snapshot, told=events.stored)
        self._faults = FaultsFile(root.faults, self._boot)
        self._xids = XidMemory(self._boot, {})
        self._conditions = Conditions(
            rule, still, lambda: settings().health.clear_looks, self._spacing, lambda: driver.view.uuids
        )
        self._results = CheckResults()
        self._told: Position | None = None
        self._drain: DrainState | None = None
        #: Changes of the inventory that are in the file or on their way.
        self._remembered = 0
        self._counts = KeptCounts()
        self._looker: Looks | None = None
        self._watch: NodeWatch | None = None

    # --- readers ------------------------------------------------------------------------------------------------------

    @property
    def conditions(self) -> list[Condition]:
        """The present conditions, the gravest first."""
        return self._conditions.all

    @property
    def results(self) -> list[CheckResult]:
        """The newest result of each check, OK ones too."""
        return self._results.all

    @property
    def drain(self) -> DrainState | None:
        """Set while the node is out of service."""
        return self._drain

    @property
    def holders(self) -> Callable[[], Mapping[int, str]]:
        """Returns the jobs that hold cards, by the cards; may be set."""
        return self._notes.holders

    @holders.setter
    def holders(self, value: Callable[[], Mapping[int, str]]) -> None:
        self._notes.holders = value

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
        """The checks that are switched on, each with the reason why it does not apply to this node (empty: it does)."""
        watch, looker = self._ready()
        return [(check, looker.applicable(item)) for item, check in watch.catalogue.items()]

    @property
    def pending(self) -> list[str]:
        """Periodic checks without a result, by item: the daemon started seconds ago, or the checks are switched off."""
        seen = {result.item.partition(" ")[0] for result in self._results.all}
        periodic = (item for item, check in self._ready()[0].catalogue.items() if check.interval_s > 0)
        return [item for item in periodic if item.partition(" ")[0] not in seen]

    def refusal(self, cards: Collection[int], *, wants_cards: bool = True) -> Condition | None:
        """The CRITICAL condition of the node, or of one of these cards, that refuses a job; None: the job is accepted.

        A condition of all cards, such as their driver's, does not refuse a job without cards.
        """
        if self._settings().health.policy != "enforce":
            return None
        return next((c for c in self._conditions.all if refuses(c, cards, wants_cards)), None)

    def unfit_cards(self) -> Mapping[int, Condition]:
        """The cards that no job gets, each with its gravest condition."""
        if self._settings().health.policy != "enforce":
            return {}
        grave = [c for c in self._conditions.all if c.status is Status.CRITICAL]
        return self._driver.view.shared({c.card: c for c in reversed(grave) if c.card is not None})

    # --- operations ---------------------------------------------------------------------------------------------------

    async def look(self, items: Sequence[str] = (), cards: Collection[int] | None = None) -> list[CheckResult]:
        """Runs checks now (by item, or by its first word; none: all) and latches their findings.

        `cards`: only findings about these or about the node; for a waiting job, so it takes [checks] deadline_s at
        most. If the checks are switched off nothing is latched. Raises UnknownItem.
        """
        watch, _ = self._ready()
        self._follow()
        return await watch.look(items, cards)

    async def report(self, results: Sequence[CheckResult], by: str) -> list[Condition]:
        """Latches what active tests of cards found, and ends what a good result says is over. Returns the conditions of
        these cards by such tests. If the checks are switched off nothing is latched. Raises NoRoom: done, but not
        stored."""
        watch, _ = self._ready()
        cards = {result.card for result in results if result.card is not None}
        if watch.on:
            self._changed(self._conditions.look(results, cards, self._clock.moment()), by)
            await self._file.written()
        return [c for c in self._conditions.all if c.item in ACTIVE_ITEMS and c.card in cards]

    async def set_drain(self, reason: str, by: str) -> None:
        """Takes the node out of service; if it is drained, changes the reason. Raises NoRoom: done, but not stored."""
        now = self._clock.moment()
        if self._drain is None or (self._drain.reason, self._drain.by) != (reason, by):
            self._drain = DrainState(reason, by, self._drain.since if self._drain is not None else now.at)
            self._notes.drained(self._drain, now)
            self._file.changed()
        await self._file.written()

    async def undrain(self, by: str) -> None:
        """Returns the node to service. Raises NoRoom: done, but not stored."""
        if self._drain is not None:
            before, self._drain = self._drain, None
            self._notes.undrained(before, by, self._clock.moment())
            self._file.changed()
        await self._file.written()

    async def clear(self, code: str, device: str, by: str) -> list[Condition]:
        """Clears conditions of a code, of one device or (empty) of all; a look finds those again that persist.

        Raises InvalidRequest for an unknown code, ConditionNotFound, NoRoom (done, but not stored).
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
        """Accepts the differences that the checks find about these cards (by number, uuid, serial number or bus id;
        none: all cards) as intended. Returns what was accepted: codes, devices and reasons.

        Raises NothingToAccept, InvalidRequest, NoRoom (done, but not stored).
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
        """Creates a condition for a drill, of a card or (None) of the node. It ends with `clear`, a reboot, or after
        [health] inject_s. Raises InvalidRequest; NoRoom (done, but not stored)."""
        watch, _ = self._ready()
        now = self._clock.moment()
        condition = drill(code, card, reason, by, now.at, self._driver.view.cards, watch.catalogue.values())
        change = self._conditions.inject(condition, self._settings().health.inject_s, now)
        self._changed([change] if change is not None else [], by)
        await self._file.written()
        return condition

    # --- life ---------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Restores the stored state. Raises OSError."""
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
            counts=state.counts,
            own_paths=tuple(map(str, (self._root.state, self._root.log, self._root.run))),
        )
        self._watch = NodeWatch(self._settings, self._driver, self._looker, self._held, self._looked, self._happened)
        self._changed(self._conditions.restore(state.conditions, same_boot, self._clock.moment()))
        if not same_boot:
            self._file.changed()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watches the node and keeps the files until cancelled."""
        watch, _ = self._ready()
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._file.run)
            await tasks.start(self._faults.run)
            await tasks.start(watch.run)
            task_status.started()
            while True:
                await tick(UPKEEP_S)
                self.upkeep()

    def upkeep(self) -> None:
        """Drops old conditions, and conditions that no check looks for any more."""
        watch, _ = self._ready()
        now = self._clock.moment()
        self._follow()
        changes = self._conditions.expire(now)
        items = (*watch.catalogue, *ACTIVE_ITEMS) if watch.on else ()
        self._results.keep_only(watch.catalogue if watch.on else ())
        changes += self._conditions.unwatched(items, "the check that found it is switched off")
        self._changed(changes)
        self._notes.flush(now)

    # --- consequences -------------------------------------------------------------------------------------------------

    def _looked(self, results: Sequence[CheckResult], cards: Collection[int] | None) -> None:
        self._results.take(results, cards)
        self._follow()
        # Events were latched when they happened: a look reports them again, and would renew their age forever.
        periodic = {item for item, check in self._ready()[0].catalogue.items() if check.interval_s > 0}
        lasting = [result for result in results if result.item in periodic]
        self._remember(counted=KeptCounts.may_differ(result.item for result in results))
        self._changed(self._conditions.look(lasting, cards, self._clock.moment()))

    def _follow(self) -> None:
        """Moves conditions and events with their cards. If the driver does not answer, they keep their numbers."""
        view = self._driver.view
        if view.driver is None and view.cards:
            self._changed(self._conditions.follow())
            self._ready()[1].follow(lambda card, uuid: number_now(card, uuid, view.uuids))

    def found(self, result: CheckResult) -> None:
        """Latches a finding of the daemon about itself."""
        change = self._conditions.found(result, self._clock.moment())
        self._changed([change] if change is not None else [])

    def _happened(self, findings: Sequence[Finding], of_kernel: bool) -> None:
        changes = []
        for finding in findings:
            # The kernel log contains events from before the daemon's start.
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

    def _remember(self, *, counted: bool = False) -> None:
        """Makes sure that the file has the remembered cards, and what a check has counted."""
        looker = self._ready()[1]
        changes, counts = looker.inventory.changes, looker.counts() if counted else self._counts
        if changes != self._remembered or counts.differs(self._counts):
            self._remembered, self._counts = changes, counts
            self._file.changed()

    def _snapshot(self) -> NodeState:
        state = NodeState(
            boot=self._boot,
            kernel_seq=self._told.seq if self._told is not None else -1,
            drain=self._drain,
            conditions=self._conditions.kept(),
            faults=self._faults.faults,
            xids=self._xids.kept(),
        )
        if self._looker is not None:
            state.inventory, state.counts = self._looker.inventory.state(), self._looker.counts()
        return state

    def _uuid(self, card: int | None) -> str:
        return self._driver.view.uuids.get(card, "") if card is not None else ""

    def _names(self, finding: Finding) -> list[str]:
        card = self._driver.view.cards.get(finding.card) if finding.card is not None else None
        return [finding.bus_id, card.uuid if card is not None else ""]

    def _held(self) -> dict[int, str]:
        shown = self._driver.view.cards
        return {card: job for card, job in self.holders().items() if card in shown}

    def _spacing(self, item: str) -> float:
        check = self._watch.catalogue.get(item) if self._watch is not None else None
        return check.interval_s / 2 if check is not None else 0.0

    def _node_settings(self) -> NodeSettings:
        return self._settings().health

    def _ready(self) -> tuple[NodeWatch, Looks]:
        assert self._watch is not None and self._looker is not None, "load comes first"
        return self._watch, self._looker
