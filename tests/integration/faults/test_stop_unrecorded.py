"""`stop` waits for no disk: it returns when nothing of the job lives, and says what is still to be recorded."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.supervisors.system import lock
from muster.v1 import job_pb2
from tests.conftest import alive, eventually
from tests.integration.box import Boxed, mounted
from tests.integration.faults.test_last_resort import order, start, start_slow


@pytest.fixture
def boxed(tmp_path: Path) -> Iterator[Boxed]:
    """A daemon whose mounts are its own."""
    daemon = Boxed(tmp_path, '[checks]\npolicy = "off"\n', mounted(":"))
    try:
        yield daemon.start()
    finally:
        daemon.close()


def mount(daemon: Boxed, *args: str) -> None:
    """In the namespace of the daemon, its nursery and supervisors."""
    assert daemon.process is not None
    command = ["nsenter", f"--mount=/proc/{daemon.process.pid}/ns/mnt", *args]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def read_only(daemon: Boxed) -> None:
    state = str(daemon.root.state)
    mount(daemon, "mount", "--bind", "-o", "ro", state, state)


@pytest.mark.slow
def test_state_folder_read_only_and_no_supervisor(boxed: Boxed) -> None:
    pids = start(boxed)
    read_only(boxed)
    os.kill(boxed.nursery_pid(), signal.SIGKILL)
    os.kill(lock.holder(boxed.root.job("job").lock), signal.SIGKILL)
    journal = boxed.root.job("job").journal
    before = journal.read_bytes()
    done = boxed.cli("stop", "--grace", "1s", "job")
    assert done.returncode == 0, done
    assert not any(map(alive, pids))
    if journal.read_bytes() == before:
        assert "as soon as its journal takes a record" in done.stderr and "STOPPING" in done.stdout, done
        listed = json.loads(boxed.cli("ps", "-o", "json").stdout)["jobs"]
        assert [job["state"] for job in listed] == ["JOB_STATE_STOPPING"]
    mount(boxed, "umount", "-l", str(boxed.root.state))
    assert boxed.wait("job").state in (job_pb2.JOB_STATE_STOPPED, job_pb2.JOB_STATE_LOST)


@pytest.mark.slow
def test_the_supervisor_that_took_it_is_killed(boxed: Boxed) -> None:
    """It had sent SIGTERM, and could write neither that nor the stop into the journal."""
    pid = start_slow(boxed)
    first = boxed.supervisor_pid("job")
    read_only(boxed)
    os.kill(first, signal.SIGKILL)  # it had the journal open for writing
    second = eventually(lambda: (found := boxed.supervisor_pid("job")) != first and found)
    journal = boxed.root.job("job").journal
    before = journal.read_bytes()
    order(boxed, 60.0)
    eventually(lambda: boxed.get("job").state == job_pb2.JOB_STATE_STOPPING)
    assert journal.read_bytes() == before
    os.kill(second, signal.SIGKILL)
    eventually(lambda: not alive(pid))
    mount(boxed, "umount", "-l", str(boxed.root.state))
    job = boxed.wait("job")
    assert (job.state, job.verdict.stopped_by != "") == (job_pb2.JOB_STATE_STOPPED, True), job
    assert (job.ranks[0].outcome, job.ranks[0].exit_code) == (job_pb2.RANK_OUTCOME_STOPPED, 3)


@pytest.mark.slow
def test_a_job_of_which_nothing_exists_yet(boxed: Boxed) -> None:
    """It waits for its rank table, and the state folder takes no write."""
    boxed.run("true", job_id="job", rank_table=str(boxed.folder / "table.json"))
    eventually(lambda: boxed.get("job").state == job_pb2.JOB_STATE_CHECKING)
    boxed.kill()
    state = boxed.root.state
    boxed.prefix = mounted(f"mount --bind -o ro {state} {state}")
    boxed.start()
    done = boxed.cli("stop", "job")
    assert done.returncode == 0, done
    assert "as soon as its journal takes a record" in done.stderr and "STOPPING" in done.stdout, done
    mount(boxed, "umount", "-l", str(state))
    assert boxed.wait("job").state == job_pb2.JOB_STATE_STOPPED


@pytest.mark.slow
def test_settings_are_written_once_the_folder_takes_them(boxed: Boxed) -> None:
    def warned() -> bool:
        return "write settings" in boxed.cli("node").stderr + boxed.cli("node").stdout

    boxed.kill()
    state = boxed.root.state
    boxed.prefix = mounted(f"mount --bind -o ro {state} {state}")
    boxed.start()
    eventually(warned)
    mount(boxed, "umount", "-l", str(state))
    eventually(lambda: not warned(), 60)
