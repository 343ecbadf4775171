"""Relays between a client's stream and a session: every message is a frame, in both directions, and nothing is stored.

What is on its way is bounded by the acknowledgements of both ends, which are passed through: the session sends no more
than a window that the client has not acknowledged, and the client no more than a window that the command has not taken.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
from google.protobuf.message import DecodeError

from muster.agent.api.exec_order import window_problems
from muster.agent.errors import InvalidRequest
from muster.agent.link.connection import LinkLost
from muster.agent.link.exec_link import SessionLink
from muster.agent.text import plain
from muster.supervisors.model.spec import Violation
from muster.supervisors.wire import frames
from muster.supervisors.wire.frames import Frame
from muster.v1 import exec_pb2

if TYPE_CHECKING:
    from grpc import aio

    _Context = aio.ServicerContext[exec_pb2.ExecRequest, exec_pb2.ExecResponse]

#: Seconds that a client has for its first request; and for which its requests are read after its session has ended.
FIRST_S = 10.0
PART_S = 2.0
#: Seconds after which requests that ended have ended in good order. Those of a call that was cancelled, that broke or
#: whose time is over end in the same way, and only then, a moment later, is its task cancelled.
IN_ORDER_S = 0.5
_MAX_SIGNAL = 31


async def first_request(context: "_Context") -> exec_pb2.ExecRequest:
    """`start` or `attach`. Raises InvalidRequest."""
    with anyio.move_on_after(FIRST_S):
        request = await _read(context)
        if request is not None and request.WhichOneof("message") in ("start", "attach"):
            return request
    raise _invalid("start", "the first message of the stream must have start or attach")


class Relay:
    """One stream, from its `started` message on."""

    def __init__(self, link: SessionLink, context: "_Context", on_exit: Callable[[exec_pb2.ExecExited], None]) -> None:
        """`on_exit` is called when the session has ended, before the client receives `exited`."""
        self._link = link
        self._context = context
        self._on_exit = on_exit
        # Offsets: the end of the input received, and of the input that the command is known to have taken; the end of
        # the output sent.
        self._given = link.started.input
        self._taken = max(0, self._given - frames.WINDOW)
        self._sent = {frames.STDOUT: link.started.stdout, frames.STDERR: link.started.stderr}
        self._closed = False
        #: The client has ended its requests.
        self._heard_all = anyio.Event()
        self._over = False

    async def run(self) -> None:
        """Relays until the session ends or another client takes it. Raises LinkLost, InvalidRequest (in a group)."""
        lost: LinkLost | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._up)
            try:
                await self._down()
            except LinkLost as error:
                lost = error
            tasks.cancel_scope.cancel()
        if lost is not None:
            raise lost

    async def _down(self) -> None:
        while True:
            for frame in await self._link.receive():
                message = self._message(frame)
                if message.HasField("exited"):
                    self._on_exit(message.exited)
                self._over = message.HasField("exited") or message.HasField("left")
                await self._context.write(message)
                if self._over:
                    # A client that writes while its call ends may never read the last messages.
                    with anyio.move_on_after(PART_S):
                        await self._heard_all.wait()
                    return
                if self._heard_all.is_set() and message.HasField("output"):
                    await self._acknowledge()

    def _message(self, frame: Frame) -> exec_pb2.ExecResponse:
        if frame.kind in self._sent:
            (offset,) = frame.numbers
            self._sent[frame.kind] = offset + len(frame.data)
            output = exec_pb2.ExecOutput(stderr=frame.kind == frames.STDERR, offset=offset, data=frame.data)
            return exec_pb2.ExecResponse(output=output)
        if frame.kind == frames.ACK:
            (self._taken,) = frame.numbers
            return exec_pb2.ExecResponse(input_offset=self._taken)
        if frame.kind == frames.EXITED:
            return exec_pb2.ExecResponse(exited=exited_message(json.loads(frame.data)))
        text = str(json.loads(frame.data).get("message", ""))
        return exec_pb2.ExecResponse(left=exec_pb2.ExecLeft(message=plain(text)))

    async def _up(self) -> None:
        try:
            while (request := await _read(self._context)) is not None:
                if not self._over:
                    await self._take(request)
            if not self._over:
                await anyio.sleep(IN_ORDER_S)
            self._heard_all.set()
            if not self._over:
                # The client has left: it can neither close the input nor acknowledge output.
                if not self._closed:
                    await self._close()
                await self._acknowledge()
        except LinkLost:
            pass  # the other direction reports it

    async def _take(self, request: exec_pb2.ExecRequest) -> None:
        kind, send = request.WhichOneof("message"), self._link.send
        if kind == "input":
            await self._input(request.input)
        elif kind == "window":
            if problems := window_problems(request.window, "window"):
                raise InvalidRequest(problems)
            await send(frames.SIZE, request.window.rows, request.window.columns)
        elif kind == "signal":
            if not 1 <= request.signal <= _MAX_SIGNAL:
                raise _invalid("signal", f"{request.signal}: must be 1 to {_MAX_SIGNAL}")
            await send(frames.SIGNAL, request.signal)
        elif kind == "ack":
            acks = (request.ack.stdout_offset, request.ack.stderr_offset)
            for name, had, sent in zip(("stdout", "stderr"), acks, self._sent.values(), strict=True):
                if had > sent:
                    raise _invalid(f"ack.{name}_offset", f"{had}: is beyond the sent output, which ends at {sent}")
            await self._link.acknowledge(*acks)
        elif kind == "detach":
            await send(frames.DETACH)
        else:
            raise _invalid(kind or "message", "must not come here: a stream has one session")

    async def _input(self, given: exec_pb2.ExecInput) -> None:
        end = given.offset + len(given.data)
        if self._closed and end > self._given:
            raise _invalid("input", "comes after the input was closed")
        if len(given.data) > frames.MAX_DATA:
            raise _invalid("input.data", f"{len(given.data)} bytes: at most {frames.MAX_DATA} are allowed")
        if given.offset > self._given:
            raise _invalid("input.offset", f"{given.offset}: the input before it ends at {self._given}")
        if end > self._taken + frames.WINDOW:
            raise _invalid("input", f"is over {frames.WINDOW} bytes ahead of what the command has taken")
        self._given = max(self._given, end)
        if given.data:
            await self._link.send(frames.INPUT, given.offset, data=given.data)
        if given.close:
            await self._close()

    async def _close(self) -> None:
        self._closed = True
        await self._link.send(frames.CLOSE, self._given)

    async def _acknowledge(self) -> None:
        await self._link.acknowledge(*self._sent.values())


def exited_message(told: dict[str, Any]) -> exec_pb2.ExecExited:
    """The end of a session as its supervisor reports it."""
    return exec_pb2.ExecExited(
        exit_code=int(told["exit_code"]), signal=int(told["signal"]), message=plain(str(told["message"]))
    )


async def _read(context: "_Context") -> exec_pb2.ExecRequest | None:
    """The next request; None when there are no more. Raises InvalidRequest."""
    try:
        request: object = await context.read()
    except DecodeError:
        raise _invalid("message", "is not an ExecRequest") from None
    return request if isinstance(request, exec_pb2.ExecRequest) else None  # EOF


def _invalid(field: str, text: str) -> InvalidRequest:
    return InvalidRequest([Violation(field, text)])
