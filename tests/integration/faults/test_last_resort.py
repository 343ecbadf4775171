"""`stop` ends a job's processes where no supervisor can live or answer; the next supervisor records what happened."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.probes.kernel import process
from muster.supervisors.job import stop_order
from muster.supervisors.job.stop_order import StopOrder
from muster.supervisors.launch import environment
from muster.supervisors.model import journal
from muster.supervisors.model.replay import replay
from muster.supervisors.model.states import Kind, StopCause
from muster.supervisors.system import lock
from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually

#: Ignores SIGTERM, and so does what it starts in a session of its own.
STRAY = 'trap "" TERM; echo $$ > stray; while :; do sleep 3600; done'
DEAF = f"trap '' TERM; setsid sh -c '{STRAY}' & wait; wait"


def start(daemon: Daemon) -> list[int]:
    """A running job that SIGTERM does not end; its processes."""
    daemon.run("sh", "-c", DEAF, job_id="job")
    daemon.until_running("job")
    job = daemon.get("job")
    stray = daemon.root.job("job").workspace / "device0" / "stray"
    eventually(lambda: stray.exists() and stray.read_text().endswith("\n"))
    return [int(job.ranks[0].pid), int(stray.read_text())]


def order(daemon: Daemon, grace_s: float = 0.5) -> job_pb2.StopResponse:
    request = job_pb2.StopRequest(job_id="job", reason="a test")
    request.grace.FromMilliseconds(int(grace_s * 1000))
    request.timeout.FromSeconds(0)
    return daemon.jobs.Stop(request, timeout=60)


@contextlib.contextmanager
def no_nursery(daemon: Daemon) -> Iterator[None]:
    """Nursery and supervisors are killed, and no nursery can start."""
    sockets = list(daemon.root.run.glob("nursery*.sock"))
    pids = [daemon.nursery_pid(), *(pid for path in daemon.root.jobs.glob("*/lock") if (pid := lock.holder(path)))]
    for path in sockets:
        path.unlink()
        path.mkdir()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # the supervisor of a job that has ended leaves by itself
            os.kill(pid, signal.SIGKILL)
    try:
        yield
    finally:
        for path in sockets:
            path.rmdir()


def expect_stopped(daemon: Daemon) -> None:
    job = daemon.wait("job")
    assert job.state in (job_pb2.JOB_STATE_STOPPED, job_pb2.JOB_STATE_LOST), job
    assert job.verdict.exit_code != 0
    eventually(lambda: not daemon.root.stop_order("job").exists(), message="it is removed behind the last record")


@pytest.mark.slow
def test_without_a_nursery_the_daemon_ends_the_processes_itself(daemon: Daemon) -> None:
    pids = start(daemon)
    with no_nursery(daemon):
        order(daemon)
        eventually(lambda: not any(map(alive, pids)), 60)
        eventually(lambda: daemon.get("job").state == job_pb2.JOB_STATE_STOPPING)
    expect_stopped(daemon)
    # Who waited for it was neither supervisor nor nursery: its status may be lost, and then that is what is said.
    assert "job.stopping" in [event.kind for event in daemon.event_list("job")]


def test_a_job_that_waits_for_a_nursery_is_stopped_at_once(daemon: Daemon) -> None:
    daemon.run("true", job_id="before")
    daemon.wait("before")
    with no_nursery(daemon):
        daemon.run("sleep", "3600", job_id="job")
        order(daemon)
        job = eventually(lambda: (j := daemon.get("job")).state == job_pb2.JOB_STATE_STOPPED and j)
        assert "before its ranks were made" in job.verdict.summary


@pytest.mark.slow
def test_a_stopped_supervisor_is_continued(daemon: Daemon) -> None:
    pids = start(daemon)
    os.kill(daemon.supervisor_pid("job"), signal.SIGSTOP)
    daemon.stop("job", grace_s=0.2)
    assert not any(map(alive, pids))
    assert daemon.wait("job").state == job_pb2.JOB_STATE_STOPPED  # recorded a moment after the answer, maybe


@pytest.mark.slow
def test_a_stopped_supervisor_is_reported_until_it_runs_again(daemon: Daemon) -> None:
    """Its ranks wait as soon as they have filled their FIFOs."""
    start(daemon)
    pid = daemon.supervisor_pid("job")

    def warned() -> bool:
        return any(f"its supervisor (pid {pid}) is stopped" in text for text in daemon.get("job").warnings)

    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(warned, 60)
        for words in (["status", "job"], ["why", "job"], ["node"]):
            eventually(lambda: f"kill -CONT {pid}" in " ".join(daemon.cli(*words).stdout.split()), 60, str(words))  # noqa: B023
        assert "RUNNING, supervisor is stopped" in daemon.cli("ps").stdout
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: not warned(), 60)
    assert "supervisor" not in daemon.cli("ps").stdout
    told = [e.kind for e in daemon.event_list("job") if e.kind.startswith("job.supervisor_")]
    assert told == ["job.supervisor_stuck", "job.supervisor_works"]
    daemon.stop("job", grace_s=0)


@pytest.fixture
def frozen(daemon: Daemon) -> Iterator[list[int]]:
    """Whatever is in the list is stopped again as soon as somebody continues it."""
    victims: list[int] = []
    over = threading.Event()

    def freeze() -> None:
        while not over.wait(0.005):
            for pid in list(victims):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    thread = threading.Thread(target=freeze)
    thread.start()
    yield victims
    over.set()
    thread.join()


@pytest.mark.slow
def test_a_supervisor_that_hangs_is_passed_over_and_records_the_same_stop_later(
    daemon: Daemon, frozen: list[int]
) -> None:
    pids = start(daemon)
    supervisor = daemon.supervisor_pid("job")
    frozen.append(supervisor)
    order(daemon)
    eventually(lambda: not any(map(alive, pids)))
    frozen.clear()
    os.kill(supervisor, signal.SIGCONT)
    job = daemon.wait("job")
    assert (job.state, job.verdict.stopped_by != "") == (job_pb2.JOB_STATE_STOPPED, True), job
    assert job.ranks[0].outcome == job_pb2.RANK_OUTCOME_STOPPED
    assert job.ranks[0].signal == signal.SIGKILL


@pytest.mark.slow
def test_a_supervisor_that_never_answers_is_replaced_once_nothing_is_left(daemon: Daemon, frozen: list[int]) -> None:
    start(daemon)
    frozen.append(daemon.supervisor_pid("job"))
    order(daemon, 0.0)
    assert daemon.wait("job").state == job_pb2.JOB_STATE_STOPPED


def records_stop(daemon: Daemon, *steps: float) -> None:
    """Writes into the journal what a supervisor writes that is frozen, or killed, before it sends SIGTERM. The one that
    has the job is frozen, and is to be killed: its journal ends before that."""
    path = daemon.root.job("job").journal
    writer = journal.Writer(path, journal.read(path))
    stop = {"kind": Kind.STOPPING, "cause": StopCause.REQUESTED, "by": "somebody", "reason": "a test"}
    writer.append([stop | {"t": time.time(), "steps": list(steps), "up": process.uptime()}])
    writer.close()


def start_slow(daemon: Daemon) -> int:
    """A running job that saves a checkpoint when it gets SIGTERM, and exits with a code of its own then."""
    script = "trap 'sleep 2; exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    daemon.run("sh", "-c", script, job_id="job")
    eventually(lambda: daemon.output(daemon.get("job")))
    return daemon.rank_pid("job")


@pytest.mark.slow
def test_a_late_supervisors_successor_knows_what_the_daemon_sent(daemon: Daemon, frozen: list[int]) -> None:
    """The stop is in the journal; its supervisor hangs, and is killed once the daemon's SIGTERM has ended the rank."""
    pid = start_slow(daemon)
    supervisor = daemon.supervisor_pid("job")
    frozen.append(supervisor)
    eventually(lambda: (stat := process.read_stat(supervisor)) and stat.state == "T")
    daemon.kill()
    records_stop(daemon, 60)
    daemon.start()
    eventually(lambda: not alive(pid), 60)
    job = replay(journal.read(daemon.root.job("job").journal).records)
    kept = stop_order.read(daemon.root.stop_order("job"), environment.nonce(daemon.root, "job", job))
    assert kept is not None and kept.sent == ("SIGTERM",)
    frozen.clear()
    os.kill(supervisor, signal.SIGKILL)
    ended = daemon.wait("job")
    assert (ended.state, bool(ended.verdict.stopped_by)) == (job_pb2.JOB_STATE_STOPPED, True), ended
    assert (ended.ranks[0].outcome, ended.ranks[0].exit_code) == (job_pb2.RANK_OUTCOME_STOPPED, 3)


def test_an_order_comes_before_what_a_job_without_a_supervisor_would_end_of(daemon: Daemon) -> None:
    """The daemon before this one could not record it."""
    table = daemon.folder / "table.json"
    daemon.run("true", job_id="job", rank_table=str(table))
    eventually(lambda: daemon.get("job").state == job_pb2.JOB_STATE_CHECKING)
    daemon.kill()
    table.write_text("no rank table")
    job = replay(journal.read(daemon.root.job("job").journal).records)
    nonce = environment.nonce(daemon.root, "job", job)
    stop_order.write(daemon.root.stop_order("job"), StopOrder(nonce, (1.0,), "somebody", "", process.uptime()))
    daemon.start()
    ended = daemon.wait("job")
    assert (ended.state, ended.verdict.stopped_by) == (job_pb2.JOB_STATE_STOPPED, "somebody"), ended


@pytest.mark.slow
def test_the_order_outlives_the_daemon(daemon: Daemon, frozen: list[int]) -> None:
    pids = start(daemon)
    frozen += [daemon.supervisor_pid("job")]
    order(daemon, 30.0)  # more than a busy machine takes until the daemon is killed
    eventually(daemon.root.stop_order("job").exists)
    daemon.kill()
    assert all(map(alive, pids))
    daemon.start()
    eventually(lambda: not any(map(alive, pids)), 60)
    assert daemon.wait("job").state == job_pb2.JOB_STATE_STOPPED


@pytest.mark.slow
def test_after_its_stop_was_recorded_a_supervisor_without_a_successor(daemon: Daemon) -> None:
    pids = start(daemon)
    order(daemon, 30.0)  # more than a busy machine takes until all are killed
    eventually(lambda: daemon.get("job").state == job_pb2.JOB_STATE_STOPPING)
    with no_nursery(daemon):
        assert all(map(alive, pids))
        eventually(lambda: not any(map(alive, pids)), 60)
    expect_stopped(daemon)


def test_an_order_for_another_job_of_the_same_name_is_passed_over(daemon: Daemon) -> None:
    path: Path = daemon.root.stop_order("job")
    path.parent.mkdir()
    path.write_text('{"nonce": "of another", "steps": [0], "by": "", "reason": "", "up": 0, "sent": []}')
    daemon.run("true", job_id="job")
    assert daemon.wait("job").state == job_pb2.JOB_STATE_SUCCEEDED
