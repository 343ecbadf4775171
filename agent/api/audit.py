"""The audit log: who started, stopped, exec'd, drained. One line for each call that acts, including refused calls.

Events record what happened; the audit log records who asked and what the answer was. Only the boundary around all calls
writes it. It never contains arguments, environments or output. A stream, which may last for days, has one line when it
begins and one when it ends.
"""

import errno
import json
import os
import time
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from google.protobuf.message import Message

from muster.agent import threads
from muster.agent.api.access import Caller
from muster.agent.text import time_of_day, utc
from muster.supervisors.supervision_errors import explain
from muster.supervisors.system import trust
from muster.v1 import node_pb2

#: Bytes. A larger file is renamed to `.1` and replaces the previous one.
MAX_BYTES = 64 << 20
#: Lines that wait in memory for a disk, at most.
MAX_WAITING = 20_000
#: Seconds that an answer waits for its line; and after which a disk that has not taken one counts as silent.
ANSWER_S, STUCK_S = 1.0, 5.0

_log = structlog.get_logger(__name__)


class Audit:
    """Appends lines to one file. If the file cannot be written, the line goes to the daemon's log and is counted; when
    writing works again, a line in the file gives the number of missing lines.

    A thread writes, so that a disk that does not answer blocks nobody: up to MAX_WAITING lines wait for it, in order.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = threads.InOrder("audit")
        #: Of the thread: lines that could not be written, ever; those that the file does not mention yet, and when the
        #: first of them was lost; a sentence for an operator while the file cannot be written.
        self._failed, self._untold, self._since, self._refused = 0, 0, 0.0, ""
        #: Of who writes: lines for which there was no room, ever; those that the thread does not know of, since when.
        self._dropped, self._unknown, self._full_since = 0, 0, 0.0
        self._append(b"", {})  # creates the file, so that no other file gets this name

    @property
    def lost(self) -> int:
        """Lines that could not be written, ever."""
        return self._failed + self._dropped

    @property
    def trouble(self) -> str:
        """A sentence for an operator while the file cannot be written."""
        if self._thread.stuck_s < STUCK_S:
            return self._refused
        text = f"cannot write {self.path}: its disk does not answer; {self._thread.waiting} line(s) wait in memory"
        missing = self._untold + self._unknown
        return f"{text}, and {missing} are only in the daemon's log" if missing else text

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line, best effort; `written` waits for it."""
        if self._thread.waiting >= MAX_WAITING:
            self._dropped, self._unknown = self._dropped + 1, self._unknown + 1
            self._full_since = self._full_since or time.time()
            _log.error("audit.unwritten", path=str(self.path), error="its disk does not answer", **line)
            return
        self._hand(json.dumps(line).encode() + b"\n", line)

    async def written(self) -> None:
        """Returns when the lines so far are in the file, or could not be written; at once while the disk does not
        answer, and after ANSWER_S when it has just ceased to."""
        if self._thread.stuck_s < ANSWER_S:
            await self._thread.settled(ANSWER_S)

    def settle(self, limit_s: float = ANSWER_S) -> None:
        """As `written`, for who can block."""
        self._thread.settle(limit_s)

    def try_again(self) -> None:
        """Tests whether the file can be written, and writes the number of lost lines into it, in the thread."""
        if self._thread.waiting:
            self._thread.poke()
        else:
            self._hand(b"", {})

    def _hand(self, data: bytes, line: dict[str, Any]) -> None:
        missing, since, self._unknown, self._full_since = self._unknown, self._full_since, 0, 0.0
        self._thread.hand(partial(self._append, data, line, missing, since))

    def _append(self, data: bytes, line: dict[str, Any], missing: int = 0, since: float = 0.0) -> None:
        """`missing`: lines before this one that are lost, since `since`."""
        if missing:
            self._untold, self._since = self._untold + missing, self._since or since
        try:
            folder = trust.open_logs(self.path.parent)
            try:
                self._append_to(folder, self._gap() + data)
            finally:
                os.close(folder)
        except OSError as error:
            if data:
                self._untold, self._since = self._untold + 1, self._since or time.time()
                self._failed += 1
            # The fault may be a link or folder on the path.
            at = os.path.join(self.path.parent, error.filename or self.path.name)
            if data or not self._refused:
                _log.error("audit.unwritten", path=at, error=error.strerror, **line)
            when = time_of_day(self._since)
            refused = f"cannot write {at}: {explain(OSError(error.errno, error.strerror))}; "
            refused += (
                f"the audit log lacks {self._untold} line(s) since {when}; the daemon's log has them"
                if self._untold
                else "the daemon writes calls into its own log only"
            )
            self._refused = refused
        else:
            self._refused, self._untold, self._since = "", 0, 0.0

    def _gap(self) -> bytes:
        """The line that replaces the lost lines; empty if none were lost."""
        if not self._untold:
            return b""
        when, since = (utc(at) for at in (time.time(), self._since))
        return json.dumps({"time": when, "call": "LOST", "lines": self._untold, "since": since}).encode() + b"\n"

    def _append_to(self, folder: int, data: bytes) -> None:
        """Appends all of `data` or nothing. Raises OSError."""
        name = self.path.name
        fd, _ = trust.open_log(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, folder=folder)
        try:
            written = os.write(fd, data)
            if written < len(data):  # the disk is full: half a line would damage the next one
                os.ftruncate(fd, os.fstat(fd).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if os.fstat(fd).st_size > MAX_BYTES:
                os.rename(name, f"{name}.1", src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(fd)


class Call:
    """The audit lines of one call, while it runs."""

    def __init__(self, audit: Audit, method: str, caller: Caller, claimed: str, request: Any) -> None:
        """`claimed`: the name that the client claims."""
        self.method = method
        self._audit, self._ended = audit, False
        self._who: dict[str, Any] = {"who": caller.name}
        if caller.peer is not None:
            self._who |= {"uid": caller.peer.uid, "gid": caller.peer.gid, "pid": caller.peer.pid}
        self._who |= {"says": claimed, "role": caller.role.value if caller.role else None}
        self._about = _named(request)
        _present.set(self)

    def end(self, answer: str) -> None:
        """Writes the line with the answer, once; `answer`: the gRPC status."""
        if not self._ended:
            self._ended = True
            self._write(answer)

    def _write(self, answer: str) -> None:
        when = utc(time.time())
        call = self.method.rpartition(".")[2]
        self._audit.write({"time": when, "call": call, **self._who, **self._about, "answer": answer})

    def is_about(self, named: dict[str, str]) -> None:
        """Takes the object of a stream, once it is known."""
        self._about |= named

    def begun(self, about: dict[str, str]) -> None:
        """Writes the BEGUN line of a stream, with its object."""
        self._about |= about
        self._write("BEGUN")

    def answered(self, answer: Any) -> None:
        """Takes the job's id from the answer, if the request left it to the daemon."""
        job_id = getattr(getattr(answer, "job", None), "job_id", "")
        if job_id:
            self._about.setdefault("job_id", job_id)


_present: ContextVar[Call] = ContextVar("_present")


def about(**named: str) -> None:
    """What the present call is about, where its first message says it: for the line of a call that is refused."""
    call = _present.get(None)
    if call is not None:
        call.is_about({name: value[:200] for name, value in named.items() if value})


def begun(**about: str) -> None:
    """Writes the BEGUN line of the present call. The handler of a stream calls it, because only the stream's first
    request names the object."""
    call = _present.get(None)
    if call is not None:  # handlers can be called without a boundary
        call.begun({name: value[:200] for name, value in about.items() if value})


def _named(request: Any) -> dict[str, str]:
    """The fields of a request that name its object and are not secret: of a command, only the program."""
    found: dict[str, str] = {}
    if not isinstance(request, Message):
        return found  # a stream, or bytes that are no valid message
    spec = getattr(request, "spec", None)
    # The `code` of a request is one of a card's condition; that of a spec is a URL, which may be signed.
    of_request = ("job_id", "session_id", "user", "reason", "code", "device")
    for message, names in ((request, of_request), (spec, ("job_id", "user"))):
        for name in names:
            value = getattr(message, name, None)
            if isinstance(value, str) and value:
                found[name] = value[:200]
    program = getattr(request, "argv", None) or getattr(spec, "command", None)
    if program:
        found["program"] = str(program[0])[:200]
    if isinstance(request, node_pb2.AcceptCardsRequest):
        found["cards"] = "all" if request.all else ",".join(request.cards)[:200]
    return found
