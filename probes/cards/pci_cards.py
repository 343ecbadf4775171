"""What cards are on the PCI bus: the numbers of their makers, classes and devices."""

from pathlib import Path

from muster.probes.cards.accelerator import ASCEND, NVIDIA
from muster.probes.kernel import pci
from muster.probes.kernel.pci import PciDevice

#: Chips of Huawei's, by generation.
ASCEND_910A, ASCEND_910B, ASCEND_910C = "0xd801", "0xd802", "0xd803"
#: The class of a display controller, which may be there for a screen alone.
DISPLAY = "0x0300"
_VENDORS = {NVIDIA: "0x10de", ASCEND: "0x19e5"}
#: Of cards: display and 3D controllers; processing accelerators.
_CLASSES = {NVIDIA: (DISPLAY, "0x0302"), ASCEND: ("0x1200",)}
#: Where others of the same class are no cards (Kunpeng's compression engine).
_DEVICES = {ASCEND: frozenset({ASCEND_910A, ASCEND_910B, ASCEND_910C, "0xd500", "0xd100"})}
#: NVSwitches are bridges.
_SWITCH_CLASS = "0x0680"


def cards(kind: str, sysfs: Path = pci.SYSFS) -> tuple[PciDevice, ...]:
    """All cards of a kind. Blocks."""
    found = pci.devices(_VENDORS[kind], _CLASSES[kind], sysfs)
    return tuple(one for one in found if kind not in _DEVICES or one.device in _DEVICES[kind])


def has_switches(sysfs: Path = pci.SYSFS) -> bool:
    """Whether there are NVSwitches. Blocks."""
    return bool(pci.devices(_VENDORS[NVIDIA], (_SWITCH_CLASS,), sysfs))
