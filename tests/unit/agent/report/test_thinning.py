"""Steps, gaps, and the series that stands out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.report import thinning

VALUES = st.lists(st.none() | st.floats(0, 1e6), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("seconds", "readings_s", "step"),
    [(0.5, 1.0, 1.0), (480, 1.0, 1.0), (481, 1.0, 2.0), (4 * 3600, 1.0, 30.0), (86_400, 1.0, 180.0), (90, 5.0, 5.0)],
)
def test_an_axis_has_at_most_so_many_steps_of_whole_readings(seconds: float, readings_s: float, step: float) -> None:
    found = thinning.axis_step(seconds, readings_s)
    assert found == step
    assert seconds / found <= thinning.STEPS


@given(st.lists(VALUES, min_size=1, max_size=6))
def test_the_band_has_the_least_and_the_most_of_all_readings(series: list[list[float | None]]) -> None:
    length = min(map(len, series))
    cut = [values[:length] for values in series]
    least, most = thinning.envelope([(values, values) for values in cut])
    told = [value for values in cut for value in values if value is not None]
    assert min((value for value in least if value is not None), default=None) == min(told, default=None)
    assert max((value for value in most if value is not None), default=None) == max(told, default=None)
    for low, middle, high in zip(least, thinning.medians(cut), most, strict=True):
        assert (low is None) == (middle is None) == (high is None)
        if low is not None and middle is not None and high is not None:
            assert low <= middle <= high


def test_a_line_joins_what_is_at_most_two_minutes_apart() -> None:
    values = [1.0, None, 2.0, *[None] * 12, 3.0, 4.0]
    assert thinning.runs(values, 10.0) == [[0, 2], [15, 16]]
    assert thinning.runs(values, 5.0) == [[0, 2, 15, 16]]
    assert thinning.runs([1.0, None, 1.0], 180.0) == [[0], [2]]
    assert thinning.runs([None, None], 1.0) == []


def test_one_series_stands_out_or_none() -> None:
    usual = [[90.0, 92.0, 91.0]] * 4
    assert thinning.odd_one([*usual, [90.0, 10.0, 12.0]], 100.0) == 4
    assert thinning.odd_one([*usual, [89.0, 91.0, 93.0]], 100.0) is None
    assert thinning.odd_one([[90.0], [0.0]], 100.0) is None  # which of two is the odd one?
    assert thinning.odd_one([[None], [None], [None]], 100.0) is None


def test_a_series_that_is_odd_at_the_end_alone_stands_out() -> None:
    usual = [[90.0] * 400 for _ in range(7)]
    assert thinning.odd_one([*usual, [90.0] * 395 + [0.0] * 5], 100.0) == 7
    # Where no series goes on to the end of the axis, the end is that of the readings.
    gone: list[list[float | None]] = [[*values, *[None] * 50] for values in usual]
    assert thinning.odd_one([*gone, [*[90.0] * 395, *[0.0] * 5, *[None] * 50]], 100.0) == 7


@given(st.floats(1e-9, 1e18))
def test_a_scale_ends_at_a_round_number_above_all(value: float) -> None:
    end = thinning.nice(value)
    assert value * (1 - 1e-6) <= end <= value * 2


def test_a_scale_without_values_is_one() -> None:
    assert [thinning.nice(value) for value in (0.0, -1.0, float("nan"), float("inf"))] == [1.0] * 4
