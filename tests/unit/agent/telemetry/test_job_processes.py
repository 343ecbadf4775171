"""On how many nodes a job is, by what the launcher of its own has told its ranks."""

import pytest

from muster.agent.telemetry.job_processes import nodes_told
from muster.probes.kernel.process import Stat
from muster.probes.kernel.trees import JobProcess, ProcessRole

STAT = Stat(7, "python", "S", 1, 7, 7, 0, 0, 0, 1, 9, 0)


def rank(number: int, world: int | None, local_world: int | None = None) -> JobProcess:
    return JobProcess(number, number, ProcessRole.RANK, STAT, None, None, world, local_world)


@pytest.mark.parametrize(
    ("processes", "cards", "nodes"),
    [
        ([], 8, 1),
        ([rank(0, None), rank(1, None)], 2, 1),
        ([rank(0, 16, 8)], 8, 2),
        ([rank(0, 8, 8)], 8, 1),
        ([rank(0, 4), rank(1, 4)], 0, 2),
        ([rank(0, 4)], 4, 1),  # the others have ended
        ([rank(0, 17, 8)], 8, 3),
        ([rank(0, 2, 8)], 8, 1),  # some platforms give the number of nodes
    ],
)
def test_nodes_by_the_numbers_of_the_ranks(processes: list[JobProcess], cards: int, nodes: int) -> None:
    assert nodes_told(processes, cards) == nodes
