"""The daemon ends a job's processes itself if no supervisor can: dead without a successor, stopped, or hanging.

It climbs the same ladder (supervisors/system/ladder.py) over the same processes (supervisors/launch/containment.py).
Before the first signal it writes the order into the run folder (supervisors/job/stop_order.py): a supervisor that
comes back, or the next daemon, continues the same stop. As soon as the journal can be written, the signals are
recorded: by the supervisor, or by the daemon itself if no process holds the job's lock. The daemon never records how
ranks ended: their zombies keep the status for the supervisor.
"""

import contextlib
import os
import signal
from collections.abc import Awaitable, Callable

import anyio
import structlog

from muster.agent import threads
from muster.agent.changes import Changes
from muster.agent.jobs import job_folder
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.live.climbing import EMPTY_LOOKS, KILL_AGAIN_MOST_S, LOOK_S, NO_THREAD_S, Climber
from muster.agent.link import supervisor_client
from muster.agent.link.connection import LinkLost, Refused
from muster.probes.kernel import process
from muster.probes.kernel.process import Stat
from muster.supervisors.job import stop_order
from muster.supervisors.job.stop_order import StopOrder
from muster.supervisors.launch import environment
from muster.supervisors.launch.containment import Containment
from muster.supervisors.model.lifecycle import Job, Rank, Stop
from muster.supervisors.model.states import State, StopCause
from muster.supervisors.paths import JobPaths, Root
from muster.supervisors.supervision_errors import SupervisionError, explain
from muster.supervisors.system import lock
from muster.supervisors.system.ladder import KILL_WAIT_S, Ladder, Rung
from muster.supervisors.system.spare import Reserve

#: Seconds that a supervisor has, after a grace period, to send a due signal before the daemon does.
LATE_S = 3.0
#: Seconds that a supervisor has to take an order that is carried out already, and that one that holds the lock has to
#: take notice that all processes have exited, before it is replaced.
HAND_OVER_S, REPLACE_S = 2.0, 10.0
#: Seconds between two rounds of SIGKILL to processes that survived one.
AGAIN_S = 10.0

_log = structlog.get_logger(__name__)


class _BestEffort:
    """Work at a disk, which may not answer: one piece at a time, in a task of its own. The caller waits
    HAND_OVER_S at most, for that or for the one before it."""

    def __init__(self) -> None:
        self._work: Callable[[], Awaitable[None]] | None = None
        self._asked, self._done = Changes(), Changes()

    async def ask(self, work: Callable[[], Awaitable[None]]) -> None:
        """Has it done, unless another piece is under way."""
        done = self._done.count
        if self._work is None:
            self._work = work
            self._asked.tell()
        with anyio.move_on_after(HAND_OVER_S):
            await self._done.beyond(done)

    async def run(self) -> None:
        """Does what is asked for until cancelled."""
        while True:
            asked = self._asked.count
            if self._work is None:
                await self._asked.beyond(asked)
                continue
            with contextlib.suppress(OSError, SupervisionError):
                await self._work()
            self._work = None
            self._done.tell()


class LastResort:
    """Of one live job."""

    def __init__(self, root: Root, entry: Entry, reserve: Reserve, catch_up: Callable[[], Awaitable[None]]) -> None:
        """`reserve`: see Climber. `catch_up` reads the journal's new records."""
        self._climber = Climber(entry.job_id, reserve, self._say)
        self._reserve = reserve
        self._empty = 0
        self._root, self._entry, self._catch_up = root, entry, catch_up
        self._file = root.stop_order(entry.job_id)
        self._order: StopOrder | None = None
        #: Which stop in the journal got its SIGTERM from us, by when it began.
        self._terminated_up = 0.0
        self._replaced_up = 0.0
        # Abandoned when the daemon exits: a process that hangs in the kernel must not delay the exit.
        self._threads = threads.Pool(2, abandon_on_cancel=True, here_after=NO_THREAD_S)
        self._at_disk = _BestEffort()

    async def wake_up(self) -> None:
        """Sends SIGCONT to the job's supervisors and the nurseries if they are stopped (SIGSTOP)."""
        await self._threads.run(wake_up, self._root, self._entry.supervisors)

    def take(self, steps: tuple[float, ...], by: str, reason: str) -> None:
        """Carries out a stop that no supervisor takes. Shortens a stop that already runs."""
        now = process.uptime()
        order = self._order
        if order is None:
            self._order = StopOrder(self._nonce(), steps, by, reason, now)
            self._entry.ordered = True
        elif now + sum(steps) < order.up + sum(order.steps):
            order.steps = (max(0.0, now - order.up + sum(steps)),)
        self._entry.wake()

    async def note(self, steps: tuple[float, ...], by: str, reason: str) -> None:
        """Keeps a stop that cannot be recorded now, for the next daemon. The job has no process yet."""
        with contextlib.suppress(OSError):  # the stop is in force all the same while this daemon runs
            await self._keep(StopOrder(self._nonce(), steps, by, reason, process.uptime()))
        self._entry.ordered = True
        self._all_gone()

    async def run(self, fresh: bool) -> None:
        """Carries out the stops of this job until cancelled. `fresh`: it was accepted just now, so that nobody can have
        left an order."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._at_disk.run)
            await self._carry_out_all(fresh)

    async def _carry_out_all(self, fresh: bool) -> None:
        # A stop that its supervisor took and could not write down goes with that supervisor; the order stays.
        known, had_stop = fresh, False
        while True:
            try:
                if had_stop and self._entry.job.stop is None:
                    known = False
                had_stop = self._entry.job.stop is not None
                if not known:
                    await self._read_order()
                    known = True
                if self._order is not None:
                    await self._carry_out(self._order)
                elif (job := self._entry.job).stop is not None and job.concluded is None:
                    await self._look_behind(job)
                    await self._go_on(job.stop)
            except OSError as error:
                self._say(f"cannot look at its processes: {explain(error)}; trying again")
            if known and self._order is None and self._entry.job.stop is None:
                await self._entry.changed.next()
            else:
                await anyio.sleep(LOOK_S)

    async def _read_order(self) -> None:
        """Reads an order of the previous daemon, or of a supervisor. Raises OSError."""
        nonce = self._nonce()
        order = await self._threads.run(lambda: self._reserve.call(stop_order.read, self._file, nonce))
        if order is not None and order.is_asked and self._order is None:
            self._order = order

    # --- whether something lives --------------------------------------------------------------------------------------

    async def _look_behind(self, job: Job) -> None:
        """Checks a job whose processes have all ended, as its supervisor reports, but whose journal cannot be
        written."""
        told = job.state is State.STOPPING and all(rank.outcome is not None for rank in job.processes())
        if not (told and self._entry.owed) or self._entry.gone:
            return
        if await self._climber.look(self._containment()):
            self._empty = 0
        else:
            self._saw_nothing()

    def _saw_nothing(self) -> None:
        self._empty += 1
        if self._empty >= EMPTY_LOOKS:
            self._all_gone()

    def _all_gone(self) -> None:
        """Notes that a stop has ended all processes, even if this cannot be recorded."""
        if not self._entry.gone:
            self._entry.gone = True
            self._entry.wake()

    # --- whose turn it is ---------------------------------------------------------------------------------------------

    async def _go_on(self, stop: Stop) -> None:
        """Does the overdue steps of a stop in the journal whose supervisor has exited, or hangs."""
        job, late = self._entry.job, process.uptime() - stop.up - LATE_S
        if job.state is not State.STOPPING or late < 0:
            return
        contained = self._containment()
        if late < sum(stop.steps):
            if not job.terminated and self._terminated_up != stop.up:
                self._terminated_up = stop.up
                await self.wake_up()
                await self._note_late(stop, "SIGTERM")
                await self._climber.signal(contained, signal.SIGTERM)
            return
        ladder = Ladder(process.uptime(), 0.0, pause_most=KILL_AGAIN_MOST_S)
        if await self._climber.look(contained):
            await self._note_late(stop, "SIGKILL")
        while self._entry.job.state is State.STOPPING and self._entry.job.stop is stop:
            rung = ladder.due(process.uptime())
            left = await self._climber.kill(contained, urgently=ladder.is_urgent(process.uptime()))
            if not left:
                self._say("")
                self._saw_nothing()
                unrecorded = any(rank.outcome is None for rank in job.processes())
                if (
                    unrecorded
                    and late > sum(stop.steps) + REPLACE_S
                    and process.uptime() > self._replaced_up + REPLACE_S
                ):
                    self._replaced_up = process.uptime()
                    await self._threads.run(_replace, self._entry.paths, self._entry.supervisors)
                return
            ladder.done(Rung.KILL, process.uptime())
            self._say(f"its supervisor is late with SIGKILL; musterd sends it to {process.names(left)}")
            if rung is Rung.GIVE_UP:
                self._say(f"these processes still run {KILL_WAIT_S:g} s after SIGKILL: {process.names(left)}")
                await anyio.sleep(AGAIN_S)
                return
            await anyio.sleep(max(0.0, ladder.next_at() - process.uptime()))

    # --- the ladder ---------------------------------------------------------------------------------------------------

    async def _carry_out(self, order: StopOrder) -> None:
        """Runs until no process is left, or none of the rest can be ended, and this is recorded."""
        await self._look_at_journal()
        left = await self._climber.climb(
            self._containment(),
            order,
            terminated="SIGTERM" in order.sent or self._entry.job.terminated,
            over=lambda: self._taken(order),
            keep=lambda: self._keep_or_record(order),
            between=lambda: self._record(order),
            doing="no supervisor accepts its stop; musterd ends its processes itself",
        )
        await self._see_recorded(order, left)

    async def _see_recorded(self, order: StopOrder, left: list[Stat]) -> None:
        """Keeps the order until it is in the journal; replaces a supervisor that never reacts."""
        since = anyio.current_time()
        if left:
            self._say(f"these processes cannot be killed {KILL_WAIT_S:g} s after SIGKILL: {process.names(left)}")
        while not self._taken(order):
            await self._record(order)
            if self._taken(order):
                break
            if not left:
                self._all_gone()
                self._say("musterd ended its processes; a supervisor records that as soon as it can")
                if anyio.current_time() - since > REPLACE_S:
                    since = anyio.current_time()
                    await self._threads.run(_replace, self._entry.paths, self._entry.supervisors)
            await anyio.sleep(2 * LOOK_S)
        if self._order is order:
            self._order = None
            self._say("")

    # --- the record ---------------------------------------------------------------------------------------------------

    def _taken(self, order: StopOrder) -> bool:
        """Whether the journal has the stop: then the job's present owner continues it."""
        job = self._entry.job
        return stop_order.covers(job, order) or (job.concluded is not None and not job.in_step)

    async def _record(self, order: StopOrder) -> None:
        """Records the stop, best effort: through the supervisor, or directly if there is none."""
        if self._taken(order):
            return
        with contextlib.suppress(LinkLost, Refused), anyio.move_on_after(HAND_OVER_S):
            paths = self._entry.paths.controls
            await supervisor_client.stop(paths, order.steps, order.by, order.reason, up=order.up, sent=order.sent)
        await self._note(order)

    async def _note(self, order: StopOrder) -> None:
        """Best effort."""

        async def note() -> None:
            with contextlib.suppress(OSError, SupervisionError):  # a supervisor may have written it
                await self._threads.run(job_folder.note, self._entry.paths, lambda job: stop_order.due(job, order))
            await self._catch_up()

        await self._at_disk.ask(note)

    async def _keep_or_record(self, order: StopOrder) -> None:
        """Records a signal before it is sent, so that the verdict can name the sender. If neither the run folder nor
        the journal can be written, the signal is sent all the same."""
        try:
            await self._keep(order)
        except OSError as error:
            _log.warning("last_resort.order_not_kept", job=self._entry.job_id, error=explain(error))
            if order.is_asked:
                await self._record(order)

    async def _note_late(self, stop: Stop, name: str) -> None:
        """Records a signal before the daemon sends it for a supervisor that is late with its stop."""
        up = stop.up if stop.cause is StopCause.REQUESTED else stop.since
        order = StopOrder(self._nonce(), stop.steps, stop.by, stop.reason, up, (name,), stop.cause)
        await self._keep_or_record(order)
        await self._note(order)

    async def _keep(self, order: StopOrder) -> None:
        """Raises OSError."""
        await self._threads.run(self._reserve.call, stop_order.write, self._file, order)

    async def _look_at_journal(self) -> None:
        """Best effort: a stop waits neither for a disk nor for a thread."""
        await self._at_disk.ask(self._catch_up)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _containment(self) -> Containment:
        entry = self._entry

        def supervisor() -> int:
            pid = entry.job.supervisor_pid  # the journal alone may name a process that exited long ago
            return pid if pid and lock.is_open(entry.paths.lock, pid) else 0

        def ranks() -> list[Rank]:
            return entry.job.processes()

        return Containment(entry.job.cgroup, ranks, self._nonce(), True, supervisor)

    def _nonce(self) -> str:
        return environment.nonce(self._root, self._entry.job_id, self._entry.job)

    def _say(self, text: str) -> None:
        self._entry.note("stop", text)


def wake_up(root: Root, supervisors: set[int]) -> None:
    """Sends SIGCONT to these supervisors and the nurseries if they are stopped (SIGSTOP). Blocks."""
    pids = set(supervisors)
    with contextlib.suppress(OSError):
        for path in root.run.glob("nursery*.lock"):
            with contextlib.suppress(OSError):
                pids.add(lock.holder(path))
    for pid in pids - {0, os.getpid()}:
        with contextlib.suppress(OSError):
            stat = process.read_stat(pid)
            if stat is not None and stat.state in "Tt":
                process.send(pid, stat.start, signal.SIGCONT)
                _log.warning("last_resort.continued", pid=pid, name=stat.comm)


def _replace(paths: JobPaths, supervisors: set[int]) -> None:
    """Kills a supervisor that holds the lock and does not answer. It has only records left to write, which its
    successor can write as well. Blocks."""
    with contextlib.suppress(OSError):
        pid = lock.holder(paths.lock)
        stat = process.read_stat(pid) if pid in supervisors else None
        if stat is not None:
            process.send(pid, stat.start, signal.SIGKILL)
            _log.warning("last_resort.replaced", pid=pid)
