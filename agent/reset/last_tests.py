"""What must be in order after the reset of cards before the node takes jobs again: the node's checks of them, and the
active tests."""

from collections.abc import Collection

from muster.agent.node import active_look, condition_rules
from muster.agent.node.conditions import READING
from muster.agent.node.health import ACTIVE_ITEMS
from muster.agent.reset.reset_report import ResetParts, ResetRequest, StepFailed, StepSkipped
from muster.probes.checks.card_checks import CardsWanted
from muster.probes.checks.codes import EXPLANATIONS
from muster.probes.checks.result import CheckResult, Code, Status


async def check(parts: ResetParts, cards: Collection[int], by: str) -> str:
    """Looks at the cards, and ends the conditions that are over. Raises StepFailed."""
    health, by = parts.health, f"the reset by {by}"
    mine = [c for c in health.conditions if c.card in cards and not c.injected]
    for code, device in {(c.code, c.device) for c in mine if EXPLANATIONS[Code(c.code)].reset_ends}:
        await health.clear(code, device, by)
    results = await health.look((), cards)
    mine = [c for c in health.conditions if c.card in cards and not c.injected and c.item not in ACTIVE_ITEMS]
    mine = [c for c in mine if c.clears == READING]
    still = {c.key: condition_rules.still(c.item, c.device, Code(c.code), results) for c in mine}
    # Otherwise it lasts for some looks more: a reading that comes and goes was not reset.
    for code, device in {(c.code, c.device) for c in mine if still[c.key] is False}:
        await health.clear(code, device, by)
    _refuse_grave(results, cards)
    if grave := [c for c in mine if still[c.key] is None and c.status is Status.CRITICAL]:
        which = "; ".join(f"{c.device}: {c.code}" for c in grave[:4])
        raise StepFailed(f"the checks cannot tell whether this is over: {which}")
    return "the checks find nothing grave about it"


async def active(parts: ResetParts, cards: Collection[int], request: ResetRequest) -> str:
    """Tests the cards. Raises StepFailed, and StepSkipped where they could not be tested."""
    from muster.probes.active.card_limits import BadLimits  # only here: most daemons never test a card

    config = parts.config()
    if not config.reset.active or request.skip_active:
        raise StepSkipped("switched off")
    wanted = CardsWanted(indices=tuple(cards))
    try:
        results, trouble = await active_look.look(parts.driver, wanted, config.active, parts.root.active_figures)
    except (OSError, BadLimits) as error:
        raise StepSkipped(f"limits_file of [active]: {error}") from None
    await parts.health.report(results, request.by)
    _refuse_grave(results, cards)
    if untested := [r for r in results if r.code is Code.ACTIVE_NOT_RUN]:
        raise StepSkipped(untested[0].reason)
    measured = "; ".join(f"{r.item} {r.observed}" for r in results[:3])
    return f"{measured}; {trouble}" if trouble else measured


def refuse_left(parts: ResetParts, cards: Collection[int]) -> None:
    """Raises StepFailed for a CRITICAL condition of the cards that is not over: they get no job."""
    left = [c for c in parts.health.conditions if c.card in cards and not c.injected and c.status is Status.CRITICAL]
    if left:
        raise StepFailed("still CRITICAL: " + "; ".join(f"{c.device}: {c.code}: {c.reason}" for c in left[:4]))


def _refuse_grave(results: Collection[CheckResult], cards: Collection[int]) -> None:
    grave = [r for r in results if r.status is Status.CRITICAL and r.card in cards]
    if grave:
        raise StepFailed("; ".join(f"{r.device}: {r.code}: {r.reason}" for r in grave[:4]))
