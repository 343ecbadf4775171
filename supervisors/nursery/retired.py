"""A nursery that steps aside, in one of two cases. Its limit of descriptors was lowered and it may not raise it, so
neither it nor a new supervisor can work: it gives up its name, and a connected daemon starts another nursery. Or it was
stopped (SIGSTOP) or hung for so long that a daemon gave its name to another nursery.

It closes what it does not need, and the other nursery takes over all jobs. But it remains the parent of the ranks whose
supervisor has died, and only a parent may read some zombies (those of another user). So it stays as long as it has such
ranks: it reports their ends to the new nursery repeatedly, which forwards them to the supervisor, and reaps them when
the supervisor has recorded them. It also watches its living supervisors until they exit.

    ended job pid status   to the new nursery, over its socket
    ended job pid reap     its answer: whether that is recorded
"""

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from muster.supervisors import PROTOCOL
from muster.supervisors.nursery.supervised_jobs import SupervisedJobs
from muster.supervisors.supervision_errors import ProtocolError
from muster.supervisors.system.loop import Loop
from muster.supervisors.wire import messages
from muster.supervisors.wire.control import ControlClient

#: Seconds between two tellings, and between two tries to reach the new nursery.
TELL_S = 0.5


class Retired:
    """Begins at once."""

    def __init__(self, loop: Loop, jobs: SupervisedJobs, successor: Path, over: Callable[[], None]) -> None:
        """`successor`: the socket of the new nursery. `over` is called when nothing is left to be looked after."""
        self._loop, self._jobs, self._path, self._over = loop, jobs, successor, over
        self._client: ControlClient | None = None
        jobs.retire()
        loop.later(TELL_S, self._tell)

    def _tell(self) -> None:
        if not self._jobs:
            self._over()
            return
        if self._client is None:
            with contextlib.suppress(OSError):  # it does not exist yet
                self._connect()
        for job_id, pid, status in list(self._jobs.ends()):
            if self._client is not None:
                self._client.send({"op": "ended", "job": job_id, "pid": pid, "status": status})
            elif self._jobs.has_ended(job_id):  # and with it the nursery that could have said so
                self._jobs.let_go(job_id, pid)
        self._loop.later(TELL_S, self._tell)

    def _connect(self) -> None:
        """Raises OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with messages.SocketAt(self._path) as name:
                sock.connect(name)
        except OSError:
            sock.close()
            raise
        client = self._client = ControlClient(self._loop, sock, self._lost)
        self._loop.add(sock.fileno(), lambda: self._read(client))
        client.send({"op": "hello", "protocol": PROTOCOL})

    def _lost(self, _: ControlClient) -> None:
        self._client = None

    def _read(self, client: ControlClient) -> None:
        client.flush()
        if client.gone:
            return
        try:
            data = client.sock.recv(65536)
            if not data:
                client.drop()
                return
            client.lines.add(data)
            while (line := client.next_line()) is not None:
                message = messages.decode(line)
                if message["op"] == "ended" and message.get("reap") is True:
                    self._jobs.let_go(str(message.get("job")), int(message["pid"]))
        except BlockingIOError:
            return
        except (OSError, ProtocolError, KeyError, ValueError, TypeError):
            client.drop()
