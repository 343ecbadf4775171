"""Loads jobs from disk: at the daemon's start, and again if a record could not be read."""

from collections.abc import Callable, Sequence

import structlog

from muster.agent import threads
from muster.agent.config.schema import Config
from muster.agent.events.event_store import EventStore, RecordKey
from muster.agent.jobs import job_folder, job_removal
from muster.agent.jobs.cards.leasing import OnCards
from muster.agent.jobs.damaged import folderless
from muster.agent.jobs.ended import ended_scan
from muster.agent.jobs.ended.ended_index import LOAD_AT_ONCE
from muster.agent.jobs.ended.ended_scan import End
from muster.agent.jobs.entry import Told
from muster.agent.jobs.job_table import JobTable
from muster.agent.jobs.job_work import JobWork
from muster.agent.jobs.live.job_tasks import JobTasks
from muster.probes.calls.heartbeat import tick
from muster.probes.kernel.backoff import Backoff
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import explain

#: Seconds until a job that could not be read is read again: at first, and at most.
READ_AGAIN_S, READ_AGAIN_MOST_S = 1.0, 60.0
#: Jobs per call in a thread that checks whether they have ended.
ENDS_AT_ONCE = 500

_log = structlog.get_logger(__name__)


class JobLoading:
    """Belongs to one event loop."""

    def __init__(
        self,
        root: Root,
        config: Callable[[], Config],
        events: EventStore,
        table: JobTable,
        tasks: JobTasks,
        work: JobWork,
        pool: threads.Pool,
    ) -> None:
        self._root, self._config, self._events = root, config, events
        self._table, self._tasks, self._work, self._threads = table, tasks, work, pool
        self._on_cards: list[OnCards] = []
        self._to_index: list[str] = []

    async def load(self) -> None:
        """Reads the journals of jobs that have not ended, clears half-made folders away, and reports what happened
        while no daemon ran. Of jobs that had ended before, it reads only that; `index` does the rest.

        Raises OSError where the folder of jobs cannot be read; damage of a job is in its entry.
        """
        ids, leftovers, strange = await self._threads.run(job_folder.folders, self._root)
        wrong = self._table.strange
        for path in leftovers:
            if collected := await self._threads.run(job_removal.untold, path):
                self._events.append((None, one.event()) for one in collected)
                await self._events.stored()
            if trouble := await self._threads.run(job_removal.remove_aside, path):
                wrong.append(trouble)
        wrong += [f"{path}: is not the folder of a job: muster ignores it" for path in strange]
        try:
            ids += await self._threads.run(folderless.unrecorded, self._root, ids)
        except OSError as error:
            wrong.append(f"cannot look for jobs whose folder was moved away: {explain(error)}")
        self._events.keep_only(set(ids))
        ended: list[End] = []
        whole: list[str] = []
        for start in range(0, len(ids), ENDS_AT_ONCE):
            some = ids[start : start + ENDS_AT_ONCE]
            ends = await self._threads.run(ended_scan.ends, self._root, some)
            for job_id, end in zip(some, ends, strict=True):
                if end is None:
                    whole.append(job_id)
                else:
                    ended.append(end)
                    self._table.ended.expect(job_id)
        ended.sort(key=lambda end: end.at, reverse=True)
        self._to_index = [end.job_id for end in ended]
        # No more jobs can have ended while no daemon ran than may run at a time.
        untold = [end.job_id for end in ended if self._events.told(end.job_id) != end.number]
        await self._load(whole + untold[: self._config().jobs.max_jobs])

    async def _load(self, ids: Sequence[str]) -> None:
        """Reads these jobs completely, and reports their events that were not reported."""
        missed: Told = []
        keys: dict[int, RecordKey] = {}
        for start in range(0, len(ids), LOAD_AT_ONCE):
            some = ids[start : start + LOAD_AT_ONCE]
            for entry, told in await self._threads.run(job_folder.load_all, self._root, some):
                self._table.add(entry)
                if entry.job.state.final and (on_cards := OnCards.of(entry)) is not None:
                    self._on_cards.append(on_cards)
                for key, event in self._table.untold(entry, told):
                    missed.append((len(missed), event))
                    keys[len(missed) - 1] = key
        missed.sort(key=lambda item: (item[1].time, item[0]))
        self._events.append((keys[number], event) for number, event in missed)

    async def index(self) -> None:
        """Indexes the jobs that had ended before the daemon started, and finds which cards they left in use."""
        on_cards = await self._table.ended.index(self._to_index)
        self._to_index = []
        await self._table.leasing.settle([*self._on_cards, *on_cards], self._table.ended.get)
        self._on_cards = []

    async def read_again(self) -> None:
        """Retries unreadable jobs until they can be read or turn out to be damaged. Runs until cancelled."""
        pause = Backoff(READ_AGAIN_S, READ_AGAIN_MOST_S)
        while True:
            while not self._table.ended.unread:
                pause.reset()
                await self._table.ended.unread_grown.next()
            await tick(pause.next())
            for job_id in sorted(self._table.ended.unread):
                async with self._work.alone(job_id):
                    await self._read_one_again(job_id)

    async def _read_one_again(self, job_id: str) -> None:
        table = self._table
        stopped = table.damaged.get(job_id)
        if job_id not in table.ended.unread or (stopped is not None and stopped.stopping):
            return
        ((found, told),) = await self._threads.run(job_folder.load_all, self._root, [job_id])
        if found.unread:
            return
        _log.info("journal.read_again", job=job_id, damaged=found.damaged)
        if not found.damaged:
            await table.damaged.release(job_id)
        entry = table.ended.find(job_id) or found
        if entry is not found:
            entry.become(found)
        # No await until the job is known again: a client that asks meanwhile must not get JobNotFound.
        table.ended.remove(job_id)
        table.add(entry)
        self._events.append(table.untold(entry, told))
        table.count_change()
        entry.wake()
        if not entry.job.state.final:
            self._tasks.begin(entry, None)
