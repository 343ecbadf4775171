"""NVIDIA cards, asked through NVML (nvidia-ml-py loads the driver's libnvidia-ml.so.1 when it is first used).

A card has the number that NVML gives it, which is the order on the PCI bus. CUDA counts so too where CUDA_DEVICE_ORDER
is PCI_BUS_ID. NVML may count cards that a container was not given: those are none of ours.

An instance of a card in MIG mode is a card of its own to jobs: it is leased, has its own memory and processes, and a
UUID by which CUDA knows it. Its card has the health, the events and the place on the bus. An instance has the index
1000 + 100 * that of its card + the number under which NVML lists it there.
"""

import os
import re
import threading
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.probes.calls.call_threads import AskEach, in_turn
from muster.probes.cards.accelerator import (
    NVIDIA,
    Backend,
    Card,
    CardEvent,
    DriverError,
    Health,
    Holder,
    Numbers,
    Reading,
    Trouble,
)
from muster.probes.cards.nvidia import nvidia_card, nvidia_health
from muster.probes.cards.nvidia.nvidia_calls import (
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    MISMATCH,
    NO_PERMISSION,
    NOT_SUPPORTED,
    PERCENT,
    POWER_MW,
    UNINITIALIZED,
    VERSION_MISMATCH,
    Failed,
    Nvml,
    load,
    reload,
    trouble,
    within,
)
from muster.probes.cards.nvidia.nvidia_events import Listener
from muster.probes.kernel.dataclass import dataclass

if TYPE_CHECKING:
    from muster.probes.cards.nvidia.nvidia_gpm import Gpm

#: Version of nvmlMemory_v2_t, whose `used` leaves out what the driver keeps for itself.
_MEMORY_V2 = 0x02000028
#: The lists of processes, and whether these draw. What is on the card through MPS is in a list of its own.
_COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
_PROCESSES = (
    (_COMPUTE, False),
    ("nvmlDeviceGetMPSComputeRunningProcesses", False),
    ("nvmlDeviceGetGraphicsRunningProcesses", True),
)
#: A list that grows between the call for its size and the one for its content is asked for again so often.
_TRIES = 5
_FIRST_MIG, _MIG_PER_CARD = 1000, 100


@dataclass(frozen=True, slots=True)
class _MigInstance:
    """Where NVML has it: by the number on its card. A number may come to mean another instance; the UUID tells."""

    parent: int
    number: int
    uuid: str


@dataclass(slots=True)
class _Session:
    """What holds from one `open` to the next `close`. A thread that comes back late finds its own."""

    nvml: Nvml
    listener: Listener
    gpm: "Gpm"
    handles: dict[int, Any] = field(default_factory=dict)
    buses: dict[int, str] = field(default_factory=dict)
    instances: dict[int, _MigInstance] = field(default_factory=dict)
    memory_v2: bool = True
    #: Device nodes that this container has, by their names, if it has fewer than NVML has cards.
    nodes: frozenset[str] = frozenset()

    def handle(self, index: int) -> Any:
        """Of a card, or a MIG instance."""
        instance = self.instances.get(index)
        if instance is not None:
            return _mig_handle(self.nvml, self.handle(instance.parent), instance)
        handle = self.handles.get(index)
        if handle is None:
            try:
                handle = self.nvml.ask("nvmlDeviceGetHandleByIndex", index)
            except DriverError as error:
                if error.number != NO_PERMISSION:
                    raise
                if self.nodes:
                    raise _elsewhere(index) from None
                # Not one reading is refused but the whole card, to every user of this container.
                text = f"{error}: check that the container has its device node, and that this user may open it"
                raise DriverError(Trouble.FAILED, text, error.number) from None
            self.handles[index] = handle
        return handle

    def memory(self, handle: Any) -> tuple[int | None, int | None, int | None]:
        """Used and total bytes, and those of the driver where it does not count them as used. This call goes to
        the card itself: a card that does not answer it is in trouble."""
        try:
            if self.memory_v2:
                try:
                    info = self.nvml.ask("nvmlDeviceGetMemoryInfo", handle, _MEMORY_V2)
                    return int(info.used), int(info.total), int(info.reserved)
                except DriverError as error:
                    if error.number not in (FUNCTION_NOT_FOUND, VERSION_MISMATCH):
                        raise
                    self.memory_v2 = False
            info = self.nvml.ask("nvmlDeviceGetMemoryInfo", handle)
            return int(info.used), int(info.total), None
        except DriverError as error:
            # A card without memory of its own, say, which did answer.
            if error.number in (NOT_SUPPORTED, FUNCTION_NOT_FOUND, NO_PERMISSION):
                return None, None, None
            raise


class Nvidia(Backend):
    """NVML. It counts who opened it, so that a thread which waits for events may keep it open for itself."""

    kind = NVIDIA

    def __init__(self, dev: Path = Path("/dev")) -> None:
        """`dev` is where device nodes are."""
        self._dev = dev
        self._lock = threading.Lock()
        self._session: _Session | None = None

    def open(self, ask: AskEach = in_turn) -> None:
        with self._lock:
            if self._session is None:
                nvml = Nvml(load())
                from muster.probes.cards.nvidia.nvidia_gpm import Gpm  # of no use on a host without NVML

                try:
                    nvml.init()
                except DriverError as error:
                    # After an update the library that this process loaded is of no use any more.
                    if error.number != MISMATCH or not reload(nvml.module):
                        raise
                    nvml.init()
                self._session = _Session(nvml, Listener(nvml), Gpm(nvml))

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
            if session is not None:
                session.listener.close()
                session.gpm.close()
                session.nvml.give_back("nvmlShutdown")
                session.nvml.closed = True

    def version(self) -> str:
        return self._open().nvml.maybe("nvmlSystemGetDriverVersion") or ""

    def cards(self) -> list[Card]:
        session = self._open()
        count = session.nvml.ask("nvmlDeviceGetCount", of_driver=True)
        nodes = _nodes(self._dev)
        session.nodes = nodes if len(nodes) < count else frozenset()
        return [Card(index, NVIDIA) for index in range(count)]

    def describe(self, card: Card) -> Card:
        session = self._open()
        handle = session.handle(card.index)
        found = nvidia_card.describe(session.nvml, handle, card.index, session.memory(handle)[1])
        if session.nodes and found.node and os.path.basename(found.node) not in session.nodes:
            raise _elsewhere(card.index)
        session.buses[card.index] = found.bus_id
        failed: list[str] = []
        parts = _mig_instances(session.nvml, handle, found, failed.append) if found.mig else {}
        incomplete = found.incomplete or bool(failed)
        # Of an instance that was only not told, the place is still known.
        others = {index: it for index, it in session.instances.items() if incomplete or it.parent != card.index}
        session.instances = others | {index: instance for index, (instance, _) in parts.items()}
        instances = tuple(own for _, own in parts.values())
        return replace(found, peers=card.peers, instances=instances, incomplete=incomplete)

    def peers(self, indices: Collection[int]) -> Mapping[int, tuple[int, ...]]:
        session = self._open()
        handles = {index: session.handles[index] for index in sorted(indices) if index in session.handles}
        return nvidia_card.peers(session.nvml, handles, dict(session.buses))

    def read(self, index: int) -> Reading:
        session = self._open()
        handle = session.handle(index)
        util = session.nvml.maybe("nvmlDeviceGetUtilizationRates", handle)  # not with MIG
        used, total, reserved = session.memory(handle)
        power = within(session.nvml.maybe("nvmlDeviceGetPowerUsage", handle), POWER_MW)
        return Reading(
            util=None if util is None else within(float(util.gpu), PERCENT),
            mem_util=None if util is None else within(float(util.memory), PERCENT),
            mem_used=None if used is not None and total is not None and used > total else used,
            mem_total=total,
            power_w=None if power is None else power / 1000,
            mem_reserved=reserved,
        )

    def health(self, index: int) -> Health:
        session = self._open()
        handle = session.handle(index)
        instance = session.instances.get(index)
        if instance is None:
            # First, as a card that is lost refuses this, and is asked nothing more.
            facts = nvidia_health.health(session.nvml, handle)
            return replace(facts, activity=session.gpm.look(index, index, handle))
        # Of an instance it is its card that has a temperature, errors and links.
        number = session.nvml.maybe("nvmlDeviceGetGpuInstanceId", handle)
        if number is None:
            return Health()
        parent = session.handle(instance.parent)
        return Health(activity=session.gpm.look(index, instance.parent, parent, instance.uuid, number))

    def holders(self, index: int) -> list[Holder]:
        """The pids are those that NVML tells: of the caller's namespace, or of the host's with older drivers."""
        session = self._open()
        handle = session.handle(index)
        found: dict[int, Holder] = {}
        told = False  # by the list of those that compute: that nobody draws on the card says nothing about them
        for name, draws in _PROCESSES:
            processes = _processes(session.nvml, name, handle)
            told = told or (processes is not None and name == _COMPUTE)
            for process in processes or ():
                pid, memory, graphics = int(process.pid), process.usedGpuMemory, draws
                if (before := found.get(pid)) is not None:  # on more than one list, or in more than one MIG instance
                    graphics = graphics and before.graphics
                    memory = max((m for m in (memory, before.memory) if m is not None), default=None)
                found[pid] = Holder(pid, memory, graphics)
        if not told:
            raise trouble(NOT_SUPPORTED, "this card does not report processes")
        return list(found.values())

    def wait_events(self, timeout_s: float) -> list[CardEvent]:
        session = self._open()
        return session.listener.wait(timeout_s, dict(session.handles))

    def _open(self) -> _Session:
        session = self._session
        if session is None:
            raise trouble(UNINITIALIZED)
        return session


def _nodes(dev: Path) -> frozenset[str]:
    try:
        return frozenset(name for name in os.listdir(dev) if re.fullmatch(r"nvidia[0-9]{1,4}", name))
    except OSError:
        return frozenset()


def _elsewhere(index: int) -> DriverError:
    return DriverError(Trouble.ELSEWHERE, f"card {index} of the host was not given to this container", NO_PERMISSION)


def _processes(nvml: Nvml, name: str, handle: Any) -> list[Any] | None:
    """The list by its newest call that the library has; None where it has none. Raises DriverError."""
    for version in ("_v3", "_v2"):
        for attempt in range(_TRIES):
            try:
                return list(nvml.ask(name + version, handle))
            except DriverError as error:
                if error.number == FUNCTION_NOT_FOUND:
                    break
                if error.number in (NOT_SUPPORTED, NO_PERMISSION):
                    return None
                if error.number != INSUFFICIENT_SIZE or attempt == _TRIES - 1:
                    raise
    return None


def _mig_index(parent: int, number: int) -> int:
    """Of the instance `number` of a card."""
    return _FIRST_MIG + _MIG_PER_CARD * parent + number


def _mig_instances(nvml: Nvml, handle: Any, card: Card, failed: Failed) -> dict[int, tuple[_MigInstance, Card]]:
    """Those that the card has now, by index; `failed` is called where one may be missing. Raises DriverError where the
    card or the driver does not answer."""
    found: dict[int, tuple[_MigInstance, Card]] = {}
    most = nvml.maybe("nvmlDeviceGetMaxMigDeviceCount", handle, failed=failed) or 0
    for number in range(min(most, _MIG_PER_CARD)):
        part = nvml.maybe("nvmlDeviceGetMigDeviceHandleByIndex", handle, number, failed=failed)
        uuid = None if part is None else nvml.maybe("nvmlDeviceGetUUID", part, failed=failed)
        if not uuid:
            continue  # fewer than there may be, or one that this container was not given
        memory = nvml.maybe("nvmlDeviceGetMemoryInfo", part)
        own = replace(
            card,
            index=_mig_index(card.index, number),
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
        found[own.index] = (_MigInstance(card.index, number, uuid), own)
    return found


def _mig_handle(nvml: Nvml, parent: Any, instance: _MigInstance) -> Any:
    """NVML's handle of an instance, asked for anew each time: it is void once the instance was taken away. Raises
    DriverError, ABSENT where it was."""
    part = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", parent, instance.number)
    if nvml.ask("nvmlDeviceGetUUID", part) != instance.uuid:
        text = f"the MIG instance {instance.uuid} of card {instance.parent} was removed, its number was reused"
        raise DriverError(Trouble.ABSENT, text)
    return part
