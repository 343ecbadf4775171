"""Jobs whose processes the program muster-spawn creates, and jobs whose processes their supervisor forks: the same."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.supervisors.launch.creation import program_start
from muster.supervisors.system import lock
from muster.v1 import job_pb2
from tests.conftest import Daemon, eventually

#: No interpreter was forked for a rank whose peak is below this.
SMALL = 9 << 20


@pytest.fixture(params=[True, False], ids=["program", "fork"])
def by_program(request: pytest.FixtureRequest) -> bool:
    """Whether the program creates the processes of this daemon's jobs."""
    if request.param and not program_start.PATH.exists():
        pytest.skip("there is no muster-spawn for this architecture")
    return bool(request.param)


@pytest.fixture
def daemon(by_program: bool, make_daemon: Callable[..., Daemon]) -> Daemon:
    return make_daemon(f"[jobs]\nspawn_program = {str(by_program).lower()}\n")


def said(daemon: Daemon) -> str:
    path = daemon.root.nursery_log
    return path.read_text() if path.exists() else ""


def test_a_gang_with_its_steps_and_a_session(by_program: bool, daemon: Daemon, tmp_path: Path) -> None:
    script = "echo $RANK in $(pwd); test $RANK = 0 && while ! test -e go; do sleep 0.01; done; exit 0"
    steps = {}
    for name in ("pre_start", "epilog"):
        steps[name] = str(tmp_path / name)
        (tmp_path / name).write_text(f"#!/bin/sh\necho from {name}\n")
        (tmp_path / name).chmod(0o755)
    daemon.run("sh", "-c", script, job_id="x", ranks=4, **steps)
    eventually(lambda: daemon.get("x").state == job_pb2.JOB_STATE_RUNNING)
    done = daemon.cli("exec", "x", "--", "sh", "-c", "echo $RANK beside")
    assert (done.returncode, done.stdout) == (0, "0 beside\n")
    daemon.cli("exec", "x", "--", "touch", "go")  # the job ends, and this session with it
    job = daemon.wait("x")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job.verdict
    for rank in job.ranks:
        folder = daemon.root.job("x").workspace / f"device{rank.device}"
        assert Path(rank.log_path).read_text() == f"{rank.rank} in {folder}\n"
        # Linux keeps the peak over an execve: that of the supervisor, where it forked the rank.
        assert (rank.usage.max_rss_bytes < SMALL) is by_program
    log = daemon.cli("logs", "x", "--job").stdout
    assert "from pre_start\n" in log and "from epilog\n" in log
    assert "forking" not in said(daemon)


def test_a_command_that_does_not_exist(by_program: bool, daemon: Daemon) -> None:
    daemon.run("no-such-program", job_id="x", ranks=2)
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 127)
    # The stop may come before the other has failed by itself.
    outcomes = {rank.outcome for rank in job.ranks}
    assert job_pb2.RANK_OUTCOME_NOT_STARTED in outcomes
    assert outcomes <= {job_pb2.RANK_OUTCOME_NOT_STARTED, job_pb2.RANK_OUTCOME_GANG_VICTIM}
    assert "no-such-program: not found in the PATH of the job's environment" in job.verdict.summary


def test_supervisors_have_the_program_that_the_nursery_opened(by_program: bool, daemon: Daemon) -> None:
    """And their ranks have not. Whatever the setting says: it may be changed while the nursery runs."""
    daemon.run("sh", "-c", "ls /proc/self/fd; exec sleep 600", job_id="x")
    eventually(lambda: daemon.get("x").state == job_pb2.JOB_STATE_RUNNING)
    log = Path(daemon.get("x").ranks[0].log_path)
    eventually(lambda: log.exists() and log.read_text().split() == ["0", "1", "2", "3"])  # 3 is the listing itself
    supervisor = lock.holder(daemon.root.job("x").lock)
    links = set()
    for fd in os.listdir(f"/proc/{supervisor}/fd"):
        with contextlib.suppress(FileNotFoundError):  # it is at work, and opens and closes others meanwhile
            links.add(os.readlink(f"/proc/{supervisor}/fd/{fd}"))
    assert (str(program_start.PATH.resolve()) in links) is program_start.PATH.exists()
    daemon.cli("stop", "x")
