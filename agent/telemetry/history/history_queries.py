"""Queries of the history's database (history_db.py). Everything blocks; one thread at a time."""

import math
import sqlite3
from dataclasses import astuple
from pathlib import Path
from typing import Any

from muster.agent.telemetry.history.history_rows import (
    FRESH_S,
    METRICS,
    THIN_S,
    Bounds,
    Busy,
    FoundSeries,
    JobSeries,
    SeriesKey,
    Step,
    Steps,
    joined,
)
from muster.probes.kernel.dataclass import dataclass

#: The ranks of a job: its id, a slash, a number.
RANKS = "kind = 'rank' AND born = ?2 AND substr(name, 1, length(?1) + 1) = ?1 || '/'"
OF_FRESH = ", ".join(f"avg({m}), min({m}), max({m})" for m in METRICS)
_OF_THIN = ", ".join(f"avg({m}), min({m}_least), max({m}_most)" for m in METRICS)


@dataclass(slots=True)
class HistoryQueries:
    """One open file. Every method raises sqlite3.Error where it cannot be worked with."""

    path: Path
    bounds: Bounds
    connection: sqlite3.Connection

    def busy(self) -> dict[SeriesKey, Busy]:
        """Of all jobs."""
        rows = self._all("SELECT kind, name, born, since, busy, seconds FROM series WHERE kind = 'job'")
        return {SeriesKey(*row[:3]): Busy(*row[3:]) for row in rows}

    def busy_of(self, key: SeriesKey) -> Busy | None:
        """Of one job; None for an unknown job."""
        rows = self._all(
            "SELECT since, busy, seconds FROM series WHERE kind = ? AND name = ? AND born = ?", *astuple(key)
        )
        return next((Busy(*row) for row in rows), None)

    def node(self, start: float, end: float, step: float, now: float) -> list[FoundSeries]:
        """The node and all cards that it had. Times in seconds since the epoch, `end` not included."""
        return self._found(
            "SELECT id, kind, name, born, card_kind, card FROM series WHERE kind = 'node'"
            " UNION ALL SELECT id, kind, name, born, card_kind, card FROM series WHERE kind = 'card' AND last >= ?",
            [start], start, end, step, now,
        )  # fmt: skip

    def card(self, name: str, index: int, start: float, end: float, step: float, now: float) -> list[FoundSeries]:
        """The card of this uuid; where that is empty, the one that had this index last."""
        return self._found(
            "SELECT id, kind, name, born, card_kind, card FROM series WHERE kind = 'card'"
            " AND ((?1 != '' AND name = ?1) OR (?1 = '' AND card = ?2)) ORDER BY last DESC LIMIT 1",
            [name, index], start, end, step, now,
        )  # fmt: skip

    def job(
        self, name: str, start: float, end: float, step: float, now: float, *, ranks: bool = False
    ) -> list[FoundSeries]:
        """The newest job of this id, and its cards as long as it had them; also its `ranks`, if they are asked for."""
        jobs = self._all(
            "SELECT id, born, last, live FROM series WHERE kind = 'job' AND name = ? ORDER BY born DESC", name
        )
        if not jobs:
            return []
        number, born, last, live = jobs[0]
        found = self._found(
            "SELECT id, kind, name, born, card_kind, card FROM series WHERE id = ?", [number], start, end, step, now
        )
        # Whole steps: of the first and the last one only what is the job's.
        since, until = max(start, born), end if live else min(end, last + self.bounds.step_s)
        if ranks:
            found += self._found(
                f"SELECT id, kind, name, born, card_kind, card FROM series WHERE {RANKS} ORDER BY length(name), name",
                [name, born], start, end, step, now,
            )  # fmt: skip
        return found + self._found(
            "SELECT s.id, s.kind, s.name, s.born, s.card_kind, j.card FROM job_cards j"
            " JOIN series s ON s.id = j.series WHERE j.job = ? ORDER BY j.card",
            [number], start, until, step, now, since,
        )  # fmt: skip

    def jobs(self, since: float) -> list[JobSeries]:
        """All jobs with a reading since then, oldest first."""
        rows = self._all(
            "SELECT id, name, born, last, live, since, busy, seconds FROM series WHERE kind = 'job' AND last >= ?"
            " ORDER BY born",
            since,
        )
        return [
            JobSeries(
                SeriesKey("job", name, born), last, bool(live), Busy(begun, total, seconds),
                tuple(card for (card,) in self._all("SELECT card FROM job_cards WHERE job = ? ORDER BY card", number)),
            )
            for number, name, born, last, live, begun, total, seconds in rows
        ]  # fmt: skip

    def _found(
        self, sql: str, values: list[Any], start: float, end: float, step: float, now: float, since: float = 0.0
    ) -> list[FoundSeries]:
        return [
            FoundSeries(SeriesKey(kind, name, born), card_kind, card, self._steps(number, start, end, step, now, since))
            for number, kind, name, born, card_kind, card in self._all(sql, *values)
        ]

    def _steps(self, series: int, start: float, end: float, step: float, now: float, since: float) -> Steps:
        """At full rate where there is that, else by the minute."""
        ((fresh_from,),) = self._all(
            "SELECT min(at) FROM fresh WHERE series = ? AND at >= ? AND at <= ?", series, now - FRESH_S, now
        )
        thin_until = end if fresh_from is None else min(end, math.floor(fresh_from / THIN_S) * THIN_S)
        since = max(start, since)
        found: Steps = {}
        for table, columns, low, high, weight in (
            ("thin", _OF_THIN, since, thin_until, THIN_S),
            ("fresh", OF_FRESH, max(since, now - FRESH_S), end, self.bounds.step_s),
        ):
            sql = (
                f"SELECT CAST((at - ?1) / ?2 AS INTEGER) AS step, count(*), {columns} FROM {table}"
                " WHERE series = ?3 AND at >= ?4 AND at < ?5 GROUP BY step"
            )
            for number, count, *values in self._all(sql, start, step, series, low, high):
                triples = [tuple(values[i : i + 3]) for i in range(0, len(values), 3)]
                this = Step(count * weight, tuple(None if None in triple else triple for triple in triples))
                found[number] = joined(found.get(number), this)
        return found

    def _all(self, sql: str, *values: Any) -> list[Any]:
        return self.connection.execute(sql, values).fetchall()
