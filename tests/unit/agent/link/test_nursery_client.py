"""How the daemon comes to its nursery."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import anyio
import psutil
import pytest

from muster.agent.link import nursery_start
from muster.agent.link.nursery_client import NurseryClient
from muster.supervisors.paths import Root
from muster.supervisors.system import lock
from tests.unit.waiting import until


@pytest.fixture
def root(short_tmp: Path) -> Iterator[Root]:
    root = Root.under(short_tmp)
    for folder in (root.run, root.jobs, root.log):
        folder.mkdir(parents=True)
    yield root
    end_nursery(root)


def end_nursery(root: Root) -> None:
    """With the supervisor that waits for a job: it makes and removes files in the state folder as long as it lives."""
    ours = [p for p in psutil.process_iter(["cmdline"]) if str(root.run) in (p.info["cmdline"] or ())]
    for process in ours:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(ours, 60)


async def test_a_nursery_that_left_before_the_daemon_came_is_no_death(root: Root) -> None:
    """It is begun beside the daemon's imports, and ends without a daemon: on a busy machine these take longer."""
    begun = nursery_start.begin(root, None)
    await until(lambda: psutil.Process(begun.pid).status() == psutil.STATUS_ZOMBIE)  # it listens; we reap who began it
    end_nursery(root)
    await until(lambda: not lock.holder(root.nursery_lock))
    root.nursery_socket.unlink()
    died: list[tuple[object, ...]] = []
    client = NurseryClient(root, lambda *said: died.append(said), begun=begun)
    async with anyio.create_task_group() as tasks:
        await tasks.start(client.run)
        assert (bool(client.pid), died) == (True, [])
        tasks.cancel_scope.cancel()
