"""Releases take turns on one root while jobs run: an upgrade, and the way back (docs/guides/upgrade.md)."""

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from muster.probes.kernel import open_files
from muster.supervisors.paths import Root
from muster.supervisors.system import lock
from muster.v1 import exec_pb2, exec_pb2_grpc, job_pb2
from tests.conftest import alive, eventually
from tests.integration.install.old_release import LAST, Node, Release, nodes

#: Writes numbers until a file is there, then as many as the file says, and exits with 5 plus its rank.
COUNTS = (
    "import os, sys, time\n"
    "n = 0\n"
    "while True:\n"
    "    print(n, flush=True)\n"
    "    n += 1\n"
    "    if os.path.exists('go'): break\n"
    "    time.sleep(0.002)\n"
    "print('last', n, flush=True)\n"
    "sys.exit(5 + int(os.environ['RANK']))\n"
)
COMMAND = (sys.executable, "-S", "-c", COUNTS)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return Release(LAST / "packages.tar.xz", tmp_path_factory.mktemp("last"))


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with nodes(lambda: tmp_path_factory.mktemp("root")) as make:
        yield make()


def begin(node: Node, job_id: str = "job", ranks: int = 2, **fields: object) -> list[int]:
    """A job all of whose ranks write; returns their pids."""
    node.run(*COMMAND, job_id=job_id, ranks=ranks, **fields)
    node.until_running(job_id)  # the daemon hears of it a little later than the ranks run
    eventually(lambda: all(node.output(node.get(job_id), rank) for rank in range(ranks)))
    return pids(node, job_id)


def pids(node: Node, job_id: str = "job") -> list[int]:
    return [rank.pid for rank in node.get(job_id).ranks]


def expect_running(node: Node, ranks: list[int], job_id: str = "job") -> None:
    job = node.until_running(job_id)
    assert job.state == job_pb2.JOB_STATE_RUNNING and pids(node, job_id) == ranks
    assert all(alive(pid) for pid in ranks)
    size = len(node.output(job))
    eventually(lambda: len(node.output(job)) > size, message="output goes on")


def expect_end(node: Node, job_id: str = "job", rank: int = 0) -> None:
    """The rank is let go, and so fails the job with its code; not a byte of what it wrote is missing or doubled."""
    (node.root.job(job_id).workspace / f"device{rank}" / "go").touch()
    job = node.wait(job_id)
    assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 5 + rank), job
    assert job.ranks[rank].outcome == job_pb2.RANK_OUTCOME_EXITED
    assert all(r.outcome == job_pb2.RANK_OUTCOME_GANG_VICTIM for r in job.ranks if r.rank != rank)
    for one in job.ranks:
        lines = node.output(job, one.rank).decode().splitlines()
        if one.rank == rank:
            assert lines.pop() == f"last {len(lines)}"
        assert lines == [str(n) for n in range(len(lines))]
        shown = node.cli("logs", job_id, "-r", str(one.rank))
        assert shown.stdout.encode() == node.output(job, one.rank), shown.stderr


def execute(node: Node, job_id: str, *command: str) -> exec_pb2.RunCommandResponse:
    assert node.channel is not None
    stub = exec_pb2_grpc.ExecServiceStub(node.channel)
    return stub.RunCommand(exec_pb2.RunCommandRequest(job_id=job_id, argv=command), timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_upgrade_with_a_job_that_runs(node: Node, last: Release, number: int) -> None:
    node.start_old(last)
    ranks = begin(node)
    tended = node.supervisor_pid("job")
    old = node.nurseries()
    assert node.kill(number) == (0 if number == signal.SIGTERM else -number)
    node.start_new()
    expect_running(node, ranks)
    assert node.supervisor_pid("job") == tended and not node.get("job").takeovers

    # What its supervisor does not know is refused with the reason, and that it knows no sessions hides those of others.
    refused = node.cli("exec", "job", "--", "true")
    assert refused.returncode != 0 and "an earlier release of muster started this job" in refused.stderr
    assert node.cli("exec", "--list").returncode == 0

    # New jobs are the new release's alone, with all that it knows.
    notify = job_pb2.Notify(webhook="http://127.0.0.1:9/hook", secret="of the new release")
    begin(node, "new", notify=notify)
    (ours,) = node.nurseries() - old  # which has just given a supervisor to the job
    assert int(_stat(node.supervisor_pid("new"))[1]) == ours
    assert execute(node, "new", "sh", "-c", "echo $RANK").stdout == b"0\n"

    expect_end(node, rank=1)
    eventually(lambda: not alive(tended), message="its supervisor ends with it")
    assert node.get("job").takeovers == 0
    eventually(lambda: node.nurseries() == {ours}, 60, "the old nursery ends with its last job")
    expect_end(node, "new")


def test_another_environment_of_the_same_release(node: Node, tmp_path: Path) -> None:
    """It may be removed when its last job has ended: what a new job's supervisor executes must not be there."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    python = tmp_path / "venv/bin/python"
    named = "import sysconfig; print(sysconfig.get_path('purelib'))"
    (packages,) = subprocess.run([python, "-c", named], capture_output=True, text=True, check=True).stdout.splitlines()
    here = sysconfig.get_path("purelib")
    (Path(packages) / "all.pth").write_text(f"{here}\nimport site; site.addsitedir({here!r})\n")
    node.musterd = (python, "-m", "muster.agent.musterd")
    node.start()
    ranks = begin(node)
    (old,) = node.nurseries()
    node.kill(signal.SIGTERM)
    node.start_new()
    expect_running(node, ranks)
    begin(node, "new")
    (ours,) = node.nurseries() - {old}
    assert int(_stat(node.supervisor_pid("new"))[1]) == ours
    assert Path(f"/proc/{ours}/cmdline").read_bytes().split(b"\0")[0].decode() == sys.executable
    expect_end(node)
    eventually(lambda: node.nurseries() == {ours}, 60, "the nursery of the other environment ends with its last job")
    expect_end(node, "new")


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def test_an_old_job_is_stopped(node: Node, last: Release) -> None:
    node.start_old(last)
    ranks = begin(node)
    node.kill(signal.SIGTERM)
    node.start_new()
    stopped = node.cli("stop", "job", "--grace", "5s")
    assert stopped.returncode == 0, stopped.stderr
    job = node.wait("job")
    assert job.state == job_pb2.JOB_STATE_STOPPED and not any(alive(pid) for pid in ranks)
    assert {rank.outcome for rank in job.ranks} == {job_pb2.RANK_OUTCOME_STOPPED}


@pytest.mark.parametrize("killed", ["supervisor", "nursery", "both"])
@pytest.mark.slow
def test_kills_behind_an_upgrade(node: Node, last: Release, killed: str) -> None:
    """The old nursery replaces its supervisors as long as it lives, then the new one does."""
    node.start_old(last)
    ranks = begin(node)
    (old,) = node.nurseries()
    node.kill(signal.SIGKILL)
    node.start_new()
    expect_running(node, ranks)
    (ours,) = eventually(lambda: node.nurseries() - {old})
    eventually(lambda: _holds(ours, node, "job"), message="the new nursery knows the job")
    before = node.supervisor_pid("job")
    if killed != "supervisor":
        os.kill(old, signal.SIGKILL)
    if killed != "nursery":
        os.kill(before, signal.SIGKILL)
        after = eventually(lambda: node.supervisor_pid("job") not in (0, before) and node.supervisor_pid("job"))
        assert int(_stat(after)[1]) == (old if killed == "supervisor" else ours)
    expect_running(node, ranks)
    expect_end(node, rank=1)
    assert node.get("job").takeovers == (killed != "nursery")


def _holds(nursery: int, node: Node, job_id: str) -> bool:
    return str(node.root.job(job_id).fifo(0)) in set(open_files.targets(nursery))


def test_a_job_ends_between_two_releases(node: Node, last: Release) -> None:
    node.start_old(last)
    ranks = begin(node)
    node.kill(signal.SIGTERM)
    (node.root.job("job").workspace / "device1" / "go").touch()
    eventually(lambda: not any(alive(pid) for pid in ranks))
    node.start_new()
    expect_end(node, rank=1)
    kinds = [event.kind for event in node.event_list("job")]
    assert kinds.count("job.accepted") == kinds.count("job.ended") == 1 and kinds.count("rank.exited") == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_way_back_with_a_job_that_runs(node: Node, last: Release, number: int) -> None:
    node.start_new()
    ranks = begin(node)
    begin(node, "other")
    tended = node.supervisor_pid("job")
    node.kill(number)
    node.start_old(last)
    expect_running(node, ranks)
    assert node.supervisor_pid("job") == tended
    listed = node.cli("ps")
    assert listed.returncode == 0 and "other" in listed.stdout
    assert node.stop("other", grace_s=5).ended and node.get("other").state == job_pb2.JOB_STATE_STOPPED
    begin(node, "old")  # by the old release, beside
    expect_end(node, rank=1)
    # And forward again.
    before = pids(node, "old")
    node.kill(number)
    node.start_new()
    expect_running(node, before, "old")
    expect_end(node, "old")
    states = {job.job_id: job.state for job in node.jobs.List(job_pb2.ListRequest(), timeout=60).jobs}
    assert states["job"] == job_pb2.JOB_STATE_FAILED and states["other"] == job_pb2.JOB_STATE_STOPPED


@pytest.mark.parametrize("killed", ["supervisor", "both"])
def test_kills_behind_the_way_back(node: Node, last: Release, killed: str) -> None:
    node.start_new()
    ranks = begin(node)
    (newer,) = node.nurseries()
    node.kill(signal.SIGKILL)
    node.start_old(last)
    expect_running(node, ranks)
    (older,) = eventually(lambda: node.nurseries() - {newer})
    eventually(lambda: _holds(older, node, "job"))
    before = node.supervisor_pid("job")
    if killed == "both":
        os.kill(newer, signal.SIGKILL)
    os.kill(before, signal.SIGKILL)
    eventually(lambda: node.supervisor_pid("job") not in (0, before))
    expect_running(node, ranks)
    expect_end(node, rank=1)


@pytest.mark.slow
def test_a_job_that_the_old_release_cannot_read(node: Node, last: Release) -> None:
    """It says so and leaves the job alone; the new one has it back as it was."""
    node.start_new()
    ranks = begin(node, notify=job_pb2.Notify(webhook="http://127.0.0.1:9/hook", secret="of the new release"))
    node.kill(signal.SIGTERM)
    node.start_old(last)
    with pytest.raises(grpc.RpcError, match=r"DATA_LOSS.*\n.*spec.json.*notify_secret"):
        node.stop("job", grace_s=0)
    listed = {job.job_id: job.verdict.summary for job in node.jobs.List(job_pb2.ListRequest(), timeout=60).jobs}
    assert "notify_secret" in listed["job"]
    assert all(alive(pid) for pid in ranks)
    node.kill(signal.SIGTERM)
    node.start_new()
    expect_running(node, ranks)
    expect_end(node, rank=1)


@pytest.mark.slow
def test_a_supervisor_of_another_protocol(node: Node, tmp_path: Path) -> None:
    """Its job is followed by its journal; a stop ends the processes all the same; its own musterd gives orders."""
    changes = {"supervisors/__init__.py": ("PROTOCOL = 1", "PROTOCOL = 2")}
    other = Release(LAST / "packages.tar.xz", tmp_path, changes)
    node.start_old(other)
    ranks = begin(node)
    begin(node, "stopped")
    node.kill(signal.SIGTERM)
    node.start_new()
    expect_running(node, ranks)
    # Nobody here can give that supervisor an order: its job's processes are ended all the same.
    assert node.cli("stop", "stopped").returncode == 0
    begin(node, "beside")
    assert execute(node, "beside", "true").exited.exit_code == 0
    assert node.stop("beside", grace_s=0).ended  # the other's daemon could not
    expect_end(node, rank=1)
    node.kill(signal.SIGTERM)
    node.start_old(other)
    assert node.stop("stopped", grace_s=5).ended


@pytest.mark.slow
def test_a_running_daemon_of_the_first_release_finds_a_nursery_of_this_code(tmp_path: Path) -> None:
    """While the packages are replaced below it: this is the command line that it has."""
    root = Root.under(tmp_path)
    for folder in (root.run, root.state, root.log):
        folder.mkdir()
    places: list[str | Path] = ["--run", root.run, "--state", root.state, "--log", root.log, "--nofile", "1024"]
    command = [sys.executable, "-I", "-m", "muster.supervisors.nursery.nursery", *places]

    def started() -> int:
        """Its pid; 0 where it has already ended again, as it does after some seconds."""
        subprocess.run(command, check=True, timeout=60)
        return lock.holder(root.run / "nursery.lock") if (root.run / "nursery.sock").is_socket() else 0

    pid = eventually(started)
    eventually(lambda: not alive(pid), 60, "without jobs and without a daemon it ends")


@pytest.mark.slow
def test_a_field_of_a_newer_release_costs_no_job(node: Node) -> None:
    """Neither the daemon nor a supervisor that succeeds another gives a job up for it."""
    node.start_new()
    ranks = begin(node)
    node.kill(signal.SIGTERM)
    spec = node.root.job("job").spec
    spec.write_text(spec.read_text().replace("{", '{"of_a_newer_release":[1],', 1))
    node.start_new()
    before = node.supervisor_pid("job")
    os.kill(before, signal.SIGKILL)
    eventually(lambda: node.supervisor_pid("job") not in (0, before))
    expect_running(node, ranks)
    expect_end(node, rank=1)
