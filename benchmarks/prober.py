"""A client that asks for a job and for all jobs, by turns, in a process of its own: what an RPC takes while the daemon
has work.

    python -m benchmarks.prober ADDRESS JOB

Says "ready" once it was answered, goes on until its stdin is closed, then prints
{"get_ms": [...], "list_ms": [...], "failures": [...]}.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import IO

import grpc

from benchmarks.measure import percentile
from benchmarks.node import BenchmarkFailed, open_channel
from muster.v1 import job_pb2, job_pb2_grpc

#: Between two calls, in seconds; and how long one may take.
EACH_S = 0.01
LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Probed:
    """Milliseconds of each call, and what the failed ones said."""

    get_ms: list[float]
    list_ms: list[float]
    failures: list[str]

    @property
    def p99(self) -> float:
        """Of all calls."""
        return percentile(self.get_ms + self.list_ms, 99)

    def __str__(self) -> str:
        return "; ".join(
            f"{len(ms)} {name}, p50 {percentile(ms, 50):.1f}, p99 {percentile(ms, 99):.1f}, worst {max(ms):.0f} ms"
            for name, ms in (("Get", self.get_ms), ("List", self.list_ms))
        )


class Prober:
    """Starts the process and collects what it found. A context manager; `result` ends the probing."""

    def __init__(self, address: str, job_id: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.prober", address, job_id],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._stdout: IO[str] = self._process.stdout
        if self._stdout.readline() != "ready\n":
            raise BenchmarkFailed("the prober did not get an answer")

    def __enter__(self) -> "Prober":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def result(self) -> Probed:
        """Raises BenchmarkFailed where the process died."""
        out, _ = self._process.communicate("", timeout=LIMIT_S * 3)
        if self._process.returncode:
            raise BenchmarkFailed(f"the prober ended with {self._process.returncode}")
        found = json.loads(out)
        return Probed(**found)


def _of_another_machine() -> None:
    """Where we may, a caller does not wait for one of this machine's cores, as a scheduler would not."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def main(address: str, job_id: str) -> None:
    """See above."""
    _of_another_machine()
    get, listing = job_pb2.GetRequest(job_id=job_id), job_pb2.ListRequest(page_size=100)
    ms: tuple[list[float], list[float]] = ([], [])
    failures: list[str] = []
    with open_channel(address) as channel:
        jobs = job_pb2_grpc.JobServiceStub(channel)
        jobs.Get(get, timeout=LIMIT_S)
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], EACH_S)[0]:
            turn = len(ms[0]) > len(ms[1])
            begin = time.perf_counter()
            try:
                if turn:
                    jobs.List(listing, timeout=LIMIT_S)
                else:
                    jobs.Get(get, timeout=LIMIT_S)
            except grpc.RpcError as error:
                failures.append(str(error)[:300])
            ms[turn].append((time.perf_counter() - begin) * 1e3)
    print(json.dumps({"get_ms": ms[0], "list_ms": ms[1], "failures": failures}))


if __name__ == "__main__":
    main(*sys.argv[1:])
