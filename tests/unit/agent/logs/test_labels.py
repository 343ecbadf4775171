import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.cli.client import pattern_parts
from muster.agent.logs import labels
from muster.agent.logs.line_filter import MAX_LINE, LineFilter, LineMatch


def lines(
    *fed: tuple[int, bytes],
    label: bool = True,
    timestamps: bool = False,
    finish: bool = True,
    several: bool = True,
    grep: str | None = None,
) -> bytes:
    """Fed at the seconds 1, 2, ..."""
    out: list[bytes] = []
    pattern = LineMatch(re.compile(grep)) if grep is not None else None
    sink = labels.LabelledLines(out.append, label=label, timestamps=timestamps, several=several, grep=pattern)
    for i, (rank, data) in enumerate(fed, 1):
        sink.feed(f"rank {rank}", data, float(i))
    if finish:
        sink.finish()
    return b"".join(out)


def test_raw_passes_bytes_on_as_they_are():
    out: list[bytes] = []
    sink = labels.Raw(out.append)
    sink.feed("rank 0", b"\xff half a line", 0.0)
    sink.finish()
    assert out == [b"\xff half a line"]


def test_each_line_gets_the_label_of_its_rank():
    assert lines((0, b"a\nb\n"), (3, b"c\n")) == b"[rank 0] a\n[rank 0] b\n[rank 3] c\n"


def test_a_line_in_parts_stays_one_line():
    assert lines((0, b"a"), (1, b"x\n"), (0, b"b\nc")) == b"[rank 1] x\n[rank 0] ab\n[rank 0] c\n"


def test_a_partial_line_is_held_until_the_end():
    assert lines((0, b"no newline"), finish=False) == b""
    assert lines((0, b"no newline")) == b"[rank 0] no newline\n"


def test_empty_lines_are_lines():
    assert lines((2, b"\n\n")) == b"[rank 2] \n[rank 2] \n"


def test_a_line_without_end_is_passed_on_in_pieces():
    out = lines((0, b"x" * MAX_LINE), (0, b"y\n"), finish=False)
    assert out == b"[rank 0] " + b"x" * MAX_LINE + b"\n[rank 0] y\n"


def test_a_line_has_the_time_at_which_it_began():
    out = lines((0, b"a"), (0, b"b\nc\n"), label=False, timestamps=True)
    assert out == b"1970-01-01T00:00:01.000Z ab\n1970-01-01T00:00:02.000Z c\n"


def test_a_time_that_is_not_known_is_a_dash():
    out: list[bytes] = []
    sink = labels.LabelledLines(out.append, label=False, timestamps=True)
    sink.feed("rank 0", b"a\n", 0.0)
    assert out == [b"-                        a\n"]


def test_a_long_line_that_ends_with_a_piece_gets_no_empty_line():
    assert lines((0, b"x" * MAX_LINE), (0, b"\ny\n")).count(b"[rank 0]") == 2


def test_a_long_line_of_one_rank_stays_whole():
    long = b"x" * (3 * MAX_LINE + 5)
    fed = [(0, long[i : i + 50_000]) for i in range(0, len(long), 50_000)]
    assert lines(*fed, (0, b"y\nz\n"), label=False, several=False, grep="x|z") == long + b"y\nz\n"
    stamped = lines(*fed, label=False, several=False, timestamps=True)
    assert stamped == b"1970-01-01T00:00:01.000Z " + long + b"\n"


def test_what_comes_behind_a_cut_is_another_line():
    out: list[bytes] = []
    sink = labels.LabelledLines(out.append, label=True)
    sink.feed("rank 0", b"half", 1.0)
    sink.cut("rank 0")
    sink.cut("rank 0")
    sink.feed("rank 0", b"whole\n", 2.0)
    assert b"".join(out) == b"[rank 0] half\n[rank 0] whole\n"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("b", b"[rank 0] ab\n[rank 1] b\n"),
        ("^b$", b"[rank 1] b\n"),
        ("\u00e9.$", "[rank 0] x\u00e9y\n".encode()),
        ("nothing", b""),
        ("^$", b"[rank 0] \n"),
        ("end", b"[rank 0] the end\n"),
        ("return$", b"[rank 0] return\r\n"),
    ],
)
def test_grep_takes_the_lines_in_which_it_is_found(pattern, expected):
    fed = [(0, b"a"), (1, b"c\nb\n"), (0, b"b\nx\xc3"), (0, b"\xa9y\nreturn\r\n\n\xff\x00\nthe end")]
    assert sorted(lines(*fed, grep=pattern).splitlines(True)) == sorted(expected.splitlines(True))


@given(
    st.lists(st.sampled_from([b"a", b"needle", b"NEEDLE", b"x" * 9, b"\n", b"\r\n", "\u212a\xb5".encode(), b"\xff"])),
    st.sampled_from(["needle", "k", "ne+dle", "needle|a", "a$", "x.*a"]),
    st.booleans(),
    st.integers(1, 40),
)
def test_what_lets_all_matching_lines_through_changes_nothing(parts, pattern, ignore_case, size):
    data = b"".join(parts)
    grep = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    wanted = pattern_parts.wanted_lines(grep)
    assert wanted is not None
    line_filter = LineFilter([tuple(each.parts) for each in wanted.any_of], ignore_case=ignore_case)
    shown: list[bytes] = []
    sink = labels.LabelledLines(shown.append, label=False, several=False, grep=LineMatch(grep, line_filter))
    for _ in range(3):  # what was found before decides how it is searched
        for begin in range(0, len(data), size):
            sink.feed("rank 0", data[begin : begin + size], 1.0)
        sink.cut("rank 0")
    lines = data.split(b"\n") if not data.endswith(b"\n") else data[:-1].split(b"\n")
    expected = [one + b"\n" for one in lines if grep.search(one.decode("utf-8", "replace").rstrip("\r"))]
    assert b"".join(shown) == b"".join(expected) * 3 or not data


def test_the_first_piece_of_a_long_line_decides():
    head = b"needle" + b"x" * MAX_LINE
    tail = b"x" * MAX_LINE + b"needle"
    for several in (False, True):
        out = lines((0, head), (0, tail), (0, b"more\nnext\n"), label=False, several=several, grep="needle")
        assert out.replace(b"\n", b"") == head + tail + b"more"
        assert lines((0, tail), (0, tail), (0, b"\nnext\n"), label=False, several=several, grep="needle") == b""
        assert lines((0, tail), (0, b"\nneedle\n"), label=False, several=several, grep="needle") == b"needle\n"


def test_a_word_in_any_case_beside_text_beyond_ascii():
    """The filter of whole blocks finds more lines there than match."""
    out: list[bytes] = []
    pattern = re.compile("kit", re.IGNORECASE)
    asked = pattern_parts.wanted_lines(pattern)
    assert asked is not None
    line_filter = LineFilter([tuple(each.parts) for each in asked.any_of], ignore_case=True)
    sink = labels.LabelledLines(out.append, label=False, several=False, grep=LineMatch(pattern, line_filter))
    sink.feed("rank 0", b"first\n" + b"a t here\n" * 9000 + b"a KIT\n" + "a \u212ait\n".encode(), 0.0)
    assert b"".join(out) == b"a KIT\n" + "a \u212ait\n".encode()


def test_a_line_of_100_mb_takes_no_memory():
    held = []
    sink = labels.LabelledLines(lambda data: held.append(len(data)), label=True)
    for _ in range(1600):
        sink.feed("rank 0", b"\x00\xff" * 32768, 1.0)
    assert max(held) < 3 * MAX_LINE
    assert sum(held) > 100 << 20


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=8).map(lambda b: b.replace(b"\r", b"\n")))))
def test_no_byte_is_lost_or_mixed(fed):
    assert lines(*fed, grep="") == lines(*fed)
    out = lines(*fed)
    for rank in range(3):
        whole = b"".join(data for r, data in fed if r == rank)
        prefix = b"[rank %d] " % rank
        mine = b"".join(line[len(prefix) :] + b"\n" for line in out.split(b"\n") if line.startswith(prefix))
        assert mine == whole + (b"\n" if whole and not whole.endswith(b"\n") else b"")
