from hypothesis import given
from hypothesis import strategies as st

from agent.cli import labels


def lines(*fed: tuple[int, bytes], label: bool = True, timestamps: bool = False, finish: bool = True) -> bytes:
    out: list[bytes] = []
    sink = labels.Lines(out.append, label=label, timestamps=timestamps)
    for i, (rank, data) in enumerate(fed):
        sink.feed(rank, data, float(i))
    if finish:
        sink.finish()
    return b"".join(out)


def test_raw_passes_bytes_on_as_they_are():
    out: list[bytes] = []
    sink = labels.Raw(out.append)
    sink.feed(0, b"\xff half a line", 0.0)
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
    out = lines((0, b"x" * labels.MAX_LINE), (0, b"y\n"), finish=False)
    assert out == b"[rank 0] " + b"x" * labels.MAX_LINE + b"\n[rank 0] y\n"


def test_a_line_has_the_time_at_which_it_began():
    out = lines((0, b"a"), (0, b"b\nc\n"), label=False, timestamps=True)
    assert out == b"1970-01-01T00:00:00.000Z ab\n1970-01-01T00:00:01.000Z c\n"


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=8).map(lambda b: b.replace(b"\r", b"\n")))))
def test_no_byte_is_lost_or_mixed(fed):
    out = lines(*fed)
    for rank in range(3):
        whole = b"".join(data for r, data in fed if r == rank)
        prefix = b"[rank %d] " % rank
        mine = b"".join(line[len(prefix) :] + b"\n" for line in out.split(b"\n") if line.startswith(prefix))
        assert mine == whole + (b"\n" if whole and not whole.endswith(b"\n") else b"")
