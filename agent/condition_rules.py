"""How conditions clear: the table of codes and what a look says, as the latches of the daemon use them."""

from collections.abc import Sequence

from agent.conditions import OPERATOR, Rule
from agent.errors import InvalidRequest
from probes import codes, node_checks
from probes.result import CheckResult, Code
from supervisors.spec import Violation


def explained(code: str) -> tuple[Code, codes.Explanation]:
    """A code with what it means. Raises InvalidRequest that names the nearest."""
    try:
        return codes.explain(code)
    except codes.UnknownCode as error:
        raise InvalidRequest([Violation("code", str(error))]) from None


def rule(code: str) -> Rule:
    """How conditions of this code clear; of one that only another version knew, by an operator."""
    try:
        meaning = codes.EXPLANATIONS[Code(code)]
    except (KeyError, ValueError):
        return Rule(OPERATOR)
    return Rule(str(meaning.clears), meaning.age_s, meaning.condition)


def still(item: str, device: str, code: Code, results: Sequence[CheckResult]) -> bool | None:
    """Whether a look finds a condition again; None where it does not tell.

    A card is well again when a look at this very card says so: of one that is not in the list, because its driver hangs
    or was not asked yet, nothing is known.
    """
    if device.startswith("card ") and not any(r.item == item and r.device == device for r in results):
        return None
    return node_checks.still(item, device, code, results)
