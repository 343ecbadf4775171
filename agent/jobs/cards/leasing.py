"""Leases cards to jobs, and frees them again."""

import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Self

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from muster.agent import threads
from muster.agent.changes import Changes
from muster.agent.config.schema import Config
from muster.agent.errors import CardBusy, JobNotFound, NodeDraining, NodeUnhealthy, NoSuchCard
from muster.agent.events.event_store import Event, EventStore
from muster.agent.jobs.cards import placement, release
from muster.agent.jobs.cards.doubts import doubts
from muster.agent.jobs.cards.leases import CardLeases, Given, Lease
from muster.agent.jobs.entry import Entry
from muster.agent.node.health import NodeHealth
from muster.probes.cards import visible
from muster.probes.cards.driver import Driver, What
from muster.probes.cards.view import identities
from muster.probes.kernel import process
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.number_lists import numbers
from muster.supervisors.model.card_identity import CardsNow, is_same, missing_of, numbers_now
from muster.supervisors.model.spec import Boot, JobSpec
from muster.supervisors.system import lock

#: A start waits so many seconds for cards that are being examined after the end of their job;
FREED_S = 15.0
#: and so many for a new reading of the cards that it gets.
FRESH_S = 2.0
#: Kinds of events: a process is on the cards of an ended job; none is any more.
_HELD, _FREE = "job.cards_held", "job.cards_free"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OnCards:
    """An ended job that may still have processes on its cards; when it ended, in seconds since the epoch."""

    job_id: str
    cards: tuple[int, ...]
    ended_at: float
    #: UUIDs of these cards, as far as known.
    uuids: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: Entry) -> Self | None:
        """None if no process can be left."""
        if not _may_be_on_cards(entry):
            return None
        return cls(entry.job_id, tuple(entry.job.cards), entry.job.ended_at, entry.job.card_uuids)


class Leasing:
    """Decides which job gets which card. Belongs to one event loop."""

    def __init__(self, config: Callable[[], Config], events: EventStore, driver: Driver, health: NodeHealth) -> None:
        """`config` gives the present configuration; `run` makes it usable."""
        self._config = config
        self._events = events
        self._driver = driver
        self._health = health
        self._cards = CardLeases()
        self._freed = Changes()
        #: Ended jobs whose cards are examined before other jobs get them.
        self._freeing: set[str] = set()
        self._group: TaskGroup | None = None
        #: Set after the first request to the driver for its cards.
        self.known = anyio.Event()
        #: Set once it is known which cards may be occupied by jobs that ended before the daemon started.
        self.settled = anyio.Event()

    def all(self) -> list[Lease]:
        """The cards of this node by index, with their holders."""
        self._cards.refresh(self._driver.view.cards)
        return self._cards.all()

    @property
    def kind(self) -> str:
        """The kind of this node's cards."""
        return self._driver.view.kind

    def has(self, indices: Sequence[int]) -> bool:
        """Whether all of these are cards of this node."""
        return self._driver.view.cards.keys() >= set(indices)

    def holders(self) -> Mapping[int, str]:
        """The jobs that hold cards, by the cards."""
        return self._cards.holders

    def reserve(self, cards: Mapping[int, str]) -> None:
        """Keeps these cards, each with a sentence that says why, from new jobs until the next call. A job that holds
        one keeps it."""
        self._cards.reserved = dict(cards)
        self._freed.tell()

    async def wait_change(self) -> None:
        """Returns when a card was given back, or its holders are known."""
        await self._freed.next()

    def held_by(self, job_id: str) -> list[str] | None:
        """Processes that are still on the cards of an ended job: sentences; empty while they are being examined. None:
        the cards are free."""
        if job_id not in self._freeing:
            return None
        return [f"card {x.card.index}: {x.held_by}" for x in self._cards.all() if x.job_id == job_id and x.held_by]

    async def wait_freed(self, job_id: str) -> None:
        """Returns when the cards of an ended job are free, or when their holders are known."""
        while self.held_by(job_id) == []:
            await self._freed.next()

    async def lease(self, job_id: str, spec: JobSpec) -> Given:
        """Leases cards to a job, in the order of its ranks; waits briefly for cards that are being freed.

        Raises NoSuchCard, CardBusy, NodeUnhealthy, NodeDraining; then the job holds nothing.
        """
        if (drain := self._health.drain) is not None:
            raise NodeDraining(drain.by, drain.reason, drain.since, resetting=bool(self._cards.reserved))
        if (condition := self._health.refusal((), wants_cards=spec.wants_cards)) is not None:
            raise NodeUnhealthy(condition.sentence())
        if not spec.wants_cards:
            return self._cards.lease(job_id, spec, {})
        await self.known.wait()
        await self.settled.wait()
        end = anyio.current_time() + FREED_S
        while True:
            self._cards.refresh(self._driver.view.cards)
            self._refuse_unknown(spec)
            try:
                unsure = doubts(self._health.conditions, self._driver.view)
                given = self._cards.lease(job_id, spec, self._health.unfit_cards(), unsure)
                break
            except CardBusy:
                if anyio.current_time() >= end or not any(self.held_by(ended) == [] for ended in self._freeing):
                    raise
            with anyio.CancelScope(deadline=end):
                await self._freed.next()
        try:
            self._refuse_several_instances(spec, given)
            # Memory in use now is not a leftover of this job.
            await self._driver.refresh(What.READINGS, given.devices, deadline_s=FRESH_S)
        except BaseException:
            self.give_up(job_id)
            raise
        return replace(given, devices=visible.in_order([self._cards.get(index) for index in given.devices]))

    def _refuse_several_instances(self, spec: JobSpec, given: Given) -> None:
        """Refuses several MIG instances for a launcher: CUDA uses only the first of the workers' list. Raises
        NoSuchCard."""
        parts = [index for index in given.devices if self._cards.get(index).parent is not None]
        if spec.boot != Boot.RANKS and len(parts) > 1:
            raise NoSuchCard(
                f"cards {numbers(parts)} are MIG instances, and CUDA shows a process only the first: with --boot "
                f"{spec.boot} a job can have one; muster's own ranks (--boot ranks) get one each"
            )

    def _refuse_unknown(self, spec: JobSpec) -> None:
        """Refuses a job while the driver does not report its cards. Raises NodeUnhealthy."""
        view = self._driver.view
        missing = [i for i in spec.card_indices if i not in view.cards]
        if view.driver is not None and (missing or len(view.cards) < spec.card_count or spec.all_cards):
            raise NodeUnhealthy(f"the driver does not report which cards exist: {view.driver.text}")

    def restore(self, entry: Entry) -> None:
        """Restores the lease of a job that has not ended."""
        self._cards.restore(entry.job_id, list(entry.job.cards), entry.job.card_uuids)

    def on_cards(self, spec: JobSpec, indices: Sequence[int]) -> dict[str, Any]:
        """Fields of the journal about the cards of a job; see placement.on_cards."""
        readings = self._driver.view.readings
        used = {i: readings[i].value.mem_used for i in indices if i in readings}
        view, cards = self._driver.view, [self._cards.get(index) for index in indices]
        parents = [self._cards.get(card.parent) for card in cards if card.parent is not None]
        return placement.on_cards(
            spec,
            cards,
            parents,
            {index: value for index, value in used.items() if value is not None},
            visible.words(cards, view.cards.values(), view.sick, spec.env),
            identities({card.index: card for card in (*cards, *parents, *view.cards.values())}),
            bind=self._config().cards.bind_cpus == "affinity",
        )

    def cards_seen(self, entry: Entry) -> tuple[object, ...]:
        """What `cards_now` goes by, but for the device nodes: as long as these are the same objects, so is what it
        says."""
        view, job = self._driver.view, entry.job
        return view.kind, view.cards, view.sick, view.driver, self._driver.opened, job.cards, job.card_uuids

    def cards_now(self, entry: Entry) -> CardsNow | None:
        """The present numbers of the job's cards for its processes; None if the driver does not report them."""
        view, job = self._driver.view, entry.job
        if view.driver is not None or view.kind != job.card_kind or not self._driver.opened or not job.cards:
            return None
        missing = missing_of(job, view.uuids)
        if missing is None:
            return None
        uuids = {card: job.card_uuids[card] for card in job.cards}
        if missing:
            return CardsNow(uuids, missing=missing)
        cards = {card: view.cards[now] for card, now in numbers_now(job, job.cards, view.uuids).items()}
        if len(cards) < len(job.cards):
            return None
        words = visible.words(list(cards.values()), view.cards.values(), view.sick, entry.spec.env)
        nodes = {number: card.node for number, card in cards.items() if card.node and os.path.exists(card.node)}
        return CardsNow(uuids, {number: words[card.index] for number, card in cards.items()}, nodes)

    def give_up(self, job_id: str) -> None:
        """Frees the cards of a job that never had a process."""
        self._cards.release(job_id)
        self._freed.tell()

    def give_back(self, entry: Entry) -> None:
        """Frees the cards of an ended job as soon as the driver shows none of its processes on them."""
        if entry.job_id in self._freeing:
            return
        if self._group is None or not self._cards.held(entry.job_id) or not _may_be_on_cards(entry):
            self.give_up(entry.job_id)
            return
        self._freeing.add(entry.job_id)
        self._group.start_soon(self._free, entry, name=f"cards of {entry.job_id}")

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Frees cards until cancelled."""
        async with anyio.create_task_group() as self._group:
            task_status.started()
            await anyio.sleep_forever()

    async def settle(self, ended: Iterable[OnCards], entry_of: Callable[[str], Awaitable[Entry]]) -> None:
        """Starts to free the cards that may be occupied by jobs that ended before the daemon started. `entry_of`
        returns such a job, or raises JobNotFound if it was removed."""
        taken = self._cards.held_cards
        for each in sorted(ended, key=lambda each: each.ended_at, reverse=True):
            # Only the last job of a card can have left a process there.
            had = [(card, each.uuids.get(card, "")) for card in each.cards]
            free = [one for one in had if not any(is_same(*one, *other) for other in taken)]
            taken += free
            cards = [card for card, _ in free]
            if not cards:
                continue
            try:
                entry = await entry_of(each.job_id)
            except JobNotFound:
                continue
            if not await threads.run(entry.paths.cards_free.exists):
                self._cards.restore(entry.job_id, cards, entry.job.card_uuids)
                self.give_back(entry)
        self.settled.set()

    async def _free(self, entry: Entry) -> None:
        settings = self._config().cards
        # Where an earlier daemon has said that they are held, this one says when they are free.
        late = self._events.last_told(_HELD, entry.job_id) > self._events.last_told(_FREE, entry.job_id)

        def free(card: int) -> None:
            self._cards.release(entry.job_id, card)
            self._freed.tell()

        def held_now() -> list[int]:
            self._cards.refresh(self._driver.view.cards)
            return self._cards.held(entry.job_id)

        def tell(texts: Mapping[int, str]) -> None:
            nonlocal late
            late = True
            self._cards.hold(entry.job_id, texts)
            self._note(entry, _HELD, "; ".join(f"card {card}: {text}" for card, text in texts.items()))
            self._freed.tell()
            entry.wake()

        if entry.damaged:
            told = False
            while pid := await threads.run(lock.holder, entry.paths.lock):
                text = f"job {entry.job_id}, whose journal is damaged, is still supervised (pid {pid})"
                if not told:
                    told = True
                    tell(dict.fromkeys(self._cards.held(entry.job_id), text))
                await anyio.sleep(release.LOOK_S)
        if release.needed(entry.job):
            await self.known.wait()
            await release.until_free(
                entry.job_id,
                entry.job,
                held_now,
                self._driver,
                timeout_s=settings.release_timeout_s,
                slack_bytes=int(settings.release_memory_mb * 2**20),
                free=free,
                tell=tell,
            )
        self._freeing.discard(entry.job_id)
        self.give_up(entry.job_id)
        entry.wake()
        if late:
            self._note(entry, _FREE, "no process is left on the job's cards")
            await self._events.stored()  # where the file is, no other daemon tells of it
        with contextlib.suppress(OSError):  # if this fails, the next daemon looks again
            await threads.run(entry.paths.cards_free.touch)

    def _note(self, entry: Entry, kind: str, message: str) -> None:
        _log.warning(kind, job=entry.job_id, text=message)
        self._events.append([(None, Event(time.time(), kind, entry.job_id, message=message))])


def _may_be_on_cards(entry: Entry) -> bool:
    """Whether an ended job may have processes on its cards. With a damaged journal it may not even have ended."""
    if entry.damaged:
        return bool(entry.job.cards) and entry.job.boot_id == process.boot_id()
    return release.needed(entry.job)
