"""The supervisor that waits for the next job: it is used, and whatever happens to it costs no job anything."""

import os
import signal
from pathlib import Path

import pytest

from muster.probes.kernel import process
from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually


def standby(daemon: Daemon) -> int:
    """The child of the nursery that has no job; 0: there is none."""
    nursery = daemon.nursery_pid()
    busy = {daemon.supervisor_pid(folder.name) for folder in daemon.root.jobs.iterdir()}
    children = Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split() if nursery else []
    found = [
        pid for pid in map(int, children) if pid not in busy and (stat := process.read_stat(pid)) and stat.state == "S"
    ]
    return found[0] if len(found) == 1 else 0


def ended(pid: int) -> bool:
    stat = process.read_stat(pid)
    return stat is None or stat.ended


def start(daemon: Daemon, job_id: str) -> int:
    """A job that runs until it is stopped; the pid of its supervisor."""
    daemon.run("sleep", "600", job_id=job_id)
    daemon.until_running(job_id)
    return daemon.supervisor_pid(job_id)


def test_each_job_gets_the_one_that_waits(daemon: Daemon) -> None:
    first = eventually(lambda: standby(daemon))
    assert start(daemon, "a") == first
    second = eventually(lambda: standby(daemon))
    held = {os.readlink(fd) for fd in Path(f"/proc/{second}/fd").iterdir()}
    assert not any("fifo" in name or "journal" in name for name in held), "nothing of another job"
    assert start(daemon, "b") == second
    for job_id in ("a", "b"):
        assert daemon.stop(job_id).job.state == job_pb2.JOB_STATE_STOPPED


def test_a_burst_does_not_wait_for_another(daemon: Daemon) -> None:
    eventually(lambda: standby(daemon))
    for number in range(8):
        daemon.run("true", job_id=f"j{number}")
    for number in range(8):
        assert daemon.wait(f"j{number}").state == job_pb2.JOB_STATE_SUCCEEDED


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_is_killed_or_stopped_is_passed_over(daemon: Daemon, number: int) -> None:
    lost = eventually(lambda: standby(daemon))
    os.kill(lost, number)
    try:
        assert start(daemon, "job") != lost
        again = eventually(lambda: (pid := standby(daemon)) != lost and pid, message="another one waits")
        assert again != daemon.supervisor_pid("job")
    finally:
        if number == signal.SIGSTOP:
            os.kill(lost, signal.SIGCONT)
    eventually(lambda: ended(lost), message="it has no job, and leaves")
    daemon.stop("job")


def test_it_leaves_with_the_nursery(daemon: Daemon) -> None:
    waits, nursery = eventually(lambda: standby(daemon)), daemon.nursery_pid()
    os.kill(nursery, signal.SIGKILL)
    eventually(lambda: ended(waits))
    successor = eventually(lambda: (pid := daemon.nursery_pid()) not in (0, nursery) and pid)
    other = eventually(lambda: standby(daemon))
    daemon.kill()
    eventually(lambda: not alive(successor) and ended(other), message="no job, no daemon: nothing stays")
