"""Checks a node of an MPI job: its name resolves, and its sshd answers."""

import socket
import threading
import time
from collections.abc import Callable

from muster.supervisors.launch.mpi.mpi_link import AGAIN_S, ANSWER_S, seen


def addresses_of(host: str, port: int) -> list[str]:
    """What a name resolves to, IPv4 first. Raises OSError, UnicodeError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Scout(threading.Thread):
    """Looks for one node until its name resolves and its sshd answers. A thread: a name may take long to resolve."""

    def __init__(self, host: str, port: int, tell: Callable[["Scout"], None]) -> None:
        super().__init__(name=f"scout {host}", daemon=True)
        self.host, self.port = host, port
        self.address = ""
        self.seen = "its name has not resolved so far"
        self._tell = tell

    def run(self) -> None:
        """Looks each AGAIN_S seconds, then tells once."""
        while not self.address:
            self.address = self._look()
            if not self.address:
                time.sleep(AGAIN_S)
        self._tell(self)

    def _look(self) -> str:
        try:
            addresses = addresses_of(self.host, self.port)
        except (OSError, UnicodeError) as error:
            self.seen = f"its name does not resolve ({getattr(error, 'strerror', None) or error})"
            return ""
        for address in addresses:
            try:
                with socket.create_connection((address, self.port), timeout=ANSWER_S) as sock:
                    greeting = sock.recv(64)
            except OSError as error:
                self.seen = f"port {self.port} at {address}: {seen(error)}"
                continue
            if greeting.startswith(b"SSH-"):
                return address
            what = f"answers {greeting!r}" if greeting else "closed the connection"
            self.seen = f"port {self.port} at {address} {what}: not an sshd"
        return ""
