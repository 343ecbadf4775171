"""Real PyTorch on the CPU (gloo): the ranks meet through nothing but the environment that muster gives them."""

import importlib.util
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.v1 import job_pb2
from tests.conftest import Daemon, eventually
from tests.ports import free_port

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="needs PyTorch: pip install -r examples/ddp/requirements.txt",
    ),
]

SCRIPT = Path(__file__).parents[3] / "examples" / "ddp" / "train_ddp.py"


def checksums(daemon: Daemon, job: Any, ranks: int) -> set[str]:
    found = [re.findall(r"parameters (\S+)", daemon.output(job, rank).decode()) for rank in range(ranks)]
    assert all(found), [daemon.output(job, rank) for rank in range(ranks)]
    return {sums[-1] for sums in found}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4])
def test_ddp_trains(daemon: Daemon, ranks: int) -> None:
    daemon.run(sys.executable, str(SCRIPT), "--steps", "5", job_id="ddp", ranks=ranks)
    job = daemon.wait("ddp", 240)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, daemon.output(job).decode()
    assert f"ddp ok world={ranks}" in daemon.output(job).decode()
    assert len(checksums(daemon, job, ranks)) == 1


@pytest.mark.slow
def test_two_nodes_are_two_daemons(make_daemon: Any) -> None:
    """A job of two nodes with two ranks each; the nodes are two daemons on this machine."""
    nodes: list[Daemon] = [make_daemon() for _ in range(2)]
    port = free_port()
    for rank, node in enumerate(nodes):
        node.run(sys.executable, str(SCRIPT), "--steps", "3", job_id="wide", ranks=2, node_rank=rank, node_count=2,
                 master_addr="127.0.0.1", master_port=port)  # fmt: skip
    jobs = [node.wait("wide", 240) for node in nodes]
    assert [job.state for job in jobs] == [job_pb2.JOB_STATE_SUCCEEDED] * 2, nodes[0].output(jobs[0]).decode()
    assert len({total for node, job in zip(nodes, jobs, strict=True) for total in checksums(node, job, 2)}) == 1


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_others_and_is_named(daemon: Daemon) -> None:
    daemon.run(sys.executable, str(SCRIPT), "--steps", "1000000", job_id="ddp", ranks=3)
    eventually(lambda: b"step" in daemon.output(daemon.get("ddp")), 120)
    os.kill(daemon.rank_pid("ddp", 1), signal.SIGKILL)
    job = daemon.wait("ddp", 120)
    assert (job.state, job.verdict.first_failed_rank) == (job_pb2.JOB_STATE_FAILED, 1)
    assert job.verdict.exit_code == 128 + signal.SIGKILL
