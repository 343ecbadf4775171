"""`<state>/node.json`: what the daemon must know of the node over its own end and over a reboot.

Written as a whole, with fsync, and only after a change; changes in quick succession are one write. A file that cannot
be read is set aside, never overwritten: somebody may want to know what was in it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec
import structlog
from anyio.abc import TaskStatus

from muster.agent import threads
from muster.agent.changes import Changes
from muster.agent.errors import NoRoom
from muster.agent.host.state_folder import refuse_newer, write_synced
from muster.agent.node.conditions import Latched
from muster.probes.node.node_checks import InventoryState
from muster.supervisors.supervision_errors import remedy
from muster.supervisors.system import trust

VERSION = 1
#: Seconds between two writes, unless somebody waits for one; and between two tries where it does not work.
SAVE_S = 1.0
#: Seconds that somebody waits for a write, and that the end of the daemon waits for the last one.
WAIT_S = 10.0

_log = structlog.get_logger(__name__)


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
        return _decoded(path.read_bytes()).inventory
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def _decoded(data: bytes) -> NodeState:
    state = msgspec.json.decode(data, type=NodeState)
    if state.version != VERSION:
        raise msgspec.ValidationError(f"it is of version {state.version}, and this musterd reads {VERSION}")
    return state


class NodeFile:
    """Reads the file once and writes it from then on. Belongs to one event loop."""

    def __init__(self, path: Path, snapshot: Callable[[], NodeState], save_s: float = SAVE_S) -> None:
        """`snapshot` gives what is to be written; it is called on the loop."""
        self._path = path
        self._snapshot = snapshot
        self._save_s = save_s
        self._changes, self._urgent, self._tried = Changes(), Changes(), Changes()
        #: The changes that are on the disk.
        self._saved = 0
        self._limiter = anyio.CapacityLimiter(1)
        self._unwritten = ""
        self._aside = ""

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator."""
        return [text for text in (self._aside, self._unwritten) if text]

    async def load(self) -> NodeState:
        """What is there; an empty one where there is none, or none that can be read. Raises OSError, and
        StartupError for one that a newer musterd wrote."""
        try:
            data = await threads.run(trust.read, self._path, limiter=self._limiter)
        except FileNotFoundError:
            return NodeState()
        refuse_newer(self._path, data, VERSION)
        try:
            return _decoded(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            aside = self._path.with_name(f"{self._path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
            await threads.run(self._path.rename, aside, limiter=self._limiter)
            self._aside = (
                f"{self._path}: cannot be understood ({error}) and was set aside as {aside.name}: conditions of before "
                "are found again by the checks, but a drain and the inventory of the cards are forgotten; drain the "
                "node again if it was drained, and look whether all of its cards are there"
            )
            _log.error("node_file.damaged", path=str(self._path), aside=aside.name, error=str(error))
            return NodeState()

    def changed(self) -> None:
        """What `snapshot` gives has changed: it will be written soon."""
        self._changes.tell()

    async def written(self) -> None:
        """Returns when all changes so far are on the disk. Raises NoRoom where they cannot be, or not in time; they are
        in force all the same, and will be written as soon as that works."""
        wanted = self._changes.count
        why = f"the disk did not answer within {WAIT_S:g} s"
        with anyio.move_on_after(WAIT_S):
            while self._saved < wanted:
                self._urgent.tell()
                await self._tried.next()
                if self._saved < wanted and self._unwritten:
                    why = self._unwritten
                    break
        if self._saved < wanted:
            raise NoRoom(
                f"{why}: it is in force, but would be forgotten if musterd was started again; it is written by "
                "itself as soon as that works"
            )

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Writes what has changed, for ever; once more at the end."""
        task_status.started()
        try:
            while True:
                await self._changes.beyond(self._saved)
                urgent = self._urgent.count
                await self._save()
                with anyio.move_on_after(self._save_s):
                    await self._urgent.beyond(urgent)
        finally:
            if self._changes.count != self._saved:
                with anyio.move_on_after(WAIT_S, shield=True):
                    await self._save(last=True)

    async def _save(self, *, last: bool = False) -> None:
        number = self._changes.count
        text = msgspec.json.format(msgspec.json.encode(self._snapshot()), indent=1).decode()
        try:
            # The last one is given up where the disk hangs; one after another is never overtaken by an older one.
            await threads.run(write_synced, self._path, text, limiter=self._limiter, abandon_on_cancel=last)
            self._saved, self._unwritten = number, ""
        except OSError as error:
            what = remedy(error)
            self._unwritten = f"{self._path}: cannot be written: {error.strerror or error}" + (what and f": {what}")
            _log.warning("node_file.unwritten", path=str(self._path), error=str(error))
        self._tried.tell()
