"""The numbers of an Ascend chip: which card it is to muster, and what CANN calls it here. The one place that maps them.

| number | is | who uses it |
|---|---|---|
| physical | the chip on its host, N of /dev/davinciN, the same in a container | Card.index, hccn_tool, rank tables |
| logical | counts the chips that this container has, from 0 | CANN: ASCEND_RT_VISIBLE_DEVICES |
| card id, chip id | the board and the place on it | npu-smi -i and -c, DCMI's calls |

Facts of the driver's sources (2026): its user library, which both DCMI and CANN stand on, opens each /dev/davinciN of a
container, and the kernel numbers those from 0 in the order of their physical numbers. A process with all capabilities
gets the host's numbers instead, whatever nodes there are: where both may be, the driver's library is asked how many
chips it counts. A virtual chip is /dev/vdavinciN
(N from 100) on the host and /dev/davinciN in a container; its DCMI may tell the physical number of the chip that it is
a part of.
"""

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from ctypes import byref, c_uint
from pathlib import Path

from muster.probes.cards.accelerator import ASCEND, DriverError
from muster.probes.cards.ascend.dcmi_library import load
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.known_names import device_number

#: The library of the driver that CANN stands on, and where the driver's package puts it.
HAL = ("libascend_hal.so", "/usr/local/Ascend/driver/lib64/driver/libascend_hal.so")
#: A chip: its board and place, or its logical number (Ascend 950).
Seat = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChipIdentity:
    """What the library, or npu-smi, tells of a chip. `physical` is None where it does not."""

    seat: Seat
    logical: int
    physical: int | None = None


@dataclass(frozen=True, slots=True)
class ChipPlace:
    """Where a chip is here. `index`: its number for leases and all that muster shows; `logical`: CANN's; `node`: N of
    its device node."""

    index: int
    logical: int
    node: int


def nodes(dev: Path) -> dict[int, int]:
    """The chips' device nodes: minor number (which the driver makes the physical one) by N of the name."""
    found: dict[int, int] = {}
    try:
        names = os.listdir(dev)
    except OSError:
        return found
    for name in names:
        if (number := device_number(ASCEND, name)) is not None:
            try:
                status = os.stat(dev / name)
            except OSError:
                continue
            found[number] = os.minor(status.st_rdev) if stat.S_ISCHR(status.st_mode) else number
    return found


def places(
    told: Iterable[ChipIdentity], nodes: Mapping[int, int], lost: int = 0, *, counted: "Callable[[], int | None]"
) -> dict[Seat, ChipPlace]:
    """Where each chip is that this container has. A chip without a device node is another container's and left out,
    unless there are no nodes at all. `lost`: so many more tell no number; `counted`: how many chips
    CANN counts (see `counted`), asked only where the numbers told may not be CANN's."""
    chips = sorted(told, key=lambda one: one.logical)
    often = Counter(one.physical for one in chips)
    sure = {one.seat: one.physical for one in chips if one.physical is not None and often[one.physical] == 1}
    at = _matched(sure, nodes)
    rest = [one for one in chips if one.seat not in at]
    left = sorted(nodes.keys() - at.values())
    if rest and len(rest) == len(left) and (not at or not any(one.seat in sure for one in rest)):
        # The driver numbers the nodes in their order, so these are theirs: of virtual chips, of renamed nodes.
        at |= {one.seat: node for one, node in zip(rest, left, strict=True)}
        rest = []
    if not at:
        return {one.seat: _alone(one, sure) for one in chips}
    index = {seat: sure.get(seat, node) for seat, node in at.items()}
    if len(set(index.values())) < len(index):
        index = at
    found = {one.seat: ChipPlace(index[one.seat], one.logical, at[one.seat]) for one in chips if one.seat in at}
    here = len(found) + lost
    if not rest and all(place.logical < here for place in found.values()):
        return found
    # The library's numbers are the host's. CANN's are not, unless it counts more chips than are here.
    if (count := counted()) is not None and count > here:
        return found
    order = sorted(found, key=lambda seat: found[seat].index)
    return {seat: ChipPlace(found[seat].index, rank, found[seat].node) for rank, seat in enumerate(order)}


def by_place(bus_id: str, seat: Seat) -> str:
    """What a chip goes by that tells no die: its place on the bus, which it may have in common with the other chip of
    its board (Atlas 300I Duo). "" without a place."""
    return f"{bus_id}/{seat[1]}" if bus_id and len(seat) > 1 and seat[1] else bus_id


def _matched(sure: Mapping[Seat, int], nodes: Mapping[int, int]) -> dict[Seat, int]:
    """The node of each chip by its name, or by its minor number where a container renamed it."""
    by_minor = {minor: node for node, minor in nodes.items()}
    found = {seat: number if number in nodes else by_minor.get(number) for seat, number in sure.items()}
    return {seat: node for seat, node in found.items() if node is not None}


def _alone(one: ChipIdentity, sure: Mapping[Seat, int]) -> ChipPlace:
    number = sure.get(one.seat, one.logical)
    return ChipPlace(number, one.logical, number)


def counted(libraries: Iterable[str] = HAL) -> int | None:
    """How many chips the driver's library counts here, and so CANN; None if the library is missing or does not
    answer."""
    try:
        ask = load(libraries).drvGetDevNum
    except (DriverError, AttributeError):
        return None
    count = c_uint()
    return count.value if ask(byref(count)) == 0 else None
