"""One Ascend chip, asked through libdcmi.so."""

from collections.abc import Callable
from ctypes import byref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from muster.probes.cards.accelerator import Card, DriverError, HbmLife, Health, Holder, Reading, Trouble
from muster.probes.cards.ascend.ascend_network import Network
from muster.probes.cards.ascend.ascend_numbers import Seat, by_place
from muster.probes.cards.ascend.dcmi import ChipFault, Dcmi
from muster.probes.cards.ascend.dcmi_codes import FOR_GOOD, is_lacking
from muster.probes.cards.ascend.dcmi_layouts import (
    ChipInfo,
    DieId,
    EccInfo,
    HbmInfo,
    Label,
    PcieInfo,
    PortStatistics,
    UbStatus,
    die_text,
)
from muster.probes.cards.ascend.dcmi_layouts import words as line
from muster.probes.kernel import number_lists, pci

T = TypeVar("T")

#: Types of dcmi_get_device_utilization_rate by the names of Health.parts.
_PARTS = {"aicore": 2, "aicpu": 3, "ctrlcpu": 4, "hbm": 6, "hbm_bandwidth": 10, "vector": 12, "overall": 13}
#: Kinds of dies, in the order in which they serve as the card's id: VDIE, DDIE (Ascend 950), NDIE.
_DIES = (1, 2, 0)
#: Types of dcmi_get_device_frequency and dcmi_get_device_ecc_info.
_AICORE_CLOCK, _HBM = 7, 2
#: Readings that a check judges by themselves: without an answer it must not say that all is well. The field of Health
#: of each.
_JUDGED = {"health": "npu_health", "errors": "npu_errors", "ecc": "ecc_uncorrected", "boot": "npu_boot"}
#: What the driver writes in the place of a number that it does not have.
_INVALID = 0xFFFFFFFF
#: The one port that a card has.
_PORT = 0
#: Kinds of way between two cards that are a direct link of the fabric: HCCS, the other die, HCCS with switches, UB.
_DIRECT = frozenset({3, 6, 7, 8})
_MIB = 1 << 20
#: Ports of the bus of an Ascend 950: there is none; and up, with all or a part of its lanes.
_NO_PORT, _UP = 0, (1, 2)
_DEGREES = range(-100, 250)


class Chip:
    """Asks one chip. What it does not tell is None and, where that is for good, not asked for again."""

    def __init__(self, dcmi: Dcmi, index: int, seat: Seat, logical: int, *, sysfs: Path = pci.SYSFS) -> None:
        self.index = index
        self.seat = seat
        self.logical = logical
        self._dcmi = dcmi
        self._sysfs = sysfs
        #: What it does not tell for good, and the driver's answer where it would have it ("": it has no such thing).
        self._untold: dict[str, str] = {}
        self._errors: frozenset[int] | None = None
        self.bus_id = ""
        self._network = Network(index, partial(dcmi.ask_int, "network", seat))

    def describe(self, card: Card) -> Card:
        """`card` with all that the chip tells of itself. Raises DriverError where it tells nothing at all."""
        asking = _Asking(self._untold)
        chip = asking("chip", self._chip_info)
        hbm = asking("hbm", self._hbm)
        bus_id = self.bus_id = asking("pcie", self._pcie) or ""
        dies = (asking(f"die {kind}", partial(self._die, kind), minor=True) for kind in _DIES)
        die = next((text for text in dies if text), "")
        serial = asking("label", self._serial, minor=True) or ""
        brother = asking("brother", partial(self._dcmi.ask_int, "brother", self.seat), minor=True)
        # The library reads sysfs too, and cuts what it finds there: it comes second.
        cpus = pci.cpus(bus_id, self._sysfs)
        if not cpus:
            cpus = number_lists.processors(asking("affinity", self._affinity, minor=True) or "")
        asking.done()
        return replace(
            card,
            uuid=die or by_place(bus_id, self.seat),
            model=chip or "",
            memory_bytes=hbm.size * _MIB if hbm and hbm.size else None,
            bus_id=bus_id,
            numa_node=pci.numa_node(bus_id, self._sysfs),
            cpus=cpus,
            serial=serial,
            numbers=replace(card.numbers, brother=brother),
        )

    def linked(self, other: "Chip") -> bool:
        """Whether a direct link of the fabric leads to the other chip. Raises DriverError where that is not told."""
        return self._dcmi.ask_int("topology", (*self.seat, *other.seat)) in _DIRECT

    def read(self) -> Reading:
        """The quick readings: three or four calls."""
        asking = _Asking(self._untold)
        util = asking("aicore", partial(self._share, "aicore"))
        if not util:
            # AICore reads 0 while a profiler runs, and where the library took a value over 100 for none.
            util = asking("overall", partial(self._share, "overall")) or util
        hbm = asking("hbm", self._hbm)
        bandwidth = asking("hbm_bandwidth", partial(self._share, "hbm_bandwidth"))
        if bandwidth is None and hbm is not None:
            bandwidth = _percent(hbm.bandwidth)
        power = asking("power", self._power)
        asking.done()
        return Reading(
            util=util,
            mem_util=bandwidth,
            mem_used=hbm.used * _MIB if hbm and hbm.size and hbm.used <= hbm.size else None,
            mem_total=hbm.size * _MIB if hbm and hbm.size else None,
            power_w=power,
        )

    def health(self, *, tell_new_errors: bool) -> Health:
        """The slow ones. `tell_new_errors`: codes that are new since the last look are reported as faults."""
        asking = _Asking(self._untold)
        level = asking("health", partial(self._dcmi.health, self.seat))
        errors = asking("errors", partial(self._dcmi.errors, self.seat))
        hbm = asking("hbm", self._hbm)
        temperature = asking("temperature", partial(self._dcmi.ask_int, "temperature", self.seat))
        clock = asking("clock", partial(self._dcmi.ask_int, "frequency", self.seat, _AICORE_CLOCK))
        ecc = asking("ecc", self._ecc)
        hundredths = _positive(asking("voltage", partial(self._dcmi.ask_int, "voltage", self.seat), minor=True))
        boot = asking("boot", partial(self._dcmi.ask_int, "boot", self.seat))
        parts = {part: asking(part, partial(self._share, part)) for part in _PARTS}
        fabric = asking("port", self._port, minor=True)
        ports = asking("ub", self._ports, minor=True) or ()
        asking.done()
        network, link_up = self._network.look()  # last, as it may not return in time
        untold = {_JUDGED[what]: why for what, why in asking.unread.items() if what in _JUDGED}
        if network is None and self._network.unread:
            untold["npu_network"] = self._network.unread
        if errors is not None:
            self._note(frozenset(errors), tell_new_errors)
        if not self.bus_id:  # not described yet
            self.bus_id = asking("pcie", self._pcie) or ""
        link = pci.link(self.bus_id, self._sysfs)
        return Health(
            temp_c=_degrees(temperature),
            mem_temp_c=_degrees(hbm.temperature) if hbm and hbm.size else None,
            sm_clock_mhz=_positive(clock),
            mem_clock_mhz=_positive(hbm.clock) if hbm else None,
            fabric_bytes=fabric,
            pcie_width=link.width,
            pcie_width_max=link.width_max,
            pcie_gen=link.gen,
            pcie_gen_max=link.gen_max,
            ecc_on=bool(ecc.enabled) if ecc else None,
            ecc_corrected=ecc.single if ecc else None,
            ecc_uncorrected=ecc.double if ecc else None,
            dram_corrected=ecc.single if ecc else None,
            links=ports,
            npu_health=level,
            npu_errors=None if errors is None else tuple(errors),
            npu_network=network,
            npu_boot=boot,
            npu_link_up=link_up,
            npu_voltage=None if hundredths is None else hundredths / 100,
            npu_hbm_life=_life(ecc) if ecc else None,
            parts={part: share for part, share in parts.items() if share is not None},
            untold=untold,
        )

    def holders(self) -> list[Holder]:
        """Raises DriverError where the chip does not tell."""
        return [Holder(pid, memory) for pid, memory in self._dcmi.processes(self.seat)]

    def _note(self, errors: frozenset[int], tell: bool) -> None:
        # The codes of the first look are the chip's state, not new faults.
        if tell and self._errors is not None:
            for code in sorted(errors - self._errors):
                text = self._dcmi.error_text(self.seat, code)
                self._dcmi.reported.put(ChipFault(code, self.logical, text, stays=True))
        self._errors = errors

    def _share(self, part: str) -> float | None:
        return _percent(self._dcmi.ask_int("utilization", self.seat, _PARTS[part]))

    def _power(self) -> float | None:
        tenths = self._dcmi.ask_int("power", self.seat)
        return tenths / 10 if tenths >= 0 else None

    def _hbm(self) -> HbmInfo:
        hbm = HbmInfo()
        self._dcmi.ask("hbm", self.seat, byref(hbm))
        return hbm

    def _ecc(self) -> EccInfo:
        ecc = EccInfo()
        self._dcmi.ask("ecc", self.seat, _HBM, byref(ecc))
        if _INVALID in (ecc.single, ecc.double):
            raise DriverError(Trouble.FAILED, f"the driver counts {_INVALID:#x} errors")
        return ecc

    def _chip_info(self) -> str:
        info = ChipInfo()
        self._dcmi.ask("chip", self.seat, byref(info))
        maker, name = line(info.type), line(info.name)
        return name if name.startswith(maker) else f"{maker} {name}".strip()

    def _pcie(self) -> str:
        info = PcieInfo()
        self._dcmi.ask("pcie", self.seat, byref(info))
        # Chips on another bus than PCI have zeros.
        return pci.name(info.domain, info.bus, info.device, info.function) if info.bus or info.vendor else ""

    def _die(self, kind: int) -> str:
        die = DieId()
        self._dcmi.ask("die", self.seat, kind, byref(die))
        return die_text(die)

    def _serial(self) -> str:
        label = Label()
        self._dcmi.label(self.seat, label)
        serial = line(label.serial)
        return "" if serial == "NA" else serial

    def _affinity(self) -> str:
        return self._dcmi.affinity(self.seat)

    def _port(self) -> int:
        statistics = PortStatistics()
        self._dcmi.ask("port", self.seat, _PORT, byref(statistics))
        counters = statistics.counters
        return int(counters[PortStatistics.SENT_BYTES] + counters[PortStatistics.RECEIVED_BYTES])

    def _ports(self) -> tuple[bool, ...]:
        status = UbStatus()
        self._dcmi.ask("ub", self.seat, byref(status))
        return tuple(port in _UP for port in status.ports if port != _NO_PORT)


class _Asking:
    """One round of questions to a chip. A card that is lost, or is none, ends it; whatever else goes wrong is None for
    that question alone, unless every one goes so."""

    def __init__(self, untold: dict[str, str]) -> None:
        self._untold = untold
        #: What the chip has and did not tell, with the driver's answer.
        self.unread: dict[str, str] = {}
        self._failed: DriverError | None = None
        self._told = False

    def __call__(self, what: str, ask: Callable[[], T], *, minor: bool = False) -> T | None:
        """`minor`: a missing part of the chip (its port, its label) says nothing about the chip."""
        if (refused := self._untold.get(what)) is not None:
            self._note(what, refused)
            return None
        try:
            answer = ask()
        except DriverError as trouble:
            refused = "" if is_lacking(trouble) else str(trouble)
            if trouble.trouble is Trouble.NOT_TOLD:
                if trouble.number in FOR_GOOD:
                    self._untold[what] = refused
            elif trouble.trouble is Trouble.FAILED or minor:
                self._failed = self._failed or trouble
            else:
                raise
            self._note(what, refused)
            return None
        self._told = True
        return answer

    def _note(self, what: str, refused: str) -> None:
        if refused:
            self.unread[what] = refused

    def done(self) -> None:
        """Raises DriverError if the driver reported nothing, and not because the chip has no such readings."""
        if self._failed is not None and not self._told:
            raise self._failed


def _life(ecc: EccInfo) -> HbmLife:
    return HbmLife(ecc.total_single, ecc.total_double, ecc.isolated_single, ecc.isolated_double)


def _percent(value: int) -> float | None:
    return float(value) if 0 <= value <= 100 else None


def _positive(value: int | None) -> int | None:
    return value if value is not None and 0 < value != _INVALID else None


def _degrees(value: int | None) -> float | None:
    return float(value) if value is not None and value in _DEGREES else None
