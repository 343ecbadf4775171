"""Explains each failed job soon after its end, and again while more facts may arrive: an Xid, a kernel message."""

import contextlib
import copy
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
import structlog
from anyio.abc import TaskGroup

from muster.agent import threads
from muster.agent.changes import Changes
from muster.agent.errors import JobNotFound
from muster.agent.events.event_store import Event
from muster.agent.jobs import explained
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.explained import Explained
from muster.agent.jobs.registry import Registry
from muster.agent.link import supervisor_client
from muster.agent.link.supervisor_client import LinkLost, Refused
from muster.agent.why.known import Sources
from muster.supervisors.model.states import EXPLAINED
from muster.supervisors.supervision_errors import explain

if TYPE_CHECKING:
    from muster.agent.why.facts import Facts

#: A job is explained so many seconds after its end: facts may arrive late.
LOOKS_S = (0.0, 5.0, 20.0, 75.0)
#: A job that ended longer ago than so many seconds and was never explained stays unexplained.
RECENT_S = 3600.0
#: At most so many of these are explained when the daemon starts.
RESUMED = 64
#: What explains a job is loaded so many seconds after the first one began.
READY_S = 1.0
#: At most so many jobs are explained at the same time.
AT_ONCE = 4
_KIND = "job.explained"

_log = structlog.get_logger(__name__)


class Explaining:
    """Belongs to one event loop."""

    def __init__(self, known: Sources, registry: Registry) -> None:
        self._known, self._registry = known, registry
        self._ended: deque[Entry] = deque()
        self._told = Changes()
        self._limiter = anyio.CapacityLimiter(AT_ONCE)
        #: Of later looks: a job that has just ended does not wait for them.
        self._later = anyio.CapacityLimiter(1)
        #: Jobs in the course of explanation (after `rm` another one of the same id may end: the entry tells which);
        #: and those whose explanation could not be written.
        self._followed: dict[str, Entry] = {}
        self._unwritten: set[str] = set()
        #: Jobs whose epilog waits for the explanation; and all of these that have not ended.
        self._concluded: deque[Entry] = deque()
        self._asked: set[str] = set()
        #: Called with a failed job once it is explained, and again after the last look at it (True); of a job that
        #: ended before the daemon started once (False).
        self.on_explained: Callable[[Entry, bool], Awaitable[None]] | None = None
        #: Jobs that had another attempt; of how many of these each is explained.
        self._attempted: deque[Entry] = deque()
        self._past: dict[str, int] = {}
        registry.ended.on_ended.append(self._one_ended)
        registry.on_concluded.append(self._one_concluded)
        registry.on_going.append(self._one_goes_on)
        self._any_job = anyio.Event()

    async def run(self) -> None:
        """Explains jobs until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._resume)
            tasks.start_soon(self._get_ready)
            while True:
                told = self._told.count
                while self._ended:
                    self._begin(self._ended.popleft(), tasks)
                while self._concluded:
                    tasks.start_soon(self._explain_to_epilog, self._concluded.popleft())
                while self._attempted:
                    tasks.start_soon(self._explain_past, self._attempted.popleft())
                await self._told.beyond(told)

    def _one_concluded(self, entry: Entry) -> None:
        job = entry.job
        if job.concluded is not None and job.concluded[0] in EXPLAINED and entry.job_id not in self._asked:
            self._asked.add(entry.job_id)
            self._concluded.append(entry)
            self._told.tell()

    def _one_goes_on(self, entry: Entry) -> None:
        self._any_job.set()
        count = len(entry.job.past)
        if count > self._past.get(entry.job_id, 0):
            self._past[entry.job_id] = count
            self._attempted.append(entry)
            self._told.tell()

    def _one_ended(self, entry: Entry) -> None:
        self._asked.discard(entry.job_id)
        self._past.pop(entry.job_id, None)
        if entry.lacks_explanation or entry.lacks_past:
            self._ended.append(entry)
            self._told.tell()

    def _begin(self, entry: Entry, tasks: TaskGroup) -> None:
        if self._followed.get(entry.job_id) is entry:
            return
        self._followed[entry.job_id] = entry
        self._unwritten.discard(entry.job_id)
        tasks.start_soon(self._follow, entry, name=f"explain {entry.job_id}")

    async def _get_ready(self) -> None:
        """Loads what explains a job, once one has run for a moment: the first that fails would wait for that.
        Not sooner, for a job of a moment wants the processor itself."""
        await self._any_job.wait()
        await anyio.sleep(READY_S)
        try:
            await threads.run(_load)
        except Exception:  # a bug here must not end the daemon
            _log.exception("why.explaining_defect")

    async def _resume(self) -> None:
        """Explains, once and one after the other, the earlier attempts of jobs that have not ended, and the newest jobs
        that ended shortly before an earlier daemon did, those that succeeded at a later attempt among them."""
        for entry in self._registry.live():
            self._one_goes_on(entry)
        await self._registry.ended.indexed.wait()
        since = time.time() - RECENT_S
        for row in [row for row in self._registry.ended.rows() if _is_recent(row, since)][:RESUMED]:
            with contextlib.suppress(JobNotFound):
                entry = await self._registry.get(row.job_id)
                if entry.job_id in self._followed:
                    continue
                if entry.lacks_explanation or entry.lacks_past:
                    await self._explain_safely(entry, self._later)
                self._tell_untold(entry)
                if self.on_explained is not None and row.state in EXPLAINED:
                    await self.on_explained(entry, False)

    async def _follow(self, entry: Entry) -> None:
        began = anyio.current_time()
        try:
            looks = LOOKS_S if entry.lacks_explanation else LOOKS_S[:1]
            for after in looks:
                await anyio.sleep_until(began + after)
                if self._registry.known(entry.job_id) is not entry:
                    self._was_removed(entry)
                    return
                await self._explain_safely(entry, self._later if after else self._limiter)
                if self.on_explained is not None and entry.job.state in EXPLAINED and after in (looks[0], looks[-1]):
                    await self.on_explained(entry, True)
        finally:
            if self._followed.get(entry.job_id) is entry:
                del self._followed[entry.job_id]
                self._unwritten.discard(entry.job_id)

    async def _explain_to_epilog(self, entry: Entry) -> None:
        """Explains the end that is certain by now; when the job has ended, it is explained again."""
        try:
            async with self._limiter:
                found = await self._found(_as_ended(entry))
            await supervisor_client.explained(entry.paths.controls, found.recommendation, found.cause)
        except (LinkLost, Refused) as error:
            _log.info("why.epilog_not_told", job=entry.job_id, error=str(error))
        except Exception:  # a bug here must not end the daemon
            _log.exception("why.explaining_defect", job=entry.job_id)

    async def _explain_past(self, entry: Entry) -> None:
        """What the attempts before this one ended of, also for readers while the job runs."""
        try:
            async with self._later:
                facts = await self._facts(entry)
            from muster.agent.why.causes import past_attempts

            found = past_attempts.first_failures(facts)
            if found != entry.past_causes and self._registry.known(entry.job_id) is entry:
                entry.past_causes = found
                self._registry.count_change()
                entry.wake()
        except Exception:  # a bug here must not end the daemon
            _log.exception("why.explaining_defect", job=entry.job_id)

    async def _facts(self, entry: Entry) -> "Facts":
        # Only now: the daemon starts sooner, and most jobs do not fail.
        from muster.agent.why.facts import gather

        folder = self._known.config().why.signatures_dir
        return await gather(self._known, entry, Path(folder) if folder else None, readings=False)

    async def _found(self, entry: Entry) -> Explained:
        from muster.agent.why.causes import probable_cause
        from muster.agent.why.explained_verdict import explanation

        facts = await self._facts(entry)
        return explanation(facts, probable_cause.causes(facts))

    async def _explain_safely(self, entry: Entry, limiter: anyio.CapacityLimiter) -> None:
        try:
            async with limiter:
                await self._explain(entry)
        except Exception:  # a bug here must not end the daemon
            _log.exception("why.explaining_defect", job=entry.job_id)

    async def _explain(self, entry: Entry) -> None:
        found = await self._found(entry)
        before = entry.explained
        if found.says(before) and entry.job_id not in self._unwritten:
            return
        if before is not None:
            found = before if found.says(before) else msgspec.structs.replace(found, was=before.recommendation)
        async with self._registry.alone(entry.job_id):
            if self._registry.known(entry.job_id) is not entry:
                self._was_removed(entry)
                return
            try:
                await threads.run(explained.write, entry.paths.explained, found)
                self._unwritten.discard(entry.job_id)
            except OSError as error:  # the next round tries again, and so does the next daemon
                _log.warning("why.not_kept", job=entry.job_id, error=explain(error))
                self._unwritten.add(entry.job_id)
            if found.says(before):
                return
            entry.explained = found
            self._registry.count_change()
            if entry.job.state in EXPLAINED:
                self._known.events.append([(None, _event(entry, found))])
            entry.wake()

    def _tell_untold(self, entry: Entry) -> None:
        """An earlier daemon was killed between the file of the explanation and its event."""
        found = entry.explained
        if found is None or entry.job.state not in EXPLAINED:
            return
        if found.at != self._known.events.last_told(_KIND, entry.job_id):
            self._known.events.append([(None, _event(entry, found))])

    def _was_removed(self, entry: Entry) -> None:
        """Reports that there is no explanation, where there is none: its records and logs may be gone."""
        early = entry.job.verdict
        if not entry.lacks_explanation or early is None:
            return
        why = "the job was removed before its cause was known"
        entry.explained = Explained(early.recommendation, why, at=time.time())
        self._known.events.append([(None, _event(entry, entry.explained))])


def _load() -> None:
    """Blocks, for some tens of milliseconds of a CPU."""
    from muster.agent.why import explained_verdict, signatures
    from muster.agent.why.causes import probable_cause

    _log.debug("why.ready", modules=[explained_verdict.__name__, probable_cause.__name__])
    signatures.builtin()


def _as_ended(entry: Entry) -> Entry:
    """The job as it will be when its epilog is over."""
    job = copy.copy(entry.job)
    assert job.concluded is not None
    job.state, job.verdict = job.concluded
    job.ended_at = max((rank.ended_at for rank in job.ranks), default=0.0)
    ended = copy.copy(entry)
    ended.job = job
    return ended


def _is_recent(row: Ended, since: float) -> bool:
    return (row.state in EXPLAINED or row.retried) and row.ended_at > since and not row.damaged


def _event(entry: Entry, found: Explained) -> Event:
    said = {"state": str(entry.job.state), "recommendation": found.recommendation, "reason": found.reason}
    said |= {"cause_kind": found.kind, "confidence": found.confidence, "signature": found.signature}
    if found.first_failed is not None:
        said["first_failed_rank"] = str(found.first_failed)
    if found.worker is not None:
        said["worker"] = found.worker.status
    said["was"] = found.was
    said = {key: value for key, value in said.items() if value}
    message = found.cause or found.reason
    return Event(found.at, _KIND, entry.job_id, rank=found.rank, message=message, attributes=said)
