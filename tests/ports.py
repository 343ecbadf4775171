"""Ports for programs that a test starts later: nobody takes one between the choice and the start."""

import random
import socket
from pathlib import Path

#: Below these are services of the machine.
_LEAST = 10_000
#: The names that say whose the ports are, kept for as long as this process lives.
_HELD: list[socket.socket] = []


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on at this address, and that no other worker of pytest gets. The kernel does not give
    it to a connection either: it is none of those from which it chooses."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [port for port in range(_LEAST, 65536) if not low <= port <= high]
    for port in random.sample(ports, len(ports)):
        if claim(port, address):
            return port
    raise AssertionError(f"no port is free at {address}")


def claim(port: int, *addresses: str) -> bool:
    """Whether nobody listens on the port at these addresses, and no other worker has claimed it. Then it is ours."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0muster-test-port-{port}")
        for address in addresses:
            socket.create_server((address, port)).close()
    except OSError:
        name.close()
        return False
    _HELD.append(name)
    return True
