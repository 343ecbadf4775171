"""Which part of a long job is drawn once more."""

import pytest

from muster.agent.report import moments, plots
from muster.agent.report.job_report import Axis, Bar
from muster.agent.telemetry.history.history_rows import METRICS

DAY = 86_400.0
END = ("the end of rank 3", DAY - 10)


def _axis(seconds: float) -> Axis:
    return plots.axis(0.0, seconds, 1.0, 3600)


def _hang(begin: float, end: float | None, look: str = "suspect") -> Bar:
    return Bar(look, begin, end, look)


@pytest.mark.parametrize(("whole", "failed"), [(_axis(DAY), None), (_axis(3600.0), ("the end", 3590.0))])
def test_a_job_that_ended_well_and_a_short_one_have_no_such_part(whole: Axis, failed: tuple[str, float] | None) -> None:
    assert moments.around(whole, whole.end, failed, [], 1.0) is None
    assert moments.around(_axis(DAY), DAY, None, [_hang(100.0, 400.0)], 1.0) is None  # it recovered


def test_a_failure_has_the_minutes_before_it_and_all_that_follows() -> None:
    found = moments.around(_axis(DAY), DAY - 3, END, [_hang(100.0, 400.0)], 1.0)
    assert found is not None
    title, axis = found
    assert title == "Around the end of rank 3"
    assert axis.begin <= END[1] - moments.BEFORE_S and DAY - 3 <= axis.end < DAY + 1
    assert axis.step < 4 and axis.zone == 3600


def test_a_hang_begins_with_the_first_suspicion_and_has_an_hour_at_most() -> None:
    hangs = [_hang(50_000.0, 50_100.0), _hang(70_000.0, 70_300.0), _hang(70_300.0, DAY - 30, "hung")]
    for failed in (END, None):
        last = hangs[-1] if failed else _hang(70_300.0, None, "hung")  # of a job that runs, it has not ended
        found = moments.around(_axis(DAY), DAY, failed, [*hangs[:-1], last], 1.0)
        assert found is not None
        title, axis = found
        assert title == "Around the hang"
        assert axis.begin == pytest.approx(70_000.0 - moments.BEFORE_S, abs=axis.step)
        assert axis.end - axis.begin == pytest.approx(moments.LONGEST_S, abs=2 * axis.step)


def test_each_reading_of_the_history_is_drawn() -> None:
    assert {one.metric for one in (*plots.READINGS, *plots.OF_NODE)} == set(range(len(METRICS)))
