"""Kills, restarts and stops at awkward moments: in the middle of a start, of a grace, of a session."""

import json
import time

import pytest

from tests.conftest import eventually
from tests.system.jobs import check_unharmed, main_pid, nursery, on_a_machine, pids, start, wait_up
from tests.system.machine import VENV, Machine

pytestmark = on_a_machine()

#: A rank that, told to end, takes its time and says so, as one that saves a checkpoint does.
_SAVES = 'trap "sleep 1.5; echo saved; exit 0" TERM; echo up; while :; do sleep 0.05; done 2>/dev/null'


def verdict(node: Machine, job_id: str) -> tuple[object, str]:
    job = node.job(job_id)
    return job["state"], json.dumps(job["verdict"])


@pytest.mark.parametrize("delay", [0.1, 0.5])
def test_a_restart_during_a_start(node: Machine, delay: float) -> None:
    """The job runs once: each caller is answered, by this daemon or the next."""
    job_id = f"starting-{delay}"
    ran = f"/tmp/{job_id}"
    script = f"echo $$ >> {ran}; sleep 4711"
    command = ("start", "--job-id", job_id, "--ranks", "2", "--", "sh", "-c", script)
    with node.begun(f"{VENV}/bin/muster", *command) as call:
        time.sleep(delay)  # the moment is what is tried
        node.run("systemctl", "restart", "musterd")
        out, err = call.communicate(timeout=60)
    if call.returncode:
        # The daemon went before it had accepted it: nothing of it may be there.
        assert "daemon" in err, err
        node.muster(*command)
    else:
        assert out.strip() == job_id
    eventually(lambda: node.job(job_id)["state"] == "JOB_STATE_RUNNING", message="the job to run")
    eventually(lambda: len(node.sh(f"cat {ran}").split()) == 2, message="both ranks to have begun")
    assert sorted(map(int, node.sh(f"cat {ran}").split())) == sorted(pids(node, job_id))


@pytest.mark.parametrize("how", ["restart", "kill -9"])
def test_during_the_grace_of_a_stop(node: Machine, how: str) -> None:
    """The ranks have their grace, and the job was stopped by whom it was stopped."""
    job_id = f"graceful-{how[:4].strip()}"
    start(node, job_id, script=_SAVES)
    eventually(lambda: node.muster("logs", job_id, "-r", "1") == "up", message="the trap to be set")
    with node.begun(f"{VENV}/bin/muster", "stop", job_id, "--grace", "20s", "--reason", "enough") as call:
        eventually(lambda: node.job(job_id)["state"] == "JOB_STATE_STOPPING", message="the stop to begin")
        if how == "restart":
            node.run("systemctl", "restart", "musterd")
        else:
            node.sh(f"kill -9 {main_pid(node)} {nursery(node)}")
        call.communicate(timeout=60)
    wait_up(node)
    eventually(lambda: node.job(job_id)["state"] == "JOB_STATE_STOPPED", 60, message="the job to end")
    assert "enough" in verdict(node, job_id)[1]
    for rank in "01":
        assert node.muster("logs", job_id, "-r", rank).splitlines() == ["up", "saved"]


def test_during_a_session(node: Machine) -> None:
    """A command in a job goes on over a restart of the daemon, and not a byte of its output is lost."""
    ranks = start(node, "spoken-to")
    count = "touch /tmp/spoken; i=0; while [ $i -lt 60 ]; do echo $i; i=$((i+1)); sleep 0.05; done; exit 9"
    with node.begun(f"{VENV}/bin/muster", "exec", "spoken-to", "--", "sh", "-c", count) as call:
        eventually(lambda: node.sh("ls /tmp/spoken 2>/dev/null || true"), message="the command to run")
        node.run("systemctl", "restart", "musterd")
        out, err = call.communicate(timeout=60)
    assert (call.returncode, out.split()) == (9, [str(i) for i in range(60)]), err
    check_unharmed(node, "spoken-to", ranks)


@pytest.mark.parametrize("how", ["daemon and nursery", "daemon-reexec", "reloads"])
def test_jobs_do_not_notice(node: Machine, how: str) -> None:
    job_id = "unmoved-" + how.replace(" ", "-")
    ranks = start(node, job_id)
    before = main_pid(node)
    if how == "daemon and nursery":
        node.sh(f"kill -9 {before} {nursery(node)}")
    elif how == "daemon-reexec":
        node.run("systemctl", "daemon-reexec")
        node.run("systemctl", "restart", "musterd")
    else:
        for _ in range(5):
            node.run("systemctl", "reload", "musterd")
        assert main_pid(node) == before
    if how != "reloads":
        eventually(lambda: main_pid(node) not in (0, before), 60, "another daemon")
    wait_up(node)
    check_unharmed(node, job_id, ranks)


def test_the_scope_of_a_job_is_stopped(node: Machine) -> None:
    """An order to systemd is one to us: the job is stopped, and says by what."""
    start(node, "descoped")
    node.run("systemctl", "stop", "muster-descoped.scope")
    eventually(lambda: node.job("descoped")["state"] == "JOB_STATE_STOPPED", 60, "the job to be stopped")
    assert "systemctl stop muster-descoped.scope" in verdict(node, "descoped")[1]


def test_the_slice_is_stopped(node: Machine) -> None:
    """Daemon, nursery and jobs all at once; the next daemon knows how each ended."""
    start(node, "sliced")
    start(node, "sliced-saving", script=_SAVES)
    eventually(lambda: node.muster("logs", "sliced-saving", "-r", "1") == "up", message="the trap to be set")
    node.run("systemctl", "stop", "muster.slice")
    assert node.sh("pgrep -a muster || true; ls -d /sys/fs/cgroup/muster.slice/* 2>/dev/null || true") == ""
    node.run("systemctl", "start", "musterd")
    wait_up(node)
    for job_id in ("sliced", "sliced-saving"):
        state, why = verdict(node, job_id)
        assert state == "JOB_STATE_STOPPED" and "SIGTERM" in why, why
    assert node.muster("logs", "sliced-saving", "-r", "0").splitlines() == ["up", "saved"]


def test_a_reboot_while_a_job_is_stopping(node: Machine) -> None:
    start(node, "in-between", script=_SAVES)
    eventually(lambda: node.muster("logs", "in-between", "-r", "1") == "up", message="the trap to be set")
    with node.begun(f"{VENV}/bin/muster", "stop", "in-between", "--grace", "20s", "--reason", "enough") as call:
        eventually(lambda: node.job("in-between")["state"] == "JOB_STATE_STOPPING", message="the stop to begin")
        node.reboot()
        call.kill()
    wait_up(node)
    state, why = verdict(node, "in-between")
    assert state == "JOB_STATE_STOPPED" and "enough" in why, why
    assert node.muster("logs", "in-between", "-r", "0").splitlines() == ["up", "saved"]
