import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent import text


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("15s", 15), ("500ms", 0.5), ("10m", 600), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("7", 7), ("0.5", 0.5)],
)
def test_duration(written, seconds):
    assert text.duration(written) == seconds


@pytest.mark.parametrize("written", ["", " ", "s", "-1s", "1 h", "2x", "1s!", "inf", "nan", "1e3", "१s"])
def test_what_is_no_duration_is_refused(written):
    with pytest.raises(ValueError, match="is not a duration"):
        text.duration(written)


def test_moment():
    assert text.moment("10m", 1000.0) == 400.0
    assert text.moment("1970-01-01T00:01:00Z", 0.0) == 60.0
    assert text.moment("1970-01-01T01:00:00+01:00", 0.0) == 0.0
    with pytest.raises(ValueError, match="neither a duration"):
        text.moment("yesterday", 0.0)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain\ttext", "plain\ttext"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("\x1bPdcs\x1b\\x", "x"),
        ("\x9b2Jx", "x"),
        ("a\rb\x00c\x7f", "a\\rb\\x00c\\x7f"),
        ("line\nbreak", "line\\nbreak"),
        ("\u202eevil", "\\u202eevil"),
        ("\x1b", ""),
        ("\x1b]0;never ended " + "x" * 600, "0;never ended " + "x" * 600),
        ("\udc80", "\\udc80"),
    ],
)
def test_clean(written, shown):
    assert text.clean(written) == shown


@given(st.text())
def test_clean_leaves_nothing_that_a_terminal_obeys(written):
    cleaned = text.clean(written)
    assert not any(ord(c) < 32 and c != "\t" for c in cleaned)
    assert not any(0x7F <= ord(c) < 0xA0 for c in cleaned)
    assert text.clean(cleaned) == cleaned
    cleaned.encode()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0.00s"),
        (0.256, "0.26s"),
        (12.3, "12s"),
        (185, "3m05s"),
        (7800, "2h10m"),
        (90000 * 4, "4d04h"),
        (-1, "0.00s"),
    ],
)
def test_span(seconds, shown):
    assert text.span(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0B"), (1023, "1023B"), (1024, "1.0KiB"), (1536, "1.5KiB"), (3 << 30, "3.0GiB")]
)
def test_size(count, shown):
    assert text.size(count) == shown


def test_local_time_is_short_of_the_same_day():
    assert text.local(0) == "-"
    assert len(text.local(time.time())) == len("12:00:00")
    assert len(text.local(86400.0 * 365)) == len("1971-01-01 00:00:00")
    assert len(text.local(86400.0 * 365, 86400.0 * 365 + 1)) == len("12:00:00")


def test_rfc3339():
    assert text.rfc3339(0.25) == "1970-01-01T00:00:00.250Z"


def test_numbers():
    assert text.numbers([7, 1, 2, 0, 3]) == "0-3,7"
    assert text.numbers([]) == ""


def test_command_line_is_harmless_and_can_be_typed_again():
    assert text.command_line(["sh", "-c", "echo 'a b'"]) == """sh -c 'echo '"'"'a b'"'"''"""
    assert "\x1b" not in text.command_line(["x\x1b[2J"])


def test_table_columns_line_up_and_cells_are_cleaned():
    shown = text.table(["A", "LONG"], [["wide 中", "1"], ["\x1b[1mb", ""]])
    assert shown == "A        LONG\nwide 中  1\nb        -\n"


@pytest.mark.parametrize(
    ("sentence", "behind_a_colon"),
    [
        ("A rank ended", "a rank ended"),
        ("The card failed", "the card failed"),
        ("CUDA error 802", "CUDA error 802"),
        ("JAX's coordination service", "JAX's coordination service"),
        ("InfiniBand did not", "InfiniBand did not"),
        ("gloo could not", "gloo could not"),
        ("", ""),
    ],
)
def test_a_word_that_is_spelled_with_a_capital_keeps_it(sentence, behind_a_colon):
    assert text.uncapitalized(sentence) == behind_a_colon
