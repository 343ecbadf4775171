"""A nursery whose limit of descriptors somebody lowers, below what it has open: every job still gets a supervisor, none
loses a rank, an end or a byte."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.probes.checks import ulimits
from muster.v1 import job_pb2
from tests.conftest import BIN, Daemon, alive, eventually, let_through

#: Lower than what a nursery has open.
FEW = 8
NOBODY = 65534


def lower(daemon: Daemon, pid: int, soft: int, hard: int) -> None:
    """As the daemon's user: another one needs a capability for it, root as well."""
    *prefix, _ = daemon.musterd
    values = f"--nofile={soft}:{hard}"
    subprocess.run([*prefix, "prlimit", "--pid", str(pid), values], check=True, timeout=60)


def limit_of(pid: int) -> int:
    return ulimits.of_process(pid)[resource.RLIMIT_NOFILE][0]


def left_of(daemon: Daemon) -> list[int]:
    """Processes that have its folder on their command line: the nursery, and what it has forked."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                if os.fsencode(daemon.folder) in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
    return found


def kill_supervisor(daemon: Daemon, job_id: str) -> int:
    """Returns its successor."""
    before = daemon.supervisor_pid(job_id)
    os.kill(before, signal.SIGKILL)
    pid: int = eventually(lambda: (pid := daemon.supervisor_pid(job_id)) != before and pid, message="a successor")
    return pid


@pytest.fixture(params=["root", "root without capabilities", "another user"])
def limited(request: pytest.FixtureRequest, make_daemon: Callable[..., Daemon]) -> Daemon:
    """A daemon that may raise a hard limit again (if the tests may), and two that may not."""
    if not shutil.which("prlimit"):
        pytest.skip("needs prlimit(1)")
    daemon = make_daemon()
    if request.param == "root":
        if os.geteuid():
            pytest.skip("only root may raise a hard limit")
        return daemon
    if os.geteuid():
        if request.param == "another user":
            pytest.skip("the tests run as another user than root anyway")
        return daemon
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv")
    who: tuple[str, ...] = ("--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource")
    if request.param == "another user":
        who = ("--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--inh-caps", "-all")
        again = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', ''])"
        if subprocess.run([setpriv, *who, BIN / "python", "-c", again], capture_output=True, check=False).returncode:
            pytest.skip("this interpreter cannot be run by another user")
    eventually(daemon.nursery_pid)  # a daemon answers before its nursery does
    daemon.kill()
    # Without job and daemon they end by themselves; until then they make and remove files.
    eventually(lambda: not left_of(daemon))
    if request.param == "another user":
        let_through(daemon.folder)
        for path in (daemon.folder, *daemon.folder.rglob("*")):
            if path != daemon.stderr:
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    daemon.musterd = (setpriv, *who, BIN / "musterd")
    return daemon.start()


@pytest.mark.slow
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
def test_a_killed_supervisor_gets_a_successor_that_works(limited: Daemon, hard: bool) -> None:
    daemon = limited
    script = "while [ ! -e go ]; do echo line; sleep 0.05; done; echo last; exit 7"
    daemon.run("sh", "-c", script, job_id="job")
    daemon.until_running("job")
    nursery = daemon.nursery_pid()
    before = limit_of(nursery)
    lower(daemon, nursery, FEW, FEW if hard else before)
    successor = kill_supervisor(daemon, "job")
    assert limit_of(successor) == before
    daemon.run("true", job_id="next")
    assert daemon.wait("next").state == job_pb2.JOB_STATE_SUCCEEDED
    (daemon.root.job("job").workspace / "device0" / "go").touch()
    job = daemon.wait("job")
    assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 7), job
    assert daemon.output(job).endswith(b"last\n") and job.ranks[0].lost_log_bytes == 0
    eventually(lambda: "limit of open files" in daemon.root.nursery_log.read_text())
    eventually(lambda: "limit of open files" in daemon.stderr.read_text())
    # The one that had to step aside ends with the last of its ranks.
    eventually(lambda: not alive(nursery) or limit_of(nursery) == before)


@pytest.mark.slow
def test_an_end_while_there_is_no_supervisor_is_kept(limited: Daemon) -> None:
    """By the nursery that steps aside: it is the parent of the rank by then, and nobody else may read a 0."""
    daemon = limited
    daemon.run("sh", "-c", "while [ ! -e go ]; do sleep 0.05; done", job_id="job")
    daemon.until_running("job")
    rank, supervisor, nursery = daemon.rank_pid("job"), daemon.supervisor_pid("job"), daemon.nursery_pid()
    lower(daemon, nursery, FEW, FEW)
    os.kill(nursery, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    (daemon.root.job("job").workspace / "device0" / "go").touch()
    eventually(lambda: not alive(rank))
    os.kill(nursery, signal.SIGCONT)
    job = daemon.wait("job")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job
    eventually(lambda: not Path(f"/proc/{rank}").exists(), message="it is waited for")


@pytest.mark.slow
def test_who_stepped_aside_ends_with_its_jobs_though_nobody_answers(limited: Daemon) -> None:
    daemon = limited
    daemon.run("sleep", "3600", job_id="job")
    daemon.until_running("job")
    nursery = daemon.nursery_pid()
    lower(daemon, nursery, FEW, FEW)
    kill_supervisor(daemon, "job")
    successor = daemon.nursery_pid()
    if successor == nursery:
        return  # it could raise its limit
    os.kill(nursery, signal.SIGSTOP)
    assert daemon.stop("job", grace_s=1).ended
    daemon.kill()
    with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
        os.kill(successor, signal.SIGKILL)
    os.kill(nursery, signal.SIGCONT)
    eventually(lambda: not alive(nursery))


@pytest.mark.slow
def test_a_job_that_has_no_supervisor_yet_starts_and_can_be_stopped(limited: Daemon) -> None:
    daemon = limited
    daemon.run("sleep", "3600", job_id="one")
    daemon.until_running("one")
    lower(daemon, daemon.nursery_pid(), FEW, FEW)
    daemon.run("sleep", "3600", job_id="two")
    daemon.until_running("two")
    for name in ("two", "one"):
        pid = daemon.rank_pid(name)
        assert daemon.stop(name, grace_s=1).ended
        assert not alive(pid)
        assert daemon.get(name).state == job_pb2.JOB_STATE_STOPPED


@pytest.mark.slow
def test_a_daemon_that_comes_later_finds_a_way_in(limited: Daemon) -> None:
    daemon = limited
    daemon.run("sleep", "3600", job_id="job")
    daemon.until_running("job")
    pid = daemon.rank_pid("job")
    lower(daemon, daemon.nursery_pid(), FEW, FEW)
    daemon.kill()
    os.kill(daemon.supervisor_pid("job"), signal.SIGKILL)
    daemon.start()
    eventually(lambda: daemon.supervisor_pid("job"), 60)
    assert daemon.cli("stop", "job", "--grace", "1s").returncode == 0
    assert not alive(pid)


@pytest.mark.slow
def test_a_supervisor_that_cannot_work_within_its_limit_leaves_the_job_to_a_successor(limited: Daemon) -> None:
    daemon = limited
    daemon.run("sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; exit 7", job_id="job")
    daemon.until_running("job")
    supervisor = daemon.supervisor_pid("job")
    lower(daemon, supervisor, 3, 3)
    (daemon.root.job("job").workspace / "device0" / "go").touch()
    job = daemon.wait("job")
    assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 7), job
    assert job.ranks[0].outcome == job_pb2.RANK_OUTCOME_EXITED
