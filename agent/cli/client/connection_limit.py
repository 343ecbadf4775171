"""Is a listener of the daemon full? It hangs up on who comes beyond its `max_connections`, without a word."""

import os
import socket
import time
from pathlib import Path

from muster.agent.cli.client.address import Address
from muster.agent.config.schema import LEAST_CONNECTIONS

#: The setting, as errors name it.
SETTING = "max_connections in [limits]"
#: Seconds within which a daemon that has room greets who connects, as HTTP/2 wants it. It may be busy.
GREETING_S = 2.0
GREETS, HANGS_UP = "greets", "hangs up"
#: The connections are counted so often, with so many seconds between.
_LOOKS, _BETWEEN_S = 3, 0.05
#: How /proc/net/unix shows a connected socket.
_CONNECTED = "03"


def full(address: Address, waiting: bool) -> dict[str, str] | None:
    """What a refusal for want of a slot would tell (`listener`, `what`, `limit`, `setting`), where the listener, to
    which a call could not connect, hangs up on this caller, or, if that is `waiting` for it, has room again. None where
    it is silent, or was only being started; and over TCP, where a refusal may have other reasons."""
    path = address.path
    if path is None or _answer(path) is None:
        return None
    count = _fewest(path)
    # A daemon that ends hangs up, too, and the next one greets: neither serves as many as any limit allows.
    again = _answer(path)
    if again is None or (not waiting and (count < LEAST_CONNECTIONS if count else again == GREETS)):
        return None
    return {
        "listener": str(path),
        "what": "connections",
        "limit": str(count) if count else "",
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
    except OSError:  # nobody listens any more, or nobody takes the connection up
        return None


def _fewest(path: Path) -> int:
    """How many connections the listener serves; 0 where the kernel does not show them. Those that it is about to hang
    up on are there for a moment."""
    counts = [_connections(path)]
    for _ in range(_LOOKS - 1):
        time.sleep(_BETWEEN_S)
        counts.append(_connections(path))
    return min(counts)


def _connections(path: Path) -> int:
    """How many there are now; 0 where the kernel shows them to nobody (another network namespace)."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as lines:
            # Num RefCount Protocol Flags Type St Inode Path
            rows = [line.split(maxsplit=7) for line in lines]
    except OSError:
        return 0
    return sum(len(row) == 8 and row[5] == _CONNECTED and row[7].rstrip("\n") == os.fspath(path) for row in rows)
