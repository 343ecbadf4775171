"""One fake card, as a test holds it: each attribute is in the state file, and counts from the next call on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from tests.fakes import healthy
from tests.fakes import state as fake
from tests.fakes.faults import Faults
from tests.fakes.models import MODELS, Model
from tests.fakes.state import CONSTANTS

if TYPE_CHECKING:
    from tests.fakes.cards import FakeCards

#: NVML's codes of a card that fell off the bus, and of one that wants a reset.
LOST, RESET_REQUIRED = 15, 16
_FLAGS = (CONSTANTS["PROCESS_LIVES"], CONSTANTS["PROCESS_GRAPHICS"], CONSTANTS["PROCESS_UNTOLD"])
T = TypeVar("T")


class Process(NamedTuple):
    """On a card: `lives`: only as long as the process does; `graphics`: it draws; `untold`: the driver does not say how
    much memory it has; `instance`: the MIG instance that it is on (-1: none)."""

    pid: int
    bytes: int = 0
    lives: bool = False
    graphics: bool = False
    untold: bool = False
    instance: int = -1


class _Value(Generic[T]):
    """A member of the card's structure, times `scale` there."""

    def __init__(self, kind: Callable[[Any], T], member: str, scale: int = 1) -> None:
        self.kind: Callable[[Any], T] = kind
        self.member, self.scale = member, scale

    def __get__(self, card: "FakeCard", owner: type) -> T:
        value = getattr(card.raw, self.member)
        if isinstance(value, bytes):
            value = value.decode()
        return self.kind(value / self.scale if self.scale != 1 else value)

    def __set__(self, card: "FakeCard", value: T) -> None:
        if isinstance(value, str):
            room: int = getattr(type(card.raw), self.member).size
            if len(value.encode()) >= room:
                raise ValueError(f"{self.member}: {value!r} is longer than {room - 1} bytes")
            setattr(card.raw, self.member, value.encode())
        else:
            number: Any = value
            setattr(card.raw, self.member, round(number * self.scale))


class _Curve:
    """What follows a curve, or stands still."""

    def __init__(self, member: str) -> None:
        self.member = member

    def __get__(self, card: "FakeCard", owner: type) -> float:
        return fake.value_at(getattr(fake.moving(card.raw), self.member), fake.now_s())

    def __set__(self, card: "FakeCard", value: float) -> None:
        card.curve([], self.member, value)


class FakeCard:
    """One card. Bytes, watts, degrees Celsius, MHz and percent; -1: the card does not tell (where it may not)."""

    def __init__(self, cards: "FakeCards", place: int) -> None:
        self.cards = cards
        self.place = place
        self.raw: Any = cards.state.all.cards[place]
        self._faults = Faults(cards.state, self.raw)

    uuid = _Value(str, "uuid")
    model = _Value(str, "model")
    serial = _Value(str, "serial")
    bus_id = _Value(str, "bus_id")
    minor = _Value(int, "minor")
    numa_node = _Value(int, "numa_node")
    #: 1 on, 0 off, -1 the card has no such mode; how many instances it has where it is on.
    mig = _Value(int, "mig")
    mig_count = _Value(int, "mig_count")
    persistence = _Value(bool, "persistence")
    capability = _Value(int, "capability")
    link_crc = _Value(int, "link_crc")
    link_recoveries = _Value(int, "link_recoveries")
    retired_pages = _Value(int, "retired_pages")
    retired_pending = _Value(bool, "retired_pending")
    app_clock_mhz = _Value(int, "app_clock_mhz")
    virtualization = _Value(int, "virtualization")

    util = _Curve("util")
    mem_util = _Curve("mem_util")
    power_w = _Curve("power_w")
    temp_c = _Curve("temp_c")
    mem_total = _Value(int, "mem_total")
    #: Without that of the processes, and without what the driver keeps for itself (`mem_reserved`).
    mem_used = _Value(int, "mem_used")
    mem_reserved = _Value(int, "mem_reserved")
    power_limit_w = _Value(float, "power_limit_mw", 1000)
    power_max_w = _Value(float, "power_max_mw", 1000)
    mem_temp_c = _Value(int, "mem_temp_c")
    slowdown_c = _Value(int, "slowdown_c")
    mem_max_c = _Value(int, "mem_max_c")
    sm_clock_mhz = _Value(int, "sm_clock_mhz")
    mem_clock_mhz = _Value(int, "mem_clock_mhz")
    event_reasons = _Value(int, "event_reasons")
    pcie_gen = _Value(int, "pcie_gen")
    pcie_gen_max = _Value(int, "pcie_gen_max")
    pcie_width = _Value(int, "pcie_width")
    pcie_width_max = _Value(int, "pcie_width_max")
    pcie_replay = _Value(int, "pcie_replay")
    encoder = _Value(int, "encoder")
    decoder = _Value(int, "decoder")
    #: Whether it has GPM; the metrics: `gpm_says`.
    gpm = _Value(bool, "gpm")

    #: 1 on, 0 off, -1 the card has none.
    ecc_on = _Value(int, "ecc_on")
    sram_corrected = _Value(int, "sram_corrected")
    sram_uncorrected = _Value(int, "sram_uncorrected")
    dram_corrected = _Value(int, "dram_corrected")
    dram_uncorrected = _Value(int, "dram_uncorrected")
    #: Of earlier loads of the driver: in the aggregate counts alone.
    old_corrected = _Value(int, "old_corrected")
    old_uncorrected = _Value(int, "old_uncorrected")
    remapped_correctable = _Value(int, "remapped_correctable")
    remapped_uncorrectable = _Value(int, "remapped_uncorrectable")
    remapped_pending = _Value(bool, "remapped_pending")
    remapped_failure = _Value(bool, "remapped_failure")
    recovery_action = _Value(int, "recovery_action")
    link_version = _Value(int, "link_version")
    fabric_state = _Value(int, "fabric_state")
    fabric_status = _Value(int, "fabric_status")
    fabric_health = _Value(int, "fabric_health")
    fabric_mask = _Value(int, "fabric_mask")

    board = _Value(int, "board")
    chip = _Value(int, "chip")
    npu_health = _Value(int, "npu_health")
    npu_network = _Value(int, "npu_network")
    npu_boot = _Value(int, "npu_boot")
    brother = _Value(int, "brother")
    npu_link_up = _Value(bool, "npu_link_up")
    npu_profiled = _Value(bool, "npu_profiled")
    aicpu = _Value(int, "aicpu")
    ctrlcpu = _Value(int, "ctrlcpu")
    vector = _Value(int, "vector")
    #: -1: as `util`.
    overall = _Value(int, "overall")
    #: Bit n: the utilization type n is answered.
    util_types = _Value(int, "util_types")

    # --- readings that move ---

    def curve(self, points: Iterable[tuple[float, float]], of: str = "util", value: float = 0.0) -> None:
        """`of` ("util", "mem_util", "power_w", "temp_c") follows the points (seconds, value) from now on, in straight
        lines, and from the last one on again; with no points it is `value` from now on."""
        points = list(points)
        if len(points) > CONSTANTS["FAKE_POINTS"]:
            raise ValueError(f"{len(points)} points: a curve has at most {CONSTANTS['FAKE_POINTS']}")
        if [at for at, _ in points] != sorted(at for at, _ in points):
            raise ValueError(f"the points of a curve are in the order of their time: {points}")
        with self.cards.state.moving(self.raw) as held:
            now = fake.now_s()
            if of == "power_w":
                held.energy_mj, held.energy_since = fake.energy_mj(held, now), now
            curve = getattr(held, of)
            curve.count, curve.epoch, curve.value = len(points), now, value
            for i, point in enumerate(points):
                curve.points[i] = point

    @property
    def energy_mj(self) -> float:
        """The power summed up; setting it counts on from there."""
        return fake.energy_mj(fake.moving(self.raw), fake.now_s())

    @energy_mj.setter
    def energy_mj(self, value: float) -> None:
        with self.cards.state.moving(self.raw) as held:
            held.energy_mj, held.energy_since = value, fake.now_s()

    @property
    def fabric_bytes(self) -> float:
        """Of all links, in both directions; setting it counts on from there."""
        return fake.fabric_bytes(fake.moving(self.raw), fake.now_s())

    @fabric_bytes.setter
    def fabric_bytes(self, value: float) -> None:
        with self.cards.state.moving(self.raw) as held:
            held.fabric_bytes.base, held.fabric_bytes.since = value, fake.now_s()

    @property
    def fabric_rate(self) -> float:
        """Bytes a second by which `fabric_bytes` grows."""
        return float(fake.moving(self.raw).fabric_bytes.rate)

    @fabric_rate.setter
    def fabric_rate(self, rate: float) -> None:
        with self.cards.state.moving(self.raw) as held:
            growth, now = held.fabric_bytes, fake.now_s()
            growth.base, growth.since, growth.rate = fake.fabric_bytes(held, now), now, rate

    def gpm_says(self, values: Mapping[int, float]) -> None:
        """What GPM's metrics say from now on, by their numbers: percent, MiB a second; negative: not told."""
        for number, value in values.items():
            self.raw.gpm_values[number] = value

    # --- processes ---

    @property
    def processes(self) -> list[Process]:
        """Those that are on the card now. Set to tuples of Process' fields: (pid, bytes), (pid, bytes, lives) ..."""
        return [
            Process(
                process.pid,
                process.bytes,
                *(bool(process.flags & flag) for flag in _FLAGS),
            )._replace(instance=process.flags // CONSTANTS["PROCESS_INSTANCE"] - 1)
            for process in fake.processes(self.raw)
        ]

    @processes.setter
    def processes(self, wanted: Iterable[Sequence[Any]]) -> None:
        listed = [Process(*process) for process in wanted]
        if len(listed) > CONSTANTS["FAKE_PROCESSES"]:
            raise ValueError(f"{len(listed)} processes: a card has at most {CONSTANTS['FAKE_PROCESSES']}")
        with self.cards.state.moving(self.raw) as held:
            held.process_count = len(listed)
            for i, process in enumerate(listed):
                flags = sum(flag for flag, on in zip(_FLAGS, process[2:5], strict=True) if on)
                flags += CONSTANTS["PROCESS_INSTANCE"] * (process.instance + 1)
                held.processes[i] = (process.pid, flags, process.bytes)

    def hold(self, pid: int, size: int, *, lives: bool = True, graphics: bool = False, instance: int = -1) -> None:
        """Puts a process on the card, or on one of its MIG instances; again: with another size."""
        new = Process(pid, size, lives, graphics, False, instance)
        self.processes = [*(it for it in self.processes if it.pid != pid), new]

    def release(self, pid: int) -> None:
        """Takes a process off the card."""
        self.processes = [it for it in self.processes if it.pid != pid]

    # --- neighbours ---

    @property
    def cpus(self) -> tuple[int, ...]:
        """Near the card."""
        words = enumerate(self.raw.cpu_mask)
        return tuple(64 * word + bit for word, mask in words for bit in range(64) if mask >> bit & 1)

    @cpus.setter
    def cpus(self, cpus: Iterable[int]) -> None:
        words = [0] * CONSTANTS["FAKE_CPU_WORDS"]
        for cpu in cpus:
            words[cpu // 64] |= 1 << cpu % 64
        for i, word in enumerate(words):
            self.raw.cpu_mask[i] = word

    @property
    def links(self) -> tuple[int, ...]:
        """The other end of each link: a card's place, -1 none, 100 and more a switch. Set: all are up."""
        return tuple(self.raw.link_end[: self.raw.link_count])

    @links.setter
    def links(self, ends: Sequence[int]) -> None:
        if len(ends) > CONSTANTS["FAKE_LINKS"]:
            raise ValueError(f"{len(ends)} links: a card has at most {CONSTANTS['FAKE_LINKS']}")
        for i, end in enumerate(ends):
            self.raw.link_end[i] = end
        self.raw.link_up = (1 << len(ends)) - 1
        self.raw.link_count = len(ends)

    def link_down(self, link: int) -> None:
        """The link is there, and not up."""
        self.raw.link_up &= ~(1 << link) & 0xFFFFFFFF

    def link_up(self, link: int) -> None:
        """The link is up again."""
        self.raw.link_up |= 1 << link

    # --- trouble ---

    def lose(self, code: int = LOST) -> None:
        """It fell off the bus: whatever must go to the card fails. No Xid comes with it: see FakeCards.xid."""
        self.raw.lost = code
        self.cards.state.wake()

    def require_reset(self) -> None:
        """NVML's other code for a card that does not work."""
        self.lose(RESET_REQUIRED)

    def back(self) -> None:
        """It works again."""
        self.lose(0)

    def remove(self) -> None:
        """The driver does not list it any more; the numbers of those behind it fall by one."""
        self.raw.present = 0
        self.cards.state.wake()

    def insert(self) -> None:
        """It is listed again."""
        self.raw.present = 1
        self.cards.state.wake()

    def fail(self, function: str, code: int) -> None:
        """The function ("*": all) returns the code for this card, until `clear`. With "field:82" one of NVML's field
        values does."""
        self.cards.check_name(function)
        self._faults.set(function, code=code)

    def crash(self, function: str) -> None:
        """The function ends the process that calls it for this card by SIGSEGV, until `clear`."""
        self.fail(function, CONSTANTS["FAKE_CRASH"])

    def hang(self, function: str = "*") -> None:
        """Calls of the function ("*": all) for this card wait until `clear`, and then go on."""
        self.cards.check_name(function)
        self._faults.set(function, hang=True)

    def clear(self, function: str | None = None) -> None:
        """Ends what `fail` and `hang` set, of one function or of all."""
        self._faults.clear(function)

    def waits_in(self) -> list[str]:
        """Functions, as they were named to `hang`, in which calls wait now. One whose process was killed while it
        waited counts until `clear`."""
        return self._faults.waiting()

    @property
    def calls(self) -> int:
        """How many calls went to the card, of all processes."""
        return int(self.raw.calls)

    @property
    def errors(self) -> list[int]:
        """Ascend's error codes that are raised now."""
        return list(self.raw.errors[: self.raw.error_count])

    def error(self, code: int, severity: int = 2) -> None:
        """Raises an error code of Ascend's: it is listed from now on, and an event tells of it (severity 0 to 3)."""
        codes = [*(it for it in self.errors if it != code), code]
        if len(codes) > CONSTANTS["FAKE_CODES"]:
            raise ValueError(f"{len(codes)} error codes: a card has at most {CONSTANTS['FAKE_CODES']}")
        self._list_errors(codes)
        self.cards.event(self.place, 0, code, severity=severity, assertion=1)

    def recover(self, code: int, severity: int = 2) -> None:
        """The error code is no longer raised; an event tells that."""
        self._list_errors([it for it in self.errors if it != code])
        self.cards.event(self.place, 0, code, severity=severity, assertion=0)

    def _list_errors(self, codes: list[int]) -> None:
        self.raw.error_count = 0
        for i, code in enumerate(codes):
            self.raw.errors[i] = code
        self.raw.error_count = len(codes)

    def restore(self) -> None:
        """As it was made: healthy, idle, of no process, with no faults."""
        self.become(MODELS[self.model])
        self.cards.state.wake()

    def become(self, model: Model) -> None:
        """A healthy and idle card of this model; NUMA node and CPUs stay."""
        self._list_errors([])
        self._faults.clear(None)
        for name, value in healthy.values(self.place, model).items():
            setattr(self, name, value)
        self.raw.present, self.raw.lost = 1, 0
        self.raw.sm_clock_max_mhz, self.raw.mem_clock_max_mhz = model.sm_clock, model.mem_clock
        self.raw.shutdown_c, self.raw.gpu_max_c = 95, 87
        for i, word in enumerate((0xFA4E0000 + self.place, 0xCA4D, 0x19E5, 0x0910, self.place + 1)):
            self.raw.die[i] = word
        self.gpm_says(dict.fromkeys(range(CONSTANTS["FAKE_GPM"]), 0.0))
        self.links = healthy.links(self.place, len(self.cards), model)
        self.processes = []
        for moving, value in (("util", 0.0), ("mem_util", 0.0), ("power_w", model.idle), ("temp_c", 35.0)):
            self.curve([], moving, value)
        self.fabric_rate = self.fabric_bytes = self.energy_mj = 0
