"""Error codes of Ascend chips that are harmless once but not several times a day: mind-cluster then takes the chip out
of service until an operator returns it (its faultCustomization.json, 30473f5)."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import field

from muster.probes.kernel.dataclass import dataclass

#: In seconds: the window in which occurrences are counted; and the gap below which a code that comes back was never
#: away, because a look and an event may report the same one.
WINDOW_S, GAP_S = 86_400.0, 65.0
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
    began: deque[float] = field(default_factory=deque)
    seen: float = -math.inf


class Repeats:
    """How often each card had such a code."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], _Occurrences] = {}

    def note(self, card: str, code: int, now: float) -> None:
        """The card has the code at `now`. Other codes are not counted."""
        if code not in LIMITS:
            return
        had = self._of.setdefault((card, code), _Occurrences())
        if now - had.seen > GAP_S:
            had.began.append(now)
        had.seen = max(now, had.seen)
        while had.began and had.began[0] <= now - WINDOW_S:
            had.began.popleft()

    def too_often(self, card: str, now: float) -> dict[int, int]:
        """The codes that the card had too often, and how often."""
        found = {}
        for (whose, code), had in self._of.items():
            count = sum(began > now - WINDOW_S for began in had.began)
            if whose == card and count >= LIMITS[code]:
                found[code] = count
        return found

    def kept(self, now: float) -> dict[tuple[str, int], list[float]]:
        """By card and code, when the card got it within the window, and last when it had it last."""
        within = {key: [began for began in had.began if began > now - WINDOW_S] for key, had in self._of.items()}
        return {key: [*began, self._of[key].seen] for key, began in within.items() if began}

    def restore(self, card: str, code: int, times: Sequence[float]) -> None:
        """Takes what `kept` gave of a card and a code."""
        if code in LIMITS and len(times) > 1:
            self._of[card, code] = _Occurrences(deque(times[:-1]), times[-1])

    def forget(self, card: str) -> None:
        """An operator let the card back in."""
        self._of = {key: had for key, had in self._of.items() if key[0] != card}
