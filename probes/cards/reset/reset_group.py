"""Which cards a reset of one takes along, and why a card cannot be reset at all.

NVIDIA's rules are those of nvidia-smi's manual (--gpu-reset); Ascend's are those of mind-cluster's hot reset and of
Huawei's pages about npu-smi. Where nothing is known the group is too large rather than too small: a card outside it
that a reset took along would take a job along.
"""

from collections.abc import Mapping
from pathlib import Path

from muster.probes.cards import pci_cards
from muster.probes.cards.accelerator import ASCEND, NVIDIA, Card, Trouble
from muster.probes.cards.fabric_manager import is_running
from muster.probes.cards.view import View
from muster.probes.kernel import pci
from muster.probes.kernel.dataclass import dataclass

#: From compute capability 8.0 (Ampere) on, a card with NVLinks can be reset alone; with NVSwitches and 8.x only while
#: the fabric manager runs.
_AMPERE, _HOPPER = 8, 9
#: Chips that are reset together: mind-cluster's rings. A node with more chips than the first (A200T A2 Box16) is one
#: ring of the second.
_RINGS = {pci_cards.ASCEND_910A: (4, 4), pci_cards.ASCEND_910B: (8, 16)}
#: NVML's recovery actions that a reset does not satisfy.
_REBOOTS = {2: "a reboot of the node", 7: "a reboot of the whole system"}


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """`together`: the numbers of the cards that the reset takes along, the card itself among them; `command`: those
    that the vendor's program must name. `refusal`: why it is not possible; `doubt`: why it is of no use, which an
    operator may override. Empty: neither."""

    together: tuple[int, ...]
    command: tuple[int, ...]
    refusal: str = ""
    doubt: str = ""


def plan(view: View, index: int, sysfs: Path = pci.SYSFS, proc: Path = Path("/proc")) -> ResetPlan:
    """Of a card that the view has. Blocks for a moment: it reads sysfs and /proc."""
    card = view.cards[index]
    if refusal := _refusal(view, card):
        return ResetPlan((index,), (index,), refusal)
    together = _nvidia(view, card, sysfs, proc) if card.kind == NVIDIA else _ascend(view.whole, card, sysfs)
    # npu-smi resets the whole ring by one of its chips; nvidia-smi wants each card by its name.
    command = together if card.kind == NVIDIA else (index,)
    return ResetPlan(together, command, doubt=_doubt(view, index))


def _refusal(view: View, card: Card) -> str:
    if card.kind not in (NVIDIA, ASCEND):
        return "it is a slot, not a card"
    if card.parent is not None:
        return f"it is a MIG instance of card {card.parent}: an instance cannot be reset"
    if card.mig:
        return "it is in MIG mode, and a reset would end its instances: end MIG mode first (`nvidia-smi -mig 0`)"
    if card.guest:
        return "it is a vGPU of a virtual machine: only its host can reset the card"
    if not (card.bus_id or card.uuid or card.kind == ASCEND):
        return "it reports neither its bus id nor its UUID, which nvidia-smi needs: reboot the node, or power-cycle it"
    return ""


def _doubt(view: View, index: int) -> str:
    sick, health = view.sick.get(index), view.health.get(index)
    if sick is not None and sick.trouble in (Trouble.LOST, Trouble.ABSENT):
        return f"it fell off the bus ({sick.text}): only a reboot, or a power cycle, brings it back"
    wish = health.value.recovery_action if health is not None else None
    if wish in _REBOOTS:
        return f"the driver asks for {_REBOOTS[wish]} (recovery action {wish})"
    return ""


def _nvidia(view: View, card: Card, sysfs: Path, proc: Path) -> tuple[int, ...]:
    generation = card.capability[0] if card.capability is not None else _HOPPER
    if not card.peers or generation >= _HOPPER:
        return (card.index,)  # where it needs others all the same, nvidia-smi names them
    if generation >= _AMPERE and (not pci_cards.has_switches(sysfs) or is_running(proc)):
        return (card.index,)
    return _linked(view.whole, card.index)


def _linked(cards: Mapping[int, Card], index: int) -> tuple[int, ...]:
    """The cards that are reached over links, from one to the next."""
    found, more = set[int](), {index}
    while more:
        found |= more
        more = {peer for one in more for peer in cards[one].peers if peer in cards} - found
    return tuple(sorted(found))


def _ascend(cards: Mapping[int, Card], card: Card, sysfs: Path) -> tuple[int, ...]:
    known = {found.bus_id: found.device for found in pci_cards.cards(ASCEND, sysfs)}
    chip = known.get(card.bus_id, "")
    if chip in _RINGS:
        ring, wide = _RINGS[chip]
        ring = wide if len(known) > ring else ring
        return tuple(sorted(i for i in cards if _physical(cards[i]) // ring == _physical(card) // ring))
    own, brother = card.numbers.board, card.numbers.brother
    if chip == pci_cards.ASCEND_910C and own is not None and brother is not None:
        # Both chips of the module and, but for the Atlas 9000 (brother -1), of that whose ports stand in for its own.
        return tuple(sorted(i for i in cards if cards[i].numbers.board in (own, brother)))
    if "950" in card.model:
        return (card.index,)
    return tuple(sorted(cards))  # nobody says which chips go together


def _physical(card: Card) -> int:
    return card.index if card.numbers.physical is None else card.numbers.physical
