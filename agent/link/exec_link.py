"""A session in a job's supervisor, the daemon's end: a line that opens it, then the frames of
supervisors/wire/frames.py."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.abc import ByteStream

from muster.agent.link import connection as control
from muster.agent.link.connection import LinkLost, Refused
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.supervision_errors import ProtocolError
from muster.supervisors.wire import frames, messages
from muster.supervisors.wire.frames import Frame

#: Seconds that a supervisor has for an answer: it may have to start a command on a busy node.
ANSWER_S = 20.0
#: Most bytes of an answer, which may list hundreds of sessions.
MAX_ANSWER = 4 << 20


class ExecRefused(Refused):
    """Raised when a supervisor refuses a request; `reason` is a word for programs, or empty. `limit`: of sessions, if
    they have reached it."""

    def __init__(self, text: str, reason: str, limit: int | None = None) -> None:
        super().__init__(text)
        self.reason, self.limit = reason, limit


@dataclass(frozen=True, slots=True)
class Started:
    """A session at the moment of attaching; see ExecStarted in exec.proto. `supervisor` is a pid."""

    supervisor: int
    session: str
    rank: int
    pid: int
    tty: bool
    input: int
    stdout: int
    stderr: int


class SessionLink:
    """The frames of one session. Several tasks may send; one may receive."""

    def __init__(self, stream: ByteStream, started: Started, early: bytes) -> None:
        """`early`: bytes that were received directly after the answer."""
        self.started = started
        self._stream = stream
        self._early = early
        self._sending = anyio.Lock()
        self._parser = frames.Parser(frames.FROM_SESSION)

    async def send(self, kind: bytes, *numbers: int, data: bytes = b"") -> None:
        """Waits for room. Raises LinkLost."""
        try:
            async with self._sending:
                await self._stream.send(frames.TO_SESSION.encode(kind, *numbers, data=data))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise LinkLost("the connection to the session broke") from error

    async def acknowledge(self, stdout: int, stderr: int) -> None:
        """Reports how far the output was taken. A session that has closed the connection needs no report, and what it
        sent before, its end perhaps, is still to be received: that raises LinkLost where nothing is left."""
        with suppress(LinkLost):
            await self.send(frames.ACK, stdout, stderr)

    async def receive(self) -> list[Frame]:
        """The next frames; none while the next one is incomplete. Raises LinkLost."""
        data, self._early = self._early, b""
        try:
            return self._parser.feed(data or await _received(self._stream))
        except ProtocolError as error:
            raise LinkLost(f"not understood: {error}") from error


@asynccontextmanager
async def session(sockets: Sequence[Path], order: messages.Message, body: bytes = b"") -> AsyncIterator[SessionLink]:
    """Begins a session or attaches to one, as `order` requests, for the duration of a `with`. Raises LinkLost,
    Refused."""
    async with control.connect(*sockets) as connection:
        answer, rest = await _ask(connection.stream, order, body)
        started = Started(
            connection.pid,
            str(answer["session"]),
            int(answer["rank"]),
            int(answer["pid"]),
            bool(answer["tty"]),
            *(int(answer[name]) for name in ("input", "stdout", "stderr")),
        )
        yield SessionLink(connection.stream, started, rest)


async def ask(sockets: Sequence[Path], order: messages.Message) -> messages.Message:
    """One answer. Raises LinkLost, Refused."""
    async with control.connect(*sockets) as connection:
        answer, _ = await _ask(connection.stream, order)
    return answer


async def supervisor_pid(sockets: Sequence[Path]) -> int:
    """Of the supervisor that lives now. Raises LinkLost, Refused."""
    async with control.connect(*sockets) as connection:
        return connection.pid


async def _ask(stream: ByteStream, order: messages.Message, body: bytes = b"") -> tuple[messages.Message, bytes]:
    """The answer, and the bytes after it."""
    try:
        with anyio.fail_after(ANSWER_S):
            await stream.send(messages.encode(order) + body)
            data = b""
            while b"\n" not in data:
                data += await _received(stream)
                if len(data) > MAX_ANSWER:
                    raise LinkLost(f"an answer of more than {MAX_ANSWER} bytes")
    except TimeoutError:
        raise LinkLost(f"no answer within {ANSWER_S:g} s") from None
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
        raise LinkLost("the connection to the supervisor broke") from error
    line, _, rest = data.partition(b"\n")
    try:
        answer = messages.decode(line)
    except ProtocolError as error:
        raise LinkLost(f"not understood: {error}") from error
    if answer.get("ok") is not True:
        limit = answer.get("limit")  # an earlier release's supervisor does not say it
        raise ExecRefused(
            control.refusal(answer), str(answer.get("reason", "")), limit if isinstance(limit, int) else None
        )
    return answer, rest


async def _received(stream: ByteStream) -> bytes:
    try:
        return await stream.receive()
    except anyio.EndOfStream:
        raise LinkLost("the supervisor closed the connection") from None
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
        raise LinkLost("the connection to the supervisor broke") from error
