"""A job whose record on disk is spoilt while its ranks run: it is shown, and `stop` ends its processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from muster.supervisors.system import lock
from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually
from tests.integration.test_last_resort import no_nursery, start

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
    """As `ps` without options lists it."""
    jobs = json.loads(daemon.cli("ps", "-o", "json").stdout)["jobs"]
    return next(job for job in jobs if job["jobId"] == "job")


def stop(daemon: Daemon, grace: str = "1s") -> "subprocess.CompletedProcess[str]":
    return daemon.cli("stop", "--grace", grace, "job")


@pytest.mark.parametrize("spoil", [garbage, folder, link_to_itself])
@pytest.mark.parametrize("name", ["journal", "spec.json"])
@pytest.mark.parametrize("supervisor", ["lives", "killed"])
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
    began = time.monotonic()
    done = stop(daemon)
    assert time.monotonic() - began < 36
    assert done.returncode == 0, done
    assert not any(map(alive, pids))
    assert "how its ranks ended is not known" in done.stderr and name in done.stderr
    # From here on it is a damaged job that has ended, as any other.
    with pytest.raises(grpc.RpcError) as refused:
        daemon.stop("job")
    assert refused.value.code() is grpc.StatusCode.DATA_LOSS
    eventually(lambda: not lock.holder(daemon.root.job("job").lock))
    assert daemon.cli("rm", "--force", "job").returncode == 0


@pytest.mark.parametrize("spoil", [garbage, folder])
def test_a_journal_that_is_spoilt_under_a_running_daemon(daemon: Daemon, spoil: Spoil) -> None:
    pids = start(daemon)
    spoil(daemon.root.job("job").journal)
    with no_nursery(daemon):
        done = stop(daemon)
        assert not any(map(alive, pids))
        assert done.returncode == 0, done


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
        assert f"{others[1].pid} (" in done.stderr and "not signalled" in done.stderr
    finally:
        for process in others:
            process.kill()
            process.wait()


def test_no_supervisor_is_forked_for_what_none_can_work_with(daemon: Daemon) -> None:
    """Neither before the stop nor behind it: the nursery ends its care at the first look."""
    start(daemon)
    folder(daemon.root.job("job").journal)
    nursery = daemon.nursery_pid()
    os.kill(lock.holder(daemon.root.job("job").lock), signal.SIGKILL)
    eventually(lambda: "is no file" in daemon.root.nursery_log.read_text())
    assert stop(daemon).returncode == 0
    eventually(lambda: not Path(f"/proc/{nursery}/task/{nursery}/children").read_text())
    daemon.kill()
    eventually(lambda: not alive(nursery), message="it has no job left, and ends")
    assert daemon.root.nursery_log.read_text().count("is no file") == 1


def test_a_process_that_dropped_its_mark(daemon: Daemon) -> None:
    """In a session of its own, without MUSTER_NONCE: its id and the job's FIFO tell whose it is."""
    script = "setsid env -u MUSTER_NONCE sh -c 'echo $$ > stray; trap \"\" TERM; while :; do sleep 1; done' & wait"
    daemon.run("sh", "-c", script, job_id="job")
    stray = daemon.root.job("job").workspace / "device0" / "stray"
    eventually(lambda: stray.exists() and stray.read_text().endswith("\n"))
    pid = int(stray.read_text())
    rank = int(daemon.get("job").ranks[0].pid)
    folder(daemon.root.job("job").journal)
    daemon.kill()
    os.kill(lock.holder(daemon.root.job("job").lock), signal.SIGKILL)
    os.kill(rank, signal.SIGKILL)
    daemon.start()
    eventually(lambda: shown(daemon))
    assert stop(daemon).returncode == 0
    assert not alive(pid)


def test_the_stop_goes_on_with_the_next_daemon(daemon: Daemon) -> None:
    pids = start(daemon)
    folder(daemon.root.job("job").journal)
    daemon.kill()
    os.kill(lock.holder(daemon.root.job("job").lock), signal.SIGKILL)
    daemon.start()
    request = job_pb2.StopRequest(job_id="job")
    request.grace.FromSeconds(8)
    request.timeout.FromSeconds(0)
    assert not daemon.jobs.Stop(request, timeout=20).ended
    eventually(daemon.root.stop_order("job").exists)
    restart(daemon)
    eventually(lambda: not any(map(alive, pids)), 40)


def test_ended_and_damaged_there_is_nothing_to_stop(daemon: Daemon) -> None:
    daemon.run("true", job_id="job")
    daemon.wait("job")
    daemon.kill()
    garbage(daemon.root.job("job").journal)
    daemon.start()
    with pytest.raises(grpc.RpcError) as refused:
        daemon.stop("job")
    assert refused.value.code() is grpc.StatusCode.DATA_LOSS
