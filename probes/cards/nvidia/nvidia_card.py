"""What NVML and sysfs say of a card that does not change: who it is, where it sits, what is near it."""

import itertools
import os
from pathlib import Path
from typing import Any

from muster.probes.cards.accelerator import NVIDIA, Card, DriverError, Numbers
from muster.probes.cards.nvidia.nvidia_calls import Failed, Nvml
from muster.probes.kernel import pci
from muster.probes.kernel.known_names import device_node

#: nvmlAffinityScope_t; nvmlTemperatureThresholds_t; nvmlGpuP2PCapsIndex_t and its good status.
_SCOPE_NODE, _SLOWDOWN, _MEM_MAX, _P2P_NVLINK, _P2P_OK = 0, 1, 2, 2, 0
#: nvmlGpuVirtualizationMode_t: a vGPU in a virtual machine.
_VGPU = 2
#: No generation of cards has more links (NVML_NVLINK_MAX_LINKS).
MAX_LINKS = 36
#: Room for so many NUMA nodes, in words of 64 (the kernel's MAX_NUMNODES is at most 1024).
_NODE_WORDS = 16


def bus_id(told: str | bytes) -> str:
    """As sysfs spells it, "0000:9d:00.0", of NVML's "00000000:9D:00.0"; "" of what is none."""
    text = told.decode("ascii", "replace") if isinstance(told, bytes) else told
    domain, _, rest = text.strip().lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}" if rest else ""
    except ValueError:
        return ""


def describe(nvml: Nvml, handle: Any, index: int, memory_bytes: int | None, sysfs: Path = pci.SYSFS) -> Card:
    """All but its links. Raises DriverError where the card or the driver does not answer at all."""
    failed: list[str] = []

    def ask(name: str, *args: Any) -> Any:
        return nvml.maybe(name, handle, *args, failed=failed.append)

    place = ask("nvmlDeviceGetPciInfo_v3")
    bus = bus_id(place.busId) if place is not None else ""
    minor = ask("nvmlDeviceGetMinorNumber")
    mig = ask("nvmlDeviceGetMigMode")
    capability = ask("nvmlDeviceGetCudaComputeCapability")
    return Card(
        index=index,
        kind=NVIDIA,
        uuid=ask("nvmlDeviceGetUUID") or "",
        model=ask("nvmlDeviceGetName") or "",
        memory_bytes=memory_bytes,
        bus_id=bus,
        numa_node=_numa_node(nvml, handle, bus, sysfs),
        cpus=_cpus(nvml, handle, bus, sysfs),
        node="" if minor is None else f"/dev/{device_node(NVIDIA, minor)}",
        numbers=Numbers(physical=minor),
        serial=ask("nvmlDeviceGetSerial") or "",
        mig=bool(mig and mig[0]),
        slowdown_c=_celsius(ask("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN)),
        mem_max_c=_celsius(ask("nvmlDeviceGetTemperatureThreshold", _MEM_MAX)),
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        guest=ask("nvmlDeviceGetVirtualizationMode") == _VGPU,
        incomplete=bool(failed),
    )


def links(nvml: Nvml, handle: Any, failed: Failed | None = None) -> list[bool]:
    """Whether each of its NVLinks is up; a link that the card has not, or that the driver failed to report (`failed`),
    ends the list."""
    found: list[bool] = []
    for link in range(MAX_LINKS):
        state = nvml.maybe("nvmlDeviceGetNvLinkState", handle, link, failed=failed)
        if state is None:
            break
        found.append(bool(state))
    return found


def peers(nvml: Nvml, handles: dict[int, Any], buses: dict[int, str]) -> dict[int, tuple[int, ...]]:
    """The cards that each one reaches by NVLink, directly or through an NVSwitch, by index."""
    near: dict[int, set[int]] = {index: set() for index in handles}
    by_bus = {bus: index for index, bus in buses.items() if bus}
    for (one, its), (other, others) in itertools.combinations(handles.items(), 2):
        # The driver's own verdict covers switches, behind which no card is seen from a link.
        if _told(nvml, "nvmlDeviceGetP2PStatus", its, others, _P2P_NVLINK) == _P2P_OK:
            near[one].add(other)
            near[other].add(one)
    for index, handle in handles.items():
        for link in range(MAX_LINKS):
            up = _told(nvml, "nvmlDeviceGetNvLinkState", handle, link)
            if up is None:
                break
            remote = _told(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link) if up else None
            far = None if remote is None else by_bus.get(bus_id(remote.busId))
            if far is not None and far != index:
                near[index].add(far)
    return {index: tuple(sorted(others)) for index, others in near.items()}


def _told(nvml: Nvml, name: str, *args: Any) -> Any:
    """As `maybe`, but a card that is lost has no links, and takes none from the others."""
    try:
        return nvml.maybe(name, *args)
    except DriverError as error:
        if error.of_driver:
            raise
        return None


def _celsius(value: int | None) -> float | None:
    return float(value) if value else None


def _numa_node(nvml: Nvml, handle: Any, bus: str, sysfs: Path) -> int | None:
    """Of the bus that the card is on. NVML's nvmlDeviceGetNumaNodeId is another thing where the card's memory is a node
    of its own (Grace), so it comes last."""
    if (node := pci.numa_node(bus, sysfs)) is not None:
        return node
    words = nvml.maybe("nvmlDeviceGetMemoryAffinity", handle, _NODE_WORDS, _SCOPE_NODE)
    nodes = _bits(words) if words is not None else ()
    if len(nodes) == 1:
        return nodes[0]
    told = nvml.maybe("nvmlDeviceGetNumaNodeId", handle)
    return int(told) if told is not None and told >= 0 else None


def _cpus(nvml: Nvml, handle: Any, bus: str, sysfs: Path) -> tuple[int, ...]:
    count = (os.sysconf("SC_NPROCESSORS_CONF") + 63) // 64
    words = nvml.maybe("nvmlDeviceGetCpuAffinity", handle, count)
    if words is not None and (found := _bits(words)):
        return found
    return pci.cpus(bus, sysfs)


def _bits(words: Any) -> tuple[int, ...]:
    return tuple(number * 64 + bit for number, word in enumerate(words) for bit in range(64) if word >> bit & 1)
