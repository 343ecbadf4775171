"""A small HTTP server for scrapes: GET and HEAD of one path, one request per connection, everything bounded.

It reads only the head of a request. It closes the connection of a client that is slow or sends anything else, and other
clients are not affected.
"""

import asyncio
import contextlib
import os
import re
import socket
import stat
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import anyio
import structlog
from anyio.abc import TaskStatus

from muster.agent.config.listen_address import Tcp, Unix
from muster.agent.exposition import OPENMETRICS, TEXT, wants_openmetrics
from muster.probes.kernel.dataclass import dataclass

PATH = "/metrics"
#: Connections that are served at the same time, and connections that wait; the server closes others at once.
MAX_CONNECTIONS, MAX_WAITING = 16, 48
#: Bytes of a request's head, seconds that it may take, and seconds for the answer.
MAX_HEAD = 8 << 10
HEAD_S = 5.0
ANSWER_S = 10.0
#: Seconds that a client has to close an answered connection, and bytes that it may still send.
LINGER_S = 1.0
MAX_LINGER = 64 << 10
#: Permissions of a unix socket.
MODE = 0o660

_END = b"\r\n\r\n"
_LINE = re.compile(rb"([A-Z]{1,16}) (\S+) HTTP/1\.[01]")
_AUTHORITY = re.compile(r"https?://[^/?#]*")

_log = structlog.get_logger(__name__)

#: Returns the page; True: as OpenMetrics.
Show = Callable[[bool], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. `path` without the query; `accept` as in the header, empty if absent."""

    method: str
    path: str
    accept: str = ""


class BadRequest(Exception):
    """Raised for a request that is refused. `status` is the answer's status line."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


def bind(where: Tcp | Unix) -> socket.socket:
    """A listening socket. Replaces a unix socket only if no process listens on it.

    Raises OSError.
    """
    if isinstance(where, Tcp):
        family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((where.host, where.port))
            sock.listen(MAX_CONNECTIONS)
        except OSError:
            sock.close()
            raise
    else:
        sock = _bind_unix(where)
    sock.setblocking(False)
    return sock


def _bind_unix(where: Unix) -> socket.socket:
    path = str(where.path)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode) and _abandoned(path):
            os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # No user excluded by the mode may connect between bind and chmod; meanwhile other threads'
        # new files may be too private.
        before = os.umask(0o177)
        try:
            sock.bind(path)
        finally:
            os.umask(before)
        os.chmod(path, MODE)
        sock.listen(MAX_CONNECTIONS)
    except OSError:
        sock.close()
        raise
    return sock


def _abandoned(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


async def serve(sock: socket.socket, show: Show, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Answers on a socket of `bind` until cancelled, and closes it.

    While no descriptors are left, the server accepts no connections, or closes them at once; then it continues.
    """
    slots = anyio.Semaphore(MAX_CONNECTIONS)
    async with anyio.create_task_group() as tasks:

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if slots.statistics().tasks_waiting >= MAX_WAITING:
                writer.transport.abort()
            else:
                tasks.start_soon(_answer, reader, writer, show, slots)

        start = asyncio.start_unix_server if sock.family == socket.AF_UNIX else asyncio.start_server
        server = await start(connected, sock=sock, limit=MAX_HEAD)
        try:
            task_status.started()
            await anyio.sleep_forever()
        finally:
            server.close()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, show: Show, slots: anyio.Semaphore
) -> None:
    # So that `drain` returns when the kernel has all of the answer.
    writer.transport.set_write_buffer_limits(0)
    try:
        async with slots:
            with anyio.move_on_after(HEAD_S) as patience:
                head = await _head(reader)
            if patience.cancelled_caught:
                head = HTTPStatus.REQUEST_TIMEOUT
            with anyio.move_on_after(ANSWER_S) as patience:
                writer.write(await _response(head, show))
                await writer.drain()
            if not patience.cancelled_caught:
                with anyio.move_on_after(LINGER_S):
                    await _linger(reader, writer)
    except OSError:  # the client has disconnected
        pass
    finally:
        writer.transport.abort()


async def _head(reader: asyncio.StreamReader) -> bytes | HTTPStatus:
    """The head of a request without its last empty line, or why there is none. Raises OSError."""
    try:
        return (await reader.readuntil(_END)).removesuffix(_END)
    except asyncio.LimitOverrunError:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    except asyncio.IncompleteReadError:
        return HTTPStatus.BAD_REQUEST


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads the client's remaining bytes, so that it can read the answer: close() with unread bytes resets the
    connection, and the answer is lost."""
    writer.write_eof()
    left = MAX_LINGER
    while left > 0 and (got := await reader.read(4096)):
        left -= len(got)


def parse(head: bytes) -> HttpRequest:
    """Reads a request's head. Raises BadRequest."""
    line, *fields = head.split(b"\r\n")
    match = _LINE.fullmatch(line)
    if match is None:
        raise BadRequest(HTTPStatus.BAD_REQUEST)
    accept = []
    for field in fields:
        name, colon, value = field.partition(b":")
        if not colon:
            raise BadRequest(HTTPStatus.BAD_REQUEST)
        if name.lower() == b"accept":
            accept.append(value.strip().decode("latin-1"))
    target = _AUTHORITY.sub("", match[2].decode("latin-1"))
    return HttpRequest(match[1].decode(), target.partition("?")[0], ", ".join(accept))


async def _response(head: bytes | HTTPStatus, show: Show) -> bytes:
    try:
        if isinstance(head, HTTPStatus):
            raise BadRequest(head)
        request = parse(head)
        if request.path != PATH:
            raise BadRequest(HTTPStatus.NOT_FOUND)
        if request.method not in ("GET", "HEAD"):
            raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED)
    except BadRequest as refusal:
        return _plain(refusal.status)
    openmetrics = wants_openmetrics(request.accept)
    try:
        page = await show(openmetrics)
    except Exception as error:  # a defect in a metric: the scrape fails, the daemon continues
        _log.exception("metrics.defect", error=repr(error))
        return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)
    kind = OPENMETRICS if openmetrics else TEXT
    answer = _start(HTTPStatus.OK, kind, len(page))
    return answer if request.method == "HEAD" else answer + page


def _plain(status: HTTPStatus) -> bytes:
    body = f"{status.value} {status.phrase}: metrics are at {PATH}\n".encode()
    return _start(status, "text/plain; charset=utf-8", len(body)) + body


def _start(status: HTTPStatus, kind: str, size: int) -> bytes:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Type: {kind}", f"Content-Length: {size}"]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    return ("\r\n".join([*lines, "Connection: close", "", ""])).encode()
