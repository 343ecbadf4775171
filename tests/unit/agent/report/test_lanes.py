"""The bars of the time line, from events and records that may be incomplete."""

from pathlib import Path

import anyio
import pytest

from muster.agent.events.event_store import Event
from muster.agent.jobs import entry as job_entry
from muster.agent.report import lanes, svg
from muster.agent.report.job_report import Axis, Bar
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.states import Outcome
from muster.supervisors.paths import Root
from scripts import sample_reports
from scripts.sample_reports import T0


def event(at: float, kind: str, message: str = "", rank: int | None = None, **more: str) -> Event:
    return Event(at, kind, "x", rank, message, attributes=more)


def spans(bars: list[Bar]) -> list[tuple[str, float, float | None]]:
    return [(bar.name, bar.begin, bar.end) for bar in bars]


def test_a_hang_lasts_until_it_recovers_or_something_ends_it() -> None:
    told = [
        event(10, "job.suspected_hang", "s", 3),
        event(20, "job.recovered"),
        event(30, "job.suspected_hang", "s", 3),
        event(40, "job.hung", "h", 3),
        event(50, "job.stopping"),
    ]
    assert spans(lanes.hangs(told, 60)) == [("suspected hang", 10, 20), ("suspected hang", 30, 40), ("hung", 40, 50)]
    assert spans(lanes.hangs(told[:4], 60)) == [
        ("suspected hang", 10, 20),
        ("suspected hang", 30, 40),
        ("hung", 40, 60),
    ]
    assert spans(lanes.hangs(told[:3], None))[-1] == ("suspected hang", 30, None)
    assert lanes.hangs([event(5, "job.recovered")], None) == []


def test_steps_have_a_begin_and_an_end_also_where_an_event_is_missing() -> None:
    told = [
        event(1, "job.checking"),
        event(2, "job.checked", "fine"),
        event(3, "job.preparing"),
        event(4, "job.step", step="pre_start"),
        event(9, "job.step_ended", "pre_start exited with code 0", step="pre_start"),
        event(10, "job.running"),
        event(15, "job.step_ended", "outputs are delivered", step="outputs", exit_code="0"),
        event(20, "job.step_ended", "epilog exited with code 1", step="epilog"),
    ]
    after = [("outputs", 15, 15), ("epilog", 20, 20)]
    found = lanes.steps(told, 30)
    assert spans(found) == [("checks", 1, 2), ("start", 3, 10), ("pre_start", 4, 9), *after]
    assert [bar.look for bar in found] == ["step", "step", "step", "step", "failed"]
    assert spans(lanes.steps(told[:4], None)) == [("checks", 1, 2), ("start", 3, None), ("pre_start", 4, None)]
    # A clock that was set back makes no bar of negative length.
    back = [event(100, "job.stopping"), event(90, "job.ended")]
    assert spans(lanes.steps(back, 90)) == [("stop", 100, 100)]


@pytest.mark.parametrize(
    ("outcome", "status", "look"),
    [
        (None, None, "running"),
        (Outcome.EXITED, 0, "done"),
        (Outcome.EXITED, 256, "failed"),
        (Outcome.SIGNALLED, 9, "failed"),
        (Outcome.OUT_OF_MEMORY, 9, "failed"),
        (Outcome.GANG_VICTIM, 15, "victim"),
        (Outcome.STOPPED, 15, "stopped"),
        (Outcome.HUNG, 15, "hung"),
        (Outcome.LOST, None, "lost"),
        (Outcome.NOT_STARTED, None, "lost"),
    ],
)
def test_each_outcome_has_a_look_that_the_page_names(outcome: Outcome | None, status: int | None, look: str) -> None:
    assert lanes.look_of(Rank(0, 0, 0, outcome=outcome, status=status)) == look
    assert look in lanes.LOOKS
    css = Path("agent/report/page.css").read_text()
    assert f".bar.{look}," in css and f"--{look}:" in css


def test_ranks_of_all_attempts(tmp_path: Path) -> None:
    anyio.run(sample_reports.restarted, tmp_path)
    entry, told = job_entry.load("restarted", Root.under(tmp_path).job("restarted"))
    bars = lanes.rank_bars(entry, [each for _, each in told])
    assert [(bar.rank, bar.look) for bar in bars] == [
        *[(2, "failed"), (0, "victim"), (1, "victim"), (3, "victim")] * 2,
        *((rank, "done") for rank in range(4)),
    ]
    assert [bar.name for bar in lanes.attempts(entry)] == ["attempt 0", "attempt 1", "attempt 2"]
    assert bars[0].begin == pytest.approx(T0 + 4.3) and bars[0].end == T0 + 624


def test_bars_stay_on_the_axis_and_can_be_seen() -> None:
    axis = Axis(1000.0, 2000.0, 10.0, 100)
    assert svg.extent(Bar("a", 1000, 2000, "done"), axis) == (0, 100)
    assert svg.extent(Bar("a", 0, None, "done"), axis) == (0, 100)
    assert svg.extent(Bar("a", 1500, 1500, "done"), axis) == (50, 0.3)
    assert svg.extent(Bar("a", 9000, 9000, "done"), axis) == (99.7, 0.3)
    assert svg.extent(Bar("a", 1600, 1500, "done"), axis) == (60, 0.3)  # the clock was set back
