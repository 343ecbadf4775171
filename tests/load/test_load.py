"""Many of everything at once: nothing fails, nothing is missing or doubled, and nothing of it is left behind."""

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc import aio

from benchmarks import processes
from benchmarks.node import open_channel
from muster.v1 import event_pb2, event_pb2_grpc, job_pb2, log_pb2, log_pb2_grpc
from tests.conftest import Daemon, alive, eventually

RANKS, JOBS, FOLLOWERS, RESUMPTIONS, WATCHERS = 256, 64, 200, 1000, 8
#: What may be more behind a load than before it, each far less than one for each of those: gRPC's and the daemon's own
#: threads come with work and go some time after it; a connection of the test's own; a history that was opened.
DESCRIPTORS, THREADS = 8, 24
#: Of a rank's flood; each tells where it is.
LINES = 4000


@pytest.fixture
def node(shared: Daemon) -> Iterator[Daemon]:
    """A daemon that holds as much behind the test as before it."""
    shared.wait(shared.run("true", job_id="first").job_id)  # what is made once is there
    shared.jobs.Delete(job_pb2.DeleteRequest(job_id="first"), timeout=60)
    before = processes.held(shared.pid)
    yield shared

    def same() -> bool:
        now = processes.held(shared.pid)
        return now.descriptors <= before.descriptors + DESCRIPTORS and now.threads <= before.threads + THREADS

    nursery = shared.nursery_pid()
    # But for the supervisor that waits for the next job.
    eventually(lambda: len(processes.descendants(nursery)) <= 1, 60, "no process of a job, and no zombie, is left")
    eventually(same, 60, f"before: {before}; now: {processes.held(shared.pid)}")
    assert processes.held(shared.pid).zombies == 0
    for job in listed(shared):
        shared.jobs.Delete(job_pb2.DeleteRequest(job_id=job.job_id), timeout=60)
    assert not list((shared.root.state / "jobs").iterdir())


def listed(node: Daemon) -> list[job_pb2.Job]:
    return list(node.jobs.List(job_pb2.ListRequest(page_size=1000), timeout=60).jobs)


@pytest.mark.slow
def test_a_job_of_256_ranks(node):
    node.run("sh", "-c", "echo of rank $RANK; exec sleep 100000", job_id="many", ranks=RANKS)
    lines: dict[int, bytes] = {}
    for chunk in node.logs.ReadLogs(log_pb2.ReadLogsRequest(job_id="many", follow=True), timeout=60):
        lines[chunk.rank] = lines.get(chunk.rank, b"") + chunk.data
        if sum(map(len, lines.values())) == sum(len(f"of rank {rank}\n") for rank in range(RANKS)):
            break
    assert lines == {rank: f"of rank {rank}\n".encode() for rank in range(RANKS)}
    pids = [rank.pid for rank in node.until_running("many").ranks]
    assert len(set(pids)) == RANKS and all(map(alive, pids))
    assert node.stop("many", grace_s=0).ended
    assert not any(map(alive, pids))
    ended = node.get("many")
    assert ended.state == job_pb2.JOB_STATE_STOPPED
    assert {rank.signal for rank in ended.ranks} == {9}


@pytest.mark.slow
def test_64_jobs_at_once(node):
    def start(number: int) -> str:
        node.run("sh", "-c", f"echo {number}; exec sleep 100000", job_id=f"job-{number}", ranks=2)
        return f"job-{number}"

    with ThreadPoolExecutor(16) as threads:
        jobs = list(threads.map(start, range(JOBS)))
        list(threads.map(node.until_running, jobs))
        assert {job.state for job in listed(node)} == {job_pb2.JOB_STATE_RUNNING}
        # A supervisor each, and the one that waits for the next job.
        assert len(processes.children(node.nursery_pid())) in (JOBS, JOBS + 1)
        stopped = list(threads.map(lambda job: node.stop(job, grace_s=0), jobs))
    assert all(answer.ended for answer in stopped)
    for number, job in enumerate(jobs):
        assert node.output(node.get(job), 1) == f"{number}\n".encode()


def test_200_followers_of_flooding_ranks(node):
    """Each on a connection of its own; half of them leave in the middle."""
    whole = b"".join(b"%0100d\n" % line for line in range(1, LINES + 1))
    # The ranks wait until all followers are there.
    gate = node.folder / "gate"
    script = f"echo begins; while [ ! -e {gate} ]; do sleep 0.02; done; seq -f '%0100.0f' {LINES}"
    node.run("sh", "-c", script, job_id="floods", ranks=4)
    asked = 0

    async def follow(number: int, begun: asyncio.Event) -> bytes:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with aio.insecure_channel(node.address, options=options) as channel:
            request = log_pb2.ReadLogsRequest(job_id="floods", ranks=[number % 4], follow=True)
            data = bytearray()
            async for chunk in log_pb2_grpc.LogServiceStub(channel).ReadLogs(request):
                assert chunk.eof or chunk.offset == len(data)
                data += chunk.data
                begun.set()
                if number % 2 and len(data) > len(whole) // 2:
                    break
            return bytes(data)

    async def all_of_them() -> list[bytes]:
        nonlocal asked
        begun = [asyncio.Event() for _ in range(FOLLOWERS)]
        tasks = [asyncio.create_task(follow(number, each)) for number, each in enumerate(begun)]
        await asyncio.gather(*(each.wait() for each in begun))
        gate.touch()
        while not all(task.done() for task in tasks):
            assert (await asyncio.to_thread(node.get, "floods")).job_id == "floods"
            asked += 1
        return await asyncio.gather(*tasks)

    found = asyncio.run(asyncio.wait_for(all_of_them(), 100))
    expected = b"begins\n" + whole
    assert [data for data in found[::2] if data != expected] == []
    assert [data for data in found[1::2] if not expected.startswith(data)] == []
    assert asked > 0
    node.wait("floods")


@pytest.mark.slow
def test_1000_resumptions_of_a_watch_over_a_kill_of_the_daemon(make_daemon):
    """Eight watchers begin anew behind every two events, while more of them happen: each sees each once, in order."""
    node = make_daemon()
    first = next(node.events.Watch(event_pb2.WatchRequest(), timeout=60)).cursor
    killed = threading.Event()

    def watch(_: int) -> list[tuple[str, event_pb2.Event]]:
        cursor, resumed = first, 0
        seen: list[tuple[str, event_pb2.Event]] = []
        with open_channel(node.address) as channel:
            events = event_pb2_grpc.EventServiceStub(channel)
            while resumed < RESUMPTIONS / WATCHERS or not killed.is_set():
                call = events.Watch(event_pb2.WatchRequest(cursor=cursor), timeout=60)
                try:
                    for answer in itertools.islice(call, 2):
                        cursor = answer.cursor
                        if answer.HasField("event"):
                            seen.append((cursor, answer.event))
                    resumed += 1
                except grpc.RpcError as error:
                    assert error.code() is grpc.StatusCode.UNAVAILABLE
                    time.sleep(0.02)
                finally:
                    call.cancel()
        return seen

    with ThreadPoolExecutor(WATCHERS) as threads:
        watchers = [threads.submit(watch, number) for number in range(WATCHERS)]
        jobs = 0
        while not all(watcher.done() for watcher in watchers):
            node.wait(node.run("true", job_id=f"job-{jobs}", ranks=48).job_id)
            jobs += 1
            if jobs == 4:
                node.kill()
                node.start()
                killed.set()
        found = [watcher.result() for watcher in watchers]
    request = event_pb2.WatchRequest(cursor=first, no_follow=True)
    told = [(each.cursor, each.event) for each in node.events.Watch(request, timeout=60) if each.HasField("event")]
    for seen in found:
        assert seen == told[: len(seen)]
    assert min(map(len, found)) >= 200
    exited = [(event.job_id, event.rank) for _, event in told if event.kind == "rank.exited"]
    assert sorted(exited) == sorted((f"job-{job}", rank) for job in range(jobs) for rank in range(48))
