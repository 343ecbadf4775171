"""Is the driver loaded, and does it show all cards?"""

from collections.abc import Callable

from muster.probes.calls import watched
from muster.probes.cards.accelerator import ASCEND, NVIDIA, SLOT, Card, Trouble
from muster.probes.cards.driver import Sick, What
from muster.probes.checks.codes import EXPLANATIONS
from muster.probes.checks.result import CheckResult, Code, Status
from muster.probes.kernel.known_names import device_number
from muster.probes.node.kernel_files import listed
from muster.probes.node.node_check import (
    About,
    CardFacts,
    Look,
    NodeCheck,
    NodeRule,
    Roots,
    about,
    counted,
    for_kinds,
    untold,
)

DRIVER = NodeCheck(
    "driver",
    "the cards' driver is loaded and answers",
    15.0,
    (
        Code.DRIVER_NOT_LOADED,
        Code.DRIVER_MISMATCH,
        Code.DRIVER_LIBRARY_MISSING,
        Code.DRIVER_FAILED,
        Code.DRIVER_HANG,
    ),
    of_cards=True,
)
GPU_LOST = NodeCheck(
    "gpu-lost",
    "no NVIDIA card is lost, and their number is right",
    15.0,
    (Code.GPU_LOST, Code.GPU_COUNT, Code.GPU_NO_ANSWER),
    of_cards=True,
)
NPU_LOST = NodeCheck(
    "npu-lost",
    "no Ascend card is lost, and their number is right",
    15.0,
    (Code.NPU_LOST, Code.NPU_COUNT, Code.NPU_NO_ANSWER),
    of_cards=True,
)
RECOVERY = NodeCheck(
    "recovery",
    "the driver does not ask for a reset of a card, or a reboot",
    30.0,
    (Code.GPU_RESET_REQUIRED, Code.GPU_REBOOT_REQUIRED, Code.GPU_DRAIN_REQUIRED, Code.GPU_IMEX_REQUIRED),
    of_cards=True,
)

_DRIVER_CODES = {
    Trouble.NO_LIBRARY: Code.DRIVER_LIBRARY_MISSING,
    Trouble.NO_DRIVER: Code.DRIVER_NOT_LOADED,
    Trouble.MISMATCH: Code.DRIVER_MISMATCH,
    Trouble.HANG: Code.DRIVER_HANG,
    Trouble.NOT_TOLD: Code.NODE_NOT_TOLD,
}
_CODES = {
    NVIDIA: (Code.GPU_LOST, Code.GPU_COUNT, Code.GPU_NO_ANSWER),
    ASCEND: (Code.NPU_LOST, Code.NPU_COUNT, Code.NPU_NO_ANSWER),
}


def _driver_applies(look: Look) -> str:
    return "there are no cards" if look.view.kind == SLOT and look.view.driver is None else ""


async def driver(look: Look) -> list[CheckResult]:
    """The driver as a whole, and each card whose calls hang."""
    view, say = look.view, About(DRIVER.item)
    if view.driver is not None:
        return [_in_trouble(say, view.driver, look)]
    results = []
    for index, sick in sorted(view.sick.items()):
        if sick.trouble is Trouble.HANG and (look.only is None or index in look.only):
            one = About(DRIVER.item, f"card {index}", index)
            results.append(one.found(Code.DRIVER_HANG, sick.text, sick.trouble, "each call returns"))
    if view.deaf_s:
        reason = (
            f"the wait for its events has not returned for {view.deaf_s:.0f} s: muster gets no events (Xids) from it"
        )
        results.append(say.found(Code.DRIVER_HANG, reason, "events", "each call returns"))
    version = f"{view.kind} driver {view.version}".strip()
    others = [
        facts for facts in look.cards(NVIDIA, ASCEND) if facts.sick is None or facts.sick.trouble is not Trouble.HANG
    ]
    return (
        results
        + [about(DRIVER.item, facts).ok("its driver answers", version) for facts in others]
        + [say.ok("the driver answers", version)]
    )


def _in_trouble(say: About, sick: Sick, look: Look) -> CheckResult:
    """CRITICAL where there are cards, were, or should be: a library alone may be nothing but a part of an image."""
    code = _DRIVER_CODES.get(sick.trouble, Code.DRIVER_FAILED)
    reason, status = sick.text, None
    expected = look.view.cards or look.settings.expected_cards or look.memory.inventory.cards
    if not expected and EXPLANATIONS[code].status is Status.CRITICAL:
        reason, status = f"{reason}; no card was found", Status.WARN
    return say.found(code, reason, sick.trouble, "the driver answers", status=status)


async def lost(look: Look, kind: str, check: NodeCheck) -> list[CheckResult]:
    """Cards that the driver calls lost, or that fail, and how many there are."""
    lost_code, count_code, no_answer = _CODES[kind]
    if look.view.driver is not None:
        # What the driver does not tell is not gone.
        return [About(check.item).not_told("the driver as a whole does not answer")]
    present = look.cards(kind)
    results = [_one(about(check.item, facts), facts, look, lost_code, no_answer, check) for facts in present]
    # Those that are missing are the inventory's; a node of theirs may still be there.
    gone = len(look.memory.inventory.compare(look.view.whole.values(), kind, {}).missing)
    nodes = await watched.call("list the device nodes", lambda: _nodes(look.roots, kind))
    return [*results, count(look, kind, About(check.item), count_code, nodes - gone)]


def _one(say: About, facts: CardFacts, look: Look, lost: Code, no_answer: Code, check: NodeCheck) -> CheckResult:
    sick, name = facts.sick, _name(facts.card)
    failing = sick is not None and sick.trouble is Trouble.FAILED
    streak = look.memory.streaks.note((check.item, facts.index), failing, look.now, check.interval_s / 2)
    if sick is None:
        return say.ok("it exists and answers", name)
    if sick.trouble in (Trouble.LOST, Trouble.ABSENT):
        return say.found(lost, sick.text, sick.trouble, "each card exists", evidence=name)
    if failing:
        wanted = look.settings.looks_in_a_row
        if streak.looks >= wanted:
            return say.found(
                no_answer, sick.text, f"{streak.looks} looks in a row", f"fewer than {wanted}", evidence=name
            )
        return say.found(Code.NODE_PENDING, f"{sick.text} (look {streak.looks} of {wanted} in a row)", name)
    # A hang is `driver`'s, a reset `recovery`'s; what is not told says nothing.
    return say.not_told(sick.text)


def count(look: Look, kind: str, say: About, code: Code, nodes: int) -> CheckResult:
    """Judges how many cards the driver has; `nodes` is the number of device nodes."""
    have, wanted = sum(1 for card in look.view.whole.values() if card.kind == kind), look.settings.expected_cards
    observed, threshold = counted(have, "card"), counted(wanted, "card") if wanted else "as many as there are nodes"
    if wanted and have != wanted:
        reason = f"the driver has {observed}, {wanted} {'is' if wanted == 1 else 'are'} expected"
        return say.found(code, reason, observed, threshold)
    if nodes > have:
        reason = f"there are {nodes} device nodes, and the driver has {observed}"
        return say.found(code, reason, observed, threshold, status=Status.WARN)
    return say.ok(f"the driver has {observed}", observed, threshold)


def _nodes(roots: Roots, kind: str) -> int:
    return sum(1 for node in listed(roots.dev) if device_number(kind, node.name) is not None)


async def recovery(look: Look) -> list[CheckResult]:
    """NVML's field 230 (nvmlDeviceGpuRecoveryAction_t of nvml.h 13.5), and its code 16."""
    results = []
    for facts in look.cards(NVIDIA):
        say = about(RECOVERY.item, facts)
        wish = facts.health.recovery_action if facts.health is not None else None
        if facts.sick is not None:
            if facts.sick.trouble is Trouble.RESET_REQUIRED:
                results.append(
                    say.found(Code.GPU_RESET_REQUIRED, facts.sick.text, facts.sick.trouble, "no recovery asked for")
                )
            else:
                results.append(say.not_told(_silent(facts.sick)))
        elif facts.health is None:
            results.append(say.not_told("its readings are not known yet"))
        elif missing := untold(say, facts.health, ("recovery_action",)):
            results += missing
        elif wish is None:
            results.append(say.off("its driver does not report it"))
        else:
            results.append(_recovery(say, wish))
    return results


def _recovery(say: About, wish: int) -> CheckResult:
    threshold = "recovery action 0 (none)"
    match wish:
        case 0:
            return say.ok("the driver asks for no recovery", "recovery action 0 (none)", threshold)
        case 1:
            return say.found(
                Code.GPU_RESET_REQUIRED, "the driver asks for a reset of the card", "1 (GPU reset)", threshold
            )
        case 2:
            return say.found(Code.GPU_REBOOT_REQUIRED, "the driver asks for a reboot", "2 (node reboot)", threshold)
        case 3:
            return say.found(Code.GPU_DRAIN_REQUIRED, "the driver asks to end P2P work", "3 (drain P2P)", threshold)
        case 4:
            reason = "the driver asks to end the work and reset the card"
            return say.found(Code.GPU_RESET_REQUIRED, reason, "4 (drain and reset)", threshold)
        case 5:
            reason = "the driver asks to recover the IMEX domain"
            return say.found(Code.GPU_IMEX_REQUIRED, reason, "5 (recover IMEX domain)", threshold)
        case 6:
            reason = "the driver asks for a reset of the card's PCI Express bus"
            return say.found(Code.GPU_RESET_REQUIRED, reason, "6 (bus reset)", threshold)
        case 7:
            reason = "the driver asks for a reboot of the whole system"
            return say.found(Code.GPU_REBOOT_REQUIRED, reason, "7 (system reboot)", threshold)
        case _:
            return say.not_told(f"recovery action {wish} is unknown to muster")


def _silent(sick: Sick) -> str:
    return f"the card does not answer ({sick.trouble})"


def _name(card: Card) -> str:
    return " ".join(word for word in (card.model, card.uuid, card.bus_id) if word)


async def _gpus_lost(look: Look) -> list[CheckResult]:
    return await lost(look, NVIDIA, GPU_LOST)


async def _npus_lost(look: Look) -> list[CheckResult]:
    return await lost(look, ASCEND, NPU_LOST)


def _lost_applies(kind: str) -> Callable[[Look], str]:
    """Also if the last card disappeared."""

    def applies(look: Look) -> str:
        there = any(card.kind == kind for card in look.view.cards.values())
        return "" if there or look.memory.inventory.of(kind) else f"there are no {kind} cards"

    return applies


RULES = (
    NodeRule(DRIVER, driver, _driver_applies, frozenset({What.HEALTH})),
    NodeRule(GPU_LOST, _gpus_lost, _lost_applies(NVIDIA), frozenset({What.HEALTH})),
    NodeRule(NPU_LOST, _npus_lost, _lost_applies(ASCEND), frozenset({What.HEALTH})),
    NodeRule(RECOVERY, recovery, for_kinds(NVIDIA), frozenset({What.HEALTH})),
)
