"""Are the cards that a job is to get there, and do they answer?

Device nodes tell which cards a host or container shows; they outlive a card that dropped off the bus and a driver that
was unloaded. So the driver is asked for each card as well, in threads that may hang.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import anyio

from probes import ascend, nvidia, watched
from probes.backend import Answer
from probes.result import Action, CheckResult, Code, Status

ITEM = "gpu-check"
#: The kind of what an operator lets jobs hold on a host without cards.
SLOT = "slot"

Ask = Callable[[Iterable[int], dict[int, Answer]], Awaitable[None]]
_BACKENDS: dict[str, Ask] = {"nvidia": nvidia.ask, "ascend": ascend.ask}
#: Findings that say nothing against a card.
_UNCERTAIN = frozenset({Code.CARDS_NOT_TOLD, Code.PROBE_TIMED_OUT})


@dataclass(frozen=True, slots=True)
class Wanted:
    """Just the cards `indices`, or `count` many of those that are there; of `kind` ("" for whatever the host has)."""

    indices: tuple[int, ...] = ()
    count: int = 0
    kind: str = ""

    def __len__(self) -> int:
        return len(self.indices) or self.count


async def check(wanted: Wanted, found: Mapping[int, str], *, deadline_s: float) -> CheckResult:
    """Compares what a job wants with what the host shows (`found`: kind by index), and asks each card's driver.

    A card without an answer after `deadline_s` makes the result UNKNOWN, unless another one is certainly not fit.
    """
    if not wanted:
        reason = f"no cards are wanted ({_count(found)} found)"
        return CheckResult(ITEM, Status.NOT_APPLICABLE, Code.CARDS_NOT_WANTED, reason, f"{len(found)} cards")
    kind = wanted.kind or next(iter(found.values()), "")
    if kind == SLOT:
        reason = f"{len(wanted)} slots of a host without cards: there is nothing to ask"
        return CheckResult(ITEM, Status.NOT_APPLICABLE, Code.CARDS_ARE_SLOTS, reason)
    there = sorted(index for index, its in found.items() if its == kind)
    if wanted.count > len(there) or not there:
        return _too_few(len(wanted), there)
    indices = wanted.indices or tuple(there[: wanted.count])
    present = [index for index in indices if index in there]
    answers: dict[int, Answer] = {}
    with anyio.move_on_after(deadline_s):
        try:
            await _BACKENDS[kind](present, answers)
        except watched.StillHanging as error:
            answers = dict.fromkeys(present, Answer(Code.PROBE_TIMED_OUT, str(error)))
        except OSError as error:
            answers = dict.fromkeys(present, Answer(Code.CARDS_NOT_TOLD, f"could not be asked: {error}"))
    late = Answer(Code.PROBE_TIMED_OUT, f"no answer within {deadline_s:g} s")
    gone = Answer(Code.CARDS_MISSING, f"not there; this host shows {_name(there)}")
    return judge(kind, {index: answers.get(index, late) if index in present else gone for index in indices})


def judge(kind: str, answers: Mapping[int, Answer]) -> CheckResult:
    """The rule itself, for what was found out about each card that is wanted."""
    threshold = "every card is there and answers"
    good = {index: answer.text for index, answer in answers.items() if answer.code is Code.CARDS_OK}
    observed = f"{kind}: {len(good)} of {_count(answers)} {'answers' if len(answers) == 1 else 'answer'}"
    if good:
        observed += f" ({', '.join(f'{index} {text}' for index, text in good.items())})"
    # Cards with the same trouble are told of together: without a driver that is all of them.
    troubles: dict[Answer, list[int]] = {}
    for index, answer in answers.items():
        if answer.code is not Code.CARDS_OK:
            troubles.setdefault(answer, []).append(index)
    if not troubles:
        return CheckResult(
            ITEM, Status.OK, Code.CARDS_OK, f"{_name(answers)}: there, and answering", observed, threshold
        )
    # The certain before the uncertain, then by number.
    order = sorted(troubles, key=lambda answer: (answer.code in _UNCERTAIN, troubles[answer][0]))
    reason = "; ".join(f"{_name(troubles[answer])}: {answer.text}" for answer in order)
    if order[0].code in _UNCERTAIN:
        return CheckResult(ITEM, Status.UNKNOWN, order[0].code, reason, observed, threshold, Action.INVESTIGATE)
    return CheckResult(ITEM, Status.CRITICAL, order[0].code, reason, observed, threshold, Action.DRAIN)


def _too_few(wanted: int, there: list[int]) -> CheckResult:
    code = Code.CARDS_TOO_FEW if there else Code.CARDS_NONE_FOUND
    reason = f"{_count(there) if there else 'no cards'} found, {wanted} wanted"
    remedy = "is the driver loaded, are the devices in the container?"
    return CheckResult(
        ITEM, Status.CRITICAL, code, f"{reason}: {remedy}", _count(there), f"cards >= {wanted}", Action.DRAIN
    )


def _count(cards: Iterable[int]) -> str:
    count = len(list(cards))
    return f"{count} card{'' if count == 1 else 's'}"


def _name(cards: Iterable[int]) -> str:
    """card 3, or cards 0-2,5."""
    runs: list[list[int]] = []
    for index in sorted(cards):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"card{'' if text.isdigit() else 's'} {text}"
