"""The history's rings on disk: full rate, minutes, order, bounds, damage."""

import math
import os
import random
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.agent.telemetry.history.history_bounds import Keeper
from muster.agent.telemetry.history.history_db import DamagedHistory, Database, told
from muster.agent.telemetry.history.history_rows import (
    CPU,
    METRICS,
    POWER,
    UTIL,
    Bounds,
    Busy,
    FoundSeries,
    Row,
    SeriesFacts,
    SeriesKey,
    Step,
    joined,
)

BOUNDS = Bounds(step_s=1.0, days=3.0, bytes=64 << 20)
#: A full minute.
T0 = 1_700_000_040.0
NODE, CARD = SeriesKey("node"), SeriesKey("card", "GPU-1")


def row(at: float, util: float | None = None, power: float | None = None) -> Row:
    values = {UTIL: util, POWER: power}
    return at, tuple(values.get(metric) for metric in range(len(METRICS)))


def rows(start: float, count: int, util: float = 50.0, step: float = 1.0) -> list[Row]:
    return [row(start + i * step, util) for i in range(count)]


def points(found: FoundSeries, metric: int = UTIL) -> list[tuple[int, float, float, float]]:
    values = [(number, found.steps[number].values[metric]) for number in sorted(found.steps)]
    return [(number, *value) for number, value in values if value is not None]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database.open(tmp_path / "telemetry.db", BOUNDS)
    yield made
    made.close()


def card(database: Database, start: float, end: float, step: float, now: float) -> FoundSeries:
    (found,) = database.card("GPU-1", 0, start, end, step, now)
    return found


def test_the_last_hour_is_there_at_full_rate(database: Database):
    database.write(
        {CARD: [row(T0 + i, float(i), 2.0 * i) for i in range(10)]}, {CARD: SeriesFacts("nvidia", 3)}, T0 + 10
    )
    found = card(database, T0 + 2, T0 + 8, 1.0, T0 + 10)
    assert points(found) == [(i, i + 2.0, i + 2.0, i + 2.0) for i in range(6)]
    assert points(found, POWER)[0] == (0, 4.0, 4.0, 4.0)
    assert points(found, CPU) == []
    assert (found.key, found.card_kind, found.card) == (CARD, "nvidia", 3)
    # In longer steps: mean, least and most.
    assert points(card(database, T0, T0 + 10, 5.0, T0 + 10)) == [(0, 2.0, 0.0, 4.0), (1, 7.0, 5.0, 9.0)]


def test_what_is_older_is_there_by_the_minute(database: Database):
    for minute in range(90):  # as it is written: a bit at a time
        start = T0 + 60 * minute
        database.write({CARD: [row(start + i, float(minute) + (i == 7)) for i in range(60)]}, {}, start + 60)
    now = T0 + 90 * 60
    old = points(card(database, T0, T0 + 600, 1.0, now))
    assert [(n, least, most) for n, _, least, most in old] == [(60 * m, float(m), m + 1.0) for m in range(10)]
    assert [mean for _, mean, _, _ in old] == [pytest.approx(m + 1 / 60) for m in range(10)]
    new = card(database, now - 120, now, 1.0, now)
    assert len(points(new)) == 120
    # Over the border nothing is counted twice, and nothing is missing.
    both = card(database, T0, now, 60.0, now)
    assert [number for number, *_ in points(both)] == list(range(90))
    assert [least for _, _, least, _ in points(both)] == [float(m) for m in range(90)]
    assert [mean for _, mean, _, _ in points(both)] == [pytest.approx(m + 1 / 60) for m in range(90)]


def test_the_ring_is_written_over(database: Database):
    for hour in range(3):
        start = T0 + 3600 * hour
        database.write({CARD: rows(start, 3600, float(hour))}, {}, start + 3600)
    (count,) = database.connection.execute("SELECT count(*) FROM fresh").fetchone()
    assert count == 3600
    (count,) = database.connection.execute("SELECT count(*) FROM thin").fetchone()
    assert count == 180


def test_days_are_written_over_as_well(tmp_path: Path):
    database = Database.open(tmp_path / "x.db", Bounds(60.0, 0.01, 64 << 20))  # 14.4 minutes
    for minute in range(100):
        database.write({CARD: [row(T0 + 60 * minute, float(minute))]}, {}, T0 + 60 * (minute + 1))
    (count,) = database.connection.execute("SELECT count(*) FROM thin").fetchone()
    assert count == 16
    database.close()


def test_a_row_takes_the_place_of_one_of_the_same_time(database: Database):
    database.write({CARD: rows(T0, 5, 1.0)}, {}, T0 + 5)
    database.write({CARD: [row(T0 + 2, 9.0)]}, {}, T0 + 6)
    assert [mean for _, mean, _, _ in points(card(database, T0, T0 + 5, 1.0, T0 + 6))] == [1.0, 1.0, 9.0, 1.0, 1.0]


@pytest.mark.parametrize("step", [0.05, 0.3, 1.0, 7.0, 45.0, 60.0, 100.0, 86400.0])
def test_any_rate_is_kept(tmp_path: Path, step: float):
    database = Database.open(tmp_path / "x.db", Bounds(step, 400.0, 64 << 20))
    first = math.ceil(T0 / step)
    count = 300
    written = [row((first + i) * step, float(i % 10)) for i in range(count)]
    end = written[-1][0] + step
    database.write({CARD: written}, {}, end)
    wanted = max(step, 60.0)
    begin = math.floor(written[0][0] / wanted) * wanted
    found = points(card(database, begin, end + 60, wanted, end))
    # Each full minute (or step) that there is, once.
    assert len(found) == len({int((at - begin) // wanted) for at, _ in written})
    assert min(least for _, _, least, _ in found) == 0.0
    assert max(most for _, _, _, most in found) == 9.0
    database.close()


def test_after_a_restart_the_open_minute_is_finished(tmp_path: Path):
    path = tmp_path / "x.db"
    database = Database.open(path, BOUNDS)
    database.write({CARD: rows(T0, 90, 10.0)}, {}, T0 + 90)
    assert database.connection.execute("SELECT count(*) FROM thin").fetchone() == (1,)
    database.connection.close()  # killed
    database = Database.open(path, BOUNDS)
    database.write({CARD: rows(T0 + 100, 30, 40.0)}, {}, T0 + 130)
    thin = database.connection.execute("SELECT at, util, util_least, util_most FROM thin ORDER BY at").fetchall()
    assert thin == [(T0, 10.0, 10.0, 10.0), (T0 + 60, pytest.approx((30 * 10 + 20 * 40) / 50), 10.0, 40.0)]
    database.close()


def test_a_clock_that_is_set_back_gives_each_step_once_and_in_order(database: Database):
    database.write({CARD: rows(T0, 600, 10.0)}, {}, T0 + 600)
    database.write({CARD: rows(T0 + 300, 60, 90.0)}, {}, T0 + 360)  # five minutes back
    found = points(card(database, T0, T0 + 600, 60.0, T0 + 360))
    assert [number for number, *_ in found] == sorted({number for number, *_ in found})
    assert {n: mean for n, mean, *_ in found}[5] == 90.0
    database.write({CARD: rows(T0 - 86400, 60, 70.0)}, {}, T0 - 86400 + 60)  # a day back
    found = points(card(database, T0 - 86400, T0 - 86400 + 60, 1.0, T0 - 86400 + 60))
    assert [mean for _, mean, *_ in found] == [70.0] * 60
    # And forth again: the days are still there.
    found = points(card(database, T0, T0 + 240, 60.0, T0 + 7200))
    assert [mean for _, mean, *_ in found] == [10.0] * 4


def test_a_job_has_its_cards_for_its_time_only(database: Database):
    other = SeriesKey("card", "GPU-2")
    job = SeriesKey("job", "a", T0 + 20)
    facts = {
        CARD: SeriesFacts("nvidia", 0),
        other: SeriesFacts("nvidia", 1),
        job: SeriesFacts("nvidia", busy=Busy(T0 + 21, 300.0, 10.0), cards=((other, 5),)),
    }
    database.write({CARD: rows(T0, 60, 1.0), other: rows(T0, 60, 2.0), job: rows(T0 + 20, 20, 3.0)}, facts, T0 + 60)
    database.write({}, {job: SeriesFacts("nvidia", live=False, cards=((other, 5),))}, T0 + 60)
    own, its_card = database.job("a", T0, T0 + 60, 1.0, T0 + 60)
    assert (own.key, [n for n, *_ in points(own)]) == (job, list(range(20, 40)))
    assert (its_card.key, its_card.card) == (other, 5)  # the index that it had in the job
    assert [n for n, *_ in points(its_card)] == list(range(20, 40))
    assert database.job("b", T0, T0 + 60, 1.0, T0 + 60) == []
    # A later job of the same id is another one.
    later = SeriesKey("job", "a", T0 + 50)
    database.write({later: rows(T0 + 50, 5, 8.0)}, {later: SeriesFacts("nvidia")}, T0 + 60)
    (own,) = database.job("a", T0, T0 + 60, 1.0, T0 + 60)
    assert [n for n, *_ in points(own)] == list(range(50, 55))


def test_the_node_comes_with_the_cards_that_it_had(database: Database):
    gone = SeriesKey("card", "GPU-0")
    database.write({gone: rows(T0 - 600, 10, 1.0), CARD: rows(T0, 5), NODE: rows(T0, 5)}, {}, T0 + 5)
    assert [f.key for f in database.node(T0, T0 + 5, 1.0, T0 + 5)] == [NODE, CARD]
    assert {f.key for f in database.node(T0 - 900, T0 + 5, 1.0, T0 + 5)} == {NODE, CARD, gone}


def test_a_card_is_found_by_its_index_where_its_name_is_not_known(database: Database):
    before = SeriesKey("card", "GPU-old")
    facts = {before: SeriesFacts("nvidia", 0), CARD: SeriesFacts("nvidia", 0)}
    database.write({before: rows(T0, 5, 1.0), CARD: rows(T0 + 10, 5, 2.0)}, facts, T0 + 20)
    assert [f.key for f in database.card("", 0, T0, T0 + 20, 1.0, T0 + 20)] == [CARD]
    assert database.card("", 7, T0, T0 + 20, 1.0, T0 + 20) == []


def test_how_busy_a_job_was_is_kept(tmp_path: Path):
    path = tmp_path / "x.db"
    database = Database.open(path, BOUNDS)
    job = SeriesKey("job", "a", 5.0)
    database.write({}, {job: SeriesFacts("nvidia", busy=Busy(7.0, 1234.5, 60.0))}, T0)
    database.close()
    database = Database.open(path, BOUNDS)
    assert database.busy() == {job: Busy(7.0, 1234.5, 60.0)}
    assert database.connection.execute("SELECT live FROM series").fetchall() == [(0,)]  # it says so again if it is
    database.close()


def test_a_write_that_fails_leaves_nothing(database: Database):
    database.write({CARD: rows(T0, 30)}, {}, T0 + 30)
    bad: dict[SeriesKey, list[Row]] = {NODE: rows(T0, 3), CARD: [(T0 + 31, (1.0,))]}  # too few columns
    with pytest.raises(sqlite3.Error):
        database.write(bad, {}, T0 + 90)
    assert [f.key for f in database.node(T0, T0 + 90, 1.0, T0 + 90)] == [CARD]
    database.write({NODE: rows(T0, 3)}, {}, T0 + 90)
    assert [f.key for f in database.node(T0, T0 + 90, 1.0, T0 + 90)] == [NODE, CARD]
    assert database.connection.execute("SELECT count(*) FROM thin").fetchone() == (2,)


def test_only_its_user_may_read_it(database: Database):
    for name in os.listdir(database.path.parent):
        assert stat.S_IMODE((database.path.parent / name).stat().st_mode) == 0o600, name


# --- bounds -----------------------------------------------------------------------------------------------------------


def size(path: Path) -> int:
    return sum(other.stat().st_size for other in path.parent.glob(f"{path.name}*"))


def test_the_file_stays_within_its_bytes_and_the_jobs_that_ended_first_go(tmp_path: Path):
    bounds = Bounds(1.0, 3.0, 2 << 20)
    path = tmp_path / "x.db"
    database, keeper = Database.open(path, bounds), Keeper()
    noise = random.Random(5)
    for number in range(40):
        start = T0 + 3600 * number
        job = SeriesKey("job", f"job-{number}", start)
        some = [(start + i, tuple(noise.random() for _ in METRICS)) for i in range(3600)]
        try:
            database.write({job: some}, {job: SeriesFacts("nvidia")}, start + 3600)
        except sqlite3.OperationalError as error:
            assert error.sqlite_errorcode == sqlite3.SQLITE_FULL
            keeper.keep(database, bounds, start + 3600)
            database.write({job: some}, {job: SeriesFacts("nvidia")}, start + 3600)
        database.write({}, {job: SeriesFacts("nvidia", live=False)}, start + 3600)
        keeper.keep(database, bounds, start + 3600)
        assert size(path) <= bounds.bytes * 1.1
    names = [key.name for key in sorted(database.busy(), key=lambda key: key.born)]
    assert names == [f"job-{number}" for number in range(40 - len(names), 40)]  # the newest are left
    assert len(names) > 2
    database.close()


def test_where_only_the_living_are_left_the_oldest_days_go(tmp_path: Path):
    bounds = Bounds(1.0, 366.0, 1 << 20)
    path = tmp_path / "x.db"
    database, keeper = Database.open(path, bounds), Keeper()
    noise = random.Random(5)
    now = T0
    for _ in range(60):
        some = [(now + 60 * i, tuple(noise.random() for _ in METRICS)) for i in range(240)]
        now += 240 * 60
        try:
            database.write({NODE: some}, {}, now)
        except sqlite3.OperationalError:
            keeper.keep(database, bounds, now)
            database.write({NODE: some}, {}, now)
        keeper.keep(database, bounds, now)
    assert size(path) <= bounds.bytes * 1.1
    ((oldest, newest),) = database.connection.execute("SELECT min(at), max(at) FROM thin").fetchall()
    assert newest == now - 60
    assert T0 < oldest < now - 86400
    database.close()


def test_what_is_too_old_goes_but_not_for_a_moment_of_a_wrong_clock(database: Database):
    job, gone = SeriesKey("job", "a", T0), SeriesKey("card", "GPU-gone")
    database.write({job: rows(T0, 60), gone: rows(T0, 60), CARD: rows(T0, 60)}, {job: SeriesFacts(live=False)}, T0 + 60)
    late = T0 + 10 * 86400
    database.write({CARD: rows(late, 60)}, {}, late + 60)
    Keeper().keep(database, BOUNDS, late + 60)
    assert set(database.busy()) == {job}
    Keeper(patience_s=0.0).keep(database, BOUNDS, late + 60)
    assert database.busy() == {}
    assert [f.key for f in database.node(T0, late + 60, 60.0, late + 60)] == [CARD]
    assert database.connection.execute("SELECT count(*) FROM fresh").fetchone()[0] == 60
    # It may come back.
    database.write({gone: rows(late, 60)}, {}, late + 60)
    assert len(database.node(late, late + 60, 60.0, late + 60)) == 2


def test_a_job_that_runs_is_kept_however_long_it_was_silent(database: Database):
    job = SeriesKey("job", "a", T0)
    database.write({job: rows(T0, 60)}, {job: SeriesFacts()}, T0 + 60)
    Keeper(patience_s=0.0).keep(database, BOUNDS, T0 + 30 * 86400)
    assert set(database.busy()) == {job}


def test_what_has_ended_needs_no_full_rate(database: Database):
    database.write({CARD: rows(T0, 60)}, {}, T0 + 60)
    Keeper().keep(database, BOUNDS, T0 + 7200)
    assert database.connection.execute("SELECT count(*) FROM fresh").fetchone() == (0,)
    assert len(points(card(database, T0, T0 + 60, 60.0, T0 + 7200))) == 1


def test_shorter_rings_take_the_rest_away(database: Database):
    database.write({CARD: rows(T0, 3600)}, {}, T0 + 3600)
    Keeper().keep(database, Bounds(60.0, 0.01, 64 << 20), T0 + 3600)
    assert database.connection.execute("SELECT count(*) FROM fresh").fetchone()[0] <= 60
    assert database.connection.execute("SELECT count(*) FROM thin").fetchone()[0] <= 16


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_database_is_damaged(tmp_path: Path):
    path = tmp_path / "x.db"
    path.write_bytes(b"what is this? " * 1000)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        Database.open(path, BOUNDS)
    assert "is damaged" in told(caught.value)


def test_a_file_of_another_version_is_not_read(tmp_path: Path):
    path = tmp_path / "x.db"
    Database.open(path, BOUNDS).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(DamagedHistory, match="format 99"):
        Database.open(path, BOUNDS)


def test_not_every_error_is_damage(tmp_path: Path):
    with pytest.raises(OSError):
        Database.open(tmp_path / "no" / "x.db", BOUNDS)
    assert told(sqlite3.OperationalError("database is locked")) == ""


# --- steps ------------------------------------------------------------------------------------------------------------


def test_two_parts_of_a_step_are_weighed():
    one = Step(60.0, ((10.0, 5.0, 20.0), None))
    two = Step(20.0, ((50.0, 40.0, 60.0), (1.0, 1.0, 1.0)))
    assert joined(one, two) == Step(80.0, ((20.0, 5.0, 60.0), (1.0, 1.0, 1.0)))
    assert joined(None, two) == two


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.floats(0, 100), min_size=1, max_size=400),
    cuts=st.lists(st.integers(1, 120), min_size=1, max_size=8),
    step=st.sampled_from([1.0, 15.0, 60.0, 300.0]),
)
def test_steps_say_what_the_readings_were(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], cuts: list[int], step: float
):
    """However the readings came in batches, and wherever the daemon was killed between them."""
    path = tmp_path_factory.mktemp("db") / "x.db"
    written = [row(T0 + i, value) for i, value in enumerate(values)]
    database = Database.open(path, BOUNDS)
    done = 0
    while done < len(written):
        batch = written[done : done + cuts[done % len(cuts)]]
        done += len(batch)
        database.write({CARD: batch}, {}, batch[-1][0] + 1)
        if done % 3 == 0:
            database.connection.close()
            database = Database.open(path, BOUNDS)
    end = T0 + len(values)
    start = math.floor(T0 / step) * step
    found = points(card(database, start, end, step, end))
    for number, mean, least, most in found:
        mine = [v for i, v in enumerate(values) if int((T0 + i - start) // step) == number]
        assert (least, most) == (min(mine), max(mine))
        assert mean == pytest.approx(sum(mine) / len(mine))
    assert len(found) == len({int((T0 + i - start) // step) for i in range(len(values))})
    # A day later the minutes that were over say the same.
    full = len(values) // 60
    database.write({}, {}, end)
    old = points(card(database, T0, T0 + 60 * full, 60.0, T0 + 86400))
    assert [(least, most) for _, _, least, most in old] == [
        (min(values[60 * m : 60 * m + 60]), max(values[60 * m : 60 * m + 60])) for m in range(full)
    ]
    database.close()


@pytest.mark.parametrize(("step_s", "span_s", "most"), [(1.0, 3600.0, 5e6), (60.0, 86_400.0, 8e6)], ids=["hour", "day"])
def test_the_history_of_eight_cards_and_ranks_takes_so_much_room(
    tmp_path: Path, step_s: float, span_s: float, most: float
):
    """The figures of docs/concepts/telemetry.md: each series has all its readings, and none is like another."""
    job, noise = SeriesKey("job", "a", T0), random.Random(1)
    series = [NODE, job, *(SeriesKey("card", f"GPU-{index}") for index in range(8))]
    series += [job.of_rank(number) for number in range(8)]
    database = Database.open(tmp_path / "telemetry.db", BOUNDS)
    try:
        times = [T0 + place * step_s for place in range(round(span_s / step_s))]
        for key in series:
            kept = times if key.kind != "rank" or step_s > 15 else times[::15]
            told = {CPU, *range(9, 12)} if key.kind == "rank" else set(range(9 if key.kind == "card" else 5))
            values = [[noise.random() if metric in told else None for metric in range(len(METRICS))] for _ in kept]
            database.write({key: list(zip(kept, values, strict=True))}, {}, times[-1] + 120)
        database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        database.close()
    assert (tmp_path / "telemetry.db").stat().st_size < most
