"""The recommendation follows the cause, for every reader, and survives the daemon."""

import json
import os
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
#: Each rendezvous of PyTorch writes it where there is no IPv6.
IPV6 = (
    "[W1124 02:10:11.123456789 socket.cpp:752] [c10d] The client socket has failed to connect to [localhost]:29500 "
    "(errno: 97 - Address family not supported by protocol).\nstep 1\n"
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
    "ib-12-newer": (
        ELSEWHERE,
        "n0:812:940 [2] transport/net_ib.cc:2260 NCCL WARN NET/IB: Got completion from peer 10.0.0.7<53312> with "
        "status=12 opcode=0 len=0 vendor err 129 (Recv)\n"
        + TRACEBACK
        + "torch.distributed.DistBackendError: NCCL error "
        "in: ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error, NCCL version 2.21.5\n",
    ),
    "nvlink": (
        ELSEWHERE,
        TRACEBACK + "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error\n",
    ),
    "xid-of-the-program": (
        FAIL,
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=812, name=python, Ch 00000008\n"
        + TRACEBACK
        + "RuntimeError: CUDA error: an illegal memory access was encountered\n",
    ),
    # What was survived is no cause of an error of the program.
    "bug-behind-a-warning": (FAIL, IPV6 + TRACEBACK + "KeyError: 'labels'\n"),
    "bug-behind-a-retry": (
        FAIL,
        "port 29500 in use: [Errno 98] Address already in use; trying 29501\nstep 1\n" + TRACEBACK + "ValueError: no\n",
    ),
    "bug-behind-a-handled-error": (
        FAIL,
        TRACEBACK + "OSError: [Errno 5] Input/output error\nshard skipped\nstep 1\n" + TRACEBACK + "IndexError: 7\n",
    ),
    "bug-behind-words": (
        FAIL,
        "sample 17: 'uncorrectable ECC error encountered in memory'\nstep 1\n" + TRACEBACK + "TypeError: no\n",
    ),
    "bug-while-handling": (
        ELSEWHERE,
        TRACEBACK
        + "OSError: [Errno 5] Input/output error\n\n"
        + "During handling of the above exception, another exception occurred:\n\n"
        + TRACEBACK
        + "KeyError: 'labels'\n",
    ),
    "driver-mismatch": (ELSEWHERE, "Failed to initialize NVML: Driver/library version mismatch\n"),
    "ib-port": (
        ELSEWHERE,
        "n0:812:940 [1] transport/net_ib.cc:110 NCCL WARN NET/IB : mlx5_1:1 Got async event : port error\n"
        + TRACEBACK
        + "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled system error\n",
    ),
    "ucx-retry": (
        ELSEWHERE,
        "[n0:812 :0:812] ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81)\n",
    ),
    # openucx/ucx#10755, Cray MPICH: an error of the fabric, not of a disk.
    "ucx-remote": (
        ELSEWHERE,
        "[c561-004:493850:0:493850] ib_mlx5_log.c:179  Remote operation error on mlx5_0:1/IB (synd 0x14 vend 0x89)\n",
    ),
    "mpich-ofi": (
        ELSEWHERE,
        "MPIDI_OFI_handle_cq_error(1059): OFI poll failed (ofi_events.c:1061:MPIDI_OFI_handle_cq_error:Input/output "
        "error - transport retry counter exceeded)\n",
    ),
    "rocm-hang": (ELSEWHERE, "HW Exception by GPU node-4 (Agent handle: 0x1b0fc990) reason :GPU Hang\n"),
    "clock": (
        ELSEWHERE,
        TRACEBACK + "botocore.exceptions.ClientError: An error occurred (RequestTimeTooSkewed) when calling the "
        "PutObject operation: The difference between the request time and the current time is too large.\n",
    ),
    "nfs-524": (ELSEWHERE, TRACEBACK + "OSError: [Errno 524] Unknown error 524: '/mnt/nfs/a'\n"),
    "git-503": (HERE, "fatal: unable to access 'https://git/a.git/': The requested URL returned error: 503\n"),
    "go-name": (HERE, 'RequestError: Get "https://s3/b": dial tcp: lookup s3 on 10.96.0.10:53: no such host\n'),
    "grpc": (
        HERE,
        TRACEBACK + "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n"
        '\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "failed to connect to all addresses; last error: x"\n>\n',
    ),
    "eshutdown": (
        ELSEWHERE,
        TRACEBACK + "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/lustre/a'\n",
    ),
    "ecomm": (ELSEWHERE, TRACEBACK + "OSError: [Errno 70] Communication error on send: '/lustre/a'\n"),
    "host-down": (HERE, TRACEBACK + "OSError: [Errno 112] Host is down\n"),
    "torch-full": (
        FAIL,
        TRACEBACK + "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 704 vs 598\n",
    ),
    # A store that is busy, or does not answer, may answer next time; one that refuses will refuse again.
    "s3-busy": (
        HERE,
        TRACEBACK + "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject "
        "operation (reached max retries: 4): Please reduce your request rate.\n",
    ),
    "s3-503": (
        HERE,
        TRACEBACK + "botocore.exceptions.ClientError: An error occurred (503) when calling the GetObject operation\n",
    ),
    "s3-endpoint": (
        HERE,
        TRACEBACK
        + 'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s/b"\n',
    ),
    "http-503": (
        HERE,
        TRACEBACK + "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://obs/b/x\n",
    ),
    "http-timeout": (
        HERE,
        TRACEBACK + "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='obs', port=443): Read timed out.\n",
    ),
    "obs-busy": (
        HERE,
        TRACEBACK + "moxing.framework.file.exceptions.MoxFileNotExistsException: stat:503 errorCode:SlowDown "
        "errorMessage:Please reduce your request rate\n",
    ),
    "oss-503": (
        HERE,
        TRACEBACK + "oss2.exceptions.ServerError: {'status': 503, 'x-oss-request-id': '6', 'details': {}}\n",
    ),
    "s3-403": (
        FAIL,
        TRACEBACK + "botocore.exceptions.ClientError: An error occurred (403) when calling the HeadObject operation: "
        "Forbidden\n",
    ),
    "s3-no-key": (
        FAIL,
        TRACEBACK + "botocore.errorfactory.NoSuchKey: An error occurred (NoSuchKey) when calling the GetObject "
        "operation: The specified key does not exist.\n",
    ),
    "http-404": (
        FAIL,
        TRACEBACK + "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://obs/b/x\n",
    ),
    "certificate": (
        FAIL,
        TRACEBACK + "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='obs', port=443): Max retries "
        "exceeded with url: /b (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]')))\n",
    ),
    # A lost peer.
    "monitored-barrier": (
        HERE,
        TRACEBACK + "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0. Please check rank 0 logs for faulty rank.\n",
    ),
    "store-closed": (HERE, TRACEBACK + "torch.distributed.DistNetworkError: failed to recv, got 0 bytes\n"),
    "jax-barrier": (
        HERE,
        TRACEBACK
        + "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all\n",
    ),
    "jax-heartbeat": (
        HERE,
        "E1124 coordination_service_agent.cc:399] Polled an error from coordination service: UNAVAILABLE: The "
        "following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/replica:0/task:3\n",
    ),
    "sigterm-in-torchrun": (
        HERE,
        TRACEBACK + "torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got signal: 15\n",
    ),
    "tf-oom": (
        FAIL,
        TRACEBACK + "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with "
        "shape[9,9] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n",
    ),
    # CANN.
    "507001": (ELSEWHERE, NPU.format(507001)),
    "507013": (ELSEWHERE, NPU.format(507013)),
    "507009": (FAIL, NPU.format(507009)),
    "507050": (FAIL, NPU.format(507050)),
    "ej0002": (ELSEWHERE, "EJ0002: [PID: 9] The network port is down.Suggest: check the optical module\n"),
    "ej0003": (HERE, "[PID: 9] Bind_Failed(EJ0003): Failed to bind the IP port. Reason: already bound.\n"),
    "ej0004": (FAIL, "EJ0004: [PID: 9] Check ip fail. Reason: the IP address in the ranktable is inconsistent\n"),
    "ei0007": (FAIL, "[PID: 9] Allocation_Failure(EI0007): Failed to allocate resource[qp] with info [rank:9].\n"),
    "quoted-before-the-error": (
        ELSEWHERE,
        'sample 17: "RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB" label=1\nstep 1\n'
        + TRACEBACK
        + "OSError: [Errno 116] Stale file handle: '/mnt/a'\n",
    ),
    "plugin": (
        HERE,
        "n0:812:940 [2] NCCL INFO NET/Plugin: Could not find: libnccl-net.so: cannot open shared object file: No such "
        "file or directory\n"
        + TRACEBACK
        + "RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed "
        "by peer [10.0.0.4]:31522\n",
    ),
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


def until_gone(note: Path) -> str:
    """Of a script: it waits until the end of the process whose pid is in the file was taken note of: then the pid is
    nobody's."""
    there = f"kill -0 $(cat {note}) 2> /dev/null"
    return f"until [ -s {note} ]; do sleep 0.01; done; while {there}; do sleep 0.01; done; "


PEER_GONE = f"{TRACEBACK}RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"


@pytest.mark.parametrize(
    ("ends", "expected", "cause"),
    [
        ("exit 9", FAIL, "rank 1 exited with code 9 by itself"),
        ("kill -SEGV $$", FAIL, "rank 1 died of SIGSEGV"),
        ("kill -KILL $$", HERE, "rank 1 was killed with SIGKILL"),
    ],
)
def test_the_rank_that_ended_without_a_word_is_the_cause_and_not_who_lost_it(
    shared: Daemon, tmp_path: Path, ends: str, expected: str, cause: str
) -> None:
    (tmp_path / "said").write_text(PEER_GONE)
    # The others go on for a moment when they are asked to end, as ranks in a collective do.
    script = f'ulimit -c 0; if [ "$RANK" = 1 ]; then echo $$ > {tmp_path}/gone; {ends}; fi; trap "" TERM; '
    script += until_gone(tmp_path / "gone") + f"cat {tmp_path / 'said'} >&2; exit 1"
    name = "silent-" + ends.strip(" $").replace(" ", "-").lower()
    shared.run("sh", "-c", script, job_id=name, ranks=3)
    job = shared.explained(name)
    assert action(job) == expected, job.verdict
    assert job.verdict.cause.startswith(cause), job.verdict


def test_the_rank_that_wrote_what_broke_is_the_cause_though_it_exits_last(shared: Daemon, tmp_path: Path) -> None:
    """As one that dumps its core after an error of the fabric, which has no traceback."""
    (tmp_path / "broke").write_text(SAID["ucx-remote"][1])
    (tmp_path / "lost").write_text(TRACEBACK + "RuntimeError: worker 1 did not answer within 30 s\n")
    script = f'trap "" TERM; if [ "$RANK" = 1 ]; then cat {tmp_path}/broke >&2; sleep 0.4; touch {tmp_path}/gone; '
    script += f"while [ ! -e {tmp_path}/done ]; do sleep 0.01; done; sleep 0.1; exit 1; fi; "
    script += (
        f"while [ ! -e {tmp_path}/gone ]; do sleep 0.01; done; cat {tmp_path}/lost >&2; touch {tmp_path}/done; exit 1"
    )
    shared.run("sh", "-c", script, job_id="last", ranks=3)
    job = shared.explained("last")
    assert (action(job), job.verdict.first_failed_rank) == (ELSEWHERE, 1), job.verdict


def test_the_rank_that_left_early_is_the_cause_and_not_who_lost_it(shared: Daemon, tmp_path: Path) -> None:
    (tmp_path / "said").write_text(PEER_GONE)
    script = f'if [ "$RANK" = 1 ]; then echo $$ > {tmp_path}/left; exit 0; fi; trap "" TERM; '
    script += until_gone(tmp_path / "left") + f"sleep 0.3; cat {tmp_path / 'said'} >&2; exit 1"
    shared.run("sh", "-c", script, job_id="early", ranks=3)
    job = shared.explained("early")
    assert (action(job), job.verdict.first_failed_rank) == (FAIL, 1), job.verdict
    assert job.verdict.cause.startswith("rank 1 exited with code 0 while ranks 0,2 went on"), job.verdict


def test_an_abort_has_its_reason_in_the_output(shared: Daemon, tmp_path: Path) -> None:
    """As PyTorch's watchdog ends a process."""
    (tmp_path / "said").write_text(SAID["watchdog"][1])
    shared.run("sh", "-c", f"cat {tmp_path / 'said'} >&2; ulimit -c 0; kill -ABRT $$", job_id="aborted")
    assert action(shared.explained("aborted")) == HERE


def test_who_runs_it_reads_it(shared: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "said"
    path.write_text(SAID["ecc"][1])
    for attempt in range(5):  # the daemon has 10 s to explain it, which a busy machine may not give it
        done = shared.cli("run", "--job-id", f"run-{attempt}", "--", "sh", "-c", f"cat {path} >&2; exit 1")
        assert done.returncode == 1
        if "RETRY_ELSEWHERE: " in done.stderr:
            break
    assert "RETRY_ELSEWHERE: " in done.stderr, done.stderr
    for ends in ("kill -KILL $$", "kill -TERM $$"):
        done = shared.cli("run", "--", "sh", "-c", ends)
        assert "muster: RETRY_HERE: a signal from outside the job ended it" in done.stderr, done.stderr


def epilog(folder: Path) -> str:
    path = folder / "epilog.sh"
    path.write_text(
        f'echo "$MUSTER_RECOMMENDATION $MUSTER_RECOMMENDATION_STAGE $MUSTER_CAUSE" >{folder}/new; '
        f"mv {folder}/new {folder}/told"
    )
    return str(path)


def test_the_epilog_reads_it(shared: Daemon, tmp_path: Path) -> None:
    (tmp_path / "said").write_text(SAID["ecc"][1])
    for attempt in range(20):  # the daemon has 2 s for it, which a busy machine may not give it
        job_id = f"epilog-{attempt}"
        shared.run("sh", "-c", f"cat {tmp_path / 'said'} >&2; exit 1", job_id=job_id, epilog=epilog(tmp_path))
        job = shared.explained(job_id)
        assert action(job) == ELSEWHERE and len(explained(shared, job_id)) == 1
        told = (tmp_path / "told").read_text()
        if told != f"{FAIL} early \n":
            break
    assert told == f"{ELSEWHERE} explained {job.verdict.cause}\n"


def test_without_a_daemon_the_epilog_has_that_of_the_supervisor(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "said").write_text(SAID["ecc"][1])
    command = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; cat {tmp_path}/said >&2; exit 1"
    daemon.run("sh", "-c", command, job_id="x", epilog=epilog(tmp_path))
    daemon.until_running("x")
    daemon.kill()
    (tmp_path / "go").touch()
    eventually((tmp_path / "told").exists)
    assert (tmp_path / "told").read_text() == f"{FAIL} early \n"


def test_the_epilog_does_not_wait_for_long(daemon: Daemon, tmp_path: Path) -> None:
    """For a daemon that is there and says nothing."""
    command = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 1"
    daemon.run("sh", "-c", command, job_id="x", epilog=epilog(tmp_path))
    daemon.until_running("x")
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        (tmp_path / "go").touch()
        eventually((tmp_path / "told").exists)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert (tmp_path / "told").read_text() == f"{FAIL} early \n"


def test_a_job_that_did_not_fail_has_no_explanation(shared: Daemon) -> None:
    shared.run("true", job_id="fine")
    job = shared.wait("fine")
    assert (action(job), job.verdict.explained, job.verdict.cause) == ("NONE", True, "")
    assert explained(shared, "fine") == []


def test_it_survives_the_daemon_and_is_reported_once(daemon: Daemon, tmp_path: Path) -> None:
    before = fails(daemon, tmp_path, "x", SAID["ecc"][1])
    daemon.kill()
    daemon.start()
    after = daemon.get("x")
    assert (after.verdict.cause, action(after)) == (before.verdict.cause, ELSEWHERE)
    assert after.verdict.explained
    eventually(lambda: len(explained(daemon, "x")) == 1)


def test_a_daemon_that_was_killed_before_it_told_of_the_explanation(daemon: Daemon, tmp_path: Path) -> None:
    """Its successor tells of it, and no other one does again."""
    for name in ("older", "x"):
        fails(daemon, tmp_path, name, SAID["ecc"][1])
    daemon.kill()
    (segment,) = daemon.root.events.glob("*.log")
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(line for line in lines if b"job.explained" not in line))
    for _ in range(2):
        daemon.root.job("older").explained.unlink()
        daemon.start()
        eventually(partial(is_explained, daemon, "older"))  # after the newer one
        (event,) = explained(daemon, "x")
        assert event.attributes["recommendation"] == ELSEWHERE
        daemon.kill()


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
    """And the first failure, for all who read it; the job's exit code stays."""
    command = ["run", "--job-id", "raised", "--ranks", "2", "--", sys.executable, "-c", PEERS, str(tmp_path / "flag")]
    ran = shared.cli(*command)
    job = shared.explained("raised")
    verdict = job.verdict
    assert (verdict.first_failed_rank, verdict.cause_rank, verdict.exit_code) == (1, 1, 1)
    assert "layer.7.weight" in verdict.last_lines[-1] and list(verdict.victims) == []
    assert verdict.summary.startswith("rank 0 (device 0) exited with code 1")
    assert verdict.summary.endswith("; the cause is in rank 1")
    assert action(job) == FAIL
    assert "the cause is in rank 1\n" in ran.stderr and "muster: rank 1: the program raised" in ran.stderr, ran.stderr
    found = json.loads(shared.cli("why", "raised", "-o", "json").stdout)
    cause = found["cause"]
    assert (cause["rank"], cause["kind"]) == (1, "job") and "layer.7.weight" in cause["line"], cause
    assert (found["firstFailure"]["rank"], found["verdict"]["firstFailedRank"]) == (1, 1)
    page = shared.cli("why", "raised").stdout
    assert "First failure: rank 1 on device 1" in page and "before its end rank 0 exited with code 1" in page, page
    (event,) = explained(shared, "raised")
    assert event.attributes["first_failed_rank"] == "1"
    (ended,) = [event for event in shared.event_list("raised") if event.kind == "job.ended"]
    assert ended.attributes["first_failed_rank"] == "0"


#: As PEERS without Python's way out of the interpreter: attempt 0 alone fails, or every one; the second ends, or runs.
TWICE = """
import os, signal, sys, time
flag = sys.argv[1] + os.environ["MUSTER_ATTEMPT"]
if os.environ["MUSTER_ATTEMPT"] != "0" and sys.argv[2] == "once":
    sys.exit(0)
if os.environ["MUSTER_ATTEMPT"] != "0" and sys.argv[2] == "runs":
    signal.pause()
if os.environ["RANK"] == "1":
    os.write(2, b"Traceback (most recent call last):\\n  File 'a', line 1\\nOSError: [Errno 5] Input/output error\\n")
    open(flag, "w").close()
    signal.pause()
while not os.path.exists(flag):
    time.sleep(0.05)
time.sleep(0.5)
raise RuntimeError("[x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:29500")
"""


def test_an_earlier_attempt_is_blamed_while_the_next_one_runs(daemon: Daemon, tmp_path: Path) -> None:
    """By another daemon, too."""
    command = ("start", "--job-id", "x", "--ranks", "2", "--max-restarts", "1", "--restart-backoff", "10ms", "--")
    daemon.cli(*command, sys.executable, "-c", TWICE, str(tmp_path / "flag"), "runs")

    def blamed() -> bool:
        job = daemon.get("x")
        return [attempt.first_failed_rank for attempt in job.past_attempts] == [1]

    eventually(blamed)
    eventually(lambda: daemon.get("x").state == job_pb2.JOB_STATE_RUNNING)
    daemon.kill()
    daemon.start()
    eventually(blamed)
    assert daemon.get("x").state == job_pb2.JOB_STATE_RUNNING
    assert "; the cause is in rank 1\n" in daemon.cli("status", "x").stdout


@pytest.mark.parametrize("how", ["once", "always"])
def test_an_earlier_attempt_is_blamed_as_the_last_one_is(daemon: Daemon, tmp_path: Path, how: str) -> None:
    """For all who read it, whether the job succeeded in the end or not, and after the daemon."""
    command = ("run", "--job-id", "x", "--ranks", "2", "--max-restarts", "1", "--restart-backoff", "10ms", "--")
    daemon.cli(*command, sys.executable, "-c", TWICE, str(tmp_path / "flag"), how)
    summary = "rank 0 (device 0) exited with code 1; 1 other rank was stopped; the cause is in rank 1"

    def blamed() -> bool:
        (attempt,) = daemon.get("x").past_attempts
        return (attempt.first_failed_rank, attempt.summary) == (1, summary)

    eventually(blamed)
    daemon.kill()
    if how == "once":
        daemon.root.job("x").explained.unlink(missing_ok=True)  # it may have died before that was on disk
    daemon.start()
    eventually(blamed)
    (told,) = json.loads(daemon.cli("why", "x", "-o", "json").stdout)["pastAttempts"]
    assert (told["firstFailedRank"], told["summary"], told["cause"]["signature"]) == (1, summary, "io-error")
    assert f"  0: code 1: {summary}\n" in daemon.cli("why", "x").stdout
    assert f"code 1: {summary}\n" in daemon.cli("status", "x").stdout
    eventually(lambda: len(explained(daemon, "x")) == (how == "always"))


def test_a_job_that_is_removed_at_once_has_its_explanation_among_the_events(shared: Daemon, tmp_path: Path) -> None:
    (tmp_path / "said").write_text(SAID["ecc"][1])
    for attempt in range(5):  # the daemon has 10 s to explain it, which a busy machine may not give it
        job_id = f"brief-{attempt}"
        shared.run("sh", "-c", f"cat {tmp_path}/said >&2; exit 1", job_id=job_id)
        eventually(partial(removed, shared, job_id))
        (event,) = explained(shared, job_id)
        if event.message != "the job was removed before its cause was known":
            break
    assert event.attributes["recommendation"] == ELSEWHERE


def removed(daemon: Daemon, job_id: str) -> bool:
    return daemon.cli("rm", job_id).returncode == 0


def times_explained(daemon: Daemon, job_id: str, times: int) -> bool:
    return len(explained(daemon, job_id)) == times


def test_a_job_of_the_same_name_is_explained_as_well(shared: Daemon, tmp_path: Path) -> None:
    """The first one would be looked at again for more than a minute."""
    for number, (which, expected) in enumerate((("ecc", ELSEWHERE), ("port", HERE)), 1):
        fails(shared, tmp_path, "again", SAID[which][1])
        eventually(partial(times_explained, shared, "again", number))
        assert explained(shared, "again")[-1].attributes["recommendation"] == expected
        assert action(shared.get("again")) == expected
        eventually(partial(removed, shared, "again"))
