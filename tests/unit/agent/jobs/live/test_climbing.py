"""The daemon's signal ladder, where the node has no thread to give."""

import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from muster.agent.jobs.live.climbing import RESERVE, Climber
from muster.probes.kernel import process
from muster.supervisors.job.stop_order import StopOrder
from muster.supervisors.launch.containment import Containment
from muster.supervisors.system.spare import Reserve
from tests.conftest import running


class Job:
    """One process, that SIGTERM does not end."""

    def __init__(self, pid: int) -> None:
        self.pid, self.sent = pid, list[int]()
        self.contained = cast(Containment, SimpleNamespace(members=self.members, kill=self.kill, signal=self.signal))

    def members(self) -> list[process.Stat]:
        stat = process.read_stat(self.pid)
        return [stat] if stat is not None and not stat.ended else []

    def kill(self) -> list[process.Stat]:
        found = self.members()
        for stat in found:
            process.send(stat.pid, stat.start, signal.SIGKILL)
            self.sent.append(signal.SIGKILL)
        return found

    def signal(self, number: int) -> int:
        self.sent.append(number)
        return 1


@pytest.fixture
def job() -> Iterator[Job]:
    with running(["sleep", "3600"]) as sleeper:
        yield Job(sleeper.pid)


async def nothing() -> None:
    """Keeps no order."""


@pytest.mark.slow
async def test_it_is_climbed_all_the_same(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    order = StopOrder("", (0.5,), "", "", process.uptime())
    with anyio.fail_after(60):
        left = await Climber("job", Reserve(RESERVE), lambda _: None).climb(
            job.contained, order, terminated=False, over=lambda: False, keep=nothing, between=nothing, doing=""
        )
    assert left == []
    assert signal.SIGKILL in job.sent and order.sent[-1] == "SIGKILL"
