"""Error codes of Ascend chips that are harmless once but not several times a day: mind-cluster then takes the chip out
of service until an operator returns it (its faultCustomization.json, 30473f5)."""

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import field

from muster.probes.kernel.dataclass import dataclass

#: In seconds: the window in which occurrences are counted; and for how long a look, which may have asked before, says
#: nothing against what the driver has reported.
WINDOW_S, LATE_S = 86_400.0, 10.0
_TWICE = (
    0x80C98000, 0x80B78000, 0x80B58000, 0x80A18008, 0x80A38008, 0x80A58008, 0x80B98000, 0x80B98008, 0x80BB8000,
    0x80BB8008, 0x80BD8000, 0x80BD8008, 0x80C78008, 0x80C98008, 0x80CB8008, 0x80CD8008, 0x80CF8008, 0x80D98008,
    0x80DF8008, 0x80DE1801, 0x80E01801, 0x80E18008, 0x80E38008, 0x80E39200, 0x80E3A202, 0x80E3A203, 0x80E78000,
    0x80E78008, 0x80F18000, 0x80F18008, 0x80F38008, 0x80F78008, 0x81318008, 0x81338008, 0x813B8008, 0x81478008,
    0x81578008, 0x815F8008, 0x81938008, 0x81958008, 0x81978008,
)  # fmt: skip
#: How often within the window is too often, by code.
LIMITS = dict.fromkeys(_TWICE, 2) | {0x80E18005: 3, 0x81078603: 5}


@dataclass(slots=True)
class _Occurrences:
    #: The newest: as many as tell that there were too many.
    began: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    #: Whether the card has it, as far as anybody knows; and when the driver last reported that it came or went.
    stands: bool = False
    told: float = -math.inf


class Repeats:
    """How often each card had such a code: how often it came, and not for how long it was there or seen. A code is gone
    once the driver says so or a look no longer finds it: while nobody looks (a driver that hangs, no daemon) it
    stays."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], _Occurrences] = {}

    def look(self, card: str, codes: Collection[int], now: float) -> None:
        """At `now` the card has these codes and no others."""
        for code in LIMITS.keys() & set(codes):
            self._of.setdefault((card, code), _Occurrences())
        for (whose, code), had in self._of.items():
            if whose != card or now - had.told <= LATE_S:
                continue
            if code in codes and not had.stands:
                had.began.append(now)
            had.stands = code in codes

    def came(self, card: str, code: int, now: float, *, stays: bool) -> None:
        """The driver reports the code; one that does not stay is an incident each time. Others are not counted."""
        if code in LIMITS:
            had = self._of.setdefault((card, code), _Occurrences())
            if not (stays and had.stands):
                had.began.append(now)
            if stays:
                had.stands, had.told = True, now

    def went(self, card: str, code: int, now: float) -> None:
        """The driver reports that the card no longer has the code."""
        if (had := self._of.get((card, code))) is not None:
            had.stands, had.told = False, now

    def too_often(self, card: str, now: float) -> dict[int, int]:
        """The codes that the card had too often, and how often."""
        found = {}
        for (whose, code), had in self._of.items():
            count = sum(began > now - WINDOW_S for began in had.began)
            if whose == card and count >= LIMITS[code]:
                found[code] = count
        return found

    def kept(self, now: float) -> dict[tuple[str, int], tuple[list[float], bool]]:
        """By card and code, when it came within the window, and whether it stands."""
        found = {}
        for key, had in self._of.items():
            while had.began and had.began[0] <= now - WINDOW_S:
                had.began.popleft()
            if had.began or had.stands:
                found[key] = list(had.began), had.stands
        return found

    def restore(self, card: str, code: int, began: Sequence[float], *, stands: bool) -> None:
        """Takes what `kept` gave of a card and a code."""
        if code in LIMITS and (began or stands):
            self._of[card, code] = _Occurrences(deque(began, 64), stands)

    def forget(self, card: str) -> None:
        """An operator let the card back in. A code that it still has is no new one."""
        self._of = {
            key: _Occurrences(stands=had.stands, told=had.told) if key[0] == card else had
            for key, had in self._of.items()
            if key[0] != card or had.stands
        }
