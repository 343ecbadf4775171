"""The fake libdcmi.so, called by ctypes with layouts of the test's own, and what npu-smi and hccn_tool print."""

import ctypes
import struct
import subprocess

import pytest

from tests.conftest import eventually, running
from tests.fakes import npu_smi

GIB = 1 << 30


class Dcmi:
    """The library, in this process; `chip` is (card, device), or of a 950 the device's number."""

    def __init__(self, cards):
        self.library = ctypes.CDLL(str(cards.folder / "libdcmi.so"))

    def number(self, function, *chip_and_more, kind=ctypes.c_int):
        value = kind()
        code = getattr(self.library, function)(*chip_and_more, ctypes.byref(value))
        return code or value.value

    def filled(self, function, *chip_and_more, size):
        """What a function writes into a buffer of this size, of which the rest must stay as it was."""
        buffer = ctypes.create_string_buffer(b"\xee" * (size + 16), size + 16)
        assert getattr(self.library, function)(*chip_and_more, buffer) == 0
        assert buffer.raw[size:] == b"\xee" * 16
        return buffer.raw[:size]


@pytest.fixture
def boards(make):
    return make("ascend", 4, "Ascend910")


@pytest.fixture
def dcmi(boards, monkeypatch):
    monkeypatch.delenv("MUSTER_FAKE_CARDS", raising=False)
    dcmi = Dcmi(boards)
    assert dcmi.library.dcmi_get_device_health(0, 0, None) == -8005
    assert dcmi.library.dcmi_init() == 0
    return dcmi


def test_chips_and_their_numbers(boards, dcmi):
    count, listed = ctypes.c_int(), (ctypes.c_int * 64)()
    assert dcmi.library.dcmi_get_card_list(ctypes.byref(count), listed, 64) == 0
    assert listed[: count.value] == [0, 1]
    assert dcmi.number("dcmi_get_device_num_in_card", 1) == 2
    logic = ctypes.c_int()
    assert dcmi.library.dcmi_get_device_logic_id(ctypes.byref(logic), 1, 0) == 0 and logic.value == 2
    boards[2].minor = 6
    assert dcmi.number("dcmi_get_device_phyid_from_logicid", 2, kind=ctypes.c_uint) == 6
    assert dcmi.number("dcmi_get_device_type", 0, 1) == 0 and dcmi.number("dcmi_get_device_type", 0, 2) == 1
    assert dcmi.number("dcmi_get_device_health", 2, 0) == -8007
    info = dcmi.filled("dcmi_get_device_chip_info_v2", 0, 0, size=132)
    assert info[:7] == b"Ascend\0" and info[32:36] == b"910\0" and info[100:110] == b"Ascend910\0"
    pcie = struct.unpack("IIIIiIII", dcmi.filled("dcmi_get_device_pcie_info_v2", 0, 1, size=64)[:32])
    assert pcie[0] == 0x19E5 and pcie[4:] == (0, 0x13, 0, 0)
    dies = {dcmi.filled("dcmi_get_device_die_v2", card, chip, 1, size=20) for card in (0, 1) for chip in (0, 1)}
    assert len(dies) == 4
    assert dcmi.number("dcmi_get_topo_info_by_device_id", 0, 0, 0, 1) == 6
    assert dcmi.number("dcmi_get_topo_info_by_device_id", 0, 0, 1, 1) == 7


def test_readings_of_a_chip(boards, dcmi):
    card = boards[1]
    card.util, card.mem_util, card.temp_c, card.vector = 42, 17, 61, 9
    card.mem_used = 100 * GIB  # more than there is: full
    rate = "dcmi_get_device_utilization_rate"
    assert [dcmi.number(rate, 0, 1, kind) for kind in (2, 3, 4, 6, 10, 12, 13)] == [42, 0, 3, 100, 17, 9, 42]
    assert [dcmi.number(rate, 0, 1, kind) for kind in (1, 5)] == [-8255, -8255]
    card.npu_profiled = True
    assert [dcmi.number(rate, 0, 1, kind) for kind in (2, 12, 13)] == [0, 0, 42]
    card.npu_profiled, card.util = False, 101
    assert dcmi.number(rate, 0, 1, 2) == 0
    assert dcmi.number("dcmi_get_device_temperature", 0, 1) == 61
    boards[0].power_w = 178.5
    assert dcmi.number("dcmi_get_device_power_info", 0, 0) == 1785
    assert dcmi.number("dcmi_get_device_power_info", 0, 1) == -8255
    card.mem_used = 216 << 20
    size, mhz, used, degrees, bandwidth = struct.unpack(
        "QI4xQiI", dcmi.filled("dcmi_get_device_hbm_info", 0, 1, size=32)
    )
    assert (size, mhz, used, degrees, bandwidth) == (65536, 1600, 3416, 40, 17)
    card.dram_corrected, card.dram_uncorrected, card.old_corrected = 5, 1, 10
    ecc = dcmi.filled("dcmi_get_device_ecc_info", 0, 1, 2, size=28)
    assert struct.unpack("i6I", ecc) == (1, 5, 1, 15, 1, 0, 0)
    card.npu_health, card.npu_network, card.npu_boot = 2, 6, 15
    assert dcmi.number("dcmi_get_device_health", 0, 1, kind=ctypes.c_uint) == 2
    assert dcmi.number("dcmi_get_device_network_health", 0, 1) == 6
    assert dcmi.number("dcmi_get_device_boot_status", 0, 1) == 15
    card.npu_health = -1
    assert dcmi.number("dcmi_get_device_health", 0, 1, kind=ctypes.c_uint) == 0xFFFFFFFF
    card.fabric_bytes = 1000
    stats = struct.unpack("52Q", dcmi.filled("dcmi_get_netdev_pkt_stats_info", 0, 1, 0, size=496)[:416])
    assert (stats[21], stats[25]) == (500, 500)


def test_processes_of_a_chip(boards, dcmi, sleeper):
    boards[0].processes = [(sleeper.pid, GIB, True), *((i, i) for i in range(1, 41))]
    room, count = (ctypes.c_char * (32 * 16))(), ctypes.c_int()
    assert dcmi.library.dcmi_get_device_resource_info(0, 0, room, ctypes.byref(count)) == 0
    assert count.value == 32
    assert struct.unpack_from("i4xQ", room.raw, 0) == (sleeper.pid, GIB)
    assert struct.unpack_from("i4xQ", room.raw, 16 * 31) == (31, 31)


def test_a_chip_that_dropped_off_and_a_driver_that_went(boards, dcmi):
    boards[0].lose()
    assert dcmi.number("dcmi_get_device_temperature", 0, 0) == -8012
    assert dcmi.number("dcmi_get_device_temperature", 0, 1) == 35
    boards.unload(-8005)
    assert dcmi.number("dcmi_get_device_temperature", 0, 1) == -8009
    assert dcmi.library.dcmi_init() == -8005
    boards.load()
    assert dcmi.library.dcmi_init() == 0
    assert dcmi.number("dcmi_get_device_temperature", 0, 1) == 35


def test_error_codes_are_listed_and_reported(boards, dcmi):
    heard = []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda event: heard.append(ctypes.string_at(event, 360)))
    filter_ = type("filter", (ctypes.Structure,), {"_fields_": [("bytes", ctypes.c_uint64 * 6)]})()
    boards[0].error(0x80E01801)
    assert dcmi.library.dcmi_subscribe_fault_event(-1, -1, filter_, callback) == 0
    assert dcmi.library.dcmi_subscribe_fault_event(-1, -1, filter_, callback) == -8020
    boards[3].error(0x80CD8008, severity=3)
    boards[3].error(0x80E18402, severity=1)
    boards[3].recover(0x80CD8008, severity=3)
    eventually(lambda: len(heard) == 3)
    told = [struct.unpack_from("I4xIHBBBBBB", event) for event in heard]
    assert [(code, chip, severity, assertion) for _, code, chip, *_, severity, assertion in told] == [
        (0x80CD8008, 3, 3, 1),
        (0x80E18402, 3, 1, 1),
        (0x80CD8008, 3, 3, 0),
    ]
    count, codes = ctypes.c_int(), (ctypes.c_uint * 128)()
    assert dcmi.library.dcmi_get_device_errorcode_v2(1, 1, ctypes.byref(count), codes, 128) == 0
    assert codes[: count.value] == [0x80E18402] == boards[3].errors


def test_the_next_generation_has_calls_of_its_own(make, monkeypatch):
    monkeypatch.delenv("MUSTER_FAKE_CARDS", raising=False)
    cards = make("ascend", 3, "Ascend950")
    dcmi = Dcmi(cards)
    assert dcmi.library.dcmi_init() == -8255
    assert dcmi.library.dcmiv2_init() == 0
    count, listed = ctypes.c_int(), (ctypes.c_int * 64)()
    assert dcmi.library.dcmiv2_get_device_list(listed, ctypes.byref(count), 64) == 0
    assert listed[: count.value] == [0, 1, 2]
    cards[2].temp_c = 50
    assert dcmi.number("dcmiv2_get_device_temperature", 2) == 50
    assert dcmi.number("dcmi_get_device_temperature", 0, 0) == -8255
    cards[2].link_down(0)
    link, *ports = struct.unpack("37i", dcmi.filled("dcmiv2_get_ub_port_link_status", 2, size=148))
    assert link == 2 and ports[:3] == [3, 1, 1] and ports[18:] == [0] * 18


# --- npu-smi ----------------------------------------------------------------------------------------------------------

#: A board as it is printed on a real machine (910_93).
REAL = """\
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 178.5       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3416 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          3195 / 65536         |
"""


def program(cards, *command):
    """Runs it with what a daemon would leave of its environment."""
    env = {"PATH": cards.env["PATH"], "LANG": "C.UTF-8"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_the_table_is_printed_as_by_the_real_one(make):
    cards = make("ascend", 2, "Ascend910", library=False)
    assert not (cards.folder / "libdcmi.so").exists()
    for card, bus, used in ((cards[0], "0000:9d:00.0", 3416), (cards[1], "0000:9f:00.0", 3195)):
        card.bus_id, card.temp_c, card.power_w, card.mem_reserved = bus, 36, 178.5, used << 20
    code, text = program(cards, "npu-smi", "info")
    assert code == 0
    assert REAL in text
    assert {len(line) for line in text.splitlines()} == {98}
    assert "No running processes found in NPU 0" in text


def test_a_table_of_one_chip_to_a_board_and_of_trouble(make, sleeper):
    cards = make("ascend", 3, "Ascend910B3")
    cards[0].hold(sleeper.pid, 13330 << 20)
    cards[0].mem_used, cards[0].util = 45535 << 20, 97
    cards[1].npu_health = 1
    cards[2].lose()
    lines = program(cards, "npu-smi", "info")[1].splitlines()
    assert "| 0                         | 0000:10:00.0  | 97          0    / 0          62265/ 65536         |" in lines
    assert "| 1     910B3               | Warning       | 90.0        35                0    / 0             |" in lines
    assert "| 2     910B3               | UNKNOWN       | -           -                 0    / 0             |" in lines
    assert "| 0                         | 0000:16:00.0  | -           -    / -          -    / -             |" in lines
    assert (
        f"| 0       0                 | {sleeper.pid:<14}| sleep                    | 13330                   |"
        in lines
    )
    cards[2].remove()
    assert "| 2     910B3" not in program(cards, "npu-smi", "info")[1]


def test_numbers_usages_and_links(make):
    cards = make("ascend", 4, "Ascend910")
    rows = [line.split() for line in program(cards, "npu-smi", "info", "-m")[1].splitlines()]
    assert rows[1:4] == [
        ["0", "0", "0", "0", "Ascend910"],
        ["0", "1", "1", "1", "Ascend910"],
        ["0", "2", "-", "-", "Mcu"],
    ]
    cards[1].util = 71
    assert "\tAicore Usage Rate(%)           : 71\n" in program(cards, "npu-smi", "info", "-t", "usages", "-i", "0")[1]
    assert program(cards, "npu-smi", "info", "-t", "common", "-i", "7") == (1, "parameter error: there is no NPU 7\n")
    link = ("hccn_tool", "-i", "1", "-link", "-g")
    assert program(cards, *link) == (0, "link status: UP\n")
    cards[1].npu_link_up = False
    assert program(cards, *link) == (0, "link status: DOWN\n")
    assert program(cards, "hccn_tool", "-i", "1", "-net_health", "-g") == (0, "net health status: Success\n")


def test_a_program_that_fails_and_one_that_hangs(make):
    cards = make("ascend", 1)
    cards.fail("npu-smi", 3)
    assert program(cards, "npu-smi", "info")[0] == 3
    cards.clear()
    cards.unload(-8005)
    assert program(cards, "npu-smi", "info") == (255, "dcmi module initialize failed. ret is -8005\n")
    cards.load()
    cards.hang("npu-smi")
    with running(["npu-smi", "info"], env={"PATH": cards.env["PATH"]}, stdout=subprocess.PIPE) as process:
        eventually(lambda: cards.waits_in() == ["npu-smi"])
        assert process.poll() is None
        cards.clear()
        assert b"910B3" in process.communicate(timeout=60)[0]


def test_no_chips_no_table(make):
    node = npu_smi.Node(make("ascend", 0).state)
    assert npu_smi.info(node) == npu_smi.mapping(node) == "There is no NPU card on this server.\n"
