"""A log that cannot be written: nobody else is touched, the loss is reported while it lasts, and nothing is silent."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from muster.v1 import job_pb2, node_pb2, node_pb2_grpc
from tests.conftest import Daemon, eventually
from tests.integration.cards.test_metrics import MakeDaemon, scrape, value

#: Writes a line of 8 bytes whenever the file `go` was made; ends with `end`.
WRITER = (
    'n=0; while [ ! -e end ]; do if [ -e go ]; then rm go; n=$((n+1)); printf "ln %04d\\n" $n; : > "wrote-$n"; fi;'
    " sleep 0.005; done; exit 3"
)


def line(number: int) -> bytes:
    """What WRITER writes; of the same length however many lines a wait takes."""
    return b"ln %04d\n" % number


class Job:
    """Two ranks that write a line when they are told to."""

    def __init__(self, daemon: Daemon, job_id: str = "job") -> None:
        self.daemon, self.id = daemon, job_id
        daemon.run("sh", "-c", WRITER, job_id=job_id, ranks=2)
        daemon.until_running(job_id)
        self.lines = [0, 0]

    def home(self, rank: int) -> Path:
        return self.daemon.root.job(self.id).workspace / f"device{rank}"

    def log(self, rank: int) -> Path:
        return self.daemon.root.rank_log(self.id, rank, rank)

    def write(self, rank: int) -> None:
        self.lines[rank] += 1
        (self.home(rank) / "go").touch()
        eventually((self.home(rank) / f"wrote-{self.lines[rank]}").exists, message=f"rank {rank} is not held up")

    def gap_after_a_line(self, rank: int) -> Any:
        """The looks at a file are 100 ms apart: what comes before the next goes where the deleted file goes."""
        self.write(rank)
        return self.gap(rank)

    def gap(self, rank: int) -> Any:
        found = self.daemon.get(self.id).ranks[rank]
        return found.output_gap if found.HasField("output_gap") else None

    def end(self) -> Any:
        for rank in range(2):
            (self.home(rank) / "end").touch()
        return self.daemon.wait(self.id)


def in_place(log: Path, what: str) -> None:
    if what == "directory":
        log.mkdir()
    else:
        log.symlink_to("/dev/null")


def free(log: Path) -> None:
    if log.is_symlink():
        log.unlink()
    else:
        log.rmdir()


def gap_lines(data: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"^\[muster: (\d+) bytes lost [^\n]*\]$", data, re.MULTILINE)]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["directory", "link"])
@pytest.mark.parametrize("killed", [False, True], ids=["", "supervisor killed"])
def test_something_in_the_place_of_a_log(daemon: Daemon, what: str, killed: bool) -> None:
    job = Job(daemon)
    job.write(0)
    eventually(lambda: job.log(0).exists() and job.log(0).read_bytes() == line(1))
    job.log(0).unlink()
    in_place(job.log(0), what)
    if killed:
        os.kill(daemon.supervisor_pid("job"), signal.SIGKILL)
    eventually(lambda: job.gap_after_a_line(0), message="the gap is open, and told")
    job.write(1)
    eventually(lambda: job.log(1).read_bytes() == line(1), message="the other rank's log is sound")
    eventually(lambda: job.gap(0).lost_bytes > 0)
    assert job.gap(0).error in ("Is a directory", "Too many levels of symbolic links")
    shown = daemon.get("job")
    assert any("output of rank 0 has been lost since" in text for text in shown.warnings)
    assert "losing output" in daemon.cli("ps").stdout
    assert "has been lost since" in daemon.cli("why", "job").stdout
    [first, *_] = [event for event in daemon.event_list("job") if event.kind == "job.output_lost"]
    assert (first.rank, first.attributes["open"]) == (0, "true")
    assert daemon.channel is not None
    node = node_pb2_grpc.NodeServiceStub(daemon.channel)
    [condition] = eventually(
        lambda: [c for c in node.GetNode(node_pb2.GetNodeRequest()).node.conditions if c.code == "OUTPUT_LOST"]
    )
    assert condition.device == str(daemon.root.log)
    free(job.log(0))
    eventually(lambda: not daemon.get("job").ranks[0].HasField("output_gap"), message="writing resumes by itself")
    job.write(0)
    last = line(job.lines[0])
    eventually(lambda: job.log(0).read_bytes().endswith(last))
    ended = job.end()
    assert (ended.state, ended.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 3)
    lost = sum(gap_lines(job.log(0).read_bytes()))
    assert ended.ranks[0].lost_log_bytes == lost
    kept = len(re.findall(rb"^ln \d{4}$", job.log(0).read_bytes(), re.MULTILINE)) * 8
    removed = [json.loads(line) for line in Path(f"{job.log(0)}.removed").read_text().splitlines()]
    assert lost + kept + sum(r["end"] - r["start"] for r in removed) == job.lines[0] * 8, "every byte is accounted for"
    assert any("the log of rank 0: somebody deleted the file" in text for text in ended.warnings)
    read = daemon.cli("logs", "job", "-r", "0")
    assert read.returncode == 1
    assert "bytes of the output of rank 0 are missing: somebody deleted the file" in read.stderr


@pytest.mark.slow
def test_how_much_is_lost_is_known_though_no_file_takes_the_count(daemon: Daemon) -> None:
    """And supervisors that are killed again and again tell of the same gap no more often."""
    job = Job(daemon)
    paths = daemon.root.job("job")
    os.kill(pid := daemon.supervisor_pid("job"), signal.SIGSTOP)
    job.log(0).unlink(missing_ok=True)
    in_place(job.log(0), "directory")
    for path in (paths.lost, paths.ends):
        path.unlink()
        path.mkdir()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: job.gap_after_a_line(0), message="the gap is open, and told")
    seen: list[int] = []
    for _ in range(3):
        seen.append(job.gap(0).lost_bytes)
        job.write(0)
        eventually(lambda: job.gap(0).lost_bytes > seen[-1], seconds=30, message="not only once a minute")
        found = daemon.get("job").ranks[0]  # one answer: the last line may be counted a moment later
        assert found.output_gap.lost_bytes == found.lost_log_bytes
    eventually(lambda: job.gap(0).lost_bytes == 8 * job.lines[0])
    assert f"{job.gap(0).lost_bytes} bytes so far" in daemon.cli("status", "job").stdout
    for _ in range(2):
        os.kill(pid := daemon.supervisor_pid("job"), signal.SIGKILL)
        eventually(lambda: daemon.supervisor_pid("job") not in (0, pid))
        eventually(lambda: job.gap_after_a_line(0))
    told = [event for event in daemon.event_list("job") if event.kind == "job.output_lost"]
    assert len(told) == 1
    free(job.log(0))
    eventually(lambda: job.gap(0) is None)
    ended = job.end()
    assert ended.ranks[0].lost_log_bytes == sum(gap_lines(job.log(0).read_bytes()))


@pytest.mark.slow
def test_the_metric_grows_while_output_is_lost(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    """Events of an open gap are minutes apart: a rule on the increase would see none."""
    path = tmp_path / "metrics.sock"
    daemon = make_daemon(f'[metrics]\nlisten = "unix:{path}"\n')
    job = Job(daemon)

    def counted() -> float:
        return value(scrape(path), "muster_lost_log_bytes_total") or 0

    def grows() -> None:
        before = counted()
        job.write(0)
        eventually(lambda: counted() > before)

    job.log(0).unlink(missing_ok=True)
    in_place(job.log(0), "directory")
    eventually(lambda: job.gap_after_a_line(0))
    for _ in range(3):
        grows()
    eventually(lambda: counted() == job.gap(0).lost_bytes)
    free(job.log(0))
    eventually(lambda: job.gap(0) is None)
    eventually(lambda: counted() == sum(gap_lines(job.log(0).read_bytes())), message="once")
    job.log(0).unlink()
    in_place(job.log(0), "directory")
    eventually(lambda: job.gap_after_a_line(0))
    daemon.kill()
    daemon.restart()
    eventually(lambda: scrape(path))
    for _ in range(2):
        grows()
    free(job.log(0))
    job.end()


@pytest.mark.slow
def test_a_job_that_ends_inside_a_gap_gets_its_line_once_there_is_room(daemon: Daemon) -> None:
    job = Job(daemon)
    job.log(0).unlink(missing_ok=True)
    in_place(job.log(0), "directory")
    eventually(lambda: job.gap_after_a_line(0))
    ended = job.end()
    assert any("its log does not say so yet" in text for text in ended.warnings)
    lost = ended.ranks[0].lost_log_bytes
    assert lost > 0
    daemon.kill()
    daemon.restart()  # the line is not forgotten with the daemon
    free(job.log(0))
    eventually(lambda: job.log(0).is_file() and gap_lines(job.log(0).read_bytes()) == [lost], seconds=60)
    eventually(lambda: not any("does not say so yet" in text for text in daemon.get("job").warnings))
    daemon.kill()
    daemon.restart()
    assert not any("does not say so yet" in text for text in daemon.get("job").warnings)


@pytest.mark.parametrize("what", ["directory", "link"])
@pytest.mark.parametrize("killed", [False, True], ids=["", "supervisor killed"])
def test_a_log_that_is_replaced_right_before_the_end(daemon: Daemon, what: str, killed: bool) -> None:
    """Nothing is written afterwards: what was taken is told all the same."""
    job = Job(daemon)
    job.write(0)
    eventually(lambda: job.log(0).exists() and job.log(0).read_bytes() == line(1))
    pid = daemon.supervisor_pid("job")
    os.kill(pid, signal.SIGSTOP)
    job.log(0).unlink()
    in_place(job.log(0), what)
    for rank in range(2):
        (job.home(rank) / "end").touch()
    os.kill(pid, signal.SIGKILL if killed else signal.SIGCONT)
    ended = daemon.wait("job")
    assert ended.state == job_pb2.JOB_STATE_FAILED
    assert any("the log of rank 0: somebody deleted the file" in text for text in ended.warnings), ended.warnings
    [record] = [json.loads(line) for line in Path(f"{job.log(0)}.removed").read_text().splitlines()]
    assert (record["start"], record["end"], record["lost"]) == (0, 8, True)
    read = daemon.cli("logs", "job", "-r", "0")
    assert read.returncode == 1
    assert "8 bytes of the output of rank 0 are missing: somebody deleted the file" in read.stderr
    free(job.log(0))
    assert daemon.cli("logs", "job", "-r", "0").stderr.count("8 bytes") == 1, "once"


def test_the_log_folder_is_moved_away_and_back(daemon: Daemon) -> None:
    job = Job(daemon)
    job.write(0)
    eventually(lambda: job.log(0).exists() and job.log(0).read_bytes() == line(1))
    away = daemon.root.log.with_name("away")
    daemon.root.log.rename(away)

    def warned() -> bool:
        job.write(0)
        return any("moved" in text for text in daemon.get("job").warnings)

    eventually(warned)
    away.rename(daemon.root.log)
    job.write(0)
    count = job.lines[0]
    expected = b"".join(line(n) for n in range(1, count + 1))
    eventually(lambda: job.log(0).exists() and job.log(0).read_bytes() == expected)
    ended = job.end()
    assert ended.ranks[0].lost_log_bytes == 0


@pytest.mark.parametrize("killed", [False, True], ids=["", "supervisor killed"])
def test_the_log_folder_is_moved_back_over_one_that_was_made_meanwhile(daemon: Daemon, killed: bool) -> None:
    job = Job(daemon)
    job.write(0)
    eventually(lambda: job.log(0).exists() and job.log(0).read_bytes() == line(1))
    folder = daemon.root.log
    away, aside = folder.with_name("away"), folder.with_name("aside")
    folder.rename(away)
    folder.mkdir()
    if killed:
        os.kill(daemon.supervisor_pid("job"), signal.SIGKILL)
        eventually(lambda: daemon.get("job").takeovers == 1)

    def goes_on() -> bool:
        job.write(0)
        return job.log(0).exists() and job.log(0).read_bytes().endswith(line(job.lines[0]))

    eventually(goes_on)
    folder.rename(aside)
    away.rename(folder)
    eventually(lambda: goes_on() and not job.log(0).read_bytes().startswith(line(1)))
    job.end()
    written = b"".join(line(n) for n in range(1, job.lines[0] + 1))
    # What went on into the folder before it was seen to be another is in the one that was aside.
    kept, between = (path.read_bytes() for path in (job.log(0), aside / job.log(0).name))
    read = daemon.cli("logs", "job", "-r", "0")
    assert read.returncode == 1
    assert f"{len(between)} bytes of the output of rank 0 are missing: somebody" in read.stderr
    before = written.removesuffix(between + kept)
    assert before.startswith(line(1)) and read.stdout.encode() == before + kept


def test_muster_run_tells_of_lost_output_though_nobody_sits_at_a_terminal(daemon: Daemon) -> None:
    os.mkfifo(daemon.root.log / "x-proc-rank-0-device-0.txt")
    done = daemon.cli("run", "--job-id", "x", "--", "sh", "-c", "echo out; exit 4")
    assert done.returncode == 4
    assert "output of rank 0" in done.stderr and "4 bytes" in done.stderr, done.stderr
    quiet = daemon.cli("run", "-q", "--job-id", "x", "--", "sh", "-c", "echo out; exit 4")
    assert (quiet.returncode, quiet.stderr) == (4, "")


def test_a_name_of_the_file_of_another_rank(daemon: Daemon) -> None:
    """Each rank has a file of its own: two that were written into one would overwrite each other."""
    job = Job(daemon)
    for rank in range(2):
        job.write(rank)
    eventually(lambda: all(job.log(rank).exists() and job.log(rank).read_bytes() == line(1) for rank in range(2)))
    job.log(0).unlink()
    job.log(0).hardlink_to(job.log(1))
    eventually(lambda: (gap := job.gap_after_a_line(0)) and "another name of" in gap.error)
    job.write(1)
    whole = line(1) + line(2)
    eventually(lambda: job.log(1).read_bytes() == whole)
    job.log(0).unlink()
    eventually(lambda: job.gap(0) is None)
    job.write(0)
    last = line(job.lines[0])
    eventually(lambda: job.log(0).read_bytes().endswith(last))
    job.end()
    assert job.log(1).read_bytes() == whole
    assert gap_lines(job.log(0).read_bytes())


def test_a_name_of_the_file_of_another_rank_over_a_takeover(daemon: Daemon) -> None:
    """The file stays with the rank that wrote it, in any order of opening."""
    job = Job(daemon)
    for rank in range(2):
        job.write(rank)
    eventually(lambda: all(job.log(rank).exists() and job.log(rank).stat().st_size for rank in range(2)))
    job.log(0).unlink()
    job.log(0).hardlink_to(job.log(1))
    eventually(lambda: job.gap_after_a_line(0))
    os.kill(daemon.get("job").supervisor_pid, signal.SIGKILL)
    eventually(lambda: daemon.get("job").takeovers == 1)
    job.write(1)
    eventually(lambda: job.log(1).read_bytes() == line(1) + line(2))
    eventually(lambda: (gap := job.gap_after_a_line(0)) and "another name of" in gap.error)
    assert job.gap(1) is None
    job.log(0).unlink()
    eventually(lambda: job.gap(0) is None)
    ended = job.end()
    assert job.log(1).read_bytes() == line(1) + line(2) and ended.ranks[1].lost_log_bytes == 0


def test_a_name_of_the_log_of_another_job(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "echo of the other; sleep 1000", job_id="other")
    other = daemon.root.log / "other-proc-rank-0-device-0.txt"
    job = Job(daemon)
    job.write(0)
    eventually(lambda: job.log(0).exists() and job.log(0).stat().st_size and other.exists() and other.stat().st_size)
    job.log(0).unlink()
    job.log(0).hardlink_to(other)
    eventually(lambda: (gap := job.gap_after_a_line(0)) and "another name of" in gap.error)
    assert other.read_bytes() == b"of the other\n"
    job.log(0).unlink()
    eventually(lambda: job.gap(0) is None)
    job.end()
    assert gap_lines(job.log(0).read_bytes())
    daemon.cli("stop", "other", "--grace", "0s")
    assert other.read_bytes() == b"of the other\n"


def test_what_was_deleted_is_reported_though_something_stands_in_its_place(daemon: Daemon) -> None:
    job = Job(daemon)
    job.write(0)
    eventually(lambda: job.log(0).exists() and job.log(0).read_bytes() == line(1))
    job.log(0).unlink()
    job.log(0).mkdir()
    (job.log(0) / "file").touch()
    eventually(lambda: job.gap_after_a_line(0))
    eventually(lambda: any("log of rank 0: somebody deleted" in text for text in daemon.get("job").warnings))
    job.end()
    removed = daemon.cli("rm", "job")
    assert str(job.log(0)) in removed.stderr and "not removed" in removed.stderr, removed
    assert job.log(0).is_dir()


def test_an_empty_folder_in_the_place_of_a_log_goes_with_the_job(daemon: Daemon) -> None:
    job = Job(daemon)
    job.write(0)
    eventually(lambda: job.log(0).exists() and job.log(0).read_bytes() == line(1))
    job.log(0).unlink()
    job.log(0).mkdir()
    eventually(lambda: job.gap_after_a_line(0))
    daemon.stop("job", grace_s=0)
    assert daemon.cli("rm", "--force", "job").returncode == 0
    assert not [path for path in daemon.root.log.iterdir() if path.name.startswith("job-")]


def test_a_removed_job_gets_no_line_about_its_gap_any_more(daemon: Daemon) -> None:
    """The daemon tries every few seconds to complete logs in which a job ended with a gap: a file of that name would be
    nobody's, or another job's."""
    jobs = [_ended_with_a_gap(daemon, job_id) for job_id in ("job", "kept", "last")]
    for job in jobs:
        (job.log(0) / "file").unlink()
    assert daemon.cli("rm", "job").returncode == 0
    assert daemon.cli("rm", "kept", "--keep-logs").returncode == 0
    last = jobs[2].log(0)
    last.rmdir()  # it is the last in each round
    eventually(lambda: last.is_file() and gap_lines(last.read_bytes()), 60)
    assert not [path for path in daemon.root.log.iterdir() if path.name.startswith("job-")]
    assert jobs[1].log(0).is_dir()


def _ended_with_a_gap(daemon: Daemon, job_id: str) -> Job:
    job = Job(daemon, job_id)
    job.write(0)
    eventually(lambda: job.log(0).exists() and job.log(0).read_bytes() == line(1))
    job.log(0).unlink()
    job.log(0).mkdir()
    (job.log(0) / "file").touch()
    eventually(lambda: job.gap_after_a_line(0))
    job.end()
    return job


@pytest.mark.parametrize("what", ["truncated", "deleted", "replaced"])
def test_what_was_done_right_before_the_supervisor_died(daemon: Daemon, what: str) -> None:
    """A successor tells a truncation from a deletion."""
    job = Job(daemon)
    job.write(0)
    eventually(lambda: job.log(0).exists() and job.log(0).read_bytes() == line(1))
    supervisor = daemon.supervisor_pid("job")
    os.kill(supervisor, signal.SIGSTOP)
    if what == "truncated":
        os.truncate(job.log(0), 0)
    else:
        job.log(0).unlink()
        if what == "replaced":
            job.log(0).touch()
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: daemon.supervisor_pid("job") not in (0, supervisor))
    job.write(0)
    (text,) = eventually(lambda: [text for text in daemon.get("job").warnings if "log of rank 0" in text])
    assert f"somebody {'truncated' if what == 'truncated' else 'deleted'} the file" in text
    job.end()
