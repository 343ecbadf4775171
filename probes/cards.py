"""Which cards the host shows, and whether they are as many as a job wants."""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from probes.result import Action, CheckResult, Code, Status

ITEM = "gpu-check"
#: Device nodes of the cards; control nodes (nvidiactl, davinci_manager) have no number right after the name.
_NODES = {"nvidia": re.compile(r"nvidia(\d+)"), "ascend": re.compile(r"davinci(\d+)")}


@dataclass(frozen=True, slots=True)
class Cards:
    """Kind ("nvidia", "ascend", or "" for none) and indices of the cards of a host, ascending."""

    kind: str = ""
    indices: tuple[int, ...] = ()


def present(dev: str = "/dev") -> Cards:
    """The cards whose device nodes are in `dev`: no driver is called, so that a sick one cannot hang this.

    A host with both kinds is taken by the kind of which it has more. Raises OSError where `dev` cannot be listed.
    """
    found = [
        Cards(
            kind,
            tuple(
                sorted(int(m[1]) for name in os.listdir(dev) if (m := pattern.fullmatch(name)) and _device(dev, name))
            ),
        )
        for kind, pattern in _NODES.items()
    ]
    most = max(found, key=lambda cards: len(cards.indices))
    return most if most.indices else Cards()


def _device(dev: str, name: str) -> bool:
    try:
        return stat.S_ISCHR((Path(dev) / name).stat().st_mode)
    except FileNotFoundError:
        return False  # gone since the folder was listed


async def check(*, wanted: int, found: int) -> CheckResult:
    """Are `found` cards enough for the `wanted` ones? Without a wish for cards it does not apply."""
    if wanted == 0:
        reason = f"the job wants no cards ({found} found)"
        return CheckResult(ITEM, Status.NOT_APPLICABLE, Code.CARDS_NOT_WANTED, reason, f"{found} cards")
    observed, threshold = f"{found} cards", f"cards >= {wanted}"
    if found >= wanted:
        reason = f"{found} cards found, {wanted} wanted"
        return CheckResult(ITEM, Status.OK, Code.CARDS_OK, reason, observed, threshold)
    code = Code.CARDS_TOO_FEW if found else Code.CARDS_NONE_FOUND
    reason = f"{found or 'no'} cards found, {wanted} wanted: is the driver loaded, are the devices in the container?"
    return CheckResult(ITEM, Status.CRITICAL, code, reason, observed, threshold, Action.DRAIN)
