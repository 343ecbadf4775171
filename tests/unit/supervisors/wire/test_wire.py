import os
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.supervisors.supervision_errors import ProtocolError
from muster.supervisors.wire import messages
from muster.supervisors.wire.messages import MAX_LINE, Lines, decode, encode
from tests.unit.sessions import connect

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(), _JSON, max_size=4), st.text())
def test_what_is_encoded_is_decoded(fields, op):
    message = fields | {"op": op}
    line = encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line[:-1]) == decode(line) == message


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\n", b"{", b"hello", b"null", b"7", b'"op"', b"[]", b'["op"]', b"{}", b'{"op":1}', b'{"op":null}',
        b'{"Op":"x"}', b"\xff\xfe", b"\0", b'{"op":"\xff"}', b'{"op":"x"}{"op":"y"}', b"[" * 60000, b'{"a":' * 12000,
    ],
)  # fmt: skip
def test_garbage_is_a_protocol_error(line):
    assert len(line) <= MAX_LINE
    with pytest.raises(ProtocolError):
        decode(line)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_protocol_error(line):
    try:
        message = decode(line)
    except ProtocolError:
        return
    assert isinstance(message["op"], str)


# --- lines ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=6), st.data())
@settings(deadline=None)
def test_lines_come_whole_however_the_stream_is_cut(lines, data):
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    cutter = Lines()
    got = [line for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) for line in cutter.feed(stream[a:b])]
    assert got == lines


def test_a_line_without_its_end_is_kept_for_later():
    cutter = Lines()
    assert cutter.feed(b"a\nb") == [b"a"]
    assert cutter.feed(b"") == []
    assert cutter.feed(b"c\n") == [b"bc"]


def test_the_longest_line_passes():
    assert Lines().feed(b"x" * MAX_LINE + b"\n") == [b"x" * MAX_LINE]


@pytest.mark.parametrize(
    "parts",
    [
        [b"x" * (MAX_LINE + 1)],
        [b"x" * (MAX_LINE + 1) + b"\n"],
        [b"x" * MAX_LINE, b"x"],
        [b"x" * MAX_LINE, b"x\n"],
        [b"ok\n" + b"x" * (MAX_LINE + 1) + b"\nok\n"],
        [b"ok\n" + b"x" * (MAX_LINE + 1)],
    ],
)
def test_a_longer_line_is_refused_before_its_end(parts):
    cutter = Lines()
    for part in parts[:-1]:
        assert cutter.feed(part) == []
    with pytest.raises(ProtocolError, match=str(MAX_LINE)):
        cutter.feed(parts[-1])


# --- sockets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 4])
def test_a_socket_in_a_folder_of_any_length(tmp_path, depth):
    folder = tmp_path.joinpath(*["f" * 60] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "control"
    assert (len(str(path)) > 107) or not depth
    before = os.listdir("/proc/self/fd")
    with socket.socket(socket.AF_UNIX) as server:
        with messages.SocketAt(path) as name:
            assert len(name) < 100
            server.bind(name)
        assert path.is_socket()
        server.listen()
        with connect(path, 10) as client:
            assert client.gettimeout() == 10
            accepted, _ = server.accept()
            with accepted:
                client.sendall(encode({"op": "hello"}))
                assert decode(accepted.recv(100)) == {"op": "hello"}
    assert len(os.listdir("/proc/self/fd")) == len(before)
