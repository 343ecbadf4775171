"""Removes the record of an ended job: by request, by force, and by age or count."""

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import anyio
import msgspec
import structlog

from muster.agent import threads
from muster.agent.errors import JobAlive, JobNotEnded, NoRoom
from muster.agent.events.event_store import Event, EventStore
from muster.agent.host import state_file
from muster.agent.jobs import job_folder, log_ownership
from muster.agent.jobs.damaged import forced_removal
from muster.agent.jobs.ended.collected_logs import CollectedLogs
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.job_table import JobTable
from muster.agent.jobs.job_work import JobWork
from muster.agent.jobs.live.job_tasks import JobTasks
from muster.probes.kernel.backoff import Backoff
from muster.supervisors.paths import Root
from muster.supervisors.system import lock as job_lock
from muster.supervisors.system.atomic_file import sync_folder

#: A supervisor has so many seconds to exit after its job's end; then the folder is removed.
LEAVE_S = 6.0
#: A process has so many seconds to exit after its job's end; then it makes a forced removal fail.
EXIT_S = 5.0
#: Where records are moved before they are removed: the begin of a folder's name among those of the jobs. A file in it
#: has their events; it is removed once these are on the disk.
_COLLECTED, _UNTOLD = ".collected.", ".untold"

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_log = structlog.get_logger(__name__)


class CollectedRecord(msgspec.Struct):
    """A record that was removed, when and why: a part of a sentence."""

    job: str
    state: str
    at: float
    why: str

    def event(self) -> Event:
        """`job.collected`."""
        said = {"state": self.state, "why": self.why}
        return Event(self.at, "job.collected", self.job, message=f"its record was removed: {self.why}", attributes=said)


class JobRemoval:
    """Belongs to one event loop. Callers run it with `JobWork.finish`."""

    def __init__(
        self, root: Root, events: EventStore, table: JobTable, tasks: JobTasks, work: JobWork, pool: threads.Pool
    ) -> None:
        self._root, self._table, self._tasks, self._work, self._threads = root, table, tasks, work, pool
        self._events = events
        #: Why records could not be collected; empty while that works.
        self.uncollected = ""

    async def remove(self, job_id: str, keep_logs: bool) -> list[str]:
        """Raises JobNotFound, JobNotEnded, NoRoom."""
        left: list[str] = []
        async with self._work.alone(job_id):
            entry = await self._table.get(job_id)
            if not entry.job.state.final:
                raise JobNotEnded(job_id)
            await self._tasks.wait_done(job_id, LEAVE_S)
            try:
                trouble = await self._threads.run(job_folder.remove, self._root, entry, keep_logs)
                if not keep_logs:
                    owner = log_ownership.owner(entry)
                    remove = log_ownership.remove_obstacles
                    left = await self._threads.run(remove, self._root.log, owner)
            except OSError as error:
                raise self._no_room(error) from error
            if trouble:
                _log.warning("job.not_removed", job=job_id, error=trouble)
                self._table.strange.append(f"{trouble}; musterd tries again at its next start")
            self._table.forget(job_id)
        return left

    async def remove_by_force(self, job_id: str, keep_logs: bool) -> list[str]:
        """Raises JobNotFound, JobAlive, NoRoom."""
        table = self._table
        async with self._work.alone(job_id):
            entry = table.unended.get(job_id)
            if entry is None and job_id in table.ended:
                entry = await table.ended.get(job_id)
            elif entry is not None and job_id in self._tasks:
                # Its journal says that it has not ended, but no process of it lives.
                await self._once_exited(entry, forced_removal.refuse_living, self._root, job_id)
                self._tasks.cancel(job_id)
            await self._tasks.wait_done(job_id, LEAVE_S)
            try:
                left = await self._once_exited(entry, forced_removal.remove, self._root, job_id, entry, keep_logs)
            except BaseException as error:
                if job_id in table.unended and entry is not None:
                    self._tasks.begin(entry, None)
                if isinstance(error, OSError):
                    raise self._no_room(error) from error
                raise
            for text in left:
                _log.warning("job.not_removed", job=job_id, error=text)
            if table.unended.pop(job_id, None) is not None and entry is not None:
                entry.give_up("its record was removed by force")
                table.leasing.give_back(entry)
                entry.wake()
            path = str(self._root.jobs / job_id)
            table.strange = [text for text in table.strange if not text.startswith(f"{path}: ")]
            table.forget(job_id)
        return left

    async def collect(self, rows: Mapping[Ended, str], logs: CollectedLogs) -> str:
        """As Registry.collect."""
        async with AsyncExitStack() as stack:
            for row in sorted(rows, key=lambda row: row.job_id):
                await stack.enter_async_context(self._work.alone(row.job_id))
            there = {row: why for row, why in rows.items() if self._table.ended.row(row.job_id) is row}
            aside = self._root.jobs / f"{_COLLECTED}{secrets.token_hex(4)}"
            gone, trouble = await self._threads.run(_move_aside, self._root, aside, there, logs)
            for one in gone:
                self._table.forget(one.job)
            if gone:
                self._events.append((None, one.event()) for one in gone)
                await self._events.stored()
            trouble = await self._threads.run(remove_aside, aside) or trouble
        if trouble and trouble != self.uncollected:
            _log.warning("job.not_collected", error=trouble)
        self.uncollected = trouble
        return trouble

    async def _once_exited(self, entry: Entry | None, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Calls a function of forced_removal.py, and again for at most EXIT_S while it raises JobAlive: a supervisor
        reports the end of its job, and closes its link, before it exits. Does not wait for a running job."""
        late = anyio.current_time() + EXIT_S
        pause = Backoff(0.05, 0.5)
        while True:
            try:
                return await self._threads.run(function, *args)
            except JobAlive:
                running = entry is not None and not entry.job.state.final and not entry.damaged
                if running or anyio.current_time() >= late:
                    raise
            await anyio.sleep(pause.next())

    def _no_room(self, error: OSError) -> NoRoom:
        return NoRoom(f"{error.filename or self._root.jobs}: cannot remove it: {error.strerror}")


def _move_aside(
    root: Root, aside: Path, rows: Mapping[Ended, str], logs: CollectedLogs
) -> tuple[list[CollectedRecord], str]:
    """Moves the folders of these ended jobs into the folder `aside`, and notes who owns their log files. Returns which
    ones it moved, and a sentence about what could not be moved, or "".

    If the daemon is killed from here on, the next one tells of them and removes them. Blocks.
    """
    there = {
        row: CollectedRecord(row.job_id, str(row.state), time.time(), why)
        for row, why in rows.items()
        if not (row.damaged and job_lock.holder(root.job(row.job_id).lock))
    }
    if not there:
        return [], ""
    gone, trouble = [], ""
    try:
        logs.add(there)
        aside.mkdir(0o700)
        state_file.write(aside / _UNTOLD, list(there.values()))
    except OSError as error:
        return [], f"{error.filename or root.state}: cannot remove records: {error.strerror}"
    for row, record in there.items():
        folder = root.job(row.job_id).folder
        try:
            folder.rename(aside / row.job_id)
        except FileNotFoundError:
            pass  # somebody else removed it
        except OSError as error:
            trouble = f"{folder}: cannot remove it: {error.strerror}"
            continue
        gone.append(record)
    with contextlib.suppress(OSError):
        sync_folder(root.jobs)
    return gone, trouble


def untold(leftover: Path) -> list[CollectedRecord]:
    """The records that a killed daemon moved into this folder and may not have told of. Blocks."""
    if not leftover.name.startswith(_COLLECTED):
        return []
    try:
        noted = state_file.read(leftover / _UNTOLD, list[CollectedRecord])
    except (OSError, state_file.Damaged):
        return []
    return [one for one in noted if (leftover / one.job).is_dir()]


def remove_aside(leftover: Path) -> str:
    """Removes a folder of records that were told of; returns a sentence about what could not be removed, or "".
    Blocks."""
    with contextlib.suppress(OSError):  # first: it says that something is untold
        (leftover / _UNTOLD).unlink()
    return job_folder.remove_tree(leftover)
