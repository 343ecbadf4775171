"""`<state>/node.json`: what the daemon must remember of the node across restarts and reboots.

It is written completely, and only after a change; changes in quick succession become one write
(agent/host/state_file.py).
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import field
from pathlib import Path

import msgspec

from muster.agent.host.state_file import StateFile
from muster.agent.node.conditions import Latched
from muster.probes import typed
from muster.probes.kernel.dataclass import dataclass
from muster.probes.node.node_checks import InventoryState, KeptCounts

VERSION = 1
#: Limits: remembered boots for one Xid of one card; remembered pairs of card and Xid.
MAX_BOOTS = 8
MAX_PAIRS = 512


@dataclass(frozen=True, slots=True)
class DrainState:
    """The node is out of service: why, who asked for it, and since when (seconds since the epoch)."""

    reason: str
    by: str
    since: float


@dataclass(frozen=True, slots=True)
class Fault:
    """A grave event of the hardware: a sentence, its code, its card (None: the node), and its time, by the wall clock
    and in seconds since the boot."""

    sentence: str
    code: str
    card: int | None
    at: float
    up: float
    #: Of the card, "" if unknown.
    uuid: str = ""


@dataclass(slots=True)
class NodeState:
    """The content of the file. `kernel_seq`: the last line of this boot's kernel log that became an event. `xids`: the
    boots in which a card (by its bus id) had an Xid, by "bus/xid", the newest last. `inventory`: the cards that the
    node had. `counts`: what is counted over hours."""

    version: int = VERSION
    boot: str = ""
    kernel_seq: int = -1
    drain: DrainState | None = None
    conditions: list[Latched] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    xids: dict[str, list[str]] = field(default_factory=dict)
    inventory: InventoryState = field(default_factory=InventoryState)
    counts: KeptCounts = field(default_factory=KeptCounts)


def read(path: Path) -> NodeState | None:
    """The file, for a reader without a daemon; None if there is none. Raises OSError, and ValueError for a file that
    cannot be parsed."""
    try:
        return typed.decode(path.read_bytes(), NodeState)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def read_inventory(path: Path) -> InventoryState | None:
    """The cards that the file remembers. As `read`."""
    found = read(path)
    return found.inventory if found is not None else None


def node_file(
    path: Path,
    snapshot: Callable[[], NodeState],
    save_s: float = 1.0,
    told: Callable[[], Awaitable[None]] | None = None,
) -> StateFile[NodeState]:
    """`snapshot` returns the content to write; it is called on the loop. `told` returns once the events about it are on
    the disk: a daemon that finds a condition here does not tell of it again."""
    forgotten = (
        "the checks find earlier conditions again, but a drain and the inventory of the cards are lost; "
        "drain the node again if it was drained, and check that all its cards are present"
    )
    return StateFile(
        path, NodeState, snapshot, version=VERSION, forgotten=forgotten, save_s=save_s, indent=1, after=told
    )


class XidMemory:
    """The boots in which a card had an Xid: a reboot does not cure an Xid that returned after one.

    A card is known by each of its names (uuid, bus id): not every name is known at all times."""

    def __init__(self, boot: str, kept: Mapping[str, list[str]]) -> None:
        """`boot`: id of the present boot. `kept`: an earlier result of `kept`."""
        self._boot = boot
        self._boots = {pair: list(boots) for pair, boots in kept.items()}

    def earlier(self, name: str, xid: int) -> int:
        """The number of earlier boots in which the card with this name had this Xid."""
        return sum(boot != self._boot for boot in self._boots.get(_pair(name, xid), ()))

    def note(self, names: Collection[str], xid: int) -> None:
        """Notes that the card with these names has this Xid now."""
        for name in filter(None, names):
            pair = _pair(name, xid)
            boots = [boot for boot in self._boots.pop(pair, []) if boot != self._boot]
            self._boots[pair] = [*boots, self._boot][-MAX_BOOTS:]
        while len(self._boots) > MAX_PAIRS:
            del self._boots[next(iter(self._boots))]

    def kept(self) -> dict[str, list[str]]:
        """The content for a file."""
        return {pair: list(boots) for pair, boots in self._boots.items()}


def _pair(name: str, xid: int) -> str:
    return f"{name}/{xid}"
