"""The minutes before an end, from a history, and what stands out in them."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.agent.jobs.entry import Entry
from muster.agent.telemetry.history.history_rows import (
    CARD_MEM,
    CPU,
    MEM,
    POWER,
    UTIL,
    Bounds,
    Busy,
    SeriesFacts,
    SeriesKey,
)
from muster.agent.telemetry.history.history_store import History
from muster.agent.why import curves as why_telemetry
from muster.agent.why.curves import Curve, Minutes, last, peak, remarks
from tests.unit.why_facts import facts, rank

BOUNDS = Bounds(1.0, 1.0, 1 << 20)


def job(zero: float, ran: float) -> Entry:
    """Ended at `zero`."""
    known = facts(rank(0), rank(1))
    known.job.started_at, known.job.accepted_at = zero - ran, zero - ran - 1
    return known.entry


@pytest.fixture
def noted(tmp_path: Path) -> Callable[[Entry, float, float], History]:
    """A history with a reading each second: card 0 busy, card 1 busy but for the last 30 s."""

    def make(entry: Entry, zero: float, ran: float) -> History:
        history = History(tmp_path / "h", lambda: BOUNDS)
        cards = (SeriesKey("card", "a"), SeriesKey("card", "b"))
        own = SeriesKey("job", "j", entry.job.accepted_at)
        history.tell(own, SeriesFacts("nvidia", busy=Busy(entry.job.started_at), cards=((cards[0], 0), (cards[1], 1))))
        for place, card in enumerate(cards):
            history.tell(card, SeriesFacts("nvidia", place))
        for second in range(int(ran)):
            at = zero - ran + second
            idle = ran - second <= 30
            history.note(cards[0], at, {UTIL: 100.0, CARD_MEM: 98.0, POWER: 500.0})
            history.note(cards[1], at, {UTIL: 0.0 if idle else 99.0, CARD_MEM: 50.0, POWER: 90.0 if idle else 480.0})
            history.note(own, at, {CPU: 12.0, MEM: 91.0})
        return history

    return make


async def test_the_minutes_before_the_end(noted: Callable[[Entry, float, float], History]) -> None:
    zero = time.time()
    entry = job(zero, 200)
    minutes = await why_telemetry.read(noted(entry, zero, 200), entry, zero, 1.0)
    assert minutes.step == 10.0 and minutes.missing == ""
    first, second, own = minutes.curves
    assert (first.card, first.rank, second.card, second.rank, own.card) == (0, 0, 1, 1, None)
    assert last(first.util) == 100.0 and last(second.util) == 0.0 and second.util[5] == 99.0
    assert last(second.power) == 90.0 and peak(second.power) == 480.0
    assert (last(own.cpu), last(own.memory)) == (12.0, 91.0)
    assert len(first.util) == len(second.util) == len(own.cpu) in (20, 21)
    assert remarks(minutes) == [
        "card 1 (rank 1) stayed idle at the end while the others were busy",
        "the memory of card 0 (rank 0) was full",
        "its processes used 91 % of the node's memory",
    ]


def test_all_cards_are_not_listed_one_by_one() -> None:
    cards = tuple(Curve(card, card, util=(99.0,), memory=(98.0,), tensor=(0.0,)) for card in range(8))
    idle, full = remarks(Minutes(0.0, 1.0, cards, ""))
    assert idle.startswith("all 8 cards: the tensor cores were idle") and full == "the memory of all 8 cards was full"


async def test_at_most_ten_minutes_and_twenty_steps(noted: Callable[[Entry, float, float], History]) -> None:
    zero = time.time()
    entry = job(zero, 3000)
    minutes = await why_telemetry.read(noted(entry, zero, 3000), entry, zero, 1.0)
    assert minutes.step == 30.0
    assert zero - 640 < minutes.begin <= zero - 600
    assert all(len(curve.util or curve.cpu) in (20, 21) for curve in minutes.curves)


async def test_what_is_missing_is_reported(tmp_path: Path, noted: Callable[[Entry, float, float], History]) -> None:
    zero = time.time()
    entry = job(zero, 50)
    empty = await why_telemetry.read(History(tmp_path / "e", lambda: BOUNDS), entry, zero, 1.0)
    assert "no readings (it ran for 50.0 s)" in empty.missing
    # A later job of the same id is another.
    history = noted(entry, zero, 50)
    entry.job.accepted_at -= 1000
    assert "no readings" in (await why_telemetry.read(history, entry, zero, 1.0)).missing
    entry.job.started_at = 0.0
    assert "did not run" in (await why_telemetry.read(history, entry, zero, 1.0)).missing


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([0.0, 100.0, 100.0], True),
        ([0.0, 0.0, 100.0], False),
        ([0.0, 50.0, 100.0], False),
        ([0.0, 0.0], False),
        ([100.0, 100.0], False),
        ([0.0], False),
        ([None, 100.0], False),
    ],
)
def test_who_did_nothing(ends: list[float | None], told: bool) -> None:
    curves = tuple(Curve(number, number, (end, end)) for number, end in enumerate(ends))
    assert bool(remarks(Minutes(0, 1, curves))) is told


def test_means_and_peaks() -> None:
    assert last((1.0, None, 2.0, 4.0, None)) == 3.0
    assert last((None,)) is None and peak(()) is None and peak((None, 3.0)) == 3.0
