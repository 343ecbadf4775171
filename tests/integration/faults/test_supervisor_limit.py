"""A supervisor at its limit of descriptors reads how its ranks end, and takes a stop."""

import contextlib
import os
import resource
import signal
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from muster.v1 import job_pb2
from tests.conftest import FINAL, Daemon, alive, eventually


def exhaust(pid: int, free: int = 0) -> None:
    """From now on it gets no more descriptors, or only `free` ones; those that it has stay open."""
    if not pid:
        raise ValueError("no process")  # 0 would be this one
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    limit = [number for number in range(len(used) + free + 1) if number not in used][free]
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))


def test_ends_are_read(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; exit 7", job_id="job")
    daemon.until_running("job")
    exhaust(daemon.supervisor_pid("job"))
    (daemon.root.job("job").workspace / "device0" / "go").touch()
    job = daemon.wait("job")
    assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 7), job
    assert job.ranks[0].outcome == job_pb2.RANK_OUTCOME_EXITED


def test_a_stop_is_taken_behind_a_kill_of_the_nursery(daemon: Daemon) -> None:
    daemon.run("sleep", "3600", job_id="job")
    daemon.until_running("job")
    pid, supervisor = daemon.rank_pid("job"), daemon.supervisor_pid("job")
    exhaust(supervisor)
    os.kill(daemon.nursery_pid(), signal.SIGKILL)
    job = daemon.stop("job", grace_s=1).job
    assert not alive(pid)
    assert job.state == job_pb2.JOB_STATE_STOPPED, job
    assert job.ranks[0].outcome == job_pb2.RANK_OUTCOME_STOPPED
    eventually(lambda: not alive(supervisor))


def exhausted_between_attempts(daemon: Daemon, job_id: str, free: int) -> bool:
    """False where the second attempt, or the end, was quicker."""

    def first_is_over() -> bool:
        job = daemon.get(job_id)
        return bool(job.attempt or job.state == job_pb2.JOB_STATE_RESTARTING or job.state in FINAL)

    eventually(first_is_over)
    with contextlib.suppress(ValueError, OSError):  # it has ended
        exhaust(daemon.supervisor_pid(job_id), free)
    return bool(daemon.get(job_id).state == job_pb2.JOB_STATE_RESTARTING)


@pytest.mark.slow
def test_another_attempt_is_started(daemon: Daemon) -> None:
    """Wherever in it the descriptors run out."""
    free = {f"job-{count}": count for count in range(10)}
    for pause_s in (10, 60):  # a busy machine may take longer than the first to get to the last of them
        again = {"max_restarts": 1, "restart_backoff": Duration(seconds=pause_s)}
        for job_id in free:
            daemon.run("sh", "-c", "exit $((1 - MUSTER_ATTEMPT))", job_id=job_id, ranks=2, **again)
        late = {
            f"{job_id}-again": count
            for job_id, count in free.items()
            if not exhausted_between_attempts(daemon, job_id, count)
        }
        for job_id in free:
            job = daemon.wait(job_id)
            assert (job.state, job.attempt) == (job_pb2.JOB_STATE_SUCCEEDED, 1), job
        free = late
    assert not free


@pytest.mark.slow
def test_the_epilog_runs(daemon: Daemon, tmp_path: Path) -> None:
    """Wherever in its start the descriptors run out."""
    free = {f"job-{count}": count for count in range(12)}
    script = tmp_path / "epilog.sh"
    script.write_text(f"touch {tmp_path}/done-$MUSTER_JOB_ID\n")
    for job_id in free:
        daemon.run("sh", "-c", "while [ ! -e go ]; do sleep 0.05; done", job_id=job_id, epilog=str(script))
    for job_id, count in free.items():
        daemon.until_running(job_id)
        exhaust(daemon.supervisor_pid(job_id), count)
        (daemon.root.job(job_id).workspace / "device0" / "go").touch()
    for job_id in free:
        job = daemon.wait(job_id)
        assert (job.state, list(job.warnings)) == (job_pb2.JOB_STATE_SUCCEEDED, []), job
        assert (tmp_path / f"done-{job_id}").exists(), job_id
