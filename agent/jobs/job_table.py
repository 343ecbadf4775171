"""The jobs of this node by id: a cache of their journals."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import anyio

from muster.agent import threads
from muster.agent.events.event_store import EventStore, RecordKey
from muster.agent.jobs.cards.leasing import Leasing
from muster.agent.jobs.damaged.damaged_jobs import DamagedJobs
from muster.agent.jobs.ended.ended_index import EndedJobs
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.entry import Entry, Told
from muster.supervisors.model.states import State
from muster.supervisors.paths import Root
from muster.supervisors.system.spare import Reserve

#: Callers wait at most so many seconds after a job's end for its explained verdict.
EXPLAIN_S = 10.0


class JobTable:
    """Belongs to one event loop."""

    def __init__(self, root: Root, events: EventStore, leasing: Leasing, reserve: Reserve) -> None:
        """`reserve`: spare descriptors to end the processes of damaged jobs with."""
        self._events = events
        self.leasing = leasing
        #: Jobs that have not ended.
        self.unended: dict[str, Entry] = {}
        #: The index of jobs that have ended.
        self.ended = EndedJobs(root, threads.Pool(2))
        #: Jobs whose record cannot be trusted and that may have living processes.
        self.damaged = DamagedJobs(root, reserve, self.count_change)
        self.ended.on_damaged = self.damaged.add
        #: Called, perhaps repeatedly, with a job whose epilog is still to come or runs.
        self.on_concluded: list[Callable[[Entry], None]] = []
        #: Called with a job that has not ended when more is known of it, but not with one of `on_concluded`.
        self.on_going: list[Callable[[Entry], None]] = []
        #: Sentences about unexpected folders among those of the jobs.
        self.strange: list[str] = []
        #: Grows whenever a job is added, changed or removed.
        self.version = 0

    # --- readers ------------------------------------------------------------------------------------------------------

    async def get(self, job_id: str) -> Entry:
        """A job, from memory or from disk. Raises JobNotFound."""
        return self.unended.get(job_id) or await self.ended.get(job_id)

    def known(self, job_id: str) -> Entry | None:
        """A job in memory: a live job, or an ended job that a client has read."""
        return self.unended.get(job_id) or self.ended.find(job_id)

    def job(self, job_id: str) -> Entry | Ended | None:
        """A job that has not ended, or the index entry of an ended one. None where no such job exists, or it is not
        indexed yet."""
        return self.unended.get(job_id) or self.ended.row(job_id)

    def live(self) -> list[Entry]:
        """Jobs that have not ended, newest accepted first."""
        return sorted(self.unended.values(), key=lambda e: e.key, reverse=True)

    def writing(self) -> list[Entry]:
        """Jobs whose processes may write output: those that have not ended, and damaged ones with living processes."""
        return [*self.live(), *self.damaged.entries()]

    def is_known(self, job_id: str) -> bool:
        """Whether such a job exists, ended or not."""
        return job_id in self.unended or job_id in self.ended

    def has_ended(self, job_id: str) -> bool:
        """Whether such a job exists and has ended."""
        return job_id in self.ended

    def states(self) -> Counter[State]:
        """How many jobs are in each state. Jobs that had ended before the daemon started count once they are read."""
        return self.ended.states + Counter(entry.job.state for entry in self.unended.values())

    async def wait_change(self, entry: Entry) -> None:
        """Returns at the next record of this job, or when it is deleted."""
        await entry.changed.next()

    async def wait_ended(self, job_id: str) -> Entry:
        """Returns when the job has ended. Raises JobNotFound, also if the job is deleted meanwhile."""
        entry = await self.get(job_id)
        while not entry.job.state.final:
            await entry.changed.next()
        return entry

    async def wait_explained(self, entry: Entry) -> None:
        """Returns when the verdict of an ended job is explained, EXPLAIN_S seconds after its end at the latest."""
        left = entry.job.ended_at + EXPLAIN_S - time.time()
        with anyio.move_on_after(min(max(left, 0.0), EXPLAIN_S)):
            while entry.lacks_explanation:
                await entry.changed.next()

    # --- changes ------------------------------------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """Adds a job that was read from disk."""
        if entry.job.state.final:
            self.ended.add(entry)
        else:
            self.unended[entry.job_id] = entry
            self.leasing.restore(entry)

    def publish(self, entry: Entry, told: Told) -> None:
        """Publishes records that were applied to a job; `told`: the events that follow from them."""
        self._events.append(self.untold(entry, told))
        self.version += 1
        if entry.job.state.final:
            self.unended.pop(entry.job_id, None)
            self.ended.add(entry)
            self.leasing.give_back(entry)
        elif entry.job.concluded is not None:
            for call in self.on_concluded:
                call(entry)
        else:
            for call in self.on_going:
                call(entry)
        entry.wake()

    def forget(self, job_id: str) -> None:
        """The job's record was removed from disk."""
        entry = self.ended.find(job_id)
        self.ended.remove(job_id)
        self._events.forget(job_id)
        self.version += 1
        if entry is not None:
            entry.wake()

    def untold(self, entry: Entry, told: Told) -> Iterator[tuple[RecordKey, Any]]:
        """The events that the store does not have yet, each with its key."""
        if not told:
            return
        accepted_at = entry.job.accepted_at
        last = self._events.last_record(entry.job_id, accepted_at)
        for number, event in told:
            if number > last:
                yield RecordKey(entry.job_id, accepted_at, number), event

    def count_change(self) -> None:
        """Counts a change of a job that no record contains."""
        self.version += 1
