"""Resets of cards: one at a time for the whole node, since the driver is closed meanwhile.

A reset goes on without its client. A daemon that ends in the middle leaves `reset.json`, by which the next one puts
back what it can, keeps the node drained and says how to go on.
"""

import time
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from muster.agent import threads
from muster.agent.errors import ApiError, ResetUnderWay
from muster.agent.host import state_file
from muster.agent.reset import reset_file, reset_target
from muster.agent.reset.reset_file import ResetEvent, ResetRecord, ResetState
from muster.agent.reset.reset_report import ResetParts, ResetProgress, ResetRequest, ResetStep, StepStatus
from muster.agent.text import local
from muster.probes.calls.heartbeat import tick
from muster.probes.cards.accelerator import Card
from muster.probes.cards.driver import View
from muster.probes.kernel import process

if TYPE_CHECKING:  # nearly no daemon ever resets a card
    from muster.agent.reset.own_resets import OwnResets
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
        #: The driver is kept closed until that program has ended.
        self._holds_closed = False
        #: The tests of a drain have been started.
        self._tests = False
        self._own: OwnResets | None = None

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator."""
        found = [self._damage] if self._damage else []
        found += [_unfinished(self._left)] if self._left is not None else []
        return [*found, *(self._own.put_off if self._own is not None else ())]

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
        plan = await reset_target.planned(self._parts.driver, view, card)
        reset_target.refuse(card, plan, request)
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
        if self._left is not None and self._left.code:  # an operator has decided; the card's condition is still there
            how = self._left.failure or f"the reset of {self._left.device} was interrupted"
            self._state.given_up[self._left.uuid] = f"{how}, and the node was undrained"
        await self._close()

    async def _close(self) -> None:
        """Nothing is left of the last reset."""
        self._left, self._state.current, self._state.drain = None, None, ""
        await self._write()

    # --- life ---------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads what an earlier daemon left. Raises StartupError."""
        self._state, self._damage = await threads.run(reset_file.read, self._path)
        self._left, ended = self._state.current, self._state.ended
        if ended is not None and ended.at > self._parts.events.last_told(reset_file.KIND):
            self._parts.events.tell(ended.event())
        record, driver = self._left, self._parts.driver
        if record is not None and not driver.closed_for and await threads.run(reset_file.at_work, record):
            # Any look at the cards would open it, and an open driver blocks the reset.
            why = f"the program of the reset of {record.device} by an earlier musterd still runs"
            self._holds_closed = True
            await driver.let_go(why, 0.0)

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
            if self._holds_closed:
                self._parts.driver.closed_for, self._holds_closed = "", False

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
                if self._parts.config().reset.codes or self._own is not None:
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
            await self._close()
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
            code=request.code,
        )
        self._state.given_up.pop(card.uuid, None)
        cards, named = (tuple(view.cards[index] for index in some) for some in (plan.together, plan.command))
        self._run = ResetRun(self._parts, self._state, record, cards, named, request)
        self._left = None
        text = f"it is being reset by {request.by}"
        self._parts.registry.leasing.reserve(dict.fromkeys(plan.together, text))
        self._group.start_soon(self._carry_out, self._run, name=f"reset of card {card.index}")

    async def _carry_out(self, run: "ResetRun") -> None:
        try:
            await run.run()
            if self._own is not None:
                self._own.note(run.record.uuid, run.stopped_early)
        finally:
            self._run, self._left = None, self._state.current
            self._parts.registry.leasing.reserve({})

    async def _start_by_itself(self) -> None:
        """What a condition of the settings asks for, if nothing stands in the way."""
        if self._own is None:
            from muster.agent.reset.own_resets import OwnResets  # only where they are wanted

            self._own = OwnResets(self._parts)
        if self._run is not None or self._left is not None or self._parts.health.drain is not None:
            self._own.nothing()
            return
        found = await self._own.choose(self._state)
        if found is not None and self._run is None:
            self._begin(found.view, found.card, found.plan, found.request)

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
