"""Cards and views for the tests of the node checks."""

from dataclasses import replace

from muster.probes.cards.accelerator import (
    ASCEND,
    NVIDIA,
    Card,
    Health,
    LinkErrors,
    Reading,
    Remapped,
    RetiredPages,
    Trouble,
)
from muster.probes.cards.driver import Seen, Sick, View
from muster.probes.node.memory import Memory
from muster.probes.node.node_check import Look, Roots
from muster.probes.node.node_settings import NodeSettings

FINE = Health(
    temp_c=40.0,
    mem_temp_c=50.0,
    pcie_replay=0,
    pcie_width=16,
    pcie_width_max=16,
    pcie_gen=5,
    pcie_gen_max=5,
    event_reasons=0x1,
    persistence=True,
    ecc_on=True,
    ecc_corrected=0,
    ecc_uncorrected=0,
    sram_corrected=0,
    sram_uncorrected=0,
    dram_corrected=0,
    remapped=Remapped(0, 0, False, False),
    recovery_action=0,
    retired=RetiredPages(0, 0, False),
    links=(True,) * 18,
    link_errors=LinkErrors(),
    fabric_state=3,
    fabric_status=0,
    fabric_health=1,
)
NPU_FINE = Health(
    temp_c=40.0, npu_health=0, npu_network=0, npu_boot=16, npu_errors=(), ecc_uncorrected=0, ecc_corrected=0
)


def gpu(index, **changes):
    card = Card(
        index,
        NVIDIA,
        uuid=f"GPU-{index}",
        model="H200",
        bus_id=f"0000:{index:02x}:00.0",
        node=f"/dev/nvidia{index}",
        slowdown_c=88.0,
        mem_max_c=95.0,
    )
    return replace(card, **changes)


def npu(index, **changes):
    return replace(Card(index, ASCEND, uuid=f"die-{index}", model="910B3", bus_id=f"0000:{index:02x}:00.0"), **changes)


def seen(values):
    return {index: Seen(0.0, value) for index, value in values.items()}


def view(cards, health=None, readings=None, holders=None, sick=None, driver=None):
    """A driver's view; each card is fine unless told otherwise."""
    fine = {card.index: NPU_FINE if card.kind == ASCEND else FINE for card in cards}
    return View(
        kind=cards[0].kind if cards else "slot",
        version="570.86",
        cards={card.index: card for card in cards},
        health=seen({i: h for i, h in (fine | (health or {})).items() if i not in (sick or {})}),
        readings=seen(readings or {}),
        holders=seen(holders or {}),
        sick=sick or {},
        driver=driver,
    )


def look(shown, memory=None, now=1000.0, tmp=None, held=None, only=None, **settings):
    roots = Roots() if tmp is None else Roots(tmp / "proc", tmp / "sys", tmp / "dev")
    return Look(NodeSettings(**settings), shown, memory or Memory(), now, roots, held or {}, only)


def sick(trouble=Trouble.LOST, text="it fell off the bus (15)"):
    return Sick(trouble, text, 0.0)


def busy(util=90.0):
    return Reading(util=util)
