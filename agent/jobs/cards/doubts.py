"""How far a card can be trusted: its status, and which cards a job gets only if there are no better ones."""

from collections.abc import Iterable, Mapping

from muster.agent.node.condition_rules import doubtful
from muster.agent.node.conditions import Condition
from muster.probes.cards.driver import View
from muster.probes.checks.result import GRAVITY, Status
from muster.probes.kernel.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a card is not as good as others: the status, and a sentence that does not name the card."""

    status: Status
    text: str

    @property
    def grade(self) -> int:
        """The higher, the later a card with it is chosen; 0: healthy. A card that does not answer may not work at all;
        a card with a warning works. No job gets a CRITICAL card, unless [health] policy allows jobs all the same."""
        return GRAVITY.index(self.status)


def status(conditions: Iterable[Condition], view: View, index: int) -> Status:
    """The gravest of a card's conditions. A card that does not answer, or does not tell its health, is not OK even
    before a check finds that out."""
    mine = view.owners([index])
    statuses = {condition.status for condition in conditions if condition.card in mine}
    if view.driver is not None or mine & view.sick.keys() or any(_unread(view, one) for one in mine):
        statuses.add(Status.UNKNOWN)
    order = (Status.CRITICAL, Status.UNKNOWN, Status.WARN)
    return next((status for status in order if status in statuses), Status.OK)


def doubts(conditions: Iterable[Condition], view: View) -> Mapping[int, Doubt]:
    """The gravest doubt about each card that has one."""
    found: dict[int, Doubt] = {}
    for condition in conditions:
        if condition.card is not None and doubtful(condition):
            _note(found, condition.card, Doubt(condition.status, f"{condition.code}: {condition.reason}"))
    for index in view.cards:
        sick = view.driver or view.sick.get(index)
        if sick is not None:
            _note(found, index, Doubt(Status.UNKNOWN, f"it does not answer ({sick.trouble}): {sick.text}"))
        elif why := _unread(view, index):
            _note(found, index, Doubt(Status.UNKNOWN, f"its health is unknown: {why}"))
    return view.shared(found)


def _unread(view: View, index: int) -> str:
    """Why a card that answers did not tell its health; empty where it did, or has no such thing."""
    seen = view.health.get(index)
    return seen.value.unknown if seen is not None else ""


def _note(found: dict[int, Doubt], index: int, doubt: Doubt) -> None:
    before = found.get(index)
    if before is None or before.grade < doubt.grade:
        found[index] = doubt
