"""An app is started on all of its nodes or on none."""

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from tests.conftest import BIN, alive, eventually

pytest.importorskip("torchx", reason="needs TorchX: pip install -r examples/torchx/requirements.txt")

from torchx.specs import AppState, BindMount, InvalidRunConfigException, Resource

from muster.torchx.app_jobs import NotSubmitted
from muster.v1 import job_pb2, job_pb2_grpc, node_pb2
from tests.fakes import FakeCards
from tests.integration.torchx.nodes import DONE, HELD, Nodes, app, app_id, nodes, role, runner, until

STOPPED = job_pb2.JOB_STATE_STOPPED


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with nodes(tmp_path_factory.mktemp("x")) as made:
        yield made


def test_one_job_per_replica_in_the_order_of_the_hosts(three: Nodes) -> None:
    handle = three.submit("utils.sh", "--num_replicas", "3", "echo", "replica", "${replica_id}", "of", "${app_id}")
    jobs = three.ended(app_id(handle))
    assert [job.spec.labels["torchx-replica"] for job in jobs] == ["0", "1", "2"]
    for number, (daemon, job) in enumerate(zip(three.daemons, jobs, strict=True)):
        assert job.job_id == f"{app_id(handle)}-{number}" and job.state == job_pb2.JOB_STATE_SUCCEEDED
        assert (job.spec.node_rank, job.spec.node_count, job.spec.workdir) == (number, 3, str(three.folder))
        assert daemon.output(job).decode() == f"replica {number} of {app_id(handle)}\n"


def test_a_dry_run_asks_no_daemon(three: Nodes, tmp_path: Path) -> None:
    before = three.all_jobs()
    nowhere = f"hosts={tmp_path}/a.sock;{tmp_path}/b.sock"
    done = three.command(
        *("run", "--dryrun", "-s", "muster", "-cfg", nowhere, "utils.sh", "--num_replicas", "2"),
        *("--env", "TOKEN=hunter2", "echo", "hi"),
    )
    assert done.returncode == 0, done.stderr
    request = done.stdout.partition("=== SCHEDULER REQUEST ===")[2]
    assert f"sh/0 at unix:{tmp_path}/a.sock" in request and f"sh/1 at unix:{tmp_path}/b.sock" in request
    assert "TOKEN" in request and "hunter2" not in request, "values of the environment are secrets"
    assert "muster starts no containers" in request
    assert three.all_jobs() == before


def test_what_a_replica_gets(three: Nodes) -> None:
    script = 'echo "$TORCHX_RANK0_HOST $1 $2 $TORCHX_JOB_ID $PATH $PYTHONUNBUFFERED $MASTER_ADDR:$MASTER_PORT"; pwd'
    one = role(script, "${rank0_env}", "${img_root}", replicas=2, port_map={"c10d": 23456}, image="/usr")
    with runner(three) as torchx:
        handle = torchx.run(app(one), "muster", cfg={"hosts": three.hosts, "path": ["/opt/venv/bin", "/x"]})
        assert until(torchx, handle, AppState.SUCCEEDED)
        lines = list(torchx.log_lines(handle, "sh", 1))
    path = "/opt/venv/bin:/x:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert lines == [f"localhost TORCHX_RANK0_HOST /usr {handle} {path} 1 localhost:23456\n", "/usr\n"]


def test_several_roles_take_the_hosts_in_order(three: Nodes) -> None:
    roles = [role("echo ps", name="ps", replicas=1), role("echo $1", "${replica_id}", name="trainer", replicas=2)]
    with runner(three) as torchx:
        handle = torchx.run(app(*roles, name="a/b c"), "muster", cfg={"hosts": three.hosts})
        status = until(torchx, handle, AppState.SUCCEEDED)
        jobs = three.jobs(app_id(handle))
        assert [job.job_id.removeprefix(app_id(handle)) for job in jobs] == ["-ps-0", "-trainer-0", "-trainer-1"]
        assert [(one.role, len(one.replicas)) for one in status.roles] == [("ps", 1), ("trainer", 2)]
        assert list(torchx.log_lines(handle, "trainer", 1)) == ["1\n"]


# --- none, or all ---------------------------------------------------------------------------------------------------


def refused(three: Nodes, cfg: dict[str, Any], one: Any, name: str = "app") -> str:
    """The words of a submit that started nothing: nothing of it is left anywhere, but for `kept` jobs from before."""
    before = three.all_jobs()
    with runner(three) as torchx, pytest.raises(NotSubmitted) as error:
        torchx.run(app(one, name=name), "muster", cfg={"hosts": three.hosts} | cfg)
    assert three.all_jobs() == before
    return str(error.value)


def test_a_daemon_that_refuses_leaves_nothing_on_the_others(three: Nodes) -> None:
    last = three.daemons[2]
    last.nodes.Drain(node_pb2.DrainRequest(reason="broken fan"), timeout=60)
    try:
        said = refused(three, {}, role("touch started; sleep 1000"))
    finally:
        last.nodes.Undrain(node_pb2.UndrainRequest(), timeout=60)
    assert f"sh/2 at {last.address}: " in said and "broken fan" in said


def test_cards_that_a_node_does_not_have(three: Nodes) -> None:
    said = refused(three, {}, role("sleep 1000", resource=Resource(cpu=1, gpu=8, memMB=64)))
    assert "sh/0" in said and "sh/2" in said, "each daemon's refusal is told"


def test_a_daemon_that_is_not_there(three: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.torchx.app_jobs.LOOK_S", 0.1)
    hosts = [*three.hosts[:2], f"unix:{tmp_path}/none.sock"]
    said = refused(three, {"hosts": hosts}, role("sleep 1000"))
    assert f"sh/2 at unix:{tmp_path}/none.sock: no daemon answers" in said


def test_a_name_that_is_taken(three: Nodes) -> None:
    three.daemons[2].run("sleep", "1000", job_id="mine-2")
    pid = three.daemons[2].until_running("mine-2").ranks[0].pid
    said = refused(three, {"app_id": "mine"}, role("sleep 1000"))
    assert "sh/2" in said and "mine-2" in said
    assert alive(pid), "somebody else's job goes on"
    three.daemons[2].stop("mine-2", 0)


def test_a_command_that_does_not_exist_on_a_node(three: Nodes) -> None:
    one = role("sleep 1000")
    one.entrypoint = "/no/such/program"
    said = refused(three, {}, one)
    assert "/no/such/program" in said


class SlowNode(job_pb2_grpc.JobServiceServicer):
    """In a daemon's place: its Start is not answered until `go`, and then with what `answer` makes of it."""

    def __init__(self, address: str, answer: grpc.StatusCode) -> None:
        self.answer = answer
        self.asked, self.go = threading.Event(), threading.Event()
        self.calls: list[str] = []
        self._server = grpc.server(ThreadPoolExecutor(4))
        job_pb2_grpc.add_JobServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(address)
        self._server.start()

    def close(self) -> None:
        self.go.set()
        self._server.stop(None).wait()

    def Get(self, request: Any, context: Any) -> Any:
        status = status_pb2.Status(code=grpc.StatusCode.NOT_FOUND.value[0], message="no such job")
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason="JOB_NOT_FOUND", domain="muster"))
        context.abort_with_status(rpc_status.to_status(status))

    def Start(self, request: Any, context: Any) -> Any:
        self.asked.set()
        self.go.wait(60)
        context.abort(self.answer, "the node lost its power")

    def List(self, request: Any, context: Any) -> Any:
        return job_pb2.ListResponse()

    Wait = Signal = GetReport = GetStacks = List

    def Stop(self, request: Any, context: Any) -> Any:
        self.calls.append(f"Stop {request.job_id}")
        return job_pb2.StopResponse(ended=True)

    def Release(self, request: Any, context: Any) -> Any:
        self.calls.append(f"Release {request.job_id}")
        return job_pb2.ReleaseResponse()

    def Delete(self, request: Any, context: Any) -> Any:
        self.calls.append(f"Delete {request.job_id}")
        return job_pb2.DeleteResponse()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Callable[[grpc.StatusCode], tuple[SlowNode, str]]]:
    made = []

    def make(answer: grpc.StatusCode) -> tuple[SlowNode, str]:
        address = f"unix:{tmp_path}/slow.sock"
        made.append(SlowNode(address, answer))
        return made[0], address

    yield make
    for node in made:
        node.close()


def test_ctrl_c_while_an_app_is_started(three: Nodes, slow: Any) -> None:
    """Two daemons have started their parts; the third one does not answer."""
    node, address = slow(grpc.StatusCode.INTERNAL)
    before = three.all_jobs()
    words = ["run", "-s", "muster", "-cfg", three.cfg("app_id=hasty", [*three.hosts[:2], address])]
    words += ["utils.sh", "--num_replicas", "3", "sleep", "1000"]
    with subprocess.Popen([BIN / "torchx", *words], cwd=three.folder, env=three.env, stderr=subprocess.PIPE) as run:
        assert node.asked.wait(60)
        eventually(lambda: len(three.jobs("hasty")) == 2)
        pids = [daemon.rank_pid(f"hasty-{number}") for number, daemon in enumerate(three.daemons[:2])]
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=100)
        assert run.returncode != 0
    assert three.all_jobs() == before and not any(map(alive, pids))
    assert node.calls == ["Stop hasty-2", "Delete hasty-2"], "nobody knows whether it started"


def test_an_answer_that_is_lost(three: Nodes, slow: Any) -> None:
    """A node that may have started its part is asked to end it, as those that have."""
    node, address = slow(grpc.StatusCode.DEADLINE_EXCEEDED)
    node.go.set()
    refused(three, {"hosts": [*three.hosts[:2], address], "app_id": "lost"}, role("sleep 1000"))
    assert node.calls == ["Stop lost-2", "Delete lost-2"]


def test_a_submit_that_is_repeated(three: Nodes) -> None:
    go = three.folder / "repeated"
    with runner(three) as torchx:
        dryrun = torchx.dryrun(app(role(HELD, str(go))), "muster", cfg={"hosts": three.hosts})
        first = torchx.schedule(dryrun)
        pids = [job.ranks[0].pid for job in three.jobs(app_id(first))]
        assert torchx.schedule(dryrun) == first
        assert [job.ranks[0].pid for job in three.jobs(app_id(first))] == pids and all(map(alive, pids))
        # Another command, the same app under the same id; then another app under that id.
        same = dryrun.request.app_id
        again = torchx.run(app(role(HELD, str(go))), "muster", cfg={"hosts": three.hosts, "app_id": same})
        assert again == first
        with pytest.raises(NotSubmitted, match=f"{same}-0"):
            torchx.run(app(role("true")), "muster", cfg={"hosts": three.hosts, "app_id": same})
        with pytest.raises(NotSubmitted, match=f"an app of this id has other hosts or replicas, job {same}-"):
            one = role(HELD, str(go))
            torchx.run(app(one), "muster", cfg={"hosts": [*three.hosts[1:], three.hosts[0]], "app_id": same})
        assert all(map(alive, pids)), "an app that runs is not rolled back"
        go.write_text("0")
        assert until(torchx, first, AppState.SUCCEEDED)


# --- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cfg", "option", "said"),
    [
        ("hosts=x", "hosts", "must be HOST:PORT or unix:PATH"),
        ("hosts=unix:/a.sock", "hosts", "the app needs 2 hosts"),
        ("hosts=a:1;b:1", "tls_ca", "TCP needs a certificate"),
        ("hosts=a:1;b:1,tls_ca=/none,tls_cert=/none,tls_key=/none", "tls_ca", "cannot read /none"),
        ("hosts=/a;/b,workdir=here", "workdir", "must be an absolute path"),
        ("hosts=/a;/b,app_id=-x", "app_id", "must be 1 to 80 of"),
        ("hosts=/a;/b,max_runtime_s=0", "max_runtime_s", "must be 1 to"),
    ],
)
def test_a_wrong_option(three: Nodes, cfg: str, option: str, said: str) -> None:
    with runner(three) as torchx:
        opts = torchx.scheduler_run_opts("muster").cfg_from_str(cfg)
        with pytest.raises(InvalidRunConfigException, match=said) as error:
            torchx.run(app(role("true", replicas=2)), "muster", cfg=opts)
    assert error.value.cfg_key == option


def test_two_roles_of_one_name(three: Nodes) -> None:
    with runner(three) as torchx, pytest.raises(ValueError, match="two roles have one name: a, a"):
        roles = [role("true", name="a", replicas=1), role("true", name="a", replicas=1)]
        torchx.run(app(*roles), "muster", cfg={"hosts": three.hosts})


def test_a_wrong_option_on_the_command_line(three: Nodes) -> None:
    done = three.command("run", "-s", "muster", "-cfg", "hosts=x", "utils.sh", "true")
    assert done.returncode == 1
    assert "`hosts`" in done.stderr and "Traceback" not in done.stderr
    assert "hosts: 'x': must be HOST:PORT or unix:PATH" in done.stderr, "TorchX itself leaves out what is wrong"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"image": "team/train:7"}, "muster starts no containers"),
        ({"mounts": [BindMount("/data", "/mnt")]}, "mount of /data at /mnt: muster mounts nothing"),
        ({"max_retries": 1001}, "must be 0 to 1000"),
        ({"env": {"A": 1}}, "must be text"),
        ({"port_map": {"c10d": -1}, "replicas": 2}, "must be 1 to 65535"),
        ({"env": {"A": "\udcff"}}, "must be text in UTF-8"),
        ({"name": "x" * 300}, "must be text of at most 256 bytes"),
    ],
)
def test_what_muster_cannot_do_for_a_role(three: Nodes, fields: dict[str, Any], said: str) -> None:
    with runner(three) as torchx, pytest.raises((InvalidRunConfigException, ValueError), match=said):
        one = role("true", **{"replicas": 1} | fields)
        torchx.run(app(one), "muster", cfg={"hosts": three.hosts})


def test_cards_of_a_replica(tmp_path: Path) -> None:
    """One process has all of them; devices that are cards count; the role's memory is a limit if asked."""
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 4) as cards, nodes(tmp_path, 2, env=cards.env) as two:
        with runner(two) as torchx:
            resource = Resource(cpu=3, gpu=1, memMB=512, devices={"nvidia.com/gpu": 1, "vpc.amazonaws.com/efa": 1})
            one = role('echo "$CUDA_VISIBLE_DEVICES"', replicas=2, resource=resource)
            cfg = {"hosts": two.hosts, "enforce_resources": True}
            handle = torchx.run(app(one), "muster", cfg=cfg)
            assert until(torchx, handle, *DONE).state is AppState.SUCCEEDED
            for number, job in enumerate(two.jobs(app_id(handle))):
                assert (len(job.ranks), job.spec.cards.count) == (1, 2)
                assert (job.spec.limits.memory_bytes, job.spec.limits.cpus) == (512 << 20, 3.0)
                (line,) = torchx.log_lines(handle, "sh", number)
                assert len(line.strip().split(",")) == 2
            assert "gpu" in str(torchx.describe(handle))
        remarks = torchx.dryrun(app(one), "muster", cfg=cfg).request.remarks
        assert remarks == ["device vpc.amazonaws.com/efa of role sh is not requested: muster leases cards alone"]


def test_a_daemon_that_restarts_while_an_app_is_started(three: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.torchx.app_jobs.LOOK_S", 60.0)  # the machine may be busy
    last = three.daemons[2]
    last.kill()
    with runner(three) as torchx, ThreadPoolExecutor(1) as beside:
        submit = beside.submit(torchx.run, app(role("true")), "muster", cfg={"hosts": three.hosts})
        last.restart()
        assert until(torchx, submit.result(), AppState.SUCCEEDED)


def test_a_mount_of_a_path_at_itself_is_there_already(three: Nodes) -> None:
    with runner(three) as torchx:
        one = role("true", replicas=1, mounts=[BindMount("/data", "/data")], image="team/train:7")
        handle = torchx.run(app(one), "muster", cfg={"hosts": three.hosts, "ignore_image": True})
        assert until(torchx, handle, AppState.SUCCEEDED)


def test_a_workspace_goes_to_job_dir(three: Nodes, tmp_path: Path) -> None:
    (three.folder / "hello.sh").write_text("echo from $PWD\n")
    shared = tmp_path / "jobs"
    handle = three.submit(
        "utils.sh", "sh", "hello.sh", cfg=f"job_dir={shared}", options=("--workspace", f"file://{three.folder}")
    )
    (job,) = three.ended(app_id(handle))
    assert three.daemons[0].output(job).decode() == f"from {shared}\n"
    again = three.command(
        *("run", "-s", "muster", "-cfg", three.cfg(f"job_dir={shared}"), "--workspace", f"file://{three.folder}"),
        *("utils.sh", "true"),
    )
    assert again.returncode == 1 and "`job_dir`" in again.stderr


def test_hosts_of_the_environment_and_of_the_configuration(three: Nodes, tmp_path: Path) -> None:
    file = three.folder / ".torchxconfig"
    file.write_text(f"[muster]\nhosts = {three.hosts[1]};{three.hosts[0]}\nmax_runtime_s = 77\n")
    environment = {"MUSTER_HOSTS": three.hosts[2]}
    try:
        done = three.command("run", "-s", "muster", "utils.sh", "--num_replicas", "2", "true", env=environment)
        assert done.returncode == 0, done.stderr
        name = app_id(done.stdout.split()[0])
        jobs = [three.daemons[1].wait(f"{name}-0"), three.daemons[0].wait(f"{name}-1")]
        assert [job.spec.max_runtime.seconds for job in jobs] == [77, 77]
    finally:
        file.unlink()
    done = three.command("run", "-s", "muster", "utils.sh", "true", env=environment)
    assert done.returncode == 0, done.stderr
    assert three.daemons[2].get(f"{app_id(done.stdout.split()[0])}-0")


def test_the_schedulers_of_torchx_are_still_there(three: Nodes) -> None:
    done = three.command("run", "--help")
    assert all(name in done.stdout for name in ("local_docker", "local_cwd", "slurm", "kubernetes", "lsf", "muster"))
    from torchx.schedulers import DEFAULT_SCHEDULER_MODULES, get_default_scheduler_name, get_scheduler_factories

    assert set(get_scheduler_factories()) == {*DEFAULT_SCHEDULER_MODULES, "muster"}
    assert get_default_scheduler_name() == next(iter(DEFAULT_SCHEDULER_MODULES))
    local = three.command("run", "-s", "local_cwd", "utils.echo", "--msg", "hi")
    assert local.returncode == 0, local.stderr
