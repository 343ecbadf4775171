"""Messages between daemon, nursery and supervisors: one JSON object a line over a stream socket.

Both ends first say `hello` with the protocol's number. What a supervisor understands:

    {"op": "hello", "protocol": 1}            -> {"op": "hello", "ok": true, "protocol": 1, "pid": 4711}
    {"op": "watch", "from": L}                -> {"op": "journal", "size": N} now and after each record that is on disk,
                                                 mostly with "behind": M, "records": [{...}, ...]: what N has and M had
                                                 not; L: how far the watcher has read, which the first M may be
                                                 {"op": "owed", "record": {...}} for each that could not be written yet
                                                 {"op": "refused", "why": "..."}: why they could not (empty: they
                                                 can again), now and when that changes
                                                 {"op": "gaps", "gaps": [[rank, since, bytes], ...]}: what open gaps
                                                 have lost by now, each second while that grows
    {"op": "stop", "steps": [s, ...] | null, "by": "...", "reason": "..."}
                                              -> {"op": "stop", "ok": true} once the stop has begun
    {"op": "sessions"}                        -> {"op": "sessions", "ok": true, "sessions": [{...}, ...]}
    {"op": "end_session", "session": id}      -> {"op": "end_session", "ok": true}; it is on its way to its end
    {"op": "exec", "size": N} and N bytes of JSON (session_start.py), or
    {"op": "attach", "session": id, "stdout": n | null, "stderr": n | null}
                                              -> {"op": "exec" | "attach", "ok": true, "session": id, "rank": r, "pid":
                                                 p, "tty": b, "input": n, "stdout": n, "stderr": n}; from then on both
                                                 sides send frames (frames.py), unless no client attaches

and the nursery:

    {"op": "hello", "protocol": 1}            -> as above
    {"op": "tend", "job": "<id>"}             -> {"op": "tend", "job": "<id>", "ok": true, "pid": supervisor's pid}
                                                 once a supervisor for it listens on its control socket
    {"op": "expect", "job": "<id>", "folder": "<name>"}
                                              no answer: the daemon, which has the job's lock, is about to record it,
                                                 and `tend` follows. The supervisor that waits, if there is one, may
                                                 begin once the daemon lets go of the lock

and, unasked, to each daemon that is connected:

    {"op": "died", "job": "<id>", "how": "...", "error": "...", "lived": b, "pid": p, "refused": n}
                                                 a supervisor died, or the nursery (job "": the first four keys), or
                                                 (not lived) it has no successor, for the nth time; with the end of its
                                                 traceback, if it had one. Told again, with the same pid and n, to who
                                                 sends `tend` before there is a successor

A refusal is {"op": ..., "ok": false, "error": "a sentence"}, of sessions also with "reason": a word for programs.
"""

import json
import os
from pathlib import Path
from typing import Any

from muster.supervisors.supervision_errors import ProtocolError

Message = dict[str, Any]

#: Bytes of new records that watchers are sent; more of them they read in the journal.
MAX_RECORDS = 16384
#: Characters of a traceback that the nursery is sent.
MAX_TOLD = 4000
#: A longer line is refused: no message is near it.
MAX_LINE = 65536
#: How the answer to an operation begins that this release does not have.
UNKNOWN = "unknown operation"
#: Made once: `json.dumps` makes one for each call.
_compact = json.JSONEncoder(separators=(",", ":")).encode


def encode(message: Message) -> bytes:
    """One line of JSON."""
    return _compact(message).encode() + b"\n"


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
    """Cuts a byte stream into lines, one after the other: what follows a line need not be one."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes. Raises ProtocolError for a line over MAX_LINE."""
        self.add(data)
        return list(iter(self.next, None))

    def add(self, data: bytes) -> None:
        """Appends what was received; `next` takes it."""
        self._rest += data

    def next(self) -> bytes | None:
        """The next line that is whole. Raises ProtocolError for a line over MAX_LINE."""
        line, end, rest = self._rest.partition(b"\n")
        if len(line) > MAX_LINE:
            raise ProtocolError(f"a line of more than {MAX_LINE} bytes")
        if not end:
            return None
        self._rest = rest
        return line

    def take_rest(self) -> bytes:
        """All that was added and is in no line yet."""
        rest, self._rest = self._rest, b""
        return rest


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
