"""A command in a rank, for callers without an event loop."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import grpc

from muster.client.async_exec import PART_S
from muster.client.errors import MusterError
from muster.client.exec_state import ExecSession
from muster.client.retries import Attempts
from muster.v1 import exec_pb2

if TYPE_CHECKING:
    from muster.v1.exec_pb2_grpc import ExecServiceStub

    _Requests = queue.SimpleQueue[exec_pb2.ExecRequest | None]

_Heard = Callable[[float], None]

#: Seconds after which a writer looks again whether there is room; usually a notice comes before.
_LOOK_S = 0.5


class BlockingExec(ExecSession):
    """A running command. Iterate over it for its output; one thread may do so while another one writes."""

    def __init__(self, stub: "ExecServiceStub", first: exec_pb2.ExecRequest, search_s: float, heard: _Heard) -> None:
        """`heard` returns once the daemon answers, or raises grpc.RpcError after so many seconds."""
        super().__init__(first)
        self._stub, self._search_s, self._heard = stub, search_s, heard
        #: The stream that there is at the moment: its answers, and what is to be sent.
        self._call: Any = None
        self._requests: _Requests = queue.SimpleQueue()
        self._reading = threading.Lock()
        #: Guards the state.
        self._changed = threading.Condition()

    def __iter__(self) -> Iterator[exec_pb2.ExecOutput]:
        """Its output until its end. Raises MusterError."""
        while True:
            while self._state.arrived:
                with self._changed:
                    output = self._state.take()
                    self._flush()  # acknowledges what the caller takes
                yield output
            if self._state.over:
                return
            self._progress()

    def wait(self) -> exec_pb2.ExecExited:
        """Waits for its end; drops output that nobody takes meanwhile. Raises MusterError where another client took
        the session."""
        for _ in self:
            pass
        return self._exited()

    def write(self, data: bytes) -> None:
        """Input for the command: returns once it is on its way or in the window. Raises MusterError."""
        while data and not self._state.over:
            with self._changed:
                now = self._state.room
                self._state.write(data[:now])
                data = data[now:]
                self._flush()
            if data:
                self._progress()

    def close_input(self) -> None:
        """The end of the input; with a terminal ^D."""
        with self._changed:
            self._state.close_input()
            self._flush()

    def send_signal(self, number: int) -> None:
        """To the foreground of the session: 1 to 31."""
        self._order(exec_pb2.ExecRequest(signal=number))

    def resize(self, rows: int, columns: int) -> None:
        """The size of its terminal."""
        self._order(exec_pb2.ExecRequest(window=exec_pb2.WindowSize(rows=rows, columns=columns)))

    def detach(self) -> None:
        """Leaves it running; the block's end does not end it then."""
        self._order(exec_pb2.ExecRequest(detach=exec_pb2.ExecDetach()))
        while not self._state.over:
            self._progress()

    def open(self) -> None:
        """Begins the session or attaches to it. Raises MusterError."""
        attempts = Attempts(self._state.opening(), self._search_s)
        while True:
            requests: _Requests = queue.SimpleQueue()
            requests.put(self._state.opening())
            try:
                self._heard(attempts.try_s)
                call = self._stub.Exec(iter(requests.get, None))
                answer = next(call)
            except StopIteration:
                failed = MusterError.cut()
            except grpc.RpcError as error:
                failed = self._state.failed(MusterError.of(error))
            else:
                with self._changed:
                    self._state.begin(answer.started)
                    self._call, self._requests = call, requests
                    self._flush()
                return
            requests.put(None)
            time.sleep(attempts.pause_s(failed))

    def close(self) -> None:
        """Ends the stream, and the session that was begun here and has not ended."""
        if (request := self._unended()) is not None:
            with suppress(grpc.RpcError):
                self._stub.EndSession(request, timeout=PART_S)
        self._requests.put(None)
        if self._call is None:
            return
        if self._state.over:
            # A call that ends while requests are under way looks like a broken one to the daemon.
            ender = threading.Timer(PART_S, self._call.cancel)
            ender.start()
            with suppress(grpc.RpcError):
                for _ in self._call:
                    pass
            ender.cancel()
        self._call.cancel()

    def _progress(self) -> None:
        """Receives one message, or waits until another thread has."""
        if not self._reading.acquire(blocking=False):
            with self._changed:
                self._changed.wait(_LOOK_S)
            return
        try:
            self._receive()
        finally:
            self._reading.release()
            with self._changed:
                self._changed.notify_all()

    def _receive(self) -> None:
        try:
            answer = next(self._call)
        except (StopIteration, grpc.RpcError):  # it broke, or its daemon ended it
            self._requests.put(None)
            return self.open()
        with self._changed:
            self._state.receive(answer)
            self._flush()
        return None

    def _order(self, request: exec_pb2.ExecRequest) -> None:
        with self._changed:
            self._state.order(request)
            self._flush()

    def _flush(self) -> None:
        """Sends what may be sent; with the state's lock. A stream that breaks is found by its reader."""
        while self._state.started is not None and not self._state.over and (request := self._state.next_request()):
            self._requests.put(request)


@contextmanager
def session(
    stub: "ExecServiceStub", first: exec_pb2.ExecRequest, search_s: float, heard: _Heard
) -> Iterator[BlockingExec]:
    """For the length of a `with`. Raises MusterError."""
    command = BlockingExec(stub, first, search_s, heard)
    try:
        command.open()
        yield command
    finally:
        command.close()
