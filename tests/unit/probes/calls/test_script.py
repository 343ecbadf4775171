"""What a program that the daemon runs gets of the daemon, and what not."""

import os
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
