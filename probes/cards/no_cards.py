"""Hosts without cards, whose operator may let jobs hold slots; and which cards a host shows without any driver."""

import os
from collections.abc import Callable
from pathlib import Path

from muster.probes.calls.call_threads import AskEach, in_turn
from muster.probes.cards.accelerator import (
    ASCEND,
    NVIDIA,
    SLOT,
    Backend,
    Card,
    CardEvent,
    DriverError,
    Health,
    Holder,
    Reading,
)
from muster.probes.cards.accelerator import Trouble as T
from muster.probes.kernel.known_names import device_node, device_number


def present(dev: Path = Path("/dev")) -> tuple[str, tuple[int, ...]]:
    """The kind of cards of which `dev` has device nodes, and the nodes' numbers; SLOT and none where it has no such.

    Nodes outlive a driver that was unloaded and a card that dropped off the bus; a driver that was never loaded has
    none. For NVIDIA the number is the driver's minor number, which need not be the card's index.
    """
    try:
        names = os.listdir(dev)
    except OSError:
        names = []
    for kind in (NVIDIA, ASCEND):
        found = sorted(number for name in names if (number := device_number(kind, name)) is not None)
        if found:
            return kind, tuple(found)
    return SLOT, ()


def by_node(dev: Path = Path("/dev")) -> tuple[str, list[Card]]:
    """The cards as their nodes show them, for when their driver does not answer."""
    kind, numbers = present(dev)
    return kind, [Card(number, kind, node=str(dev / device_node(kind, number))) for number in numbers]


class NoCards(Backend):
    """Slots in the place of cards: so many as `slots` says now. They have no readings and nothing on them."""

    kind = SLOT

    def __init__(self, slots: Callable[[], int]) -> None:
        self._slots = slots

    def open(self, ask: AskEach = in_turn) -> None:
        pass

    def close(self) -> None:
        pass

    def version(self) -> str:
        return ""

    def cards(self) -> list[Card]:
        return [Card(index, SLOT) for index in range(self._slots())]

    def read(self, index: int) -> Reading:
        return Reading()

    def health(self, index: int) -> Health:
        return Health()

    def holders(self, index: int) -> list[Holder]:
        return []

    def wait_events(self, timeout_s: float) -> list[CardEvent]:
        raise DriverError(T.NOT_TOLD, "a host without cards has no events of cards")
