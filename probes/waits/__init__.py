"""Where the ranks of a job wait, and who of them is to blame: pure functions, without clock and without IO.

`RankStack` is the stack of a rank at one moment, as telemetry records hold it, `LibraryWait` what a communication
library says; `place` says what a rank waits for; `blame` finds the ranks that are elsewhere than their peers. The hang
rule and all readers of stacks use the same.
"""

from muster.probes.waits.blame import AT_REST, IN_COLLECTIVE, Culprit, LibraryWait, blame, waits_for_others
from muster.probes.waits.wait_places import WORDS, RankStack, WaitKind, WaitPlace, place

__all__ = [
    "AT_REST",
    "IN_COLLECTIVE",
    "WORDS",
    "Culprit",
    "LibraryWait",
    "RankStack",
    "WaitKind",
    "WaitPlace",
    "blame",
    "place",
    "waits_for_others",
]
