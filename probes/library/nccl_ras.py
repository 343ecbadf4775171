"""A client of NCCL's RAS: how many collectives each rank of each communicator has launched.

The protocol is in NCCL's src/ras/client_support.cc and its user guide (Troubleshooting, RAS): lines over TCP, on
localhost:28028 if nothing else is set, where every process of a job listens and the kernel chooses which one answers.
The server closes the connection after a status. JSON came with 2.28.7.

Asking has crashed jobs (see `nccl_version`): ask only a suspected job, not a starting one, at most every 15
seconds. Nothing but a hello is sent before it is known that a process of the job answers, as RAS does: the port is the
job's to choose, other jobs may share it, and another program may take the same lines for something else.
"""

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import anyio
import anyio.abc
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from muster.probes import typed
from muster.probes.calls import watched
from muster.probes.kernel.dataclass import dataclass
from muster.probes.library import sockets
from muster.probes.library.collective_finding import shown
from muster.probes.library.nccl_version import SAFE_FROM, Version

PROC = Path("/proc")
DEFAULT_PORT = 28028
#: Seconds for an answer: RAS itself waits up to 10 for its peers. Bytes of an answer, and of a line before it.
DEADLINE_S, MAX_ANSWER_BYTES, MAX_LINE_BYTES = 12.0, 16 << 20, 4096
#: `init_state` and `async_error` of a communicator that is well (ncclSuccess), and of one in progress.
WELL, IN_PROGRESS = 0, 7

_HELLO = b"CLIENT PROTOCOL 2\n"
_GREETING = re.compile(r"SERVER PROTOCOL \d+")
_POSITION = re.compile(r"\(byte (\d+)\)")
#: 2.28.7 and 2.28.9 leave out the comma behind this of a missing rank.
_NO_COMMA = re.compile(rb'("nvml_dev"\s*:\s*-?\d+)(\s*")')


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


class RasMissingRank(msgspec.Struct, frozen=True):
    """A rank that did not report: its process is stopped, unreachable or has exited."""

    rank: int
    host: str
    pid: int
    cuda_dev: int = -1


class RasCommunicator(msgspec.Struct, frozen=True):
    """`hash` and `secondary_hash` together are its identity."""

    hash: str
    secondary_hash: str = ""
    size: int = 0
    ranks: tuple[RasRank, ...] = ()
    missing_ranks: tuple[RasMissingRank, ...] = ()

    @property
    def identity(self) -> tuple[str, str]:
        """What tells a communicator from others over several reports."""
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
        return typed.decode(data, _Report)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        repaired = _NO_COMMA.sub(rb"\1,\2", data)
        if repaired != data:
            try:
                return typed.decode(repaired, _Report)
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
        raise RasUnreachable(f"NCCL_RAS_ADDR is not HOST:PORT: {shown(address, 100)!r}")
    return host.strip("[]"), int(port)


async def ask_ras(
    target: RasTarget,
    pids: Mapping[int, int],
    *,
    least: Version = SAFE_FROM,
    deadline_s: float = DEADLINE_S,
    proc: Path = PROC,
) -> RasAnswer:
    """The state of all communicators that a rank's RAS knows.

    `pids`: all processes of the job on this node, workers too, each with what it calls itself (`inner_pids`). Raises
    RasTrouble: one of its kinds above.
    """
    if target.version is None or target.version < least:
        said = "unknown" if target.version is None else ".".join(map(str, target.version))
        needed = ".".join(map(str, least))
        raise RasUnsafe(f"NCCL {said} is not asked, since asking could crash the job; at least {needed} is needed")
    try:
        with anyio.fail_after(deadline_s):
            what = f"the RAS listeners of process {target.pid}"
            addresses = await watched.call(what, lambda: _listening(target, proc))
            data = await _ask_one(addresses, target.port, pids, proc)
            at = time.monotonic()
            answer = await watched.call(what, lambda: parse_answer(data, at, sockets.own_addresses()))
    except TimeoutError:
        raise RasUnreachable(f"RAS did not answer within {deadline_s:g} s") from None
    except (OSError, watched.StillHanging) as error:
        raise RasUnreachable(f"cannot ask RAS: {getattr(error, 'strerror', None) or error}") from None
    found, own = answer.processes(), frozenset(pids.values())
    if not found or not found <= own:
        foreign = ", ".join(map(str, sorted(found - own)[:5]))
        said = f"processes {foreign} in it are not the job's" if foreign else "it has no process of this node"
        raise RasOtherJob(f"the answer of RAS on port {target.port} is another job's: {said}")
    return answer


def _listening(target: RasTarget, proc: Path) -> list[str]:
    """Addresses at which the rank's user listens. Blocks. Raises RasTrouble, OSError."""
    theirs, ours = (os.readlink(f"{proc}/{pid}/ns/net") for pid in (target.pid, "self"))
    if theirs != ours:
        raise RasUnreachable("RAS is not reachable: the rank has a network namespace of its own")
    try:
        wanted = sockets.local_addresses(target.host)
    except ValueError:
        host = shown(target.host, 100)
        raise RasUnreachable(
            f"NCCL_RAS_ADDR names the host {host!r}: muster asks only localhost and addresses of this node"
        ) from None
    found: list[str] = []
    for address in wanted:
        foreign = sorted((users := sockets.listeners(address, target.port, target.pid, proc)) - {target.uid})
        if foreign:
            listener = f"uid {foreign[0]} listens on port {target.port}"
            raise RasRefused(f"{listener}, and the rank's user is uid {target.uid}: another user's job has the port")
        if users:
            found.append(str(address))
    if not found:
        said = " and ".join(str(address) for address in wanted)
        raise RasUnreachable(f"nothing listens on port {target.port} of {said}: the job has no RAS, or not yet")
    return found


async def _ask_one(addresses: Iterable[str], port: int, pids: Mapping[int, int], proc: Path) -> bytes:
    """The answer at the first address that takes the connection."""
    refused: OSError | None = None
    for address in addresses:
        try:
            stream = await anyio.connect_tcp(address, port)
        except OSError as error:
            refused = error
            continue
        async with stream:
            return await _Conversation(stream, pids, proc).report()
    raise RasUnreachable(f"RAS on port {port} takes no connection: {refused}")


async def inner_pids(pids: Iterable[int], deadline_s: float = 5.0, proc: Path = PROC) -> dict[int, int]:
    """By pid: what each process calls itself, in its own pid namespace (the last number of NSpid in /proc/PID/status).
    Without those that have ended, and empty where /proc does not answer in time."""
    asked = tuple(pids)
    with anyio.move_on_after(deadline_s):
        try:
            what = f"the pid namespaces of process {min(asked, default=0)} and others"
            return await watched.call(what, lambda: _inner_pids(asked, proc))
        except (OSError, watched.StillHanging):
            pass
    return {}


def _inner_pids(pids: Iterable[int], proc: Path) -> dict[int, int]:
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            status = Path(f"{proc}/{pid}/status").read_text(errors="replace")
            found[pid] = int(status.partition("\nNSpid:")[2].splitlines()[0].split()[-1])
    return found


class _Conversation:
    """One connection to whatever listens."""

    def __init__(self, stream: anyio.abc.SocketStream, pids: Mapping[int, int], proc: Path) -> None:
        self._stream = stream
        self._reader = BufferedByteReceiveStream(stream)
        self._pids = pids
        self._proc = proc

    async def report(self) -> bytes:
        """Raises RasTrouble, OSError."""
        try:
            greeting = await self._line(_HELLO)
            if not _GREETING.fullmatch(greeting):
                raise RasRefused(f"what listens on the port does not answer as RAS does: {shown(greeting, 100)!r}")
            await self._check_process()
            format_set = await self._line(b"SET FORMAT json\n")
            if format_set != "OK":
                raise RasRefused(f"RAS has no JSON (NCCL before 2.28.7): {shown(format_set, 100)!r}")
            await self._stream.send(b"VERBOSE STATUS\n")
            data = await self._to_end()
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
            raise RasUnreachable("RAS closed the connection before its answer") from None
        except anyio.DelimiterNotFound:
            raise RasRefused(f"what listens on the port sends no line of at most {MAX_LINE_BYTES} bytes") from None
        if data.startswith(b"ERROR"):
            raise RasRefused(f"RAS refuses: {shown(data.splitlines()[0].decode('utf-8', 'replace'), 200)}")
        if not data.strip():
            raise RasUnreachable("RAS closed the connection before its answer")
        return data

    async def _check_process(self) -> None:
        """Whether the process that took the connection is one of the job's. Pids in the answer do not tell it where
        two containers share a network: both have processes 1 to 8."""
        ours = self._stream.extra(anyio.abc.SocketAttribute.local_address)
        theirs = self._stream.extra(anyio.abc.SocketAttribute.remote_address)
        assert isinstance(ours, tuple) and isinstance(theirs, tuple)  # a name would be that of a unix socket
        try:
            what = f"the sockets of process {min(self._pids, default=0)} and others"
            found = await watched.call(what, lambda: sockets.holder(theirs, ours, tuple(self._pids), self._proc))
        except PermissionError:
            if all(pid == inner for pid, inner in self._pids.items()):
                return  # then the pids in the answer are those of this node, and tell it
            found = None
        if found is None:
            raise RasOtherJob("a process that does not belong to the job answered for RAS")

    async def _line(self, command: bytes) -> str:
        await self._stream.send(command)
        return (await self._reader.receive_until(b"\n", MAX_LINE_BYTES)).decode("utf-8", "replace").strip()

    async def _to_end(self) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            try:
                piece = await self._reader.receive(64 << 10)
            except anyio.EndOfStream:
                return b"".join(pieces)
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                raise RasRefused(f"the answer of RAS is larger than {MAX_ANSWER_BYTES >> 20} MiB")
            pieces.append(piece)
