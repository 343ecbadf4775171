"""A job whose journal takes no record, under a supervisor that never had it open: its ranks end all the same, and the
job says what is missing."""

import functools
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.supervisors.system import lock
from muster.v1 import job_pb2
from tests.conftest import alive, eventually
from tests.integration.box import Boxed, mounted
from tests.integration.faults.test_stop_unrecorded import mount


@pytest.fixture
def boxed(tmp_path: Path) -> Iterator[Boxed]:
    """A daemon, nursery and supervisor that follow those which were killed, over a read-only state folder; three ranks
    run."""
    daemon = Boxed(tmp_path, '[checks]\npolicy = "off"\n', mounted(":"))
    try:
        daemon.start()
        daemon.run("sleep", "3600", job_id="job", ranks=3)
        daemon.until_running("job")
        pids = [daemon.nursery_pid(), lock.holder(daemon.root.job("job").lock)]
        state = daemon.root.state
        daemon.prefix = mounted(f"mount --bind -o ro {state} {state}")
        daemon.kill()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        yield daemon.start()
    finally:
        daemon.close()


def ranks(daemon: Boxed) -> list[int]:
    return [rank.pid for rank in daemon.get("job").ranks]


def sentence(daemon: Boxed) -> str:
    return f"cannot write its records: {daemon.root.job('job').journal}: Read-only file system"


def expect_warned(daemon: Boxed) -> None:
    """By each command that shows the job."""
    eventually(lambda: any(sentence(daemon) in text for text in daemon.get("job").warnings))
    for command in (["status", "job"], ["why", "job"]):
        shown = daemon.cli(*command)
        assert sentence(daemon) in " ".join((shown.stdout + shown.stderr).split()), shown
    listed = json.loads(daemon.cli("ps", "-o", "json").stdout)["jobs"]
    assert any(sentence(daemon) in text for text in listed[0]["warnings"]), listed


def written(daemon: Boxed) -> job_pb2.Job:
    """The job, once its journal takes records again. It ended before that."""
    before = time.time()
    mount(daemon, "umount", "-l", str(daemon.root.state))
    job: job_pb2.Job = daemon.wait("job")
    assert job.ended_at.ToNanoseconds() / 1e9 < before
    eventually(lambda: not daemon.get("job").warnings)
    return job


@pytest.mark.slow
def test_a_stop_sends_no_sigkill_to_ranks_that_have_ended(boxed: Boxed) -> None:
    """The command returns behind the grace."""
    pids = ranks(boxed)
    done = boxed.cli("stop", "--grace", "1s", "job")
    assert done.returncode == 0 and not any(map(alive, pids)), done
    assert "as soon as its journal takes a record" in done.stderr and sentence(boxed) in done.stderr, done
    expect_warned(boxed)
    job = written(boxed)
    assert job.state == job_pb2.JOB_STATE_STOPPED
    assert "SIGKILL" not in job.verdict.summary
    assert not [event.message for event in boxed.event_list("job") if event.kind == "job.warning"]


@pytest.mark.slow
def test_ranks_that_end_by_themselves_are_known_at_once(boxed: Boxed) -> None:
    pids = ranks(boxed)
    os.kill(pids[1], signal.SIGUSR1)
    eventually(lambda: all(rank.outcome for rank in boxed.get("job").ranks))
    assert not any(map(alive, pids))
    expect_warned(boxed)
    job = written(boxed)
    assert job.state == job_pb2.JOB_STATE_FAILED and job.verdict.first_failed_rank == 1, job.verdict


def in_gap(daemon: Boxed, rank: int) -> bool:
    return bool(daemon.get("job").ranks[rank].HasField("output_gap"))


@pytest.mark.slow
def test_a_gap_that_is_recorded_first_does_not_keep_the_end_back(tmp_path: Path) -> None:
    """Journal and logs take bytes again at the same time: whichever record is written first takes the others along."""
    daemon = Boxed(tmp_path, '[checks]\npolicy = "off"\n', mounted(":"))
    try:
        daemon.start()
        daemon.run("sh", "-c", "while :; do echo x; sleep 0.05; done", job_id="job", ranks=8)
        daemon.until_running("job")
        logs = [daemon.root.rank_log("job", rank, rank) for rank in range(8)]
        eventually(lambda: all(log.exists() for log in logs))
        mount(daemon, "mount", "--bind", "-o", "ro", *[str(daemon.root.state)] * 2)
        pids = [daemon.nursery_pid(), lock.holder(daemon.root.job("job").lock)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: daemon.nursery_pid() not in (0, *pids))
        for rank, log in enumerate(logs):  # one behind the other: each is tried again at another time of the second
            log.unlink()
            log.mkdir()
            eventually(functools.partial(in_gap, daemon, rank))
        done = daemon.cli("stop", "--grace", "1s", "job")
        assert "as soon as its journal takes a record" in done.stderr, done
        for log in logs:
            log.rmdir()
        mount(daemon, "umount", "-l", str(daemon.root.state))
        eventually(lambda: daemon.get("job").state == job_pb2.JOB_STATE_STOPPED)
    finally:
        daemon.close()
