"""Where a rank waits, from one dump of stacks to the next."""

import hashlib

import msgspec

from muster.probes.hang.tracks.card_track import NEVER
from muster.probes.waits import RankStack, WaitKind, WaitPlace, place

#: How often a second a rank's other Python threads may wait anew while nothing is done: those of progress bars and
#: loaders look each 5 or 10 s whether they shall end; one that sends or reads data wakes far more often.
_IDLE_RATE = 0.5
#: How often a second a thread may touch memory that was not there while it makes nothing: the kernel itself takes a
#: page away now and then, to see from which node it is used. What makes something touches hundreds.
_FAULTS_RATE = 1.0


class RankWait(msgspec.Struct):
    """Of one rank, in the detector's clock: `at` its last dump; `since` and `looks`: the first and the number of the
    dumps that all show this place; `still_since` and `still_looks`: those between which its thread did not wait anew,
    and its other threads did nothing: of a lock or a sleep that was not left meanwhile; `barren_since`,
    `barren_looks`: those of them between which its thread touched no memory anew: of a loop that makes nothing."""

    key: str = ""
    kind: WaitKind = WaitKind.UNKNOWN
    call: str = ""
    line: str = ""
    wchan: str = ""
    at: float = NEVER
    since: float = NEVER
    looks: int = 0
    still_since: float = NEVER
    still_looks: int = 0
    barren_since: float = NEVER
    barren_looks: int = 0
    switches: int | None = None
    others: int | None = None
    wakes_in: float | None = None
    helped: bool = False
    faults: int | None = None

    def take(self, stack: RankStack, at: float) -> None:
        """The next dump."""
        where = place(stack)
        stuck = stack.state if stack.state in "DTt" else ""
        frames = hashlib.blake2s("\n".join(stack.frames).encode(), digest_size=8).hexdigest()
        # A polling thread is now in R, now in S.
        key = f"{stack.pid} {stuck} {frames} {stack.wchan if not stack.frames else ''}"
        same = key == self.key and not stack.moves
        still = same and stack.switches is not None and stack.switches == self.switches and self._rests(stack, at)
        self.since, self.looks = (self.since, self.looks + 1) if same else (at, 1)
        self.still_since, self.still_looks = (self.still_since, self.still_looks + 1) if still else (at, 1)
        barren = still and self._makes_nothing(stack, at)
        self.barren_since, self.barren_looks = (self.barren_since, self.barren_looks + 1) if barren else (at, 1)
        self.key, self.at = key, at
        self.kind, self.call, self.line, self.wchan = where.kind, where.call, where.line, stack.wchan
        self.switches, self.others = stack.switches, stack.others
        self.wakes_in, self.helped, self.faults = stack.wakes_in, stack.helped, stack.faults

    def _rests(self, stack: RankStack, at: float) -> bool:
        if self.others is None or stack.others is None:
            return False
        return stack.others - self.others <= max(1.0, _IDLE_RATE * (at - self.at))

    def _makes_nothing(self, stack: RankStack, at: float) -> bool:
        if self.faults is None or stack.faults is None:
            return False
        return stack.faults - self.faults <= max(1.0, _FAULTS_RATE * (at - self.at))

    @property
    def place(self) -> WaitPlace:
        """Where it waits."""
        return WaitPlace(self.kind, self.call, self.line)
