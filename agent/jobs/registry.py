"""All jobs of this node, and the operations on a job as a whole."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

import anyio
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from muster.agent import threads
from muster.agent.config.schema import Config
from muster.agent.errors import (
    DiskSilent,
    JobIdConflict,
    JournalUnreadable,
    NoRoom,
    ShuttingDown,
    TooManyJobs,
)
from muster.agent.events.event_store import EventStore
from muster.agent.jobs import admission, job_folder, start_checks
from muster.agent.jobs.cards.leases import Lease
from muster.agent.jobs.cards.leasing import FREED_S, Leasing
from muster.agent.jobs.cards.placement import placed
from muster.agent.jobs.ended.collected_logs import CollectedLogs
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.hardening import decided
from muster.agent.jobs.job_loading import JobLoading
from muster.agent.jobs.job_removal import JobRemoval
from muster.agent.jobs.job_table import JobTable
from muster.agent.jobs.job_work import JobWork
from muster.agent.jobs.live.climbing import RESERVE
from muster.agent.jobs.live.job_tasks import JobTasks
from muster.agent.jobs.live.unsupervised import Surroundings
from muster.agent.jobs.start_checks import StartChecks
from muster.agent.link.nursery_client import NurseryClient
from muster.agent.node.degraded import Degraded
from muster.agent.node.health import NodeHealth
from muster.probes.cards.driver import Driver
from muster.probes.kernel import process
from muster.supervisors.launch import job_services
from muster.supervisors.launch.modes import modelarts
from muster.supervisors.model.journal import FORMAT, Record
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.rules import boot_files
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import Kind
from muster.supervisors.paths import Root
from muster.supervisors.system.spare import Reserve

__all__ = ["Entry", "Registry"]

#: Seconds for which a stop waits for the start of its job: a little longer than a start waits for cards.
STARTED_S = FREED_S + 5.0


class Troubled(Protocol):
    """A part of the daemon that may be in trouble."""

    @property
    def trouble(self) -> Sequence[str]:
        """Sentences for an operator."""


class Registry(JobTable):
    """The table of jobs and its operations. Belongs to one event loop. Operations on files run in tasks of their own: a
    caller that disappears leaves nothing half done."""

    def __init__(
        self,
        root: Root,
        config: Callable[[], Config],
        events: EventStore,
        nursery: NurseryClient,
        driver: Driver,
        leasing: Leasing,
        health: NodeHealth,
        limits: Degraded,
    ) -> None:
        """`config` returns the present configuration. `load`, then `run` make it usable."""
        reserve = Reserve(RESERVE)
        super().__init__(root, events, leasing, reserve)
        self._root, self._config, self._events, self._nursery = root, config, events, nursery
        self._limits = limits
        # Not the loop's own threads: readers of logs on a slow disk must not block the reading of journals.
        self._threads = pool = threads.Pool(8)
        checks = StartChecks(config, nursery, driver, health, root.active_figures)
        self._around = Surroundings(
            *(config, nursery, checks.run, self.publish, pool, root, leasing, reserve, events, threads.Rounds("jobs"))
        )
        self._work = work = JobWork()
        self._tasks = tasks = JobTasks(self._around)
        self._loading = JobLoading(root, config, events, self, tasks, work, pool)
        self._removal = JobRemoval(root, events, self, tasks, work, pool)
        self._starting = 0
        self._closing = False
        self._config_trouble = ""
        #: Parts of the daemon whose troubles are warnings of the daemon as a whole; may be set.
        self.of_daemon: Sequence[Troubled] = (limits,)

    # --- readers ------------------------------------------------------------------------------------------------------

    def is_followed(self, job_id: str) -> bool:
        """Whether the job has not ended, or its supervisor has not exited yet."""
        return job_id in self._tasks or job_id in self.unended

    @property
    def cards(self) -> list[Lease]:
        """The cards by index, with their holders."""
        return self.leasing.all()

    @property
    def nursery_pid(self) -> int:
        """The pid of the nursery; 0 while there is none."""
        return self._nursery.pid

    def warnings(self) -> list[str]:
        """Sentences for an operator: the present problems."""
        found = [
            *(text for part in self.of_daemon for text in part.trouble),
            self._config_trouble,
            self._removal.uncollected,
            self._nursery.trouble,
            *self._events.trouble,
            *self.strange,
            *self.damaged.trouble,
        ]
        found += [f"job {e.job_id}: {text}" for e in self.unended.values() for text in (e.notes or {}).values()]
        found += [f"job {job_id}: {text}" for job_id, text in self.ended.damaged.items()]
        return [text for text in found if text]

    # --- operations ---------------------------------------------------------------------------------------------------

    async def start(
        self,
        spec: JobSpec,
        by: str,
        workdir_of_caller: admission.FolderId | None = None,
        asked_by: str = "",
        *,
        new_name: bool = False,
    ) -> tuple[Entry, bool]:
        """Accepts a job: it is on disk when this returns. True: the same job existed before, and this is its entry.

        An empty id is replaced by a new one. `workdir_of_caller`: as for `admission.refuse_here`; `asked_by`: as for
        `decided`; `new_name`: the id was made for this call. Raises InvalidRequest, JobIdConflict, JournalUnreadable,
        NodeDraining, NodeUnhealthy, NoSuchCard, CardBusy, PortInUse, TooManyJobs, NoRoom, ShuttingDown, DiskSilent;
        nothing was started then, and if DiskSilent does not know, it says so.
        """
        if not spec.job_id:
            spec, new_name = replace(spec, job_id=admission.new_job_id()), True
        admission.refuse_configured(spec, self._config())
        if spec.job_id not in self.unended:  # of those its memory knows all
            self._refuse_silent("nothing was started: try again later, or elsewhere")
        creation = job_folder.Creation()

        def hopeless() -> DiskSilent | None:
            if not self._limits.silent_s:
                return None
            if creation.give_up():
                return self._silent("nothing was started, and nothing will be: try again later, or elsewhere")
            known = f"whether job {spec.job_id} starts is known once it answers"
            return self._silent(f"{known}: look with `muster status {spec.job_id}`, or start it again with this id")

        return await self._work.finish(
            lambda: self._start(spec, by, workdir_of_caller, asked_by, new_name, creation), hopeless
        )

    async def accepted(self, job_id: str) -> None:
        """Returns once a start of this job that is under way is over, after STARTED_S at the latest; at once where the
        job is known. Who has started it may have gone: the start goes on all the same (it waits for cards, say)."""
        if self.is_known(job_id):
            return
        await checkpoint()  # a start that came right before this call begins now
        if self._work.is_busy(job_id):
            with anyio.move_on_after(STARTED_S):
                async with self._work.alone(job_id):
                    pass

    async def stop(
        self,
        job_id: str,
        steps: tuple[float, ...] | None,
        by: str,
        reason: str,
        hung: tuple[float, str] | None = None,
    ) -> Entry:
        """Orders a stop with these steps of grace (seconds; None: the job's own). `hung`: since when the job has hung
        (seconds since the epoch), and how.

        Returns when it is in force, or the job has ended; `stop_damaged` stops a damaged job. Raises
        JobNotFound, SupervisorUnreachable.
        """
        entry = await self.get(job_id)
        task = self._tasks.get(job_id)
        if task is not None and not entry.job.state.final:
            # A caller that does not wait for it, or whose time is over, has ordered it all the same.
            await self._work.finish(lambda: task.stop(steps, by, reason, hung))
        return entry

    async def let_begin(self, job_id: str) -> Entry:
        """Releases a job with `hold`. Raises JobNotFound."""
        entry = await self.get(job_id)
        task = self._tasks.get(job_id)
        if task is not None:
            task.let_begin()
        return entry

    async def stop_damaged(self, entry: Entry, steps: tuple[float, ...] | None, by: str, reason: str) -> list[str]:
        """Ends the processes of a job whose record cannot be trusted. Returns, once none lives or the rest cannot be
        killed, what was done and what is unknown, a sentence each. If cancelled, the stop continues.

        Raises JournalUnreadable if no process of it lives.
        """
        self.damaged.add(entry)
        job = self.damaged.get(entry.job_id)
        if job is None or not await job.looked():
            raise JournalUnreadable(entry.job_id, entry.damaged)
        await job.stop(steps, by, reason)
        return job.remarks

    async def delete(self, job_id: str, keep_logs: bool, force: bool = False) -> list[str]:
        """Removes an ended job, with its log files unless they are kept. With `force`: any job without living
        processes, and whatever else has this name among the jobs on disk; returns what could not be removed, a sentence
        each. The event of a failed job's explanation comes before that, or says that there is none. Raises JobNotFound,
        JobNotEnded, NoRoom, DiskSilent (then a removal that has begun goes on once the disk answers)."""
        self._refuse_silent("nothing was removed: try again later")

        def hopeless() -> DiskSilent | None:
            return self._silent("the removal goes on once it answers") if self._limits.silent_s else None

        if force:
            return await self._work.finish(lambda: self._removal.remove_by_force(job_id, keep_logs), hopeless)
        entry = await self.get(job_id)
        if entry.job.state.final:
            await self.wait_explained(entry)
        return await self._work.finish(lambda: self._removal.remove(job_id, keep_logs), hopeless)

    async def collect(self, rows: Mapping[Ended, str], logs: CollectedLogs) -> str:
        """Removes the records of these ended jobs, each for a reason, a part of a sentence, and tells of it; their log
        files stay, and `logs` knows their owners. Returns a sentence about what could not be removed, or ""."""
        return await self._work.finish(lambda: self._removal.collect(rows, logs))

    def is_busy(self, job_id: str) -> bool:
        """As JobWork.is_busy."""
        return self._work.is_busy(job_id)

    def alone(self, job_id: str) -> AbstractAsyncContextManager[None]:
        """As JobWork.alone."""
        return self._work.alone(job_id)

    def close(self) -> None:
        """From now on refuses new jobs; a job that is just being accepted counts as `starting`."""
        self._closing = True

    @property
    def starting(self) -> int:
        """How many jobs are being accepted at this moment."""
        return self._starting

    def reload(self, trouble: str) -> None:
        """`trouble`: a sentence for an operator about a new configuration."""
        self._config_trouble = trouble

    # --- life ---------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """As JobLoading.load. Raises OSError."""
        await self._loading.load()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Follows all jobs until cancelled; then it finishes changes of files, and leaves the jobs running."""
        async with anyio.create_task_group() as group:
            self._work.start(group)
            self._tasks.start(group)
            self.damaged.start(group)
            await self.damaged.looked()  # before anybody can ask: such a job is as good as ended if nothing of it lives
            await group.start(self.leasing.run)
            for entry in self.unended.values():
                self._tasks.begin(entry, None)
            task_status.started()
            await self._loading.index()
            await self._loading.read_again()

    def _silent(self, left: str) -> DiskSilent:
        return DiskSilent(str(self._root.jobs), self._limits.silent_s, left)

    def _refuse_silent(self, left: str) -> None:
        """Raises DiskSilent while the disk of the records does not answer: a call would wait for as long."""
        if self._limits.silent_s:
            raise self._silent(left)

    async def _start(
        self,
        spec: JobSpec,
        by: str,
        of_caller: admission.FolderId | None,
        asked_by: str,
        new_name: bool,
        creation: job_folder.Creation,
    ) -> tuple[Entry, bool]:
        async with self._work.alone(spec.job_id):
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
                held = {e.job.master_port: e.job_id for e in self.unended.values() if not e.job.node_rank}

                def admit() -> decided.Decided:
                    """What the node lacks for the job, and its hardening. Blocks."""
                    admission.refuse_here(spec, of_caller, held, asked_by)
                    return decided.decided(spec, self._config().hardening, asked_by)

                if spec.wants_cards:  # a request that cannot be met does not wait for cards
                    hardened = await self._threads.run(admit)
                    return await self._accept(spec, by, lambda: hardened, new_name, creation), False
                return await self._accept(spec, by, admit, new_name, creation), False

    async def _accept(
        self,
        asked: JobSpec,
        by: str,
        admit: Callable[[], decided.Decided],
        new_name: bool,
        creation: job_folder.Creation,
    ) -> Entry:
        """`admit` is called in the thread that creates the job: each hand-over to a thread costs a start as much as
        most of what is done there."""
        config = self._config()
        spec = admission.resolved(asked, config)
        given = await self.leasing.lease(spec.job_id, spec)
        if spec.all_cards:
            spec = replace(spec, card_count=len(given.devices))
        more = list[Record]()
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
                **job_services.of(spec, self._root.job(spec.job_id), config.jobs.mpi_sshd),
                **placed(spec, given.devices),
                **self.leasing.on_cards(spec, given.devices if spec.wants_cards else []),
            }
            why = start_checks.left_out(spec, config)
            if why and not (spec.rank_table or accepted["doubts"]):  # else something comes before the pre-check
                more = [{"t": accepted["t"]} | record for record in start_checks.without(why)]

            loop, job_id = asyncio.get_running_loop(), spec.job_id

            def begun(folder: str) -> None:
                threads.on_loop(loop, self._nursery.expect, job_id, folder)

            def create() -> job_folder.HeldJob:
                decision = admit()
                accepted["hardening"] = decision.hardening.to_record()
                if spec.boot_files and not spec.code:  # else they come with the code
                    accepted["beside"] = boot_files.beside(spec.command, spec.workdir)
                early = begun if more and not spec.hold else None  # nothing comes before its supervisor
                return job_folder.create(
                    self._root,
                    spec,
                    accepted,
                    decision.filter,
                    more,
                    new_name=new_name,
                    begun=early,
                    creation=creation,
                )

            held = await self._threads.run(create)
        except BaseException as error:
            self.leasing.give_up(spec.job_id)
            if isinstance(error, NoRoom):
                self._limits.refused(spec.local_ranks)
            raise
        entry = Entry(spec.job_id, spec, Job(), self._root.job(spec.job_id))
        told = entry.absorb([{"n": n} | record for n, record in enumerate((accepted, *more))], held.writer.size)
        self.unended[spec.job_id] = entry
        self.publish(entry, told)
        self._tasks.begin(entry, held)
        return entry

    def _ports(self) -> set[int]:
        """The master ports of live jobs."""
        return {e.job.master_port for e in self.unended.values()}

    @contextmanager
    def _one_more(self) -> Iterator[None]:
        """Counts a job that is being accepted. Raises TooManyJobs."""
        limit = self._config().jobs.max_jobs
        if len(self.unended) + self._starting >= limit:
            raise TooManyJobs(limit)
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1
