"""A disk that never answers, under the logs or the events: what needs no disk works, and nothing is lost."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from muster.v1 import job_pb2
from tests.conftest import Daemon, eventually
from tests.integration.jobs.test_jobs import reason

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="mounts a disk: needs root and FUSE"
    ),
]


@contextmanager
def disk(root: Path, target: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A disk mounted on a folder, and the process that answers for it."""
    backing, control = root / "backing", root / "control"
    for folder in (backing, target):
        folder.mkdir(mode=0o711, parents=True)
    serves = subprocess.Popen([sys.executable, "-m", "tests.chaos.passthrough", backing, target, control])
    try:
        eventually(lambda: os.path.ismount(target))
        yield serves
    finally:
        serves.kill()
        serves.wait()
        subprocess.run(["umount", "-l", target], check=True)


@pytest.mark.parametrize("name", ["events", "log"])
def test_looks_and_stops_work_and_nothing_is_lost(name: str, short_tmp: Path) -> None:
    daemon = Daemon(short_tmp)
    with disk(short_tmp, getattr(daemon.root, name)) as serves:
        try:
            _silence(daemon, serves, "events" if name == "events" else "audit.log")
        finally:
            serves.send_signal(signal.SIGCONT)
            daemon.close()


def _silence(daemon: Daemon, serves: "subprocess.Popen[bytes]", what: str) -> None:
    daemon.start()
    daemon.run("sleep", "600", job_id="a", ranks=2)
    ranks = executed(daemon, "a")
    serves.send_signal(signal.SIGSTOP)
    stopped = daemon.cli("stop", "a", "--grace", "1s")
    assert stopped.returncode == 0, stopped.stderr
    assert {state(pid) for pid in ranks} <= {"", "Z"}  # its supervisor may not be able to reap them
    assert "a " in daemon.cli("ps", "-a").stdout and daemon.cli("status", "a").returncode == 0
    said = eventually(lambda: [text for text in warnings(daemon) if what in text])
    assert "does not answer" in said[0] and "wait in memory" in said[0], said
    serves.send_signal(signal.SIGCONT)
    assert daemon.wait("a").state == job_pb2.JOB_STATE_STOPPED
    eventually(lambda: not [text for text in warnings(daemon) if what in text])
    calls = [json.loads(line) for line in daemon.root.audit_log.read_text().splitlines()]
    assert [call["call"].rpartition("/")[2] for call in calls] == ["Start", "Stop"]
    seen = [event.kind for event in daemon.event_list() if event.job_id == "a"]
    assert seen[0] == "job.accepted" and seen[-1] == "job.ended", seen
    daemon.kill()
    daemon.start()
    assert [event.kind for event in daemon.event_list() if event.job_id == "a"] == seen


def test_the_disk_of_the_records(short_tmp: Path) -> None:
    """The daemon answers, says so, and ends the ranks; the record of it follows."""
    daemon = Daemon(short_tmp)
    daemon.start()
    daemon.close()
    daemon.root.jobs.rmdir()
    with disk(short_tmp, daemon.root.jobs) as serves:
        try:
            daemon.start()
            daemon.run("true", job_id="ended")
            daemon.wait("ended")
            daemon.run("sleep", "600", job_id="a", ranks=2)
            ranks = executed(daemon, "a")
            serves.send_signal(signal.SIGSTOP)
            given_up = job_pb2.StartRequest(spec=job_pb2.JobSpec(job_id="given-up", command=["true"], ranks=1))
            waits = daemon.jobs.Start.future(given_up, timeout=90)
            with pytest.raises(grpc.RpcError):
                daemon.jobs.Stop(job_pb2.StopRequest(job_id="a"), timeout=5)
            eventually(lambda: {state(pid) for pid in ranks} <= {"", "Z"}, 120)
            eventually(lambda: any("does not answer" in text for text in warnings(daemon)))
            assert "a " in daemon.cli("ps").stdout and daemon.cli("status", "a").returncode == 0
            with pytest.raises(grpc.RpcError, match="nothing was started, and nothing will be") as refused:
                waits.result()
            assert reason(refused.value) == "DISK_SILENT"
            for command in (["rm", "ended"], ["run", "--", "true"]):
                said = daemon.cli(*command)
                assert said.returncode and f"{daemon.root.jobs}: its disk has not answered for" in said.stderr, said
            said = daemon.cli("report", "ended", "-o", "md")
            assert said.returncode == 1 and "its disk has not answered for 10 s" in said.stderr, said
            assert daemon.kill(signal.SIGTERM) == 0, "it does not wait for threads that the disk holds"
            serves.send_signal(signal.SIGCONT)
            daemon.start()
            assert daemon.wait("a").state == job_pb2.JOB_STATE_STOPPED
            assert {job.job_id for job in daemon.jobs.List(job_pb2.ListRequest()).jobs} == {"a", "ended"}
            eventually(lambda: not warnings(daemon))
        finally:
            serves.send_signal(signal.SIGCONT)
            daemon.close()


def executed(daemon: Daemon, job_id: str) -> list[int]:
    """The ranks of a job of `sleep`, once they have executed it. Who has not still has its supervisor's descriptors,
    and closes them as it exits: for that the kernel waits for the disk, and no signal ends the wait."""
    ranks = [rank.pid for rank in daemon.until_running(job_id).ranks]
    eventually(lambda: {Path(f"/proc/{pid}/comm").read_text() for pid in ranks} == {"sleep\n"})
    return ranks


def state(pid: int) -> str:
    """Of a process, as /proc says it; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def warnings(daemon: Daemon) -> list[str]:
    found: list[str] = json.loads(daemon.cli("node", "-o", "json").stdout).get("warnings", [])
    return found
