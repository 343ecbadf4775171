"""Supervisors that die again and again: seen by everybody who looks, and no obstacle to a stop."""

import os
import signal
from pathlib import Path

from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually


def test_a_supervisor_that_cannot_begin_is_a_condition_and_its_job_can_be_stopped(daemon: Daemon) -> None:
    daemon.run("sleep", "3600", job_id="job")
    daemon.until_running("job")
    pid = daemon.rank_pid("job")
    journal: Path = daemon.root.job("job").journal
    aside = journal.with_name("aside")
    journal.rename(aside)
    journal.mkdir()  # each successor: Is a directory
    os.kill(daemon.supervisor_pid("job"), signal.SIGKILL)
    try:
        text = eventually(lambda: (t := daemon.cli("node").stdout) and "SUPERVISOR_CRASHING" in t and t, 60)
        assert "job job" in text
        assert "SUPERVISOR_CRASHING" in daemon.cli("status", "job").stdout
        assert "Is a directory" in daemon.cli("why", "job").stdout
        [first, *_] = [e for e in daemon.event_list("job") if e.kind == "job.supervisor_died" and e.attributes["error"]]
        assert "Traceback" in first.attributes["error"]
        assert "Traceback" in daemon.stderr.read_text()
        daemon.cli("stop", "job", "--grace", "1s", "--timeout", "1s")
        eventually(lambda: not alive(pid), 30)
    finally:
        journal.rmdir()
        aside.rename(journal)
    assert daemon.wait("job").state == job_pb2.JOB_STATE_STOPPED
    assert daemon.get("job").ranks[0].signal == signal.SIGTERM
