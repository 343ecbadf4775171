"""What a job may not do, seen from inside the job; and the limits of jobs as a whole, in whichever cgroup this node has
their controllers."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.supervisors.launch.creation import program_start
from muster.supervisors.model import journal
from muster.supervisors.model.rules import capabilities
from muster.v1 import job_pb2
from tests.conftest import BIN, Daemon, eventually, let_through

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
can_mount = pytest.mark.skipif(
    os.geteuid() == 0 and not capabilities.effective() >> capabilities.SYS_ADMIN & 1, reason="needs CAP_SYS_ADMIN"
)
NOBODY = "65534"
#: Prints as JSON what a process may do.
LOOK = r"""
import json, os, socket, sys
words = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
def tried(what, *args):
    try:
        what(*args)
    except OSError as error:
        return error.strerror
    return "done"
def wrote(path):
    return tried(lambda: open(path, "a").close())
print(json.dumps({
    "privileges": words["NoNewPrivs"], "bounding": int(words["CapBnd"], 16), "seccomp": words["Seccomp"],
    "tmp": sorted(os.listdir("/tmp")), "writes": {path: wrote(path) for path in sys.argv[1:]},
    "inet": tried(socket.socket, socket.AF_INET), "unix": tried(socket.socket, socket.AF_UNIX),
}))
"""


@pytest.fixture(scope="module", params=[True, False], ids=["program", "fork"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all tests: their jobs have different names."""
    if request.param and not program_start.PATH.exists():
        pytest.skip("there is no muster-spawn for this architecture")
    config = f"[jobs]\nspawn_program = {str(request.param).lower()}\n"
    daemon = Daemon(tmp_path_factory.mktemp("root"), config).start()
    let_through(daemon.folder)
    yield daemon
    daemon.close()


def seen(daemon: Daemon, job_id: str, *paths: str, **fields: Any) -> dict[str, Any]:
    """What a process of such a job sees."""
    daemon.run("/usr/bin/env", "python3", "-c", LOOK, *paths, job_id=job_id, **fields)
    job = daemon.wait(job_id)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job.verdict.summary + daemon.output(job).decode()
    found: dict[str, Any] = json.loads(daemon.output(job))
    return found


def test_a_job_of_another_user_has_no_way_to_more_rights(node: Daemon) -> None:
    found = seen(node, "rights", user=NOBODY)
    assert (found["privileges"], found["bounding"]) == ("1", 0)
    hardening = node.get("rights").hardening
    assert hardening.no_new_privs and hardening.bounded and not hardening.capabilities
    assert "no new privileges; capabilities none" in node.cli("status", "rights").stdout
    said = {"no_new_privs": "no", "capabilities": ["CAP_SYS_NICE", "kill"], "read_only": [], "private_tmp": "no"}
    found = seen(node, "kept", user=NOBODY, **said)
    kept = {name for number, name in enumerate(capabilities.NAMES) if found["bounding"] >> number & 1}
    assert (found["privileges"], kept) == ("0", {"sys_nice", "kill"})


def test_a_job_of_the_daemons_user_is_as_it_was(node: Daemon) -> None:
    found = seen(node, "own", "/tmp")
    assert (found["privileges"], found["seccomp"]) == ("0", "0")
    assert found["bounding"] & capabilities.effective() == capabilities.effective()
    assert not node.get("own").HasField("hardening")
    assert "hardening" not in node.cli("status", "own").stdout


@can_mount
def test_a_private_tmp_and_paths_that_are_read_only(node: Daemon, tmp_path: Path) -> None:
    """The daemon's own folders, and the working folder, are below /tmp: they stay where they are."""
    let_through(tmp_path)
    job_id = f"private-{os.getpid()}"
    data, work = tmp_path / "data", tmp_path / "work"
    for folder in (data, work):
        folder.mkdir()
        folder.chmod(0o777)
    (data / "set").write_text("")
    (data / "set").chmod(0o666)
    marker, fixed = Path(f"/tmp/muster-test-{os.getpid()}"), Path(f"/dev/shm/muster-test-{os.getpid()}")
    marker.touch()
    fixed.touch()
    fixed.chmod(0o666)
    command = "touch /tmp/mine /var/tmp/mine here; test -e go || while ! test -e go; do sleep 0.02; done"
    more = {"workdir": str(work), "private_tmp": "yes", "read_only": ["/usr", str(fixed)]}
    try:
        node.run("sh", "-c", command, job_id=job_id, user=NOBODY, ranks=2, **more)
        node.until_running(job_id)
        eventually((work / "here").exists)
        beside = "import os; print(sorted(os.listdir('/tmp')), os.path.exists('/var/tmp/mine'), os.getcwd())"
        answer = node.cli("exec", job_id, "--", "/usr/bin/env", "python3", "-c", beside).stdout
        assert "'mine'" in answer and marker.name not in answer and f" True {work}" in answer
        refused = node.cli("exec", job_id, "--", "sh", "-c", f"touch /usr/x; touch {fixed}; touch $PWD/y && echo ok")
        assert refused.stderr.count("Read-only file system") == 2 and refused.stdout == "ok\n"
        # From outside: what the job wrote is in a folder that other users cannot enter, and nothing else is there.
        outer = [path for path in Path("/tmp").glob(f"muster-{job_id}-*") if (path / "tmp/mine").exists()]
        assert len(outer) == 1 and outer[0].stat().st_mode & 0o777 == 0o700
        assert not Path("/tmp/mine").exists() and (work / "here").exists()
        assert f"private /tmp; read-only /usr {fixed}" in node.cli("status", job_id).stdout
        pid = node.rank_pid(job_id)
        assert Path("/proc", str(pid), "root", "tmp/mine").exists(), "what looks at a job from outside finds its files"
        (work / "go").touch()
        assert node.wait(job_id).state == job_pb2.JOB_STATE_SUCCEEDED
        eventually(lambda: not outer[0].exists())
    finally:
        marker.unlink()
        fixed.unlink()


@can_mount
def test_all_read_only_and_muster_writes_where_it_must(node: Daemon, tmp_path: Path) -> None:
    """As root: only the mount keeps it from writing. Logs, the rank's folder, devices and shared memory go on."""
    for name in ("pre_start", "epilog"):
        (tmp_path / name).write_text(f"#!/bin/sh\nexport FROM_STEP=1\necho from {name}\n")
        (tmp_path / name).chmod(0o755)
    paths = [f"/muster-test-{os.getpid()}", str(tmp_path / "y"), "mine", "/dev/null", f"/dev/shm/muster-{os.getpid()}"]
    steps = {name: str(tmp_path / name) for name in ("pre_start", "epilog")}
    found = seen(node, "all", *paths, read_only=["/"], **steps)
    Path(paths[-1]).unlink(missing_ok=True)
    refused = "Read-only file system"
    assert list(found["writes"].values()) == [refused, refused, "done", "done", "done"]
    assert "from epilog" in node.cli("logs", "all", "--job").stdout
    node.run("touch", paths[0], job_id="all2")
    assert node.wait("all2").state == job_pb2.JOB_STATE_SUCCEEDED, "the node itself is not read-only"
    Path(paths[0]).unlink()


@pytest.fixture
def in_tmp() -> Iterator[Path]:
    """A folder of everybody's in the node's own /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="muster-test-", dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@can_mount
def test_a_private_tmp_within_what_is_read_only(node: Daemon, in_tmp: Path) -> None:
    """A working folder in /tmp stays read-only; the private /tmp does not. Links to either lead there for the job."""
    link = Path(f"/dev/shm/muster-link-{os.getpid()}")
    link.symlink_to(in_tmp)
    (in_tmp / "link").symlink_to("/usr")
    job_id = f"within-{os.getpid()}"
    try:
        more = {"workdir": str(link), "private_tmp": "yes", "read_only": ["/"]}
        found = seen(node, job_id, "q", f"{in_tmp}/r", "/tmp/s", "/var/tmp/t", **more)
    finally:
        link.unlink()
    assert list(found["writes"].values()) == ["Read-only file system"] * 2 + ["done"] * 2
    assert [path.name for path in in_tmp.iterdir()] == ["link"]
    node.run("sh", "-c", "pwd -P", job_id=f"{job_id}-link", workdir=str(in_tmp / "link"), private_tmp="yes")
    assert node.output(node.wait(f"{job_id}-link")) == b"/usr\n"


@can_mount
def test_what_a_private_tmp_hides_is_refused(node: Daemon, in_tmp: Path) -> None:
    (in_tmp / "x").touch()
    for name, target in (("nowhere", "/no/such"), ("loop", "loop")):
        (in_tmp / name).symlink_to(target)
    script = str(in_tmp / "x")
    for options, said in (
        (["--private-tmp", "yes", "--read-only", "/tmp"], "hidden by the job's private /tmp, where it writes"),
        (["--private-tmp", "yes", "--read-only", script], "leave it out, or start the job with private_tmp no"),
        (["--private-tmp", "yes", "--pre-start", script], "hidden by the job's private /tmp: move it elsewhere"),
        (["--private-tmp", "yes", "--epilog", script], "epilog: "),
        (["--private-tmp", "yes", "--input", f"file://{script}=x"], f"'{script}': is hidden by the job's private /tmp"),
        (["--read-only", str(in_tmp / "nowhere")], "no such file or directory: give a path"),
        (["--read-only", str(in_tmp / "loop")], "too many levels of symbolic links: give a path"),
    ):
        done = node.cli("run", *options, "--", "true")
        assert done.returncode == 2 and said in done.stderr, (options, done.stderr)


@can_mount
def test_outputs_that_were_not_delivered_stay_in_the_private_tmp(node: Daemon) -> None:
    job_id = f"undelivered-{os.getpid()}"
    outputs = {"/tmp/res": "file:///proc/nope/"}
    command = "mkdir /tmp/res; echo precious >/tmp/res/model"
    node.run("sh", "-c", command, job_id=job_id, private_tmp="yes", outputs=outputs)
    job = node.wait(job_id)
    assert (job.state, job.outputs_kept) == (job_pb2.JOB_STATE_FAILED, True), job
    eventually(lambda: not node.supervisor_pid(job_id))
    (kept,) = Path("/tmp").glob(f"muster-{job_id}-*/tmp/res")
    assert (kept / "model").read_text() == "precious\n"
    assert f"this node has them at {kept}; muster keeps them" in job.verdict.summary
    assert str(kept) in node.cli("status", job_id).stdout
    assert f"Copy them from this node: {kept}" in eventually(lambda: node.cli("why", job_id).stdout)
    assert node.cli("rm", job_id).returncode == 0 and not kept.parents[1].exists()


@can_mount
def test_a_private_tmp_that_a_killed_supervisor_left_is_removed_by_the_next_daemon(
    make_daemon: Callable[..., Daemon],
) -> None:
    """And no folder that only looks like one, nor that of a job which runs."""
    daemon = make_daemon()
    places: dict[str, Path] = {}
    for job_id in ("ended", "runs"):
        daemon.run("sleep", "600", job_id=job_id, private_tmp="yes")
        daemon.until_running(job_id)
        token = journal.read(daemon.root.job(job_id).journal).records[0]["hardening"]["private_tmp"]
        places[job_id] = Path(f"/tmp/muster-{job_id}-{token}")
        assert (places[job_id] / "tmp").is_dir()
    daemon.stop("ended")
    eventually(lambda: not places["ended"].exists())
    other = Path(f"/tmp/muster-ended-{secrets.token_hex(8)}")
    try:
        for folder in (places["ended"], other):
            (folder / "tmp" / "deep").mkdir(parents=True)
        daemon.kill()
        daemon.start()
        eventually(lambda: not places["ended"].exists())
        assert other.exists() and (places["runs"] / "tmp").is_dir()
        daemon.stop("runs")
        eventually(lambda: not places["runs"].exists())
    finally:
        shutil.rmtree(other)


def test_a_seccomp_profile_as_docker_has_it(node: Daemon, tmp_path: Path) -> None:
    refuse = {"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": 97}
    profile: dict[str, Any] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        refuse | {"args": [{"index": 0, "value": 2, "op": "SCMP_CMP_EQ"}]},
        {"names": ["kexec_load", "no_such_call"], "action": "SCMP_ACT_KILL_PROCESS"},
    ]}  # fmt: skip
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile))
    for job_id, user in (("calls", NOBODY), ("calls2", "")):
        found = seen(node, job_id, user=user, seccomp=str(path))
        assert (found["seccomp"], found["privileges"]) == ("2", "1")
        assert (found["inet"], found["unix"]) == (os.strerror(97), "done")
    assert f"seccomp {path}" in node.cli("status", "calls").stdout
    # The next attempt has the filter that was accepted, whatever became of the file.
    path.write_text("no profile")
    for text, said in (
        ("{", "is not JSON"), ("[]", "is not a seccomp profile"),
        (json.dumps({"defaultAction": "SCMP_ACT_ERRNO"}), "does not allow execve"),
        (json.dumps({"defaultAction": "SCMP_ACT_NOTIFY"}), "nobody would answer"),
    ):  # fmt: skip
        path.write_text(text)
        done = node.cli("run", "--seccomp", str(path), "--", "true")
        assert done.returncode == 2 and said in done.stderr, done.stderr
    done = node.cli("run", "--seccomp", f"{path}.none", "--", "true")
    assert done.returncode == 2 and "no such file" in done.stderr


def test_settings_are_for_jobs_of_other_users_and_not_undone_by_them(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon('[hardening]\nno_new_privs = false\ncapabilities = ["kill"]\nmax_pids_percent = 0\n')
    let_through(daemon.folder)
    found = seen(daemon, "x", user=NOBODY)
    assert (found["privileges"], found["bounding"]) == ("0", 1 << capabilities.NAMES.index("kill"))
    assert daemon.get("x").hardening.max_pids == 0
    refused = daemon.cli("run", "--read-only", "/no/such/path", "--", "true")
    assert refused.returncode == 2 and "no such file or directory: give a path" in refused.stderr


def check_command(daemon: Daemon) -> list[str]:
    return [str(BIN / "musterd"), "--root", str(daemon.folder), "--config", str(daemon.config), "--check-config"]


def check_config(daemon: Daemon) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(check_command(daemon), capture_output=True, text=True, timeout=60, check=False)


@can_mount
@pytest.mark.slow
def test_settings_that_jobs_would_trip_over_are_no_good_configuration(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon('[hardening]\nprivate_tmp = true\nread_only = ["/tmp", "/no/such"]\n')
    let_through(daemon.folder)
    found = seen(daemon, "x", "/tmp/x", user=NOBODY)
    assert found["writes"] == {"/tmp/x": "done"}
    assert daemon.get("x").hardening.private_tmp and "/tmp" not in daemon.get("x").hardening.read_only
    good = check_config(daemon)
    assert good.returncode == 0 and "'/no/such' does not exist on this node" in good.stderr
    profile = daemon.folder / "profile"
    for text, said in (("", "no such file"), ("{", "is not JSON"), ('{"sycalls": []}', "is not a seccomp profile")):
        if text:
            profile.write_text(text)
        daemon.config.write_text(f"[hardening]\nseccomp_profile = '{profile}'\n")
        bad = check_config(daemon)
        told = f"seccomp_profile in [hardening]: '{profile}': {said}"
        assert bad.returncode == 1 and told in bad.stderr, bad.stderr
    os.kill(daemon.pid, signal.SIGHUP)
    eventually(lambda: f"the previous one stays in force: {told}" in " ".join(daemon.cli("node").stdout.split()))
    assert seen(daemon, "y", user=NOBODY)["seccomp"] == "0"
    daemon.kill(signal.SIGTERM)
    began = subprocess.run(check_command(daemon)[:-1], capture_output=True, text=True, timeout=60, check=False)
    assert (began.returncode, began.stderr) == (1, bad.stderr)


# --- limits of the job as a whole -------------------------------------------------------------------------------------

FORKS = """
import os, sys, time
made = 0
try:
    while made < 100:
        if os.fork() == 0:
            time.sleep(600)
        made += 1
except OSError as error:
    print(made, error.strerror, flush=True)
time.sleep(600)
"""


def test_a_limit_of_processes_holds_and_all_of_them_end(daemon: Daemon) -> None:
    daemon.run(sys.executable, "-c", FORKS, job_id="x", limits={"pids": 20})
    job = daemon.until_running("x")
    if any("limit of pids" in text for text in job.warnings):
        pytest.skip(f"no pids controller here: {job.warnings}")
    eventually(lambda: daemon.output(daemon.get("x")).endswith(b"\n"))
    assert daemon.output(daemon.get("x")) == b"19 Resource temporarily unavailable\n"
    assert daemon.get("x").hardening.max_pids == 20
    assert "at most 20 processes and threads" in daemon.cli("status", "x").stdout
    assert daemon.stop("x", grace_s=0).ended
    marks = [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"made < 100" in _read(p)]
    assert marks == [], "nothing of it is left"
    eventually(lambda: not daemon.cgroups("x"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_limit_of_memory_and_cpus_holds(daemon: Daemon) -> None:
    eat = "x = []\nwhile True: x.append(b'x' * (1 << 20))"
    daemon.run(sys.executable, "-c", eat, job_id="x", limits={"memory_bytes": 96 << 20, "cpus": 1.5})
    job = daemon.wait("x")
    if any("limit of memory" in text for text in job.warnings):
        pytest.skip(f"no memory controller here: {job.warnings}")
    (rank,) = job.ranks
    assert (rank.outcome, rank.signal) == (job_pb2.RANK_OUTCOME_OUT_OF_MEMORY, signal.SIGKILL)
    assert "limit of 96 MiB" in job.verdict.summary
