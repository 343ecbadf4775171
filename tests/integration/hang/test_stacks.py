"""Stacks of jobs: their real processes, found by the tree, and what is kept of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

import muster.probes.stacks
from muster.agent.errors import InvalidRequest, JobNotFound, TooMany
from muster.agent.hang import job_stacks
from muster.agent.hang.job_stacks import MAX_PROCESSES, MAX_WAITING, Stacks, StacksSettings, message
from muster.agent.jobs.entry import Entry
from muster.probes.cards.driver import View
from muster.probes.kernel.procfs import Io
from muster.probes.kernel.trees import JobProcess, JobRoots, ProcessRole
from muster.probes.kernel.trees import RootProcess as TreeRoot
from muster.probes.stacks import ProcessStacks, PythonThread, StackTarget, Taken, Task
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import Boot, JobSpec
from muster.supervisors.model.states import State
from muster.supervisors.paths import Root
from muster.v1 import job_pb2
from tests.conftest import Daemon, eventually
from tests.unit.process_stats import stat

#: A rank with a worker of its own.
RANK = """
import os, threading
lock = threading.Lock()
lock.acquire()
def load():
    lock.acquire()
def step():
    print("there", flush=True)
    lock.acquire()
if os.fork() == 0:
    load()
step()
"""


class Cards:
    view = View()


class Jobs:
    def __init__(self, *entries: Entry) -> None:
        self.all = {entry.job_id: entry for entry in entries}

    async def get(self, job_id: str) -> Entry:
        if job_id not in self.all:
            raise JobNotFound(job_id)
        return self.all[job_id]


Started = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def started() -> Iterator[Started]:
    made: list[subprocess.Popen[bytes]] = []

    def begin(program: str = RANK) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
        made.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        return process

    yield begin
    for process in made:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def entry(folder: Path, *pids: int, boot: Boot = Boot.RANKS) -> Entry:
    ranks = [Rank(rank, rank, 0, pid=pid, start=start_of(pid)) for rank, pid in enumerate(pids)]
    job = Job(state=State.RUNNING, ranks=ranks, spawned=True, attempt=2, world_size=4, local_ranks=len(pids))
    paths = Root.under(folder).job("a")
    paths.folder.mkdir(parents=True)
    return Entry("a", JobSpec("a", ("true",), boot=boot), job, paths)


def start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def first_lines(answer: job_pb2.GetStacksResponse) -> dict[str, list[int]]:
    return {group.stack.split("\n")[0]: [owner.rank for owner in group.owners] for group in answer.groups}


def skip_where_refused(notes: tuple[str, ...]) -> None:
    refused = [note for note in notes if "may not be read" in note]
    if refused:
        pytest.skip(refused[0])


# --- taking -----------------------------------------------------------------------------------------------------------


async def test_ranks_and_their_workers_are_looked_at_and_kept(tmp_path: Path, started: Started):
    job = entry(tmp_path, started().pid, started().pid)
    it = Stacks(Jobs(job), Cards())
    with anyio.fail_after(180):  # until all four are where they are to be
        while True:
            taken = await it.take("a", occasion="suspected hang")
            skip_where_refused(taken.notes)
            if set(first_lines(message(taken))) == {"load (<string>:6)", "step (<string>:9)"}:
                break
    answer = message(taken)
    assert first_lines(answer) == {"step (<string>:9)": [0, 1], "load (<string>:6)": [0, 1]}
    assert (answer.occasion, list(answer.notes), taken.attempt) == ("suspected hang", [], 2)
    owner = answer.groups[0].owners[0]
    assert (owner.command, owner.state, owner.threads) == (f"{Path(sys.executable).name} -c", "S", 1)
    assert await it.kept("a") == taken
    assert {one.rank for one in (await it.take("a", [1])).processes} == {1}
    assert {one.rank for one in (await it.kept("a", [1])).processes} == {1}
    assert [one.occasion for one in await it.history("a")][-2:] == ["suspected hang", "request"]


async def test_what_cannot_be_asked_is_refused(tmp_path: Path, started: Started):
    it = Stacks(Jobs(entry(tmp_path, started().pid)), Cards())
    for call in (it.take, it.kept):
        with pytest.raises(JobNotFound):
            await call("b")
        with pytest.raises(InvalidRequest, match="ranks: 3: the ranks of this job on this node are 0 to 0"):
            await call("a", [0, 3])


async def test_a_job_without_processes_says_so_and_nothing_is_kept(tmp_path: Path, started: Started):
    job = entry(tmp_path, started().pid)
    it = Stacks(Jobs(job), Cards())
    job.job.state = State.FAILED
    assert "has ended (FAILED): it has no stacks" in (await it.take("a")).notes[0]
    job.job.state, job.job.spawned = State.PREPARING, False
    assert "has no process yet (PREPARING)" in (await it.take("a")).notes[0]
    job.job.state, job.job.spawned = State.RUNNING, True
    job.job.ranks[0].start += 1
    assert (await it.take("a")).notes == ("its processes have ended: it has no stacks",)
    assert (await it.kept("a")).notes == ("no stacks of this job are stored",)
    assert list(job.paths.folder.iterdir()) == []


async def test_stacks_that_cannot_be_kept_are_given_all_the_same(tmp_path: Path, started: Started):
    job = entry(tmp_path, started().pid)
    job.paths.folder.rmdir()
    taken = await Stacks(Jobs(job), Cards()).take("a")
    assert len(taken.processes) == 2
    assert f"these stacks are not stored: {job.paths.folder}: No such file or directory" in taken.notes


async def test_native_frames_are_for_the_occasions_that_were_chosen(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[int, float]] = []

    async def take(targets: list[StackTarget], *, deadline_s: float, native: int) -> Taken:
        asked.append((native, deadline_s))
        return Taken(1.0, ())

    monkeypatch.setattr(muster.probes.stacks, "take", take)
    it = Stacks(Jobs(entry(tmp_path, started().pid)), Cards(), lambda: StacksSettings(7.0))
    for occasion in ("request", "suspected hang", "hung"):
        await it.take("a", occasion=occasion)
    assert asked == [(0, 7.0), (0, 7.0), (job_stacks.NATIVE_GROUPS, 7.0)]


async def test_one_at_a_time_of_a_job_and_few_wait(tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch):
    running, go = [0, 0], anyio.Event()

    async def take(targets: list[StackTarget], *, deadline_s: float, native: int) -> Taken:
        running[0] += 1
        running[1] = max(running)
        await go.wait()
        running[0] -= 1
        return Taken(1.0, ())

    monkeypatch.setattr(muster.probes.stacks, "take", take)
    it = Stacks(Jobs(entry(tmp_path, started().pid)), Cards())
    async with anyio.create_task_group() as group:
        for _ in range(MAX_WAITING + 1):
            group.start_soon(it.take, "a")
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(TooMany, match="stacks of job a"):
            await it.take("a")
        go.set()
    assert running == [0, 1]
    assert (await it.take("a")).processes == ()


async def test_a_command_that_waits_for_long_says_so(tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_stacks, "TURN_S", 0.05)
    reached = anyio.Event()

    async def take(targets: list[StackTarget], *, deadline_s: float, native: int) -> Taken:
        reached.set()
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(muster.probes.stacks, "take", take)
    it = Stacks(Jobs(entry(tmp_path, started().pid)), Cards())
    async with anyio.create_task_group() as group:
        group.start_soon(it.take, "a")
        await reached.wait()
        with pytest.raises(TooMany):
            await it.take("a")
        group.cancel_scope.cancel()


# --- which processes --------------------------------------------------------------------------------------------------


def proc(rank: int | None, role: ProcessRole, pid: int) -> JobProcess:
    return JobProcess(rank, rank, role, stat(pid, "python", start=1000 + pid), Io(0, 0, 0, 0), None)


def pids(found: list[StackTarget]) -> list[int]:
    return [target.pid for target in found]


def test_ranks_come_first_and_then_workers_in_turn():
    procs = [
        *(proc(0, ProcessRole.RANK, 10), proc(0, ProcessRole.WORKER, 11), proc(0, ProcessRole.WORKER, 12)),
        *(proc(1, ProcessRole.RANK, 20), proc(1, ProcessRole.WORKER, 21), proc(None, ProcessRole.HELPER, 30)),
    ]
    roots = JobRoots("a", (TreeRoot(0, 10, 1010),))
    assert pids(job_stacks.targets(procs, roots, None)) == [10, 20, 11, 21, 12]
    assert pids(job_stacks.targets(procs, roots, frozenset({1}))) == [20, 21]
    assert job_stacks.targets(procs, roots, frozenset({1}))[0] == StackTarget(1, 20, 1020)


def test_where_a_launcher_has_made_no_rank_it_is_looked_at_itself():
    procs = [proc(None, ProcessRole.HELPER, 10), proc(None, ProcessRole.HELPER, 11)]
    roots = JobRoots("a", (TreeRoot(2, 10, 1010, launcher=True),))
    assert job_stacks.targets(procs, roots, None) == [StackTarget(2, 10, 1010), StackTarget(2, 11, 1011)]


async def test_a_job_of_very_many_processes_is_cut(tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch):
    many = tuple(proc(0, ProcessRole.RANK if pid == 1 else ProcessRole.WORKER, pid) for pid in range(1, 1000))
    monkeypatch.setattr(job_stacks, "processes_of", lambda roots, holders: many)
    asked: list[int] = []

    async def take(targets: list[StackTarget], *, deadline_s: float, native: int) -> Taken:
        asked.append(len(targets))
        return Taken(1.0, ())

    monkeypatch.setattr(muster.probes.stacks, "take", take)
    taken = await Stacks(Jobs(entry(tmp_path, started().pid)), Cards()).take("a")
    assert asked == [MAX_PROCESSES]
    assert taken.notes == ("the job has 999 processes: showing 256 of them; select ranks with --rank",)


def test_an_answer_fits_into_a_message():
    frames = [f"f{i} ({'x' * 250}.py:{i})" for i in range(100)]
    processes = tuple(
        ProcessStacks(
            *(rank, 100 + rank, 1, "python", "S", 1, (Task(100 + rank, "python", "S"),)),
            (PythonThread(100 + rank, "MainThread", False, (f"r{rank} (a.py:1)", *frames), (f"r{rank}", *frames)),),
        )
        for rank in range(300)
    )
    answer = message(job_stacks.JobStacks(1.0, "request", 0, processes, ()))
    assert 2 << 20 < answer.ByteSize() < 4 << 20
    assert answer.notes[0].startswith(f"{300 - len(answer.groups)} more groups do not fit")


# --- a real job -------------------------------------------------------------------------------------------------------

DDP = """
import sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
def elsewhere():
    print("there", flush=True)
    time.sleep(1000)
def train():
    for step in range(10):
        if step == 3 and dist.get_rank() == 1:
            elsewhere()
        model(torch.ones(4, 8)).sum().backward()
    dist.barrier()
train()
"""


@pytest.mark.slow
@pytest.mark.torch
async def test_the_rank_that_takes_no_part_is_the_first(daemon: Daemon, tmp_path: Path):
    pytest.importorskip("torch")
    daemon.run(sys.executable, "-c", DDP, job_id="ddp", ranks=3, env={"OMP_NUM_THREADS": "1"})

    def begun() -> bool:
        return b"there" in daemon.output(daemon.get("ddp"), 1)

    await anyio.to_thread.run_sync(lambda: eventually(begun, 90, "rank 1 has left the others"))
    found = daemon.get("ddp")
    job = entry(tmp_path, *(rank.pid for rank in found.ranks))
    it = Stacks(Jobs(job), Cards())
    with anyio.fail_after(180):
        while True:
            taken = await it.take("a")
            skip_where_refused(taken.notes)
            first, *others = message(taken).groups
            if len(others) == 1 and [owner.rank for owner in others[0].owners] == [0, 2]:
                break
    assert [owner.rank for owner in first.owners] == [1]
    assert first.stack.startswith("elsewhere (<string>:9)")
    assert "backward" in others[0].stack
