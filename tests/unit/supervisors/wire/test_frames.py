import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.supervisors.supervision_errors import ProtocolError
from muster.supervisors.wire import frames
from muster.supervisors.wire.frames import FROM_SESSION, MAX_DATA, TO_SESSION, Direction, Frame, Parser

_U64, _U16 = st.integers(0, 2**64 - 1), st.integers(0, 2**16 - 1)
_DATA = st.binary(max_size=300)
_TO = st.one_of(
    st.builds(lambda n, d: Frame(frames.INPUT, (n,), d), _U64, _DATA),
    st.builds(lambda n: Frame(frames.CLOSE, (n,)), _U64),
    st.builds(lambda a, b: Frame(frames.SIZE, (a, b)), _U16, _U16),
    st.builds(lambda n: Frame(frames.SIGNAL, (n,)), st.integers(0, 255)),
    st.builds(lambda a, b: Frame(frames.ACK, (a, b)), _U64, _U64),
    st.just(Frame(frames.DETACH)),
)
_FROM = st.one_of(
    st.builds(lambda k, n, d: Frame(k, (n,), d), st.sampled_from([frames.STDOUT, frames.STDERR]), _U64, _DATA),
    st.builds(lambda n: Frame(frames.ACK, (n,)), _U64),
    st.builds(lambda k, d: Frame(k, (), d), st.sampled_from([frames.EXITED, frames.LEFT]), _DATA),
)


@given(
    st.sampled_from([(TO_SESSION, _TO), (FROM_SESSION, _FROM)]).flatmap(
        lambda one: st.tuples(st.just(one[0]), st.lists(one[1], max_size=6))
    ),
    st.data(),
)
def test_frames_come_whole_however_the_stream_is_cut(one, data):
    direction, sent = one
    stream = b"".join(direction.encode(f.kind, *f.numbers, data=f.data) for f in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    parser = Parser(direction)
    got = [f for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) for f in parser.feed(stream[a:b])]
    assert got == sent


@given(st.binary(max_size=200), st.sampled_from([TO_SESSION, FROM_SESSION]))
def test_any_bytes_are_frames_or_a_protocol_error(data, direction):
    try:
        got = Parser(direction).feed(data)
    except ProtocolError:
        return
    assert data.startswith(b"".join(direction.encode(f.kind, *f.numbers, data=f.data) for f in got))


def test_the_bytes_are_those_that_were_agreed_upon():
    assert TO_SESSION.encode(frames.INPUT, 3, data=b"ab") == b"I\0\0\0\x0a" + b"\0" * 7 + b"\x03ab"
    assert TO_SESSION.encode(frames.SIZE, 24, 65535) == b"W\0\0\0\x04\0\x18\xff\xff"
    assert TO_SESSION.encode(frames.SIGNAL, 2) == b"S\0\0\0\x01\x02"
    assert TO_SESSION.encode(frames.DETACH) == b"D\0\0\0\0"
    assert TO_SESSION.encode(frames.ACK, 1, 2) == b"A\0\0\0\x10" + struct.pack(">QQ", 1, 2)
    assert FROM_SESSION.encode(frames.ACK, 1) == b"A\0\0\0\x08" + struct.pack(">Q", 1)


def test_the_largest_frame_passes():
    data = b"x" * MAX_DATA
    encoded = TO_SESSION.encode(frames.INPUT, 7, data=data)
    assert len(encoded) == 5 + 65544
    assert Parser(TO_SESSION).feed(encoded) == [Frame(frames.INPUT, (7,), data)]


@pytest.mark.parametrize(
    ("direction", "head"),
    [
        (TO_SESSION, b"O\0\0\0\x08"),  # of the other direction
        (FROM_SESSION, b"I\0\0\0\x08"),
        (TO_SESSION, b"Q\0\0\0\0"),
        (TO_SESSION, b"\0\0\0\0\0"),
        (TO_SESSION, b"I\0\0\0\x07"),  # no room for the offset
        (TO_SESSION, b"I\0\1\0\x09"),  # a byte over the largest
        (TO_SESSION, b"I\xff\xff\xff\xff"),
        (TO_SESSION, b"W\0\0\0\3"),
        (TO_SESSION, b"D\0\0\0\1"),
        (TO_SESSION, b"A\0\0\0\x08"),  # that of the other direction
        (FROM_SESSION, b"A\0\0\0\x10"),
    ],
)
def test_what_is_no_frame_is_refused_by_its_head(direction: Direction, head):
    parser = Parser(direction)
    assert parser.feed(head[:4]) == []
    with pytest.raises(ProtocolError):
        parser.feed(head[4:])
