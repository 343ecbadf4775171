"""NVIDIA's Xids: which number requires which action.

The lists follow the immediate actions of NVIDIA's catalogue of Xids as of October 2025 (RESTART_APP, RESET_GPU,
RESTART_BM, IGNORE and so on). For numbers with a workflow in the catalogue (48, 74, 144 to 150), the comments say what
muster does. If the driver asks for more than the catalogue, its recovery action is another condition. A number that is
in none of the lists is only reported, and never a fault.
"""

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

from muster.probes.checks.result import Code

#: Faults of a program: those that the catalogue answers with RESTART_APP, and 43, 137 and 170, with which a program
#: fails.
APPLICATION = frozenset(
    {8, 11, 13, 25, 31, 32, 39, 40, 41, 43, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94}
    | set(range(96, 106))
    | set(range(126, 136))
    | {137, 139, 170}
)
#: Only informative, or reported together with another Xid that counts.
NOTE = frozenset(
    {14, 37, 38, 44, 45, 63, 66, 67, 92, 93, 106, 107, 108, 121, 141, 152, 153, 154, 157, 160, 161, 162, 163, 164}
)
#: The card is unreliable until a reboot: 151 (RESTART_VM), and 74, because a reset of one card does not reset the other
#: end of its link.
REBOOT = frozenset({74, 151})
#: A reset of the card is enough: RESET_GPU, and 48, 171, 172 (an uncorrectable error, of which 94 or 95 says more) and
#: 167 (a fatal time-out).
RESET = frozenset({46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158, 167, 171, 172})
#: Somebody must inspect the hardware: no auxiliary power, a broken display unit.
INSPECT = frozenset({54, 81})
OFF_BUS = 79
#: Of NVLink 5; the kernel's line says whether one is fatal.
NVLINK5 = frozenset(range(144, 151))

#: Xids after which the same one in later boots means that a reboot is no remedy.
FATAL = (Code.GPU_OFF_BUS, Code.GPU_XID_REBOOT, Code.GPU_XID_RESET)

#: What the most frequent numbers mean, in the words that people search for.
NAMES = {
    8: "the GPU stopped processing",
    11: "invalid or corrupted push buffer stream",
    13: "graphics engine exception",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer stream",
    43: "the GPU stopped processing",
    45: "preemptive cleanup after an earlier error",
    46: "the GPU stopped processing",
    48: "double bit ECC error",
    54: "auxiliary power is not connected",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "a row of memory was marked for replacement",
    64: "a row of memory could not be marked for replacement",
    68: "video decoder exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    81: "VGA subsystem error",
    92: "high rate of single bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch time-out",
    110: "security fault",
    119: "time-out of a call to the GPU's system processor (GSP)",
    120: "error of the GPU's system processor (GSP)",
    121: "chip-to-chip link error",
    136: "link training failed",
    137: "NVLink privilege error",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    151: "key rotation error",
    154: "the recovery action changed",
    155: "NVLink error defined by software",
    156: "a resource was retired",
    157: "a resource could not be retired",
    158: "GPU fatal time-out",
    167: "PCIe fatal time-out",
    171: "uncorrectable error of the DRAM",
    172: "uncorrectable error of the SRAM",
}
_FATAL_WORD = re.compile(r"\bFatal\b")


#: The settings with an operator's own lists, and what their numbers ask for; the first list that has a number counts.
OWN = {
    "xid_ignore": Code.GPU_XID_NOTE,
    "xid_fatal": Code.GPU_XID_REBOOT,
    "xid_reset": Code.GPU_XID_RESET,
    "xid_inspect": Code.GPU_XID_INSPECT,
    "xid_application": Code.GPU_XID_APPLICATION,
}


def code_of(xid: int, text: str = "", own: Mapping[str, Collection[int]] = MappingProxyType({})) -> Code:
    """The action that an Xid requires. `text` is the kernel's line, `own` the numbers of an operator's own lists, by
    their settings: they go before those here, but for 79 only `xid_ignore` does."""
    listed = next((code for name, code in OWN.items() if xid in own.get(name, ())), None)
    if listed is Code.GPU_XID_NOTE:
        return listed
    if xid == OFF_BUS:
        return Code.GPU_OFF_BUS
    if listed is not None:
        return listed
    if xid in REBOOT:
        return Code.GPU_XID_REBOOT
    if xid in RESET or (xid in NVLINK5 and _FATAL_WORD.search(text)):
        return Code.GPU_XID_RESET
    if xid in INSPECT:
        return Code.GPU_XID_INSPECT
    if xid in APPLICATION:
        return Code.GPU_XID_APPLICATION
    return Code.GPU_XID_NOTE if xid in NOTE else Code.GPU_XID_OTHER


def name(xid: int) -> str:
    """Xid 79 (the GPU has fallen off the bus)."""
    meaning = "NVLink 5 error" if xid in NVLINK5 else NAMES.get(xid, "")
    return f"Xid {xid} ({meaning})" if meaning else f"Xid {xid}"
