"""The messages from a supervisor to the nursery that forked it, over their own socket pair.

    waits            it has no job, and may be given one
    ready            the control socket listens
    ranks [pid, ..]  these are ranks: do not reap them before `reap`
    hold  + fds      keep these read ends of the FIFOs open, so that their content outlives this supervisor
    reap  pid        the status is in the journal: reap the process
    done             the job has ended and everything is cleaned up
    died  error      the supervisor dies of this error, the end of a traceback

and from the nursery to the supervisor:

    job   job folder   of one that waits: this is its job; `folder`: the daemon is about to record it there, see below
    ended pid status   a rank that is now the nursery's child has ended with this status; the zombie stays until `reap`

A supervisor with a `folder` waits until the daemon, which has the job's lock, lets go of it, and leaves if the job was
not recorded by then. If the nursery has died, these messages are dropped and the job continues.
"""

import contextlib
import os
import select
import socket
from collections import deque
from collections.abc import Callable

from muster.supervisors.system.loop import Loop
from muster.supervisors.wire import messages

#: Descriptors per message; the kernel's limit is 253 (SCM_MAX_FD).
FDS = 128


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends that keep the messages' borders."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


class NurseryLink:
    """The supervisor's end. Sending never blocks: what does not fit is sent when the nursery reads again."""

    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        self._loop = loop
        self._sock = sock
        #: Called with the pid and the status, as wait(2) encodes it, of a rank of which the nursery knows the end.
        self.on_ended: Callable[[int, int], None] = lambda _pid, _status: None
        self.queue: deque[tuple[bytes, list[int]]] = deque()
        self._waiting = False
        #: Whether the nursery lives, as far as is known.
        self.is_up = True
        loop.add(sock.fileno(), self._on_event)

    def tell(self, op: str, fds: list[int] | None = None, **fields: object) -> None:
        """`fds` may be closed once this returns."""
        message = messages.encode({"op": op} | fields), fds or []
        if self.queue or not self._send(*message):
            self.queue.append((message[0], [os.dup(fd) for fd in message[1]]))
            self._want(True)

    def hold(self, fds: list[int]) -> None:
        """Replaces what the nursery holds of this job."""
        for i in range(0, len(fds), FDS):
            self.tell("hold", fds[i : i + FDS], last=i + FDS >= len(fds))

    def _on_event(self) -> None:
        self._flush()
        while True:
            try:
                data = self._sock.recv(messages.MAX_LINE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:  # the nursery has exited
                self.is_up = False
                while self.queue:
                    self._drop()
                self._loop.remove(self._sock.fileno())
                return
            message = messages.decode(data)
            if message["op"] == "ended":
                self.on_ended(int(message["pid"]), int(message["status"]))

    def _flush(self) -> None:
        while self.queue and self._send(*self.queue[0]):
            self._drop()
        self._want(bool(self.queue))

    def _send(self, data: bytes, fds: list[int]) -> bool:
        """False if data must wait. True also if the nursery has exited."""
        try:
            socket.send_fds(self._sock, [data], fds)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def _drop(self) -> None:
        _, fds = self.queue.popleft()
        for fd in fds:
            os.close(fd)

    def _want(self, writable: bool) -> None:
        if writable != self._waiting:
            self._waiting = writable
            with contextlib.suppress(OSError, KeyError):
                self._loop.want(self._sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if writable else 0))
