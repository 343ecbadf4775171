"""What is killed, and what must still be true. The random version of this is tests/chaos/."""

import contextlib
import json
import os
import signal
import sys
import zlib
from pathlib import Path

import pytest

from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually

#: Waits for a file, then writes on and exits with 5.
PATIENT = (
    "import sys, os, time\n"
    "print('before', flush=True)\n"
    "while not os.path.exists('go'): time.sleep(0.005)\n"
    "print('after')\n"
    "sys.exit(5)\n"
)
COMMAND = (sys.executable, "-S", "-c", PATIENT)
#: Of a stop: more than a busy machine takes until its supervisor is killed.
GRACE_MS = 25_000


def start(daemon: Daemon, job_id: str = "job") -> int:
    """A running job that has written its first line; returns the rank's pid."""
    daemon.run(*COMMAND, job_id=job_id)
    eventually(lambda: daemon.get(job_id).state == job_pb2.JOB_STATE_RUNNING)
    log = Path(daemon.get(job_id).ranks[0].log_path)
    eventually(lambda: log.exists() and log.read_bytes() == b"before\n")
    return int(daemon.get(job_id).ranks[0].pid)


def release(daemon: Daemon, job_id: str = "job") -> None:
    (daemon.root.job(job_id).workspace / "device0" / "go").touch()


def expect_five(daemon: Daemon, job_id: str = "job") -> None:
    job = daemon.wait(job_id)
    assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 5), job
    assert daemon.output(job) == b"before\nafter\n"
    assert job.ranks[0].outcome == job_pb2.RANK_OUTCOME_EXITED


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_daemon_goes_and_comes_back(daemon: Daemon, number: int) -> None:
    pid = start(daemon)
    code = daemon.kill(number)
    assert code == (0 if number != signal.SIGKILL else -9)
    assert alive(pid)
    daemon.start()
    assert daemon.get("job").ranks[0].pid == pid
    release(daemon)
    expect_five(daemon)


@pytest.mark.slow
def test_a_job_ends_while_the_daemon_is_down(daemon: Daemon) -> None:
    pid = start(daemon)
    daemon.kill()
    release(daemon)
    eventually(lambda: not alive(pid))
    daemon.start()
    expect_five(daemon)
    kinds = [e.kind for e in daemon.event_list("job")]
    assert kinds.count("job.accepted") == kinds.count("rank.exited") == kinds.count("job.ended") == 1


@pytest.mark.slow
def test_a_supervisor_is_replaced(daemon: Daemon) -> None:
    pid = start(daemon)
    first = daemon.supervisor_pid("job")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: daemon.supervisor_pid("job") not in (0, first))
    assert alive(pid)
    release(daemon)
    expect_five(daemon)
    assert daemon.get("job").takeovers == 1
    assert "job.taken_over" in [e.kind for e in daemon.event_list("job")]


@pytest.mark.slow
def test_which_rank_failed_first_while_no_supervisor_lived_is_not_claimed(daemon: Daemon) -> None:
    script = "while [ ! -e go ]; do sleep 0.005; done; exit $((7 - RANK))"
    daemon.run("sh", "-c", script, job_id="job", ranks=4)
    pids = [rank.pid for rank in daemon.until_running("job").ranks]
    nursery = daemon.nursery_pid()
    daemon.kill()  # it would replace a nursery that is silent for long
    os.kill(nursery, signal.SIGSTOP)  # so that no successor comes yet
    try:
        os.kill(daemon.supervisor_pid("job"), signal.SIGKILL)
        for rank in (3, 1):
            (daemon.root.job("job").workspace / f"device{rank}" / "go").touch()
        eventually(lambda: not any(alive(pids[rank]) for rank in (1, 3)))
    finally:
        os.kill(nursery, signal.SIGCONT)
    daemon.start()
    ended = daemon.wait("job")
    assert (ended.state, list(ended.verdict.unordered)) == (job_pb2.JOB_STATE_FAILED, [1, 3])
    assert ended.verdict.first_failed_rank in (1, 3)
    sentence = "ranks 1 and 3 ended while no supervisor was running; which of them failed first is unknown"
    assert sentence in ended.verdict.summary
    assert sorted(ended.verdict.victims) == [0, 2]
    assert "First failure, one of ranks 1,3 (unknown which): rank" in daemon.cli("why", "job").stdout
    assert sentence in daemon.cli("status", "job").stdout


def test_a_rank_that_fails_after_a_takeover_is_the_first(daemon: Daemon) -> None:
    """As one that fails alone while there is no supervisor."""
    script = "while [ ! -e go ]; do sleep 0.005; done; exit $((7 - RANK))"
    daemon.run("sh", "-c", script, job_id="job", ranks=2)
    daemon.until_running("job")
    os.kill(daemon.supervisor_pid("job"), signal.SIGKILL)
    (daemon.root.job("job").workspace / "device1" / "go").touch()
    ended = daemon.wait("job")
    assert ended.verdict.first_failed_rank == 1
    assert not ended.verdict.unordered and "is unknown" not in ended.verdict.summary


def test_the_nursery_is_replaced_and_then_the_supervisor(daemon: Daemon) -> None:
    pid = start(daemon)
    first = daemon.nursery_pid()
    os.kill(first, signal.SIGKILL)
    eventually(lambda: daemon.nursery_pid() not in (0, first))
    supervisor = daemon.supervisor_pid("job")
    assert supervisor and alive(pid)
    # The new nursery must have taken the job up before its supervisor dies, else nobody would notice.
    eventually(lambda: _has_open(daemon.nursery_pid(), f"{daemon.root.job('job').folder}/rank-0.fifo"))
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: daemon.supervisor_pid("job") not in (0, supervisor))
    release(daemon)
    expect_five(daemon)


def _has_open(pid: int, path: str) -> bool:
    with contextlib.suppress(OSError):
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") == path for fd in os.listdir(f"/proc/{pid}/fd"))
    return False


def test_nursery_and_supervisor_go_while_the_daemon_is_down(daemon: Daemon) -> None:
    pid = start(daemon)
    daemon.kill()
    os.kill(daemon.nursery_pid(), signal.SIGKILL)
    os.kill(daemon.supervisor_pid("job"), signal.SIGKILL)
    assert alive(pid)
    daemon.start()
    eventually(lambda: daemon.supervisor_pid("job"))
    release(daemon)
    expect_five(daemon)


@pytest.mark.parametrize("daemon_lives", [False, True])
def test_output_that_a_rank_took_with_it_is_reported(daemon: Daemon, daemon_lives: bool) -> None:
    """Where nobody had its FIFO open when it ended: neither supervisor nor nursery, nor the daemon."""
    pid = start(daemon)
    supervisor, nursery = daemon.supervisor_pid("job"), daemon.nursery_pid()
    if daemon_lives:
        os.kill(supervisor, signal.SIGSTOP)  # so that the daemon starts no other meanwhile
    else:
        daemon.kill()
        for victim in (nursery, supervisor):
            os.kill(victim, signal.SIGKILL)
    release(daemon)
    eventually(lambda: not alive(pid))
    if daemon_lives:
        os.kill(supervisor, signal.SIGKILL)
    else:
        daemon.start()
    job = daemon.wait("job")
    told = [text for text in job.warnings if "what it had written last: that is missing" in text]
    assert bool(told) != daemon_lives, job
    assert daemon.output(job) == (b"before\nafter\n" if daemon_lives else b"before\n")
    if told:
        assert told[0].startswith("rank 0 ended while supervisor, nursery and daemon were dead"), told
        assert told[0] in daemon.cli("why", "job").stdout


@pytest.mark.slow
def test_a_stop_goes_on_after_the_supervisor_was_killed(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 3600; done", job_id="job", ranks=2)
    eventually(lambda: all(daemon.output(daemon.get("job"), r) for r in (0, 1)))
    request = job_pb2.StopRequest(job_id="job")
    request.grace.FromMilliseconds(GRACE_MS)
    request.timeout.FromSeconds(0)
    daemon.jobs.Stop(request, timeout=60)
    os.kill(daemon.supervisor_pid("job"), signal.SIGKILL)
    job = daemon.wait("job")
    assert job.state == job_pb2.JOB_STATE_STOPPED
    assert {(r.outcome, r.signal) for r in job.ranks} == {(job_pb2.RANK_OUTCOME_STOPPED, signal.SIGKILL)}


def test_nothing_survives_a_stop_after_a_takeover(daemon: Daemon) -> None:
    program = (
        "import os, time\n"
        "while not os.path.exists('go'): time.sleep(0.005)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    open('stray', 'w').write(f'{os.getpid()}\\n'); time.sleep(3600)\n"
        "os.wait(); time.sleep(3600)\n"
    )
    daemon.run(sys.executable, "-S", "-c", program, job_id="job")
    daemon.until_running("job")
    first = daemon.supervisor_pid("job")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: daemon.supervisor_pid("job") not in (0, first))
    release(daemon)
    stray = int(eventually(lambda: _read(daemon.root.job("job").workspace / "device0" / "stray")))
    daemon.stop("job", grace_s=0.2)
    assert not alive(stray)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        text = path.read_text()
        return text if text.endswith("\n") else ""
    return ""


def test_after_a_reboot_running_jobs_are_lost_and_ended_ones_keep_their_verdict(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "exit 3", job_id="ended")
    daemon.wait("ended")
    pid = start(daemon)
    daemon.kill()
    for victim in (daemon.nursery_pid(), daemon.supervisor_pid("job"), pid):
        os.kill(victim, signal.SIGKILL)
    eventually(lambda: not alive(pid))
    for job_id in ("ended", "job"):
        _as_of_another_boot(daemon.root.job(job_id).journal)
    daemon.start()
    job = daemon.wait("job")
    assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_LOST, 125)
    assert "reboot" in job.verdict.summary
    assert job.ranks[0].outcome == job_pb2.RANK_OUTCOME_LOST
    ended = daemon.get("ended")
    assert (ended.state, ended.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 3)


def _as_of_another_boot(journal: Path) -> None:
    data = b""
    for line in journal.read_bytes().splitlines():
        record = json.loads(line[9:])
        if "boot" in record:
            record["boot"] = "00000000-0000-0000-0000-000000000000"
        body = json.dumps(record, separators=(",", ":")).encode()
        data += b"%08x %s\n" % (zlib.crc32(body), body)
    journal.write_bytes(data)


def test_a_damaged_journal_is_reported_and_never_guessed(daemon: Daemon) -> None:
    daemon.run("true", job_id="broken")
    daemon.wait("broken")
    daemon.run("true", job_id="fine")
    daemon.wait("fine")
    daemon.kill()
    journal = daemon.root.job("broken").journal
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.write_bytes(data)
    daemon.start()
    job = daemon.get("broken")
    assert job.state == job_pb2.JOB_STATE_LOST and "checksum" in job.verdict.summary
    listed = {job.job_id: job for job in daemon.jobs.List(job_pb2.ListRequest(), timeout=60).jobs}
    assert listed["broken"].state == job_pb2.JOB_STATE_LOST and "checksum" in listed["broken"].verdict.summary
    assert daemon.get("fine").state == job_pb2.JOB_STATE_SUCCEEDED
    daemon.jobs.Delete(job_pb2.DeleteRequest(job_id="broken"), timeout=60)


@pytest.mark.slow
def test_the_nursery_ends_when_it_has_nothing_to_do(daemon: Daemon) -> None:
    daemon.run("true", job_id="job")
    daemon.wait("job")
    nursery = daemon.nursery_pid()
    assert nursery
    daemon.kill(signal.SIGTERM)
    eventually(lambda: not alive(nursery), 60)
    assert not daemon.root.nursery_socket.exists()
