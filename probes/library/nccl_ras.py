"""A client of NCCL's RAS: how many collectives each rank of each communicator has launched.

The protocol is in NCCL's src/ras/client_support.cc and its user guide (Troubleshooting, RAS): lines over TCP, on
localhost:28028 if nothing else is set, where every process of a job listens and the kernel chooses which one answers.
The server closes the connection after a status. JSON came with 2.28.7.

Asking has crashed jobs (see `nccl_version`): ask only a job that is suspected, not one that starts, at most every 15
seconds. Nothing is sent before the listener is known to be a socket of the rank's user and greets as RAS does: the port
is the job's to choose, and another program may take the same lines for something else.
"""

import ipaddress
import os
import re
import socket
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc
import msgspec
import psutil
from anyio.streams.buffered import BufferedByteReceiveStream

from muster.probes.calls import watched
from muster.probes.library.collective_finding import shown
from muster.probes.library.nccl_version import SAFE_FROM, Version

PROC = Path("/proc")
DEFAULT_PORT = 28028
#: Seconds for an answer: RAS itself waits up to 10 for its peers. Bytes of an answer, of a line before it, and of
#: /proc/PID/net/tcp.
DEADLINE_S, MAX_ANSWER_BYTES, MAX_LINE_BYTES, MAX_TABLE_BYTES = 12.0, 16 << 20, 4096, 16 << 20
#: `init_state` and `async_error` of a communicator that is well (ncclSuccess), and of one in progress.
WELL, IN_PROGRESS = 0, 7

_LISTEN = "0A"
_HELLO = b"CLIENT PROTOCOL 2\n"
_GREETING = re.compile(r"SERVER PROTOCOL \d+")
_POSITION = re.compile(r"\(byte (\d+)\)")
#: 2.28.7 and 2.28.9 leave out the comma behind this of a missing rank.
_NO_COMMA = re.compile(rb'("nvml_dev"\s*:\s*-?\d+)(\s*")')

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class RasTrouble(Exception):
    """There is no answer that can be used; the message says why."""


class RasUnsafe(RasTrouble):
    """This version of NCCL, or an unknown one, is not asked."""


class RasUnreachable(RasTrouble):
    """There is nothing to ask, or it does not answer in time."""


class RasRefused(RasTrouble):
    """What answers is no RAS, is another user's, or has no JSON."""


class RasMalformed(RasTrouble):
    """The answer cannot be read. `position`: the byte at which, -1 where that is unknown."""

    def __init__(self, why: str, data: bytes, position: int) -> None:
        near = shown(data[max(0, position - 30) : position + 30].decode("utf-8", "replace")) if position >= 0 else ""
        where = f" at byte {position}, near {near!r}" if position >= 0 else ""
        super().__init__(f"RAS sent an answer that cannot be read: {why}{where}")
        self.position = position


class RasOtherJob(RasTrouble):
    """The processes in the answer are not those of the job: another job has the same port. Ask again, or give each job
    its own NCCL_RAS_ADDR."""


# --- the answer -------------------------------------------------------------------------------------------------------


class RasStatus(msgspec.Struct, frozen=True):
    """Of a communicator in one rank. Only those fields that are used."""

    init_state: int = WELL
    async_error: int = WELL
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False


class RasRank(msgspec.Struct, frozen=True):
    """`rank` is that of the communicator, not of the job; `pid` is that of the process in its own pid namespace."""

    rank: int
    host: str
    pid: int
    cuda_dev: int = -1
    status: RasStatus = RasStatus()
    collective_counts: dict[str, int] = {}


class RasMissingStatus(msgspec.Struct, frozen=True):
    """Why there is no report of a rank."""

    unresponsive: bool = False
    considered_dead: bool = False


class RasMissingRank(msgspec.Struct, frozen=True):
    """A rank that did not report: its process is stopped, unreachable or has exited."""

    rank: int
    host: str
    pid: int
    cuda_dev: int = -1
    status: RasMissingStatus = RasMissingStatus()


class RasCommunicator(msgspec.Struct, frozen=True):
    """`hash` and `secondary_hash` together are its identity."""

    hash: str
    secondary_hash: str = ""
    size: int = 0
    ranks: tuple[RasRank, ...] = ()
    missing_ranks: tuple[RasMissingRank, ...] = ()

    @property
    def identity(self) -> tuple[str, str]:
        return self.hash, self.secondary_hash


class _Report(msgspec.Struct, frozen=True):
    """As it is sent."""

    communicators: tuple[RasCommunicator, ...]
    nccl_version: str = ""
    timestamp: str = ""


@dataclass(frozen=True, slots=True)
class RasAnswer:
    """`at`: on the monotonic clock of this process. `local`: addresses of this node, as
    which RAS names its hosts."""

    at: float
    version: str
    timestamp: str
    communicators: tuple[RasCommunicator, ...]
    local: frozenset[str] = frozenset()

    def reported(self) -> Iterator[RasRank | RasMissingRank]:
        """Every rank of every communicator."""
        for communicator in self.communicators:
            yield from communicator.ranks
            yield from communicator.missing_ranks

    def processes(self) -> frozenset[int]:
        """Pids of those on this node, in their own pid namespace."""
        return frozenset(one.pid for one in self.reported() if one.host in self.local)


def parse_answer(data: bytes, at: float, own_addresses: Collection[str]) -> RasAnswer:
    """Unknown fields are skipped. Raises RasMalformed."""
    report = _decode(data)
    version, timestamp = shown(report.nccl_version, 40), shown(report.timestamp, 40)
    return RasAnswer(at, version, timestamp, report.communicators, frozenset(own_addresses))


def _decode(data: bytes) -> _Report:
    try:
        return msgspec.json.decode(data, type=_Report)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        repaired = _NO_COMMA.sub(rb"\1,\2", data)
        if repaired != data:
            try:
                return msgspec.json.decode(repaired, type=_Report)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass  # the first error is of what was sent
        found = _POSITION.search(str(error))
        position = int(found[1]) if found is not None else -1
        if "truncated" in str(error):
            position = len(data)
        raise RasMalformed(_POSITION.sub("", str(error)).strip()[:200], data, position) from None


# --- asking -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RasTarget:
    """A rank that is to be asked: which of the job's processes answers is chosen by the kernel. `host` and `port` from
    its environment; `version`: of its NCCL, None where that is unknown."""

    pid: int
    uid: int
    host: str
    port: int
    version: Version | None


def ras_address(environ: Iterable[bytes]) -> tuple[str, int]:
    """Host and port of a process, by NCCL_RAS_ADDR in its environment (NAME=VALUE each). Raises RasUnreachable where
    RAS is switched off, or the variable is no address."""
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in environ)
    variables = {name: value for name, _, value in pairs}
    if variables.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        raise RasUnreachable("RAS is switched off (NCCL_RAS_ENABLE=0)")
    address = variables.get("NCCL_RAS_ADDR", "").strip()
    if not address:
        return "localhost", DEFAULT_PORT
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise RasUnreachable(f"NCCL_RAS_ADDR is no HOST:PORT: {shown(address, 100)!r}")
    return host.strip("[]"), int(port)


async def ask_ras(
    target: RasTarget,
    pids: Collection[int],
    *,
    least: Version = SAFE_FROM,
    deadline_s: float = DEADLINE_S,
    proc: Path = PROC,
) -> RasAnswer:
    """The state of all communicators that a rank's RAS knows.

    `pids`: all processes of the job on this node, as they call themselves (the last number of NSpid in
    /proc/PID/status). Raises RasTrouble: one of its kinds above.
    """
    if target.version is None or target.version < least:
        said = "unknown" if target.version is None else ".".join(map(str, target.version))
        needed = ".".join(map(str, least))
        raise RasUnsafe(f"NCCL {said} is not asked, since asking may crash the job; at least {needed} is needed")
    try:
        with anyio.fail_after(deadline_s):
            what = f"the RAS listeners of process {target.pid}"
            addresses = await watched.call(what, lambda: _listening(target, proc))
            data = await _ask_one(addresses, target.port)
            at = time.monotonic()
            answer = await watched.call("addresses of this node", lambda: parse_answer(data, at, _own_addresses()))
    except TimeoutError:
        raise RasUnreachable(f"RAS did not answer within {deadline_s:g} s") from None
    except (OSError, watched.StillHanging) as error:
        raise RasUnreachable(f"RAS cannot be asked: {getattr(error, 'strerror', None) or error}") from None
    found = answer.processes()
    if not found or not found <= frozenset(pids):
        foreign = ", ".join(map(str, sorted(found - frozenset(pids))[:5]))
        said = f"processes {foreign} in it are not the job's" if foreign else "it has no process of this node"
        raise RasOtherJob(f"the answer of RAS on port {target.port} is another job's: {said}")
    return answer


def _listening(target: RasTarget, proc: Path) -> list[str]:
    """Addresses at which the rank's user listens. Blocks. Raises RasTrouble, OSError."""
    theirs, ours = (os.readlink(f"{proc}/{pid}/ns/net") for pid in (target.pid, "self"))
    if theirs != ours:
        raise RasUnreachable("RAS is not reachable: the rank has a network namespace of its own")
    sockets = [one for name in ("tcp", "tcp6") for one in _listeners(f"{proc}/{target.pid}/net/{name}", target.port)]
    wanted = _addresses(target.host)
    found: list[str] = []
    for address in wanted:
        # The kernel prefers the one that is bound to the address itself. A socket bound to :: may take IPv4 as well.
        owners = {uid for bound, uid in sockets if bound == address}
        owners = owners or {uid for bound, uid in sockets if bound.is_unspecified and bound.version >= address.version}
        if owners - {target.uid}:
            listener = f"uid {min(owners - {target.uid})} listens on port {target.port}"
            raise RasRefused(f"{listener}, and the rank's user is uid {target.uid}: another user's job has the port")
        if owners:
            found.append(str(address))
    if not found:
        said = " and ".join(str(address) for address in wanted)
        raise RasUnreachable(f"nothing listens on port {target.port} of {said}: the job has no RAS, or not yet")
    return found


def _addresses(host: str) -> list[_Address]:
    if host == "localhost":
        return [ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1")]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise RasUnreachable(
            f"NCCL_RAS_ADDR names the host {shown(host, 100)!r}: muster asks only localhost and addresses of this node"
        ) from None
    if address.is_unspecified:
        return _addresses("127.0.0.1" if address.version == 4 else "::1")
    if not address.is_loopback and str(address) not in _own_addresses():
        raise RasUnreachable(f"NCCL_RAS_ADDR names {address}, which is no address of this node")
    return [address]


def _own_addresses() -> frozenset[str]:
    """Of this network namespace, with its host name. Blocks."""
    addresses = {one.address.partition("%")[0] for found in psutil.net_if_addrs().values() for one in found}
    return frozenset(addresses | {socket.gethostname()})


def _listeners(path: str, port: int) -> list[tuple[_Address, int]]:
    """Address and user of each socket that listens on a port, by /proc/PID/net/tcp (proc_net_tcp in the kernel's
    documentation)."""
    try:
        with open(path, "rb") as file:
            lines = file.read(MAX_TABLE_BYTES).decode("ascii", "replace").splitlines()[1:]
    except FileNotFoundError:  # no IPv6
        return []
    found = []
    for line in lines:
        words = line.split()
        if len(words) < 8 or words[3] != _LISTEN:
            continue
        bound, _, number = words[1].partition(":")
        if int(number, 16) == port:
            # Words of 32 bits as they lie in memory.
            raw = bytes.fromhex(bound)
            swapped = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
            found.append((ipaddress.ip_address(swapped), int(words[7])))
    return found


async def _ask_one(addresses: Iterable[str], port: int) -> bytes:
    """The answer at the first address that takes the connection."""
    refused: OSError | None = None
    for address in addresses:
        try:
            stream = await anyio.connect_tcp(address, port)
        except OSError as error:
            refused = error
            continue
        async with stream:
            return await _talk(stream)
    raise RasUnreachable(f"RAS on port {port} takes no connection: {refused}")


async def _talk(stream: anyio.abc.ByteStream) -> bytes:
    reader = BufferedByteReceiveStream(stream)
    try:
        greeting = await _line(stream, reader, _HELLO)
        if not _GREETING.fullmatch(greeting):
            raise RasRefused(f"what listens on the port does not greet as RAS does: {shown(greeting, 100)!r}")
        format_set = await _line(stream, reader, b"SET FORMAT json\n")
        if format_set != "OK":
            raise RasRefused(f"RAS has no JSON (NCCL before 2.28.7): {shown(format_set, 100)!r}")
        await stream.send(b"VERBOSE STATUS\n")
        data = await _to_end(reader)
    except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
        raise RasUnreachable("RAS closed the connection before its answer") from None
    except anyio.DelimiterNotFound:
        raise RasRefused(f"what listens on the port sends no line of at most {MAX_LINE_BYTES} bytes") from None
    if data.startswith(b"ERROR"):
        raise RasRefused(f"RAS refuses: {shown(data.splitlines()[0].decode('utf-8', 'replace'), 200)}")
    if not data.strip():
        raise RasUnreachable("RAS closed the connection before its answer")
    return data


async def _line(stream: anyio.abc.ByteStream, reader: BufferedByteReceiveStream, command: bytes) -> str:
    await stream.send(command)
    return (await reader.receive_until(b"\n", MAX_LINE_BYTES)).decode("utf-8", "replace").strip()


async def _to_end(reader: BufferedByteReceiveStream) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        try:
            piece = await reader.receive(64 << 10)
        except anyio.EndOfStream:
            return b"".join(pieces)
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise RasRefused(f"the answer of RAS is larger than {MAX_ANSWER_BYTES >> 20} MiB")
        pieces.append(piece)
