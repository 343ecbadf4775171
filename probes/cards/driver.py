"""The cards of this host as their driver reports them: found automatically, queried with a deadline, in one snapshot.

Whatever the driver does, a call here returns in time. A card that hangs keeps its own thread and is left out until that
call returns; another thread queries the other cards (probes/calls/call_threads.py). A driver that disappeared is opened
again when it is back.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio

from muster.probes.calls.call_threads import Answer, CallFailure, CallThreads, Late
from muster.probes.cards.accelerator import SLOT, Backend, Card, CardEvent, DriverError, Trouble, no_answer
from muster.probes.cards.driver_settings import DriverSettings
from muster.probes.cards.drivers import Finder, FoundDriver, vendors
from muster.probes.cards.listening import Listening
from muster.probes.cards.view import CardTroubles, Seen, Sick, View, What, described_by, linked, with_slots
from muster.probes.kernel.backoff import Backoff

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

__all__ = ["Driver", "Seen", "Sick", "View", "What"]

#: So often, in seconds, a missing driver is looked for; and cards are on a host that has none. A driver that
#: answers for no card at all is opened anew, at first as often as a missing one, then more and more rarely.
REOPEN_S, LOOK_S, RAREST_S = 5.0, 30.0, 60.0
#: ... and a caller that needs cards right now waits no longer than this, in seconds.
SOON_S = 0.5
#: Of the deadline: what has nearly taken it has taken it, since other things took the rest.
_ABOUT = 0.95
#: ... and what of it an opening waits for cards that do not tell their numbers, twice at most (boards, chips).
_SHARE = 0.2
#: What closing may take, in seconds, where the deadline is longer.
_CLOSE_S = 2.0
#: Pause between two looks whether the library is in use, in seconds.
_BUSY_LOOK_S = 0.05
#: The threads' keys for what is of the whole driver, and for what two cards say of each other: either may hang on it.
_WHOLE, _LINKS = "driver", "links"
#: What a card says of itself, whatever it was asked.
_UNUSABLE = frozenset({Trouble.LOST, Trouble.RESET_REQUIRED})
#: Fields of View by card.
_VALUES = ("readings", "health", "holders")


class Driver:
    """One per process, or per run of a command. For one event loop."""

    def __init__(
        self,
        settings: Callable[[], DriverSettings],
        backends: Sequence[Backend] | None = None,
        *,
        dev: Path = Path("/dev"),
        closed: str = "",
    ) -> None:
        """`backends` are tried in this order, by default NVIDIA's and Ascend's; where none has a card there are slots.
        `dev` is where device nodes are. `closed`: why the driver stays closed until `take_again`."""
        self._settings = settings
        self._finder = Finder(vendors() if backends is None else backends, lambda: settings().slots, dev)
        self.call_threads = CallThreads("cards")
        self._listening = Listening()
        self._view = View()
        self._backend: Backend | None = None
        self._opening = anyio.Lock()
        #: Counts openings, so that what was asked before one is not taken for an answer after it.
        self._generation = 0
        self._tried_at = -math.inf
        #: The result of an opening that took too long to wait for.
        self._found: FoundDriver | None = None
        self._ledger = CardTroubles()
        #: The numbers of the cards as the driver listed them last.
        self._listed: frozenset[int] = frozenset()
        #: Cards that have not told who they are.
        self._unknown: set[int] = set()
        #: The direct links were not told in time, or a card has said since then who it is.
        self._unlinked = False
        #: Nothing but failures in the last readings; the pause before the driver is opened for that, in seconds.
        self._nobody_answers = False
        self._backoff = Backoff(REOPEN_S, RAREST_S)
        self._closed = False
        #: Why the library is kept closed; empty: it is not.
        self.closed_for = closed
        if closed:
            found, sick = self._finder.by_node(), Sick(Trouble.FAILED, closed, time.time())
            self._view = View(found.kind, cards={card.index: card for card in found.cards}, driver=sick)

    @property
    def view(self) -> View:
        """What is known now."""
        return self._view

    @property
    def opened(self) -> bool:
        """Whether the cards were listed once: before that, the view is empty."""
        return self._generation > 0

    async def open(self, *, deadline_s: float | None = None) -> View:
        """Finds the driver and lists the cards, anew where that was done before. Returns within the deadline."""
        limit = self._settings().driver_deadline_s if deadline_s is None else deadline_s
        async with self._opening:
            await self._open(limit)
        return self._view

    async def ready(self, *, deadline_s: float | None = None) -> View:
        """Opens drivers that are not open yet, and looks for a driver that disappeared, sooner than `refresh` does.
        Returns within the deadline."""
        limit = self._settings().driver_deadline_s if deadline_s is None else deadline_s
        end = time.monotonic() + limit
        if self.closed_for:
            return self._view
        with anyio.move_on_after(limit) as waiting:
            await self._opening.acquire()
        if waiting.cancelled_caught:
            return self._view
        try:
            gone = self._view.driver is not None and time.monotonic() - self._tried_at >= SOON_S
            if not self.opened or gone:
                await self._open(end - time.monotonic())
        finally:
            self._opening.release()
        return self._view

    async def refresh(self, what: What, cards: Iterable[int] | None = None, *, deadline_s: float | None = None) -> View:
        """Asks all cards, or these, and returns what is known then, after at most `deadline_s` (None: the settings').

        A card that has not answered by then has no value. It is HANG once its call is older than the settings'
        deadline. A driver that disappeared is opened again, at most every REOPEN_S.
        """
        limit = self._settings().driver_deadline_s if deadline_s is None else deadline_s
        end = time.monotonic() + limit
        await self._mend(limit)
        backend, generation, view = self._backend, self._generation, self._view
        if backend is None or view.driver is not None:
            return view
        asked = [index for index in (view.cards if cards is None else cards) if index in view.cards]
        calls = {index: partial(self._ask, backend, what, view.cards[index]) for index in asked}
        began = time.monotonic()
        outcomes = await self.call_threads.run(calls, end - began)
        if self._generation == generation and not self._opening.locked():
            self._take(what, outcomes, min(time.monotonic(), end) - began)
        if self._unlinked and what is What.READINGS:
            links = await self._links(backend, self._view.cards, end - time.monotonic())
            if self._generation == generation and not self._opening.locked():
                self._view = replace(self._view, cards=linked(self._view.cards, links))
        return self._view

    async def relist(self, *, anew: bool = False) -> View:
        """Asks which cards there are, and opens the driver anew where these are others than are known, or with `anew`
        in any case: some libraries see a card that came back only then. For a driver that is well.

        Cards may have other numbers then: not while a job holds one.
        """
        backend, generation = self._backend, self._generation
        if backend is None or self._view.driver is not None or self._opening.locked():
            return self._view
        if not anew:
            outcome = (await self.call_threads.run({_WHOLE: backend.cards}, self._settings().driver_deadline_s))[_WHOLE]
            anew = isinstance(outcome, Answer) and {card.index for card in outcome.value} != self._listed
        return await self.open() if anew and generation == self._generation and not self._closed else self._view

    async def describe(self, index: int) -> Card | None:
        """What a card of the view says of itself now; None where it says nothing in time. The view stays as it is."""
        backend, card = self._backend, self._view.cards[index]
        if backend is None:
            return None
        calls = {index: partial(backend.describe, card)}
        outcome = (await self.call_threads.run(calls, self._settings().driver_deadline_s))[index]
        return outcome.value if isinstance(outcome, Answer) else None

    async def wait_events(self) -> list[CardEvent]:
        """What the driver has reported since the last call; empty after a while where there is nothing, or nobody to
        report. For a task that does nothing else."""
        if self._backend is None or self._view.driver is not None:
            await anyio.sleep(REOPEN_S)
            return []
        return await self._listening.next(self._backend)

    async def let_go(self, why: str, limit_s: float) -> bool:
        """Closes the library, and keeps it closed until `take_again`: no card can be reset that somebody has open. The
        view has the cards as they were, and `why` there are no answers. False: a call still hangs in the library after
        `limit_s`, and holds it open."""
        end = time.monotonic() + limit_s
        self.closed_for = why
        async with self._opening:
            self._generation += 1
            self._backend, self._found, self._nobody_answers = None, None, False
            before = self._view
            sick = Sick(Trouble.NOT_TOLD, why, time.time())
            self._view = View(before.kind, before.version, before.cards, driver=sick)
        await self._listening.close(limit_s / 2)
        while True:
            used = self.call_threads.busy or self._listening.waits
            if not used or time.monotonic() >= end:
                break
            await anyio.sleep(_BUSY_LOOK_S)
        if used:
            return False
        left = max(_BUSY_LOOK_S, end - time.monotonic())
        outcome = (await self.call_threads.run({_WHOLE: self._finder.close}, left))[_WHOLE]
        return isinstance(outcome, Answer)

    async def take_again(self) -> View:
        """Opens the library again, and lists the cards anew. Returns within the deadline."""
        self.closed_for = ""
        return await self.open()

    async def close(self) -> None:
        """Gives the driver back, for the end of this process; where a call is still in it, as the wait for events,
        it stays open. Returns within the deadline."""
        self._closed = True
        self._generation += 1
        self._backend = None
        limit = min(_CLOSE_S, self._settings().driver_deadline_s)
        self._listening.leave()
        if not self.call_threads.busy:
            await self.call_threads.run({_WHOLE: self._finder.close}, limit)
        self.call_threads.close()

    # --- opening ------------------------------------------------------------------------------------------------------

    async def _mend(self, limit_s: float) -> None:
        """Opens a missing driver, one that answers for no card at all, and one that may have come to a host
        without cards."""
        view = self._view
        if self.closed_for:
            return
        if view.kind == SLOT and view.driver is None:
            self._view = view = with_slots(view, self._finder.slots())
            pause = LOOK_S
        elif view.driver is not None:
            pause = REOPEN_S
        elif self._nobody_answers:
            pause = self._backoff.pause
            if time.monotonic() - self._tried_at >= pause:
                self._backoff.next()
        else:
            return
        due = self._found is not None or time.monotonic() - self._tried_at >= pause
        if due and not self._closed and not self._opening.locked():
            async with self._opening:
                await self._open(limit_s)

    async def _open(self, limit_s: float) -> None:
        if self.closed_for:
            return
        end = time.monotonic() + limit_s
        self._tried_at = time.monotonic()
        outcome: Answer[FoundDriver] | CallFailure | Late
        if self._found is not None:
            outcome = Answer(self._found)
        else:
            outcome = (await self.call_threads.run({_WHOLE: self._find}, limit_s))[_WHOLE]
        if isinstance(outcome, Late) and outcome.running_s is not None and not self._hangs(outcome.running_s, limit_s):
            return  # it may be slow: what it finds is taken when it has
        self._found = None
        self._generation += 1
        found = (
            outcome.value
            if isinstance(outcome, Answer)
            else replace(self._finder.by_node(), error=no_answer(outcome, "opening the driver"))
        )
        self._unknown = set()
        self._backend = found.backend
        before = self._view
        same = before.kind == found.kind
        cards = {card.index: card for card in found.cards}
        self._listed = frozenset(cards)
        if before.cards.keys() != cards.keys():
            self._ledger = CardTroubles()
        error = found.error
        if error is None and not cards and same and before.cards and found.kind != SLOT:
            error = DriverError(Trouble.ABSENT, "the driver no longer lists any card", of_driver=True)
        if error is None and found.backend is not None:
            cards, error = await self._describe(found.backend, cards, (end - time.monotonic()) / 3)
        sick = None
        if error is not None:
            self._backend = None
            since = before.driver.since if before.driver else time.time()
            sick = Sick(error.trouble, str(error), since)
            # Those that told about themselves, rather than what their device nodes show.
            cards = dict(before.cards) if same and before.cards else cards
        version = found.version or (before.version if same else "")
        self._view = View(found.kind, version, cards, sick=self._ledger.sick(cards), driver=sick)

    def _find(self) -> FoundDriver:
        self._found = found = self._finder.find(self._ask_each)
        return found

    def _ask_each(self, calls: Mapping[K, Callable[[], T]]) -> Mapping[K, Answer[T] | CallFailure | Late]:
        """For a backend that opens."""
        return self.call_threads.ask(calls, _SHARE * self._settings().driver_deadline_s)

    async def _describe(
        self, backend: Backend, cards: dict[int, Card], limit_s: float
    ) -> tuple[dict[int, Card], DriverError | None]:
        """The cards with all that they tell in time; the others are asked again with their first reading."""
        calls = {index: partial(backend.describe, card) for index, card in cards.items()}
        for index, outcome in (await self.call_threads.run(calls, limit_s)).items():
            if isinstance(outcome, Answer):
                cards = described_by(cards, outcome.value)
                continue
            if isinstance(outcome, CallFailure):
                error = no_answer(outcome, "describing the card")
                if error.of_driver:
                    return cards, error
                if error.trouble is Trouble.ELSEWHERE:
                    del cards[index]
                    continue
                self._ledger.failed(index, What.READINGS, error)
            self._unknown.add(index)
        return linked(cards, await self._links(backend, cards, limit_s)), None

    async def _links(self, backend: Backend, cards: Iterable[int], limit_s: float) -> Mapping[int, tuple[int, ...]]:
        """The direct links among the cards that have said who they are; where that takes longer, none, and they are
        asked for again behind the next readings."""
        ask = partial(backend.peers, set(cards) - self._unknown)
        outcome = (await self.call_threads.run({_LINKS: ask}, limit_s))[_LINKS]
        self._unlinked = isinstance(outcome, Late)
        return outcome.value if isinstance(outcome, Answer) else {}

    # --- asking -------------------------------------------------------------------------------------------------------

    def _ask(self, backend: Backend, what: What, card: Card) -> tuple[Card | None, Seen[Any]]:
        """Blocks. What the card says, and who it is where that is not known yet."""
        asked: dict[What, Callable[[int], Any]] = {What.READINGS: backend.read, What.HEALTH: backend.health}
        value = tuple(backend.holders(card.index)) if what is What.HOLDERS else asked[what](card.index)
        seen, described, unknown = Seen(time.time(), value), None, card.incomplete or card.index in self._unknown
        # The instances of a card in MIG mode may change while it is used.
        if card.index in self._unknown or ((card.mig or unknown) and what is What.HEALTH):
            try:
                described = backend.describe(card)
            except DriverError as error:
                if error.trouble in _UNUSABLE:
                    raise
            if described is not None and described.incomplete and not unknown:
                described = None  # less than is known
        return described, seen

    def _take(
        self,
        what: What,
        outcomes: Mapping[int, Answer[tuple[Card | None, Seen[Any]]] | CallFailure | Late],
        waited_s: float,
    ) -> None:
        """Makes the next view of what became of the calls in `waited_s` seconds."""
        view, ledger = self._view, self._ledger
        values: dict[int, Seen[Any]] = dict(getattr(view, what.value))
        cards = view.cards
        for index, outcome in outcomes.items():
            if isinstance(outcome, Answer):
                described, values[index] = outcome.value
                ledger.answered(index, what)
                if described is not None and index in cards:
                    self._unlinked = self._unlinked or index in self._unknown
                    self._unknown.discard(index)
                    cards = described_by(cards, replace(described, peers=described.peers or cards[index].peers))
                continue
            values.pop(index, None)
            error = no_answer(outcome, f"card {index}")
            if error.of_driver:
                # Nothing of what it said before still holds.
                self._backend, self._ledger, self._nobody_answers = None, CardTroubles(), False
                self._generation += 1
                self._view = View(view.kind, view.version, cards, driver=Sick(error.trouble, str(error), time.time()))
                return
            if error.trouble is Trouble.ELSEWHERE:
                cards = {other: card for other, card in cards.items() if other != index}
                self._unknown.discard(index)
            elif isinstance(outcome, CallFailure) or outcome.running_s is None:
                ledger.failed(index, what, error)
            elif self._hangs(outcome.running_s, waited_s):
                ledger.hangs(index, error, time.time() - outcome.running_s)
        if what is What.READINGS and len(outcomes) == len(cards):
            self._nobody_answers = all(isinstance(outcome, CallFailure) for outcome in outcomes.values())
            if not self._nobody_answers:
                self._backoff.reset()
        overdue_s = self._listening.overdue_s
        deaf_s = overdue_s if overdue_s >= self._settings().driver_deadline_s else 0.0
        changed: dict[str, Any] = {what.value: values, "deaf_s": deaf_s}
        # Who works with these looks again when they are others, and that costs more than this look.
        if cards is not view.cards:
            changed["cards"] = cards
        if (sick := ledger.sick(cards)) != view.sick:
            changed["sick"] = sick
        if ledger.hanging:
            for name in _VALUES:
                kept = changed.get(name, getattr(view, name))
                changed[name] = {index: seen for index, seen in kept.items() if index not in ledger.hanging}
        self._view = replace(view, **changed)

    def _hangs(self, running_s: float, waited_s: float) -> bool:
        """Whether a call hangs: it was waited for, or has been running, for about as long as one may take."""
        return max(running_s, waited_s) >= _ABOUT * self._settings().driver_deadline_s
