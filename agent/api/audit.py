"""Who started, stopped, exec'd, drained: a line for each call that does something, refused ones included.

Besides the events, which tell what happened: this tells who asked, and what the answer was. It is written at one place,
the boundary around all calls, and never holds arguments, environments or output. A stream, which may last for days, has
a line when it has begun, and another when it ends.
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

#: Bytes; then the file is put aside as `.1`, in the place of the one before.
MAX_BYTES = 64 << 20

_log = structlog.get_logger(__name__)


class Audit:
    """Appends to one file, line by line. Nobody waits for a disk that takes nothing: the daemon's log has the line
    then, it is counted, and once the file can be written a line in it says how many are missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: Lines that could not be written, ever.
        self.lost = 0
        #: A sentence for an operator while the file cannot be written.
        self.trouble = ""
        #: Lines that no line in the file tells of, and when the first of them was lost.
        self._untold, self._since = 0, 0.0
        self._one = threading.Lock()
        self._append(b"")  # nothing else is to get this name

    def write(self, line: dict[str, Any]) -> None:
        """Best effort."""
        self._append(json.dumps(line).encode() + b"\n", **line)

    def try_again(self) -> None:
        """Looks whether the file can be written, and tells in it what it lacks. Blocks."""
        self._append(b"")

    def _append(self, data: bytes, **line: Any) -> None:
        with self._one:
            try:
                folder = trust.open_logs(self._path.parent)
                try:
                    self._append_to(folder, self._gap() + data)
                finally:
                    os.close(folder)
            except OSError as error:
                if data:
                    self._untold, self._since = self._untold + 1, self._since or time.time()
                    self.lost += 1
                # A link or folder on the way may be what is wrong.
                at = os.path.join(self._path.parent, error.filename or self._path.name)
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
        """The line that stands in the place of those that were lost, if any were."""
        if not self._untold:
            return b""
        when, since = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (time.time(), self._since))
        return json.dumps({"time": when, "call": "LOST", "lines": self._untold, "since": since}).encode() + b"\n"

    def _append_to(self, folder: int, data: bytes) -> None:
        """Raises OSError."""
        name = self._path.name
        fd, _ = trust.open_log(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, folder=folder)
        try:
            written = os.write(fd, data)
            if written < len(data):  # the rest of a disk: half a line would spoil the one that comes next
                os.ftruncate(fd, os.fstat(fd).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if os.fstat(fd).st_size > MAX_BYTES:
                os.rename(name, f"{name}.1", src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(fd)


class Call:
    """A call that is made, for the length of it."""

    def __init__(self, audit: Audit, method: str, caller: Caller, claimed: str, request: Any) -> None:
        """`claimed`: who the client says it is."""
        self.method = method
        self._audit = audit
        self._who = {"who": caller.name, "says": claimed, "role": caller.role.value if caller.role else None}
        self._about = _named(request)
        _present.set(self)

    def write(self, answer: str) -> None:
        """`answer`: the gRPC status, or BEGUN."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        call = self.method.rpartition(".")[2]
        self._audit.write({"time": when, "call": call, **self._who, **self._about, "answer": answer})

    def begun(self, about: dict[str, str]) -> None:
        """Writes that it has begun, and what it is about."""
        self._about |= about
        self.write("BEGUN")

    def answered(self, answer: Any) -> None:
        """Takes the job's name from what the call returns, where the request left that to the daemon."""
        job_id = getattr(getattr(answer, "job", None), "job_id", "")
        if job_id:
            self._about.setdefault("job_id", job_id)


_present: ContextVar[Call] = ContextVar("_present")


def begun(**about: str) -> None:
    """To be called by the handler of a stream, whose request tells nothing yet when the call is made: it has begun, and
    is about this."""
    call = _present.get(None)
    if call is not None:  # handlers can be called without a boundary
        call.begun({name: value[:200] for name, value in about.items() if value})


def _named(request: Any) -> dict[str, str]:
    """What of a request says what it was about, and is no secret: of a command, the program alone."""
    found: dict[str, str] = {}
    if not isinstance(request, Message):
        return found  # a stream's, or bytes that are none
    spec = getattr(request, "spec", None)
    for message in (request, spec):
        for name in ("job_id", "session_id", "user", "reason", "code", "device"):
            value = getattr(message, name, None)
            if isinstance(value, str) and value:
                found[name] = value[:200]
    program = getattr(request, "argv", None) or getattr(spec, "command", None)
    if program:
        found["program"] = str(program[0])[:200]
    if isinstance(request, node_pb2.AcceptCardsRequest):
        found["cards"] = "all" if request.all else ",".join(request.cards)[:200]
    return found
