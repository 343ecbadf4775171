"""A job whose rank is a launcher: every reader names the worker that failed, its code and its lines.

The launchers here print what real ones printed (tests/fixtures/launchers/); mpirun is real where it is installed.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.probes.kernel import kmsg, process
from muster.v1 import job_pb2
from tests.conftest import Daemon

TEXTS = Path(__file__).parents[2] / "fixtures" / "launchers"
#: No finding of the machine that runs the tests is a cause.
CONFIG = '[health]\nskip = "kernel-log,storage,kernel,memory-errors,oom,disk-free,mounts,nfs,d-state,zombies,pids"\n'


def prints(name: str, code: int = 1) -> tuple[str, ...]:
    return "sh", "-c", f"cat {TEXTS / name}.txt >&2; exit {code}"


@pytest.mark.parametrize(
    ("name", "status", "action", "line"),
    [
        ("torchrun-code", "rank 1 exited with code 9", "FAIL", "epoch 3: cannot go on"),
        ("torchrun-kill", "rank 1 was killed by SIGKILL", "RETRY_HERE", "epoch 3: cannot go on"),
        ("mpirun-code", "rank 1 exited with code 9", "FAIL", "step 7: cannot go on"),
        ("mpirun-kill", "rank 1 was killed by SIGKILL", "RETRY_HERE", "step 7: cannot go on"),
        ("mpirun-abort", "rank 1 called MPI_Abort with code 7", "FAIL", "step 7: cannot go on"),
        ("torchrun-record", "rank 1 exited with code 1", "FAIL", "ValueError: bad shape (3, 4)"),
    ],
)
def test_every_reader_names_the_worker(shared: Daemon, name: str, status: str, action: str, line: str) -> None:
    launcher = name.partition("-")[0]
    shared.run(*prints(name), job_id=name)
    verdict = shared.explained(name).verdict
    assert (verdict.first_failed_rank, verdict.failed_worker.rank) == (0, 1)
    assert (verdict.failed_worker.launcher, verdict.failed_worker.status) == (launcher, status)
    assert job_pb2.Recommendation.Name(verdict.recommendation) == f"RECOMMENDATION_{action}"
    assert verdict.cause.startswith(status)
    found = shared.why(name)
    assert found["workers"][0]["status"] == status and found["workers"][0]["launcherRank"] == 0
    assert found["workerWords"]["lines"][-1] == line
    assert found["cause"]["text"].startswith(status) and f"{launcher} reports: {status}" in found["headline"]
    assert found["verdict"]["recommendation"] == f"RECOMMENDATION_{action}"
    page = shared.cli("why", name).stdout
    assert status in page and f"  | {line}\n" in page and f"Recommendation: {action}" in page
    assert status in shared.cli("status", name).stdout
    assert json.loads(shared.cli("wait", name, "-o", "json").stdout)["verdict"]["failedWorker"]["status"] == status


def test_the_log_of_a_worker_of_msrun(shared: Daemon, tmp_path: Path) -> None:
    """As msrun does it: the workers write into files, and its own output names the folder."""
    said = "Traceback (most recent call last):\\n  File w.py, line 9\\nRuntimeError: bad shape (3, 4)\\n"
    script = f"mkdir LOGDIR; echo step > LOGDIR/worker_0.log; printf '{said}' > LOGDIR/worker_1.log; "
    shared.run("sh", "-c", f"{script} cat {TEXTS}/msrun-raise.txt >&2; exit 1", job_id="msrun", workdir=str(tmp_path))
    verdict = shared.explained("msrun").verdict
    assert (verdict.failed_worker.launcher, verdict.failed_worker.rank) == ("msrun", 1)
    assert verdict.cause.startswith("rank 1 exited with code 1: ")
    found = shared.why("msrun")
    log = str(tmp_path / "LOGDIR" / "worker_1.log")
    assert found["workerWords"] == {"lines": found["workerWords"]["lines"], "whose": log}
    assert found["workerWords"]["lines"][-1] == "RuntimeError: bad shape (3, 4)"
    page = shared.cli("why", "msrun").stdout
    assert f"worker 1 of rank 0, in {log}:" in page and f"Last lines of rank 1 ({log}):" in page


needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun: apt install openmpi-bin")
WORKER = """
import os, sys, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    print("step 7: cannot go on", flush=True)
    if sys.argv[1] == "raise":
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 79.15 GiB")
    os.kill(os.getpid(), 9) if sys.argv[1] == "kill" else os._exit(9)
time.sleep(600)
"""


@needs_mpirun
@pytest.mark.system
@pytest.mark.parametrize(
    ("how", "status", "action"),
    [
        ("code", "rank 1 exited with code 9", "FAIL"),
        ("kill", "rank 1 was killed by SIGKILL", "RETRY_HERE"),
        ("raise", "rank 1 exited with code 1: the memory of a card was full", "FAIL"),
    ],
)
@pytest.mark.parametrize("boot", ["ranks", "mpi"])
def test_a_worker_of_the_real_mpirun(
    shared: Daemon, tmp_path: Path, boot: str, how: str, status: str, action: str
) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    words: tuple[str, ...] = (sys.executable, str(tmp_path / "worker.py"), how)
    fields: dict[str, Any] = {"boot": boot, "ranks": 3} if boot == "mpi" else {}
    if boot == "ranks":
        words = ("mpirun", "-np", "3", "--oversubscribe", *words)
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for attempt in range(5):  # on a busy machine mpirun sometimes ends before it has printed its report
        job_id = f"{boot}-{how}-{attempt}"
        shared.run(*words, job_id=job_id, env=env, **fields)
        verdict = shared.explained(job_id).verdict
        said = shared.output(shared.get(job_id)).decode(errors="replace")
        if "step 7: cannot go on" in said and ("thus causing" in said or "noticed that process rank" in said):
            break
    assert (verdict.failed_worker.launcher, verdict.failed_worker.rank) == ("mpirun", 1), f"{verdict}\n{said}"
    assert verdict.cause.startswith(status)
    assert job_pb2.Recommendation.Name(verdict.recommendation) == f"RECOMMENDATION_{action}"
    assert "step 7: cannot go on" in " ".join(shared.why(job_id)["workerWords"]["lines"])


def _says_crashes() -> str:
    """Why the kernel's log does not tell of a process that crashes here; empty: it does."""
    if not process.pids_are_the_kernels() or not os.access(kmsg.PATH, os.R_OK):
        return "needs the kernel's log and its pids (root on the host)"
    return "" if Path("/proc/sys/debug/exception-trace").read_text().strip() == "1" else "debug.exception-trace is 0"


@pytest.mark.system
@pytest.mark.skipif(bool(_says_crashes()), reason=_says_crashes() or "it does")
def test_what_the_kernel_says_of_a_child_that_crashes(shared: Daemon) -> None:
    crash = f"{sys.executable} -c 'import ctypes; ctypes.string_at(1)'; exit $?"
    shared.run("bash", "-c", crash, job_id="segv")
    assert shared.wait("segv").verdict.exit_code == 139
    found = shared.why("segv")
    assert any("segfault at 1 " in text for text in found["cause"]["evidence"]), found["cause"]
