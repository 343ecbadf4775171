"""Lists of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.probes.kernel import number_lists


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", set()), ("3", {3}), ("0-2,5\n", {0, 1, 2, 5}), ("7,7,6-7", {6, 7})],
)
def test_read(text, numbers):
    assert number_lists.parse(text) == numbers


@pytest.mark.parametrize("text", ["x", "1-", "-1", "1-2-3"])
def test_not_a_list(text):
    with pytest.raises(ValueError, match="invalid literal"):
        number_lists.parse(text)


@given(st.frozensets(st.integers(0, 300)))
def test_written_and_read_again(numbers):
    assert number_lists.parse(number_lists.numbers(numbers)) == numbers


def test_runs_are_short():
    assert number_lists.numbers([3, 1, 2, 9, 8, 5]) == "1-3,5,8-9"
