"""A job whose folder is not in its place while its ranks run: it is shown, its output is kept, and `stop` ends it."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually
from tests.integration.faults.test_last_resort import start

COUNTS = "i=0; while [ ! -e end ]; do echo line $i; i=$((i+1)); sleep .01; done; echo $i > count"


def moved(folder: Path) -> None:
    folder.rename(folder.parent.parent / "aside")


def removed(folder: Path) -> None:
    moved(folder)
    shutil.rmtree(folder.parent.parent / "aside")


def a_file(folder: Path) -> None:
    moved(folder)
    folder.write_text("not a folder\n")


def a_link(folder: Path) -> None:
    moved(folder)
    folder.symlink_to(folder.parent.parent / "aside")


Spoil = Callable[[Path], None]


def listed(daemon: Daemon, *options: str) -> Any:
    """As `ps` has it; a job that is damaged, or not there, is no error of it."""
    jobs = json.loads(daemon.cli("ps", *options, "-o", "json").stdout).get("jobs", [])
    return next((job for job in jobs if job["jobId"] == "job"), None)


def is_in(daemon: Daemon, state: str) -> bool:
    return bool((listed(daemon, "-a") or {}).get("state") == f"JOB_STATE_{state}")


def stopped(daemon: Daemon) -> Any:
    """The verdict, once there is one."""
    return (listed(daemon, "-a") or {}).get("verdict", {})


def living(daemon: Daemon) -> Any:
    return (job := listed(daemon)) is not None and job["state"] == "JOB_STATE_LOST" and job.get("living")


def warned(daemon: Daemon) -> bool:
    """While nothing had to be read of its folder, it is a running job, with a warning."""
    return any("somebody" in text for text in (listed(daemon) or {}).get("warnings", ()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "killed"),
    [
        *((moved, killed) for killed in ("daemon", "all", "supervisor")),
        *((removed, killed) for killed in ("daemon", "supervisor")),
        (a_file, "all"),
        (a_link, "daemon"),
    ],
)
def test_it_is_shown_and_stopped(daemon: Daemon, spoil: Spoil, killed: str) -> None:
    pids = start(daemon)
    nursery, supervisor = daemon.nursery_pid(), daemon.supervisor_pid("job")
    spoil(daemon.root.job("job").folder)
    if killed != "supervisor":
        daemon.kill()
    if killed == "all":
        os.kill(nursery, signal.SIGKILL)
    if killed != "daemon":
        os.kill(supervisor, signal.SIGKILL)
    if killed != "supervisor":
        daemon.start()
    named = eventually(lambda: living(daemon))
    assert any(str(pids[0]) in text for text in named), named
    for command in ("status", "why"):
        words = " ".join(daemon.cli(command, "job").stdout.split())
        assert "somebody" in words and "muster stop job" in words and "Errno" not in words, words
    done = daemon.cli("stop", "--grace", "1s", "job")
    assert done.returncode == 0, done
    assert not any(map(alive, pids))
    eventually(lambda: listed(daemon) is None, message="nothing of it lives any more")
    assert "Not a directory" not in daemon.cli("node").stdout
    done = daemon.cli("rm", "--force", "job")
    assert done.returncode == 0, done
    assert not os.path.lexists(daemon.root.job("job").folder)
    assert not [path for path in daemon.root.log.iterdir() if path.name.startswith("job-")]
    assert daemon.cli("status", "job").returncode == 3


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["daemon", "all"])
@pytest.mark.parametrize("spoil", [moved, a_file])
def test_its_output_goes_on(daemon: Daemon, tmp_path: Path, spoil: Spoil, killed: str) -> None:
    """Whether or not its supervisor lives: each line is in the log once."""
    daemon.run("sh", "-c", COUNTS, job_id="job", ranks=2, workdir=str(tmp_path))
    daemon.until_running("job")
    logs = [daemon.root.rank_log("job", rank, rank) for rank in range(2)]
    eventually(lambda: all(log.exists() and log.read_text().count("\n") > 3 for log in logs))
    nursery, supervisor = daemon.nursery_pid(), daemon.supervisor_pid("job")
    spoil(daemon.root.job("job").folder)
    daemon.kill()
    if killed == "all":
        os.kill(nursery, signal.SIGKILL)
        os.kill(supervisor, signal.SIGKILL)
    daemon.start()
    eventually(lambda: living(daemon))
    before = [log.read_text().count("\n") for log in logs]
    eventually(lambda: all(log.read_text().count("\n") > n + 3 for log, n in zip(logs, before, strict=True)))
    (tmp_path / "end").touch()
    eventually(lambda: listed(daemon) is None, message="nothing of it lives any more")

    def whole() -> bool:
        texts = [log.read_text().split("\n") for log in logs]
        assert all(text[:-1] == [f"line {number}" for number in range(len(text) - 1)] for text in texts), texts
        return max(len(text) - 1 for text in texts) >= int((tmp_path / "count").read_text())

    eventually(whole)


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [True, False])
def test_the_folder_comes_back(daemon: Daemon, tmp_path: Path, restarted: bool) -> None:
    """Then it is a job like any other, and its end is what it is."""
    daemon.run("sh", "-c", COUNTS, job_id="job", workdir=str(tmp_path))
    log = daemon.root.rank_log("job", 0, 0)
    eventually(lambda: log.exists() and log.stat().st_size)
    folder = daemon.root.job("job").folder
    moved(folder)
    if restarted:
        daemon.kill()
        daemon.start()
        eventually(lambda: living(daemon))
    else:
        eventually(lambda: living(daemon) or warned(daemon))
    (folder.parent.parent / "aside").rename(folder)
    eventually(lambda: is_in(daemon, "RUNNING"))
    (tmp_path / "end").touch()
    assert daemon.wait("job").state == job_pb2.JOB_STATE_SUCCEEDED


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [True, False])
def test_a_stop_while_all_folders_are_away_is_on_record_when_they_are_back(daemon: Daemon, restarted: bool) -> None:
    pids = start(daemon)
    jobs, aside = daemon.root.jobs, daemon.root.state / "aside"
    supervisor = daemon.supervisor_pid("job")
    jobs.rename(aside)
    os.kill(supervisor, signal.SIGKILL)
    if restarted:
        eventually(lambda: living(daemon))
    done = daemon.cli("stop", "--grace", "1s", "job")
    assert done.returncode == 0, done
    assert not any(map(alive, pids))
    if not jobs.exists():
        aside.rename(jobs)
    # How its ranks ended may be known to nobody; that they were asked to end is.
    verdict = eventually(lambda: (found := stopped(daemon)).get("stoppedBy") and found, 90)
    assert "requested" in verdict["recommendationReason"], verdict
    eventually(lambda: not daemon.root.stop_order("job").exists(), message="it is removed behind the last record")


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["daemon", "all", "supervisor"])
def test_the_folder_of_another_job_in_its_place(daemon: Daemon, killed: str) -> None:
    """Nothing that is done with the one touches the other."""
    daemon.run("sh", "-c", "while :; do echo mine; sleep .05; done", job_id="other")
    daemon.until_running("other")
    other = daemon.rank_pid("other", 0)
    pids = start(daemon)
    nursery, supervisor = daemon.nursery_pid(), daemon.supervisor_pid("job")
    folder = daemon.root.job("job").folder
    moved(folder)
    folder.mkdir()
    for name in ("spec.json", "journal", "lock"):
        shutil.copy2(daemon.root.job("other").folder / name, folder / name)
    if killed != "supervisor":
        daemon.kill()
    if killed == "all":
        os.kill(nursery, signal.SIGKILL)
    if killed != "daemon":
        os.kill(supervisor, signal.SIGKILL)
    if killed != "supervisor":
        daemon.start()
    named = eventually(lambda: living(daemon), 60)
    assert any(str(pids[0]) in text for text in named) and not any(str(other) in text for text in named), named
    words = " ".join(daemon.cli("status", "job").stdout.split())
    assert "another job" in words or "job 'other'" in words, words
    done = daemon.cli("stop", "--grace", "1s", "job")
    assert done.returncode == 0, done
    assert not any(map(alive, pids)) and alive(other)
    assert daemon.get("other").state == job_pb2.JOB_STATE_RUNNING
    assert daemon.cli("rm", "--force", "job").returncode == 0
    assert daemon.cli("stop", "--grace", "1s", "other").returncode == 0
    assert daemon.get("other").state == job_pb2.JOB_STATE_STOPPED
