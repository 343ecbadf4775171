"""A session from here: what is typed goes there, what it writes comes here, over restarts of the daemon.

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
from muster.probes.kernel.backoff import Backoff
from muster.supervisors.wire.frames import MAX_DATA, WINDOW
from muster.v1 import exec_pb2, exec_pb2_grpc

if TYPE_CHECKING:
    from grpc import aio

    _Call = aio.StreamStreamCall[exec_pb2.ExecRequest, exec_pb2.ExecResponse]
    _Stub = exec_pb2_grpc.ExecServiceAsyncStub

T = TypeVar("T")

#: Bytes of output after which they are acknowledged.
ACK_BYTES = WINDOW // 4
#: Seconds for the end of a command whose output nobody reads, and for the end of a stream behind its last message.
PART_S = 2.0
#: Seconds for which a call is opened again whose first request could not be written.
OPEN_S = 3.0
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
        self._first = first
        self._stdin = stdin
        self._watch = Watch(keys)
        #: Empty until it has begun. `_tty`: it has a terminal. `_raw`: that is in the place of ours.
        self._id = ""
        self._tty = self._raw = False
        #: The stream that there is at the moment.
        self._call: _Call | None = None
        self._writing = anyio.Lock()
        # Input that the session does not have begins at the offset `_kept`; up to `_given` it is on its way, and may be
        # up to `_most`.
        self._input = bytearray()
        self._kept = self._given = 0
        self._most = WINDOW
        self._all_typed = self._closed = False
        self._changed = Changes()
        # Output: bytes received of stdout and stderr, and how many of both were acknowledged.
        self._received = [0, 0]
        self._acknowledged = 0
        #: Bytes of it that came while we were away, and were not kept.
        self._missing = 0
        self._mute = self._detached = False
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
                call = await self._opened(stub)
                again = bool(self._id)
                await self._begin(call, (await self._next(call)).started)
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

    async def _opened(self, stub: "_Stub") -> "_Call":
        """A call whose first request was written. Raises grpc.RpcError.

        A write into a call that the daemon has just refused fails with INTERNAL, which gRPC keeps in place of the
        daemon's own status. Another call gets that status.
        """
        pause = Backoff(0.05, 1.0)
        until = anyio.current_time() + OPEN_S
        while True:
            metadata = await _apart(lambda: self._connection.metadata)
            call: _Call = stub.Exec(metadata=metadata)
            try:
                await call.write(self._request())
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.INTERNAL or anyio.current_time() >= until:
                    raise
            else:
                return call
            await anyio.sleep(pause.next())

    def _request(self) -> exec_pb2.ExecRequest:
        if not self._id:
            return self._first
        attach = exec_pb2.ExecAttach(
            job_id=self._first.start.job_id or self._first.attach.job_id,
            session_id=self._id,
            stdout_offset=self._received[0],
            stderr_offset=self._received[1],
        )
        return exec_pb2.ExecRequest(attach=attach)

    async def _begin(self, call: "_Call", started: exec_pb2.ExecStarted) -> None:
        if not self._id:
            self._id = started.session_id
            self._kept = started.input_offset
            self._received = [started.stdout_offset, started.stderr_offset]
            self._acknowledged = sum(self._received)
            if self._acknowledged and not started.tty:  # a screen is drawn anew, and needs no more than its last part
                self._say(f"skipping the first {self._acknowledged} bytes of output: shown before, or no longer stored")
            self._stdin = self._stdin or (started.tty and self.terminal.there)
            self._tty = started.tty
            self._raw = started.tty and self.terminal.there
            if self._raw:
                self.terminal.raw()
        else:  # somebody else may have had, meanwhile, what we have not, and nothing may come behind it
            self._skip(0, started.stdout_offset)
            self._skip(1, started.stderr_offset)
        self._call = call
        self._forget(started.input_offset)
        # The supervisor reports next how much of it the command has taken; until then it may be a window less.
        self._most = max(WINDOW, started.input_offset)
        self._given, self._closed = self._kept, False
        if self._raw:
            await self._send(self._window())
        self._changed.tell()

    async def _follow(self, call: "_Call") -> int:
        """To the end of the session or of our part in it. Raises StdoutFailed, _Cut, grpc.RpcError."""
        try:
            return await self._receive(call)
        except StdoutFailed:
            # As if it had written into a closed pipe itself; its end is waited for, if it comes.
            self._mute = True
            await self._send(exec_pb2.ExecRequest(signal=signal.SIGPIPE))
            with anyio.move_on_after(PART_S), contextlib.suppress(_Cut, grpc.RpcError):
                await self._receive(call)
            raise

    async def _receive(self, call: "_Call") -> int:
        while True:
            answer = await self._next(call)
            kind = answer.WhichOneof("message")
            if kind == "output":
                await self._show(answer.output)
            elif kind == "input_offset":
                self._forget(answer.input_offset)
                self._most = answer.input_offset + WINDOW
                self._changed.tell()
            elif kind == "exited":
                await self._part(call)
                if answer.exited.message:
                    self._say(answer.exited.message)
                return self._end(answer.exited.exit_code)
            elif kind == "left":
                await self._part(call)
                self._say(f"{answer.left.message}; {self._goes_on()}")
                return 0 if self._detached else Exit.MUSTER_FAILED

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

    async def _send(self, request: exec_pb2.ExecRequest) -> None:
        """On the present stream. Without one, or when it breaks, nothing happens: its reader finds out."""
        call = self._call
        async with self._writing:
            if call is None or call is not self._call:
                return
            try:
                await call.write(request)
            except (grpc.RpcError, asyncio.InvalidStateError):
                self._call = None

    # --- input and output ---------------------------------------------------------------------------------------------

    async def _type(self, tasks: TaskGroup) -> None:
        """Reads stdin, as far ahead as a window."""
        while not self._all_typed:
            while len(self._input) >= WINDOW:
                await self._changed.next()
            data = await _apart(lambda: _read(min(MAX_DATA, WINDOW - len(self._input))))
            if self._raw and self._call is None and _CTRL_C in data:
                self._leave(128 + signal.SIGINT, tasks)
            self._all_typed = not data
            typed, leave = self._watch.feed(data) if self._raw else (data, False)
            self._input += typed
            self._changed.tell()
            if leave:
                self._detached = True
                await self._send(exec_pb2.ExecRequest(detach=exec_pb2.ExecDetach()))

    async def _feed(self) -> None:
        """Sends what was read, on whichever stream there is."""
        while True:
            end = self._kept + len(self._input)
            if self._call is not None and self._given < min(end, self._most):
                offset = self._given
                at, size = offset - self._kept, min(MAX_DATA, self._most - offset)
                data = bytes(self._input[at : at + size])
                self._given += len(data)
                await self._send(exec_pb2.ExecRequest(input=exec_pb2.ExecInput(offset=offset, data=data)))
            elif self._call is not None and self._all_typed and not self._closed and self._given == end:
                self._closed = True
                await self._send(exec_pb2.ExecRequest(input=exec_pb2.ExecInput(offset=end, close=True)))
            else:
                await self._changed.next()

    def _forget(self, offset: int) -> None:
        """The session has the input up to there."""
        if offset > self._kept:
            del self._input[: offset - self._kept]
            self._kept = offset
            self._given = max(self._given, offset)

    async def _show(self, written: exec_pb2.ExecOutput) -> None:
        which = int(written.stderr)
        self._skip(which, written.offset)
        have = self._received[which]
        data = written.data[max(0, have - written.offset) :]
        if data and not self._mute:
            await _apart(lambda: printing.write(data, 1 + which))
        self._received[which] = max(have, written.offset + len(written.data))
        if sum(self._received) - self._acknowledged >= ACK_BYTES:
            self._acknowledged = sum(self._received)
            ack = exec_pb2.ExecAck(stdout_offset=self._received[0], stderr_offset=self._received[1])
            await self._send(exec_pb2.ExecRequest(ack=ack))

    def _skip(self, which: int, offset: int) -> None:
        """Output goes on at `offset`: what is between was not kept."""
        missing = offset - self._received[which]
        if missing > 0:
            self._received[which] = offset
            if not self._mute:  # what nobody reads any more was not written, and did not count as received
                self._missing += missing
                self._say(f"{missing} bytes of output were lost while no client was attached")

    def _end(self, code: int) -> int:
        """Our exit code for the command's. A reader of a pipe must not take a part of the output for all of it; a
        screen is drawn anew."""
        if not self._missing or self._tty:
            return code
        self._say(f"the command ended with code {code}, but {self._missing} bytes of its output are missing")
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
                        tasks.start_soon(self._send, self._window())
                elif number == signal.SIGTSTP:
                    self.terminal.restore()
                    os.kill(os.getpid(), signal.SIGSTOP)
                elif self._call is None or (self._raw and number in (signal.SIGTERM, signal.SIGHUP)):
                    self._leave(128 + number, tasks)
                else:
                    tasks.start_soon(self._send, exec_pb2.ExecRequest(signal=number))

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
        job_id = self._first.start.job_id or self._first.attach.job_id
        return f"session {self._id} continues: attach to it with `muster exec --attach {self._id} {job_id}`"

    def _not_begun(self, failure: CommandFailed) -> CommandFailed:
        if isinstance(failure, CallFailed) and failure.transient and self._first.HasField("start"):
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
