"""All jobs of this node: a cache of their journals, and what is done with a job as a whole."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from muster.agent import threads
from muster.agent.config.schema import Config
from muster.agent.errors import (
    JobAlive,
    JobIdConflict,
    JobNotEnded,
    JournalUnreadable,
    NoRoom,
    ShuttingDown,
    TooMany,
)
from muster.agent.events.event_store import EventStore, RecordKey
from muster.agent.jobs import admission, job_folder, log_ownership
from muster.agent.jobs.cards.leases import Lease
from muster.agent.jobs.cards.leasing import Leasing, OnCards
from muster.agent.jobs.cards.placement import placed
from muster.agent.jobs.damaged import folderless, forced_removal
from muster.agent.jobs.damaged.damaged_jobs import DamagedJobs
from muster.agent.jobs.ended import ended_scan, record_removal
from muster.agent.jobs.ended.collected_logs import CollectedLogs
from muster.agent.jobs.ended.ended_index import LOAD_AT_ONCE, EndedJobs
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.ended.ended_scan import End
from muster.agent.jobs.entry import Entry, Told
from muster.agent.jobs.job_folder import HeldJob
from muster.agent.jobs.live.climbing import RESERVE
from muster.agent.jobs.live.job_task import JobTask
from muster.agent.jobs.live.unsupervised import Surroundings
from muster.agent.link.nursery_client import NurseryClient
from muster.agent.node.condition_rules import of_presence
from muster.agent.node.health import NodeHealth
from muster.probes.cards.driver import Driver
from muster.probes.checks import precheck
from muster.probes.checks.result import CheckResult, Status
from muster.probes.kernel import process
from muster.probes.kernel.backoff import Backoff
from muster.supervisors.launch.modes import modelarts
from muster.supervisors.model.card_identity import numbers_now
from muster.supervisors.model.journal import FORMAT, Record
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.spec import Boot, JobSpec
from muster.supervisors.model.states import Kind, State
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import explain
from muster.supervisors.system import descriptors
from muster.supervisors.system.spare import Reserve

__all__ = ["Entry", "Registry"]

#: Seconds that a supervisor has to leave after its job's end before its folder is taken away.
LEAVE_S = 6.0
#: Seconds that a process has to exit once its job has ended, before a forced removal is refused because of it.
EXIT_S = 5.0

#: Seconds until a job that could not be read is read again: at first, and at most.
READ_AGAIN_S, READ_AGAIN_MOST_S = 1.0, 60.0
#: Jobs of which one thread hop looks whether they have ended.
ENDS_AT_ONCE = 500

_log = structlog.get_logger(__name__)


class Registry:
    """Belongs to one event loop. What changes files is done in tasks of its own, so that a caller that goes away in the
    middle of it leaves nothing half done."""

    def __init__(
        self,
        root: Root,
        config: Callable[[], Config],
        events: EventStore,
        nursery: NurseryClient,
        driver: Driver,
        leasing: Leasing,
        health: NodeHealth,
    ) -> None:
        """`config` gives the present configuration. `load`, then `run` make it usable."""
        self._root = root
        self._config = config
        self._events = events
        self._nursery = nursery
        #: Jobs that have not ended.
        self._live: dict[str, Entry] = {}
        self._tasks: dict[str, JobTask] = {}
        self._following: dict[str, anyio.CancelScope] = {}
        self.leasing = leasing
        self._driver = driver
        self._health = health
        # Not the loop's own: readers of logs on a slow disk must not keep a journal from being read.
        self._limiter = anyio.CapacityLimiter(8)
        self.ended = EndedJobs(root, anyio.CapacityLimiter(2))
        #: Grows whenever a job comes, changes or goes.
        self.version = 0
        self._on_cards: list[OnCards] = []
        self._to_index: list[str] = []
        reserve = Reserve(RESERVE)
        self._around = Surroundings(
            config, nursery, self._check, self._publish, self._limiter, root, leasing, reserve,
            lambda event: events.append([(None, event)]),
        )  # fmt: skip
        #: Those whose record cannot be trusted, while something of them may live.
        self.damaged = DamagedJobs(root, reserve, self._one_changed)
        self.ended.on_damaged = self.damaged.add
        self._group: TaskGroup | None = None
        self._busy: dict[str, tuple[anyio.Lock, int]] = {}
        self._starting = 0
        self._closing = False
        self._found: list[str] = []
        self._config_trouble = self._uncollected = ""
        #: Sentences about the daemon as a whole; may be set.
        self.of_daemon: Callable[[], list[str]] = list
        #: Called with the number of ranks of a job that could not be recorded; may be set.
        self.on_no_room: Callable[[int], None] = lambda _: None

    # --- what is there ------------------------------------------------------------------------------------------------

    async def get(self, job_id: str) -> Entry:
        """A job, from memory or from disk. Raises JobNotFound."""
        return self._live.get(job_id) or await self.ended.get(job_id)

    def known(self, job_id: str) -> Entry | None:
        """A job that is in memory: one that has not ended, or that somebody has asked for."""
        return self._live.get(job_id) or self.ended.find(job_id)

    def job(self, job_id: str) -> Entry | Ended | None:
        """A job that has not ended, or the index entry of one that has; None for one that is not there, or not indexed
        yet."""
        return self._live.get(job_id) or self.ended.row(job_id)

    def live(self) -> list[Entry]:
        """Jobs that have not ended, newest accepted first."""
        return sorted(self._live.values(), key=lambda e: e.key, reverse=True)

    def is_known(self, job_id: str) -> bool:
        """Whether there is such a job, ended or not."""
        return job_id in self._live or job_id in self.ended

    def has_ended(self, job_id: str) -> bool:
        """Whether there is such a job, and it has ended."""
        return job_id in self.ended

    def states(self) -> Counter[State]:
        """How many jobs are in each state; of those that had ended before the daemon started, the ones that were read
        by now."""
        return self.ended.states + Counter(entry.job.state for entry in self._live.values())

    def is_followed(self, job_id: str) -> bool:
        """Whether the job has not ended, or its supervisor has not left yet."""
        return job_id in self._tasks or job_id in self._live

    @property
    def cards(self) -> list[Lease]:
        """By index, with who holds them."""
        return self.leasing.all()

    @property
    def nursery_pid(self) -> int:
        """0 while there is none."""
        return self._nursery.pid

    def warnings(self) -> list[str]:
        """Sentences for an operator: what is wrong at this moment."""
        found = [
            *self.of_daemon(),
            self._config_trouble,
            self._uncollected,
            self._nursery.trouble,
            *self._events.trouble,
            *self._found,
            *self.damaged.trouble,
        ]
        found += [f"job {e.job_id}: {text}" for e in self._live.values() for text in (e.notes or {}).values()]
        found += [f"job {job_id}: {text}" for job_id, text in self.ended.damaged.items()]
        return [text for text in found if text]

    async def wait_change(self, entry: Entry) -> None:
        """Returns at the next record of this job, or when it is deleted."""
        await entry.changed.next()

    async def wait_ended(self, job_id: str) -> Entry:
        """Returns when the job has ended. Raises JobNotFound, also where it is deleted meanwhile."""
        entry = await self.get(job_id)
        while not entry.job.state.final:
            await entry.changed.next()
        return entry

    # --- what is done -------------------------------------------------------------------------------------------------

    async def start(self, spec: JobSpec, by: str) -> tuple[Entry, bool]:
        """Accepts a job: on disk when this returns. True with the entry of the very same job that was there before.

        An empty id is replaced by a new one. Raises InvalidRequest, JobIdConflict, JournalUnreadable, NoSuchCard,
        CardBusy, PortInUse, TooMany, NoRoom, ShuttingDown; nothing was started then.
        """
        if not spec.job_id:
            spec = replace(spec, job_id=admission.new_job_id())
        admission.refuse_configured(spec, self._config())
        result: tuple[Entry, bool] = await self._apart(lambda: self._start(spec, by))
        return result

    async def stop(self, job_id: str, steps: tuple[float, ...] | None, by: str, reason: str) -> Entry:
        """Orders a stop with these steps of grace (seconds; None: the job's own).

        Returns when it is in force, or the job has ended; a damaged one is stopped by `stop_damaged`. Raises
        JobNotFound, SupervisorUnreachable.
        """
        entry = await self.get(job_id)
        task = self._tasks.get(job_id)
        if task is not None and not entry.job.state.final:
            await task.stop(steps, by, reason)
        return entry

    async def stop_damaged(self, entry: Entry, steps: tuple[float, ...] | None, by: str, reason: str) -> list[str]:
        """Ends what lives of a job whose record cannot be trusted; returns what was done and what cannot be known, a
        sentence each, once nothing lives or what does cannot be killed. May be cancelled: the stop goes on.

        Raises JournalUnreadable where nothing of it lives.
        """
        self.damaged.add(entry)
        job = self.damaged.get(entry.job_id)
        if job is None or not await job.looked():
            raise JournalUnreadable(entry.job_id, entry.damaged)
        await job.stop(steps, by, reason)
        return job.remarks

    async def delete(self, job_id: str, keep_logs: bool, force: bool = False) -> list[str]:
        """Forgets an ended job, with its log files unless they are kept. With `force` any job of which no process
        lives, and whatever else has this name among the jobs on disk; returns what could not be removed, a sentence
        each. Raises JobNotFound, JobNotEnded, NoRoom."""
        left: list[str]
        if force:
            left = await self._apart(lambda: self._delete_by_force(job_id, keep_logs))
            return left
        await self.get(job_id)
        left = await self._apart(lambda: self._delete(job_id, keep_logs))
        return left

    async def collect(self, rows: Sequence[Ended], logs: CollectedLogs) -> tuple[list[Ended], str]:
        """Removes the records of these ended jobs; their log files stay, and `logs` knows whose they are. Returns those
        that are gone, and a sentence about what could not be removed."""
        gone: tuple[list[Ended], str] = await self._apart(lambda: self._collect(rows, logs))
        return gone

    def close(self) -> None:
        """From now on no job is accepted; one that is being accepted counts as `starting`."""
        self._closing = True

    @property
    def starting(self) -> int:
        """How many jobs are being accepted at this moment."""
        return self._starting

    def reload(self, trouble: str) -> None:
        """`trouble`: what an operator should know of a new configuration."""
        self._config_trouble = trouble

    # --- life ---------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads the journals of jobs that have not ended, clears half-made folders away, and tells what happened while
        no daemon was there. Of jobs that had ended before, only that is read here; `run` indexes them.

        Raises OSError where the folder of jobs cannot be read; damage of a job is in its entry.
        """
        ids, leftovers, strange = await self._thread(job_folder.folders, self._root)
        for path in leftovers:
            if trouble := await self._thread(job_folder.remove_tree, path):
                self._found.append(trouble)
        self._found += [f"{path}: is no job's folder, and is left alone" for path in strange]
        try:
            ids += await self._thread(folderless.unrecorded, self._root, ids)
        except OSError as error:
            self._found.append(f"cannot look for jobs whose folder was moved away: {explain(error)}")
        self._events.keep_only(set(ids))
        ended: list[End] = []
        whole: list[str] = []
        for start in range(0, len(ids), ENDS_AT_ONCE):
            some = ids[start : start + ENDS_AT_ONCE]
            for job_id, end in zip(some, await self._thread(ended_scan.ends, self._root, some), strict=True):
                if end is None:
                    whole.append(job_id)
                else:
                    ended.append(end)
                    self.ended.expect(job_id)
        ended.sort(key=lambda end: end.at, reverse=True)
        self._to_index = [end.job_id for end in ended]
        # No more jobs can have ended while no daemon was there than may be there at a time.
        untold = [end.job_id for end in ended if self._events.told(end.job_id) != end.number]
        await self._load(whole + untold[: self._config().jobs.max_jobs])

    async def _load(self, ids: Sequence[str]) -> None:
        """Reads these jobs as a whole, and tells what was not told of them."""
        missed: Told = []
        keys: dict[int, RecordKey] = {}
        for start in range(0, len(ids), LOAD_AT_ONCE):
            for entry, told in await self._thread(job_folder.load_all, self._root, ids[start : start + LOAD_AT_ONCE]):
                if not entry.job.state.final:
                    self._live[entry.job_id] = entry
                    self.leasing.restore(entry)
                else:
                    self.ended.add(entry)
                    if (on_cards := OnCards.of(entry)) is not None:
                        self._on_cards.append(on_cards)
                for key, event in self._untold(entry, told):
                    missed.append((len(missed), event))
                    keys[len(missed) - 1] = key
        missed.sort(key=lambda item: (item[1].time, item[0]))
        self._events.append((keys[number], event) for number, event in missed)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Follows all jobs; for ever. Cancelled, it finishes what changes files, and leaves the jobs running."""
        async with anyio.create_task_group() as group:
            self._group = group
            self.damaged.start(group)
            await group.start(self.leasing.run)
            for entry in self._live.values():
                self._begin(entry, None)
            task_status.started()
            on_cards = await self.ended.index(self._to_index)
            self._to_index = []
            await self.leasing.settle([*self._on_cards, *on_cards], self.ended.get)
            self._on_cards = []
            await self._read_again()

    async def _read_again(self) -> None:
        """Jobs that could not be read, until they can be, or turn out to be damaged; for ever."""
        pause = Backoff(READ_AGAIN_S, READ_AGAIN_MOST_S)
        while True:
            await anyio.sleep(pause.next())
            if not self.ended.unread:
                pause.reset()
            for job_id in sorted(self.ended.unread):
                async with self.alone(job_id):
                    await self._read_one_again(job_id)

    async def _read_one_again(self, job_id: str) -> None:
        stopped = self.damaged.get(job_id)
        if job_id not in self.ended.unread or (stopped is not None and stopped.stopping):
            return
        ((found, told),) = await self._thread(job_folder.load_all, self._root, [job_id])
        if found.unread:
            return
        _log.info("journal.read_again", job=job_id, damaged=found.damaged)
        if not found.damaged:
            await self.damaged.release(job_id)
        entry = self.ended.find(job_id) or found
        if entry is not found:
            entry.become(found)
        # Nothing is awaited until it is known again: who asks meanwhile is not told that there is no such job.
        self.ended.remove(job_id)
        if entry.job.state.final:
            self.ended.add(entry)
        else:
            self._live[job_id] = entry
            self.leasing.restore(entry)
        self._events.append(self._untold(entry, told))
        self.version += 1
        entry.wake()
        if not entry.job.state.final:
            self._begin(entry, None)

    def _begin(self, entry: Entry, held: HeldJob | None) -> None:
        assert self._group is not None
        task = self._tasks[entry.job_id] = JobTask(entry, self._around, held)
        self._group.start_soon(self._follow, task, name=f"job {entry.job_id}")

    async def _follow(self, task: JobTask) -> None:
        job_id = task.entry.job_id
        scope = self._following[job_id] = anyio.CancelScope()
        try:
            with scope:
                await task.run()
        finally:
            if self._tasks.get(job_id) is task:
                del self._tasks[job_id]
            if self._following.get(job_id) is scope:
                del self._following[job_id]

    async def _start(self, spec: JobSpec, by: str) -> tuple[Entry, bool]:
        async with self.alone(spec.job_id):
            if self.is_known(spec.job_id):
                there = await self.get(spec.job_id)
                if there.damaged:
                    raise JournalUnreadable(spec.job_id, there.damaged)
                if not spec.has_digest(there.job.digest):
                    asked = admission.as_asked(there.spec, there.job.digest)
                    raise JobIdConflict(spec.job_id, spec.differences(asked))
                return there, True
            if self._closing:
                raise ShuttingDown(with_jobs=True)
            with self._one_more():
                await self._thread(admission.refuse_unfit, spec)
                held = {e.job.master_port: e.job_id for e in self._live.values() if not e.job.node_rank}
                await self._thread(admission.refuse_port, spec, held)
                return await self._accept(spec, by), False

    async def _accept(self, asked: JobSpec, by: str) -> Entry:
        spec = admission.resolved(asked, self._config())
        given = await self.leasing.lease(spec.job_id, spec)
        try:
            accepted: Record = {
                "kind": Kind.ACCEPTED,
                "t": time.time(),
                "format": FORMAT,
                "digest": asked.digest(),
                "boot": process.boot_id(),
                "up": process.uptime(),
                "card_kind": given.kind,
                "doubts": [*given.warnings, *filter(None, [modelarts.name_trouble(spec.job_id, spec.env)])],
                "master_addr": spec.master_addr or "127.0.0.1",
                "master_port": spec.master_port or admission.free_port(self._ports()),
                "by": by,
                **placed(spec, given.devices),
                **self.leasing.on_cards(spec, given.devices if spec.wants_cards else []),
            }
            held: HeldJob = await self._thread(job_folder.create, self._root, spec, accepted)
        except BaseException as error:
            self.leasing.give_up(spec.job_id)
            if isinstance(error, NoRoom):
                self.on_no_room(spec.local_ranks)
            raise
        entry = Entry(spec.job_id, spec, Job(), self._root.job(spec.job_id))
        told = entry.absorb([{"n": 0} | accepted], held.writer.size)
        self._live[spec.job_id] = entry
        self._publish(entry, told)
        self._begin(entry, held)
        return entry

    async def _delete(self, job_id: str, keep_logs: bool) -> list[str]:
        left: list[str] = []
        async with self.alone(job_id):
            entry = await self.get(job_id)
            if not entry.job.state.final:
                raise JobNotEnded(job_id)
            if (task := self._tasks.get(job_id)) is not None:
                with anyio.move_on_after(LEAVE_S):
                    await task.done.wait()
            try:
                trouble = await self._thread(job_folder.remove, self._root, entry, keep_logs)
                if not keep_logs:
                    remove = log_ownership.remove_obstacles
                    left = await self._thread(remove, self._root.log, log_ownership.owner(entry))
            except OSError as error:
                raise NoRoom(f"{error.filename or self._root.jobs}: cannot be removed: {error.strerror}") from error
            if trouble:
                _log.warning("job.not_removed", job=job_id, error=trouble)
                self._found.append(f"{trouble}; it is tried again when the daemon starts")
            self._forget(job_id)
        return left

    async def _delete_by_force(self, job_id: str, keep_logs: bool) -> list[str]:
        async with self.alone(job_id):
            entry = self._live.get(job_id)
            task, scope = self._tasks.get(job_id), self._following.get(job_id)
            if entry is None and job_id in self.ended:
                entry = await self.ended.get(job_id)
            elif entry is not None and scope is not None:
                # Its journal says that it has not ended, and nobody can go on with it: nothing of it lives.
                await self._once_exited(entry, forced_removal.refuse_living, self._root, job_id)
                scope.cancel()
            if task is not None:
                with anyio.move_on_after(LEAVE_S):
                    await task.done.wait()
            try:
                remove = forced_removal.remove
                left: list[str] = await self._once_exited(entry, remove, self._root, job_id, entry, keep_logs)
            except BaseException as error:
                if job_id in self._live and entry is not None:
                    self._begin(entry, None)
                if isinstance(error, OSError):
                    text = f"{error.filename or self._root.jobs}: cannot be removed: {error.strerror}"
                    raise NoRoom(text) from error
                raise
            for text in left:
                _log.warning("job.not_removed", job=job_id, error=text)
            if self._live.pop(job_id, None) is not None and entry is not None:
                entry.give_up("its record was removed by force")
                self.leasing.give_back(entry)
                entry.wake()
            path = str(self._root.jobs / job_id)
            self._found = [text for text in self._found if not text.startswith(f"{path}: ")]
            self._forget(job_id)
        return left

    async def _once_exited(self, entry: Entry | None, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function of forced_removal.py, for at most EXIT_S again while it raises JobAlive. A supervisor tells
        of the end of its job, and closes its link, before it exits; of a job that runs nothing is about to exit."""
        late = anyio.current_time() + EXIT_S
        pause = Backoff(0.05, 0.5)
        while True:
            try:
                return await self._thread(function, *args)
            except JobAlive:
                running = entry is not None and not entry.job.state.final and not entry.damaged
                if running or anyio.current_time() >= late:
                    raise
            await anyio.sleep(pause.next())

    async def _collect(self, rows: Sequence[Ended], logs: CollectedLogs) -> tuple[list[Ended], str]:
        async with AsyncExitStack() as stack:
            for row in sorted(rows, key=lambda row: row.job_id):
                await stack.enter_async_context(self.alone(row.job_id))
            there = [row for row in rows if self.ended.row(row.job_id) is row]
            gone: list[Ended]
            gone, trouble = await self._thread(record_removal.collect, self._root, there, logs)
            for row in gone:
                self._forget(row.job_id)
        if trouble and trouble != self._uncollected:
            _log.warning("job.not_collected", error=trouble)
        self._uncollected = trouble
        return gone, trouble

    def _one_changed(self) -> None:
        self.version += 1

    def _forget(self, job_id: str) -> None:
        """The job's record is no more on disk."""
        entry = self.ended.find(job_id)
        self.ended.remove(job_id)
        self._events.forget(job_id)
        self.version += 1
        if entry is not None:
            entry.wake()

    # --- parts --------------------------------------------------------------------------------------------------------

    async def _check(self, spec: JobSpec) -> list[CheckResult]:
        job = (await self.get(spec.job_id)).job
        request = precheck.CheckRequest(
            cards=precheck.CardsWanted(self._shown(job, job.cards), kind=job.card_kind),
            driver=self._driver,
            # The names of an MPI job may come later: it waits for them itself.
            hosts=tuple(n for n in dict.fromkeys((*spec.nodes, spec.master_addr)) if n)
            if spec.boot != Boot.MPI
            else (),
            user=spec.user,
            limits=spec.limits,
            nursery=self._nursery.pid,
            nofile=descriptors.given_limit(),
        )
        results = await precheck.run(self._config().checks, request)
        return results + (await self._look(self._shown(job, job.hardware)) if job.cards else [])

    def _shown(self, job: Job, cards: Sequence[int]) -> tuple[int, ...]:
        """These cards of the job by the numbers that they have now; its own of one that the driver does not show."""
        now = numbers_now(job, cards, self._driver.view.uuids)
        return tuple(now.get(card, card) for card in cards)

    async def _look(self, cards: Sequence[int]) -> list[CheckResult]:
        """What the node's own checks say now of these cards and of the node, as far as somebody should know it. What
        only events can tell is a condition already, and has refused the job."""
        policy = self._config().health.policy
        if policy == "off":
            return []
        periodic = [check.item for check, why in self._health.checks() if check.interval_s and not why]
        found = await self._health.look(periodic, cards) if periodic else []
        told = [result for result in found if result.status not in (Status.OK, Status.NOT_APPLICABLE)]
        # A card that is missing is no reason against those that are there.
        soft = [policy != "enforce" or (of_presence(r.code) and r.card not in cards) for r in told]
        return [
            replace(r, status=Status.WARN) if r.status is Status.CRITICAL and eased else r
            for r, eased in zip(told, soft, strict=True)
        ]

    def _ports(self) -> set[int]:
        """Where live jobs meet."""
        return {e.job.master_port for e in self._live.values()}

    def _publish(self, entry: Entry, told: Told) -> None:
        self._events.append(self._untold(entry, told))
        self.version += 1
        if entry.job.state.final:
            self._live.pop(entry.job_id, None)
            self.ended.add(entry)
            self.leasing.give_back(entry)
        entry.wake()

    def _untold(self, entry: Entry, told: Told) -> Iterator[tuple[RecordKey, Any]]:
        """Events that are not in the store yet, each with its key."""
        if not told:
            return
        accepted_at = entry.job.accepted_at
        last = self._events.last_record(entry.job_id, accepted_at)
        for number, event in told:
            if number > last:
                yield RecordKey(entry.job_id, accepted_at, number), event

    async def _apart(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Does `work` in a task of the registry's own, to its end even if the caller is cancelled.

        gRPC cancels handlers in a way that no shield in their own task stops. Returns and raises what `work` does.
        """
        if self._group is None:
            raise ShuttingDown
        done = anyio.Event()
        result: list[Any] = []
        errors: list[Exception] = []

        async def run() -> None:
            with anyio.CancelScope(shield=True):
                try:
                    result.append(await work())
                except Exception as error:  # handed to the caller, whatever it is
                    errors.append(error)
                finally:
                    done.set()

        self._group.start_soon(run)
        await done.wait()
        if errors:
            raise errors[0]
        return result[0]

    @contextmanager
    def _one_more(self) -> Iterator[None]:
        """Counts a job that is being accepted. Raises TooMany."""
        limit = self._config().jobs.max_jobs
        if len(self._live) + self._starting >= limit:
            raise TooMany("jobs", limit)
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1

    @asynccontextmanager
    async def alone(self, job_id: str) -> AsyncIterator[None]:
        """One start or delete of an id at a time, or removal of its log files."""
        lock, users = self._busy.get(job_id, (anyio.Lock(), 0))
        self._busy[job_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            _, users = self._busy.pop(job_id)
            if users > 1:
                self._busy[job_id] = (lock, users - 1)

    async def _thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await threads.run(function, *args, limiter=self._limiter)
