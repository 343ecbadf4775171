"""The client of a session: what it leaves behind."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import grpc
import pytest
from anyio.abc import TaskGroup
from grpc.aio import Metadata

from muster import client
from muster.agent.cli import printing
from muster.agent.cli.client import calls as connection
from muster.agent.cli.client import exec_client
from muster.agent.cli.client.slot_wait import SlotWait
from muster.agent.cli.exits import CallFailed, CommandFailed
from muster.supervisors.session import session
from muster.v1 import exec_pb2, exec_pb2_grpc


@pytest.mark.parametrize("end", ["code", "failure", "defect", "signal"])
async def test_the_terminal_is_given_back_while_signals_are_handled(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Behind that, a second SIGTERM or SIGHUP would end us with a terminal that is raw."""
    happened: list[str] = []

    class Session(exec_client.ExecClient):
        async def over_restarts(self, stub: Any, tasks: TaskGroup) -> int:
            self.state.begin(exec_pb2.ExecStarted(session_id="session"))
            self._raw = True
            self.terminal.raw()
            if end == "failure":
                raise CommandFailed("it has gone")
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
    except* (CommandFailed, ValueError):
        assert end in ("failure", "defect")
    assert "raw" in happened
    while happened.pop() != "no signal is heeded":
        pass
    assert happened[-1] == "as before"


def test_a_session_holds_its_output_for_longer_than_a_client_looks_for_it() -> None:
    """And the last attempt takes its time, too."""
    assert session.LOST_S >= connection.PATIENCE_S + 15


class Call:
    """A stream that says what it was given, and then ends."""

    def __init__(self, *answers: exec_pb2.ExecResponse) -> None:
        self._answers = list(answers)
        self.requests: list[exec_pb2.ExecRequest] = []

    async def write(self, request: exec_pb2.ExecRequest) -> None:
        self.requests.append(request)

    async def read(self) -> exec_pb2.ExecResponse | None:
        return self._answers.pop(0) if self._answers else None

    async def done_writing(self) -> None:
        pass

    def cancel(self) -> None:
        pass


def started(offset: int = 0, tty: bool = False) -> exec_pb2.ExecResponse:
    return exec_pb2.ExecResponse(started=exec_pb2.ExecStarted(session_id="s", stdout_offset=offset, tty=tty))


def written(offset: int, data: bytes) -> exec_pb2.ExecResponse:
    return exec_pb2.ExecResponse(output=exec_pb2.ExecOutput(offset=offset, data=data))


EXITED = exec_pb2.ExecResponse(exited=exec_pb2.ExecExited(exit_code=7))
ATTACH = exec_pb2.ExecRequest(attach=exec_pb2.ExecAttach(job_id="j", session_id="s"))
START = exec_pb2.ExecRequest(start=exec_pb2.ExecStart(job_id="j", argv=["true"]))


@pytest.mark.parametrize(
    ("first", "calls", "code", "shown"),
    [
        (START, [Call(started(), written(0, b"abc")), Call(started(3), written(3, b"def"), EXITED)], 7, b"abcdef"),
        (START, [Call(started(), written(0, b"abc")), Call(started(9), written(9, b"def"), EXITED)], 125, b"abcdef"),
        # It is told with the first output behind the gap only; and somebody else has had the rest.
        (START, [Call(started(), written(0, b"abc")), Call(started(3), written(9, b"def"), EXITED)], 125, b"abcdef"),
        (START, [Call(started(), written(0, b"abc")), Call(started(9), EXITED)], 125, b"abc"),
        # A screen is drawn anew.
        (START, [Call(started(tty=True)), Call(started(9, tty=True), written(9, b"def"), EXITED)], 7, b"def"),
        # Who attaches is told at the beginning what is not kept any more.
        (ATTACH, [Call(started(9), written(9, b"def"), EXITED)], 7, b"def"),
        (ATTACH, [Call(started(9)), Call(started(20), written(20, b"def"), EXITED)], 125, b"def"),
    ],
)
async def test_missing_output_is_no_success(
    monkeypatch: pytest.MonkeyPatch,
    first: exec_pb2.ExecRequest,
    calls: list[Call],
    code: int,
    shown: bytes,
) -> None:
    out, notes = bytearray(), list[str]()
    monkeypatch.setattr(printing, "write", lambda data, _: out.extend(data))
    monkeypatch.setattr(printing, "note", notes.append)
    monkeypatch.setattr(exec_client, "Terminal", lambda: SimpleNamespace(there=False))
    monkeypatch.setattr(exec_client, "Patience", lambda: SimpleNamespace(wait_or_raise=lambda *_, **__: None))
    left = iter(calls)
    stub: Any = SimpleNamespace(Exec=lambda metadata: next(left))
    here: Any = SimpleNamespace(
        metadata=(), failure=lambda error, _: CallFailed("UNAVAILABLE", str(error)), slot_wait=SlotWait
    )
    client = exec_client.ExecClient(here, first, stdin=False, keys=b"")
    async with anyio.create_task_group() as tasks:
        assert await client.over_restarts(stub, tasks) == code
    assert bytes(out) == shown
    assert (code == 125) == ("bytes of its output are missing" in notes[-1] if notes else False)


async def test_a_first_write_that_met_the_end_of_its_call_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC puts a status of its own in the place of the daemon's, which the next call gets to know."""

    class Refused(Call):
        async def write(self, request: exec_pb2.ExecRequest) -> None:
            raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, Metadata(), Metadata(), "Internal error from Core")

    notes = list[str]()
    monkeypatch.setattr(printing, "note", notes.append)
    monkeypatch.setattr(exec_client, "Terminal", lambda: SimpleNamespace(there=False))
    left = iter([Refused(), Refused(), Call(started(), EXITED)])
    stub: Any = SimpleNamespace(Exec=lambda metadata: next(left))
    here: Any = SimpleNamespace(metadata=(), slot_wait=SlotWait)
    session = exec_client.ExecClient(here, START, stdin=False, keys=b"")
    async with anyio.create_task_group() as tasks:
        assert await session.over_restarts(stub, tasks) == 7
    assert notes == []
