"""Fault codes of Ascend chips: which of them asks for what. `npu_codes.toml` has the codes."""

import enum
import functools
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path

from muster.probes.checks.result import Code
from muster.probes.node.node_settings import NodeSettings


class FaultLevel(enum.IntEnum):
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
    FaultLevel.NOTE: "for information",
    FaultLevel.JOB: "the job must restart",
    FaultLevel.DEGRADED: "the card is degraded",
    FaultLevel.IDLE: "reset it when it is idle",
    FaultLevel.RESET: "reset it",
    FaultLevel.ISOLATE: "no new jobs",
    FaultLevel.REPLACE: "replace it",
}


@functools.cache
def known() -> dict[int, FaultLevel]:
    """Those of `npu_codes.toml`. Read once a card has reported a code: other nodes do without."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    return {code: FaultLevel[name.upper()] for name, codes in table.items() for code in codes}


def level_of(code: int, settings: NodeSettings) -> FaultLevel:
    """What the code asks for; the operator's own lists go before muster's."""
    for name, level in (
        ("npu_ignore", FaultLevel.NOTE),
        ("npu_reset", FaultLevel.RESET),
        ("npu_isolate", FaultLevel.ISOLATE),
    ):
        if code in settings.hex_numbers(name):
            return level
    return known().get(code, FaultLevel.UNKNOWN)


def code_of(codes: Iterable[int], settings: NodeSettings, otherwise: Code) -> Code:
    """The code for the gravest of some; `otherwise` where none asks for more than a look."""
    worst = max((level_of(code, settings) for code in codes), default=FaultLevel.NOTE)
    if worst is FaultLevel.NOTE:
        return Code.NPU_FAULT_NOTE
    if worst >= FaultLevel.ISOLATE:
        return Code.NPU_FAULT_ISOLATE
    return Code.NPU_FAULT_RESET if worst is FaultLevel.RESET else otherwise


def code_of_event(code: int, settings: NodeSettings) -> Code:
    """The code for a fault that came up now, whether or not it stays."""
    ends_job = level_of(code, settings) is FaultLevel.JOB
    return code_of([code], settings, Code.NPU_FAULT_JOB if ends_job else Code.NPU_FAULT_EVENT)


def named(codes: Collection[int], settings: NodeSettings) -> str:
    """0x80E18402 (replace it) 0x80E21007 (for information): the gravest first."""
    levels = sorted(((level_of(code, settings), code) for code in codes), key=lambda pair: (-pair[0], pair[1]))
    return " ".join(
        f"{code:#010X}".replace("0X", "0x") + (f" ({_WORDS[lv]})" if lv in _WORDS else "") for lv, code in levels
    )
