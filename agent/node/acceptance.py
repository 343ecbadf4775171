"""Selects the findings about the node's cards that an operator accepts."""

from collections.abc import Callable, Collection, Iterable, Sequence

from muster.agent.errors import InvalidRequest, NothingToAccept
from muster.agent.node.condition_rules import of_presence
from muster.agent.node.conditions import Condition
from muster.probes.checks.result import CheckResult, Code
from muster.supervisors.model.spec import Violation

#: A finding: its code and its device.
Pair = tuple[Code, str]


def pending(conditions: Iterable[Condition], results: Iterable[CheckResult]) -> dict[Pair, str]:
    """The findings that can be accepted, with their reasons: latched ones, and those of the last look."""
    found = {(result.code, result.device): result.reason for result in results if of_presence(str(result.code))}
    for condition in conditions:
        if of_presence(condition.code) and not condition.injected:
            found.setdefault((Code(condition.code), condition.device), condition.reason)
    return found


def chosen(found: Collection[Pair], cards: Sequence[str], names_of: Callable[[str], Collection[str]]) -> list[Pair]:
    """The findings about these cards; without cards all findings. `names_of` returns the names of a finding's device.

    Raises NothingToAccept for a card without a finding, InvalidRequest for a number that several have.
    """
    if not cards:
        return list(found)
    wanted: dict[Pair, None] = {}
    for card in cards:
        name = card.strip()
        mine = [pair for pair in found if name in names_of(pair[1]) or name.lower() in names_of(pair[1])]
        devices = sorted({device for _, device in mine})
        if not mine:
            raise NothingToAccept(card, sorted({device or "the node" for _, device in found}))
        if len(devices) > 1:
            text = f"{card!r}: is ambiguous: name {' or '.join(devices)}"
            raise InvalidRequest([Violation("cards", text)])
        wanted |= dict.fromkeys(mine)
    return list(wanted)
