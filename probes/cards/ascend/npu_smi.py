"""What `npu-smi` and `hccn_tool` print, read as the text that it is. Pure: nothing is run here.

Layouts of 910B, 910_93 and 950 boards (facts of the tools' own sources, 2025, and of what real machines print).
Whatever cannot be read is left out: a line of garbage hides no card.
"""

import re
from collections.abc import Mapping

from muster.probes.kernel.dataclass import dataclass

#: Words of the column Health, as the numbers of DCMI; and the word for a card that is absent, or has not started
#: (Huawei's npu-smi reference, 24.1), for which DCMI has 0xFFFFFFFF.
_HEALTH = {"OK": 0, "WARNING": 1, "ALARM": 2, "CRITICAL": 3}
_ABSENT = "UNKNOWN"
#: How npu-smi says that the library below it failed; it may end with 0 all the same.
_FAILED = re.compile(r"\bret is (-[0-9]{4,5})\b")
#: Names of `npu-smi info -t usages`, by the names of Health.parts.
_PARTS = {
    "Aicore Usage Rate(%)": "aicore",
    "Aivector Usage Rate(%)": "vector",
    "Vectorcore Usage Rate(%)": "vector",
    "Aicpu Usage Rate(%)": "aicpu",
    "Ctrlcpu Usage Rate(%)": "ctrlcpu",
    "HBM Usage Rate(%)": "hbm",
    "HBM Bandwidth Usage Rate(%)": "hbm_bandwidth",
    "NPU Utilization(%)": "overall",
}

#: The column Bus-Id, which only the second line of a chip has; chips that are not on the PCI bus have "NA" there.
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]|NA")

#: A board, and the place of a chip on it.
Seat = tuple[int, int]


@dataclass(frozen=True, slots=True)
class NpuSmiRow:
    """A chip in the table of `npu-smi info`. `number` is its physical number, where this layout has it. Memory in MiB,
    watts, degrees Celsius, percent; None where there is a dash."""

    seat: Seat
    number: int | None
    name: str
    health: str
    bus_id: str
    power: float | None
    temperature: float | None
    utilization: float | None
    used: int | None
    total: int | None

    @property
    def level(self) -> int | None:
        """The health as DCMI counts it; None for a word that muster does not know."""
        return _HEALTH.get(self.health.upper())

    @property
    def absent(self) -> bool:
        """Whether the card is in the table and not there, or has not started."""
        return self.health.upper() == _ABSENT


@dataclass(frozen=True, slots=True)
class Running:
    """A process in the same table. Memory in MiB. `pid` is the host's, `inside` the one in the process' own container
    (from 26.0 on; None: not told, or in none)."""

    seat: Seat
    pid: int
    memory: int | None
    inside: int | None = None


@dataclass(frozen=True, slots=True)
class Info:
    """All that `npu-smi info` prints. `processes` None: it has no table of them (310B, and before 23.0). `cut`: the
    table of chips is cut off, or has lines that are not understood, so chips may be missing. `own_places`: each chip
    has a place of its own on the PCI bus (910_93); those of a 310P board with two chips have one together."""

    version: str
    rows: tuple[NpuSmiRow, ...]
    processes: tuple[Running, ...] | None
    cut: bool = False
    own_places: bool = False


def info(text: str) -> Info | None:
    """Reads the output of `npu-smi info`; None where it has no table of cards.

    Each chip has two lines. The first has board and name, the second the chip's place and (910_93) physical number;
    Ascend 950 has one chip to a board, and a column more.
    """
    version, section, own_places = "", "", False
    rows: list[NpuSmiRow] = []
    processes: list[Running] | None = None
    first: list[str] | None = None
    skipped = framed = False
    for line in text.splitlines():
        if not line.startswith("|"):
            framed |= line.startswith("+=")  # a thin one ("+-") is between the chips of a board as well
            continue
        framed = False
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if match := re.search(r"\bVersion:\s*(\S+)", line):
            version = match[1]
        elif cells[0].startswith("NPU") and len(cells) > 2:
            section, first = ("processes" if "Process id" in line else "chips"), None
            processes = [] if section == "processes" else processes
        elif section == "chips" and cells[0].startswith("Chip"):
            own_places = "Phy-ID" in cells[0]
        elif section == "chips" and len(cells) > 2:
            # A chip's first line has its health there, which may be "NA", too.
            if first is None or not _BUS.fullmatch(cells[-2]):
                skipped |= first is not None
                first = cells
            elif row := _row(first, cells):
                rows.append(row)
                first = None
            else:
                skipped = True
        elif processes is not None and (process := _process(cells)):
            processes.append(process)
    if not section:
        return None
    # Each table ends with a line of its frame, and that of a 910_93 has one of processes behind it.
    cut = skipped or not rows or (section == "chips" and (first is not None or not framed or own_places))
    return Info(version, tuple(rows), None if processes is None else tuple(processes), cut, own_places)


def failure(text: str) -> int | None:
    """DCMI's return code in what npu-smi prints in the place of a table; None where it names none."""
    match = _FAILED.search(text)
    return None if match is None else int(match[1])


def _row(first: list[str], second: list[str]) -> NpuSmiRow | None:
    if len(first) != len(second) or len(first) not in (3, 4):
        return None
    identity = (first[0].split(None, 1) if len(first) == 3 else [first[0], first[1]]) + ["", ""]
    place = second[0].split()
    board = _natural(identity[0])
    chip = _natural(place[0]) if place else 0
    if board is None or chip is None:
        return None
    power, temperature, *_ = [*first[-1].split(), "", ""]
    # "62265/ 65536" as well as "3416 / 65536"; the last of the two pairs is the on-chip memory.
    figures = second[-1].replace("/", " ").split()
    used, total = (figures[-2], figures[-1]) if len(figures) >= 3 else ("", "")
    return NpuSmiRow(
        seat=(board, chip),
        number=_natural(place[1]) if len(place) > 1 else None,
        name=identity[1].strip(),
        health=first[-2],
        bus_id=second[-2].lower() if second[-2] != "NA" else "",
        power=decimal(power),
        temperature=decimal(temperature),
        utilization=percent(figures[0]) if figures else None,
        used=_natural(used),
        total=_natural(total),
    )


def _process(cells: list[str]) -> Running | None:
    if len(cells) < 4:
        return None  # "No running processes found in NPU 0"
    place = [_natural(cell) for cell in cells[0].split()]
    pid = _natural(cells[1])
    if not place or len(place) > 2 or None in place or not pid:
        return None
    board, chip = place[0], place[1] if len(place) > 1 else 0
    assert board is not None and chip is not None
    return Running((board, chip), pid, _natural(cells[3]), _natural(cells[4]) if len(cells) > 4 else None)


@dataclass(frozen=True, slots=True)
class Ids:
    """Logical and physical number of a chip; None where this layout does not have it."""

    logical: int | None = None
    physical: int | None = None


def mapping(text: str) -> dict[Seat, Ids] | None:
    """Numbers of the chips in the output of `npu-smi info -m`; None where it has no table of them.

    Columns are two or more spaces apart and go by their names; newer drivers have the physical number, older ones the
    logical one alone. Rows of management chips have a dash there.
    """
    columns: dict[str, int] | None = None
    width = 0
    found: dict[Seat, Ids] = {}
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if columns is None:
            if {"NPU ID", "Chip ID"} <= set(cells) and {"Chip Phy-ID", "Chip Logic ID"} & set(cells):
                columns, width = {name: column for column, name in enumerate(cells)}, len(cells)
        elif len(cells) == width:
            told = {name: _natural(cells[column]) for name, column in columns.items()}
            board, chip = told["NPU ID"], told["Chip ID"]
            ids = Ids(told.get("Chip Logic ID"), told.get("Chip Phy-ID"))
            if board is not None and chip is not None and ids != Ids():
                found[(board, chip)] = ids
    return found if columns is not None else None


def blocks(text: str) -> list[dict[str, str]]:
    """Lines "Name : value" as `npu-smi info -t usages` and `-t common` print them: one block for each chip of a board.

    A block ends where a name comes again: some kinds of output print the place of the chip first, others last.
    """
    found: list[dict[str, str]] = []
    for line in text.splitlines():
        name, colon, value = line.partition(" : ")
        name, value = name.strip(), value.strip()
        if not colon or not name or name in ("NPU ID", "Chip Count"):
            continue
        if not found or name in found[-1]:
            found.append({})
        found[-1][name] = value
    return found


def by_chip(text: str) -> dict[int, dict[str, str]]:
    """The blocks by the place of the chip on its board. Management chips have no place, and are left out."""
    found = {_natural(block.get("Chip ID", "")): block for block in blocks(text)}
    return {chip: block for chip, block in found.items() if chip is not None}


def parts(block: Mapping[str, str]) -> dict[str, float]:
    """Health.parts out of a block of `npu-smi info -t usages`."""
    told = {part: percent(block[name]) for name, part in _PARTS.items() if name in block}
    return {part: value for part, value in told.items() if value is not None}


def link_up(text: str) -> bool | None:
    """Whether the card's network port is up, by the output of `hccn_tool -i N -link -g` ("link status: UP")."""
    match = re.search(r"^link status:\s*(UP|DOWN)\s*$", text, re.MULTILINE)
    return None if match is None else match[1] == "UP"


def percent(text: str) -> float | None:
    """A share of 0 to 100; None for anything else."""
    value = decimal(text)
    return value if value is not None and value <= 100 else None


def _natural(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def decimal(text: str) -> float | None:
    """A number that is not negative; None for anything else ("-", "NA")."""
    return float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else None
