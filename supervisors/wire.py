"""Messages between daemon, nursery and supervisors: one JSON object a line over a stream socket.

Both ends first say `hello` with the protocol's number. What a supervisor understands:

    {"op": "hello", "protocol": 1}            -> {"op": "hello", "ok": true, "protocol": 1, "pid": 4711}
    {"op": "watch"}                           -> {"op": "journal", "size": N} now and after each record that is on disk
    {"op": "stop", "steps": [s, ...] | null, "by": "...", "reason": "..."}
                                              -> {"op": "stop", "ok": true} once the stop is in the journal

and the nursery:

    {"op": "hello", "protocol": 1}            -> as above
    {"op": "tend", "job": "<id>"}             -> {"op": "tend", "job": "<id>", "ok": true, "pid": supervisor's pid}
                                                 once a supervisor for it listens on its control socket

A refusal is {"op": ..., "ok": false, "error": "a sentence"}.
"""

import json
import os
import socket
from pathlib import Path
from typing import Any

from supervisors.errors import ProtocolError

Message = dict[str, Any]

#: A longer line is refused: no message is near it.
MAX_LINE = 65536


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Raises ProtocolError for anything but a JSON object with a text `op`."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise ProtocolError("not an object with an 'op'")
    return message


class Lines:
    """Cuts a byte stream into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes. Raises ProtocolError for a line over MAX_LINE."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE or any(len(line) > MAX_LINE for line in lines):
            raise ProtocolError(f"a line of more than {MAX_LINE} bytes")
        return lines


class SocketAt:
    """A short name for a socket in a folder whose path may be longer than the 107 bytes of a socket's address.

    Use as a context manager: the name is valid inside only. Raises OSError where the folder cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def __enter__(self) -> str:
        self._fd = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}/{self._path.name}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def connect(path: Path, timeout: float) -> socket.socket:
    """A blocking connection to the socket at `path`, however long that is. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        with SocketAt(path) as name:
            sock.connect(name)
    except OSError:
        sock.close()
        raise
    return sock
