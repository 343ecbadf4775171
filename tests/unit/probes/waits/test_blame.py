"""Who is to blame for a hang, from the stacks of the ranks."""

from collections.abc import Iterable, Mapping

import pytest

from muster.probes.stacks import ProcessStacks
from muster.probes.stacks.rank_stacks import of_ranks
from muster.probes.waits import Culprit, blame, place
from tests.unit.probes.waits.test_wait_places import REDUCE, USER, process

LOCK = "guilty_lock (train.py:11)"


def reduces(rank: int) -> ProcessStacks:
    return process(*REDUCE, USER, wchan="futex_do_wait", rank=rank)


def locked(rank: int) -> ProcessStacks:
    return process(LOCK, wchan="futex_do_wait", rank=rank)


def waits_async(rank: int) -> ProcessStacks:
    """In work.wait(), which leaves only the program's line."""
    return process(USER, wchan="futex_do_wait", rank=rank)


def find(processes: Iterable[ProcessStacks], leaders: Mapping[int, int]) -> Culprit | None:
    return blame({stack.rank: place(stack) for stack in of_ranks(processes, leaders, 0.0)})


def blamed(*processes: ProcessStacks) -> tuple[int, ...]:
    found = find(processes, {one.rank: one.pid for one in processes})
    return found.ranks if found is not None else ()


@pytest.mark.parametrize(
    ("processes", "ranks"),
    [
        ([reduces(0), locked(1)], (1,)),
        ([process(*REDUCE, USER, state="T", rank=0), reduces(1), reduces(2)], (0,)),
        ([process(USER, state="R", rank=0), reduces(1), reduces(2)], (0,)),
        ([waits_async(0), waits_async(1), waits_async(2), locked(3)], (3,)),
        # All in the collective, or half of them elsewhere: the stacks do not say who.
        ([reduces(0), reduces(1)], ()),
        ([reduces(0), reduces(1), locked(2), locked(3)], ()),
        ([waits_async(0), locked(1)], ()),
        ([waits_async(0), waits_async(1), locked(2), process("f (a.py:1)", wchan="futex", rank=3)], ()),
        ([process("f (a.py:1)", rank=0), reduces(1), reduces(2)], ()),  # where it waits is not known
        ([], ()),
    ],
)
def test_the_ranks_to_blame(processes: list[ProcessStacks], ranks: tuple[int, ...]):
    assert blamed(*processes) == ranks


def test_workers_of_a_rank_do_not_count():
    worker = process("_worker_loop (torch/utils/data/_utils/worker.py:1)", rank=7)
    loader = ProcessStacks(0, worker.pid, 1, "python", "S", 1, worker.tasks, worker.python)
    found = find([loader, reduces(0), reduces(1), locked(2)], {0: 100, 1: 101, 2: 102})
    assert found is not None and (found.ranks, found.peers) == ((2,), (0, 1))
