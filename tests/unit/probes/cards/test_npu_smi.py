"""What the driver's programs print, in the layouts of real boards, and in none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.probes.cards.ascend import npu_smi
from muster.probes.cards.ascend.npu_smi import Ids, NpuSmiRow, Running

#: 910_93: two chips to a board, with a physical number.
PAIRS = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc3.3               Version: 24.1.rc3.3                                           |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 178.5       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3416 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           37                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 12          0    / 0          62498/ 65536         |
+===========================+===============+====================================================+
| 1     Ascend910           | Alarm         | 164.0       41                0    / 0             |
| 0     2                   | 0000:99:00.0  | 100         0    / 0          62265/ 65536         |
+------------------------------------------------------------------------------------------------+
| 1     Ascend910           | UNKNOWN       | -           -                 0    / 0             |
| 1     3                   | 0000:9B:00.0  | -           -    / -          -    / -             |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       1                 | 824166        | VLLMWorker_TP            | 59316                   |
| 0       1                 | 824167        |                          | 132                     |
+===========================+===============+====================================================+
| No running processes found in NPU 1                                                            |
+===========================+===============+====================================================+
[WARNING]The driver package may not be completely installed, which may cause function abnormal. Please reinstall it.
"""
#: 910B: one chip to a board, whose second line has the chip alone.
SINGLES = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 23.0.5                   Version: 23.0.5                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 6     910B3               | OK            | 91.0        36                0    / 0             |
| 0                         | 0000:41:00.0  | 97          0    / 0          3401 / 65536         |
+===========================+===============+====================================================+
| 7     910B3               | Warning       | 95.4        37                0    / 0             |
| 0                         | 0000:42:00.0  | 0           0    / 0          3400 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 6                                                            |
+===========================+===============+====================================================+
| 7       0                 | 48988         | python                   | 13330                   |
+===========================+===============+====================================================+
"""
#: 950: a column more, no chip, and boards on another bus than PCI.
ANEW = """\
+-------------------------------------------------------------------------------------------------+
| npu-smi 25.5.0                                   Version: 25.5.0                                |
+--------+------------------+---------------+-----------------------------------------------------+
| NPU ID | Name             | Health        | Power(W)    Temp(C)           Hugepages-Usage(page) |
|        |                  | Bus-Id        | NPU Util(%) Memory-Usage(MB)  HBM-Usage(MB)         |
+========+==================+===============+=====================================================+
| 0      | Ascend950PR      | OK            | 201.3       40                0     / 0             |
|        |                  | 0000:05:00.0  | 55          0    / 0          4000  / 131072        |
+========+==================+===============+=====================================================+
| 1      | Ascend950PR      | Critical      | 199.0       41                0     / 0             |
|        |                  | NA            | 3           0    / 0          4001  / 131072        |
+========+==================+===============+=====================================================+
+---------------------------+---------------+-----------------------------------------------------+
| NPU ID                    | Process id    | Process name             | Process memory(MB)       |
+===========================+===============+=====================================================+
| 1                         | 777           | python3                  | 3000                     |
+===========================+===============+=====================================================+
"""


def test_two_chips_to_a_board():
    info = npu_smi.info(PAIRS)
    assert info is not None and info.version == "24.1.rc3.3"
    assert info.rows == (
        NpuSmiRow((0, 0), 0, "Ascend910", "OK", "0000:9d:00.0", 178.5, 36.0, 0.0, 3416, 65536),
        NpuSmiRow((0, 1), 1, "Ascend910", "OK", "0000:9f:00.0", None, 37.0, 12.0, 62498, 65536),
        NpuSmiRow((1, 0), 2, "Ascend910", "Alarm", "0000:99:00.0", 164.0, 41.0, 100.0, 62265, 65536),
        NpuSmiRow((1, 1), 3, "Ascend910", "UNKNOWN", "0000:9b:00.0", None, None, None, None, None),
    )
    assert info.processes == (Running((0, 1), 824166, 59316), Running((0, 1), 824167, 132))


def test_one_chip_to_a_board():
    info = npu_smi.info(SINGLES)
    assert info is not None
    assert info.rows == (
        NpuSmiRow((6, 0), None, "910B3", "OK", "0000:41:00.0", 91.0, 36.0, 97.0, 3401, 65536),
        NpuSmiRow((7, 0), None, "910B3", "Warning", "0000:42:00.0", 95.4, 37.0, 0.0, 3400, 65536),
    )
    assert info.processes == (Running((7, 0), 48988, 13330),)


def test_boards_of_the_next_generation():
    info = npu_smi.info(ANEW)
    assert info is not None
    assert info.rows == (
        NpuSmiRow((0, 0), None, "Ascend950PR", "OK", "0000:05:00.0", 201.3, 40.0, 55.0, 4000, 131072),
        NpuSmiRow((1, 0), None, "Ascend950PR", "Critical", "", 199.0, 41.0, 3.0, 4001, 131072),
    )
    assert info.processes == (Running((1, 0), 777, 3000),)


@pytest.mark.parametrize("text", ["", "\n\n", "Failed to get card number.\n", "There is no NPU card on this server.\n"])
def test_no_table(text):
    assert npu_smi.info(text) is None


def test_a_line_of_garbage_hides_no_card():
    lines = SINGLES.splitlines()
    at = next(i for i, line in enumerate(lines) if "910B3" in line)
    for where in (at, at + 1, at + 2):
        torn = "\n".join([*lines[:where], "| dcmi: timed out, \x00\x00 | | ?", *lines[where:]])
        info = npu_smi.info(torn)
        assert info is not None
        assert (7, 0) in {row.seat for row in info.rows}


#: Old and new columns of `npu-smi info -m`.
LOGICAL = (
    "\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name\n"
    "\t6                              0                              0                              Ascend 910B3\n"
    "\t6                              1                              -                              Mcu\n"
    "\t7                              0                              1                              Ascend 910B3\n"
)
PHYSICAL = (
    "\tNPU ID                         Chip ID                        Chip Logic ID                  "
    "Chip Phy-ID                    Chip Name\n"
    "\t0                              0                              0                              "
    "8                              Ascend910\n"
    "\t0                              1                              1                              "
    "9                              Ascend910\n"
    "\t0                              2                              -                              "
    "-                              Mcu\n"
)
SLOTS = (
    "\tNPU ID                         Slot ID                        Chip ID                        "
    "Chip Phy-ID                    Chip Name\n"
    "\t3                              5                              0                              "
    "4                              Ascend950PR\n"
)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (LOGICAL, {(6, 0): Ids(0), (7, 0): Ids(1)}),
        (PHYSICAL, {(0, 0): Ids(0, 8), (0, 1): Ids(1, 9)}),
        (SLOTS, {(3, 0): Ids(None, 4)}),
        ("There is no NPU card on this server.\n", None),
        ("NPU ID  Name\n0  x\n", None),
    ],
)
def test_numbers_of_chips(text, numbers):
    assert npu_smi.mapping(text) == numbers


USAGES = """\
\tNPU ID                         : 0
\tChip Count                     : 2

\tDDR Capacity(MB)               : 0
\tHBM Usage Rate(%)              : 42
\tAicore Usage Rate(%)           : 71
\tAivector Usage Rate(%)         : 9
\tAicpu Usage Rate(%)            : 1
\tCtrlcpu Usage Rate(%)          : 13
\tHBM Bandwidth Usage Rate(%)    : 33
\tNPU Utilization(%)             : 70
\tChip ID                        : 0

\tDDR Capacity(MB)               : 0
\tHBM Usage Rate(%)              : 43
\tAicore Usage Rate(%)           : 512
\tNPU Utilization(%)             : NA
\tChip ID                        : 1
"""
COMMON = """\
\tNPU ID                         : 1
\tChip Count                     : 2

\tChip ID                        : 0
\tAicore curFreq(MHZ)            : 800
\tTemperature(C)                 : 46

\tChip ID                        : 1
\tAicore curFreq(MHZ)            : 1800
\tTemperature(C)                 : 47

\tChip Name                      : mcu
\tTemperature(C)                 : 40
"""


def test_shares_of_the_parts_of_each_chip():
    chips = npu_smi.by_chip(USAGES)
    assert npu_smi.parts(chips[0]) == {
        "hbm": 42.0,
        "aicore": 71.0,
        "vector": 9.0,
        "aicpu": 1.0,
        "ctrlcpu": 13.0,
        "hbm_bandwidth": 33.0,
        "overall": 70.0,
    }
    assert npu_smi.parts(chips[1]) == {"hbm": 43.0}  # neither what cannot be, nor what is not told


def test_a_management_chip_is_taken_for_none_of_the_chips():
    chips = npu_smi.by_chip(COMMON)
    assert {chip: block["Aicore curFreq(MHZ)"] for chip, block in chips.items()} == {0: "800", 1: "1800"}
    assert chips[1]["Temperature(C)"] == "47"


@pytest.mark.parametrize(
    ("text", "up"),
    [
        ("link status: UP\n", True),
        ("link status: DOWN\n\n", False),
        ("link status: UP DOWN\n", None),
        ("", None),
        ("hccn_tool: not supported\n", None),
    ],
)
def test_link(text, up):
    assert npu_smi.link_up(text) is up


# --- whatever comes ---------------------------------------------------------------------------------------------------

_CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=12) | st.sampled_from(
    [
        "NPU",
        "NPU ID",
        "Process id",
        "Chip",
        "Name",
        "OK",
        "-",
        "NA",
        "0",
        "1",
        "0 0",
        "0000:9D:00.0",
        "5 0 / 0 1/ 2",
        "/",
    ]
)
_TABLES = st.lists(st.lists(_CELLS, max_size=6).map(lambda cells: f"|{'|'.join(cells)}|")).map("\n".join)


@given(_TABLES | st.text())
def test_any_output_is_read_or_left_out(text):
    info = npu_smi.info(text)
    for row in info.rows if info else ():
        assert row.seat[0] >= 0 and row.seat[1] >= 0
        assert row.utilization is None or 0 <= row.utilization <= 100
    for process in (info.processes or ()) if info else ():
        assert process.pid > 0
    npu_smi.mapping(text)
    npu_smi.link_up(text)
    for block in npu_smi.by_chip(text).values():
        assert all(0 <= share <= 100 for share in npu_smi.parts(block).values())


@given(st.data())
def test_a_table_that_is_cut_anywhere_keeps_the_cards_before(data):
    at = data.draw(st.integers(0, len(PAIRS)))
    whole, cut = npu_smi.info(PAIRS), npu_smi.info(PAIRS[:at])
    assert whole is not None
    rows = cut.rows if cut else ()
    # Of the last one, a figure may be cut off.
    assert rows[:-1] == whole.rows[: max(0, len(rows) - 1)]
    # Behind the chips there is a table of processes: without it nobody knows whether these are all.
    assert cut is None or cut.cut or cut.rows == whole.rows
    assert not whole.cut


@pytest.mark.parametrize("behind", ["36                0    / 0             |", "3416 / 65536         |", "----+"])
def test_a_table_that_ends_between_the_chips_of_a_board(behind):
    cut = npu_smi.info(PAIRS[: PAIRS.index("3416 / 65536") + 200].rpartition(behind)[0] + behind + "\n")
    assert cut is not None and cut.cut
