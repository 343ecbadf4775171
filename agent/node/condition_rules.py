"""How conditions clear, and whom they keep away: the tables of codes and checks, as the daemon uses them."""

from collections.abc import Collection, Sequence

from muster.agent.errors import InvalidRequest
from muster.agent.node.conditions import OPERATOR, Condition, ConditionRule
from muster.probes.checks import codes
from muster.probes.checks.result import CheckResult, Code, Status
from muster.probes.node import node_checks
from muster.supervisors.model.spec import Violation

#: Items whose findings are nothing to a job without cards.
_OF_CARDS = frozenset(check.item for check in node_checks.catalogue(node_checks.NodeSettings()) if check.of_cards)


def explained(code: str) -> tuple[Code, codes.Explanation]:
    """A code with what it means. Raises InvalidRequest that names the nearest."""
    try:
        return codes.explain(code)
    except codes.UnknownCode as error:
        raise InvalidRequest([Violation("code", str(error))]) from None


def rule(code: str) -> ConditionRule:
    """How conditions of this code clear; of one that only another version knew, by an operator."""
    try:
        meaning = codes.EXPLANATIONS[Code(code)]
    except (KeyError, ValueError):
        return ConditionRule(OPERATOR)
    return ConditionRule(str(meaning.clears), meaning.age_s, meaning.condition, meaning.steady)


def of_presence(code: str) -> bool:
    """Whether it tells which cards there are, and nothing of those that a job can get."""
    try:
        return codes.EXPLANATIONS[Code(code)].presence
    except (KeyError, ValueError):
        return False


def refuses(condition: Condition, cards: Collection[int], wants_cards: bool) -> bool:
    """Whether it keeps a job away that is to get these cards, or (`wants_cards`) some that are not chosen yet.

    One of a card counts for who gets it, one of all cards for who wants any, one of the node for everybody.
    """
    if condition.status is not Status.CRITICAL or condition.elsewhere:
        return False
    if condition.card is not None:
        return condition.card in cards
    if of_presence(condition.code):
        return False
    return wants_cards or condition.item not in _OF_CARDS


def doubtful(condition: Condition) -> bool:
    """Whether a job should rather get another card than the one that this condition is about."""
    return not condition.elsewhere and not of_presence(condition.code)


def still(item: str, device: str, code: Code, results: Sequence[CheckResult]) -> bool | None:
    """Whether a look finds a condition again; None where it does not tell.

    A card is well again when a look at this very card says so: of one that is not in the list, because its driver hangs
    or was not asked yet, nothing is known.
    """
    if device.startswith("card ") and not any(r.item == item and r.device == device for r in results):
        return None
    return node_checks.still(item, device, code, results)
