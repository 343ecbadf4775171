"""Sessions and their job: its end, its attempts, the death of its supervisor."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.probes.kernel import process
from muster.supervisors.wire import frames
from tests.conftest import let_through
from tests.unit.sessions import NAME, Node, Running
from tests.unit.supervision import until

#: A session that only SIGKILL ends, and one that goes at the first word; both say when they are ready.
STUBBORN = ("sh", "-c", "trap '' TERM HUP; echo ready; while :; do sleep 0.1; done")
MILD = ("sh", "-c", "echo ready; exec sleep 600")
OVER = "it ended with the ranks of the job"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "root")
    yield made
    made.close()


@pytest.fixture
def start(node: Node) -> Iterator[Callable[..., Running]]:
    """Starts the job of a test."""
    jobs: list[Running] = []

    def run(*command: str, **fields: Any) -> Running:
        jobs.append(node.start(*command, **fields))
        return jobs[-1]

    yield run
    for job in jobs:
        job.hang_up()


def waiting(folder: Path, code: int = 0) -> tuple[str, ...]:
    """A rank that ends once there is a file `go`."""
    return ("sh", "-c", f"while [ ! -e {folder}/go ]; do sleep 0.01; done; exit {code}")


def of_session(session: str) -> list[int]:
    mark = f"MUSTER_EXEC_ID={session}".encode()
    return [s.pid for s in process.all_stats().values() if not s.ended and process.environ_has(s.pid, mark)]


@pytest.mark.parametrize("tty", [True, False])
@pytest.mark.parametrize(("argv", "ends"), [(MILD, {1, 15}), (STUBBORN, {9})])
def test_a_session_ends_with_the_ranks_and_the_job_has_succeeded(start, tmp_path, argv, ends, tty):
    job = start(*waiting(tmp_path), ranks=2)
    session = job.exec(*argv, tty=tty, stdin=tty, grace_s=0.3).until(b"ready")
    (tmp_path / "go").touch()
    end = session.finish()
    assert (end["signal"] in ends, end["message"]) == (True, OVER)
    ended = job.until_state("SUCCEEDED")
    assert (ended.verdict.exit_code, ended.warnings, ended.stop, ended.killed) == (0, [], None, False)
    assert not of_session(session.session)


def test_its_processes_in_the_background_are_no_leftovers_of_the_ranks(start, tmp_path):
    """Of sessions that live, and of one that has ended long ago; in sessions of their own, and orphans."""
    job = start(*waiting(tmp_path))
    job.exec("sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &").finish()
    session = job.exec(
        "sh", "-c", "setsid -f sh -c 'trap \"\" TERM HUP; sleep 600'; echo ready; sleep 600", grace_s=0.2
    )
    session.until(b"ready")
    (tmp_path / "go").touch()
    assert session.finish()["message"] == OVER
    ended = job.until_state("SUCCEEDED")
    assert (ended.warnings, ended.stop) == ([], None)


def test_what_really_outlives_the_ranks_is_reported_beside_a_session(start, tmp_path):
    job = start("sh", "-c", f"setsid -f sleep 654 > /dev/null 2>&1; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done")
    session = job.exec(*STUBBORN, grace_s=0.2).until(b"ready")
    (tmp_path / "go").touch()
    assert session.finish()["message"] == OVER
    ended = job.until_state("SUCCEEDED", "FAILED", "STOPPED")
    assert ended.stop is not None
    assert "1 process(es) outlive their ranks" in ended.stop.reason
    assert "(sleep)" in ended.stop.reason


def test_a_failed_job_stays_one(start, tmp_path):
    job = start(*waiting(tmp_path, 3))
    session = job.exec(*MILD).until(b"ready")
    (tmp_path / "go").touch()
    assert session.finish()["message"] == OVER
    assert job.until_state("FAILED").verdict.exit_code == 3


@pytest.mark.parametrize("steps", [[0.2], [0]])
def test_a_stop_ends_sessions_by_the_same_escalation(start, tmp_path, steps):
    job = start("sleep", "600")
    sessions = [job.exec(*argv).until(b"ready") for argv in (MILD, STUBBORN)]
    assert job.ask("stop", steps=steps, by="test")["ok"]
    mild, stubborn = (session.finish() for session in sessions)
    assert mild["signal"] in (signal.SIGTERM, signal.SIGKILL)
    assert (stubborn["signal"], stubborn["message"], mild["message"]) == (signal.SIGKILL, OVER, OVER)
    job.until_state("STOPPED")


def test_no_session_begins_while_a_job_is_stopped(start):
    job = start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done", grace_steps=(60.0,))
    until(job.output, "it is ready")
    assert job.ask("stop", steps=None, by="test")["ok"]
    answer = job.refusal({"argv": ["true"]})
    assert (answer["reason"], "STOPPING" in answer["error"]) == ("RANK_NOT_RUNNING", True)
    assert job.ask("stop", steps=[0], by="test")["ok"]


def test_no_session_in_a_rank_that_has_ended(start, tmp_path):
    job = start("sh", "-c", f"[ $RANK = 1 ] || while [ ! -e {tmp_path}/go ]; do sleep 0.01; done", ranks=2)
    until(lambda: job.job.ranks[1].outcome, "rank 1 has ended")
    assert job.refusal({"argv": ["true"], "rank": 1})["error"] == "rank 1 has ended"
    assert job.exec("true").finish()["exit_code"] == 0
    (tmp_path / "go").touch()
    job.until_state("SUCCEEDED")


def test_a_client_that_lags_has_the_end_before_the_socket_is_closed(start, tmp_path):
    """The whole window is still on its way when the job ends."""
    job = start(*waiting(tmp_path))
    write = (
        f"import os; os.write(1, b'x' * {frames.WINDOW // 2}); os.write(2, b'y' * {frames.WINDOW // 2}); os.read(0, 1)"
    )
    session = job.exec(sys.executable, "-S", "-c", write, stdin=True)
    session.acks = False
    until(lambda: Path(f"/proc/{session.pid}/wchan").read_text() != "0" and _waits_for_input(session.pid), "it waits")
    (tmp_path / "go").touch()
    end = session.finish()
    assert end["message"] == OVER
    assert (len(session.out), len(session.err)) == (frames.WINDOW // 2, frames.WINDOW // 2)
    job.until_state("SUCCEEDED")


def _waits_for_input(pid: int) -> bool:
    return Path(f"/proc/{pid}/syscall").read_text().startswith("0 0x0 ")  # read(0


def test_a_client_that_never_reads_does_not_hold_the_job(start, tmp_path):
    job = start(*waiting(tmp_path))
    session = job.exec("yes")
    until(lambda: Path(f"/proc/{session.pid}/stat").read_text().split()[2] == "S", "it waits for room")
    (tmp_path / "go").touch()
    job.until_state("SUCCEEDED")
    job.until_gone()


def test_sessions_of_an_attempt_do_not_reach_into_the_next(start, tmp_path):
    """The grace of those before must not end those that come."""
    command = f"[ $MUSTER_ATTEMPT != 0 ] || while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; [ $MUSTER_ATTEMPT != 0 ]"
    job = start("sh", "-c", f"{command} && sleep 600", max_restarts=1, restart_backoff=0.01)
    first = job.exec(*MILD, grace_s=1.0).until(b"ready")
    (tmp_path / "go").touch()
    assert first.finish()["message"] == OVER
    until(lambda: job.job.attempt == 1 and job.job.state == "RUNNING", "the second attempt runs")
    second = job.exec("sh", "-c", "trap 'echo signal' TERM HUP; echo $MUSTER_ATTEMPT; sleep 1.2; echo through")
    assert second.finish() == {"exit_code": 0, "signal": 0, "message": ""}
    assert second.out == b"1\nthrough\n"
    assert job.attach(first.session).finish()["message"] == OVER, "that one's end is still kept"
    assert job.ask("stop", steps=[0], by="test")["ok"]


def test_a_dead_supervisor_loses_its_sessions_and_its_successor_ends_them(start, tmp_path):
    job = start(*waiting(tmp_path))
    mild = job.exec(*MILD).until(b"ready")
    shell = job.exec(
        "sh", "-c", "trap 'echo hung up > note; exit' HUP; echo ready; exec 2> /dev/null; while :; do sleep 0.02; done"
    )
    shell.until(b"ready")
    note = Path(os.readlink(f"/proc/{shell.pid}/cwd")) / "note"
    first = job.supervisor
    os.kill(first, signal.SIGKILL)
    assert not mild.step()
    until(lambda: job.supervisor not in (0, first), "a successor is there")
    answer = job.ask("attach", session=mild.session, stdout=0)
    assert (answer["reason"], "died with its supervisor" in answer["error"]) == ("SESSION_NOT_FOUND", True)
    until(lambda: not of_session(mild.session) and not of_session(shell.session), "they are ended")
    assert note.read_text() == "hung up\n"
    assert job.sessions() == []
    again = job.exec("sh", "-c", "echo $RANK")
    assert (again.finish()["exit_code"], again.out) == (0, b"0\n")
    (tmp_path / "go").touch()
    ended = job.until_state("SUCCEEDED")
    assert (ended.warnings, ended.stop, ended.takeovers) == ([], None, 1)


@pytest.mark.slow
def test_what_survives_the_successors_word_is_killed_behind_the_grace(start, tmp_path):
    job = start(*waiting(tmp_path))
    session = job.exec("sh", "-c", "trap '' HUP TERM; setsid -f sleep 600; echo ready; while :; do sleep 0.1; done")
    session.until(b"ready")
    os.kill(job.supervisor, signal.SIGKILL)
    (tmp_path / "go").touch()  # the ranks end meanwhile
    ended = job.until_state("SUCCEEDED")
    assert (ended.warnings, ended.stop) == ([], None)
    assert not of_session(session.session)


def test_a_job_that_ends_while_sessions_come_and_go(start, tmp_path):
    """Ends of ranks and of sessions in one batch: no status is mistaken for another's."""
    job = start(*waiting(tmp_path), ranks=4)
    sessions = [
        job.exec("sh", "-c", f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; exit {i}") for i in range(1, 9)
    ]
    (tmp_path / "go").touch()
    codes = [session.finish() for session in sessions]
    assert all(end["exit_code"] == i or end["message"] == OVER for i, end in enumerate(codes, 1)), codes
    ended = job.until_state("SUCCEEDED")
    assert [rank.status for rank in ended.ranks] == [0] * 4


# --- other users, launchers ------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run a job as another user")
def test_a_session_is_the_jobs_user(node, start, tmp_path):
    let_through(node.root.log.parent)
    job = start("sleep", "600", user="daemon")
    session = job.exec("sh", "-c", "id -un; id -Gn; echo out > /dev/stdout; echo err > /dev/stderr")
    assert session.finish()["exit_code"] == 0
    assert (session.out, session.err) == (b"daemon\ndaemon\nout\n", b"err\n")
    terminal = job.exec("sh", "-c", "stat -Lc '%a %U' /dev/stdin; echo out > /dev/stdout", tty=True, stdin=True)
    assert terminal.finish()["exit_code"] == 0
    assert terminal.out == b"620 daemon\r\nout\r\n"
    assert job.ask("end_session", session=job.exec("sleep", "600").session)["ok"]


LAUNCHER = f"""#!{sys.executable} -S
import os, sys, time
for i in range(2):
    if os.fork() == 0:
        env = os.environ | {{"RANK": str(4 + i), "OF": "rank"}}
        os.execvpe("sh", ["sh", "-c", "sleep 600 & sleep 600"], env)
time.sleep(600)
"""


def test_beside_a_rank_that_a_launcher_made(node, start, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "torchrun").write_text(LAUNCHER)
    (folder / "torchrun").chmod(0o755)
    job = start("train.py", boot="torchrun", ranks=2, env={"PATH": f"{folder}:/usr/bin:/bin"})

    def beside(**fields: Any) -> tuple[int, bytes]:
        session = job.exec("sh", "-c", "echo $RANK $OF $MUSTER_JOB_ID", **fields)
        assert session.finish()["exit_code"] == 0
        return session.answer["rank"], bytes(session.out)

    def runs(rank: int) -> bool:
        try:
            return bool(job.exec("true", rank=rank).finish()["exit_code"] == 0)
        except AssertionError:  # it is refused
            return False

    until(lambda: runs(4) and runs(5), "the launcher has made its ranks")
    assert beside() == (4, f"4 rank {NAME}\n".encode())
    assert beside(rank=5) == (5, f"5 rank {NAME}\n".encode())
    assert job.refusal({"argv": ["true"], "rank": 6})["reason"] == "RANK_NOT_RUNNING"
