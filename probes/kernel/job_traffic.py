"""What the jobs of a node move over the network, each for itself.

The kernel counts the bytes of an interface, and of a TCP connection (sock_diag(7), `tcpi_bytes_acked` and
`tcpi_bytes_received` of struct tcp_info, since Linux 4.2), but not of a process. /proc/PID/fd says which connections
are whose. A job with a network namespace of its own is counted at that namespace's interfaces.

A number is what a job has moved at most. If the kernel has opened more connections than there are new ones at a look,
some came and went between two looks, of whatever process. Each job is then credited with all that no connection of the
node explains. A job is counted only where nothing else can be missed: the descriptors of all its processes can be
read, and each of its sockets is known and moves bytes that the kernel counts, or leads to one of its own processes.
What comes over the loopback counts as well: it may come through a proxy. Everything here blocks.
"""

import errno
import os
import socket
import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.process import FULL
from muster.probes.kernel.procfs import Procfs
from muster.probes.kernel.trees import JobProcess, ProcessRole

#: Bytes a second of the node up to which nobody looks whose they are: a quarter of what the hang rule takes for a sign
#: of life by default.
LEAST_RATE = 256 << 10
#: Descriptors of all jobs, and sockets of the node, that are looked at: beyond that, nothing is known.
MOST_DESCRIPTORS, MOST_SOCKETS = 50_000, 50_000
#: Seconds that the kernel has for a part of its list of sockets.
ANSWER_S = 2.0

#: Servers of a node that bring no process any data to speak of, by the beginning of the names of their unix sockets.
SERVICES = (
    *("/run/systemd/", "/run/dbus/", "/run/user/", "/run/nscd/", "/run/avahi-daemon/", "/run/rpcbind.sock"),
    *("/var/run/dbus/", "/var/run/nscd/", "/var/lib/sss/pipes/", "/dev/log", "/run/munge/", "/var/run/munge/"),
)

# linux/sock_diag.h, linux/inet_diag.h, linux/unix_diag.h, linux/netlink.h.
_SOCK_DIAG, _BY_FAMILY = 4, 20
_REQUEST_DUMP, _ERROR, _DONE = 0x301, 2, 3
_INFO, _ALL_STATES = 2, 0xFFFFFFFF
_NAME, _PEER, _SHOW_NAME_AND_PEER = 0, 2, 0x5
#: nlmsghdr, inet_diag_req_v2 (its socket id is left empty).
_ASK = struct.Struct("=IHHII BBBxI48x")
_HEAD = struct.Struct("=IHHII")
#: inet_diag_msg: family, state, timer, retransmissions; ports; addresses; interface, cookie; expiry, queues, user,
#: inode.
_ROW = struct.Struct("=4B4x16s16s3I5I")
#: unix_diag_req and unix_diag_msg: family, type, state; inode, cookie.
_ASK_UNIX, _UNIX_ROW = struct.Struct("=IHHII BBxxIIIQ"), struct.Struct("=4BIQ")
_ATTRIBUTE = struct.Struct("=HH")
#: `tcpi_bytes_acked` and `tcpi_bytes_received`.
_BYTES, _BYTES_AT = struct.Struct("=QQ"), 120
_PART = 256 << 10


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a job has moved at `most`, and at `least` by connections that are its own beyond doubt, in bytes both ways,
    by the moment `at`; counted without a gap since `since`. Both are in seconds of CLOCK_MONOTONIC."""

    most: float
    least: float
    since: float
    at: float

    def rates(self, before: "Traffic") -> tuple[float, float] | None:
        """Bytes a second since an earlier count, at most and at least; None: it was not counted without a gap since
        then."""
        if not self.since <= before.at < self.at:
            return None
        seconds = self.at - before.at
        return (self.most - before.most) / seconds, (self.least - before.least) / seconds


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """`moved`: bytes both ways; `local`: it goes over the loopback; `connected`: it neither listens nor waits for its
    first use."""

    moved: int
    local: bool = False
    connected: bool = True


@dataclass(frozen=True, slots=True)
class _Node:
    """The node at one look. `tcp`: by inode; `opens`: how many connections were opened since the boot; `spaces`: bytes
    of each network namespace but muster's own, by its number."""

    up: float
    moved: int | None
    tcp: Mapping[int, TcpSocket]
    opens: int | None
    spaces: Mapping[int, int | None]

    def unexplained(self, before: "_Node") -> float | None:
        """Bytes since then that may belong to connections that no look has seen; None: not known."""
        new = sum(1 for inode, found in self.tcp.items() if found.connected and inode not in before.tcp)
        opened = _grown(before.opens, self.opens)
        if opened is not None and opened <= new:
            return 0.0
        moved = _grown(before.moved, self.moved)
        away = (_since(before.tcp, inode, found) for inode, found in self.tcp.items() if not found.local)
        return None if moved is None else max(0.0, moved - sum(away))


class JobTraffic:
    """Counts, from one look to the next. Not for several threads at once."""

    def __init__(self, procfs: Procfs) -> None:
        self._procfs = procfs
        self._before: _Node | None = None
        self._jobs: dict[str, Traffic] = {}

    def look(self, up: float, moved: int | None, jobs: Mapping[str, Sequence[JobProcess]]) -> dict[str, Traffic]:
        """The traffic of those of these jobs of which it is known. `up`: now; `moved`: what the node's interfaces have
        moved. Costs a list of the node's connections; while the node moves `LEAST_RATE`, a read of each descriptor as
        well. Raises nothing: what cannot be counted is left out."""
        try:
            self._jobs = self._count(up, moved, jobs) if jobs else {}
        except OSError:  # no sock_diag, or no descriptors
            self._jobs = {}
        if not self._jobs:
            self._before = None
        return self._jobs

    def _count(self, up: float, moved: int | None, jobs: Mapping[str, Sequence[JobProcess]]) -> dict[str, Traffic]:
        own = self._procfs.net_namespace("self")
        if own is None:
            return {}
        of_jobs = {job: self._namespaces(processes) for job, processes in jobs.items()}
        foreign: dict[int, int] = {}
        for spaces in of_jobs.values():
            for pid, space in (spaces or {}).items():
                if space != own:
                    foreign.setdefault(space, pid)
        now = _Node(
            up,
            moved,
            tcp_sockets(),
            self._procfs.tcp_opens(),
            {space: self._procfs.net_bytes(pid) for space, pid in foreign.items()},
        )
        before, self._before = self._before, now
        if before is None or up <= before.up:
            return {job: Traffic(0.0, 0.0, up, up) for job, spaces in of_jobs.items() if spaces is not None}
        holders = _Holders(self._procfs, now, before)
        found = {}
        for job, spaces in of_jobs.items():
            if spaces is None:
                continue
            inside = {pid for pid, space in spaces.items() if space == own}
            grown = _sum(_grown(before.spaces.get(space), now.spaces[space]) for space in {*spaces.values()} - {own})
            more = holders.moved(inside, spaces.keys() - inside) if spaces else (0.0, 0.0)
            kept = self._jobs.get(job)
            if kept is None or grown is None or more is None:
                found[job] = Traffic(0.0, 0.0, up, up)
            else:
                most, least = (grown + moved for moved in more)
                found[job] = Traffic(kept.most + most, kept.least + least, kept.since, up)
        return found

    def _namespaces(self, processes: Sequence[JobProcess]) -> dict[int, int] | None:
        """The network namespace of each process; None where one may not be read, as that of a process whose first
        thread has ended before the others."""
        found = {}
        for proc in processes:
            if proc.role is ProcessRole.SESSION or proc.stat.ended:
                continue
            space = self._procfs.net_namespace(str(proc.stat.pid))
            if space is None and self._procfs.exists(proc.stat.pid):
                return None
            if space is not None:
                found[proc.stat.pid] = space
        return found


class _Holders:
    """Whose the connections of the node are, at one look."""

    def __init__(self, procfs: Procfs, now: _Node, before: _Node) -> None:
        self._procfs, self._now, self._before = procfs, now, before
        self._left = MOST_DESCRIPTORS
        self._quiet = _grown(before.moved, now.moved)
        self._unexplained = now.unexplained(before)
        self._harmless: set[int] | None = None
        self._unix: Mapping[int, UnixSocket] = {}

    def moved(self, inside: Collection[int], elsewhere: Iterable[int]) -> tuple[float, float] | None:
        """Bytes that a job's connections have moved since the look before, at most and at least; None: not known.
        `inside`: its processes in muster's network namespace; `elsewhere`: those in others, which may hold connections
        of this one."""
        seconds = self._now.up - self._before.up
        if self._quiet is not None and self._quiet < LEAST_RATE * seconds:
            return self._quiet, 0.0  # a job moved no more than the node
        held: set[int] = set()
        brought: set[int] = set()
        for found, pids in ((held, inside), (brought, elsewhere)):
            for pid in pids:
                sockets = self._procfs.sockets(pid, self._left)
                if sockets is None:
                    return None
                self._left -= sockets[1]
                found |= sockets[0]
        of_tcp = (held | brought) & self._now.tcp.keys()
        if not all(self._moves_nothing(inode, held) for inode in held - of_tcp):
            return None
        unexplained = self._unexplained if inside else 0.0
        if unexplained is None:
            return None
        own = float(sum(_since(self._before.tcp, inode, self._now.tcp[inode]) for inode in of_tcp))
        return unexplained + own, own

    def _moves_nothing(self, inode: int, held: Collection[int]) -> bool:
        """A socket that is none of TCP, and brings no data from elsewhere to the job that holds these."""
        if self._harmless is None:
            self._harmless = {*self._procfs.net_table("netlink", 9), *local_udp()}
            self._unix = unix_sockets()
        found = self._unix.get(inode)
        if found is None:
            return inode in self._harmless
        peer = self._unix.get(found.peer)
        return peer is None or found.peer in held or any(end.name.startswith(SERVICES) for end in (found, peer))


def tcp_sockets() -> dict[int, TcpSocket]:
    """Each TCP socket of this network namespace, by its inode. Raises OSError where the kernel does not tell what they
    move."""
    found: dict[int, TcpSocket] = {}
    for row in _sockets(socket.IPPROTO_TCP):
        if len(row.info) >= _BYTES_AT + _BYTES.size:
            moved = sum(_BYTES.unpack_from(row.info, _BYTES_AT))
        elif row.state in _UNCONNECTED:
            moved = 0
        else:
            raise OSError(errno.ENOSYS, "the kernel does not count the bytes of connections")
        if (other := found.get(row.inode)) is not None:
            moved += other.moved  # a connection of MPTCP, over several paths
        found[row.inode] = TcpSocket(moved, row.local, row.state not in _UNCONNECTED)
    return found


#: TCP_CLOSE, TCP_LISTEN, TCP_BOUND_INACTIVE.
_UNCONNECTED = (7, 10, 13)


def local_udp() -> set[int]:
    """Inodes of UDP sockets that are connected to this node."""
    try:
        return {row.inode for row in _sockets(socket.IPPROTO_UDP) if row.local}
    except OSError as error:
        if error.errno in FULL:
            raise
        return set()


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """`peer`: inode of the other end, 0 where there is none."""

    name: str
    peer: int


def unix_sockets() -> dict[int, UnixSocket]:
    """Each unix socket of this network namespace, by its inode; none where the kernel does not tell them."""
    ask = _ASK_UNIX.pack(
        *(_ASK_UNIX.size, _BY_FAMILY, _REQUEST_DUMP, 1, 0, socket.AF_UNIX, 0),
        *(_ALL_STATES, 0, _SHOW_NAME_AND_PEER, 0),
    )
    found: dict[int, UnixSocket] = {}
    try:
        for body in _rows([ask], _UNIX_ROW):
            *_, inode, _ = _UNIX_ROW.unpack_from(body)
            told = dict(_attributes(body, _UNIX_ROW.size))
            peer = int.from_bytes(told.get(_PEER, b""), sys.byteorder)
            found[inode] = UnixSocket(os.fsdecode(told.get(_NAME, b"").rstrip(b"\0")), peer)
    except OSError as error:
        if error.errno in FULL:
            raise
        return {}
    return found


@dataclass(frozen=True, slots=True)
class _Socket:
    state: int
    local: bool
    inode: int
    info: bytes


def _sockets(protocol: int) -> Iterator[_Socket]:
    """Those of IPv4 and IPv6 that a descriptor may hold. Raises OSError."""
    asks = [
        _ASK.pack(_ASK.size, _BY_FAMILY, _REQUEST_DUMP, number, 0, family, protocol, 1 << (_INFO - 1), _ALL_STATES)
        for number, family in enumerate((socket.AF_INET, socket.AF_INET6), start=1)
    ]
    for body in _rows(asks, _ROW):
        row = _row(body)
        if row.inode:
            yield row


def _rows(asks: Iterable[bytes], least: struct.Struct) -> Iterator[bytes]:
    """The sockets in the answers to these questions, numbered from 1. Raises OSError."""
    count = 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as channel:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(ANSWER_S), 0))
        for number, ask in enumerate(asks, start=1):
            channel.send(ask)
            for kind, body in _messages(channel, number):
                if kind == _ERROR:
                    (code,) = struct.unpack_from("=i", body)
                    if -code == errno.ENOENT and number > 1:
                        break  # without IPv6
                    raise OSError(-code, os.strerror(-code))
                if len(body) < least.size:
                    raise OSError(errno.EBADMSG, "a message of sock_diag is too short")
                count += 1
                if count > MOST_SOCKETS:
                    raise OSError(errno.E2BIG, f"more than {MOST_SOCKETS} sockets")
                yield body


def _messages(channel: socket.socket, number: int) -> Iterator[tuple[int, bytes]]:
    """Kind and body of each message of an answer, up to its end."""
    while True:
        part = channel.recv(_PART)
        at = 0
        while at + _HEAD.size <= len(part):
            size, kind, _, answers, _ = _HEAD.unpack_from(part, at)
            if size < _HEAD.size or at + size > len(part):
                raise OSError(errno.EBADMSG, "a message of sock_diag is cut short")
            if answers == number:
                if kind == _DONE:
                    return
                yield kind, part[at + _HEAD.size : at + size]
                if kind == _ERROR:
                    return
            at += (size + 3) & ~3


def _row(body: bytes) -> _Socket:
    family, state, _, _, source, target, *numbers = _ROW.unpack_from(body)
    info = dict(_attributes(body, _ROW.size)).get(_INFO, b"")
    return _Socket(state, _is_local(family, source, target), numbers[-1], info)


def _attributes(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at + _ATTRIBUTE.size <= len(body):
        size, kind = _ATTRIBUTE.unpack_from(body, at)
        if size < _ATTRIBUTE.size:
            break
        yield kind, body[at + _ATTRIBUTE.size : at + size]
        at += (size + 3) & ~3


def _is_local(family: int, source: bytes, target: bytes) -> bool:
    """It goes over the loopback: to 127/8 or ::1, or to the address that it comes from."""
    if family == socket.AF_INET:
        return target[0] == 127 or (source[:4] == target[:4] and any(target[:4]))
    mapped = target[:12] == b"\0" * 10 + b"\xff\xff"
    return (mapped and target[12] == 127) or target == b"\0" * 15 + b"\1" or (source == target and any(target))


def _grown(before: int | None, now: int | None) -> float | None:
    return None if before is None or now is None or now < before else float(now - before)


def _since(before: Mapping[int, TcpSocket], inode: int, now: TcpSocket) -> int:
    known = before.get(inode)
    return max(0, now.moved - (known.moved if known is not None else 0))


def _sum(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total
