"""A nursery that steps aside. Either somebody has lowered its limit of descriptors, it may not raise it, and so neither
it nor a supervisor that it forks can work: it gives its name up, and a daemon that was connected starts another one. Or
it was stopped (SIGSTOP) or hung for so long that a daemon has given its name to another one meanwhile.

It closes what it does not need; the other one takes all jobs over. But it is the parent of the ranks whose supervisor
has died, and theirs are zombies that only a parent may read (a zombie of another user, say). So it stays as long as it
has any: it tells the new nursery how they ended, again and again, which tells the supervisor, and waits for them once
that has recorded it. Supervisors that live are looked after until they end.

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
from muster.supervisors.wire.control import Client

#: Seconds between two tellings, and between two tries to reach the new nursery.
TELL_S = 0.5


class Retired:
    """Begins at once."""

    def __init__(self, loop: Loop, jobs: SupervisedJobs, successor: Path, over: Callable[[], None]) -> None:
        """`successor`: the socket of the new nursery. `over` is called when nothing is left to be looked after."""
        self._loop, self._jobs, self._path, self._over = loop, jobs, successor, over
        self._client: Client | None = None
        jobs.retire()
        loop.later(TELL_S, self._tell)

    def _tell(self) -> None:
        if not self._jobs:
            self._over()
            return
        if self._client is None:
            with contextlib.suppress(OSError):  # it is not there yet
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
        client = self._client = Client(self._loop, sock, self._lost)
        self._loop.add(sock.fileno(), lambda: self._read(client))
        client.send({"op": "hello", "protocol": PROTOCOL})

    def _lost(self, _: Client) -> None:
        self._client = None

    def _read(self, client: Client) -> None:
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
