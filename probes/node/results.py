"""What several results mean together: whether a condition still holds, and the order in which people read them."""

from collections.abc import Sequence
from dataclasses import replace

from muster.probes.checks.codes import EXPLANATIONS, Clears
from muster.probes.checks.result import CheckResult, Code, Status

#: Results that only say that nothing is wrong, or that the state is unknown.
_QUIET = (Code.NODE_OK, Code.NODE_NOT_APPLICABLE, Code.NODE_NOT_TOLD)
#: So many different reasons of several devices are shown.
_TOLD = 3


def still(item: str, device: str, code: Code, results: Sequence[CheckResult]) -> bool | None:
    """The state of a condition after a look: True: found again; False: over; None: unknown.

    It is unknown for an item that was not looked at or is UNKNOWN or not sure yet, and for a condition that no look
    clears (`Clears` other than READING).
    """
    mine = [r for r in results if r.item == item]
    here = [r for r in mine if r.device == device]
    if any(r.code is code for r in here):
        return True
    meaning = EXPLANATIONS[code]
    if meaning.clears is not Clears.READING:
        return None
    if here and meaning.lasting and all(r.code is Code.NODE_NOT_APPLICABLE for r in here):
        return None  # the instances of a card in MIG mode hide its rows, and mend none
    if here:
        return None if any(_unsure(r) for r in here) else False
    whole = [r for r in mine if not r.device]
    if any(r.code is Code.NODE_NOT_APPLICABLE for r in whole) and len(mine) == len(whole):
        return False  # the checked thing no longer exists
    if device.startswith("card ") or not mine or any(_unsure(r) for r in whole):
        return None
    return False  # the mount or port was removed


def _unsure(result: CheckResult) -> bool:
    return result.status is Status.UNKNOWN or result.code is Code.NODE_PENDING


def folded(results: Sequence[CheckResult]) -> list[CheckResult]:
    """For people: of an item that found nothing on several devices one result remains; findings stay as they are.

    Where a device has a finding, that the rest is in order goes without saying.
    """
    lines: list[CheckResult] = []
    for item in dict.fromkeys(r.item for r in results):
        mine = [r for r in results if r.item == item]
        loud = [r for r in mine if r.code not in _QUIET]
        for code in _QUIET:
            quiet = [r for r in mine if r.code is code]
            devices = [r for r in quiet if r.device]
            if not quiet or (loud and code is not Code.NODE_NOT_TOLD):
                continue
            loud.append(quiet[0] if len(quiet) == 1 else _one(devices or quiet))
        lines += loud
    return lines


def _one(results: Sequence[CheckResult]) -> CheckResult:
    first = results[0]
    if len(results) == 1:
        return first
    texts = list(dict.fromkeys(r.reason for r in results))
    seconds = max(r.seconds for r in results)
    devices = list(dict.fromkeys(r.device for r in results))
    if len(devices) == 1:  # several readings of one device
        return replace(first, reason="; ".join(texts), observed="", seconds=seconds)
    what = "cards" if all(r.card is not None for r in results) else "of them"
    several = "; ".join(texts[:_TOLD]) + ("; and other reasons" if len(texts) > _TOLD else "")
    said = "in order" if len(texts) > 1 and first.code is Code.NODE_OK else several
    return replace(first, reason=f"{len(devices)} {what}: {said}", device="", card=None, observed="", seconds=seconds)
