"""What is written about metrics is true: the page of documentation, the dashboard, the alert rules."""

import json
import re
import shutil
import subprocess
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from muster.agent.api import own_logs, slots
from muster.agent.exposition import Catalogue, Distribution, Metric, Page
from muster.agent.metrics import card_metrics, exporter, node_metrics, slow_metrics, tally, vendor_metrics
from muster.probes.cards.accelerator import Trouble
from muster.supervisors.model.states import State
from scripts.reference_metrics import DCGM_LEFT_OUT, NPU_LEFT_OUT

DOCS = Path(__file__).parents[4] / "docs"
RULES_TEST = Path(__file__).parents[2] / "alerts_test.yml"
OWN = (node_metrics.OWN, own_logs.OWN, slots.OWN, tally.OWN, card_metrics.OWN, slow_metrics.OWN)
ALL = (*OWN, vendor_metrics.DCGM, vendor_metrics.NPU)

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (prometheus)")


def metrics_of(*catalogues: Catalogue) -> list[Metric]:
    return [metric for catalogue in catalogues for metric in catalogue.metrics]


def names_in(text: str) -> set[str]:
    """Names of our own in an expression, as they stand there."""
    return set(re.findall(r"\bmuster_[a-z0-9_]+\b", text))


def shown_names() -> set[str]:
    """Names that a query may use."""
    names = set()
    for metric in metrics_of(*OWN):
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {metric.name + suffix for suffix in suffixes}
    return names


def labels_of(name: str) -> set[str]:
    bare = re.sub(r"_(bucket|sum|count)$", "", name)
    (metric,) = (m for m in metrics_of(*OWN) if m.name in (name, bare))
    return {*metric.labels, "le", "instance", "job"}


def expressions() -> list[str]:
    """All queries of the dashboard and of the alert rules."""
    found: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            found.extend(node[key] for key in ("expr", "definition") if key in node)
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(json.loads((DOCS / "grafana/muster.json").read_text()))
    rules = (DOCS / "alerts.yml").read_text()
    found += re.findall(r"^ +expr: (?!\|)(.+)$", rules, re.M)
    found += re.findall(r"^ +expr: \|\n((?: {10}.+\n)+)", rules, re.M)
    assert len(found) > 50
    return found


def test_no_two_metrics_have_the_same_name():
    names = [metric.name for metric in metrics_of(*ALL)]
    assert len(names) == len(set(names))


def test_names_follow_prometheus_rules():
    for metric in metrics_of(*OWN):
        assert re.fullmatch(r"muster_[a-z0-9]+(_[a-z0-9]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        hidden = set() if metric is card_metrics.JOB else {"job_id"}
        assert not set(metric.labels) & hidden, metric.name
        assert not set(metric.labels) & {"job", "user", "pid", "command", "rank", "instance"}, metric.name
        assert metric.text.endswith("."), metric.name


@pytest.mark.parametrize(
    "metric", [m for m in metrics_of(*ALL) if m not in vendor_metrics.ERRORS[2:]], ids=lambda m: m.name
)
def test_every_metric_is_documented_as_it_is(metric: Metric):
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
    row = f" | {metric.kind} | {labels} | {metric.text} |\n"
    text = (DOCS / "reference/metrics.md").read_text()
    if metric in vendor_metrics.ERRORS[1:]:
        assert f"| `npu_chip_info_error_code_1` ... `{vendor_metrics.ERRORS[-1].name}`{row}" in text
    else:
        assert f"| `{metric.name}`{row}" in text


def test_no_metric_is_documented_that_is_not_there():
    rows = re.findall(r"^\| `([A-Za-z0-9_]+)`", (DOCS / "reference/metrics.md").read_text(), re.M)
    assert set(rows) <= {metric.name for metric in metrics_of(*ALL)} | set(DCGM_LEFT_OUT) | set(NPU_LEFT_OUT)
    assert len(rows) == len(set(rows))


def test_each_default_metric_of_dcgm_exporter_is_shown_or_the_page_says_why_not():
    """Its default-counters.csv of May 2026, without DRIVER_VERSION, which is a label."""
    default = {
        "DEV_SM_CLOCK",
        "DEV_MEM_CLOCK",
        "DEV_MEMORY_TEMP",
        "DEV_GPU_TEMP",
        "DEV_POWER_USAGE",
        "DEV_TOTAL_ENERGY_CONSUMPTION",
        "DEV_PCIE_REPLAY_COUNTER",
        "DEV_GPU_UTIL",
        "DEV_MEM_COPY_UTIL",
        "DEV_ENC_UTIL",
        "DEV_DEC_UTIL",
        "DEV_XID_ERRORS",
        "DEV_FB_FREE",
        "DEV_FB_USED",
        "DEV_FB_RESERVED",
        "DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "DEV_CORRECTABLE_REMAPPED_ROWS",
        "DEV_ROW_REMAP_FAILURE",
        "DEV_NVLINK_BANDWIDTH_TOTAL",
        "DEV_VGPU_LICENSE_STATUS",
        "PROF_GR_ENGINE_ACTIVE",
        "PROF_PIPE_TENSOR_ACTIVE",
        "PROF_DRAM_ACTIVE",
        "PROF_PCIE_TX_BYTES",
        "PROF_PCIE_RX_BYTES",
    }
    assert len(default) == 25
    shown = {metric.name for metric in metrics_of(vendor_metrics.DCGM)}
    missing = {f"DCGM_FI_{name}" for name in default} - shown
    assert missing == {"DCGM_FI_DEV_VGPU_LICENSE_STATUS"} <= set(DCGM_LEFT_OUT)


#: The names that npu-exporter writes out (v26.1.0.beta.1-864-g22bb3d98 of mind-cluster), without those of plugins.
NPU_EXPORTER = """
container_npu_total_memory container_npu_used_memory container_npu_utilization machine_card_nums
machine_healthy_npu_nums machine_npu_nums machine_unhealthy_npu_nums machine_unknown_npu_nums
npu_chip_info_aicore_current_freq npu_chip_info_bandwidth_rx npu_chip_info_bandwidth_tx npu_chip_info_cube_utilization
npu_chip_info_error_code npu_chip_info_hbm_bandwidth_utilization npu_chip_info_hbm_ecc_double_bit_error_cnt
npu_chip_info_hbm_ecc_double_bit_isolated_pages_cnt npu_chip_info_hbm_ecc_enable_flag
npu_chip_info_hbm_ecc_single_bit_error_cnt npu_chip_info_hbm_ecc_single_bit_isolated_pages_cnt
npu_chip_info_hbm_ecc_total_double_bit_error_cnt npu_chip_info_hbm_ecc_total_single_bit_error_cnt
npu_chip_info_hbm_temperature npu_chip_info_hbm_total_memory npu_chip_info_hbm_used_memory
npu_chip_info_hbm_utilization npu_chip_info_health_status npu_chip_info_link_status npu_chip_info_name
npu_chip_info_network_status npu_chip_info_overall_utilization npu_chip_info_pcie_rx_cpl_bw
npu_chip_info_pcie_rx_np_bw npu_chip_info_pcie_rx_p_bw npu_chip_info_pcie_tx_cpl_bw npu_chip_info_pcie_tx_np_bw
npu_chip_info_pcie_tx_p_bw npu_chip_info_power npu_chip_info_process_info npu_chip_info_process_info_num
npu_chip_info_product_type npu_chip_info_rx_ecn_num npu_chip_info_rx_fcs_num npu_chip_info_serial_number
npu_chip_info_sio_crc_rx_err_cnt npu_chip_info_sio_crc_tx_err_cnt npu_chip_info_temperature npu_chip_info_total_memory
npu_chip_info_used_memory npu_chip_info_utilization npu_chip_info_vector_utilization npu_chip_info_voltage
npu_chip_link_speed npu_chip_link_up_num npu_chip_mac_rx_bad_oct_num npu_chip_mac_rx_bad_pkt_num
npu_chip_mac_rx_pause_num npu_chip_mac_rx_pfc_pkt_num npu_chip_mac_tx_bad_oct_num npu_chip_mac_tx_bad_pkt_num
npu_chip_mac_tx_pause_num npu_chip_mac_tx_pfc_pkt_num npu_chip_optical_rx_power_0 npu_chip_optical_rx_power_1
npu_chip_optical_rx_power_2 npu_chip_optical_rx_power_3 npu_chip_optical_state npu_chip_optical_temp
npu_chip_optical_tx_power_0 npu_chip_optical_tx_power_1 npu_chip_optical_tx_power_2 npu_chip_optical_tx_power_3
npu_chip_optical_vcc npu_chip_roce_new_pkt_rty_num npu_chip_roce_out_of_order_num npu_chip_roce_qp_status_err_num
npu_chip_roce_rx_all_pkt_num npu_chip_roce_rx_cnp_pkt_num npu_chip_roce_rx_err_pkt_num npu_chip_roce_tx_all_pkt_num
npu_chip_roce_tx_cnp_pkt_num npu_chip_roce_tx_err_pkt_num npu_chip_roce_unexpected_ack_num
npu_chip_roce_verification_err_num npu_container_info npu_exporter_version_info
"""


def test_each_metric_of_npu_exporter_is_shown_or_the_page_says_why_not():
    missing = set(NPU_EXPORTER.split()) - {metric.name for metric in metrics_of(vendor_metrics.NPU)}
    patterns = [name.strip() for key in NPU_LEFT_OUT for name in key.split(",")]
    assert missing and not {name for name in missing if not any(fnmatch(name, p) for p in patterns)}
    assert not {p for p in patterns if fnmatch("npu_chip_info_name", p)}


def test_queries_use_metrics_and_labels_that_there_are():
    for expression in expressions():
        used = names_in(expression)
        assert used or expression.startswith("up{"), expression
        assert used <= shown_names(), expression
        for name, selector in re.findall(r"\b(muster_[a-z0-9_]+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+) *[=!]", selector)) <= labels_of(name), expression


def test_values_that_rules_compare_labels_with_exist():
    """A label that never has the value in question would keep an alert silent for ever."""
    text = "\n".join(expressions())
    states = {s for match in re.findall(r'state=~?"([^"]+)"', text) for s in match.split("|")}
    assert states <= {*map(str, State), "free", "leased", "held", "unfit"}
    troubles = {t for match in re.findall(r'trouble=~?"([^"]+)"', text) for t in match.split("|")}
    assert troubles <= {*map(str, Trouble)}
    assert set(re.findall(r'recommendation="([^"]+)"', text)) <= set(tally.RECOMMENDATIONS)
    assert set(re.findall(r'verdict="([^"]+)"', text)) <= set(tally.HANG_VERDICTS)
    assert set(re.findall(r'\ble="([^"]+)"', text)) <= {repr(bound) for bound in exporter.LAG_BOUNDS}


def test_the_dashboard_is_one_that_grafana_can_import():
    board = json.loads((DOCS / "grafana/muster.json").read_text())
    assert board["schemaVersion"] >= 36 and board["id"] is None and board["title"] and board["uid"]
    variables = [v["name"] for v in board["templating"]["list"]]
    assert variables[0] == "datasource" and board["templating"]["list"][0]["type"] == "datasource"
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"] == source
            assert panel["targets"] and all(t["datasource"] == source and t["refId"] for t in panel["targets"])
    taken = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken)), "panels overlap"
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels))) - {"__rate_interval"}
    assert used == set(variables)


# --- Prometheus' own judgement ----------------------------------------------------------------------------------------


def promtool(*args: str, text: bytes = b"") -> str:
    done = subprocess.run(["promtool", *args], input=text, capture_output=True, timeout=60, check=False)
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, output
    return output


@needs_promtool
def test_promtool_takes_the_rules():
    assert "SUCCESS" in promtool("check", "rules", str(DOCS / "alerts.yml"))


@needs_promtool
def test_alerts_fire_when_they_should():
    assert "SUCCESS" in promtool("test", "rules", str(RULES_TEST))


@needs_promtool
def test_promtool_finds_nothing_to_say_about_our_metrics():
    page = Page()
    for metric in metrics_of(*OWN):
        if metric.kind == "histogram":
            page.add_distribution(metric, Distribution(((0.1, 1),), 2, time.time()))
        else:
            page.add(metric, 1, *("x" for _ in metric.labels))
    assert promtool("check", "metrics", text=page.text()).strip() == ""


@needs_promtool
def test_promtool_takes_the_queries_of_the_dashboard(tmp_path: Path):
    board = json.loads((DOCS / "grafana/muster.json").read_text())
    rules = ["groups:", "- name: panels", "  rules:"]
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", "5m")
            rules += [f"  - record: panel:{panel['id']}:{target['refId']}", f"    expr: {json.dumps(expression)}"]
    path = tmp_path / "panels.yml"
    path.write_text("\n".join(rules) + "\n")
    assert "SUCCESS" in promtool("check", "rules", str(path))


@needs_promtool
def test_the_query_of_the_guide_gives_cards_their_jobs(tmp_path: Path):
    guide = (DOCS / "guides/metrics.md").read_text()
    (query,) = re.findall(r"`(muster_card_utilization_ratio \* on [^`]+)`", guide)
    (tmp_path / "rules.yml").write_text(
        json.dumps({"groups": [{"name": "g", "rules": [{"record": "joined", "expr": query}]}]})
    )
    card = 'instance="n1", card="{0}", uuid="u{0}", model="m"'
    series = {
        f"muster_card_utilization_ratio{{{card.format(0)}}}": "0.5x5",
        f"muster_card_utilization_ratio{{{card.format(1)}}}": "0.25x5",
        f'muster_card_job_info{{{card.format(0)}, job_id="train"}}': "1x5",
    }
    wanted = f'joined{{{card.format(0)}, job_id="train"}}'
    case = {
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": "joined", "eval_time": "3m", "exp_samples": [{"labels": wanted, "value": 0.5}]},
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [case]}))
    assert "SUCCESS" in promtool("test", "rules", str(path))
