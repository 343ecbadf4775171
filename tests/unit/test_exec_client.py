"""The client of a session: what it leaves behind."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from agent.cli import exec_client
from agent.cli.errors import Failure
from muster import client
from muster.v1 import exec_pb2, exec_pb2_grpc


@pytest.mark.parametrize("end", ["code", "failure", "defect", "signal"])
async def test_the_terminal_is_given_back_while_signals_are_heeded(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Behind that, a second SIGTERM or SIGHUP would end us with a terminal that is raw."""
    happened: list[str] = []

    class Session(exec_client._Session):
        async def _over_restarts(self, stub: Any, tasks: TaskGroup) -> int:
            self._id, self._raw = "session", True
            self.terminal.raw()
            if end == "failure":
                raise Failure("it has gone")
            if end == "defect":
                raise ValueError("never to be")
            if end == "signal":
                self._leave(143, tasks)
                await anyio.sleep_forever()
            return 7

    async def nothing() -> AsyncIterator[int]:
        await anyio.sleep_forever()
        yield 0

    @contextmanager
    def heeded(*_: int) -> Iterator[AsyncIterator[int]]:
        try:
            yield nothing()
        finally:
            happened.append("no signal is heeded")

    @asynccontextmanager
    async def connected(*_: Any, **__: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(channel=None)

    terminal = SimpleNamespace(
        there=True, raw=lambda: happened.append("raw"), restore=lambda: happened.append("as before")
    )
    monkeypatch.setattr(exec_client, "Terminal", lambda: terminal)
    monkeypatch.setattr(client, "connect", connected)
    monkeypatch.setattr(exec_pb2_grpc, "ExecServiceStub", lambda _: None)
    monkeypatch.setattr(anyio, "open_signal_receiver", heeded)
    connection: Any = SimpleNamespace(address="", credentials=None)
    session = Session(connection, exec_pb2.ExecRequest(), stdin=False, keys=b"")
    try:
        assert await session.run() == {"code": 7, "signal": 143}[end]
    except* (Failure, ValueError):
        assert end in ("failure", "defect")
    assert "raw" in happened
    while happened.pop() != "no signal is heeded":
        pass
    assert happened[-1] == "as before"
