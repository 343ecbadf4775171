"""The cards' readings under the names of dcgm-exporter and npu-exporter, for existing dashboards.

Names, units and labels are as in dcgm-exporter's default-counters.csv of May 2026 and in npu-exporter of mind-cluster
26.1. docs/reference/metrics.md lists what is left out, and why. A label that would always be empty is omitted, which is
the same to Prometheus.
"""

from collections.abc import Mapping

from muster.agent.config.schema import TelemetryTable
from muster.agent.exposition import Catalogue, Metric, Page
from muster.agent.metrics.card_metrics import fresh, scaled
from muster.probes.cards.accelerator import ASCEND, NETWORK_GOOD, NVIDIA, Health, Reading
from muster.probes.cards.driver import View

MIB = 1 << 20

DCGM = Catalogue()
_GPU = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname", "DCGM_FI_DRIVER_VERSION")
SM_CLOCK = DCGM.gauge("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", *_GPU)
MEM_CLOCK = DCGM.gauge("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", *_GPU)
MEM_TEMP = DCGM.gauge("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", *_GPU)
GPU_TEMP = DCGM.gauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", *_GPU)
POWER = DCGM.gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", *_GPU)
ENERGY = DCGM.counter("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy since the driver's load (in mJ).", *_GPU)
REPLAYS = DCGM.counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe packets that were sent again.", *_GPU)
GPU_UTIL = DCGM.gauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", *_GPU)
MEM_COPY = DCGM.gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", *_GPU)
XID = DCGM.gauge("DCGM_FI_DEV_XID_ERRORS", "The last Xid since the daemon's start; 0: none.", *_GPU, "err_code")
ENC_UTIL = DCGM.gauge("DCGM_FI_DEV_ENC_UTIL", "Utilization of the video encoders (in %).", *_GPU)
DEC_UTIL = DCGM.gauge("DCGM_FI_DEV_DEC_UTIL", "Utilization of the video decoders (in %).", *_GPU)
FB_FREE = DCGM.gauge("DCGM_FI_DEV_FB_FREE", "Memory of the card that is free (in MiB).", *_GPU)
FB_USED = DCGM.gauge("DCGM_FI_DEV_FB_USED", "Memory of the card that is in use (in MiB).", *_GPU)
FB_RESERVED = DCGM.gauge("DCGM_FI_DEV_FB_RESERVED", "Memory of the card that the driver keeps (in MiB).", *_GPU)
NVLINK = DCGM.counter(
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Data over all NVLinks, both ways, since the driver's load (in KiB).", *_GPU
)
SBE = DCGM.counter("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Corrected memory errors since the driver's load.", *_GPU)
DBE = DCGM.counter("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Uncorrected memory errors since the driver's load.", *_GPU)
UE_ROWS = DCGM.counter("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows replaced for uncorrectable errors.", *_GPU)
CE_ROWS = DCGM.counter("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Rows replaced for correctable errors.", *_GPU)
ROW_FAILURE = DCGM.gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1 where a row could not be replaced.", *_GPU)

#: Of GPM, by the member of Activity; percent become shares of 1, and bytes a second stay.
PROF_SHARES = {
    part: DCGM.gauge(f"DCGM_FI_PROF_{name}", f"{text} (a share of 1).", *_GPU)
    for part, name, text in (
        ("graphics", "GR_ENGINE_ACTIVE", "Time in which the graphics or compute engine worked"),
        ("sm", "SM_ACTIVE", "Time in which a multiprocessor had a warp, as a mean of all"),
        ("occupancy", "SM_OCCUPANCY", "Warps on the multiprocessors, of those that fit"),
        ("tensor", "PIPE_TENSOR_ACTIVE", "Time in which the tensor cores worked"),
        ("dram", "DRAM_ACTIVE", "Time in which the memory's interface moved data"),
        ("fp64", "PIPE_FP64_ACTIVE", "Time in which the pipe for 64 bits worked"),
        ("fp32", "PIPE_FP32_ACTIVE", "Time in which the pipe for 32 bits worked"),
        ("fp16", "PIPE_FP16_ACTIVE", "Time in which the pipe for 16 bits worked"),
    )
}
PROF_RATES = {
    part: DCGM.gauge(f"DCGM_FI_PROF_{name}", f"Data {text} (in bytes per second).", *_GPU)
    for part, name, text in (
        ("pcie_tx", "PCIE_TX_BYTES", "sent over PCIe"),
        ("pcie_rx", "PCIE_RX_BYTES", "received over PCIe"),
        ("fabric_tx", "NVLINK_TX_BYTES", "sent over NVLink"),
        ("fabric_rx", "NVLINK_RX_BYTES", "received over NVLink"),
    )
}

NPU = Catalogue()
_CHIP = ("id", "model_name", "vdie_id", "pcie_bus_info")
NPUS = NPU.gauge("machine_npu_nums", "Chips of the machine.")
NPU_BOARDS = NPU.gauge("machine_card_nums", "Boards of the machine, each with one chip or more.")
NPUS_HEALTHY = NPU.gauge("machine_healthy_npu_nums", "Chips of the machine that report that they are healthy.")
NPUS_UNHEALTHY = NPU.gauge("machine_unhealthy_npu_nums", "Chips of the machine that report that they are not healthy.")
NPUS_UNKNOWN = NPU.gauge("machine_unknown_npu_nums", "Chips of the machine whose health is not known.")
NPU_NAME = NPU.gauge("npu_chip_info_name", "Always 1.", "id", "name", "vdie_id", "pcie_bus_info")
NPU_UTIL = NPU.gauge("npu_chip_info_utilization", "Utilization of the AI cores (in %).", *_CHIP)
NPU_VECTOR = NPU.gauge("npu_chip_info_vector_utilization", "Utilization of the vector cores (in %).", *_CHIP)
NPU_OVERALL = NPU.gauge("npu_chip_info_overall_utilization", "Utilization of the whole chip (in %).", *_CHIP)
NPU_TEMP = NPU.gauge("npu_chip_info_temperature", "Temperature of the chip (in C).", *_CHIP)
NPU_POWER = NPU.gauge("npu_chip_info_power", "Power of the chip (in W).", *_CHIP)
NPU_VOLTAGE = NPU.gauge("npu_chip_info_voltage", "Voltage of the chip (in V).", *_CHIP)
NPU_CLOCK = NPU.gauge("npu_chip_info_aicore_current_freq", "Clock of the AI cores (in MHz).", *_CHIP)
NPU_HEALTH = NPU.gauge("npu_chip_info_health_status", "1 healthy, 0 not, -1 not known.", *_CHIP)
NPU_NETWORK = NPU.gauge("npu_chip_info_network_status", "1 the chip's network is healthy, 0 not, -1 not known.", *_CHIP)
NPU_LINK = NPU.gauge("npu_chip_info_link_status", "1 the chip's link is up, 0 down, -1 not known.", *_CHIP)
NPU_PROCESSES = NPU.gauge("npu_chip_info_process_info_num", "Processes on the chip.", *_CHIP)
HBM_USED = NPU.gauge("npu_chip_info_hbm_used_memory", "HBM in use (in MB of 2^20 bytes).", *_CHIP)
HBM_TOTAL = NPU.gauge("npu_chip_info_hbm_total_memory", "HBM of the chip (in MB of 2^20 bytes).", *_CHIP)
HBM_UTIL = NPU.gauge("npu_chip_info_hbm_utilization", "Share of the HBM in use (in %).", *_CHIP)
HBM_TEMP = NPU.gauge("npu_chip_info_hbm_temperature", "Temperature of the HBM (in C).", *_CHIP)
HBM_BANDWIDTH = NPU.gauge("npu_chip_info_hbm_bandwidth_utilization", "Use of the HBM's bandwidth (in %).", *_CHIP)
HBM_ECC_ON = NPU.gauge("npu_chip_info_hbm_ecc_enable_flag", "1 where errors of the HBM are looked for.", *_CHIP)
HBM_SINGLE = NPU.gauge("npu_chip_info_hbm_ecc_single_bit_error_cnt", "Single-bit errors of the HBM.", *_CHIP)
HBM_DOUBLE = NPU.gauge("npu_chip_info_hbm_ecc_double_bit_error_cnt", "Double-bit errors of the HBM.", *_CHIP)
HBM_LIFE_SINGLE = NPU.gauge(
    "npu_chip_info_hbm_ecc_total_single_bit_error_cnt", "Single-bit errors of the HBM in the chip's life.", *_CHIP
)
HBM_LIFE_DOUBLE = NPU.gauge(
    "npu_chip_info_hbm_ecc_total_double_bit_error_cnt", "Double-bit errors of the HBM in the chip's life.", *_CHIP
)
HBM_SINGLE_PAGES = NPU.gauge(
    "npu_chip_info_hbm_ecc_single_bit_isolated_pages_cnt", "Pages out of use for single-bit errors.", *_CHIP
)
HBM_DOUBLE_PAGES = NPU.gauge(
    "npu_chip_info_hbm_ecc_double_bit_isolated_pages_cnt", "Pages out of use for double-bit errors.", *_CHIP
)
#: Error codes of a chip; the first has no number in its name.
MAX_ERRORS = 128
ERRORS = tuple(
    NPU.gauge(f"npu_chip_info_error_code{f'_{i}' if i else ''}", "An error code that the chip has now.", *_CHIP)
    for i in range(MAX_ERRORS)
)


def dcgm(
    page: Page, view: View, periods: TelemetryTable, last_xid: Mapping[str, int], hostname: str, now: float
) -> None:
    """Readings of NVIDIA cards under dcgm-exporter's names."""
    for card in view.whole.values():
        if card.kind != NVIDIA:
            continue
        named = (
            str(card.index),
            card.uuid,
            _dcgm_bus_id(card.bus_id),
            f"nvidia{card.index}",
            card.model,
            hostname,
            view.version,
        )
        xid = last_xid.get(str(card.index), 0)
        page.add(XID, xid, *named, str(xid))
        if (quick := fresh(view.readings, card.index, periods.readings_s, now)) is not None:
            page.add(GPU_UTIL, quick.util, *named)
            page.add(MEM_COPY, quick.mem_util, *named)
            page.add(FB_USED, _mib(quick.mem_used), *named)
            page.add(FB_RESERVED, _mib(quick.mem_reserved), *named)
            if quick.mem_total is not None and quick.mem_used is not None:
                page.add(FB_FREE, _mib(quick.mem_total - quick.mem_used - (quick.mem_reserved or 0)), *named)
            page.add(POWER, quick.power_w, *named)
        if (slow := fresh(view.health, card.index, periods.health_s, now)) is not None:
            _gpu_health(page, slow, named)


def npu(page: Page, view: View, periods: TelemetryTable, now: float) -> None:
    """Readings of Ascend chips under npu-exporter's names."""
    chips = [card for card in view.cards.values() if card.kind == ASCEND]
    if not chips:
        return
    healthy: list[bool | None] = []
    for card in chips:
        place = card.hardware, card.bus_id.upper()
        named = str(card.index), card.model, *place
        page.add(NPU_NAME, 1, *named)
        quick = fresh(view.readings, card.index, periods.readings_s, now) or Reading()
        slow = fresh(view.health, card.index, periods.health_s, now) or Health()
        healthy.append(None if slow.npu_health is None else slow.npu_health == 0)
        _chip_reading(page, quick, slow, named)
        _chip_health(page, slow, healthy[-1], named)
        if (holders := fresh(view.holders, card.index, periods.holders_s, now)) is not None:
            page.add(NPU_PROCESSES, len(holders), *named)
    page.add(NPUS, len(chips))
    if boards := {card.numbers.board for card in chips} - {None}:
        page.add(NPU_BOARDS, len(boards))
    page.add(NPUS_HEALTHY, healthy.count(True))
    page.add(NPUS_UNHEALTHY, healthy.count(False))
    page.add(NPUS_UNKNOWN, healthy.count(None))


def _gpu_health(page: Page, health: Health, named: tuple[str, ...]) -> None:
    plain: tuple[tuple[Metric, float | None], ...] = (
        (SM_CLOCK, health.sm_clock_mhz),
        (MEM_CLOCK, health.mem_clock_mhz),
        (GPU_TEMP, health.temp_c),
        (MEM_TEMP, health.mem_temp_c),
        (ENERGY, health.energy_mj),
        (REPLAYS, health.pcie_replay),
        (SBE, health.ecc_corrected),
        (DBE, health.ecc_uncorrected),
        (ENC_UTIL, health.encoder),
        (DEC_UTIL, health.decoder),
        (NVLINK, None if health.fabric_bytes is None else health.fabric_bytes // 1024),
    )
    for metric, value in plain:
        page.add(metric, value, *named)
    if (activity := health.activity) is not None:
        for part, metric in PROF_SHARES.items():
            page.add(metric, scaled(getattr(activity, part), 0.01), *named)
        for part, metric in PROF_RATES.items():
            page.add(metric, getattr(activity, part), *named)
    if health.remapped is not None:
        page.add(UE_ROWS, health.remapped.uncorrectable, *named)
        page.add(CE_ROWS, health.remapped.correctable, *named)
        page.add(ROW_FAILURE, health.remapped.failure, *named)


def _chip_reading(page: Page, quick: Reading, slow: Health, named: tuple[str, ...]) -> None:
    used, total = quick.mem_used, quick.mem_total
    plain: tuple[tuple[Metric, float | None], ...] = (
        (NPU_UTIL, slow.parts.get("aicore", quick.util)),
        (NPU_VECTOR, slow.parts.get("vector")),
        (NPU_OVERALL, slow.parts.get("overall")),
        (NPU_POWER, quick.power_w),
        (HBM_USED, scaled(used, 1 / MIB)),
        (HBM_TOTAL, scaled(total, 1 / MIB)),
        (HBM_UTIL, used * 100 // total if used is not None and total else None),
        (HBM_BANDWIDTH, slow.parts.get("hbm_bandwidth")),
    )
    for metric, value in plain:
        page.add(metric, value, *named)


def _chip_health(page: Page, health: Health, healthy: bool | None, named: tuple[str, ...]) -> None:
    plain: tuple[tuple[Metric, float | None], ...] = (
        (NPU_TEMP, health.temp_c),
        (HBM_TEMP, health.mem_temp_c),
        (NPU_VOLTAGE, health.npu_voltage),
        (NPU_CLOCK, health.sm_clock_mhz),
        (NPU_HEALTH, _good(healthy)),
        (NPU_NETWORK, _good(None if health.npu_network is None else health.npu_network in NETWORK_GOOD)),
        (NPU_LINK, _good(health.npu_link_up)),
        (HBM_ECC_ON, health.ecc_on),
        (HBM_SINGLE, health.ecc_corrected),
        (HBM_DOUBLE, health.ecc_uncorrected),
    )
    for metric, value in plain:
        page.add(metric, value, *named)
    if (life := health.npu_hbm_life) is not None:
        page.add(HBM_LIFE_SINGLE, life.single, *named)
        page.add(HBM_LIFE_DOUBLE, life.double, *named)
        page.add(HBM_SINGLE_PAGES, life.single_pages, *named)
        page.add(HBM_DOUBLE_PAGES, life.double_pages, *named)
    for metric, code in zip(ERRORS, health.npu_errors or (), strict=False):
        page.add(metric, code, *named)


def _mib(value: int | None) -> int | None:
    """Whole MiB, cut off, as DCGM does."""
    return None if value is None else value // MIB


def _good(answer: bool | None) -> int:
    """The value as npu-exporter counts it."""
    return -1 if answer is None else int(answer)


def _dcgm_bus_id(bus_id: str) -> str:
    """ "00000000:9D:00.0" for sysfs' "0000:9d:00.0": DCGM writes the domain with eight digits, and capital letters."""
    domain, colon, rest = bus_id.partition(":")
    return f"{domain:0>8}{colon}{rest}".upper() if colon else bus_id
