"""Restarts: the whole gang again, with dying words, a budget, and each attempt's output apart."""

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from muster import client
from muster.v1 import job_pb2, log_pb2
from tests.conftest import FINAL, Daemon, alive, eventually
from tests.ports import free_port

#: For a rank that does something in its grace, on a machine that may let it wait.
LONG_GRACE = [Duration(seconds=60)]
TRAIN = Path(__file__).parents[3] / "examples" / "train.py"


def start(daemon: Daemon, script: str, **fields: Any) -> Any:
    backoff = fields.pop("backoff_ms", 20)
    command = ("sh", "-c", script)
    given: dict[str, Any] = {"job_id": "x", "command": command, "ranks": 2}
    spec = job_pb2.JobSpec(**(given | fields))
    spec.restart_backoff.FromMilliseconds(backoff)
    return daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job


def log_of(job: Any) -> str:
    return Path(job.log_path).read_text()


def test_the_whole_gang_is_started_again_until_it_succeeds(daemon: Daemon) -> None:
    # Rank 1 fails when rank 0 has written, which would else be ended before it has.
    said = f"{daemon.folder}/said-$MUSTER_ATTEMPT"
    start(
        daemon,
        'echo "$RANK in $MUSTER_ATTEMPT $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS"\n'
        'if [ "$MUSTER_ATTEMPT" = 2 ]; then exit 0; fi\n'
        f'[ "$RANK" = 0 ] && : > "{said}"\n'
        f'[ "$RANK" = 1 ] && {{ until [ -e "{said}" ]; do sleep 0.01; done; exit 5; }}\n'
        "exec sleep 1000",
        max_restarts=4,
    )
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code, job.attempt) == (job_pb2.JOB_STATE_SUCCEEDED, 0, 2)
    assert [(a.number, a.exit_code, a.first_failed_rank) for a in job.past_attempts] == [(0, 5, 1), (1, 5, 1)]
    for rank in (0, 1):
        lines = daemon.output(job, rank).decode().splitlines()
        assert [line for line in lines if not line.startswith("[muster: ")] == [
            f"{rank} in {n} {n} of 4" for n in range(3)
        ]
        assert [line.split()[1:3] for line in lines if line.startswith("[muster: ")] == [
            ["attempt", "1"],
            ["attempt", "2"],
        ]
    kinds = [e.kind for e in daemon.event_list("x")]
    assert kinds.count("job.restarting") == 2 and kinds.count("job.running") == 3 and kinds.count("job.ended") == 1


def test_each_attempts_output_can_be_read_alone(daemon: Daemon) -> None:
    # None fails before all have written: it would end the others.
    at, n = f"{daemon.folder}/out", "$MUSTER_ATTEMPT"
    both = f"touch {at}$RANK{n}; until [ -e {at}0{n} -a -e {at}1{n} ]; do sleep 0.02; done"
    start(daemon, f"echo out $RANK {n}; {both}; [ {n} = 2 ]", max_restarts=2)
    daemon.wait("x")
    for attempt in range(3):
        done = daemon.cli("logs", "x", "--attempt", str(attempt))
        lines = [line for line in done.stdout.splitlines() if "[muster: attempt" not in line]
        assert sorted(lines) == [f"[rank {rank}] out {rank} {attempt}" for rank in (0, 1)]
    done = daemon.cli("logs", "x", "--attempt", "3")
    assert done.returncode != 0 and "the present attempt of this job is 2" in done.stderr


def test_the_budget_ends_and_the_last_failure_is_the_jobs(daemon: Daemon) -> None:
    start(daemon, "exit $((10 + MUSTER_ATTEMPT))", max_restarts=2, ranks=1)
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code, job.attempt) == (job_pb2.JOB_STATE_FAILED, 12, 2)
    assert "no restart is left" in log_of(job)
    shown = daemon.cli("status", "x").stdout
    assert "2 of at most 2" in shown and re.search(r"attempt 1 +code 11", shown)


def test_without_restarts_there_is_none(daemon: Daemon) -> None:
    start(daemon, "exit 3", ranks=1)
    job = daemon.wait("x")
    assert (job.attempt, len(job.past_attempts), job.verdict.exit_code) == (0, 0, 3)


def test_a_command_that_cannot_be_run_is_not_tried_again(daemon: Daemon) -> None:
    start(daemon, "", command=("no-such-program",), max_restarts=5)
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code, job.attempt) == (job_pb2.JOB_STATE_FAILED, 127, 0)


def test_the_others_get_sigterm_and_the_grace_before_a_restart(daemon: Daemon, tmp_path: Path) -> None:
    """Dying words: the rank that is left saves what it has, and the next attempt finds it."""
    start(
        daemon,
        f'cd "{tmp_path}"\n'
        'if [ "$MUSTER_ATTEMPT" = 1 ]; then cat saved-0; exit 0; fi\n'
        'if [ "$RANK" = 1 ]; then while [ ! -e ready ]; do sleep 0.01; done; exit 9; fi\n'
        "trap 'echo checkpoint of 0 >saved-0; exit 0' TERM\n"
        "touch ready\nwhile true; do sleep 0.01; done",
        max_restarts=1,
        grace_steps=LONG_GRACE,
    )
    job = daemon.wait("x")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED
    assert "checkpoint of 0" in daemon.output(job, 0).decode()


def test_a_stop_between_two_attempts_ends_the_job(daemon: Daemon) -> None:
    start(daemon, "exit 5", max_restarts=3, ranks=1, backoff_ms=600_000)
    job = eventually(lambda: (j := daemon.get("x")).state == job_pb2.JOB_STATE_RESTARTING and j)
    assert job.HasField("restart_at") and job.attempt == 1
    daemon.stop("x")
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_STOPPED, 143)


def test_a_stopped_job_is_not_started_again(daemon: Daemon) -> None:
    start(daemon, "sleep 1000", max_restarts=3)
    eventually(lambda: daemon.get("x").state == job_pb2.JOB_STATE_RUNNING)
    daemon.stop("x")
    job = daemon.wait("x")
    assert (job.state, job.attempt) == (job_pb2.JOB_STATE_STOPPED, 0)


def until_restarting_or_over(daemon: Daemon, job_id: str) -> int:
    wanted = {job_pb2.JOB_STATE_RESTARTING, *FINAL}
    state: int = eventually(lambda: (state := daemon.get(job_id).state) in wanted and state)
    return state


@pytest.mark.slow
@pytest.mark.parametrize("who", ["daemon", "supervisor", "nursery"])
def test_the_budget_survives_a_death_between_two_attempts(daemon: Daemon, who: str) -> None:
    for backoff in (1500, 6000, 24000):  # in which a busy machine may not show us the pause
        job_id = f"x-{backoff}"
        start(daemon, "exit $((10 + MUSTER_ATTEMPT))", job_id=job_id, max_restarts=2, ranks=1, backoff_ms=backoff)
        if until_restarting_or_over(daemon, job_id) == job_pb2.JOB_STATE_RESTARTING:
            break
    if who == "daemon":
        daemon.kill()
        daemon.restart()
    else:
        os.kill(daemon.supervisor_pid(job_id) if who == "supervisor" else daemon.nursery_pid(), signal.SIGKILL)
    job = daemon.wait(job_id)
    assert (job.state, job.verdict.exit_code, job.attempt) == (job_pb2.JOB_STATE_FAILED, 12, 2)
    assert [a.number for a in job.past_attempts] == [0, 1]


def test_max_runtime_counts_the_running_time_of_all_attempts(daemon: Daemon) -> None:
    for limit in (1500, 10_000, 40_000):  # a busy machine may need a short one for the first attempt alone
        job_id = f"x-{limit}"
        spec = job_pb2.JobSpec(
            job_id=job_id, command=("sh", "-c", "[ $MUSTER_ATTEMPT = 0 ] && exit 1; sleep 1000"), max_restarts=9
        )
        spec.restart_backoff.FromMilliseconds(10)
        spec.max_runtime.FromMilliseconds(limit)
        daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
        job = daemon.wait(job_id)
        if job.attempt:
            break
    assert (job.state, job.attempt, job.verdict.stopped_by) == (job_pb2.JOB_STATE_FAILED, 1, "max_runtime")


def test_followers_see_all_attempts_without_a_break(daemon: Daemon) -> None:
    start(daemon, "echo a$MUSTER_ATTEMPT; [ $MUSTER_ATTEMPT = 2 ]", max_restarts=2, ranks=1)
    request = log_pb2.ReadLogsRequest(job_id="x", follow=True)
    data = b""
    for message in daemon.logs.ReadLogs(request, timeout=60):
        assert message.offset == len(data) or message.eof
        data += message.data
    assert re.sub(rb"\[muster: .*\]\n", b"", data) == b"a0\na1\na2\n"


@pytest.mark.slow
def test_the_example_resumes_from_its_checkpoint(daemon: Daemon, tmp_path: Path) -> None:
    """A rank dies in the middle; the others save; the second attempt goes on from there to the end."""
    spec = job_pb2.JobSpec(
        job_id="x", ranks=3, max_restarts=1, workdir=str(tmp_path), env={"PYTHONUNBUFFERED": "1"},
        command=(sys.executable, str(TRAIN), "--steps", "20", "--step-time", "0.02", "--fail-rank", "1",
                 "--fail-step", "8", "--fail-attempt", "0", "--save-every", "5"),
    )  # fmt: skip
    spec.restart_backoff.FromMilliseconds(10)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    job = daemon.wait("x", 120)
    output = daemon.output(job, 0).decode()
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, output
    resumed = re.search(r"resumed from checkpoint at step (\d+)", output)
    assert resumed is not None and int(resumed[1]) >= 5, output
    assert json.loads((tmp_path / "checkpoints" / "x" / "checkpoint.json").read_text())["step"] >= 5
    assert not any(alive(rank.pid) for rank in job.ranks)


def test_a_port_in_use_is_refused(daemon: Daemon) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(grpc.RpcError) as caught:
            daemon.run("true", job_id="x", master_port=port)
        failure = client.failure(caught.value)
        assert failure.reason == "PORT_IN_USE" and str(port) in failure.message
        daemon.run(
            "true", job_id="y", master_port=port, node_rank=1, node_count=2, master_addr="127.0.0.1"
        )  # another's
    daemon.run("sleep", "1000", job_id="z", master_port=port)
    with pytest.raises(grpc.RpcError) as caught:
        daemon.run("true", job_id="w", master_port=port)
    assert "job z" in client.failure(caught.value).message


def test_a_stop_while_the_victims_are_being_ended_keeps_the_job_from_another_attempt(
    daemon: Daemon, tmp_path: Path
) -> None:
    start(
        daemon,
        f'cd "{tmp_path}"; if [ "$RANK" = 1 ]; then while [ ! -e ready ]; do sleep 0.01; done; exit 9; fi\n'
        "trap 'touch asked' TERM; touch ready; while [ ! -e go ]; do sleep 0.01; done; exit 0",
        max_restarts=3,
        grace_steps=LONG_GRACE,
    )
    eventually((tmp_path / "asked").exists)  # the victim of rank 1 takes its time
    request = job_pb2.StopRequest(job_id="x")
    request.timeout.FromSeconds(0)
    daemon.jobs.Stop(request, timeout=60)
    (tmp_path / "go").touch()
    job = daemon.wait("x")
    assert (job.attempt, job.verdict.exit_code, job.verdict.first_failed_rank) == (0, 9, 1)
