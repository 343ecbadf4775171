"""Which cards the node had: remembered over restarts and reboots, and compared with those that the driver shows.

Nothing here reads a card or a disk. What is remembered is what an operator knows of: the cards of the first time that
all of them told who they are, and what `accept` took over since then.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, replace

from muster.probes.cards.accelerator import SLOT, Card
from muster.probes.checks.result import Code
from muster.probes.kernel.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Remembered:
    """A card as it was. `index` is its number then, which may be another one's now; `slot` the label of its place on
    the board, where the firmware tells; `since` when it was remembered first, in epoch seconds."""

    kind: str
    index: int
    uuid: str = ""
    serial: str = ""
    bus_id: str = ""
    slot: str = ""
    model: str = ""
    since: float = 0.0

    @property
    def place(self) -> str:
        """Its name while it is missing."""
        return self.bus_id or self.uuid or self.serial

    @property
    def names(self) -> frozenset[str]:
        """By which an operator may name it."""
        return frozenset(filter(None, (self.uuid, self.serial, self.bus_id)))

    def __str__(self) -> str:
        """For a sentence: "card 3 (NVIDIA H200, GPU-1a2b, serial 1652, slot 5)"."""
        facts = [self.model, self.uuid, f"serial {self.serial}" if self.serial else ""]
        facts += [f"slot {self.slot}" if self.slot else ""]
        return f"card {self.index} ({', '.join(filter(None, facts)) or self.place})"


@dataclass(slots=True)
class InventoryState:
    """What a file keeps. `whole`: all cards have been remembered once, so that another one is new. `unshown`: devices
    on the PCI bus that the driver does not show, and an operator accepted."""

    cards: list[Remembered] = field(default_factory=list)
    whole: bool = False
    unshown: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Difference:
    """Between what is remembered (`was`) and what is shown (`now`); `device` is what a finding about it names."""

    code: Code
    device: str
    was: Remembered | None = None
    now: Card | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`unsure`: cards that are not seen, and may be one of those (`nameless`, by index) that do not say who they are.
    `same` are pairs of one card."""

    differences: tuple[Difference, ...] = ()
    same: tuple[tuple[Remembered, Card], ...] = ()
    unsure: tuple[Remembered, ...] = ()
    nameless: tuple[int, ...] = ()

    @property
    def missing(self) -> tuple[Remembered, ...]:
        """Those that are certainly not there."""
        return tuple(d.was for d in self.differences if d.code is Code.CARD_MISSING and d.was is not None)


class Inventory:
    """The cards of one node. For one event loop."""

    def __init__(self, state: InventoryState | None = None) -> None:
        state = state or InventoryState()
        self._cards = list(state.cards)
        self._whole = state.whole
        self._unshown = list(state.unshown)
        #: Counts changes, so that the caller knows when to save.
        self.changes = 0

    @property
    def cards(self) -> tuple[Remembered, ...]:
        """All that are remembered, present or missing."""
        return tuple(self._cards)

    @property
    def unshown(self) -> frozenset[str]:
        """Bus ids of devices that an operator accepted as not shown by the driver."""
        return frozenset(self._unshown)

    def state(self) -> InventoryState:
        """For a file."""
        return InventoryState(list(self._cards), self._whole, list(self._unshown))

    def of(self, *kinds: str) -> list[Remembered]:
        """The remembered cards of these kinds."""
        return [card for card in self._cards if card.kind in kinds]

    def absent(self, shown: Mapping[int, Card]) -> list[Card]:
        """Cards that are not among those that are shown, and whose numbers are free: what the kernel tells of their
        places is about them."""
        names = {name for card in shown.values() for name in _names(card)}
        return [
            Card(card.index, card.kind, uuid=card.uuid, model=card.model, bus_id=card.bus_id, serial=card.serial)
            for card in self._cards
            if card.index not in shown and not card.names & names
        ]

    def compare(self, shown: Iterable[Card], kind: str, slots: Mapping[str, str]) -> Comparison:
        """What differs among the cards of a kind. `shown`: those of the driver; `slots`: labels by place on the bus
        ("0000:9d:00"). The driver must be well: that it shows no card is taken for an answer."""
        cards = [card for card in shown if card.kind == kind and not _part(card)]
        named = [card for card in cards if _names(card)]
        nameless = tuple(card.index for card in cards if not _names(card))
        same = _pairs(self.of(kind), named)
        lost = [card for card in self.of(kind) if all(card is not was for was, _ in same)]
        unknown = [card for card in named if all(card is not now for _, now in same)]
        found = [
            Difference(Code.CARD_MOVED, f"card {now.index}", was, now)
            for was, now in same
            if was.bus_id and now.bus_id and was.bus_id != now.bus_id
        ]
        for card in unknown:
            slot = slot_of(card.bus_id, slots)
            before = next((was for was in lost if card.bus_id and was.bus_id == card.bus_id), None)
            before = before or next((was for was in lost if slot and was.slot == slot), None)
            if before is not None:
                lost.remove(before)
                found.append(Difference(Code.CARD_REPLACED, f"card {card.index}", before, card))
            elif self._whole:
                found.append(Difference(Code.CARD_NEW, f"card {card.index}", None, card))
        # A card that does not say who it is has most likely the number that it had; else it may be any of them.
        excused = [was for was in lost if was.index in nameless]
        lost = [was for was in lost if was.index not in nameless]
        unsure = tuple(lost) if len(nameless) > len(excused) else ()
        if not unsure:
            found += [Difference(Code.CARD_MISSING, was.place, was) for was in lost]
        return Comparison(tuple(found), tuple(same), unsure, nameless)

    def learn(self, shown: Collection[Card], kind: str, slots: Mapping[str, str], now: float) -> Comparison:
        """Takes over what the cards that are known tell now, and, as long as not all were known once, those that are
        not; returns what differs then, where those count as known. `now` in epoch seconds."""
        found = self.compare(shown, kind, slots)
        moved = {difference.device for difference in found.differences}
        for was, card in found.same:
            if f"card {card.index}" not in moved:
                self._replace(was, _remembered(card, slots, was))
        if not self._whole:
            known = [id(card) for _, card in found.same] + [id(d.now) for d in found.differences]
            fresh = [card for card in shown if card.kind == kind and _names(card) and not _part(card)]
            for card in fresh:
                if id(card) not in known:
                    new = _remembered(card, slots, None, now)
                    self._replace(None, new)
                    found = replace(found, same=(*found.same, (new, card)))
            self._whole = bool(fresh) and not found.nameless
            self.changes += self._whole
        shown_again = [bus_id for bus_id in self._unshown if any(card.bus_id == bus_id for card in shown)]
        for bus_id in shown_again:
            self._unshown.remove(bus_id)
            self.changes += 1
        return found

    def accept(
        self, code: Code, device: str, shown: Mapping[int, Card], kind: str, slots: Mapping[str, str], now: float
    ) -> None:
        """Takes a finding (`code` of `device`) for how the node is to be: forgets what was removed, takes over what is
        shown, passes over a device that the driver does not show. Nothing where that is not so any more. `shown` and
        `kind` are the driver's, `now` in epoch seconds."""
        found = self.compare(shown.values(), kind, slots)
        if code is Code.CARD_NOT_SHOWN:
            self._unshown.append(device)
            self.changes += 1
        elif code is Code.CARD_DRIVER_GONE:
            self._forget(card for card in self._cards if card.kind != kind)
        elif code is Code.CARD_MISSING:
            there = [was for was, _ in found.same]
            self._forget(card for card in self._cards if card.place == device and card not in there)
        else:
            for one in found.differences:
                if one.code is code and one.device == device and one.now is not None:
                    self._replace(one.was, _remembered(one.now, slots, None, now))

    def names_of(self, device: str, shown: Mapping[int, Card]) -> frozenset[str]:
        """By which an operator may name what a finding is about: its number, what its hardware says it is, its
        place."""
        names = {device, device.removeprefix("card ")}
        for card in shown.values():
            if device == f"card {card.index}":
                names |= _names(card)
        for was in self._cards:
            if device == was.place:
                names |= was.names | {str(was.index)}
        return frozenset(names)

    def _forget(self, cards: Iterable[Remembered]) -> None:
        for card in list(cards):
            self._replace(card, None)

    def _replace(self, old: Remembered | None, new: Remembered | None) -> None:
        if old == new:
            return
        cards = [card for card in self._cards if card is not old]
        self._cards = sorted([*cards, *([new] if new is not None else [])], key=lambda card: (card.kind, card.index))
        self.changes += 1


def slot_of(bus_id: str, slots: Mapping[str, str]) -> str:
    """The label of the place of a device; "" where none is known."""
    return slots.get(bus_id.partition(".")[0], "")


def _part(card: Card) -> bool:
    """An instance of a card that is cut into such is no card of its own, and a slot is none at all."""
    return card.kind == SLOT or card.uuid.startswith("MIG-")


def _names(card: Card) -> set[str]:
    return set(filter(None, (card.uuid, card.serial, card.bus_id)))


def _remembered(card: Card, slots: Mapping[str, str], was: Remembered | None = None, now: float = 0.0) -> Remembered:
    new = Remembered(
        card.kind, card.index, card.hardware, card.serial, card.bus_id, slot_of(card.bus_id, slots), card.model, now
    )
    if was is None:
        return new
    kept = {
        name: getattr(was, name) for name in ("uuid", "serial", "bus_id", "slot", "model") if not getattr(new, name)
    }
    return replace(new, since=was.since, **kept)


def _pairs(known: list[Remembered], shown: list[Card]) -> list[tuple[Remembered, Card]]:
    """Which remembered card is which that is shown: by uuid; by serial number where one card alone has it (all of a
    board may have the same); by its place where it does not tell who it is."""
    serials = Counter(card.serial for card in shown)
    known_serials = Counter(card.serial for card in known)
    pairs: list[tuple[Remembered, Card]] = []

    def take(alike: Callable[[Remembered, Card], bool]) -> None:
        for was in known:
            if any(was is one for one, _ in pairs):
                continue
            free = (card for card in shown if all(card is not other for _, other in pairs))
            now = next((card for card in free if alike(was, card)), None)
            if now is not None:
                pairs.append((was, now))

    def same_serial(was: Remembered, card: Card) -> bool:
        single = serials[card.serial] == 1 and known_serials[card.serial] == 1
        return bool(card.serial) and was.serial == card.serial and single

    def same_place(was: Remembered, card: Card) -> bool:
        contradicts = _differ(was.uuid, card.hardware) or _differ(was.serial, card.serial)
        return bool(card.bus_id) and was.bus_id == card.bus_id and not contradicts

    take(lambda was, card: bool(was.uuid) and was.uuid == card.hardware)
    take(same_serial)
    # Chips of one board may have one place.
    take(lambda was, card: same_place(was, card) and was.index == card.index)
    take(same_place)
    return pairs


def _differ(one: str, other: str) -> bool:
    return bool(one) and bool(other) and one != other
