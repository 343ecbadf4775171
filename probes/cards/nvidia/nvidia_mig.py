"""The instances of an NVIDIA card in MIG mode. Each is a card of its own to jobs: it is leased, has its own memory and
processes, and a UUID by which CUDA knows it. Its card has the health, the events and the place on the bus.

An instance has the index 1000 + 100 * that of its card + the number under which NVML lists it there.
"""

from dataclasses import replace
from typing import Any

from muster.probes.cards.accelerator import Card, DriverError, Numbers, Trouble
from muster.probes.cards.nvidia.nvidia_calls import Nvml
from muster.probes.kernel.dataclass import dataclass

_FIRST, _PER_CARD = 1000, 100


@dataclass(frozen=True, slots=True)
class MigInstance:
    """Where NVML has it: by the number on its card. A number may come to mean another instance; the UUID tells."""

    parent: int
    number: int
    uuid: str


def index(parent: int, number: int) -> int:
    """Of the instance `number` of a card."""
    return _FIRST + _PER_CARD * parent + number


def instances(nvml: Nvml, handle: Any, card: Card) -> dict[int, tuple[MigInstance, Card]]:
    """Those that the card has now, by index. Raises DriverError where the card or the driver does not answer."""
    found: dict[int, tuple[MigInstance, Card]] = {}
    for number in range(min(nvml.maybe("nvmlDeviceGetMaxMigDeviceCount", handle) or 0, _PER_CARD)):
        part = nvml.maybe("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        uuid = None if part is None else nvml.maybe("nvmlDeviceGetUUID", part)
        if not uuid:
            continue  # fewer than there may be, or one that this container was not given
        memory = nvml.maybe("nvmlDeviceGetMemoryInfo", part)
        own = replace(
            card,
            index=index(card.index, number),
            uuid=uuid,
            model=nvml.maybe("nvmlDeviceGetName", part) or f"{card.model} MIG",
            memory_bytes=None if memory is None else int(memory.total),
            peers=(),
            mig=False,
            numbers=Numbers(
                physical=card.numbers.physical,
                gpu_instance=nvml.maybe("nvmlDeviceGetGpuInstanceId", part),
                compute_instance=nvml.maybe("nvmlDeviceGetComputeInstanceId", part),
            ),
            parent=card.index,
        )
        found[own.index] = (MigInstance(card.index, number, uuid), own)
    return found


def handle(nvml: Nvml, parent: Any, instance: MigInstance) -> Any:
    """NVML's handle of an instance, asked for anew each time: it is void once the instance was taken away. Raises
    DriverError, ABSENT where it was."""
    part = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", parent, instance.number)
    if nvml.ask("nvmlDeviceGetUUID", part) != instance.uuid:
        text = f"the MIG instance {instance.uuid} of card {instance.parent} was removed, its number was reused"
        raise DriverError(Trouble.ABSENT, text)
    return part
