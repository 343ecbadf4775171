"""How commands show what they show: widths, wide tables, JSON and YAML, a list that stays current."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import BIN, Daemon, eventually
from tests.fakes import FakeCards

#: What a machine on which tests run may have.
OF_THE_MACHINE = (
    "kernel-log,storage,kernel,memory-errors,oom,disk-free,mounts,nfs,d-state,zombies,pids,file-descriptors,ib"
)
MUSTER = str(BIN / "muster")
LONG = ("python3", "-c", "import time; time.sleep(1000)", *("--an-option-of-the-training-script=1" for _ in range(9)))


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[FakeCards]:
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 8) as made:
        yield made


@pytest.fixture
def busy(make_daemon: Callable[..., Daemon], cards: FakeCards) -> Daemon:
    """A node with a condition, a job on cards and one that has failed."""
    daemon = make_daemon(f'[health]\nskip = "{OF_THE_MACHINE}"\n', cards.env)
    node = ("node", "-o", "json")
    eventually(lambda: len(json.loads(daemon.cli(*node).stdout)["cards"]) == 8)
    assert daemon.cli("start", "--cards", "2", "--job-id", "train-llama-7b", "--", *LONG).returncode == 0
    assert daemon.cli("run", "-q", "--ranks", "2", "--job-id", "broken", "--", "sh", "-c", "exit 3").returncode == 3
    daemon.explained("broken")  # from here on nothing of it changes
    assert daemon.cli("start", "--job-id", "train_ddp-dcxg26mmslcbmd-0", "--", *LONG).returncode == 0
    cards[7].lose()
    eventually(lambda: "GPU_LOST" in daemon.cli(*node).stdout)
    return daemon


def widest(text: str) -> int:
    """Of the lines that could be shorter: a path is one word."""
    return max(len(line) for line in text.splitlines() if len(line.split()) > 1)


@pytest.mark.slow
def test_eighty_columns_are_enough(busy: Daemon) -> None:
    narrow = {"COLUMNS": "80"}
    for words in (("ps", "-a"), ("status", "train-llama-7b"), ("status", "broken"), ("node",)):
        shown = busy.cli(*words, env=narrow).stdout
        assert widest(shown) <= 80, shown
        wide = busy.cli(*words, "-o", "wide", env=narrow).stdout
        assert widest(wide) > 80, "all that is known, whatever the terminal is like"
    assert " ".join(LONG) in " ".join(busy.cli("status", "train-llama-7b", env=narrow).stdout.split()).replace("'", "")
    assert "it fell off the bus" in " ".join(busy.cli("node", env=narrow).stdout.split())
    assert "LOG" not in busy.cli("status", "broken", env=narrow).stdout
    for path in (f"{busy.root.log}/broken-proc-rank-{i}-device-{i}.txt" for i in range(2)):
        assert path in busy.cli("status", "broken", "-o", "wide").stdout
    assert f"{busy.root.log}/broken-proc-rank-*-device-*.txt\n" in busy.cli("status", "broken").stdout
    # Where nobody says how wide it is, lines are whole.
    facts = busy.cli("status", "train-llama-7b").stdout.splitlines()
    assert any(line.startswith("command ") and line.count("--an-option") == 9 for line in facts)


@pytest.mark.slow
def test_yaml_says_what_json_says(busy: Daemon) -> None:
    for words in (("ps", "-a"), ("status", "broken"), ("node",), ("why", "broken")):
        of_json = json.loads(busy.cli(*words, "-o", "json").stdout)
        text = busy.cli(*words, "-o", "yaml").stdout
        assert {"jobs", "jobId", "job", "hostname", "job_id"} & of_json.keys()
        assert text[0] not in "{[" and yaml.safe_load(text).keys() == of_json.keys()
    job = yaml.safe_load(busy.cli("status", "broken", "-o", "yaml").stdout)
    assert job == json.loads(busy.cli("status", "broken", "-o", "json").stdout)
    assert job["spec"]["command"] == ["sh", "-c", "exit 3"]
    # A stream is a document each.
    events = list(yaml.safe_load_all(busy.cli("events", "broken", "-o", "yaml").stdout))
    lines = busy.cli("events", "broken", "-o", "json").stdout.splitlines()
    assert events == [json.loads(line) for line in lines] and len(events) > 3


def test_an_empty_list_is_one_in_each_format(daemon: Daemon) -> None:
    assert yaml.safe_load(daemon.cli("ps", "-o", "yaml").stdout) == {"jobs": []}
    assert json.loads(daemon.cli("ps", "-o", "json").stdout) == {"jobs": []}


class Watched:
    """`muster ps --watch` in the background, and what it has printed so far."""

    def __init__(self, daemon: Daemon, *words: str, **options: Any) -> None:
        env = os.environ | {"MUSTER_ROOT": str(daemon.folder), "TERM": "xterm"}
        self.process = subprocess.Popen([MUSTER, "ps", "--watch", *words], env=env, **options)
        self.seen = b""

    def read(self, fd: int) -> None:
        def take() -> None:
            with contextlib.suppress(OSError):
                while data := os.read(fd, 65536):
                    self.seen += data

        self._reader = threading.Thread(target=take, daemon=True)
        self._reader.start()

    def until(self, text: str) -> None:
        eventually(lambda: text in self.seen.decode(errors="replace"), message=f"{text!r} in {self.seen!r}")

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60)
        if self.process.stdout is not None:
            self._reader.join(60)
            self.process.stdout.close()
        return code


@pytest.mark.slow
def test_a_list_that_stays_current_prints_what_changes(daemon: Daemon) -> None:
    watched = Watched(daemon, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert watched.process.stdout is not None
    watched.read(watched.process.stdout.fileno())
    watched.until("JOB")
    daemon.run("sleep", "1000", job_id="one")
    watched.until("RUNNING")
    daemon.kill()  # it looks on when there is a daemon again
    daemon.restart()
    daemon.run("sh", "-c", "exit 7", job_id="two")
    watched.until("FAILED")
    daemon.stop("one", grace_s=0)
    watched.until("STOPPED")
    assert watched.end() == 0
    lines = watched.seen.decode().splitlines()
    assert sum(line.startswith("JOB ") for line in lines) == 1
    assert sum("one" in line and "STOPPED" in line for line in lines) == 1
    assert sum("one" in line and "RUNNING" in line for line in lines) == 1, "not once for each look"


def test_on_a_terminal_it_is_drawn_in_place(daemon: Daemon) -> None:
    daemon.run("sleep", "1000", job_id="one")
    daemon.until_running("one")
    ours, theirs = pty.openpty()
    try:
        watched = Watched(daemon, stdin=theirs, stdout=theirs, stderr=theirs)
        watched.read(ours)
        watched.until("RUNNING")
        daemon.stop("one", grace_s=0)
        eventually(lambda: "one" not in watched.seen.decode().rpartition("\x1b[H")[2])
        assert watched.end() == 0
        watched.until("\x1b[?1049l")
    finally:
        os.close(theirs)
        os.close(ours)


def test_watch_needs_a_daemon_at_its_start(short_tmp: Path) -> None:
    done = subprocess.run(
        [MUSTER, "ps", "--watch", "--root", str(short_tmp)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (4, "")


@pytest.fixture
def short_tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("m")
