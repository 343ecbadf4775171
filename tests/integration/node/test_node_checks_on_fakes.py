"""The node checks in a process of their own, over the backends and fake libraries of drivers that the test steers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.probes.checks.result import Code, Status
from tests.conftest import eventually
from tests.fakes.cards import FakeCards

#: Looks at the items of each line that it reads, and prints what they say; with "events" what the driver has reported.
PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from muster.probes.cards.driver import Driver
from muster.probes.cards.driver_settings import DriverSettings
from muster.probes.node.node_checks import Looker, NodeSettings

async def main():
    driver = Driver(lambda: DriverSettings(driver_deadline_s=float(sys.argv[1])))
    await driver.open()
    settings = NodeSettings(looks_in_a_row=1)
    looker = Looker(lambda: settings, driver, log=Path("/does/not/exist"))
    reported = []

    async def listen():
        while True:
            reported.extend(looker.driver_events(await driver.wait_events()))

    listening = asyncio.create_task(listen())
    while line := await asyncio.to_thread(sys.stdin.readline):
        items = line.split()
        if items == ["events"]:
            told = [[f.item, f.device, f.code, f.status, f.number] for f in reported]
        else:
            told = [[r.item, r.device, r.code, r.status, r.reason] for r in await looker.look(items)]
        print(json.dumps(told), flush=True)
    listening.cancel()
    await driver.close()

asyncio.run(main())
"""


class Looking:
    """The program, asked line by line."""

    def __init__(self, cards: FakeCards, deadline_s: float) -> None:
        root = Path(__file__).parents[3]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(deadline_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | cards.env,
            cwd=root,
            text=True,
        )

    def ask(self, items: str) -> list[list[str]]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{items}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the program has ended"
        answer: list[list[str]] = json.loads(line)
        return answer

    def findings(self, items: str) -> list[tuple[str, str, str]]:
        """Device, code and status of what is wrong."""
        quiet = (Status.OK, Status.NOT_APPLICABLE)
        return [(device, code, status) for _, device, code, status, _ in self.ask(items) if status not in quiet]

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def start(tmp_path):
    """Eight healthy cards of a kind, and somebody who looks at them."""
    made: list[tuple[FakeCards, Looking]] = []

    def start(kind: str, deadline_s: float = 60.0) -> tuple[FakeCards, Looking]:
        cards = FakeCards.for_test(tmp_path / kind, kind, 8)
        looking = Looking(cards, deadline_s)
        made.append((cards, looking))
        return cards, looking

    yield start
    for cards, looking in made:
        cards.restore()
        looking.close()
        cards.close()


CARD_ITEMS = {
    "nvidia": "driver gpu-lost recovery ecc row-remap clocks temperature persistence nvlink fabric pcie leftovers",
    "ascend": "driver npu-lost ecc temperature npu-health npu-errors npu-network leftovers",
}


@pytest.mark.parametrize("kind", ["nvidia", "ascend"])
def test_healthy_cards_have_no_findings(start, kind):
    _, looking = start(kind)
    told = looking.ask(CARD_ITEMS[kind])
    assert {status for *_, status, _ in told} <= {Status.OK, Status.NOT_APPLICABLE}, told
    assert {device for _, device, *_ in told} >= {f"card {i}" for i in range(8)}


CRITICAL, WARN, UNKNOWN = Status.CRITICAL, Status.WARN, Status.UNKNOWN


@pytest.mark.parametrize(
    ("item", "changes", "code", "status"),
    [
        ("ecc", {"sram_uncorrected": 1}, Code.GPU_ECC_SRAM_UNCORRECTED, CRITICAL),
        ("ecc", {"dram_uncorrected": 1}, Code.GPU_ECC_UNCORRECTED, WARN),
        ("ecc", {"sram_corrected": 10_001}, Code.GPU_ECC_SRAM_CORRECTED, WARN),
        ("row-remap", {"remapped_pending": True}, Code.GPU_ROW_REMAP_PENDING, CRITICAL),
        ("row-remap", {"remapped_failure": True}, Code.GPU_ROW_REMAP_FAILED, CRITICAL),
        ("recovery", {"recovery_action": 2}, Code.GPU_REBOOT_REQUIRED, CRITICAL),
        ("recovery", {"recovery_action": 7}, Code.GPU_REBOOT_REQUIRED, CRITICAL),
        ("temperature", {"temp_c": 120}, Code.GPU_TEMPERATURE, WARN),
        ("persistence", {"persistence": False}, Code.GPU_PERSISTENCE_OFF, WARN),
        ("fabric", {"fabric_state": 3, "fabric_status": 15}, Code.FABRIC_UNHEALTHY, CRITICAL),
        # A driver without the summary: unhealthy routes, a card without a partition, less bandwidth.
        ("fabric", {"fabric_health": 0, "fabric_mask": 0x12}, Code.FABRIC_UNHEALTHY, CRITICAL),
        ("fabric", {"fabric_health": 0, "fabric_mask": 0x402}, Code.FABRIC_UNHEALTHY, CRITICAL),
        ("fabric", {"fabric_health": 0, "fabric_mask": 0x121}, Code.FABRIC_UNHEALTHY, WARN),
        ("pcie", {"pcie_width": 4}, Code.PCIE_WIDTH_DEGRADED, WARN),
        ("retired-pages", {"retired_pages": 1, "retired_pending": True}, Code.GPU_PAGES_PENDING, CRITICAL),
        ("retired-pages", {"retired_pages": 60}, Code.GPU_PAGES_RETIRED, WARN),
        ("clocks", {"util": 99, "app_clock_mhz": 1200, "sm_clock_mhz": 1200}, Code.GPU_CLOCKS_LOW, WARN),
    ],
)
def test_a_sick_nvidia_card_is_found_and_its_neighbours_are_not(start, item, changes, code, status):
    cards, looking = start("nvidia")
    for name, value in changes.items():
        setattr(cards[3], name, value)
    assert looking.findings(item) == [("card 3", code, status)]
    cards[3].restore()
    assert looking.findings(item) == []


@pytest.mark.parametrize("code", [7, 10, 999])
@pytest.mark.parametrize(
    ("item", "changes", "functions"),
    [
        ("row-remap", {"remapped_failure": True}, ["nvmlDeviceGetRemappedRows"]),
        ("recovery", {"recovery_action": 2}, ["nvmlDeviceGetFieldValues"]),
        ("fabric", {"fabric_state": 3, "fabric_status": 15}, ["nvmlDeviceGetGpuFabricInfoV"]),
        ("pcie", {"pcie_width": 4}, ["nvmlDeviceGetCurrPcieLinkWidth"]),
        ("persistence", {"persistence": False}, ["nvmlDeviceGetPersistenceMode"]),
        (
            "ecc",
            {"sram_uncorrected": 1},
            ["nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetMemoryErrorCounter", "nvmlDeviceGetTotalEccErrors"],
        ),
        ("ecc", {"dram_uncorrected": 1}, ["nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetMemoryErrorCounter"]),
        ("temperature", {"temp_c": 120}, ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"]),
    ],
)
def test_a_call_that_fails_takes_no_finding_back_and_makes_none(start, item, changes, functions, code):
    """Not one time-out of the driver makes a broken card fit again."""
    cards, looking = start("nvidia")
    for name, value in changes.items():
        setattr(cards[3], name, value)
    before = looking.findings(item)
    assert [device for device, *_ in before] == ["card 3"]
    for function in functions:
        cards[3].fail(function, code)
    assert looking.findings(item) == [("card 3", Code.NODE_NOT_TOLD, UNKNOWN)]
    cards[3].clear()
    assert looking.findings(item) == before


@pytest.mark.parametrize("code", [3, 13, 25])
def test_a_card_that_has_no_such_reading_has_no_finding(start, code):
    cards, looking = start("nvidia")
    for function in ("nvmlDeviceGetRemappedRows", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetNvLinkState"):
        cards[3].fail(function, code)
    assert looking.findings("row-remap persistence nvlink nvlink-errors") == []


def test_links_that_the_driver_fails_to_report_are_not_down(start):
    cards, looking = start("nvidia")
    assert looking.findings("nvlink nvlink-errors") == []
    cards[2].fail("nvmlDeviceGetNvLinkState", 999)
    untold = ("card 2", Code.NODE_NOT_TOLD, UNKNOWN)
    assert looking.findings("nvlink nvlink-errors") == [untold, untold]
    cards[2].clear()
    assert looking.findings("nvlink nvlink-errors") == []


def of_card(looking: Looking, index: int) -> list[list[str]]:
    """What the driver has reported of a card."""
    return [event for event in looking.ask("events") if event[1] == f"card {index}"]


def test_a_card_that_falls_off_the_bus_and_comes_back(start):
    cards, looking = start("nvidia")
    cards.xid(0, 13)
    eventually(lambda: looking.ask("events") or cards.xid(0, 13), message="somebody listens to the driver")
    cards.xid(3, 79)
    cards[3].lose()
    assert looking.findings("gpu-lost") == [("card 3", Code.GPU_LOST, CRITICAL)]
    (told,) = eventually(lambda: of_card(looking, 3), message="the driver's Xid")
    assert told == ["xid", "card 3", Code.GPU_OFF_BUS, CRITICAL, 79]
    assert looking.findings("xid") == [("card 3", Code.GPU_OFF_BUS, CRITICAL)]
    # What the lost card does not tell is no fault of its memory.
    assert looking.findings("ecc") == [("card 3", Code.NODE_NOT_TOLD, UNKNOWN)]
    cards[3].back()
    assert looking.findings("gpu-lost ecc") == []


def test_a_card_that_must_be_reset(start):
    cards, looking = start("nvidia")
    cards[5].require_reset()
    assert ("card 5", Code.GPU_RESET_REQUIRED, CRITICAL) in looking.findings("recovery")


def test_a_link_that_goes_down(start):
    cards, looking = start("nvidia")
    assert looking.findings("nvlink") == []
    cards[2].link_down(0)
    assert looking.findings("nvlink") == [("card 2", Code.NVLINK_DOWN, CRITICAL)]
    cards[2].link_up(0)
    assert looking.findings("nvlink") == []


@pytest.mark.slow
def test_a_card_whose_calls_hang_is_unknown_and_the_others_answer(start):
    cards, looking = start("nvidia", 5.0)
    cards[1].hang()
    cards[6].sram_uncorrected = 1
    found = looking.findings("driver ecc")
    assert ("card 1", Code.DRIVER_HANG, UNKNOWN) in found
    assert ("card 6", Code.GPU_ECC_SRAM_UNCORRECTED, CRITICAL) in found
    assert not [f for f in found if f[0] == "card 1" and f[2] == CRITICAL]


def test_a_driver_whose_wait_for_events_hangs(start):
    cards, looking = start("nvidia", 0.5)
    cards.hang("nvmlEventSetWait_v2")
    deaf = [("", Code.DRIVER_HANG, UNKNOWN)]
    eventually(lambda: looking.findings("driver") == deaf, message="the hanging wait is found")
    assert looking.findings("ecc gpu-lost") == []
    cards.clear()
    eventually(lambda: looking.findings("driver") == [], message="the wait returns")


def test_a_driver_that_is_unloaded(start):
    cards, looking = start("nvidia")
    cards.unload()
    looking.ask("ecc")
    assert [code for _, code, _ in looking.findings("driver")] == [Code.DRIVER_NOT_LOADED]


def test_a_process_without_a_job(start):
    cards, looking = start("nvidia")
    cards[4].hold(os.getpid(), 1 << 30)
    told = looking.ask("leftovers")
    reasons = [reason for _, device, code, _, reason in told if device == "card 4" and code == Code.NODE_PENDING]
    assert reasons and f"pid {os.getpid()}" in reasons[0]


@pytest.mark.parametrize(
    ("item", "changes", "code", "status"),
    [
        ("npu-health", {"npu_health": 1}, Code.NPU_ALARM, WARN),
        ("npu-health", {"npu_health": 3}, Code.NPU_UNHEALTHY, CRITICAL),
        ("npu-health", {"npu_boot": 3}, Code.NPU_NOT_BOOTED, CRITICAL),
        ("npu-network", {"npu_network": 2}, Code.NPU_NETWORK_DOWN, WARN),
        ("ecc", {"dram_uncorrected": 2}, Code.NPU_ECC_UNCORRECTED, WARN),
    ],
)
def test_a_sick_ascend_card(start, item, changes, code, status):
    cards, looking = start("ascend")
    for name, value in changes.items():
        setattr(cards[3], name, value)
    assert looking.findings(item) == [("card 3", code, status)]


def test_an_ascend_card_that_drops_off(start):
    cards, looking = start("ascend")
    cards[3].lose()
    assert looking.findings("npu-lost") == [("card 3", Code.NPU_LOST, CRITICAL)]


def test_error_codes_of_an_ascend_card(start):
    cards, looking = start("ascend")

    def raised() -> list[list[str]]:
        if not (told := of_card(looking, 2)):
            cards[2].recover(0x80CB8009)
            cards[2].error(0x80CB8009)
        return told

    item, device, code, _, number = eventually(raised, message="the driver's fault")[0]
    assert (item, device, code, int(number)) == ("npu-errors", "card 2", Code.NPU_FAULT_JOB, 0x80CB8009)
    assert looking.findings("npu-errors") == [("card 2", Code.NPU_ERROR_CODES, WARN)]
