"""Signals that ranks handle: each gets them once, and none ends by one that it does not handle."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from muster import client
from muster.v1 import event_pb2, job_pb2
from tests.conftest import BIN, Daemon, alive, eventually

#: Says what it gets. Its workers do not count: they have the handler from it.
PYTHON = """
import os, signal, sys, time
out = os.open(sys.argv[1] if len(sys.argv) > 1 else "/dev/stdout", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
signal.signal(signal.SIGUSR1, lambda *_: os.write(out, b"saved\\n"))
os.fork()
os.write(out, b"up\\n")
while True: time.sleep(1)
"""
SHELL = "trap 'echo saved' USR1; echo up; while :; do sleep 0.05; done"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PYTHON)
    return path


def send(daemon: Daemon, name: str, job_id: str = "x", **more: object) -> list[job_pb2.SignalledRank]:
    request = job_pb2.SignalRequest(job_id=job_id, signal=name, **more)  # type: ignore[arg-type]
    return list(daemon.jobs.Signal(request, timeout=60).ranks)


def up(daemon: Daemon, ranks: int, count: int = 1) -> None:
    """Until the ranks have their handlers, and the daemon knows that they run."""
    eventually(lambda: all(said(daemon, rank, "up") == count for rank in range(ranks)))
    daemon.until_running("x")


def said(daemon: Daemon, rank: int, word: str) -> int:
    return daemon.output(daemon.get("x"), rank).decode().split().count(word)


def refusal(call: Callable[[], object]) -> client.Failure:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return client.failure(caught.value)


@pytest.mark.parametrize(
    "around",
    [
        ("{python}", "{program}"),
        ("sh", "-c", "{python} {program}; exit $?"),
        ("sh", "-c", "trap '' USR2; {python} {program}; exit $?"),
        ("sh", "-c", "sh -c '{python} {program}; exit $?'; exit $?"),
    ],
    ids=["itself", "below a shell", "below a shell that ignores another", "below two"],
)
def test_the_first_process_that_handles_it_gets_it(daemon: Daemon, program: Path, around: tuple[str, ...]) -> None:
    command = [word.format(python=sys.executable, program=program) for word in around]
    daemon.run(*command, job_id="x", ranks=2)
    up(daemon, 2, 2)
    first, second = send(daemon, "USR1")
    assert (first.rank, second.rank) == (0, 1) and len(first.pids) == len(second.pids) == 1
    eventually(lambda: all(said(daemon, rank, "saved") for rank in range(2)))
    (one,) = send(daemon, "10", ranks=[1])
    assert one.pids == second.pids
    eventually(lambda: said(daemon, 1, "saved") == 2)
    assert (said(daemon, 0, "saved"), said(daemon, 0, "up")) == (1, 2)
    events = daemon.events.Watch(event_pb2.WatchRequest(job_id="x", from_oldest=True, no_follow=True), timeout=60)
    (told,) = [one.event for one in events if one.event.kind == "job.signalled"]  # the second came within a minute
    assert (told.attributes["signal"], told.attributes["ranks"]) == ("SIGUSR1", "0-1")
    assert told.message.startswith("SIGUSR1 sent to ranks 0-1, by ")


def test_a_rank_that_does_not_handle_it_lives_on(daemon: Daemon) -> None:
    daemon.run("sleep", "1000", job_id="x", ranks=2)
    job = daemon.until_running("x")
    for name in ("USR1", "SIGTERM", "KILL", "STOP", "RTMIN", "64"):
        for one in send(daemon, name):
            assert not one.pids
            assert one.why_not.startswith("no process there has a handler, and the signal would "), name
    assert all(one.pids for one in send(daemon, "CONT"))  # ends nobody
    assert all(alive(rank.pid) for rank in job.ranks)
    (one,) = send(daemon, "USR1", ranks=[1], force=True)
    assert list(one.pids) == [job.ranks[1].pid]
    ended = daemon.wait("x")
    assert ended.verdict.exit_code == 128 + signal.SIGUSR1
    assert ended.verdict.cause.startswith("rank 1 died of SIGUSR1, which ")
    assert ended.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_HERE
    assert refusal(lambda: send(daemon, "USR1")).reason == "RANK_NOT_RUNNING"


def test_a_shell_that_cleans_up_at_its_exit_does_not_get_it(daemon: Daemon, program: Path) -> None:
    """bash with a trap for EXIT has a handler for every signal, and ends by it."""
    inner = f"trap 'echo cleanup' EXIT; {sys.executable} {program}; exit $?"
    daemon.run("bash", "-c", inner, job_id="x")
    up(daemon, 1, 2)
    (one,) = send(daemon, "USR1")
    assert len(one.pids) == 1 and one.pids[0] != daemon.rank_pid("x")
    eventually(lambda: said(daemon, 0, "saved"))
    daemon.run("bash", "-c", "trap 'echo cleanup' EXIT; echo up; while :; do sleep 0.05; done", job_id="y")
    daemon.until_running("y")
    eventually(lambda: b"up" in daemon.output(daemon.get("y"), 0))
    (one,) = send(daemon, "USR1", "y")
    assert not one.pids and "catches every signal" in one.why_not
    assert alive(daemon.rank_pid("y"))


def test_a_helper_of_a_rank_is_not_the_rank(daemon: Daemon) -> None:
    """It may do what it likes by a signal that the rank was to get."""
    helper = "trap : USR1; while :; do sleep 0.05; done"
    script = (
        f"import subprocess, time; subprocess.Popen(['sh', '-c', {helper!r}]); time.sleep(0.5); print('up', flush=True)"
    )
    daemon.run(sys.executable, "-c", f"{script}; time.sleep(1000)", job_id="x")
    up(daemon, 1)
    (one,) = send(daemon, "USR1")
    assert not one.pids and one.why_not.startswith("no process there has a handler")


def test_one_that_waits_for_it_gets_it_by_force(daemon: Daemon) -> None:
    script = """
import signal, threading, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
def wait():
    signal.sigwait({signal.SIGUSR1})
    print("saved", flush=True)
threading.Thread(target=wait).start()
print("up", flush=True)
time.sleep(1000)
"""
    daemon.run(sys.executable, "-c", script, job_id="x")
    up(daemon, 1)
    (one,) = send(daemon, "USR1")  # nothing shows that it waits
    assert not one.pids and "blocks it" in one.why_not
    (one,) = send(daemon, "USR1", force=True)
    assert list(one.pids) == [daemon.rank_pid("x")]
    eventually(lambda: said(daemon, 0, "saved"))


def test_one_that_ignores_it_is_named(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "trap '' USR1; echo up; exec sleep 1000", job_id="x")
    up(daemon, 1)
    (one,) = send(daemon, "USR1")
    assert (list(one.pids), one.why_not) == ([], "ignored there")


def test_what_is_wrong_is_refused(daemon: Daemon) -> None:
    daemon.run("sleep", "1000", job_id="x", ranks=2)
    daemon.until_running("x")
    for bad in ("", "USR3", "0", "65", "-10", "SIG", "\u0661\u0660"):
        (violation,) = refusal(lambda bad=bad: send(daemon, bad)).violations  # type: ignore[misc]
        assert violation == ("signal", f"{bad!r} is not a signal: USR1, SIGUSR1 and 10 are")
    assert refusal(lambda: send(daemon, "USR1", ranks=[0, 7])).violations == [
        ("ranks", "rank 7: this node has ranks 0-1")
    ]
    assert refusal(lambda: send(daemon, "USR1", "nosuch")).reason == "JOB_NOT_FOUND"


def test_a_signal_that_the_daemon_got_too_is_sent_once(daemon: Daemon) -> None:
    """The ranks have it then from where the daemon has it."""
    daemon.run("sh", "-c", SHELL, job_id="x")
    up(daemon, 1)
    request = job_pb2.SignalRequest(job_id="x", signal="USR1", passed_on=True)
    assert not daemon.jobs.Signal(request, timeout=60).received
    eventually(lambda: said(daemon, 0, "saved") == 1)
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGUSR1)
    answer = daemon.jobs.Signal(request, timeout=60)
    assert answer.received and not answer.ranks
    assert not daemon.jobs.Signal(request, timeout=60).received  # it counted once
    eventually(lambda: said(daemon, 0, "saved") == 2)
    (other,) = daemon.jobs.Signal(job_pb2.SignalRequest(job_id="x", signal="USR2", passed_on=True), timeout=60).ranks
    assert not other.pids
    assert said(daemon, 0, "saved") == 2


def test_the_command(daemon: Daemon) -> None:
    def muster(*args: str) -> tuple[int, str, str]:
        command: list[str | Path] = [BIN / "muster", "--address", f"unix:{daemon.root.socket}", "signal", *args]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    daemon.run("sh", "-c", f'if [ "$RANK" = 2 ]; then echo up; exec sleep 1000; fi; {SHELL}', job_id="x", ranks=3)
    up(daemon, 3)
    code, out, err = muster("-s", "usr1", "x")
    assert (code, out) == (1, "x: SIGUSR1 sent to ranks 0-1\n")
    assert err == (
        "muster: x: SIGUSR1 not sent to rank 2: no process there has a handler, and the signal would end it\n"
    )
    assert muster("-s", "10", "-r", "1", "x") == (0, "x: SIGUSR1 sent to rank 1\n", "")
    assert muster("-s", "USR1", "nosuch")[0] == 3
    assert muster("-s", "USR9", "x")[0] == 2
