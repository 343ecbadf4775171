"""A job whose rank is a launcher: every reader names the worker that failed, its code and its lines.

The launchers here print what real ones printed (tests/fixtures/launchers/); mpirun is real where it is installed.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from muster.v1 import job_pb2
from tests.conftest import Daemon

TEXTS = Path(__file__).parents[2] / "fixtures" / "launchers"
#: No finding of the machine that runs the tests is a cause.
CONFIG = '[health]\nskip = "kernel-log,storage,kernel,memory-errors,oom,disk-free,mounts,nfs,d-state,zombies,pids"\n'


def prints(name: str, code: int = 1) -> tuple[str, ...]:
    return "sh", "-c", f"cat {TEXTS / name}.txt >&2; exit {code}"


def why(daemon: Daemon, job_id: str) -> dict[str, Any]:
    done = daemon.cli("why", job_id, "-o", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("name", "status", "action", "line"),
    [
        ("torchrun-code", "rank 1 exited with code 9", "FAIL", "epoch 3: cannot go on"),
        ("torchrun-kill", "rank 1 was killed by SIGKILL", "RETRY_HERE", "epoch 3: cannot go on"),
        ("torchrun-record", "rank 1 exited with code 1", "FAIL", "ValueError: bad shape (3, 4)"),
    ],
)
def test_every_reader_names_the_worker(shared: Daemon, name: str, status: str, action: str, line: str) -> None:
    launcher = name.partition("-")[0]
    shared.run(*prints(name), job_id=name)
    job = shared.wait(name)
    verdict = job.verdict
    assert (verdict.first_failed_rank, verdict.failed_worker.rank) == (0, 1)
    assert (verdict.failed_worker.launcher, verdict.failed_worker.status) == (launcher, status)
    assert job_pb2.Recommendation.Name(verdict.recommendation) == f"RECOMMENDATION_{action}"
    assert verdict.cause.startswith(status)
    found = why(shared, name)
    assert found["workers"][0]["status"] == status and found["workers"][0]["launcherRank"] == 0
    assert found["workerWords"]["lines"][-1] == line
    assert found["cause"]["text"].startswith(status) and f"{launcher} reports: {status}" in found["headline"]
    assert found["verdict"]["recommendation"] == f"RECOMMENDATION_{action}"
    page = shared.cli("why", name).stdout
    assert status in page and f"  | {line}\n" in page and f"Recommendation: {action}" in page
    assert status in shared.cli("status", name).stdout
    assert json.loads(shared.cli("wait", name, "-o", "json").stdout)["verdict"]["failedWorker"]["status"] == status
