"""A rank whose processes fork and end in a tight loop, each in a session of its own, without a cgroup: no look at /proc
finds all of them. `stop` ends them within its bound, and nothing is left."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import point, room


@pytest.mark.chaos
@pytest.mark.timeout(200)
@pytest.mark.parametrize("kill", ["", "nursery", "supervisor"])
def test_fork_storm(tmp_path: Path, kill: str) -> None:
    command = room.command(sys.executable, "-m", "tests.chaos.storm_point", str(tmp_path), "4", kill)
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=room.environment(), check=False)
    if done.returncode == point.LEFT_OUT:
        pytest.skip(done.stdout.strip().rpartition("\n")[2])
    assert done.returncode == point.HELD, f"{done.stdout}{done.stderr}"
