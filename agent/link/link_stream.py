"""Bytes over a Unix socket, to and from a nursery or a supervisor."""

import asyncio
import socket

import anyio
from anyio.abc import ByteStream


class LinkStream(ByteStream):
    """As anyio's own stream, but for one thing: that registers the socket with the loop for each piece that it waits
    for, and takes it out again, which is ten system calls before an event of a job can be told. Here it stays
    registered while somebody receives. Several tasks may send, one after the other; one may receive.
    """

    def __init__(self, connected: socket.socket) -> None:
        """Takes over the socket, which does not block. Belongs to the loop that runs here."""
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._over: Exception | None = None
        self._registered = False
        self._receiver: asyncio.Event | None = None
        self._most = 0

    @property
    def socket(self) -> socket.socket:
        """For a send that does not wait."""
        return self._socket

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """What is there, once there is something. Raises EndOfStream, BrokenResourceError, ClosedResourceError."""
        if self._receiver is not None:
            raise anyio.BusyResourceError("receiving from")
        self._most = max_bytes
        self._receiver = asyncio.Event()
        try:
            if not self._received and self._over is None:
                self._register()
                await self._receiver.wait()
            else:
                await anyio.lowlevel.checkpoint()
        finally:
            self._receiver = None
        # What came is kept here and not in what was waited for: a receiver that is cancelled meanwhile loses nothing.
        if self._received:
            data, self._received = self._received[:max_bytes], self._received[max_bytes:]
            return data
        assert self._over is not None
        raise self._over

    async def send(self, item: bytes) -> None:
        """All of it. Raises BrokenResourceError, ClosedResourceError."""
        await anyio.lowlevel.checkpoint()
        rest = memoryview(item)
        while rest:
            if self._socket.fileno() < 0:
                raise anyio.ClosedResourceError
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        """Raises BrokenResourceError."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """A receiver gets ClosedResourceError."""
        if self._socket.fileno() >= 0:
            self._unregister()
            self._end(anyio.ClosedResourceError())
            anyio.notify_closing(self._socket)
            self._socket.close()
        await anyio.lowlevel.checkpoint()

    def _register(self) -> None:
        if not self._registered:
            self._loop.add_reader(self._socket, self._readable)
            self._registered = True

    def _unregister(self) -> None:
        if self._registered:
            self._loop.remove_reader(self._socket)
            self._registered = False

    def _readable(self) -> None:
        if self._receiver is None or self._received:
            self._unregister()  # until somebody receives: the loop would tell it again in each turn
            return
        try:
            self._received = self._socket.recv(self._most)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            broken = anyio.BrokenResourceError()
            broken.__cause__ = error
            self._end(broken)
            return
        if self._received:
            self._receiver.set()
        else:
            self._end(anyio.EndOfStream())

    def _end(self, over: Exception) -> None:
        self._unregister()
        self._over = over
        if self._receiver is not None:
            self._receiver.set()
