"""The history's database: the layout on disk, and writing. Everything blocks; one thread at a time.

A series (the node, a card, a job) has two rings of rows: `fresh` holds each reading of the last hour, `thin` a mean, a
least and a most for each minute of the days before. A row's place is its time modulo the length of its ring, so that a
ring cannot grow, whatever a clock does; a value that was overwritten long ago is recognized by its time. The file as a
whole has a bound of its own: history_bounds.py.
"""

import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from urllib.parse import quote

from muster.agent.telemetry.history.history_queries import OF_FRESH, RANKS, HistoryQueries
from muster.agent.telemetry.history.history_rows import (
    METRICS,
    THIN_S,
    Bounds,
    Row,
    SeriesFacts,
    SeriesKey,
)
from muster.probes.kernel.dataclass import dataclass

#: `PRAGMA user_version` of this layout.
FORMAT = 3
#: What a format has more than the one before: METRICS, at the end of both rings.
_ADDED = {2: ("sm", "tensor", "dram"), 3: ("fabric", "read", "write", "log")}
#: Bytes of the write-ahead log before it is put into the database, and at most an eighth of the bound.
_LOG_BYTES = 4 << 20
#: Seconds to wait for another process that has the file open.
_LOCKED_S = 5.0
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_SCHEMA = f"""
CREATE TABLE series (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, born REAL NOT NULL, card_kind TEXT NOT NULL,
    card INTEGER, last REAL NOT NULL, live INTEGER NOT NULL,
    since REAL NOT NULL, busy REAL NOT NULL, seconds REAL NOT NULL, UNIQUE (kind, name, born)
);
CREATE TABLE job_cards (job INTEGER NOT NULL, series INTEGER NOT NULL, card INTEGER, PRIMARY KEY (job, series));
CREATE TABLE fresh (
    series INTEGER NOT NULL, slot INTEGER NOT NULL, at REAL NOT NULL, {", ".join(f"{m} REAL" for m in METRICS)},
    PRIMARY KEY (series, slot)
) WITHOUT ROWID;
CREATE TABLE thin (
    series INTEGER NOT NULL, slot INTEGER NOT NULL, at REAL NOT NULL,
    {", ".join(f"{m} REAL, {m}_least REAL, {m}_most REAL" for m in METRICS)},
    PRIMARY KEY (series, slot)
) WITHOUT ROWID;
PRAGMA user_version = {FORMAT};
"""


class DamagedHistory(Exception):
    """Raised when what is on disk cannot be trusted, or is of another version. The text is a sentence's end."""


@dataclass(slots=True)
class Database(HistoryQueries):
    """One open file. Every method but `close` raises sqlite3.Error where it cannot be worked with; `told` says which
    of these means damage."""

    _ids: dict[SeriesKey, int] = field(default_factory=dict)
    #: Minutes whose rows are not in `thin` yet, with their series.
    _unthinned: dict[int, set[int]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, bounds: Bounds) -> "Database":
        """Opens or makes it. Raises Damaged, sqlite3.Error, OSError."""
        # Mode 0600 from its first moment on: what jobs do is not for everybody.
        path.touch(0o600)
        connection = sqlite3.connect(path, timeout=_LOCKED_S, isolation_level=None, check_same_thread=False)
        try:
            made = cls(path, bounds, connection)
            made._prepare()
        except BaseException:
            connection.close()
            raise
        return made

    @classmethod
    def look(cls, path: Path, bounds: Bounds) -> "Database":
        """Opens it for reading alone; others may have it open. Raises DamagedHistory, sqlite3.Error, OSError."""
        path.stat()
        # SQLite makes files beside it, unless it may take for granted that nobody writes: then nothing waits in a log.
        quiet, log = "mode=ro&immutable=1", Path(f"{path}-wal")
        waits = log.exists() and log.stat().st_size > 0
        for options in ("mode=ro", quiet) if waits else (quiet,):
            uri = f"file:{quote(os.fspath(path))}?{options}"
            connection = sqlite3.connect(
                uri, timeout=_LOCKED_S, isolation_level=None, check_same_thread=False, uri=True
            )
            try:
                _view(connection)
                return cls(path, bounds, connection)
            except sqlite3.OperationalError as error:
                connection.close()
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CANTOPEN or options == quiet:
                    raise
            except BaseException:
                connection.close()
                raise
        raise AssertionError

    def close(self) -> None:
        """Puts the write-ahead log into the file."""
        self.connection.close()

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(
        self, rows: Mapping[SeriesKey, Sequence[Row]], facts: Mapping[SeriesKey, SeriesFacts], until: float
    ) -> None:
        """Puts rows onto the disk, and thins the minutes that are over at `until`; all of it or, if it raises, nothing.

        The rows of a series are in the order of time. A row takes the place of another of the same time.
        """
        c = self.connection
        ids = dict(self._ids)
        c.execute("BEGIN IMMEDIATE")
        try:
            for key, told in facts.items():
                self._describe(key, told, until)
            unthinned = {minute: set(numbers) for minute, numbers in self._unthinned.items()}
            for part, end in self._parts(rows, until):
                for key, some in part.items():
                    number = self._put(key, some)
                    for at, _ in some:
                        unthinned.setdefault(int(at // THIN_S), set()).add(number)
                for minute in [minute for minute in unthinned if (minute + 1) * THIN_S <= end]:
                    for number in unthinned.pop(minute):
                        self._thin(number, minute)
            c.execute("COMMIT")
        except BaseException:
            self._ids = ids
            if c.in_transaction:
                c.execute("ROLLBACK")
            raise
        self._unthinned = unthinned

    def forget(self, series: int) -> None:
        """Drops a series, within a transaction of the caller's."""
        for sql in (
            "DELETE FROM fresh WHERE series = ?",
            "DELETE FROM thin WHERE series = ?",
            "DELETE FROM job_cards WHERE ?1 IN (job, series)",
            "DELETE FROM series WHERE id = ?",
        ):
            self.connection.execute(sql, (series,))
        self._ids = {key: number for key, number in self._ids.items() if number != series}
        for numbers in self._unthinned.values():
            numbers.discard(series)

    def forget_jobs(self, keys: Iterable[SeriesKey]) -> None:
        """Drops all that there is of these series; all of them or, if it raises, none."""
        c = self.connection
        with c:
            c.execute("BEGIN IMMEDIATE")
            for key in keys:
                for (number,) in c.execute(
                    f"SELECT id FROM series WHERE (kind = ?3 AND name = ?1 AND born = ?2) OR ({RANKS})",
                    (key.name, key.born, key.kind),
                ).fetchall():
                    self.forget(number)

    def bound(self, bounds: Bounds) -> int:
        """Takes other bounds; returns the pages that the file may have."""
        self.bounds = bounds
        c = self.connection
        (page,) = c.execute("PRAGMA page_size").fetchone()
        log = min(_LOG_BYTES, bounds.bytes // 8)
        pages = max(32, (bounds.bytes - log) // page)
        c.execute(f"PRAGMA wal_autocheckpoint = {max(1, log // page)}").fetchall()
        c.execute(f"PRAGMA journal_size_limit = {log}").fetchall()
        c.execute(f"PRAGMA max_page_count = {pages}").fetchall()
        return int(pages)

    def _prepare(self) -> None:
        c = self.connection
        (version,) = c.execute("PRAGMA user_version").fetchone()
        if version == 0 and c.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            c.execute("PRAGMA auto_vacuum = INCREMENTAL")
            c.execute("PRAGMA journal_mode = WAL").fetchall()
            c.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
        elif version in range(1, FORMAT):
            self._grow(version)
        elif version != FORMAT:
            raise DamagedHistory(f"is of format {version}, this version reads {FORMAT}")
        c.execute("PRAGMA journal_mode = WAL").fetchall()
        c.execute("PRAGMA synchronous = NORMAL")
        self.bound(self.bounds)
        # Jobs that live register again.
        c.execute("UPDATE series SET live = 0 WHERE kind IN ('job', 'rank') AND live")
        for number, *key in c.execute("SELECT id, kind, name, born FROM series"):
            self._ids[SeriesKey(*key)] = number
        # Of the daemon before us: minutes that were not over, or that it did not come to.
        minutes = c.execute(
            f"SELECT DISTINCT series, CAST(at / {THIN_S} AS INTEGER) FROM fresh"
            " WHERE at >= (SELECT coalesce(max(at), 0) FROM thin)"
        )
        for number, minute in minutes:
            self._unthinned.setdefault(minute, set()).add(number)

    def _grow(self, version: int) -> None:
        """Adds what a later format has more; older rows have no values there."""
        added = [metric for number in range(version + 1, FORMAT + 1) for metric in _ADDED[number]]
        columns = [("fresh", metric) for metric in added]
        columns += [("thin", f"{metric}{end}") for metric in added for end in ("", "_least", "_most")]
        sql = " ".join(f"ALTER TABLE {table} ADD COLUMN {column} REAL;" for table, column in columns)
        self.connection.executescript(f"BEGIN IMMEDIATE; {sql} PRAGMA user_version = {FORMAT}; COMMIT;")

    def _parts(
        self, rows: Mapping[SeriesKey, Sequence[Row]], until: float
    ) -> Iterator[tuple[Mapping[SeriesKey, Sequence[Row]], float]]:
        """Rows in parts of half a ring each, with the end of each: after a while without a disk they can be more than
        fit into one, and what is thinned is to be there still."""
        length = self.bounds.step_s * max(1, self.bounds.fresh // 2)
        numbers = sorted({math.floor(at / length) for some in rows.values() for at, _ in some})
        if len(numbers) < 2:
            yield rows, until
            return
        for number in numbers:
            begin, end = number * length, (number + 1) * length
            part = {key: [row for row in some if begin <= row[0] < end] for key, some in rows.items()}
            last = number == numbers[-1]
            yield {key: some for key, some in part.items() if some}, until if last else min(end, until)

    def _put(self, key: SeriesKey, rows: Sequence[Row]) -> int:
        length, step = self.bounds.fresh, self.bounds.step_s
        number = self._id(key, rows[0][0])
        self.connection.executemany(
            f"INSERT OR REPLACE INTO fresh VALUES (?, ?, ?, {', '.join('?' * len(METRICS))})",
            [(number, round(at / step) % length, at, *values) for at, values in rows],
        )
        self.connection.execute("UPDATE series SET last = ? WHERE id = ?", (rows[-1][0], number))
        return number

    def _thin(self, series: int, minute: int) -> None:
        """Makes the row of a minute, under the time of its first reading, from those at full rate, which stand side by
        side, but at the ring's end."""
        begin, end = minute * THIN_S, (minute + 1) * THIN_S
        length, step = self.bounds.fresh, self.bounds.step_s
        low, high = math.floor(begin / step), math.ceil(end / step)
        places = "slot BETWEEN ?5 AND ?6"
        first, last = low % length, high % length
        if high - low >= length:
            first, last = 0, length
        elif first > last:
            places = "(slot >= ?5 OR slot <= ?6)"
        self.connection.execute(
            f"INSERT OR REPLACE INTO thin SELECT series, ?2, min(at), {OF_FRESH} FROM fresh"
            f" WHERE series = ?1 AND {places} AND at >= ?3 AND at < ?4 GROUP BY series",
            (series, minute % self.bounds.thin, begin, end, first, last),
        )

    def _id(self, key: SeriesKey, at: float) -> int:
        if (known := self._ids.get(key)) is not None:
            return known
        self.connection.execute(
            "INSERT INTO series (kind, name, born, card_kind, last, live, since, busy, seconds)"
            " VALUES (?, ?, ?, '', ?, 1, 0, 0, 0) ON CONFLICT DO NOTHING",
            (key.kind, key.name, key.born, at),
        )
        ((number,),) = self._all(
            "SELECT id FROM series WHERE kind = ? AND name = ? AND born = ?", key.kind, key.name, key.born
        )
        self._ids[key] = number
        return int(number)

    def _describe(self, key: SeriesKey, facts: SeriesFacts, until: float) -> None:
        number, busy = self._id(key, until), facts.busy
        self.connection.execute(
            "UPDATE series SET card_kind = ?, card = ?, live = ?, since = ?, busy = ?, seconds = ? WHERE id = ?",
            (facts.card_kind, facts.card, facts.live, busy.since, busy.total, busy.seconds, number),
        )
        self.connection.executemany(
            "INSERT OR REPLACE INTO job_cards VALUES (?, ?, ?)",
            [(number, self._id(card, until), index) for card, index in facts.cards],
        )


def _view(connection: sqlite3.Connection) -> None:
    """Lets a file of an earlier format look like one of this format. Raises DamagedHistory, sqlite3.Error."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in range(1, FORMAT + 1):
        raise DamagedHistory(f"is of format {version}, this version reads {FORMAT}")
    added = [metric for number in range(version + 1, FORMAT + 1) for metric in _ADDED[number]]
    if added:
        fresh = ", ".join(f"NULL AS {metric}" for metric in added)
        thin = ", ".join(f"NULL AS {metric}{end}" for metric in added for end in ("", "_least", "_most"))
        connection.execute(f"CREATE TEMP VIEW fresh AS SELECT *, {fresh} FROM main.fresh")
        connection.execute(f"CREATE TEMP VIEW thin AS SELECT *, {thin} FROM main.thin")


def told(error: sqlite3.Error) -> str:
    """Empty, or the damage of the file: the end of a sentence."""
    return f"is damaged: {error}" if getattr(error, "sqlite_errorcode", 0) & 0xFF in _CORRUPT else ""
