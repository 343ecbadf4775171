"""Keeps the present numbers of a job's cards for its supervisor: the driver may renumber them between two attempts."""

import functools
import json
import operator
from collections.abc import Sequence
from pathlib import Path

import anyio
import structlog

from muster.agent import threads
from muster.agent.host import state_file
from muster.agent.jobs.cards.leasing import Leasing
from muster.agent.jobs.entry import Entry
from muster.probes.calls.heartbeat import tick
from muster.probes.kernel import process
from muster.supervisors.model.card_identity import CardsNow
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.supervision_errors import explain
from muster.supervisors.system import trust

#: Seconds between two looks at whether the driver lists other cards, or the job has others; and between two at the
#: device nodes, of which the driver says nothing.
LOOK_S, NODES_S = 1.0, 15.0

_log = structlog.get_logger(__name__)


class CardsKept:
    """Of one live job."""

    def __init__(self, entry: Entry, leasing: Leasing) -> None:
        """Notes write errors with `entry`."""
        self._entry = entry
        self._leasing = leasing
        self._threads = threads.Pool(1)
        self._written: CardsNow | None = None
        self._is_read = False

    async def run(self) -> None:
        """Writes the file at each change, until cancelled."""
        seen: tuple[object, ...] = ()
        until = 0.0
        try:
            while True:
                before, seen = seen, (self._entry.damaged, *self._leasing.cards_seen(self._entry))
                now = anyio.current_time()
                if now >= until or not _are_same(before, seen):
                    until = now + NODES_S if await self._keep() else now
                await tick(LOOK_S)
        finally:
            self._entry.note("cards", "")

    async def _keep(self) -> bool:
        """Looks once; false where the file could not be written."""
        now = None if self._entry.damaged else self._leasing.cards_now(self._entry)
        if now is None:
            return True
        path = self._entry.paths.cards_now
        if not self._is_read:
            self._written = await self._threads.run(_read, path)
            self._is_read = True
        # Without the file the supervisor uses the journal.
        if now != (self._written or _told(self._entry.job)):
            try:
                write = functools.partial(state_file.write, path, now.written(process.boot_id()), synced=False)
                await self._threads.run(write)
                self._written = now
                self._note("")
            except OSError as error:
                self._note(
                    f"{path}: cannot write it: {explain(error)}; the driver renumbered the cards, and a "
                    "restart of the job would use the old numbers"
                )
                return False
        return True

    def _note(self, text: str) -> None:
        if text == (self._entry.notes or {}).get("cards", ""):
            return
        if text:
            _log.warning("job.cards_unwritten", job=self._entry.job_id, text=text)
        self._entry.note("cards", text)
        self._entry.wake()


def _are_same(before: Sequence[object], seen: Sequence[object]) -> bool:
    """Whether they are the same objects."""
    return len(before) == len(seen) and all(map(operator.is_, before, seen))


def _told(job: Job) -> CardsNow:
    """The numbers in the journal."""
    words = {card: job.card_visible.get(card, str(card)) for card in job.cards}
    return CardsNow({card: job.card_uuids.get(card, "") for card in job.cards}, words, dict(job.card_nodes or {}))


def _read(path: Path) -> CardsNow | None:
    """The file of an earlier daemon of this boot. Blocks."""
    try:
        return CardsNow.of_written(json.loads(trust.read(path)), process.boot_id())
    except (OSError, ValueError):
        return None
