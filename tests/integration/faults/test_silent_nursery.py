"""A nursery that is stopped: jobs that need a supervisor get one of another nursery, and no end is lost by it."""

import os
import signal
from pathlib import Path

import pytest

from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually

WAITS = "while [ ! -e go ]; do sleep 0.05; done; echo last; exit 7"


def go(daemon: Daemon) -> None:
    (daemon.root.job("job").workspace / "device0" / "go").touch()


def expect_exact(daemon: Daemon, nursery: int, rank: int) -> None:
    """The job's end, with the first nursery stopped; then that is continued."""
    job = daemon.wait("job")
    assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 7), job
    assert job.ranks[0].outcome == job_pb2.RANK_OUTCOME_EXITED
    assert daemon.output(job).endswith(b"last\n") and job.ranks[0].lost_log_bytes == 0
    os.kill(nursery, signal.SIGCONT)
    eventually(lambda: not Path(f"/proc/{rank}").exists(), message="it is waited for")
    eventually(lambda: not alive(nursery), message="it has nothing to do any more")


@pytest.mark.slow
@pytest.mark.parametrize("ended", [False, True], ids=["the rank lives", "the rank ends meanwhile"])
def test_its_supervisor_is_killed(daemon: Daemon, ended: bool) -> None:
    daemon.run("sh", "-c", WAITS, job_id="job")
    daemon.until_running("job")
    nursery, rank, first = daemon.nursery_pid(), daemon.rank_pid("job"), daemon.supervisor_pid("job")
    os.kill(nursery, signal.SIGSTOP)
    try:
        os.kill(first, signal.SIGKILL)
        if ended:
            go(daemon)
        eventually(lambda: daemon.supervisor_pid("job") not in (0, first) or ended, 60, "another supervisor")
        go(daemon)
        assert daemon.wait("job").state == job_pb2.JOB_STATE_FAILED
        daemon.run("true", job_id="next")
        assert daemon.wait("next").state == job_pb2.JOB_STATE_SUCCEEDED
        # A machine that stands still may make another one silent, too.
        told = [e for e in daemon.event_list() if e.kind == "node.nursery_died" and str(nursery) in e.message]
        assert len(told) == 1 and f"kill -CONT {nursery}" in told[0].message, told
    finally:
        os.kill(nursery, signal.SIGCONT)
    expect_exact(daemon, nursery, rank)


@pytest.mark.slow
def test_the_daemon_comes_later(daemon: Daemon) -> None:
    daemon.run("sh", "-c", WAITS, job_id="job")
    daemon.until_running("job")
    nursery, rank, first = daemon.nursery_pid(), daemon.rank_pid("job"), daemon.supervisor_pid("job")
    daemon.kill()
    os.kill(nursery, signal.SIGSTOP)
    try:
        daemon.start()
        assert daemon.supervisor_pid("job") == first
        eventually(daemon.root.nursery_socket.exists, 60)
        daemon.run("true", job_id="next")
        assert daemon.wait("next").state == job_pb2.JOB_STATE_SUCCEEDED
        os.kill(nursery, signal.SIGCONT)  # its supervisor lives: it is looked after until the job ends
        go(daemon)
    finally:
        os.kill(nursery, signal.SIGCONT)
    expect_exact(daemon, nursery, rank)
