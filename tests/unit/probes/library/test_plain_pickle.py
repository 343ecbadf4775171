"""Pickles of plain data, and those that are more, or too much."""

import collections
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.probes.library import plain_pickle
from muster.probes.library.plain_pickle import BadPickle, PickleIncomplete, load_plain

DUMPS = sorted((Path(__file__).parents[3] / "fixtures" / "flight_recorder").iterdir())

LEAVES = st.none() | st.booleans() | st.integers(-(1 << 80), 1 << 80) | st.floats(allow_nan=False) | st.text()
PLAIN = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(), inner, max_size=6)
        | st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=40,
)


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.name)
def test_a_real_dump_is_what_pickle_makes_of_it(path: Path) -> None:
    data = path.read_bytes()
    assert load_plain(data) == pickle.loads(data)


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
def test_plain_data(value: object, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol)) == value


def test_an_object_at_several_places() -> None:
    shared = ["x"]
    found: Any = load_plain(pickle.dumps([shared, {"again": shared}], 4))
    assert found[0] is found[1]["again"]


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/muster-was-here",)


@pytest.mark.parametrize(
    ("value", "opcode"),
    [
        (Evil(), "GLOBAL"),
        ([Evil()], "GLOBAL"),
        (os.system, "GLOBAL"),
        (collections.OrderedDict(a=1), "GLOBAL"),
        ({1, 2}, "GLOBAL"),
        (b"bytes", "GLOBAL"),
        (1 << 3000, "LONG4"),
    ],
)
def test_another_opcode_is_named(value: object, opcode: str) -> None:
    with pytest.raises(BadPickle, match=rf"opcode {opcode} at byte \d+"):
        load_plain(pickle.dumps(value, 2))


@pytest.mark.parametrize(
    ("data", "opcode"),
    [
        (b"\x80\x04cos\nsystem\n.", "GLOBAL"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL"),
        (b"(S'a'\nios\nsystem\n.", "STRING"),
        (b"(ios\nsystem\n.", "INST"),
        (b"]R.", "REDUCE"),
        (b"]b.", "BUILD"),
        (b"N\x81.", "NEWOBJ"),
        (b"\x82\x01.", "EXT1"),
        (b"P7\n.", "PERSID"),
        (b"]Q.", "BINPERSID"),
        (b"]2.", "DUP"),
        (b"]0.", "POP"),
        (b"(1N.", "POP_MARK"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
        (b"\x8d\x01\x00\x00\x00\x00\x00\x00\x00a.", "BINUNICODE8"),
    ],
)
def test_no_opcode_that_runs_anything(data: bytes, opcode: str) -> None:
    with pytest.raises(BadPickle, match=f"opcode {opcode} "):
        load_plain(data)


@pytest.mark.parametrize("length", [0, 1, 2, 20, 300, -1])
def test_a_cut_pickle_is_incomplete(length: int) -> None:
    with pytest.raises(PickleIncomplete):
        load_plain(DUMPS[0].read_bytes()[:length])


def test_every_cut_of_a_dump_is_incomplete() -> None:
    data = DUMPS[0].read_bytes()
    for length in range(len(data)):
        with pytest.raises(PickleIncomplete):
            load_plain(data[:length])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff.", "unknown"),
        (b"].]", "follow its end"),
        (b"X\x01\x00\x00\x00\xff.", "UTF-8"),
        (b".", "values instead of one"),
        (b"(.", "values instead of one"),
        (b"NN.", "values instead of one"),
        (b"h\x05.", "has not stored"),
        (b"q\x05.", "stores a value where"),
        (b"(q\x05.", "stores a value where"),
        (b"a.", "takes more values"),
        (b"(a.", "takes more values"),
        (b"NNNa.", "no list"),
        (b"Ne.", "mark"),
        (b"e.", "mark"),
        (b"}NNs.", "keys that are no text"),
        (b"}(K\x01K\x02u.", "keys that are no text"),
        (b"](X\x01\x00\x00\x00aNu.", "no dictionary"),
        (b"}(X\x01\x00\x00\x00au.", "no dictionary"),
        (b"(Nt(e.", "no list"),
        (b"]q\x00h\x00a.", "in another one already"),
        (b"]q\x00](h\x00eh\x00](Ne.", "in another one already|instead of one"),
    ],
)
def test_damaged_pickles(data: bytes, said: str) -> None:
    with pytest.raises(BadPickle, match=said):
        load_plain(data)


def test_nesting_is_limited() -> None:
    depth = plain_pickle.MAX_DEPTH
    assert load_plain(b"]" * depth + b"a" * (depth - 1) + b".")
    for data in (b"]" * 100_000 + b"a" * 99_999 + b".", b"]" + b"\x85" * depth + b".", b"(" * 100_000 + b"t" * 100_000):
        with pytest.raises(BadPickle, match="nested more than"):
            load_plain(data + b".")


def test_a_memo_bomb_costs_what_it_is_long() -> None:
    # Each list has the one before twenty times: 20 ** 25 elements, were they copied.
    rows = [b"](" + b"h%c" % (level - 1) * 20 + b"eq%c" % level for level in range(1, 26)]
    data = b"(]q\x00" + b"".join(rows) + b"t."
    assert isinstance(load_plain(data), tuple)


@pytest.mark.parametrize(
    ("limit", "data"),
    [
        ("MAX_OPS", b"(" + b"N" * 2000 + b"t."),
        ("MAX_OBJECTS", b"(" + b"K\x07" * 2000 + b"t."),
        ("MAX_OBJECTS", b"(" + b"]" * 2000 + b"t."),
        ("MAX_MEMO", b"N" + b"".join(b"r" + struct.pack("<I", 7 * number) for number in range(2000)) + b"."),
    ],
)
def test_size_is_limited(limit: str, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    load_plain(data)
    monkeypatch.setattr(plain_pickle, limit, 1000)
    with pytest.raises(BadPickle, match="more than 1000"):
        load_plain(data)


def test_a_length_that_lies_reads_no_more_than_there_is() -> None:
    with pytest.raises(PickleIncomplete):
        load_plain(b"X\xff\xff\xff\x7fabc.")
