from pathlib import Path

import pytest

from muster.agent.events.event_store import EventStore
from muster.agent.jobs.crashes import MANY, Crashes
from muster.probes.checks.result import CheckResult, Code


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("lived", "said"),
    [
        ([True] * MANY, f"it died {MANY} times"),
        ([False] * MANY, f"its start failed {MANY} times"),
        ([True, *[False] * (MANY - 1)], f"it died or could not be started {MANY} times"),
    ],
)
async def test_what_happened_again_and_again_is_said(tmp_path: Path, lived: list[bool], said: str) -> None:
    found: list[CheckResult] = []
    crashes = Crashes(await EventStore.open(tmp_path, 1 << 20), found.append, lambda _: None)
    for alive in lived:
        crashes.died("job", "was killed by SIGKILL" if alive else "has no successor", "", alive)
    (result,) = found
    assert result.code is Code.SUPERVISOR_CRASHING
    assert said in result.reason
