"""The numbers of an Ascend chip: which card it is to muster, and what CANN calls it here. The one place that maps them.

| number | is | who uses it |
|---|---|---|
| physical | the chip on its host, N of /dev/davinciN, the same in a container | Card.index, hccn_tool, rank tables |
| logical | counts the chips that this container has, from 0 | CANN: ASCEND_RT_VISIBLE_DEVICES |
| card id, chip id | the board and the place on it | npu-smi -i and -c, DCMI's calls |

Facts of the driver's sources (2026): its user library, which both DCMI and CANN stand on, opens each /dev/davinciN of a
container, and the kernel numbers those from 0 in the order of their physical numbers. A process with all capabilities
(a privileged container) gets the host's numbers instead, whatever nodes there are. A virtual chip is /dev/vdavinciN
(N from 100) on the host and /dev/davinciN in a container; its DCMI may tell the physical number of the chip that it is
a part of.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

#: A chip: its board and place, or its logical number (Ascend 950).
Seat = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What the library, or npu-smi, tells of a chip. `physical` is None where it does not."""

    seat: Seat
    logical: int
    physical: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
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
        if match := re.fullmatch(r"davinci([0-9]{1,4})", name):
            number = int(match[1])
            try:
                status = os.stat(dev / name)
            except OSError:
                continue
            found[number] = os.minor(status.st_rdev) if stat.S_ISCHR(status.st_mode) else number
    return found


def places(told: Iterable[Told], nodes: Mapping[int, int], *, privileged: bool) -> dict[Seat, Place]:
    """Where each chip is that this container has. A chip without a device node is another container's and left out,
    unless there are no nodes at all. `privileged`: the driver gives us the host's numbers."""
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
    found = {one.seat: Place(index[one.seat], one.logical, at[one.seat]) for one in chips if one.seat in at}
    if not rest or privileged:
        return found
    # Of a library that tells of the whole host CANN's numbers are not to be had: it counts the nodes that are here.
    order = sorted(found, key=lambda seat: found[seat].index)
    return {seat: Place(found[seat].index, rank, found[seat].node) for rank, seat in enumerate(order)}


def _matched(sure: Mapping[Seat, int], nodes: Mapping[int, int]) -> dict[Seat, int]:
    """The node of each chip by its name, or by its minor number where a container renamed it."""
    by_minor = {minor: node for node, minor in nodes.items()}
    found = {seat: number if number in nodes else by_minor.get(number) for seat, number in sure.items()}
    return {seat: node for seat, node in found.items() if node is not None}


def _alone(one: Told, sure: Mapping[Seat, int]) -> Place:
    number = sure.get(one.seat, one.logical)
    return Place(number, one.logical, number)


def privileged(proc: Path = Path("/proc")) -> bool:
    """Whether this process has all capabilities, for which the driver numbers all chips of the host."""
    try:
        last = int((proc / "sys/kernel/cap_last_cap").read_text())
        match = re.search(r"^CapEff:\s*([0-9a-f]+)$", (proc / "self/status").read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return False
    every = (1 << (last + 1)) - 1
    return match is not None and int(match[1], 16) & every == every
