"""Which rows of the history are deleted, and when: those that are too old, and those that are too many."""

import time
from dataclasses import field

from muster.agent.telemetry.history.history_db import Database
from muster.agent.telemetry.history.history_rows import FRESH_S, THIN_S, Bounds
from muster.probes.kernel.dataclass import dataclass

#: Where the file is at its bound, things are dropped until this share of it is used.
ROOM = 0.9
#: A series whose last row is too old is dropped when it has been so for this long (seconds of the monotonic clock): a
#: clock that was wrong for a moment does not cost the history.
PATIENCE_S = 3600.0


@dataclass(slots=True)
class Keeper:
    """Keeps a database within its bounds. What is too old has been so since a moment of `clock`."""

    patience_s: float = PATIENCE_S
    _too_old: dict[int, float] = field(default_factory=dict)

    def keep(self, database: Database, bounds: Bounds, now: float) -> None:
        """Drops what is too old or too much, and gives the room back. `now` in seconds since the epoch. Blocks.

        Raises sqlite3.Error.
        """
        pages = database.bound(bounds)
        c = database.connection
        with c:
            c.execute("BEGIN IMMEDIATE")
            # Rings that were longer once.
            c.execute("DELETE FROM fresh WHERE slot >= ?", (bounds.fresh,))
            c.execute("DELETE FROM thin WHERE slot >= ?", (bounds.thin,))
            # What has ended is not written over, and needs its full rate no longer.
            c.execute(
                "DELETE FROM fresh WHERE series IN (SELECT id FROM series WHERE last < ?)", (now - FRESH_S - THIN_S,)
            )
            self._drop_old(database, now - bounds.days * 86400)
        _shrink(database, round(pages * ROOM))

    def _drop_old(self, database: Database, oldest: float) -> None:
        up = time.monotonic()
        rows = database.connection.execute(
            "SELECT id FROM series WHERE last < ? AND NOT (kind = 'job' AND live)", (oldest,)
        )
        self._too_old = {number: self._too_old.get(number, up) for (number,) in rows.fetchall()}
        for number, since in list(self._too_old.items()):
            if up - since >= self.patience_s:
                database.forget(number)
                del self._too_old[number]


def _shrink(database: Database, pages: int) -> None:
    """Drops ended jobs, the earliest end first; then cards that no longer exist; then the oldest days."""
    c = database.connection
    while _used(database) > pages:
        with c:
            c.execute("BEGIN IMMEDIATE")
            row = c.execute(
                "SELECT id FROM series WHERE kind IN ('job', 'rank') AND NOT live ORDER BY last LIMIT 1"
            ).fetchone()
            if row is None:
                row = c.execute(
                    "SELECT id FROM series WHERE kind = 'card' AND last < (SELECT max(last) FROM series) - ?"
                    " ORDER BY last LIMIT 1",
                    (FRESH_S,),
                ).fetchone()
            if row is not None:
                database.forget(row[0])
            elif not (_drop_oldest(database, "thin") or _drop_oldest(database, "fresh")):
                break
    c.execute("PRAGMA incremental_vacuum").fetchall()


def _used(database: Database) -> int:
    """Pages."""
    (count,) = database.connection.execute("PRAGMA page_count").fetchone()
    (free,) = database.connection.execute("PRAGMA freelist_count").fetchone()
    return int(count) - int(free)


def _drop_oldest(database: Database, table: str) -> int:
    """A tenth of the time that it reaches over; how many rows that was."""
    sql = f"DELETE FROM {table} WHERE at <= (SELECT min(at) + (max(at) - min(at)) / 10 FROM {table})"
    return database.connection.execute(sql).rowcount
