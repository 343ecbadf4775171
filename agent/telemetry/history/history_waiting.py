"""Readings that are not on the disk yet."""

import math
from collections.abc import Mapping, Sequence

from muster.agent.telemetry.history.history_rows import METRICS, Row, SeriesKey, Step, Steps, joined

#: How many rows wait at most; 8 cards with their jobs make some 1,000 a minute.
MAX_ROWS = 20_000


class Waiting:
    """Rows by series and slot: the number of the step (of `step_s` seconds since the epoch) that they are of."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        #: Rows that were dropped because there was no room, since it was last set to 0.
        self.dropped = 0
        self._rows: dict[SeriesKey, dict[int, list[float | None]]] = {}
        self._count = 0
        self._last_tick = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: SeriesKey) -> bool:
        return key in self._rows

    def keys(self, *kinds: str) -> list[SeriesKey]:
        """Of the series of these kinds."""
        return [key for key in self._rows if key.kind in kinds]

    def newest(self, key: SeriesKey) -> float | None:
        """Time of the last row of a series."""
        slots = self._rows.get(key)
        return max(slots) * self.step_s if slots else None

    def tick(self, at: float) -> float:
        """The time under which readings of one beat are noted: a multiple of the step near `at`, and the next one after
        the beat before, if a beat came a little early or late."""
        exact, expected = at / self.step_s, self._last_tick + 1
        self._last_tick = expected if abs(exact - expected - 0.5) <= 1 else math.floor(exact)
        return self._last_tick * self.step_s

    def note(self, key: SeriesKey, at: float, values: Mapping[int, float | None]) -> None:
        """Notes values at a time, by the number of their metric; other metrics of the same time stay."""
        rows = self._rows.setdefault(key, {})
        slot = math.floor(at / self.step_s + 1e-6)
        row = rows.get(slot)
        if row is None:
            row = rows[slot] = [None] * len(METRICS)
            self._count += 1
        for metric, value in values.items():
            if value is not None:
                row[metric] = value
        if self._count > MAX_ROWS:
            self._drop_oldest()

    def taken(self, now: float, hold: int) -> dict[SeriesKey, list[Row]]:
        """Rows in the order of time, without those of the `hold` steps around `now`, which may still grow. All rows
        stay until they are put `away`."""
        present, step = math.floor(now / self.step_s), self.step_s
        found: dict[SeriesKey, list[Row]] = {
            key: [(slot * step, tuple(row)) for slot, row in sorted(rows.items()) if abs(slot - present) >= hold]
            for key, rows in self._rows.items()
        }
        return {key: rows for key, rows in found.items() if rows}

    def away(self, taken: Mapping[SeriesKey, Sequence[Row]]) -> None:
        """These are on the disk."""
        for key, rows in taken.items():
            there = self._rows.get(key, {})
            for at, _ in rows:
                self._count -= there.pop(round(at / self.step_s), None) is not None
            if not there:
                self._rows.pop(key, None)
        self.dropped = 0

    def change_step(self, step_s: float) -> None:
        """Goes on with steps of another length."""
        rows, before = self._rows, self.step_s
        self.step_s, self._rows, self._count, self._last_tick = step_s, {}, 0, 0
        for key, some in rows.items():
            for slot, row in some.items():
                self.note(key, slot * before, dict(enumerate(row)))

    def add(self, steps: Steps, key: SeriesKey, start: float, end: float, step: float, since: float) -> None:
        """Adds what waits of a series, from `since` to before `end`, to its steps of `step` seconds from `start` on."""
        for slot, row in self._rows.get(key, {}).items():
            at = slot * self.step_s
            if max(start, since) <= at < end:
                number = int((at - start) // step)
                this = Step(self.step_s, tuple(None if value is None else (value, value, value) for value in row))
                steps[number] = joined(steps.get(number), this)

    def drop(self, key: SeriesKey) -> None:
        """Forgets a series."""
        self._count -= len(self._rows.pop(key, ()))

    def _drop_oldest(self) -> None:
        """An eighth, so that it is not done for each reading."""
        slots = sorted(slot for rows in self._rows.values() for slot in rows)
        last = slots[len(slots) // 8]
        for key, rows in list(self._rows.items()):
            for slot in [slot for slot in rows if slot <= last]:
                del rows[slot]
                self._count -= 1
                self.dropped += 1
            if not rows:
                del self._rows[key]
