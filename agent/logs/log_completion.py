"""What makes the log files of a job complete: its worker log, which is written from the job's events, and its end.

Complete files of an ended job are offered to the program that takes logs over, and may be removed.
"""

import contextlib
from collections.abc import Callable, Iterable

import anyio
import structlog
from anyio.abc import TaskGroup

from muster.agent import threads
from muster.agent.changes import Changes
from muster.agent.config.schema import Config
from muster.agent.errors import CursorTooOld, InvalidRequest, JobNotFound
from muster.agent.events.event_store import EventStore
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.registry import Registry
from muster.agent.logs import log_upload, log_worker
from muster.agent.logs.log_upload import Uploads
from muster.agent.logs.log_worker import WorkerLog
from muster.supervisors.launch.modes import modelarts
from muster.supervisors.paths import Root
from muster.supervisors.system import lock

#: Seconds between two looks at the jobs without news, and at least between any two.
JOBS_S, REST_S = 5.0, 0.5
#: How many folders of ended jobs one thread hop reads.
ROWS_AT_ONCE = 250
#: Threads for worker logs.
_THREADS = 2

_log = structlog.get_logger(__name__)


class LogCompletion:
    """Belongs to one event loop."""

    def __init__(
        self,
        root: Root,
        settings: Callable[[], Config],
        events: EventStore,
        registry: Registry,
        uploads: Uploads,
    ) -> None:
        """`settings` gives the present configuration."""
        self._root = root
        self._settings = settings
        self._events = events
        self._registry = registry
        self._uploads = uploads
        self._threads = threads.Pool(_THREADS)
        self._group: TaskGroup | None = None
        self._workers: dict[str, WorkerLog] = {}
        self._workers_changed = Changes()
        #: Jobs that have not ended, or have just ended, whose worker log is being written or was written.
        self._written: set[tuple[str, float]] = set()
        self._just_ended: dict[str, Entry] = {}
        #: Ended jobs whose files will be passed on once they are complete.
        self._incomplete: dict[str, Ended] = {}
        #: Whether all ended jobs were searched for worker logs to write, and for files to pass on.
        self._resumed = self._offered = False
        self._defect = ""

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator."""
        workers = [worker.trouble for worker in self._workers.values() if worker.trouble]
        return [*([self._defect] if self._defect else []), *workers[:3]]

    async def run(self) -> None:
        """Follows the jobs until cancelled."""
        async with anyio.create_task_group() as self._group:
            await self._follow_jobs()

    async def _follow_jobs(self) -> None:
        while True:
            cursor = self._events.newest_cursor()
            if self._setting() != "off":
                self._write_workers([*self._registry.live(), *self._just_ended.values()])
                self._just_ended.clear()
                await self._resume_workers()
            else:
                self._resumed = False
                self._just_ended.clear()
            await self._offer()
            try:
                with anyio.move_on_after(JOBS_S):
                    await self._events.wait_beyond(cursor)
            except (CursorTooOld, InvalidRequest):
                pass
            await anyio.sleep(REST_S)

    async def finish(self) -> None:
        """Returns once the worker logs of all jobs that have ended are whole: nobody would complete them later."""
        if self._setting() == "off":
            return
        self._write_workers(self._just_ended.values())
        while self._workers:
            await self._workers_changed.next()

    def ended(self, entry: Entry) -> None:
        """A job has just ended."""
        self._just_ended[entry.job_id] = entry
        if (row := self._registry.ended.row(entry.job_id)) is not None:
            self._incomplete[row.job_id] = row

    def removed(self, job_id: str) -> None:
        """The job's record was removed."""
        self._incomplete.pop(job_id, None)
        self._uploads.forget(job_id)

    def _write_workers(self, entries: Iterable[Entry]) -> None:
        assert self._group is not None
        for entry in entries:
            wanted = log_worker.style_of(self._setting(), entry.spec) != "off"
            if wanted and _key(entry) not in self._written and not entry.damaged:
                self._written.add(_key(entry))
                worker = self._workers[entry.job_id] = WorkerLog(self._root, entry, self._setting, self._threads)
                self._group.start_soon(self._write_worker, entry, worker, name=f"worker log {entry.job_id}")

    async def _resume_workers(self) -> None:
        """Writes, once, the worker logs of jobs that ended while no daemon ran."""
        if self._resumed or not self._registry.ended.indexed.is_set():
            return
        self._resumed = True
        for row in await self._sought(log_worker.unfinished):
            with contextlib.suppress(JobNotFound):
                self._write_workers([await self._registry.get(row.job_id)])

    async def _offer(self) -> None:
        """Passes the files of ended jobs on as soon as they are complete."""
        if not self._settings().logs.upload:
            self._offered = False
            self._incomplete.clear()
            return
        if not self._offered and self._registry.ended.indexed.is_set():
            self._offered = True
            self._incomplete |= {row.job_id: row for row in await self._sought(log_upload.waiting)}
        for row in list(self._incomplete.values()):
            if self.complete(row):
                del self._incomplete[row.job_id]
                self._uploads.ended(row)

    async def _sought(self, seek: Callable[[Root, list[Ended]], list[Ended]]) -> list[Ended]:
        """The ended jobs that `seek` finds, in a thread, without jobs that were removed meanwhile."""
        rows, found = list(self._registry.ended.rows()), []
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            found += await self._threads.run(seek, self._root, some)
        return [row for row in found if self._registry.ended.row(row.job_id) is row]

    async def _write_worker(self, entry: Entry, worker: WorkerLog) -> None:
        done = False
        try:
            done = await worker.run()
        except Exception as error:  # a bug here must not end the daemon
            _log.exception("logs.worker_defect", job=entry.job_id)
            self._defect = f"logs: worker log of job {entry.job_id}: internal error: {error!r}"
            done = True
        finally:
            if self._workers.get(entry.job_id) is worker:
                del self._workers[entry.job_id]
                self._workers_changed.tell()
            if not done or entry.job.state.final:
                self._written.discard(_key(entry))
        await self._offer()

    def _setting(self) -> str:
        return self._settings().logs.worker_log

    def complete(self, job: Entry | Ended) -> bool:
        """Whether the files of a job no longer grow."""
        if not job.state.final or job.job_id in self._workers:
            return False
        setting = self._setting()
        by_itself = job.by_itself if isinstance(job, Ended) else modelarts.has_worker_log(job.spec)
        wanted = setting != "off" and (setting != "auto" or by_itself)
        if wanted and (not self._resumed or job.job_id in self._just_ended):
            return False
        return not (job.damaged and lock.holder(self._root.job(job.job_id).lock))


def _key(entry: Entry) -> tuple[str, float]:
    return entry.job_id, entry.job.accepted_at
