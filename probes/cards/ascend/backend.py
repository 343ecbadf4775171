"""Ascend cards, queried through the driver's libdcmi.so, or through `npu-smi` without that library.

A card is a chip; a board may have several. Its numbers: probes/cards/ascend/ascend_numbers.py.
"""

import queue
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from muster.probes.calls.call_threads import AskEach, in_turn
from muster.probes.cards.accelerator import (
    ASCEND,
    Backend,
    Card,
    CardEvent,
    DriverError,
    Health,
    Holder,
    Numbers,
    Reading,
    Trouble,
)
from muster.probes.cards.ascend import ascend_numbers, ascend_program
from muster.probes.cards.ascend.ascend_chip import Chip
from muster.probes.cards.ascend.ascend_numbers import ChipIdentity, Seat
from muster.probes.cards.ascend.ascend_program import NpuSmi
from muster.probes.cards.ascend.dcmi import ChipFault, Dcmi, Listing
from muster.probes.cards.ascend.dcmi_library import LIBRARIES, load
from muster.probes.kernel import pci
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.known_names import device_node

T = TypeVar("T")

#: The device of the driver's kernel modules: it exists as long as they are loaded.
_MANAGER = "davinci_manager"
#: Events that are handed over at once.
_EVENTS = 256


@dataclass(frozen=True, slots=True)
class _Open:
    """What an open library shows. `lost`: cards that are known to be there, and do not tell which of the numbers is
    theirs, with why. `cards` are both, with their numbers."""

    dcmi: Dcmi
    cards: Mapping[int, Card]
    chips: Mapping[int, Chip]
    lost: Mapping[int, tuple[Seat | None, DriverError]]


class Ascend(Backend):
    """See Backend. `program` is where npu-smi lies, None: it is looked for."""

    kind = ASCEND

    def __init__(
        self,
        libraries: Iterable[str] = LIBRARIES,
        *,
        program: str | None = None,
        dev: Path = Path("/dev"),
        sysfs: Path = pci.SYSFS,
    ) -> None:
        self._libraries = tuple(libraries)
        self._path = program
        self._dev = dev
        self._sysfs = sysfs
        self._open: _Open | None = None
        self._program: NpuSmi | None = None
        #: Numbers of the cards by their seats, as last told: a card that is lost keeps its own.
        self._numbers: dict[Seat, int] = {}
        self._subscribed: bool | None = None
        self._ask_each: AskEach = in_turn

    def open(self, ask: AskEach = in_turn) -> None:
        self._ask_each = ask
        try:
            dcmi = Dcmi(load(self._libraries))
        except DriverError as missing:
            self._open_program(missing)
            return
        try:
            listing = dcmi.start(ask)
        except DriverError as trouble:
            raise self._without_driver(trouble) from None
        self._open, self._program = self._arranged(dcmi, listing), None

    def _open_program(self, missing: DriverError) -> None:
        path = self._path if self._path is not None else ascend_program.find()
        if not path:
            text = f"{missing}, and neither is npu-smi: install the driver's, or give them to the container"
            raise DriverError(Trouble.NO_LIBRARY, text, of_driver=True) from None
        program = NpuSmi(path, self._dev)
        program.open()
        self._open, self._program = None, program

    def _arranged(self, dcmi: Dcmi, listing: Listing, known: Mapping[int, Chip] = MappingProxyType({})) -> _Open:
        nodes = ascend_numbers.nodes(self._dev)
        places = ascend_numbers.places(listing.found, nodes, len(listing.lost), counted=ascend_numbers.counted)
        chips: dict[int, Chip] = {}
        cards: dict[int, Card] = {}
        for told in listing.found:
            if (place := places.get(told.seat)) is None:
                continue  # another container's
            chip = known.get(place.index)
            if chip is None or (chip.seat, chip.logical) != (told.seat, told.logical):
                chip = Chip(dcmi, place.index, told.seat, told.logical, sysfs=self._sysfs)
            chips[place.index] = chip
            cards[place.index] = _card(told, place)
        self._numbers |= {seat: place.index for seat, place in places.items()}
        lost: dict[int, tuple[Seat | None, DriverError]] = {}
        here = nodes.keys() - {place.node for place in places.values()}
        # The numbers of a host are without gaps. Which of several lost cards has which may be guessed wrongly here:
        # each is lost all the same, and is listed anew before it is asked.
        free = iter(sorted((here if nodes else set(range(len(chips) + len(listing.lost)))) - chips.keys()))
        for seat, trouble in sorted(listing.lost.items()):
            own = self._numbers.get(seat)
            if own is None or own in chips or own in lost:
                own = next((one for one in free if one not in lost), None)
            if own is not None:
                lost[own] = (seat, trouble)
        for number in here - chips.keys() - lost.keys():
            text = f"{self._dev / device_node(ASCEND, number)} exists, but the driver lists no such card"
            lost[number] = (None, DriverError(Trouble.ABSENT, text))
        # CANN counts a card on which the driver has given up in its place, as the others' numbers show.
        order = sorted(chips.keys() | {number for number, (seat, _) in lost.items() if seat is not None})
        counted = all(cards[number].numbers.logical == order.index(number) for number in chips)
        for number, (its_seat, _) in lost.items():
            rank = order.index(number) if counted and its_seat is not None else None
            numbers = Numbers(number, rank, *_board(its_seat or ()))
            cards[number] = Card(number, ASCEND, node=f"/dev/{device_node(ASCEND, number)}", numbers=numbers)
        return _Open(dcmi, cards, chips, lost)

    def close(self) -> None:
        # The library stays, as DCMI has no end of it; nothing of it is in use any more.
        self._open, self._program = None, None

    def version(self) -> str:
        if self._program is not None:
            return self._program.version()
        return self._opened().dcmi.driver_version()

    def cards(self) -> list[Card]:
        if self._program is not None:
            return self._program.cards()
        return [card for _, card in sorted(self._opened().cards.items())]

    def describe(self, card: Card) -> Card:
        return card if self._program is not None else self._chip(card.index).describe(card)

    def peers(self, indices: Collection[int]) -> Mapping[int, tuple[int, ...]]:
        if self._program is not None:
            return {}
        chips = [chip for index, chip in sorted(self._opened().chips.items()) if index in indices]
        found: dict[int, set[int]] = {chip.index: set() for chip in chips}
        for place, chip in enumerate(chips):
            for other in chips[place + 1 :]:
                try:
                    linked = chip.linked(other)
                except DriverError as trouble:
                    if trouble.trouble is Trouble.NOT_TOLD:
                        return _by_board(chips)  # of this pair, and so of all
                    continue
                if linked:
                    found[chip.index].add(other.index)
                    found[other.index].add(chip.index)
        return {index: tuple(sorted(others)) for index, others in found.items()}

    def read(self, index: int) -> Reading:
        if self._program is not None:
            return self._program.read(index)
        return self._ask(index, Chip.read)

    def health(self, index: int) -> Health:
        if self._program is not None:
            return self._program.health(index)
        return self._ask(index, lambda chip: chip.health(tell_new_errors=self._subscribed is False))

    def holders(self, index: int) -> list[Holder]:
        if self._program is not None:
            return self._program.holders(index)
        return self._ask(index, Chip.holders)

    def wait_events(self, timeout_s: float) -> list[CardEvent]:
        """Faults as the library reports them; else error codes that `health` found to be new."""
        if self._program is not None:
            return self._program.wait_events(timeout_s)
        opened = self._opened()
        # Not before somebody waits: a check that runs once has no use for them.
        if self._subscribed is None:
            self._subscribed = opened.dcmi.subscribe()
        faults: list[ChipFault] = []
        try:
            faults.append(opened.dcmi.reported.get(timeout=timeout_s))
            while len(faults) < _EVENTS:
                faults.append(opened.dcmi.reported.get_nowait())
        except queue.Empty:
            pass
        return [self._event(fault, opened.chips) for fault in faults]

    def _event(self, fault: ChipFault, chips: Mapping[int, Chip]) -> CardEvent:
        chip = next((chip for chip in chips.values() if chip.logical == fault.logical), None)
        if chip is None:
            return CardEvent(ASCEND, fault.code, None, text=fault.text, over=fault.over, stays=fault.stays)
        return CardEvent(ASCEND, fault.code, chip.index, chip.bus_id, fault.text, fault.over, fault.stays)

    def _opened(self) -> _Open:
        opened = self._open
        if opened is None:
            raise DriverError(Trouble.FAILED, "libdcmi.so is not open", of_driver=True)
        return opened

    def _chip(self, index: int) -> Chip:
        opened = self._opened()
        if (missing := opened.lost.get(index)) and missing[0] is not None:
            opened.dcmi.told(missing[0])  # raises as long as it is lost, and hangs as long as it does
            self._open = opened = self._arranged(opened.dcmi, opened.dcmi.start(self._ask_each), opened.chips)
        if index in opened.lost:
            trouble = opened.lost[index][1]
            raise DriverError(trouble.trouble, str(trouble), trouble.number)
        if index not in opened.chips:
            raise DriverError(Trouble.ABSENT, f"the driver lists no card {index}")
        return opened.chips[index]

    def _ask(self, index: int, ask: Callable[[Chip], T]) -> T:
        chip = self._chip(index)
        try:
            return ask(chip)
        except DriverError as trouble:
            if trouble.trouble is not Trouble.FAILED:
                raise
            # A driver that was unloaded fails every card; a call that concerns no card shows it.
            try:
                self._opened().dcmi.answers()
            except DriverError as broken:
                raise self._without_driver(broken) from None
            raise

    def _without_driver(self, trouble: DriverError) -> DriverError:
        """The library's error, or the reason for it where that is plain."""
        if trouble.trouble is Trouble.NOT_TOLD or (self._dev / _MANAGER).exists():
            return trouble
        text = f"{trouble}, and there is no {self._dev / _MANAGER}: load the driver's kernel modules"
        return DriverError(Trouble.NO_DRIVER, text, trouble.number, of_driver=True)


def _card(told: ChipIdentity, place: ascend_numbers.ChipPlace) -> Card:
    physical = told.physical if told.physical is not None else place.index
    numbers = Numbers(physical, place.logical, *_board(told.seat))
    return Card(place.index, ASCEND, node=f"/dev/{device_node(ASCEND, place.node)}", numbers=numbers)


def _board(seat: Seat) -> tuple[int | None, int | None]:
    """Board and chip of a seat; the newer dialect has none."""
    return (seat[0], seat[1]) if len(seat) > 1 else (None, None)


def _by_board(chips: Iterable[Chip]) -> dict[int, tuple[int, ...]]:
    """The chips of a board are next to each other, whatever else is not told."""
    boards: dict[Seat, list[int]] = {}
    for chip in chips:
        boards.setdefault(chip.seat[:-1] if len(chip.seat) > 1 else chip.seat, []).append(chip.index)
    return {
        index: tuple(other for other in members if other != index) for members in boards.values() for index in members
    }
