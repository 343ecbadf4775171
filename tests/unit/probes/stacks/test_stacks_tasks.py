"""Until when a process sleeps, by its system call."""

import subprocess
import sys
from pathlib import Path

import pytest

from muster.probes.stacks import tasks
from tests.conftest import eventually

SLEEPERS = {
    "python": [sys.executable, "-c", "import time; time.sleep(4000)"],
    "sleep(1)": ["sleep", "4000"],
}


@pytest.mark.parametrize("command", SLEEPERS.values(), ids=SLEEPERS)
def test_the_rest_of_a_sleep_is_known(command: list[str]) -> None:
    with subprocess.Popen(command) as process:
        try:
            folder = f"/proc/{process.pid}"
            eventually(lambda: "nanosleep" in Path(f"{folder}/wchan").read_text(), message="it sleeps")
            left = tasks.sleep_left(folder, process.pid)
            if left is None and not may_look(folder):
                pytest.skip("needs the right to trace a process")
            assert left is not None and 3000 < left < 4001  # coreutils 9 rounds up
        finally:
            process.kill()


def test_who_does_not_sleep_has_none() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        assert tasks.sleep_left(f"/proc/{process.pid}", process.pid) is None
        process.communicate()
    assert tasks.sleep_left(f"/proc/{process.pid}", process.pid) is None


def may_look(folder: str) -> bool:
    try:
        return bool(Path(f"{folder}/syscall").read_text())
    except OSError:
        return False
