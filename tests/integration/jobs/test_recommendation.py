"""The recommendation follows the cause, for every reader, and survives the daemon."""

import json
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from muster.v1 import job_pb2
from tests.conftest import FINAL, Daemon, alive, eventually

HERE, ELSEWHERE, FAIL = "RETRY_HERE", "RETRY_ELSEWHERE", "FAIL"
TRACEBACK = 'Traceback (most recent call last):\n  File "/w/train.py", line 88, in <module>\n    main()\n'
NPU = (
    TRACEBACK + "RuntimeError: synchronize:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:361 NPU function error: "
    "c10_npu::acl::AclrtSynchronizeStreamWithTimeout(stream()), error code is {}\n"
    "[ERROR] 2026-03-25-06:14:02 (PID:17096, Device:5, RankID:5) ERR00100 PTA call acl api failed\n"
    "EE9999: Inner Error!\n"
)
#: What a failing rank wrote, and what is to be done about it.
SAID = {
    "off-the-bus": (
        ELSEWHERE,
        TRACEBACK + "RuntimeError: Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  "
        "Reboot the system to recover this GPU\n",
    ),
    "ecc": (ELSEWHERE, TRACEBACK + "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"),
    "ib-12": (
        ELSEWHERE,
        "n0:812:940 [2] transport/net_ib.cc:2032 NCCL WARN NET/IB : Got completion from peer 10.0.0.7<53312> with "
        "status=12 opcode=0 len=0 vendor err 129\n",
    ),
    "eio": (ELSEWHERE, TRACEBACK + "OSError: [Errno 5] Input/output error\n"),
    "estale": (ELSEWHERE, TRACEBACK + "OSError: [Errno 116] Stale file handle: '/nfs/data'\n"),
    "nccl-connect": (
        HERE,
        "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] "
        "via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout\n",
    ),
    "watchdog": (
        HERE,
        "[rank0]:[E1121 10:00:00.000000000 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE) ran for 600012 milliseconds before timing out.\n",
    ),
    "timed-out": (
        HERE,
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to "
        "(172.17.0.9, 46229).\n",
    ),
    "refused": (HERE, TRACEBACK + "ConnectionRefusedError: [Errno 111] Connection refused\n"),
    "name": (HERE, TRACEBACK + "socket.gaierror: [Errno -3] Temporary failure in name resolution\n"),
    "port": (
        HERE,
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n",
    ),
    "507054": (ELSEWHERE, NPU.format(507054)),
    "507056": (ELSEWHERE, NPU.format(507056)),
    "507057": (HERE, NPU.format(507057)),
    "507048": (HERE, NPU.format(507048)),
    "507035": (FAIL, NPU.format(507035)),
    "ei0002": (
        HERE,
        "EI0002: [PID: 9] The wait execution of the Notify register times out. Remote rank: [24]\n",
    ),
    "ei0006": (HERE, "EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time.\n"),
    "ej0001": (
        HERE,
        "EJ0001: Failed to initialize the HCCP process. Maybe the last one runs.\n",
    ),
    "cuda-oom": (FAIL, TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"),
    "enospc": (FAIL, TRACEBACK + "OSError: [Errno 28] No space left on device: '/data/step100.pt'\n"),
    "import": (FAIL, TRACEBACK + "ModuleNotFoundError: No module named 'flash_attn'\n"),
    "nothing": (FAIL, ""),
}


def fails(daemon: Daemon, folder: Path, name: str, text: str) -> Any:
    path = folder / f"{name}.txt"
    path.write_text(text)
    daemon.run("sh", "-c", f"cat {path} >&2; exit 1", job_id=name)
    return daemon.explained(name)


def action(job: Any) -> str:
    return job_pb2.Recommendation.Name(job.verdict.recommendation).removeprefix("RECOMMENDATION_")


def is_explained(daemon: Daemon, job_id: str) -> bool:
    return bool(daemon.get(job_id).verdict.explained)


def explained(daemon: Daemon, job_id: str) -> list[Any]:
    return [event for event in daemon.event_list(job_id) if event.kind == "job.explained"]


@pytest.mark.parametrize("name", SAID)
def test_it_follows_the_cause(shared: Daemon, tmp_path: Path, name: str) -> None:
    expected, text = SAID[name]
    job = fails(shared, tmp_path, name, text)
    assert (action(job), job.verdict.explained) == (expected, True), job.verdict
    assert job.verdict.recommendation_reason and job.verdict.cause, job.verdict
    (event,) = explained(shared, name)
    assert event.attributes["recommendation"] == expected
    told = json.loads(shared.cli("why", name, "-o", "json").stdout)
    assert told["verdict"]["recommendation"] == f"RECOMMENDATION_{expected}"
    assert f"Recommendation: {expected}: " in shared.cli("why", name).stdout
    assert f"{expected}: " in shared.cli("status", name).stdout


def test_who_runs_it_reads_it(shared: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "said"
    path.write_text(SAID["ecc"][1])
    done = shared.cli("run", "--job-id", "run", "--", "sh", "-c", f"cat {path} >&2; exit 1")
    assert done.returncode == 1
    assert "RETRY_ELSEWHERE: " in done.stderr, done.stderr


def test_a_job_that_did_not_fail_has_no_explanation(shared: Daemon) -> None:
    shared.run("true", job_id="fine")
    job = shared.wait("fine")
    assert (action(job), job.verdict.explained, job.verdict.cause) == ("NONE", True, "")
    assert explained(shared, "fine") == []


def test_it_survives_the_daemon_and_is_told_once(daemon: Daemon, tmp_path: Path) -> None:
    before = fails(daemon, tmp_path, "x", SAID["ecc"][1])
    daemon.kill()
    daemon.start()
    after = daemon.get("x")
    assert (after.verdict.cause, action(after)) == (before.verdict.cause, ELSEWHERE)
    assert after.verdict.explained and len(explained(daemon, "x")) == 1


def test_a_job_that_failed_while_no_daemon_ran(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "said"
    path.write_text(SAID["ecc"][1])
    command = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; cat {path} >&2; exit 1"
    daemon.run("sh", "-c", command, job_id="x")
    daemon.until_running("x")
    supervisor = daemon.supervisor_pid("x")
    daemon.kill()
    (tmp_path / "go").touch()
    eventually(lambda: not alive(supervisor))
    daemon.start()
    job = daemon.explained("x")
    assert (action(job), len(explained(daemon, "x"))) == (ELSEWHERE, 1)


def test_an_explanation_that_was_lost_is_made_again(daemon: Daemon, tmp_path: Path) -> None:
    """And a damaged one."""
    for name in ("removed", "damaged"):
        fails(daemon, tmp_path, name, SAID["ecc"][1])
    daemon.kill(signal.SIGTERM)
    daemon.root.job("removed").explained.unlink()
    daemon.root.job("damaged").explained.write_text("{")
    daemon.start()
    for name in ("removed", "damaged"):
        eventually(partial(is_explained, daemon, name))
        assert action(daemon.get(name)) == ELSEWHERE
        assert daemon.get(name).state in FINAL


#: Rank 1 raises and does not get out of the interpreter; rank 0 sees its peer gone, and exits first.
PEERS = """
import atexit, os, sys, time
flag = sys.argv[1]
if os.environ["RANK"] == "1":
    atexit.register(time.sleep, 1000)
    atexit.register(lambda: open(flag, "w").close())
    raise KeyError("layer.7.weight")
while not os.path.exists(flag):
    time.sleep(0.05)
time.sleep(0.5)
raise RuntimeError(
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:29500"
)
"""


def test_the_rank_that_raised_is_the_cause_though_its_peer_exits_first(shared: Daemon, tmp_path: Path):
    job_id = shared.run(sys.executable, "-c", PEERS, str(tmp_path / "flag"), ranks=2).job_id
    job = shared.wait(job_id)
    assert job.verdict.first_failed_rank == 0
    cause = json.loads(shared.cli("why", job_id, "-o", "json").stdout)["cause"]
    assert (cause["rank"], cause["kind"]) == (1, "job") and "layer.7.weight" in cause["line"], cause
    shown = eventually(lambda: (now := shared.get(job_id).verdict).cause and now)
    assert job_pb2.Recommendation.Name(shown.recommendation) == f"RECOMMENDATION_{FAIL}"
