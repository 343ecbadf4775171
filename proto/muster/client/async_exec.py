"""A command in a rank, for asyncio."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import grpc

from muster.client.errors import MusterError
from muster.client.exec_state import ExecSession
from muster.client.retries import Attempts
from muster.v1 import exec_pb2

if TYPE_CHECKING:
    from grpc import aio

    from muster.v1.exec_pb2_grpc import ExecServiceAsyncStub

    _Call = aio.StreamStreamCall[exec_pb2.ExecRequest, exec_pb2.ExecResponse]

_Heard = Callable[[float], Awaitable[None]]

#: Seconds for the end of a stream behind its last message, and of a session that is left before its end.
PART_S = 2.0
#: Seconds for which a call is opened again whose first request could not be written.
_OPEN_S, _OPEN_PAUSE_S = 3.0, 0.05


class AsyncExec(ExecSession):
    """A running command. Iterate over it for its output; one task may do so while another one writes."""

    def __init__(
        self, stub: "ExecServiceAsyncStub", first: exec_pb2.ExecRequest, search_s: float, heard: _Heard
    ) -> None:
        """`heard` returns once the daemon answers, or raises grpc.RpcError after so many seconds."""
        super().__init__(first)
        self._stub, self._search_s, self._heard = stub, search_s, heard
        self._call: _Call | None = None
        #: The read that is under way: a caller who gives up waiting does not end it, and so not the stream.
        self._read: asyncio.Task[object] | None = None
        self._reading, self._writing = asyncio.Lock(), asyncio.Lock()
        self._changed = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[exec_pb2.ExecOutput]:
        """Its output until its end. Raises MusterError."""
        while True:
            while self._state.arrived:
                output = self._state.take()
                await self._flush()  # acknowledges what the caller takes
                yield output
            if self._state.over:
                return
            await self._progress()

    async def wait(self) -> exec_pb2.ExecExited:
        """Waits for its end; drops output that nobody takes meanwhile. Raises MusterError where another client took
        the session."""
        async for _ in self:
            pass
        return self._exited()

    async def write(self, data: bytes) -> None:
        """Input for the command: returns once it is on its way or in the window. Raises MusterError."""
        while data and not self._state.over:
            now = self._state.room
            self._state.write(data[:now])
            data = data[now:]
            await self._flush()
            if data:
                await self._progress()

    async def close_input(self) -> None:
        """The end of the input; with a terminal ^D."""
        self._state.close_input()
        await self._flush()

    async def send_signal(self, number: int) -> None:
        """To the foreground of the session: 1 to 31."""
        await self._order(exec_pb2.ExecRequest(signal=number))

    async def resize(self, rows: int, columns: int) -> None:
        """The size of its terminal."""
        await self._order(exec_pb2.ExecRequest(window=exec_pb2.WindowSize(rows=rows, columns=columns)))

    async def detach(self) -> None:
        """Leaves it running; the block's end does not end it then."""
        await self._order(exec_pb2.ExecRequest(detach=exec_pb2.ExecDetach()))
        await self.drain()

    async def drain(self) -> None:
        """Reads on, without taking output, until the end of the stream or its window."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PART_S):
                while not self._state.over:
                    await self._progress()

    async def open(self) -> None:
        """Begins the session or attaches to it. Raises MusterError."""
        attempts = Attempts(self._state.opening(), self._search_s)
        while True:
            try:
                await self._heard(attempts.try_s)
                call = await opened(self._stream, self._state.opening())
                answer: object = await call.read()
                if isinstance(answer, exec_pb2.ExecResponse):
                    self._state.begin(answer.started)
                    self._call = call
                    return await self._flush()
                failed = MusterError.cut()
            except grpc.RpcError as error:
                failed = self._state.failed(MusterError.of(error))
            except asyncio.InvalidStateError:
                failed = MusterError.cut()
            await asyncio.sleep(attempts.pause_s(failed))

    async def close(self) -> None:
        """Ends the stream, and the session that was begun here and has not ended."""
        if (request := self._unended()) is not None:
            with suppress(grpc.RpcError):
                await self._stub.EndSession(request, timeout=PART_S)
        if self._call is not None:
            if self._state.over:
                with suppress(grpc.RpcError, asyncio.InvalidStateError, TimeoutError):
                    async with asyncio.timeout(PART_S):
                        await self._call.done_writing()
                        while isinstance(await self._call.read(), exec_pb2.ExecResponse):
                            pass
            self._call.cancel()
        if self._read is not None:
            self._read.cancel()
            await asyncio.wait((self._read,))

    async def _progress(self) -> None:
        """Receives one message, or waits until another task has."""
        if self._reading.locked():
            self._changed.clear()
            await self._changed.wait()
            return
        async with self._reading:
            try:
                await self._receive()
            finally:
                self._changed.set()

    async def _receive(self) -> None:
        if self._call is None:
            return await self.open()
        if self._read is None:
            self._read = asyncio.ensure_future(self._call.read())
        await asyncio.wait((self._read,))
        read, self._read = self._read, None
        try:
            answer = read.result()
        except (grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            answer = None
        if not isinstance(answer, exec_pb2.ExecResponse):  # it broke, or its daemon ended it
            self._call.cancel()
            self._call = None
            return await self.open()
        self._state.receive(answer)
        await self._flush()
        return None

    async def _order(self, request: exec_pb2.ExecRequest) -> None:
        self._state.order(request)
        await self._flush()

    async def _flush(self) -> None:
        """Sends what may be sent. A stream that breaks is found by its reader."""
        async with self._writing:
            while self._call is not None and not self._state.over and (request := self._state.next_request()):
                try:
                    await self._call.write(request)
                except (grpc.RpcError, asyncio.InvalidStateError):
                    return

    async def _stream(self) -> "_Call":
        return self._stub.Exec()


async def opened(stream: "Callable[[], Awaitable[_Call]]", first: exec_pb2.ExecRequest) -> "_Call":
    """A call whose first request was written. Raises grpc.RpcError.

    A write into a call that the daemon has just refused fails with INTERNAL, which gRPC keeps in place of the
    daemon's own status. Another call gets that status."""
    until = time.monotonic() + _OPEN_S
    while True:
        call = await stream()
        try:
            await call.write(first)
        except grpc.RpcError as error:
            call.cancel()
            if error.code() is not grpc.StatusCode.INTERNAL or time.monotonic() >= until:
                raise
        else:
            return call
        await asyncio.sleep(_OPEN_PAUSE_S)


@asynccontextmanager
async def session(
    stub: "ExecServiceAsyncStub", first: exec_pb2.ExecRequest, search_s: float, heard: _Heard
) -> AsyncIterator[AsyncExec]:
    """For the length of an `async with`. Raises MusterError."""
    command = AsyncExec(stub, first, search_s, heard)
    try:
        await command.open()
        yield command
    finally:
        await command.close()
