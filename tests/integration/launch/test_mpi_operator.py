"""The pods of an MPIJob as the MPI operator makes them, each with muster as its first process: two workers with an
sshd, and the launcher, whose mpirun finds them in the operator's hostfile."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests import sshd
from tests.conftest import BIN, alive, eventually

WORKERS = ["127.0.0.2", "127.0.0.3"]
#: Says where it runs (sshd tells its own address), and leaves somebody behind.
RANK = """
set -- $SSH_CONNECTION
setsid sleep 600 <&- >&- 2>&- &
echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $3 pid $!"
[ $OMPI_COMM_WORLD_RANK != 1 ] || exit $CODE
"""

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun: apt install openmpi-bin"),
    pytest.mark.skipif(bool(sshd.missing()), reason=sshd.missing()),
]


def pod(folder: Path, role: str) -> dict[str, str]:
    """The environment of a pod."""
    folder.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "OMPI_"))}
    home = {"TMPDIR": str(folder), "XDG_STATE_HOME": str(folder / "state"), "XDG_RUNTIME_DIR": str(folder)}
    return env | home | {"K_MPI_JOB_ROLE": role, "NO_COLOR": "1"}


@contextlib.contextmanager
def workers(folder: Path) -> Iterator[tuple[list[subprocess.Popen[str]], int, Path]]:
    """Two of them, the port of their sshd, and what stands in for ssh."""
    command, port, agent = sshd.prepared(folder / "ssh", WORKERS)
    words = [
        str(BIN / "muster"),
        "run",
        "--standalone",
        "--skip-check",
        "--ranks",
        "1",
        "--grace",
        "5s",
        "--",
        *command,
    ]
    made = []
    try:
        for address in WORKERS:
            env = pod(folder / address, "worker")
            one = [*words, "-o", f"ListenAddress={address}"]
            made.append(subprocess.Popen(one, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        for address in WORKERS:
            eventually(partial(answers, address, port), message=f"the sshd of {address} listens")
        yield made, port, agent
    finally:
        for process in made:
            process.terminate()
        for process in made:
            process.communicate(timeout=60)


def answers(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=5):
        return True
    return False


def launch(folder: Path, port: int, agent: Path, code: int, attempt: int = 0) -> subprocess.CompletedProcess[str]:
    """The launcher: the operator's variables and hostfile."""
    env = pod(folder / f"launcher-{code}-{attempt}", "launcher")
    hostfile = folder / "hostfile"
    hostfile.write_text("".join(f"{address} slots=2\n" for address in WORKERS))
    env |= {
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": str(hostfile),
        "OMPI_MCA_plm_rsh_args": f"-o ConnectionAttempts=10 -p {port}",
        "OMPI_MCA_orte_set_default_slots": "2",
        # Of this machine: the tests are root, the nodes one host, and ssh needs a key that is nobody's.
        "OMPI_MCA_plm_rsh_agent": str(agent),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_plm_rsh_no_tree_spawn": "true",
        "NVIDIA_VISIBLE_DEVICES": "",
    }
    mpirun = ["mpirun", "--bind-to", "none", "-x", f"CODE={code}", "sh", "-c", RANK]
    words = [str(BIN / "muster"), "run", "--standalone", "--skip-check", "--ranks", "1", "--", *mpirun]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_an_mpi_job_in_its_pods(tmp_path: Path) -> None:
    with workers(tmp_path) as (pods, port, agent):
        done = launch(tmp_path, port, agent, 0)
        assert done.returncode == 0, done.stdout + done.stderr
        said = [line.split("rank ", 1)[1].split() for line in done.stdout.splitlines() if " on 127.0.0." in line]
        where = {int(words[0]): words[4] for words in said}
        assert where == {0: "127.0.0.2", 1: "127.0.0.2", 2: "127.0.0.3", 3: "127.0.0.3"}, done.stdout
        assert {words[2] for words in said} == {"4"}
        # Which rank was it? mpirun's report says so, and muster reads that.
        for attempt in range(5):  # on a busy machine mpirun sometimes ends before it has printed its report
            failed = launch(tmp_path, port, agent, 9, attempt)
            if "thus causing" in failed.stdout + failed.stderr:
                break
        assert failed.returncode == 9 and "rank 1" in failed.stderr, failed.stdout + failed.stderr
        # The operator removes the workers: nothing that ranks left there lives on.
        left = [int(words[6]) for words in said]
        assert any(map(alive, left))
        for process in pods:
            process.send_signal(signal.SIGTERM)
        for process in pods:
            process.communicate(timeout=60)
        eventually(lambda: not any(map(alive, left)), message="what the ranks left behind is gone")
