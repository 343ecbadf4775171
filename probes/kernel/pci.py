"""What sysfs says about a device on the PCI bus. What it does not say is None or empty.

A search for devices reads only what the kernel remembers, so it does not wake a card that fell off the bus.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path

from muster.probes.kernel import number_lists
from muster.probes.kernel.dataclass import dataclass

SYSFS = Path("/sys")
#: Gigatransfers per second of each generation (PCI Express base specification 6.0; sysfs writes "16.0 GT/s PCIe").
_GENERATIONS = {
    "2.5": 1,
    "5.0": 2,
    "5": 2,
    "8.0": 3,
    "8": 3,
    "16.0": 4,
    "16": 4,
    "32.0": 5,
    "32": 5,
    "64.0": 6,
    "64": 6,
}


@dataclass(frozen=True, slots=True)
class Link:
    """Width in lanes and generation of the link to a device: now, and what both ends can."""

    width: int | None = None
    width_max: int | None = None
    gen: int | None = None
    gen_max: int | None = None


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A device on the bus. `kind` is its class ("0x0302"), `driver` the kernel's that has taken it ("": none has)."""

    bus_id: str
    kind: str
    device: str
    driver: str


def devices(vendor: str, kinds: Collection[str], sysfs: Path = SYSFS) -> list[PciDevice]:
    """The devices of a maker ("0x10de") and of these classes ("0x0302"), by bus id; without the virtual functions of
    others, which are their parts."""
    found = []
    for bus_id in _listed(sysfs / "bus/pci/devices"):
        if _read(bus_id, "vendor", sysfs) != vendor or (kind := _read(bus_id, "class", sysfs)[:6]) not in kinds:
            continue
        folder = sysfs / "bus/pci/devices" / bus_id
        if (folder / "physfn").exists():
            continue
        driver = folder / "driver"
        taken = driver.resolve().name if driver.exists() else ""
        found.append(PciDevice(bus_id, kind, _read(bus_id, "device", sysfs), taken))
    return found


def slots(sysfs: Path = SYSFS) -> dict[str, str]:
    """The labels of the places on the board, by what is in them ("0000:9d:00"). Empty where the firmware tells none."""
    found: dict[str, str] = {}
    for label in _listed(sysfs / "bus/pci/slots"):
        try:
            address = (sysfs / "bus/pci/slots" / label / "address").read_text(errors="replace").strip()
        except OSError:
            continue
        found[address] = label
    return found


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def name(domain: int, bus: int, device: int, function: int) -> str:
    """As sysfs spells it: "0000:9d:00.0"."""
    return f"{domain & 0xFFFFFFFF:04x}:{bus & 0xFF:02x}:{device & 0x1F:02x}.{function & 0x7:x}"


def numa_node(bus_id: str, sysfs: Path = SYSFS) -> int | None:
    """The NUMA node next to the device; None on a machine with one (the kernel writes -1 there), or where not told."""
    node = _number(_read(bus_id, "numa_node", sysfs))
    return node if node is not None and node >= 0 else None


def cpus(bus_id: str, sysfs: Path = SYSFS) -> tuple[int, ...]:
    """The processors next to the device."""
    return number_lists.processors(_read(bus_id, "local_cpulist", sysfs))


def link(bus_id: str, sysfs: Path = SYSFS) -> Link:
    """The device's link. A device that fell off the bus has one of width 0, or 63, which is returned as None."""
    return Link(
        _width(_read(bus_id, "current_link_width", sysfs)),
        _width(_read(bus_id, "max_link_width", sysfs)),
        _generation(_read(bus_id, "current_link_speed", sysfs)),
        _generation(_read(bus_id, "max_link_speed", sysfs)),
    )


def _read(bus_id: str, file: str, sysfs: Path) -> str:
    # A bus id comes from a driver or a program: it must not lead out of the folder.
    if not re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", bus_id):
        return ""
    try:
        return (sysfs / "bus/pci/devices" / bus_id / file).read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else None


def _width(text: str) -> int | None:
    width = _number(text)
    return width if width is not None and 0 < width <= 32 else None


def _generation(text: str) -> int | None:
    return _GENERATIONS.get(text.split(" ", maxsplit=1)[0])
