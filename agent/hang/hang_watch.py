"""Watches all running jobs for hangs: applies the rule of probes/hang to the telemetry records, and acts on its
verdicts."""

import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from muster.agent import threads
from muster.agent.config.schema import Config, HangTable, SlowTable
from muster.agent.errors import ApiError
from muster.agent.events.event_store import Event, EventStore
from muster.agent.hang import hang_action, hang_state
from muster.agent.hang.current_hang import QUIET, CurrentHang, event_kind, event_of, with_culprit
from muster.agent.hang.hang_state import HangState
from muster.agent.hang.kept_stacks import JobStacks
from muster.agent.hang.slow_watch import SlowWatch, event
from muster.agent.jobs.ended.ended_index import EndedJobs
from muster.agent.jobs.entry import Entry
from muster.agent.telemetry.records import Lost, Records, TelemetryRecord, encoded
from muster.probes import hang
from muster.probes.hang import Change, HangVerdict
from muster.probes.hang.dump_schedule import DUMPS, dump_times
from muster.probes.hang.slow import SlowChange
from muster.probes.kernel.backoff import Backoff
from muster.probes.kernel.dataclass import dataclass
from muster.probes.stacks import StackTarget
from muster.supervisors.model.spec import OnHang
from muster.supervisors.model.states import State
from muster.supervisors.paths import Root

#: A detector's state is written every so many records: about once a minute.
STORE_EVERY = 4
#: Distances of dumps after which a communication library is asked again: at first, and at most.
LIBRARY_FIRST, LIBRARY_LAST = 6, 60
#: A daemon that starts tells nothing more of jobs that ended longer ago than so many seconds.
RECENT_S = 3600.0

_log = structlog.get_logger(__name__)


class WatchedJobs(Protocol):
    """The part of the registry that the watch uses."""

    @property
    def ended(self) -> EndedJobs:
        """Jobs that have ended."""

    def known(self, job_id: str) -> Entry | None:
        """A job in memory: one that has not ended, or that a client has read."""


class StackTaker(Protocol):
    """Takes the stacks of a job; both raise ApiError."""

    def take(self, job_id: str, ranks: Sequence[int], occasion: str) -> Awaitable[JobStacks]:
        """Of these ranks (empty: all) and their workers; stores them."""

    def look(self, job_id: str) -> Awaitable[JobStacks]:
        """Of all ranks without their workers; stores nothing."""

    def targets(self, job_id: str) -> Awaitable[Sequence[StackTarget]]:
        """The processes of all ranks without their workers."""


@dataclass(slots=True)
class _Watched:
    entry: Entry
    attempt: tuple[float, int]
    #: The node's configuration that the detector's settings come from.
    table: HangTable
    detector: "hang.Detector | hang.PlainDetector"
    slow_table: SlowTable
    slow: SlowWatch
    found: CurrentHang | None = None
    since_stored: int = 0
    #: A hang whose event follows once its stacks are taken, and when it was found.
    unpublished: tuple[Change, float] | None = None
    #: Whether its stacks are taken again and again.
    is_looked_at: bool = False
    #: Whether a series of dumps for the rule of slow ranks is being taken.
    is_sampled: bool = False
    #: Whether its communication library is asked again and again.
    is_asked: bool = False


class HangWatch:
    """Belongs to one event loop."""

    def __init__(
        self,
        root: Root,
        settings: Callable[[], Config],
        events: EventStore,
        registry: WatchedJobs,
        records: Records,
        stacks: StackTaker,
    ) -> None:
        """For jobs of this registry, from these records."""
        self._root = root
        self._settings = settings
        self._events = events
        self._registry = registry
        self._records = records
        self._stacks = stacks
        self._jobs: dict[str, _Watched] = {}
        self._group: TaskGroup | None = None
        self._threads = threads.Pool(2)
        #: Sentence for an operator, or empty.
        self.trouble: list[str] = []

    def found(self, entry: Entry) -> CurrentHang | None:
        """The present verdict of a job; None if it has none, or has ended."""
        watched = self._of(entry)
        if watched is None or watched.found is None:
            return None
        return dataclasses.replace(watched.found, now=watched.detector.present())

    def slow(self, entry: Entry) -> SlowChange | None:
        """The ranks of a job that are SLOW now; None if there are none, or the job has ended."""
        watched = self._of(entry)
        return watched.slow.found if watched is not None else None

    def _of(self, entry: Entry) -> _Watched | None:
        watched = self._jobs.get(entry.job_id)
        if watched is None or watched.entry is not entry or entry.job.state.final or watched.attempt != _attempt(entry):
            return None
        return watched

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Feeds the detectors until cancelled."""
        with self._records.subscribed() as records:
            async with anyio.create_task_group() as self._group:
                self._group.start_soon(self._tell_left)
                task_status.started()
                while True:
                    some = await records.some()
                    self._jobs = {job: each for job, each in self._jobs.items() if not each.entry.job.state.final}
                    self._records.drop_looks(self._jobs)
                    for record in some:
                        if isinstance(record, Lost):
                            continue  # the rule sees a gap, which is no evidence
                        try:
                            await self._take(record)
                        except Exception as error:  # a bug here must not end the daemon
                            _log.exception("hang.defect", job=record.job)
                            self.trouble = [f"job {record.job}: the hang rule failed: {error!r}"]

    async def _take(self, record: TelemetryRecord) -> None:
        entry = self._registry.known(record.job)
        if entry is None or entry.job.state is not State.RUNNING or not self._settings().hang.enabled:
            if (gone := self._jobs.pop(record.job, None)) is not None and entry is not None:
                await self._threads.run(hang_state.remove, gone.entry)
            return
        watched = self._jobs.get(record.job)
        if watched is None or watched.attempt != _attempt(entry):
            watched = self._jobs[record.job] = await self._begin(entry)
        if watched.table is not self._settings().hang:
            # The configuration was reloaded. The detector keeps its state under the new settings.
            table = self._settings().hang
            watched.table, watched.detector = table, hang_state.going_on(watched.detector.state(), self._rule(entry))
        if watched.slow_table is not self._settings().slow:
            watched.slow_table = self._settings().slow
            watched.slow.configured(watched.slow_table)
        # Through JSON: the rule sees the same as from a recording.
        seen = hang.parse(encoded(record))
        changes = watched.detector.feed(seen) if seen is not None else []
        found, untold = watched.found, ""
        for change in changes:
            since = change.evidence.get("since")
            found, untold = (
                CurrentHang(change, since if isinstance(since, (int, float)) else change.t, change.t),
                event_kind(change),
            )
        slow = seen is not None and watched.slow.take(seen, watched.detector, enabled=watched.slow_table.enabled)
        watched.since_stored += 1
        if changes or slow or watched.since_stored >= STORE_EVERY:
            watched.since_stored = 0
            pending = event_kind(watched.unpublished[0]) if watched.unpublished is not None else ""
            await self._store(watched, found, untold or pending)
        # Published after the store: if it is killed in between, the next daemon sees whether the event was published.
        watched.found = found
        for change in changes:
            self._tell(watched, untold, change)
        self._tell_slow(watched)
        if watched.detector.wants_stacks and not watched.is_looked_at and self._group is not None:
            watched.is_looked_at = True
            self._group.start_soon(self._look, watched, name=f"stacks of {record.job}")
        if watched.slow.rule.wants_samples and not watched.is_sampled and self._group is not None:
            watched.is_sampled = True
            self._group.start_soon(self._sample, watched, name=f"samples of {record.job}")
        suspected = watched.detector.verdict is HangVerdict.SUSPECT and self._settings().hang.library
        if suspected and not watched.is_asked and self._group is not None:
            watched.is_asked = True
            self._group.start_soon(self._ask_library, watched, name=f"library of {record.job}")

    async def _tell_left(self) -> None:
        """Tells what an earlier daemon had found of jobs that have ended since, and did not tell."""
        await self._registry.ended.indexed.wait()
        since = time.time() - RECENT_S
        recent = [self._root.job(row.job_id) for row in self._registry.ended.rows() if row.ended_at > since]
        for stored in await self._threads.run(hang_state.load_all, recent):
            try:
                self._tell_untold(stored)
            except Exception:  # what another version wrote must not end the daemon
                _log.exception("hang.defect", attempt=stored.attempt)

    def _tell_untold(self, stored: HangState) -> None:
        """Of an attempt that is over."""
        attempt, change = stored.attempt[1], hang_state.change_of(stored.found)
        if stored.untold and change is not None and not self._was_told(stored.untold, change):
            self._append(event_of(stored.untold, change, attempt, time.time()))
        slow = SlowWatch.begun(self._settings().slow, stored.slow).untold
        if slow is not None and not self._was_told(event(slow, attempt).kind, slow):
            self._append(event(slow, attempt))

    async def _begin(self, entry: Entry) -> _Watched:
        """A detector for an attempt, in the state in which an earlier daemon left it."""
        settings = self._rule(entry)
        slow = self._settings().slow
        watched = _Watched(
            entry, _attempt(entry), self._settings().hang, hang.detector(settings), slow, SlowWatch.begun(slow, {})
        )
        stored = await self._threads.run(hang_state.load, entry.paths)
        if stored is None:
            return watched
        if stored.attempt != watched.attempt:
            self._tell_untold(stored)
            return watched
        watched.detector = hang_state.going_on(stored.state, settings)
        watched.slow = SlowWatch.begun(slow, stored.slow)
        untold = watched.slow.untold
        if untold is not None and not self._was_told(event(untold, watched.attempt[1]).kind, untold):
            self._tell_slow(watched)
        watched.slow.untold = None
        change = hang_state.change_of(stored.found)
        if change is not None and watched.detector.verdict is not None:
            watched.found = CurrentHang(change, stored.since, change.t)
            if stored.untold and not self._was_told(stored.untold, change):
                self._publish(watched, stored.untold, change)
            if change.verdict is HangVerdict.HUNG and self._group is not None:
                # The earlier daemon may have been killed before it acted.
                self._group.start_soon(self._follow_up, watched, change, name=f"hang of {change.job}")
        return watched

    def _rule(self, entry: Entry) -> hang.HangSettings:
        try:
            return self._settings().hang.with_written(entry.spec.hang)
        except ValueError as error:  # a setting that an earlier version knew
            _log.warning("hang.settings_refused", job=entry.job_id, error=str(error))
            return self._settings().hang

    async def _store(self, watched: _Watched, found: CurrentHang | None, untold: str) -> None:
        state = HangState(
            watched.attempt,
            watched.detector.state(),
            found.change.as_dict() if found is not None else None,
            found.since if found is not None else 0.0,
            untold,
            watched.slow.stored(),
        )
        await self._threads.run(hang_state.store, watched.entry, state)

    # --- consequences -------------------------------------------------------------------------------------------------

    def _tell(self, watched: _Watched, kind: str, change: Change) -> None:
        _log.info("hang.verdict", job=change.job, verdict=str(change.verdict), confidence=change.confidence)
        watched.entry.wake()
        self._publish_pending(watched)  # its stacks are still being taken
        if kind:
            self._publish(watched, kind, change)
        if change.verdict in QUIET and self._group is not None:
            self._group.start_soon(self._follow_up, watched, change, name=f"hang of {change.job}")

    def _tell_slow(self, watched: _Watched) -> None:
        change, watched.slow.untold = watched.slow.untold, None
        if change is not None:
            _log.info("slow.verdict", job=change.job, verdict=str(change.verdict), ranks=list(change.ranks))
            watched.entry.wake()
            self._append(event(change, watched.attempt[1]))

    def _publish(self, watched: _Watched, kind: str, change: Change) -> None:
        """A hang is published with its culprit, as soon as its stacks are taken (`_follow_up`); all else now."""
        if change.verdict is HangVerdict.HUNG and self._group is not None:
            watched.unpublished = change, time.time()
        else:
            self._append(event_of(kind, change, watched.attempt[1], time.time()))

    def _publish_pending(self, watched: _Watched, named: Change | None = None) -> None:
        if watched.unpublished is not None:
            (change, at), watched.unpublished = watched.unpublished, None
            self._append(event_of(event_kind(change), named or change, watched.attempt[1], at))

    def _append(self, event: Event) -> None:
        self._events.append([(None, event)])

    def _was_told(self, kind: str, change: Change | SlowChange) -> bool:
        return self._events.last_told(kind, change.job) >= change.t

    async def _blame(self, watched: _Watched, change: Change, taken: JobStacks | None) -> Change:
        """Publishes the hang, and makes its culprit part of the verdict, if the stacks show one."""
        named = change if taken is None else with_culprit(change, taken, watched.entry.job)
        self._publish_pending(watched, named)
        if watched.found is not None and watched.found.change is change:
            watched.found = dataclasses.replace(watched.found, change=named)
            watched.entry.wake()
            await self._store(watched, watched.found, "")
        return named

    async def _look(self, watched: _Watched) -> None:
        """Takes stacks for the rule, as long as it wants some."""
        job_id = watched.entry.job_id
        try:
            begin = anyio.current_time()
            for after in dump_times(watched.detector.settings.stacks_apart_s):
                await anyio.sleep_until(begin + after)
                if not watched.detector.wants_stacks or self._jobs.get(job_id) is not watched:
                    return
                taken = await self._stacks.look(job_id)
                self._records.add_stacks(job_id, taken.of_ranks(watched.entry.job))
        except ApiError as error:  # it has ended meanwhile, or too many jobs are looked at
            _log.warning("hang.no_stacks", job=job_id, error=str(error))
        finally:
            watched.is_looked_at = False

    async def _sample(self, watched: _Watched) -> None:
        """Takes a series of dumps for the rule of slow ranks."""
        job_id = watched.entry.job_id
        try:
            for number in range(DUMPS):
                if number:
                    await anyio.sleep(watched.detector.settings.stacks_apart_s)
                if self._jobs.get(job_id) is not watched:
                    return
                taken = await self._stacks.look(job_id)
                self._records.add_samples(job_id, taken.of_ranks(watched.entry.job))
        except ApiError as error:  # it has ended meanwhile, or too many jobs are looked at
            _log.info("slow.no_stacks", job=job_id, error=str(error))
        finally:
            watched.is_sampled = False

    async def _ask_library(self, watched: _Watched) -> None:
        """The same with what the communication library says, as long as the job is suspected to hang."""
        from muster.agent.hang import library_look  # only now: the daemon starts sooner

        job_id, apart_s = watched.entry.job_id, watched.detector.settings.stacks_apart_s
        pause = Backoff(LIBRARY_FIRST * apart_s, LIBRARY_LAST * apart_s)
        try:
            while watched.detector.verdict is HangVerdict.SUSPECT and self._jobs.get(job_id) is watched:
                targets = await self._stacks.targets(job_id)
                at = time.time()
                since = watched.found.since if watched.found is not None else at
                world = watched.entry.job.world_size or len(targets)
                with self._records.asking(job_id):
                    said = await library_look.look(job_id, targets, world, at, since)
                if said is not None:
                    self._records.add_library(job_id, said)
                await anyio.sleep(pause.next())
        except ApiError as error:  # it has ended meanwhile
            _log.info("hang.no_library", job=job_id, error=str(error))
        finally:
            watched.is_asked = False

    async def _follow_up(self, watched: _Watched, change: Change) -> None:
        """Takes the stacks while the processes still exist; then carries out the configured action."""
        occasion = "suspected hang" if change.verdict is HangVerdict.SUSPECT else "hung"
        taken = None
        try:
            taken = await self._stacks.take(change.job, (), occasion)
        except Exception as error:  # evidence is useful, not required
            _log.warning("hang.no_stacks", job=change.job, error=str(error))
        if change.verdict is HangVerdict.HUNG:
            change = await self._blame(watched, change, taken)
        entry = watched.entry
        action = OnHang(entry.spec.on_hang or self._settings().hang.action)
        if change.verdict is not HangVerdict.HUNG or action is OnHang.NOTIFY or self.found(entry) is None:
            return
        if watched.found is None or watched.found.change.verdict is not HangVerdict.HUNG:
            return  # it made progress while the stacks were taken
        least = watched.detector.settings.action_confidence
        await hang_action.act(entry, watched.attempt[1], change, action, least, self._events)


def _attempt(entry: Entry) -> tuple[float, int]:
    return entry.job.accepted_at, entry.job.attempt
