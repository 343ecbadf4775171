"""A session as the client has it: what was received, what is still to be sent, and how to attach to it again.

Nothing here waits: async_exec.py, blocking_exec.py and `muster exec` carry it over a stream.
"""

from collections import deque

from muster.client.errors import MusterError
from muster.v1 import exec_pb2

#: Bytes that either side sends beyond what the other has acknowledged, and those of one message: as the supervisor
#: counts them (supervisors/wire/frames.py).
WINDOW, MAX_DATA = 1 << 20, 1 << 16
#: Bytes of output after which they are acknowledged.
_ACK_BYTES = WINDOW // 4


class ExecState:
    """One session over as many streams as it takes."""

    def __init__(self, first: exec_pb2.ExecRequest) -> None:
        """`first`: `start` or `attach`."""
        self.first = first
        self.started: exec_pb2.ExecStarted | None = None
        self.exited: exec_pb2.ExecExited | None = None
        self.left: exec_pb2.ExecLeft | None = None
        self.detached = False
        #: Bytes of output that were not stored while no client was attached.
        self.missing = 0
        #: Output that came and was not taken by the caller: at most a window of each stream.
        self.arrived: deque[exec_pb2.ExecOutput] = deque()
        # Of stdout and stderr: bytes that have arrived, and bytes that the caller has taken.
        self._received, self._taken = [0, 0], [0, 0]
        self._acknowledged = 0
        # Input that the session does not have begins at `_kept`; up to `_given` it is on its way, and may be up to
        # `_most`.
        self._input = bytearray()
        self._kept = self._given = 0
        self._most = WINDOW
        self._ends = self._closed = False
        self._orders: deque[exec_pb2.ExecRequest] = deque()
        self._size: exec_pb2.WindowSize | None = None

    @property
    def job_id(self) -> str:
        """The job in which it is."""
        return self.first.start.job_id or self.first.attach.job_id

    @property
    def over(self) -> bool:
        """Nothing follows."""
        return self.exited is not None or self.left is not None

    @property
    def room(self) -> int:
        """Bytes of input that are taken now."""
        return max(0, WINDOW - len(self._input))

    def opening(self) -> exec_pb2.ExecRequest:
        """The first request of the next stream."""
        if self.started is None:
            return self.first
        attach = exec_pb2.ExecAttach(
            job_id=self.job_id,
            session_id=self.started.session_id,
            stdout_offset=self._received[0],
            stderr_offset=self._received[1],
        )
        return exec_pb2.ExecRequest(attach=attach)

    def begin(self, started: exec_pb2.ExecStarted) -> None:
        """A stream has begun."""
        if self.started is None:
            self._kept = started.input_offset
            self._received = [started.stdout_offset, started.stderr_offset]
            self._taken = list(self._received)
            self._acknowledged = sum(self._taken)
        else:
            self._skip(0, started.stdout_offset)
            self._skip(1, started.stderr_offset)
        self.started = started
        self._forget(started.input_offset)
        # The supervisor reports next how much of it the command has taken; until then it may be a window less.
        self._most = max(WINDOW, started.input_offset)
        self._given, self._closed = self._kept, False
        if self._size is not None:
            self._orders.append(exec_pb2.ExecRequest(window=self._size))
        if self.detached:
            self._orders.append(exec_pb2.ExecRequest(detach=exec_pb2.ExecDetach()))

    def receive(self, response: exec_pb2.ExecResponse) -> None:
        """A message has arrived."""
        kind = response.WhichOneof("message")
        if kind == "output":
            self._arrive(response.output)
        elif kind == "input_offset":
            self._forget(response.input_offset)
            self._most = response.input_offset + WINDOW
        elif kind == "exited":
            self.exited = response.exited
        elif kind == "left":
            self.left = response.left

    def take(self) -> exec_pb2.ExecOutput:
        """The next output for the caller; there must be some."""
        output = self.arrived.popleft()
        self._taken[output.stderr] = output.offset + len(output.data)
        return output

    def write(self, data: bytes) -> None:
        """More input, at most `room`."""
        self._input += data

    def close_input(self) -> None:
        """No more input."""
        self._ends = True

    def order(self, request: exec_pb2.ExecRequest) -> None:
        """A signal, a size, a detach."""
        if request.HasField("window"):
            self._size = request.window
        self.detached = self.detached or request.HasField("detach")
        self._orders.append(request)

    def next_request(self) -> exec_pb2.ExecRequest | None:
        """What is to be sent now on the present stream; None: nothing."""
        if self._orders:
            return self._orders.popleft()
        if sum(self._taken) - self._acknowledged >= _ACK_BYTES:
            self._acknowledged = sum(self._taken)
            ack = exec_pb2.ExecAck(stdout_offset=self._taken[0], stderr_offset=self._taken[1])
            return exec_pb2.ExecRequest(ack=ack)
        end = self._kept + len(self._input)
        if self._given < min(end, self._most):
            at, size = self._given - self._kept, min(MAX_DATA, self._most - self._given)
            given = exec_pb2.ExecInput(offset=self._given, data=bytes(self._input[at : at + size]))
            self._given += len(given.data)
            return exec_pb2.ExecRequest(input=given)
        if self._ends and not self._closed and self._given == end:
            self._closed = True
            return exec_pb2.ExecRequest(input=exec_pb2.ExecInput(offset=end, close=True))
        return None

    def failed(self, error: MusterError) -> MusterError:
        """An error of a stream; gRPC's own names for a connection that broke are many."""
        if self.started is None or error.answered:
            return error
        return MusterError("UNAVAILABLE", "UNAVAILABLE", f"the connection to the daemon broke: {error.message}")

    def _arrive(self, output: exec_pb2.ExecOutput) -> None:
        which = int(output.stderr)
        self._skip(which, output.offset)
        have = self._received[which]
        data = output.data[max(0, have - output.offset) :]
        if data:
            self.arrived.append(exec_pb2.ExecOutput(stderr=output.stderr, offset=have, data=data))
            self._received[which] = have + len(data)

    def _skip(self, which: int, offset: int) -> None:
        gap = offset - self._received[which]
        if gap > 0:
            self._received[which] = offset
            self.missing += gap

    def _forget(self, offset: int) -> None:
        """The session has the input up to there."""
        if offset > self._kept:
            del self._input[: offset - self._kept]
            self._kept = offset
            self._given = max(self._given, offset)


class ExecSession:
    """What both kinds of clients say of a session. They iterate over its output, write its input, and wait."""

    def __init__(self, first: exec_pb2.ExecRequest) -> None:
        self._state = ExecState(first)

    @property
    def started(self) -> exec_pb2.ExecStarted:
        """Its session's id, rank and pid."""
        assert self._state.started is not None  # nobody has the session before
        return self._state.started

    @property
    def exit_code(self) -> int | None:
        """As a shell sees it; None: it has not ended, or was left."""
        return self._state.exited.exit_code if self._state.exited is not None else None

    @property
    def missing(self) -> int:
        """Bytes of output that were lost while no client was attached."""
        return self._state.missing

    def _exited(self) -> exec_pb2.ExecExited:
        """How it ended. Raises MusterError where another client took it."""
        if self._state.exited is None:
            raise MusterError("CANCELLED", "SESSION_LEFT", self._state.left.message if self._state.left else "")
        return self._state.exited

    def _unended(self) -> exec_pb2.EndSessionRequest | None:
        """The request that ends it, if it was begun here and has neither ended nor been left on purpose."""
        state = self._state
        if not state.first.HasField("start") or state.started is None or state.over or state.detached:
            return None
        return exec_pb2.EndSessionRequest(job_id=state.job_id, session_id=state.started.session_id)
