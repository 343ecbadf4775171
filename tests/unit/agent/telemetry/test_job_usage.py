"""From two looks to rates."""

from dataclasses import replace

import pytest

from muster.agent.telemetry.job_usage import JobUsage, Meter, NodeUsage, RankPlace
from muster.probes.cards.sampler import ProcessLook
from muster.probes.kernel.process import TICKS_PER_S
from muster.probes.kernel.procfs import Io, NodeTotals
from muster.probes.kernel.trees import JobProcess, ProcessRole
from tests.unit.process_stats import stat

NODE = NodeTotals(busy_ticks=1000, all_ticks=4000, mem_total=1000, mem_available=250)
PLACES = {"a": [RankPlace(0, 4, 10), RankPlace(1, 5, 20)]}


def proc(
    pid: int, rank: int | None, cpu_s: float = 0.0, io: tuple[int, int] | None = (0, 0),
    role: ProcessRole = ProcessRole.RANK,
    rss: int = 10, start: int = 1, state: str = "S", local: int | None = None,
) -> JobProcess:  # fmt: skip
    found = stat(pid, state=state, cpu_s=cpu_s, start=start, rss=rss)
    return JobProcess(rank, local, role, found, Io(io[0], io[1], 7, 7) if io else None, None)


def look(at: float, *procs: JobProcess, node: NodeTotals = NODE, job: str = "a") -> ProcessLook:
    return ProcessLook(1000.0 + at, at, {job: procs}, node)


def later(seconds: float, busy_s: float) -> NodeTotals:
    """A node with two CPUs."""
    return replace(NODE, busy_ticks=1000 + int(busy_s * TICKS_PER_S), all_ticks=4000 + int(2 * seconds * TICKS_PER_S))


def device(job: str, local: int | None) -> int:
    return 40 + (local or 0)


def take(*looks: ProcessLook) -> tuple[NodeUsage, JobUsage]:
    meter = Meter()
    for one in looks:
        node, jobs = meter.take(one, PLACES, device)
    return node, jobs["a"]


def test_before_the_second_look_there_are_no_rates():
    node, job = take(look(0, proc(10, 0, 5.0), proc(20, 1, state="D"), proc(30, None, role=ProcessRole.HELPER, rss=80)))
    assert (node.cpu, node.mem) == (None, 75.0)
    assert (job.cpu, job.mem, job.processes) == (None, 10.0, 3)
    zero, one = job.ranks
    assert (zero.rank, zero.device, zero.pid, zero.processes, zero.memory_bytes) == (0, 4, 10, 1, 10)
    assert (zero.cpu, zero.read_rate, zero.write_rate) == (None, None, None)
    assert (one.state, one.at) == ("D", 1000.0)


def test_rates_are_of_the_time_between():
    node, job = take(
        look(0, proc(10, 0, 5.0, (100, 1000)), proc(11, 0, 1.0, (0, 0), ProcessRole.WORKER), proc(20, 1)),
        look(
            10,
            proc(10, 0, 15.0, (1100, 1500)),
            proc(11, 0, 6.0, (0, 500), ProcessRole.WORKER),
            proc(20, 1, io=None),
            node=later(10, 17.0),
        ),
    )
    zero, one = job.ranks
    assert zero.cpu == pytest.approx(150.0)
    assert (zero.read_rate, zero.write_rate, zero.processes) == (100.0, 100.0, 2)
    assert (one.cpu, one.read_rate, one.write_rate) == (0.0, None, None)
    assert node.cpu == pytest.approx(85.0)
    assert job.cpu == pytest.approx(75.0)  # 15 of 20 CPU seconds


def test_what_a_child_used_is_its_parents_after_the_wait_and_counts_once():
    _, job = take(
        look(0, proc(10, 0, 5.0), proc(11, 0, 100.0, (0, 10**6), ProcessRole.WORKER)),
        look(10, proc(10, 0, 106.0, (0, 10**6 + 500))),
    )
    assert job.ranks[0].cpu == pytest.approx(10.0)
    assert job.ranks[0].write_rate == 50.0


def test_a_child_that_nobody_waited_for_takes_its_share_along():
    _, job = take(
        look(0, proc(10, 0, 5.0, (0, 0)), proc(11, 0, 100.0, (0, 10**6), ProcessRole.WORKER)),
        look(10, proc(10, 0, 7.0, (0, 500))),
    )
    assert job.ranks[0].cpu == pytest.approx(20.0)
    assert job.ranks[0].write_rate == 50.0


def test_another_process_of_the_same_rank_or_pid_begins_anew():
    _, job = take(look(0, proc(10, 0, 5.0)), look(10, proc(10, 0, 900.0, start=99)))
    assert job.ranks[0].cpu is None


def test_a_rank_without_a_process_is_reported_as_such():
    _, job = take(look(0, proc(10, 0)), look(10, proc(20, 1)))
    zero = job.ranks[0]
    assert (zero.pid, zero.processes, zero.cpu, zero.memory_bytes, zero.state) == (10, 0, None, None, "")


def test_ranks_that_a_launcher_made_are_reported():
    meter = Meter()
    procs = (proc(5, None, role=ProcessRole.HELPER), proc(12, 9, local=1), proc(11, 8, local=0, state="R"))
    _, jobs = meter.take(look(0, *procs), {}, device)
    assert [(r.rank, r.device, r.pid, r.state) for r in jobs["a"].ranks] == [(8, 40, 11, "R"), (9, 41, 12, "S")]


def test_a_node_that_tells_nothing():
    node, job = take(look(0, proc(10, 0), node=NodeTotals()), look(10, proc(10, 0, 3.0), node=NodeTotals()))
    assert (node.cpu, node.mem, job.cpu, job.mem) == (None, None, None, None)
    assert job.ranks[0].cpu == pytest.approx(30.0)


def test_a_job_that_comes_later_has_no_rates_at_first():
    meter = Meter()
    meter.take(look(0, proc(10, 0)), PLACES, device)
    _, jobs = meter.take(look(10, proc(50, 0, 9.0), job="b"), {"b": [RankPlace(0, 0, 50)]}, device)
    assert jobs["b"].ranks[0].cpu is None
    assert "a" not in jobs
