"""Every call of every service of a real daemon, with anything in it. `make fuzz` makes 100,000 of them."""

import asyncio
import collections
import contextlib
import itertools
import json
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc import aio

from muster import client
from muster.client.error_reasons import REASONS
from muster.v1 import event_pb2, exec_pb2, job_pb2, job_pb2_grpc, log_pb2, node_pb2, probe_pb2, telemetry_pb2
from tests.conftest import FINAL, Daemon, alive, eventually
from tests.fuzz import messages

CALLS = int(os.environ.get("MUSTER_FUZZ_CALLS", "3000"))
SEED = int(os.environ.get("MUSTER_FUZZ_SEED", "1"))
AT_ONCE = 24
#: Of those that may last.
DEADLINE_S = 0.3
METHODS: list[MethodDescriptor] = [
    method
    for module in (event_pb2, exec_pb2, job_pb2, log_pb2, node_pb2, probe_pb2, telemetry_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
#: How often, where that is not 10: these make processes, or many threads of work.
_WEIGHTS = {"Start": 3, "RunChecks": 1, "GetStacks": 2, "Drain": 1, "Stop": 2, "Delete": 2}
#: After so many calls of one client a job is started that runs until somebody stops it.
JOB_EACH = 20


def documented() -> set[tuple[str, str]]:
    """Code and reason of each error in the table of docs/reference/errors.md; no reason: none."""
    return {(row.code, row.reason) for row in REASONS} - {("INTERNAL", "DEFECT")}


class Run:
    """Makes calls until there were enough, and counts what came of them."""

    def __init__(self, address: str, count: int, seed: int) -> None:
        self._address, self._left, self._seed = address, count, seed
        #: Calls by name, code and reason; and one of each with what it was told.
        self.tally: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self.examples: dict[tuple[str, str, str], tuple[list[bytes], str]] = {}

    async def run(self) -> None:
        async with aio.insecure_channel(self._address) as channel:
            await asyncio.gather(*(self._work(channel, number) for number in range(AT_ONCE)))

    async def _work(self, channel: aio.Channel, number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        weights = [_WEIGHTS.get(method.name, 10) for method in METHODS]
        jobs = job_pb2_grpc.JobServiceStub(channel)
        for turn in itertools.count():
            if turn % JOB_EACH == number % JOB_EACH:
                spec = job_pb2.JobSpec(job_id=rng.choice(messages.JOBS), command=["sleep", "100000"])
                with contextlib.suppress(aio.AioRpcError):  # it is there, or the node is drained
                    await jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
            if self._left <= 0:
                return
            self._left -= 1
            [method] = rng.choices(METHODS, weights)
            count = rng.choice([0, 1, 1, 2, 5]) if method.client_streaming else 1
            requests = [messages.encoded(rng, method.input_type) for _ in range(count)]
            code, reason, said = await self._call(channel, rng, method, requests)
            self.tally[method.name, code, reason] += 1
            self.examples.setdefault((method.name, code, reason), (requests, said))

    async def _call(
        self, channel: Any, rng: random.Random, method: MethodDescriptor, requests: list[bytes]
    ) -> tuple[str, str, str]:
        """Code, reason and message."""
        path = f"/{method.containing_service.full_name}/{method.name}"
        deadline = DEADLINE_S if method.server_streaming or method.name in ("Wait", "Stop") else 30.0
        try:
            stream: Any
            if method.client_streaming:
                stream = channel.stream_stream(path)(iter(requests), timeout=deadline)
            else:
                stream = channel.unary_stream(path)(requests[0], timeout=deadline)
            answers = 0
            async for answer in stream:
                if not answers and method.name == "Exec":
                    messages.SESSIONS[:] = [
                        *messages.SESSIONS[-20:],
                        exec_pb2.ExecResponse.FromString(answer).started.session_id,
                    ]
                answers += 1
                if answers > 20 and rng.random() < 0.2:
                    stream.cancel()
                    break
            return (await stream.code()).name, "", ""
        except asyncio.CancelledError:
            return "CANCELLED", "", ""
        except aio.AioRpcError as error:
            told = client.failure(error)
            if told.message == "Internal error from Core":  # grpc.aio's own: the call was over before it had written
                return "CANCELLED", "", ""
            return error.code().name, "" if told.reason == error.code().name else told.reason, told.message


class Held:
    """What daemon, nursery and supervisors hold."""

    def __init__(self, daemon: Daemon) -> None:
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        self.threads = int(re.findall(r"Threads:\s+(\d+)", status)[0])
        self.memory = int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024
        self.daemon = len(os.listdir(f"/proc/{daemon.pid}/fd"))
        self.nursery = len(os.listdir(f"/proc/{daemon.nursery_pid()}/fd"))

    def __str__(self) -> str:
        return (
            f"{self.daemon} descriptors and {self.threads} threads of the daemon, {self.memory >> 20} MiB; "
            f"{self.nursery} descriptors of the nursery"
        )


def defects(daemon: Daemon) -> set[str]:
    """The exceptions in the daemon's log."""
    lines = daemon.stderr.read_text().splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    found = {event["exception"][-1500:] for event in events if "exception" in event}
    found |= {line for line in lines if line.startswith(("Traceback", "Exception"))}
    # anyio's: a connection to a supervisor becomes readable in the moment in which its waiter is cancelled.
    return {each for each in found if not each.endswith("asyncio.exceptions.InvalidStateError: invalid state")}


def clear(daemon: Daemon) -> None:
    """Ends and removes all jobs, so that what is left over is no job's."""
    for job in daemon.jobs.List(job_pb2.ListRequest(page_size=1000), timeout=60).jobs:
        if job.state not in FINAL:
            daemon.stop(job.job_id, grace_s=0)
        daemon.jobs.Delete(job_pb2.DeleteRequest(job_id=job.job_id), timeout=60)


def fuzz(daemon: Daemon, count: int, seed: int) -> Run:
    daemon.nodes.Undrain(node_pb2.UndrainRequest(), timeout=60)
    daemon.run("sleep", "100000", job_id=messages.JOBS[0], ranks=2)
    daemon.run("sh", "-c", "seq 20000; exit 3", job_id=messages.JOBS[1])
    daemon.until_running(messages.JOBS[0])
    run = Run(daemon.address, count, seed)
    asyncio.run(run.run())
    clear(daemon)
    return run


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_anything_in_any_call(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon("[jobs]\nmax_jobs = 16\n[exec]\nabandoned_s = 1\n[telemetry]\nprocesses_s = 5.0\n")
    pid = daemon.pid
    fuzz(daemon, min(CALLS // 3, 10_000), SEED + 1000)  # until caches and threads are there
    before = Held(daemon)
    began = time.monotonic()
    run = fuzz(daemon, CALLS, SEED)
    tally = run.tally
    took = time.monotonic() - began

    codes: collections.Counter[tuple[str, str]] = collections.Counter()
    for (_, code, reason), times in tally.items():
        codes[code, reason] += times
    print(f"\n{tally.total()} calls in {took:.0f} s, seed {SEED}: {tally.total() / took:.0f} a second")
    for (code, reason), times in codes.most_common():
        print(f"{times:8}  {code} {reason}")
    good = {name: times for (name, code, _), times in tally.items() if code == "OK"}
    print("OK:", ", ".join(f"{name} {good.get(name, 0)}" for name in sorted({method.name for method in METHODS})))
    assert tally.total() == CALLS
    never = {each: run.examples[each] for each in tally if each[1] != "OK" and each[1:] not in documented()}
    assert not never, "\n".join([str(never), *defects(daemon)])
    assert {method.name for method in METHODS} <= {name for name, _, _ in tally}

    assert not defects(daemon)
    assert daemon.process is not None and daemon.process.poll() is None and daemon.pid == pid
    print(f"before: {before}\nafter:  {Held(daemon)}")

    def as_before() -> bool:
        now = Held(daemon)
        return (
            now.daemon <= before.daemon + 8
            and now.nursery <= before.nursery + 4
            and now.threads <= before.threads + 8
            and now.memory <= before.memory + (64 << 20)
        )

    eventually(as_before, 60, f"what is held: before {before}, now {Held(daemon)}")
    # And it works as before.
    daemon.nodes.Undrain(node_pb2.UndrainRequest(), timeout=60)
    daemon.run("true", job_id="last")
    assert daemon.wait("last").state == job_pb2.JOB_STATE_SUCCEEDED
    assert alive(daemon.nursery_pid())
    assert not (daemon.root.log / "nursery.log").exists() or not (daemon.root.log / "nursery.log").read_text()


def test_unknown_calls_and_services(shared: Daemon) -> None:
    channel: Any = shared.channel
    for path in ("/muster.v1.JobService/Nonsense", "/nonsense.v1.Nonsense/Get", "/", "/muster.v1.JobService/"):
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(path)(b"", timeout=60)
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED, path
