"""A job before it has a supervisor: the daemon waits for its rank table, checks the node, and carries out a stop."""

import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import anyio

from muster.agent import threads
from muster.agent.config.schema import Config
from muster.agent.errors import ApiError
from muster.agent.events.event_store import EventStore
from muster.agent.jobs import job_folder, start_checks
from muster.agent.jobs.cards import placement
from muster.agent.jobs.cards.leases import Given
from muster.agent.jobs.cards.leasing import Leasing
from muster.agent.jobs.entry import Entry, Told
from muster.agent.jobs.job_folder import HeldJob
from muster.agent.jobs.live import rank_tables
from muster.agent.link.nursery_client import NurseryClient
from muster.probes.cards.accelerator import ASCEND
from muster.probes.checks.result import CheckResult, Status, final_line, log_lines
from muster.probes.kernel import process
from muster.probes.kernel.backoff import Backoff
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.number_lists import numbers
from muster.supervisors.job import stop_order
from muster.supervisors.launch import environment
from muster.supervisors.launch.modes import ranktable
from muster.supervisors.launch.modes.ranktable import RankTable
from muster.supervisors.launch.modes.ranktable_json import RankTableError
from muster.supervisors.model import replay, restart
from muster.supervisors.model.journal import Record
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.rank_ends import OWN_FAILURE
from muster.supervisors.model.spec import DEFAULT_READY_S, JobSpec
from muster.supervisors.model.states import Kind, State, StopCause
from muster.supervisors.model.verdict import blames_node
from muster.supervisors.paths import Root
from muster.supervisors.system.spare import Reserve


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all tasks share. `check` runs the checks before a start; `publish` is called after records were applied,
    with the events that they become. `reserve`: descriptors for ending processes. `events`: of what no record says.
    `rounds`: for looks at each job."""

    config: Callable[[], Config]
    nursery: NurseryClient
    check: Callable[[JobSpec, Job], Awaitable[list[CheckResult]]]
    publish: Callable[[Entry, Told], None]
    pool: threads.Pool
    root: Root
    leasing: Leasing
    reserve: Reserve
    events: EventStore
    rounds: threads.Rounds


@dataclass(frozen=True, slots=True)
class _Order:
    """A stop from before the job had a supervisor."""

    steps: tuple[float, ...] | None
    by: str
    reason: str


class Unsupervised:
    """Holds the job's lock, and so its journal, until a supervisor takes them; carries out orders meanwhile."""

    def __init__(
        self,
        entry: Entry,
        around: Surroundings,
        held: HeldJob | None,
        ours: bool,
        tell: Callable[[str], None],
        reading: anyio.Lock,
    ) -> None:
        """`held`: a job that was accepted just now and not handed over; None for any other. `ours`: no supervisor has
        had the job. `tell` is called with a sentence while the journal cannot be written, and with none when it can.
        `reading`: held by who applies what the journal has."""
        self.ours = ours
        self._entry = entry
        self._around = around
        self._held = held
        #: Whether the daemon has accepted the job just now: the entry has what the journal has, and nobody else can
        #: have left an order.
        self.fresh = held is not None
        self._tell = tell
        self._reading = reading
        self._order: _Order | None = None
        self._checking = anyio.CancelScope()
        self._released = anyio.Event()

    async def reclaim(self) -> bool:
        """Takes the job's lock; False if its supervisor holds it. Raises OSError."""
        if self._held is None:
            self._held = await self._around.pool.run(job_folder.reclaim, self._entry.paths)
        return self._held is not None

    def take_back(self) -> None:
        """Of a job that was handed over and that no supervisor took: it is `ours` if nobody else has it by then."""
        self.ours = True

    def release(self) -> None:
        """Gives the job's lock back, if it is held."""
        if self._held is not None:
            self._held.close()
        self._held, self.fresh = None, False

    def stop(self, steps: tuple[float, ...] | None, by: str, reason: str) -> None:
        """Call it only while the job is `ours`."""
        self._order = _Order(steps, by, reason)
        self._checking.cancel()

    def let_begin(self) -> None:
        """A job with `hold` may begin its ranks."""
        self._released.set()

    async def run(self) -> None:
        """Runs to the job's end, or until a supervisor can continue."""
        if self._order is None and not self.fresh:
            await self._take_order()
        if self._entry.job.boot_id == process.boot_id():  # else there is nothing to begin any more
            await self._make_fit()
        if self._order is not None and not self._entry.job.state.final:
            await self._write(self._stopped(self._order))

    async def _take_order(self) -> None:
        """A stop that the daemon before this one could not record. Raises OSError."""
        path, nonce = self._around.root.stop_order(self._entry.job_id), self._nonce()
        kept = await self._around.pool.run(stop_order.read, path, nonce)
        if kept is not None and kept.is_asked and self._order is None:
            self._order = _Order(kept.steps, kept.by, kept.reason)

    def _nonce(self) -> str:
        return environment.nonce(self._around.root, self._entry.job_id, self._entry.job)

    async def _make_fit(self) -> None:
        """Waits for the rank table, if the job has one, then runs the checks, again while restarts are left. Ends a job
        that cannot run; returns early when the job is stopped."""
        job = self._entry.job
        with anyio.CancelScope() as self._checking:
            if self._order is not None:
                return
            await self._warn()
            if self._entry.spec.rank_table and not job.planned:
                await self._plan()
            while not job.state.final:
                if job.state is State.RESTARTING:
                    await anyio.sleep(max(0.0, job.restart_up - process.uptime()))
                if self._entry.checked is None:
                    await self._check()
                if self._entry.checked is None or self._entry.checked["ok"]:
                    await self._hold()
                    return
                await self._refuse(self._entry.checked["results"])

    async def _plan(self) -> None:
        assert self._held is not None
        entry = self._entry
        if entry.job.state is State.ACCEPTED:
            await self._write([{"kind": Kind.CHECKING, "what": f"rank table {entry.spec.rank_table}"}], sync=False)
        try:
            table = await rank_tables.wait(entry.spec)
            here = placement.server_of(entry.spec, table) if table.size else 0
            given = await self._lease(table, table.servers[here] if table.servers else None)
            cards = given.devices
            planned = placement.planned(entry.spec, entry.job, table, here, given.kind, cards, entry.paths.rank_table)
            planned |= self._around.leasing.on_cards(entry.spec, cards) | {"doubts": list(given.warnings)}
            count, allowed = len(planned["devices"]), self._around.config().jobs.max_ranks
            if count > allowed:
                raise RankTableError(
                    table.name, "", f"gives {count} ranks to this node, which allows at most {allowed}"
                )
            if planned["table"]:
                await self._around.pool.run(rank_tables.write, entry.paths.rank_table, table)
            place = Job()
            replay.place(place, planned)
            await self._around.pool.run(job_folder.set_logs_aside, self._around.root, entry.job_id, place)
            await self._around.pool.run(self._held.writer.reserve, count)
            await self._write([planned])
            await self._warn()
        except (RankTableError, ApiError) as error:
            await self._end_unplaced(str(error))
        except OSError as error:
            what = f"{error.filename or entry.paths.rank_table}: cannot be written: {error.strerror}"
            await self._end_unplaced(what)

    async def _warn(self) -> None:
        """Warns of cards of the job that are worse than others."""
        job = self._entry.job
        if new := [text for text in job.doubts if text not in job.warnings]:
            await self._write([{"kind": Kind.WARNING, "text": text} for text in new], sync=False)
            await self._say(*(f"warning: {text}" for text in new))

    async def _lease(self, table: RankTable, server: ranktable.Server | None) -> Given:
        """The cards of the job in the order of its ranks: those that the table names for this node. A job that holds
        the same number of other cards gives these back; if this node lacks the named cards, the job keeps its own.

        Raises CardBusy, NoSuchCard, NodeUnhealthy, NodeDraining, RankTableError.
        """
        entry, leasing = self._entry, self._around.leasing
        had = list(entry.job.cards)
        if server is None or leasing.kind != ASCEND:
            return Given(entry.job.card_kind, had)
        # HCCL's device ids are physical numbers, as are the indices of Ascend cards.
        named = [int(device.device_id) for device in server.devices]
        if had and sorted(had) == sorted(named):
            return Given(entry.job.card_kind, named)
        if had and (len(had) != len(named) or not leasing.has(named)):
            return Given(entry.job.card_kind, had)
        if entry.spec.card_indices:
            what = f"gives cards {numbers(named)} to server {server.server_id}, and the job asks for {numbers(had)}"
            raise RankTableError(table.name, "", what)
        if had:
            leasing.give_up(entry.job_id)
        wanted = replace(entry.spec, ranks=0, card_count=0, all_cards=False, card_indices=tuple(named))
        return replace(await leasing.lease(entry.job_id, wanted), devices=named)

    async def _hold(self) -> None:
        """Waits until a job with `hold` is released; ends it if nobody does that in time."""
        entry = self._entry
        if not entry.spec.hold or self._released.is_set():
            return
        limit = DEFAULT_READY_S if entry.spec.ready_timeout is None else entry.spec.ready_timeout
        await self._say(f"waits for the other nodes, up to {limit:g} s (hold)")
        entry.awaits_release = True
        entry.wake()
        try:
            with anyio.move_on_after(limit) as waiting:
                await self._released.wait()
        finally:
            entry.awaits_release = False
            entry.wake()
        if waiting.cancelled_caught:
            why = "the other nodes were not ready, or the command that started it has exited"
            text = f"was not released within {limit:g} s: {why}"
            verdict = {
                "exit_code": OWN_FAILURE,
                "summary": f"{text}; nothing was started",
                "recommendation": "RETRY_HERE",
                "recommendation_reason": "no fault of this node is known",
            }
            await self._say(f"FAILED: {text}")
            await self._write([{"kind": Kind.ENDED, "state": State.FAILED, "verdict": verdict}])

    async def _end_unplaced(self, text: str) -> None:
        verdict = {
            "exit_code": OWN_FAILURE,
            "summary": f"{text}; nothing was started",
            "recommendation": "FAIL",
            "recommendation_reason": "the place of the job among the nodes is unknown",
        }
        await self._say(f"FAILED: {text}")
        await self._write([{"kind": Kind.ENDED, "state": State.FAILED, "verdict": verdict}])

    async def _check(self) -> None:
        if why := start_checks.left_out(self._entry.spec, self._around.config()):
            # Not synced: a crash of the machine ends the job anyway, and a kill of the daemon loses nothing.
            await self._write(start_checks.without(why), sync=False)
            return
        await self._write([{"kind": Kind.CHECKING}], sync=False)
        results = await self._around.check(self._entry.spec, self._entry.job)
        found = [asdict(result) for result in results]
        critical = any(result.status is Status.CRITICAL for result in results)
        refused = critical and self._around.config().checks.policy == "enforce"
        # A stop must not come between the record and its events.
        with anyio.CancelScope(shield=True):
            await self._say(*log_lines(results))
            await self._write([start_checks.checked(not refused, found, "")], sync=False)

    async def _refuse(self, found: list[dict[str, Any]]) -> None:
        """The node is not fit: checks again after a pause if restarts are left; otherwise ends the job."""
        spec, job = self._entry.spec, self._entry.job
        ended = _unfit(found)
        with anyio.CancelScope(shield=True):
            if job.attempt >= spec.max_restarts:
                await self._say(final_line(CheckResult(**(r | {"status": Status(r["status"])})) for r in found))
                await self._write([ended])
                return
            number = len(job.past) + 1
            delay = restart.delay(spec, number)
            await self._say(f"pre-check: failed; restart {number} of {spec.max_restarts} in {delay:.1f} s")
            again: Record = {"kind": Kind.RESTARTING, "attempt": job.attempt + 1, "verdict": ended["verdict"]}
            await self._write([again | {"log_ends": {}, "delay_s": delay, "up": process.uptime()}])

    async def _say(self, *lines: str) -> None:
        """Writes to the job's log, best effort: the journal has the facts."""
        await self._around.pool.run(self._append_log, lines)

    def _append_log(self, lines: Sequence[str]) -> None:
        job_folder.say_in_log(self._around.root, self._entry.job_id, self._entry.job, lines)

    def _stopped(self, order: _Order) -> list[Record]:
        steps = self._entry.spec.stop_steps(order.steps)
        summary = f"stopped by {order.by} before its ranks were made" + (f": {order.reason}" if order.reason else "")
        verdict = {
            "exit_code": 128 + signal.SIGTERM,
            "summary": summary,
            "recommendation": "NONE",
            "recommendation_reason": "the stop was requested",
            "stopped_by": order.by,
        }
        cause: Record = {"cause": StopCause.REQUESTED, "by": order.by, "reason": order.reason, "steps": list(steps)}
        cause |= {"up": process.uptime()}
        return [{"kind": Kind.STOPPING} | cause, {"kind": Kind.ENDED, "state": State.STOPPED, "verdict": verdict}]

    async def _write(self, records: list[Record], *, sync: bool = True) -> None:
        """Appends to the journal, which must be ours, repeats until it works, and applies the records."""
        assert self._held is not None
        writer = self._held.writer
        first, now = writer.next_number, time.time()
        numbered = [{"n": first + i, "t": now} | record for i, record in enumerate(records)]
        pause = Backoff(0.2, 5.0)
        while True:
            try:
                async with self._reading:  # a reader of the journal would apply them as well
                    await self._around.pool.run(partial(writer.append, numbered, sync=sync))
                    self._tell("")
                    self._around.publish(self._entry, self._entry.absorb(numbered, writer.size))
                    return
            except OSError as error:
                self._tell(f"{self._entry.paths.journal}: cannot be written: {error.strerror}; trying again")
                await anyio.sleep(pause.next())


def _device(result: dict[str, Any]) -> str:
    """What the result is about, unless its reason says so."""
    device: str = result.get("device", "")
    return "" if device in result["reason"] else device


def _unfit(results: list[dict[str, Any]]) -> Record:
    critical = [r for r in results if r["status"] == Status.CRITICAL]
    items = "; ".join(dict.fromkeys(": ".join(filter(None, (r["item"], _device(r), r["reason"]))) for r in critical))
    verdict = {
        "exit_code": OWN_FAILURE,
        "summary": f"the node is not fit, nothing was started: {items}",
        "recommendation": "RETRY_ELSEWHERE",
        "recommendation_reason": f"{len(critical)} check(s) of the node are CRITICAL",
    }
    if not any(blames_node(r) for r in critical):
        verdict |= {
            "recommendation": "FAIL",
            "recommendation_reason": "the job requests something that this node cannot give",
        }
    return {"kind": Kind.ENDED, "state": State.FAILED, "verdict": verdict}
