"""Who listens on a port of this node, and which process has the other end of a connection, by /proc/PID/net/tcp
(proc_net_tcp in the kernel's documentation). All of it blocks."""

import ipaddress
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from muster.probes.kernel import open_files
from muster.probes.kernel.dataclass import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Bytes of a table that are read.
MAX_TABLE_BYTES = 16 << 20
_ESTABLISHED, _LISTEN = "01", "0A"


def own_addresses() -> frozenset[str]:
    """Of this network namespace, with its host name."""
    import psutil  # only now: the daemon starts sooner

    addresses = {one.address.partition("%")[0] for found in psutil.net_if_addrs().values() for one in found}
    return frozenset(addresses | {socket.gethostname()})


def local_addresses(host: str) -> list[Address]:
    """What a program that connects to `host` may mean, on this node. Raises ValueError where that is another host, or a
    name: looking it up may hang."""
    if host == "localhost":
        return [ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1")]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        return [ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")]
    if not address.is_loopback and str(address) not in own_addresses():
        raise ValueError(f"{address} is no address of this node")
    return [address]


def listeners(address: Address, port: int, pid: int, proc: Path) -> set[int]:
    """Users of the sockets that take a connection to `address`, in the network namespace of a process; empty where
    nothing does."""
    rows = [row for row in _rows(pid, proc) if row.state == _LISTEN and row.port == port]
    # The kernel prefers a socket that is bound to the address itself. One that is bound to :: may take IPv4 as well.
    exact = {row.uid for row in rows if row.address == address}
    return exact or {row.uid for row in rows if row.address.is_unspecified and row.family >= address.version}


def holder(
    theirs: tuple[str, int], ours: tuple[str, int], pids: Iterable[int], proc: Path, reader: int | str = "self"
) -> int | None:
    """Which of the processes `pids` has the end `theirs` of a connection of this node, whose other end is `ours`. None:
    none of them. Raises PermissionError where that cannot be found out."""
    ends = [(ipaddress.ip_address(host.partition("%")[0]), port) for host, port in (theirs, ours)]
    inode = 0
    for row in _rows(reader, proc):
        if row.state == _ESTABLISHED and [(row.address, row.port), (row.peer, row.peer_port)] == ends:
            inode = row.inode
    if not inode:
        return None
    wanted, hidden = f"socket:[{inode}]", False
    for pid in pids:
        try:
            for number in open_files.numbers(pid, proc):
                try:
                    if open_files.target(pid, number, proc) == wanted:
                        return pid
                except FileNotFoundError:
                    pass  # closed meanwhile
        except PermissionError:
            hidden = True
        except OSError:
            pass  # it has ended
    if hidden:
        raise PermissionError("the descriptors of the job's processes may not be read")
    return None


@dataclass(frozen=True, slots=True)
class _SocketRow:
    address: Address
    port: int
    peer: Address
    peer_port: int
    state: str
    uid: int
    inode: int
    family: int


def _rows(pid: int | str, proc: Path) -> Iterator[_SocketRow]:
    for name, family in (("tcp", 4), ("tcp6", 6)):
        try:
            with open(f"{proc}/{pid}/net/{name}", "rb") as file:
                lines = file.read(MAX_TABLE_BYTES).decode("ascii", "replace").splitlines()[1:]
        except FileNotFoundError:  # no IPv6
            continue
        for line in lines:
            words = line.split()
            if len(words) > 9 and words[3] in (_ESTABLISHED, _LISTEN):
                (address, port), (peer, peer_port) = _end(words[1]), _end(words[2])
                yield _SocketRow(address, port, peer, peer_port, words[3], int(words[7]), int(words[9]), family)


def _end(text: str) -> tuple[Address, int]:
    """ "0100007F:6D7C": words of 32 bits as they lie in memory."""
    address, _, port = text.partition(":")
    raw = bytes.fromhex(address)
    found = ipaddress.ip_address(b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4)))
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found, int(port, 16)
