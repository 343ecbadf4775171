"""The Looker over a driver whose backend is steered by the test, and over the kernel's log as a socket."""

import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from muster.probes.calls import watched
from muster.probes.calls.call_threads import AskEach, in_turn
from muster.probes.cards.accelerator import NVIDIA, Backend, CardEvent, DriverError, Health, Holder, Reading, Trouble
from muster.probes.cards.driver import Driver, What
from muster.probes.cards.driver_settings import DriverSettings
from muster.probes.checks import precheck
from muster.probes.checks.result import CheckResult, Code, Status, worst
from muster.probes.kernel.kmsg import Position
from muster.probes.node.node_checks import Finding, Looker, UnknownItem, catalogue, folded, still
from muster.probes.node.node_settings import NodeSettings
from muster.probes.node.reported import kernel_log
from tests.unit.node_looks import FINE, gpu

XID = b"4,%d,%d,-;NVRM: Xid (PCI:0000:01:00): %d, pid=7, something\n"


class Cards(Backend):
    """Two cards. `health` answers what the test put there, raises it, or waits for an Event."""

    kind = NVIDIA

    def __init__(self) -> None:
        self.of: dict[int, object] = {}
        self.asked: list[tuple[What, int]] = []
        #: Of the driver above: short only where a card hangs.
        self.deadline_s = 60.0

    def open(self, ask: AskEach = in_turn) -> None:
        pass

    def close(self) -> None:
        pass

    def version(self) -> str:
        return "570.86"

    def cards(self):
        return [gpu(0), gpu(1)]

    def read(self, index: int) -> Reading:
        self.asked.append((What.READINGS, index))
        return Reading(util=50.0)

    def health(self, index: int) -> Health:
        self.asked.append((What.HEALTH, index))
        answer = self.of.get(index, FINE)
        if isinstance(answer, threading.Event):
            answer.wait()
            return FINE
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Health)
        return answer

    def holders(self, index: int) -> list[Holder]:
        self.asked.append((What.HOLDERS, index))
        return []

    def wait_events(self, timeout_s: float) -> list[CardEvent]:
        raise DriverError(Trouble.NOT_TOLD, "no events here")


@pytest.fixture
def cards() -> Cards:
    return Cards()


@pytest.fixture
async def driver(cards: Cards, tmp_path: Path) -> AsyncIterator[Driver]:
    driver = Driver(lambda: DriverSettings(driver_deadline_s=cards.deadline_s), [cards], dev=tmp_path)
    await driver.open()
    yield driver
    for answer in cards.of.values():
        if isinstance(answer, threading.Event):
            answer.set()
    await driver.close()


def looker(driver, tmp_path, log=None, **settings):
    now = NodeSettings(look_deadline_s=60.0, **settings)
    return Looker(
        lambda: now,
        driver,
        proc=tmp_path / "proc",
        sys=tmp_path / "sys",
        dev=tmp_path / "dev",
        log=log or tmp_path / "none",
    )


def by_item(results):
    found: dict[str, list[CheckResult]] = {}
    for result in results:
        found.setdefault(result.item, []).append(result)
    return found


async def test_all_items_in_the_order_of_the_catalogue(driver, tmp_path):
    results = await looker(driver, tmp_path).look()
    items = list(by_item(results))
    assert items == [check.item for check in catalogue(NodeSettings())]
    assert all(result.seconds >= 0 for result in results)
    assert [r.device for r in by_item(results)["ecc"]] == ["card 0", "card 1"]


async def test_a_host_that_merely_has_the_library_of_a_driver(tmp_path, monkeypatch):
    """As an image has it. That its host's PCI bus shows cards says nothing: a container sees all of that bus."""
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    slots = [0]
    cards = Cards()
    error = DriverError(Trouble.NO_DRIVER, "NVML says Driver Not Loaded (9)", 9, of_driver=True)
    monkeypatch.setattr(cards, "open", refuse(error))
    driver = Driver(lambda: DriverSettings(60.0, slots[0]), [cards], dev=tmp_path / "dev")
    await driver.open()
    results = await looker(driver, tmp_path).look()
    assert {(r.item, r.status) for r in results if r.code is Code.DRIVER_NOT_LOADED} == {("driver", Status.WARN)}
    assert Status.CRITICAL not in {r.status for r in results}
    (found,) = await looker(driver, tmp_path, expected_cards=2).look(["driver"])
    assert found.status is Status.CRITICAL
    slots[0] = 4
    assert (await driver.open()).kind == "slot"
    (found,) = await looker(driver, tmp_path).look(["driver"])
    assert found.code is Code.NODE_NOT_APPLICABLE
    await driver.close()


async def test_cards_that_were_there_and_whose_driver_and_nodes_are_gone(driver, cards, tmp_path, monkeypatch):
    error = DriverError(Trouble.MISMATCH, "Driver/library version mismatch (18)", 18, of_driver=True)
    monkeypatch.setattr(cards, "open", refuse(error))
    await driver.open()
    (found,) = await looker(driver, tmp_path).look(["driver"])
    assert (found.code, found.status) == (Code.DRIVER_MISMATCH, Status.CRITICAL)


async def test_a_mismatch_ends_with_the_first_look_after_the_drivers_return(driver, cards, tmp_path, monkeypatch):
    error = DriverError(Trouble.MISMATCH, "Driver/library version mismatch (18)", 18, of_driver=True)
    monkeypatch.setattr("muster.probes.cards.driver.SOON_S", 0.0)
    with monkeypatch.context() as gone:
        gone.setattr(cards, "open", refuse(error))
        await driver.open()
        looks = looker(driver, tmp_path)
        (found,) = await looks.look(["driver"])
        assert found.code is Code.DRIVER_MISMATCH
    found = await looks.look(["driver"])
    assert {one.status for one in found} == {Status.OK}


def refuse(error):
    def open_(ask: AskEach = in_turn) -> None:
        raise error

    return open_


async def test_some_items_and_those_that_do_not_exist(driver, tmp_path):
    looks = looker(driver, tmp_path)
    assert list(by_item(await looks.look(["ecc", "gpu-lost"]))) == ["gpu-lost", "ecc"]
    with pytest.raises(UnknownItem, match=r"no check named 'eccc'.*did you mean 'ecc'"):
        await looks.look(["eccc"])
    assert issubclass(UnknownItem, precheck.UnknownItem)


async def test_items_that_are_switched_off(driver, tmp_path):
    looks = looker(driver, tmp_path, skip="ecc, ib")
    assert not {"ecc", "ib"} & set(by_item(await looks.look()))
    assert [r.code for r in await looks.look(["ecc"])] == [Code.NODE_OK] * 2  # but who asks is answered


async def test_a_finding_names_card_and_item(driver, cards, tmp_path):
    cards.of[1] = replace(FINE, sram_uncorrected=1, ecc_uncorrected=1)
    found = await looker(driver, tmp_path).look(["ecc"])
    assert [(r.device, r.card, r.code) for r in found] == [
        ("card 0", 0, Code.NODE_OK),
        ("card 1", 1, Code.GPU_ECC_SRAM_UNCORRECTED),
    ]
    assert found[1].sentence.startswith("card 1: ")


async def test_only_cards_that_are_asked_about_are_asked(driver, cards, tmp_path):
    cards.asked.clear()
    found = await looker(driver, tmp_path).look(["ecc", "leftovers"], [1])
    assert {r.card for r in found} == {1}
    assert set(cards.asked) == {(What.HEALTH, 1), (What.HOLDERS, 1)}


async def test_readings_that_are_fresh_enough_serve(driver, cards, tmp_path):
    looks = looker(driver, tmp_path)
    await looks.look(["ecc"])
    cards.asked.clear()
    await looks.look(["ecc"], max_age_s=60.0)
    assert cards.asked == []
    await looks.look(["ecc"])
    assert len(cards.asked) == 2


async def test_a_lost_card_is_lost_and_the_other_goes_on(driver, cards, tmp_path):
    cards.of[0] = DriverError(Trouble.LOST, "NVML says GPU is lost (15)", 15)
    found = by_item(await looker(driver, tmp_path).look(["gpu-lost", "ecc"]))
    assert [(r.device, r.code) for r in found["gpu-lost"]] == [
        ("card 0", Code.GPU_LOST),
        ("card 1", Code.NODE_OK),
        ("", Code.NODE_OK),
    ]
    assert [r.code for r in found["ecc"]] == [Code.NODE_NOT_TOLD, Code.NODE_OK]


async def test_a_card_that_hangs_is_a_finding_of_its_own_and_never_critical(driver, cards, tmp_path):
    cards.of[0] = threading.Event()
    cards.deadline_s = 1.0
    looks = looker(driver, tmp_path)
    found = by_item(await looks.look(["driver", "ecc", "clocks"]))
    assert ("card 0", Code.DRIVER_HANG) in [(r.device, r.code) for r in found["driver"]]
    assert [r.code for r in found["ecc"]] == [Code.NODE_NOT_TOLD, Code.NODE_OK]
    assert worst(r for results in found.values() for r in results) is Status.UNKNOWN
    cards.of[0].set()
    cards.deadline_s = 60.0
    while driver.view.sick:
        await driver.refresh(What.HEALTH)
        await anyio.sleep(0.01)
    assert {r.code for r in await looks.look(["driver"])} == {Code.NODE_OK}


async def test_a_check_that_hangs_or_is_broken_stops_no_other(driver, tmp_path, monkeypatch):
    async def hang(*_):
        await anyio.sleep(3600)

    async def broken(*_):
        raise ZeroDivisionError("a defect")

    looks = Looker(lambda: NodeSettings(look_deadline_s=1.5), driver, log=tmp_path / "none")
    looks.rules["ecc"] = replace(looks.rules["ecc"], judge=hang)
    looks.rules["clocks"] = replace(looks.rules["clocks"], judge=broken)
    found = by_item(await looks.look(["ecc", "clocks", "persistence"]))
    assert [(r.code, r.status) for r in found["ecc"]] == [(Code.PROBE_TIMED_OUT, Status.UNKNOWN)]
    assert [(r.code, r.status) for r in found["clocks"]] == [(Code.PROBE_FAILED, Status.UNKNOWN)]
    assert "ZeroDivisionError: a defect" in found["clocks"][0].reason
    assert {r.code for r in found["persistence"]} == {Code.NODE_OK}


async def test_a_thread_that_still_hangs_is_reported(driver, tmp_path, monkeypatch):
    async def still_hanging(what, function, **_):
        raise watched.StillHanging(what, 30.0)

    monkeypatch.setattr(watched, "call", still_hanging)
    (found,) = await looker(driver, tmp_path).look(["d-state"])
    assert (found.code, found.status) == (Code.PROBE_TIMED_OUT, Status.UNKNOWN)
    assert "still hangs after 30 s" in found.reason


async def test_a_clock_that_is_set_does_nothing(driver, cards, tmp_path, monkeypatch):
    looks = looker(driver, tmp_path)
    await looks.look(["ecc"])
    cards.asked.clear()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86_400.0)
    await looks.look(["ecc"], max_age_s=60.0)  # readings of tomorrow are not fresh
    assert len(cards.asked) == 2
    cards.of[0] = DriverError(Trouble.FAILED, "no", 999)
    monkeypatch.setattr(time, "time", lambda: now + 86_400.0)
    assert (await looks.look(["gpu-lost"]))[0].code is Code.NODE_PENDING


@pytest.mark.parametrize(("item", "words"), [("npu-health", "no ascend"), ("ib", "no InfiniBand"), ("ecc", "")])
async def test_what_applies_here(driver, tmp_path, item, words):
    looks = looker(driver, tmp_path)
    assert words in looks.applicable(item)
    assert bool(looks.applicable(item)) == bool(words)


async def test_every_item_says_whether_it_applies(driver, tmp_path):
    looks = looker(driver, tmp_path)
    assert all(isinstance(looks.applicable(check.item), str) for check in catalogue(NodeSettings()))
    with pytest.raises(UnknownItem):
        looks.applicable("nonsense")


# --- the kernel's log -------------------------------------------------------------------------------------------------


class Kernel:
    """A socket of packets in the place of /dev/kmsg."""

    def __init__(self, monkeypatch, path):
        self.path = path
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.setblocking(False)
        self.seq = 0
        self.real = os.open
        monkeypatch.setattr(os, "open", self.open)

    def open(self, path, *args, **more):
        if str(path) != str(self.path):
            return self.real(path, *args, **more)
        return os.dup(self.ours.fileno())

    def xid(self, number, seconds=None):
        seconds = time.clock_gettime(time.CLOCK_MONOTONIC) if seconds is None else seconds
        self.seq += 1
        self.theirs.send(XID % (self.seq, int(seconds * 1e6), number))

    def say(self, text):
        self.seq += 1
        self.theirs.send(f"4,{self.seq},1000000,-;{text}\n".encode())

    def close(self):
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    kernel = Kernel(monkeypatch, tmp_path / "kmsg")
    yield kernel
    kernel.close()


async def test_a_single_look_reads_the_log_since_the_boot(driver, kernel, tmp_path):
    kernel.xid(79)
    kernel.xid(31)
    kernel.say("Out of memory: Killed process 7 (python)")
    for number in range(100):
        kernel.say(f"line {number}")
    looks = looker(driver, tmp_path, kernel.path)
    found = by_item(await looks.look(["xid", "oom", "kernel-log", "storage"]))
    assert [(r.device, r.card, r.code, r.status) for r in found["xid"]] == [
        ("card 1", 1, Code.GPU_OFF_BUS, Status.CRITICAL)
    ]
    assert [(r.code, r.observed) for r in found["oom"]] == [(Code.NODE_OK, "1 events")]
    assert [r.code for r in found["kernel-log"]] == [Code.NODE_OK]
    assert looks.position is not None and looks.position.seq == kernel.seq
    looks.close()


async def test_a_follower_gets_each_once_and_looks_report_it_too(driver, kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_log, "PACE_S", 0.0)
    looks = looker(driver, tmp_path, kernel.path)
    kernel.xid(48)
    with anyio.fail_after(60):
        (first,) = await looks.kernel_events()
        assert (first.code, first.device, first.number) == (Code.GPU_XID_RESET, "card 1", 48)
        kernel.xid(31)
        assert (await looks.look(["xid"]))[0].code is Code.GPU_XID_RESET  # leaves the new one to the follower
        seen: list[Finding] = []
        while not seen:
            seen = await looks.kernel_events()
    assert [f.code for f in seen] == [Code.GPU_XID_APPLICATION]
    looks.forget(Code.GPU_XID_RESET, "card 1")
    (found,) = await looks.look(["xid"])
    assert (found.code, found.observed) == (Code.NODE_OK, "1 events")
    looks.close()


async def test_a_successor_hears_only_what_is_new(driver, kernel, tmp_path):
    kernel.xid(79)
    first = looker(driver, tmp_path, kernel.path)
    assert len(await first.kernel_events()) == 1
    place = first.position
    assert isinstance(place, Position)
    kernel.xid(48)
    second = Looker(NodeSettings, driver, log=kernel.path, after=place)
    assert [f.number for f in await second.kernel_events()] == [48]
    first.close()
    second.close()


async def test_driver_and_kernel_are_one_finding(driver, kernel, tmp_path):
    looks = looker(driver, tmp_path, kernel.path)
    kernel.xid(79)
    assert len(await looks.kernel_events()) == 1
    assert looks.driver_events([CardEvent(NVIDIA, 79, 1, "0000:01:00.0")]) == []
    (other,) = looks.driver_events([CardEvent(NVIDIA, 79, 0, "0000:00:00.0")])
    assert (other.device, other.source) == ("card 0", "driver")
    looks.close()


async def test_what_happened_goes_with_the_card_to_its_new_number(driver, kernel, tmp_path):
    looks = looker(driver, tmp_path, kernel.path)
    looks.driver_events([CardEvent(NVIDIA, 48, 0, "0000:00:00.0"), CardEvent(NVIDIA, 46, 1, "0000:01:00.0")])
    first, second = (driver.view.cards[index].uuid for index in (0, 1))
    looks.follow(lambda card, uuid: {first: 1, second: 0}[uuid])  # each has the other's number now
    told = by_item(await looks.look(["xid"]))["xid"]
    assert {(it.card, it.device, "Xid 48" in it.reason) for it in told} == {(1, "card 1", True), (0, "card 0", False)}
    looks.follow(lambda card, uuid: None if uuid == first else card)
    assert [it.device for it in by_item(await looks.look(["xid"]))["xid"]] == ["card 0"]
    looks.close()


async def test_a_log_that_cannot_be_read_is_reported_once_and_hides_no_driver_events(driver, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_log, "RETRY_S", 0.01)
    looks = looker(driver, tmp_path)
    assert await looks.kernel_events() == []
    found = by_item(await looks.look(["kernel-log", "storage", "oom", "xid"]))
    assert [(r.code, r.status) for r in found["kernel-log"]] == [(Code.KERNEL_LOG_UNREADABLE, Status.UNKNOWN)]
    assert "does not exist" in found["kernel-log"][0].reason
    assert {r.status for item in ("storage", "oom") for r in found[item]} == {Status.NOT_APPLICABLE}
    assert "kernel-log" in looks.applicable("storage")
    looks.driver_events([CardEvent(NVIDIA, 79, 1, "0000:01:00.0")])
    assert (await looks.look(["xid"]))[0].code is Code.GPU_OFF_BUS
    assert looks.position is None


async def test_a_log_that_appears_is_read(driver, kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_log, "RETRY_S", 0.0)
    looks = looker(driver, tmp_path, kernel.path)
    real, missing = os.open, [True]

    def absent(path, *args, **more):
        if missing and str(path) == str(kernel.path):
            raise FileNotFoundError(2, "No such file or directory")
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", absent)
    assert (await looks.look(["kernel-log"]))[0].code is Code.KERNEL_LOG_UNREADABLE
    missing.clear()
    kernel.xid(79)
    assert len(await looks.kernel_events()) == 1
    assert (await looks.look(["kernel-log"]))[0].code is Code.NODE_OK
    looks.close()


async def test_an_old_error_of_a_disk_is_over_by_itself(driver, kernel, tmp_path, monkeypatch):
    looks = looker(driver, tmp_path, kernel.path)
    kernel.say("Buffer I/O error on dev sda, logical block 1")
    (found,) = await looks.kernel_events()
    monkeypatch.setattr(time, "time", lambda: found.at + 3600.0)
    assert (await looks.look(["storage"]))[0].code is Code.KERNEL_IO_ERROR
    monkeypatch.setattr(time, "time", lambda: found.at + 86_401.0)
    assert (await looks.look(["storage"]))[0].code is Code.NODE_OK
    looks.close()


# --- what results mean together ---------------------------------------------------------------------------------------


def result(item="ecc", status=Status.OK, code=Code.NODE_OK, device="card 3", card=3, reason="fine"):
    return CheckResult(item, status, code, reason, device=device, card=card)


BAD = result(status=Status.WARN, code=Code.GPU_ECC_UNCORRECTED)
UNTOLD = result(status=Status.UNKNOWN, code=Code.NODE_NOT_TOLD)
PENDING = result(code=Code.NODE_PENDING)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([BAD], True),
        ([result()], False),
        ([result(status=Status.NOT_APPLICABLE, code=Code.NODE_NOT_APPLICABLE)], False),
        ([UNTOLD], None),
        ([PENDING], None),
        ([], None),
        ([result(item="clocks")], None),
        ([result(device="card 4", card=4)], None),  # nobody asked about this one
        ([result(status=Status.UNKNOWN, code=Code.PROBE_TIMED_OUT, device="", card=None)], None),
        ([result(status=Status.NOT_APPLICABLE, code=Code.NODE_NOT_APPLICABLE, device="", card=None)], False),
        ([result(status=Status.WARN, code=Code.GPU_ECC_SRAM_CORRECTED)], False),  # another code of the same card
    ],
)
def test_is_a_condition_still_so(results, expected):
    assert still("ecc", "card 3", Code.GPU_ECC_UNCORRECTED, results) is expected


def test_a_broken_row_lasts_while_the_card_does_not_report_rows():
    silent = result("row-remap", Status.NOT_APPLICABLE, Code.NODE_NOT_APPLICABLE)
    assert still("row-remap", "card 3", Code.GPU_ROW_REMAP_FAILED, [silent]) is None
    assert still("row-remap", "card 3", Code.GPU_ROW_REMAP_FAILED, [result("row-remap")]) is False


def test_what_is_mounted_no_more_is_over():
    other = result("nfs", device="/home", card=None)
    assert still("nfs", "/share", Code.NFS_HANGS, [other]) is False
    late = result("nfs", Status.UNKNOWN, Code.PROBE_TIMED_OUT, "", None)
    assert still("nfs", "/share", Code.NFS_HANGS, [late]) is None


@pytest.mark.parametrize("code", [Code.GPU_OFF_BUS, Code.GPU_XID_INSPECT, Code.KERNEL_IO_ERROR])
def test_no_look_takes_away_what_only_time_or_people_do(code):
    assert still("xid", "card 3", code, [result("xid")]) is None
    assert still("xid", "card 3", code, [result("xid", Status.CRITICAL, code)]) is True


def test_people_read_one_line_for_eight_cards():
    eight = [result(device=f"card {i}", card=i) for i in range(8)]
    (line,) = folded(eight)
    assert (line.reason, line.device, line.card) == ("8 cards: fine", "", None)
    eight[3] = BAD
    assert folded(eight) == [BAD]
    eight[4] = replace(UNTOLD, device="card 4", card=4)
    assert folded(eight) == [BAD, eight[4]]
    assert [r.item for r in folded([result("a"), result("b"), result("a", device="card 4")])] == ["a", "b"]


def test_cards_unknown_for_different_reasons_show_these():
    untold = [replace(UNTOLD, device=f"card {i}", card=i, reason=f"reason {i % 5}") for i in range(8)]
    assert [line.reason for line in folded(untold[:2])] == ["2 cards: reason 0; reason 1"]
    assert [line.reason for line in folded(untold)] == ["8 cards: reason 0; reason 1; reason 2; and other reasons"]


def test_two_readings_of_one_card_are_not_two_cards():
    chip, memory = (
        replace(result(device="card 0", card=0), reason=f"its {part} has 50 C") for part in ("chip", "memory")
    )
    (line,) = folded([chip, memory])
    assert (line.device, line.reason) == ("card 0", "its chip has 50 C; its memory has 50 C")
    other = replace(chip, device="card 1", card=1)
    assert [line.reason for line in folded([chip, memory, other])] == ["2 cards: in order"]


@pytest.mark.parametrize(
    "changes",
    [
        {"look_deadline_s": 0},
        {"nfs_timeout_s": float("nan")},
        {"looks_in_a_row": 0},
        {"fd_warn_percent": 101},
        {"slowdown_per_minute": 1.5},
        {"xid_fatal": "13,x"},
        {"disk_paths": "tmp"},
        {"mounts": "/cache,data:ro"},
        {"ib_ignore": "a\0b"},
        {"expected_cards": -1},
        {"ib_flap_window_s": 1},
    ],
)
def test_settings_that_cannot_be_meant(changes):
    with pytest.raises(ValueError, match=next(iter(changes)).split("_")[0]):
        NodeSettings(**changes)
