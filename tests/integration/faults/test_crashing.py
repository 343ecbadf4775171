"""Supervisors that die again and again: seen by everybody who looks, and no obstacle to a stop."""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from muster.supervisors.nursery import standby
from muster.supervisors.paths import Root
from muster.supervisors.wire import link, messages
from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually


def _successor(daemon: Daemon, before: int) -> int:
    pid = daemon.supervisor_pid("job")
    return pid if pid != before else 0


@pytest.mark.slow
def test_a_supervisor_that_dies_again_and_again_is_a_condition_and_its_job_can_be_stopped(daemon: Daemon) -> None:
    daemon.run("sleep", "3600", job_id="job")
    daemon.until_running("job")
    pid = daemon.rank_pid("job")
    killed = 0
    for _ in range(3):
        killed = eventually(partial(_successor, daemon, killed))
        os.kill(killed, signal.SIGKILL)
    text = eventually(lambda: (t := daemon.cli("node").stdout) and "SUPERVISOR_CRASHING" in t and t)
    assert "job job" in text and "was killed by SIGKILL" in text
    assert "SUPERVISOR_CRASHING" in daemon.cli("status", "job").stdout
    deaths = [event for event in daemon.event_list("job") if event.kind == "job.supervisor_died"]
    assert [event.attributes["how"] for event in deaths] == ["was killed by SIGKILL"] * 2  # of many, one a minute
    assert "it died 3 times within 60 s" in text

    # Of the job's: a nursery that is slow to come up has a line of its own.
    def logged() -> list[str]:
        lines = [line for line in daemon.stderr.read_text().splitlines(keepends=True) if "supervisor.died" in line]
        return [line for line in lines if line.endswith("\n") and json.loads(line)["job"] == "job"]

    eventually(lambda: len(logged()) >= 3)
    assert len(logged()) == 3 and str(killed) in logged()[-1]
    daemon.stop("job", grace_s=1)
    assert not alive(pid)
    assert daemon.get("job").state == job_pb2.JOB_STATE_STOPPED


def test_a_supervisor_sends_its_traceback_to_the_nursery(tmp_path: Path) -> None:
    """Of a job that has a folder, and no spec in it."""
    Root.under(tmp_path).job("none").folder.mkdir(parents=True)
    forked = standby.fork(Root.under(tmp_path), link.pair(), False, "none")
    _, status = os.waitpid(forked.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    message = messages.decode(forked.sock.recv(messages.MAX_LINE))
    assert message["op"] == "died"
    assert "Traceback" in message["error"] and "FileNotFoundError" in message["error"]
    forked.close()


@pytest.mark.slow
def test_a_nursery_that_cannot_be_started_says_why(daemon: Daemon, tmp_path: Path) -> None:
    """Of a broken installation, say."""
    daemon.run("true", job_id="before")
    daemon.wait("before")
    daemon.kill()
    eventually(lambda: not daemon.nursery_pid(), message="without job and daemon it ends")
    broken = tmp_path / "python"
    broken.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import no_such_module'\n")
    broken.chmod(0o755)
    start = f"import sys; sys.executable = {str(broken)!r}; from muster.agent.musterd import main; sys.exit(main())"
    whole, daemon.musterd = daemon.musterd, (sys.executable, "-c", start)
    daemon.start()
    daemon.run("true", job_id="job")
    said = "No module named 'no_such_module'"
    eventually(lambda: "SUPERVISOR_CRASHING" in (t := daemon.cli("node").stdout) and said in " ".join(t.split()), 60)
    eventually(lambda: any(said in text for text in daemon.get("job").warnings), 60)
    assert said in " ".join(daemon.cli("why", "job").stdout.split())
    death = next(e for e in daemon.event_list() if e.kind == "node.nursery_died" and "cannot be started" in e.message)
    assert "Traceback" in death.attributes["error"] and said in death.message
    daemon.kill()
    daemon.musterd = whole
    daemon.start()
    assert daemon.wait("job").state == job_pb2.JOB_STATE_SUCCEEDED
