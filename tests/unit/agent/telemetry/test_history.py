"""The history as the daemon has it: noting, restarts, a disk that fails, damage, clocks."""

import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from muster.agent.errors import HistoryUnreadable
from muster.agent.telemetry.history import history_store, history_waiting
from muster.agent.telemetry.history.history_db import Database
from muster.agent.telemetry.history.history_disk import DiskHistory
from muster.agent.telemetry.history.history_rows import (
    CPU,
    LOG,
    METRICS,
    UTIL,
    Bounds,
    Busy,
    FoundSeries,
    SeriesFacts,
    SeriesKey,
)
from muster.agent.telemetry.history.history_store import History
from muster.agent.telemetry.history.history_waiting import Waiting
from tests.unit.waiting import until

BOUNDS = Bounds(1.0, 3.0, 64 << 20)
T0 = 1_700_000_040.0
NODE, CARD = SeriesKey("node"), SeriesKey("card", "GPU-1")
JOB = SeriesKey("job", "a", T0)


class Clock:
    def __init__(self) -> None:
        self.now = T0
        self.bounds = BOUNDS

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@asynccontextmanager
async def opened(path: Path, clock: Clock, *, owned: bool = False) -> AsyncIterator[History]:
    """Loaded and running; what is left is written at the end, unless it is owned."""
    made = History(path, lambda: clock.bounds, wall=clock, owned=owned)
    with anyio.fail_after(60):
        await made.load()
        async with anyio.create_task_group() as tasks:
            await tasks.start(made.run)
            yield made
            tasks.cancel_scope.cancel()


def note(made: History, clock: Clock, key: SeriesKey, values: list[float]) -> None:
    for value in values:
        made.note(key, made.tick(clock.now) if key is CARD else clock.now, {UTIL: value})
        clock.now += 1


def means(found: FoundSeries, metric: int = UTIL) -> list[float]:
    values = [found.steps[number].values[metric] for number in sorted(found.steps)]
    return [value[0] for value in values if value is not None]


async def test_what_was_just_noted_is_there_and_after_a_restart_too(tmp_path: Path, clock: Clock):
    path = tmp_path / "x.db"
    async with opened(path, clock) as made:
        made.tell(CARD, SeriesFacts("nvidia", 2))
        note(made, clock, CARD, [1.0, 2.0, 3.0])
        (found,) = await made.card("GPU-1", 2, T0, T0 + 10, 1.0)
        assert (means(found), found.card_kind, found.card) == ([1.0, 2.0, 3.0], "nvidia", 2)
    async with opened(path, clock) as made:
        note(made, clock, CARD, [4.0])
        (found,) = await made.card("", 2, T0, T0 + 10, 1.0)
        assert means(found) == [1.0, 2.0, 3.0, 4.0]
        assert (found.card_kind, found.card) == ("nvidia", 2)
        # What is on disk and what waits come together in one step.
        (found,) = await made.card("GPU-1", 2, T0, T0 + 10, 4.0)
        assert found.steps[0].values[UTIL] == (2.5, 1.0, 4.0)


async def test_the_history_of_an_owned_daemon_goes_with_it(tmp_path: Path, clock: Clock):
    path = tmp_path / "x.db"
    async with opened(path, clock, owned=True) as made:
        assert not path.exists()
        note(made, clock, CARD, [1.0, 2.0])
        (found,) = await made.card("GPU-1", 2, T0, T0 + 10, 1.0)
        assert means(found) == [1.0, 2.0]
    assert not path.exists()


async def test_the_successor_of_an_owned_daemon_goes_on_with_its_history(tmp_path: Path, clock: Clock):
    path = tmp_path / "x.db"
    async with opened(path, clock) as made:
        made.tell(CARD, SeriesFacts("nvidia", 2))
        note(made, clock, CARD, [1.0])
    async with opened(path, clock, owned=True) as made:
        (found,) = await made.card("GPU-1", 2, T0, T0 + 10, 1.0)
        assert means(found) == [1.0]


async def test_metrics_of_one_time_come_together(tmp_path: Path, clock: Clock):
    async with opened(tmp_path / "x.db", clock) as made:
        made.note(NODE, T0 + 0.2, {UTIL: 5.0, CPU: None})
        made.note(NODE, T0 + 0.9, {CPU: 7.0})
        (found,) = await made.node(T0, T0 + 5, 1.0)
        assert found.steps[0].values[UTIL] == (5.0, 5.0, 5.0)
        assert found.steps[0].values[CPU] == (7.0, 7.0, 7.0)
        assert list(found.steps) == [0]


async def test_it_is_written_again_and_again(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(history_store, "FLUSH_S", 0.01)
    path = tmp_path / "x.db"
    async with opened(path, clock) as made:
        note(made, clock, CARD, [1.0, 2.0, 3.0, 4.0, 5.0])
        await until_rows(path, 4)  # the last ones may come to more
        clock.now += 5
        await until_rows(path, 5)
        assert made.trouble == []


async def until_rows(path: Path, count: int) -> None:
    def rows() -> int:
        with sqlite3.connect(path) as connection:
            (found,) = connection.execute("SELECT count(*) FROM fresh").fetchone()
        connection.close()
        return int(found)

    await until(lambda: rows() == count)


async def test_a_job_that_has_ended_is_there_with_its_cards(tmp_path: Path, clock: Clock):
    path = tmp_path / "x.db"
    async with opened(path, clock) as made:
        note(made, clock, CARD, [9.0, 9.0])
        made.tell(JOB, SeriesFacts("nvidia", busy=Busy(T0, 100.0, 2.0), cards=((CARD, 4),)))
        for value in (1.0, 2.0, 3.0):
            made.note(CARD, clock.now, {UTIL: value})
            note(made, clock, JOB, [value * 10])
        own, its_card = await made.job("a", T0, T0 + 10, 1.0)
        assert means(own) == [10.0, 20.0, 30.0]
        assert (means(its_card), its_card.card) == ([9.0, 9.0, 1.0, 2.0, 3.0], 4)
        made.end(JOB)
        note(made, clock, CARD, [8.0, 8.0])
        own, its_card = await made.job("a", T0, T0 + 10, 1.0)
        assert means(its_card) == [9.0, 9.0, 1.0, 2.0, 3.0]
        assert await made.busy_of(JOB) == Busy(T0, 100.0, 2.0)
    async with opened(path, clock) as made:
        assert made.busy == {JOB: Busy(T0, 100.0, 2.0)}
        assert await made.busy_of(JOB) == Busy(T0, 100.0, 2.0)
        own, its_card = await made.job("a", T0, T0 + 10, 1.0)
        assert means(own) == [10.0, 20.0, 30.0]
        assert means(its_card) == [9.0, 9.0, 1.0, 2.0, 3.0]
        # Another job takes the id.
        later = SeriesKey("job", "a", clock.now)
        made.tell(later, SeriesFacts("nvidia"))
        made.note(later, clock.now, {UTIL: 77.0})
        (own,) = await made.job("a", T0, T0 + 60, 1.0)
        assert means(own) == [77.0]
        assert await made.job("b", T0, T0 + 10, 1.0) == []


async def test_a_full_disk_costs_nothing_but_the_history(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(history_store, "FLUSH_S", 0.01)
    path = tmp_path / "x.db"
    real, full = Database.write, True

    def write(self: Database, *args: object) -> None:
        if full:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "write", write)
    async with opened(path, clock) as made:
        note(made, clock, CARD, [1.0, 2.0, 3.0, 4.0])
        await until(lambda: made.trouble)
        assert "disk is full" in made.trouble[0] and str(path) in made.trouble[0]
        (found,) = await made.card("GPU-1", 0, T0, T0 + 10, 1.0)
        assert means(found) == [1.0, 2.0, 3.0, 4.0]  # from memory
        full = False
        await until(lambda: not made.trouble)
    async with opened(path, clock) as made:
        (found,) = await made.card("GPU-1", 0, T0, T0 + 10, 1.0)
        assert means(found) == [1.0, 2.0, 3.0, 4.0]


async def test_where_it_cannot_be_opened_memory_answers(tmp_path: Path, clock: Clock):
    async with opened(tmp_path / "no" / "x.db", clock) as made:
        assert "No such file" in made.trouble[0]
        note(made, clock, CARD, [1.0, 2.0])
        (found,) = await made.card("GPU-1", 0, T0, T0 + 10, 1.0)
        assert means(found) == [1.0, 2.0]
        assert await made.job("a", T0, T0 + 10, 1.0) == []


async def test_memory_has_an_end_as_well(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(history_waiting, "MAX_ROWS", 80)
    waiting = Waiting(1.0)
    for i in range(1000):
        waiting.note(CARD if i % 2 else NODE, T0 + i, {UTIL: float(i)})
        assert len(waiting) <= 80
    taken = waiting.taken(T0 + 1000, 0)
    assert max(at for rows in taken.values() for at, _ in rows) == T0 + 999
    assert sum(len(rows) for rows in taken.values()) == len(waiting) == 1000 - waiting.dropped
    waiting.away(taken)
    assert (len(waiting), waiting.dropped, waiting.keys("node", "card")) == (0, 0, [])


async def test_a_damaged_file_is_set_aside_and_another_begun(tmp_path: Path, clock: Clock):
    path = tmp_path / "x.db"
    path.write_bytes(b"what is this? " * 1000)
    async with opened(path, clock) as made:
        assert "set aside" in made.trouble[0]
        note(made, clock, CARD, [1.0])
    (aside,) = set_aside(path)
    assert aside.read_bytes().startswith(b"what is this")
    async with opened(path, clock) as made:
        assert made.trouble == []
        (found,) = await made.card("GPU-1", 0, T0, T0 + 10, 1.0)
        assert means(found) == [1.0]


async def test_damage_that_shows_in_the_middle(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(history_store, "FLUSH_S", 0.01)
    path = tmp_path / "x.db"
    async with opened(path, clock) as made:
        made.tell(CARD, SeriesFacts("nvidia", 3))
        note(made, clock, CARD, [1.0] * 50)
    data = bytearray(path.read_bytes())
    for page in range(1, len(data) // 4096):  # all but the first, which tells the layout
        data[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    path.write_bytes(data)
    async with opened(path, clock) as made:
        made.tell(CARD, SeriesFacts("nvidia", 3))
        note(made, clock, CARD, [2.0, 3.0])
        clock.now += 10
        await until(lambda: set_aside(path))
        (found,) = await made.card("GPU-1", 3, clock.now - 100, clock.now, 1.0)
        assert means(found) == [2.0, 3.0]  # nothing that was noted meanwhile is lost
        assert found.card_kind == "nvidia"
        assert "set aside" in made.trouble[0]


def set_aside(path: Path) -> list[Path]:
    return list(path.parent.glob(f"{path.name}.damaged-*"))


async def test_of_several_damaged_files_the_last_is_kept(tmp_path: Path, clock: Clock):
    path = tmp_path / "x.db"
    (tmp_path / "x.db.damaged-20200101T000000").write_bytes(b"old")
    path.write_bytes(b"new" * 1000)
    async with opened(path, clock):
        pass
    (aside,) = set_aside(path)
    assert aside.read_bytes().startswith(b"new")


async def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x.db"
    go_on = threading.Event()
    async with opened(path, clock) as made:
        note(made, clock, CARD, [1.0])
        with monkeypatch.context() as patched:
            patched.setattr(history_store, "READ_S", 0.05)
            patched.setattr(Database, "card", lambda *_: go_on.wait(60) and [])
            with pytest.raises(HistoryUnreadable, match=r"x\.db: cannot be read: no answer within"):
                await made.card("GPU-1", 0, T0, T0 + 10, 1.0)
            with pytest.raises(HistoryUnreadable, match="still hangs"):
                await made.card("GPU-1", 0, T0, T0 + 10, 1.0)
        note(made, clock, CARD, [2.0])
        go_on.set()
        with anyio.fail_after(60):
            while True:
                try:
                    (found,) = await made.card("GPU-1", 0, T0, T0 + 10, 1.0)
                except HistoryUnreadable:
                    await anyio.sleep(0.01)
                    continue
                break
        assert means(found) == [1.0, 2.0]


async def test_another_rate_is_taken_over(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(history_store, "FLUSH_S", 0.01)
    path = tmp_path / "x.db"
    async with opened(path, clock) as made:
        note(made, clock, CARD, [1.0] * 20)
        clock.bounds = Bounds(5.0, 3.0, 64 << 20)
        await until(lambda: made.tick(clock.now) % 5 == 0)
        for _ in range(4):
            made.note(CARD, made.tick(clock.now), {UTIL: 3.0})
            clock.now += 5
        (found,) = await made.card("GPU-1", 0, T0, T0 + 60, 20.0)
        assert means(found) == [1.0, 3.0]


# --- the time of a reading --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [0.0, 0.001, 0.4, 0.5, 0.6, 0.999])
def test_looks_that_come_a_little_early_or_late_have_a_slot_each(phase: float):
    waiting = Waiting(1.0)
    times = [waiting.tick(T0 + i + phase + (0.002 if i % 2 else -0.002)) for i in range(100)]
    assert [b - a for a, b in pairwise(times)] == [1.0] * 99
    assert all(abs(at - (T0 + i + phase)) <= 1.5 for i, at in enumerate(times))


def test_a_beat_that_is_missing_is_a_gap_and_a_step_of_the_clock_is_followed():
    waiting = Waiting(1.0)
    assert waiting.tick(T0 + 0.5) == T0
    assert waiting.tick(T0 + 1.5) == T0 + 1
    assert waiting.tick(T0 + 4.5) == T0 + 4
    assert waiting.tick(T0 - 100.5) == T0 - 101
    assert waiting.tick(T0 + 86400) == T0 + 86400


def test_a_reading_twice_a_step_does_not_run_ahead_of_time():
    waiting = Waiting(1.0)
    at = [waiting.tick(T0 + i * 0.25) for i in range(400)]
    assert max(abs(a - (T0 + i * 0.25)) for i, a in enumerate(at)) <= 1.5


async def test_the_ranks_of_a_job_are_found_with_it_and_go_with_it(tmp_path: Path, clock: Clock):
    path, other = tmp_path / "x.db", SeriesKey("job", "a1", T0)
    async with opened(path, clock) as made:
        made.tell(JOB, SeriesFacts("nvidia"))
        made.tell(other, SeriesFacts("nvidia"))
        for number in (0, 2, 10):
            made.tell(JOB.of_rank(number), SeriesFacts())
            note(made, clock, JOB.of_rank(number), [float(number)])
        made.tell(other.of_rank(3), SeriesFacts())
        note(made, clock, other.of_rank(3), [3.0])
        note(made, clock, JOB, [1.0])
        found = await made.job("a", T0, T0 + 100, 1.0, ranks=True)
        assert [one.key.rank for one in found] == [None, 0, 2, 10]
        assert [one.key.kind for one in await made.job("a", T0, T0 + 100, 1.0)] == ["job"]
        made.end(JOB)
    disk = DiskHistory(path, BOUNDS)
    found = await disk.job("a", T0, T0 + 100, 1.0, ranks=True)
    assert [one.key.rank for one in found] == [None, 0, 2, 10]
    assert [means(one) for one in found] == [[1.0], [0.0], [2.0], [10.0]]
    async with opened(path, clock) as made:
        await made.forget([JOB])
        assert await made.job("a", T0, T0 + 100, 1.0, ranks=True) == []
        (left, rank) = await made.job("a1", T0, T0 + 100, 1.0, ranks=True)
        assert (left.key, rank.key) == (other, other.of_rank(3))


@pytest.mark.parametrize("waits", [False, True], ids=["closed", "in use"])
async def test_a_reader_beside_the_daemon_changes_nothing(tmp_path: Path, clock: Clock, waits: bool):
    path = tmp_path / "x.db"

    def files() -> dict[str, bytes]:
        return {one.name: one.read_bytes() for one in tmp_path.iterdir() if not one.name.endswith("-shm")}

    async def look() -> None:
        before = files()
        found = await DiskHistory(path, BOUNDS).job("a", T0, T0 + 100, 1.0)
        assert [means(one) for one in found] == [[5.0]]
        assert files() == before

    database = Database.open(path, BOUNDS)
    try:
        database.write({JOB: [(T0, [None, None, 5.0, *[None] * 9])]}, {JOB: SeriesFacts("nvidia")}, T0 + 1)
        if waits:
            await look()
    finally:
        database.close()
    await look()
    assert await DiskHistory(tmp_path / "none.db", BOUNDS).job("a", T0, T0 + 100, 1.0) == []


async def test_a_file_of_an_earlier_format_is_read_as_it_is(tmp_path: Path):
    path = tmp_path / "x.db"
    database = Database.open(path, BOUNDS)
    database.write({JOB: [(T0, [None, None, 5.0, *[None] * 9])]}, {JOB: SeriesFacts("nvidia")}, T0 + 90)
    for name in METRICS[8:]:
        for table, column in (("fresh", name), *(("thin", name + end) for end in ("", "_least", "_most"))):
            database.connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    database.connection.execute("PRAGMA user_version = 2")
    database.close()
    (found,) = await DiskHistory(path, BOUNDS).job("a", T0, T0 + 100, 1.0)
    assert means(found) == [5.0] and means(found, LOG) == []
    with sqlite3.connect(path) as left:
        assert left.execute("PRAGMA user_version").fetchone() == (2,)
    left.close()
