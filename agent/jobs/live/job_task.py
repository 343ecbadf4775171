"""The task of one live job: gives it to a supervisor after the checks, and follows its journal to the end."""

import contextlib

import anyio
import structlog

from muster.agent.jobs import job_folder
from muster.agent.jobs.cards.cards_now import CardsKept
from muster.agent.jobs.entry import GONE, Entry, Told, fetch
from muster.agent.jobs.job_folder import HeldJob
from muster.agent.jobs.live.journal_watch import JournalWatch
from muster.agent.jobs.live.last_resort import LastResort
from muster.agent.jobs.live.stuck_supervisor import STUCK_KIND, WORKS_KIND, StuckSupervisor
from muster.agent.jobs.live.unsupervised import Surroundings, Unsupervised
from muster.agent.link import connection as control
from muster.agent.link import supervisor_client
from muster.agent.link.connection import LinkLost, Refused
from muster.agent.link.holds import Holds
from muster.agent.link.supervisor_client import JournalChange
from muster.probes.kernel.backoff import Backoff
from muster.supervisors.model.states import State
from muster.supervisors.supervision_errors import SupervisionError, explain

#: Seconds until: a supervisor has taken a stop, else it is passed over; it leaves after its job's end; a link has held.
STOP_S = 3.0
LEAVE_S = 5.0
HELD_S = 1.0
#: Seconds until the first look at the supervisor and the journal of a new job.
FIRST_LOOK_S = 2.0
#: States in which the daemon has the job, as long as no supervisor took it.
_BEFORE = frozenset({State.ACCEPTED, State.CHECKING, State.RESTARTING})

_log = structlog.get_logger(__name__)


class JobTask:
    """Lives as long as its job; `run` returns when the job has ended and its supervisor has left."""

    def __init__(self, entry: Entry, around: Surroundings, held: HeldJob | None) -> None:
        """`held`: a job that was accepted just now; None for a job that existed when the daemon started."""
        self.entry = entry
        self.done = anyio.Event()
        self._around = around
        self._holds = (held.holds if held is not None else None) or Holds(entry.paths)
        self._last = LastResort(around.root, entry, around.reserve, lambda: self.catch_up(None))
        self._supervising = anyio.CancelScope()
        #: Who follows the supervisor and who ends the job in its place read the journal along, both from where the
        #: entry is, and who has the job without a supervisor writes it: one after the other.
        self._reading = anyio.Lock()
        #: Whether the daemon has accepted the job just now.
        self._fresh = held is not None
        handed_over = held is not None and held.released
        ours = entry.job.state in _BEFORE and not (entry.job.supervisor_pid or handed_over)
        self._before = Unsupervised(entry, around, held if ours else None, ours, self._tell, self._reading)

    async def run(self) -> None:
        """Runs to the job's end; repeats every step that fails."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._last.run, self._fresh)
                tasks.start_soon(self._look, FIRST_LOOK_S if self._fresh else 0.0)
                if self.entry.spec.wants_cards:
                    tasks.start_soon(CardsKept(self.entry, self._around.leasing).run)
                await self._live()
                tasks.cancel_scope.cancel()
            if not self.entry.damaged:  # of that one a supervisor may live
                with contextlib.suppress(OSError):
                    await self._around.pool.run(job_folder.tidy, self._around.root, self.entry.paths)
        finally:
            self._before.release()
            self._holds.release()
            self.done.set()

    async def _look(self, behind_s: float) -> None:
        """Looks at supervisor and journal, until cancelled; of a new job not while the node is busy with its start."""
        await anyio.sleep(behind_s)
        async with anyio.create_task_group() as tasks:
            job_id, events = self.entry.job_id, self._around.events
            was_stuck = events.last_told(STUCK_KIND, job_id) > events.last_told(WORKS_KIND, job_id)
            stuck = StuckSupervisor(self.entry, events.tell, was_stuck=was_stuck)
            tasks.start_soon(stuck.run, self._around.rounds)
            tasks.start_soon(JournalWatch(self.entry).run, self._around.rounds)

    async def _live(self) -> None:
        pause = Backoff(0.2, 30.0)
        while not self.entry.job.state.final:
            try:
                if self._before.ours:
                    await self._before_supervision()
                if not self.entry.job.state.final:
                    await self._hold()
                    if self._before.ours:  # a stop has taken it back meanwhile
                        continue
                    with anyio.CancelScope() as self._supervising:
                        await self._supervise()
            except SupervisionError as error:
                self._give_up(error)
            except GONE as error:
                self.entry.take_for_gone(self.entry.paths.journal)
                self._given_up(error)
            except OSError as error:
                self._tell(f"{explain(error)}; trying again")
                _log.warning("job.trouble", job=self.entry.job_id, error=str(error))
                await anyio.sleep(pause.next())
            except Exception as error:
                # A defect in following one job must not end the daemon, which serves all of them.
                _log.exception("job.defect", job=self.entry.job_id)
                self._tell(f"{error!r}; trying again")
                await anyio.sleep(pause.next())
        self._tell("")

    def let_begin(self) -> None:
        """A job with `hold` may begin its ranks; without effect on any other."""
        self._before.let_begin()

    async def stop(
        self, steps: tuple[float, ...] | None, by: str, reason: str, hung: tuple[float, str] | None = None
    ) -> None:
        """Returns when the stop is in force, or the job has ended. It is in the journal then, or is carried out by the
        daemon itself, because no supervisor takes it. `hung`: as in supervisor_client.stop."""
        entry = self.entry
        with anyio.move_on_after(STOP_S):
            await self._last.wake_up()
        pause = Backoff(0.02, 0.5)
        with anyio.move_on_after(STOP_S):
            while not entry.job.state.final:
                if self._before.ours:
                    self._before.stop(steps, by, reason)
                    await entry.changed.next()
                    continue
                try:
                    await supervisor_client.stop(entry.paths.controls, steps, by, reason, hung=hung)
                except LinkLost as error:
                    _log.warning("supervisor.stop_not_taken", job=entry.job_id, error=str(error))
                    if not entry.job.has_run:  # there is nothing to be ended: no supervisor is needed
                        self._before.take_back()
                        self._before.stop(steps, by, reason)
                        self._supervising.cancel()
                    await anyio.sleep(pause.next())
                    continue
                except Refused as error:  # a journal that takes no record, say
                    _log.warning("supervisor.stop_refused", job=entry.job_id, error=str(error))
                    break
                # A job that only has its epilog left is not being stopped any more, but this ends sooner.
                while entry.job.stop is None and not (entry.job.concluded or entry.job.state.final):
                    await entry.changed.next()
                return
        given = entry.spec.stop_steps(steps)
        if entry.job.state.final:
            return
        if not self._before.ours:
            self._last.take(given, by, reason)
        elif not entry.job.has_run:  # there is nothing to be ended; the journal does not take that now
            await self._last.note(given, by, reason)

    async def _before_supervision(self) -> None:
        before = self._before
        try:
            if before.fresh:
                await before.run()
            elif await before.reclaim():
                await self.catch_up(None)
                await before.run()
            # Nothing is awaited between its last look at an order and here: from now on the supervisor gets them.
            before.ours = False
            self.entry.wake()
        finally:
            before.release()

    async def _hold(self) -> None:
        """Creates and opens the FIFOs of a job that no supervisor has taken yet. Without free descriptors the job runs
        all the same: its supervisor and the nursery hold the FIFOs."""
        if self._holds.is_taken:
            return
        try:
            job = self.entry.job
            numbers = [one.rank for one in (*job.ranks, *job.services)]
            await self._around.pool.run(self._holds.take, numbers, not self.entry.job.supervisor_pid)
        except OSError as error:
            _log.warning("fifo.not_held", job=self.entry.job_id, error=str(error))

    async def _supervise(self) -> None:
        pause = Backoff(0.05, 5.0)
        while not self.entry.job.state.final:
            since = anyio.current_time()
            error: Exception
            try:
                generation = await self._around.nursery.tend(self.entry.job_id, self.entry.awaits)
                self.entry.awaited = 0, 0
                async with control.connect(*self.entry.paths.controls) as connection:
                    error = await self._follow(connection, generation)
            except (LinkLost, Refused) as lost:
                error = lost
            if isinstance(error, SupervisionError):
                raise error
            # It may have ended the job before it exited, or written records without reporting them.
            await self.catch_up(None)
            if self.entry.job.state.final:
                return
            self._tell(f"no supervisor: {error}; seeking one")
            _log.warning("supervisor.lost", job=self.entry.job_id, error=str(error))
            if anyio.current_time() - since > HELD_S:
                pause.reset()
            else:  # none stays: it may be damaged where we have read it long ago, and a new supervisor reads all
                await self._around.pool.run(fetch, self.entry.paths.journal, 0, 0, None)
            await anyio.sleep(pause.next())

    async def _follow(self, connection: control.Connection, generation: int) -> Exception:
        """Follows the journal until the supervisor has exited or the journal cannot be read; returns the error.

        Returned, not raised: a task group would wrap it.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._make_known, generation)
            try:
                await supervisor_client.watch(connection, self.entry.end)
                self._tell("")
                while not self.entry.job.state.final:
                    change = await supervisor_client.next_change(connection)
                    if change.size is not None and not self._take(change):
                        await self.catch_up(change.size)
                    if change.owed is not None:
                        self._publish(self.entry.expect(change.owed))
                    if change.refused is not None:
                        self.entry.refuses(change.refused)
                    if change.gaps is not None:
                        self.entry.lost_now = change.gaps
                with anyio.move_on_after(LEAVE_S):
                    while True:
                        await supervisor_client.next_change(connection)
            except (LinkLost, SupervisionError, OSError) as error:
                return error
            finally:
                self.entry.refuses("")
                tasks.cancel_scope.cancel()
        return LinkLost("the job has ended")

    async def _make_known(self, generation: int) -> None:
        """Announces a job with a living supervisor to each new nursery, which must hold its FIFOs and notice its
        end."""
        pause = Backoff(0.05, 5.0)
        while True:
            await self._around.nursery.wait_other(generation)
            try:
                generation = await self._around.nursery.tend(self.entry.job_id)
                pause.reset()
            except (LinkLost, Refused) as error:
                _log.warning("nursery.tend_failed", job=self.entry.job_id, error=str(error))
                await anyio.sleep(pause.next())

    def _take(self, change: JournalChange) -> bool:
        """Applies the records that the supervisor has sent along, if they are the next ones: reading them in a thread
        would take longer than all the rest of an event's way. Raises IllegalTransition."""
        entry, records = self.entry, list(change.records)
        if not records or change.size is None or change.behind != entry.end or self._reading.locked():
            return False
        if records[0].get("n") != entry.records or not entry.agrees(records):
            return False
        entry.sure = max(entry.sure, change.size)
        self._publish(entry.absorb(records, change.size))
        return True

    async def catch_up(self, size: int | None) -> None:
        """Applies the journal's new records, up to `size` bytes (None: all).

        Raises JournalDamaged, IllegalTransition, OSError.
        """
        async with self._reading:
            await self._read_along(size)

    async def _read_along(self, size: int | None) -> None:
        entry = self.entry
        # What is on disk for sure can be less than what was read without asking: its writer took a record back.
        # Likewise, once its writer has exited, nobody knows whether the records that it owed were written.
        again = (size is not None and 0 < size < entry.end) or (size is None and bool(entry.owed))
        end, number = (0, 0) if again else (entry.end, entry.records)
        if size is None:  # nobody is known to write it
            await self._around.pool.run(entry.refuse_shorter)
        records, end = await self._around.pool.run(fetch, entry.paths.journal, end, number, size)
        entry.sure = max(entry.sure, size or 0)
        if not again and not entry.agrees(records):  # another supervisor wrote, and not what this one had told
            again = True
            records, end = await self._around.pool.run(fetch, entry.paths.journal, 0, 0, size)
        if again:
            entry.start_over()
        if records:
            self._publish(entry.absorb(records, end))

    def _tell(self, trouble: str) -> None:
        """Sets the reason why the job cannot be supervised or followed; empty: none."""
        self.entry.note("task", trouble)

    def _publish(self, told: Told) -> None:
        self._around.publish(self.entry, told)

    def _give_up(self, error: SupervisionError) -> None:
        self.entry.give_up(str(error))
        self._given_up(error)

    def _given_up(self, error: Exception) -> None:
        _log.error("journal.damaged", job=self.entry.job_id, error=str(error))
        self.entry.fifos = self._holds.hand_over()
        self._publish([])
