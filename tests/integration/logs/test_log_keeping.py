"""What becomes of log files: removed, compressed, handed to a program, written into a worker log."""

import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.v1 import node_pb2
from tests.conftest import Daemon, eventually

#: Of a day: so old that a job that has ended is at once.
AT_ONCE = 1e-9


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Daemon]]:
    daemons = []

    def made(config: str) -> Daemon:
        daemons.append(Daemon(tmp_path_factory.mktemp("keeping"), config))
        return daemons[-1].start()

    yield made
    for daemon in daemons:
        daemon.close()


def configure(daemon: Daemon, **logs: Any) -> None:
    """Other settings of [logs], which are heeded at once, as is whatever has changed since the last look."""
    text = daemon.config.read_text().partition("[logs]")[0] + "[logs]\n"
    daemon.config.write_text(text + "".join(f"{key} = {json.dumps(value)}\n" for key, value in logs.items()))
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)


def told(daemon: Daemon, kind: str, job_id: str) -> list[Any]:
    return [event for event in daemon.event_list(job_id) if event.kind == kind]


def until_told(daemon: Daemon, kind: str, job_id: str) -> list[Any]:
    """Looks, which takes a signal, until it is told."""

    def looked() -> list[Any]:
        found = told(daemon, kind, job_id)
        if not found and daemon.process is not None:
            daemon.process.send_signal(signal.SIGHUP)
        return found

    found: list[Any] = eventually(looked)
    return found


def files_of(daemon: Daemon, job_id: str) -> list[str]:
    return sorted(path.name for path in daemon.root.log.iterdir() if path.name.startswith(job_id))


def all_there(paths: list[Path]) -> bool:
    return all(path.exists() for path in paths)


def longer(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size > size


def warnings(daemon: Daemon) -> list[str]:
    return list(daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node.warnings)


def program(daemon: Daemon, body: str) -> list[str]:
    path = daemon.folder / "program"
    path.write_text(f"#!/bin/sh\ncd {daemon.folder}\n{body}\n")
    path.chmod(0o755)
    return [str(path)]


# --- what goes --------------------------------------------------------------------------------------------------------


def test_old_logs_are_removed_and_reported(make: Callable[[str], Daemon]) -> None:
    daemon = make("")
    script = 'mkdir -p "$LOGS/old/plog"; echo x > "$LOGS/old/plog/1"; echo gone; sleep 0.2'
    (daemon.root.log / "old").mkdir()
    daemon.run("sh", "-c", script, job_id="old", ranks=2, env={"LOGS": str(daemon.root.log)})
    daemon.run("sh", "-c", "echo stays; sleep 1000", job_id="live")
    job = daemon.wait("old")
    daemon.until_running("live")
    other = daemon.root.log / "of-somebody-else.txt"
    other.write_text("x")
    size = len(daemon.output(job))
    configure(daemon, keep_days=AT_ONCE)
    (event,) = eventually(lambda: told(daemon, "logs.removed", "old"))
    assert int(event.attributes["bytes"]) > 0
    assert "keep_days in [logs]" in event.attributes["why"]
    left = files_of(daemon, "old")
    assert left == [
        f"old-{name}.removed" for name in ("muster-0.log", "proc-rank-0-device-0.txt", "proc-rank-1-device-1.txt")
    ]
    record = json.loads((daemon.root.log / left[1]).read_text())
    assert (record["start"], record["end"], record["why"]) == (0, size, event.attributes["why"])
    assert other.exists()
    eventually(lambda: daemon.output(daemon.get("live")) == b"stays\n")
    # A record is no log: the next look removes nothing more, and the job can be deleted with it.
    configure(daemon, keep_days=AT_ONCE * 2)
    daemon.stop("live", grace_s=0)
    until_told(daemon, "logs.removed", "live")
    assert len(told(daemon, "logs.removed", "old")) == 1
    assert daemon.cli("rm", "old").returncode == 0
    assert files_of(daemon, "old") == []


def test_files_of_jobs_that_are_no_more(make: Callable[[str], Daemon]) -> None:
    daemon = make("")
    daemon.run("echo", "x", job_id="gone")
    daemon.wait("gone")
    assert daemon.cli("rm", "--keep-logs", "gone").returncode == 0
    for path in daemon.root.log.iterdir():
        os.utime(path, (1e9, 1e9))
    aside = daemon.root.log / "live-proc-rank-0-device-0.txt.1000000000"
    aside.write_text("of an earlier job")
    os.utime(aside, (1e9, 1e9))
    fresh = daemon.root.log / "live-proc-rank-0-device-0.txt.1000000001"
    fresh.write_text("of a later one")
    daemon.run("sleep", "1000", job_id="live")
    daemon.until_running("live")
    configure(daemon, keep_days=30)
    eventually(lambda: not files_of(daemon, "gone") and not aside.exists())
    assert fresh.exists()
    assert "live-muster-0.log" in files_of(daemon, "live")


# --- compression ------------------------------------------------------------------------------------------------------


def test_what_was_rotated_is_compressed(make: Callable[[str], Daemon]) -> None:
    daemon = make("[logs]\nmax_file_bytes = 65536\n")
    script = "import sys\nfor i in range(20000): print('line', i)\nsys.stdin.read()\n"
    job = daemon.run(sys.executable, "-S", "-c", script, job_id="job")
    job = daemon.wait("job")
    wanted = b"".join(b"line %d\n" % i for i in range(20000))
    configure(daemon, max_file_bytes=65536)
    name = Path(job.ranks[0].log_path).name

    def packed() -> bool:
        there = [each.removeprefix(f"{name}.") for each in files_of(daemon, "job") if each.startswith(f"{name}.")]
        return len(there) >= 2 and all(each.endswith(".gz") for each in there)

    # It takes the time that nobody else wants, and where other tests run there is little.
    eventually(packed, 90, message=str(files_of(daemon, "job")))
    assert b"".join(chunk.data for chunk in daemon.read_logs("job") if not chunk.job_log) == wanted


# --- handing over -----------------------------------------------------------------------------------------------------

TAKE = (
    'cat > "$MUSTER_JOB_ID.taken.new"; env > "$MUSTER_JOB_ID.env"; mv "$MUSTER_JOB_ID.taken.new" "$MUSTER_JOB_ID.taken"'
)


def test_the_input_of_the_program(make: Callable[[str], Daemon]) -> None:
    daemon = make("")
    configure(daemon, upload=program(daemon, TAKE))
    env = {"SECRET": "of-the-job"}
    daemon.run("sh", "-c", "echo out; exit 3", job_id="job", ranks=2, env=env, labels={"team": "a"})
    daemon.wait("job")
    (event,) = eventually(lambda: told(daemon, "logs.uploaded", "job"))
    text = (daemon.folder / "job.taken").read_text()
    assert "of-the-job" not in text + (daemon.folder / "job.env").read_text()
    said = json.loads(text)
    assert said["job"] == "job" and said["ended"] is True and said["labels"] == {"team": "a"}
    assert (said["state"], said["exit_code"], said["attempts"]) == ("FAILED", 3, 1)
    assert said["summary"]
    outputs = {each["rank"]: each for each in said["files"] if each["kind"] == "output"}
    assert sorted(outputs) == [0, 1]
    for each in said["files"]:
        assert Path(each["path"]).stat().st_size == each["bytes"]
    assert {each["kind"] for each in said["files"]} == {"output", "index", "job"}
    assert event.attributes["files"] == str(len(said["files"]))
    lines = (daemon.folder / "job.env").read_text().splitlines()
    assert {"MUSTER_JOB_ID=job", "MUSTER_STATE=FAILED", "MUSTER_EXIT_CODE=3", "MUSTER_NODE_RANK=0"} <= set(lines)


@pytest.mark.slow
def test_nothing_goes_before_it_was_taken(make: Callable[[str], Daemon]) -> None:
    daemon = make("")
    configure(
        daemon, upload=program(daemon, f"[ -e open ] || {{ echo closed >&2; exit 1; }}\n{TAKE}"), keep_days=AT_ONCE
    )
    daemon.run("echo", "x", job_id="job")
    daemon.wait("job")
    (event,) = eventually(lambda: told(daemon, "logs.upload_failed", "job"))
    assert event.message.endswith("exited with code 1: closed")
    assert any("job job" in text and "closed" in text for text in warnings(daemon))
    assert len(files_of(daemon, "job")) >= 2
    daemon.kill()
    (daemon.folder / "open").touch()
    daemon.start()  # which tries at once
    eventually(lambda: told(daemon, "logs.uploaded", "job"))
    until_told(daemon, "logs.removed", "job")
    assert warnings(daemon) == []
    # It is known to be taken, over a restart.
    (daemon.folder / "job.taken").unlink()
    daemon.kill()
    daemon.start()
    daemon.run("echo", "x", job_id="next")
    eventually(lambda: told(daemon, "logs.uploaded", "next"))
    assert not (daemon.folder / "job.taken").exists()


def test_a_program_that_does_not_end(make: Callable[[str], Daemon]) -> None:
    daemon = make("")
    configure(daemon, upload=program(daemon, "sleep 1000"), upload_timeout_s=0.1)
    daemon.run("echo", "x", job_id="job")
    daemon.wait("job")
    (event,) = eventually(lambda: told(daemon, "logs.upload_failed", "job"))
    assert "had not ended after 0.1 s and was killed (upload_timeout_s in [logs])" in event.message
    assert daemon.cli("rm", "job").returncode == 0, "a person may delete what nobody takes"
    eventually(lambda: warnings(daemon) == [])


# --- the worker log ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["plain", "labelled"])
def test_worker_log(make: Callable[[str], Daemon], style: str) -> None:
    daemon = make(f'[logs]\nworker_log = "{style}"\n')
    daemon.run("sh", "-c", 'for i in 1 2 3; do echo "rank $RANK says $i"; done; printf end', job_id="job", ranks=2)
    daemon.wait("job")
    log = daemon.root.log / "job-worker-0.log"
    done = daemon.root.job("job").worker
    eventually(lambda: done.exists() and json.loads(done.read_text())["done"])
    lines = log.read_text().splitlines()
    label = "[rank {}] " if style == "labelled" else ""
    for rank in (0, 1):
        wanted = [label.format(rank) + f"rank {rank} says {i}" for i in (1, 2, 3)]
        assert [line for line in lines if f"rank {rank} says" in line] == wanted
    assert sum(line.endswith("end") for line in lines) >= 2
    assert any("[muster] " in line and line.startswith("[job] ") == (style == "labelled") for line in lines)
    assert daemon.cli("rm", "job").returncode == 0
    assert files_of(daemon, "job") == []


@pytest.mark.slow
def test_worker_log_over_kills_of_the_daemon(make: Callable[[str], Daemon]) -> None:
    daemon = make('[logs]\nworker_log = "labelled"\nmax_file_bytes = 100000\n')
    script = (
        "import os, time\n"
        "for i in range(6):\n"
        "    for k in range(1000): print(os.environ['RANK'], i * 1000 + k)\n"
        "    open(f'step-{i}', 'w').close()\n"
        "    while not os.path.exists(f'go-{i}'): time.sleep(0.005)\n"
    )
    daemon.run(sys.executable, "-S", "-c", script, job_id="job", ranks=2)
    homes = [daemon.root.job("job").workspace / f"device{i}" for i in (0, 1)]
    log = daemon.root.log / "job-worker-0.log"
    size = 0
    for step in range(6):
        eventually(functools.partial(all_there, [home / f"step-{step}" for home in homes]), 60)
        if step % 2:
            eventually(functools.partial(longer, log, size))  # than before the ranks wrote this step
            daemon.kill()
        else:
            size = log.stat().st_size if log.exists() else 0
        for home in homes:
            (home / f"go-{step}").touch()
        if step % 2:
            daemon.start()
    daemon.wait("job")
    done = daemon.root.job("job").worker
    eventually(lambda: json.loads(done.read_text())["done"])
    lines = log.read_text().splitlines()
    for rank in (0, 1):
        assert [line for line in lines if line.startswith(f"[rank {rank}] ")] == [
            f"[rank {rank}] {rank} {i}" for i in range(6000)
        ]
