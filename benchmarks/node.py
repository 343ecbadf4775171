"""A daemon in a folder of its own for the time of a benchmark."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from muster.supervisors.paths import Root
from muster.supervisors.system import lock
from muster.v1 import (
    event_pb2_grpc,
    exec_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    log_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
)

BIN = Path(sys.executable).parent
#: Longest time that a daemon may take to answer, and that a call may take, in seconds; for defects only.
ANSWER_S = 30.0
CALL_S = 60.0
# "warn": the checks run for a job that does not skip them, and this machine need not be fit.
CONFIG = '[daemon]\nlog_level = "warning"\n[checks]\npolicy = "warn"\n'
#: The priority that systemd/musterd.service gives; who may not have it is warned, and goes on without.
AS_THE_UNIT = ("nice", "-n", "-10")
ENDED = frozenset(
    {job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_STOPPED, job_pb2.JOB_STATE_LOST}
)


class BenchmarkFailed(Exception):
    """Raised when something that is measured did not do what it is there for: its time would mean nothing."""


def open_channel(address: str) -> grpc.Channel:
    """A connection of its own: the library would else share one between the channels of a process. It is made again
    soon after the daemon was."""
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 20),
        ("grpc.max_reconnect_backoff_ms", 200),
    ]
    return grpc.insecure_channel(address, options=options)


def until(what: Callable[[], Any], seconds: float, message: str) -> Any:
    """Looks each 5 ms until `what` gives something true, and returns that. Raises BenchmarkFailed."""
    deadline = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"not within {seconds:g} s: {message}")
        time.sleep(0.005)


class Node:
    """A warm daemon, its processes and its files."""

    def __init__(self, folder: Path, config: str = CONFIG, programs: Path = BIN) -> None:
        """Starts the daemon in `programs` and returns once it answers. Raises BenchmarkFailed."""
        self._programs = programs
        self.folder = folder
        self.root = Root.under(folder)
        self._config = folder / "musterd.toml"
        self._config.write_text(config)
        self._said = folder / "musterd.stderr"
        self.address = f"unix:{self.root.socket}"
        self._process = self._started()
        self.channel = open_channel(self.address)
        self.jobs = job_pb2_grpc.JobServiceStub(self.channel)
        self.logs = log_pb2_grpc.LogServiceStub(self.channel)
        self.events = event_pb2_grpc.EventServiceStub(self.channel)
        self.execs = exec_pb2_grpc.ExecServiceStub(self.channel)
        self._nodes = node_pb2_grpc.NodeServiceStub(self.channel)
        self._until_answers()

    def _started(self) -> "subprocess.Popen[bytes]":
        with open(self._said, "ab") as err:
            return subprocess.Popen(
                [*AS_THE_UNIT, self._programs / "musterd", "--root", self.folder, "--config", self._config],
                stdin=subprocess.DEVNULL,
                stdout=err,
                stderr=err,
                start_new_session=True,
            )

    def _until_answers(self) -> None:
        try:
            until(self._answers, ANSWER_S, "musterd answers")
        except BenchmarkFailed:
            self.close()
            raise

    def kill(self) -> None:
        """Ends the daemon by SIGKILL, starts another one, and returns once that answers. Raises BenchmarkFailed."""
        self._process.kill()
        self._process.wait()
        self._process = self._started()
        self._until_answers()

    @property
    def pid(self) -> int:
        """Of the daemon."""
        return self._process.pid

    @property
    def nursery_pid(self) -> int:
        return lock.holder(self.root.nursery_lock)

    def spec(self, command: Sequence[str], ranks: int, **fields: Any) -> job_pb2.JobSpec:
        """A job without pre-checks, unless `fields` say otherwise."""
        return job_pb2.JobSpec(command=command, ranks=ranks, **({"skip_check": True} | fields))

    def start(self, spec: job_pb2.JobSpec) -> str:
        """Returns the job's id once it is accepted."""
        return self.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=CALL_S).job.job_id

    def get(self, job_id: str) -> job_pb2.Job:
        return self.jobs.Get(job_pb2.GetRequest(job_id=job_id), timeout=CALL_S).job

    def wait(self, job_id: str, state: job_pb2.JobState.ValueType = job_pb2.JOB_STATE_SUCCEEDED) -> job_pb2.Job:
        """The job as it ended. Raises BenchmarkFailed where it did not end in `state`."""
        job = self.jobs.Wait(job_pb2.WaitRequest(job_id=job_id), timeout=CALL_S).job
        if job.state != state:
            raise BenchmarkFailed(f"job {job_id} ended as {job_pb2.JobState.Name(job.state)}: {job.verdict.summary}")
        return job

    def until_running(self, job_id: str) -> job_pb2.Job:
        def running() -> job_pb2.Job | None:
            job = self.get(job_id)
            return job if job.state == job_pb2.JOB_STATE_RUNNING else None

        job: job_pb2.Job = until(running, CALL_S, f"job {job_id} runs")
        return job

    def stop(self, job_id: str) -> None:
        """Ends a job at once."""
        request = job_pb2.StopRequest(job_id=job_id)
        request.grace.FromMilliseconds(0)
        self.jobs.Stop(request, timeout=CALL_S)

    def delete(self, job_id: str) -> None:
        """Forgets an ended job, its output included."""
        self.jobs.Delete(job_pb2.DeleteRequest(job_id=job_id), timeout=CALL_S)

    def close(self) -> None:
        """Ends every job, the daemon and the nursery."""
        with contextlib.suppress(grpc.RpcError):  # the daemon may be what failed
            for job in self.jobs.List(job_pb2.ListRequest(page_size=1000), timeout=CALL_S).jobs:
                if job.state not in ENDED:
                    self.stop(job.job_id)
        self.channel.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        nursery = self.nursery_pid
        if nursery:  # without jobs it would end by itself, but only some seconds later
            os.kill(nursery, signal.SIGKILL)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            said = self._said.read_text()[-2000:]
            raise BenchmarkFailed(f"musterd ended with {self._process.returncode}: {said}")
        try:
            self._nodes.GetNode(node_pb2.GetNodeRequest(), timeout=5)
        except grpc.RpcError:
            return False
        return True


@contextlib.contextmanager
def running(config: str = CONFIG, programs: Path = BIN) -> Iterator[Node]:
    """A node for the time of the block; its folder is removed behind it."""
    folder = Path(tempfile.mkdtemp(prefix="muster-bench-"))
    try:
        node = Node(folder, config, programs)
        try:
            yield node
        finally:
            node.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
