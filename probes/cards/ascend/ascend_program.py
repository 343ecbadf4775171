"""Ascend cards with `npu-smi` and without libdcmi.so, for example in a container that has only the program.

One run reports all cards and takes a second or two of CPU time. So its result serves every card until it is several
times as old as the run took. The program is a process of its own with a deadline, so it cannot block muster for long.
"""

import math
import os
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from muster.probes.calls.script import Script
from muster.probes.cards.accelerator import (
    ASCEND,
    Card,
    CardEvent,
    DriverError,
    Health,
    Holder,
    Numbers,
    Reading,
    Trouble,
)
from muster.probes.cards.ascend import ascend_numbers, npu_smi
from muster.probes.cards.ascend.ascend_numbers import ChipIdentity, ChipPlace, Seat
from muster.probes.kernel import pci
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.known_names import device_node
from muster.probes.kernel.process import pids_are_the_kernels

#: Folders of npu-smi, over those of PATH; those of the libraries that it needs, over those of LD_LIBRARY_PATH.
_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
_LIBRARIES = "/usr/local/Ascend/driver/lib64/driver:/usr/local/Ascend/driver/lib64/common"
#: A run is killed after these seconds, less than what a call to a driver is given.
_LIMIT_S = 8.0
#: What of its output is kept, in bytes (16 cards take 5 KiB).
_KEPT = 256 << 10
#: How many lines of a program that fails are quoted: the first may be of the driver's log, with the reason below it.
_LINES = 3
#: An answer is used for this many times its duration, and at least for this many seconds.
SERVES, SERVES_S = 5.0, 1.0
#: The shares of a chip's parts and its clock take two runs for each board: one board at most in so many seconds, and
#: what it told serves so long.
PAUSE_S, _DETAILS_S = 10.0, 600.0
_MIB = 1 << 20


def find(name: str = "npu-smi", folders: str = _FOLDERS) -> str | None:
    """Where a program of the driver's lies: in PATH, or in its own folders; None where it does not."""
    return shutil.which(name, path=_before(os.environ.get("PATH", ""), folders))


def environment() -> dict[str, str]:
    """For a vendor's program. Nothing else of ours: ASCEND_RT_VISIBLE_DEVICES would hide cards."""
    return {
        "PATH": _before(os.environ.get("PATH", ""), _FOLDERS),
        "LD_LIBRARY_PATH": _before(os.environ.get("LD_LIBRARY_PATH", ""), _LIBRARIES),
        "LANG": "C.UTF-8",
    }


def run(path: str, *args: str, limit_s: float = _LIMIT_S) -> str:
    """What the program prints. Blocks for at most `limit_s` seconds, unless it cannot be killed.

    Raises DriverError, of the driver: FAILED where it ends with an error, HANG where it had to be killed, NOT_TOLD
    where it cannot be executed.
    """
    script = Script(path, environment(), args, _KEPT)
    late = threading.Event()

    def end() -> None:
        late.set()
        script.kill()

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    name = f"{path} {' '.join(args)}"
    try:
        timer.start()
        ended = script.run()
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DriverError(Trouble.NOT_TOLD, f"{path}: cannot be executed: {reason}", of_driver=True) from None
    finally:
        timer.cancel()
    output = ended.stdout.decode(errors="replace")
    if late.is_set() and ended.returncode < 0:
        raise DriverError(Trouble.HANG, f"{name} did not end within {limit_s:g} s", of_driver=True)
    if ended.returncode:
        said = _quoted(f"{output}\n{ended.stderr.decode(errors='replace')}")
        text = f"{name} ended with {ended.returncode}: {said}"
        raise DriverError(Trouble.FAILED, text, ended.returncode, of_driver=True)
    return output


def _quoted(output: str) -> str:
    """The first lines of what a program printed, in one, without those that only frame a table."""
    lines = [" ".join(line.split()) for line in output.split("\n") if line.strip("+-=| \t\r")]
    return "; ".join(lines[:_LINES])[:200] or "no message"


def _before(first: str, then: str) -> str:
    # An empty entry of PATH means the current folder, which must not be searched.
    return ":".join(folder for folder in f"{first}:{then}".split(":") if folder)


@dataclass(slots=True)
class _LastAnswer:
    """What the last run said, or why it said nothing, and until when (monotonic seconds) that serves."""

    until: float = 0.0
    info: npu_smi.Info | None = None
    trouble: DriverError | None = None


#: Shares of a chip's parts, and its clock.
_Details = tuple[Mapping[str, float], float | None]


class NpuSmi:
    """A Backend over the program at `path`; `dev` is where device nodes are."""

    kind = ASCEND

    def __init__(self, path: str, dev: Path = Path("/dev")) -> None:
        self._path = path
        self._dev = dev
        self._lock = threading.Lock()
        self._told = _LastAnswer()
        self._places: dict[Seat, ChipPlace] = {}
        self._physical: dict[Seat, int | None] = {}
        #: Of each chip, by boards, and when the board was asked (monotonic seconds).
        self._details: dict[int, tuple[float, Mapping[int, _Details]]] = {}

    def open(self) -> None:
        """Raises DriverError where the program fails, or prints what cannot be understood."""
        ids, refused = None, None
        try:
            ids = npu_smi.mapping(run(self._path, "info", "-m"))
        except DriverError as error:
            if error.trouble is not Trouble.FAILED:
                raise
            refused = error
        self._told = _LastAnswer()
        info = self._info()
        if refused is not None and not info.rows:
            raise refused
        if ids is None:
            # Older programs have no mapping, and some end with an error when they are asked for it. The table has the
            # physical numbers in newer layouts; a chip's line is its logical number.
            ids = {row.seat: npu_smi.Ids(line, row.number) for line, row in enumerate(info.rows)}
        order = sorted(ids, key=lambda seat: (ids[seat].physical or 0, seat))
        told = [
            ChipIdentity(seat, order.index(seat) if one.logical is None else one.logical, one.physical)
            for seat, one in ids.items()
        ]
        nodes = ascend_numbers.nodes(self._dev)
        self._places = ascend_numbers.places(told, nodes, counted=ascend_numbers.counted)
        self._physical = {seat: one.physical for seat, one in ids.items()}

    def close(self) -> None:
        self._places = {}

    def version(self) -> str:
        return self._told.info.version if self._told.info else ""

    def cards(self) -> list[Card]:
        rows = {row.seat: row for row in self._info().rows}
        return [
            self._card(seat, place, rows.get((seat[0], seat[1])))
            for seat, place in sorted(self._places.items(), key=lambda i: i[1].index)
        ]

    def _card(self, seat: Seat, place: ChipPlace, row: npu_smi.NpuSmiRow | None) -> Card:
        number, node = place.index, f"/dev/{device_node(ASCEND, place.node)}"
        physical = self._physical.get(seat)
        numbers = Numbers(number if physical is None else physical, place.logical, *seat)
        if row is None:
            return Card(number, ASCEND, node=node, numbers=numbers)
        board = row.seat[0]
        own_place = self._told.info is not None and self._told.info.own_places
        return Card(
            number,
            ASCEND,
            uuid=row.bus_id if own_place else ascend_numbers.by_place(row.bus_id, row.seat),
            model=row.name if row.name.startswith("Ascend") or not row.name else f"Ascend {row.name}",
            memory_bytes=row.total * _MIB if row.total else None,
            bus_id=row.bus_id,
            numa_node=pci.numa_node(row.bus_id),
            cpus=pci.cpus(row.bus_id),
            # The chips of a board are next to each other; nothing reports how the boards are connected.
            peers=tuple(sorted(p.index for s, p in self._places.items() if s[0] == board and p.index != number)),
            node=node,
            numbers=numbers,
        )

    def read(self, index: int) -> Reading:
        """Raises DriverError LOST for a card that is not in the table any more."""
        row = self._row(index)
        return Reading(
            util=row.utilization,
            mem_used=row.used * _MIB if row.used is not None and row.total else None,
            mem_total=row.total * _MIB if row.total else None,
            power_w=row.power,
        )

    def health(self, index: int) -> Health:
        """As `read`, and rarely two runs for the card's board alone."""
        row = self._row(index)
        if row.absent:
            text = f"npu-smi reports its health as {row.health}: it is absent, or has not started"
            raise DriverError(Trouble.LOST, text)
        parts, clock = self._detailed(row.seat)
        link = pci.link(row.bus_id)
        return Health(
            temp_c=row.temperature,
            sm_clock_mhz=clock,
            pcie_width=link.width,
            pcie_width_max=link.width_max,
            pcie_gen=link.gen,
            pcie_gen_max=link.gen_max,
            npu_health=row.level,
            parts=parts,
            partial=True,
            untold={} if row.level is not None else {"npu_health": f"npu-smi reports it as {row.health or 'nothing'}"},
        )

    def holders(self, index: int) -> list[Holder]:
        seat, processes = self._row(index).seat, self._info().processes
        if processes is None:
            raise DriverError(Trouble.NOT_TOLD, "npu-smi prints no table of processes here")
        # The first column has the host's numbers, which name nothing, or another process, in a container.
        own = not pids_are_the_kernels()
        return [
            Holder(
                one.inside if own and one.inside is not None else one.pid,
                None if one.memory is None else one.memory * _MIB,
            )
            for one in processes
            if one.seat == seat
        ]

    def wait_events(self, timeout_s: float) -> list[CardEvent]:
        raise DriverError(Trouble.NOT_TOLD, "npu-smi reports no events", of_driver=True)

    def _row(self, index: int) -> npu_smi.NpuSmiRow:
        seat = next((seat for seat, place in self._places.items() if place.index == index), None)
        if seat is None:
            raise DriverError(Trouble.ABSENT, f"npu-smi lists no card {index}")
        info = self._info()
        row = next((row for row in info.rows if row.seat == seat), None)
        if row is None and info.cut:
            why = "the table of npu-smi is cut off, or of a layout that muster does not know"
            raise DriverError(Trouble.NOT_TOLD, f"{why}; cards in it: {len(info.rows)}")
        if row is None:
            raise DriverError(Trouble.LOST, f"not among the cards that npu-smi lists ({len(info.rows)})")
        return row

    def _info(self) -> npu_smi.Info:
        # A run in progress is waited for: it tells of all cards. It ends, or is killed, in time.
        if not self._lock.acquire(timeout=_LIMIT_S + 1):
            raise DriverError(Trouble.HANG, f"an earlier {self._path} info does not end", of_driver=True)
        try:
            if time.monotonic() >= self._told.until:
                began = time.monotonic()
                told = _LastAnswer()
                try:
                    output = run(self._path, "info")
                    told.info = npu_smi.info(output)
                    if told.info is None:
                        told.trouble = self._no_table(output)
                except DriverError as trouble:
                    told.trouble = trouble
                ended = time.monotonic()
                told.until = ended + max(SERVES * (ended - began), SERVES_S)
                self._told = told
            told = self._told
        finally:
            self._lock.release()
        if told.trouble is not None:  # one of its own for each card: they are raised in several threads
            raise DriverError(told.trouble.trouble, str(told.trouble), told.trouble.number, of_driver=True)
        assert told.info is not None, "without it there is a trouble"
        return told.info

    def _no_table(self, output: str) -> DriverError:
        code = npu_smi.failure(output)
        if code is not None:
            return DriverError(Trouble.FAILED, f"{self._path} info fails: {_quoted(output)}", code)
        return DriverError(Trouble.NOT_TOLD, f"{self._path} info: its table was not understood: {_quoted(output)}")

    def _detailed(self, seat: npu_smi.Seat) -> _Details:
        board, chip = seat
        asked = {one: self._details.get(one, (-math.inf, {}))[0] for one, *_ in self._places}
        now = time.monotonic()
        # Cards are asked for their health one by one: each time it is the turn of the board that has waited longest.
        if now - max(asked.values(), default=0.0) >= PAUSE_S and asked.get(board) == min(asked.values()):
            self._details[board] = (now, self._ask_details(board))
        at, chips = self._details.get(board, (-math.inf, {}))
        return chips.get(chip, ({}, None)) if now - at < _DETAILS_S else ({}, None)

    def _ask_details(self, board: int) -> dict[int, _Details]:
        try:
            usages = npu_smi.by_chip(run(self._path, "info", "-t", "usages", "-i", str(board)))
            common = npu_smi.by_chip(run(self._path, "info", "-t", "common", "-i", str(board)))
        except DriverError:
            return {}  # the table has told what matters
        return {
            chip: (
                npu_smi.parts(usages.get(chip, {})),
                npu_smi.decimal(common.get(chip, {}).get("Aicore curFreq(MHZ)", "")),
            )
            for chip in {*usages, *common}
        }
