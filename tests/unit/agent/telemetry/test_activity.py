"""What the parts of a card did, in the history and in what `why` says of it."""

import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from muster.agent.telemetry.history.history_db import Database
from muster.agent.telemetry.history.history_rows import DRAM, METRICS, SM, TENSOR, UTIL, Bounds, SeriesFacts, SeriesKey
from muster.agent.why.curves import Curve, Minutes, remarks
from muster.probes.cards.accelerator import Activity, Health
from muster.probes.cards.driver import Seen
from tests.unit.agent.telemetry.test_telemetry import clock, entry, made, means, view

__all__ = ["clock"]

KEY = SeriesKey("card", "GPU-2")
BOUNDS = Bounds(1.0, 3.0, 1 << 24)


async def test_an_activity_is_noted_once_and_joins_its_job_and_the_node(tmp_path: Path, clock):
    it, _ = made(tmp_path, entry())
    start = clock.at
    for at, tensor in ((1.0, 40.0), (1.0, 40.0), (1.0, 40.0), (16.0, 2.0)):
        clock.pass_(1.0)
        looked = Seen(at, Health(activity=Activity(15.0, sm=97.0, tensor=tensor)))
        it.take_readings(replace(view({2: 100.0, 3: 100.0}), health={2: looked}))
    (card,) = await it.history.card("GPU-2", 2, start, clock.at + 2, 1.0)
    assert means(card, UTIL) == [100.0] * 4
    assert means(card, TENSOR) == [40.0, 2.0]
    assert means(card, SM) == [97.0, 97.0]
    assert means(card, DRAM) == []  # not told, and not 0
    (other,) = await it.history.card("GPU-3", 3, start, clock.at + 2, 1.0)
    assert means(other, TENSOR) == []
    own, *_ = await it.history.job("a", start, clock.at + 2, 1.0)
    assert means(own, TENSOR) == [40.0, 2.0]
    node = next(found for found in await it.history.node(start, clock.at + 2, 1.0) if found.key.kind == "node")
    assert means(node, TENSOR) == [40.0, 2.0]


def test_a_history_of_the_format_before_goes_on(tmp_path: Path):
    path, now = tmp_path / "history.db", float(int(time.time() // 60) * 60)
    old = METRICS[:5]
    Database.open(path, BOUNDS).close()
    with closing(sqlite3.connect(path)) as before:
        for name in METRICS[5:]:
            for table, column in (("fresh", name), *(("thin", name + end) for end in ("", "_least", "_most"))):
                before.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        before.execute("PRAGMA user_version = 1")
        columns = [row[1] for row in before.execute("PRAGMA table_info(fresh)")]
        assert columns == ["series", "slot", "at", *old]
        before.execute("INSERT INTO series VALUES (1, 'card', 'GPU-2', 0, 'nvidia', 2, ?, 1, 0, 0, 0)", (now,))
        slot = round(now) % BOUNDS.fresh
        before.execute("INSERT INTO fresh VALUES (1, ?, ?, 1, 2, 30, 4, 500)", (slot, now))
        before.commit()
    data = Database.open(path, BOUNDS)
    try:
        row = (now + 1, (None, None, 31.0, None, None, 90.0, 3.0, 8.0, *[None] * len(METRICS[8:])))
        data.write({KEY: [row]}, {KEY: SeriesFacts("nvidia", 2)}, now + 120)
        fresh = "SELECT at, util, sm, tensor, dram FROM fresh ORDER BY at"
        assert data.connection.execute(fresh).fetchall() == [(now, 30, None, None, None), (now + 1, 31, 90, 3, 8)]
        thin = "SELECT util, tensor, tensor_least, tensor_most, dram_most FROM thin"
        assert data.connection.execute(thin).fetchall() == [(30.5, 3, 3, 3, 8)]
    finally:
        data.close()
    Database.open(path, BOUNDS).close()


def test_busy_cards_with_idle_tensor_cores_are_remarked_upon():
    spins = Curve(0, 0, (100.0, 100.0), tensor=(0.0, 0.4))
    trains = Curve(1, 1, (100.0, 100.0), tensor=(60.0, 55.0))
    older = Curve(2, 2, (100.0, 100.0))
    rests = Curve(3, 3, (40.0, 40.0), tensor=(0.0, 0.0))
    (text,) = remarks(Minutes(0.0, 30.0, (spins, trains, older, rests)))
    assert text.startswith("card 0 (rank 0): the tensor cores were idle at the end although utilization was high")
    assert remarks(Minutes(0.0, 30.0, (trains, older, rests))) == []
