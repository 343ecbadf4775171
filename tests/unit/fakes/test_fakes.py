"""The fake libnvidia-ml.so.1, asked by a process that loads it as the real one."""

import os
import threading

import pytest

from tests.conftest import eventually
from tests.fakes import FakeCards, Process
from tests.fakes import state as fake

GIB = 1 << 30


@pytest.fixture
def ask(cards, asker):
    return asker(cards)


def test_cards_are_reported_as_they_were_made(ask):
    assert ask("p.nvmlDeviceGetCount()") == 4
    assert ask("p.nvmlSystemGetDriverVersion()") == "570.86.15"
    assert ask("[p.nvmlDeviceGetName(c) for c in h]") == ["NVIDIA H100 80GB HBM3"] * 4
    assert len(set(ask("[p.nvmlDeviceGetUUID(c) for c in h]"))) == 4
    assert ask("[p.nvmlDeviceGetPciInfo(c).busId for c in h]")[1] == "00000000:13:00.0"
    assert ask("p.nvmlDeviceGetMemoryInfo(h[0]).total") == 81559 << 20
    assert ask("p.nvmlDeviceGetMemoryInfo(h[0]).used") == 552 << 20
    assert ask("p.nvmlDeviceGetMemoryInfo(h[0], version=p.nvmlMemory_v2).used") == 0
    assert ask("p.nvmlDeviceGetMemoryInfo(h[0], version=0x03000028)") == {"error": 25}
    assert ask("[running(i) for i in range(4)]") == [[]] * 4
    assert ask("p.nvmlDeviceGetHandleByIndex(4)") == {"error": 2}
    assert ask("p.nvmlDeviceGetIndex(p.nvmlDeviceGetHandleByPciBusId(b'0000:13:00.0'))") == 1


def test_a_file_beside_the_library_is_found_without_a_word_of_the_environment(cards, asker):
    ask = asker(cards, MUSTER_FAKE_CARDS="")
    cards[2].util = 55
    assert ask("util(2)") == 55


def test_what_is_set_counts_at_once(cards, ask):
    card = cards[3]
    card.util, card.mem_util, card.power_w, card.temp_c = 97, 31, 512.5, 71
    assert ask("[util(3), p.nvmlDeviceGetUtilizationRates(h[3]).memory]") == [97, 31]
    assert ask("[p.nvmlDeviceGetPowerUsage(h[3]), p.nvmlDeviceGetTemperature(h[3], 0)]") == [512500, 71]
    card.mem_used = 20 * GIB
    assert ask("p.nvmlDeviceGetMemoryInfo(h[3], p.nvmlMemory_v2).used") == 20 * GIB
    card.event_reasons, card.pcie_width, card.pcie_replay = 0x48, 8, 3
    assert ask("p.nvmlDeviceGetCurrentClocksEventReasons(h[3])") == 0x48
    assert ask("[p.nvmlDeviceGetCurrPcieLinkWidth(h[3]), p.nvmlDeviceGetMaxPcieLinkWidth(h[3])]") == [8, 16]
    card.sram_uncorrected, card.dram_corrected, card.old_corrected = 2, 30, 500
    assert ask("[p.nvmlDeviceGetTotalEccErrors(h[3], kind, 0) for kind in (0, 1)]") == [30, 2]
    assert ask("p.nvmlDeviceGetTotalEccErrors(h[3], 0, 1)") == 530
    assert ask("p.nvmlDeviceGetMemoryErrorCounter(h[3], 1, 0, 7)") == 2
    card.remapped_uncorrectable, card.remapped_pending = 1, True
    assert ask("p.nvmlDeviceGetRemappedRows(h[3])") == [0, 1, 1, 0]
    card.recovery_action, card.mem_temp_c = 2, 88
    assert ask("fields(3, 230, 82, 9999)") == [2, 88, 3]
    card.fabric_health = 2
    assert ask("fabric(3)") == [3, 2]
    assert ask("util(0)") == 0
    card.restore()
    assert ask("[util(3), p.nvmlDeviceGetTotalEccErrors(h[3], 1, 0)]") == [0, 0]


def test_a_card_that_has_a_thing_not_says_so(make, asker):
    ask = asker(make(model="NVIDIA GeForce RTX 4090"))
    assert ask("p.nvmlDeviceGetEccMode(h[0])") == {"error": 3}
    assert ask("p.nvmlDeviceGetRemappedRows(h[0])") == {"error": 3}
    assert ask("p.nvmlDeviceGetNvLinkState(h[0], 0)") == {"error": 3}
    assert ask("p.nvmlDeviceGetMigMode(h[0])") == {"error": 3}
    assert ask("fields(0, 82, (138, 0xFFFFFFFF))") == [3, 3]


def test_a_card_in_mig_mode_tells_no_utilization(cards, ask):
    cards[1].mig = 1
    assert ask("p.nvmlDeviceGetMigMode(h[1])") == [1, 1]
    assert ask("util(1)") == {"error": 3} and ask("util(0)") == 0


def test_a_curve_is_followed_over_and_over(cards, ask):
    card = cards[0]
    for seconds, expected in ((0, 10), (500, 55), (1000, 100), (1500, 50), (2000 + 500, 55), (-50, 10)):
        card.curve([(0, 10), (1000, 100), (2000, 0)])
        # As if it had begun so long ago.
        with cards.state.moving(card.raw) as held:
            held.util.epoch -= seconds
        assert abs(ask("util(0)") - expected) <= 1
        assert abs(card.util - expected) <= 1
    card.util = 7
    assert ask("util(0)") == 7


@pytest.mark.parametrize("points", [[], [(0, 100), (10, 500), (30, 200)], [(5, 300), (5, 100), (20, 100)], [(0, 250)]])
@pytest.mark.parametrize("ago", [0, 3, 12, 95])
def test_energy_is_the_power_summed_up(cards, ask, points, ago):
    card = cards[0]
    card.curve(points, "power_w", 250)
    card.energy_mj = 5000
    with cards.state.moving(card.raw) as held:
        held.energy_since -= ago
        held.power_w.epoch -= ago
    moving = fake.moving(card.raw)
    began = moving.energy_since  # a little later than the curve's
    # Middles of steps so small that corners of the curve do not count: a watt for a millisecond is a millijoule.
    expected = 5000 + sum(fake.value_at(moving.power_w, began + (step + 0.5) / 1000) for step in range(ago * 1000))
    assert fake.energy_mj(moving, moving.energy_since + ago) == pytest.approx(expected, rel=1e-3)
    # The library sums it up as we do.
    before = card.energy_mj
    told = ask("p.nvmlDeviceGetTotalEnergyConsumption(h[0])")
    assert before - 1 <= told <= card.energy_mj


def test_traffic_grows_at_its_rate(cards, ask):
    card = cards[0]
    card.fabric_bytes = 1 << 40
    assert ask("sum(fields(0, (138, 0xFFFFFFFF), (139, 0xFFFFFFFF)))") == (1 << 40) // 1024
    assert ask("fields(0, (138, 3))") == [(1 << 39) // 18 // 1024]
    assert ask("fields(0, (138, 18), (202, 0xFFFFFFFF))") == [2, 3]
    card.fabric_rate = 1e12
    with cards.state.moving(card.raw) as held:
        held.fabric_bytes.since -= 10
    assert ask("fields(0, (138, 0xFFFFFFFF))")[0] >= ((1 << 40) + 10e12) / 2048
    card.fabric_rate = 0
    at = card.fabric_bytes
    assert ask("fields(0, (138, 0xFFFFFFFF))") == [int(at) // 2 // 1024]


def test_links_of_the_next_version_count_bytes(make, asker):
    cards = make(model="NVIDIA B200")
    cards[0].fabric_bytes = 36 << 30
    assert asker(cards)("fields(0, (138, 0xFFFFFFFF), (202, 0xFFFFFFFF), (204, 0))") == [3, 18 << 30, 1 << 30]


def test_neighbours(make, asker):
    switched, meshed = make(count=4), make(count=8, model="Tesla V100-SXM2-32GB")
    ask = asker(switched)
    joined = "[[p.nvmlDeviceGetP2PStatus(a, b, 2) for b in h] for a in h]"
    assert ask(joined) == [[5 if a == b else 0 for b in range(4)] for a in range(4)]
    assert ask("p.nvmlDeviceGetNvLinkRemoteDeviceType(h[0], 0)") == 2
    switched[1].raw.link_up = 0
    assert [row[1] for row in ask(joined)] == [5, 5, 5, 5]
    assert ask("p.nvmlDeviceGetNvLinkState(h[1], 0)") == 0
    ask = asker(meshed)
    assert ask("p.nvmlDeviceGetNvLinkRemotePciInfo(h[0], 0).busId") == "00000000:13:00.0"
    assert ask(joined)[0] == [5, 0, 0, 0, 0, 0, 0, 5]
    meshed[0].cpus, meshed[0].numa_node = (0, 2, 65), 1
    assert ask("list(p.nvmlDeviceGetCpuAffinity(h[0], 2))") == [5, 2]
    assert ask("list(p.nvmlDeviceGetMemoryAffinity(h[0], 1, 0))") == [2]
    assert ask("p.nvmlDeviceGetNumaNodeId(h[0])") == {"error": 3}
    assert meshed[0].cpus == (0, 2, 65)


def test_a_lost_card_hides_no_other(cards, ask):
    cards[1].lose()
    assert ask("util(1)") == ask("p.nvmlDeviceGetMemoryInfo(h[1])") == ask("card(1)") == {"error": 15}
    assert ask("p.nvmlDeviceGetIndex(h[1])") == 1 and ask("p.nvmlDeviceGetUUID(h[1])") == cards[1].uuid
    assert ask("[p.nvmlDeviceGetCount(), util(0), util(2)]") == [4, 0, 0]
    cards[1].require_reset()
    assert ask("util(1)") == {"error": 16}
    cards[1].back()
    assert ask("util(1)") == 0


def test_a_card_that_is_gone_changes_the_numbers(cards, ask):
    cards[1].remove()
    assert ask("p.nvmlDeviceGetCount()") == 3
    assert ask("p.nvmlDeviceGetUUID(card(1))") == cards[2].uuid
    assert ask("p.nvmlDeviceGetIndex(h[3])") == 2
    cards[1].insert()
    assert ask("p.nvmlDeviceGetUUID(card(1))") == cards[1].uuid


def test_a_function_fails_for_one_card_or_for_all(cards, ask):
    cards[1].fail("nvmlDeviceGetPowerUsage", 3)
    cards[1].fail("field:82", 4)
    cards.fail("nvmlDeviceGetTotalEnergyConsumption", 999)
    assert ask("[p.nvmlDeviceGetPowerUsage(h[0]), util(1)]") == [70000, 0]
    assert ask("p.nvmlDeviceGetPowerUsage(h[1])") == {"error": 3}
    assert ask("[fields(i, 82, 230) for i in (0, 1)]") == [[40, 0], [4, 0]]
    assert ask("p.nvmlDeviceGetTotalEnergyConsumption(h[3])") == {"error": 999}
    cards[1].clear("nvmlDeviceGetPowerUsage")
    cards.clear()
    assert ask("[p.nvmlDeviceGetPowerUsage(h[1]), fields(1, 82)]") == [70000, [4]]
    assert ask("p.nvmlDeviceGetTotalEnergyConsumption(h[3])") > 0
    with pytest.raises(ValueError, match="has no function 'nvmlDeviceGetPower'"):
        cards[1].fail("nvmlDeviceGetPower", 3)


def test_a_call_hangs_until_it_is_let_go(cards, asker):
    ask, other = asker(cards), asker(cards)
    cards[2].util = 50
    cards[2].hang("nvmlDeviceGetUtilizationRates")
    ask.send("util(2)")
    eventually(lambda: cards[2].waits_in() == ["nvmlDeviceGetUtilizationRates"])
    assert other("[util(0), p.nvmlDeviceGetPowerUsage(h[2])]") == [0, 70000]
    cards[2].clear()
    assert ask.answer() == 50
    eventually(lambda: cards[2].waits_in() == [])
    cards.hang("nvmlInitWithFlags")
    late = asker(cards, init=False)
    late.send("p.nvmlInit()")
    eventually(cards.waits_in)
    cards.clear()
    assert late.answer() is None


def test_calls_are_counted(cards, ask):
    before, others = cards[1].calls, cards[0].calls
    ask("[util(1) for _ in range(10)]")
    assert (cards[1].calls - before, cards[0].calls - others) == (10, 0)


def test_a_process_holds_its_memory_as_long_as_it_lives(cards, ask, sleeper):
    cards[0].processes = [(sleeper.pid, 3 * GIB, True), (4194303, GIB)]
    used = "p.nvmlDeviceGetMemoryInfo(h[0], p.nvmlMemory_v2).used"
    assert ask("running(0)") == [[sleeper.pid, 3 * GIB], [4194303, GIB]]
    assert ask(used) == 4 * GIB
    sleeper.kill()
    # Not waited for: a zombie is on no card.
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert ask("running(0)") == [[4194303, GIB]] and ask(used) == GIB
    assert cards[0].processes == [Process(4194303, GIB)]
    cards[0].release(4194303)
    assert ask("running(0)") == [] and ask(used) == 0


def test_processes_that_draw_and_such_whose_memory_is_not_told(cards, ask):
    cards[0].processes = [(1, GIB, False, True), (2, GIB, False, False, True)]
    assert ask("running(0)") == [[2, None]]
    assert ask("[it.pid for it in p.nvmlDeviceGetGraphicsRunningProcesses(h[0])]") == [1]
    assert ask("p.nvmlDeviceGetProcessUtilization(h[0], 0)") == {"error": 6}
    cards[0].util = 60
    assert ask("[it.smUtil for it in p.nvmlDeviceGetProcessUtilization(h[0], 0)]") == [30, 30]


def test_a_list_of_processes_is_read_whole(cards, ask):
    """A process may change it in the middle of a call."""
    lists = [[(pid, pid)] * 40 for pid in (11, 22)]
    cards[0].processes = lists[0]
    done = threading.Event()

    def change():
        while not done.is_set():
            for wanted in lists:
                cards[0].processes = wanted

    thread = threading.Thread(target=change)
    thread.start()
    try:
        told = ask("[sorted({(len(r), *x) for x in r}) for r in [running(0) for _ in range(500)]]")
    finally:
        done.set()
        thread.join()
    assert {tuple(map(tuple, it)) for it in told} <= {((40, 11, 11),), ((40, 22, 22),)}


def test_an_xid_reaches_who_waits(cards, ask):
    cards.xid(1, 13)
    ask("events = p.nvmlEventSetCreate()")
    ask("[p.nvmlDeviceRegisterEvents(c, 0x8, events) for c in h[:3]]")
    assert ask("wait(events, 0)") == {"error": 10}  # what was before is lost
    ask.send("wait(events, 60000)")
    cards.event(1, 0x1, 0)  # of another type, and of a card that nobody asked about
    cards.xid(3, 31)
    cards.xid(2, 79)
    assert ask.answer() == [2, 0x8, 79]
    cards[0].lose()
    cards.xid(1, 48)
    assert ask("wait(events, 60000)") == [1, 0x8, 48]
    assert ask("wait(events, 60000)") == {"error": 15}
    cards[0].back()
    assert ask("wait(events, 1)") == {"error": 10}
    assert ask("p.nvmlDeviceRegisterEvents(h[0], 1 << 40, events)") == {"error": 3}


def test_a_driver_that_is_unloaded_and_back(cards, asker):
    ask = asker(cards)
    cards.unload()
    assert ask("util(0)") == ask("p.nvmlDeviceGetCount()") == {"error": 999}
    assert asker(cards, init=False)("p.nvmlInit()") == {"error": 9}
    cards.load()
    assert ask("util(0)") == {"error": 999}
    ask("p.nvmlInit()")
    ask("p.nvmlShutdown()")
    assert ask("util(0)") == {"error": 999}  # somebody still has it open
    ask("p.nvmlShutdown()")
    assert ask("util(0)") == {"error": 1}
    ask("p.nvmlInit()")
    assert ask("util(0)") == 0
    cards.unload(18)
    assert asker(cards, init=False)("p.nvmlInit()") == {"error": 18}


def test_a_function_that_an_older_library_lacks(make, asker):
    cards = make(without=["nvmlDeviceGetFieldValues", "nvmlDeviceGetMemoryInfo_v2"])
    ask = asker(cards)
    assert ask("fields(0, 82)") == ask("p.nvmlDeviceGetMemoryInfo(h[0], p.nvmlMemory_v2)") == {"error": 13}
    assert ask("p.nvmlDeviceGetMemoryInfo(h[0]).used") == 552 << 20
    assert ask("p.nvmlDeviceGetBridgeChipInfo(h[0])") == {"error": 13}
    with pytest.raises(ValueError, match="no function 'nvmlNope'"):
        make(without=["nvmlNope"])


def test_a_state_that_is_not_there_or_of_another_version(cards, asker, tmp_path):
    assert asker(cards, init=False, MUSTER_FAKE_CARDS=str(tmp_path / "none"))("p.nvmlInit()") == {"error": 9}
    for content in (b"short", bytes(2_000_000)):
        (tmp_path / "other").write_bytes(content)
        assert asker(cards, init=False, MUSTER_FAKE_CARDS=str(tmp_path / "other"))("p.nvmlInit()") == {"error": 9}
        with pytest.raises(ValueError, match="make the cards anew"):
            fake.State(tmp_path / "other")


def test_another_process_may_steer(cards, ask):
    with FakeCards.open(cards.folder) as others:
        others[0].util = 12
    assert cards[0].util == 12 and ask("util(0)") == 12


def test_more_than_there_is_room_for_is_refused(cards):
    for wrong in (
        lambda: cards[0].curve([(i, 0) for i in range(65)]),
        lambda: cards[0].curve([(1, 0), (0, 0)]),
        lambda: setattr(cards[0], "processes", [(1, 1)] * 65),
        lambda: setattr(cards[0], "links", [0] * 25),
        lambda: setattr(cards[0], "uuid", "x" * 96),
        lambda: [cards[0].fail(f"field:{i}", 3) for i in range(33)],
        lambda: [cards[0].error(i) for i in range(17)],
        lambda: FakeCards.make(cards.folder / "x", "nvidia", 65),
        lambda: FakeCards.make(cards.folder / "x", "nvidia", 1, "Ascend910B3"),
    ):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(IndexError, match="no card 4"):
        cards[4]
