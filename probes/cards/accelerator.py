"""What is known of accelerator cards: the one shape in which every vendor's backend answers.

A backend's methods block, some for ever where a driver is sick: only `muster.probes.cards.driver` calls them, from
threads that nobody depends on. A reading that a card, its driver or its mode (MIG) does not give is None, never 0.
"""

import enum
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Protocol

from muster.probes.calls.call_threads import AskEach, CallFailure, Late, in_turn
from muster.probes.kernel import known_names
from muster.probes.kernel.dataclass import dataclass

#: Kinds of cards.
NVIDIA, ASCEND, SLOT = known_names.NVIDIA, known_names.ASCEND, known_names.SLOT
#: DCMI's boot status of a chip that has started; its alarms, where 0 is none (a card with a minor one works); and its
#: network health where the network is reached, or was not asked for (mind-cluster's reading of it).
BOOTED = 16
ALARMS = {1: "minor", 2: "major", 3: "critical"}
NETWORK_GOOD = frozenset({0, 6})


class Trouble(enum.StrEnum):
    """Why there is no answer. All but NOT_TOLD and NO_LIBRARY say something against the card, or the driver."""

    NO_LIBRARY = "NO_LIBRARY"  # the driver's library is not installed, or not in this container
    NO_DRIVER = "NO_DRIVER"  # the kernel's module is not loaded
    MISMATCH = "MISMATCH"  # library and kernel module are of different versions
    LOST = "LOST"  # the card fell off the bus
    RESET_REQUIRED = "RESET_REQUIRED"
    ABSENT = "ABSENT"  # no card of this number
    HANG = "HANG"  # a call does not return
    ELSEWHERE = "ELSEWHERE"  # a card of the host that this container was not given
    NOT_TOLD = "NOT_TOLD"  # no permission, no memory, not supported: says nothing of the card
    FAILED = "FAILED"  # any other code


class DriverError(Exception):
    """Raised by a backend's methods. `number` is the driver's own return code (0: none), the text a sentence with it
    and with what helps; `of_driver` tells whether it is the whole driver's, and not one card's."""

    def __init__(self, trouble: Trouble, text: str, number: int = 0, *, of_driver: bool = False) -> None:
        super().__init__(text)
        self.trouble = trouble
        self.number = number
        self.of_driver = of_driver


def no_answer(outcome: CallFailure | Late, what: str) -> DriverError:
    """Why a call about `what` told nothing."""
    if isinstance(outcome, Late):
        if outcome.running_s is None:
            return DriverError(Trouble.NOT_TOLD, f"{what}: not queried: no thread could be started in time")
        return DriverError(Trouble.HANG, f"{what}: a call to its driver has not returned for {outcome.running_s:.0f} s")
    if isinstance(outcome.error, DriverError):
        return outcome.error
    return DriverError(Trouble.FAILED, f"{what}: {type(outcome.error).__name__}: {outcome.error}")


@dataclass(frozen=True, slots=True)
class Numbers:
    """What drivers and tools call a card besides its index; None: not told, or there is nothing of the kind.

    `physical` is N of its device node on the host (NVML's minor number), `logical` what CANN counts in this container,
    `board` and `chip` are npu-smi's NPU and chip, `brother` the board of the module whose network ports stand in for
    those of the chip's own (Ascend A3; -1: there is none), `gpu_instance` and `compute_instance` NVML's ids of a MIG
    instance.
    """

    physical: int | None = None
    logical: int | None = None
    board: int | None = None
    chip: int | None = None
    brother: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """The unchanging facts of a card.

    `index` is the number by which jobs lease it and muster shows it: NVML's, or the physical one of an Ascend chip;
    what the processes of a job are given instead: probes/cards/visible.py. `uuid` is the same over reboots and in
    another slot; `bus_id` is as sysfs spells it ("0000:9d:00.0"). `cpus` are those near it (empty: not told), `peers`
    the cards with a direct link of the vendor's fabric (NVLink, HCCS). `node` is its device node ("/dev/nvidia0"),
    empty where none is known. `mig`: it is cut into instances (MIG), which are cards of their own with it as their
    `parent`; no job gets the card itself.
    """

    index: int
    kind: str
    uuid: str = ""
    model: str = ""
    memory_bytes: int | None = None
    bus_id: str = ""
    numa_node: int | None = None
    cpus: tuple[int, ...] = ()
    peers: tuple[int, ...] = ()
    node: str = ""
    serial: str = ""
    mig: bool = False
    #: Degrees Celsius that the maker states; None: not told.
    slowdown_c: float | None = None
    mem_max_c: float | None = None
    numbers: Numbers = Numbers()
    parent: int | None = None
    instances: "tuple[Card, ...]" = ()
    #: CUDA's compute capability; None: not told, or no NVIDIA card.
    capability: tuple[int, int] | None = None
    #: A part of a card that a virtual machine was given (vGPU).
    guest: bool = False
    #: The driver failed to tell something of this, this time: it is to be asked again.
    incomplete: bool = False

    @property
    def has_to_do_with_mig(self) -> bool:
        """It is cut into instances, or is one."""
        return self.mig or self.parent is not None

    @property
    def hardware(self) -> str:
        """What the hardware says it is: the uuid, but "" where a backend that does not know one gives the place instead
        ("0000:01:00.0/1": the second chip there)."""
        return "" if self.uuid.partition("/")[0] == self.bus_id else self.uuid


@dataclass(frozen=True, slots=True)
class Reading:
    """Read often. `util` and `mem_util` in percent (share of the last period in which the card computed, or its memory
    was moved), memory in bytes, power in watts."""

    util: float | None = None
    mem_util: float | None = None
    mem_used: int | None = None
    mem_total: int | None = None
    power_w: float | None = None
    #: What the driver keeps for itself, neither used nor free; None from a driver that counts it as used.
    mem_reserved: int | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """What the parts of a card did, as means over the last `over_s` seconds: in percent of the time in which the
    graphics or compute engine, a multiprocessor (`sm`), the tensor cores, the memory's interface (`dram`) and the pipes
    for numbers of 64, 32 and 16 bits worked; `occupancy` in percent of the warps that fit; bytes a second over PCIe and
    over the fabric. A card may have its `util` at 100 % while its tensor cores are idle."""

    over_s: float
    graphics: float | None = None
    sm: float | None = None
    occupancy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    fp64: float | None = None
    fp32: float | None = None
    fp16: float | None = None
    pcie_tx: float | None = None
    pcie_rx: float | None = None
    fabric_tx: float | None = None
    fabric_rx: float | None = None


@dataclass(frozen=True, slots=True)
class Remapped:
    """Rows of memory that were replaced: counts, and whether one waits for a reset, or could not be replaced."""

    correctable: int
    uncorrectable: int
    pending: bool
    failure: bool


@dataclass(frozen=True, slots=True)
class LinkErrors:
    """What the fabric's links of a card counted, all together: packets with a wrong checksum, packets that were sent
    again, links that had to be trained anew, and (NVLink 5) that could not be."""

    crc: int = 0
    replay: int = 0
    recovery: int = 0
    recovery_failed: int = 0


@dataclass(frozen=True, slots=True)
class RetiredPages:
    """Pages of memory that cards before Ampere took out of use: for several corrected errors, for an uncorrected one;
    and whether some wait for the next reset."""

    corrected: int
    uncorrected: int
    pending: bool


@dataclass(frozen=True, slots=True)
class HbmLife:
    """What an Ascend chip counts of its HBM over its whole life: errors, and pages taken out of use for them."""

    single: int
    double: int
    single_pages: int
    double_pages: int


#: Fields of Health that say whether a card may be used at all.
_VITAL = ("npu_health", "recovery_action", "remapped", "ecc_uncorrected", "sram_uncorrected")


@dataclass(frozen=True, slots=True)
class Health:
    """Read rarely; raw facts, judged elsewhere. Counters are since the driver was loaded unless they are `aggregate`.

    Temperatures in degrees Celsius, clocks in MHz, `fabric_bytes` over all links and both directions, `energy_mj` in
    millijoules. `event_reasons` is NVML's bit mask of why the clocks are as they are.
    """

    power_limit_w: float | None = None
    temp_c: float | None = None
    mem_temp_c: float | None = None
    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    energy_mj: int | None = None
    fabric_bytes: int | None = None
    pcie_replay: int | None = None
    #: Link of the PCI bus: width now and at most, generation now and at most.
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    event_reasons: int | None = None
    persistence: bool | None = None
    ecc_on: bool | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    #: Of the on-chip memory alone, if the driver reports it.
    sram_corrected: int | None = None
    sram_uncorrected: int | None = None
    dram_corrected: int | None = None
    remapped: Remapped | None = None
    #: NVML's field 230: 0 none, 1 GPU reset, 2 reboot, 3 drain P2P, 4 drain and reset.
    recovery_action: int | None = None
    retired: RetiredPages | None = None
    #: Whether each link of the fabric is up; empty: none, or not told.
    links: tuple[bool, ...] = ()
    link_errors: LinkErrors | None = None
    #: The highest clock of the multiprocessors; and what an operator set for programs, and what the maker did.
    sm_clock_max_mhz: float | None = None
    app_clock_mhz: float | None = None
    app_clock_default_mhz: float | None = None
    #: NVML's GpuFabricInfo: state (3 completed), its status code, and health summary (2 unhealthy).
    fabric_state: int | None = None
    fabric_status: int | None = None
    fabric_health: int | None = None
    #: Ascend: health 0 to 3, error codes, network health (0 and 6 are good), boot status (16 finished), volts.
    npu_health: int | None = None
    #: ... None: not told.
    npu_errors: tuple[int, ...] | None = None
    npu_network: int | None = None
    npu_boot: int | None = None
    npu_link_up: bool | None = None
    npu_voltage: float | None = None
    npu_hbm_life: HbmLife | None = None
    #: None: the card does not tell (before Hopper), or was not looked at twice yet.
    activity: Activity | None = None
    #: Percent of the video encoders and decoders.
    encoder: float | None = None
    decoder: float | None = None
    #: Percent of each part by its name ("aicore", "vector", "aicpu", "ctrlcpu", "hbm_bandwidth", "overall").
    parts: Mapping[str, float] = field(default_factory=dict)
    #: A program was asked (npu-smi) that tells less than the library: what is missing here is unknown.
    partial: bool = False
    #: Fields above that the driver failed to tell this time, each with its words. Any other None: there is no such
    #: reading.
    untold: Mapping[str, str] = field(default_factory=dict)

    @property
    def unknown(self) -> str:
        """Why it is not known whether the card is well, though it answers; empty where it is."""
        return next((self.untold[name] for name in _VITAL if name in self.untold), "")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process on a card, by the pid that the driver tells, and its memory there in bytes (None: not told)."""

    pid: int
    memory: int | None = None
    graphics: bool = False


@dataclass(frozen=True, slots=True)
class CardEvent:
    """Something that the driver reported. `code` is an Xid (nvidia) or an error code (ascend); `index` None where the
    card is not known; `bus_id` as in Card. `over`: the card no longer has that code; `stays`: it is a state, of whose
    end the driver tells as well, and no single incident."""

    kind: str
    code: int
    index: int | None
    bus_id: str = ""
    text: str = ""
    over: bool = False
    stays: bool = False


class Backend(Protocol):
    """One vendor's driver. Every method blocks, may hang and may raise DriverError. Threads may call side by side."""

    #: NVIDIA, ASCEND or SLOT.
    kind: str

    def open(self, ask: AskEach = in_turn) -> None:
        """Loads the library and initializes it; again after `close`, or where it is open already, is allowed.

        What a single card must answer before `cards` can list it (its number, say) is asked with `ask`, so that a card
        that hangs is left out in time and hides no other. It is listed all the same, and its own calls hang, too.

        Raises DriverError with `of_driver`; NO_LIBRARY where there is none to load.
        """

    def close(self) -> None:
        """Gives the library back, so that a driver may be unloaded; never raises."""

    def version(self) -> str:
        """Version of the driver, "" where it does not tell."""

    def cards(self) -> list[Card]:
        """By index. Asks the driver alone, so that a card that hangs hides no other: little may be known of each."""

    def describe(self, card: Card) -> Card:
        """The identity of a card that `cards` listed, with its instances. It is the card's own answer, and
        may hang for it. Raises DriverError; ELSEWHERE for a card that is none of this container's."""
        return card

    def peers(self, indices: Collection[int]) -> Mapping[int, tuple[int, ...]]:
        """The direct links among these cards, which did answer; a card that is left out keeps its own `peers`."""
        return {}

    def read(self, index: int) -> Reading:
        """The quick readings."""

    def health(self, index: int) -> Health:
        """The slow ones."""

    def holders(self, index: int) -> list[Holder]:
        """Processes on the card."""

    def wait_events(self, timeout_s: float) -> list[CardEvent]:
        """What the driver reports in this time, as soon as there is something; after `timeout_s` nothing.

        Raises DriverError NOT_TOLD where it has no events to wait for.
        """
