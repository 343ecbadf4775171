"""A supervisor that is late: it first looks at what has ended meanwhile, and then at the clock."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from muster.agent.link import connection
from muster.supervisors.model import journal
from muster.supervisors.model.states import Kind
from muster.v1 import job_pb2
from tests.conftest import FINAL, Daemon, alive, eventually

#: Seconds of a time limit; a busy machine may let the shorter ones pass before the test has stopped the supervisor.
LIMITS = (2, 10, 40)


@contextlib.contextmanager
def stopped_supervisor(daemon: Daemon, job_id: str) -> Iterator[bool]:
    """Whether there was one to stop."""
    pid = daemon.supervisor_pid(job_id)
    if not pid:
        yield False
        return
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: not alive(pid) or state(pid) == "T")
        yield alive(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def kinds(daemon: Daemon, job_id: str) -> list[str]:
    return [record["kind"] for record in journal.read(daemon.root.job(job_id).journal).records]


def wait_gone(pid: int) -> None:
    eventually(lambda: not alive(pid))


def wait_beyond(moment: float) -> None:
    eventually(lambda: time.monotonic() > moment, 90)


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 7])
def test_a_rank_that_ended_in_time_is_not_out_of_time(daemon: Daemon, tmp_path: Path, code: int) -> None:
    for limit in LIMITS:
        job_id, go = f"x-{limit}", tmp_path / f"go-{limit}"
        command = ["sh", "-c", f"until [ -e {go} ]; do sleep 0.02; done; exit {code}"]
        spec = job_pb2.JobSpec(job_id=job_id, command=command)
        spec.max_runtime.FromSeconds(limit)
        daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
        pid = daemon.until_running(job_id).ranks[0].pid
        begun = time.monotonic()
        with stopped_supervisor(daemon, job_id) as stopped:
            if not stopped or Kind.STOPPING in kinds(daemon, job_id):
                continue
            go.touch()
            wait_gone(pid)
            wait_beyond(begun + limit)
        job = daemon.wait(job_id)
        if job.verdict.reason == "TIMED_OUT":  # it had begun to act
            continue
        wanted = job_pb2.JOB_STATE_FAILED if code else job_pb2.JOB_STATE_SUCCEEDED
        assert (job.state, job.verdict.exit_code, job.verdict.reason) == (wanted, code, ""), job.verdict
        return
    raise AssertionError("at none of the tries it looked first, or each one was late")


@pytest.mark.parametrize("code", [0, 7])
async def test_ranks_that_have_ended_do_not_hang(daemon: Daemon, tmp_path: Path, code: int) -> None:
    """The daemon's order waits in the socket while they end."""
    go = tmp_path / "go"
    job_id = daemon.run("sh", "-c", f"until [ -e {go} ]; do sleep 0.02; done; exit {code}").job_id
    pid = daemon.until_running(job_id).ranks[0].pid
    order = {"op": "hung", "attempt": 0, "ranks": [], "reason": "none does anything", "again": False}
    async with connection.connect(*daemon.root.job(job_id).controls) as link:
        with stopped_supervisor(daemon, job_id) as stopped:
            assert stopped
            await link.send(order)
            go.touch()
            wait_gone(pid)
        with anyio.fail_after(60):
            assert (await link.receive())["ok"] is False
    job = daemon.wait(job_id)
    wanted = job_pb2.JOB_STATE_FAILED if code else job_pb2.JOB_STATE_SUCCEEDED
    assert (job.state, job.verdict.exit_code, job.verdict.reason) == (wanted, code, ""), job.verdict


@pytest.mark.slow
def test_a_step_that_ended_in_time_is_not_out_of_time(daemon: Daemon, tmp_path: Path) -> None:
    for limit in LIMITS:
        job_id, up, go = f"x-{limit}", tmp_path / f"up-{limit}", tmp_path / f"go-{limit}"
        script = tmp_path / f"pre-{limit}.sh"
        script.write_text(f"echo $$ >{up}.new; mv {up}.new {up}; until [ -e {go} ]; do sleep 0.02; done\n")
        spec = job_pb2.JobSpec(job_id=job_id, command=["true"], pre_start=str(script))
        spec.pre_start_timeout.FromSeconds(limit)
        daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
        eventually(partial(begun_or_over, daemon, job_id, up))
        begun = time.monotonic()
        with stopped_supervisor(daemon, job_id) as stopped:
            records = journal.read(daemon.root.job(job_id).journal).records
            if not stopped or any(record.get("ending") for record in records):
                continue
            pid = int(up.read_text())
            go.touch()
            wait_gone(pid)
            wait_beyond(begun + limit)
        job = daemon.wait(job_id)
        if "did not end within" in job.verdict.summary:  # it had begun to act
            continue
        assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_SUCCEEDED, 0), job.verdict
        return
    raise AssertionError("at none of the tries it looked first, or each one was late")


def begun_or_over(daemon: Daemon, job_id: str, up: Path) -> bool:
    return up.exists() or daemon.get(job_id).state in FINAL


@pytest.mark.slow
def test_no_rank_begins_behind_a_service_that_has_ended(daemon: Daemon, tmp_path: Path) -> None:
    for number in range(5):  # a service has started once it has run for 1 s
        job_id, up, go = f"x-{number}", tmp_path / f"up-{number}", tmp_path / f"go-{number}"
        service = f"echo $$ >{up}.new; mv {up}.new {up}; until [ -e {go} ]; do sleep 0.02; done; exit 3"
        spec = job_pb2.JobSpec(job_id=job_id, command=["touch", str(tmp_path / f"ran-{number}")], services=[service])
        daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
        eventually(up.exists)
        begun = time.monotonic()
        with stopped_supervisor(daemon, job_id) as stopped:
            go.touch()
            if not stopped or Kind.SPAWNED in kinds(daemon, job_id):
                continue
            pid = int(up.read_text())
            wait_gone(pid)
            wait_beyond(begun + 1)
        job = daemon.wait(job_id)
        if (tmp_path / f"ran-{number}").exists():  # it had begun with the ranks
            continue
        assert "service 0 (echo) exited with code 3; no rank was started" in job.verdict.summary
        return
    raise AssertionError("at none of the tries it looked first, or each one was late")
