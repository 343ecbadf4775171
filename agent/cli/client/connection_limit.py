"""Is a listener of the daemon full? Beyond its `max_connections` it closes each connection without an answer."""

import os
import socket
import time
from pathlib import Path

from muster.agent.cli.client.address import Address
from muster.agent.config.schema import LEAST_CONNECTIONS

#: The setting, as errors name it.
SETTING = "max_connections in [limits]"
#: Seconds within which a daemon with room sends the greeting of HTTP/2. It may be busy.
GREETING_S = 2.0
GREETS, HANGS_UP = "greets", "hangs up"
#: The connections are counted so often, with so many seconds between.
_LOOKS, _BETWEEN_S = 3, 0.05
#: How /proc/net/unix shows a connected socket.
_CONNECTED = "03"


def full(address: Address, waiting: bool) -> dict[str, str] | None:
    """The facts of a refusal by a full listener (`listener`, `what`, `limit`, `setting`), after a call could not
    connect: the listener closes the connection, or has room again (the others left in that moment, or it was only
    starting). None if the listener is silent or ends; and over TCP, where a refusal may have other reasons."""
    path = address.path
    if path is None or _answer(path) is None:
        return None
    count = _fewest(path)
    again = _answer(path)
    # A daemon that ends hangs up, too; it does not serve as many as any limit allows.
    if again is None or (again == HANGS_UP and not waiting and 0 < count < LEAST_CONNECTIONS):
        return None
    return {
        "listener": str(path),
        "what": "connections",
        "limit": str(count) if count >= LEAST_CONNECTIONS else "",  # not known where others left meanwhile
        "setting": SETTING,
    }


def _answer(path: Path) -> str | None:
    """Hangs up, or greets; None: neither."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(GREETING_S)
            sock.connect(os.fspath(path))
            return GREETS if sock.recv(1) else HANGS_UP
    except ConnectionResetError:
        return HANGS_UP
    except OSError:  # no process listens any more, or accepts the connection
        return None


def _fewest(path: Path) -> int:
    """How many connections the listener serves; 0 where the kernel does not show them. Those that it
    is about to close count for a moment."""
    counts = [_connections(path)]
    for _ in range(_LOOKS - 1):
        time.sleep(_BETWEEN_S)
        counts.append(_connections(path))
    return min(counts)


def _connections(path: Path) -> int:
    """How many there are now; 0 where the kernel does not show them (another network namespace)."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as lines:
            # Num RefCount Protocol Flags Type St Inode Path
            rows = [line.split(maxsplit=7) for line in lines]
    except OSError:
        return 0
    return sum(len(row) == 8 and row[5] == _CONNECTED and row[7].rstrip("\n") == os.fspath(path) for row in rows)
