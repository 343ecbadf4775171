"""How conditions clear, and which jobs they refuse: the tables of codes and checks, as the daemon uses them."""

from collections.abc import Collection, Sequence

from muster.agent.errors import InvalidRequest
from muster.agent.node.conditions import OPERATOR, Condition, ConditionRule
from muster.probes.checks import codes
from muster.probes.checks.result import CheckResult, Code, Status
from muster.probes.node import node_checks
from muster.supervisors.model.spec import Violation

#: Items whose findings do not matter to a job without cards.
_OF_CARDS = frozenset(check.item for check in node_checks.catalogue(node_checks.NodeSettings()) if check.of_cards)


def explained(code: str) -> tuple[Code, codes.Explanation]:
    """A code and its meaning. Raises InvalidRequest, which names the nearest code."""
    try:
        return codes.explain(code)
    except codes.UnknownCode as error:
        raise InvalidRequest([Violation("code", str(error))]) from None


def rule(code: str) -> ConditionRule:
    """How conditions of this code clear; if only another version knew the code, an operator clears them."""
    try:
        meaning = codes.EXPLANATIONS[Code(code)]
    except (KeyError, ValueError):
        return ConditionRule(OPERATOR)
    return ConditionRule(str(meaning.clears), meaning.age_s, meaning.condition, meaning.steady)


def of_presence(code: str) -> bool:
    """Whether it is about which cards exist, not about cards that a job can get."""
    try:
        return codes.EXPLANATIONS[Code(code)].presence
    except (KeyError, ValueError):
        return False


def refuses(condition: Condition, cards: Collection[int], wants_cards: bool) -> bool:
    """Whether it refuses a job that would get these cards, or (`wants_cards`) cards that are not chosen yet.

    A condition of a card counts for a job that gets it, of all cards for a job that wants any, of the node for every
    job.
    """
    if condition.status is not Status.CRITICAL or condition.elsewhere:
        return False
    if condition.card is not None:
        return condition.card in cards
    if of_presence(condition.code):
        return False
    return wants_cards or condition.item not in _OF_CARDS


def doubtful(condition: Condition) -> bool:
    """Whether a job should preferably get a card without this condition."""
    return not condition.elsewhere and not of_presence(condition.code)


def still(item: str, device: str, code: Code, results: Sequence[CheckResult]) -> bool | None:
    """Whether a look finds a condition again; None if it cannot tell.

    A card is well again when a look at this very card says so. If the card is not in the list, because its driver hangs
    or was not asked yet, nothing is known.
    """
    if device.startswith("card ") and not any(r.item == item and r.device == device for r in results):
        return None
    return node_checks.still(item, device, code, results)
