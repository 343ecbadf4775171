"""NVIDIA's backend over a library in NVML's place, loaded and called by the real pynvml."""

import ctypes
import threading
import time

import anyio
import anyio.lowlevel
import pynvml
import pytest

from muster.probes.cards.accelerator import Card, DriverError, Health, Holder, Numbers, Reading, Remapped, Trouble
from muster.probes.cards.driver import Driver, What
from muster.probes.cards.driver_settings import DriverSettings
from muster.probes.cards.nvidia import nvidia_calls, nvidia_card
from muster.probes.cards.nvidia.backend import Nvidia
from tests.conftest import eventually
from tests.fakes import FakeCards
from tests.fakes.state import CONSTANTS

GIB = 1 << 30


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes cards and the backend on them. One library a process: pynvml has one."""
    made = []

    def make(count=4, model="", **more):
        cards = FakeCards.for_test(tmp_path / "cards", "nvidia", count, model, **more)
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(cards.folder / "libnvidia-ml.so.1")))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        backend = Nvidia()
        made.append((cards, backend))
        return cards, backend

    yield make
    for cards, backend in made:
        cards.restore()
        cards.clear()
        backend.close()
        cards.close()


@pytest.fixture
def both(make):
    """The cards, and the backend when it is open."""
    cards, backend = make()
    backend.open()
    return cards, backend


def described(backend):
    return [backend.describe(card) for card in backend.cards()]


def refused(what, *args):
    with pytest.raises(DriverError) as caught:
        what(*args)
    return caught.value


# --- the library and the driver ---------------------------------------------------------------------------------------


def test_without_the_library_pynvml_is_not_needed(monkeypatch):
    def none(name, *args, **kwargs):
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr("muster.probes.cards.nvidia.nvidia_calls.ctypes.CDLL", none)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    error = refused(Nvidia().open)
    assert (error.trouble, error.number, error.of_driver) == (Trouble.NO_LIBRARY, 12, True)
    assert "libnvidia-ml.so.1 is not found: install the driver's libraries" in str(error)


@pytest.mark.parametrize(
    ("number", "trouble", "words"),
    [
        (9, Trouble.NO_DRIVER, "Driver Not Loaded (9): load the nvidia kernel module"),
        (18, Trouble.MISMATCH, "reload it, or reboot"),
        (15, Trouble.LOST, "GPU is lost (15)"),
        (20, Trouble.NOT_TOLD, "Insufficient Memory (20)"),
        (999, Trouble.FAILED, "Unknown Error (999): in a container, check that it may still open /dev/nvidia*"),
        (17, Trouble.FAILED, "(17): in a container, check that it may still open /dev/nvidia*"),
        (2, Trouble.FAILED, "Invalid Argument (2)"),
    ],
)
def test_a_driver_in_trouble(make, number, trouble, words):
    cards, backend = make()
    cards.fail("nvmlInitWithFlags", number)
    error = refused(backend.open)
    assert (error.trouble, error.number, error.of_driver) == (trouble, number, True)
    assert str(error).startswith("NVML says ") and words in str(error)
    cards.clear()
    backend.open()
    backend.open()  # it is open already
    assert len(backend.cards()) == 4 and backend.version() == "570.86.15"


def test_what_is_not_open_says_so(make):
    _, backend = make()
    for call in (backend.cards, backend.version, lambda: backend.read(0), lambda: backend.wait_events(0.01)):
        error = refused(call)
        assert (error.number, error.of_driver) == (1, True)
    backend.close()


def test_a_driver_that_was_unloaded_is_there_again_after_a_new_opening(both):
    cards, backend = both
    cards.unload()
    assert refused(backend.read, 0).number == 999
    backend.close()
    assert refused(backend.open).trouble is Trouble.NO_DRIVER
    cards.load()
    backend.open()
    assert backend.read(0).mem_total == cards[0].mem_total


# --- cards ------------------------------------------------------------------------------------------------------------


def test_who_a_card_is_and_where_it_sits(both):
    cards, backend = both
    bare = backend.cards()
    assert bare == [Card(i, "nvidia") for i in range(4)]
    cards[2].mig = 1
    cards[2].cpus = (0, 3)
    one = backend.describe(bare[2])
    fake = cards[2]
    assert (one.index, one.uuid, one.model, one.serial) == (2, fake.uuid, "NVIDIA H100 80GB HBM3", fake.serial)
    assert (one.bus_id, one.node) == (fake.bus_id[-12:].lower(), f"/dev/nvidia{fake.minor}")
    assert (one.memory_bytes, one.slowdown_c, one.mem_max_c) == (fake.mem_total, 90, 95)
    assert one.mig and not backend.describe(bare[0]).mig
    assert one.cpus[0] == 0 and one.numa_node == fake.numa_node


def test_sysfs_says_where_a_card_sits(both, tmp_path):
    """NVML's own number of a node is of the card's memory, where that is a node."""
    cards, backend = both
    bus = cards[1].bus_id[-12:].lower()
    device = tmp_path / "bus/pci/devices" / bus
    device.mkdir(parents=True)
    (device / "numa_node").write_text("7\n")
    (device / "local_cpulist").write_text("0-3,8\n")
    backend.read(1)
    nvml, handle = nvidia_calls.Nvml(pynvml), pynvml.nvmlDeviceGetHandleByIndex(1)
    assert nvidia_card.describe(nvml, handle, 1, None, tmp_path).numa_node == 7
    cards[1].fail("nvmlDeviceGetCpuAffinity", 3)
    assert nvidia_card.describe(nvml, handle, 1, None, tmp_path).cpus == (0, 1, 2, 3, 8)
    (device / "numa_node").write_text("-1\n")
    assert nvidia_card.describe(nvml, handle, 1, None, tmp_path).numa_node == cards[1].numa_node


@pytest.mark.parametrize(
    ("told", "spelled"),
    [
        (b"00000000:9D:00.0", "0000:9d:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0000:9d:00.0", "0000:9d:00.0"),
        (b"", ""),
        ("garbage", ""),
    ],
)
def test_bus_ids_are_spelled_as_sysfs_does(told, spelled):
    assert nvidia_card.bus_id(told) == spelled


def test_peers_behind_a_switch_and_by_direct_links(both):
    cards, backend = both
    described(backend)
    assert backend.peers(range(4)) == {0: (1, 2, 3), 1: (0, 2, 3), 2: (0, 1, 3), 3: (0, 1, 2)}
    cards[3].lose()
    assert backend.peers(range(4))[0] == (1, 2)
    cards[3].back()
    # Older drivers know of no such status: then the far ends of the links are looked at.
    for card in cards:
        card.fail("nvmlDeviceGetP2PStatus", 3)
    cards[0].links, cards[1].links, cards[2].links, cards[3].links = (1, -1), (0, 2), (1,), ()
    cards[2].link_down(0)
    assert backend.peers(range(4)) == {0: (1,), 1: (0, 2), 2: (), 3: ()}


# --- readings ---------------------------------------------------------------------------------------------------------


def test_a_reading(both):
    cards, backend = both
    card = cards[1]
    card.util, card.mem_util, card.power_w, card.mem_used, card.mem_reserved = 97, 31, 512.5, 5 * GIB, GIB
    assert backend.read(1) == Reading(97.0, 31.0, 5 * GIB, card.mem_total, 512.5, GIB)


def test_utilization_is_not_told_with_mig_and_not_0(both):
    cards, backend = both
    cards[0].util, cards[0].mig = 50, 1
    reading = backend.read(0)
    assert (reading.util, reading.mem_util) == (None, None) and reading.power_w is not None


@pytest.mark.parametrize("without", ["nvmlDeviceGetMemoryInfo_v2", None])
def test_memory_by_either_call(make, without):
    cards, backend = make(without=(without,) if without else ())
    backend.open()
    cards[0].mem_used = 3 * GIB
    if not without:
        cards[0].fail("nvmlDeviceGetMemoryInfo_v2", 25)
    for _ in range(2):
        assert backend.read(0).mem_used >= 3 * GIB and backend.read(0).mem_total == cards[0].mem_total


@pytest.mark.parametrize("number", [3, 13])
def test_a_card_that_tells_no_memory_did_answer(both, number):
    cards, backend = both
    for call in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"):
        cards[0].fail(call, number)
    assert backend.read(0).mem_used is None and backend.read(0).util is not None


@pytest.mark.parametrize(
    ("function", "number", "trouble", "words"),
    [
        ("nvmlDeviceGetHandleByIndex_v2", 15, Trouble.LOST, "GPU is lost (15): it fell off the bus"),
        ("nvmlDeviceGetHandleByIndex_v2", 999, Trouble.FAILED, "Unknown Error (999)"),
        ("nvmlDeviceGetHandleByIndex_v2", 8, Trouble.FAILED, "(8): check the card's auxiliary power cables"),
        ("nvmlDeviceGetHandleByIndex_v2", 17, Trouble.FAILED, "(17): the device rules of the container"),
        ("nvmlDeviceGetMemoryInfo_v2", 15, Trouble.LOST, "GPU is lost (15): it fell off the bus"),
        ("nvmlDeviceGetMemoryInfo_v2", 16, Trouble.RESET_REQUIRED, "muster node reset"),
        ("nvmlDeviceGetMemoryInfo_v2", 20, Trouble.NOT_TOLD, "Insufficient Memory (20)"),
        ("nvmlDeviceGetMemoryInfo_v2", 999, Trouble.FAILED, "Unknown Error (999)"),
        ("nvmlDeviceGetUtilizationRates", 15, Trouble.LOST, "GPU is lost (15): it fell off the bus"),
    ],
)
def test_a_card_in_trouble_hides_no_other(both, function, number, trouble, words):
    cards, backend = both
    cards[1].fail(function, number)
    error = refused(backend.read, 1)
    assert (error.trouble, error.number, error.of_driver) == (trouble, number, False)
    assert words in str(error)
    assert backend.read(0).util is not None and backend.read(2).util is not None
    cards.clear()
    cards[1].clear()
    assert backend.read(1).util is not None


@pytest.mark.parametrize("call", ["read", "health", "holders"])
@pytest.mark.parametrize(("lose", "trouble"), [("lose", Trouble.LOST), ("require_reset", Trouble.RESET_REQUIRED)])
def test_a_card_that_falls_off_the_bus_and_is_back(both, call, lose, trouble):
    cards, backend = both
    getattr(backend, call)(0)
    getattr(cards[0], lose)()
    error = refused(getattr(backend, call), 0)
    assert (error.trouble, error.of_driver) == (trouble, False)
    getattr(backend, call)(1)
    cards[0].back()
    getattr(backend, call)(0)


@pytest.mark.parametrize("call", ["read", "health", "holders", "describe"])
def test_a_driver_that_goes_meanwhile_is_reported_as_the_driver(both, call):
    cards, backend = both
    backend.read(0)
    cards[0].fail("*", 9)
    error = refused(getattr(backend, call), Card(0, "nvidia") if call == "describe" else 0)
    assert (error.trouble, error.of_driver) == (Trouble.NO_DRIVER, True)


def test_a_card_that_does_not_exist(both):
    error = refused(both[1].read, 17)
    assert error.trouble is Trouble.ABSENT and "no card with this number" in str(error)


def test_a_card_that_may_not_be_opened(both):
    cards, backend = both
    cards[0].fail("nvmlDeviceGetHandleByIndex_v2", 4)
    error = refused(backend.read, 0)
    assert error.trouble is Trouble.FAILED and "Insufficient Permissions (4)" in str(error)


# --- health -----------------------------------------------------------------------------------------------------------


def test_health(both):
    cards, backend = both
    card = cards[3]
    card.power_limit_w, card.temp_c, card.mem_temp_c, card.sm_clock_mhz, card.mem_clock_mhz = 650, 71, 88, 1410, 2619
    card.event_reasons, card.persistence, card.pcie_replay = 0x5, False, 12
    card.pcie_width, card.pcie_width_max, card.pcie_gen, card.pcie_gen_max = 8, 16, 4, 5
    card.sram_corrected, card.sram_uncorrected, card.dram_corrected, card.dram_uncorrected = 3, 1, 5, 2
    card.remapped_correctable, card.remapped_uncorrectable, card.remapped_pending = 4, 1, True
    card.recovery_action, card.fabric_bytes, card.energy_mj = 2, 7 << 20, 123_456_789
    card.link_down(1)
    health = backend.health(3)
    assert (health.power_limit_w, health.temp_c, health.mem_temp_c) == (650, 71, 88)
    assert (health.sm_clock_mhz, health.mem_clock_mhz, health.event_reasons) == (1410, 2619, 0x5)
    assert (health.pcie_width, health.pcie_width_max, health.pcie_gen, health.pcie_gen_max) == (8, 16, 4, 5)
    assert (health.persistence, health.pcie_replay, health.recovery_action) == (False, 12, 2)
    assert (health.ecc_on, health.ecc_corrected, health.ecc_uncorrected) == (True, 8, 3)
    assert (health.sram_corrected, health.sram_uncorrected, health.dram_corrected) == (3, 1, 5)
    assert health.remapped == Remapped(4, 1, True, False)
    assert (health.fabric_state, health.fabric_status, health.fabric_health) == (3, 0, 1)
    assert health.links == (True, False) + (True,) * 16
    assert abs(health.fabric_bytes - (7 << 20)) <= 2048
    assert health.energy_mj >= 123_456_789


def test_rows_of_a_card_whose_instances_refuse_the_call_for_them(both):
    cards, backend = both
    cards[3].fail("nvmlDeviceGetRemappedRows", 3)
    cards[3].remapped_correctable, cards[3].remapped_uncorrectable, cards[3].remapped_failure = 4, 1, True
    assert backend.health(3).remapped == Remapped(4, 1, False, True)


def test_what_no_card_can_have_is_not_told(both):
    """NVML_VALUE_NOT_AVAILABLE is -1; a driver in trouble gives it, and worse, with success."""
    cards, backend = both
    card, none = cards[3], (1 << 32) - 1
    card.util = card.mem_util = none
    card.power_w, card.mem_reserved, card.mem_used = none / 1000, card.mem_total + 1, card.mem_total + 1
    card.temp_c, card.mem_temp_c, card.sm_clock_mhz, card.pcie_width = 255, 255, none, none
    reading = backend.read(3)
    assert (reading.util, reading.mem_util, reading.power_w, reading.mem_used) == (None,) * 4
    assert reading.mem_total == card.mem_total
    health = backend.health(3)
    assert (health.temp_c, health.mem_temp_c, health.sm_clock_mhz, health.pcie_width) == (None,) * 4
    assert {"temp_c", "mem_temp_c", "sm_clock_mhz", "pcie_width"} <= set(health.untold)
    card.sram_uncorrected = (1 << 64) - 1
    health = backend.health(3)
    assert (health.sram_uncorrected, health.ecc_uncorrected) == (None, None)
    assert {"sram_uncorrected", "ecc_uncorrected"} <= set(health.untold)
    card.sram_uncorrected = 0
    card.util, card.temp_c = 100, 0
    assert (backend.read(3).util, backend.health(3).temp_c) == (100, 0)


@pytest.mark.parametrize("number", [29, 138, 139, 161, 230])
@pytest.mark.parametrize("says", ["FAKE_NAN", "FAKE_ALL_BITS"])
def test_a_field_that_is_no_number_costs_no_other(both, number, says):
    cards, backend = both
    cards[3].temp_c = 50
    cards[3].fail(f"field:{number}", CONSTANTS[says])
    health = backend.health(3)
    assert health.temp_c == 50 and health.remapped is not None and health.ecc_on is not None
    untold = {138: "fabric_bytes", 139: "fabric_bytes", 230: "recovery_action", 161: "link_errors", 29: "retired"}
    if says == "FAKE_NAN" and number != 29:  # a card of that age has none
        assert getattr(health, untold[number]) is None
    assert health.fabric_bytes is None or health.fabric_bytes < 1 << 64


@pytest.mark.parametrize(
    ("functions", "fields"),
    [
        (["nvmlDeviceGetFieldValues"], ["mem_temp_c", "fabric_bytes", "recovery_action", "link_errors"]),
        (["field:82"], ["mem_temp_c"]),
        (["field:230"], ["recovery_action"]),
        (["field:139"], ["fabric_bytes"]),
        (["nvmlDeviceGetEnforcedPowerLimit"], ["power_limit_w"]),
        (["nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"], ["temp_c"]),
        (["nvmlDeviceGetClockInfo"], ["sm_clock_mhz", "mem_clock_mhz"]),
        (["nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization"], ["encoder", "decoder"]),
        (["nvmlDeviceGetTotalEnergyConsumption"], ["energy_mj"]),
        (["nvmlDeviceGetPcieReplayCounter"], ["pcie_replay"]),
        (["nvmlDeviceGetCurrPcieLinkWidth"], ["pcie_width"]),
        (["nvmlDeviceGetMaxPcieLinkGeneration"], ["pcie_gen_max"]),
        (["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"], ["event_reasons"]),
        (["nvmlDeviceGetPersistenceMode"], ["persistence"]),
        (["nvmlDeviceGetEccMode"], ["ecc_on"]),
        (["nvmlDeviceGetTotalEccErrors"], ["ecc_corrected", "ecc_uncorrected"]),
        (
            ["nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetMemoryErrorCounter"],
            ["sram_corrected", "sram_uncorrected", "dram_corrected"],
        ),
        (["nvmlDeviceGetRemappedRows", "field:144"], ["remapped"]),
        (["nvmlDeviceGetGpuFabricInfoV"], ["fabric_state", "fabric_status", "fabric_health"]),
    ],
)
@pytest.mark.parametrize("number", [3, 13, 999])
def test_what_one_card_does_not_tell_is_none_and_takes_nothing_else_along(both, functions, fields, number):
    cards, backend = both
    for function in functions:
        cards[0].fail(function, number)
    health = backend.health(0)
    # Of its activity it takes two looks, and these cards remap rows and retire no pages.
    others = ("parts", "activity", "retired")
    told = [name for name in health.__slots__ if not name.startswith("npu") and name not in others]
    assert [name for name in told if getattr(health, name) is None] == sorted(fields, key=told.index)
    assert backend.health(1).power_limit_w == 700


def test_older_calls_stand_in(make):
    missing = (
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetSramEccErrorStatus",
        "nvmlDeviceGetMemoryAffinity",
    )
    cards, backend = make(without=missing)
    backend.open()
    cards[0].temp_c, cards[0].event_reasons, cards[0].sram_uncorrected = 55, 0x40, 2
    health = backend.health(0)
    assert (health.temp_c, health.event_reasons, health.sram_uncorrected) == (55, 0x40, 2)
    assert backend.describe(backend.cards()[0]).numa_node is None


def test_an_older_pynvml_lacks_functions(both, monkeypatch):
    for name in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"):
        monkeypatch.delattr(pynvml, name)
    health = both[1].health(0)
    assert health.temp_c is not None and health.fabric_state is None
    assert refused(nvidia_calls.Nvml(pynvml).ask, "nvmlDeviceGetTemperatureV").number == 13


def test_a_card_without_links_ecc_and_memory_sensor(make):
    _, backend = make(model="NVIDIA GeForce RTX 4090")
    backend.open()
    health = backend.health(0)
    assert (health.links, health.fabric_state, health.fabric_bytes, health.mem_temp_c) == ((), None, None, None)
    assert backend.peers(range(4)) == {0: ()}  # the others have not said who they are
    described(backend)
    assert backend.peers(range(4)) == dict.fromkeys(range(4), ())


# --- processes --------------------------------------------------------------------------------------------------------


def test_processes_on_a_card(both):
    cards, backend = both
    assert backend.holders(0) == []
    cards[0].processes = [(11, GIB), (12, 2 * GIB, False, True), (13, 0, False, False, True)]
    assert sorted(backend.holders(0), key=lambda holder: holder.pid) == [
        Holder(11, GIB),
        Holder(12, 2 * GIB, graphics=True),
        Holder(13, None),
    ]
    assert backend.holders(1) == []


def test_a_process_that_computes_and_draws_is_one(both):
    cards, backend = both
    cards[0].processes = [(11, GIB), (11, 3 * GIB, False, True)]
    assert backend.holders(0) == [Holder(11, 3 * GIB, graphics=False)]


def test_more_processes_than_at_the_first_call(both):
    cards, backend = both
    cards[0].processes = [(i, i) for i in range(1, 60)]
    assert len(backend.holders(0)) == 59


def test_processes_by_the_older_calls(make):
    cards, backend = make(
        without=[f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")]
    )
    backend.open()
    cards[0].processes = [(11, GIB)]
    assert backend.holders(0) == [Holder(11, GIB)]


def test_a_card_that_tells_of_no_processes_has_not_none(both):
    cards, backend = both
    for kind in ("Compute", "Graphics", "MPSCompute"):
        cards[0].fail(f"nvmlDeviceGet{kind}RunningProcesses_v3", 3)
    assert refused(backend.holders, 0).trouble is Trouble.NOT_TOLD


# --- events -----------------------------------------------------------------------------------------------------------


class Waiter(threading.Thread):
    """Waits for events as long as a test says, a little at a time."""

    def __init__(self, backend):
        super().__init__(daemon=True)
        self.backend = backend
        self.found, self.errors, self.ended = [], [], False
        self.start()

    def run(self):
        while not self.ended:
            try:
                self.found += self.backend.wait_events(0.2)
            except DriverError as error:
                self.errors.append(error)
                time.sleep(0.01)

    def end(self):
        self.ended = True
        self.join(60)
        assert not self.is_alive()


@pytest.fixture
def waiter(both):
    _, backend = both
    described(backend)
    backend.wait_events(0.001)  # what came before anybody waited is lost
    waiter = Waiter(backend)
    yield waiter
    waiter.end()


def test_an_xid_names_its_card(both, waiter):
    cards, _ = both
    cards.xid(2, 79)
    (event,) = eventually(lambda: waiter.found)
    assert (event.kind, event.code, event.index) == ("nvidia", 79, 2)
    assert event.bus_id == cards[2].bus_id[-12:].lower()


def test_an_uncorrectable_error_is_xid_48_and_a_corrected_one_is_none(both, waiter):
    cards, _ = both
    cards.event(1, 0x1, 0)
    cards.event(1, 0x2, 0)
    cards.xid(1, 63)
    eventually(lambda: len(waiter.found) >= 2)
    assert [(event.code, event.index) for event in waiter.found] == [(48, 1), (63, 1)]


def test_a_card_that_refuses_to_be_listened_to_takes_no_event_from_the_others(both):
    cards, backend = both
    described(backend)
    cards[0].fail("nvmlDeviceRegisterEvents", 3)
    backend.wait_events(0.001)
    cards.xid(3, 13)
    assert [event.index for event in eventually(lambda: backend.wait_events(0.2))] == [3]


def test_a_lost_card_does_not_end_the_waiting_for_the_others(both, waiter):
    cards, _ = both
    cards[0].lose()

    def heard():
        cards.xid(1, 94)
        return any(event.index == 1 for event in waiter.found)

    eventually(heard)
    assert waiter.errors == []


def test_no_card_reports_events(both):
    cards, backend = both
    described(backend)
    cards.fail("nvmlDeviceRegisterEvents", 3)
    for card in cards:
        card.fail("nvmlDeviceRegisterEvents", 3)
    assert refused(backend.wait_events, 0.01).trouble is Trouble.NOT_TOLD


def test_closing_while_somebody_waits(both, waiter):
    cards, backend = both
    backend.close()
    eventually(lambda: waiter.errors)
    assert waiter.errors[0].number == 1
    backend.open()
    described(backend)
    cards.xid(0, 31)

    def heard():
        cards.xid(0, 31)
        return waiter.found

    eventually(heard)


def test_a_driver_that_goes_while_somebody_waits_is_given_back(both, waiter):
    """Else it could never be loaded again."""
    cards, backend = both
    cards.unload()
    eventually(lambda: waiter.errors)
    waiter.end()
    backend.close()
    cards.load()
    backend.open()
    assert backend.read(0).util is not None


def test_who_waits_while_all_else_is_closed_gives_the_library_back(both, waiter):
    """A library that somebody holds is not opened anew, and answers nothing about a driver that was loaded anew."""
    cards, backend = both
    cards.hang("nvmlEventSetWait_v2")
    eventually(lambda: "nvmlEventSetWait_v2" in cards.waits_in())
    cards.unload()
    backend.close()
    cards.load()
    waiter.ended = True
    cards.clear()
    waiter.end()
    backend.open()
    assert backend.read(0).util is not None


# --- under the driver -------------------------------------------------------------------------------------------------


@pytest.fixture
async def driver(make, tmp_path, monkeypatch):
    """The cards and the driver over them, which looks for what is gone all the time."""
    for name in (
        "muster.probes.cards.driver.REOPEN_S",
        "muster.probes.cards.listening._FAILED_S",
        "muster.probes.cards.listening._WAIT_S",
    ):
        monkeypatch.setattr(name, 0.05)
    cards, backend = make()
    driver = Driver(lambda: DriverSettings(driver_deadline_s=60.0), [backend], dev=tmp_path)
    yield cards, driver
    cards.clear()
    for card in cards:
        card.clear()
    await driver.close()


async def test_what_a_card_failed_to_tell_of_itself_is_asked_again(driver):
    cards, driver = driver
    cards[1].mig, cards[1].mig_count = 1, 2
    for function in ("nvmlDeviceGetUUID", "nvmlDeviceGetMigMode"):
        cards[1].fail(function, 999)
    view = await driver.open()
    assert (view.cards[1].uuid, view.cards[1].mig) == ("", False)
    cards[1].clear()
    view = await driver.refresh(What.HEALTH)
    assert (view.cards[1].uuid, view.cards[1].mig) == (cards[1].uuid, True) and {1100, 1101} <= view.cards.keys()


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"]
)
async def test_a_call_that_fails_takes_no_instance_away(driver, function):
    cards, driver = driver
    cards[1].mig, cards[1].mig_count = 1, 2
    before = (await driver.open()).cards
    assert 1101 in before
    cards[1].fail(function, 999)
    assert (await driver.refresh(What.HEALTH)).cards == before
    cards[1].clear()
    cards[1].mig_count = 1
    assert (await driver.refresh(What.HEALTH)).cards.keys() == before.keys() - {1101}


async def test_a_card_that_is_lost_when_it_is_asked_who_it_is(driver):
    cards, driver = driver
    cards[1].fail("nvmlDeviceGetUUID", 15)
    assert (await driver.open()).sick[1].trouble is Trouble.LOST
    assert (await driver.refresh(What.READINGS)).sick[1].trouble is Trouble.LOST
    cards[1].clear()
    view = await driver.refresh(What.READINGS)
    assert not view.sick and view.cards[1].uuid == cards[1].uuid


async def refreshed(driver, until):
    """Readings, again and again until a view is as it must become."""
    with anyio.fail_after(60):
        while not until(view := await driver.refresh(What.READINGS)):
            await anyio.lowlevel.checkpoint()
    return view


async def test_a_driver_that_is_unloaded_and_back_while_somebody_listens(driver):
    cards, driver = driver
    await driver.open()
    heard = []

    async def listen():
        while True:
            heard.extend(await driver.wait_events())

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        assert set((await driver.refresh(What.READINGS)).readings) == {0, 1, 2, 3}
        cards.unload()
        # Who asks while it is being unloaded may be told of an error that is none of its own.
        view = await refreshed(driver, lambda view: view.driver and view.driver.trouble is Trouble.NO_DRIVER)
        assert view.readings == {}
        assert view.cards[2].uuid == cards[2].uuid
        cards.load()
        view = await refreshed(driver, lambda view: len(view.readings) == 4)
        assert view.driver is None and view.sick == {} and view.cards[2].uuid == cards[2].uuid
        with anyio.fail_after(60):
            while not heard:
                cards.xid(2, 79)
                await driver.refresh(What.READINGS)
                await anyio.lowlevel.checkpoint()
        assert (heard[0].code, heard[0].index) == (79, 2)
        group.cancel_scope.cancel()


async def test_a_card_falls_off_the_bus_and_the_others_go_on(driver):
    cards, driver = driver
    assert (await driver.open()).version == "570.86.15"
    await refreshed(driver, lambda view: view.cards[0].peers == (1, 2, 3))
    cards[1].lose()
    for what in What:
        view = await driver.refresh(what)
    assert set(view.readings) == set(view.health) == set(view.holders) == {0, 2, 3}
    assert view.sick[1].trouble is Trouble.LOST
    cards[1].back()
    for what in What:
        view = await driver.refresh(what)
    assert view.sick == {} and set(view.holders) == {0, 1, 2, 3}


# --- containers, and MIG ----------------------------------------------------------------------------------------------


def mounted(tmp_path, *minors):
    dev = tmp_path / "dev"
    dev.mkdir(exist_ok=True)
    for minor in minors:
        (dev / f"nvidia{minor}").touch()
    return Nvidia(dev)


@pytest.mark.parametrize("denied", [True, False])
async def test_a_card_that_the_container_was_not_given_is_none(make, tmp_path, denied):
    """NVML counts the host's, and refuses the others, or tells of them all the same."""
    cards, _ = make()
    if denied:
        cards[0].fail("nvmlDeviceGetHandleByIndex_v2", 4)
        cards[3].fail("nvmlDeviceGetHandleByIndex_v2", 4)
    driver = Driver(lambda: DriverSettings(driver_deadline_s=60.0), [mounted(tmp_path, 1, 2)], dev=tmp_path / "dev")
    view = await driver.open()
    assert list(view.cards) == [1, 2] and not view.sick
    assert view.cards[1].numbers == Numbers(physical=1)
    view = await driver.refresh(What.READINGS)
    assert list(view.readings) == [1, 2] and not view.sick
    await driver.close()


async def test_with_the_nodes_of_all_a_card_that_is_refused_is_in_trouble(make, tmp_path):
    cards, _ = make()
    cards[0].fail("nvmlDeviceGetHandleByIndex_v2", 4)
    driver = Driver(
        lambda: DriverSettings(driver_deadline_s=60.0), [mounted(tmp_path, 0, 1, 2, 3)], dev=tmp_path / "dev"
    )
    view = await driver.open()
    assert list(view.cards) == [0, 1, 2, 3] and view.sick[0].trouble is Trouble.FAILED
    await driver.close()


def test_instances_are_cards_of_their_own(both):
    cards, backend = both
    cards[2].mig, cards[2].mig_count = 1, 2
    card = described(backend)[2]
    assert card.mig and [one.index for one in card.instances] == [1200, 1201]
    first, second = card.instances
    assert first.uuid.startswith("MIG-") and first.uuid != second.uuid
    assert (second.parent, second.mig, second.bus_id, second.node) == (2, False, card.bus_id, card.node)
    assert second.model == "NVIDIA H100 80GB HBM3 MIG 1g.9gb" and second.memory_bytes == cards[2].mem_total // 7
    assert second.numbers == Numbers(physical=2, gpu_instance=8, compute_instance=0)
    cards[2].hold(7001, GIB, lives=False, instance=1)
    assert backend.holders(1200) == [] and backend.holders(1201) == [Holder(7001, GIB)] == backend.holders(2)
    assert backend.read(1201) == Reading(mem_used=GIB, mem_total=cards[2].mem_total // 7, mem_reserved=0)
    assert backend.read(1200).mem_used == 0 and backend.health(1200) == Health()
    cards[2].mig_count = 1
    assert refused(backend.read, 1201).trouble is Trouble.ABSENT
    assert backend.read(1200).mem_used == 0
    assert described(backend)[2].instances == (first,)


async def test_instances_come_and_go(driver):
    cards, driver = driver
    cards[1].mig, cards[1].mig_count = 1, 1
    view = await driver.open()
    assert list(view.cards) == [0, 1, 2, 3, 1100] and list(view.whole) == [0, 1, 2, 3]
    assert view.owners([1100, 3]) == {1, 3, 1100} and view.shared({1: "x"}) == {1: "x", 1100: "x"}
    cards[1].mig_count = 3
    view = await driver.refresh(What.HEALTH)
    assert [index for index in view.cards if index > 3] == [1100, 1101, 1102]
    view = await driver.refresh(What.READINGS)
    assert set(view.readings) == {0, 1, 2, 3, 1100, 1101, 1102} and not view.sick
    cards[1].mig_count = 0
    view = await driver.refresh(What.HEALTH)
    assert list(view.cards) == [0, 1, 2, 3]
