"""The slow readings of an NVIDIA card."""

import ctypes
from typing import Any

from muster.probes.cards.accelerator import Health, LinkErrors, Remapped, RetiredPages
from muster.probes.cards.nvidia.nvidia_calls import COUNT, PERCENT, POWER_MW, Nvml, within
from muster.probes.cards.nvidia.nvidia_card import links

#: nvmlClockType_t, nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlMemoryLocation_t.
_SM, _MEM, _CORRECTED, _UNCORRECTED, _VOLATILE, _DRAM, _SRAM = 1, 2, 0, 1, 0, 2, 7
#: Of GetFieldValues: temperature of the memory, recovery action; KiB and bytes over NVLink, sent and received.
_MEMORY_TEMP, _RECOVERY, _DATA_TX, _DATA_RX, _BYTES_TX, _BYTES_RX = 82, 230, 138, 139, 202, 204
#: Of each NVLink before version 5: packets sent again, links trained anew, wrong checksums.
_REPLAY, _LINK_RECOVERY, _CRC = 161, 162, 163
#: ... of version 5: links trained anew, and links that could not be; symbol errors that were not corrected.
_RECOVERED_5, _UNRECOVERED_5, _EFFECTIVE_5 = 213, 214, 219
#: Pages taken out of use, for corrected and for uncorrected errors; whether some wait (cards before Ampere).
_RETIRED_SBE, _RETIRED_DBE, _RETIRED_PENDING = 29, 30, 31
#: Rows of memory that were replaced, for corrected and for uncorrected errors; whether one waits, whether one failed.
_ROWS_SBE, _ROWS_DBE, _ROWS_PENDING, _ROWS_FAILURE = 142, 143, 144, 145
#: The scope for "all links together".
_ALL_LINKS = 0xFFFFFFFF
_FIELDS = (
    (_MEMORY_TEMP, 0),
    (_RECOVERY, 0),
    (_DATA_TX, _ALL_LINKS),
    (_DATA_RX, _ALL_LINKS),
    (_BYTES_TX, _ALL_LINKS),
    (_BYTES_RX, _ALL_LINKS),
    (_RETIRED_SBE, 0),
    (_RETIRED_DBE, 0),
    (_RETIRED_PENDING, 0),
)
#: A fabric's health mask (nvml.h): where its parts begin, and which values mean a fault; 0 means that the driver does
#: not report this part. Of the configuration each value above 1 is a fault of its own.
_BANDWIDTH_AT, _ROUTE_AT, _CONFIGURATION_AT = 0, 4, 8
_PAIR, _CONFIGURATION, _TRUE, _FALSE, _CORRECT = 0x3, 0xF, 1, 2, 1
#: ... and its summaries.
_HEALTHY, _UNHEALTHY, _LIMITED = 1, 2, 3
#: What a card can have: degrees Celsius, MHz, lanes, generations of PCI Express.
_COLDEST, _HOTTEST, _FASTEST, _LANES, _GENERATIONS = -60, 200, 20_000, 64, 16
#: As many bytes as the API and the exporters can tell; all bits are no number, but NVML's word for "not told".
_MOST_BYTES = 0xFFFFFFFFFFFFFFFE
#: What the fields are in Health, where it matters that the driver failed to report one.
_NAMES = {
    _MEMORY_TEMP: "mem_temp_c",
    _RECOVERY: "recovery_action",
    **dict.fromkeys((_RETIRED_SBE, _RETIRED_DBE, _RETIRED_PENDING), "retired"),
}


class _HealthCalls:
    """One look at a card; notes which fields of Health a call that failed leaves untold."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.untold: dict[str, str] = {}

    def ask(self, told: str, name: str, *args: Any) -> Any:
        """As `Nvml.maybe`, about the card. `told`: the fields of Health that this call tells; another call may tell
        what one before it did not."""
        value = self.nvml.maybe(name, self.handle, *args, failed=lambda text: self.failed(told, text))
        if value is not None:
            for field in told.split():
                self.untold.pop(field, None)
        return value

    def number(self, told: str, most: float, name: str, *args: Any, least: float = 0) -> Any:
        """As `ask`, for a field that is a number. One that cannot be is not told."""
        return self.within(told, self.ask(told, name, *args), most, least)

    def within(self, told: str, value: Any, most: float, least: float = 0) -> Any:
        """The value, None for one that cannot be."""
        if value is not None and within(value, most, least) is None:
            self.failed(told, f"NVML says {value:g}")
            return None
        return value

    def fields(self, wanted: tuple[tuple[int, int], ...], told: str = "") -> dict[int, float | int]:
        """As `Nvml.fields`. `told`: the field of Health that all of these tell."""
        return self.nvml.fields(
            self.handle, wanted, lambda number, text: self.failed(told or _NAMES.get(number, ""), text)
        )

    def failed(self, told: str, text: str) -> None:
        """Notes the words of a call that failed."""
        self.untold.update(dict.fromkeys(told.split(), text))


def health(nvml: Nvml, handle: Any) -> Health:
    """Raises DriverError where the card is lost or must be reset, or if the driver was unloaded."""
    look = _HealthCalls(nvml, handle)
    ask, number = look.ask, look.number
    fields = look.fields(_FIELDS)
    limit = number("power_limit_w", POWER_MW, "nvmlDeviceGetEnforcedPowerLimit")
    ecc = ask("ecc_on", "nvmlDeviceGetEccMode")
    persistence = ask("persistence", "nvmlDeviceGetPersistenceMode")
    corrected, uncorrected = _sram(look)
    state, status, summary = _fabric(look)
    recovery = fields.get(_RECOVERY)
    up = tuple(links(nvml, handle, lambda text: look.failed("links link_errors", text)))
    memory_temp = look.within("mem_temp_c", fields.get(_MEMORY_TEMP), _HOTTEST, _COLDEST)
    return Health(
        power_limit_w=None if limit is None else limit / 1000,
        temp_c=_temperature(look),
        mem_temp_c=float(memory_temp) if memory_temp else None,  # 0: there is no sensor
        sm_clock_mhz=_number(number("sm_clock_mhz", _FASTEST, "nvmlDeviceGetClockInfo", _SM)),
        mem_clock_mhz=_number(number("mem_clock_mhz", _FASTEST, "nvmlDeviceGetClockInfo", _MEM)),
        encoder=within(_first(ask("encoder", "nvmlDeviceGetEncoderUtilization")), PERCENT),
        decoder=within(_first(ask("decoder", "nvmlDeviceGetDecoderUtilization")), PERCENT),
        energy_mj=number("energy_mj", COUNT, "nvmlDeviceGetTotalEnergyConsumption"),
        fabric_bytes=_fabric_bytes(look, fields),
        pcie_replay=ask("pcie_replay", "nvmlDeviceGetPcieReplayCounter"),
        pcie_width=number("pcie_width", _LANES, "nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_width_max=number("pcie_width_max", _LANES, "nvmlDeviceGetMaxPcieLinkWidth"),
        pcie_gen=number("pcie_gen", _GENERATIONS, "nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_gen_max=number("pcie_gen_max", _GENERATIONS, "nvmlDeviceGetMaxPcieLinkGeneration"),
        event_reasons=_event_reasons(look),
        persistence=None if persistence is None else bool(persistence),
        ecc_on=None if ecc is None else bool(ecc[0]),
        ecc_corrected=number("ecc_corrected", COUNT, "nvmlDeviceGetTotalEccErrors", _CORRECTED, _VOLATILE),
        ecc_uncorrected=number("ecc_uncorrected", COUNT, "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
        sram_corrected=corrected,
        sram_uncorrected=uncorrected,
        dram_corrected=number("dram_corrected", COUNT, "nvmlDeviceGetMemoryErrorCounter", _CORRECTED, _VOLATILE, _DRAM),
        remapped=_remapped(look),
        recovery_action=None if recovery is None else int(recovery),
        retired=_retired(fields),
        links=() if "links" in look.untold else up,
        link_errors=None if "links" in look.untold else _link_errors(look, len(up)),
        sm_clock_max_mhz=_number(number("sm_clock_max_mhz", _FASTEST, "nvmlDeviceGetMaxClockInfo", _SM)),
        app_clock_mhz=_number(number("app_clock_mhz", _FASTEST, "nvmlDeviceGetApplicationsClock", _SM)),
        app_clock_default_mhz=_number(
            number("app_clock_default_mhz", _FASTEST, "nvmlDeviceGetDefaultApplicationsClock", _SM)
        ),
        fabric_state=state,
        fabric_status=status,
        fabric_health=summary,
        untold=look.untold,
    )


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)


def _first(told: Any) -> float | None:
    """Percent of [percent, period]."""
    return None if told is None else float(told[0])


def _temperature(look: _HealthCalls) -> float | None:
    value = look.ask("temp_c", "nvmlDeviceGetTemperatureV", 0)
    if value is None:  # older than driver 560; the call below is to go with CUDA 14
        value = look.ask("temp_c", "nvmlDeviceGetTemperature", 0)
    return _number(look.within("temp_c", value, _HOTTEST, _COLDEST))


def _event_reasons(look: _HealthCalls) -> int | None:
    value = look.ask("event_reasons", "nvmlDeviceGetCurrentClocksEventReasons")
    if value is None:  # its name before driver 535
        value = look.ask("event_reasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return None if value is None else int(value)


def _fabric_bytes(look: _HealthCalls, fields: dict[int, float | int]) -> int | None:
    found = None
    if _DATA_TX in fields and _DATA_RX in fields:
        found = int(fields[_DATA_TX] + fields[_DATA_RX]) * 1024
    elif _BYTES_TX in fields and _BYTES_RX in fields:
        found = int(fields[_BYTES_TX] + fields[_BYTES_RX])
    return None if look.within("fabric_bytes", found, _MOST_BYTES) is None else found


def _retired(fields: dict[int, float | int]) -> RetiredPages | None:
    if _RETIRED_SBE not in fields or _RETIRED_DBE not in fields:
        return None
    pending = bool(fields.get(_RETIRED_PENDING, 0))
    return RetiredPages(int(fields[_RETIRED_SBE]), int(fields[_RETIRED_DBE]), pending)


def _link_errors(look: _HealthCalls, links: int) -> LinkErrors | None:
    """Of all links together; a card of version 5 refuses the fields of the older ones, and the other way round. None
    also if one of them is untold: the sum would fall, and grow again, without an error."""
    if not links:
        return None
    each = tuple((field, link) for field in (_REPLAY, _LINK_RECOVERY, _CRC) for link in range(links))
    found = look.fields(each, "link_errors")
    if found and "link_errors" not in look.untold:
        crc, replay, recovery = (int(found.get(field, 0)) for field in (_CRC, _REPLAY, _LINK_RECOVERY))
        return LinkErrors(crc, replay, recovery)
    newer = tuple((field, _ALL_LINKS) for field in (_RECOVERED_5, _UNRECOVERED_5, _EFFECTIVE_5))
    found = {} if found else look.fields(newer, "link_errors")
    if not found or "link_errors" in look.untold:
        return None
    crc, recovery, failed = (int(found.get(field, 0)) for field in (_EFFECTIVE_5, _RECOVERED_5, _UNRECOVERED_5))
    return LinkErrors(crc, 0, recovery, failed)


def _remapped(look: _HealthCalls) -> Remapped | None:
    told = look.ask("remapped", "nvmlDeviceGetRemappedRows")
    if told is not None:
        return Remapped(int(told[0]), int(told[1]), bool(told[2]), bool(told[3]))
    if "remapped" in look.untold:
        return None
    # The call does not serve a card with MIG instances (nvml.h).
    wanted = (_ROWS_SBE, _ROWS_DBE, _ROWS_PENDING, _ROWS_FAILURE)
    rows = look.fields(tuple((number, 0) for number in wanted), "remapped")
    if _ROWS_PENDING not in rows or _ROWS_FAILURE not in rows:
        return None
    corrected, uncorrected, pending, failure = (int(rows.get(number, 0)) for number in wanted)
    return Remapped(corrected, uncorrected, bool(pending), bool(failure))


def _sram(look: _HealthCalls) -> tuple[int | None, int | None]:
    """Corrected and uncorrected errors of the memory on the chip."""
    layout = getattr(look.nvml.module, "c_nvmlEccSramErrorStatus_v1_t", None)
    if layout is not None:
        status, both = layout(), "sram_corrected sram_uncorrected"
        if look.ask(both, "nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status)) is not None:
            uncorrected = int(status.volatileUncParity + status.volatileUncSecDed)
            return (
                look.within("sram_corrected", int(status.volatileCor), COUNT),
                look.within("sram_uncorrected", uncorrected, COUNT),
            )
    return (
        look.number("sram_corrected", COUNT, "nvmlDeviceGetMemoryErrorCounter", _CORRECTED, _VOLATILE, _SRAM),
        look.number("sram_uncorrected", COUNT, "nvmlDeviceGetMemoryErrorCounter", _UNCORRECTED, _VOLATILE, _SRAM),
    )


def _fabric(look: _HealthCalls) -> tuple[int | None, int | None, int | None]:
    """State, status and health of a fabric that a manager sets up (NVSwitch); Nones where the card is on none."""
    for name in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        layout = getattr(look.nvml.module, name, None)
        if layout is None:
            continue
        info = layout()
        if look.ask("fabric_state", "nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info)) is None:
            continue
        if not info.state:
            break
        summary = int(getattr(info, "healthSummary", 0)) or _summary(int(info.healthMask))
        return int(info.state), int(info.status), summary
    return None, None, None


def _summary(mask: int) -> int | None:
    """The summary of a health mask, for a driver that gives none; None where the mask says nothing."""
    if mask >> _ROUTE_AT & _PAIR == _TRUE or mask >> _CONFIGURATION_AT & _CONFIGURATION > _CORRECT:
        return _UNHEALTHY
    return {_TRUE: _LIMITED, _FALSE: _HEALTHY}.get(mask >> _BANDWIDTH_AT & _PAIR)
