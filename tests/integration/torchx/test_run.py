"""An app from its start to its end: status, output, failures, cancellation, and daemons that come and go."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import BIN, alive, eventually

pytest.importorskip("torchx", reason="needs TorchX: pip install -r examples/torchx/requirements.txt")

from torchx.schedulers.api import Stream
from torchx.specs import AppState

from muster.torchx.app_jobs import NoAnswer, NotCancelled
from muster.v1 import job_pb2
from tests.integration.torchx.nodes import DONE, HELD, Nodes, app, app_id, nodes, role, runner, until

#: Replica 1 fails; the others would go on for ever.
ONE_FAILS = 'if [ "$1" = 1 ]; then echo no luck >&2; exit 7; fi; exec sleep 1000'


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with nodes(tmp_path_factory.mktemp("x")) as made:
        yield made


@pytest.fixture
def torchx(three: Nodes) -> Iterator[Any]:
    """A runner as the process has it that submits."""
    with runner(three) as made:
        yield made


def start(three: Nodes, torchx: Any, *roles: Any, **cfg: Any) -> str:
    handle: str = torchx.run(app(*roles), "muster", cfg={"hosts": three.hosts} | cfg)
    return handle


# --- status, list, description ----------------------------------------------------------------------------------------


def test_what_another_process_finds_out(three: Nodes, torchx: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    one = role(HELD, str(go), name="trainer", max_retries=2, image="/")
    handle = start(three, torchx, one)
    until(torchx, handle, AppState.RUNNING)
    done = three.command("status", handle)
    assert done.returncode == 0 and "State: RUNNING" in done.stdout and "trainer[2]:RUNNING" in done.stdout
    described = three.command("describe", handle).stdout
    assert "'num_replicas': 3" in described and "'max_retries': 2" in described and "'image': '/'" in described
    assert three.listed()[handle] == "RUNNING"
    # Another user, who has no notes, names the hosts; and one who does not is told to.
    other = {"XDG_STATE_HOME": str(tmp_path)}
    bare = three.command("status", handle, env=other)
    assert bare.returncode != 0 and "no daemon is known: name them as `hosts` in .torchxconfig" in bare.stderr
    other["MUSTER_HOSTS"] = ";".join(three.hosts)
    assert "State: RUNNING" in three.command("status", handle, env=other).stdout
    assert handle in three.listed(**other)
    # One host alone: what is missing is said.
    other["MUSTER_HOSTS"] = three.hosts[1]
    seen = three.command("status", handle, env=other).stdout
    assert "2 of 3 replicas are not known to the daemons that were asked" in seen and "trainer[0]:UNKNOWN" in seen
    go.write_text("0")
    status = until(torchx, handle, *DONE)
    assert status.state is AppState.SUCCEEDED and status.num_restarts == 0
    assert three.listed()[handle] == "SUCCEEDED"


def test_an_app_that_does_not_exist(three: Nodes, torchx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start(three, torchx, role("true"))
    monkeypatch.setenv("MUSTER_HOSTS", ";".join(three.hosts))
    for name in ("none", "../../etc/passwd", "x" * 300, "a b"):
        assert torchx.status(f"muster://torchx/{name}") is None
        torchx.cancel(f"muster://torchx/{name}")
    done = three.command("status", "muster://torchx/none", env={"MUSTER_HOSTS": three.hosts[0]})
    assert done.returncode == 1 and "does not exist" in done.stderr, done.stderr


def test_a_failure_ends_the_other_replicas_of_who_waits(three: Nodes, torchx: Any) -> None:
    handle = start(three, torchx, role(ONE_FAILS, "${replica_id}", name="trainer"))
    status = until(torchx, handle, *DONE)
    assert status.state is AppState.FAILED
    assert [each.state for each in status.roles[0].replicas] == [
        AppState.CANCELLED,
        AppState.FAILED,
        AppState.CANCELLED,
    ]
    # A status waits for the cause, but only so long.
    verdict = three.daemons[1].explained(f"{app_id(handle)}-1").verdict
    status = torchx.status(handle)
    assert "exited with code 7" in status.msg and verdict.recommendation_reason in status.msg
    error = json.loads(status.structured_error_msg)
    assert error["message"]["errorCode"] == 7 and verdict.summary in error["message"]["message"]
    assert error["message"]["extraInfo"]["py_callstack"] == "no luck"
    assert error["muster"]["host"] == three.hosts[1] and error["muster"]["recommendation"] == "FAIL"
    shown = status.format()
    assert "trainer[1]:FAILED (exitcode: 7)" in shown and repr(status)
    stopped = three.daemons[0].get(f"{app_id(handle)}-0")
    assert "torchx: trainer/1 failed" in str(three.daemons[0].event_list(stopped.job_id))


def test_who_only_looks_changes_nothing(three: Nodes, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f'[ "$1" = 1 ] || exec sleep 1000; set -- {go}; {HELD}'
    handle = three.submit("utils.sh", "--num_replicas", "3", "sh", "-c", script, "sh", "${replica_id}")
    go.write_text("7")
    first = three.daemons[1]
    assert first.wait(f"{app_id(handle)}-1").state == job_pb2.JOB_STATE_FAILED
    done = three.command("status", handle)
    assert "State: RUNNING" in done.stdout and "sh/1" in done.stdout and "end them with `torchx cancel`" in done.stdout
    assert [job.state for job in three.jobs(app_id(handle))].count(job_pb2.JOB_STATE_RUNNING) == 2
    assert three.command("cancel", handle).returncode == 0
    three.ended(app_id(handle))
    assert "State: FAILED" in three.command("status", handle).stdout


def test_a_replica_is_started_again(three: Nodes, torchx: Any, tmp_path: Path) -> None:
    script = 'echo "attempt $MUSTER_ATTEMPT"; [ "$MUSTER_ATTEMPT" = 1 ]'
    handle = start(three, torchx, role(script, max_retries=1))
    status = until(torchx, handle, *DONE)
    assert (status.state, status.num_restarts) == (AppState.SUCCEEDED, 1)


def test_a_running_time(three: Nodes, torchx: Any) -> None:
    handle = start(three, torchx, role("exec sleep 1000", replicas=1), max_runtime_s=1, grace_s=1)
    status = until(torchx, handle, *DONE)
    assert status.state is AppState.FAILED and json.loads(status.structured_error_msg)["message"]["errorCode"] == 124
    assert json.loads(status.structured_error_msg)["muster"]["reason"] == "TIMED_OUT"


# --- cancellation -----------------------------------------------------------------------------------------------------


def test_cancel_ends_all_replicas(three: Nodes, torchx: Any) -> None:
    handle = start(three, torchx, role("sleep 1000 & sleep 1000"))
    pids = [job.ranks[0].pid for job in three.jobs(app_id(handle))]
    assert three.command("cancel", handle).returncode == 0
    status = until(torchx, handle, *DONE)
    assert status.state is AppState.CANCELLED and "stopped by" in status.msg
    assert not any(map(alive, pids))
    torchx.cancel(handle)
    assert three.command("cancel", handle).returncode == 0, "a second one changes nothing"


def test_ctrl_c_leaves_an_app_running(three: Nodes, torchx: Any) -> None:
    """As with TorchX' other schedulers of clusters."""
    words = ["run", "-s", "muster", "-cfg", three.cfg("app_id=stays"), "--wait", "--log", "utils.sh"]
    words += ["--num_replicas", "3", "sh", "-c", "echo here; exec sleep 1000"]
    with subprocess.Popen([BIN / "torchx", *words], cwd=three.folder, env=three.env, stderr=subprocess.PIPE) as run:
        assert run.stderr is not None
        assert any(b"here" in line for line in run.stderr)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=100)
        assert run.returncode != 0
    assert [job.state for job in three.jobs("stays")] == [job_pb2.JOB_STATE_RUNNING] * 3
    torchx.cancel("muster://torchx/stays")
    three.ended("stays")


def test_wait_and_log(three: Nodes) -> None:
    words = (
        "run",
        "-s",
        "muster",
        "-cfg",
        three.cfg(),
        "--wait",
        "--log",
        "utils.sh",
        "--num_replicas",
        "3",
        "sh",
        "-c",
    )
    done = three.command(*words, "echo hello from ${replica_id}")
    assert done.returncode == 0, done.stderr
    assert all(f"hello from {number}\n" in done.stderr for number in range(3))
    done = three.command(*words, "exit 3")
    assert done.returncode == 1 and "FAILED" in done.stderr


# --- output -----------------------------------------------------------------------------------------------------------


def test_the_output_of_each_replica(three: Nodes, torchx: Any) -> None:
    script = 'printf "\\377 odd\\n"; printf "10%%\\r20%%\\r\\n"; echo "replica $1" >&2; printf end'
    handle = start(three, torchx, role(script, "${replica_id}", name="t"))
    until(torchx, handle, AppState.SUCCEEDED)
    for number in range(3):
        assert list(torchx.log_lines(handle, "t", number)) == [
            "\ufffd odd\n", "10%\r", "20%\r\n", f"replica {number}\n", "end"
        ]  # fmt: skip
    assert list(torchx.log_lines(handle, "t", 2, regex="rep.*2")) == ["replica 2\n"]
    assert list(torchx.log_lines(handle, "t", 2, streams=Stream.COMBINED))
    done = three.command("log", f"{handle}/t/0,2")
    assert "replica 0" in done.stdout and "replica 2" in done.stdout and "replica 1" not in done.stdout
    assert three.command("log", "--regex", "replica", handle).stdout.count("replica") == 3
    with pytest.raises(ValueError, match="use `combined`"):
        torchx.log_lines(handle, "t", 0, streams=Stream.STDERR)
    for name, number in (("t", 3), ("none", 0)):
        with pytest.raises(ValueError, match=f"no replica {name}/{number}: known are t/0, t/1, t/2"):
            torchx.log_lines(handle, name, number)


def test_output_of_a_time(three: Nodes, torchx: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    handle = start(three, torchx, role(f"echo early; {HELD.replace('exit', 'echo late; exit')}", str(go), replicas=1))
    eventually(lambda: "early\n" in torchx.log_lines(handle, "sh"))
    index = three.daemons[0].root.rank_index(f"{app_id(handle)}-0", 0, 0)
    eventually(lambda: index.exists() and index.stat().st_size, message="its time is noted, a moment later")
    # The time index is of 100 ms: a moment in which nothing is written separates the two.
    middle = datetime.now() + timedelta(seconds=0.3)
    eventually(lambda: datetime.now() > middle + timedelta(seconds=0.3))
    go.write_text("0")
    until(torchx, handle, AppState.SUCCEEDED)
    assert list(torchx.log_lines(handle, "sh", since=middle)) == ["late\n"]
    assert list(torchx.log_lines(handle, "sh", until=middle)) == ["early\n"]
    assert list(torchx.log_lines(handle, "sh", since=middle.astimezone())) == ["late\n"]


def test_without_follow_the_output_ends_and_with_it_goes_on_over_a_restart(
    three: Nodes, torchx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later[0], sleep=time.sleep)
    monkeypatch.setattr("muster.torchx.app_logs.time", clock)
    go = tmp_path / "go"
    handle = start(three, torchx, role(f"echo early; {HELD.replace('exit', 'echo late; exit')}", str(go)))
    eventually(lambda: list(torchx.log_lines(handle, "sh", 1)) == ["early\n"])
    followed = iter(torchx.log_lines(handle, "sh", 1, should_tail=True))
    assert next(followed) == "early\n"
    later[0] = 3600.0  # it is silent for an hour, and the search for the daemon begins only then
    three.daemons[1].kill()
    three.daemons[1].restart()
    go.write_text("0")
    assert list(followed) == ["late\n"]
    assert until(torchx, handle, *DONE).state is AppState.SUCCEEDED


# --- daemons that come and go -----------------------------------------------------------------------------------------


def test_a_node_that_is_lost_while_an_app_runs(three: Nodes, torchx: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    handle = start(three, torchx, role(HELD, str(go)))
    lost = three.daemons[2]
    rank = three.jobs(app_id(handle))[2].ranks[0].pid
    lost.kill()
    try:
        status = torchx.status(handle)
        assert status.state is AppState.RUNNING and f"no answer from {lost.address}" in status.msg
        assert status.roles[0].replicas[2].state is AppState.UNKNOWN
        go.write_text("0")
        eventually(lambda: not alive(rank))
        known = eventually(lambda: (seen := torchx.status(handle)).state is not AppState.RUNNING and seen)
        assert known.state is AppState.UNKNOWN, "success needs every replica"
        with pytest.MonkeyPatch.context() as patch, runner(three) as other:
            patch.setenv("MUSTER_HOSTS", lost.address)
            with pytest.raises(NoAnswer, match="no daemon answers"):
                other.list("muster")
    finally:
        lost.restart()
    assert until(torchx, handle, *DONE).state is AppState.SUCCEEDED, (
        "the rank outlived its daemon, and so did its result"
    )


def test_cancel_while_a_daemon_is_away(three: Nodes, torchx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.torchx.scheduler.LOOK_S", 0.1)
    handle = start(three, torchx, role("exec sleep 1000"))
    away = three.daemons[0]
    away.kill()
    try:
        with pytest.raises(NotCancelled, match="cancel again once the daemons answer"):
            torchx.cancel(handle)
        for number in (1, 2):
            assert three.daemons[number].wait(f"{app_id(handle)}-{number}").state == job_pb2.JOB_STATE_STOPPED
    finally:
        away.restart()
    until(torchx, handle, AppState.RUNNING)
    torchx.cancel(handle)
    assert until(torchx, handle, *DONE).state is AppState.CANCELLED


def test_an_app_of_which_a_part_was_removed(three: Nodes, torchx: Any) -> None:
    handle = start(three, torchx, role("true"))
    until(torchx, handle, AppState.SUCCEEDED)
    three.daemons[1].jobs.Delete(job_pb2.DeleteRequest(job_id=f"{app_id(handle)}-1"), timeout=60)
    status = torchx.status(handle)
    assert status.state is AppState.FAILED and "1 of 3 replicas are not known" in status.msg
    assert "State: UNKNOWN" in three.command("status", handle).stdout
