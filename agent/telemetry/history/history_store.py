"""The last days of the node, its cards and its jobs: new readings in memory, older ones on disk, and answers from both.

A thread that nothing waits for writes readings to disk every `FLUSH_S` seconds. A disk that hangs, is full or refuses a
write costs the history and nothing else. Readings that cannot be written wait in memory as far as there is room. A
damaged file is set aside, and a new one started.
"""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import anyio
import structlog
from anyio.abc import TaskStatus

from muster.agent.errors import HistoryUnreadable
from muster.agent.host import state_file
from muster.agent.telemetry.history.history_bounds import Keeper
from muster.agent.telemetry.history.history_db import DamagedHistory, Database, told
from muster.agent.telemetry.history.history_rows import Bounds, Busy, FoundSeries, Row, SeriesFacts, SeriesKey
from muster.agent.telemetry.history.history_waiting import Waiting
from muster.probes.calls import watched

#: Seconds between two times that readings are put onto the disk; and that the file's bounds are looked after.
FLUSH_S, KEEP_S = 15.0, 600.0
#: Seconds that a write and an answer may take, and the last write when the daemon ends.
WRITE_S, READ_S, LAST_S = 60.0, 30.0, 5.0
#: Readings of so many steps before and behind the present one wait for the next time: they may come to more.
HOLD = 2

T = TypeVar("T")
#: What the disk may answer with.
_FAILURES = (sqlite3.Error, OSError, watched.StillHanging)
_log = structlog.get_logger(__name__)


class History:
    """Belongs to one event loop."""

    def __init__(
        self, path: Path, bounds: Callable[[], Bounds], *, wall: Callable[[], float] = time.time, owned: bool = False
    ) -> None:
        """`bounds` gives the present ones, `wall` seconds since the epoch. `load`, then `run` make it lasting.
        `owned`: the file is removed with the daemon, so that a new one is begun by the first readings for it, and the
        last ones are written only where it was begun."""
        self._path = path
        self._owned, self._is_new = owned, owned and not path.exists()
        self._bounds = bounds
        self._wall = wall
        self._database: Database | None = None
        self._keeper = Keeper()
        self._keep_at = 0.0
        self._lock = anyio.Lock()
        self._waiting = Waiting(bounds().step_s)
        self._facts: dict[SeriesKey, SeriesFacts] = {}
        self._untold: set[SeriesKey] = set()
        self._unwritten = ""
        self._damage = ""
        #: Of jobs that the file knew when it was opened; those that have ended since are to be taken out.
        self.busy: dict[SeriesKey, Busy] = {}

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator."""
        return [text for text in (self._damage, self._unwritten) if text]

    # --- noting -------------------------------------------------------------------------------------------------------

    def tick(self, at: float) -> float:
        """The time under which readings of one beat, taken at `at`, are to be noted; seconds since the epoch."""
        return self._waiting.tick(at)

    def note(self, key: SeriesKey, at: float, values: Mapping[int, float | None]) -> None:
        """Notes values of a series at a time, by the number of their metric; None says nothing."""
        self._waiting.note(key, at, values)

    def tell(self, key: SeriesKey, facts: SeriesFacts) -> None:
        """Says what is known of a series."""
        if self._facts.get(key) != facts:
            self._facts[key] = facts
            self._untold.add(key)

    def knows(self, key: SeriesKey) -> bool:
        """Whether a series got any value since the daemon started."""
        return key in self._facts

    def end(self, key: SeriesKey) -> None:
        """A job has ended: nothing of it will be noted any more."""
        for one in [key, *(other for other in self._facts if key.has(other))]:
            facts = self._facts.get(one)
            if facts is not None and facts.live:
                self.tell(one, replace(facts, live=False))

    async def forget(self, keys: Collection[SeriesKey]) -> None:
        """Drops all that is known of these jobs, which have ended. What the disk does not give up goes by its age."""
        ranks = [other for other in self._facts if other.kind == "rank" and any(key.has(other) for key in keys)]
        for key in [*keys, *ranks]:
            self._facts.pop(key, None)
            self._untold.discard(key)
            self._waiting.drop(key)
        if self._database is not None:
            try:
                with anyio.move_on_after(WRITE_S):
                    await self._on_disk(lambda database: database.forget_jobs(keys))
            except _FAILURES as error:
                _log.warning("history.not_forgotten", path=str(self._path), error=str(error))

    # --- answers ------------------------------------------------------------------------------------------------------

    async def node(self, start: float, end: float, step: float) -> list[FoundSeries]:
        """The node and all cards that it had from `start` to before `end` (seconds since the epoch), in steps of so
        many seconds from `start` on. Raises HistoryUnreadable, as all of these do."""
        now = self._wall()
        found = await self._read(lambda database: database.node(start, end, step, now))
        return self._with_waiting(found, self._waiting.keys("node", "card"), start, end, step)

    async def card(self, name: str, index: int, start: float, end: float, step: float) -> list[FoundSeries]:
        """The card of this uuid; where that is empty, the one that had this index last."""
        now = self._wall()
        found = await self._read(lambda database: database.card(name, index, start, end, step, now))
        keys = [key for key in self._waiting.keys("card") if key.name == name or (not name and self._at(key, index))]
        return self._with_waiting(found, [one.key for one in found] or keys[:1], start, end, step)

    async def job(self, name: str, start: float, end: float, step: float, *, ranks: bool = False) -> list[FoundSeries]:
        """The newest job of this id, and its cards as long as it had them; nothing where no such job is known. With
        its `ranks`, if they are asked for."""
        now = self._wall()
        found = await self._read(lambda database: database.job(name, start, end, step, now, ranks=ranks))
        known = [key for key in self._facts if key.kind == "job" and key.name == name]
        newest = max(known, key=lambda key: key.born, default=None)
        if newest is None or (found and found[0].key.born > newest.born):
            return found
        facts = self._facts[newest]
        last = self._waiting.newest(newest)
        until = end if facts.live else min(end, (last or 0.0) + self._waiting.step_s)
        mine = [key for key in self._facts if newest.has(key)] if ranks else []
        found = [one for one in found if found[0].key == newest]
        found = self._with_waiting(found, [newest, *mine], start, end, step)
        return self._with_waiting(found, dict(facts.cards), start, until, step, newest.born, dict(facts.cards))

    async def busy_of(self, key: SeriesKey) -> Busy | None:
        """How busy a job's cards were; None where that is not known, or the disk does not say it."""
        if (facts := self._facts.get(key)) is not None:
            return facts.busy
        if self._database is not None:
            with contextlib.suppress(*_FAILURES), anyio.move_on_after(READ_S):
                return await self._on_disk(lambda database: database.busy_of(key))
        return None

    def _with_waiting(
        self,
        found: list[FoundSeries],
        keys: Iterable[SeriesKey],
        start: float,
        end: float,
        step: float,
        since: float = 0.0,
        cards: Mapping[SeriesKey, int] | None = None,
    ) -> list[FoundSeries]:
        """What was found, and what waits in memory of these series. `cards`: index of each, where it is another now."""
        by_key = {one.key: one for one in found}
        for key in keys:
            if key not in by_key:
                facts = self._facts.get(key, SeriesFacts())
                by_key[key] = FoundSeries(key, facts.card_kind, (cards or {}).get(key, facts.card), {})
            self._waiting.add(by_key[key].steps, key, start, end, step, since)
        return list(by_key.values())

    def _at(self, key: SeriesKey, index: int) -> bool:
        facts = self._facts.get(key)
        return facts is not None and facts.card == index

    async def _read(self, work: Callable[[Database], list[FoundSeries]]) -> list[FoundSeries]:
        if self._database is None:
            return []
        found: list[FoundSeries] | None = None
        why = f"no answer within {READ_S:g} s"
        try:
            with anyio.move_on_after(READ_S):
                found = await self._on_disk(work)
        except _FAILURES as error:
            why = str(error)
        if found is None:
            raise HistoryUnreadable(f"{self._path}: cannot be read: {why}")
        return found

    # --- the disk -----------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Opens the file, and begins another where it is damaged. Never raises: without it there is no history."""
        if self._is_new:
            return
        if not await self._flush(0):
            await self._flush(0)
        if self._database is not None:
            try:
                with anyio.move_on_after(READ_S):
                    self.busy = await self._on_disk(lambda database: database.busy())
            except _FAILURES as error:
                _log.warning("history.unread", path=str(self._path), error=str(error))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Writes noted rows to disk until cancelled, then the remaining ones."""
        task_status.started()
        try:
            while True:
                await anyio.sleep(FLUSH_S)
                await self._flush(HOLD)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(LAST_S):
                if not self._owned or self._database is not None:
                    await self._flush(0)
                await self._close()

    async def _flush(self, hold: int) -> bool:
        """Writes what waits, but for the last `hold` steps; whether that was done."""
        now, bounds = self._wall(), self._bounds()
        anew = bounds.step_s != self._waiting.step_s
        rows = self._waiting.taken(now, 0 if anew else hold)
        facts = {key: self._facts[key] for key in self._untold}
        keep = anew or time.monotonic() >= self._keep_at
        why = f"no answer within {WRITE_S:g} s"
        done = False
        try:
            with anyio.move_on_after(WRITE_S):
                await self._on_disk(lambda database: self._write(database, rows, facts, now, keep), opens=True)
                done = True
        except DamagedHistory as error:
            await self._set_aside(str(error))
            return False
        except _FAILURES as error:
            why = str(error)
            if isinstance(error, sqlite3.Error) and (damage := told(error)):
                await self._set_aside(damage)
                return False
        if not done:
            self._unable(why)
            return False
        self._unwritten = ""
        self._waiting.away(rows)
        self._untold -= {key for key, fact in facts.items() if self._facts.get(key) is fact}
        for key in [key for key, fact in self._facts.items() if not fact.live]:
            if key not in self._untold and key not in self._waiting:
                del self._facts[key]  # it has ended, and the disk knows all of it
        if anew:
            self._waiting.change_step(bounds.step_s)
        if keep:
            self._keep_at = time.monotonic() + KEEP_S
        return True

    def _write(
        self,
        database: Database,
        rows: dict[SeriesKey, list[Row]],
        facts: dict[SeriesKey, SeriesFacts],
        now: float,
        keep: bool,
    ) -> None:
        """In the thread."""
        if rows or facts:
            try:
                database.write(rows, facts, now)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                    raise
                self._keeper.keep(database, self._bounds(), now)
                database.write(rows, facts, now)
        if keep:
            self._keeper.keep(database, self._bounds(), now)

    async def _on_disk(self, work: Callable[[Database], T], *, opens: bool = False) -> T:
        """Does `work` with the database in a thread, one at a time. Raises what it raises, and StillHanging."""

        def run() -> T:
            if self._database is None:
                if not opens:
                    raise FileNotFoundError(2, "it is not open", str(self._path))
                self._database = Database.open(self._path, self._bounds())
            return work(self._database)

        async with self._lock:
            return await watched.call(f"the history {self._path}", run)

    async def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            try:
                async with self._lock:
                    await watched.call(f"the history {self._path}", database.close)
            except _FAILURES as error:
                self._unable(str(error))

    async def _set_aside(self, text: str) -> None:
        """Goes on with a new file; the damaged one is kept beside it, and one from before it is not."""
        aside = state_file.name_aside(self._path)

        def move() -> None:
            for old in self._path.parent.glob(f"{self._path.name}.damaged-*"):
                old.unlink(missing_ok=True)
            if self._path.exists():
                self._path.rename(aside)
            for end in ("-wal", "-shm"):
                Path(f"{self._path}{end}").unlink(missing_ok=True)

        _log.error("history.damaged", path=str(self._path), error=text, kept=str(aside))
        self._damage = f"{self._path}: {text}; it was set aside as {aside.name}, and another was begun"
        self._untold = set(self._facts)
        await self._close()
        try:
            with anyio.move_on_after(WRITE_S):
                async with self._lock:
                    await watched.call(f"the history {self._path}", move)
        except _FAILURES as error:
            self._unable(str(error))

    def _unable(self, why: str) -> None:
        dropped = self._waiting.dropped
        lost = f"; {dropped} older readings are lost" if dropped else ""
        if not self._unwritten:
            _log.warning("history.unwritten", path=str(self._path), error=why)
        self._unwritten = f"{self._path}: cannot be written, readings are kept in memory for a while: {why}{lost}"
