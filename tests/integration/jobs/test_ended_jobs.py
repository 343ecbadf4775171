"""Jobs that have ended: what is read of them when, how their records are collected, and how what is left is removed."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from muster.supervisors.launch import environment
from muster.v1 import job_pb2, log_pb2
from tests.conftest import Daemon, eventually, running

Make = Callable[..., Daemon]


def copies(daemon: Daemon, model: str, count: int) -> list[str]:
    """Ids of copies of an ended job, record and logs, for a daemon that does not run."""
    assert daemon.process is None
    jobs, names = daemon.root.jobs, [f"copy-{number:04}" for number in range(count)]
    spec = json.loads(daemon.root.job(model).spec.read_text())
    for name in names:
        shutil.copytree(jobs / model, jobs / name, ignore=shutil.ignore_patterns("*.fifo"))
        (jobs / name / "spec.json").write_text(json.dumps(spec | {"job_id": name}))
        for path in list(daemon.root.log.glob(f"{model}-*")):
            shutil.copy2(path, path.with_name(name + path.name.removeprefix(model)))
    return names


def ended(daemon: Daemon, job_id: str = "model") -> None:
    daemon.run("sh", "-c", "echo output", job_id=job_id, labels={"name": job_id})
    daemon.wait(job_id)
    daemon.until_put_away(job_id)


def listed(daemon: Daemon) -> set[str]:
    return set(daemon.cli("ps", "-aq").stdout.split())


def on_disk(daemon: Daemon) -> set[str]:
    return {path.name for path in daemon.root.jobs.iterdir()}


def fewer(daemon: Daemon, count: int) -> bool:
    return len(on_disk(daemon)) < count


# --- the index --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_hundreds_of_ended_jobs_are_all_there_after_a_restart(make_daemon: Make) -> None:
    daemon = make_daemon("[jobs]\nkeep_ended = 0\n")
    ended(daemon)
    daemon.run("sleep", "1000", job_id="live")
    daemon.until_running("live")
    daemon.kill()
    names = copies(daemon, "model", 250)
    daemon.restart()
    # An id is known to be taken from the first moment on, and by which spec.
    again = daemon.jobs.Start(job_pb2.StartRequest(spec=daemon_spec("model")), timeout=60)
    assert again.already_existed and again.job.state == job_pb2.JOB_STATE_SUCCEEDED
    with pytest.raises(grpc.RpcError) as refused:
        daemon.run("true", job_id="copy-0249")
    assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert daemon.get("copy-0150").verdict.exit_code == 0
    assert daemon.cli("ps", "-q").stdout == "live\n"

    shown = daemon.cli("ps", "-aq").stdout.split()
    assert shown[0] == "live" and sorted(shown[1:]) == [*names, "model"]
    table = daemon.cli("ps", "-a").stdout.splitlines()
    assert len(table) == 253 and table[0].startswith("JOB ") and "copy-0249" in table[1 + shown.index("copy-0249")]
    jobs = json.loads(daemon.cli("ps", "-a", "-o", "json").stdout)["jobs"]
    assert [job["jobId"] for job in jobs] == shown
    assert json.loads(daemon.cli("ps", "-o", "json", "--label", "name=none").stdout) == {"jobs": []}
    labelled = daemon.cli("ps", "-aq", "--label", "name=model").stdout.split()
    assert len(labelled) == 251, "the label is a copy, too"

    lines = list(daemon.logs.ReadLogs(log_pb2.ReadLogsRequest(job_id="copy-0007"), timeout=60))
    assert b"".join(line.data for line in lines) == b"output\n"
    assert "copy-0008" in daemon.cli("why", "copy-0008").stdout
    assert daemon.cli("rm", "copy-0009").returncode == 0
    assert daemon.cli("status", "copy-0009").returncode == 3
    daemon.run("true", job_id="copy-0009")
    assert daemon.wait("copy-0009").state == job_pb2.JOB_STATE_SUCCEEDED


def daemon_spec(job_id: str) -> job_pb2.JobSpec:
    env = {"PYTHONUNBUFFERED": "1"}
    labels = {"name": "model"}
    return job_pb2.JobSpec(job_id=job_id, command=["sh", "-c", "echo output"], ranks=1, env=env, labels=labels)


@pytest.mark.slow
def test_what_ended_while_no_daemon_was_there_is_reported_once(make_daemon: Make) -> None:
    daemon = make_daemon()
    ended(daemon, "before")
    daemon.run("sh", "-c", "while [ ! -e ../../go ]; do sleep 0.02; done", job_id="x")
    daemon.until_running("x")
    supervisor = daemon.supervisor_pid("x")
    daemon.kill()
    (daemon.root.job("x").folder / "go").touch()
    eventually(lambda: not Path(f"/proc/{supervisor}").exists())
    for _ in range(2):
        daemon.restart()
        assert [event.kind for event in daemon.event_list("x")].count("job.ended") == 1
        assert [event.kind for event in daemon.event_list("before")].count("job.ended") == 1
        daemon.kill()


@pytest.mark.slow
def test_an_ended_job_that_is_damaged_is_reported(make_daemon: Make) -> None:
    daemon = make_daemon()
    ended(daemon)
    daemon.kill()
    journal = daemon.root.job("model").journal
    data = journal.read_bytes()
    middle = len(data) // 2
    journal.write_bytes(data[:middle] + b"X" + data[middle + 1 :])
    daemon.restart()
    assert eventually(lambda: "model" in daemon.cli("node").stdout)
    assert daemon.get("model").state == job_pb2.JOB_STATE_LOST
    (job,) = daemon.jobs.List(job_pb2.ListRequest(), timeout=60).jobs
    assert job.state == job_pb2.JOB_STATE_LOST and job.warnings


@pytest.mark.slow
def test_a_record_that_cannot_be_read_for_a_while_is_read_again(make_daemon: Make) -> None:
    """Of a job that runs, and of one that has ended: nothing of either is lost, and nobody has to start the daemon."""
    daemon = make_daemon()
    ended(daemon, "over")
    daemon.run("sh", "-c", "while [ ! -e ../../go ]; do sleep 0.02; done; exit 7", job_id="live")
    daemon.until_running("live")
    daemon.kill()
    journals = [daemon.root.job(job_id).journal for job_id in ("over", "live")]
    for journal in journals:
        journal.rename(journal.with_name("moved"))
    daemon.restart()
    with pytest.raises(grpc.RpcError) as unread:
        daemon.get("over")
    assert unread.value.code() is grpc.StatusCode.DATA_LOSS, unread.value
    assert "journal: somebody removed it, or moved it away: put it back" in str(unread.value.details())
    assert daemon.cli("ps", "-a").stdout.count("LOST") == 2
    for journal in journals:
        journal.with_name("moved").rename(journal)
    assert eventually(lambda: "LOST" not in daemon.cli("ps", "-a").stdout)
    assert daemon.get("over").state == job_pb2.JOB_STATE_SUCCEEDED
    assert daemon.get("live").state == job_pb2.JOB_STATE_RUNNING
    assert "cannot be read" not in daemon.cli("node").stdout
    (daemon.root.job("live").folder / "go").touch()
    assert daemon.wait("live").verdict.exit_code == 7
    assert [event.kind for event in daemon.event_list("live")].count("job.ended") == 1
    assert [event.kind for event in daemon.event_list("over")].count("job.ended") == 1


@pytest.mark.slow
def test_a_record_that_is_damaged_once_it_can_be_read_stays_lost(make_daemon: Make) -> None:
    daemon = make_daemon()
    ended(daemon)
    daemon.kill()
    journal = daemon.root.job("model").journal
    data = journal.read_bytes()
    journal.rename(journal.with_name("moved"))
    daemon.restart()
    whole = journal.with_name("whole")  # a part of it would be damaged otherwise
    whole.write_bytes(data.replace(b"SUCCEEDED", b"STOPPED", 1))
    whole.rename(journal)
    assert eventually(lambda: "the checksum does not match" in daemon.cli("node").stdout)
    assert "tries again" not in daemon.cli("node").stdout


# --- collecting -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_records_beyond_a_number_are_collected_and_their_logs_stay(make_daemon: Make) -> None:
    daemon = make_daemon("[jobs]\nkeep_ended = 0\n")
    ended(daemon)
    daemon.kill()
    copies(daemon, "model", 80)
    daemon.config.write_text(daemon.config.read_text().replace("keep_ended = 0", "keep_ended = 5"))
    daemon.restart()
    daemon.run("sleep", "1000", job_id="live")
    eventually(lambda: len(on_disk(daemon)) == 6, 60, "five records and a live job are left")
    left = on_disk(daemon)
    assert listed(daemon) == left and "live" in left
    gone = sorted({f"copy-{number:04}" for number in range(80)} - left)[0]
    (told,) = [event for event in daemon.event_list(gone) if event.kind == "job.collected"]
    assert "keep_ended" in told.message and told.attributes["state"] == "SUCCEEDED"
    assert daemon.cli("status", gone).returncode == 3
    assert daemon.root.rank_log(gone, 0, 0).read_bytes() == b"output\n"
    daemon.run("true", job_id=gone)
    assert daemon.wait(gone).state == job_pb2.JOB_STATE_SUCCEEDED


@pytest.mark.slow
def test_records_go_by_age(make_daemon: Make) -> None:
    daemon = make_daemon("[jobs]\nkeep_ended_days = 0.00001\n")
    daemon.run("true", job_id="model")  # a look into its folder may come too late
    eventually(lambda: not on_disk(daemon), 90, "it is collected")
    assert [event.kind for event in daemon.event_list("model")][-1] == "job.collected"


@pytest.mark.slow
def test_a_record_stays_while_its_logs_wait_for_the_program_that_takes_them(make_daemon: Make, tmp_path: Path) -> None:
    program = tmp_path / "take"
    program.write_text(f"#!/bin/sh\n[ -e {tmp_path}/open ]\n")
    program.chmod(0o755)
    daemon = make_daemon(f'[jobs]\nkeep_ended = 1\n[logs]\nupload = ["{program}"]\n')
    for name in ("first", "second", "third"):
        ended(daemon, name)

    def refused(name: str) -> int:
        return sum(event.kind == "logs.upload_failed" for event in daemon.event_list(name))

    eventually(lambda: refused("third"), 60)
    before = refused("first")
    daemon.kill()
    daemon.restart()
    eventually(lambda: refused("first") > before, 60, "a round of collecting is over")
    assert on_disk(daemon) == {"first", "second", "third"}, "they are old enough by now"
    (tmp_path / "open").touch()
    eventually(lambda: on_disk(daemon) == {"third"}, 90, "they are collected once they were taken")


@pytest.mark.slow
def test_a_kill_in_the_middle_of_collecting_leaves_nothing_half(make_daemon: Make) -> None:
    daemon = make_daemon("[jobs]\nkeep_ended = 0\n")
    ended(daemon)
    daemon.kill()
    names = copies(daemon, "model", 150)
    daemon.config.write_text(daemon.config.read_text().replace("keep_ended = 0", "keep_ended = 2"))
    whole = {"spec.json", "journal"}
    here = on_disk(daemon)
    for _ in range(3):
        daemon.restart()
        eventually(functools.partial(fewer, daemon, len(here)), 60, "some are collected")
        daemon.kill()
        here = on_disk(daemon)
        for name in here:
            if not name.startswith("."):
                assert whole <= {path.name for path in (daemon.root.jobs / name).iterdir()}, name
    daemon.restart()
    eventually(lambda: len(on_disk(daemon)) == 2, 90, "the next start goes on")
    assert listed(daemon) == on_disk(daemon)
    told = {event.job_id for event in daemon.event_list() if event.kind == "job.collected"}
    assert told == {"model", *names} - on_disk(daemon), "each is told of, whenever the daemon was killed"


# --- whatever is left -------------------------------------------------------------------------------------------------


def _no_journal(folder: Path) -> None:
    (folder / "journal").unlink()


def _no_spec(folder: Path) -> None:
    (folder / "spec.json").unlink()


def _torn(folder: Path) -> None:
    (folder / "journal").write_bytes(b"no journal\n")


def _few_files(folder: Path) -> None:
    _remove(folder)
    folder.mkdir()
    (folder / "workspace").mkdir()
    (folder / "workspace" / "file").touch()


def _a_file(folder: Path) -> None:
    _remove(folder)
    folder.touch()


def _remove(folder: Path) -> None:
    """The daemon may write into it at this moment."""
    away = folder.with_name("away")
    folder.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def _pipes(folder: Path) -> None:
    """A careless open of one of them waits for ever."""
    for path in list(folder.iterdir()):
        if path.is_file():
            path.unlink()
            os.mkfifo(path)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [_no_journal, _no_spec, _torn, _few_files, _a_file, _pipes])
@pytest.mark.parametrize("restarted", [True, False])
def test_rm_force_removes_all_that_is_left(make_daemon: Make, damage: Callable[[Path], None], restarted: bool) -> None:
    daemon = make_daemon()
    ended(daemon)
    log = daemon.root.rank_log("model", 0, 0)
    assert log.exists()
    if restarted:
        daemon.kill()
    damage(daemon.root.job("model").folder)
    if restarted:
        daemon.restart()
    done = daemon.cli("rm", "-f", "model")
    assert (done.returncode, done.stdout) == (0, "model\n"), done.stderr
    assert on_disk(daemon) == set() and not log.exists()
    assert daemon.cli("rm", "-f", "model").returncode == 3
    assert "model" not in daemon.cli("node").stdout
    ended(daemon)


def test_rm_force_of_a_job_whose_folder_somebody_removed(make_daemon: Make) -> None:
    daemon = make_daemon()
    ended(daemon)
    _remove(daemon.root.job("model").folder)
    assert daemon.cli("rm", "-f", "model").returncode == 0
    assert daemon.cli("ps", "-aq").stdout == ""


@pytest.mark.slow
def test_rm_force_says_what_it_cannot_remove(make_daemon: Make) -> None:
    daemon = make_daemon()
    ended(daemon)
    log = daemon.root.rank_log("model", 0, 0)
    log.unlink()
    log.mkdir()
    (log / "file").touch()
    done = daemon.cli("rm", "-f", "model")
    assert (done.returncode, on_disk(daemon)) == (0, set())
    assert daemon.cli("status", "model").returncode == 3


_HOLD = """
import sys
from pathlib import Path
from muster.supervisors.system import lock
held = lock.take(Path(sys.argv[1]) / "lock", Path(sys.argv[1]))
print(1, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_rm_force_waits_for_a_supervisor_that_is_about_to_exit(make_daemon: Make) -> None:
    """It tells of the end of its job before it exits. Here another process has the lock in its place."""
    daemon = make_daemon()
    ended(daemon)
    assert daemon.root.job("model").lock.name == "lock"
    for _ in range(5):  # the daemon waits 5 s for it, in which a busy machine may not let it exit
        if removed_while_it_exits(daemon):
            break
        assert "model" in on_disk(daemon)
    assert on_disk(daemon) == set()


def removed_while_it_exits(daemon: Daemon) -> bool:
    """Whether the process that has the lock exited in time."""
    command = [sys.executable, "-c", _HOLD, str(daemon.root.job("model").folder)]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        holder.stdout.readline()
        refused = daemon.cli("rm", "-f", "model")
        assert (refused.returncode, refused.stdout) == (5, "")
        assert f"{holder.pid} (" in refused.stderr and "the job has ended" in refused.stderr
        assert "stop" not in refused.stderr and "model" in on_disk(daemon)
        exits = threading.Timer(1.0, holder.stdin.close)
        exits.start()
        removed = daemon.cli("rm", "-f", "model")
        exits.join()
        assert (removed.returncode, removed.stdout) in ((0, "model\n"), (5, "")), removed.stderr
        return removed.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("damage", [_no_journal, _torn, _few_files])
def test_rm_force_never_removes_a_job_with_a_living_process(make_daemon: Make, damage: Callable[[Path], None]) -> None:
    daemon = make_daemon()
    ended(daemon)
    daemon.kill()
    nonce = environment.nonce_prefix(daemon.root, "model") + "1.5"
    command = [sys.executable, "-c", "print(1, flush=True); import sys; sys.stdin.read()"]
    env = os.environ | {"MUSTER_NONCE": nonce}
    with running(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        damage(daemon.root.job("model").folder)
        daemon.restart()
        with pytest.raises(grpc.RpcError) as refused:
            daemon.jobs.Delete(job_pb2.DeleteRequest(job_id="model", force=True), timeout=60)
        assert str(process.pid) in str(refused.value.details())
        assert "model" in on_disk(daemon)
        # The command stops the job first, as of any other.
        assert daemon.cli("rm", "-f", "model").returncode == 0
        assert process.wait(60) == -signal.SIGTERM
