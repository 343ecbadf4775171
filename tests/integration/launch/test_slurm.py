"""`srun muster run --standalone` under a real Slurm: slurmctld, slurmd and munged of its own, on the loopback.

The cluster is that of the benchmarks: proctrack/linuxproc, so that a signal of Slurm goes to every process of the step,
and the SIGKILL behind it too; KillWait is 30 s, the default.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import slurm
from benchmarks.slurm import Cluster, NoSlurm
from tests.conftest import BIN, Daemon, eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

KILL_WAIT_S = 30.0
#: What the machine that runs the tests is like says nothing here.
FIT = """
[health]
skip = "kernel-log,storage,kernel,memory-errors,oom,disk-free,mounts,nfs,d-state,zombies,pids,file-descriptors,ib"
"""
SAVES = "trap 'sleep 1; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
DEFAULT = "echo up; exec sleep 1000"
IGNORES = "trap '' TERM; echo up; while :; do sleep 0.05; done"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    try:
        with slurm.cluster() as made:
            yield made
    except NoSlurm as error:
        pytest.skip(f"needs Slurm (apt-get install slurmctld slurmd slurm-client munge): {error}")


def cancelled(
    cluster: Cluster, script: str, cancel: Callable[[str], None], **more: str
) -> tuple[float, int, str, str, str]:
    """A job of two ranks that `cancel` is called for (with its Slurm id) once both are up; `more`: variables of srun.
    Seconds from then to its end, exit code of srun, its stdout and stderr, and muster's own log of the job."""
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        muster = [str(BIN / "muster"), "run", "--standalone", "--skip-check", "--job-id", "x", "--ranks", "2"]
        words = [slurm.find("srun") or "srun", "--mpi=none", "-n1", *muster, "--", "sh", "-c", script]
        env = {name: value for name, value in cluster.env.items() if not name.startswith("MUSTER_")}
        with subprocess.Popen(
            words,
            env=env | more | {"TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                logs = Path(folder)
                eventually(
                    lambda: len([p for p in logs.glob("*/log/x-proc-rank-*.txt") if "up" in p.read_text()]) == 2,
                    100,
                    "both ranks are up",
                )
                queue = [slurm.find("squeue") or "squeue", "-h", "-t", "RUNNING", "-o", "%i"]
                ids = subprocess.run(queue, env=env, capture_output=True, text=True, timeout=60, check=True).stdout
                began = time.monotonic()
                cancel(ids.split()[0])
                out, err = process.communicate(timeout=100)
            finally:
                process.kill()
        took = time.monotonic() - began
        (log,) = logs.glob("*/log/x-muster-0.log")
        assert not list(logs.glob("*/state")), "it has tidied up: it was not killed"
        return took, process.returncode, out, err, log.read_text()


def scancel(cluster: Cluster, *options: str) -> Callable[[str], None]:
    def call(job: str) -> None:
        subprocess.run([slurm.find("scancel") or "scancel", *options, job], env=cluster.env, timeout=60, check=True)

    return call


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code", "more"),
    [(SAVES, 0, ""), (DEFAULT, 143, ""), (IGNORES, 137, "; SIGKILL was needed")],
    ids=["saves", "default", "ignores"],
)
def test_scancel_leaves_a_verdict(cluster: Cluster, script: str, code: int, more: str) -> None:
    """Within KillWait, also where the whole grace (15 s) is needed."""
    took, ended, out, err, log = cancelled(cluster, script, scancel(cluster))
    assert took < KILL_WAIT_S
    assert ended == code, err
    assert sum("saved" in line for line in out.splitlines()) == (2 if script == SAVES else 0)
    (verdict,) = (line for line in err.splitlines() if "job x " in line)
    assert verdict.startswith("muster: job x STOPPED: stopped by ") and verdict.endswith(more)
    assert "the logs of the ranks are in" in err
    assert "Ctrl-C" not in err
    assert "STOPPED: stopped by" in log


@pytest.mark.slow
def test_sigterm_twice_as_at_a_time_limit(cluster: Cluster) -> None:
    """slurmd sends SIGTERM, SIGCONT and SIGTERM then; a real time limit takes more than a minute. Slurm 22.05 does not
    set SLURM_JOB_END_TIME yet."""

    def twice(job: str) -> None:
        for name in ("TERM", "CONT"):
            scancel(cluster, "-s", name)(job)
        scancel(cluster)(job)

    took, ended, out, err, _ = cancelled(cluster, SAVES, twice, SLURM_JOB_END_TIME=str(int(time.time())))
    assert (took < KILL_WAIT_S, ended) == (True, 0), err
    assert sum("saved" in line for line in out.splitlines()) == 2
    assert "killing" not in err
    assert "SIGTERM; Slurm's time limit was " in err, "whoever of muster's processes was the first to stop it"


def test_the_job_has_slurms_id(cluster: Cluster) -> None:
    """One muster on the step's one node; its options say nothing of the job."""
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        env = {name: value for name, value in cluster.env.items() if not name.startswith("MUSTER_")}
        muster = [str(BIN / "muster"), "run", "--standalone", "--skip-check", "-q"]
        words = [*cluster.srun("-n1", *muster), "--", "sh", "-c", "echo $MUSTER_JOB_ID $SLURM_JOB_ID $WORLD_SIZE"]
        done = subprocess.run(
            words,
            env=env | {"TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    mine, slurms, world = done.stdout.split()
    assert (mine == slurms, world) == (True, "1")


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun: apt install openmpi-bin")
def test_mpirun_in_a_step_starts_the_ranks_where_muster_says(cluster: Cluster) -> None:
    """It would ask Slurm, which knows no node by the address in the hostfile. The ranks have Slurm's variables."""
    muster = [str(BIN / "muster"), "run", "--standalone", "--skip-check", "--boot", "mpi", "--ranks", "2"]
    env = {name: value for name, value in cluster.env.items() if not name.startswith("MUSTER_")}
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        script = 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE, step $SLURM_JOB_ID.$SLURM_STEP_ID"'
        done = subprocess.run(
            [*cluster.srun("-n1", "-D", folder, *muster), "--", "sh", "-c", script],
            env=env | {"TMPDIR": folder, "XDG_STATE_HOME": folder},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = sorted(line.partition(", step ") for line in done.stdout.splitlines() if line.startswith("rank "))
    assert [rank for rank, _, _ in ranks] == ["rank 0 of 2", "rank 1 of 2"]
    assert all(step.endswith(".0") for _, _, step in ranks)


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Cluster]:
    try:
        with slurm.cluster(("bench0", "bench1")) as made:
            yield made
    except NoSlurm as error:
        pytest.skip(f"needs Slurm (apt-get install slurmctld slurmd slurm-client munge): {error}")


def on_both(cluster: Cluster, script: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """A step with one muster, and two ranks, on each of the two nodes."""
    muster = [str(BIN / "muster"), "run", "--standalone", "--skip-check", "--ranks", "2", "--", "sh", "-c", script]
    words = cluster.srun("-N2", "--ntasks-per-node=1", *options, *muster)
    env = {name: value for name, value in cluster.env.items() if not name.startswith("MUSTER_")}
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        more = {"TMPDIR": folder, "XDG_STATE_HOME": folder}
        return subprocess.run(words, env=env | more, capture_output=True, text=True, timeout=120, check=False)


def test_two_nodes_are_one_job(two_nodes: Cluster) -> None:
    done = on_both(two_nodes, 'echo "$RANK of $WORLD_SIZE, node $GROUP_RANK, at $MASTER_ADDR:$MASTER_PORT"')
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    port = lines[0].rpartition(":")[2]
    assert lines == [f"[rank {rank}] {rank} of 4, node {rank // 2}, at bench0:{port}" for rank in range(4)]


@pytest.mark.slow
def test_one_node_that_fails_ends_the_other_with_its_checkpoint(two_nodes: Cluster) -> None:
    """--kill-on-bad-exit: each muster says what happened on its node, and the exit code is that of the failure."""
    script = """
        if [ $RANK = 3 ]; then
          until [ -e $TMPDIR/0 ] && [ -e $TMPDIR/1 ] && [ -e $TMPDIR/2 ]; do sleep 0.05; done
          exit 7
        fi
        trap 'echo saved $RANK; exit 0' TERM
        touch $TMPDIR/$RANK
        while :; do sleep 0.05; done
    """
    done = on_both(two_nodes, script, "--kill-on-bad-exit=1")
    assert done.returncode == 7, done.stderr
    saved = {line for line in done.stdout.splitlines() if "saved" in line}
    assert saved == {f"[rank {rank}] saved {rank}" for rank in range(3)}
    verdicts = [line for line in done.stderr.splitlines() if line.startswith("muster: job ")]
    assert any(" FAILED: rank 3 (device 1) exited with code 7" in line for line in verdicts)
    assert any(" STOPPED: stopped by " in line for line in verdicts)


SCRIPTS = Path(__file__).parents[3] / "examples/slurm"


DRAIN, NEWER, UNDRAIN = "State=DRAIN Reason=muster: NEW", "Reason=muster: NEW", "State=UNDRAIN"


@pytest.mark.parametrize(
    ("fit", "state", "reason", "update"),
    [
        (1, "IDLE", "none", DRAIN),
        (1, "MIXED+PLANNED", "none", DRAIN),
        (0, "IDLE", "none", ""),
        (2, "IDLE", "none", ""),
        (1, "IDLE+DRAIN", "muster: NEW", ""),
        (1, "IDLE+DRAIN", "muster: OLD", NEWER),
        (1, "IDLE+DRAIN", "a new cable", ""),
        (0, "ALLOCATED+DRAIN", "muster: OLD", UNDRAIN),
        (0, "IDLE+DRAIN", "Epilog error", ""),
        (2, "IDLE+DRAIN", "muster: OLD", ""),
        (0, "IDLE+DRAIN+REBOOT_REQUESTED", "muster: OLD", ""),
        (1, "IDLE+DRAIN+REBOOT_REQUESTED", "muster: OLD", ""),
        (0, "DOWN+DRAIN", "muster: OLD", ""),
        (1, "IDLE+POWERED_DOWN", "none", ""),
    ],
)
def test_what_the_health_check_says_to_slurm(tmp_path: Path, fit: int, state: str, reason: str, update: str) -> None:
    """With stand-ins for muster and Slurm's commands."""
    programs = {
        "muster": f"echo 'muster: NEW'; exit {fit}",
        "sinfo": f"printf '%-100s%-500s\\n' '{state}' '{reason}'",
        "scontrol": f'echo "$*" >> {tmp_path}/said',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    script = (SCRIPTS / "health-check.sh").read_text().replace("/opt/muster/bin", str(tmp_path))
    (tmp_path / "health-check.sh").write_text(script)
    env = {"SLURMD_NODENAME": "n1"}
    assert subprocess.run(["/bin/sh", tmp_path / "health-check.sh"], env=env, timeout=60, check=False).returncode == 0
    said = tmp_path / "said"
    assert (said.read_text() if said.exists() else "") == (f"update NodeName=n1 {update}\n" if update else "")


@pytest.mark.slow
def test_the_health_check_drains_what_is_not_fit_and_returns_only_what_it_drained(
    cluster: Cluster, make_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    """The scripts of examples/slurm, for muster where it is installed here."""
    daemon = make_daemon(FIT)
    eventually(lambda: daemon.cli("node", "--fit").returncode == 0, 60)
    paths = []
    for name in ("health-check.sh", "prolog.sh"):
        text = (SCRIPTS / name).read_text().replace("/opt/muster/bin", str(BIN))
        paths.append(tmp_path / name)
        paths[-1].write_text(text)
    env = {name: cluster.env[name] for name in ("SLURM_CONF", "LC_ALL")} | {"SLURMD_NODENAME": "bench"}
    env["MUSTER_ADDRESS"] = daemon.address

    def ran(script: Path) -> int:
        done = subprocess.run(["/bin/sh", script], env=env, stdin=subprocess.DEVNULL, timeout=60, check=False)
        return done.returncode

    def state() -> tuple[str, str]:
        command = [slurm.find("sinfo") or "sinfo", "-h", "-N", "-n", "bench", "-o", "%T|%E"]
        said = subprocess.run(command, env=cluster.env, capture_output=True, text=True, timeout=60, check=True).stdout
        word, _, reason = said.strip().partition("|")
        # "*": slurmctld has not heard of the node for a moment; planned: idle, and a job of another test is to get it.
        return word.rstrip("*").replace("planned", "idle"), reason

    def update(*words: str) -> None:
        command = [slurm.find("scontrol") or "scontrol", "update", "NodeName=bench", *words]
        subprocess.run(command, env=cluster.env, timeout=60, check=True)

    health, prolog = paths
    eventually(lambda: (ran(health), ran(prolog), state()) == (0, 0, ("idle", "none")), 60)
    daemon.cli("check", "inject", "FS_NOT_MOUNTED")
    # A daemon that does not answer within 2 s makes the health unknown, which changes nothing: Slurm calls again.
    eventually(lambda: (ran(prolog), state()[0]) == (1, "idle"), 60, "a prolog says it by its exit code alone")
    eventually(lambda: (ran(health), state()[0]) == (0, "drained"), 60)
    drained = state()
    assert drained[1].startswith("muster: FS_NOT_MOUNTED: ")
    assert (ran(health), state()) == (0, drained)
    daemon.cli("check", "clear", "FS_NOT_MOUNTED")
    eventually(lambda: (ran(health), state()[0]) == (0, "idle"), 60)
    # What somebody else drained stays so, and an unknown health changes nothing.
    update("State=DRAIN", "Reason=a new cable")
    assert (ran(health), state()) == (0, ("drained", "a new cable"))
    update("State=RESUME")
    daemon.kill()
    assert (ran(health), ran(prolog), state()[0]) == (0, 0, "idle")
