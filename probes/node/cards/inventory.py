"""Compares the node's cards with those that it had, and with those on the PCI bus."""

import time
from collections.abc import Iterable, Mapping
from functools import partial

from muster.probes.calls import watched
from muster.probes.cards import pci_cards
from muster.probes.cards.accelerator import ASCEND, NVIDIA, SLOT
from muster.probes.cards.driver import What
from muster.probes.checks.result import CheckResult, Code, Status
from muster.probes.kernel import mount_table, pci
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.number_lists import numbers
from muster.probes.kernel.pci import PciDevice
from muster.probes.node.kernel_files import listed, text
from muster.probes.node.node_check import About, Look, NodeCheck, NodeRule, Roots, counted, everywhere
from muster.probes.node.remembered import Comparison, Difference, Inventory, Remembered

INVENTORY = NodeCheck(
    "inventory",
    "the node has the cards that muster remembers, and the driver shows each card of the PCI bus",
    15.0,
    (
        Code.CARD_MISSING,
        Code.CARD_REPLACED,
        Code.CARD_MOVED,
        Code.CARD_NEW,
        Code.CARD_NOT_SHOWN,
        Code.CARD_DRIVER_GONE,
        Code.CARD_COUNT,
    ),
    of_cards=True,
)

#: Drivers of the kernel that keep a device for a virtual machine.
_KEEPERS = frozenset({"pci-stub", "pciback", "xen-pciback"})
_ACCEPT = "if that is intended: `muster node accept"


@dataclass(frozen=True, slots=True)
class Bus:
    """What the PCI bus shows: the cards of each maker, the labels of the slots, and whether the devices are this
    system's own. A container sees its host's bus, whichever cards it was given."""

    devices: Mapping[str, tuple[PciDevice, ...]]
    slots: Mapping[str, str]
    own: bool
    #: Whether there is any device of whatever kind: a container may show none.
    told: bool

    @classmethod
    def read(cls, roots: Roots) -> "Bus":
        """Blocks."""
        devices = {kind: pci_cards.cards(kind, roots.sys) for kind in (NVIDIA, ASCEND)}
        return cls(devices, pci.slots(roots.sys), own_devices(roots), bool(listed(roots.sys / "bus/pci/devices")))

    def find(self, bus_id: str) -> PciDevice | None:
        """The device at that place; None if there is none of a maker of cards."""
        every = (device for devices in self.devices.values() for device in devices)
        return next((device for device in every if device.bus_id == bus_id), None)


def own_devices(roots: Roots) -> bool:
    """Whether the device nodes are the kernel's own: those of a container are a few that were chosen for it."""
    mounts = mount_table.parse(text(roots.proc / "self/mountinfo"))
    kinds = [mount.type for mount in mounts if mount.path == "/dev"]
    return kinds[-1:] == ["devtmpfs"]


def kept_aside(driver: str) -> bool:
    """Whether this driver of the kernel keeps a device for a virtual machine: then it is not muster's."""
    return "vfio" in driver or driver in _KEEPERS


async def judge(look: Look) -> list[CheckResult]:
    """See INVENTORY. What a driver in trouble does not show is not gone."""
    view, inventory, say = look.view, look.memory.inventory, About(INVENTORY.item)
    if view.driver is not None:
        return [say.not_told("the driver as a whole does not answer")]
    bus = await watched.call("read the PCI bus", partial(Bus.read, look.roots))
    elsewhere = _gone(inventory.of(*({NVIDIA, ASCEND} - {view.kind})), view.kind, bus)
    if view.kind == SLOT:
        results = elsewhere + _unshown(bus, (NVIDIA, ASCEND), inventory, look)
        if look.settings.expected_cards and not elsewhere:
            wanted = counted(look.settings.expected_cards, "card")
            reason = f"the node has neither a card nor a driver, but {wanted} should exist (`expected_cards`)"
            results.append(say.found(Code.CARD_COUNT, reason, "0 cards", wanted))
        return results or [say.off("the node has no cards, and had none")]
    found = inventory.learn(list(view.whole.values()), view.kind, bus.slots, time.time())
    results = [r for r in _of_cards(look, found) if look.only is None or r.card in look.only]
    results += [_missing(was, bus, view.cards.keys()) for was in found.missing]
    results += [] if found.nameless else _unshown(bus, (view.kind,), inventory, look)
    return results + elsewhere + [_whole(found, inventory, bus, view.kind)]


def _of_cards(look: Look, found: Comparison) -> list[CheckResult]:
    """For each present card: whether it is the remembered card, or how it differs."""
    results = []
    differ = {difference.device: difference for difference in found.differences if difference.now is not None}
    for facts in look.cards(look.view.kind):
        say = About(INVENTORY.item, f"card {facts.index}", facts.index)
        difference = differ.get(say.device)
        if difference is not None:
            results.append(_differs(say, difference))
        elif facts.index in found.nameless:
            results.append(say.not_told("it did not identify itself"))
        else:
            results.append(say.ok("it is the card that muster remembers", facts.card.uuid))
    return results


def _differs(say: About, difference: Difference) -> CheckResult:
    was, now = difference.was, difference.now
    assert now is not None
    new = " ".join(filter(None, (now.model, now.uuid, f"serial {now.serial}" if now.serial else "")))
    accept = f"{_ACCEPT} {now.index}`"
    if was is None:
        reason = f"it is new: {new} at {now.bus_id or 'an unknown place'}; {accept}"
        return say.found(Code.CARD_NEW, reason, new, "a card that muster remembers")
    if difference.code is Code.CARD_MOVED:
        reason = f"it moved from {was.bus_id} to {now.bus_id}; {accept}"
        return say.found(Code.CARD_MOVED, reason, now.bus_id, was.bus_id)
    reason = f"it is {new}, which replaced {was}; {accept}"
    return say.found(Code.CARD_REPLACED, reason, new, str(was))


def _missing(was: Remembered, bus: Bus, shown: Iterable[int]) -> CheckResult:
    card = None if was.index in shown else was.index
    say = About(INVENTORY.item, was.place, card)
    accept = f"{_ACCEPT} {was.place}`"
    device, status = bus.find(was.bus_id), None
    if device is None:
        where = ", and neither does the PCI bus: check card, riser and power" if bus.told and was.bus_id else ""
        reason = f"the driver no longer shows {was}{where}; {accept}"
    elif kept_aside(device.driver):
        status = Status.WARN
        reason = f"{was} is reserved for a virtual machine ({device.driver}); {accept}"
    elif device.driver and not bus.own:
        status = Status.WARN
        reason = f"{was} is on the PCI bus, but this container has no access to it; {accept}"
    else:
        reason = f"{was} is on the PCI bus ({_taken(device)}), but the driver no longer shows it; {accept}"
    return say.found(Code.CARD_MISSING, reason, "not shown", "each card that muster remembers", status=status)


def _gone(cards: list[Remembered], kind: str, bus: Bus) -> list[CheckResult]:
    """Cards of a kind without an answering driver: which of them exist is unknown."""
    if not cards:
        return []
    on_bus = [device for card in cards if (device := bus.find(card.bus_id)) is not None]
    others = bool(on_bus) and not bus.own and all(device.driver for device in on_bus)
    kinds = " and ".join(dict.fromkeys(card.kind for card in cards))
    reason = f"the node had {counted(len(cards), f'{kinds} card')} ({numbers(card.index for card in cards)}), and no"
    reason += f" driver shows any: {len(on_bus)} of them {'is' if len(on_bus) == 1 else 'are'} on the PCI bus"
    reason += f"; {_ACCEPT} --all`"
    calm = kind != SLOT or others
    say = About(INVENTORY.item)
    return [
        say.found(Code.CARD_DRIVER_GONE, reason, "0 cards", f"{len(cards)} cards", status=Status.WARN if calm else None)
    ]


def _unshown(bus: Bus, kinds: Iterable[str], inventory: Inventory, look: Look) -> list[CheckResult]:
    """Cards on the bus that the driver does not show, but for those that are remembered, kept for a virtual machine or
    accepted."""
    known = {card.bus_id for card in look.view.whole.values()} | {card.bus_id for card in inventory.cards}
    results = []
    for device in (device for kind in kinds for device in bus.devices.get(kind, ())):
        if device.bus_id in known | inventory.unshown or kept_aside(device.driver):
            continue
        if device.driver and not bus.own:
            continue  # somebody else's: the bus is the host's
        say = About(INVENTORY.item, device.bus_id)
        reason = f"the PCI bus has it ({_taken(device)}), but the driver's library does not show it"
        reason += ": look for RmInitAdapter, Xid 79 or davinci in the kernel's log" if bus.own else ""
        spare = not device.driver and (device.kind == pci_cards.DISPLAY or not bus.own)
        status = Status.WARN if spare else None
        reason += f"; {_ACCEPT} {device.bus_id}`"
        results.append(say.found(Code.CARD_NOT_SHOWN, reason, _taken(device), "shown by the driver", status=status))
    return results


def _taken(device: PciDevice) -> str:
    return f"kernel driver {device.driver}" if device.driver else "without a kernel driver"


def _whole(found: Comparison, inventory: Inventory, bus: Bus, kind: str) -> CheckResult:
    say = About(INVENTORY.item)
    if found.unsure:
        those = ", ".join(str(card) for card in found.unsure[:4])
        which = numbers(found.nameless)
        return say.not_told(f"card {which} did not identify itself, and may be one of the missing cards: {those}")
    total, there = len(inventory.of(kind)), len(found.same)
    many = counted(total, "card")
    if there < total:
        reason = f"{there} of the {many} that muster remembers exist"
    else:
        reason = "the card that muster remembers exists" if total == 1 else f"all {many} that muster remembers exist"
    aside = [device.bus_id for device in bus.devices.get(kind, ()) if kept_aside(device.driver)]
    if aside:
        reason += f"; reserved for virtual machines, ignored by muster: {', '.join(aside)}"
    return say.ok(reason, counted(there, "card"), many)


RULES = (NodeRule(INVENTORY, judge, everywhere, frozenset({What.HEALTH})),)
