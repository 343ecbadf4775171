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
async def test_what_happened_again_and_again_is_reported(tmp_path: Path, lived: list[bool], said: str) -> None:
    found: list[CheckResult] = []
    crashes = Crashes(await EventStore.open(tmp_path, 1 << 20), found.append, lambda _: None)
    for alive in lived:
        crashes.died("job", "was killed by SIGKILL" if alive else "has no successor", "", alive)
    (result,) = found
    assert result.code is Code.SUPERVISOR_CRASHING
    assert said in result.reason


@pytest.mark.anyio
async def test_a_death_that_is_reported_again_is_counted_once(tmp_path: Path) -> None:
    found: list[CheckResult] = []
    events = await EventStore.open(tmp_path, 1 << 20)
    appended: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "append", lambda told: appended.extend(event.attributes["count"] for _, event in told))
        crashes = Crashes(events, found.append, lambda _: None)
        for pid in (11, 12):
            for _ in range(2):
                crashes.died("job", "was killed by SIGKILL", "", True, (pid, 0))
        assert found == [] and appended == ["1", "1"]
        crashes.died("other", "was killed by SIGKILL", "", True, (12, 0))
        for refused in (1, 1, 2):  # no successor for the one with pid 12
            crashes.died("job", "has no successor", "", False, (12, refused))
        assert len(appended) == 3  # of many, one a minute
    assert [result.reason.rpartition("; ")[2] for result in found] == [
        f"it died or could not be started {count} times within 60 s" for count in (3, 4)
    ]


@pytest.mark.anyio
async def test_of_an_old_nursery_that_sends_no_pid_each_is_counted(tmp_path: Path) -> None:
    found: list[CheckResult] = []
    crashes = Crashes(await EventStore.open(tmp_path, 1 << 20), found.append, lambda _: None)
    for _ in range(MANY + 1):
        crashes.died("job", "was killed by SIGKILL", "")
    assert [result.reason.rpartition("it died ")[2] for result in found] == [
        "3 times within 60 s",
        "4 times within 60 s",
    ]
