"""Fault codes of Ascend chips: which of them asks for what. `npu_codes.toml` has the codes."""

import enum
import functools
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path

from muster.probes.checks.result import Code
from muster.probes.node.node_settings import NodeSettings


class Level(enum.IntEnum):
    """What a code asks for; the gravest last. The value is the rank."""

    NOTE = 0
    UNKNOWN = 1
    JOB = 2
    DEGRADED = 3
    IDLE = 4
    RESET = 5
    ISOLATE = 6
    REPLACE = 7


#: In words, behind a code.
_WORDS = {
    Level.NOTE: "for information",
    Level.JOB: "the job must restart",
    Level.DEGRADED: "the card is degraded",
    Level.IDLE: "reset it when it is idle",
    Level.RESET: "reset it",
    Level.ISOLATE: "no new jobs",
    Level.REPLACE: "replace it",
}


@functools.cache
def _known() -> dict[int, Level]:
    """Read once such a card has reported a code: other nodes do without."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    return {code: Level[name.upper()] for name, codes in table.items() for code in codes}


def level_of(code: int, settings: NodeSettings) -> Level:
    """What the code asks for; the operator's own lists go before muster's."""
    for name, level in (("npu_ignore", Level.NOTE), ("npu_reset", Level.RESET), ("npu_isolate", Level.ISOLATE)):
        if code in settings.hex_numbers(name):
            return level
    return _known().get(code, Level.UNKNOWN)


def code_of(codes: Iterable[int], settings: NodeSettings, otherwise: Code) -> Code:
    """The code for the gravest of some; `otherwise` where none asks for more than a look."""
    worst = max((level_of(code, settings) for code in codes), default=Level.NOTE)
    if worst is Level.NOTE:
        return Code.NPU_FAULT_NOTE
    if worst >= Level.ISOLATE:
        return Code.NPU_FAULT_ISOLATE
    return Code.NPU_FAULT_RESET if worst is Level.RESET else otherwise


def named(codes: Collection[int], settings: NodeSettings) -> str:
    """0x80E18402 (replace it) 0x80E21007 (for information): the gravest first."""
    levels = sorted(((level_of(code, settings), code) for code in codes), key=lambda pair: (-pair[0], pair[1]))
    return " ".join(
        f"{code:#010X}".replace("0X", "0x") + (f" ({_WORDS[lv]})" if lv in _WORDS else "") for lv, code in levels
    )
