"""The protocol between a session and its client, after a message (messages.py) has turned the connection over to them.

A frame is 1 byte of kind, u32 length, payload; numbers are big endian. An offset counts all bytes of a stream since the
session began, so both sides can continue after a lost connection. Neither side sends more than WINDOW bytes of a stream
that the other has not acknowledged.

    to the session                                           from it
    I  u64 offset, data: input                               O  u64 offset, data: stdout, or all of a terminal
    C  u64 offset of the end: nothing comes behind it        E  u64 offset, data: stderr
    W  u16 rows, u16 columns: the window's size              A  u64: input that the command has taken, in bytes
    S  u8: number of a signal                                X  JSON {"exit_code", "signal", "message"}: the end; last
    A  u64 stdout, u64 stderr: received in all, in bytes     L  JSON {"message"}: sent away; last
    D  the session is left on purpose
"""

import struct
from collections.abc import Mapping

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.supervision_errors import ProtocolError

#: Most bytes of data in a frame; most bytes of a stream that are on their way and not acknowledged. The client has the
#: same (client/exec_state.py).
MAX_DATA = 1 << 16
WINDOW = 1 << 20

INPUT, CLOSE, SIZE, SIGNAL, ACK, DETACH = b"I", b"C", b"W", b"S", b"A", b"D"
STDOUT, STDERR, EXITED, LEFT = b"O", b"E", b"X", b"L"

_HEAD = struct.Struct(">cI")
_OFFSET = struct.Struct(">Q")
_NOTHING = struct.Struct("")


@dataclass(frozen=True, slots=True)
class Frame:
    """`numbers` and `data` as the table above has them."""

    kind: bytes
    numbers: tuple[int, ...] = ()
    data: bytes = b""


class Direction:
    """The frames that go one way."""

    def __init__(self, numbers: Mapping[bytes, struct.Struct], with_data: frozenset[bytes]) -> None:
        self._numbers = numbers
        self._with_data = with_data

    def encode(self, kind: bytes, *numbers: int, data: bytes = b"") -> bytes:
        """A frame with the `numbers` of its kind, and data behind them."""
        payload = self._numbers[kind].pack(*numbers)
        return _HEAD.pack(kind, len(payload) + len(data)) + payload + data

    def size(self, kind: bytes) -> tuple[int, int]:
        """Least and most bytes of a payload. Raises ProtocolError for a kind that does not go this way."""
        if kind not in self._numbers:
            raise ProtocolError(f"a frame of kind {kind!r}")
        least = self._numbers[kind].size
        return least, least + (MAX_DATA if kind in self._with_data else 0)

    def decode(self, kind: bytes, payload: bytes) -> Frame:
        """`payload` has a size that `size` allows."""
        layout = self._numbers[kind]
        return Frame(kind, layout.unpack_from(payload), payload[layout.size :])


TO_SESSION = Direction(
    {
        INPUT: _OFFSET,
        CLOSE: _OFFSET,
        SIZE: struct.Struct(">HH"),
        SIGNAL: struct.Struct(">B"),
        ACK: struct.Struct(">QQ"),
        DETACH: _NOTHING,
    },
    frozenset({INPUT}),
)
FROM_SESSION = Direction(
    {STDOUT: _OFFSET, STDERR: _OFFSET, ACK: _OFFSET, EXITED: _NOTHING, LEFT: _NOTHING},
    frozenset({STDOUT, STDERR, EXITED, LEFT}),
)


class Parser:
    """Cuts a byte stream into the frames of one direction."""

    def __init__(self, direction: Direction) -> None:
        self._direction = direction
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Raises ProtocolError for an invalid frame, as soon as its head has come."""
        rest = self._rest
        rest += data
        found, at = [], 0
        while len(rest) - at >= _HEAD.size:
            kind, size = _HEAD.unpack_from(rest, at)
            least, most = self._direction.size(kind)
            if not least <= size <= most:
                raise ProtocolError(f"a frame of kind {kind!r} with {size} bytes, not {least} to {most}")
            end = at + _HEAD.size + size
            if len(rest) < end:
                break
            found.append(self._direction.decode(kind, bytes(rest[at + _HEAD.size : end])))
            at = end
        del rest[:at]
        return found
