"""`<state>/faults.json`: hardware faults for supervisors, which read it when a job fails.

    {"boot": boot id, "at": seconds since the epoch, "node": [sentence, ...], "cards": {"3": [sentence, ...]},
     "uuids": {"GPU-...": [sentence, ...]}, "ups": {sentence: seconds since the boot, ...}}

A fault of a card with a known UUID is under both: supervisors of the earlier release read only numbers. `ups` has the
events: one from before a job, which is no condition any more, says nothing of that job.

It contains only grave faults: CRITICAL conditions, and fatal events of the last hour, which may have broken a job even
if the card was reset since. It is replaced completely; it is not synced, because its content does not outlive the boot.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import structlog
from anyio.abc import TaskStatus

from muster.agent import threads
from muster.agent.changes import Changes
from muster.agent.node.condition_rules import of_presence
from muster.agent.node.conditions import Condition, Moment
from muster.agent.node.node_file import Fault
from muster.agent.text import local
from muster.probes.checks.result import Status
from muster.supervisors.system.atomic_file import replace_file

#: A fatal event counts for so many seconds.
FAULT_S = 3600.0
#: Limit of remembered events.
MAX_FAULTS = 64
#: Limit of sentences for one card, or for the node: the newest events, then conditions.
_MAX_SENTENCES = 16
#: Seconds between two tries if writing fails.
_RETRY_S = 1.0

_log = structlog.get_logger(__name__)


def content(boot: str, now: float, conditions: Sequence[Condition], faults: Iterable[Fault]) -> dict[str, Any]:
    """The content of the file. An event that is also a condition appears once."""
    node: list[str] = []
    cards: dict[str, list[str]] = {}
    uuids: dict[str, list[str]] = {}
    ups: dict[str, float] = {}

    def tell(card: int | None, uuid: str, sentence: str) -> None:
        (node if card is None else cards.setdefault(str(card), [])).append(sentence)
        if card is not None and uuid:
            uuids.setdefault(uuid, []).append(sentence)

    grave = [c for c in conditions if c.status is Status.CRITICAL and not c.elsewhere and not _nobodys(c)]
    latched = {(c.code, c.card, c.reason) for c in grave}
    for fault in sorted(faults, key=lambda fault: -fault.at):
        if (fault.code, fault.card, fault.sentence) not in latched:
            sentence = f"{fault.sentence} ({fault.code}) at {local(fault.at)}"
            ups[sentence] = max(fault.up, ups.get(sentence, fault.up))
            tell(fault.card, fault.uuid, sentence)
    for condition in grave:
        drill = " (injected for a drill)" if condition.injected else ""
        what = (
            f"{condition.device}: {condition.reason}"
            if condition.card is None and condition.device
            else condition.reason
        )
        sentence = f"{what} ({condition.code}) since {local(condition.since)}{drill}"
        tell(condition.card, condition.uuid, sentence)
    return {
        "boot": boot,
        "at": now,
        "node": node[:_MAX_SENTENCES],
        "cards": {card: sentences[:_MAX_SENTENCES] for card, sentences in cards.items()},
        "uuids": {uuid: sentences[:_MAX_SENTENCES] for uuid, sentences in uuids.items()},
        "ups": ups,
    }


def _nobodys(condition: Condition) -> bool:
    """It is about a card that no job has: a long missing card is no reason why a rank on another card failed."""
    return condition.card is None and of_presence(condition.code)


class FaultsFile:
    """Remembers fatal events, and keeps the file current. Belongs to one event loop."""

    def __init__(self, path: Path, boot: str) -> None:
        """`boot`: id of the present boot."""
        self._path = path
        self._boot = boot
        self._faults: list[Fault] = []
        self._content: dict[str, Any] = {}
        self._dirty = Changes()
        self._threads = threads.Pool(1)
        #: A sentence for an operator while it cannot be written.
        self.trouble = ""

    @property
    def faults(self) -> list[Fault]:
        """The fatal events that count."""
        return list(self._faults)

    def add(self, faults: Iterable[Fault]) -> None:
        """Adds events; `put` writes them."""
        self._faults = [*self._faults, *faults][-MAX_FAULTS:]

    def forget(self, code: str, card: int | None) -> None:
        """Drops events that an operator cleared; `put` writes that."""
        self._faults = [fault for fault in self._faults if (fault.code, fault.card) != (code, card)]

    def put(self, conditions: Sequence[Condition], now: Moment) -> None:
        """Sets the present conditions; writes only if the content changes."""
        self._faults = [fault for fault in self._faults if now.up - fault.up < FAULT_S]
        new = content(self._boot, now.at, conditions, self._faults)
        if {**new, "at": 0} != {**self._content, "at": 0}:
            self._content = new
            self._dirty.tell()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Writes at each change until cancelled."""
        task_status.started()
        seen = 0
        while True:
            seen = await self._dirty.beyond(seen)
            try:
                await self._threads.run(replace_file, self._path, msgspec.json.encode(self._content))
                self.trouble = ""
            except OSError as error:
                self.trouble = (
                    f"{self._path}: cannot be written: {error.strerror or error}; verdicts of jobs ignore faults of "
                    "the cards"
                )
                _log.warning("faults_file.unwritten", path=str(self._path), error=str(error))
                self._dirty.tell()
                await anyio.sleep(_RETRY_S)
