"""Who came since the last look: by the kernel's counter where it can be believed, else by a listing."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.probes.kernel.procfs import FULL_EACH, MOST_TRIED, Arrivals, Procfs
from tests.unit.proc_folder import ProcFolder


@pytest.fixture
def proc(tmp_path: Path) -> ProcFolder:
    made = ProcFolder(tmp_path / "proc")
    for pid in (1, 40, 50):
        made.add(pid, 1)
    made.counter(60)
    return made


class CountedProcfs(Procfs):
    """Counts the listings."""

    listings = 0

    def pids(self) -> set[int]:
        self.listings += 1
        return super().pids()


@pytest.fixture
def procfs(proc: ProcFolder) -> Iterator[CountedProcfs]:
    made = CountedProcfs(proc.path)
    yield made
    made.close()


def came(arrivals: Arrivals, every: bool = False) -> set[int]:
    found = arrivals.look(every)
    arrivals.taken()
    return found


@pytest.fixture
def confirmed(proc: ProcFolder, procfs: CountedProcfs) -> Arrivals:
    """A listing has seen a process come where the counter said."""
    arrivals = Arrivals(procfs)
    assert came(arrivals) == {1, 40, 50}
    proc.add(63, 1)
    proc.counter(64)
    assert came(arrivals) == {63}
    assert procfs.listings == 2
    return arrivals


def test_the_counter_tells_who_came_and_nothing_is_listed(proc: ProcFolder, procfs: CountedProcfs, confirmed: Arrivals):
    proc.add(70, 1)
    proc.counter(80)
    assert came(confirmed) == {70}
    assert came(confirmed) == {70}, "once more: its parent may have ended in between"
    assert came(confirmed) == set()
    assert procfs.listings == 2


def test_a_thread_is_no_process(proc: ProcFolder, confirmed: Arrivals):
    proc.add(71, 1)
    (proc.path / "71" / "status").write_text("Name:\tpython\nTgid:\t50\nPid:\t71\n")
    proc.counter(71)
    assert came(confirmed) == set()


def test_the_same_place_again_where_nothing_was_taken(proc: ProcFolder, confirmed: Arrivals):
    proc.add(70, 1)
    proc.counter(70)
    assert confirmed.look(False) == {70}
    proc.add(75, 1)
    proc.counter(75)
    assert came(confirmed) == {70, 75}


@pytest.mark.parametrize(
    ("newest", "pid"), [pytest.param(10, 8, id="begun anew"), pytest.param(64 + MOST_TRIED + 1, 70, id="too many")]
)
def test_a_listing_where_the_counter_is_of_no_use(
    proc: ProcFolder, procfs: CountedProcfs, confirmed: Arrivals, newest: int, pid: int
):
    proc.add(pid, 1)
    proc.counter(newest)
    assert came(confirmed) == {pid}
    assert procfs.listings == 3
    proc.add(newest + 1, 1)
    proc.counter(newest + 1)
    assert came(confirmed) == {newest + 1}
    assert procfs.listings == 3, "and by the counter again"


def test_without_a_counter_each_look_lists(proc: ProcFolder, procfs: CountedProcfs):
    (proc.path / "loadavg").unlink()
    arrivals = Arrivals(procfs)
    for looks, pid in enumerate((2, 900, 7), start=1):
        proc.add(pid, 1)
        assert pid in came(arrivals)
        assert procfs.listings == looks


def test_a_counter_of_another_namespace_is_not_believed(proc: ProcFolder, procfs: CountedProcfs):
    (proc.path / "self").unlink()
    (proc.path / "self").symlink_to(str(os.getpid() + 1))
    assert procfs.newest_pid() is None


def test_a_made_up_counter_is_never_confirmed(proc: ProcFolder, procfs: CountedProcfs):
    arrivals = Arrivals(procfs)
    came(arrivals)
    for looks, pid in enumerate((2000, 2001, 2002), start=2):  # above what it tells
        proc.add(pid, 1)
        assert came(arrivals) == {pid}
        assert procfs.listings == looks


def test_a_pid_of_a_restored_checkpoint_ends_the_belief(proc: ProcFolder, procfs: CountedProcfs, confirmed: Arrivals):
    proc.add(20, 1)  # below all that was given out meanwhile
    assert 20 in came(confirmed, every=True)
    before = procfs.listings
    proc.add(21, 1)
    assert came(confirmed) == {21}
    assert procfs.listings == before + 1


def test_every_process_is_looked_at_from_time_to_time(procfs: CountedProcfs, confirmed: Arrivals):
    found = [came(confirmed) for _ in range(FULL_EACH)]
    assert found.count({1, 40, 50, 63}) == 1


def test_a_real_process_and_its_threads():
    """By the kernel's own counter: a process is told, its threads are not."""
    procfs = Procfs()
    code = (
        "import threading, sys\n[threading.Thread(target=sys.stdin.read).start() for _ in range(3)]\nprint(flush=True)"
    )
    try:
        before = procfs.newest_pid()
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stdout.read(1)
            after = procfs.newest_pid()
            threads = {int(name) for name in os.listdir(f"/proc/{child.pid}/task")} - {child.pid}
            assert len(threads) == 3
            assert procfs.is_process(child.pid)
            assert not any(procfs.is_process(thread) for thread in threads)
            child.stdin.close()  # type: ignore[union-attr]
        assert before is not None and after is not None
        if before < after:  # not over the top in between
            assert all(before < pid <= after for pid in (child.pid, *threads))
        assert not procfs.is_process(child.pid)
    finally:
        procfs.close()
