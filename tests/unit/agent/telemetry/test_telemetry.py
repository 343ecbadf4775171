"""From readings and looks to what is told of jobs: with cards and jobs as a test sets them, and no daemon."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import anyio
import pytest

from muster.agent.config.schema import Config
from muster.agent.jobs.entry import Entry
from muster.agent.telemetry import job_processes, recording, sampling
from muster.agent.telemetry.history.history_rows import CARD_MEM, CPU, POWER, UTIL, FoundSeries
from muster.agent.telemetry.records import TelemetryRecord
from muster.agent.telemetry.sampling import Telemetry
from muster.probes import typed
from muster.probes.cards.accelerator import NVIDIA, Card, Health, Reading
from muster.probes.cards.driver import Driver, Seen, View
from muster.probes.cards.sampler import ProcessLook, Sampler
from muster.probes.kernel.procfs import Io, NodeTotals
from muster.probes.kernel.trees import JobProcess, ProcessRole
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import Boot, JobSpec
from muster.supervisors.model.states import State
from muster.supervisors.output import log_segments
from muster.supervisors.output.log_layout import Folder
from muster.supervisors.paths import Root
from tests.unit.process_stats import stat


class Jobs:
    def __init__(self, *entries: Entry) -> None:
        self.all = list(entries)

    def live(self) -> list[Entry]:
        return [entry for entry in self.all if not entry.job.state.final]


class Cards:
    """Stands for the driver where only its view is taken."""

    view = View()


def entry(
    job_id: str = "a", cards: tuple[int, ...] = (2, 3), boot: Boot = Boot.RANKS, root: Path = Path("/x")
) -> Entry:
    ranks = [Rank(4 + i, i, card, pid=100 + i, start=1000, role="rank") for i, card in enumerate(cards)]
    if boot != Boot.RANKS:
        ranks = [Rank(1, 0, cards[0], pid=100, start=1000, role="launcher")]
    job = Job(state=State.RUNNING, cards=cards, ranks=ranks, spawned=True, supervisor_pid=50, card_kind=NVIDIA)
    job.accepted_at, job.started_at, job.local_ranks, job.node_rank = 500.0, 600.0, len(cards), 1
    return Entry(job_id, JobSpec(job_id, ("true",), boot=boot), job, Root.under(root).job(job_id))


def view(utils: dict[int, float | None], power: float | None = 300.0) -> View:
    cards = {i: Card(i, NVIDIA, uuid=f"GPU-{i}") for i in range(4)}
    readings = {i: Seen(time.time(), Reading(util, 40.0, 50, 200, power)) for i, util in utils.items()}
    health = {2: Seen(1.0, Health(power_limit_w=700.0, fabric_bytes=12345))}
    return View(NVIDIA, "570", cards, readings, health)


def made(tmp_path: Path, *entries: Entry, **settings: object) -> tuple[Telemetry, Jobs]:
    root = Root.under(tmp_path)
    root.state.mkdir(exist_ok=True)
    jobs = Jobs(*entries)
    config = Config(telemetry=typed.convert(settings, type(Config().telemetry)))
    return Telemetry(root, lambda: config, cast("Driver", Cards()), jobs), jobs


class Time:
    """What the module takes for seconds."""

    def __init__(self) -> None:
        self.up = time.monotonic()
        self.at = time.time()

    def monotonic(self) -> float:
        return self.up

    def time(self) -> float:
        return self.at

    def pass_(self, seconds: float) -> None:
        self.up += seconds
        self.at += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made_up = Time()
    monkeypatch.setattr(sampling, "time", made_up)
    return made_up


def read(it: Telemetry, clock: Time, utils: dict[int, float | None], times: int = 1, each_s: float = 1.0) -> None:
    for _ in range(times):
        clock.pass_(each_s)
        it.take_readings(view(utils))


def means(found: FoundSeries, metric: int) -> list[float]:
    values = [found.steps[number].values[metric] for number in sorted(found.steps)]
    return [value[0] for value in values if value is not None]


# --- cards ------------------------------------------------------------------------------------------------------------


async def test_cards_jobs_and_the_node_have_a_history(tmp_path: Path, clock: Time):
    it, _ = made(tmp_path, entry())
    start = clock.at
    read(it, clock, {0: 10.0, 1: 20.0, 2: 30.0, 3: 80.0}, 5)
    (card,) = await it.history.card("GPU-2", 2, start, clock.at + 2, 1.0)
    assert means(card, UTIL) == [30.0] * 5
    assert means(card, CARD_MEM) == [25.0] * 5
    node = next(found for found in await it.history.node(start, clock.at + 2, 1.0) if found.key.kind == "node")
    assert means(node, UTIL) == [35.0] * 5
    assert means(node, POWER) == [1200.0] * 5
    own, *cards = await it.history.job("a", start, clock.at + 2, 1.0)
    assert means(own, UTIL) == [55.0] * 5
    assert means(own, POWER) == [600.0] * 5
    assert [(found.key.name, found.card) for found in cards] == [("GPU-2", 2), ("GPU-3", 3)]


async def test_what_is_not_told_is_no_zero(tmp_path: Path, clock: Time):
    it, _ = made(tmp_path, entry())
    start = clock.at
    read(it, clock, {2: None}, 3)  # cut into instances; and card 3 does not answer
    own, two, three = await it.history.job("a", start, clock.at + 2, 1.0)
    assert (means(own, UTIL), means(two, UTIL), means(three, POWER)) == ([], [], [])
    assert means(own, POWER) == [300.0] * 3
    assert it.jobs()[0].mean is None


async def test_a_host_without_cards_has_none_of_it(tmp_path: Path, clock: Time):
    it, _ = made(tmp_path, entry(cards=()))
    it.take_readings(View())
    assert await it.history.node(clock.at - 10, clock.at + 10, 1.0) == []


# --- how busy a job is ------------------------------------------------------------------------------------------------


async def test_a_job_below_half_is_pointed_out_after_a_while(tmp_path: Path, clock: Time):
    it, _ = made(tmp_path, entry(), underused_after_s=100.5)
    read(it, clock, {2: 20.0, 3: 60.0}, 100)
    assert it.jobs()[0].mean == pytest.approx(40.0)
    assert not it.jobs()[0].underused and it.underused == []
    read(it, clock, {2: 20.0, 3: 60.0}, 2)
    assert it.jobs()[0].underused and it.underused == ["a"]
    read(it, clock, {2: 100.0, 3: 100.0}, 30)
    assert not it.jobs()[0].underused


async def test_a_pause_without_readings_is_not_counted(tmp_path: Path, clock: Time):
    it, _ = made(tmp_path, entry())
    read(it, clock, {2: 0.0, 3: 0.0}, 10)
    read(it, clock, {2: 90.0, 3: 90.0}, 1, each_s=1000.0)  # the driver hung
    assert it.jobs()[0].mean == pytest.approx(90.0 * 2 / 12, rel=0.2)


async def test_another_attempt_begins_anew(tmp_path: Path, clock: Time):
    one = entry()
    it, _ = made(tmp_path, one)
    read(it, clock, {2: 0.0, 3: 0.0}, 10)
    one.job.started_at = 0.0  # restarting
    read(it, clock, {2: 0.0, 3: 0.0}, 10)
    assert it.jobs()[0].mean is None
    one.job.started_at = 700.0
    read(it, clock, {2: 90.0, 3: 90.0}, 10)
    assert it.jobs()[0].mean == pytest.approx(90.0)


@asynccontextmanager
async def running(it: Telemetry) -> AsyncIterator[None]:
    """As far as the history's writing goes."""
    await it.load()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            await tasks.start(it.history.run)
            yield
            tasks.cancel_scope.cancel()


async def test_the_mean_goes_on_after_a_restart(tmp_path: Path, clock: Time):
    one = entry()
    it, _ = made(tmp_path, one)
    async with running(it):
        read(it, clock, {2: 20.0, 3: 20.0}, 30)
    it, _ = made(tmp_path, one)
    async with running(it):
        assert it.jobs()[0].mean == pytest.approx(20.0)
        read(it, clock, {2: 80.0, 3: 80.0}, 30)
        assert it.jobs()[0].mean == pytest.approx(50.0, abs=3)
    # One that runs since another time is another attempt.
    one.job.started_at = 900.0
    it, _ = made(tmp_path, one)
    async with running(it):
        assert it.jobs()[0].mean is None


async def test_a_job_that_has_ended_is_still_told(tmp_path: Path, clock: Time):
    one = entry()
    it, jobs = made(tmp_path, one)
    async with running(it):
        start = clock.at
        read(it, clock, {2: 20.0, 3: 40.0}, 10)
        one.job.state = State.SUCCEEDED
        read(it, clock, {2: 99.0, 3: 99.0}, 20)
        assert it.jobs() == []
        assert (await it.job(one)).mean == pytest.approx(30.0)
        assert means((await it.history.job("a", start, clock.at, 1.0))[0], UTIL) == [30.0] * 10
    it, jobs = made(tmp_path, one)
    async with running(it):
        assert (await it.job(one)).mean == pytest.approx(30.0)
        jobs.all.clear()  # deleted
        assert it.jobs() == []
        assert it.history.busy == {}


# --- processes --------------------------------------------------------------------------------------------------------


def proc(pid: int, rank: int | None, cpu_s: float, role: ProcessRole = ProcessRole.RANK, wchar: int = 0) -> JobProcess:
    found = stat(pid, ppid=50, cpu_s=cpu_s, start=1000)
    return JobProcess(rank, 0, role, found, Io(1, wchar, 3, 4), "poll")


def look(clock: Time, *procs: JobProcess) -> ProcessLook:
    ticks = int(clock.up * 100)
    return ProcessLook(clock.at, clock.up, {"a": procs}, NodeTotals(ticks // 2, ticks, 1 << 20, 1 << 19, 777))


async def test_looks_are_reported_per_rank_and_put_into_the_history(tmp_path: Path, clock: Time):
    one = entry()
    it, _ = made(tmp_path, one)
    start = clock.at
    assert it.node is None and it.jobs()[0].usage is None
    assert [roots.job for roots in it.roots()] == ["a"]
    it.take_look(look(clock, proc(100, 4, 1.0), proc(101, 5, 1.0)))
    clock.pass_(15)
    it.take_look(look(clock, proc(100, 4, 16.0), proc(101, 5, 1.0)))
    usage = it.jobs()[0].usage
    assert usage is not None
    assert [(r.rank, r.device, r.pid, r.processes) for r in usage.ranks] == [(4, 2, 100, 1), (5, 3, 101, 1)]
    assert usage.ranks[0].cpu == pytest.approx(100.0)
    assert it.node is not None and it.node.cpu == pytest.approx(50.0, rel=0.01)
    own, *_ = await it.history.job("a", start, clock.at + 2, 1.0)
    assert means(own, CPU) == [pytest.approx(100.0, rel=0.01)]
    # Where nothing is looked at any more, nothing old is shown for new.
    clock.pass_(59)
    assert it.node is not None and it.jobs()[0].usage is not None
    clock.pass_(2)
    assert it.node is None and it.jobs()[0].usage is None
    # Who the ranks are is known all the same.
    assert [(r.rank, r.pid, r.processes, r.memory_bytes) for r in it.jobs()[0].ranks] == [
        (4, 100, 0, None),
        (5, 101, 0, None),
    ]


async def test_a_job_that_ends_between_two_looks_harms_nothing(tmp_path: Path, clock: Time):
    one = entry()
    it, jobs = made(tmp_path, one)
    it.roots()
    jobs.all.clear()
    clock.pass_(10)
    it.take_look(look(clock, proc(100, 4, 1.0)))
    assert it.jobs() == []


def wanted(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows with each look that is wanted out of turn."""
    looks: list[None] = []
    monkeypatch.setattr(Sampler, "look_soon", lambda _: looks.append(None))
    return looks


async def test_ranks_are_reported_before_the_first_look_and_are_looked_at_soon(
    tmp_path: Path, clock: Time, monkeypatch: pytest.MonkeyPatch
):
    it, jobs = made(tmp_path)
    looks = wanted(monkeypatch)
    it.roots()
    assert it.jobs() == [] and not looks
    young = entry()
    jobs.all.append(young)
    (sample,) = it.jobs()
    assert [(r.rank, r.device, r.pid, r.cpu, r.state, r.at) for r in sample.ranks] == [
        (4, 2, 100, None, "", 0.0),
        (5, 3, 101, None, "", 0.0),
    ]
    assert len(looks) == 1
    it.roots()
    it.take_look(look(clock, proc(100, 4, 1.0), proc(101, 5, 1.0)))
    looks.clear()
    assert [(r.pid, r.processes, r.at) for r in (await it.job(young)).ranks] == [(100, 1, clock.at), (101, 1, clock.at)]
    young.job.ranks[1].pid = 0  # one that has been waited for is no reason to look
    read(it, clock, {2: 1.0, 3: 1.0}, 10)
    assert it.jobs() and not looks
    young.job.state = State.SUCCEEDED
    assert (await it.job(young)).ranks == () and not looks


async def test_an_attempt_is_not_told_with_what_the_one_before_used(
    tmp_path: Path, clock: Time, monkeypatch: pytest.MonkeyPatch
):
    one = entry()
    it, _ = made(tmp_path, one)
    looks = wanted(monkeypatch)
    it.roots()
    it.take_look(look(clock, proc(100, 4, 1.0), proc(101, 5, 1.0)))
    one.job.spawned = False  # restarting
    assert list((await it.job(one)).ranks) == [] and not looks
    one.job.spawned = True
    for rank in one.job.ranks:
        rank.pid, rank.start = rank.pid + 100, rank.start + 100
    assert [(r.pid, r.processes, r.memory_bytes) for r in (await it.job(one)).ranks] == [(200, 0, None), (201, 0, None)]
    assert looks


async def test_a_job_that_nobody_asks_for_is_looked_at_soon_too(
    tmp_path: Path, clock: Time, monkeypatch: pytest.MonkeyPatch
):
    it, jobs = made(tmp_path)
    looks = wanted(monkeypatch)
    it.take_readings(View())  # on a host without cards as well
    jobs.all.append(entry(cards=(0,)))
    assert not looks
    clock.pass_(sampling.NOTICE_S)
    it.take_readings(View())
    assert len(looks) == 1


async def test_of_a_launcher_only_ranks_that_a_look_found_are_reported(tmp_path: Path, clock: Time):
    one = entry(boot=Boot.TORCHRUN)
    it, _ = made(tmp_path, one)
    assert list((await it.job(one)).ranks) == []
    it.roots()
    it.take_look(look(clock, proc(110, 2, 1.0)))
    assert [(r.rank, r.pid, r.processes) for r in (await it.job(one)).ranks] == [(2, 110, 1)]


# --- records ----------------------------------------------------------------------------------------------------------


async def test_a_look_makes_a_record(tmp_path: Path, clock: Time):
    one = entry(root=tmp_path)
    it, _ = made(tmp_path, one)
    root = Root.under(tmp_path)
    root.log.mkdir()
    root.rank_log("a", 4, 2).write_bytes(b"x" * 10)
    log_segments.segment_path(root.rank_log("a", 4, 2), 500, 1000).write_bytes(b"x" * 500)  # the rest is removed
    Cards.view = view({2: 90.0})
    try:
        with anyio.fail_after(60), it.records.subscribed("a") as subscription:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(it.recording.run)
                it.roots()
                it.take_look(look(clock, proc(100, 4, 1.0, wchar=2), proc(90, None, 0.5, ProcessRole.HELPER)))
                (record,) = await subscription.some()
                tasks.cancel_scope.cancel()
    finally:
        Cards.view = View()
    assert isinstance(record, TelemetryRecord)
    assert (record.t, record.job, record.log_bytes, record.net_bytes) == (clock.at, "a", {"4": 1010}, 777)
    assert [(p.pid, p.rank, p.role, p.cpu_s, p.wchar, p.wchan) for p in record.procs] == [
        (100, 4, "rank", 1.0, 2, "poll"),
        (90, None, "helper", 0.5, 0, "poll"),
    ]
    two, three = record.cards
    assert (two.index, two.util, two.power_w, two.power_limit_w, two.fabric_bytes) == (2, 90.0, 300.0, 700.0, 12345)
    assert (two.rank, three.rank) == (4, 5)
    assert (three.util, three.power_limit_w) == (None, None)


async def test_nobody_who_wants_records_no_records(tmp_path: Path, clock: Time):
    it, _ = made(tmp_path, entry())
    it.roots()
    it.take_look(look(clock, proc(100, 4, 1.0)))
    with anyio.fail_after(60), it.records.subscribed("a") as subscription:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.recording.run)
            await anyio.wait_all_tasks_blocked()
            clock.pass_(15)
            it.take_look(look(clock, proc(100, 4, 1.0)))
            records = await subscription.some()
            tasks.cancel_scope.cancel()
    assert [record.t for record in records] == [clock.at], "that of the second look alone"


# --- jobs and their processes -----------------------------------------------------------------------------------------


def test_where_a_jobs_processes_begin():
    roots = job_processes.roots(entry())
    assert [(r.rank, r.pid, r.start, r.launcher) for r in roots.roots] == [(4, 100, 1000, False), (5, 101, 1000, False)]
    assert (roots.supervisor, roots.cards, roots.first_rank) == (50, (2, 3), 4)
    launched = entry(boot=Boot.TORCHRUN)
    roots = job_processes.roots(launched)
    assert [(r.pid, r.launcher) for r in roots.roots] == [(100, True)]
    assert roots.first_rank == 2  # the second node, with two ranks each
    assert job_processes.places(launched) == []
    assert [job_processes.device(launched, local) for local in (0, 1, 7, None)] == [2, 3, 7, 0]
    assert [job_processes.rank_of_card(launched, place) for place in (0, 1)] == [2, 3]
    waiting = entry()
    waiting.job.spawned = False
    assert job_processes.roots(waiting).roots == ()
    assert job_processes.places(waiting) == []


def test_lines_of_logs_are_counted_from_look_to_look(tmp_path: Path):
    log, counts = tmp_path / "a.log", recording.LogCounts(Folder(tmp_path))
    assert counts.look([log]) == {}
    log.write_text("1\n2\n")
    assert counts.look([log]) == {log: recording.LogCount(4, 0)}
    with log.open("a") as file:
        file.write("3\n4\n5")
    assert counts.look([log]) == {log: recording.LogCount(9, 2)}
    log.rename(log_segments.segment_path(log, 0, 9))  # rotated
    log.write_text("\n6\n")
    assert counts.look([log]) == {log: recording.LogCount(12, 4)}
    log.write_text("")
    assert counts.look([log])[log].lines == 4
    with log.open("a") as file:
        file.write("x\n" * 100_000)
    assert counts.look([log])[log].lines == 4 + 32768
    log.unlink()
    assert counts.look([log])[log].lines >= 4
