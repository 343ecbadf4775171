"""Resets that nobody asked for: which card is to be reset for a code of the settings, and what each other waits for."""

import anyio
import structlog

from muster.agent import threads
from muster.agent.errors import CannotReset
from muster.agent.jobs.cards.leases import Lease
from muster.agent.node.conditions import Condition
from muster.agent.reset import reset_file, reset_target
from muster.agent.reset.reset_file import ResetState
from muster.agent.reset.reset_report import ResetParts, ResetRequest
from muster.agent.text import span
from muster.probes.cards.accelerator import Card
from muster.probes.cards.reset import device_holders
from muster.probes.cards.reset.reset_group import ResetPlan
from muster.probes.cards.view import View
from muster.probes.kernel.backoff import Backoff
from muster.probes.kernel.dataclass import dataclass

#: Seconds before a reset that could not begin is tried again: after the first try, and at most.
_AGAIN_S, _AGAIN_MOST_S = 60.0, 3600.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OwnReset:
    """One that may begin."""

    view: View
    card: Card
    plan: ResetPlan
    request: ResetRequest


class _Failed:
    """Tries of one card that did not come as far as the vendor's program."""

    def __init__(self) -> None:
        self._pauses = Backoff(_AGAIN_S, _AGAIN_MOST_S)
        self.why, self.until, self.pause = "", 0.0, 0.0

    def note(self, why: str) -> None:
        self.why, self.pause = why, self._pauses.next()
        self.until = anyio.current_time() + self.pause


class OwnResets:
    """Belongs to one event loop."""

    def __init__(self, parts: ResetParts) -> None:
        self._parts = parts
        #: By UUID.
        self._failed: dict[str, _Failed] = {}
        #: Sentences about cards with such a code that are not reset now.
        self.put_off: list[str] = []

    def note(self, uuid: str, why: str) -> None:
        """A reset has ended; `why` it could not begin, "" where it did."""
        if why:
            self._failed.setdefault(uuid, _Failed()).note(why)
        else:
            self._failed.pop(uuid, None)

    def nothing(self) -> None:
        """For as long as another reset or a drain stands in the way, which says so itself."""
        self.put_off = []

    async def choose(self, state: ResetState) -> OwnReset | None:
        """The first card that a condition of the settings names, if it may be reset now."""
        codes = self._parts.config().reset.codes
        wanted = [it for it in self._parts.health.conditions if it.code in codes and not it.injected]
        self._forget(state, wanted)
        told, chosen = list[str](), None
        for condition in wanted:
            card = None if condition.card is None else self._parts.driver.view.cards.get(condition.card)
            if card is None:
                continue
            found = await self._judge(state, card, condition.code)
            if isinstance(found, OwnReset):
                chosen = found
                break
            if found not in told:
                told.append(found)
        for text in told:
            if text not in self.put_off:
                _log.warning("reset.not_by_itself", text=text)
        self.put_off = told
        return chosen

    def _forget(self, state: ResetState, wanted: list[Condition]) -> None:
        """What was noted of cards that need no reset any more."""
        cards = self._parts.driver.view.cards
        if any(it.card is not None and it.card not in cards for it in wanted):
            return  # it may be one of these
        uuids = {cards[it.card].uuid for it in wanted if it.card is not None}
        state.given_up = {uuid: why for uuid, why in state.given_up.items() if uuid in uuids}
        self._failed = {uuid: failed for uuid, failed in self._failed.items() if uuid in uuids}

    async def _judge(self, state: ResetState, card: Card, code: str) -> OwnReset | str:
        """The reset, or a sentence: what stands in its way."""
        view, most = self._parts.driver.view, self._parts.config().reset.most_a_day
        no = f"musterd does not reset a card for {code} by itself"
        hand = f"`muster node reset {card.index}` does"
        if why := state.given_up.get(card.uuid):
            return f"{no}: {why}; {hand}"
        if reset_file.today(state, card.uuid) >= most:
            return f"{no}: card {card.index} was reset {most} times within 24 hours (most_a_day in [reset]); {hand}"
        plan = await reset_target.planned(self._parts.driver, view, card)
        request = ResetRequest(by=f"musterd, for {code} (codes in [reset])", code=code)
        try:
            reset_target.refuse(card, plan, request)
        except CannotReset as error:
            return f"{no}: {error}"
        later = f"musterd resets card {card.index} for {code}"
        held = [it for it in self._parts.registry.leasing.all() if it.card.index in plan.together and self._holds(it)]
        if held:
            whose = ", ".join(f"job {it.job_id} (card {it.card.index})" for it in held[:4])
            return f"{later} as soon as no job holds it, or a card that goes with it: {whose}"
        if users := await self._users(view, plan):
            return f"{later} as soon as no other process uses it, or a card that goes with it: {users}"
        failed = self._failed.get(card.uuid)
        if failed is not None and anyio.current_time() < failed.until:
            return f"{later} again {span(failed.pause)} after the last try, which failed: {failed.why}"
        return OwnReset(view, card, plan, request)

    def _holds(self, lease: Lease) -> bool:
        """Not by memory that an ended job left without a process: a reset is what ends that."""
        if not (lease.held_by and self._parts.registry.has_ended(lease.job_id)):
            return bool(lease.job_id)
        seen = self._parts.driver.view.holders.get(lease.card.index)
        return seen is None or bool(seen.value)

    async def _users(self, view: View, plan: ResetPlan) -> str:
        """Processes that the driver lists and that live, as far as that can be said."""
        lists = [seen.value for index in plan.together if (seen := view.holders.get(index))]
        return "; ".join(list(await threads.run(device_holders.listed, lists))[:4])
