"""Which program runs a test of a card, and what it is given."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from muster.probes.active import card_program, peer_program
from muster.probes.active.active_settings import PEERS, ActiveSettings
from muster.probes.cards.accelerator import ASCEND, NVIDIA, Card
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.known_names import ASCEND_CARDS, CUDA_CARDS, CUDA_ORDER, PCI_ORDER

_TORCH = str(Path(__file__).with_name("torch_program.py"))
NEEDS_TORCH = "no interpreter with PyTorch is known: set python in [active]"


@dataclass(frozen=True, slots=True)
class TestProgram:
    """A program with its variables; or, in `trouble`, why there is none; `absent`: since there is nothing to test."""

    #: It is no class of pytest's.
    __test__ = False

    arguments: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""
    absent: bool = False


def of_card(test: str, card: Card, others: Sequence[Card], visible: str, settings: ActiveSettings) -> TestProgram:
    """For one card. `others`: of its kind, which are free; `visible`: what a process calls it."""
    seconds = f"{settings.seconds:g}"
    if card.has_to_do_with_mig:
        return TestProgram(trouble="it is split into MIG instances" if card.mig else "it is a MIG instance")
    if card.kind == NVIDIA and test == PEERS:
        buses = ",".join([card.bus_id, *(other.bus_id for other in others)])
        if not others:
            return TestProgram(trouble="there is no other free card", absent=True)
        return TestProgram(("-I", "-m", peer_program.__name__, buses, seconds))
    if card.kind == NVIDIA:
        return TestProgram(("-I", "-m", card_program.__name__, test, card.bus_id, seconds))
    if card.kind == ASCEND and test == PEERS:
        return TestProgram(trouble="the all-reduce tests the links of Ascend cards", absent=True)
    if card.kind == ASCEND:
        return _of_torch((test, ASCEND, seconds), card.kind, visible, settings)
    return TestProgram(trouble=f"there is no active test of {card.kind} cards")


def of_rank(kind: str, rank: int, world: int, port: int, visible: str, settings: ActiveSettings) -> TestProgram:
    """For one card of an all-reduce; of a kind that is none, on the CPU."""
    name = kind if kind in (NVIDIA, ASCEND) else "cpu"
    given = ("allreduce", name, f"{settings.seconds:g}", str(rank), str(world), str(port))
    return _of_torch(given, kind, visible, settings)


def _of_torch(given: Sequence[str], kind: str, visible: str, settings: ActiveSettings) -> TestProgram:
    if not settings.python:
        return TestProgram(trouble=NEEDS_TORCH)
    env = {
        NVIDIA: {CUDA_CARDS: visible, CUDA_ORDER: PCI_ORDER},
        ASCEND: {ASCEND_CARDS: visible},
    }
    return TestProgram((settings.python, _TORCH, *given), {"HOME": "/", **env.get(kind, {})})
