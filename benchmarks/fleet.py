"""What a scheduler of many nodes pays: daemons on this machine, each behind TCP and mutual TLS, one client of them all.

docs/concepts/scale.md reckons from there to 10,000 nodes.
"""

import asyncio
import concurrent.futures
import contextlib
import http.client
import os
import random
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import trustme

from benchmarks import node
from benchmarks.measure import cpu_seconds, percentile
from benchmarks.node import BenchmarkFailed
from benchmarks.peers import Peers
from benchmarks.report import Row
from muster.client import Client, connect
from muster.v1 import event_pb2, job_pb2, node_pb2

NODES = int(os.environ.get("MUSTER_BENCH_NODES", "200"))
#: Calls and handshakes under way at once, as a scheduler that knows its own cores would hold them.
AT_ONCE = 32
QUIET_S = 20.0
ROUNDS = 5
#: Within so many seconds, at random, each watch comes back after the scheduler's restart; 0: all at once.
JITTERS_S = (0.0, 10.0)
ANSWER_S = 300.0
_SCHEDULER = "scheduler.example"


@dataclass(slots=True)
class Member:
    """A node of the fleet, and what the scheduler keeps of it."""

    here: node.Node
    port: int
    cursor: str = ""
    #: Of the client's connection; None while the scheduler is away.
    client: Client | None = None
    events: int = 0
    event_bytes: int = 0
    ended: set[str] = field(default_factory=set)
    live: asyncio.Event = field(default_factory=asyncio.Event)


def run(peers: Peers) -> Iterator[Row]:
    """Rows of one client's costs per node: connections, silence, gates, starts, a restart of the scheduler, metrics."""
    del peers  # no other program does all of this
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder = Path(tempfile.mkdtemp(prefix="muster-fleet-"))
    try:
        with _fleet(folder, NODES) as (members, credentials):
            rows, idle = asyncio.run(_Scheduler(members, credentials).measured())
            yield from rows
            yield _metrics(members, idle)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _fleet(folder: Path, count: int) -> Iterator[tuple[list[Member], grpc.ChannelCredentials]]:
    authority = trustme.CA()
    daemon, scheduler = authority.issue_cert("localhost"), authority.issue_cert(_SCHEDULER)
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    daemon.private_key_pem.write_to_path(str(folder / "daemon.key"))
    (folder / "daemon.key").chmod(0o600)
    daemon.cert_chain_pems[0].write_to_path(str(folder / "daemon.pem"))
    credentials = grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(), scheduler.private_key_pem.bytes(), scheduler.cert_chain_pems[0].bytes()
    )
    ports = _free_ports(count)

    def started(i: int) -> Member:
        own = folder / f"{i:03}"
        own.mkdir()
        config = (
            f'{node.CONFIG}[tls]\nlisten = "127.0.0.1:{ports[i]}"\ncertificate = "{folder}/daemon.pem"\n'
            f'key = "{folder}/daemon.key"\nclient_authority = "{folder}/authority.pem"\noperators = ["{_SCHEDULER}"]\n'
            f'[metrics]\nlisten = "unix:{own}/metrics.sock"\n'
        )
        return Member(node.Node(own, config), ports[i])

    members: list[Member] = []
    with concurrent.futures.ThreadPoolExecutor(4) as starters:
        futures = [starters.submit(started, i) for i in range(count)]
        try:
            members = [future.result() for future in futures]
            yield members, credentials
        finally:
            for future in futures:
                future.cancel()
            concurrent.futures.wait(futures)
            made = [future.result() for future in futures if not future.cancelled() and not future.exception()]
            list(starters.map(lambda member: member.here.close(), made))


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of the scheduler's CPU, of that of all daemons, and of time."""

    scheduler: float
    daemons: float
    passed: float

    def without(self, idle: "Spent") -> "Spent":
        """Less what silence costs in the same time."""
        part = self.passed / idle.passed
        return Spent(self.scheduler - idle.scheduler * part, self.daemons - idle.daemons * part, self.passed)


class _Cost:
    """What has been spent since it was made."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._begin = self._readings()

    def since(self) -> Spent:
        now, begin = self._readings(), self._begin
        return Spent(now.scheduler - begin.scheduler, now.daemons - begin.daemons, now.passed - begin.passed)

    def _readings(self) -> Spent:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        daemons = sum(_cpu_seconds(member.here.pid) for member in self._members)
        return Spent(usage.ru_utime + usage.ru_stime, daemons, time.monotonic())


def _cpu_seconds(pid: int) -> float:
    """Of all threads that live, by the scheduler's count: a call costs less than a tick."""
    try:
        return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
    except OSError:
        return cpu_seconds(pid)


class _Scheduler:
    """One client of every node: a watch each, calls by turns."""

    def __init__(self, members: list[Member], credentials: grpc.ChannelCredentials) -> None:
        self._members = members
        self._credentials = credentials
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def measured(self) -> tuple[list[Row], Spent]:
        """Rows, and what silence costs."""
        count, before = len(self._members), _resident_mb()
        async with self._watching(0.0) as opened:
            note = f"{(_resident_mb() - before) / count * 1e3:.0f} KB of the scheduler's memory each"
            idle = await self._silence()
            rows = [
                _row("connection with its watch", opened.without(idle), count, note),
                Row(
                    "silence: CPU of the scheduler for 1,000 watches", idle.scheduler / idle.passed / count * 1e5,
                    "% of a core", note=f"a daemon takes {idle.daemons / idle.passed / count * 100:.2f} % of a core",
                ),
                await self._gates(idle),
                await self._starts(idle),
            ]  # fmt: skip
        for jitter in JITTERS_S:
            missed = await self._jobs_while_away()
            async with self._watching(jitter) as cost:
                await self._until(missed)
            within = f"spread over {jitter:g} s" if jitter else "all at once"
            note = f"all {len(missed)} jobs that ended meanwhile are told"
            rows.append(_row(f"scheduler's restart, {within}", cost.without(idle), count, note))
        return rows, idle

    @contextlib.asynccontextmanager
    async def _watching(self, jitter_s: float) -> AsyncIterator[Spent]:
        """Connections and watches of all nodes for the time of the block; the cost until the last one lives."""
        cost = _Cost(self._members)
        tasks = [asyncio.create_task(self._watch(member, random.uniform(0, jitter_s))) for member in self._members]
        try:
            await asyncio.wait_for(asyncio.gather(*(member.live.wait() for member in self._members)), ANSWER_S)
            yield cost.since()
        finally:
            for task in tasks:
                task.cancel()
            failed = [e for e in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(e, Exception)]
        if failed:
            raise BenchmarkFailed(f"{len(failed)} watches ended: {failed[0]}")

    async def _watch(self, member: Member, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            async with connect(f"localhost:{member.port}", "fleet", self._credentials) as client:
                member.client = client
                async with self._turn:  # the handshake
                    await client.channel.channel_ready()
                stream = client.events.Watch(event_pb2.WatchRequest(cursor=member.cursor))
                member.live.set()
                async for message in stream:
                    member.cursor = message.cursor
                    member.events += 1
                    member.event_bytes += message.ByteSize()
                    if message.event.kind == "job.ended":
                        member.ended.add(message.event.job_id)
        finally:
            member.client = None
            member.live.clear()

    async def _silence(self) -> Spent:
        cost = _Cost(self._members)
        await asyncio.sleep(QUIET_S)
        return cost.since()

    async def _gates(self, idle: Spent) -> Row:
        sizes: list[int] = []
        took: list[float] = []

        async def gate(member: Member) -> None:
            async with self._turn:
                begin = time.perf_counter()
                answer = await _client(member).node.GetNode(node_pb2.GetNodeRequest(), timeout=ANSWER_S)
                took.append(time.perf_counter() - begin)
                sizes.append(answer.ByteSize())

        cost = _Cost(self._members)
        for _ in range(ROUNDS):
            await self._all(gate)
        note = f"{percentile(sizes, 50)} bytes; {_latency(took)}"
        return _row("look at a node (GetNode)", cost.since().without(idle), len(sizes), note)

    async def _starts(self, idle: Spent) -> Row:
        jobs: list[tuple[Member, str]] = []
        events, size = self._seen()

        async def start(member: Member) -> None:
            async with self._turn:
                spec = job_pb2.JobSpec(command=["true"], ranks=1, skip_check=True)
                answer = await _client(member).jobs.Start(job_pb2.StartRequest(spec=spec), timeout=ANSWER_S)
                jobs.append((member, answer.job.job_id))

        cost = _Cost(self._members)
        await self._all(start)
        await self._until(jobs)
        spent = cost.since().without(idle)
        events_after, size_after = self._seen()
        count, size = events_after - events, size_after - size
        note = f"{count / len(jobs):.0f} events, {size / len(jobs):.0f} bytes together"
        return _row("start of a job, until its end is told", spent, len(jobs), note)

    async def _jobs_while_away(self) -> list[tuple[Member, str]]:
        """A job on each tenth node, to its end, by the nodes' own sockets."""
        chosen = self._members[::10]

        def ended(member: Member) -> tuple[Member, str]:
            job_id = member.here.start(member.here.spec(["true"], 1))
            member.here.wait(job_id)
            return member, job_id

        return await asyncio.gather(*(asyncio.to_thread(ended, member) for member in chosen))

    def _seen(self) -> tuple[int, int]:
        return sum(m.events for m in self._members), sum(m.event_bytes for m in self._members)

    async def _all(self, what: Callable[[Member], Awaitable[None]]) -> None:
        await asyncio.gather(*(what(member) for member in self._members))

    async def _until(self, jobs: Sequence[tuple[Member, str]]) -> None:
        """The watches told the end of all of them."""
        deadline = time.monotonic() + ANSWER_S
        while not all(job in member.ended for member, job in jobs):
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"not within {ANSWER_S:g} s: the watches tell the end of {len(jobs)} jobs")
            await asyncio.sleep(0.02)


def _client(member: Member) -> Client:
    if member.client is None:
        raise BenchmarkFailed(f"the connection to {member.here.folder} broke")
    return member.client


def _row(what: str, cost: Spent, count: int, note: str) -> Row:
    return Row(
        f"{what}: the scheduler's CPU", cost.scheduler / count * 1e3, "ms",
        note=f"the daemon's {cost.daemons / count * 1e3:.1f} ms; {count} in {cost.passed:.1f} s; {note}",
    )  # fmt: skip


def _metrics(members: Sequence[Member], idle: Spent) -> Row:
    sizes: list[int] = []
    took: list[float] = []
    for member in members:  # the first page of a daemon imports what it needs
        _page(member)
    cost = _Cost(members)
    for member in members:
        begin = time.perf_counter()
        sizes.append(len(_page(member)))
        took.append(time.perf_counter() - begin)
    daemons = cost.since().without(idle).daemons
    return Row(
        "page of metrics", percentile(sizes, 50) / 1e3, "KB",
        note=f"{_latency(took)}; the daemon's CPU {daemons / len(members) * 1e3:.1f} ms",
    )  # fmt: skip


def _page(member: Member) -> bytes:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(10.0)
    connection.sock.connect(str(member.here.folder / "metrics.sock"))
    connection.request("GET", "/metrics")
    page = connection.getresponse().read()
    connection.close()
    return page


def _latency(took: Sequence[float]) -> str:
    return f"p50 {percentile(took, 50) * 1e3:.1f} ms, p99 {percentile(took, 99) * 1e3:.1f} ms"


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
