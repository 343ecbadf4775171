"""How many steps a training makes in a second, by what it prints. Pure."""

import re
from collections import deque

#: `step 120`, `iter: [7/100`, `global_step=3000`, `Iteration 12`; and of tqdm ` 45/100 [00:12<`.
_STEP = re.compile(
    rb"(?<![a-z])(?:global_?)?(?:step|iter(?:ation)?)s?[\s:=#\[\"']{1,4}(\d{1,12})(?![\d.])"
    rb"|\s(\d{1,12})/\d{1,12} \[\d\d:",
    re.IGNORECASE,
)
#: Bytes of the end of a piece of output that are looked at, and seconds between two looks.
_LOOKED_AT, _APART_S = 4096, 0.2
#: Seconds that the rate is of, and after which it is old.
_OVER_S, _OLD_S = 30.0, 120.0


class StepRate:
    """Of the first source that prints steps; the others take the same ones."""

    def __init__(self) -> None:
        self._source = ""
        self._seen: deque[tuple[float, int]] = deque(maxlen=512)

    def take(self, source: str, data: bytes, at: float) -> None:
        """Output of a source at a time, in seconds. Cheap: it looks at a part of much output."""
        if self._source and source != self._source:
            return
        if self._seen and at - self._seen[-1][0] < _APART_S:
            return
        if (step := _last_step(data[-_LOOKED_AT:])) is None:
            return
        self._source = source
        if self._seen and step < self._seen[-1][1]:
            self._seen.clear()  # it began anew: another epoch, another attempt
        if not self._seen or step > self._seen[-1][1]:
            self._seen.append((at, step))
        while len(self._seen) > 2 and at - self._seen[1][0] > _OVER_S:
            self._seen.popleft()

    def now(self, at: float) -> float | None:
        """Steps in a second; None: not known."""
        if len(self._seen) < 2 or at - self._seen[-1][0] > _OLD_S:
            return None
        (begin, first), (end, last) = self._seen[0], self._seen[-1]
        # While the next step is late, the rate falls.
        passed = max(end - begin, at - begin - (end - begin) / (len(self._seen) - 1))
        return (last - first) / passed if passed > 0 else None


def _last_step(data: bytes) -> int | None:
    found = _STEP.findall(data)
    return int(found[-1][0] or found[-1][1]) if found else None
