"""Who started, stopped, exec'd, drained: a line for each call that does something, refused ones included.

Besides the events, which tell what happened: this tells who asked, and what the answer was. It is written at one place,
the boundary around all calls, and never holds arguments, environments or output. A stream, which may last for days, has
a line when it has begun, and another when it ends.
"""

import errno
import json
import os
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import structlog
from google.protobuf.message import Message

from muster.agent.api.access import Caller
from muster.supervisors.system import trust
from muster.v1 import node_pb2

#: Bytes; then the file is put aside as `.1`, in the place of the one before.
MAX_BYTES = 64 << 20

_log = structlog.get_logger(__name__)


class Audit:
    """Appends to one file, line by line. A disk that takes nothing is said in the daemon's log, and nobody waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._append(b"")  # nothing else is to get this name

    def write(self, line: dict[str, Any]) -> None:
        """Best effort."""
        self._append(json.dumps(line).encode() + b"\n", **line)

    def _append(self, data: bytes, **line: Any) -> None:
        try:
            folder = trust.open_logs(self._path.parent)
            try:
                self._append_to(folder, data)
            finally:
                os.close(folder)
        except OSError as error:
            # A link or folder on the way may be what is wrong.
            at = os.path.join(self._path.parent, error.filename or self._path.name)
            _log.error("audit.unwritten", path=at, error=error.strerror, **line)

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
