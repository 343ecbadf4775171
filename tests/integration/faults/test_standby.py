"""The supervisor that waits for the next job: it is used, and whatever happens to it costs no job anything."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.probes.kernel import process
from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually


def standby(daemon: Daemon) -> int:
    """The child of the nursery that has no job, and waits for one; 0: there is none. One that still rehearses gets
    none."""
    nursery = daemon.nursery_pid()
    busy = {daemon.supervisor_pid(folder.name) for folder in daemon.root.jobs.iterdir()}
    children = Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split() if nursery else []
    found = [
        pid for pid in map(int, children) if pid not in busy and (stat := process.read_stat(pid)) and stat.state == "S"
    ]
    return found[0] if len(found) == 1 and not daemon.root.rehearsal.exists() else 0


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
@pytest.mark.slow
def test_one_that_is_killed_or_stopped_is_passed_over(daemon: Daemon, number: int) -> None:
    lost = eventually(lambda: standby(daemon))
    os.kill(lost, number)
    eventually(lambda: (stat := process.read_stat(lost)) is None or stat.ended or stat.state == "T")
    try:
        assert start(daemon, "job") != lost
        again = eventually(lambda: (pid := standby(daemon)) != lost and pid, message="another one waits")
        assert again != daemon.supervisor_pid("job")
    finally:
        if number == signal.SIGSTOP:
            os.kill(lost, signal.SIGCONT)
    eventually(lambda: ended(lost), message="it has no job, and leaves")
    daemon.stop("job")


@contextlib.contextmanager
def stopped_at_once(parent: int, name: str = "") -> Iterator[list[int]]:
    """SIGSTOP to the first new child of this process, of this name, as soon as it exists: the list has its pid then."""
    path = Path(f"/proc/{parent}/task/{parent}/children")
    found: list[int] = []
    before, over = path.read_text().split(), threading.Event()

    def look() -> None:
        while not (found or over.is_set()):
            for pid in map(int, set(path.read_text().split()).difference(before)):
                stat = process.read_stat(pid)
                if stat is not None and name in stat.comm:
                    with contextlib.suppress(ProcessLookupError):  # it has ended since
                        os.kill(pid, signal.SIGSTOP)
                        found.append(pid)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_one_that_is_stopped_before_it_waits_is_passed_over(daemon: Daemon) -> None:
    waits = eventually(lambda: standby(daemon))
    with stopped_at_once(daemon.nursery_pid()) as found:
        assert start(daemon, "a") == waits
        (pid,) = eventually(lambda: found)
        assert start(daemon, "b") != pid
    eventually(lambda: ended(pid), message="it has no job, and leaves")
    eventually(lambda: standby(daemon), message="another one waits")
    assert not daemon.root.rehearsal.exists()
    for job_id in ("a", "b"):
        assert daemon.stop(job_id).job.state == job_pb2.JOB_STATE_STOPPED


@pytest.mark.slow
def test_one_that_is_stopped_just_after_it_was_given_a_job_is_named(daemon: Daemon) -> None:
    """Whatever it has done by then: perhaps nothing, so that no record tells of it."""
    for number in range(10):
        if stopped_after_it_was_given(daemon, f"j{number}"):
            return
    raise AssertionError("another one was stopped each time")


def stopped_after_it_was_given(daemon: Daemon, job_id: str) -> bool:
    """False: the one that was stopped is not the job's, but the next that waits."""
    os.kill(eventually(lambda: standby(daemon)), signal.SIGKILL)  # a job is forked for
    eventually(lambda: not standby(daemon))
    with stopped_at_once(daemon.nursery_pid()) as found:
        daemon.run("sleep", "600", job_id=job_id)
        (pid,) = eventually(lambda: found)
        said = f"its supervisor (pid {pid}) is stopped (SIGSTOP)"

        def has_another() -> bool:
            return daemon.supervisor_pid(job_id) not in (0, pid, daemon.pid)

        eventually(lambda: has_another() or any(said in text for text in daemon.get(job_id).warnings))
        if has_another():
            daemon.stop(job_id, grace_s=0)
            return False
        assert f"kill -CONT {pid}" in " ".join(daemon.cli("status", job_id).stdout.split())
        assert "job.supervisor_stuck" in [event.kind for event in daemon.event_list(job_id)]
        assert daemon.stop(job_id, grace_s=0).job.state == job_pb2.JOB_STATE_STOPPED
    return True


@pytest.mark.slow
def test_a_program_that_hangs_while_it_creates_the_ranks_delays_no_stop(daemon: Daemon) -> None:
    for number in range(100):
        job_id = f"j{number}"
        with stopped_at_once(eventually(lambda: standby(daemon)), "muster-spawn") as found:
            daemon.run("sleep", "600", job_id=job_id, ranks=64)
            eventually(lambda: found or daemon.get(job_id).state == job_pb2.JOB_STATE_RUNNING)  # noqa: B023
            job = daemon.stop(job_id, grace_s=0).job
            assert job.state == job_pb2.JOB_STATE_STOPPED
        if found and not any(rank.pid for rank in job.ranks):  # it was stopped before it had made all
            break
    assert found and "did not end within" not in daemon.root.nursery_log.read_text()


@pytest.mark.slow
def test_it_leaves_with_the_nursery(daemon: Daemon) -> None:
    waits, nursery = eventually(lambda: standby(daemon)), daemon.nursery_pid()
    os.kill(nursery, signal.SIGKILL)
    eventually(lambda: ended(waits))
    successor = eventually(lambda: (pid := daemon.nursery_pid()) not in (0, nursery) and pid)
    other = eventually(lambda: standby(daemon))
    daemon.kill()
    eventually(lambda: not alive(successor) and ended(other), message="no job, no daemon: nothing stays")
