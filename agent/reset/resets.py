"""Resets of cards: one at a time for the whole node, since the driver is closed meanwhile.

A reset goes on without its client. A daemon that ends in the middle leaves `reset.json`, by which the next one puts
back what it can, keeps the node drained and says how to go on.
"""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from muster.agent import threads
from muster.agent.errors import ApiError, CannotReset, ResetUnderWay
from muster.agent.host import state_file
from muster.agent.jobs.cards.leases import Lease
from muster.agent.reset import reset_file, reset_target
from muster.agent.reset.reset_file import ResetEvent, ResetRecord, ResetState
from muster.agent.reset.reset_report import ResetParts, ResetProgress, ResetRequest, ResetStep, StepStatus
from muster.agent.text import local
from muster.probes.calls.heartbeat import tick
from muster.probes.cards.accelerator import Card
from muster.probes.cards.driver import View
from muster.probes.kernel import process

if TYPE_CHECKING:  # nearly no daemon ever resets a card
    from muster.agent.reset.reset_run import ResetRun
    from muster.probes.cards.reset.reset_group import ResetPlan

#: Seconds between two looks for a card that is to be reset by itself.
AUTOMATIC_S = 5.0
#: ... and whether a program of an earlier daemon has ended.
LOOK_S = 1.0

_log = structlog.get_logger(__name__)


class Resets:
    """Belongs to one event loop. `load`, then `run` make it usable."""

    def __init__(self, parts: ResetParts) -> None:
        self._parts = parts
        self._path = parts.root.reset
        self._state = ResetState()
        self._run: ResetRun | None = None
        self._group: TaskGroup | None = None
        #: A sentence about a file that could not be read.
        self._damage = ""
        #: The reset that failed, or that an earlier daemon did not finish.
        self._left: ResetRecord | None = None
        #: Its program is waited for, or the persistence mode is put back.
        self._settling = False
        #: The tests of a drain have been started.
        self._tests = False
        #: Why a card is not reset by itself although a code of the settings is on it: sentences.
        self._refused: list[str] = []

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator."""
        found = [self._damage] if self._damage else []
        found += [_unfinished(self._left)] if self._left is not None else []
        return [*found, *self._refused]

    @property
    def running(self) -> "ResetRun | None":
        """The reset that is under way."""
        return self._run

    # --- operations ---------------------------------------------------------------------------------------------------

    async def start(self, name: str, request: ResetRequest) -> ResetProgress:
        """Begins the reset of a card (its number, UUID, serial number or bus id), which goes on if nobody follows it.

        Raises ResetUnderWay, NoSuchCard, CannotReset; then nothing was changed.
        """
        self._refuse_second()
        await self._parts.driver.ready()
        if self._left is not None:  # which card has which number may have changed since
            await self._parts.driver.relist()
        view = reset_target.known(self._parts.driver.view, self._left)
        card = reset_target.named(view, name, self._left)
        plan = await self._plan(view, card)
        self._refuse(card, plan, request)
        self._refuse_second()  # somebody may have begun one meanwhile
        self._begin(view, card, plan, request)
        assert self._run is not None
        return self._run.progress

    def cancel(self, by: str) -> ResetProgress:
        """Ends a reset that still waits for jobs. Raises ResetUnderWay where none does."""
        if self._run is None:
            raise ResetUnderWay("no card of this node is being reset")
        if not self._run.cancel(by):
            card, step = self._run.record.card, self._run.step
            raise ResetUnderWay(f"card {card} is being reset (step {step}): too late to cancel it, wait for its end")
        return self._run.progress

    def refuse_undrain(self) -> None:
        """Raises ResetUnderWay while a card is being reset, also by a program that outlived its daemon: jobs would
        start while the driver is closed, or beside the reset."""
        self._refuse_beside_program()
        if self._run is not None:
            record = self._run.record
            raise ResetUnderWay(
                f"{record.device} is being reset by {record.by} (step {self._run.step}): wait for its end, or while it"
                " waits for jobs cancel it: `muster node reset --cancel`"
            )

    async def undrained(self) -> None:
        """The node was taken into service: what an interrupted reset left is over with that."""
        if self._left is None and not self._state.drain:
            return
        self._left, self._state.current, self._state.drain = None, None, ""
        await self._write()

    # --- life ---------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads what an earlier daemon left. Raises StartupError."""
        self._state, self._damage = await threads.run(reset_file.read, self._path)
        self._left, ended = self._state.current, self._state.ended
        if ended is not None and ended.at > self._parts.events.last_told(reset_file.KIND):
            self._parts.events.tell(ended.event())

    async def settle(self) -> None:
        """After an interrupted reset: waits for the vendor's program that it began, kills it once its time is over, and
        puts the persistence mode back. Before that nobody may open the driver."""
        record = self._left
        if record is None or not (record.program or record.persistent):
            return
        self._settling = True
        try:
            if await self._end_program(record):
                await self._put_back(record)
                await self._write()
        finally:
            self._settling = False

    async def _end_program(self, record: ResetRecord) -> bool:
        """False: not even SIGKILL ends it. Its time counts from its start, whichever daemon that was."""
        from muster.probes.cards.reset import reset_program

        end = float("inf")
        while record.program is not None and await threads.run(reset_file.at_work, record):
            is_reset = record.step == ResetStep.RESET
            limit = self._parts.config().reset.program_s if is_reset else reset_program.PERSISTENCE_S
            who = (
                f"the program (pid {record.program[0]}) of the reset of {record.device} did not end within {limit:g} s"
            )
            if anyio.current_time() >= end:
                self._tell(record, f"{who}, nor by SIGKILL: only a reboot ends it")
                return False
            if reset_file.program_age_s(record) >= limit:
                await threads.run(reset_program.kill, *record.program)
                if end == float("inf"):
                    end = anyio.current_time() + reset_program.LINGER_S
                    self._tell(record, f"{who}: musterd kills it")
            await anyio.sleep(LOOK_S)
        record.program = None
        return True

    async def _put_back(self, record: ResetRecord) -> None:
        if record.persistent and record.boot == process.boot_id():
            from muster.probes.cards.reset import reset_program

            ended = await reset_program.set_persistence(record.persistent, True)
            if ended.trouble:
                _log.warning("reset.persistence", error=ended.trouble)
        record.persistent = []

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Carries resets out until cancelled."""
        async with anyio.create_task_group() as self._group:
            await self._tell_interrupted()
            task_status.started()
            while True:
                await tick(AUTOMATIC_S)
                await self._look_after_program()
                if self._parts.config().reset.codes or self._refused:
                    await self._start_by_itself()
                if self._parts.config().active.in_drain and not self._tests:
                    from muster.agent.reset.drain_tests import DrainTests  # only where they are wanted

                    self._tests = True
                    self._group.start_soon(DrainTests(self._parts, self._is_resetting).run)

    def _is_resetting(self) -> bool:
        """Also by a program that outlived its daemon."""
        return self._run is not None or self._settling or (self._left is not None and self._left.program is not None)

    async def _look_after_program(self) -> None:
        """One that SIGKILL did not end may end all the same, once the card lets go of it."""
        record = self._left
        if record is None or record.program is None or self._settling:
            return
        if not await threads.run(reset_file.at_work, record):
            await self.settle()

    async def _tell_interrupted(self) -> None:
        record = self._left
        if record is None:
            return
        drain = self._parts.health.drain
        if drain is None and record.step == ResetStep.UNDRAIN and not record.failure:  # but for its end, all was done
            message = f"the reset of {record.device} is complete: the node takes jobs again"
            self._state.ended = self._tell(record, message, StepStatus.COMPLETED)
            await self.undrained()
            return
        message = record.failure or _unfinished(record)
        if drain is None or drain.reason == self._state.drain:
            self._state.drain = message[:1000]
            try:
                await self._parts.health.set_drain(self._state.drain, record.by)
            except ApiError as error:
                _log.warning("reset.drain_unwritten", error=str(error))
            await self._write()
        if self._state.ended is None:  # else it was told when it failed, or by an earlier daemon
            self._state.ended = self._tell(record, message)
            await self._write()

    def _tell(self, record: ResetRecord, message: str, status: StepStatus = StepStatus.GIVEN_UP) -> ResetEvent:
        facts = {"card": str(record.card), "uuid": record.uuid, "step": record.step, "status": str(status)}
        facts["by"] = record.by
        _log.warning("node.reset", text=message, **facts)
        told = ResetEvent(time.time(), message, facts)
        self._parts.events.tell(told.event())
        return told

    # --- beginning ----------------------------------------------------------------------------------------------------

    def _refuse_second(self) -> None:
        if self._run is not None:
            record = self._run.record
            raise ResetUnderWay(
                f"{record.device} is being reset by {record.by} since {local(record.since)} (step {self._run.step}):"
                " wait for its end; `muster events -f` shows it"
            )
        self._refuse_beside_program()

    def _refuse_beside_program(self) -> None:
        record = self._left
        if record is None or not (self._settling or record.program):
            return
        if record.program is None:
            raise ResetUnderWay(f"musterd is restoring the persistence mode of {record.device}: wait for it")
        who = f"the program of the reset of {record.device} by {record.by} (pid {record.program[0]}) still runs"
        if self._settling:
            raise ResetUnderWay(
                f"{who}: wait for its end, musterd kills it once its time (program_s of [reset]) is over"
            )
        raise ResetUnderWay(f"{who}, and SIGKILL does not end it: reboot the node")

    async def _plan(self, view: View, card: Card) -> "ResetPlan":
        from muster.probes.cards.reset import reset_group

        now = await self._parts.driver.describe(card.index)
        if now is not None and now.mig:  # somebody may have switched it on since the card was listed
            view = replace(view, cards={**view.cards, card.index: replace(card, mig=True)})
        return await threads.run(reset_group.plan, view, card.index)

    def _refuse(self, card: Card, plan: "ResetPlan", request: ResetRequest) -> None:
        from muster.probes.cards.reset import reset_program

        if plan.refusal:
            raise CannotReset(f"card {card.index}: {plan.refusal}")
        if plan.doubt and not request.force:
            raise CannotReset(f"card {card.index}: {plan.doubt}; --force resets it nevertheless")
        if not reset_program.find(card.kind):
            name = reset_program.name(card.kind)
            raise CannotReset(f"card {card.index}: {name}, which resets it, is not found in PATH: install it")

    def _begin(self, view: View, card: Card, plan: "ResetPlan", request: ResetRequest) -> None:
        from muster.agent.reset.reset_run import ResetRun

        assert self._group is not None, "run comes first"
        record = ResetRecord(
            card=card.index,
            uuid=card.uuid,
            bus_id=card.bus_id,
            together=list(plan.together),
            by=request.by,
            since=time.time(),
            boot=process.boot_id(),
        )
        cards, named = (tuple(view.cards[index] for index in some) for some in (plan.together, plan.command))
        self._run = ResetRun(self._parts, self._state, record, cards, named, request)
        self._left = None
        text = f"it is being reset by {request.by}"
        self._parts.registry.leasing.reserve(dict.fromkeys(plan.together, text))
        self._group.start_soon(self._carry_out, self._run, name=f"reset of card {card.index}")

    async def _carry_out(self, run: "ResetRun") -> None:
        try:
            await run.run()
        finally:
            self._run, self._left = None, self._state.current
            self._parts.registry.leasing.reserve({})

    # --- by itself ----------------------------------------------------------------------------------------------------

    async def _start_by_itself(self) -> None:
        """The first card that a condition of the settings names, if nothing stands in the way."""
        if self._run is not None or self._left is not None or self._parts.health.drain is not None:
            return
        wanted, refused = self._parts.config().reset.codes, list[str]()
        for condition in self._parts.health.conditions:
            if condition.code not in wanted or condition.injected or condition.card is None:
                continue
            why = await self._tried(condition.card, condition.code)
            if why is None:
                break
            if why and (text := f"musterd does not reset a card for {condition.code} by itself: {why}") not in refused:
                refused.append(text)
        for text in refused:
            if text not in self._refused:
                _log.warning("reset.not_by_itself", text=text)
        self._refused = refused

    async def _tried(self, index: int, code: str) -> str | None:
        """Begins a reset; None: one is under way. Otherwise why not: a sentence, or nothing while a job holds it."""
        view, most = self._parts.driver.view, self._parts.config().reset.most_a_day
        card = view.cards.get(index)
        if card is None:
            return ""
        if reset_file.today(self._state, card.uuid) >= most:
            again = f"`muster node reset {index}` does"
            return f"card {index} was reset {most} times within 24 hours (most_a_day in [reset]); {again}"
        plan = await self._plan(view, card)
        held = {lease.card.index for lease in self._parts.registry.leasing.all() if self._is_held(lease)}
        if held & set(plan.together):
            return ""
        request = ResetRequest(by=f"musterd, for {code} (codes in [reset])")
        try:
            self._refuse(card, plan, request)
        except CannotReset as error:
            return str(error)
        if self._run is None:
            reset_file.note_past(self._state, card.uuid, time.time())
            self._begin(view, card, plan, request)
        return None

    def _is_held(self, lease: Lease) -> bool:
        """Not by memory that an ended job left without a process: a reset is what ends that."""
        if not (lease.held_by and self._parts.registry.has_ended(lease.job_id)):
            return bool(lease.job_id)
        seen = self._parts.driver.view.holders.get(lease.card.index)
        return seen is None or bool(seen.value)

    async def _write(self) -> None:
        try:
            await threads.run(state_file.write, self._path, self._state)
        except OSError as error:
            _log.warning("reset.unwritten", path=str(self._path), error=str(error))


def _unfinished(record: ResetRecord) -> str:
    if record.failure:
        return f"{record.failure}: {reset_file.remedy(record)}"
    rebooted = "" if record.boot == process.boot_id() else ", and the node has rebooted since"
    return (
        f"the reset of {record.device} by {record.by} was interrupted in the step {record.step or 'drain'}, as musterd"
        f" ended{rebooted}: `muster node reset {record.card}` starts it again, `muster node undrain` returns the node"
        " to service as it is"
    )
