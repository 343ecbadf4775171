"""The reset of a card, step by step.

Before the vendor's program begins, a step that fails puts everything back. From then on the state of the card is
unknown until all tests have passed: a failure leaves the node drained and says how to go on. The record of what is
under way is on the disk before each step.
"""

import contextlib
import time
from collections.abc import Awaitable, Callable

import anyio
import structlog

from muster.agent import text, threads
from muster.agent.errors import ApiError
from muster.agent.host import state_file
from muster.agent.jobs.cards.leases import Lease
from muster.agent.reset import card_return, last_tests, reset_file
from muster.agent.reset.other_users import OtherUsers
from muster.agent.reset.reset_file import ResetEvent, ResetRecord, ResetState
from muster.agent.reset.reset_report import (
    ResetParts,
    ResetProgress,
    ResetRequest,
    ResetStep,
    StepFailed,
    StepSkipped,
    StepStatus,
)
from muster.probes.cards.accelerator import ASCEND, Card
from muster.probes.cards.driver import What
from muster.probes.cards.reset import reset_program
from muster.probes.kernel import process
from muster.probes.kernel.number_lists import numbers

#: In seconds: between two looks at jobs; for calls in the driver to return; between two looks at a card that starts.
LOOK_S, LET_GO_S, RETURN_LOOK_S = 1.0, 15.0, 1.0

_log = structlog.get_logger(__name__)


class ResetRun:
    """One reset. `run` may be cancelled at the end of the daemon; the record then says where it was."""

    def __init__(
        self,
        parts: ResetParts,
        state: ResetState,
        record: ResetRecord,
        cards: tuple[Card, ...],
        named: tuple[Card, ...],
        request: ResetRequest,
    ) -> None:
        """`cards`: those that the reset takes along, the card itself among them; `named`: those of them that the
        program must name. `state` is written to the disk here; from now on `record` is its current one."""
        self.record = record
        self.progress = ResetProgress()
        self._parts = parts
        self._state = state
        self._cards, self._named = cards, named
        self._users = OtherUsers(force=request.force)
        self._request = request
        self._path = parts.root.reset
        self._cancelled_by = ""
        #: What an earlier reset left, which counts again if nothing is changed: its record, the reason of its drain.
        self._before, self._reason_before = state.current, ""
        state.current, state.ended = record, None
        #: The driver is closed; the program was started; numbers of the cards after the reset.
        self._closed = self._begun = self._absent = self._given_up = False
        self._now: list[int] = list(record.together)
        #: Why it has ended before anything was changed.
        self.stopped_early = ""

    @property
    def step(self) -> ResetStep:
        """The present one."""
        return ResetStep(self.record.step or ResetStep.DRAIN)

    def cancel(self, by: str) -> bool:
        """Ends it, if it still waits for jobs. False: it is too late."""
        if self._closed or self.step not in (ResetStep.DRAIN, ResetStep.JOBS):
            return False
        self._cancelled_by = by
        return True

    async def run(self) -> None:
        """All steps. Raises nothing: it reports what goes wrong."""
        try:
            await self._do(ResetStep.DRAIN, self._drain)
            await self._do(ResetStep.JOBS, self._wait_for_jobs)
            await self._do(ResetStep.CLOSE, self._close)
            await self._do(ResetStep.PERSISTENCE_OFF, self._persistence_off)
            await self._do(ResetStep.HOLDERS, lambda: self._users.wait(self._cards))
            await self._do(ResetStep.RESET, self._reset)
            await self._do(ResetStep.OPEN, self._open)
            await self._do(ResetStep.PERSISTENCE_ON, self._persistence_on)
            await self._do(ResetStep.CHECK, lambda: last_tests.check(self._parts, self._now, self._request.by))
            await self._do(ResetStep.ACTIVE, lambda: last_tests.active(self._parts, self._now, self._request))
            await self._do(ResetStep.UNDRAIN, self._undrain)
        except StepFailed as failure:
            await self._give_up(failure)
        else:
            drain = self._parts.health.drain
            after = "the node takes jobs again" if drain is None else f"the node stays drained: {drain.reason}"
            left = self._before if self._other_is_unfinished() else None
            await self._end(StepStatus.COMPLETED, f"the reset of {self._names()} is complete: {after}", left)

    # --- before ------------------------------------------------------------------------------------------------------

    async def _drain(self) -> str:
        drain = self._parts.health.drain
        if drain is not None and drain.reason != self._state.drain:
            raise StepSkipped(f"{drain.by} drained the node before, and it stays drained: {drain.reason}")
        self._reason_before = drain.reason if drain is not None else ""
        self._state.drain = f"reset of {self._names()}"
        await self._save()
        await self._parts.health.set_drain(self._state.drain, self._request.by)
        return "the node takes no new jobs"

    async def _wait_for_jobs(self) -> str:
        leasing = self._parts.registry.leasing
        end, told, stopped = anyio.current_time() + self._request.wait_s, "", set[str]()
        if self._request.stop_jobs and not self._request.wait_s:
            end = float("inf")
        while True:
            if self._cancelled_by:
                raise StepFailed(f"{self._cancelled_by} cancelled it")
            held, left = self._held()
            if leasing.settled.is_set() and not held:
                ended = "its jobs have ended" if told else "no job holds it"
                return "; ".join([ended, *left])
            who = "; ".join(one.held_by or f"job {job} holds card {one.card.index}" for job, one in held.items())
            who = who or "musterd is looking for jobs of an earlier musterd"
            if who != told:
                self.progress.tell(self.step, StepStatus.WAITING, told := who)
            if self._request.stop_jobs:
                for job in held.keys() - stopped:
                    stopped.add(job)
                    await self._stop(job)
            if anyio.current_time() >= end:
                after = f" after {text.span(self._request.wait_s)}" if self._request.wait_s else ""
                how = "wait for its end (--wait), or have it stopped (--stop)"
                if stopped:
                    how = f"its stop did not end it: `muster show {min(stopped)}` says what is left of it"
                raise StepFailed(f"{who}{after}: {how}")
            with anyio.move_on_after(LOOK_S):
                await leasing.wait_change()

    def _held(self) -> tuple[dict[str, Lease], list[str]]:
        """Who holds the cards, by job, and what is left on cards of jobs that have ended. The latter is no reason to
        wait: a reset is the remedy for what no process holds, and who else is left is a holder as others are."""
        registry = self._parts.registry
        held, left = dict[str, Lease](), list[str]()
        for lease in registry.leasing.all():
            if not lease.job_id or not self._mine(lease.card):
                continue
            if lease.held_by and registry.has_ended(lease.job_id):
                left.append(lease.held_by)
            else:
                held[lease.job_id] = lease
        return held, left

    def _mine(self, card: Card) -> bool:
        return card.index in self.record.together or card.parent in self.record.together

    async def _stop(self, job_id: str) -> None:
        registry, why = self._parts.registry, f"{self.record.device} is to be reset"
        try:
            entry = await registry.get(job_id)
            if entry.damaged:
                await registry.stop_damaged(entry, None, self._request.by, why)
            else:
                await registry.stop(job_id, None, self._request.by, why)
        except ApiError as error:
            self.progress.tell(self.step, StepStatus.WAITING, f"cannot stop job {job_id} now: {error}")

    async def _close(self) -> str:
        driver = self._parts.driver
        # Soon after another reset, or the daemon's start, the view knows nothing of the modes yet.
        self.record.persistent = card_return.persistent(await driver.refresh(What.HEALTH), self._cards)
        await self._users.ask(driver, self.record.together)
        self._closed = True
        if not await driver.let_go(f"musterd has closed the driver for the reset of {self._names()}", LET_GO_S):
            self.record.persistent = []  # nothing was turned off yet
            raise StepFailed(
                "a call to the driver does not return, so musterd holds it open: restart musterd (jobs continue), then"
                " reset the card again; if that fails, reboot"
            )
        return "musterd holds no card open"

    async def _persistence_off(self) -> str:
        if not self.record.persistent:
            raise StepSkipped("persistence mode is off")
        ended = await reset_program.set_persistence(self.record.persistent, False, self._note_program)
        self.record.program = None
        if ended.trouble:
            raise StepSkipped(f"{ended.trouble}; the driver may refuse the reset for it")
        return "persistence mode is off until the reset is over"

    # --- the reset, and after it -------------------------------------------------------------------------------------

    async def _reset(self) -> str:
        self._begun = True
        if self._request.code:
            reset_file.note_past(self._state, self.record.uuid, time.time())  # written as soon as the program runs
        limit = self._parts.config().reset.program_s
        ended = await reset_program.reset(self._named, limit, self._note_program)
        if not ended.lives:
            self.record.program = None
        if ended.trouble:
            reboot = ": only a reboot ends it" if ended.lives else ""
            raise StepFailed(f"{ended.trouble}{reboot}")
        return f"{reset_program.name(self._cards[0].kind)} reset {self._names()}"

    def _note_program(self, pid: int) -> None:
        """In the thread of the program: on the disk as soon as it runs."""
        stat = process.read_stat(pid)
        self.record.program = (pid, stat.start if stat is not None else 0)
        try:
            state_file.write(self._path, self._state)
        except OSError as error:
            _log.warning("reset.unwritten", path=str(self._path), error=str(error))

    async def _open(self) -> str:
        settings, driver = self._parts.config().reset, self._parts.driver
        if self._cards[0].kind == ASCEND:
            await anyio.sleep(settings.settle_s)
        end = anyio.current_time() + settings.return_s
        await driver.take_again()
        self._closed = False
        while True:
            found = [card_return.number(driver.view, card) for card in self._cards]
            self._now = [number for number in found if number is not None]
            for what in What:  # a failure of before the reset counts until such a call is answered
                await driver.refresh(what, self._now)
            missing = {card.index: card_return.why_absent(driver.view, card) for card in self._cards}
            if not any(missing.values()):
                return "every card of the reset answers"
            if anyio.current_time() >= end:
                self._absent, why = bool(missing[self.record.card]), next(filter(None, missing.values()))
                raise StepFailed(f"{why}, {text.span(settings.return_s)} after the reset: reboot, or power-cycle it")
            await anyio.sleep(RETURN_LOOK_S)
            await driver.open()

    async def _persistence_on(self) -> str:
        if not self.record.persistent:
            raise StepSkipped("persistence mode was off")
        if self.record.program is not None:
            raise StepSkipped(f"pid {self.record.program[0]} is still in the driver")
        ended = await reset_program.set_persistence(self.record.persistent, True)
        names, self.record.persistent = ",".join(self.record.persistent), []
        if ended.trouble:
            raise StepSkipped(f"{ended.trouble}: `nvidia-smi -pm 1 -i {names}` turns it on")
        return "persistence mode is on again"

    async def _undrain(self) -> str:
        last_tests.refuse_left(self._parts, self._now)
        drain = self._parts.health.drain
        if drain is None or drain.reason != self._state.drain:
            raise StepSkipped("muster did not drain the node" if drain is not None else "the node is not drained")
        if self._before is not None and self._other_is_unfinished():
            self._state.drain = self._reason_before
            await self._drain_quietly(self._reason_before)
            raise StepSkipped(f"{self._before.device} is not in order: {self._reason_before}")
        await self._parts.health.undrain(self._request.by)
        self._state.drain = ""
        return "the node takes jobs"

    def _other_is_unfinished(self) -> bool:
        """Whether the reset of a card that this one does not take along failed before."""
        return self._before is not None and self._before.card not in self.record.together

    # --- telling, recording, going back -------------------------------------------------------------------------------

    async def _do(self, step: ResetStep, work: Callable[[], Awaitable[str]]) -> None:
        """Raises StepFailed."""
        self.record.step = step
        self.progress.tell(step, StepStatus.BEGUN, "")
        try:
            await self._save()
            self._tell(StepStatus.DONE, await work())
        except StepSkipped as skipped:
            self._tell(StepStatus.SKIPPED, str(skipped))
        except Exception as error:
            if not isinstance(error, StepFailed | ApiError | OSError):
                _log.exception("reset.failed", step=step)  # a defect must not end the daemon, nor leave the node as is
            why = str(error) if isinstance(error, StepFailed | ApiError | OSError) else f"a defect: {error!r}"
            self._tell(StepStatus.FAILED, why)
            raise StepFailed(why) from None

    async def _save(self) -> None:
        """Raises StepFailed until the vendor's program begins; from then on, and on the way back, the work goes on
        without."""
        try:
            await threads.run(state_file.write, self._path, self._state)
        except OSError as error:
            if not (self._begun or self._given_up):
                why = f"cannot write {self._path}: {error.strerror or error}"
                raise StepFailed(f"{why}: make room, then reset the card again") from None
            _log.warning("reset.unwritten", path=str(self._path), error=str(error))

    async def _give_up(self, failure: StepFailed) -> None:
        """Puts back what was changed; whether the node takes jobs depends on how far it came."""
        whole, self._given_up = f"the reset of {self._names()} failed: {failure}", True
        if self._begun:
            self.record.failure = whole
        else:
            self.stopped_early = str(failure)
        failed_in = self.record.step
        if self.record.persistent:
            with contextlib.suppress(StepFailed):  # it was told
                await self._do(ResetStep.PERSISTENCE_ON, self._persistence_on)
        self.record.step = failed_in
        if self._closed:
            await self._parts.driver.take_again()
        how = await (self._stay_drained() if self._begun else self._go_back())
        after = self.record if self._begun else self._before
        await self._end(StepStatus.GIVEN_UP, f"{whole}: {how}", after)

    async def _stay_drained(self) -> str:
        """Says how to go on."""
        drain = self._parts.health.drain
        if drain is None or drain.reason == self._state.drain:
            self._state.drain = self.record.failure[:1000]
            await self._drain_quietly(self._state.drain)
            stays = "the node stays drained"
        else:  # an operator's drain, which is not for a reset to lift
            self._state.drain = ""
            stays = f"the node stays drained by {drain.by} ({drain.reason})"
        return f"{stays}: {reset_file.remedy(self.record, self._absent)}"

    async def _go_back(self) -> str:
        """The node is as it was before, unless somebody drained it meanwhile. Says how to go on."""
        drain = self._parts.health.drain
        if drain is not None and drain.reason == self._state.drain:
            self._state.drain = self._reason_before
            await self._drain_quietly(self._reason_before)
        else:
            self._state.drain = ""
        drain = self._parts.health.drain
        now = "is in service as before" if drain is None else f"stays drained ({drain.reason})"
        return f"nothing was changed, and the node {now}: `muster node reset {self.record.card}` tries again"

    async def _drain_quietly(self, reason: str) -> None:
        """It holds even if it could not be stored."""
        try:
            if reason:
                await self._parts.health.set_drain(reason, self._request.by)
            else:
                await self._parts.health.undrain(self._request.by)
        except ApiError as error:
            _log.warning("reset.drain_unwritten", error=str(error))

    async def _end(self, status: StepStatus, message: str, left: ResetRecord | None) -> None:
        """`left`: what is to be remembered as unfinished."""
        self._state.current, self._state.ended = left, self._event(status, message)
        try:
            await threads.run(state_file.write, self._path, self._state)
        except OSError as error:
            _log.warning("reset.unwritten", path=str(self._path), error=str(error))
        self._tell(status, message, self._state.ended)

    def _tell(self, status: StepStatus, message: str, said: ResetEvent | None = None) -> None:
        """To who follows, as an event, and in the daemon's log. `said`: the event, where it is written down."""
        said = said or self._event(status, message)
        (_log.warning if status is StepStatus.FAILED else _log.info)("node.reset", text=message, **said.attributes)
        self._parts.events.tell(said.event())
        self.progress.tell(self.step, status, message)

    def _event(self, status: StepStatus, message: str) -> ResetEvent:
        """About the present step, or about the end."""
        facts = {
            "card": str(self.record.card),
            "uuid": self.record.uuid,
            "step": str(self.step),
            "status": str(status),
            "by": self._request.by,
        }
        whole = message if status.last else f"reset of {self._names()}: {self.step}: {status}: {message}"
        return ResetEvent(time.time(), whole, facts)

    def _names(self) -> str:
        several = len(self.record.together) > 1
        return f"cards {numbers(self.record.together)}" if several else self.record.device
