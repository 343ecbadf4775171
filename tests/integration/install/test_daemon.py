"""The daemon itself: what it refuses to start on, and how it ends."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from muster.v1 import job_pb2
from tests.chaos import passthrough
from tests.conftest import BIN, Daemon, eventually, remove


def musterd(*args: str, **kwargs: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(BIN / "musterd"), *args], capture_output=True, text=True, timeout=60, check=False)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_health_is_reported_of_the_daemon_and_of_each_service(daemon: Daemon) -> None:
    serving = health_pb2.HealthCheckResponse.SERVING
    with grpc.insecure_channel(daemon.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        listed = stub.List(health_pb2.HealthListRequest(), timeout=60).statuses  # type: ignore[attr-defined]
        assert {name: answer.status for name, answer in listed.items()} == dict.fromkeys(listed, serving)
        assert {"", "muster.v1.JobService", "muster.v1.ExecService"} <= set(listed)
        for name in listed:
            assert stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=60).status == serving


def test_a_second_daemon_on_the_same_root_is_refused(daemon: Daemon) -> None:
    second = musterd("--root", str(daemon.folder))
    assert second.returncode == 1
    assert str(daemon.pid) in second.stderr and "musterd" in second.stderr
    assert daemon.cli("node").returncode == 0  # the first one does not notice


@pytest.mark.slow
@pytest.mark.parametrize("removed", ["run folder", "socket"])
def test_a_daemon_that_cannot_be_reached_any_more_ends_and_the_next_one_takes_over(
    daemon: Daemon, removed: str
) -> None:
    daemon.run("sleep", "3600", job_id="job", ranks=2)
    ranks = [rank.pid for rank in daemon.until_running("job").ranks]
    os.kill(daemon.pid, signal.SIGSTOP)  # so that it is still there when the second one starts
    if removed == "socket":
        daemon.root.socket.unlink()
    else:
        remove(daemon.root.run)
        second = musterd("--root", str(daemon.folder))
        assert second.returncode == 1 and f"(pid {daemon.pid}) writes to this state folder" in second.stderr
        assert f"kill {daemon.pid}" in second.stderr
    os.kill(daemon.pid, signal.SIGCONT)
    assert daemon.process is not None and daemon.process.wait(60) == 1
    assert f"{daemon.root.socket}: was removed while musterd listened on it" in daemon.stderr.read_text()
    daemon.start()
    assert [rank.pid for rank in daemon.until_running("job").ranks] == ranks
    daemon.stop("job")
    kinds = [event.kind for event in daemon.event_list("job")]
    assert (kinds.count("rank.exited"), kinds.count("job.ended")) == (2, 1), kinds


def test_a_socket_path_that_is_too_long(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    refused = musterd("--root", str(folder))
    assert refused.returncode == 1 and "107" in refused.stderr and "--root" in refused.stderr
    assert not folder.exists()


AUTOGROUP = Path("/proc/self/autogroup")


@pytest.mark.skipif(os.geteuid() != 0 or not AUTOGROUP.exists(), reason="needs root, and a kernel with autogroups")
def test_the_priority_that_the_unit_gives_counts_against_ranks_and_is_not_theirs(
    make_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    script = tmp_path / "how-nice"
    script.write_text(f"#!/bin/sh\n(nice; cat /proc/self/autogroup) >{tmp_path}/told\n")
    script.chmod(0o755)
    node = make_daemon(f"""[notify]\ncommand = {json.dumps([str(script)])}\nevents = ["ended"]\n""")
    node.kill_with_nursery()  # it would keep the priority that it was started with
    (tmp_path / "told").unlink(missing_ok=True)
    node.musterd = ("setsid", "nice", "-n", "-10", BIN / "musterd")
    node.start()
    assert Path(f"/proc/{node.pid}/autogroup").read_text().endswith(" nice -10\n")
    node.run("sh", "-c", "nice; cat /proc/self/autogroup; cat /proc/$PPID/autogroup", job_id="x")
    nice, group, of_supervisor = node.output(node.wait("x")).decode().splitlines()
    assert nice == "0" and group.endswith(" nice 0") and of_supervisor.endswith(" nice -5")
    nice, group = eventually(lambda: (text := read(tmp_path / "told")).count("\n") == 2 and text.splitlines())
    assert nice == "0" and group.endswith(" nice 0")


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[jobs]\nmax_job = 3\n")
    refused = musterd("--root", str(tmp_path / "r"), "--config", str(config))
    assert refused.returncode == 1 and "max_job" in refused.stderr and "max_jobs" in refused.stderr
    config.write_text('[jobs]\nmax_jobs = "many"\n')
    refused = musterd("--root", str(tmp_path / "r"), "--config", str(config))
    assert refused.returncode == 1 and "max_jobs" in refused.stderr


def test_a_state_folder_of_another_version(daemon: Daemon) -> None:
    daemon.kill()
    daemon.root.version.write_text("muster-state 99\n")
    refused = musterd("--root", str(daemon.folder))
    assert refused.returncode == 1 and "99" in refused.stderr and str(daemon.root.state) in refused.stderr
    daemon.root.version.write_text("muster-state 1\n")


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv to give rights up")
def test_a_root_without_write_permission() -> None:
    def as_another(code: str, *words: str) -> "subprocess.CompletedProcess[str]":
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        command = [*user, str(BIN / "python"), "-c", code, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/")

    if as_another("import muster.agent.musterd").returncode != 0:
        pytest.skip("another user cannot run this interpreter, or cannot enter the folder of this clone")
    code = "import sys; sys.argv[0] = 'musterd'; from muster.agent.musterd import main; sys.exit(main())"
    refused = as_another(code, "--root", "/proc/muster")
    assert refused.returncode == 1 and "/proc/muster" in refused.stderr


def contents(path: Path) -> bytes:
    """Of a file; of a folder, or of a file that the daemon has removed since it was listed, nothing."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        return b""


def test_modes_of_what_is_made(daemon: Daemon) -> None:
    daemon.run("sleep", "3600", job_id="job", env={"TOKEN": "hunter2"})
    daemon.until_running("job")

    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    paths = daemon.root.job("job")
    assert mode(daemon.root.socket) == 0o660
    assert mode(paths.spec) == mode(paths.journal) == mode(paths.control) == 0o600
    assert mode(paths.folder) == 0o711 and mode(daemon.root.jobs) == 0o711
    assert mode(Path(daemon.get("job").ranks[0].log_path)) == 0o640
    # The value of a variable is in the spec alone, which nobody else can read.
    for path in (paths.journal, daemon.stderr, *daemon.root.events.iterdir()):
        assert b"hunter2" not in contents(path), path
    assert "hunter2" not in str(daemon.get("job")) and "hunter2" not in daemon.cli("status", "job").stdout
    assert list(daemon.get("job").spec.env) == ["PYTHONUNBUFFERED", "TOKEN"] or "TOKEN" in daemon.get("job").spec.env


@pytest.mark.slow
def test_sigterm_ends_the_daemon_and_not_the_job(daemon: Daemon) -> None:
    daemon.run("sleep", "3600", job_id="job")
    pid = daemon.until_running("job").ranks[0].pid
    assert daemon.kill(signal.SIGTERM) == 0
    assert Path(f"/proc/{pid}").exists()
    assert not daemon.root.socket.exists()


@pytest.mark.slow
def test_sighup_reloads_and_a_bad_file_changes_nothing(daemon: Daemon) -> None:
    text = daemon.config.read_text()
    daemon.config.write_text(text + "[cards]\nslots = 3\n")
    os.kill(daemon.pid, signal.SIGHUP)
    eventually(
        lambda: (
            '"index": 2' in daemon.cli("node", "-o", "json").stdout
            or '"index":2' in daemon.cli("node", "-o", "json").stdout
        )
    )
    daemon.config.write_text(text + "[cards]\nslosts = 4\n")
    os.kill(daemon.pid, signal.SIGHUP)
    eventually(lambda: "slosts" in daemon.cli("node").stdout + daemon.cli("node").stderr)
    assert daemon.cli("node").returncode == 0


def reload(daemon: Daemon, expected: str) -> None:
    """Expects this in `muster node`; "" for no trouble of the configuration."""
    os.kill(daemon.pid, signal.SIGHUP)

    def told() -> bool:
        shown = daemon.cli("node").stdout
        return expected in shown if expected else "configuration was not reloaded" not in shown

    eventually(told, message=f"the reload tells {expected!r}")


@pytest.mark.slow
def test_a_configuration_that_blocks_keeps_neither_reloads_nor_sigterm(daemon: Daemon, tmp_path: Path) -> None:
    good = daemon.config.read_text()
    daemon.config.unlink()
    os.mkfifo(daemon.config)
    reload(daemon, f"{daemon.config}: is not a regular file")
    refused = musterd("--root", str(tmp_path / "r"), "--config", str(daemon.config))
    assert refused.returncode == 1 and "is not a regular file" in refused.stderr
    daemon.config.unlink()
    daemon.config.write_text(good)
    reload(daemon, "")
    assert daemon.kill(signal.SIGTERM) == 0


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK), reason="mounts a file system by FUSE")
def test_a_configuration_on_a_file_system_that_hangs(daemon: Daemon, tmp_path: Path) -> None:
    good = daemon.config.read_text()
    try:
        served = passthrough.mount(tmp_path)
    except OSError as error:
        pytest.skip(f"FUSE cannot be mounted here: {error}")
    try:
        daemon.config.unlink()
        daemon.config.symlink_to(tmp_path / "musterd.toml")  # nobody serves it
        reload(daemon, f"cannot read {daemon.config}: its disk did not answer within")
        daemon.config.unlink()
        daemon.config.write_text(good)
        reload(daemon, "")
        assert daemon.kill(signal.SIGTERM) == 0  # with a thread that hangs
    finally:
        os.close(served)
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_health_and_reflection(daemon: Daemon) -> None:
    with grpc.insecure_channel(daemon.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "muster.v1.JobService"):
            answer = health.Check(  # type: ignore[attr-defined]  # its stubs lack the methods
                health_pb2.HealthCheckRequest(service=service), timeout=60
            )
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        names = set(ProtoReflectionDescriptorDatabase(channel).get_services())
        assert {f"muster.v1.{n}Service" for n in ("Job", "Log", "Event", "Node")} <= names


def test_paging(daemon: Daemon) -> None:
    from muster.v1 import job_pb2

    for i in range(7):
        daemon.run("true", job_id=f"job-{i}", labels={"odd": str(i % 2)})
    seen, token = [], ""
    while True:
        page = daemon.jobs.List(job_pb2.ListRequest(page_size=3, page_token=token), timeout=60)
        assert len(page.jobs) <= 3
        seen += [job.job_id for job in page.jobs]
        token = page.next_page_token
        if not token:
            break
    assert seen == [f"job-{i}" for i in reversed(range(7))]
    odd = daemon.jobs.List(job_pb2.ListRequest(labels={"odd": "1"}), timeout=60).jobs
    assert {job.job_id for job in odd} == {"job-1", "job-3", "job-5"}


@pytest.mark.slow
def test_events_resume_by_cursor_over_a_restart(daemon: Daemon) -> None:
    from muster.v1 import event_pb2

    daemon.run("true", job_id="first")
    daemon.wait("first")
    request = event_pb2.WatchRequest(from_oldest=True, no_follow=True)
    before = list(daemon.events.Watch(request, timeout=60))
    cursor = before[-1].cursor
    daemon.kill()
    daemon.start()
    daemon.run("sh", "-c", "exit 4", job_id="second")
    daemon.explained("second")
    later = list(daemon.events.Watch(event_pb2.WatchRequest(cursor=cursor, no_follow=True), timeout=60))
    kinds = [(m.event.job_id, m.event.kind) for m in later if m.HasField("event") and m.event.job_id]
    assert kinds[0] == ("second", "job.accepted")
    assert kinds[-2:] == [("second", "job.ended"), ("second", "job.explained")]
    assert not any(job_id == "first" for job_id, _ in kinds)
    [exited] = [m.event for m in later if m.event.kind == "rank.exited"]
    assert exited.rank == 0 and exited.attributes["exit_code"] == "4"


def test_unary_calls_get_through_with_many_followers(daemon: Daemon) -> None:
    from muster.v1 import log_pb2

    daemon.run("sleep", "3600", job_id="job")
    streams = [daemon.logs.ReadLogs(log_pb2.ReadLogsRequest(job_id="job", follow=True)) for _ in range(300)]
    codes: list[grpc.StatusCode] = []
    try:
        refused = 0
        for stream in streams[256:]:
            try:
                next(stream)
            except grpc.RpcError as error:
                assert isinstance(error, grpc.Call)
                codes.append(error.code())
                refused += error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                if refused >= 5:
                    break
        assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert daemon.stop("job", grace_s=0).ended
    finally:
        for stream in streams:
            stream.cancel()


def test_the_daemon_runs_with_its_standard_streams_closed(daemon: Daemon) -> None:
    daemon.kill()
    close = "import os, sys; [os.close(fd) for fd in range(3)]; os.execv(sys.argv[1], sys.argv[1:])"
    daemon.musterd = (sys.executable, "-c", close, *daemon.musterd)
    daemon.start()
    daemon.run("echo", "hello", job_id="job")
    assert daemon.output(daemon.wait("job")) == b"hello\n"
    assert {os.readlink(f"/proc/{daemon.pid}/fd/{fd}") for fd in range(3)} == {os.devnull}


@pytest.mark.slow
def test_a_fifo_in_the_place_of_the_nurserys_log(daemon: Daemon) -> None:
    daemon.kill_with_nursery()
    daemon.root.nursery_log.unlink()
    os.mkfifo(daemon.root.nursery_log)
    daemon.start()
    daemon.run("true", job_id="job")
    assert daemon.wait("job").state == job_pb2.JOB_STATE_SUCCEEDED
    eventually(lambda: "nursery.log_unwritten" in daemon.stderr.read_text())
    assert "is not a regular file" in daemon.stderr.read_text()


def test_too_few_descriptors_are_refused_in_one_sentence(tmp_path: Path) -> None:
    for few in (16, 63):
        refused = subprocess.run(
            ["prlimit", f"--nofile={few}:{few}", BIN / "musterd", "--root", tmp_path],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert refused.returncode == 1
        assert refused.stderr == (
            f"musterd: the limit of open files is {few}, but musterd needs at least 64: raise the limit of open files "
            "(LimitNOFILE= of the service, `ulimit -n`)\n"
        )


@pytest.mark.slow
def test_the_least_descriptors_do_and_a_soft_limit_is_raised(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    for soft, hard in ((64, 64), (16, 1000)):
        daemon.kill_with_nursery()
        daemon.musterd = ("prlimit", f"--nofile={soft}:{hard}", BIN / "musterd")
        daemon.start()
        daemon.run("sh", "-c", "ulimit -n", job_id=f"job-{soft}")
        assert daemon.output(daemon.wait(f"job-{soft}")) == f"{soft}\n".encode(), "a rank gets what was given"
        daemon.run("sleep", "3600", job_id=f"sleeper-{soft}")
        daemon.until_running(f"sleeper-{soft}")
        assert daemon.stop(f"sleeper-{soft}", grace_s=1).ended
