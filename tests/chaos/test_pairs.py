"""Two faults at once: a strike against muster's processes while something else is broken (point.py, faults.py).

MUSTER_CHAOS_POINTS says how many points (CI: 100), MUSTER_CHAOS_SEED which ones, MUSTER_CHAOS_FAULTS of which faults;
`make chaos SEED=... ONLY=17` tries one alone. Whatever is struck: every byte and every exit code is exact or counted as
lost, a loss is reported while it lasts, writing resumes, the job can be stopped at any moment, and nothing is left.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import point, room
from tests.chaos.plan import Plan, chosen
from tests.chaos.test_kill_points import POINTS, SEED

_ONLY = os.environ.get("MUSTER_CHAOS_ONLY", "")
#: Seconds that a point may take, and that it may take to put itself away.
_LIMIT_S = point.LIMIT_S + 60


@pytest.mark.chaos
@pytest.mark.timeout(_LIMIT_S + 30)
@pytest.mark.parametrize("number", [int(_ONLY)] if _ONLY else range(POINTS))
def test_pair(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    command = room.command(sys.executable, "-m", "tests.chaos.point", str(folder), str(SEED), str(number))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, env=room.environment(), check=False
        )
    finally:
        room.remove_cgroups(folder / "node" / "state")
    said = f"{done.stdout}{done.stderr}"
    if done.returncode == point.LEFT_OUT:
        pytest.skip(done.stdout.strip().rpartition("\n")[2])
    again = f"again: make chaos SEED={SEED} ONLY={number}"
    if done.returncode == point.FAILED:
        pytest.fail(f"{said}\n{again}", pytrace=False)
    if done.returncode != point.HELD:
        pytest.fail(f"a fault of the test itself (exit code {done.returncode}):\n{said}\n{again}", pytrace=False)


def test_every_fault_has_its_turn() -> None:
    count = len(chosen())
    for turn in range(3):
        drawn = [Plan.draw(SEED, number) for number in range(turn * count, (turn + 1) * count)]
        assert {plan.fault for plan in drawn} == set(chosen())
    assert Plan.draw(SEED, 7) == Plan.draw(SEED, 7)
