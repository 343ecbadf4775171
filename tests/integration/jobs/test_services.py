"""Services: what runs beside the ranks, from before they start until they have ended."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from muster.supervisors.model import journal
from muster.supervisors.model.states import Kind
from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually

SUCCEEDED, FAILED, STOPPED = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_STOPPED
#: Tells in a file what happens to it, in order, and stays until it is told to end.
SERVICE = """trap 'echo told | tee -a {0}/story; until [ -e {0}/go ]; do sleep 0.01; done; exit 0' TERM
echo "up $NEW" | tee -a {0}/story; echo $$ >>{0}/pids
while :; do sleep 0.01; done"""
RANK = "echo begins >>{0}/story; until [ -e {0}/end ]; do sleep 0.01; done; echo ends >>{0}/story"


def start(daemon: Daemon, rank: str, *services: str, **fields: Any) -> None:
    given: dict[str, Any] = {"job_id": "x", "command": ("sh", "-c", rank), "ranks": 1, "services": services}
    given["grace_steps"] = [Duration(seconds=60)]  # what ends by itself may take its time on a busy machine
    daemon.jobs.Start(job_pb2.StartRequest(spec=job_pb2.JobSpec(**(given | fields))), timeout=60)


def story(folder: Path) -> list[str]:
    path = folder / "story"
    return path.read_text().splitlines() if path.exists() else []


def begin_anew(daemon: Daemon, folder: Path) -> None:
    """A service has started once it has run for 1 s: a busy machine may let that pass before the test, or the service
    itself, has done what it is about."""
    daemon.stop("x", grace_s=0)
    assert daemon.cli("rm", "x").returncode == 0
    for name in ("story", "pids", "ran"):
        (folder / name).unlink(missing_ok=True)


def output(daemon: Daemon, service: int = 0) -> str:
    return Path(daemon.get("x").services[service].log_path).read_text()


def test_a_service_runs_from_before_the_ranks_until_they_have_ended(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "end").touch()
    (tmp_path / "go").touch()
    (tmp_path / "pre.sh").write_text("export NEW=exported\n")
    start(
        daemon, RANK.format(tmp_path), SERVICE.format(tmp_path), "exec sleep 1000", pre_start=str(tmp_path / "pre.sh")
    )
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code) == (SUCCEEDED, 0), job.verdict
    assert story(tmp_path) == ["up exported", "begins", "ends", "told"]
    assert [one.role for one in job.services] == ["trap", "sleep"]
    assert {one.outcome for one in job.services} == {job_pb2.RANK_OUTCOME_STOPPED}
    assert not any(alive(one.pid) for one in job.services)
    shown = daemon.cli("logs", "x", "--service", "0")
    assert shown.returncode == 0
    assert [line for line in shown.stdout.splitlines() if line != "Terminated"] == ["up exported", "told"]  # of `sleep`
    assert "has services 0 to 1" in daemon.cli("logs", "x", "--service", "2").stderr
    assert re.search(r"1 +sleep +\d+ +stopped", daemon.cli("status", "x").stdout)
    assert "service 0 (trap): begins" in daemon.cli("logs", "x", "--job").stdout
    daemon.until_put_away("x")


@pytest.mark.parametrize(
    ("service", "code", "how"),
    [
        ("echo no room >&2; exit 3", 3, "exited with code 3; no rank was started"),
        ("echo done", 125, "exited with code 0; no rank was started"),
        ("exec /nowhere/sshd", 127, "exited with code 127; no rank was started"),
    ],
)
def test_a_service_that_does_not_stay_fails_the_job_before_a_rank_runs(
    daemon: Daemon, tmp_path: Path, service: str, code: int, how: str
) -> None:
    for _ in range(5):
        start(daemon, f"touch {tmp_path}/ran", service, "exec sleep 1000")
        job = daemon.explained("x")
        if not (tmp_path / "ran").exists():
            break
        begin_anew(daemon, tmp_path)
    assert (job.state, job.verdict.exit_code) == (FAILED, code), job.verdict
    assert how in job.verdict.summary and "service 0" in job.verdict.summary
    assert list(job.verdict.last_lines) == output(daemon).splitlines()
    assert not alive(job.services[1].pid)
    said = daemon.cli("why", "x").stdout
    assert "ended before the ranks began" in said and "muster logs x --service 0" in said
    daemon.until_put_away("x")


@pytest.mark.slow
def test_a_service_that_ends_while_the_ranks_run_ends_the_attempt(daemon: Daemon, tmp_path: Path) -> None:
    # In the first attempt the service leaves, with code 0, once the rank has begun; in the second it stays.
    service = (
        f"until [ -e {tmp_path}/story ]; do sleep 0.01; done; [ $MUSTER_ATTEMPT = 1 ] && exec sleep 1000; echo left"
    )
    rank = f"echo begins >>{tmp_path}/story; [ $MUSTER_ATTEMPT = 1 ] || exec sleep 1000"
    start(daemon, rank, service, max_restarts=1)
    job = daemon.wait("x")
    assert job.state == SUCCEEDED, job.verdict
    assert story(tmp_path) == ["begins", "begins"]
    (past,) = job.past_attempts
    assert re.fullmatch(
        r"service 0 \(until\) exited with code 0 while the ranks were running; 1 rank was stopped", past.summary
    )
    assert past.exit_code == 125


@pytest.mark.slow
def test_a_stop_reaches_the_service_after_the_ranks_and_sigkill_all_of_it(daemon: Daemon, tmp_path: Path) -> None:
    stay = "while :; do sleep 0.01; done"
    rank = f"trap 'sleep 0.3; echo saved >>{tmp_path}/story; exit 0' TERM; touch {tmp_path}/begun; {stay}"
    # It ignores SIGTERM, and so does what it has started, in a session of its own.
    child = f"setsid sh -c 'trap \"\" TERM; echo $$ >{tmp_path}/deaf; sleep 1000'"
    deaf = f"trap 'echo told >>{tmp_path}/story' TERM; {child} & {stay}"
    start(daemon, rank, deaf)
    eventually(lambda: all(path.exists() for path in (tmp_path / "begun", tmp_path / "deaf")))
    eventually((tmp_path / "deaf").read_text)
    asked = job_pb2.StopRequest(job_id="x", grace=Duration(seconds=3600), timeout=Duration())
    assert not daemon.jobs.Stop(asked, timeout=60).ended
    eventually(lambda: "told" in story(tmp_path))
    job = daemon.stop("x", grace_s=1).job
    assert (job.state, job.verdict.exit_code) == (STOPPED, 0), job.verdict
    assert story(tmp_path) == ["saved", "told"]
    assert job.services[0].signal == signal.SIGKILL
    assert not alive(int((tmp_path / "deaf").read_text()))
    daemon.until_put_away("x")


def kinds(daemon: Daemon) -> list[str]:
    return [record["kind"] for record in journal.read(daemon.root.job("x").journal).records]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["its start", "its run", "its end"])
def test_daemon_and_supervisor_are_killed(daemon: Daemon, tmp_path: Path, moment: str) -> None:
    reached: dict[str, Callable[[], object]] = {
        "its start": lambda: story(tmp_path),
        "its run": lambda: "begins" in story(tmp_path),
        "its end": lambda: "told" in story(tmp_path),
    }
    if moment == "its end":
        (tmp_path / "end").touch()
    for _ in range(5):
        start(daemon, RANK.format(tmp_path), SERVICE.format(tmp_path))
        eventually(reached[moment])
        supervisor = daemon.supervisor_pid("x")
        os.kill(supervisor, signal.SIGSTOP)  # the moment lasts
        if (Kind.SPAWNED in kinds(daemon)) == (moment != "its start"):
            break
        os.kill(supervisor, signal.SIGCONT)
        begin_anew(daemon, tmp_path)
    assert (Kind.SPAWNED in kinds(daemon)) == (moment != "its start")
    daemon.kill()
    os.kill(supervisor, signal.SIGKILL)
    (tmp_path / "end").touch()
    (tmp_path / "go").touch()
    daemon.restart()
    job = daemon.wait("x")
    assert job.state == SUCCEEDED, job.verdict
    assert job.takeovers == 1
    assert [one.outcome for one in job.services] == [job_pb2.RANK_OUTCOME_STOPPED], "the nursery knows how it ended"
    assert job.services[0].exit_code == 0 and kinds(daemon).count(Kind.EXITED) == 2
    # A second SIGTERM after the kill between two records is allowed.
    assert list(dict.fromkeys(story(tmp_path))) == ["up ", "begins", "ends", "told"]
    assert story(tmp_path)[:3] == ["up ", "begins", "ends"]
    assert output(daemon).splitlines()[0] == "up " and "told" in output(daemon)
    daemon.until_put_away("x")


@pytest.mark.slow
def test_a_stop_while_the_services_start_leaves_nothing(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    for _ in range(5):
        start(daemon, RANK.format(tmp_path), SERVICE.format(tmp_path))
        eventually(lambda: story(tmp_path))
        job = daemon.stop("x", grace_s=60).job
        if "begins" not in story(tmp_path):
            break
        begin_anew(daemon, tmp_path)
    assert (job.state, job.verdict.exit_code) == (STOPPED, 143), job.verdict
    assert story(tmp_path) == ["up ", "told"]
    daemon.until_put_away("x")
