"""The server for scrapes: what it answers, and what it does not put up with."""

import contextlib
import os
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

from muster.agent.config.listen_address import Tcp, Unix
from muster.agent.config.listen_address import parse as parse_listen
from muster.agent.config.schema import MetricsTable
from muster.agent.exposition import OPENMETRICS, TEXT
from muster.agent.metrics import scrape_server
from muster.agent.metrics.scrape_server import BadRequest, bind, parse, serve

ANY_PORT = Tcp("127.0.0.1", 0)


async def page(openmetrics: bool) -> bytes:
    return b"up 1\n# EOF\n" if openmetrics else b"up 1\n"


@asynccontextmanager
async def serving(show=page, where=ANY_PORT) -> AsyncIterator[str | tuple]:
    """Gives the address."""
    with bind(where) as sock:
        async with anyio.create_task_group() as tasks:
            await tasks.start(serve, sock, show)
            yield sock.getsockname()
            tasks.cancel_scope.cancel()


async def connected(address) -> anyio.abc.SocketStream:
    if isinstance(address, str):
        return await anyio.connect_unix(address)
    return await anyio.connect_tcp(*address[:2])


async def ask(address, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to one request; reads until the connection is closed."""
    async with await connected(address) as stream:
        with contextlib.suppress(anyio.BrokenResourceError):  # it has answered before it read all of it
            await stream.send(request)
        return await answer(stream)


async def answer(stream) -> tuple[int, dict[str, str], bytes]:
    got = b""
    with anyio.fail_after(60), contextlib.suppress(anyio.EndOfStream):
        while True:
            got += await stream.receive()
    head, _, body = got.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    return int(line.split()[1]), dict(f.split(": ", 1) for f in fields), body


async def test_a_scrape():
    async with serving() as address:
        status, headers, body = await ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (status, headers["Content-Type"], body) == (200, TEXT, b"up 1\n")
        assert headers["Content-Length"] == "5" and headers["Connection"] == "close"
        request = (
            b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n\r\n"
        )
        status, headers, body = await ask(address, request)
        assert (status, headers["Content-Type"], body) == (200, OPENMETRICS, b"up 1\n# EOF\n")
        status, headers, body = await ask(address, b"HEAD /metrics HTTP/1.0\r\n\r\n")
        assert (status, headers["Content-Length"], body) == (200, "5", b"")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics?x=1 HTTP/1.1\r\n\r\n", 200),
        (b"GET http://127.0.0.1:9835/metrics HTTP/1.1\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/../secret HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi", 405),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", 405),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # a client that wants TLS
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"get /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * scrape_server.MAX_HEAD + b"\r\n\r\n", 431),
        (b"x" * 200_000, 431),
    ],
)
async def test_what_else_is_asked(request_, status):
    async with serving() as address:
        assert (await ask(address, request_))[0] == status


async def test_a_client_that_ends_its_side_gets_an_answer():
    async with serving() as address, await connected(address) as stream:
        await stream.send(b"GET /met")
        await stream.send_eof()
        assert (await answer(stream))[0] == 400


async def test_a_client_that_is_slow_is_cut(monkeypatch):
    monkeypatch.setattr(scrape_server, "HEAD_S", 0.05)
    async with serving() as address:
        async with await connected(address) as stream:
            await stream.send(b"GET /metrics HTTP/1.1\r\n")
            assert (await answer(stream))[0] == 408
        monkeypatch.setattr(scrape_server, "HEAD_S", 60.0)
        assert (await ask(address, b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 200


async def test_a_client_that_does_not_read_is_cut(monkeypatch):
    monkeypatch.setattr(scrape_server, "ANSWER_S", 0.05)
    monkeypatch.setattr(scrape_server, "MAX_CONNECTIONS", 1)

    async def large(openmetrics: bool) -> bytes:
        return b"x" * (64 << 20)

    async with serving(large) as address, await connected(address) as stream:
        await stream.send(b"GET /metrics HTTP/1.1\r\n\r\n")
        # There is one slot only: the next one is answered once the first has lost it.
        with anyio.fail_after(60):
            assert (await ask(address, b"HEAD /metrics HTTP/1.1\r\n\r\n"))[0] == 200


async def test_no_more_connections_than_allowed(monkeypatch):
    """Others wait in the queue, and are served when one is done."""
    monkeypatch.setattr(scrape_server, "MAX_CONNECTIONS", 3)
    inside, most, gate = 0, 0, anyio.Event()
    full = anyio.Event()

    async def show(openmetrics: bool) -> bytes:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 3:
            full.set()
        await gate.wait()
        inside -= 1
        return b"up 1\n"

    statuses = []

    async def one(address):
        statuses.append((await ask(address, b"GET /metrics HTTP/1.1\r\n\r\n"))[0])

    async with serving(show) as address, anyio.create_task_group() as clients:
        for _ in range(9):
            clients.start_soon(one, address)
        with anyio.fail_after(60):
            await full.wait()
        gate.set()
    assert statuses == [200] * 9
    assert most == 3


async def test_a_defect_in_a_metric_fails_the_scrape_alone():
    calls = 0

    async def show(openmetrics: bool) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError
        return b"up 1\n"

    async with serving(show) as address:
        assert (await ask(address, b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 500
        assert (await ask(address, b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 200


async def test_the_end_does_not_wait_for_clients():
    stuck = anyio.Event()

    async def show(openmetrics: bool) -> bytes:
        stuck.set()
        await anyio.sleep_forever()
        return b""

    with anyio.fail_after(60):
        async with serving(show) as address:
            stream = await connected(address)
            await stream.send(b"GET /metrics HTTP/1.1\r\n\r\n")
            await stuck.wait()
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()
        await stream.aclose()


async def test_more_than_may_wait_are_closed_at_once(monkeypatch):
    monkeypatch.setattr(scrape_server, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(scrape_server, "MAX_WAITING", 2)
    asked, gate = anyio.Event(), anyio.Event()

    async def show(openmetrics: bool) -> bytes:
        asked.set()
        await gate.wait()
        return b"up 1\n"

    async with serving(show) as address, contextlib.AsyncExitStack() as stack:
        streams = []
        for _ in range(4):
            streams.append(await stack.enter_async_context(await connected(address)))
            await streams[-1].send(b"GET /metrics HTTP/1.1\r\n\r\n")
            with anyio.fail_after(60):
                await asked.wait()
        with anyio.fail_after(60), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await streams[-1].receive()
        gate.set()
        assert [(await answer(stream))[0] for stream in streams[:-1]] == [200, 200, 200]


#: A server on the daemon's kind of event loop, whose process then has no descriptor left for a while.
OUT_OF_DESCRIPTORS = """
import os, resource, socket, sys
import anyio
from muster.agent.config.listen_address import Tcp
from muster.agent.metrics.scrape_server import bind, serve

async def page(openmetrics):
    return b"up 1\\n"

async def main():
    reader, held = os.fdopen(0, "rb", 0), []
    with bind(Tcp("127.0.0.1", 0)) as sock:
        async with anyio.create_task_group() as tasks:
            await tasks.start(serve, sock, page)
            print(sock.getsockname()[1], flush=True)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
            try:
                while True:
                    held.append(os.dup(2))
            except OSError:
                print("none left", flush=True)
            await anyio.to_thread.run_sync(reader.read, 1)
            for fd in held:
                os.close(fd)
            print("free again", flush=True)
            await anyio.to_thread.run_sync(reader.read, 1)
            tasks.cancel_scope.cancel()

anyio.run(main, backend="asyncio", backend_options={"use_uvloop": True})
"""


async def test_descriptors_that_run_out_end_nothing():
    request = b"GET /metrics HTTP/1.1\r\n\r\n"
    async with await anyio.open_process([sys.executable, "-c", OUT_OF_DESCRIPTORS], stderr=None) as process:
        assert process.stdin and process.stdout
        lines = TextReceiveStream(process.stdout)
        with anyio.fail_after(60):
            said = ""
            while "none left" not in said:
                said += await lines.receive()
            address = ("127.0.0.1", int(said.split()[0]))
            streams = [await connected(address) for _ in range(5)]
            for stream in streams:
                with contextlib.suppress(anyio.BrokenResourceError):
                    await stream.send(request)
            await process.stdin.send(b"x")
            while "free again" not in said:
                said += await lines.receive()
            assert (await ask(address, request))[0] == 200
            for stream in streams:
                await stream.aclose()
            await process.stdin.send(b"x")
            assert await process.wait() == 0


# --- sockets ----------------------------------------------------------------------------------------------------------


async def test_a_unix_socket_is_for_owner_and_group(tmp_path):
    path = tmp_path / "m.sock"
    async with serving(where=Unix(path)):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
        assert (await ask(str(path), b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 200


def test_a_socket_that_is_in_use_is_left_alone(tmp_path):
    path = tmp_path / "m.sock"
    with bind(Unix(path)) as first:
        with pytest.raises(OSError, match="in use"):
            bind(Unix(path))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            first.accept()[0].close()


def test_a_socket_that_was_left_over_is_taken(tmp_path):
    path = tmp_path / "m.sock"
    bind(Unix(path)).close()
    assert path.exists()
    bind(Unix(path)).close()


def test_what_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "m.sock"
    path.write_text("mine")
    with pytest.raises(OSError, match="in use"):
        bind(Unix(path))
    assert path.read_text() == "mine"


def test_a_port_that_is_in_use():
    with bind(ANY_PORT) as first, pytest.raises(OSError, match="in use"):
        bind(Tcp("127.0.0.1", first.getsockname()[1]))


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", None),
        ("127.0.0.1:9835", Tcp("127.0.0.1", 9835)),
        ("127.1.2.3:1", Tcp("127.1.2.3", 1)),
        ("localhost:9835", Tcp("127.0.0.1", 9835)),
        ("[::1]:9835", Tcp("::1", 9835)),
    ],
)
def test_where_metrics_may_be_shown(text, meant):
    assert parse_listen(text) == meant
    if meant is not None:
        assert parse_listen(str(meant)) == meant


def test_a_socket_by_path(tmp_path):
    assert parse_listen(f"unix:{tmp_path}/m.sock") == Unix(tmp_path / "m.sock")
    assert MetricsTable(textfile=f"{tmp_path}/muster.prom", listen=f"unix:{tmp_path}/m.sock").listen


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0.0.0.0:9835", "only a loopback address"),
        ("10.0.0.1:9835", "only a loopback address"),
        ("[::]:9835", "only a loopback address"),
        ("node7:9835", "not a loopback address of this machine"),
        (":9835", "an address and a port"),
        ("9835", "an address and a port"),
        ("127.0.0.1", "an address and a port"),
        ("127.0.0.1:", "an address and a port"),
        ("127.0.0.1:0", "an address and a port"),
        ("127.0.0.1:65536", "an address and a port"),
        ("127.0.0.1:٣", "an address and a port"),
        ("unix:m.sock", "absolute path"),
        ("unix:/" + "x" * 107, "107"),
    ],
)
def test_where_they_may_not(text, part):
    with pytest.raises(ValueError, match=part) as caught:
        MetricsTable(listen=text)
    assert str(caught.value).startswith(f"listen: {text!r}: ")


@pytest.mark.parametrize("text", ["muster.prom", "/var/lib/muster.txt", "/var/lib/muster"])
def test_a_file_that_nobody_would_read(text):
    with pytest.raises(ValueError, match=r"textfile: .*\.prom"):
        MetricsTable(textfile=text)


def test_a_head_is_read():
    assert parse(b"GET /metrics HTTP/1.1\r\nAccept: a\r\naccept:b ") == scrape_server.HttpRequest(
        "GET", "/metrics", "a, b"
    )
    with pytest.raises(BadRequest):
        parse(b"")
