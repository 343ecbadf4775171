"""Do the cards that a job will get exist, and do they answer?

The check queries each card now (probes/cards/driver.py): a reading from a minute ago may be of a card that has dropped
off the bus since.
"""

import time
from collections.abc import Iterable, Mapping
from functools import partial

import anyio

from muster.probes.cards.accelerator import ALARMS, ASCEND, SLOT, Trouble
from muster.probes.cards.driver import Driver, Sick, View, What
from muster.probes.checks.result import Action, CheckResult, Code, Status
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.number_lists import numbers

ITEM = "gpu-check"
#: Findings that say nothing against a card.
_UNCERTAIN = frozenset({Code.CARDS_NOT_TOLD, Code.PROBE_TIMED_OUT})
#: What a trouble is, where it is not one card's or the driver's answer.
_CODES = {
    Trouble.NO_LIBRARY: Code.CARDS_LIBRARY_MISSING,
    Trouble.NOT_TOLD: Code.CARDS_NOT_TOLD,
    Trouble.HANG: Code.PROBE_TIMED_OUT,
}
_NPU_HEALTH = {0: "OK"} | {number: f"{word} alarm" for number, word in ALARMS.items()}
#: The worst health with which an Ascend card still works.
_USABLE = 1


@dataclass(frozen=True, slots=True)
class CardAnswer:
    """Of one card. `text` tells which piece of hardware it is where `code` is CARDS_OK, else what is wrong."""

    code: Code
    text: str


@dataclass(frozen=True, slots=True)
class CardsWanted:
    """Just the cards `indices`, or `count` of the existing ones, or `every` one; of `kind` ("" for whatever the
    host has)."""

    indices: tuple[int, ...] = ()
    count: int = 0
    kind: str = ""
    every: bool = False

    def __len__(self) -> int:
        return len(self.indices) or self.count

    def __bool__(self) -> bool:
        return self.every or len(self) > 0


async def check(wanted: CardsWanted, driver: Driver, *, deadline_s: float) -> CheckResult:
    """Compares what a job wants with the cards that the host has, and asks each of these.

    A card without an answer after `deadline_s` makes the result UNKNOWN, unless another one is certainly not fit.
    """
    if not wanted:
        return _not_wanted(driver.view)
    end = anyio.current_time() + deadline_s
    view = await driver.ready(deadline_s=deadline_s)
    if not driver.opened and not driver.closed_for:
        return _unlisted("cards", CardAnswer(Code.PROBE_TIMED_OUT, f"no driver was found within {deadline_s:g} s"))
    if view.kind == SLOT and view.driver is not None:
        return _unlisted("cards", _trouble(view.driver, of_driver=True))
    kind = wanted.kind or (view.kind if view.cards or view.driver else "")
    if kind == SLOT:
        reason = f"{len(wanted) or len(view.cards)} slots of a host without cards: there is nothing to check"
        return CheckResult(ITEM, Status.NOT_APPLICABLE, Code.CARDS_ARE_SLOTS, reason)
    there = sorted(view.cards) if view.kind == kind else []
    if wanted.count > len(there) or not there:
        if view.driver is not None and view.kind == kind:
            return _unlisted(kind, _trouble(view.driver, of_driver=True))
        return _not_wanted(view) if wanted.every else _too_few(len(wanted), there)
    indices = wanted.indices or tuple(there if wanted.every else there[: wanted.count])
    present = [index for index in indices if index in there]
    before, began = view, time.time()
    left = end - anyio.current_time()
    # Side by side: a card that hangs in one takes all the time, which the others have for the other as well.
    async with anyio.create_task_group() as asking:
        for what in (What.READINGS, What.HEALTH) if kind == ASCEND else (What.READINGS,):
            asking.start_soon(partial(driver.refresh, what, present, deadline_s=left))
    view = driver.view
    answers = {index: _answer(index, view, before, began, deadline_s) for index in present}
    gone = CardAnswer(Code.CARDS_MISSING, f"does not exist; this host shows {_name(there)}")
    return judge(kind, {index: answers.get(index, gone) for index in indices})


def _answer(index: int, view: View, before: View, began: float, deadline_s: float) -> CardAnswer:
    """Of a card that was asked at `began`, with what was known before."""
    if view.driver is not None:
        return _trouble(view.driver, of_driver=True)
    sick, reading, card = view.sick.get(index), view.readings.get(index), view.cards.get(index)
    health = view.health.get(index)
    answered = reading is not None and (view.kind != ASCEND or health is not None)
    if answered and reading is not None and reading.at >= began and card is not None:
        name = card.uuid or card.bus_id or card.model or "answers"
        if health is None or health.value.npu_health is None:
            # Of others the health is not asked for here: what the last look said may be over.
            if view.kind == ASCEND and health is not None and (unknown := health.value.unknown):
                return CardAnswer(Code.CARDS_NOT_TOLD, f"its health is unknown: {unknown}")
            return CardAnswer(Code.CARDS_OK, name)
        state = f"health {health.value.npu_health} ({_NPU_HEALTH.get(health.value.npu_health, 'unknown')})"
        if health.value.npu_health > _USABLE:
            return CardAnswer(Code.CARDS_UNHEALTHY, f"{state}: `npu-smi info` shows more")
        return CardAnswer(Code.CARDS_OK, f"{name}, {state}")
    if sick is not None and sick.trouble is not Trouble.HANG:
        return _trouble(sick, of_driver=False)
    earlier = before.sick.get(index)
    if sick is not None and earlier is not None and earlier.trouble is Trouble.HANG:
        hangs = f"an earlier call still hangs after {max(0.0, time.time() - sick.since):.0f} s"
        return CardAnswer(Code.PROBE_TIMED_OUT, hangs)
    return CardAnswer(Code.PROBE_TIMED_OUT, f"no answer within {deadline_s:g} s")


def _trouble(sick: Sick, *, of_driver: bool) -> CardAnswer:
    otherwise = Code.CARDS_DRIVER_FAILED if of_driver else Code.CARDS_NO_ANSWER
    return CardAnswer(_CODES.get(sick.trouble, otherwise), sick.text)


def judge(kind: str, answers: Mapping[int, CardAnswer]) -> CheckResult:
    """The rule itself, for what was found out about each card that is wanted."""
    threshold = "every card exists and answers"
    good = {index: answer.text for index, answer in answers.items() if answer.code is Code.CARDS_OK}
    observed = f"{kind}: {len(good)} of {_count(answers)} {'answers' if len(answers) == 1 else 'answer'}"
    if good:
        observed += f" ({', '.join(f'{index} {text}' for index, text in good.items())})"
    # Reports cards with the same trouble together: without a driver these are all cards.
    troubles: dict[CardAnswer, list[int]] = {}
    for index, answer in answers.items():
        if answer.code is not Code.CARDS_OK:
            troubles.setdefault(answer, []).append(index)
    if not troubles:
        return CheckResult(
            ITEM, Status.OK, Code.CARDS_OK, f"{_name(answers)}: present and answering", observed, threshold
        )
    # The certain before the uncertain, then by number.
    order = sorted(troubles, key=lambda answer: (answer.code in _UNCERTAIN, troubles[answer][0]))
    reason = "; ".join(f"{_name(troubles[answer])}: {answer.text}" for answer in order)
    if order[0].code in _UNCERTAIN:
        return CheckResult(ITEM, Status.UNKNOWN, order[0].code, reason, observed, threshold, Action.INVESTIGATE)
    return CheckResult(ITEM, Status.CRITICAL, order[0].code, reason, observed, threshold, Action.DRAIN)


def _not_wanted(view: View) -> CheckResult:
    found = _count(view.cards)
    reason = f"no cards are wanted ({found} found)"
    return CheckResult(ITEM, Status.NOT_APPLICABLE, Code.CARDS_NOT_WANTED, reason, f"{len(view.cards)} cards")


def _unlisted(kind: str, answer: CardAnswer) -> CheckResult:
    """Which cards exist is unknown: the result says why."""
    sure = answer.code not in _UNCERTAIN
    return CheckResult(
        ITEM,
        Status.CRITICAL if sure else Status.UNKNOWN,
        answer.code,
        answer.text,
        f"{kind}: not listed",
        "every card exists and answers",
        Action.DRAIN if sure else Action.INVESTIGATE,
    )


def _too_few(wanted: int, there: list[int]) -> CheckResult:
    code = Code.CARDS_TOO_FEW if there else Code.CARDS_NONE_FOUND
    reason = f"{_count(there) if there else 'no cards'} found, {wanted} wanted"
    remedy = "check that the driver is loaded, and that the container has the devices"
    return CheckResult(
        ITEM, Status.CRITICAL, code, f"{reason}: {remedy}", _count(there), f"cards >= {wanted}", Action.DRAIN
    )


def _count(cards: Iterable[int]) -> str:
    count = len(list(cards))
    return f"{count} card{'' if count == 1 else 's'}"


def _name(cards: Iterable[int]) -> str:
    """card 3, or cards 0-2,5."""
    text = numbers(cards)
    return f"card{'' if text.isdigit() else 's'} {text}"
