"""docs/reference/metrics.md, from the catalogues of metrics."""

from collections.abc import Iterable, Mapping, Sequence

from muster.agent.api import own_logs, slots
from muster.agent.exposition import Catalogue, Metric
from muster.agent.metrics import card_metrics, node_metrics, slow_metrics, tally, vendor_metrics
from muster.probes.cards.accelerator import Trouble
from muster.supervisors.model.states import Outcome, State
from scripts.reference_table import table

_HEAD = """# Metrics

Every metric that `musterd` shows to Prometheus. `make docs` writes this page from the catalogues in `agent/`.
[Metrics for Prometheus](../guides/metrics.md) says how to switch them on and what to expect of them.

"""


#: Names of dcgm-exporter that musterd does not show, and why not.
DCGM_LEFT_OUT = {
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "Of virtual machines with a vGPU only; muster runs on the cards' own driver.",
    "series of MIG instances (`GPU_I_ID`, `GPU_I_PROFILE`)": "`muster_card_*` have them, an instance as its own card.",
    "labels of pods, `hpc_job`": "`muster_card_job_info` has the job of each card.",
    "label `err_msg` of `DCGM_FI_DEV_XID_ERRORS`": "`muster check explain` explains a code.",
}
#: Of npu-exporter; a name may end in `*`.
NPU_LEFT_OUT = {
    "npu_chip_info_process_info, npu_container_info, container_npu_*": "A label for each process or container has no "
    "bound; `muster node` shows the processes.",
    "npu_chip_info_serial_number, npu_chip_info_product_type": "They do not change: `muster node -o json` has the "
    "serial number, and `npu_chip_info_name` the model.",
    "npu_chip_info_cube_utilization": "Another way of counting the AI cores, of some chips only.",
    "npu_chip_info_used_memory, npu_chip_info_total_memory": "The DDR of chips without HBM, which train nothing.",
    "npu_chip_info_bandwidth_*, npu_chip_info_rx_*, npu_chip_link_speed, npu_chip_link_up_num, npu_chip_mac_*, "
    "npu_chip_roce_*, npu_chip_optical_*": "They are hccn_tool's, a process for each look; muster asks it for health "
    "and link alone.",
    "npu_chip_info_hccs_*, npu_chip_info_pcie_*, npu_chip_info_sio_*": "Some of these calls block while the driver "
    "measures.",
    "counters of an Ascend 950's ports (`npu_chip_info_ub_*`, `npu_chip_info_crc_error_sum_*` and so on)": "Dozens "
    "of series for each port; muster asks whether the ports are up.",
    "npu_exporter_version_info": "`muster_build_info` is the daemon's.",
}


def metrics() -> str:
    """The text of the page."""
    return _HEAD + "\n".join(
        (
            f"## The daemon, jobs, the node\n\n{_table(node_metrics.OWN, own_logs.OWN, slots.OWN)}",
            f"`state`: {_words(State)}. `item` and `code`: [Checks and codes](checks.md). `device` is what it is about "
            '("card 3",\n"mlx5_0", "/dev/shm"), empty for the node. `injected="true"` marks a drill.\n'
            "musterd shows at most 1024 results of checks, the gravest first, and 512 conditions.\n",
            f"## Since the start of the daemon\n\n{_table(tally.OWN)}",
            f"`recommendation`: {_words(tally.RECOMMENDATIONS)}. `outcome`: {_words(Outcome)}.\n"
            f"`verdict`: {_words(tally.HANG_VERDICTS)}; `kind` is that of [Is a job hung?](../concepts/hang.md). A "
            "verdict is counted\nonce, when it is reached; not again by a daemon that starts while it stands.\n"
            "`card` is empty for an Xid of a card that is not known.\n",
            "## Cards\n\nA host without cards has only `muster_cards`, of its slots.\n\n"
            f"{_table(card_metrics.OWN, slow_metrics.OWN)}",
            "`state` of `muster_cards`: `leased` to a job that has not ended; `held` by a job that has ended, because "
            "the driver\nstill shows a process on it; `unfit`: free, but a CRITICAL condition keeps jobs off it; "
            f"`free`.\n`trouble`: {_words(Trouble)}.\n"
            "`reason` of `muster_card_clock_limited`: `power_cap`, `hw_slowdown`, `sw_thermal`, `hw_thermal`, "
            "`power_brake`; only\nNVIDIA's driver reports it.\n",
            "`part` of `muster_card_activity_ratio`: "
            f"{_words(card_metrics.PARTS)}, as means since the look\nbefore (`health_s`). Only NVIDIA's driver reports "
            "them, from Hopper on, for cards and for MIG instances.\n",
            f"## The names of dcgm-exporter\n\nShown with `dcgm_names = true`.\n\n{_table(vendor_metrics.DCGM)}",
            "`DCGM_FI_PROF_*` are NVML's GPM: an older card than Hopper has none. Left out:\n",
            _left_out(DCGM_LEFT_OUT),
            f"## The names of npu-exporter\n\nShown with `npu_names = true`.\n\n{_table(vendor_metrics.NPU)}",
            "Left out:\n",
            _left_out(NPU_LEFT_OUT),
        )
    )


def _left_out(reasons: Mapping[str, str]) -> str:
    return table(
        ("left out", "why"), ((name if "`" in name else f"`{name}`", reason) for name, reason in reasons.items())
    )


def _table(*catalogues: Catalogue) -> str:
    numbered = vendor_metrics.ERRORS[1:]
    shown = [metric for one in catalogues for metric in one.metrics if metric not in numbered[1:]]
    return table(
        ("metric", "type", "labels", "meaning"),
        (
            (
                _name(metric, numbered),
                metric.kind,
                ", ".join(f"`{label}`" for label in metric.labels) or "-",
                metric.text,
            )
            for metric in shown
        ),
    )


def _name(metric: Metric, numbered: Sequence[Metric]) -> str:
    return f"`{metric.name}`" if metric is not numbered[0] else f"`{metric.name}` ... `{numbered[-1].name}`"


def _words(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)
