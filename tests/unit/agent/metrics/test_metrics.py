"""The page: from what the daemon's parts know, and from what happened."""

import contextlib
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from muster.agent.api.slots import Listeners
from muster.agent.config.schema import Config, MetricsTable
from muster.agent.events.event_store import Event, EventStore, RecordKey
from muster.agent.exposition import Page
from muster.agent.jobs.cards.leases import Lease
from muster.agent.jobs.entry import Entry
from muster.agent.metrics import exporter, node_metrics, tally
from muster.agent.metrics.exporter import LAG_BOUNDS, LoopLag, Metrics
from muster.agent.node.conditions import Condition
from muster.agent.telemetry import freshness
from muster.probes.cards.accelerator import (
    ASCEND,
    NVIDIA,
    Activity,
    Card,
    HbmLife,
    Health,
    Holder,
    Numbers,
    Reading,
    Remapped,
    Trouble,
)
from muster.probes.cards.driver import Seen, Sick, View
from muster.probes.checks.result import Action, CheckResult, Status
from muster.supervisors.model.lifecycle import Job, OpenGap, Rank
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import JOB, Outcome, State
from muster.supervisors.paths import JobPaths
from tests.unit.waiting import until

MIB = 1 << 20
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass
class Parts:
    """What the other parts of a daemon say."""

    config: Config = field(default_factory=Config)
    view: View = field(default_factory=View)
    cards: list[Lease] = field(default_factory=list)
    jobs: list[Entry] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    results: list[CheckResult] = field(default_factory=list)
    drain: object | None = None
    unfit: dict[int, Condition] = field(default_factory=dict)
    refused: Condition | None = None
    underused: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    def live(self) -> list[Entry]:
        return [entry for entry in self.jobs if not entry.job.state.final]

    def states(self) -> Counter[State]:
        return Counter(entry.job.state for entry in self.jobs)

    def has_ended(self, job_id: str) -> bool:
        return any(entry.job_id == job_id and entry.job.state.final for entry in self.jobs)

    def warnings(self) -> list[str]:
        return self.troubles

    def refusal(self, cards: Any) -> Condition | None:
        assert not cards
        return self.refused

    def unfit_cards(self) -> dict[int, Condition]:
        return self.unfit

    def set_metrics(self, **changes: Any) -> None:
        self.config = replace(self.config, metrics=MetricsTable(**changes))


@asynccontextmanager
async def made(folder: Path, parts: Parts) -> AsyncIterator[tuple[Metrics, EventStore]]:
    store = await EventStore.open(folder, 1 << 20, boot_id="one")
    try:
        slots = Listeners(lambda: parts.config)
        slots.add("operators", "/run/muster/muster.sock")
        yield Metrics(lambda: parts.config, parts, parts, parts, parts, store, [slots]), store
    finally:
        await store.close()


def read(page: bytes) -> Samples:
    families = list(text_string_to_metric_families(page.decode()))
    return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}


async def shown(folder: Path, parts: Parts, *events: Event) -> Samples:
    """The page after these events; the other format must say the same."""
    async with made(folder, parts) as (metrics, store):
        store.append([(None, event) for event in events])
        found = read(await metrics.page())
        openmetrics = list(parse_openmetrics((await metrics.page(openmetrics=True)).decode()))
        names = {s.name for f in openmetrics for s in f.samples if s.name.startswith("muster")}
        assert names == {name for name, _ in found if name.startswith("muster")}
        return found


def value(found: Samples, name: str, /, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


def matching(found: Samples, name: str) -> dict[tuple[str, ...], float]:
    return {tuple(v for _, v in sorted(labels)): n for (found_name, labels), n in found.items() if found_name == name}


def entry(job_id: str, state: State, ranks: list[Rank] | None = None) -> Entry:
    job = Job(state=state, ranks=ranks or [], spawned=bool(ranks))
    return Entry(job_id, JobSpec(job_id, ()), job, JobPaths(Path("/nowhere")))


def event(kind: str, /, **attributes: str) -> Event:
    return Event(time.time(), kind, "job-of-somebody", message="rm -rf by root", attributes=attributes)


def condition(**changes: Any) -> Condition:
    bare = Condition("ecc", "card 2", Status.CRITICAL, "GPU_ECC_UNCORRECTED", "why", 1.0, 2.0, action=Action.RMA)
    return replace(bare, card=2, **changes)


# --- daemon, jobs, node -----------------------------------------------------------------------------------------------


async def test_an_idle_daemon(tmp_path: Path):
    before = time.time()
    found = await shown(tmp_path, Parts())
    assert list(matching(found, "muster_build_info").values()) == [1]
    assert before <= (value(found, "muster_start_time_seconds") or 0) <= time.time()
    assert (value(found, "muster_daemon_cpu_seconds_total") or 0) > 0
    assert 1 << 20 < (value(found, "muster_daemon_resident_memory_bytes") or 0) < 1 << 34
    assert (value(found, "muster_daemon_open_descriptors") or 0) > 2
    assert matching(found, "muster_jobs") == {(state,): 0 for state in State}
    assert value(found, "muster_node_accepts_jobs") == 1
    assert value(found, "muster_node_drained") == 0
    assert matching(found, "muster_conditions") == {("WARN",): 0, ("CRITICAL",): 0, ("UNKNOWN",): 0}
    assert not [name for name, _ in found if name.startswith(("muster_card_", "muster_driver", "DCGM", "npu"))]


async def test_jobs_and_ranks(tmp_path: Path):
    ranks = [Rank(0, 0, 0, 10), Rank(1, 1, 1, 11), Rank(2, 2, 2, 12, outcome=Outcome.EXITED)]
    jobs = [
        entry("a", State.RUNNING, ranks),
        entry("b", State.RUNNING, [Rank(0, 0, 3, 13)]),
        entry("c", State.LOST, [Rank(0, 0, 4, 14)]),
        entry("d", State.PREPARING),
    ]
    found = await shown(tmp_path, Parts(jobs=jobs, underused=["a"], troubles=["x", "y"], trouble=["z"]))
    assert value(found, "muster_jobs", state="RUNNING") == 2
    assert value(found, "muster_jobs", state="LOST") == 1
    assert value(found, "muster_ranks_running") == 3
    assert value(found, "muster_jobs_underused") == 1
    assert value(found, "muster_warnings") == 4  # two of the registry, one of the health and one of the telemetry


async def test_health(tmp_path: Path):
    results = [
        CheckResult("ecc", Status.OK, "NODE_OK", "", device="card 0"),  # type: ignore[arg-type]
        CheckResult("ecc", Status.CRITICAL, "X", "", device="card 2"),  # type: ignore[arg-type]
        CheckResult("ecc", Status.UNKNOWN, "Y", "", device="card 2"),  # type: ignore[arg-type]
        CheckResult("ib", Status.NOT_APPLICABLE, "Z", ""),  # type: ignore[arg-type]
        CheckResult("zombies", Status.WARN, "Z", ""),  # type: ignore[arg-type]
    ]
    parts = Parts(results=results, conditions=[condition(), condition(code="DRILL", injected=True, status=Status.WARN)])
    found = await shown(tmp_path, parts)
    assert matching(found, "muster_check_status") == {("card 0", "ecc"): 0, ("card 2", "ecc"): 2, ("", "zombies"): 1}
    assert value(found, "muster_conditions", status="CRITICAL") == 1
    labels = {"item": "ecc", "device": "card 2", "code": "GPU_ECC_UNCORRECTED"}
    labels |= {"status": "CRITICAL", "injected": "false"}
    assert value(found, "muster_condition", **labels) == 1
    assert value(found, "muster_condition", **labels | {"code": "DRILL", "status": "WARN", "injected": "true"}) == 1


@pytest.mark.parametrize(("drained", "refused"), [(True, False), (False, True)])
async def test_a_node_that_takes_no_jobs(tmp_path: Path, drained: bool, refused: bool):
    found = await shown(tmp_path, Parts(drain=object() if drained else None, refused=condition() if refused else None))
    assert value(found, "muster_node_drained") == drained
    assert value(found, "muster_node_accepts_jobs") == 0


async def test_devices_of_checks_are_bounded(tmp_path: Path):
    """The gravest are shown: a node may have any number of mounts."""
    results = [CheckResult("nfs", Status.OK, "OK", "", device=f"/home/{i}") for i in range(5000)]  # type: ignore[arg-type]
    results.append(CheckResult("nfs", Status.CRITICAL, "NFS_HANGS", "", device="/home/x"))  # type: ignore[arg-type]
    found = await shown(tmp_path, Parts(results=results))
    assert len(matching(found, "muster_check_status")) == node_metrics.MAX_CHECKS
    assert value(found, "muster_check_status", item="nfs", device="/home/x") == 2


# --- cards ------------------------------------------------------------------------------------------------------------

READING = Reading(
    util=7.0, mem_util=3.0, mem_used=1 << 30, mem_total=80 << 30, power_w=312.5, mem_reserved=MIB // 2 + (552 << 20)
)
ACTIVITY = Activity(15.0, 99.0, 98.0, 41.0, 3.5, 12.0, 0.0, None, 1.0, 2e9, 3e9, 4e9, 5e9)
HEALTH = Health(
    power_limit_w=700.0, temp_c=41.0, mem_temp_c=50.0, sm_clock_mhz=1980.0, mem_clock_mhz=2619.0, energy_mj=123_456,
    fabric_bytes=10**15, pcie_replay=2, event_reasons=0x1 | 0x4 | 0x40, ecc_corrected=5, ecc_uncorrected=1,
    remapped=Remapped(1, 2, True, False), links=(True, True, False), npu_errors=(0x80E18402,),
    npu_health=0, npu_network=6, npu_link_up=False, parts={"aicore": 55.0, "vector": 1.0, "overall": 60.0}, ecc_on=True,
    activity=ACTIVITY, encoder=4.0, decoder=0.0, npu_voltage=0.89, npu_hbm_life=HbmLife(9, 2, 3, 1),
)  # fmt: skip


def gpu(index: int, **changes: Any) -> Card:
    bare = Card(index, NVIDIA, f"GPU-{index}", "NVIDIA H100", 80 << 30, f"0000:{index + 0x9D:02x}:00.0", 1)
    return replace(bare, **changes)


def view(*cards: Card, at: float | None = None, reading: Reading = READING, **changes: Any) -> View:
    at = time.time() if at is None else at
    seen = View(
        kind=cards[0].kind,
        version="570.1",
        cards={c.index: c for c in cards},
        readings={c.index: Seen(at, reading) for c in cards},
        health={c.index: Seen(at, HEALTH) for c in cards},
        holders={c.index: Seen(at, (Holder(1), Holder(2))) for c in cards},
    )
    return replace(seen, **changes)


async def test_readings_are_in_base_units(tmp_path: Path):
    found = await shown(tmp_path, Parts(view=view(gpu(0)), cards=[Lease(gpu(0))]))
    named = {"card": "0", "uuid": "GPU-0", "model": "NVIDIA H100"}
    expected = {
        "utilization_ratio": 0.07, "memory_utilization_ratio": 0.03, "memory_used_bytes": 1 << 30,
        "memory_total_bytes": 80 << 30, "memory_reserved_bytes": READING.mem_reserved,
        "power_watts": 312.5, "power_limit_watts": 700, "temperature_celsius": 41,
        "memory_temperature_celsius": 50, "clock_hertz": 1.98e9, "memory_clock_hertz": 2.619e9,
        "energy_joules_total": 123.456, "fabric_bytes_total": 10**15, "pcie_replays_total": 2, "row_remap_pending": 1,
        "row_remap_failed": 0, "processes": 2, "up": 1, "leased": 0,
    }  # fmt: skip
    for name, number in expected.items():
        assert value(found, f"muster_card_{name}", **named) == number, name
    assert value(found, "muster_card_info", **named, bus_id="0000:9d:00.0", numa_node="1", mig="false") == 1
    assert value(found, "muster_card_ecc_errors_total", **named, type="uncorrected") == 1
    assert value(found, "muster_card_remapped_rows", **named, type="uncorrectable") == 2
    assert value(found, "muster_card_fabric_links", **named, state="down") == 1
    parts = {labels[2]: share for labels, share in matching(found, "muster_card_activity_ratio").items()}
    assert parts == {
        "graphics": 0.99, "sm": 0.98, "occupancy": 0.41, "tensor": 0.035, "dram": 0.12, "fp64": 0.0, "fp16": 0.01,
    }  # fmt: skip
    assert value(found, "muster_card_pcie_bytes_per_second", **named, direction="sent") == 2e9
    assert value(found, "muster_card_fabric_bytes_per_second", **named, direction="received") == 5e9
    limited = matching(found, "muster_card_clock_limited")
    assert {labels[2] for labels, on in limited.items() if on} == {"power_cap", "hw_thermal"}
    assert value(found, "muster_driver_up", kind="nvidia") == 1
    assert value(found, "muster_driver_info", kind="nvidia", version="570.1") == 1


async def test_a_reading_that_is_not_given_is_not_0(tmp_path: Path):
    found = await shown(tmp_path, Parts(view=view(gpu(0), reading=Reading(mem_used=5), health={}, holders={})))
    assert matching(found, "muster_card_memory_used_bytes") == {("0", "NVIDIA H100", "GPU-0"): 5}
    for name in ("utilization_ratio", "power_watts", "temperature_celsius", "processes", "ecc_errors_total"):
        assert not matching(found, f"muster_card_{name}")


async def test_a_reading_that_is_old_is_not_shown(tmp_path: Path):
    """Nobody reads any more: what was read last says nothing of now."""
    found = await shown(tmp_path, Parts(view=view(gpu(0), at=time.time() - freshness.OLD_S - 1)))
    assert not matching(found, "muster_card_utilization_ratio")  # read each second
    assert matching(found, "muster_card_temperature_celsius")  # read each 15 s
    assert matching(found, "muster_card_up")


async def test_a_clock_that_was_set_back_hides_nothing(tmp_path: Path):
    found = await shown(tmp_path, Parts(view=view(gpu(0), at=time.time() + 3600)))
    assert matching(found, "muster_card_utilization_ratio")


async def test_sick_cards(tmp_path: Path):
    cards = [gpu(i) for i in range(4)]
    sick = {
        1: Sick(Trouble.LOST, "gone", 1.0),
        2: Sick(Trouble.HANG, "hangs", 1.0),
        3: Sick(Trouble.NOT_TOLD, "no permission", 1.0),
    }
    found = await shown(tmp_path, Parts(view=view(*cards, sick=sick)))
    up = matching(found, "muster_card_up")
    assert [up[str(i), "NVIDIA H100", f"GPU-{i}"] for i in range(4)] == [1, 0, 0, 1]
    trouble = {labels[0]: labels[2] for labels in matching(found, "muster_card_trouble")}
    assert trouble == {"1": "LOST", "2": "HANG", "3": "NOT_TOLD"}


async def test_a_driver_that_is_gone(tmp_path: Path):
    seen = view(gpu(0), readings={}, health={}, holders={}, driver=Sick(Trouble.NO_DRIVER, "not loaded", 1.0))
    found = await shown(tmp_path, Parts(view=seen))
    assert value(found, "muster_driver_up", kind="nvidia") == 0
    assert value(found, "muster_driver_trouble", kind="nvidia", trouble="NO_DRIVER") == 1
    assert set(matching(found, "muster_card_up").values()) == {0}


async def test_who_has_the_cards(tmp_path: Path):
    cards = [gpu(i) for i in range(6)]
    leases = [
        Lease(cards[0]),
        Lease(cards[1], "runs"),
        Lease(cards[2], "over"),
        Lease(cards[3], "runs", held_by="process 4711"),
        Lease(cards[4]),
        Lease(cards[5], "runs"),
    ]
    jobs = [entry("runs", State.RUNNING), entry("over", State.FAILED)]
    parts = Parts(view=view(*cards), cards=leases, jobs=jobs, unfit={4: condition(), 5: condition()})
    found = await shown(tmp_path, parts)
    assert matching(found, "muster_cards") == {("free",): 1, ("leased",): 2, ("held",): 2, ("unfit",): 1}
    leased = matching(found, "muster_card_leased")
    assert [leased[str(i), "NVIDIA H100", f"GPU-{i}"] for i in range(6)] == [0, 1, 0, 0, 0, 1]


async def test_slots(tmp_path: Path):
    slots = [Lease(Card(i, "slot"), "runs" if i == 0 else "") for i in range(3)]
    seen = View(cards={lease.card.index: lease.card for lease in slots})
    found = await shown(tmp_path, Parts(view=seen, cards=slots, jobs=[entry("runs", State.RUNNING)]))
    assert matching(found, "muster_cards") == {("free",): 2, ("leased",): 1, ("held",): 0, ("unfit",): 0}
    assert not [name for name, _ in found if name.startswith(("muster_card_", "muster_driver"))]


# --- the names of others ----------------------------------------------------------------------------------------------


async def test_names_of_dcgm_exporter(tmp_path: Path):
    parts = Parts(view=view(gpu(3)))
    parts.set_metrics(dcgm_names=True)
    found = await shown(tmp_path, parts, event("node.event", code="GPU_OFF_BUS", item="xid", number="79", card="3"))
    named = {
        "gpu": "3", "UUID": "GPU-3", "pci_bus_id": "00000000:A0:00.0", "device": "nvidia3", "modelName": "NVIDIA H100",
        "hostname": socket.gethostname(), "DCGM_FI_DRIVER_VERSION": "570.1",
    }  # fmt: skip
    expected = {
        "GPU_UTIL": 7, "MEM_COPY_UTIL": 3, "FB_USED": 1024, "FB_RESERVED": 552, "FB_FREE": 79 * 1024 - 553,
        "ENC_UTIL": 4, "DEC_UTIL": 0, "POWER_USAGE": 312.5, "GPU_TEMP": 41,
        "MEMORY_TEMP": 50, "SM_CLOCK": 1980, "MEM_CLOCK": 2619, "ROW_REMAP_FAILURE": 0,
    }  # fmt: skip
    for name, number in expected.items():
        assert value(found, f"DCGM_FI_DEV_{name}", **named) == number, name
    assert value(found, "DCGM_FI_DEV_XID_ERRORS", **named, err_code="79") == 79
    # Counters; the library that reads them here gives them a suffix.
    counters = {
        "TOTAL_ENERGY_CONSUMPTION": 123_456,
        "NVLINK_BANDWIDTH_TOTAL": 10**15 // 1024,
        "PCIE_REPLAY_COUNTER": 2,
        "UNCORRECTABLE_REMAPPED_ROWS": 2,
    }
    for name, number in counters.items():
        assert value(found, f"DCGM_FI_DEV_{name}_total", **named) == number, name
    profiled: dict[str, float | None] = {
        "GR_ENGINE_ACTIVE": 0.99, "SM_ACTIVE": 0.98, "SM_OCCUPANCY": 0.41, "PIPE_TENSOR_ACTIVE": 0.035,
        "DRAM_ACTIVE": 0.12, "PIPE_FP64_ACTIVE": 0.0, "PIPE_FP32_ACTIVE": None, "PIPE_FP16_ACTIVE": 0.01,
        "PCIE_TX_BYTES": 2e9, "PCIE_RX_BYTES": 3e9, "NVLINK_TX_BYTES": 4e9, "NVLINK_RX_BYTES": 5e9,
    }  # fmt: skip
    for name, share in profiled.items():
        assert value(found, f"DCGM_FI_PROF_{name}", **named) == share, name
    assert not [name for name, _ in found if name.startswith("npu")]


async def test_a_card_without_gpm_has_no_profiling_metrics(tmp_path: Path):
    seen = view(gpu(3))
    seen = replace(seen, health={3: Seen(time.time(), replace(HEALTH, activity=None))})
    parts = Parts(view=seen)
    parts.set_metrics(dcgm_names=True)
    found = await shown(tmp_path, parts)
    assert matching(found, "DCGM_FI_DEV_SM_CLOCK")
    assert not [name for name, _ in found if "PROF" in name or "activity" in name or name.endswith("per_second")]


async def test_memory_of_a_driver_that_counts_its_own_as_used(tmp_path: Path):
    parts = Parts(view=view(gpu(3), reading=replace(READING, mem_reserved=None)))
    parts.set_metrics(dcgm_names=True)
    found = await shown(tmp_path, parts)
    assert set(matching(found, "DCGM_FI_DEV_FB_FREE").values()) == {79 * 1024}
    assert not matching(found, "DCGM_FI_DEV_FB_RESERVED")


async def test_cards_join_jobs(tmp_path: Path):
    cards = [gpu(i) for i in range(3)]
    leases = [Lease(cards[0], "one"), Lease(cards[1]), Lease(cards[2], "two", held_by="process 4711")]
    parts = Parts(view=view(*cards), cards=leases, jobs=[entry("one", State.RUNNING)])
    found = await shown(tmp_path, parts)
    assert matching(found, "muster_card_job_info") == {
        ("0", "one", "NVIDIA H100", "GPU-0"): 1,
        ("2", "two", "NVIDIA H100", "GPU-2"): 1,
    }
    # Nothing else has a series for each job.
    assert {name for name, labels in found if "one" in dict(labels).values()} == {"muster_card_job_info"}


async def test_the_panels_of_the_public_dcgm_dashboard_have_data(tmp_path: Path):
    """Grafana's dashboard 12239."""
    parts = Parts(view=view(gpu(0)))
    parts.set_metrics(dcgm_names=True)
    found = await shown(tmp_path, parts)
    for name in ("GPU_TEMP", "POWER_USAGE", "SM_CLOCK", "GPU_UTIL", "FB_USED", "PIPE_TENSOR_ACTIVE"):
        full = f"DCGM_FI_PROF_{name}" if name.startswith("PIPE") else f"DCGM_FI_DEV_{name}"
        (labels,) = [dict(labels) for found_name, labels in found if found_name == full]
        assert labels["gpu"] == "0"


async def test_names_of_npu_exporter(tmp_path: Path):
    cards = [
        gpu(i, kind=ASCEND, uuid=f"die-{i}", model="910B3-Ascend-V1", numbers=Numbers(board=0, chip=i))
        for i in range(2)
    ]
    seen = view(*cards, reading=Reading(util=50.0, mem_used=3 << 30, mem_total=64 << 30, power_w=178.5))
    seen = replace(seen, health={0: seen.health[0]})
    parts = Parts(view=seen)
    parts.set_metrics(npu_names=True)
    found = await shown(tmp_path, parts)
    named = {"id": "0", "model_name": "910B3-Ascend-V1", "vdie_id": "die-0", "pcie_bus_info": "0000:9D:00.0"}
    expected = {
        "utilization": 55, "vector_utilization": 1, "overall_utilization": 60, "power": 178.5, "temperature": 41,
        "hbm_used_memory": 3072, "hbm_total_memory": 65536, "hbm_utilization": 4, "hbm_temperature": 50,
        "aicore_current_freq": 1980, "health_status": 1, "network_status": 1, "link_status": 0,
        "hbm_ecc_enable_flag": 1, "hbm_ecc_single_bit_error_cnt": 5, "hbm_ecc_double_bit_error_cnt": 1,
        "process_info_num": 2, "error_code": 0x80E18402, "voltage": 0.89,
        "hbm_ecc_total_single_bit_error_cnt": 9, "hbm_ecc_total_double_bit_error_cnt": 2,
        "hbm_ecc_single_bit_isolated_pages_cnt": 3, "hbm_ecc_double_bit_isolated_pages_cnt": 1,
    }  # fmt: skip
    for name, number in expected.items():
        assert value(found, f"npu_chip_info_{name}", **named) == number, name
    other = named | {"id": "1", "vdie_id": "die-1", "pcie_bus_info": "0000:9E:00.0"}
    assert value(found, "npu_chip_info_utilization", **other) == 50
    assert value(found, "npu_chip_info_health_status", **other) == -1
    assert value(found, "npu_chip_info_temperature", **other) is None
    assert [value(found, f"machine_{x}npu_nums") for x in ("", "healthy_", "unhealthy_", "unknown_")] == [2, 1, 0, 1]
    assert value(found, "machine_card_nums") == 1
    assert not [name for name, _ in found if name.startswith("DCGM")]


@pytest.mark.parametrize("uuid", ["0000:01:00.0", "0000:01:00.0/1"])
async def test_a_place_on_the_bus_is_no_number_of_a_die(tmp_path: Path, uuid: str):
    parts = Parts(view=view(gpu(0, kind=ASCEND, uuid=uuid, bus_id="0000:01:00.0")))
    parts.set_metrics(npu_names=True)
    found = await shown(tmp_path, parts)
    (labels,) = [dict(labels) for name, labels in found if name == "npu_chip_info_name"]
    assert (labels["vdie_id"], labels["pcie_bus_info"]) == ("", "0000:01:00.0")


# --- what is counted --------------------------------------------------------------------------------------------------


async def test_events_are_counted(tmp_path: Path):
    found = await shown(
        tmp_path,
        Parts(),
        event("job.ended", state="FAILED", recommendation="RETRY_ELSEWHERE", exit_code="1"),
        event("job.explained", state="FAILED", recommendation="RETRY_ELSEWHERE"),
        event("job.explained", state="FAILED", recommendation="FAIL", was="RETRY_ELSEWHERE"),
        event("job.restarting", attempt="1"),
        event("job.restarting", attempt="2"),
        event("rank.exited", outcome="SIGNALLED", pid="4711"),
        event("job.checked", ok="true"),
        event("job.checked", ok="false"),
        event("job.taken_over", pid="4711"),
        event("job.output_lost", bytes="1000"),
        event("job.output_lost", bytes="24"),
        event("job.warning", processes="3"),
        event("job.warning"),
        event("node.condition", code="NFS_HANGS", status="WARN"),
        event("node.condition", code="NFS_HANGS", status="CRITICAL", was="WARN"),
        event("node.condition", code="NFS_HANGS", status="CRITICAL", injected="true"),
        event("node.condition_cleared", code="NFS_HANGS"),
        event("node.event", code="GPU_XID_APPLICATION", item="xid", number="31", card="3"),
        event("node.event", code="GPU_XID_APPLICATION", item="xid", number="31", card="3", count="41"),
        event("node.event", code="GPU_XID_RESET", item="xid", number="48"),
        event("node.event", code="NVSWITCH_ERROR", item="nvswitch", number="20009"),
        event("node.event", code="OOM_KILL"),
        event("node.event", code="OOM_KILL", count="many"),
        event("job.running"),
    )
    assert value(found, "muster_jobs_ended_total", state="FAILED", recommendation="RETRY_ELSEWHERE") == 1
    assert value(found, "muster_jobs_ended_total", state="SUCCEEDED", recommendation="NONE") == 0
    assert value(found, "muster_job_restarts_total") == 2
    assert value(found, "muster_ranks_ended_total", outcome="SIGNALLED") == 1
    assert value(found, "muster_ranks_ended_total", outcome="HUNG") == 0
    assert value(found, "muster_prechecks_total", result="passed") == 1
    assert value(found, "muster_prechecks_total", result="refused") == 1
    assert value(found, "muster_supervisor_takeovers_total") == 1
    assert value(found, "muster_lost_log_bytes_total") == 1024
    assert matching(found, "muster_conditions_raised_total") == {("NFS_HANGS",): 1}
    assert matching(found, "muster_xid_events_total") == {("3", "31"): 42, ("", "48"): 1}
    assert value(found, "muster_hardware_events_total", code="GPU_XID_APPLICATION") == 42
    assert value(found, "muster_hardware_events_total", code="OOM_KILL") == 1


class Losing:
    """A job that loses output, as its supervisor tells it: records and events rarely, figures each second."""

    def __init__(self, store: EventStore, rank: int = 0) -> None:
        self.entry = entry("loser", State.RUNNING)
        self._store, self._rank, self._recorded, self.since = store, rank, 0, 1000.25

    def record(self, total: int, *, is_open: bool = True, told: bool = True) -> None:
        gaps = self.entry.job.gaps
        if is_open:
            gaps[self._rank] = OpenGap(total, self.since, "No space left on device")
        else:
            gaps.pop(self._rank, None)
        more = total - self._recorded
        self._recorded = total if is_open else 0
        said = {"bytes": str(more), "since": f"{self.since:.3f}", "open": str(is_open).lower()}
        happened = Event(time.time(), "job.output_lost", "loser", None if self._rank == JOB else self._rank)
        if told:
            self._store.append([(None, replace(happened, attributes=said))])

    def tell(self, total: int) -> None:
        self.entry.lost_now = {self._rank: (self.since, total)}


async def lost(metrics: Metrics) -> float | None:
    return value(read(await metrics.page()), "muster_lost_log_bytes_total")


@pytest.mark.parametrize("rank", [0, JOB])
async def test_lost_output_is_counted_while_it_is_lost_and_once(tmp_path: Path, rank: int):
    parts = Parts()
    async with made(tmp_path, parts) as (metrics, store):
        losing = Losing(store, rank)
        parts.jobs = [losing.entry]
        losing.record(8)
        assert await lost(metrics) == 8
        losing.tell(1000)
        assert [await lost(metrics), await lost(metrics)] == [1000, 1000]
        losing.tell(5000)
        assert await lost(metrics) == 5000
        losing.record(6000)  # figures are behind records for up to a second
        assert await lost(metrics) == 6000
        losing.tell(6500)
        assert await lost(metrics) == 6500
        losing.record(6600, is_open=False)
        losing.entry.lost_now = {}
        assert await lost(metrics) == 6600
        losing.since = 2000.5
        losing.record(100)
        losing.tell(150)
        assert await lost(metrics) == 6750
        losing.record(160, is_open=False)
        losing.entry.job.state = State.FAILED
        assert await lost(metrics) == 6760


async def test_a_daemon_that_starts_inside_a_gap_counts_what_is_lost_from_then_on(tmp_path: Path):
    parts = Parts()
    async with made(tmp_path, parts) as (metrics, store):
        losing = Losing(store)
        losing.record(1 << 20, told=False)  # told by an earlier daemon
        parts.jobs = [losing.entry]
        assert await lost(metrics) == 0
        losing.tell((1 << 20) + 300)
        assert await lost(metrics) == 300
        losing.tell((1 << 20) + 700)
        assert await lost(metrics) == 700
        losing.record((1 << 20) + 900, is_open=False)
        assert await lost(metrics) == 900


async def test_the_count_of_lost_output_never_goes_down(tmp_path: Path):
    """A supervisor may die before its figures reach a file: its successor begins with what the journal has."""
    parts = Parts()
    async with made(tmp_path, parts) as (metrics, store):
        losing = Losing(store)
        parts.jobs = [losing.entry]
        losing.record(10)
        losing.tell(1000)
        assert await lost(metrics) == 1000
        losing.tell(10)
        assert await lost(metrics) == 1000
        losing.tell(1200)
        assert await lost(metrics) == 1200
        parts.jobs = []  # removed with what it had not told
        assert await lost(metrics) == 1200


async def test_hangs_are_counted_by_verdict_and_kind(tmp_path: Path):
    found = await shown(
        tmp_path,
        Parts(),
        event("job.suspected_hang", verdict="SUSPECT", kind="spin", ranks="1", confidence="0.9"),
        event("job.hung", verdict="HUNG", kind="spin", ranks="1", confidence="0.95"),
        event("job.suspected_hang", verdict="SUSPECT", kind="deadlock"),
        event("job.recovered", verdict="ALIVE"),
        event("job.recovered", verdict="WAITING", kind=""),
        event("job.driver_hang", verdict="DRIVER_HANG"),
    )
    told = {labels: n for labels, n in matching(found, "muster_hang_verdicts_total").items() if n}  # kind, verdict
    assert told == {
        ("spin", "SUSPECT"): 1,
        ("spin", "HUNG"): 1,
        ("deadlock", "SUSPECT"): 1,
        ("", "RECOVERED"): 2,
        ("", "DRIVER_HANG"): 1,
    }
    assert value(found, "muster_hang_verdicts_total", verdict="HUNG", kind="livelock") == 0


async def test_only_what_happens_from_now_on_is_counted(tmp_path: Path):
    """A counter of the daemon's life: what an earlier one has counted is not counted again."""
    store = await EventStore.open(tmp_path, 1 << 20, boot_id="one")
    store.append([(None, event("job.restarting"))])
    await store.close()
    found = await shown(tmp_path, Parts(), event("job.restarting"))
    assert value(found, "muster_job_restarts_total") == 1


async def test_events_that_were_dropped_before_they_were_counted_end_nothing(tmp_path: Path):
    """Nobody looked for long, and the history is short."""
    store = await EventStore.open(tmp_path, 64 << 10, boot_id="one")
    counting = tally.Tally(store, list)
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run)
        first = store.oldest_cursor()
        with anyio.fail_after(60):
            while store.oldest_cursor() == first:
                store.append((RecordKey("a", 1.0, i), event("job.restarting", text="x" * 1000)) for i in range(100))
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    store.append([(None, event("job.taken_over"))])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(counting.run)
        await until(lambda: value(counted(counting), "muster_supervisor_takeovers_total") == 1)
        store.append([(None, event("job.taken_over"))])
        await until(lambda: value(counted(counting), "muster_supervisor_takeovers_total") == 2)
        tasks.cancel_scope.cancel()
    await store.close()


def counted(tallied: tally.Tally) -> Samples:
    page = Page()
    tallied.fill(page)
    return read(page.text())


async def test_label_sets_are_bounded(tmp_path: Path):
    numbers = [str(i) for i in range(2 * tally.MAX_SETS)]
    many = [event("node.event", code="X", item="xid", number=number, card="0") for number in numbers]
    found = await shown(tmp_path, Parts(), *many)
    assert len(matching(found, "muster_xid_events_total")) == tally.MAX_SETS
    assert value(found, "muster_hardware_events_total", code="X") == 2 * tally.MAX_SETS


async def test_no_label_tells_of_jobs_users_or_commands(tmp_path: Path):
    parts = Parts(
        view=view(gpu(0)),
        cards=[Lease(gpu(0), "job-of-somebody", "process 4711 (python secret.py) of user alice")],
        jobs=[entry("job-of-somebody", State.RUNNING, [Rank(0, 0, 0, 4711)])],
        underused=["job-of-somebody"],
        troubles=["job job-of-somebody: damaged"],
    )
    parts.set_metrics(dcgm_names=True, npu_names=True, job_info=False)
    async with made(tmp_path, parts) as (metrics, store):
        for kind in ("job.ended", "rank.exited", "job.warning", "node.event"):
            store.append([(None, event(kind, by="alice", outcome="EXITED", state="FAILED", pid="4711", bytes="1"))])
        page = (await metrics.page()).decode()
    for secret in ("job-of-somebody", "alice", "4711", "secret.py", "root"):
        assert secret not in page.replace(socket.gethostname(), "")


# --- the loop's lag ---------------------------------------------------------------------------------------------------


def test_the_lag_is_counted_by_bounds():
    lag = LoopLag()
    for seconds in (0.0, 0.001, 0.0011, 0.7, 60.0):
        lag.observe(seconds)
    assert dict(lag.seen.up_to) == dict(zip(LAG_BOUNDS, (2, 3, 3, 3, 3, 3, 4, 4, 4), strict=True))
    assert lag.seen.count == 5 and lag.seen.total == pytest.approx(60.7021)


async def test_a_loop_that_is_blocked_is_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exporter, "LAG_PERIOD_S", 0.01)
    lag = LoopLag()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lag.run)
            while lag.seen.count == 0:
                await anyio.lowlevel.checkpoint()
            time.sleep(0.2)  # noqa: ASYNC251 — this is what is to be seen
            before = lag.seen.count
            while lag.seen.count == before:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    assert lag.seen.total > 0.15


# --- showing ----------------------------------------------------------------------------------------------------------


async def scrape(where: Path) -> Samples:
    async with await anyio.connect_unix(where) as stream:
        await stream.send(b"GET /metrics HTTP/1.1\r\n\r\n")
        got = b""
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                got += await stream.receive()
    return read(got.partition(b"\r\n\r\n")[2])


async def test_a_new_configuration_takes_effect(tmp_path: Path):
    one, two, file = tmp_path / "1.sock", tmp_path / "2.sock", tmp_path / "m.prom"
    parts = Parts()
    async with made(tmp_path, parts) as (metrics, _), anyio.create_task_group() as tasks:
        await tasks.start(metrics.run)
        parts.set_metrics(listen=f"unix:{one}", textfile=str(file))
        metrics.reload()
        await until(lambda: one.exists() and file.exists())
        assert value(await scrape(one), "muster_node_drained") == 0
        assert value(read(file.read_bytes()), "muster_node_drained") == 0
        parts.set_metrics(listen=f"unix:{two}")
        metrics.reload()
        await until(lambda: two.exists() and not one.exists() and not file.exists())
        assert value(await scrape(two), "muster_node_drained") == 0
        parts.set_metrics(listen=f"unix:{two}", dcgm_names=True)
        metrics.reload()
        assert value(await scrape(two), "muster_node_drained") == 0
        tasks.cancel_scope.cancel()
    assert not two.exists() and metrics.trouble == []


async def test_a_port_in_use_is_reported_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exporter, "RETRY_S", 0.01)
    parts = Parts()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        parts.set_metrics(listen=f"127.0.0.1:{port}")
        async with made(tmp_path, parts) as (mine, _), anyio.create_task_group() as tasks:
            await tasks.start(mine.run)
            await until(lambda: mine.trouble)
            assert mine.trouble[0].startswith(f"cannot serve metrics at 127.0.0.1:{port}: Address already in use")
            taken.close()
            await until(lambda: not mine.trouble)
            stream = await anyio.connect_tcp("127.0.0.1", port)
            await stream.aclose()
            tasks.cancel_scope.cancel()
