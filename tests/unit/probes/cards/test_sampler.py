"""When what is read, what a process that cannot be read costs, and what is told of it."""

import os
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from muster.probes.cards import sampler
from muster.probes.cards.accelerator import NVIDIA, Card, Holder, Reading
from muster.probes.cards.driver import Driver, Seen, View, What
from muster.probes.cards.sampler import ProcessLook, Sampler, SamplerSettings
from muster.probes.kernel.job_traffic import JobTraffic, Traffic
from muster.probes.kernel.trees import JobRoots, ProcessRole, RootProcess
from tests.unit.proc_folder import ProcFolder
from tests.unit.waiting import until

ROOTS = JobRoots("job", (RootProcess(0, 100, 1000, launcher=True),), 50, (3,), 7)


class FakeDriver:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[What] = []
        self.view = View(kind=NVIDIA, cards={3: Card(3, NVIDIA)}, holders={3: Seen(1.0, (Holder(110),))})

    async def refresh(self, what: What, cards: Any = None, *, deadline_s: float | None = None) -> View:
        self.asked.append(what)
        self.view = replace(self.view, readings={3: Seen(float(len(self.asked)), Reading(util=50.0))})
        return self.view


class Watch:
    """What a sampler told."""

    def __init__(self, folder: Path, rates: SamplerSettings) -> None:
        self.rates = rates
        self.idle_percent = 5.0
        self.driver = FakeDriver()
        self.views: list[View] = []
        self.looks: list[ProcessLook] = []
        self.sampler = Sampler(
            lambda: self.rates,
            cast("Driver", self.driver),
            lambda: [ROOTS],
            idle_percent=lambda job_id: self.idle_percent,
            on_readings=self.views.append,
            on_look=self.looks.append,
            proc=folder,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                await tasks.start(self.sampler.run)
                yield
                tasks.cancel_scope.cancel()


@pytest.fixture
def proc(tmp_path: Path) -> ProcFolder:
    made = ProcFolder(tmp_path / "proc")
    made.add(50, 1, 900)
    made.add(100, 50, 1000)
    made.add(110, 100, 1100)
    return made


def release(fifo: Path) -> None:
    """Lets a reader go on that waits for a writer."""
    os.close(os.open(fifo, os.O_WRONLY))


FAST = SamplerSettings(readings_s=0.05, health_s=0.05, holders_s=0.05, processes_s=0.05)


async def test_all_kinds_are_read_and_told(proc: ProcFolder):
    watch = Watch(proc.path, FAST)
    async with watch.running():
        await until(lambda: len(watch.views) > 3 and len(watch.looks) > 3 and set(watch.driver.asked) == set(What))
    assert watch.views[0].readings[3].value.util == 50.0
    look = watch.looks[0]
    # The driver says that 110 holds card 3, the first of the job's cards.
    assert [(p.stat.pid, p.role, p.rank) for p in look.jobs["job"]] == [
        (100, ProcessRole.HELPER, None),
        (110, ProcessRole.RANK, 7),
    ]
    assert look.node.net_bytes == 117
    assert watch.looks[1].up > look.up
    assert watch.sampler.trouble == ""


async def test_the_traffic_of_a_job_with_cards_is_counted_while_one_of_them_is_idle_by_its_own_rule(
    proc: ProcFolder, monkeypatch: pytest.MonkeyPatch
):
    counted: list[list[str]] = []

    def count(self: object, up: float, moved: int | None, jobs: Mapping[str, object]) -> dict[str, Traffic]:
        counted.append(list(jobs))
        return {}

    monkeypatch.setattr(JobTraffic, "look", count)
    watch = Watch(proc.path, FAST)  # its card's utilization is 50 %
    async with watch.running():
        await until(lambda: len(watch.views) > 1 and len(watch.looks) > 1)
        busy = len(counted)
        await until(lambda: len(counted) > busy + 1)
        assert counted[busy:] == [[]] * len(counted[busy:])
        watch.idle_percent = 50.0
        await until(lambda: ["job"] in counted)


async def test_turned_off_it_reads_nothing_and_turned_on_it_goes_on(proc: ProcFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampler, "OFF_S", 0.01)
    watch = Watch(proc.path, replace(FAST, enabled=False))
    async with watch.running():
        await anyio.sleep(0.1)
        assert watch.driver.asked == [] and watch.looks == []
        watch.rates = FAST
        await until(lambda: watch.looks and watch.views)


async def test_a_process_that_cannot_be_read_costs_only_itself(proc: ProcFolder, monkeypatch: pytest.MonkeyPatch):
    """Opening a FIFO that nobody writes to hangs, as a file of a process that is stuck in the kernel does."""
    monkeypatch.setattr(sampler, "STUCK_S", 0.5)
    proc.add(120, 100, 1100)
    stuck = proc.path / "120" / "io"
    stuck.unlink()
    os.mkfifo(stuck)
    watch = Watch(proc.path, FAST)
    before = threading.active_count()
    async with watch.running():
        # Without it, and with the others: perhaps not in the first look, where these are slow, too.
        await until(lambda: watch.looks and {p.stat.pid for p in watch.looks[-1].jobs["job"]} == {100, 110})
        await until(lambda: watch.views)  # nobody waited for it
        await until(lambda: "/proc/120: a read takes longer than" in watch.sampler.trouble)
        # It comes back: the thread ends, and the process is told again.
        os.rename(stuck, proc.path / "fifo")
        proc.add(120, 100, 1100)
        release(proc.path / "fifo")
        await until(lambda: {p.stat.pid for p in watch.looks[-1].jobs["job"]} == {100, 110, 120})
        await until(lambda: threading.active_count() <= before + 1)
        await until(lambda: watch.sampler.trouble == "")


async def test_what_hangs_is_reported(proc: ProcFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampler, "STUCK_S", 0.5)
    monkeypatch.setattr(sampler, "MAX_LEFT_BEHIND", 1)
    (proc.path / "110" / "io").unlink()
    os.mkfifo(proc.path / "110" / "io")
    watch = Watch(proc.path, FAST)
    async with watch.running():
        await until(lambda: "1 reads of processes hang" in watch.sampler.trouble)
        assert f"/proc/{110}" in watch.sampler.trouble
        seen = len(watch.views)
        await until(lambda: len(watch.views) > seen)  # cards are read all the same
        assert watch.looks == []
        os.rename(proc.path / "110" / "io", proc.path / "fifo")
        proc.add(110, 100, 1100)
        release(proc.path / "fifo")
        await until(lambda: watch.looks)  # a thread has come back
        assert watch.sampler.trouble == ""


async def test_a_proc_that_cannot_be_listed_is_reported(proc: ProcFolder, monkeypatch: pytest.MonkeyPatch):
    watch = Watch(proc.path, FAST)

    def refuse(self: object) -> set[int]:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("muster.probes.kernel.procfs.Procfs.pids", refuse)
        async with watch.running():
            await until(lambda: "Permission denied" in watch.sampler.trouble)
            patched.undo()
            await until(lambda: watch.looks)
    assert watch.sampler.trouble == ""


async def test_other_names_of_helpers_are_taken_over(proc: ProcFolder):
    proc.add(110, 100, 1100, name="ours")
    watch = Watch(proc.path, FAST)
    async with watch.running():
        await until(lambda: watch.looks and watch.looks[-1].jobs["job"][1].role is ProcessRole.RANK)
        watch.rates = replace(FAST, helpers=("ours",))
        await until(lambda: watch.looks[-1].jobs["job"][1].role is ProcessRole.HELPER)
