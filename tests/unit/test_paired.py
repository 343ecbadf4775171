"""When a benchmark of two commits says that something became slower."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.paired import FEWEST_ROUNDS, interval


def rounds(chance: random.Random, count: int, slowdown: float) -> tuple[list[float], list[float]]:
    """Times on a noisy machine: each round has its load, each time a spread of its own; some take far longer."""
    old: list[float] = []
    new: list[float] = []
    for _ in range(count):
        load = chance.uniform(1, 4)
        for times, factor in ((old, 1.0), (new, slowdown)):
            outlier = chance.choice([1.0] * 9 + [5.0])
            times.append(0.05 * load * factor * outlier * chance.lognormvariate(0, 0.15))
    return old, new


def test_a_slowdown_is_found_in_noise():
    chance = random.Random(1)
    found = [interval(*rounds(chance, 30, 1.6)) for _ in range(50)]
    assert sum(each is not None and each.slower(1.05) for each in found) >= 45


@pytest.mark.slow
def test_noise_is_no_slowdown():
    chance = random.Random(2)
    for count in (FEWEST_ROUNDS, 12, 30):
        found = [interval(*rounds(chance, count, 1.0)) for _ in range(200)]
        assert sum(each is not None and each.slower(1.25) for each in found) == 0
        assert sum(each is not None and each.slower(1.05) for each in found) <= 4


def test_a_few_rounds_say_nothing():
    chance = random.Random(3)
    assert interval(*rounds(chance, FEWEST_ROUNDS - 1, 9.0)) is None
    assert interval([], []) is None


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)), min_size=FEWEST_ROUNDS, max_size=20))
def test_the_interval_holds_the_ratio_and_lies_within_the_rounds(pairs):
    old, new = zip(*pairs, strict=True)
    found = interval(old, new)
    assert found is not None
    ratios = [after / before for before, after in pairs]
    assert min(ratios) <= found.low <= found.ratio <= found.high <= max(ratios)


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_without_noise_it_is_the_ratio_itself(factor):
    old = [0.1 * number for number in range(1, 20)]
    found = interval(old, [value * factor for value in old])
    assert found is not None
    assert (found.low, found.ratio, found.high) == pytest.approx((factor, factor, factor))
    assert found.slower(1.25) == (factor > 1.25)
