"""The client's end of a session: it sends what the user types, prints what the command writes, and survives restarts of
the daemon. `muster.client`'s exec_state.py decides what is sent, acknowledged and asked for again.

This module imports gRPC: import it inside commands only.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import grpc
from anyio.abc import TaskGroup, TaskStatus

from muster import client
from muster.agent.changes import Changes
from muster.agent.cli import printing
from muster.agent.cli.client.calls import DaemonConnection, Patience
from muster.agent.cli.exits import CallFailed, CommandFailed, Exit, NoDaemon, StdoutFailed
from muster.agent.cli.terminal import Terminal, Watch
from muster.client.async_exec import PART_S, opened
from muster.client.exec_state import MAX_DATA, ExecState
from muster.v1 import exec_pb2, exec_pb2_grpc

if TYPE_CHECKING:
    from grpc import aio

    _Call = aio.StreamStreamCall[exec_pb2.ExecRequest, exec_pb2.ExecResponse]
    _Stub = exec_pb2_grpc.ExecServiceAsyncStub

T = TypeVar("T")

_CTRL_C = b"\x03"


class _Cut(Exception):
    """Raised when a stream ends in good order and its session has not: its daemon ends."""


def run(connection: DaemonConnection, first: exec_pb2.ExecRequest, *, stdin: bool, keys: bytes = b"") -> int:
    """Begins a session, or attaches to one, and returns its exit code.

    `stdin`: its content goes to the session; a terminal always does where an attached session has one. `keys`, typed
    at a terminal, leave it. Raises CommandFailed: before the session has begun as for any command, later with exit code
    125; and StdoutFailed.
    """
    session = ExecClient(connection, first, stdin, keys)
    try:
        return anyio.run(session.run)
    finally:
        session.terminal.restore()


class ExecClient:
    """One session of `muster exec`, over several connections where the daemon ends and another one follows."""

    def __init__(self, connection: DaemonConnection, first: exec_pb2.ExecRequest, stdin: bool, keys: bytes) -> None:
        self.terminal = Terminal()
        self._connection = connection
        self.state = ExecState(first)
        self._stdin = stdin
        self._watch = Watch(keys)
        #: The session has a terminal, which is in the place of ours.
        self._raw = False
        #: The stream that there is at the moment.
        self._call: _Call | None = None
        self._writing = anyio.Lock()
        self._changed = Changes()
        #: Nobody reads what we write.
        self._mute = False
        self._code: int | None = None

    async def run(self) -> int:
        """Runs until the command has ended, or the caller detaches; returns the exit code. Raises CommandFailed."""
        failure: CommandFailed | None = None
        here = self._connection
        async with (
            client.connect(str(here.address), credentials=here.credentials) as muster,
            anyio.create_task_group() as tasks,
        ):
            await tasks.start(self._handle_signals, tasks)
            tasks.start_soon(self._feed)
            try:
                self._code = await self.over_restarts(exec_pb2_grpc.ExecServiceStub(muster.channel), tasks)
            except CommandFailed as error:
                failure = error
            finally:
                self._give_back()
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        assert self._code is not None  # it has ended, or a signal ended us
        return self._code

    # --- streams ------------------------------------------------------------------------------------------------------

    async def over_restarts(self, stub: "_Stub", tasks: TaskGroup) -> int:
        """The exit code of the session, over as many calls as it takes. Raises CommandFailed."""
        patience: Patience | None = None
        slot = self._connection.slot_wait(None)
        lost = False
        while True:
            failure: CommandFailed
            failed: grpc.RpcError | None = None
            try:
                call = await opened(partial(self._stream, stub), self.state.opening())
                again = self.state.started is not None
                self._begin(call, (await self._next(call)).started)
                slot.over()
                if again:
                    self._say(f"attached to session {self._id} again")
                elif self._stdin:
                    tasks.start_soon(self._type, tasks)
                patience, lost = None, False  # one begins with the loss, however long nobody read what we write
                return await self._follow(call)
            except grpc.RpcError as error:
                failed = error
            except (_Cut, asyncio.InvalidStateError):
                failure = CallFailed("UNAVAILABLE", "the daemon ended the stream before its end")
            self._call = None
            if failed is not None:  # may look at the listener for seconds, in which Ctrl-C must not wait
                failure = await _apart(partial(self._connection.failure, failed, None))
            if slot.renews(failure):
                continue
            if not self._id:
                if not slot.helps(failure):
                    raise self._not_begun(failure)
                await _apart(partial(slot.wait_or_raise, failure))
                continue
            if isinstance(failure, CallFailed) and not failure.reason:  # gRPC's own names for it are many
                failure = CallFailed("UNAVAILABLE", "the connection to the daemon broke")
            if not isinstance(failure, CallFailed | NoDaemon):
                raise failure
            if not lost:
                why = "the daemon has exited" if isinstance(failure, NoDaemon) else failure.message
                self._say(f"{why}; attaching to session {self._id} again")
                lost = True
            patience = patience or Patience()
            try:
                await _apart(partial(patience.wait_or_raise, failure, insist=True))
            except (CallFailed, NoDaemon) as given_up:
                raise CommandFailed(given_up.message, Exit.MUSTER_FAILED) from None

    @property
    def _id(self) -> str:
        """Empty until it has begun."""
        return self.state.started.session_id if self.state.started is not None else ""

    async def _stream(self, stub: "_Stub") -> "_Call":
        return stub.Exec(metadata=await _apart(lambda: self._connection.metadata))

    def _begin(self, call: "_Call", started: exec_pb2.ExecStarted) -> None:
        again, missing = self.state.started is not None, self.state.missing
        self.state.begin(started)
        if again:
            self._say_missing(missing)
        else:
            # A screen is drawn anew, and needs no more than its last part.
            if (skipped := started.stdout_offset + started.stderr_offset) and not started.tty:
                self._say(f"skipping the first {skipped} bytes of output: shown before, or no longer stored")
            self._stdin = self._stdin or (started.tty and self.terminal.there)
            self._raw = started.tty and self.terminal.there
            if self._raw:
                self.terminal.raw()
        self._call = call
        if self._raw:
            self.state.order(self._window())
        self._changed.tell()

    async def _follow(self, call: "_Call") -> int:
        """To the end of the session or of our part in it. Raises StdoutFailed, _Cut, grpc.RpcError."""
        try:
            return await self._receive(call)
        except StdoutFailed:
            # As if it had written into a closed pipe itself; its end is waited for, if it comes.
            self._mute = True
            self._order(exec_pb2.ExecRequest(signal=signal.SIGPIPE))
            with anyio.move_on_after(PART_S), contextlib.suppress(_Cut, grpc.RpcError):
                await self._receive(call)
            raise

    async def _receive(self, call: "_Call") -> int:
        while True:
            answer, missing = await self._next(call), self.state.missing
            self.state.receive(answer)
            self._say_missing(missing)
            while self.state.arrived:
                output = self.state.take()
                if not self._mute:
                    await _apart(partial(printing.write, output.data, 1 + output.stderr))
            self._changed.tell()
            if (exited := self.state.exited) is not None:
                await self._part(call)
                if exited.message:
                    self._say(exited.message)
                return self._end(exited.exit_code)
            if (left := self.state.left) is not None:
                await self._part(call)
                self._say(f"{left.message}; {self._goes_on()}")
                return 0 if self.state.detached else Exit.MUSTER_FAILED

    @staticmethod
    async def _next(call: "_Call") -> exec_pb2.ExecResponse:
        answer: object = await call.read()
        if not isinstance(answer, exec_pb2.ExecResponse):  # EOF
            raise _Cut
        return answer

    async def _part(self, call: "_Call") -> None:
        """Confirms that all output has arrived. Otherwise an end of the call while we write would look like a broken
        call."""
        self._call = None
        with anyio.move_on_after(PART_S), contextlib.suppress(_Cut, grpc.RpcError, asyncio.InvalidStateError):
            async with self._writing:
                await call.done_writing()
            while True:
                await self._next(call)

    async def _feed(self) -> None:
        """Sends what may be sent, on whichever stream there is. One that breaks is found by its reader."""
        while True:
            call = self._call
            if call is None or self.state.over or (request := self.state.next_request()) is None:
                await self._changed.next()
                continue
            async with self._writing:
                if call is self._call:
                    try:
                        await call.write(request)
                    except (grpc.RpcError, asyncio.InvalidStateError):
                        self._call = None

    def _order(self, request: exec_pb2.ExecRequest) -> None:
        self.state.order(request)
        self._changed.tell()

    # --- input and output ---------------------------------------------------------------------------------------------

    async def _type(self, tasks: TaskGroup) -> None:
        """Reads stdin, as far ahead as there is room."""
        data = b"first"
        while data:
            while not self.state.room:
                await self._changed.next()
            data = await _apart(lambda: _read(min(MAX_DATA, self.state.room)))
            if self._raw and self._call is None and _CTRL_C in data:
                self._leave(128 + signal.SIGINT, tasks)
            typed, leave = self._watch.feed(data) if self._raw else (data, False)
            self.state.write(typed)
            if leave:
                self.state.order(exec_pb2.ExecRequest(detach=exec_pb2.ExecDetach()))
            self._changed.tell()
        self.state.close_input()
        self._changed.tell()

    def _say_missing(self, before: int) -> None:
        """Output that was not kept since it was `before` bytes. What nobody reads any more was not written, and did not
        count as received."""
        if (missing := self.state.missing - before) and not self._mute:
            self._say(f"{missing} bytes of output were lost while no client was attached")

    def _end(self, code: int) -> int:
        """Our exit code for the command's. A reader of a pipe must not take a part of the output for all of it; a
        screen is drawn anew."""
        missing, started = self.state.missing, self.state.started
        if not missing or (started is not None and started.tty):
            return code
        self._say(f"the command ended with code {code}, but {missing} bytes of its output are missing")
        return Exit.MUSTER_FAILED

    # --- signals and words --------------------------------------------------------------------------------------------

    async def _handle_signals(self, tasks: TaskGroup, *, task_status: TaskStatus[None]) -> None:
        numbers = [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP]
        if self.terminal.there:
            numbers += [signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT]
        # An ignored signal stays ignored (nohup; commands that a shell starts in the background).
        heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        with anyio.open_signal_receiver(*heeded) as signals:
            task_status.started()
            async for number in signals:
                if number in (signal.SIGWINCH, signal.SIGCONT):
                    if self._raw:
                        self.terminal.raw()
                        self._order(self._window())
                elif number == signal.SIGTSTP:
                    self.terminal.restore()
                    os.kill(os.getpid(), signal.SIGSTOP)
                elif self._call is None or (self._raw and number in (signal.SIGTERM, signal.SIGHUP)):
                    self._leave(128 + number, tasks)
                else:
                    self._order(exec_pb2.ExecRequest(signal=number))

    def _leave(self, code: int, tasks: TaskGroup) -> None:
        """Ends us and not the session."""
        if self._id:
            self._say(self._goes_on())
        self._give_back()
        self._code = code
        tasks.cancel_scope.cancel()

    def _give_back(self) -> None:
        """The terminal, for good: while signals are still handled: after that, the next would end us as we are."""
        self.terminal.restore()
        self._raw = False

    def _window(self) -> exec_pb2.ExecRequest:
        rows, columns = self.terminal.size()
        return exec_pb2.ExecRequest(window=exec_pb2.WindowSize(rows=rows, columns=columns))

    def _goes_on(self) -> str:
        attach = f"muster exec --attach {self._id} {self.state.job_id}"
        return f"session {self._id} continues: attach to it with `{attach}`"

    def _not_begun(self, failure: CommandFailed) -> CommandFailed:
        if isinstance(failure, CallFailed) and failure.transient and self.state.first.HasField("start"):
            text = "the command may have started: check with `muster exec --list`"
            return CommandFailed(f"{failure.message}\n{text}", Exit.MUSTER_FAILED)
        return failure

    def _say(self, text: str) -> None:
        if self._raw:
            self.terminal.restore()
        printing.note(text)
        if self._raw:
            self.terminal.raw()


def _read(most: int) -> bytes:
    """From stdin; nothing when it has ended, or its terminal was closed."""
    try:
        return os.read(0, most)
    except OSError:
        return b""


async def _apart(function: Callable[[], T]) -> T:
    """Runs what may block forever in a thread that does not delay the exit, unlike a worker's thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            set_it(value)

    def work() -> None:
        try:
            result, set_it = function(), future.set_result
        except Exception as error:  # raised where it is awaited
            result, set_it = error, future.set_exception  # type: ignore[assignment]  # either goes to `settle`
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody awaits the result
            loop.call_soon_threadsafe(settle, set_it, result)

    threading.Thread(target=work, daemon=True).start()
    return await future
