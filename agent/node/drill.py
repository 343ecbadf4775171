"""Conditions for a drill: as a check would find them, and marked as injected everywhere."""

from collections.abc import Collection, Iterable, Sequence

from muster.agent.errors import InvalidRequest
from muster.agent.node.condition_rules import explained
from muster.agent.node.conditions import AGE, Condition, shown
from muster.probes.checks import precheck
from muster.probes.node.node_checks import NodeCheck
from muster.supervisors.model.spec import Violation

#: Limit of the reason, in characters.
MAX_REASON = 300


def drill(
    code: str, card: int | None, reason: str, by: str, at: float, cards: Collection[int], catalogue: Iterable[NodeCheck]
) -> Condition:
    """The condition, of a card or (None) of the node; `cards`: those that the node has; `at` in seconds since the
    epoch; an empty reason becomes a sentence with the meaning of the code. Raises InvalidRequest."""
    known, meaning = explained(code)
    wrong = []
    if not meaning.condition:
        wrong.append(
            Violation("code", f"{known}: is not the code of a condition: use the code of a possible condition")
        )
    if card is not None and card not in cards:
        have = f"cards {', '.join(str(i) for i in sorted(cards))}" if cards else "no cards"
        wrong.append(Violation("card", f"{card}: this node has {have}"))
    if len(reason) > MAX_REASON:
        wrong.append(Violation("reason", f"has {len(reason)} characters: at most {MAX_REASON} are allowed"))
    if wrong:
        raise InvalidRequest(wrong)
    finders: list[tuple[str, Sequence[str]]] = [(check.item, check.codes) for check in catalogue]
    finders += [(entry.item, entry.codes) for entry in precheck.catalogue()]
    return Condition(
        item=next((item for item, found in finders if known in found), ""),
        device="" if card is None else f"card {card}",
        status=meaning.status,
        code=str(known),
        reason=shown(reason.strip()) or f"a drill of {by}: {shown(meaning.what.rstrip('.'))}",
        since=at,
        seen_at=at,
        action=meaning.action,
        clears=AGE,
        injected=True,
        card=card,
    )
