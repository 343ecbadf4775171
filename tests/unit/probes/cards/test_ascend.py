"""Ascend's backend over a fake libdcmi.so that is steered while it runs, and over scripts in the programs' place."""

import os
import queue
import threading

import anyio
import pytest

from muster.probes.cards.accelerator import (
    Card,
    CardEvent,
    DriverError,
    HbmLife,
    Health,
    Holder,
    Numbers,
    Reading,
    Trouble,
)
from muster.probes.cards.ascend import ascend_network, ascend_numbers, ascend_program
from muster.probes.cards.ascend.ascend_network import Network
from muster.probes.cards.ascend.backend import Ascend
from muster.probes.cards.driver import Driver, What
from muster.probes.cards.driver_settings import DriverSettings
from tests.conftest import eventually
from tests.fakes.cards import FakeCards

MIB = 1 << 20
#: Seconds; a test that waits so long fails.
LONG = 60.0


@pytest.fixture
def make(tmp_path):
    made: list[FakeCards] = []

    def cards(count=4, model="Ascend910B3", **more):
        folder = tmp_path / f"cards{len(made)}"
        made.append(FakeCards.for_test(folder, "ascend", count, model, program=False, **more))
        # Neither this machine's nodes nor its devices.
        dev, sysfs = folder / "dev", folder / "sys"
        dev.mkdir()
        sysfs.mkdir()
        return made[-1], Ascend((str(folder / "libdcmi.so"),), program="", dev=dev, sysfs=sysfs)

    yield cards
    for one in made:
        one.clear()
        for card in one:
            card.clear()
        one.close()


def opened(backend):
    backend.open()
    return backend


def described(backend):
    cards = backend.cards()
    peers = backend.peers([card.index for card in cards])
    return [(backend.describe(card), peers[card.index]) for card in cards]


# --- cards ------------------------------------------------------------------------------------------------------------


def test_a_card_tells_of_itself(make):
    cards, backend = make()
    cards[1].cpus = (0, 1, 2, 3, 48, 50)
    backend.open()
    assert backend.version() == "24.1.rc3"
    assert [card.index for card in backend.cards()] == [0, 1, 2, 3]
    assert backend.describe(backend.cards()[1]) == Card(
        1,
        "ascend",
        uuid="FA4E0001-0000CA4D-000019E5-00000910-00000002",
        model="Ascend 910B3",
        memory_bytes=65536 * MIB,
        bus_id=cards[1].bus_id,
        cpus=(0, 1, 2, 3, 48, 50),
        node="/dev/davinci1",
        serial=cards[1].serial,
        numbers=Numbers(physical=1, logical=1, board=1, chip=0),
    )


@pytest.mark.parametrize(
    ("model", "without", "brothers"),
    [
        ("Ascend910", (), [4, 4, 5, 5]),  # as the driver counts, here or not
        ("Ascend910", ("dcmi_get_netdev_brother_device",), [None] * 4),  # an older one
        ("Ascend910B3", (), [None] * 4),
        ("Ascend950", (), [None] * 4),
    ],
)
def test_the_module_whose_ports_stand_in_for_the_chips_own(make, model, without, brothers):
    cards, backend = make(4, model, without=without)
    assert [card.numbers.brother for card, _ in described(opened(backend))] == brothers
    if brothers[0] is not None:
        cards[0].brother = -1
        assert backend.describe(backend.cards()[0]).numbers.brother == -1


def test_sysfs_tells_of_the_bus(make, tmp_path):
    cards, backend = make(1)
    device = tmp_path / "cards0" / "sys/bus/pci/devices" / cards[0].bus_id
    device.mkdir(parents=True)
    told = {
        "numa_node": "1",
        "local_cpulist": "24-25,72",
        "current_link_width": "8",
        "max_link_width": "16",
        "current_link_speed": "8.0 GT/s PCIe",
        "max_link_speed": "32.0 GT/s PCIe",
    }
    for name, text in told.items():
        (device / name).write_text(f"{text}\n")
    card = backend.describe(opened(backend).cards()[0])
    assert (card.numa_node, card.cpus) == (1, (24, 25, 72))
    health = backend.health(0)
    assert (health.pcie_width, health.pcie_width_max, health.pcie_gen, health.pcie_gen_max) == (8, 16, 3, 5)


def test_a_list_of_processors_that_the_library_cut_is_none(make):
    cards, backend = make(1)
    cards[0].cpus = range(0, 40, 2)
    assert backend.describe(opened(backend).cards()[0]).cpus == ()


def test_cards_that_a_fabric_joins_are_peers(make):
    cards, backend = make()
    for card in cards:
        card.links = ()
    cards[0].links, cards[2].links = (2,), (0,)
    assert [peers for _, peers in described(opened(backend))] == [(2,), (), (0,), ()]


@pytest.mark.parametrize("without", [(), ("dcmi_get_topo_info_by_device_id",)])
def test_the_chips_of_a_board_are_peers(make, without):
    cards, backend = make(4, "Ascend910", without=without)
    for card in cards:
        card.links = ()
    assert [peers for _, peers in described(opened(backend))] == [(1,), (0,), (3,), (2,)]


def test_a_card_without_a_die_goes_by_its_place_on_the_bus(make):
    cards, backend = make(1, without=("dcmi_get_device_die_v2",))
    assert backend.describe(opened(backend).cards()[0]).uuid == cards[0].bus_id == "0000:10:00.0"


def test_chips_of_a_board_in_one_place_on_the_bus_are_two(make):
    """An Atlas 300I Duo: each chip would follow the other's job, history and faults."""
    cards, backend = make(2, "Ascend910", without=("dcmi_get_device_die_v2",))
    cards[1].bus_id = cards[0].bus_id
    told = [card for card, _ in described(opened(backend))]
    assert [card.uuid for card in told] == [cards[0].bus_id, f"{cards[0].bus_id}/1"]
    assert {card.bus_id for card in told} == {cards[0].bus_id}


# --- readings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["Ascend910B3", "Ascend910", "Ascend950"])
def test_readings(make, model):
    cards, backend = make(2, model)
    backend.open()
    card = cards[1]
    card.util, card.mem_util, card.power_w = 87, 41, 301.5
    card.mem_reserved, card.processes = 3000 * MIB, [(1234, 1000 * MIB)]
    if model == "Ascend910":
        card.clear()
    reading = backend.read(1)
    assert reading.util == 87.0 and reading.mem_util == 41.0
    assert reading.mem_used == 4000 * MIB and reading.mem_total == card.mem_total
    assert reading.power_w in (301.5, None)
    assert backend.holders(1) == [Holder(1234, 1000 * MIB)]
    assert backend.holders(0) == []
    assert backend.read(0).util == 0.0


@pytest.mark.parametrize(
    ("util", "profiled", "overall", "expected"),
    [
        (60, False, 70, 60.0),
        (0, False, 0, 0.0),
        (60, True, 55, 55.0),  # a profiler runs: AICore reads 0
        (130, False, 99, 99.0),  # what is over 100 is told as 0
        (0, False, 30, 30.0),  # the vector cores compute
    ],
)
def test_a_card_that_computes_never_reads_zero(make, util, profiled, overall, expected):
    cards, backend = make(1)
    backend.open()
    cards[0].util, cards[0].npu_profiled, cards[0].overall = util, profiled, overall
    assert backend.read(0).util == expected


def test_what_a_card_does_not_tell_is_none_and_not_asked_again(make):
    cards, backend = make(1)
    backend.open()
    for function in ("dcmi_get_device_power_info", "dcmi_get_device_hbm_info"):
        cards[0].fail(function, -8255)
    cards[0].util_types = 1 << 3
    assert backend.read(0) == Reading()
    before = cards[0].calls
    assert backend.read(0) == Reading()
    assert cards[0].calls == before


def test_a_reading_that_fails_is_none_for_itself_alone(make):
    cards, backend = make(1)
    backend.open()
    cards[0].util = 50
    cards[0].fail("dcmi_get_device_power_info", -8005)
    assert backend.read(0).power_w is None and backend.read(0).util == 50.0
    cards[0].clear()
    assert backend.read(0).power_w == 90.0
    cards[0].fail("*", -8005)
    with pytest.raises(DriverError, match="-8005") as caught:
        backend.read(0)
    assert caught.value.trouble is Trouble.FAILED and not caught.value.of_driver


def test_health(make):
    cards, backend = make(2)
    backend.open()
    card = cards[1]
    card.temp_c, card.mem_temp_c, card.fabric_bytes = 55, 62, 1 << 33
    card.util, card.aicpu, card.ctrlcpu, card.vector, card.overall, card.mem_util = 90, 2, 7, 33, 95, 21
    card.dram_corrected, card.dram_uncorrected, card.npu_health, card.npu_network = 12, 1, 2, 3
    card.error(0x80E01801)
    card.raw.voltage_mv = 890
    health = backend.health(1)
    assert health == Health(
        temp_c=55.0,
        mem_temp_c=62.0,
        sm_clock_mhz=1800.0,
        mem_clock_mhz=1600.0,
        fabric_bytes=1 << 33,
        ecc_on=True,
        ecc_corrected=12,
        ecc_uncorrected=1,
        dram_corrected=12,
        npu_health=2,
        npu_errors=(0x80E01801,),
        npu_network=3,
        npu_boot=16,
        npu_voltage=0.89,
        npu_hbm_life=HbmLife(12, 1, 0, 0),
        parts={**health.parts},
    )
    assert dict(health.parts) == {
        "aicore": 90.0,
        "aicpu": 2.0,
        "ctrlcpu": 7.0,
        "hbm": 5.0,
        "hbm_bandwidth": 21.0,
        "vector": 33.0,
        "overall": 95.0,
    }
    assert backend.health(0).npu_health == 0 and backend.health(0).npu_errors == ()


def test_numbers_that_cannot_be_are_none(make):
    cards, backend = make(1)
    backend.open()
    card = cards[0]
    card.dram_uncorrected = 0xFFFFFFFF
    card.raw.sm_clock_mhz, card.mem_reserved = 0xFFFFFFFF, 1 << 48
    card.temp_c = -300
    card.error(0)
    health = backend.health(0)
    assert (health.ecc_uncorrected, health.sm_clock_mhz, health.temp_c, health.npu_errors) == (None, None, None, ())
    assert "0xffffffff errors" in health.untold["ecc_uncorrected"]
    assert backend.read(0).mem_used is None and backend.read(0).mem_total == card.mem_total


JUDGED = {
    "npu_health": "dcmi_get_device_health",
    "npu_errors": "dcmi_get_device_errorcode_v2",
    "ecc_uncorrected": "dcmi_get_device_ecc_info",
    "npu_boot": "dcmi_get_device_boot_status",
    "npu_network": "dcmi_get_device_network_health",
}


@pytest.mark.parametrize("code", [-8005, -8006, -8002, -8013])
@pytest.mark.parametrize("what", JUDGED)
def test_what_a_card_has_and_does_not_tell_is_untold(make, what, code):
    cards, backend = make(1)
    backend.open()
    cards[0].fail(JUDGED[what], code)
    for _ in range(2):
        assert {name: f"{code}" in why for name, why in backend.health(0).untold.items()} == {what: True}


@pytest.mark.parametrize("what", JUDGED)
def test_what_a_card_does_not_have_is_not_untold(make, what):
    cards, backend = make(1)
    backend.open()
    cards[0].fail(JUDGED[what], -8255)
    assert backend.health(0).untold == {}


def test_ports_of_the_next_generation(make):
    cards, backend = make(1, "Ascend950")
    cards[0].links = (100, 100, 100)
    cards[0].link_down(1)
    assert opened(backend).health(0).links == (True, False, True)


def test_no_port_and_no_label_say_nothing_against_a_card(make):
    cards, backend = make(1)
    backend.open()
    for function in ("dcmi_get_netdev_pkt_stats_info", "dcmi_get_card_elabel_v2"):
        cards[0].fail(function, -8008)
    assert backend.health(0).fabric_bytes is None
    assert backend.describe(backend.cards()[0]).serial == ""


# --- trouble ----------------------------------------------------------------------------------------------------------


def test_a_lost_card_hides_no_other(make):
    cards, backend = make()
    backend.open()
    cards[2].lose()
    for ask in (backend.read, backend.health, backend.holders):
        with pytest.raises(DriverError, match="-8012") as caught:
            ask(2)
        assert (caught.value.trouble, caught.value.number) == (Trouble.LOST, -8012)
        assert not caught.value.of_driver
    assert [backend.read(index).util for index in (0, 1, 3)] == [0.0, 0.0, 0.0]
    cards[2].back()
    assert backend.read(2).util == 0.0


def test_a_card_that_the_driver_calls_absent_is_lost(make):
    cards, backend = make()
    backend.open()
    cards[1].npu_health = -1
    with pytest.raises(DriverError, match="absent") as caught:
        backend.health(1)
    assert caught.value.trouble is Trouble.LOST


def test_no_such_card(make):
    _, backend = make(2)
    with pytest.raises(DriverError, match="no card 7") as caught:
        opened(backend).read(7)
    assert caught.value.trouble is Trouble.ABSENT


def test_a_card_that_was_lost_before_is_listed_and_comes_back(make):
    cards, backend = make()
    cards[1].lose()
    backend.open()
    assert [card.index for card in backend.cards()] == [0, 1, 2, 3]
    for ask in (backend.read, lambda index: backend.describe(Card(index, "ascend"))):
        with pytest.raises(DriverError) as caught:
            ask(1)
        assert caught.value.trouble is Trouble.LOST
    cards[1].back()
    cards[1].util = 66
    assert backend.read(1).util == 66.0
    assert backend.describe(backend.cards()[1]).bus_id == cards[1].bus_id


def test_which_of_two_lost_cards_it_is_is_reported_once_one_is_back(make):
    """Their numbers can only be guessed as long as they are lost; a guess never becomes another card's reading."""
    cards, backend = make()
    cards[0].minor, cards[3].minor = 3, 0
    for place in (0, 3):
        cards[place].lose()
    backend.open()
    assert [card.index for card in backend.cards()] == [0, 1, 2, 3]
    cards[0].util = 44
    cards[0].back()
    with pytest.raises(DriverError) as caught:
        backend.read(0)  # it was taken for card 0, and is 3
    assert caught.value.trouble is Trouble.LOST
    assert backend.read(3).util == 44.0


@pytest.mark.parametrize(
    ("model", "function"),
    [
        ("Ascend910B3", "dcmi_get_device_logic_id"),
        ("Ascend910B3", "dcmi_get_device_phyid_from_logicid"),
        ("Ascend910B3", "*"),
        ("Ascend910", "dcmi_get_device_type"),
        ("Ascend950", "dcmiv2_get_chip_phy_id_by_dev_id"),
    ],
)
async def test_a_chip_that_hangs_while_the_chips_are_listed_costs_none_but_itself(make, tmp_path, model, function):
    cards, backend = make(4, model)
    cards[2].hang(function)
    driver = Driver(lambda: DriverSettings(driver_deadline_s=2.0), [backend], dev=tmp_path)
    try:
        view = await driver.open()
        assert view.driver is None and list(view.cards) == [0, 1, 2, 3]
        with anyio.fail_after(LONG):
            while 2 not in (view := await driver.refresh(What.READINGS)).sick:
                pass
        assert view.sick[2].trouble is Trouble.HANG and set(view.readings) == {0, 1, 3}
        assert [index for index, card in view.cards.items() if card.uuid] == [0, 1, 3]
        # No later listing of the cards waits for it again.
        view = await driver.relist(anew=True)
        assert view.driver is None and list(view.cards) == [0, 1, 2, 3]
        assert set((await driver.refresh(What.HEALTH)).health) == {0, 1, 3}
        cards[2].clear()
        with anyio.fail_after(LONG):
            while (view := await driver.refresh(What.READINGS)).sick or not view.cards[2].uuid:
                await driver.refresh(What.HEALTH)
        assert set(view.readings) == {0, 1, 2, 3}
    finally:
        cards[2].clear()
        await driver.close()


async def test_links_that_hang_do_not_keep_the_cards_from_being_listed_anew(make, tmp_path):
    cards, backend = make(3)
    cards[0].hang("dcmi_get_topo_info_by_device_id")
    driver = Driver(lambda: DriverSettings(driver_deadline_s=2.0), [backend], dev=tmp_path)
    try:
        for _ in range(2):
            view = await driver.open()
            assert view.driver is None and view.sick == {}
            assert all(card.uuid and not card.peers for card in view.cards.values())
            await anyio.sleep(1.0)
        assert set((await driver.refresh(What.READINGS)).readings) == {0, 1, 2}
    finally:
        cards[0].clear()
        await driver.close()


def test_a_node_without_a_card_is_reported(make, tmp_path):
    _, backend = make(2)
    for number in (0, 1, 5):
        (tmp_path / "cards0/dev" / f"davinci{number}").touch()
    assert [card.index for card in opened(backend).cards()] == [0, 1, 5]
    with pytest.raises(DriverError, match="davinci5 exists, but the driver lists no such card") as caught:
        backend.read(5)
    assert caught.value.trouble is Trouble.ABSENT


def numbered(backend):
    """Index, CANN's number, node, board and chip of each card."""
    cards = opened(backend).cards()
    return [(c.index, c.numbers.logical, c.node[5:], c.numbers.board, c.numbers.chip) for c in cards]


def mount(folder, *nodes):
    for number in nodes:
        (folder / f"dev/davinci{number}").touch()


def test_a_container_whose_library_shows_the_mounted_cards(make, tmp_path):
    cards, backend = make(2)
    for card, number in zip(cards, (4, 5), strict=True):
        card.minor = card.board = number
    mount(tmp_path / "cards0", 4, 5)
    assert numbered(backend) == [(4, 0, "davinci4", 4, 0), (5, 1, "davinci5", 5, 0)]
    cards[1].util = 77
    assert backend.read(5).util == 77.0
    # One that is lost keeps both numbers.
    cards[0].lose()
    backend.close()
    assert numbered(backend) == [(4, 0, "davinci4", 4, 0), (5, 1, "davinci5", 5, 0)]
    with pytest.raises(DriverError) as caught:
        backend.read(4)
    assert caught.value.trouble is Trouble.LOST


@pytest.mark.parametrize(("counted", "logical"), [(None, (0, 1)), (2, (0, 1)), (8, (4, 5))])
def test_a_container_whose_library_shows_the_whole_host(make, tmp_path, monkeypatch, counted, logical):
    monkeypatch.setattr(ascend_numbers, "counted", lambda: counted)
    _, backend = make(8)
    mount(tmp_path / "cards0", 4, 5)
    assert numbered(backend) == [(4, logical[0], "davinci4", 4, 0), (5, logical[1], "davinci5", 5, 0)]
    with pytest.raises(DriverError, match="lists no card 0"):
        backend.read(0)


def test_a_container_with_the_second_board_of_two_chips(make, tmp_path):
    cards, backend = make(2, "Ascend910")
    for card, number in zip(cards, (6, 7), strict=True):
        card.minor, card.board = number, 3
    mount(tmp_path / "cards0", 6, 7)
    assert numbered(backend) == [(6, 0, "davinci6", 3, 0), (7, 1, "davinci7", 3, 1)]


def test_boards_whose_numbers_are_not_those_of_their_chips(make):
    """A 310P Duo: boards 1 and 24, two chips each."""
    cards, backend = make(4, "Ascend910")
    for card in cards:
        card.board = (1, 24)[card.place // 2]
    assert numbered(backend) == [
        (0, 0, "davinci0", 1, 0), (1, 1, "davinci1", 1, 1), (2, 2, "davinci2", 24, 0), (3, 3, "davinci3", 24, 1),
    ]  # fmt: skip


def test_a_container_of_the_newer_dialect(make, tmp_path):
    cards, backend = make(2, "Ascend950")
    cards[0].minor, cards[1].minor = 2, 6
    mount(tmp_path / "cards0", 2, 6)
    assert numbered(backend) == [(2, 0, "davinci2", None, None), (6, 1, "davinci6", None, None)]


def test_virtual_cards_that_are_a_part_of_one(make, tmp_path):
    """Their library tells the number of the chip that they are cut from."""
    cards, backend = make(2)
    for card in cards:
        card.minor = 3
    mount(tmp_path / "cards0", 148, 149)
    assert [it[:3] for it in numbered(backend)] == [(148, 0, "davinci148"), (149, 1, "davinci149")]


def test_a_library_that_tells_no_physical_numbers_in_a_container(make, tmp_path):
    _, backend = make(2, without=("dcmi_get_device_phyid_from_logicid",))
    mount(tmp_path / "cards0", 4, 5)
    assert [it[:3] for it in numbered(backend)] == [(4, 0, "davinci4"), (5, 1, "davinci5")]


def test_a_driver_that_is_not_loaded_and_then_is(make, tmp_path):
    cards, backend = make(1)
    cards.unload(-8005)
    with pytest.raises(DriverError, match=r"dcmi_init gives -8005 .*no .*/dev/davinci_manager: load") as caught:
        backend.open()
    assert caught.value.trouble is Trouble.NO_DRIVER and caught.value.of_driver
    (tmp_path / "cards0/dev/davinci_manager").touch()
    with pytest.raises(DriverError, match=r"dcmi_init gives -8005 \(internal error\)$") as caught:
        backend.open()
    assert caught.value.trouble is Trouble.FAILED and caught.value.of_driver
    cards.load()
    assert opened(backend).read(0).util == 0.0


def test_a_driver_that_is_unloaded_under_us_and_back(make):
    cards, backend = make(2)
    backend.open()
    cards.unload(-8005)
    with pytest.raises(DriverError) as caught:
        backend.read(1)
    assert caught.value.trouble is Trouble.NO_DRIVER and caught.value.of_driver
    backend.close()
    with pytest.raises(DriverError, match="not open"):
        backend.read(1)
    cards.load()
    assert opened(backend).read(1).util == 0.0


def test_a_container_without_the_right_to_ask(make):
    cards, backend = make(1)
    cards.fail("dcmi_init", -8013)
    with pytest.raises(DriverError, match="container") as caught:
        backend.open()
    assert caught.value.trouble is Trouble.NOT_TOLD and caught.value.of_driver


def test_neither_library_nor_program(tmp_path):
    backend = Ascend((str(tmp_path / "libdcmi.so"),), program="")
    with pytest.raises(DriverError, match="neither is npu-smi: install") as caught:
        backend.open()
    assert caught.value.trouble is Trouble.NO_LIBRARY and caught.value.of_driver


def test_many_threads_at_once(make):
    cards, backend = make(8)
    backend.open()
    for place, card in enumerate(cards):
        card.util = place + 1
    wrong: queue.SimpleQueue[object] = queue.SimpleQueue()

    def ask(index):
        for _ in range(50):
            try:
                if backend.read(index).util != index + 1:
                    wrong.put(backend.read(index))
                backend.health(index)
                backend.open()
            except DriverError as error:
                wrong.put(error)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert wrong.empty()


# --- the network ------------------------------------------------------------------------------------------------------


def test_a_network_that_does_not_answer_takes_no_card_down(make, monkeypatch):
    monkeypatch.setattr(ascend_network, "WAIT_S", 0.01)
    cards, backend = make(1)
    backend.open()
    cards[0].hang("dcmi_get_device_network_health")
    health = backend.health(0)
    assert health.npu_network is None and health.npu_health == 0
    assert "has not answered" in health.untold["npu_network"]
    threads = threading.active_count()
    assert backend.health(0).npu_network is None
    assert threading.active_count() <= threads  # one that hangs is enough
    assert cards[0].waits_in() == ["dcmi_get_device_network_health"]
    cards[0].clear()
    cards[0].npu_network = 6
    eventually(lambda: backend.health(0).npu_network == 6, LONG)


def test_an_answer_that_comes_late_is_reported_at_the_next_look():
    gate = threading.Event()

    def ask():
        gate.wait(LONG)
        return 3

    network = Network(0, ask)
    assert network.look(0.0) == (None, None)
    gate.set()
    eventually(lambda: network.look(0.0)[0] == 3 and not network.link_due(), LONG)


def test_nobody_waits_twice_for_a_network_that_is_slow():
    gate = threading.Event()
    network = Network(0, lambda: 0 if gate.wait(LONG) else 1)
    assert network.look(0.0) == (None, None)
    waited = threading.Thread(target=network.look, args=(LONG,))
    waited.start()
    waited.join(LONG / 2)
    assert not waited.is_alive()
    gate.set()
    eventually(lambda: not network.link_due(), LONG)


def test_a_card_without_a_network_is_not_asked_again():
    asked = []

    def ask():
        asked.append(1)
        raise DriverError(Trouble.NOT_TOLD, "unsupported", -8255)

    network = Network(0, ask)
    assert network.look(LONG)[0] is None
    eventually(lambda: not network.link_due())
    assert network.look(LONG) == (None, None)
    assert asked == [1]


@pytest.mark.parametrize(("said", "up"), [("link status: UP", True), ("link status: DOWN", False), ("?", None)])
def test_the_port_is_asked_for_by_its_program(tmp_path, monkeypatch, said, up):
    program = tmp_path / "hccn_tool"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho "{said}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    network = Network(5, lambda: 6)
    assert network.look(LONG)[0] == 6
    eventually(lambda: not network.link_due(), LONG)
    assert network.look(LONG) == (6, up)
    # An earlier test's card may ask in passing.
    assert (tmp_path / "asked").read_text().splitlines().count("-i 5 -link -g") == 1


# --- events -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["Ascend910B3", "Ascend950"])
def test_faults_are_reported_as_they_come(make, model):
    cards, backend = make(4, model)
    cards[2].minor, cards[3].minor = 3, 2
    backend.open()
    assert backend.wait_events(0.01) == []
    described(backend)
    cards[2].error(0x80E01801, severity=3)
    expected = CardEvent(
        "ascend", 0x80E01801, 3, cards[2].bus_id, "critical: fault 0x80E01801 of the fake card", stays=True
    )
    assert backend.wait_events(LONG) == [expected]
    cards[2].recover(0x80E01801)
    cards[0].error(0x8C1F8608, severity=1)
    found = [backend.wait_events(LONG) for _ in range(2)]
    told = [(event.code, event.index, event.over) for events in found for event in events]
    assert told == [(0x80E01801, 3, True), (0x8C1F8608, 0, False)]
    # What the library reports is not told again by what is wrong now.
    backend.health(0)
    assert backend.wait_events(0.01) == []


def test_where_the_library_reports_nothing_new_error_codes_are(make):
    cards, backend = make(2, without=("dcmi_subscribe_fault_event",))
    cards[1].error(0x80E01801)
    backend.open()
    assert backend.wait_events(0.01) == []
    described(backend)
    backend.health(1)  # what is there from the beginning has not come up
    cards[1].error(0x8C1F8608)
    backend.health(1)
    expected = CardEvent("ascend", 0x8C1F8608, 1, cards[1].bus_id, "fault 0x8C1F8608 of the fake card", stays=True)
    assert backend.wait_events(LONG) == [expected]
    backend.health(1)
    cards[1].recover(0x8C1F8608)
    backend.health(1)
    assert backend.wait_events(0.01) == []
    cards[1].error(0x8C1F8608)
    backend.health(1)
    assert [event.code for event in backend.wait_events(LONG)] == [0x8C1F8608]


# --- npu-smi ----------------------------------------------------------------------------------------------------------

MAPPING = (
    "\\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name\\n"
    "\\t6                              0                              0                              Ascend 910B3\\n"
    "\\t6                              1                              -                              Mcu\\n"
    "\\t7                              0                              1                              Ascend 910B3\\n"
)
TABLE = (
    "| npu-smi 23.0.5                   Version: 23.0.5                                               |\\n"
    "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|\\n"
    "| Chip                      | Bus-Id        | AICore(%%)   Memory-Usage(MB)  HBM-Usage(MB)        |\\n"
    "| 6     910B3               | OK            | 91.0        36                0    / 0             |\\n"
    "| 0                         | 0000:41:00.0  | 97          0    / 0          3401 / 65536         |\\n"
)
SECOND = (
    "| 7     910B3               | Alarm         | -           37                0    / 0             |\\n"
    "| 0                         | 0000:42:00.0  | 0           0    / 0          3400 / 65536         |\\n"
)
FRAME = "+===========================+===============+====================================================+\\n"
PROCESSES = (
    "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\\n"
    "| No running processes found in NPU 6                                                            |\\n"
    "| 7       0                 | 48988         | python                   | 13330                   |\\n"
)
USAGES = "\\tNPU ID : 6\\n\\tAicore Usage Rate(%%) : 95\\n\\tNPU Utilization(%%) : 96\\n\\tChip ID : 0\\n"
COMMON = "\\tNPU ID : 6\\n\\tChip ID : 0\\n\\tAicore curFreq(MHZ) : 1800\\n"


@pytest.fixture
def smi(tmp_path):
    """Writes a script in npu-smi's place, by what it does for each of its commands, and gives a backend over it."""

    def write(**does):
        told = {"m": f"printf '{MAPPING}'", "usages": f"printf '{USAGES}'", "common": f"printf '{COMMON}'"}
        told |= {"info": f"printf '{TABLE}{SECOND}{PROCESSES}'"} | does
        path = tmp_path / "npu-smi"
        new = path.with_suffix(".new")
        new.write_text(
            f'#!/bin/sh\necho "$*" >> {tmp_path}/runs\n'
            f'case "$*" in\n"info -m") {told["m"]};;\n"info -t usages"*) {told["usages"]};;\n'
            f'"info -t common"*) {told["common"]};;\n*) {told["info"]};;\nesac\n'
        )
        new.chmod(0o755)
        new.rename(path)
        return Ascend(("/nonexistent/libdcmi.so",), program=str(path))

    return write


def runs(tmp_path):
    return (tmp_path / "runs").read_text().splitlines()


def test_npu_smi_serves_where_the_library_is_not(smi, tmp_path):
    backend = opened(smi())
    assert backend.version() == "23.0.5"
    assert backend.cards() == [
        Card(
            index, "ascend", bus, "Ascend 910B3", 65536 * MIB, bus_id=bus, node=f"/dev/davinci{index}",
            numbers=Numbers(index, index, 6 + index, 0),
        )
        for index, bus in enumerate(("0000:41:00.0", "0000:42:00.0"))
    ]  # fmt: skip
    assert backend.read(0) == Reading(97.0, None, 3401 * MIB, 65536 * MIB, 91.0)
    assert backend.read(1) == Reading(0.0, None, 3400 * MIB, 65536 * MIB, None)
    assert backend.health(0) == Health(
        temp_c=36.0, sm_clock_mhz=1800.0, npu_health=0, parts={"aicore": 95.0, "overall": 96.0}, partial=True
    )
    assert backend.health(1).npu_health == 2
    assert backend.holders(0) == [] and backend.holders(1) == [Holder(48988, 13330 * MIB)]
    assert backend.peers([0, 1]) == {}
    with pytest.raises(DriverError) as caught:
        backend.wait_events(0)
    assert caught.value.trouble is Trouble.NOT_TOLD


def test_one_run_serves_all_cards(smi, tmp_path, monkeypatch):
    monkeypatch.setattr(ascend_program, "SERVES_S", LONG)
    backend = opened(smi())
    for _ in range(3):
        for index in (0, 1):
            backend.read(index)
            backend.health(index)
            backend.holders(index)
    assert runs(tmp_path).count("info") == 1


def test_each_board_has_its_turn_to_tell_of_its_parts(smi, tmp_path, monkeypatch):
    backend = opened(smi())

    def sweep():
        before = len(runs(tmp_path))
        told = [bool(backend.health(index).parts) for index in (0, 1)]
        return told, [line for line in runs(tmp_path)[before:] if "-t" in line]

    assert sweep() == ([True, False], ["info -t usages -i 6", "info -t common -i 6"])
    assert sweep() == ([True, False], [])  # not so soon
    monkeypatch.setattr(ascend_program, "PAUSE_S", 0.0)
    told, ran = sweep()
    assert told == [True, True] and ran == ["info -t usages -i 7", "info -t common -i 7"]


def test_what_it_told_gets_old(smi, tmp_path, monkeypatch):
    monkeypatch.setattr(ascend_program, "SERVES", 0.0)
    monkeypatch.setattr(ascend_program, "SERVES_S", 0.0)
    backend = opened(smi())
    assert backend.read(1).util == 0.0
    smi(info=f"printf '{TABLE}{FRAME}'")
    with pytest.raises(DriverError, match=r"not among the cards that npu-smi lists \(1\)") as caught:
        backend.read(1)
    assert caught.value.trouble is Trouble.LOST
    assert backend.read(0).util == 97.0
    with pytest.raises(DriverError, match="lists no card 8") as caught:
        backend.read(8)
    assert caught.value.trouble is Trouble.ABSENT


def test_a_table_without_a_mapping_has_its_cards_in_order(smi):
    backend = opened(smi(m="true"))
    assert [card.bus_id for card in backend.cards()] == ["0000:41:00.0", "0000:42:00.0"]


NO_MAPPING = "echo 'the parameter is invalid'; exit 1"
#: A layout with a physical number for each chip, two to a board.
NUMBERED = (
    "| npu-smi 24.1.rc2                 Version: 24.1.rc2                            |\\n"
    "| NPU   Name                | Health        | Power(W)    Temp(C)              |\\n"
    "| Chip  Phy-ID              | Bus-Id        | AICore(%%)   Memory-Usage(MB)     |\\n"
    "| 0     Ascend910           | OK            | 178.5       36                   |\\n"
    "| 0     2                   | 0000:9D:00.0  | 7           0 / 0  3416 / 65536  |\\n"
    "| 0     Ascend910           | Critical      | -           36                   |\\n"
    "| 1     3                   | 0000:9F:00.0  | 0           0 / 0  3195 / 65536  |\\n"
)


def test_without_the_command_for_the_mapping_the_table_has_the_cards(smi):
    backend = opened(smi(m=NO_MAPPING))
    assert [(card.index, card.bus_id) for card in backend.cards()] == [(0, "0000:41:00.0"), (1, "0000:42:00.0")]
    backend = opened(smi(m=NO_MAPPING, info=f"printf '{NUMBERED}'"))
    assert [(card.index, card.bus_id) for card in backend.cards()] == [(2, "0000:9d:00.0"), (3, "0000:9f:00.0")]
    assert backend.read(2).util == 7 and backend.health(3).npu_health == 3
    # Once its driver is gone that is said, and not of the command that it never had.
    backend.close()
    smi(m=NO_MAPPING, info="echo 'dcmi module initialize failed'; exit 87")
    with pytest.raises(DriverError, match=r"npu-smi info ended with 87: dcmi module") as caught:
        backend.open()
    assert caught.value.trouble is Trouble.FAILED and caught.value.of_driver


def test_npu_smi_in_a_container(smi, tmp_path):
    (tmp_path / "dev").mkdir()
    for number in (6, 7):
        (tmp_path / "dev" / f"davinci{number}").touch()
    backend = Ascend(("/nonexistent/libdcmi.so",), program=f"{tmp_path}/npu-smi", dev=tmp_path / "dev")
    smi()
    assert numbered(backend) == [(6, 0, "davinci6", 6, 0), (7, 1, "davinci7", 7, 0)]
    assert backend.read(7).util == 0.0


def test_neither_a_mapping_nor_a_table_with_cards(smi):
    empty = "| NPU   Name                | Health        | Power(W)    Temp(C)              |\\n"
    with pytest.raises(DriverError, match=r"info -m ended with 1: the parameter is invalid") as caught:
        smi(m=NO_MAPPING, info=f"printf '{empty}'").open()
    assert caught.value.trouble is Trouble.FAILED and caught.value.of_driver


@pytest.mark.parametrize(
    ("does", "trouble", "words"),
    [
        ("echo 'dcmi module initialize failed. ret is -8005'; exit 87", Trouble.FAILED, "ended with 87: dcmi module"),
        (
            "echo DrvMngGetConsoleLogLevel failed; echo; echo 'dcmi module initialize failed. ret is -8005'; exit 87",
            Trouble.FAILED,
            r"ended with 87: DrvMngGetConsoleLogLevel failed; dcmi module initialize failed\. ret is -8005$",
        ),
        ("exit 1", Trouble.FAILED, "ended with 1: no message"),
        ("echo other; exit 0", Trouble.NOT_TOLD, "its table was not understood: other"),
        (
            "echo DrvMngGetConsoleLogLevel failed; echo 'dcmi module initialize failed. ret is -8005'",
            Trouble.FAILED,
            r"info fails: DrvMngGetConsoleLogLevel failed; dcmi module initialize failed\. ret is -8005$",
        ),
        ("kill -9 $$", Trouble.FAILED, "ended with -9"),
    ],
)
def test_an_npu_smi_in_trouble(smi, does, trouble, words):
    with pytest.raises(DriverError, match=words) as caught:
        smi(info=does).open()
    assert caught.value.trouble is trouble and caught.value.of_driver
    backend = opened(smi())
    smi(info=does)
    eventually(lambda: raised(backend) is trouble, LONG)  # once what it told before is old


DUO = (
    "| npu-smi 25.2.0                                   Version: 25.2.0                                       |\\n"
    "| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |\\n"
    "| Chip    Device                | Bus-Id          | AICore(%%)    Memory-Usage(MB)                        |\\n"
    "| 2       310P3                 | OK              | NA           51                0     / 0             |\\n"
    "| 0       0                     | 0000:01:00.0    | 0            1529 / 44280                            |\\n"
    "| 2       310P3                 | OK              | NA           49                0     / 0             |\\n"
    "| 1       1                     | 0000:01:00.0    | 7            1411 / 43693                            |\\n"
)


def test_chips_in_one_place_on_the_bus_are_two_for_npu_smi_as_well(smi):
    backend = opened(smi(m=NO_MAPPING, info=f"printf '{DUO}'"))
    assert [(card.uuid, card.bus_id, card.memory_bytes) for card in backend.cards()] == [
        ("0000:01:00.0", "0000:01:00.0", 44280 * MIB),
        ("0000:01:00.0/1", "0000:01:00.0", 43693 * MIB),
    ]


@pytest.mark.parametrize("word", ["UNKNOWN", "Unknown"])
def test_a_card_that_npu_smi_calls_unknown_is_lost(smi, word):
    backend = opened(smi(info=f"printf '{TABLE}{SECOND}{PROCESSES}' | sed s/Alarm/{word}/"))
    assert backend.health(0).npu_health == 0
    with pytest.raises(DriverError, match="absent, or has not started") as caught:
        backend.health(1)
    assert caught.value.trouble is Trouble.LOST and not caught.value.of_driver


@pytest.mark.parametrize("word", ["NA", "Degraded"])
def test_a_health_that_npu_smi_has_other_words_for_is_unread(smi, word):
    health = opened(smi(info=f"printf '{TABLE}{SECOND}' | sed s/Alarm/{word}/")).health(1)
    assert health.npu_health is None and health.untold == {"npu_health": f"npu-smi reports it as {word}"}


def test_a_table_without_processes_tells_nothing_of_them(smi):
    backend = opened(smi(info=f"printf '{TABLE}{SECOND}'"))
    with pytest.raises(DriverError, match="no table of processes") as caught:
        backend.holders(0)
    assert caught.value.trouble is Trouble.NOT_TOLD


@pytest.mark.parametrize(("host", "pids"), [(True, [48988, 48989]), (False, [77, 48989])])
def test_processes_have_the_numbers_that_they_have_here(smi, monkeypatch, host, pids):
    monkeypatch.setattr(ascend_program, "pids_are_the_kernels", lambda: host)
    table = (
        "| NPU     Chip  | Process id    | Process name | Process memory(MB) | Process id in container |\\n"
        "| 7       0     | 48988         | python       | 13330              | 77                      |\\n"
        "| 7       0     | 48989         | python       | 13331              | NA                      |\\n"
    )
    backend = opened(smi(info=f"printf '{TABLE}{SECOND}{table}'"))
    assert backend.holders(1) == [Holder(pids[0], 13330 * MIB), Holder(pids[1], 13331 * MIB)]


def test_a_card_behind_the_end_of_a_torn_table_is_not_lost(smi):
    backend = opened(smi(info=f"printf '{TABLE}{SECOND}' | head -6"))
    assert backend.read(0).util == 97.0
    with pytest.raises(DriverError, match=r"cut off, .*; cards in it: 1") as caught:
        backend.read(1)
    assert caught.value.trouble is Trouble.NOT_TOLD


def with_a_column(table, place):
    """The table as a later npu-smi may print it: a cell more in each line of a chip, before the end or at it."""
    lines = []
    for line in table.split("\\n"):
        cells = line.strip("|").split("|")
        if len(cells) > 1 and "Process" not in line:
            cells.insert(len(cells) + place, " 0 ")
            line = "|" + "|".join(cells) + "|"
        lines.append(line)
    return "\\n".join(lines)


@pytest.mark.parametrize(
    "table",
    [
        with_a_column(TABLE + SECOND, 0) + FRAME + PROCESSES,
        with_a_column(TABLE + SECOND, -1) + FRAME,
        TABLE,
        TABLE[: TABLE.index("| 6 ")] + FRAME,
    ],
    ids=["a-column-more", "a-column-within", "the-end-is-missing", "no-chips"],
)
def test_a_card_of_a_table_that_is_not_understood_is_not_lost(smi, table):
    backend = opened(smi(info=f"printf '{table}'"))
    assert len(backend.cards()) == 2
    with pytest.raises(DriverError) as caught:
        backend.read(1)
    assert caught.value.trouble is Trouble.NOT_TOLD


def raised(backend):
    try:
        backend.read(0)
    except DriverError as error:
        return error.trouble
    return None


def test_an_npu_smi_that_hangs_is_killed(smi, monkeypatch):
    monkeypatch.setattr(ascend_program.run, "__kwdefaults__", {"limit_s": 0.2})
    with pytest.raises(DriverError, match=r"info -m did not end within 0.2 s") as caught:
        smi(m="exec sleep 1000").open()
    assert caught.value.trouble is Trouble.HANG and caught.value.of_driver


def test_an_npu_smi_that_cannot_be_executed(tmp_path):
    program = tmp_path / "npu-smi"
    program.write_text("\x7fELF nonsense")
    program.chmod(0o755)
    with pytest.raises(DriverError, match="cannot be executed") as caught:
        Ascend(("/nonexistent/libdcmi.so",), program=str(program)).open()
    assert caught.value.trouble is Trouble.NOT_TOLD


def test_npu_smi_gets_nothing_of_the_environment_that_hides_cards(smi, tmp_path, monkeypatch):
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/some/where")
    backend = smi(m=f"env > {tmp_path}/env; printf '{MAPPING}'")
    backend.open()
    env = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert "ASCEND_RT_VISIBLE_DEVICES" not in env
    assert env["LD_LIBRARY_PATH"].startswith("/some/where:/usr/local/Ascend/driver/lib64/driver:")


def test_npu_smi_is_looked_for_in_path(smi, tmp_path, monkeypatch):
    smi()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    backend = Ascend(("/nonexistent/libdcmi.so",))
    backend.open()
    assert len(backend.cards()) == 2
