"""The audit log: who started, stopped, exec'd, drained. One line for each call that acts, including refused calls.

Events record what happened; the audit log records who asked and what the answer was. Only the boundary around all calls
writes it. It never contains arguments, environments or output. A stream, which may last for days, has one line when it
begins and one when it ends.
"""

import errno
import json
import os
import threading
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import structlog
from google.protobuf.message import Message

from muster.agent.api.access import Caller
from muster.supervisors.supervision_errors import explain
from muster.supervisors.system import trust
from muster.v1 import node_pb2

#: Bytes. A larger file is renamed to `.1` and replaces the previous one.
MAX_BYTES = 64 << 20

_log = structlog.get_logger(__name__)


class Audit:
    """Appends lines to one file. If the file cannot be written, the line goes to the daemon's log and is counted; when
    writing works again, a line in the file gives the number of missing lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Lines that could not be written, ever.
        self.lost = 0
        #: A sentence for an operator while the file cannot be written.
        self.trouble = ""
        #: Lost lines that the file does not mention yet, and when the first of them was lost.
        self._untold, self._since = 0, 0.0
        self._one = threading.Lock()
        self._append(b"")  # creates the file, so that no other file gets this name

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line, best effort. Blocks."""
        self._append(json.dumps(line).encode() + b"\n", **line)

    def try_again(self) -> None:
        """Tests whether the file can be written, and writes the number of lost lines into it. Blocks."""
        self._append(b"")

    def _append(self, data: bytes, **line: Any) -> None:
        with self._one:
            try:
                folder = trust.open_logs(self.path.parent)
                try:
                    self._append_to(folder, self._gap() + data)
                finally:
                    os.close(folder)
            except OSError as error:
                if data:
                    self._untold, self._since = self._untold + 1, self._since or time.time()
                    self.lost += 1
                # The fault may be a link or folder on the path.
                at = os.path.join(self.path.parent, error.filename or self.path.name)
                if data or not self.trouble:
                    _log.error("audit.unwritten", path=at, error=error.strerror, **line)
                self.trouble = f"cannot write {at}: {explain(OSError(error.errno, error.strerror))}; "
                since = time.strftime("%H:%M:%S", time.localtime(self._since))
                self.trouble += (
                    f"the audit log lacks {self._untold} line(s) since {since}; the daemon's log has them"
                    if self._untold
                    else "the daemon writes calls into its own log only"
                )
            else:
                self.trouble, self._untold, self._since = "", 0, 0.0

    def _gap(self) -> bytes:
        """The line that replaces the lost lines; empty if none were lost."""
        if not self._untold:
            return b""
        when, since = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (time.time(), self._since))
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
        self._audit = audit
        self._who: dict[str, Any] = {"who": caller.name}
        if caller.peer is not None:
            self._who |= {"uid": caller.peer.uid, "gid": caller.peer.gid, "pid": caller.peer.pid}
        self._who |= {"says": claimed, "role": caller.role.value if caller.role else None}
        self._about = _named(request)
        _present.set(self)

    def write(self, answer: str) -> None:
        """`answer`: the gRPC status, or BEGUN."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        call = self.method.rpartition(".")[2]
        self._audit.write({"time": when, "call": call, **self._who, **self._about, "answer": answer})

    def is_about(self, named: dict[str, str]) -> None:
        """Takes the object of a stream, once it is known."""
        self._about |= named

    def begun(self, about: dict[str, str]) -> None:
        """Writes the BEGUN line of a stream, with its object."""
        self._about |= about
        self.write("BEGUN")

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
