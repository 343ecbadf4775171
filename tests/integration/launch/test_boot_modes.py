"""Boot modes with real launchers and a real daemon; several nodes are several daemons on this machine."""

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.v1 import job_pb2
from tests import mpi_rank, sshd
from tests.conftest import BIN, Daemon, alive, eventually
from tests.integration import cable
from tests.ports import claim, free_port

pytestmark = pytest.mark.timeout(300)

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs PyTorch: pip install -r examples/ddp/requirements.txt"
)
needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun: apt install openmpi-bin")
needs_sshd = pytest.mark.skipif(bool(sshd.missing()), reason=sshd.missing())

DDP = Path(__file__).parents[3] / "examples" / "ddp" / "train_ddp.py"
#: All ranks are on this machine, whatever its name resolves to.
LOOPBACK = {"PATH": f"{BIN}:/usr/bin:/bin", "GLOO_SOCKET_IFNAME": "lo"}
NODES = ["127.0.0.2", "127.0.0.3"]
SUCCEEDED, FAILED = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED


def script(folder: Path, text: str, name: str = "train.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def said(node: Daemon, job: Any) -> str:
    return "\n".join(node.output(job, place).decode(errors="replace") for place in range(len(job.ranks)))


def on_two_nodes(
    make_daemon: Callable[..., Daemon], command: list[str], boot: str, **fields: Any
) -> tuple[list[Daemon], list[Any]]:
    """The daemons, and the jobs as they ended."""
    nodes = [make_daemon() for _ in NODES]
    common: dict[str, Any] = {"nodes": NODES, "master_addr": "127.0.0.1", "master_port": free_port()} | fields
    for rank, node in enumerate(nodes):
        node.run(*command, job_id="wide", boot=boot, node_rank=rank, **common)
    return nodes, [node.wait("wide", 240) for node in nodes]


# --- torchrun ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("interpreter", [(), ("python",), (sys.executable,), ("python", "-u")])
def test_torchrun_on_one_node(daemon: Daemon, interpreter: tuple[str, ...]) -> None:
    daemon.run(*interpreter, str(DDP), "--steps", "3", job_id="ddp", boot="torchrun", ranks=2, env=LOOPBACK)
    job = daemon.wait("ddp", 240)
    assert job.state == SUCCEEDED, said(daemon, job)
    assert "ddp ok world=2" in said(daemon, job)
    (launcher,) = job.ranks
    assert launcher.role == "launcher"
    assert list(launcher.command[:4]) == ["torchrun", "--standalone", "--nnodes=1", "--nproc_per_node=2"]


@pytest.mark.slow
@needs_torch
@pytest.mark.torch
def test_torchrun_on_two_nodes(make_daemon: Callable[..., Daemon]) -> None:
    nodes, jobs = on_two_nodes(
        make_daemon, ["python", str(DDP), "--steps", "3"], "torchrun", env=LOOPBACK, ranks=2, nodes=[], node_count=2
    )
    assert [job.state for job in jobs] == [SUCCEEDED] * 2, said(nodes[0], jobs[0]) + said(nodes[1], jobs[1])
    assert "ddp ok world=4" in said(nodes[0], jobs[0])
    sums = re.findall(r"rank \d parameters (\S+)", said(nodes[0], jobs[0]) + said(nodes[1], jobs[1]))
    assert len(sums) == 4
    assert len(set(sums)) == 1


@needs_torch
@pytest.mark.torch
def test_a_rank_of_torchrun_that_fails(daemon: Daemon, tmp_path: Path) -> None:
    fails = script(tmp_path, "import os, sys\nsys.exit(7 if os.environ['RANK'] == '1' else 0)\n")
    daemon.run(fails, job_id="bad", boot="torchrun", ranks=2, env=LOOPBACK)
    job = daemon.wait("bad", 240)
    assert (job.state, job.verdict.exit_code) == (FAILED, 1), "torchrun's own code"
    assert "exitcode  : 7" in said(daemon, job)


@pytest.mark.parametrize(
    ("boot", "program", "package"),
    [("torchrun", "torchrun", "pip install torch"), ("msrun", "msrun", "pip install 'mindspore>=2.3'")],
)
def test_a_launcher_that_is_not_installed(
    daemon: Daemon, tmp_path: Path, boot: str, program: str, package: str
) -> None:
    daemon.run("train.py", job_id="none", boot=boot, env={"PATH": str(tmp_path)})
    job = daemon.wait("none")
    assert (job.state, job.verdict.exit_code) == (FAILED, 127)
    assert f"{program}: not found" in job.verdict.summary
    assert package in job.verdict.summary


# --- command ----------------------------------------------------------------------------------------------------------

#: As in the platform's guide for custom images: its variables alone say which node this is, and how many cards it has.
TORCHRUN_SH = """
MASTER_ADDR="${VC_WORKER_HOSTS%%,*}"
NNODES="$MA_NUM_HOSTS"
NODE_RANK="$VC_TASK_INDEX"
NGPUS_PER_NODE="$MA_NUM_GPUS"
CMD="python -m torch.distributed.run --nnodes=$NNODES --node_rank=$NODE_RANK --nproc_per_node=$NGPUS_PER_NODE \\
    --rdzv_id=1234 --rdzv_backend=static --master_addr=$MASTER_ADDR --master_port=$PORT $SCRIPT --steps 3"
echo $CMD
$CMD
"""


def test_the_command_once_per_node_with_the_platforms_variables(daemon: Daemon, tmp_path: Path) -> None:
    names = "MA_NUM_GPUS MA_NUM_HOSTS VC_TASK_INDEX VC_WORKER_NUM VC_WORKER_HOSTS NODE_RANK NNODES MASTER_ADDR"
    main = script(tmp_path, f'for name in {names}; do echo "$name=${{!name}}"; done; exit 5\n', "main.sh")
    fields: dict[str, Any] = {
        "nodes": ["node-0", "node-1"],
        "node_rank": 1,
        "master_addr": "127.0.0.1",
        "master_port": free_port(),
    }
    daemon.run("bash", main, job_id="once", boot="command", ranks=4, **fields)
    job = daemon.wait("once")
    assert (job.state, job.verdict.exit_code) == (FAILED, 5)
    (only,) = job.ranks
    assert only.role == "launcher"
    assert said(daemon, job).splitlines() == [
        "MA_NUM_GPUS=4",
        "MA_NUM_HOSTS=2",
        "VC_TASK_INDEX=1",
        "VC_WORKER_NUM=2",
        "VC_WORKER_HOSTS=node-0,node-1",
        "NODE_RANK=1",
        "NNODES=2",
        "MASTER_ADDR=127.0.0.1",
    ]
    log = daemon.root.worker_log("once", 1)
    eventually(lambda: log.exists() and b"MASTER_ADDR=127.0.0.1\n" in log.read_bytes(), 60, "the worker log has it all")


def test_a_short_standalone_run_has_its_whole_worker_log_and_no_audit_log(tmp_path: Path) -> None:
    run = [str(BIN / "muster"), "run", "--standalone", "--skip-check", "--log-dir", str(tmp_path), "--per-node"]
    done = subprocess.run([*run, "--", "echo", "short"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.glob("*-worker-0.log")
    assert "short" in log.read_text().splitlines()
    assert not list(tmp_path.glob("audit*"))


def test_per_node_is_the_mode_command(tmp_path: Path) -> None:
    run = [str(BIN / "muster"), "run", "--standalone", "--skip-check", "--ranks", "3", "--per-node"]

    def said_by(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*run, *words], capture_output=True, text=True, timeout=120, check=False)

    done = said_by("--", "sh", "-c", "echo $MA_NUM_GPUS")
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    done = said_by("--boot", "ranks", "--", "true")
    assert done.returncode == 2 and "--per-node is --boot command" in done.stderr


@needs_torch
@pytest.mark.torch
def test_the_platforms_torchrun_script(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    main = script(tmp_path, TORCHRUN_SH, "torchrun.sh")
    env = LOOPBACK | {"PORT": str(free_port(NODES[0])), "SCRIPT": str(DDP)}
    nodes, jobs = on_two_nodes(make_daemon, ["bash", main], "command", ranks=2, env=env)
    assert [job.state for job in jobs] == [SUCCEEDED] * 2, said(nodes[0], jobs[0]) + said(nodes[1], jobs[1])
    assert "ddp ok world=4" in said(nodes[0], jobs[0])


# --- pytorch ----------------------------------------------------------------------------------------------------------

INIT_METHOD = """
import argparse, datetime, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--factor", type=int)
parser.add_argument("--init_method")
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--world_size", type=int, default=1)
args = parser.parse_args()
dist.init_process_group("gloo", init_method=args.init_method, rank=args.rank, world_size=args.world_size,
                        timeout=datetime.timedelta(seconds=60))
total = torch.tensor([args.factor * (args.rank + 1)])
dist.all_reduce(total)
print(f"rank {args.rank} of {args.world_size}: total {int(total)}", flush=True)
dist.destroy_process_group()
"""


@needs_torch
@pytest.mark.torch
def test_pytorch_on_one_node(daemon: Daemon, tmp_path: Path) -> None:
    daemon.run(script(tmp_path, INIT_METHOD), "--factor", "5", job_id="ddp", boot="pytorch", ranks=2, env=LOOPBACK)
    job = daemon.wait("ddp", 240)
    assert job.state == SUCCEEDED, said(daemon, job)
    assert "rank 0 of 1: total 5" in said(daemon, job)


@pytest.mark.slow
@needs_torch
@pytest.mark.torch
def test_pytorch_on_two_nodes(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    command = ["python", script(tmp_path, INIT_METHOD), "--factor", "5"]
    nodes, jobs = on_two_nodes(make_daemon, command, "pytorch", env=LOOPBACK)
    assert [job.state for job in jobs] == [SUCCEEDED] * 2, said(nodes[0], jobs[0]) + said(nodes[1], jobs[1])
    for rank, (node, job) in enumerate(zip(nodes, jobs, strict=True)):
        assert f"rank {rank} of 2: total 15" in said(node, job)


# --- tensorflow -------------------------------------------------------------------------------------------------------

#: As TensorFlow's own: each task binds its own address; a worker needs all parameter servers, which never end.
PS_WORKER = """
import argparse, os, socket, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--fail", type=int, default=-1)
parser.add_argument("--task_index", type=int)
parser.add_argument("--ps_hosts")
parser.add_argument("--worker_hosts")
parser.add_argument("--job_name", choices=["ps", "worker"])
args = parser.parse_args()
ps_hosts, workers = ([(h.rpartition(":")[0], int(h.rpartition(":")[2])) for h in hosts.split(",")]
                     for hosts in (args.ps_hosts, args.worker_hosts))
assert os.environ["MA_TASK_NAME"] == args.job_name and os.environ["TF_PS_HOSTS"] == args.ps_hosts
if args.job_name == "ps":
    with socket.create_server(ps_hosts[args.task_index]) as server:
        here = {}
        while len(here) < len(workers):
            sock = server.accept()[0]
            here[int(sock.recv(8))] = sock
        # To our own worker last: we are ended once it has ended.
        for index in sorted(here, key=lambda index: index == args.task_index):
            here[index].sendall(b"%d" % args.task_index)
        print("ps served", flush=True)
        while True:
            time.sleep(1000)
if args.task_index == args.fail:
    sys.exit(9)
if args.fail >= 0:
    time.sleep(1000)
with socket.create_server(workers[args.task_index]):
    served = []
    for address in ps_hosts:
        for attempt in range(1200):
            try:
                sock = socket.create_connection(address)
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        sock.sendall(b"%d" % args.task_index)
        served.append(sock)
    print("worker", args.task_index, "was served by ps", [int(sock.recv(8)) for sock in served], flush=True)
"""


def two_tf_ports() -> int:
    """A port for the parameter servers, whose successor is the workers', in ModelArts' range and free on both nodes."""
    for port in range(5000, 10000, 2):
        if claim(port, *NODES) and claim(port + 1, *NODES):
            return port
    raise AssertionError("no port is free")


def test_a_command_starts_its_own_ranks(daemon: Daemon) -> None:
    """Once, whatever the number of ranks, and with nothing in its environment that says it is one of them."""
    starts = 'echo "$# $1 RANK=$RANK"; for rank in 0 1; do RANK=$rank sh -c \'echo "rank $RANK"\'; done; exit 3'
    daemon.run("sh", "-c", starts, "sh", "a b", job_id="own", boot="command", ranks=2)
    job = daemon.wait("own")
    assert (job.state, job.verdict.exit_code, len(job.ranks), job.ranks[0].role) == (FAILED, 3, 1, "launcher")
    assert said(daemon, job) == "1 a b RANK=\nrank 0\nrank 1\n"


def test_tensorflow_on_two_nodes(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    command = [sys.executable, script(tmp_path, PS_WORKER)]
    port = two_tf_ports()
    nodes, jobs = on_two_nodes(make_daemon, command, "tensorflow", master_port=port)
    assert [job.state for job in jobs] == [SUCCEEDED] * 2, said(nodes[0], jobs[0]) + said(nodes[1], jobs[1])
    for rank, (node, job) in enumerate(zip(nodes, jobs, strict=True)):
        assert [place.role for place in job.ranks] == ["ps", "worker"]
        assert f"worker {rank} was served by ps [0, 1]" in node.output(job, 1).decode()
        assert f"127.0.0.2:{port},127.0.0.3:{port}" in job.ranks[0].command
        assert not alive(job.ranks[0].pid), "the parameter server is ended with the job"


def test_a_worker_of_tensorflow_that_fails_ends_its_parameter_server(
    make_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    nodes = [make_daemon() for _ in NODES]
    port = two_tf_ports()
    for rank, node in enumerate(nodes):
        node.run(sys.executable, script(tmp_path, PS_WORKER), "--fail", "1", job_id="wide", boot="tensorflow",
                 nodes=NODES, node_rank=rank, master_port=port)  # fmt: skip
    job = nodes[1].wait("wide", 240)
    assert (job.state, job.verdict.exit_code) == (FAILED, 9), said(nodes[1], job)
    assert nodes[0].until_running("wide").state == job_pb2.JOB_STATE_RUNNING, "each node knows of its own tasks"


def test_tensorflow_on_one_node_is_the_boot_file_alone(daemon: Daemon, tmp_path: Path) -> None:
    path = script(tmp_path, "import sys; print(sys.argv[1:])")
    daemon.run(path, "--x", "1", job_id="tf", boot="tensorflow", ranks=4, env={"MA_SCRIPT_INTERPRETER": sys.executable})
    job = daemon.wait("tf")
    assert job.state == SUCCEEDED
    assert said(daemon, job) == "['--x', '1']\n"


# --- mpi --------------------------------------------------------------------------------------------------------------

RANK = mpi_rank.__file__


@needs_mpirun
@pytest.mark.system
@pytest.mark.parametrize("code", [0, 7])
def test_mpi_on_one_node(daemon: Daemon, code: int) -> None:
    daemon.run(sys.executable, RANK, str(code), job_id="mpi", boot="mpi", ranks=3, env=mpi_rank.AWKWARD)
    job = daemon.wait("mpi", 120)
    assert job.verdict.exit_code == code, said(daemon, job)
    assert "all 3 ranks met, on 1 nodes, the environment whole" in said(daemon, job)
    (lead,) = job.ranks
    assert (lead.role, " lead " in " ".join(lead.command), "mpirun" in lead.command) == ("mpi-lead", True, True)


@pytest.mark.slow
@needs_mpirun
@needs_sshd
@pytest.mark.system
@pytest.mark.parametrize("code", [0, 7])
def test_mpi_on_two_nodes(make_daemon: Callable[..., Daemon], tmp_path: Path, code: int) -> None:
    with sshd.running(tmp_path / "ssh", NODES) as (port, agent):
        env = mpi_rank.AWKWARD | {"SSHD_PORT": str(port), "OMPI_MCA_plm_rsh_agent": str(agent)}
        nodes, jobs = on_two_nodes(make_daemon, [sys.executable, RANK, str(code)], "mpi", ranks=2, env=env)
    expected = SUCCEEDED if code == 0 else FAILED
    assert [job.state for job in jobs] == [expected] * 2, said(nodes[0], jobs[0]) + said(nodes[1], jobs[1])
    assert [job.verdict.exit_code for job in jobs] == [code] * 2
    assert [job.ranks[0].role for job in jobs] == ["mpi-lead", "mpi-wait"]
    if code:
        blamed = f"failed on node 0 ({NODES[0]}): mpirun ended with code {code}"
        assert jobs[1].verdict.summary == blamed
        assert blamed in nodes[1].cli("why", "wide").stdout
    assert "all 4 ranks met, on 2 nodes, the environment whole" in said(nodes[0], jobs[0])


@pytest.mark.slow
@needs_mpirun
@needs_sshd
@pytest.mark.system
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stop_on_any_node_ends_all_of_an_mpi_job(
    make_daemon: Callable[..., Daemon], tmp_path: Path, stopped: int
) -> None:
    nodes = [make_daemon() for _ in NODES]

    def all_said() -> str:
        return said(nodes[0], nodes[0].get("wide"))

    with sshd.running(tmp_path / "ssh", NODES) as (port, agent):
        env = mpi_rank.AWKWARD | {"SSHD_PORT": str(port), "OMPI_MCA_plm_rsh_agent": str(agent)}
        fields: dict[str, Any] = {"nodes": NODES, "ranks": 2, "env": env, "boot": "mpi", "job_id": "wide"}
        master_port = free_port()
        for rank, node in enumerate(nodes):
            node.run(sys.executable, RANK, "stay", node_rank=rank, master_port=master_port, **fields)
        eventually(lambda: "all 4 ranks met" in all_said(), 240, all_said)
        pids = [int(pid) for pid in re.findall(r"^pid (\d+)$", all_said(), re.M)]
        assert len(pids) == 4
        nodes[stopped].stop("wide", grace_s=60)
        jobs = [node.wait("wide", 120) for node in nodes]
        eventually(lambda: not any(alive(pid) for pid in pids), 60, "no rank is left on any node")
    assert jobs[stopped].state == job_pb2.JOB_STATE_STOPPED
    other = jobs[1 - stopped]
    assert other.state == FAILED
    assert other.verdict.summary == f"stopped on node {stopped} ({NODES[stopped]})"
    assert other.verdict.recommendation == job_pb2.RECOMMENDATION_NONE
    if stopped == 0:
        assert other.verdict.exit_code == 128 + signal.SIGTERM


@pytest.mark.parametrize("told", ["failed", "stopped"])
def test_node_0_hears_why_another_node_ended_an_mpi_job(daemon: Daemon, tmp_path: Path, told: str) -> None:
    """By a service that ends, or a stop that somebody asks for. Node 0 is played by the test."""
    with socket.create_server(("127.0.0.1", 0)) as node_0:
        daemon.run("train.py", job_id="wide", boot="mpi", nodes=NODES, node_rank=1, master_addr="127.0.0.1",
                   master_port=node_0.getsockname()[1],
                   services=[f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"])  # fmt: skip
        node_0.settimeout(60)
        with node_0.accept()[0] as sock, sock.makefile("rw") as lines:
            assert lines.readline() == "muster-mpi 1 wide 1\n"
            lines.write("welcome\n")
            lines.flush()
            eventually(lambda: "has reported to node 0" in said(daemon, daemon.get("wide")))
            if told == "stopped":
                daemon.stop("wide", grace_s=60)
            else:
                (tmp_path / "go").touch()
            assert lines.readline() == f"{told}\n"
    daemon.wait("wide")


@pytest.mark.slow
@needs_mpirun
@needs_sshd
@pytest.mark.system
def test_muster_starts_the_sshd_of_an_mpi_job(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    """With the configuration of the image, as run_mpi.sh: its port is the job's, and it ends with the job."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    nodes, port, master_port = [make_daemon('[jobs]\nmpi_sshd = "always"\n') for _ in NODES], free_port(), free_port()
    for rank, node in enumerate(nodes):
        folder = tmp_path / str(rank) / "etc" / "ssh"
        folder.mkdir(parents=True)
        (folder / "sshd_config").write_text(
            f"Port {{{{MY_SSHD_PORT}}}}\nListenAddress {NODES[rank]}\nHostKey {key}\nAuthorizedKeysFile {key}.pub\n"
            "StrictModes no\nUsePAM no\nMaxStartups 100\n"
        )
        agent = {"OMPI_MCA_plm_rsh_agent": f"ssh -i {key}", "MY_HOME": str(tmp_path / str(rank))}
        node.run(sys.executable, RANK, "stay" if rank else "0", job_id="wide", boot="mpi", node_rank=rank, nodes=NODES,
                 ranks=2, master_port=master_port, env=mpi_rank.AWKWARD | agent | {"SSHD_PORT": str(port)})  # fmt: skip
    jobs = [node.wait("wide", 240) for node in nodes]
    assert [job.state for job in jobs] == [SUCCEEDED] * 2, said(nodes[0], jobs[0]) + said(nodes[1], jobs[1])
    assert "all 4 ranks met, on 2 nodes, the environment whole" in said(nodes[0], jobs[0])
    for node, job in zip(nodes, jobs, strict=True):
        (service,) = job.services
        assert service.role == "sshd of muster"
        assert not alive(service.pid)
        assert "Accepted publickey" in node.cli("logs", "wide", "--service", "0").stdout


@needs_mpirun
@needs_sshd
def test_an_sshd_without_keys_says_what_is_missing(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    node = make_daemon('[jobs]\nmpi_sshd = "always"\n')
    node.run("train.py", job_id="wide", boot="mpi", nodes=NODES, master_port=free_port(),
             env={"HOME": str(tmp_path), "SSHD_PORT": str(free_port())})  # fmt: skip
    job = node.wait("wide")
    assert (job.state, job.verdict.exit_code) == (FAILED, 1)
    assert "service 0 (sshd of muster) exited with code 1; no rank was started" in job.verdict.summary
    assert f"ssh-keygen -N '' -f {tmp_path}/.ssh/id_ed25519" in job.verdict.last_lines[-1]


@needs_mpirun
@pytest.mark.system
def test_mpi_without_the_program(daemon: Daemon) -> None:
    daemon.run("no-such-program", job_id="mpi", boot="mpi")
    job = daemon.wait("mpi")
    assert (job.state, job.verdict.exit_code) == (FAILED, 127)
    assert "no-such-program" in daemon.cli("why", "mpi").stdout


def test_mpi_without_mpirun(daemon: Daemon, tmp_path: Path) -> None:
    daemon.run("train.py", job_id="mpi", boot="mpi", env={"PATH": str(tmp_path)})
    job = daemon.wait("mpi")
    assert (job.state, job.verdict.exit_code) == (FAILED, 127)
    assert "apt install openmpi-bin" in said(daemon, job)


def test_an_mpi_job_whose_other_node_is_not_there(daemon: Daemon, tmp_path: Path) -> None:
    daemon.run("train.py", job_id="mpi", boot="mpi", nodes=["localhost", "no-such-node.invalid"],
               master_port=free_port(), ready_timeout={"seconds": 2}, env=stand_in(tmp_path, "mpirun"))  # fmt: skip
    job = daemon.wait("mpi")
    assert (job.state, job.verdict.exit_code) == (FAILED, 1)
    assert "node 1 (no-such-node.invalid)" in job.verdict.summary
    assert "did not come within 2 s" in job.verdict.summary
    assert job.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_ELSEWHERE
    assert any("no-such-node.invalid" in text for text in job.verdict.last_lines)


# --- msrun ------------------------------------------------------------------------------------------------------------


def stand_in(folder: Path, *names: str) -> dict[str, str]:
    """PATH of a folder with programs of these names that print what they are given."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name in names:
        path = bin_folder / name
        path.write_text('#!/bin/sh\nfor word in "$0" "$@"; do echo "<$word>"; done\n')
        path.chmod(0o755)
    return {"PATH": f"{bin_folder}:/usr/bin:/bin"}


def test_what_msrun_is_handed_over(daemon: Daemon, tmp_path: Path) -> None:
    env = stand_in(tmp_path, "msrun") | {"MSRUN_CLUSTER_TIME_OUT": "77"}
    daemon.run("python", "train.py", "--x", "a b", job_id="ms", boot="msrun", ranks=4, env=env)
    job = daemon.wait("ms")
    logs = daemon.root.log / "ms" / "msrun"
    words = [
        str(tmp_path / "bin" / "msrun"),
        *("--worker_num=4", "--local_worker_num=4", "--node_rank=0", f"--master_port={job.master_port}"),
        *(f"--log_dir={os.path.realpath(logs)}", "--join=True", "--cluster_time_out=77", "train.py", "--x", "a b"),
    ]
    assert said(daemon, job) == "".join(f"<{word}>\n" for word in words)
    assert list(job.ranks[0].command) == ["msrun", *words[1:]]


#: The folder with the programs of an environment of MindSpore's own (`make test-msrun`), or nothing.
MSRUN = os.environ.get("MUSTER_TEST_MSRUN", "") or os.path.dirname(shutil.which("msrun") or "")
MINDSPORE = """
import sys
import numpy as np
import mindspore as ms
from mindspore import ops
from mindspore.communication import get_group_size, get_rank, init
ms.set_device("CPU")
init()
total = ops.AllReduce()(ms.Tensor(np.array([get_rank() + 1], np.float32)))
print(f"rank {get_rank()} of {get_group_size()}: total {int(total.asnumpy()[0])}", flush=True)
sys.exit(int(sys.argv[1]) if get_rank() == 1 else 0)
"""


@pytest.mark.system
@pytest.mark.skipif(not MSRUN, reason="needs MindSpore (800 MB): make test-msrun")
@pytest.mark.parametrize("code", [0, 7])
def test_real_msrun_on_one_node(daemon: Daemon, tmp_path: Path, code: int) -> None:
    env = {"PATH": f"{MSRUN}:/usr/bin:/bin:/usr/sbin:/sbin"}
    daemon.run("python", script(tmp_path, MINDSPORE), str(code), job_id="ms", boot="msrun", ranks=2, env=env)
    job = daemon.wait("ms", 240)
    assert job.state == (SUCCEEDED if code == 0 else FAILED), said(daemon, job)
    worker = (daemon.root.log / "ms" / "msrun" / "worker_1.log").read_text()
    assert "rank 1 of 2: total 3" in worker


#: Two nodes with an address each, as network namespaces that a cable joins.
CABLED = ("10.98.77.1", "10.98.77.2")


@pytest.fixture
def cabled(make_daemon: Callable[..., Daemon]) -> Iterator[list[Daemon]]:
    """A daemon in each namespace. msrun asks `ip` whether the master's address is the node's own."""
    with cable.joined(CABLED) as names:
        yield [make_daemon(by=("ip", "netns", "exec", name)) for name in names]


@pytest.mark.system
@pytest.mark.skipif(not MSRUN, reason="needs MindSpore (800 MB): make test-msrun")
@pytest.mark.parametrize("table", [False, True], ids=["dynamic", "rank table"])
def test_real_msrun_on_two_nodes(cabled: list[Daemon], tmp_path: Path, table: bool) -> None:
    env = {"PATH": f"{MSRUN}:/usr/bin:/bin:/usr/sbin:/sbin"}
    fields: dict[str, Any] = {"nodes": CABLED, "ranks": 2}
    if table:
        fields = {"rank_table": str(rank_table_of(tmp_path / "table.json"))}
        env["MS_RANKTABLE_ENABLE"] = "True"
    for rank, node in enumerate(cabled):
        place = {"node_rank": rank} if not table else {}
        node.run("python", script(tmp_path, MINDSPORE), "0", job_id="wide", boot="msrun", master_port=29488,
                 env=env | {"MA_CURRENT_HOST_IP": CABLED[rank]}, **{"ranks": 0} | fields | place)  # fmt: skip
    jobs = [node.wait("wide", 240) for node in cabled]
    assert [job.state for job in jobs] == [SUCCEEDED] * 2, said(cabled[0], jobs[0]) + said(cabled[1], jobs[1])
    for rank in range(4):
        node, job = cabled[rank // 2], jobs[rank // 2]
        assert f"rank {rank} of 4: total 10" in (node.root.log / "wide" / "msrun" / f"worker_{rank}.log").read_text()
        assert f"rank {rank} of 4: total 10" in node.cli("logs", "wide").stdout
        assert any(word.startswith("--rank_table_file=") for word in job.ranks[0].command) == table


def rank_table_of(path: Path) -> Path:
    """Of two nodes with two devices each."""
    servers = []
    for node, address in enumerate(CABLED):
        ips = {str(i): f"192.98.{node}.{i + 1}" for i in range(2)}
        devices = [{"device_id": i, "device_ip": ip, "rank_id": str(2 * node + int(i))} for i, ip in ips.items()]
        servers.append({"server_id": address, "device": devices})
    path.write_text(json.dumps({"status": "completed", "version": "1.0", "server_count": "2", "server_list": servers}))
    return path


@pytest.mark.system
@pytest.mark.skipif(not MSRUN, reason="needs MindSpore (800 MB): make test-msrun")
def test_real_msrun_and_why_which_shows_the_log_of_the_failed_worker(cabled: list[Daemon], tmp_path: Path) -> None:
    fails = MINDSPORE.replace("sys.exit(", "assert get_rank() != 3, 'rank 3 gives up'; sys.exit(")
    env = {"PATH": f"{MSRUN}:/usr/bin:/bin:/usr/sbin:/sbin"}
    for rank, node in enumerate(cabled):
        node.run("python", script(tmp_path, fails), "0", job_id="wide", boot="msrun", master_port=29488, nodes=CABLED,
                 node_rank=rank, ranks=2, env=env)  # fmt: skip
    cabled[1].explained("wide")
    told = cabled[1].cli("why", "wide").stdout
    assert "msrun reports: rank 3 exited with code 1" in told
    assert "worker_3.log" in told and "rank 3 gives up" in told
    cabled[0].stop("wide", grace_s=0)


# --- folders of the fault diagnosis -----------------------------------------------------------------------------------


@pytest.mark.parametrize("boot", ["ranks", "command"])
def test_the_diagnosis_has_its_folders(daemon: Daemon, boot: str) -> None:
    writes = 'echo "$GLOG_logtostderr" > "$GLOG_log_dir/mine.$$"; test -d "$MS_RDR_PATH"'
    daemon.run("sh", "-c", writes, job_id="sick", boot=boot, ranks=2, training_mode="diagnosis")
    job = daemon.wait("sick")
    assert job.state == SUCCEEDED, said(daemon, job)
    written = list((daemon.root.log / "sick" / "mindspore" / "log").iterdir())
    assert [path.read_text() for path in written] == ["0\n"] * len(job.ranks)
