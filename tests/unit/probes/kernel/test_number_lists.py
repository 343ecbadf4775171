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


@pytest.mark.parametrize("text", ["x", "1-", "-1", "1-2-3", "3-1", "0-1,", "0-99999"])
def test_not_a_list(text):
    with pytest.raises(ValueError, match="no list of numbers"):
        number_lists.parse(text)


@given(st.frozensets(st.integers(0, 300)))
def test_written_and_read_again(numbers):
    assert number_lists.parse(number_lists.numbers(numbers)) == numbers


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8\n", (0, 1, 2, 3, 8)),
        ("5", (5,)),
        ("", ()),
        ("3-1", ()),
        ("0-99999", ()),
        ("0-1,", ()),
        ("0-1,2-", ()),
        ("a", ()),
    ],
)
def test_a_list_of_processors(text, cpus):
    assert number_lists.processors(text) == cpus


@given(st.sets(st.integers(0, 2000)))
def test_a_list_of_processors_is_read_as_it_was_written(cpus):
    assert number_lists.processors(",".join(map(str, sorted(cpus)))) == tuple(sorted(cpus))


@given(st.text(alphabet="0123456789-, \n"))
def test_any_text_is_a_list_or_none(text):
    found = number_lists.processors(text)
    assert list(found) == sorted(set(found))


def test_runs_are_short():
    assert number_lists.numbers([3, 1, 2, 9, 8, 5]) == "1-3,5,8-9"
