"""Removes the record of an ended job: by request, by force, and by age or count."""

import contextlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import TypeVar, TypeVarTuple

import anyio
import structlog

from muster.agent import threads
from muster.agent.errors import JobAlive, JobNotEnded, NoRoom
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

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_log = structlog.get_logger(__name__)


class JobRemoval:
    """Belongs to one event loop. Callers run it with `JobWork.finish`."""

    def __init__(self, root: Root, table: JobTable, tasks: JobTasks, work: JobWork, pool: threads.Pool) -> None:
        self._root, self._table, self._tasks, self._work, self._threads = root, table, tasks, work, pool
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

    async def collect(self, rows: Sequence[Ended], logs: CollectedLogs) -> tuple[list[Ended], str]:
        """As Registry.collect."""
        async with AsyncExitStack() as stack:
            for row in sorted(rows, key=lambda row: row.job_id):
                await stack.enter_async_context(self._work.alone(row.job_id))
            there = [row for row in rows if self._table.ended.row(row.job_id) is row]
            gone, trouble = await self._threads.run(_collect, self._root, there, logs)
            for row in gone:
                self._table.forget(row.job_id)
        if trouble and trouble != self.uncollected:
            _log.warning("job.not_collected", error=trouble)
        self.uncollected = trouble
        return gone, trouble

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


def _collect(root: Root, rows: Iterable[Ended], logs: CollectedLogs) -> tuple[list[Ended], str]:
    """Removes the folders of these ended jobs, and notes who owns their log files. Returns the jobs whose folders were
    removed, and a sentence about what could not be removed, or "".

    A folder is first moved aside as a whole: if the daemon is killed, the next start removes it. Blocks.
    """
    there = [row for row in rows if not (row.damaged and job_lock.holder(root.job(row.job_id).lock))]
    if not there:
        return [], ""
    aside = root.jobs / f".collected.{secrets.token_hex(4)}"
    gone, trouble = [], ""
    try:
        logs.add(there)
        aside.mkdir(0o700)
    except OSError as error:
        return [], f"{error.filename or root.state}: cannot remove records: {error.strerror}"
    for row in there:
        folder = root.job(row.job_id).folder
        try:
            folder.rename(aside / row.job_id)
        except FileNotFoundError:
            pass  # somebody else removed it
        except OSError as error:
            trouble = f"{folder}: cannot remove it: {error.strerror}"
            continue
        gone.append(row)
    with contextlib.suppress(OSError):
        sync_folder(root.jobs)
    return gone, job_folder.remove_tree(aside) or trouble
