"""What goes wrong between two attempts, and before and after the ranks: the job goes on by itself, and ends once."""

import asyncio
import contextlib
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.agent.link import supervisor_client
from muster.probes.kernel import process
from muster.supervisors.model import journal
from muster.supervisors.model.replay import replay
from muster.supervisors.model.states import Kind, StopCause
from muster.v1 import job_pb2, log_pb2
from tests.conftest import Daemon, alive, eventually, let_through
from tests.integration.box import Boxed, mounted

SUCCEEDED, FAILED, LOST = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_LOST
RUNNING, RESTARTING = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_RESTARTING
STOPPED = job_pb2.JOB_STATE_STOPPED
#: A pause, or a grace, that no test sees the end of.
FOR_EVER_MS = 600_000
#: Of a boot that had lasted for longer than this one: what was to come in minutes would now come in months.
ANOTHER_BOOT, LONGER_UP_S = "00000000-0000-0000-0000-000000000000", 9e6


def start(daemon: Daemon, script: str, backoff_ms: int = 10, **fields: Any) -> None:
    given: dict[str, Any] = {"job_id": "x", "command": ("sh", "-c", script), "ranks": 1}
    spec = job_pb2.JobSpec(**(given | fields))
    spec.restart_backoff.FromMilliseconds(backoff_ms)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)


def ask_to_stop(daemon: Daemon, grace_ms: int) -> None:
    """Returns before it has ended."""
    request = job_pb2.StopRequest(job_id="x")
    request.grace.FromMilliseconds(grace_ms)
    request.timeout.FromSeconds(0)
    daemon.jobs.Stop(request, timeout=60)


def shell(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def epilog(folder: Path, more: str = "") -> str:
    """A script that first adds to the file `told` how the job has ended."""
    return shell(folder / "epilog.sh", f'echo "$MUSTER_STATE $MUSTER_EXIT_CODE" >>{folder}/told\n{more}')


def records(daemon: Daemon, job_id: str = "x") -> list[journal.Record]:
    """Raises JournalDamaged."""
    return journal.read(daemon.root.job(job_id).journal).records


def kinds(daemon: Daemon, job_id: str = "x") -> list[str]:
    """Of the records; a step with its name."""
    return [f"step {r['name']}" if r["kind"] == Kind.STEP else r["kind"] for r in records(daemon, job_id)]


def in_state(daemon: Daemon, state: int, job_id: str = "x") -> Any:
    return eventually(lambda: (job := daemon.get(job_id)).state == state and job, 60)


def kill(pid: int) -> None:
    """Returns when it has ended."""
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not alive(pid))


# --- a step that muster ends while its supervisor dies ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "echo $$ >{0}/pid; trap 'touch {0}/told; until [ -e {0}/go ]; do sleep 0.01; done; exit 7' TERM; ",
            "did not end within 0.5 s",
        ),
        (
            "(trap 'touch {0}/told; until [ -e {0}/go ]; do sleep 0.01; done; exit 7' TERM; touch {0}/set; "
            "while :; do sleep 0.01; done) & echo $! >{0}/pid; until [ -e {0}/set ]; do sleep 0.01; done; exit 0",
            r"left \d+ process\(es\) running, and muster ended them",
        ),
    ],
    ids=["its time is over", "it left processes"],
)
def test_a_successor_knows_why_a_step_was_ended(daemon: Daemon, tmp_path: Path, text: str, why: str) -> None:
    for limit_ms in (500, 5000, 50_000):  # a busy machine may take longer than the first until the step traps SIGTERM
        folder = tmp_path / str(limit_ms)
        folder.mkdir()
        in_time = ends_while_nobody_looks(daemon, folder, text, limit_ms if "within" in why else FOR_EVER_MS)
        job = daemon.wait("x")
        assert job.state == FAILED
        if in_time:
            break
        forget(daemon, keep_logs=False)
    assert in_time, "its time was over before anybody could be killed"
    why = why.replace("0.5 s", f"{limit_ms / 1000:g} s")
    assert re.search(f"pre_start {folder}/p.sh {why}.*; no rank was started", job.verdict.summary), job.verdict


def ends_while_nobody_looks(daemon: Daemon, folder: Path, text: str, limit_ms: int) -> bool:
    """Its supervisor is dead by then, and the nursery makes no other yet. False where it had been ended before."""
    script = text.format(folder) + "\nwhile :; do sleep 0.01; done\n"
    spec = job_pb2.JobSpec(job_id="x", command=("true",), ranks=1, pre_start=shell(folder / "p.sh", script))
    spec.pre_start_timeout.FromMilliseconds(limit_ms)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    eventually(lambda: (folder / "told").exists() or daemon.get("x").state == FAILED)
    nursery, supervisor = daemon.nursery_pid(), daemon.supervisor_pid("x")
    os.kill(nursery, signal.SIGSTOP)
    try:
        if not (folder / "told").exists() or not supervisor:
            return False
        with contextlib.suppress(ProcessLookupError):
            kill(supervisor)
        if not alive(pid := int((folder / "pid").read_text())):
            return False
        (folder / "go").touch()
        eventually(lambda: not alive(pid))
    finally:
        os.kill(nursery, signal.SIGCONT)
    return True


# --- a restart that cannot be prepared --------------------------------------------------------------------------------

USER = "musters-own-test"


class Passwd:
    """The users of a daemon's node."""

    def __init__(self, path: Path) -> None:
        self.path, self.others = path, Path("/etc/passwd").read_text()
        self.let_in()

    def let_in(self) -> None:
        self.path.write_text(f"{self.others}{USER}:x:54321:54321::/tmp:/bin/sh\n")

    def take_away(self) -> None:
        self.path.write_text(self.others)


@pytest.fixture
def passwd(tmp_path: Path) -> Passwd:
    return Passwd(tmp_path / "passwd")


@pytest.fixture
def apart(passwd: Passwd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with an /etc/passwd of its own, whose root other users can pass through."""
    prefix = mounted(f"mount --bind '{passwd.path}' /etc/passwd")
    daemon = Boxed(tmp_path_factory.mktemp("root"), '[checks]\npolicy = "off"\n', prefix)
    let_through(daemon.folder)
    yield daemon.start()
    daemon.close()


def fail_once_its_user_is_gone(daemon: Daemon, passwd: Passwd, script: str, **fields: Any) -> None:
    """A job of which the first rank exits with 3 when its user is gone, so that what follows finds no user."""
    home = daemon.root.job("x").workspace / "device0"
    wait = "touch up; while [ ! -e go ]; do sleep 0.01; done"
    start(daemon, f"{wait}; [ $MUSTER_ATTEMPT != 0 ] || exit 3; {script}", user=USER, **fields)
    # A rank that is RUNNING may not be its user's yet; one whose script runs is.
    eventually((home / "up").exists)
    passwd.take_away()
    (home / "go").touch()


def test_a_restart_that_cannot_be_prepared_is_an_attempt_that_failed(apart: Daemon, passwd: Passwd) -> None:
    fail_once_its_user_is_gone(apart, passwd, "id -u", max_restarts=30)
    eventually(lambda: len(apart.get("x").past_attempts) > 2, 60)
    passwd.let_in()
    job = apart.wait("x")
    assert (job.state, job.verdict.exit_code, job.attempt) == (SUCCEEDED, 0, len(job.past_attempts)), job
    first, *others = job.past_attempts
    assert [past.number for past in job.past_attempts] == list(range(job.attempt)) and first.exit_code == 3
    assert {past.exit_code for past in others} == {125}
    assert all(USER in past.summary and "could not be prepared" in past.summary for past in others), others
    assert apart.output(job).decode().splitlines()[-1] == "54321", "the rank of the last attempt ran as the user"
    apart.kill()
    apart.start()
    assert apart.get("x").state == SUCCEEDED, "the journal can be read from its beginning"


@pytest.mark.parametrize("killed", [False, True], ids=["", "by-a-successor"])
def test_the_last_restart_cannot_be_prepared_and_an_epilog_is_left(apart: Daemon, passwd: Passwd, killed: bool) -> None:
    """A successor knows no user to run the epilog as; the job ends all the same, and says so."""
    told = apart.root.job("x").workspace / "device0" / "told"
    script = shell(apart.folder / "epilog.sh", 'echo "$MUSTER_STATE $MUSTER_EXIT_CODE" >>told\n')
    for pause in (3000, 40_000) if killed else (10,):  # a busy machine may take longer than the first to look
        fail_once_its_user_is_gone(apart, passwd, "true", max_restarts=1, epilog=script, backoff_ms=pause)
        in_time = not killed or killed_in_its_pause(apart)
        job = apart.wait("x")
        if in_time:
            break
        passwd.let_in()
        forget(apart, keep_logs=False)
    assert in_time
    assert (job.state, job.verdict.exit_code, job.attempt) == (FAILED, 125, 1), job
    assert "could not be prepared" in job.verdict.summary and USER in job.verdict.summary
    if killed:
        assert not told.exists() and any("could not be started" in text for text in job.warnings), job
    else:
        assert told.read_text() == "FAILED 125\n" and not job.warnings


def killed_in_its_pause(daemon: Daemon) -> bool:
    """The supervisor, between two attempts; false where the second one was quicker."""
    eventually(lambda: Kind.RESTARTING in kinds(daemon))
    if not (pid := daemon.supervisor_pid("x")):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    told = kinds(daemon)
    return set(told[told.index(Kind.RESTARTING) + 1 :]) <= {Kind.TAKEN}


# --- a journal that takes no record for a moment ----------------------------------------------------------------------


@contextlib.contextmanager
def full_disk(daemon: Daemon, room: int = 0) -> Iterator[None]:
    """The journal takes `room` bytes and then no record, until the block is left."""
    pid, size = daemon.supervisor_pid("x"), daemon.root.job("x").journal.stat().st_size
    assert pid, "0 would be this process"
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + room, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def until_refused(daemon: Daemon) -> None:
    eventually(lambda: "File too large; trying again" in daemon.root.nursery_log.read_text(), 60)


def size(records: list[journal.Record]) -> int:
    """Bytes in a journal. The same records of a like job differ by some digits."""
    return sum(len(journal.encode(record)) for record in records)


def pause_left(daemon: Daemon) -> float:
    """Seconds until the next attempt; 0 where the job is not between two attempts."""
    last = records(daemon)[-1]
    return float(last["up"] + last["delay_s"] - process.uptime()) if last["kind"] == Kind.RESTARTING else 0.0


@pytest.mark.slow
def test_a_restart_for_which_there_was_no_room(daemon: Daemon, tmp_path: Path) -> None:
    """Neither that it is prepared can be recorded, nor that it could not be. Each pause is twice as long as the one
    before, so there is one in which there is time enough to fill the disk."""
    start(daemon, f"[ -e {tmp_path}/go ] || exit 3", backoff_ms=1000, max_restarts=10)
    while True:
        eventually(lambda: pause_left(daemon) > 3.0)
        with full_disk(daemon):
            if pause_left(daemon) > 0.0:  # a busy machine may have taken longer than the pause
                (tmp_path / "go").touch()  # for the attempt behind this pause
                until_refused(daemon)
                assert kinds(daemon)[-1] == Kind.RESTARTING
                break
    job = daemon.wait("x")
    assert (job.state, job.attempt) == (SUCCEEDED, len(job.past_attempts)), job


def test_an_epilog_for_which_there_was_no_room(daemon: Daemon, tmp_path: Path) -> None:
    """How the job ends is on record, but neither the epilog can be nor that it could not be started."""
    patient = "while [ ! -e go ]; do sleep 0.01; done"
    for job_id in ("y", "x"):
        start(daemon, patient, job_id=job_id, epilog=epilog(tmp_path))
        daemon.until_running(job_id)
        if job_id == "y":
            (daemon.root.job("y").workspace / "device0" / "go").touch()
            assert daemon.wait("y").state == SUCCEEDED
    (tmp_path / "told").unlink()
    began, concluded = (kinds(daemon, "y").index(kind) + 1 for kind in (Kind.RUNNING, Kind.CONCLUDED))
    with full_disk(daemon, size(records(daemon, "y")[began:concluded]) + 70):
        (daemon.root.job("x").workspace / "device0" / "go").touch()
        until_refused(daemon)
        assert kinds(daemon)[-1] == Kind.CONCLUDED
    job = daemon.wait("x")
    assert (job.state, list(job.warnings)) == (SUCCEEDED, [])
    assert (tmp_path / "told").read_text() == "SUCCEEDED 0\n"


def test_a_stop_between_two_attempts_for_whose_end_there_was_no_room(daemon: Daemon) -> None:
    """The order goes to the supervisor and comes once: the daemon would ask again."""

    def order(job_id: str) -> None:
        with contextlib.suppress(supervisor_client.Refused, supervisor_client.LinkLost):
            asyncio.run(supervisor_client.stop(daemon.root.job(job_id).controls, (0.0,), "me", "enough"))

    for job_id in ("y", "x"):
        start(daemon, "exit 3", job_id=job_id, backoff_ms=FOR_EVER_MS, max_restarts=3)
        in_state(daemon, RESTARTING, job_id)
    order("y")
    assert daemon.wait("y").state == STOPPED
    [asked] = [r for r in records(daemon, "y") if r["kind"] == Kind.STOPPING and r["cause"] == StopCause.REQUESTED]
    with full_disk(daemon, size([asked]) + 30):
        order("x")
        eventually(lambda: kinds(daemon)[-1] == Kind.STOPPING)
        assert daemon.get("x").state != STOPPED
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code, job.attempt) == (STOPPED, 143, 1), job


# --- a supervisor that dies behind a step -----------------------------------------------------------------------------


def test_what_an_epilog_left_behind_does_not_outlive_the_job(daemon: Daemon, tmp_path: Path) -> None:
    """It does not mind the SIGTERM of the supervisor that is killed, but the one of its successor."""
    stray = f"trap 'if [ -e {tmp_path}/asked ]; then exit 0; fi; : >{tmp_path}/asked' TERM\n"
    stray += f"echo $$ >{tmp_path}/pid\nwhile :; do sleep 0.05; done\n"
    more = f"sh {shell(tmp_path / 'stray.sh', stray)} &\nwhile [ ! -s {tmp_path}/pid ]; do sleep 0.01; done\n"
    start(daemon, "exit 6", epilog=epilog(tmp_path, more))
    eventually((tmp_path / "asked").exists)
    pid = int((tmp_path / "pid").read_text())
    try:
        os.kill(daemon.supervisor_pid("x"), signal.SIGKILL)
        job = daemon.wait("x")
        assert not alive(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert (job.state, job.verdict.exit_code, job.takeovers) == (FAILED, 6, 1)
    assert any("left" in text and "running" in text for text in job.warnings), job
    assert (tmp_path / "told").read_text() == "FAILED 6\n"


# --- reboots ----------------------------------------------------------------------------------------------------------


def reboot(daemon: Daemon) -> None:
    """As far as it can be seen: nothing of before lives, and the records are of another boot."""
    daemon.kill()
    for pid in filter(None, (daemon.nursery_pid(), daemon.supervisor_pid("x"))):
        kill(pid)
    told = records(daemon)
    born = [(r["pid"], r["start"]) for r in told if r["kind"] == Kind.STEP]
    born += [(pid, at) for r in told if r["kind"] == Kind.SPAWNED for _, pid, at in r["ranks"]]
    for pid, at in born:
        stat = process.read_stat(pid)
        if stat is not None and stat.start == at and not stat.ended:
            kill(pid)
    for record in told:
        if "boot" in record:
            record["boot"] = ANOTHER_BOOT
        if "up" in record:
            record["up"] += LONGER_UP_S
    daemon.root.job("x").journal.write_bytes(b"".join(journal.encode(record) for record in told))
    daemon.start()


def test_a_reboot_between_two_attempts(daemon: Daemon, tmp_path: Path) -> None:
    start(daemon, "exit 3", max_restarts=2, backoff_ms=FOR_EVER_MS, epilog=epilog(tmp_path))
    in_state(daemon, RESTARTING)
    reboot(daemon)
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code, len(job.past_attempts)) == (FAILED, 3, 1), job
    assert "rebooted" in job.verdict.summary and "between two attempts" in job.verdict.summary
    assert (tmp_path / "told").read_text() == "FAILED 3\n"


def test_a_reboot_during_a_step(daemon: Daemon, tmp_path: Path) -> None:
    script = shell(tmp_path / "p.sh", f"echo once >>{tmp_path}/ran; exec sleep 1000\n")
    start(daemon, f": >{tmp_path}/rank", pre_start=script, epilog=epilog(tmp_path), max_restarts=2)
    eventually(lambda: (tmp_path / "ran").exists() and (tmp_path / "ran").read_text() == "once\n")
    reboot(daemon)
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code, job.attempt) == (FAILED, 125, 0), job
    assert "rebooted" in job.verdict.summary and "pre_start" in job.verdict.summary
    assert (tmp_path / "told").read_text() == "FAILED 125\n"
    assert (tmp_path / "ran").read_text() == "once\n" and not (tmp_path / "rank").exists()


def test_a_reboot_during_the_epilog(daemon: Daemon, tmp_path: Path) -> None:
    """It may have done half of what it does: it is not run again, and that it was cut off is said."""
    start(daemon, "exit 3", epilog=epilog(tmp_path, "exec sleep 1000\n"), max_restarts=0)
    told = tmp_path / "told"
    eventually(lambda: told.exists() and told.read_text() == "FAILED 3\n")
    reboot(daemon)
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code) == (FAILED, 3), job
    assert "rebooted" not in job.verdict.summary, "the ranks had ended before"
    [text] = job.warnings
    assert "epilog" in text and "rebooted" in text and "could not be started" not in text
    assert (tmp_path / "told").read_text() == "FAILED 3\n"


def test_a_takeover_during_the_epilog_after_a_reboot(daemon: Daemon, tmp_path: Path) -> None:
    """It runs in this boot: the successor waits for it."""
    more = f"echo $$ >{tmp_path}/pid\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.01; done\necho whole\n"
    start(daemon, "exec sleep 1000", epilog=epilog(tmp_path, more))
    in_state(daemon, RUNNING)
    reboot(daemon)
    eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid, first = int((tmp_path / "pid").read_text()), daemon.supervisor_pid("x")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: daemon.supervisor_pid("x") not in (0, first) and kinds(daemon)[-1] == Kind.TAKEN)
    assert alive(pid) and daemon.get("x").step == "epilog"
    (tmp_path / "go").touch()
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code, list(job.warnings)) == (LOST, 125, []), job
    assert not alive(pid) and (tmp_path / "told").read_text() == "LOST 125\n"
    assert "whole\n" in Path(job.log_path).read_text()


def test_a_reboot_while_a_node_that_was_not_fit_is_to_be_looked_at_again(
    make_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    """The daemon has the job, and its pause was reckoned in a boot that is over."""
    daemon = make_daemon()
    daemon.kill()
    daemon.config.write_text('[checks]\npolicy = "enforce"\nroot_min_gb = 100000000.0\n')
    daemon.start()
    start(daemon, f": >{tmp_path}/rank", backoff_ms=FOR_EVER_MS, max_restarts=2, epilog=epilog(tmp_path))
    in_state(daemon, RESTARTING)
    assert Kind.TAKEN not in kinds(daemon)
    reboot(daemon)
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code, len(job.past_attempts)) == (FAILED, 125, 1), job
    assert "rebooted" in job.verdict.summary and "disk-size root" in job.verdict.summary
    assert not (tmp_path / "rank").exists()


# --- whose output it is -----------------------------------------------------------------------------------------------


def told_by(daemon: Daemon, **fields: Any) -> list[str]:
    """Lines of the rank, without those that tell two attempts apart."""
    data = b"".join(message.data for message in daemon.read_logs("x", **fields))
    return [line for line in data.decode().splitlines() if not line.startswith("[muster: ")]


def forget(daemon: Daemon, keep_logs: bool) -> None:
    daemon.jobs.Delete(job_pb2.DeleteRequest(job_id="x", keep_logs=keep_logs), timeout=60)


def test_the_logs_of_an_earlier_job_of_that_name_are_kept_and_are_not_this_jobs(daemon: Daemon, tmp_path: Path) -> None:
    start(daemon, "echo the first")
    daemon.wait("x")
    forget(daemon, keep_logs=True)
    go = f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done\nexit 3\n"
    start(daemon, "echo the second", pre_start=shell(tmp_path / "p.sh", go))
    assert told_by(daemon) == [], "its ranks have not even begun"
    (tmp_path / "go").touch()
    assert daemon.wait("x").state == FAILED
    assert told_by(daemon) == []
    own = "".join(m.data.decode() for m in daemon.read_logs("x", job_log=log_pb2.JOB_LOG_ONLY))
    assert own.count("attempt 0: 1 rank started") == 0 and "pre_start" in own, "the first job's own log is not in it"
    forget(daemon, keep_logs=False)
    names = [path.name for path in daemon.root.log.iterdir() if path.name.startswith("x-")]
    assert sorted(re.sub(r"\.\d+\+*$", "", name) for name in names) == [
        "x-muster-0.idx", "x-muster-0.log", "x-proc-rank-0-device-0.idx", "x-proc-rank-0-device-0.txt",
    ], names  # fmt: skip
    [kept] = daemon.root.log.glob("x-proc-rank-0-device-0.txt.*")
    assert kept.read_text() == "the first\n"


def test_the_logs_of_many_jobs_of_one_name_are_all_kept(daemon: Daemon) -> None:
    """Also where several of them end in the same second."""
    for number in range(5):
        start(daemon, f"echo run {number}")
        daemon.wait("x")
        assert told_by(daemon) == [f"run {number}"]
        forget(daemon, keep_logs=True)
    kept = [path.read_text() for path in daemon.root.log.glob("x-proc-rank-0-device-0.txt*")]
    assert sorted(kept) == [f"run {number}\n" for number in range(5)]


@pytest.mark.parametrize("without", [{0}, {0, 1}])
def test_an_attempt_whose_ranks_never_ran_has_no_output(daemon: Daemon, tmp_path: Path, without: set[int]) -> None:
    cases = "|".join(str(number) for number in sorted(without))
    script = shell(tmp_path / "p.sh", f"case $MUSTER_ATTEMPT in {cases}) exit 4;; esac\n")
    start(daemon, "echo out $MUSTER_ATTEMPT; [ $MUSTER_ATTEMPT = 2 ]", max_restarts=3, pre_start=script)
    assert daemon.wait("x").state == SUCCEEDED
    for attempt in range(3):
        assert told_by(daemon, attempt=attempt) == ([] if attempt in without else [f"out {attempt}"])


def test_following_an_attempt_that_is_over_ends_though_the_job_goes_on(daemon: Daemon) -> None:
    start(daemon, "echo out $MUSTER_ATTEMPT; [ $MUSTER_ATTEMPT != 0 ] || exit 3; exec sleep 1000", max_restarts=1)
    eventually(lambda: (job := daemon.get("x")).attempt == 1 and job.state == RUNNING)
    request = log_pb2.ReadLogsRequest(job_id="x", attempt=0, follow=True)
    *messages, last = daemon.logs.ReadLogs(request, timeout=60)
    assert b"".join(message.data for message in messages) == b"out 0\n"
    assert last.eof and last.state == RUNNING and not last.HasField("verdict")


# --- a stop that comes behind the ranks -------------------------------------------------------------------------------


def test_a_second_stop_of_an_epilog_does_not_put_its_end_off(daemon: Daemon, tmp_path: Path) -> None:
    start(daemon, "exit 6", epilog=epilog(tmp_path, "trap '' TERM\nwhile :; do sleep 0.05; done\n"))
    eventually((tmp_path / "told").exists)
    ask_to_stop(daemon, 700)
    ask_to_stop(daemon, FOR_EVER_MS)
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code) == (FAILED, 6)
    assert any("was ended by a stop" in text for text in job.warnings), job
    assert not replay(records(daemon)).halted, "it was not the job that was stopped"


@pytest.mark.slow
def test_a_stop_gives_an_epilog_no_more_time_than_it_has(daemon: Daemon, tmp_path: Path) -> None:
    script = epilog(tmp_path, "trap '' TERM\nwhile :; do sleep 0.05; done\n")
    spec = job_pb2.JobSpec(job_id="x", command=("true",), ranks=1, epilog=script)
    spec.epilog_timeout.FromMilliseconds(1000)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    eventually((tmp_path / "told").exists)
    ask_to_stop(daemon, FOR_EVER_MS)
    assert daemon.wait("x").state == SUCCEEDED
