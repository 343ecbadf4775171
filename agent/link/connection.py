"""A connection to a nursery or a supervisor: the messages of supervisors/wire/messages.py, without blocking."""

import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from muster.agent import threads
from muster.agent.link.link_stream import LinkStream
from muster.supervisors import PROTOCOL
from muster.supervisors.supervision_errors import ProtocolError
from muster.supervisors.wire import messages

#: Seconds that a process on this node has to accept a connection and to say hello.
HELLO_S = 5.0
#: Most connections that are being opened: more only wait for a disk that does not answer, each with a thread.
MAX_OPENINGS = 32
#: Seconds without a thread after which one is opened on the loop: what ends processes needs it.
_NO_THREAD_S = 0.2

_threads = threads.Pool(MAX_OPENINGS, abandon_on_cancel=True, here_after=_NO_THREAD_S)
_openings: "set[_Opening]" = set()


class LinkLost(Exception):
    """Raised when the peer does not exist, has exited, or does not answer in time. Another try may succeed."""


class Silent(LinkLost):
    """Raised when the peer holds its socket and does not answer: it is stopped, hangs, or is overloaded."""


class Refused(Exception):
    """Raised when the peer refused the request; the text is its reason."""


class OtherProtocol(Refused):
    """Raised when the peer speaks another version of the protocol: another try cannot succeed."""


def refusal(answer: messages.Message) -> str:
    """The reason in an answer that is not `ok`."""
    said = str(answer.get("error", "no reason was given"))
    if said.startswith(messages.UNKNOWN):
        return f"an earlier release of muster started this job, and its supervisor cannot do that ({said})"
    return said


class Connection:
    """Messages in both directions. Several tasks may send; one may receive."""

    def __init__(self, stream: LinkStream) -> None:
        #: For what does not speak in messages from here on.
        self.stream = stream
        self._lines = messages.Lines()
        self._received: list[bytes] = []
        self._sending = anyio.Lock()
        #: Of the other end, as it says itself.
        self.pid = 0

    async def send(self, message: messages.Message) -> None:
        """What the other end takes at once is sent at once, and not in a later turn of the loop: a start waits for it.
        Raises LinkLost."""
        data = messages.encode(message)
        try:
            if not self._sending.locked():
                with contextlib.suppress(BlockingIOError):
                    data = data[self.stream.socket.send(data, socket.MSG_DONTWAIT) :]
                if not data:
                    return
            async with self._sending:
                await self.stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise LinkLost("the connection broke") from error

    def send_now(self, message: messages.Message) -> None:
        """A short message on which nothing may depend: it is not sent where another one is being sent, or the other end
        does not take it at once, as a whole."""
        if not self._sending.locked():
            with contextlib.suppress(OSError):
                self.stream.socket.send(messages.encode(message), socket.MSG_DONTWAIT)

    async def receive(self) -> messages.Message:
        """The next message. Raises LinkLost, also for an invalid message."""
        try:
            while not self._received:
                self._received = self._lines.feed(await self.stream.receive())
            return messages.decode(self._received.pop(0))
        except anyio.EndOfStream:
            raise LinkLost("the other end closed the connection") from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise LinkLost("the connection broke") from error
        except ProtocolError as error:
            raise LinkLost(f"not understood: {error}") from error

    async def ask(self, message: messages.Message) -> messages.Message:
        """Sends a request and returns the first message back. Raises LinkLost, Refused."""
        await self.send(message)
        answer = await self.receive()
        if answer.get("ok") is not True:
            raise Refused(refusal(answer))
        return answer


async def _open(path: Path) -> socket.socket:
    """In a thread, for the path may lead over a disk that does not answer. Raises OSError, Silent."""
    if len(_openings) >= MAX_OPENINGS:
        raise Silent(f"{path}: {MAX_OPENINGS} connections wait for a disk that does not answer")
    opening = _Opening(path)
    _openings.add(opening)
    try:
        return await _threads.run(opening.run)
    except anyio.get_cancelled_exc_class():
        opening.unwanted = True
        raise


class _Opening:
    """Connects a socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: Nobody waits for it any more.
        self.unwanted = False

    def run(self) -> socket.socket:
        """Blocks. Raises OSError."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(HELLO_S), 0))
            # The path may be longer than a socket's address: SocketAt makes it short for the time of the call.
            with messages.SocketAt(self._path) as name:
                made.connect(name)
            made.setblocking(False)
        except BaseException:
            made.close()
            raise
        finally:
            _openings.discard(self)
        if self.unwanted:
            made.close()
        return made


@asynccontextmanager
async def connect(*paths: Path) -> AsyncIterator[Connection]:
    """A connection, after its hello, to the first of these sockets that has a listener. Raises LinkLost, Silent,
    OtherProtocol."""
    path = paths[0]
    stream: LinkStream | None = None
    troubles = []
    for path in paths:
        try:
            with anyio.fail_after(HELLO_S):
                stream = LinkStream(await _open(path))
            break
        except TimeoutError:
            raise Silent(f"{path}: does not accept a connection within {HELLO_S:g} s") from None
        except OSError as error:
            troubles.append(LinkLost(f"{path}: {error.strerror}"))
    if stream is None:
        raise troubles[0]
    async with stream:
        connection = Connection(stream)
        try:
            with anyio.fail_after(HELLO_S):
                await _hello(connection)
        except TimeoutError:
            raise Silent(f"{path}: does not say hello within {HELLO_S:g} s") from None
        yield connection


async def _hello(connection: Connection) -> None:
    await connection.send({"op": "hello", "protocol": PROTOCOL})
    answer = await connection.receive()
    theirs = answer.get("protocol")
    if theirs != PROTOCOL:
        raise OtherProtocol(
            f"pid {answer.get('pid')} is of another release and speaks protocol {theirs}, this daemon {PROTOCOL}: only "
            "a musterd of that release can give it orders"
        )
    if answer.get("ok") is not True:
        raise Refused(str(answer.get("error", "no reason was given")))
    connection.pid = int(answer["pid"])
