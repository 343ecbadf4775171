"""Active checks of cards: each test in a process of its own, and what its figures say of the card.

A wrong result is never fine. A slow or missing one may be chance, or somebody else's work on the card: the test is
repeated once, and where a process is on the card it says nothing. A card is compared with its model's limit, with the
other cards of the node and with its own past, whichever it falls below first.
"""

import json
import os
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import anyio

from muster.probes.active import card_program
from muster.probes.active.active_settings import ITEM, TESTS, ActiveSettings
from muster.probes.active.card_limits import limits_of
from muster.probes.active.cuda import MISMATCH, NO_DEVICE, NOT_READY, OUT_OF_MEMORY
from muster.probes.calls import watched
from muster.probes.calls.script import Script
from muster.probes.cards.accelerator import NVIDIA, Card
from muster.probes.checks.codes import EXPLANATIONS
from muster.probes.checks.precheck import CheckEntry
from muster.probes.checks.result import CheckResult, Code, one_line
from muster.probes.kernel.dataclass import dataclass

#: Results of its own past that a card needs before it is compared with them; cards of a model, before with each other.
LEAST_PAST, LEAST_CARDS = 3, 3
#: How long a killed test may take to be gone, in seconds: a process that waits for a sick card takes for ever.
_LINGER_S = 5.0
#: How much was tested is no figure that can be low.
TESTED = "tested_gb"
#: One card after the other: the cards share the way to the host's memory.
_ALONE = frozenset({"transfer"})
_KEPT = 64 << 10
#: What the driver needs of the environment, and nothing that could be a secret.
_PASSED = ("PATH", "LD_LIBRARY_PATH", "LANG")
#: No fault of the card: there is no driver for it here, or its memory is somebody else's.
_NO_VERDICT = frozenset({0, NO_DEVICE, OUT_OF_MEMORY})
_WHOLE_NODE = {
    NOT_READY: "is the fabric manager running?",
    MISMATCH: "the kernel module is of another version than the libraries: reload it, or reboot",
}

#: Who is on a card now, by pid.
Holders = Callable[[int], Awaitable[Sequence[int]]]
#: Figures of earlier runs by a card's UUID and what was measured, the newest last.
Past = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one test of one card came to: figures, or why there are none. `code` is the CUresult that it failed with."""

    figures: Mapping[str, float]
    wrong: int = 0
    trouble: str = ""
    code: int = 0
    late: bool = False


def catalogue() -> list[CheckEntry]:
    """All active checks, in the order in which results are given."""
    codes = tuple(code for code in Code if code.startswith("ACTIVE_"))
    return [CheckEntry(f"{ITEM} {test}", looks_at, codes) for test, looks_at in TESTS.items()]


async def check(
    cards: Mapping[int, Card], holders: Holders, settings: ActiveSettings, past: Past
) -> tuple[list[CheckResult], dict[str, dict[str, float]]]:
    """Tests these cards; nobody else should use them meanwhile. Results in the order of the tests and cards, and the
    figures of the cards that were right, by UUID. Raises OSError and BadLimits for the settings' file of limits."""
    if not cards:
        return [_no_cards()], {}
    limits = {index: limits_of(card.model, settings.limits_file) for index, card in cards.items()}
    results: list[CheckResult] = []
    figures: dict[str, dict[str, float]] = {}
    for test in TESTS:
        measured = await _measure(test, cards, holders, settings)
        for index, card in cards.items():
            slow = partial(_slow, card, measured[index], limits[index], past, settings)
            twins = [measured[i] for i, other in cards.items() if other.model == card.model and i != index]
            if measured[index].figures and slow(twins):
                again = await _measured(test, card, holders, settings)
                measured[index] = again if again.figures else measured[index]
                slow = partial(_slow, card, measured[index], limits[index], past, settings)
            results.append(_judge(test, card, measured[index], slow(twins)))
            if measured[index].figures and not measured[index].wrong:
                figures.setdefault(card.uuid, {}).update(measured[index].figures)
    return results, figures


async def _measure(
    test: str, cards: Mapping[int, Card], holders: Holders, settings: ActiveSettings
) -> dict[int, Measured]:
    found: dict[int, Measured] = {}

    async def one(card: Card) -> None:
        found[card.index] = await _measured(test, card, holders, settings)
        if found[card.index].late:
            found[card.index] = await _measured(test, card, holders, settings)

    if test in _ALONE:
        for card in cards.values():
            await one(card)
    else:
        async with anyio.create_task_group() as tasks:
            for card in cards.values():
                tasks.start_soon(one, card)
    return found


async def _measured(test: str, card: Card, holders: Holders, settings: ActiveSettings) -> Measured:
    """Runs a test once, unless somebody uses the card."""
    if card.kind != NVIDIA:
        return Measured({}, trouble=f"there is no active test of {card.kind} cards")
    if card.mig:
        return Measured({}, trouble="it is split into MIG instances")
    if pids := await holders(card.index):
        return Measured({}, trouble=f"in use by pid {', '.join(map(str, pids))}")
    env = {name: os.environ[name] for name in _PASSED if name in os.environ}
    program = ("-I", "-m", card_program.__name__, test, card.bus_id, f"{settings.seconds:g}")
    script = Script(sys.executable, env, program, kept=_KEPT)
    what = f"test {test} of card {card.index}"
    try:
        with anyio.move_on_after(settings.deadline_s) as limit:
            ended = await watched.call(what, script.run, on_cancel=script.kill, linger_s=_LINGER_S)
    except (OSError, watched.StillHanging) as error:
        return Measured({}, trouble=str(error))
    if limit.cancelled_caught:
        return Measured({}, trouble=f"no end after {settings.deadline_s:g} s", late=True)
    return _said(ended.stdout, ended.stderr, ended.returncode)


def _said(stdout: bytes, stderr: bytes, code: int) -> Measured:
    lines = stdout.decode(errors="replace").splitlines()
    try:
        said: dict[str, Any] = json.loads(lines[-1])
        if failed := said.get("failed"):
            return Measured({}, trouble=str(failed), code=int(said["code"]))
        return Measured({name: float(value) for name, value in said["measured"].items()}, int(said["wrong"]))
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        last = (stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        return Measured({}, trouble=f"the test ended with {code}: {last}")


def _slow(
    card: Card,
    measured: Measured,
    limits: Mapping[str, float],
    past: Past,
    settings: ActiveSettings,
    twins: Sequence[Measured],
) -> str:
    """What is below what was expected, and below what; empty where all is well."""
    for name, value in measured.figures.items():
        others = [twin.figures[name] for twin in twins if name in twin.figures]
        earlier = past.get(card.uuid, {}).get(name, ())
        floors = [(limits[name], f"the limit of a {card.model}")] if name in limits else []
        if name != TESTED:
            if len(others) + 1 >= LEAST_CARDS:
                middle = statistics.median([*others, value])
                floors.append((settings.slow_ratio * middle, f"{settings.slow_ratio:g} of the node's median"))
            if len(earlier) >= LEAST_PAST:
                middle = statistics.median(earlier)
                floors.append((settings.slow_ratio * middle, f"{settings.slow_ratio:g} of its own median before"))
        for floor, what in floors:
            if value < floor:
                return f"{name} {value:.4g} is below {floor:.4g}, {what}"
    return ""


def _no_cards() -> CheckResult:
    code = Code.NODE_NOT_APPLICABLE
    return CheckResult(ITEM, EXPLANATIONS[code].status, code, "there are no cards to test")


def _judge(test: str, card: Card, measured: Measured, slow: str) -> CheckResult:
    observed = ", ".join(f"{name} {value:.4g}" for name, value in measured.figures.items())
    if measured.wrong:
        code, reason = Code.ACTIVE_WRONG_RESULT, f"{measured.wrong} results of the {test} test are wrong"
    elif measured.late:
        code, reason = Code.ACTIVE_NO_END, f"the {test} test has twice not ended: {measured.trouble}"
    elif measured.trouble:
        failed = measured.code not in _NO_VERDICT
        code = Code.ACTIVE_FAILED if failed else Code.ACTIVE_NOT_RUN
        reason = f"the {test} test {'failed' if failed else 'was not run'}: {measured.trouble}"
        if measured.code in _WHOLE_NODE:
            reason += f": {_WHOLE_NODE[measured.code]}"
    elif slow:
        code, reason = Code.ACTIVE_SLOW, f"slow, twice: {slow}"
    else:
        code, reason = Code.ACTIVE_OK, f"right and fast enough: {observed}"
    told = EXPLANATIONS[code]
    return CheckResult(
        f"{ITEM} {test}",
        told.status,
        code,
        one_line(reason),
        observed,
        action=told.action,
        device=f"card {card.index}",
        card=card.index,
    )
