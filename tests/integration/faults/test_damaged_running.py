"""A job whose record on disk is spoilt while its ranks run: it is shown, and `stop` ends its processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from muster.supervisors.system import lock
from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually
from tests.integration.faults.test_last_resort import no_nursery, start

Spoil = Callable[[Path], None]


def garbage(path: Path) -> None:
    """From its begin, so that nothing of it can be read."""
    path.write_bytes(b"#" * 30 + path.read_bytes()[30:])


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def restart(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


def shown(daemon: Daemon) -> Any:
    """As `ps` without options lists it; empty where it does not: nothing of it lives, or nobody has looked yet."""
    jobs = json.loads(daemon.cli("ps", "-o", "json").stdout)["jobs"]
    return next((job for job in jobs if job["jobId"] == "job"), {})


def stop(daemon: Daemon, grace: str = "1s") -> "subprocess.CompletedProcess[str]":
    return daemon.cli("stop", "--grace", grace, "job")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "spoil", "supervisor"),
    [
        ("journal", garbage, "lives"),
        ("journal", garbage, "killed"),
        ("journal", folder, "killed"),
        ("journal", link_to_itself, "lives"),
        ("spec.json", garbage, "killed"),
        ("spec.json", folder, "lives"),
        ("spec.json", link_to_itself, "killed"),
    ],
)
def test_what_runs_is_shown_and_stopped(daemon: Daemon, name: str, spoil: Spoil, supervisor: str) -> None:
    pids = start(daemon)
    spoil(daemon.root.job("job").folder / name)
    daemon.kill()
    if supervisor == "killed":
        os.kill(lock.holder(daemon.root.job("job").lock), signal.SIGKILL)
    daemon.start()
    job = eventually(lambda: shown(daemon))
    assert job["state"] == "JOB_STATE_LOST" and any(str(pids[0]) in text for text in job["living"]), job
    status = daemon.cli("status", "job")
    assert status.returncode == 0 and str(pids[0]) in status.stdout, status
    done = stop(daemon)
    assert done.returncode == 0, done
    assert not any(map(alive, pids))
    assert "the outcome of its ranks is unknown" in done.stderr and name in done.stderr
    # From here on it is a damaged job that has ended, as any other.
    with pytest.raises(grpc.RpcError) as refused:
        daemon.stop("job")
    assert refused.value.code() is grpc.StatusCode.DATA_LOSS
    eventually(lambda: not lock.holder(daemon.root.job("job").lock))
    assert daemon.cli("rm", "--force", "job").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [garbage, folder])
def test_a_journal_that_is_spoilt_under_a_running_daemon(daemon: Daemon, spoil: Spoil) -> None:
    pids = start(daemon)
    spoil(daemon.root.job("job").journal)
    with no_nursery(daemon):
        done = stop(daemon)
        assert not any(map(alive, pids))
        assert done.returncode == 0, done


@pytest.mark.slow
def test_processes_of_others_are_left_alone(daemon: Daemon) -> None:
    """One with the same id of another daemon, and one of whose origin only the id is known."""
    pids = start(daemon)
    others = []
    try:
        for env in ({"MUSTER_NONCE": "00000000-00000000-1.0"}, {}):
            command = [sys.executable, "-c", "import time; time.sleep(600)"]
            others.append(subprocess.Popen(command, env={"MUSTER_JOB_ID": "job", **env}))
        folder(daemon.root.job("job").journal)
        restart(daemon)
        done = stop(daemon)
        assert done.returncode == 0, done
        assert not any(map(alive, pids))
        assert [process.poll() for process in others] == [None, None]
        assert f"{others[1].pid} (" in done.stderr and "did not signal them" in done.stderr
    finally:
        for process in others:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_no_supervisor_is_forked_for_what_none_can_work_with(daemon: Daemon) -> None:
    """Neither before the stop nor behind it: the nursery ends its care at the first look."""
    start(daemon)
    folder(daemon.root.job("job").journal)
    nursery = daemon.nursery_pid()
    os.kill(lock.holder(daemon.root.job("job").lock), signal.SIGKILL)
    eventually(lambda: "is not a regular file" in daemon.root.nursery_log.read_text())
    assert stop(daemon).returncode == 0
    waits = 1  # for a job, the supervisor that the nursery keeps
    eventually(lambda: len(Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split()) == waits)
    daemon.kill()
    eventually(lambda: not alive(nursery), message="it has no job left, and ends")
    assert daemon.root.nursery_log.read_text().count("is not a regular file") == 1


@pytest.mark.slow
def test_a_process_that_dropped_its_mark(daemon: Daemon) -> None:
    """In a session of its own, without MUSTER_NONCE: its id and the job's FIFO tell whose it is."""
    script = "setsid env -u MUSTER_NONCE sh -c 'echo $$ > stray; trap \"\" TERM; while :; do sleep 1; done' & wait"
    daemon.run("sh", "-c", script, job_id="job")
    stray = daemon.root.job("job").workspace / "device0" / "stray"
    eventually(lambda: stray.exists() and stray.read_text().endswith("\n"))
    pid = int(stray.read_text())
    rank = daemon.rank_pid("job")
    folder(daemon.root.job("job").journal)
    daemon.kill()
    os.kill(lock.holder(daemon.root.job("job").lock), signal.SIGKILL)
    os.kill(rank, signal.SIGKILL)
    daemon.start()
    eventually(lambda: shown(daemon))
    assert stop(daemon).returncode == 0
    assert not alive(pid)


@pytest.mark.slow
def test_the_stop_goes_on_with_the_next_daemon(daemon: Daemon) -> None:
    pids = start(daemon)
    folder(daemon.root.job("job").journal)
    daemon.kill()
    os.kill(lock.holder(daemon.root.job("job").lock), signal.SIGKILL)
    daemon.start()
    request = job_pb2.StopRequest(job_id="job")
    request.grace.FromSeconds(8)
    request.timeout.FromSeconds(0)
    assert not daemon.jobs.Stop(request, timeout=60).ended
    eventually(daemon.root.stop_order("job").exists)
    restart(daemon)
    eventually(lambda: not any(map(alive, pids)), 60)


def one_line(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"#" * 30 + b"\n")


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [one_line, garbage])
def test_every_command_answers_what_is_known_of_it(daemon: Daemon, spoil: Spoil) -> None:
    """While it runs and after its end; of one whose ranks are not recorded by the names of their files."""
    daemon.run("sh", "-c", "echo from $RANK; exec sleep 3600", job_id="job", ranks=2)
    eventually(lambda: all(daemon.output(daemon.get("job"), rank) for rank in (0, 1)))
    spoil(daemon.root.job("job").journal)
    restart(daemon)
    eventually(lambda: shown(daemon).get("living"))
    for ended in (False, True):
        logs = daemon.cli("logs", "job")
        assert logs.returncode == 0 and {"[rank 0] from 0", "[rank 1] from 1"} <= set(logs.stdout.splitlines()), logs
        status = daemon.cli("status", "job")
        assert status.returncode == 0 and "LOST" in status.stdout, status
        assert "`muster logs job`" in " ".join(daemon.cli("why", "job").stdout.split())
        if not ended:
            assert stop(daemon).returncode == 0
    eventually(lambda: not shown(daemon).get("living"))
    waited = daemon.cli("wait", "job")
    assert (waited.returncode, waited.stdout) == (125, "job LOST\n"), waited


def test_ended_and_damaged_there_is_nothing_to_stop(daemon: Daemon) -> None:
    daemon.run("true", job_id="job")
    daemon.wait("job")
    daemon.kill()
    garbage(daemon.root.job("job").journal)
    daemon.start()
    with pytest.raises(grpc.RpcError) as refused:
        daemon.stop("job")
    assert refused.value.code() is grpc.StatusCode.DATA_LOSS


def emptied(job: Path) -> None:
    (job / "journal").write_bytes(b"")


def removed(job: Path) -> None:
    (job / "journal").unlink()


def whole_folder(job: Path) -> None:
    shutil.rmtree(job)


def counted(log: Path) -> int:
    """Lines of a rank that counts: none is missing, and each is whole."""
    lines = log.read_text().split("\n")
    assert lines.pop() == ""
    assert lines == [f"line {number}" for number in range(len(lines))]
    return len(lines)


COUNTS = "i=0; while [ ! -e end ]; do echo line $i; i=$((i+1)); sleep .01; done; echo $i > count"


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [emptied, removed, whole_folder])
def test_the_journal_is_taken_away_and_the_supervisor_killed(daemon: Daemon, tmp_path: Path, spoil: Spoil) -> None:
    """It is shown why, its output goes on into its logs, and nothing of it is left behind a stop and `rm --force`."""
    daemon.run("sh", "-c", COUNTS, job_id="job", ranks=2, workdir=str(tmp_path))
    daemon.until_running("job")
    pids = [daemon.rank_pid("job", rank) for rank in range(2)]
    logs = [daemon.root.rank_log("job", rank, rank) for rank in range(2)]
    eventually(lambda: all(log.exists() and log.read_text().count("\n") > 3 for log in logs))
    supervisor = daemon.supervisor_pid("job")
    spoil(daemon.root.job("job").folder)
    os.kill(supervisor, signal.SIGKILL)
    job = eventually(
        lambda: (found := shown(daemon)).get("state") == "JOB_STATE_LOST" and found.get("living") and found
    )
    assert any(str(pids[0]) in text for text in job["living"]), job
    for command in ("status", "why"):
        words = " ".join(daemon.cli(command, "job").stdout.split())
        assert "somebody" in words and str(daemon.root.job("job").folder) in words and "Errno" not in words, words
    before = max(log.read_text().count("\n") for log in logs)
    eventually(lambda: all(log.read_text().count("\n") > before + 3 for log in logs))
    (tmp_path / "end").touch()
    eventually(lambda: not any(map(alive, pids)))
    eventually(lambda: not shown_at_all(daemon), message="nothing of it lives any more")
    for log in logs:
        counted(log)
    assert max(map(counted, logs)) >= int((tmp_path / "count").read_text())
    assert daemon.cli("rm", "--force", "job").returncode == 0
    assert not daemon.root.job("job").folder.exists()
    assert not [path for path in daemon.root.log.iterdir() if path.name.startswith("job-")]
    eventually(lambda: not daemon.cgroups("job"), message="the nursery removes it, in its own time")


def test_damage_in_records_already_read_is_shown_when_no_supervisor_stays(daemon: Daemon, tmp_path: Path) -> None:
    """The daemon alone reads only what is new: it would show the job as running for ever, also behind its end."""
    daemon.run("sh", "-c", COUNTS, job_id="job", ranks=2, workdir=str(tmp_path))
    daemon.until_running("job")
    pids = [daemon.rank_pid("job", rank) for rank in range(2)]
    log = daemon.root.rank_log("job", 0, 0)
    journal, supervisor = daemon.root.job("job").journal, daemon.supervisor_pid("job")
    end = len(journal.read_bytes().rstrip(b"\0"))
    with journal.open("r+b") as file:
        file.seek(end // 3)
        file.write(b"####")
    os.kill(supervisor, signal.SIGKILL)
    job = eventually(
        lambda: (found := shown(daemon)).get("state") == "JOB_STATE_LOST" and found.get("living") and found
    )
    assert any(str(pids[0]) in text for text in job["living"]), job
    waited = daemon.cli("wait", "job")
    assert waited.returncode == 125 and "the checksum does not match" in waited.stderr, waited
    before = log.read_text().count("\n")
    eventually(lambda: log.read_text().count("\n") > before + 3, message="its output goes on into its log")
    assert stop(daemon).returncode == 0
    assert not any(map(alive, pids))


def shown_at_all(daemon: Daemon) -> bool:
    jobs = json.loads(daemon.cli("ps", "-o", "json").stdout).get("jobs", [])
    return any(job["jobId"] == "job" for job in jobs)


@pytest.mark.slow
def test_a_journal_that_is_taken_away_is_reported_while_the_supervisor_lives(daemon: Daemon) -> None:
    pids = start(daemon)
    whole_folder(daemon.root.job("job").folder)
    eventually(lambda: any("somebody removed it" in text for text in daemon.get("job").warnings))
    done = stop(daemon)
    assert done.returncode == 0, done
    assert not any(map(alive, pids))
    assert daemon.cli("rm", "--force", "job").returncode == 0


def runs(daemon: Daemon) -> bool:
    """Until its journal is read again it is damaged, and nothing of it is known."""
    try:
        return bool(daemon.get("job").state == job_pb2.JOB_STATE_RUNNING)
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.DATA_LOSS, error
        return False


@pytest.mark.slow
def test_a_journal_that_is_put_back_is_continued(daemon: Daemon, tmp_path: Path) -> None:
    pids = start(daemon)
    folder, aside = daemon.root.job("job").folder, daemon.root.state / "aside"
    supervisor = daemon.supervisor_pid("job")
    folder.rename(aside)
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: shown(daemon).get("state") == "JOB_STATE_LOST")
    aside.rename(folder)
    eventually(lambda: runs(daemon), 60)
    daemon.stop("job", grace_s=0)
    assert not any(map(alive, pids))
    assert daemon.wait("job").state in (job_pb2.JOB_STATE_STOPPED, job_pb2.JOB_STATE_LOST)
