"""`<state>/node.json`: what the daemon must know of the node over its own end and over a reboot.

Written as a whole, and only after a change; changes in quick succession are one write (agent/host/state_file.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from muster.agent.host.state_file import StateFile
from muster.agent.node.conditions import Latched
from muster.probes.node.node_checks import InventoryState

VERSION = 1


@dataclass(frozen=True, slots=True)
class DrainState:
    """The node is out of service: why, who asked for it, and since when (seconds since the epoch)."""

    reason: str
    by: str
    since: float


@dataclass(frozen=True, slots=True)
class Fault:
    """A grave event of the hardware: a sentence, its code, its card (None: the node), and when, by the wall clock and
    in seconds since the boot."""

    sentence: str
    code: str
    card: int | None
    at: float
    up: float
    #: Of the card, "" where it was not known.
    uuid: str = ""


@dataclass(slots=True)
class NodeState:
    """What the file holds. `kernel_seq` is the last line of this boot's kernel log that was told as an event, `xids`
    the boots in which a card (by its bus id) had an Xid, by "bus/xid", the newest last, `inventory` the cards that the
    node had."""

    version: int = VERSION
    boot: str = ""
    kernel_seq: int = -1
    drain: DrainState | None = None
    conditions: list[Latched] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    xids: dict[str, list[str]] = field(default_factory=dict)
    inventory: InventoryState = field(default_factory=InventoryState)


def read_inventory(path: Path) -> InventoryState | None:
    """The cards that the file remembers, for somebody who only looks; None where there is no file. Raises OSError, and
    ValueError for a file that cannot be understood."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=NodeState).inventory
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def node_file(path: Path, snapshot: Callable[[], NodeState], save_s: float = 1.0) -> StateFile[NodeState]:
    """`snapshot` gives what is to be written; it is called on the loop."""
    forgotten = (
        "conditions of before are found again by the checks, but a drain and the inventory of the cards are forgotten; "
        "drain the node again if it was drained, and look whether all of its cards are there"
    )
    return StateFile(path, NodeState, snapshot, version=VERSION, forgotten=forgotten, save_s=save_s, indent=1)
