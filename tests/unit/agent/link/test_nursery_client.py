"""How the daemon comes to its nursery."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import psutil
import pytest

from muster.agent.link import nursery_start
from muster.agent.link.connection import LinkLost, Refused
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


@pytest.mark.slow
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


@pytest.mark.slow
async def test_a_caller_that_gives_up_while_the_nursery_takes_nothing_keeps_no_other_from_asking(root: Root) -> None:
    client = NurseryClient(root, lambda *_: None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(client.run)
        os.kill(client.pid, signal.SIGSTOP)
        try:
            for number in range(10_000):  # more than fits into the socket
                tasks.start_soon(tend, client, f"other-{number}")
            await anyio.wait_all_tasks_blocked()
            async with anyio.create_task_group() as gives_up:
                gives_up.start_soon(tend, client, "job")
                await anyio.wait_all_tasks_blocked()
                gives_up.cancel_scope.cancel()
        finally:
            os.kill(client.pid, signal.SIGCONT)
        with pytest.raises(Refused):  # there is no such job
            await client.tend("job")
        tasks.cancel_scope.cancel()


async def tend(client: NurseryClient, job_id: str) -> None:
    with contextlib.suppress(LinkLost, Refused):
        await client.tend(job_id)
