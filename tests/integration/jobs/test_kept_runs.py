"""What is left of a standalone run: it is looked at by the same commands when its daemon is gone."""

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from muster.agent.cli.client import kept_runs
from muster.supervisors.paths import Root
from tests.conftest import BIN, Daemon, eventually
from tests.ports import free_port
from tests.unit.supervision import small_disk

MUSTER = str(BIN / "muster")


class Place:
    """Where runs are made and kept, without any other daemon."""

    def __init__(self, folder: Path) -> None:
        self.runs, self.tmp = folder / "runs", folder / "tmp"
        self.tmp.mkdir()
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        self.env |= {"TMPDIR": str(self.tmp), "MUSTER_RUNS": str(self.runs), "NO_COLOR": "1"}
        self.env |= {"MUSTER_ROOT": str(folder / "none")}

    def muster(self, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [MUSTER, *words], env=self.env | env, capture_output=True, text=True, timeout=100, check=False
        )

    def run(self, job_id: str, script: str, *options: str, **env: str) -> "subprocess.CompletedProcess[str]":
        words = ("run", "--standalone", "--skip-check", "--job-id", job_id, *options, "--", "sh", "-c", script)
        return self.muster(*words, **env)

    def kept(self, job_id: str) -> Path:
        return self.runs / job_id / f"{socket.gethostname()}-0"


@pytest.fixture
def place(short_tmp: Path) -> Place:
    return Place(short_tmp)


@pytest.mark.slow
def test_a_run_that_failed_is_explained_when_its_daemon_is_gone(place: Place) -> None:
    said = place.runs.parent / "said"  # rank 1 fails behind rank 0's output, which the stop would cut off
    script = (
        f'echo "out of rank $RANK"; [ $RANK = 0 ] && exec touch {said}; until [ -e {said} ]; do sleep 0.01; done; '
        "echo \"ModuleNotFoundError: No module named 'x'\"; exit 3"
    )
    done = place.run("x", script, "--ranks", "2", SECRET="hunter2")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "muster: see what happened: muster why x; muster logs x"
    assert not list(place.tmp.iterdir()), "nothing is left where it ran"
    kept = place.kept("x")
    assert not [p for p in kept.rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()], "secrets are not kept"
    assert place.runs.stat().st_mode & 0o777 == 0o700

    why = place.muster("why", "x")
    assert why.returncode == 0 and why.stderr.startswith(f"muster: x was a standalone run on {socket.gethostname()}, ")
    assert "rank 1 (device 1) exited with code 3" in why.stdout and "No module named 'x'" in why.stdout
    assert f"log: {kept}/log/x-proc-rank-1-device-1.txt" in why.stdout, "a path that is there when one looks"
    shown = json.loads(place.muster("status", "x", "-o", "json").stdout)
    assert (shown["state"], shown["verdict"]["exitCode"]) == ("JOB_STATE_FAILED", 3)
    logs = place.muster("logs", "x", "-r", "0", "--no-events")
    assert logs.stdout == "out of rank 0\n", logs
    assert "[rank 1] out of rank 1\n" in place.muster("logs", "x").stdout
    assert "x job.ended: rank 1" in place.muster("events", "x").stdout
    assert not list(place.tmp.iterdir()), "nor where it was shown"
    assert place.muster("status", "y").returncode == 4, "of others nothing is known"


@pytest.mark.slow
def test_a_run_that_succeeded_is_kept_too_and_says_nothing(place: Place) -> None:
    done = place.run("x", "echo hello")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", done.stderr)
    assert "see what happened" not in done.stderr
    assert place.muster("logs", "x").stdout == "hello\n"
    assert "SUCCEEDED" in place.muster("status", "x").stdout


@pytest.mark.slow
def test_a_daemon_that_knows_the_job_is_asked(place: Place, daemon: Daemon) -> None:
    place.run("x", "echo alone")
    env = {"MUSTER_ROOT": str(daemon.folder)}
    assert place.muster("logs", "x", **env).stdout == "alone\n", "this one does not know it"
    daemon.run("echo", "daemon's", job_id="x")
    daemon.wait("x")
    done = place.muster("logs", "x", **env)
    assert (done.stdout, done.stderr) == ("daemon's\n", "")
    # Whoever names a daemon wants that one.
    address = f"unix:{daemon.root.socket}"
    assert place.muster("status", "y", "--address", address).returncode == 3
    place.run("y", "true")
    assert place.muster("status", "y", "--address", address).returncode == 3


def test_the_newest_are_kept(place: Place) -> None:
    place.run("x", "echo first")
    place.run("x", "echo second")
    assert place.muster("logs", "x").stdout == "second\n"
    for number in range(25):
        old = place.runs / f"old-{number:02}"
        old.mkdir()
        os.utime(old, (number, number))
    place.run("z", "true")
    left = sorted(path.name for path in place.runs.iterdir())
    assert left == [*(f"old-{number:02}" for number in range(7, 25)), "x", "z"]


def test_logs_in_a_folder_of_the_users_stay_there(place: Place, short_tmp: Path) -> None:
    logs = short_tmp / "logs"
    logs.mkdir()
    other = logs / "x-muster-y-proc-rank-0-device-0.txt"
    other.write_text("of job x-muster-y")
    place.run("x", "echo hello; exit 1", "--log-dir", str(logs))
    assert (logs / "x-proc-rank-0-device-0.txt").read_text() == "hello\n"
    assert place.muster("logs", "x").stdout == "hello\n"
    kept = {path.name for path in (place.kept("x") / "log").iterdir()}
    assert {"x-proc-rank-0-device-0.txt", "x-muster-0.log"} <= kept and other.name not in kept


def test_a_run_that_is_stopped_names_the_folder_that_it_was_given(place: Place, short_tmp: Path) -> None:
    logs = short_tmp / "logs"
    words = (MUSTER, "run", "--standalone", "--skip-check", "--job-id", "x", "--log-dir", str(logs), "--")
    command = (*words, "sh", "-c", "echo up; exec sleep 1000")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=place.env, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.terminate()
        _, said = process.communicate(timeout=100)
    assert f"muster: the logs of the ranks are in {logs}\n" in said


def test_another_node_that_tidies_the_same_log_folder_is_no_reason_to_keep_nothing(
    place: Place, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run("x", "echo hello; exit 1")
    found, logs_of = place.kept("x"), kept_runs.logs_of

    def listed(log: Path, job_id: str) -> Iterator[Path]:
        removed = log / "x-proc-rank-8-device-0.idx"  # of that node
        removed.touch()
        names = list(logs_of(log, job_id))
        assert removed in names
        removed.unlink()
        return iter(names)

    monkeypatch.setattr(kept_runs, "logs_of", listed)
    monkeypatch.setenv(kept_runs.VARIABLE, str(short_tmp / "again"))
    kept = kept_runs.keep(Root(found / "run", found / "state", found / "log"), logs_stay=True, succeeded=False)
    assert kept is not None and (kept.log / "x-proc-rank-0-device-0.txt").read_text() == "hello\n"


def test_what_the_job_put_among_its_logs_is_kept_whole(place: Place) -> None:
    """Whatever it is called: the folder where it lay is removed."""
    script = 'd=$(ls -d "$TMPDIR"/muster-*/log); mkdir "$d/packages"; echo mine >"$d/packages/exports"; '
    assert place.run(
        "x", script + 'ln -s exports "$d/packages/latest"; ln -s packages "$d/workspace"; exit 1'
    ).returncode
    log = place.kept("x") / "log"
    assert not list(place.tmp.iterdir())
    assert (log / "packages" / "exports").read_text() == "mine\n"
    assert os.readlink(log / "packages" / "latest") == "exports" and os.readlink(log / "workspace") == "packages"


@pytest.mark.slow
def test_in_a_pod_the_verdict_is_the_message_of_the_container(place: Place, short_tmp: Path) -> None:
    message = short_tmp / "message"
    message.write_text("of an earlier container, which was longer than what comes now" * 100)
    env = {"MUSTER_TERMINATION_LOG": str(message)}
    place.run("x", "echo ModuleNotFoundError: No module named x >&2; exit 3", **env)
    cause, verdict, advice = message.read_text().splitlines()
    assert cause and verdict == "job x FAILED: rank 0 (device 0) exited with code 3" and advice.startswith("FAIL: ")
    place.run("y", "true", "--cards", "2", **env)
    assert message.read_text() == "2 cards: this node has no cards"
    message.unlink()
    assert place.run("z", "exit 3", **env).returncode == 3 and not message.exists(), "the kubelet makes it"


@pytest.mark.parametrize(("code", "kept"), [(0, False), (1, True)])
def test_large_logs_are_not_copied(place: Place, code: int, kept: bool) -> None:
    done = place.run("x", f"head -c 40000000 /dev/zero | tr '\\0' x; echo end; exit {code}", "-q")
    assert done.returncode == code
    log = place.kept("x") / "log"
    assert (log.is_symlink(), bool(list(place.tmp.iterdir()))) == (kept, kept)
    shown = place.muster("logs", "x", "--tail", "1")
    assert shown.stdout.endswith("xend\n") is kept
    assert ("exited with code 1" in place.muster("status", "x").stdout) is kept


def test_nodes_that_share_the_folder(place: Place) -> None:
    """A home on NFS: each node has its own, and its own is what it shows."""
    place.run(
        "x",
        "echo here",
        "--nodes",
        "localhost,other",
        "--node-rank",
        "0",
        "--master-addr",
        "localhost",
        "--master-port",
        str(free_port()),
    )
    other = place.runs / "x" / "zother-1"
    subprocess.run(["cp", "-a", place.kept("x"), other], check=True)
    (other / "log" / "x-proc-rank-0-device-0.txt").write_text("there\n")
    os.utime(other)
    assert place.muster("logs", "x", "-r", "0", "--no-events").stdout == "here\n"
    subprocess.run(["rm", "-r", place.kept("x")], check=True)
    done = place.muster("logs", "x", "-r", "0", "--no-events")
    assert "standalone run on zother" in done.stderr and "there" in done.stdout


def test_where_nothing_can_be_kept_the_logs_stay_where_they_were(place: Place, short_tmp: Path) -> None:
    def ran(runs: str) -> list[str]:
        done = place.run("x", "exit 3", MUSTER_RUNS=runs)
        assert done.returncode == 3
        lines = done.stderr.splitlines()
        assert lines[-1].startswith(f"muster: the logs of the ranks are in {place.tmp}/muster-")
        assert Path(lines[-1].rpartition(" ")[2], "x-muster-0.log").exists()
        return lines

    (short_tmp / "file").touch()
    ran("")
    assert not any("not kept" in line for line in ran(str(short_tmp / "file" / "runs")))
    with small_disk(short_tmp / "full", "16k") as full:
        (full / "data").write_bytes(b"x" * 8000)
        (told,) = (line for line in ran(f"{full}/runs") if "not kept" in line)
        assert "No space left on device: set MUSTER_RUNS to another folder" in told
        assert not list((full / "runs").glob("x/*")) and not list((full / "runs").glob(".*"))


@pytest.mark.slow
def test_records_that_somebody_damaged(place: Place) -> None:
    place.run("x", "exit 3")
    journal = place.kept("x") / "state" / "jobs" / "x" / "journal"
    journal.write_bytes(b"damaged" + journal.read_bytes()[7:])
    done = place.muster("why", "x")
    assert done.returncode != 0 or "damaged" in done.stdout + done.stderr
    (place.kept("x") / "state" / "version").write_text("999999\n")
    done = place.muster("status", "x")
    assert done.returncode == 125 and "muster: the daemon of this job exited" in done.stderr, done
    assert not list(place.tmp.iterdir())


@pytest.mark.slow
def test_who_shows_a_run_posts_nothing(place: Place) -> None:
    """Not even what its own daemon could not deliver; and where it would have gone is a secret."""
    posted = []

    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.path)
            self.send_response(503)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/hook?token=letmein"
        assert place.run("x", "exit 3", "--notify-webhook", url).returncode == 3
        assert posted
        posted.clear()
        assert "exited with code 3" in place.muster("why", "x").stdout
        assert place.muster("status", "x").returncode == 0
        server.shutdown()
    assert not posted
    assert not [p for p in place.kept("x").rglob("*") if p.is_file() and b"letmein" in p.read_bytes()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_run_is_shown_leaves_nothing(place: Place, number: int) -> None:
    place.run("x", "yes | head -c 3000000")
    with subprocess.Popen(
        [MUSTER, "logs", "x"], env=place.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(10)
        process.send_signal(number)
        process.stdout.close()
    eventually(lambda: not [p for p in Path("/proc").glob("[0-9]*/cmdline") if _has(p, str(place.tmp))])


def _has(path: Path, text: str) -> bool:
    try:
        return text.encode() in path.read_bytes()
    except OSError:
        return False
