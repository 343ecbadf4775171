"""What a program that the daemon runs gets of the daemon, and what not."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from muster.probes.calls.script import Script
from tests.conftest import eventually

SCORE = Path("/proc/self/oom_score_adj")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lower a score")
def test_the_oom_score_is_not_the_daemons() -> None:
    before = SCORE.read_text()
    script = Script("/bin/sleep", {}, ("600",))
    thread = threading.Thread(target=script.run)
    SCORE.write_text("7")
    try:
        thread.start()
        eventually(lambda: script.pid)
        eventually(lambda: Path(f"/proc/{script.pid}/oom_score_adj").read_text() == "0\n", 60)
    finally:
        SCORE.write_text(before)
        script.kill()
        thread.join()


#: A process that runs a script, which writes once its first line has come.
RUNNER = """
import sys
from muster.probes.calls.script import Script
does = 'read line < "$0"; echo one; echo two >&2; echo three && touch "$1"'
words = ("-c", does, sys.argv[1], sys.argv[2])
Script("/bin/sh", {}, words, begun=lambda pid: print(pid, flush=True), outlives=True).run()
"""


def test_a_script_that_outlives_us_may_go_on_writing(tmp_path: Path) -> None:
    go, done = tmp_path / "go", tmp_path / "done"
    os.mkfifo(go)
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, go, done], stdout=subprocess.PIPE)
    assert runner.stdout is not None
    runner.stdout.readline()
    runner.send_signal(signal.SIGKILL)
    runner.communicate()
    writing = eventually(lambda: _begun_to_read(go))
    os.write(writing, b"now\n")
    os.close(writing)
    eventually(done.exists)


def _begun_to_read(fifo: Path) -> int | None:
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def test_what_a_script_that_outlives_us_has_written_is_read() -> None:
    ended = Script("/bin/sh", {}, ("-c", "echo one; echo two >&2; exit 3"), outlives=True).run()
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, b"one\n", b"two\n")
