"""Jobs with living processes whose record on disk cannot be trusted: muster shows them and can stop them.

muster guesses nothing about such a job: it is LOST. It knows the job's processes without guessing: they have its mark
in the environment, or are in its cgroup, or are children of the supervisor that has its lock.
"""

import contextlib
import os
from collections.abc import Callable

import anyio
import structlog
from anyio.abc import TaskGroup

from muster.agent import threads
from muster.agent.changes import Changes
from muster.agent.jobs.damaged import folderless, salvage
from muster.agent.jobs.damaged.salvage import Salvage
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.live.climbing import EMPTY_LOOKS, NO_THREAD_S, Climber
from muster.agent.link import supervisor_client
from muster.agent.link.connection import LinkLost, Refused
from muster.probes.kernel import marks, open_files, process
from muster.probes.kernel.process import Stat
from muster.supervisors.job import stop_order
from muster.supervisors.job.stop_order import StopOrder
from muster.supervisors.launch import environment
from muster.supervisors.launch.containment import Containment
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import explain
from muster.supervisors.system import cgroups, lock
from muster.supervisors.system.ladder import KILL_WAIT_S
from muster.supervisors.system.spare import Reserve

#: Seconds between two looks.
LOOK_S = 2.0
#: Seconds in which the first look at all of them is to be done.
FIRST_LOOK_S = 5.0
#: Seconds beyond the grace that a living supervisor has before the daemon itself sends SIGKILL; and seconds after the
#: last process of the job until the supervisor is ended as well.
LATE_S = 3.0

_log = structlog.get_logger(__name__)


class DamagedJob:
    """One such job. `living`: its processes at the last look; None before the first look."""

    def __init__(self, root: Root, entry: Entry, reserve: Reserve, changed: Callable[[], None]) -> None:
        """`changed` is called whenever `living` has changed."""
        self.entry, self._root, self._changed = entry, root, changed
        self.living: list[Stat] | None = None
        self.trouble = ""
        #: What the last stop did, and what is unknown.
        self.remarks: list[str] = []
        self._climber = Climber(entry.job_id, reserve, self._say)
        self._reserve = reserve
        self._order: StopOrder | None = None
        self._wake, self._news = Changes(), Changes()
        self._threads = threads.Pool(1, abandon_on_cancel=True, here_after=NO_THREAD_S)
        self.scope = anyio.CancelScope()
        #: Set once no task works on the job any more.
        self.done = anyio.Event()
        self._salvage: tuple[anyio.CancelScope, anyio.Event] | None = None
        #: Its supervisor, found through the job's processes because the job's folder is missing.
        self._parent: Stat | None = None

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested and the job has not ended."""
        return self._order is not None

    @property
    def shown(self) -> list[str]:
        """Its processes for people: pid and name."""
        return [f"{stat.pid} ({stat.comm})" for stat in self.living or ()]

    async def looked(self) -> bool:
        """Whether a process of it lives; waits for the first look."""
        while self.living is None:
            await self._news.next()
        return bool(self.living)

    async def stop(self, steps: tuple[float, ...] | None, by: str, reason: str) -> None:
        """Returns when no process of it lives, or the rest cannot be killed. If cancelled, the stop continues."""
        now = process.uptime()
        given = self.entry.spec.stop_steps(steps)
        if self._order is None:
            # Set before anything is awaited: a later request shortens this stop.
            self._order = StopOrder("", given, by, reason, now)
        elif now + sum(given) < self._order.up + sum(self._order.steps):
            self._order.steps = (max(0.0, now - self._order.up + sum(given)),)
        self._wake.tell()
        while self._order is not None:
            await self._news.next()

    async def run(self) -> None:
        """Runs until no process of it lives."""
        async with anyio.create_task_group() as tasks:
            self._start_salvage(tasks)
            await self._look_after(tasks)
            await self._end_salvage()

    def _start_salvage(self, tasks: TaskGroup) -> None:
        if self._salvage is None:
            scope, done = self._salvage = anyio.CancelScope(), anyio.Event()

            async def work() -> None:
                try:
                    with scope:
                        await Salvage(self._root, self.entry, lambda: self.living, self._tell).run()
                finally:
                    done.set()

            tasks.start_soon(work)

    async def _end_salvage(self) -> None:
        """Returns when the content of the FIFOs is in the logs and the job's lock is free."""
        if self._salvage is not None:
            scope, done = self._salvage
            scope.cancel()
            await done.wait()
            self._salvage = None

    async def _look_after(self, tasks: TaskGroup) -> None:
        with contextlib.suppress(OSError):
            order = await self._threads.run(self._read_order)
            if self._order is None and order is not None and order.is_asked:
                self._order = order
        contained, empty, needed, woken = self._containment(), 0, 1, 0
        while empty < needed or self._order is not None:
            try:
                left = await self._climber.look(contained)
                self.trouble = ""
            except OSError as error:
                self._say(f"cannot look at its processes: {explain(error)}; trying again")
                left = self.living or []
            else:
                empty = 0 if left else empty + 1
                needed = EMPTY_LOOKS if left else needed
                self._saw(left)
                if left:
                    self._start_salvage(tasks)
            if self._order is not None and left:
                left = await self._carry_out(contained, self._order)
            if not left:
                await self._end_salvage()
            if self._order is not None:
                self._order = None
                self._tell()
            if empty < needed or self._order is not None:
                with anyio.move_on_after(LOOK_S):
                    woken = await self._wake.beyond(woken)
        if not self.entry.unread:  # if the record comes back it lacks the stop, which the supervisor then records
            await self._threads.run(stop_order.remove, self._root.stop_order(self.entry.job_id))
        await self._threads.run(contained.remove)

    async def _carry_out(self, contained: Containment, order: StopOrder) -> list[Stat]:
        with contextlib.suppress(OSError):
            order.nonce = order.nonce or await self._threads.run(self._nonce)
        taken = await self._ask_supervisor(order)

        async def keep() -> None:
            with contextlib.suppress(OSError):
                await self._threads.run(stop_order.write, self._root.stop_order(self.entry.job_id), order)

        async def look() -> None:
            with contextlib.suppress(OSError):
                self._saw(await self._climber.look(contained))

        if taken:  # it sends SIGKILL in time, and records what happens in the journal that it still holds
            order.steps = (sum(order.steps) + LATE_S,)
        left = await self._climber.climb(
            contained,
            order,
            terminated=taken or "SIGTERM" in order.sent,
            over=lambda: False,
            keep=keep,
            between=look,
            doing="its record on disk cannot be trusted; musterd ends its processes",
        )
        self._saw(left)
        who = "its supervisor took the stop" if taken else "no supervisor took the stop"
        sent = " and ".join(order.sent)
        done = f"musterd sent {sent}" if sent else "musterd sent no signal"
        self.remarks = [f"{who}; {done}; {'its processes have ended' if not left else 'not all of them have ended'}"]
        self.remarks.append(f"the outcome of its ranks is unknown: {self.entry.damaged}")
        if left:
            self.remarks.append(
                f"these processes cannot be killed {KILL_WAIT_S:g} s after SIGKILL: {process.names(left)}"
            )
        if strangers := await self._threads.run(self._strangers):
            self.remarks.append(
                f"these processes have {marks.JOB_ID}={self.entry.job_id} in their environment but no mark that they "
                f"are this job's; musterd did not signal them: {process.names(strangers)}"
            )
        _log.warning("damaged_job.stopped", job=self.entry.job_id, by=order.by, said="; ".join(self.remarks))
        if not left:
            await self._threads.run(self._end_supervisor)
        return left

    async def _ask_supervisor(self, order: StopOrder) -> bool:
        try:
            paths = self.entry.paths.controls
            await supervisor_client.stop(paths, order.steps, order.by, order.reason, up=order.up, sent=order.sent)
        except (LinkLost, Refused) as error:
            _log.warning("supervisor.stop_not_taken", job=self.entry.job_id, error=str(error))
            return False
        return True

    # --- processes of the job -----------------------------------------------------------------------------------------

    def _containment(self) -> Containment:
        known = self.entry.known or Job()

        def ranks() -> list[Rank]:
            return known.processes()

        return Containment(known.cgroup, ranks, "", True, self._supervisor, self._is_marked, self._cgroup_of)

    def _supervisor(self) -> int:
        """The process that has the job's lock and is not a daemon; 0: none. Raises OSError."""
        pid = lock.holder(self.entry.paths.lock)
        if pid or self.entry.has_folder:
            return pid if pid != os.getpid() else 0
        now = process.read_stat(self._parent.pid) if self._parent is not None else None
        if self._parent is None or now is None or now.start != self._parent.start or now.ended:
            pid = folderless.supervisor(self._pids())
            self._parent = process.read_stat(pid) if pid else None
        return self._parent.pid if self._parent is not None else 0

    def _pids(self) -> list[int]:
        return [stat.pid for stat in self.living or ()]

    def _nonce(self) -> str:
        """As much of the nonce as is known. Raises OSError."""
        known = self.entry.known
        if known is not None and known.accepted_at:
            return environment.nonce(self._root, self.entry.job_id, known)
        return folderless.nonce(self._root, self.entry.job_id, self._pids())

    def _read_order(self) -> StopOrder | None:
        """The order of an earlier daemon. Raises OSError."""
        nonce = self._nonce()
        is_part = nonce == environment.nonce_prefix(self._root, self.entry.job_id)
        return stop_order.read(self._root.stop_order(self.entry.job_id), nonce, is_part)

    def _is_marked(self, pid: int) -> bool:
        """Whether a process has the nonce of this job. If somebody removed that from the environment: the job's id
        together with a FIFO of the job as output."""
        variables = process.environ(pid)
        prefix = marks.mark(marks.NONCE, environment.nonce_prefix(self._root, self.entry.job_id))
        if any(variable.startswith(prefix) for variable in variables):
            return True
        return self._has_id(variables) and self._writes_to_fifo(pid)

    def _has_id(self, variables: list[bytes]) -> bool:
        unmarked = not any(variable.startswith(marks.mark(marks.NONCE)) for variable in variables)
        return unmarked and marks.mark(marks.JOB_ID, self.entry.job_id) in variables

    def _writes_to_fifo(self, pid: int) -> bool:
        folder = f"{self.entry.paths.folder}/"
        for number in (1, 2):
            with contextlib.suppress(OSError):
                target = open_files.target(pid, number).removesuffix(" (deleted)")
                if target.startswith(folder) and target.endswith(".fifo"):
                    return True
        return False

    def _cgroup_of(self, pid: int) -> str:
        return cgroups.of_job(self._root, self.entry.job_id, pid)

    def _strangers(self) -> list[Stat]:
        found = []
        with contextlib.suppress(OSError):
            for pid, stat in process.all_stats().items():
                if not stat.ended and self._has_id(process.environ(pid)) and not self._is_marked(pid):
                    found.append(stat)
        return found

    def _end_supervisor(self) -> None:
        """Ends the supervisor: the job has no process left. Blocks."""
        with contextlib.suppress(OSError), self._reserve.lent():
            pid = self._supervisor()
            stat = process.read_stat(pid) if pid else None
            if stat is None or (pidfd := process.open_pidfd(pid, stat.start)) is None:
                return
            try:
                if not process.wait_ended(pidfd, LATE_S) and self._supervisor() == pid:
                    process.send(pid, stat.start, 9)
                    _log.warning("last_resort.replaced", pid=pid)
            finally:
                os.close(pidfd)

    # --- reports ------------------------------------------------------------------------------------------------------

    def _saw(self, left: list[Stat]) -> None:
        before, self.living = self.living, left
        if before is None or {stat.pid for stat in before} != {stat.pid for stat in left}:
            self._tell()

    def _say(self, text: str) -> None:
        self.trouble = text

    def _tell(self) -> None:
        self._news.tell()
        self._changed()


class DamagedJobs:
    """The damaged jobs that may have living processes. Belongs to one event loop."""

    def __init__(self, root: Root, reserve: Reserve, changed: Callable[[], None]) -> None:
        self._root, self._reserve, self._changed = root, reserve, changed
        self._jobs: dict[str, DamagedJob] = {}
        self._group: TaskGroup | None = None

    def start(self, group: TaskGroup) -> None:
        """Starts to watch them, in tasks of this group."""
        self._group = group
        for job in self._jobs.values():
            group.start_soon(self._follow, job)

    async def looked(self) -> None:
        """Returns when it is known of all of them whether a process lives, or after FIRST_LOOK_S: a disk may hang."""
        with anyio.move_on_after(FIRST_LOOK_S):
            for job in list(self._jobs.values()):
                await job.looked()

    def add(self, entry: Entry) -> None:
        """Adds a job whose record on disk cannot be trusted."""
        known = entry.known or Job()
        if known.boot_id and known.boot_id != process.boot_id():  # the reboot ended its processes
            salvage.release(entry)
            return
        if entry.job_id not in self._jobs:
            job = self._jobs[entry.job_id] = DamagedJob(self._root, entry, self._reserve, self._changed)
            if self._group is not None:
                self._group.start_soon(self._follow, job)

    async def release(self, job_id: str) -> None:
        """The record of this job can be trusted again. Returns when no task works on the job any more."""
        if (job := self._jobs.pop(job_id, None)) is not None:
            job.scope.cancel()
            await job.done.wait()

    def get(self, job_id: str) -> DamagedJob | None:
        """None if no process of it lives."""
        return self._jobs.get(job_id)

    def living(self, job_id: str) -> list[str]:
        """Its processes: pid and name."""
        return job.shown if (job := self._jobs.get(job_id)) is not None else []

    def entries(self) -> list[Entry]:
        """The jobs with known living processes."""
        return [job.entry for job in self._jobs.values() if job.living]

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator."""
        return [f"job {name}: {job.trouble}" for name, job in self._jobs.items() if job.trouble] + [
            f"job {name}: its processes still run, and its journal is damaged: {', '.join(job.shown[:5])}; "
            f"`muster stop {name}` ends them"
            for name, job in self._jobs.items()
            if job.living
        ]

    async def _follow(self, job: DamagedJob) -> None:
        try:
            with job.scope:
                await job.run()
        finally:
            job.done.set()
            if self._jobs.get(job.entry.job_id) is job:
                del self._jobs[job.entry.job_id]
                self._changed()
