"""What a card says when it was just made: that it is healthy, and idle."""

from typing import Any

from tests.fakes import models
from tests.fakes.models import NPU_UTIL_TYPES, Model
from tests.fakes.state import CONSTANTS


def values(place: int, model: Model) -> dict[str, Any]:
    """By the names of FakeCard: what can be set of a card of this model at this place."""
    ecc = 0 if model.ecc else -1
    return {
        "uuid": f"GPU-fa4e{place:04x}-0000-4000-8000-{place:012x}" if model.kind == "nvidia" else "",
        "model": model.name,
        "serial": f"16539221{place:05d}" if model.ecc else "",
        "bus_id": f"0000:{0x10 + 3 * place:02x}:00.0",
        "minor": place,
        "board": place // model.chips,
        "chip": place % model.chips,
        "mig": 0 if model.mig else -1,
        "mig_count": 0,
        "capability": model.capability,
        **dict.fromkeys(("link_crc", "link_recoveries", "retired_pending", "app_clock_mhz"), 0),
        "retired_pages": -1 if model.capability >= 80 else 0,
        "virtualization": 0,
        "persistence": True,
        "mem_total": model.memory * models.MIB,
        "mem_used": 0,
        "mem_reserved": model.reserved * models.MIB,
        "power_limit_w": model.power,
        "power_max_w": model.power,
        "mem_temp_c": 40 if model.mem_temp else -1,
        "slowdown_c": 90,
        "mem_max_c": 95 if model.mem_temp else -1,
        "sm_clock_mhz": model.sm_clock,
        "mem_clock_mhz": model.mem_clock,
        "event_reasons": 0,
        "pcie_gen": model.pcie[0],
        "pcie_gen_max": model.pcie[0],
        "pcie_width": model.pcie[1],
        "pcie_width_max": model.pcie[1],
        "pcie_replay": 0,
        "encoder": 0,
        "decoder": 0,
        "gpm": model.gpm,
        "ecc_on": 1 if model.ecc else -1,
        **dict.fromkeys(("sram_corrected", "sram_uncorrected", "dram_corrected", "dram_uncorrected"), 0),
        **dict.fromkeys(("old_corrected", "old_uncorrected"), 0),
        "remapped_correctable": ecc,
        "remapped_uncorrectable": ecc,
        "remapped_pending": False,
        "remapped_failure": False,
        "recovery_action": 0,
        "fabric_state": 3 if model.fabric == "switch" else 0,
        "fabric_status": 0,
        "link_version": model.link_version,
        "fabric_health": 1 if model.fabric == "switch" else 0,
        "fabric_mask": 0,
        "npu_health": 0,
        "npu_network": 0,
        "npu_boot": 16,
        "brother": _brother(place // model.chips) if model.chips == 2 else -2,
        "npu_link_up": True,
        "npu_profiled": False,
        "aicpu": 0,
        "ctrlcpu": 3,
        "vector": 0,
        "overall": -1,
        "util_types": sum(1 << kind for kind in NPU_UTIL_TYPES),
    }


def _brother(board: int) -> int:
    """As the driver counts on its boards with two chips."""
    return board - 4 if board >= 4 else board + 4


def links(place: int, count: int, model: Model) -> list[int]:
    """The other ends of the links of a card among `count`: see FakeCard.links."""
    others = [(place + i) % count for i in range(1, count)]
    match model.fabric:
        case "switch":
            return [CONSTANTS["FAKE_SWITCH"] + link % 4 for link in range(model.links)]
        case "mesh":
            return others[: model.links] if others else []
        case "pairs":
            return [place ^ 1] * model.links if place ^ 1 < count else []
        case _:
            return []
