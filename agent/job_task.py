"""The task of one live job: has the node checked, hands the job to a supervisor, and follows its journal to the end."""

import contextlib
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import anyio
import structlog
from anyio import to_thread

from agent import control, job_folder, placement, rank_tables, supervisor_client
from agent.config import Config
from agent.control import LinkLost, Pause, Refused
from agent.entry import Entry, Told, fetch
from agent.errors import JournalUnreadable, MusterError, SupervisorUnreachable
from agent.holds import Holds
from agent.job_folder import Held
from agent.leasing import Leasing
from agent.nursery_client import NurseryClient
from probes.accelerator import ASCEND
from probes.result import CheckResult, Status, final_line, log_lines
from supervisors import lifecycle, process, ranktable, restart
from supervisors.errors import SupervisionError
from supervisors.journal import Record
from supervisors.lifecycle import Job
from supervisors.output import job_log_files
from supervisors.paths import Root
from supervisors.ranktable_json import RankTableError
from supervisors.spec import DEFAULT_GRACE_STEPS, JobSpec
from supervisors.states import Cause, Kind, State
from supervisors.verdict import OWN_FAILURE

#: Seconds until: a stop is in the journal, over takeovers; a supervisor leaves after its job's end; a link has held.
STOP_S = 10.0
LEAVE_S = 5.0
HELD_S = 1.0
#: States in which the daemon has the job, as long as no supervisor took it.
_BEFORE = frozenset({State.ACCEPTED, State.CHECKING, State.RESTARTING})
#: What a ModelArts job sets to do without the pre-check.
_SKIP_VARIABLE = "MA_SKIP_IMAGE_DETECT"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all tasks share. `check` runs the pre-checks for a spec; `publish` is called after records were applied,
    with what is to be told of them."""

    config: Callable[[], Config]
    nursery: NurseryClient
    check: Callable[[JobSpec], Awaitable[list[CheckResult]]]
    publish: Callable[[Entry, Told], None]
    limiter: anyio.CapacityLimiter
    root: Root
    leasing: Leasing
    #: Ports at which live jobs meet.
    ports: Callable[[], set[int]]


@dataclass(frozen=True, slots=True)
class _Order:
    """A stop that came before there was a supervisor."""

    steps: tuple[float, ...] | None
    by: str
    reason: str


class JobTask:
    """Lives as long as its job; `run` returns when the job has ended and its supervisor has left."""

    def __init__(self, entry: Entry, around: Surroundings, held: Held | None) -> None:
        """`held`: a job that was accepted just now; None for one that was there when the daemon started."""
        self.entry = entry
        #: A sentence for an operator while something keeps the job from being supervised or followed.
        self.trouble = ""
        self.done = anyio.Event()
        self._around = around
        self._held = held
        # Until a supervisor has the job, orders are carried out here.
        self._ours = entry.job.state in _BEFORE and not entry.job.supervisor_pid
        self._order: _Order | None = None
        self._holds = Holds(entry.paths)
        self._checking = anyio.CancelScope()

    async def run(self) -> None:
        """To the job's end; whatever goes wrong is tried again."""
        pause = Pause(0.2, 30.0)
        try:
            while not self.entry.job.state.final:
                try:
                    if self._ours:
                        await self._before_supervision()
                    if not self.entry.job.state.final:
                        await self._hold()
                        await self._supervise()
                except SupervisionError as error:
                    self._give_up(error)
                except OSError as error:
                    self.trouble = f"job {self.entry.job_id}: {error}; trying again"
                    _log.warning("job.trouble", job=self.entry.job_id, error=str(error))
                    await pause.wait()
                except Exception as error:
                    # A defect in following one job must not end the daemon, which serves all of them.
                    _log.exception("job.defect", job=self.entry.job_id)
                    self.trouble = f"job {self.entry.job_id}: {error!r}; trying again"
                    await pause.wait()
            self.trouble = ""
            with contextlib.suppress(OSError):
                await self._thread(job_folder.tidy, self.entry.paths)
        finally:
            if self._held is not None:
                self._held.close()
            self._holds.release()
            self.done.set()

    async def stop(self, steps: tuple[float, ...] | None, by: str, reason: str) -> None:
        """Returns when the stop is in the journal, or the job has ended.

        Raises SupervisorUnreachable, JournalUnreadable.
        """
        why = "no answer"
        pause = Pause(0.02, 0.5)
        try:
            with anyio.fail_after(STOP_S):
                while not self.entry.job.state.final:
                    if self._ours:
                        self._order = _Order(steps, by, reason)
                        self._checking.cancel()
                        await self.entry.changed.wait()
                        continue
                    try:
                        await supervisor_client.stop(self.entry.paths.control, steps, by, reason)
                    except (LinkLost, Refused) as error:
                        why = str(error)
                        await pause.wait()
                        continue
                    # A job that only has its epilog left is not being stopped any more, but this ends sooner.
                    while self.entry.job.stop is None and not (self.entry.job.concluded or self.entry.job.state.final):
                        await self.entry.changed.wait()
                    break
        except TimeoutError:
            raise SupervisorUnreachable(
                f"job {self.entry.job_id}: its supervisor did not take the stop in {STOP_S:g} s ({why}): try again"
            ) from None
        if self.entry.damaged:
            raise JournalUnreadable(self.entry.job_id, self.entry.damaged)

    # --- before there is a supervisor ---------------------------------------------------------------------------------

    async def _before_supervision(self) -> None:
        if self._held is None:
            self._held = await self._thread(job_folder.reclaim, self.entry.paths)
        held = self._held
        try:
            if held is not None:
                await self._catch_up(None)
                if self.entry.job.boot_id == process.boot_id():  # else there is nothing to begin any more
                    await self._make_fit(held)
                if self._order is not None and not self.entry.job.state.final:
                    await self._write(held, self._stopped(self._order))
            # Nothing is awaited between the last look at the order and here: from now on the supervisor gets them.
            self._ours = False
            self.entry.wake()
        finally:
            if held is not None:
                held.close()
            self._held = None

    async def _make_fit(self, held: Held) -> None:
        """The rank table, if there is one, then the checks; these again where restarts are left. Ends the job where it
        cannot be run; returns in the middle of it when it is stopped."""
        job = self.entry.job
        with anyio.CancelScope() as self._checking:
            if self._order is not None:
                return
            if self.entry.spec.rank_table and not job.planned:
                await self._plan(held)
            while not job.state.final:
                if job.state is State.RESTARTING:
                    await anyio.sleep(max(0.0, job.restart_up - process.uptime()))
                if self.entry.checked is None:
                    await self._check(held)
                if self.entry.checked is None or self.entry.checked["ok"]:
                    return
                await self._refuse(held, self.entry.checked["results"])

    async def _plan(self, held: Held) -> None:
        entry = self.entry
        if entry.job.state is State.ACCEPTED:
            await self._write(
                held, [{"kind": Kind.CHECKING, "what": f"rank table {entry.spec.rank_table}"}], sync=False
            )
        try:
            table = await rank_tables.wait(entry.spec)
            here = placement.server_of(entry.spec, table) if table.size else 0
            kind, cards = await self._lease(table.servers[here] if table.servers else None)
            planned = placement.planned(entry.spec, entry.job, table, here, kind, cards, entry.paths.rank_table)
            planned |= self._around.leasing.on_cards(entry.spec, cards)
            count, allowed = len(planned["devices"]), self._around.config().jobs.max_ranks
            if count > allowed:
                raise RankTableError(
                    table.name, "", f"gives {count} ranks to this node, which allows at most {allowed}"
                )
            if planned["table"]:
                await self._thread(rank_tables.write, entry.paths.rank_table, table)
            place = Job()
            lifecycle.place(place, planned)
            await self._thread(job_folder.set_logs_aside, self._around.root, entry.job_id, place)
            await self._thread(held.writer.reserve, count)
            await self._write(held, [planned])
        except (RankTableError, MusterError) as error:
            await self._end_unplaced(held, str(error))
        except OSError as error:
            what = f"{error.filename or entry.paths.rank_table}: cannot be written: {error.strerror}"
            await self._end_unplaced(held, what)

    async def _lease(self, server: ranktable.Server | None) -> tuple[str, list[int]]:
        """The cards that the job has already, or those that the table names for this node, where it has such.

        Raises CardBusy, NoSuchCard, NodeUnhealthy, NodeDraining.
        """
        entry, leasing = self.entry, self._around.leasing
        if entry.job.cards or server is None or leasing.kind != ASCEND:
            return entry.job.card_kind, list(entry.job.cards)
        wanted = replace(entry.spec, ranks=0, card_indices=tuple(int(device.device_id) for device in server.devices))
        return await leasing.lease(entry.job_id, wanted)

    async def _end_unplaced(self, held: Held, text: str) -> None:
        verdict = {
            "exit_code": OWN_FAILURE,
            "summary": f"{text}; nothing was started",
            "recommendation": "FAIL",
            "recommendation_reason": "the job's place among the nodes is not known",
        }
        await self._say(f"FAILED: {text}")
        await self._write(held, [{"kind": Kind.ENDED, "state": State.FAILED, "verdict": verdict}])

    async def _check(self, held: Held) -> None:
        checking: Record = {"kind": Kind.CHECKING}
        if skipped := self._skipped():
            # Not synced: a crash of the machine ends the job anyway, and a kill of the daemon loses nothing.
            await self._write(held, [checking, _checked(True, [], skipped)], sync=False)
            await self._say(f"pre-check: left out: {skipped}")
            return
        await self._write(held, [checking], sync=False)
        results = await self._around.check(self.entry.spec)
        found = [asdict(result) for result in results]
        critical = any(result.status is Status.CRITICAL for result in results)
        refused = critical and self._around.config().checks.policy == "enforce"
        # A stop must not fall between what is written and what is said of it.
        with anyio.CancelScope(shield=True):
            await self._say(*log_lines(results))
            await self._write(held, [_checked(not refused, found, "")], sync=False)

    async def _refuse(self, held: Held, found: list[dict[str, Any]]) -> None:
        """The node is not fit: another look after a while, where restarts are left; else the end."""
        spec, job = self.entry.spec, self.entry.job
        ended = _unfit(found)
        with anyio.CancelScope(shield=True):
            if job.attempt >= spec.max_restarts:
                await self._say(final_line(CheckResult(**(r | {"status": Status(r["status"])})) for r in found))
                await self._write(held, [ended])
                return
            number = len(job.past) + 1
            delay = restart.delay(spec, number)
            await self._say(f"pre-check: failed; restart {number} of {spec.max_restarts} in {delay:.1f} s")
            again: Record = {"kind": Kind.RESTARTING, "attempt": job.attempt + 1, "verdict": ended["verdict"]}
            await self._write(held, [again | {"log_ends": {}, "delay_s": delay, "up": process.uptime()}])

    async def _say(self, *lines: str) -> None:
        """Into the job's log. Best effort: what counts is in the journal."""
        job = self.entry.job
        files = job_log_files(self._around.root, self.entry.job_id, job.node_rank)
        try:
            await self._thread(job_folder.append_log, *files, lines)
        except OSError as error:
            _log.warning("job.log_not_written", job=self.entry.job_id, error=str(error))

    def _skipped(self) -> str:
        if self.entry.spec.skip_check:
            return "the request asked for it (skip_check)"
        if self.entry.spec.env.get(_SKIP_VARIABLE) == "0":
            return f"the job's environment asks for it ({_SKIP_VARIABLE}=0)"
        if self._around.config().checks.policy == "off":
            return "this node does not check (checks.policy is off)"
        return ""

    def _stopped(self, order: _Order) -> list[Record]:
        steps = order.steps if order.steps is not None else self.entry.spec.grace_steps or DEFAULT_GRACE_STEPS
        summary = f"stopped by {order.by} before its ranks were made" + (f": {order.reason}" if order.reason else "")
        verdict = {
            "exit_code": 128 + signal.SIGTERM,
            "summary": summary,
            "recommendation": "NONE",
            "recommendation_reason": "it was asked for",
            "stopped_by": order.by,
        }
        cause: Record = {"cause": Cause.REQUESTED, "by": order.by, "reason": order.reason, "steps": list(steps)}
        cause |= {"up": process.uptime()}
        return [{"kind": Kind.STOPPING} | cause, {"kind": Kind.ENDED, "state": State.STOPPED, "verdict": verdict}]

    async def _write(self, held: Held, records: list[Record], *, sync: bool = True) -> None:
        """Appends to the journal that is still ours, for as long as it takes, and applies the records."""
        first, now = held.writer.next_number, time.time()
        numbered = [{"n": first + i, "t": now} | record for i, record in enumerate(records)]
        pause = Pause(0.2)
        while True:
            try:
                await self._thread(lambda: held.writer.append(numbered, sync=sync))
                break
            except OSError as error:
                self.trouble = f"{self.entry.paths.journal}: cannot be written: {error.strerror}; trying again"
                await pause.wait()
        self.trouble = ""
        self._publish(self.entry.absorb(numbered, held.writer.size))

    # --- while there is one -------------------------------------------------------------------------------------------

    async def _hold(self) -> None:
        """A job that no supervisor took yet has no FIFOs: they are made here. Without descriptors to spare the job runs
        all the same, held by its supervisor and the nursery."""
        try:
            ranks = [rank.rank for rank in self.entry.job.ranks]
            await self._thread(self._holds.take, ranks, not self.entry.job.supervisor_pid)
        except OSError as error:
            _log.warning("fifo.not_held", job=self.entry.job_id, error=str(error))

    async def _supervise(self) -> None:
        pause = Pause()
        while not self.entry.job.state.final:
            since = anyio.current_time()
            error: Exception
            try:
                generation = await self._around.nursery.tend(self.entry.job_id)
                async with control.connect(self.entry.paths.control) as connection:
                    error = await self._follow(connection, generation)
            except (LinkLost, Refused) as lost:
                error = lost
            if isinstance(error, SupervisionError):
                raise error
            # It may have ended the job before it went, or left records that it could not tell of.
            await self._catch_up(None)
            if self.entry.job.state.final:
                return
            self.trouble = f"job {self.entry.job_id}: no supervisor: {error}; seeking one"
            _log.warning("supervisor.lost", job=self.entry.job_id, error=str(error))
            if anyio.current_time() - since > HELD_S:
                pause.reset()
            await pause.wait()

    async def _follow(self, connection: control.Connection, generation: int) -> Exception:
        """Reads along until the supervisor is gone or the journal cannot be read; returns what happened.

        Returned, not raised: a task group would wrap it.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._make_known, generation)
            try:
                await supervisor_client.watch(connection)
                self.trouble = ""
                while not self.entry.job.state.final:
                    await self._catch_up(await supervisor_client.next_size(connection))
                with anyio.move_on_after(LEAVE_S):
                    while True:
                        await supervisor_client.next_size(connection)
            except (LinkLost, SupervisionError, OSError) as error:
                return error
            finally:
                tasks.cancel_scope.cancel()
        return LinkLost("the job has ended")

    async def _make_known(self, generation: int) -> None:
        """Tells each new nursery of a job whose supervisor lives: it is to hold its FIFOs and to see its end."""
        pause = Pause()
        while True:
            await self._around.nursery.wait_other(generation)
            try:
                generation = await self._around.nursery.tend(self.entry.job_id)
                pause.reset()
            except (LinkLost, Refused) as error:
                _log.warning("nursery.tend_failed", job=self.entry.job_id, error=str(error))
                await pause.wait()

    async def _catch_up(self, size: int | None) -> None:
        """Applies what the journal has over what is known, up to `size` (None: all that is there).

        Raises JournalDamaged, IllegalTransition, OSError.
        """
        entry = self.entry
        # What is on disk for sure can be less than what was read without asking: its writer took a record back.
        again = size is not None and 0 < size < entry.end
        end, number = (0, 0) if again else (entry.end, entry.records)
        records, end = await self._thread(fetch, entry.paths.journal, end, number, size)
        if again:
            entry.start_over()
        if records:
            self._publish(entry.absorb(records, end))

    def _publish(self, told: Told) -> None:
        self._around.publish(self.entry, told)

    def _give_up(self, error: SupervisionError) -> None:
        _log.error("journal.damaged", job=self.entry.job_id, error=str(error))
        self.entry.give_up(str(error))
        self._publish([])

    async def _thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await to_thread.run_sync(function, *args, limiter=self._around.limiter)


def _checked(ok: bool, results: list[dict[str, Any]], skipped: str) -> Record:
    return {"kind": Kind.CHECKED, "ok": ok, "results": results, "skipped": skipped}


def _unfit(results: list[dict[str, Any]]) -> Record:
    critical = [r for r in results if r["status"] == Status.CRITICAL]
    items = "; ".join(f"{r['item']}: {r['reason']}" for r in critical)
    verdict = {
        "exit_code": OWN_FAILURE,
        "summary": f"the node is not fit, nothing was started: {items}",
        "recommendation": "RETRY_ELSEWHERE",
        "recommendation_reason": f"{len(critical)} check(s) of the node are CRITICAL",
    }
    if not any(lifecycle.blames_node(r) for r in critical):
        verdict |= {"recommendation": "FAIL", "recommendation_reason": "the job asks for what it cannot have here"}
    return {"kind": Kind.ENDED, "state": State.FAILED, "verdict": verdict}
