"""The slow readings of an NVIDIA card."""

import ctypes
from typing import Any

from muster.probes.cards.accelerator import Health, LinkErrors, Remapped, RetiredPages
from muster.probes.cards.nvidia.nvidia_calls import Nvml
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
#: Bits 0 and 1 of a fabric's health mask: whether it runs with degraded bandwidth; and the summaries (nvml.h).
_BANDWIDTH, _DEGRADED, _FULL = 0x3, 1, 2
_HEALTHY, _LIMITED = 1, 3


def health(nvml: Nvml, handle: Any) -> Health:
    """Raises DriverError where the card is lost or must be reset, or if the driver was unloaded."""
    fields = nvml.fields(handle, _FIELDS)
    limit = nvml.maybe("nvmlDeviceGetEnforcedPowerLimit", handle)
    ecc = nvml.maybe("nvmlDeviceGetEccMode", handle)
    persistence = nvml.maybe("nvmlDeviceGetPersistenceMode", handle)
    corrected, uncorrected = _sram(nvml, handle)
    state, status, summary = _fabric(nvml, handle)
    recovery = fields.get(_RECOVERY)
    up = tuple(links(nvml, handle))
    memory_temp = fields.get(_MEMORY_TEMP)
    return Health(
        power_limit_w=None if limit is None else limit / 1000,
        temp_c=_temperature(nvml, handle),
        mem_temp_c=float(memory_temp) if memory_temp else None,  # 0: there is no sensor
        sm_clock_mhz=_number(nvml.maybe("nvmlDeviceGetClockInfo", handle, _SM)),
        mem_clock_mhz=_number(nvml.maybe("nvmlDeviceGetClockInfo", handle, _MEM)),
        encoder=_first(nvml.maybe("nvmlDeviceGetEncoderUtilization", handle)),
        decoder=_first(nvml.maybe("nvmlDeviceGetDecoderUtilization", handle)),
        energy_mj=nvml.maybe("nvmlDeviceGetTotalEnergyConsumption", handle),
        fabric_bytes=_fabric_bytes(fields),
        pcie_replay=nvml.maybe("nvmlDeviceGetPcieReplayCounter", handle),
        pcie_width=nvml.maybe("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_width_max=nvml.maybe("nvmlDeviceGetMaxPcieLinkWidth", handle),
        pcie_gen=nvml.maybe("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_gen_max=nvml.maybe("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        event_reasons=_event_reasons(nvml, handle),
        persistence=None if persistence is None else bool(persistence),
        ecc_on=None if ecc is None else bool(ecc[0]),
        ecc_corrected=nvml.maybe("nvmlDeviceGetTotalEccErrors", handle, _CORRECTED, _VOLATILE),
        ecc_uncorrected=nvml.maybe("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
        sram_corrected=corrected,
        sram_uncorrected=uncorrected,
        dram_corrected=nvml.maybe("nvmlDeviceGetMemoryErrorCounter", handle, _CORRECTED, _VOLATILE, _DRAM),
        remapped=_remapped(nvml, handle),
        recovery_action=None if recovery is None else int(recovery),
        retired=_retired(fields),
        links=up,
        link_errors=_link_errors(nvml, handle, len(up)),
        sm_clock_max_mhz=_number(nvml.maybe("nvmlDeviceGetMaxClockInfo", handle, _SM)),
        app_clock_mhz=_number(nvml.maybe("nvmlDeviceGetApplicationsClock", handle, _SM)),
        app_clock_default_mhz=_number(nvml.maybe("nvmlDeviceGetDefaultApplicationsClock", handle, _SM)),
        fabric_state=state,
        fabric_status=status,
        fabric_health=summary,
    )


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)


def _first(told: Any) -> float | None:
    """Percent of [percent, period]."""
    return None if told is None else float(told[0])


def _temperature(nvml: Nvml, handle: Any) -> float | None:
    value = nvml.maybe("nvmlDeviceGetTemperatureV", handle, 0)
    if value is None:  # older than driver 560; the call below is to go with CUDA 14
        value = nvml.maybe("nvmlDeviceGetTemperature", handle, 0)
    return _number(value)


def _event_reasons(nvml: Nvml, handle: Any) -> int | None:
    value = nvml.maybe("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if value is None:  # its name before driver 535
        value = nvml.maybe("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return None if value is None else int(value)


def _fabric_bytes(fields: dict[int, float | int]) -> int | None:
    if _DATA_TX in fields and _DATA_RX in fields:
        return int(fields[_DATA_TX] + fields[_DATA_RX]) * 1024
    if _BYTES_TX in fields and _BYTES_RX in fields:
        return int(fields[_BYTES_TX] + fields[_BYTES_RX])
    return None


def _retired(fields: dict[int, float | int]) -> RetiredPages | None:
    if _RETIRED_SBE not in fields or _RETIRED_DBE not in fields:
        return None
    pending = bool(fields.get(_RETIRED_PENDING, 0))
    return RetiredPages(int(fields[_RETIRED_SBE]), int(fields[_RETIRED_DBE]), pending)


def _link_errors(nvml: Nvml, handle: Any, links: int) -> LinkErrors | None:
    """Of all links together; a card of version 5 refuses the fields of the older ones, and the other way round."""
    if not links:
        return None
    each = tuple((field, link) for field in (_REPLAY, _LINK_RECOVERY, _CRC) for link in range(links))
    found = nvml.fields(handle, each)
    if found:
        crc, replay, recovery = (int(found.get(field, 0)) for field in (_CRC, _REPLAY, _LINK_RECOVERY))
        return LinkErrors(crc, replay, recovery)
    found = nvml.fields(handle, tuple((field, _ALL_LINKS) for field in (_RECOVERED_5, _UNRECOVERED_5, _EFFECTIVE_5)))
    if not found:
        return None
    crc, recovery, failed = (int(found.get(field, 0)) for field in (_EFFECTIVE_5, _RECOVERED_5, _UNRECOVERED_5))
    return LinkErrors(crc, 0, recovery, failed)


def _remapped(nvml: Nvml, handle: Any) -> Remapped | None:
    told = nvml.maybe("nvmlDeviceGetRemappedRows", handle)
    return None if told is None else Remapped(int(told[0]), int(told[1]), bool(told[2]), bool(told[3]))


def _sram(nvml: Nvml, handle: Any) -> tuple[int | None, int | None]:
    """Corrected and uncorrected errors of the memory on the chip."""
    layout = getattr(nvml.module, "c_nvmlEccSramErrorStatus_v1_t", None)
    if layout is not None:
        status = layout()
        if nvml.maybe("nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(status)) is not None:
            return int(status.volatileCor), int(status.volatileUncParity + status.volatileUncSecDed)
    return (
        nvml.maybe("nvmlDeviceGetMemoryErrorCounter", handle, _CORRECTED, _VOLATILE, _SRAM),
        nvml.maybe("nvmlDeviceGetMemoryErrorCounter", handle, _UNCORRECTED, _VOLATILE, _SRAM),
    )


def _fabric(nvml: Nvml, handle: Any) -> tuple[int | None, int | None, int | None]:
    """State, status and health of a fabric that a manager sets up (NVSwitch); Nones where the card is on none."""
    for name in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        layout = getattr(nvml.module, name, None)
        if layout is None:
            continue
        info = layout()
        if nvml.maybe("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None:
            continue
        if not info.state:
            break
        if hasattr(info, "healthSummary"):
            return int(info.state), int(info.status), int(info.healthSummary) or None
        bandwidth = info.healthMask & _BANDWIDTH
        return int(info.state), int(info.status), {_DEGRADED: _LIMITED, _FULL: _HEALTHY}.get(bandwidth)
    return None, None, None
