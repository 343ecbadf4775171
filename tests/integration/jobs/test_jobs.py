"""Jobs as a scheduler sees them: started, ended, stopped, with all that belongs to them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from muster import client
from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually

PYTHON = (sys.executable, "-S", "-c")


def reason(error: grpc.RpcError) -> str:
    assert isinstance(error, grpc.Call)
    status = rpc_status.from_call(error)
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            assert info.domain == "muster"
            return info.reason
    return ""


def test_all_ranks_succeed(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "echo out $RANK; echo err $RANK >&2", job_id="good", ranks=4)
    job = daemon.wait("good")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED
    assert job.verdict.exit_code == 0
    assert job.verdict.recommendation == job_pb2.RECOMMENDATION_NONE
    assert daemon.root.job_log("good", 0).read_text().count("[muster] pre-check: left out: ") == 1
    for rank in job.ranks:
        assert (rank.outcome, rank.exit_code) == (job_pb2.RANK_OUTCOME_EXITED, 0)
        assert Path(rank.log_path).name == f"good-proc-rank-{rank.rank}-device-{rank.device}.txt"
        assert daemon.output(job, rank.rank) == f"out {rank.rank}\nerr {rank.rank}\n".encode()
        assert rank.usage.max_rss_bytes > 1 << 20
        assert rank.ended_at.ToNanoseconds() >= rank.started_at.ToNanoseconds()


def test_environment_of_a_rank(daemon: Daemon) -> None:
    job = daemon.run("env", "-0", job_id="envs", ranks=2, env={"MINE": "a b=c\nd"}, node_rank=1, node_count=3,
                     master_addr="10.1.2.3", master_port=2222)  # fmt: skip
    job = daemon.wait("envs")
    for local, rank in enumerate(job.ranks):
        env = dict(e.split("=", 1) for e in daemon.output(job, local).decode().split("\0") if e)
        expected = {
            "RANK": str(2 + local),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": "6",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "1",
            "MASTER_ADDR": "10.1.2.3",
            "MASTER_PORT": "2222",
            "TORCHELASTIC_RUN_ID": "envs",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "GROUP_WORLD_SIZE": "3",
            "ROLE_NAME": "default",
            "ROLE_RANK": str(2 + local),
            "ROLE_WORLD_SIZE": "6",
            "OMP_NUM_THREADS": "1",
            "MA_NUM_HOSTS": "3",
            "MA_NUM_GPUS": "2",
            "MA_TASK_NAME": "worker",
            "VC_TASK_INDEX": "1",
            "VC_WORKER_NUM": "3",
            "VC_WORKER_HOSTS": "10.1.2.3",
            "MA_HOME": env["HOME"],
            "MA_JOB_DIR": str(daemon.root.job("envs").folder),
            "MA_LOG_DIR": str(daemon.root.log),
            "WORKSPACE": str(daemon.root.job("envs").workspace),
            "MUSTER_JOB_ID": "envs",
            "MUSTER_ATTEMPT": "0",
            "MINE": "a b=c\nd",
        }
        assert expected.items() <= env.items()
        assert rank.rank == 2 + local
        # Nothing of the daemon's own environment: what a rank has is given or told.
        allowed = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "MUSTER_NONCE", "PYTHONUNBUFFERED"}
        assert set(env) <= set(expected) | allowed


def test_a_rank_inherits_nothing(daemon: Daemon) -> None:
    program = (
        "import os, json\n"
        "print(json.dumps([os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(),"
        " open('/proc/self/oom_score_adj').read().strip(), os.getcwd()]))"
    )
    # A C program shows what execve was given; Python itself ignores SIGPIPE and SIGXFSZ.
    daemon.run("sh", "-c", "grep -E 'SigIgn|SigBlk|SigCgt' /proc/self/status; ls -l /proc/self/fd", job_id="raw")
    raw = daemon.output(daemon.wait("raw")).decode()
    masks = dict(line.split(":\t") for line in raw.splitlines() if line.startswith("Sig"))
    # Signals 32 and 33 are libc's own: no program can set them, so they are as the daemon itself was given them.
    assert int(masks["SigIgn"], 16) & ~0x180000000 == 0 and int(masks["SigBlk"], 16) == 0
    assert len([line for line in raw.splitlines() if " -> " in line]) == 4  # 0, 1, 2 and the folder that ls reads
    daemon.run(*PYTHON, program, job_id="bare", ranks=2)
    job = daemon.wait("bare")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, daemon.output(job)
    own_session, own_group, oom, cwd = json.loads(daemon.output(job, 1))
    assert (own_session, own_group, oom) == (True, True, "0")
    assert cwd == str(daemon.root.job("bare").workspace / "device1")


def test_arguments_are_given_as_they_are(daemon: Daemon) -> None:
    words = ["", " ", "$HOME", "*", "a'b\"c", "line\nbreak", "\u00e4\u4e2d"]
    daemon.run(*PYTHON, "import sys; print(ascii(sys.argv[1:]))", *words, job_id="words")
    job = daemon.wait("words")
    assert daemon.output(job).decode().strip() == ascii(words)


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["no-such-program-here"], 127, "not found in the PATH"),
        (["/no/such/file"], 127, "not found"),
        (["/etc/passwd"], 126, "not executable"),
        (["/"], 126, "not executable"),
    ],
)
def test_commands_that_cannot_be_executed(daemon: Daemon, command: list[str], code: int, words: str) -> None:
    daemon.run(*command, job_id="bad", ranks=2)
    job = daemon.wait("bad")
    assert job.state == job_pb2.JOB_STATE_FAILED
    assert job.verdict.exit_code == code
    assert words in job.verdict.summary and command[0] in job.verdict.summary
    # The other one may be ended for the first before it has tried.
    outcomes = {r.outcome for r in job.ranks}
    assert job_pb2.RANK_OUTCOME_NOT_STARTED in outcomes
    assert outcomes <= {job_pb2.RANK_OUTCOME_NOT_STARTED, job_pb2.RANK_OUTCOME_GANG_VICTIM}


def test_a_missing_interpreter_is_reported(daemon: Daemon, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    daemon.run(str(script), job_id="shebang")
    job = daemon.wait("shebang")
    assert job.verdict.exit_code == 127 and "interpreter" in job.verdict.summary


def test_exit_code_127_of_the_program_itself_is_its_own(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "exit 127", job_id="own127")
    job = daemon.wait("own127")
    assert (job.ranks[0].outcome, job.ranks[0].exit_code) == (job_pb2.RANK_OUTCOME_EXITED, 127)


def test_the_first_failure_ends_the_gang(daemon: Daemon, tmp_path: Path) -> None:
    # The others wait for ever: only being ended ends them. The failing one waits until they are there.
    program = (
        "import os, sys, time, pathlib\n"
        f"d = pathlib.Path({str(tmp_path)!r})\n"
        "r = int(os.environ['RANK'])\n"
        "(d / str(r)).touch()\n"
        "while r == 2 and len(list(d.iterdir())) < 4: time.sleep(0.001)\n"
        "if r == 2: print('dying words', flush=True); sys.exit(9)\n"
        "time.sleep(3600)\n"
    )
    daemon.run(*PYTHON, program, job_id="gang", ranks=4)
    job = daemon.wait("gang")
    assert (job.state, job.verdict.exit_code, job.verdict.first_failed_rank) == (job_pb2.JOB_STATE_FAILED, 9, 2)
    assert list(job.verdict.victims) == [0, 1, 3]
    assert job.verdict.last_lines == ["dying words"]
    assert job.ranks[0].outcome == job_pb2.RANK_OUTCOME_GANG_VICTIM
    assert job.ranks[0].signal == signal.SIGTERM
    assert "rank 2" in job.verdict.summary and "code 9" in job.verdict.summary


def _is_zombie(stat: Path) -> bool:
    return stat.read_text().rpartition(") ")[2][0] == "Z"


@pytest.mark.parametrize("stopped", [False, True], ids=["by itself", "stopped meanwhile"])
def test_the_first_failure_of_one_batch_is_the_same_for_every_reader(daemon: Daemon, stopped: bool) -> None:
    """While the job is being ended and afterwards. Its supervisor finds both ends, and the stop, in one turn."""
    script = "trap '' TERM; echo ready; while :; do sleep 3600; done"
    daemon.run("sh", "-c", script, job_id="batch", ranks=4, grace_steps=[Duration(seconds=600)])
    eventually(lambda: all(b"ready" in daemon.output(daemon.get("batch"), rank) for rank in range(4)))
    # Before the supervisor is stopped: the daemon learns the pids from it.
    pids = [daemon.rank_pid("batch", rank) for rank in (3, 1)]
    supervisor = daemon.supervisor_pid("batch")
    os.kill(supervisor, signal.SIGSTOP)
    asked = job_pb2.StopRequest(job_id="batch", timeout=Duration(), grace=Duration(seconds=600))
    try:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            eventually(partial(_is_zombie, Path(f"/proc/{pid}/stat")))
        # Last: a stop continues a supervisor that somebody has stopped.
        call = daemon.jobs.Stop.future(asked, timeout=60) if stopped else None
    finally:
        os.kill(supervisor, signal.SIGCONT)
    job = eventually(lambda: (job := daemon.get("batch")).verdict.HasField("first_failed_rank") and job)
    assert job.state == job_pb2.JOB_STATE_STOPPING
    assert (job.verdict.first_failed_rank, job.verdict.exit_code) == (3, 137)
    assert json.loads(daemon.cli("why", "batch", "-o", "json").stdout)["firstFailure"]["rank"] == 3
    assert "rank 3 was killed by SIGKILL" in daemon.cli("status", "batch").stdout
    if call is not None:
        call.result()
    final = daemon.stop("batch", grace_s=0).job
    assert (final.state, final.verdict.first_failed_rank) == (job_pb2.JOB_STATE_FAILED, 3)
    assert final.verdict.exit_code == 137
    assert [event.rank for event in daemon.event_list("batch") if event.kind == "rank.exited"][:2] == [3, 1]
    [ended] = [event for event in daemon.event_list("batch") if event.kind == "job.ended"]
    assert ended.attributes["first_failed_rank"] == "3"
    assert json.loads(daemon.cli("why", "batch", "-o", "json").stdout)["firstFailure"]["rank"] == 3


def test_a_signal_is_distinguished_from_a_code(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "kill -SEGV $$", job_id="segv")
    job = daemon.wait("segv")
    assert (job.ranks[0].outcome, job.ranks[0].signal) == (job_pb2.RANK_OUTCOME_SIGNALLED, signal.SIGSEGV)
    assert job.verdict.exit_code == 128 + signal.SIGSEGV
    assert "SIGSEGV" in job.verdict.summary


def test_stop_is_sigterm_then_sigkill(daemon: Daemon) -> None:
    program = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'term\\n'))\n"
        "os.write(1, b'ready\\n')\n"
        "while True: time.sleep(3600)\n"
    )
    daemon.run(*PYTHON, program, job_id="stubborn")
    eventually(lambda: b"ready" in daemon.output(daemon.get("stubborn")))
    asked = job_pb2.StopRequest(job_id="stubborn", reason="no longer needed", timeout=Duration())
    asked.grace.FromSeconds(3600)
    assert not daemon.jobs.Stop(asked, timeout=60).ended
    eventually(lambda: b"term" in daemon.output(daemon.get("stubborn")))  # in a grace that a busy machine keeps to
    answer = daemon.stop("stubborn", grace_s=1, reason="no longer needed")
    assert answer.ended
    job = answer.job
    assert job.state == job_pb2.JOB_STATE_STOPPED
    assert (job.ranks[0].outcome, job.ranks[0].signal) == (job_pb2.RANK_OUTCOME_STOPPED, signal.SIGKILL)
    assert daemon.output(job) == b"ready\nterm\n"
    assert "no longer needed" in job.verdict.summary and "SIGKILL" in job.verdict.summary
    assert daemon.stop("stubborn").job.state == job_pb2.JOB_STATE_STOPPED  # idempotent


@contextmanager
def debugged(pid: int) -> Iterator[None]:
    """A debugger holds all threads of the process, and its user is at lunch."""
    tracer = subprocess.Popen([sys.executable, "-m", "tests.tracer", str(pid)], stdout=subprocess.PIPE)
    try:
        assert tracer.stdout is not None and tracer.stdout.readline() == b"attached\n"
        yield
    finally:
        tracer.kill()
        tracer.communicate()


WITHOUT_CGROUPS = ("unshare", "-m", "sh", "-c", 'umount -lR /sys/fs/cgroup; exec "$@"', "sh")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to trace")
@pytest.mark.parametrize("by", [(), WITHOUT_CGROUPS], ids=["", "no cgroups"])
def test_a_rank_that_a_debugger_keeps(make_daemon: Callable[..., Daemon], by: tuple[str, ...]) -> None:
    """What ends under a debugger stays a zombie with its threads, and the kernel tells nobody of its end."""
    daemon = make_daemon(by=by)
    script = "import threading; threading.Thread(target=threading.Event().wait).start(); print('up', flush=True)"
    daemon.run(sys.executable, "-c", script, job_id="x", ranks=2)
    for rank in range(2):
        eventually(lambda rank=rank: daemon.output(daemon.get("x"), rank) == b"up\n")  # type: ignore[misc]
    with debugged(daemon.rank_pid("x", 1)):
        daemon.stop("x", grace_s=0.2)
        job = daemon.wait("x")
        assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_STOPPED, 128 + signal.SIGTERM), job.verdict
        assert [rank.signal for rank in job.ranks] == [signal.SIGTERM, signal.SIGKILL]
        warnings = [event.message for event in daemon.event_list("x") if event.kind == "job.warning"]
        assert not any("could not be killed" in text for text in warnings), warnings
        daemon.until_put_away("x")


def test_a_stop_with_a_shorter_grace_shortens_the_first(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 3600; done", job_id="hurry")
    eventually(lambda: b"ready" in daemon.output(daemon.get("hurry")))
    request = job_pb2.StopRequest(job_id="hurry")
    request.grace.FromSeconds(3600)
    request.timeout.FromSeconds(0)
    assert not daemon.jobs.Stop(request, timeout=60).ended
    assert daemon.get("hurry").state == job_pb2.JOB_STATE_STOPPING
    assert daemon.stop("hurry", grace_s=0).ended


def test_a_stopped_process_can_still_be_ended_gently(daemon: Daemon) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    daemon.run("sh", "-c", script, job_id="frozen")
    eventually(lambda: b"ready" in daemon.output(daemon.get("frozen")))
    os.kill(daemon.rank_pid("frozen"), signal.SIGSTOP)
    job = daemon.stop("frozen", grace_s=60).job
    assert daemon.output(job).endswith(b"bye\n")
    assert job.ranks[0].exit_code == 0 and job.ranks[0].signal == 0


STRAY = (
    "import os, time\n"
    "def stray():\n"
    "    if os.fork(): return\n"
    "    os.setsid()\n"
    "    if os.fork(): os._exit(0)\n"
    "    open('stray', 'a').write(f'{os.getpid()}\\n'); time.sleep(3600)\n"
    "stray()\n"
    "while not os.path.exists('stray') or not open('stray').read().endswith('\\n'): time.sleep(0.001)\n"
    "os.wait()\n"
)


@pytest.mark.parametrize("stopped", [True, False])
def test_nothing_survives(daemon: Daemon, stopped: bool) -> None:
    rest = "print('up', flush=True); time.sleep(3600)" if stopped else ""
    daemon.run(*PYTHON, STRAY + rest, job_id="stray", ranks=2)
    notes = [daemon.root.job("stray").workspace / f"device{i}" / "stray" for i in (0, 1)]
    eventually(lambda: all(note.exists() and note.read_text().endswith("\n") for note in notes))
    pids = [int(note.read_text()) for note in notes]
    if stopped:
        assert all(alive(pid) for pid in pids)
        daemon.stop("stray", grace_s=0.2)
    job = daemon.wait("stray")
    assert job.state == (job_pb2.JOB_STATE_STOPPED if stopped else job_pb2.JOB_STATE_SUCCEEDED)
    assert not any(alive(pid) for pid in pids)


def test_dev_stdout_can_be_opened_again(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "echo one > /dev/stdout; echo two > /dev/stderr; echo three", job_id="again")
    assert daemon.output(daemon.wait("again")) == b"one\ntwo\nthree\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as another user")
def test_another_user(open_daemon: Daemon) -> None:
    daemon = open_daemon
    script = "id -un; id -gn; echo $HOME $USER; echo again > /dev/stdout; touch here"
    daemon.run("sh", "-c", script, user="nobody", job_id="nobody")
    job = daemon.wait("nobody")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, (job, daemon.output(job))
    assert daemon.output(job).decode().split("\n")[:4] == ["nobody", "nogroup", "/nonexistent nobody", "again"]
    assert (daemon.root.job("nobody").workspace / "device0" / "here").stat().st_uid != 0
    # The secrets of the spec are not the job's user's to read from the folder.
    assert daemon.root.job("nobody").spec.stat().st_mode & 0o077 == 0


def test_start_is_idempotent(daemon: Daemon) -> None:
    spec = job_pb2.JobSpec(job_id="same", command=["sh", "-c", "echo once"], env={"A": "1", "B": "2"})
    first = daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    again = daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    assert not first.already_existed and again.already_existed
    job = daemon.wait("same")
    assert daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).already_existed
    assert daemon.output(job) == b"once\n"
    spec.env["A"] = "other"
    with pytest.raises(grpc.RpcError) as info:
        daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    assert info.value.code() == grpc.StatusCode.ALREADY_EXISTS
    assert reason(info.value) == "JOB_ID_CONFLICT"


def test_a_conflict_names_what_differs(make_daemon: Callable[..., Daemon]) -> None:
    """Not what this node's own default of the grace made of the spec, and no values."""
    daemon = make_daemon("[jobs]\ngrace_steps = [1, 2]\n")
    spec = job_pb2.JobSpec(job_id="same", command=["true"], env={"TOKEN": "hunter2", "SAME": "x"})
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    spec.ranks = 1
    assert daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).already_existed
    spec.env["TOKEN"], spec.nice = "swordfish", 5
    with pytest.raises(grpc.RpcError) as info:
        daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    assert reason(info.value) == "JOB_ID_CONFLICT"
    assert client.facts(info.value)["fields"] == "env['TOKEN'], nice"
    told = info.value.details() or ""
    assert "differs in env['TOKEN'], nice: " in told
    assert "hunter2" not in told and "swordfish" not in told
    cli = daemon.cli("start", "--job-id", "same", "--env", "SAME=x", "--env", "TOKEN=hunter2", "--", "false")
    assert (cli.returncode, cli.stdout) == (5, "")
    assert "differs in command" in cli.stderr


@pytest.mark.parametrize(
    "script", ["exec sleep 3600", "trap 'exit 0' TERM; sleep 3600 & wait", "trap 'exit 7' TERM; sleep 3600 & wait"]
)
def test_max_runtime(daemon: Daemon, script: str, tmp_path: Path) -> None:
    """Whatever the ranks exit with; and all who report it agree."""
    epilog, said = tmp_path / "epilog", tmp_path / "said"
    epilog.write_text(f'#!/bin/sh\necho "$MUSTER_STATE $MUSTER_EXIT_CODE $MUSTER_REASON" > {said}\n')
    epilog.chmod(0o755)
    spec = job_pb2.JobSpec(job_id="late", command=["sh", "-c", script], epilog=str(epilog))
    spec.max_runtime.FromMilliseconds(500)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    job = daemon.wait("late")
    found = job.verdict
    assert (job.state, found.exit_code, found.reason) == (job_pb2.JOB_STATE_FAILED, 124, "TIMED_OUT")
    assert (found.stopped_by, found.HasField("first_failed_rank")) == ("max_runtime", False)
    assert found.recommendation == job_pb2.RECOMMENDATION_NONE
    assert said.read_text() == "FAILED 124 TIMED_OUT\n"
    assert daemon.cli("wait", "late").returncode == 124
    assert "TIMED_OUT: stopped by max_runtime: 0.5 s have passed" in daemon.cli("status", "late").stdout
    assert "it reached its time limit (max_runtime 0.5 s)" in daemon.cli("why", "late").stdout
    (ended,) = [event for event in daemon.event_list("late") if event.kind == "job.ended"]
    assert (ended.attributes["reason"], ended.attributes["exit_code"]) == ("TIMED_OUT", "124")


def test_a_clean_end_within_the_grace_of_a_stop_keeps_the_code_of_the_ranks(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done", job_id="clean")
    eventually(lambda: "up" in daemon.cli("logs", "clean").stdout)
    daemon.cli("stop", "clean", "--grace", "60s")
    job = daemon.wait("clean")
    assert (job.state, job.verdict.exit_code, job.verdict.reason) == (job_pb2.JOB_STATE_STOPPED, 0, "")


def test_a_working_folder_that_vanished_is_reported(daemon: Daemon, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    daemon.run("pwd", job_id="there", workdir=str(home))
    assert daemon.output(daemon.wait("there")).decode().strip() == str(home)


def test_many_ranks(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "echo $RANK", job_id="many", ranks=256)
    job = daemon.wait("many")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED
    assert [daemon.output(job, r) for r in range(256)] == [f"{r}\n".encode() for r in range(256)]


def test_delete(daemon: Daemon) -> None:
    daemon.run("echo", "x", job_id="gone")
    job = daemon.wait("gone")
    daemon.jobs.Delete(job_pb2.DeleteRequest(job_id="gone"), timeout=60)
    assert not Path(job.ranks[0].log_path).exists() and not daemon.root.job("gone").folder.exists()
    with pytest.raises(grpc.RpcError) as info:
        daemon.get("gone")
    assert info.value.code() == grpc.StatusCode.NOT_FOUND and reason(info.value) == "JOB_NOT_FOUND"
    daemon.run("sleep", "3600", job_id="busy")
    with pytest.raises(grpc.RpcError) as info:
        daemon.jobs.Delete(job_pb2.DeleteRequest(job_id="busy"), timeout=60)
    assert reason(info.value) == "JOB_NOT_ENDED"
