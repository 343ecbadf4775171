"""Which driver this host has, and which cards: vendors' libraries are tried, and device nodes say what is missing."""

from collections.abc import Callable, Sequence
from pathlib import Path

from muster.probes.calls.call_threads import AskEach
from muster.probes.cards.accelerator import SLOT, Backend, Card, DriverError, Trouble
from muster.probes.cards.no_cards import NoCards, by_node
from muster.probes.kernel.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class FoundDriver:
    """`backend` is open, and None where there is nobody to ask: slots, or a driver in trouble (`error`)."""

    kind: str
    cards: tuple[Card, ...]
    backend: Backend | None = None
    version: str = ""
    error: DriverError | None = None


def vendors() -> list[Backend]:
    """In the order in which they are tried. Neither loads anything before it is opened."""
    from muster.probes.cards.ascend.backend import Ascend
    from muster.probes.cards.nvidia.backend import Nvidia

    return [Nvidia(), Ascend()]


class Finder:
    """Not for several threads at once."""

    def __init__(self, backends: Sequence[Backend], slots: Callable[[], int], dev: Path) -> None:
        self._backends = backends
        self._slots = NoCards(slots)
        self._dev = dev
        self._open: Backend | None = None
        #: The kind of cards that there were once: their absence is no reason to take this for a host without any.
        self._had = SLOT
        #: Kind of the driver that is being opened.
        self.trying = SLOT

    def find(self, ask: AskEach) -> FoundDriver:
        """Blocks, for ever where the driver hangs; not for a card that does, which is asked with `ask`. What was open
        is closed before.

        The first backend that lists cards is it. Where none does, cards are known by their device nodes: then what
        keeps their driver from answering is the error. A driver in trouble without any node, and without cards that
        were there before, is no sign of cards (a library alone is in many images, and a container sees its host's PCI
        bus): such a host has slots, and where none are configured the error comes with no cards.
        """
        if self._open is not None:
            self._open.close()
            self._open = None
        kind, nodes = by_node(self._dev)
        failed: FoundDriver | None = None
        for backend in self._backends:
            self.trying = backend.kind
            shown = tuple(nodes) if backend.kind == kind else ()
            try:
                backend.open(ask)
                cards = tuple(backend.cards())
                if not cards and not shown and backend.kind != self._had:
                    backend.close()
                    continue
                self._open = backend
                self._had = backend.kind
                # Without cards each node's is asked all the same: the driver will say that it has none of this number.
                return FoundDriver(backend.kind, cards or shown, backend, _version(backend))
            except DriverError as error:
                backend.close()
                if shown or backend.kind == self._had:
                    return FoundDriver(backend.kind, shown, error=error)
                if error.trouble is not Trouble.NO_LIBRARY and failed is None:
                    failed = FoundDriver(backend.kind, (), error=error)
        self.trying = SLOT
        slots = self.slots()
        return failed if failed is not None and not slots else FoundDriver(SLOT, slots)

    def by_node(self) -> FoundDriver:
        """The cards that are visible without any driver."""
        kind, nodes = by_node(self._dev)
        return (
            FoundDriver(kind, tuple(nodes))
            if nodes
            else FoundDriver(self.trying, () if self.trying != SLOT else self.slots())
        )

    def slots(self) -> tuple[Card, ...]:
        """Those of a host without cards, as it is configured now."""
        return tuple(self._slots.cards())

    def close(self) -> None:
        """Gives the driver back."""
        if self._open is not None:
            self._open.close()
            self._open = None


def _version(backend: Backend) -> str:
    try:
        return backend.version()
    except DriverError:
        return ""
