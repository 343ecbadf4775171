"""Jobs on the machine, and what must be true of them whatever is done to it."""

import json

import pytest

from tests.conftest import eventually
from tests.system import machine
from tests.system.machine import Machine


def on_a_machine() -> list[pytest.MarkDecorator]:
    """Marks of a module whose tests need it."""
    why = machine.missing()
    return [
        pytest.mark.system,
        pytest.mark.slow,
        pytest.mark.timeout(600),
        pytest.mark.xdist_group("machine"),
        pytest.mark.skipif(bool(why), reason=why or "there is such a machine"),
    ]


#: A rank that counts into its file and ends when it is told to, so that a lost or doubled line would be seen.
_COUNT = 'trap "exit 7" USR1; i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done'


def all_jobs(node: Machine) -> list[str]:
    return [str(job["jobId"]) for job in json.loads(node.muster("ps", "-a", "-o", "json")).get("jobs", [])]


def start(node: Machine, job_id: str, *options: str, script: str = _COUNT) -> list[int]:
    """Starts a job of two ranks; returns their pids."""
    node.muster("start", "--job-id", job_id, "--ranks", "2", *options, "--", "sh", "-c", script)
    eventually(lambda: node.job(job_id)["state"] == "JOB_STATE_RUNNING", message="the job to run")
    return pids(node, job_id)


def pids(node: Machine, job_id: str) -> list[int]:
    ranks = node.job(job_id)["ranks"]
    assert isinstance(ranks, list)
    return [int(rank["pid"]) for rank in ranks]


def check_unharmed(node: Machine, job_id: str, before: list[int]) -> None:
    """The ranks are the same, end with their own code, and not a line is lost or doubled."""
    assert pids(node, job_id) == before
    node.sh(f"kill -USR1 {before[0]}")
    eventually(lambda: node.job(job_id)["state"] == "JOB_STATE_FAILED", message="the job to end")
    assert node.run(f"{node.programs}/muster", "wait", job_id, check=False) == f"{job_id} FAILED"
    job = node.job(job_id)
    assert job["verdict"]["exitCode"] == 7, job  # type: ignore[index]  # JSON
    for rank in (0, 1):
        lines = node.muster("logs", job_id, "-r", str(rank)).splitlines()
        assert lines == [str(i) for i in range(len(lines))]


def main_pid(node: Machine) -> int:
    return int(node.show("musterd", "MainPID"))


def nursery(node: Machine) -> str:
    """Its pid; beside it in its scope is the supervisor that waits for the next job, its child."""
    return min(node.sh("cat /sys/fs/cgroup/muster.slice/muster-nursery:*.scope/cgroup.procs").split(), key=int)


def wait_up(node: Machine) -> None:
    eventually(lambda: node.show("musterd", "ActiveState") == "active", 60, "the service to be up")
    eventually(lambda: node.muster("ps", check=False) != "", 60, "the daemon to answer")
