"""Bytes to and from a supervisor: none is lost, whoever is cancelled meanwhile, and every end is told."""

import os
import socket
from collections.abc import Iterator

import anyio
import pytest

from muster.agent.link.link_stream import LinkStream

#: More than a socket's buffers take.
LARGE = os.urandom(1 << 22)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(30)
    with ours, theirs:
        yield ours, theirs


async def test_pieces_come_in_order(ends: tuple[socket.socket, socket.socket]):
    stream = LinkStream(ends[0])
    for number in range(100):
        ends[1].sendall(b"%d\n" % number)
        assert await stream.receive() == b"%d\n" % number
    ends[1].sendall(b"0123456789")
    assert [await stream.receive(4) for _ in range(3)] == [b"0123", b"4567", b"89"]
    await stream.aclose()


async def test_a_receiver_that_is_cancelled_loses_nothing(ends: tuple[socket.socket, socket.socket]):
    stream, came = LinkStream(ends[0]), b""
    for number in range(200):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def receive() -> None:
                    nonlocal came
                    came += await stream.receive()

                tasks.start_soon(receive)
                await anyio.lowlevel.checkpoint()
                ends[1].sendall(b"%03d" % number)
                for _ in range(number % 4):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
    with anyio.fail_after(30):
        while len(came) < 600:
            came += await stream.receive()
    assert came == b"".join(b"%03d" % number for number in range(200))
    await stream.aclose()


async def test_what_comes_while_nobody_receives_waits(ends: tuple[socket.socket, socket.socket]):
    stream = LinkStream(ends[0])
    with anyio.move_on_after(0.01):
        await stream.receive()
    ends[1].sendall(b"later")
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    ends[1].close()
    with anyio.fail_after(30):
        assert await stream.receive() == b"later"
        for _ in range(2):
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
    await stream.aclose()


async def test_one_receives(ends: tuple[socket.socket, socket.socket]):
    stream = LinkStream(ends[0])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.receive)
        await anyio.lowlevel.checkpoint()
        with pytest.raises(anyio.BusyResourceError):
            await stream.receive()
        ends[1].sendall(b"x")
    await stream.aclose()


async def test_much_is_sent_as_the_other_end_takes_it(ends: tuple[socket.socket, socket.socket]):
    stream, taken = LinkStream(ends[0]), bytearray()

    def take() -> None:
        while len(taken) < len(LARGE):
            taken.extend(ends[1].recv(1 << 16))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, take)
        await stream.send(LARGE)
    assert bytes(taken) == LARGE
    await stream.send_eof()
    assert ends[1].recv(1) == b""
    await stream.aclose()


async def test_a_closed_stream_tells_who_receives_and_who_sends(ends: tuple[socket.socket, socket.socket]):
    stream, told = LinkStream(ends[0]), []

    async def receive() -> None:
        with pytest.raises(anyio.ClosedResourceError):
            await stream.receive()
        told.append("receiver")

    async def send() -> None:
        with pytest.raises(anyio.ClosedResourceError):
            await stream.send(LARGE)
        told.append("sender")

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            tasks.start_soon(send)
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            await stream.aclose()
    assert sorted(told) == ["receiver", "sender"]
    await stream.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await stream.send(b"x")


async def test_a_peer_that_is_gone_breaks_the_stream(ends: tuple[socket.socket, socket.socket]):
    stream = LinkStream(ends[0])
    ends[1].close()
    with pytest.raises(anyio.BrokenResourceError):
        await stream.send(b"x")
    with pytest.raises(anyio.EndOfStream):
        await stream.receive()
    await stream.aclose()
