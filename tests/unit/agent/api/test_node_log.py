"""ReadNodeLogs and what ReadLogs has in common with it, on files that a test writes."""

import itertools
import time
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from muster.agent.api.services import log_service as service
from muster.agent.api.services import node_log_service
from muster.agent.changes import Changes
from muster.agent.errors import InvalidRequest, JobNotFound
from muster.agent.events.event_store import Event, EventStore
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.entry import Entry
from muster.supervisors.model import lifecycle
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import State
from muster.supervisors.output.log_segments import segment_path
from muster.supervisors.output.time_index import INDEX_RECORD
from muster.supervisors.paths import Root
from muster.v1 import log_pb2
from tests.unit.ended_jobs import NoEnded
from tests.unit.waiting import until

SECOND = 10**9
T = 1_700_000_000


class Index(NoEnded):
    def __init__(self, jobs):
        super().__init__()
        self.jobs = jobs

    def rows(self):
        ended = (Ended.of(entry) for entry in self.jobs.values() if entry.state.final)
        return sorted(ended, key=lambda row: row.key, reverse=True)


class Registry:
    def __init__(self):
        self.jobs: dict[str, Any] = {}
        self.changed = Changes()
        self.ended = Index(self.jobs)
        self.versions = itertools.count()

    async def get(self, job_id):
        try:
            return self.jobs[job_id]
        except KeyError:
            raise JobNotFound(job_id) from None

    def known(self, job_id):
        return self.jobs.get(job_id)

    async def wait_explained(self, entry):
        pass

    def live(self):
        live = (entry for entry in self.jobs.values() if not entry.state.final)
        return sorted(live, key=lambda entry: entry.key, reverse=True)

    @property
    def version(self):
        return next(self.versions)

    async def wait_change(self, entry):
        await self.changed.next()


class Context:
    """Takes what is written; blocks in `write` while not `free`."""

    def __init__(self):
        self.messages: list[Any] = []
        self.free = anyio.Event()
        self.free.set()

    async def write(self, message):
        await self.free.wait()
        self.messages.append(message)

    @property
    def shown(self) -> list[str]:
        """`JOB/RANK DATA`, of events the last word."""
        found = []
        for m in self.messages:
            if m.output.event_cursor:
                found += [m.output.data.decode().split()[-1]] if m.output.data else []
            elif m.output.data:
                found.append(f"{m.job_id}/{'job' if m.output.job_log else m.output.rank} {m.output.data.decode()}")
        return found


class World:
    def __init__(self, folder, events):
        self.root = Root.under(folder)
        self.root.log.mkdir(exist_ok=True)
        self.registry = Registry()
        self.events = events
        limits = SimpleNamespace(max_followers=8)
        server: Any = SimpleNamespace(
            registry=self.registry,
            root=self.root,
            events=events,
            config=lambda: SimpleNamespace(limits=limits),
            may_see=lambda _: True,
        )
        self.service: Any = service.LogService(server)

    def job(self, job_id: str, accepted: float = 0.0, ranks: int = 1, state: State = State.RUNNING):
        job = lifecycle.Job(state=state, accepted_at=T + accepted, ranks=[Rank(i, i, i) for i in range(ranks)])
        entry = Entry(job_id, JobSpec(job_id, ("true",)), job, self.root.job(job_id))
        self.registry.jobs[job_id] = entry
        if state.final:
            self.end(job_id)
        return entry

    def end(self, job_id: str) -> None:
        job = self.registry.jobs[job_id].job
        job.state, job.ended_at, job.verdict = State.SUCCEEDED, T + 100, lifecycle.Verdict(0, "all well")
        self.registry.changed.tell()

    def path(self, job_id: str, rank: int = 0):
        return self.root.rank_log(job_id, rank, rank)

    def write(self, job_id: str, data: str, at: float, rank: int = 0) -> None:
        """Output that was written `at` this second."""
        path, index = self.path(job_id, rank), self.root.rank_index(job_id, rank, rank)
        size = path.stat().st_size if path.exists() else 0
        with open(index, "ab") as file:
            file.write(INDEX_RECORD.pack(size, round((T + at) * SECOND)))
        with open(path, "ab") as file:
            file.write(data.encode())

    async def read(self, **fields) -> Context:
        context = Context()
        await self.service.ReadNodeLogs(log_pb2.ReadNodeLogsRequest(**fields), context)
        assert context.messages[-1].output.eof
        return context


@pytest.fixture
async def world(tmp_path):
    (tmp_path / "events").mkdir()
    events = await EventStore.open(tmp_path / "events", 1 << 20)
    yield World(tmp_path, events)
    await events.close()


def moment(at: float) -> Any:
    request = log_pb2.ReadLogsRequest()
    request.since.FromNanoseconds(round((T + at) * SECOND))
    return request.since


async def test_all_jobs_in_the_order_of_time_with_events(world):
    world.job("a", ranks=2)
    world.job("b", state=State.SUCCEEDED)
    world.write("a", "1", 1)
    world.write("b", "2", 2)
    world.write("a", "4", 4, rank=1)
    world.write("a", "5", 5)
    world.events.append([(None, Event(T + 3, "job.warning", "b", message="3")), (None, Event(T + 6, "node.drained"))])
    assert (await world.read()).shown == ["a/0 1", "b/0 2", "a/1 4", "a/0 5"]
    shown = (await world.read(events=True)).shown
    assert shown == ["a/0 1", "b/0 2", "3", "a/1 4", "a/0 5", "node.drained:"]


async def test_by_time_and_from_the_end(world):
    world.job("old", state=State.SUCCEEDED)
    world.job("a", 1)
    for at in (1, 2, 3, 4, 5):
        world.write("a", f"{at}\n", at)
    world.write("old", "0\n", 0)
    between = await world.read(since=moment(1.5), until=moment(3.5))
    assert "".join(between.shown) == "a/0 2\na/0 3\n"
    last = await world.read(tail_lines=1)
    assert last.shown == ["old/0 0\n", "a/0 5\n"]
    first = [(m.job_id, m.output.job_log, m.output.offset) for m in last.messages if not m.output.data][:4]
    assert sorted(first) == [("a", False, 8), ("a", True, 0), ("old", False, 0), ("old", True, 0)]
    with pytest.raises(InvalidRequest, match="until"):
        await world.read(since=moment(2), until=moment(1))


async def test_jobs_that_ended_before_are_not_even_looked_at(world, monkeypatch):
    world.job("old", state=State.SUCCEEDED)
    world.write("old", "0", 0)

    def files_of(root, entry):
        pytest.fail(f"{entry.job_id} is looked at")

    monkeypatch.setattr(node_log_service, "files_of", files_of)
    assert (await world.read(since=moment(101))).shown == []


async def test_it_goes_on_by_job(world):
    entry = world.job("a")
    world.write("a", "0123456789", 1)
    world.job("b", 1)
    world.write("b", "xyz", 2)
    place: dict[str, Any] = {"job_id": "a", "offsets": {0: 7}}
    place["accepted_at"] = {"seconds": T}
    assert (await world.read(positions=[place])).shown == ["a/0 789", "b/0 xyz"]
    entry.job.accepted_at = T + 9  # another job of this id
    assert (await world.read(positions=[place])).shown == ["a/0 0123456789", "b/0 xyz"]
    gone = [place | {"job_id": "gone"}, {**place, "accepted_at": {"seconds": T + 9}, "offsets": {0: 99}}]
    assert (await world.read(positions=gone)).shown == ["b/0 xyz"]


async def test_jobs_come_and_go_while_it_follows(world):
    world.job("a")
    world.write("a", "old", 1)
    context = Context()
    request = log_pb2.ReadNodeLogsRequest(follow=True, tail_lines=0, events=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.service.ReadNodeLogs, request, context)
        await until(lambda: any(m.output.event_cursor for m in context.messages))
        world.write("a", "1", 2)
        await until(lambda: context.shown == ["a/0 1"])
        world.job("b", 1)
        world.write("b", "2", 3)
        await until(lambda: context.shown[1:] == ["b/0 2"])
        world.write("a", "3", 4)
        world.end("a")
        await until(lambda: context.shown[2:] == ["a/0 3"])
        world.events.append([(None, Event(time.time(), "node.drained", message="4"))])
        await until(lambda: context.shown[3:] == ["4"])
        world.write("b", "5", 5)
        await until(lambda: context.shown[4:] == ["b/0 5"])
        tasks.cancel_scope.cancel()


async def test_it_ends_when_its_time_has_come(world):
    world.job("a")
    context = Context()
    request = log_pb2.ReadNodeLogsRequest(follow=True)
    request.until.FromNanoseconds(time.time_ns() + SECOND // 5)
    with anyio.fail_after(60):
        await world.service.ReadNodeLogs(request, context)
    assert context.messages[-1].output.eof


async def test_too_many_files_leave_the_oldest_ended_jobs_out(world, monkeypatch):
    monkeypatch.setattr(node_log_service, "MAX_FILES", 6)
    for number in range(5):
        world.job(f"j{number}", number, state=State.RUNNING if number == 0 else State.SUCCEEDED)
        world.write(f"j{number}", str(number), number)
    context = await world.read()
    assert [line for line in context.shown if line.startswith("j")] == ["j0/0 0", "j3/0 3", "j4/0 4"]
    [note] = [m.output.data.decode() for m in context.messages if m.output.event_cursor]
    assert note.startswith("left out 2 ended jobs: j2 and those accepted before it: the daemon reads at most 6 files")


async def test_a_job_with_more_files_than_that_is_shown(world, monkeypatch):
    monkeypatch.setattr(node_log_service, "MAX_FILES", 2)
    world.job("big", ranks=4)
    world.write("big", "x", 1, rank=3)
    assert (await world.read()).shown == ["big/3 x"]


async def test_a_file_that_cannot_be_read_keeps_nobody_from_the_others(world):
    world.job("a", 1)
    world.job("b")
    world.write("b", "x", 1)
    segment_path(world.path("a"), 0, 5).symlink_to("/etc/hostname")
    context = await world.read()
    assert [line for line in context.shown if line.startswith("b/0")] == ["b/0 x"]
    told = [m.output.data.decode() for m in context.messages if m.output.event_cursor and m.output.data]
    assert told and told[0].startswith("left out job a: ")


# --- of one job -------------------------------------------------------------------------------------------------------


async def one(world: World, context: Context | None = None, **fields) -> list[Any]:
    context = context or Context()
    await world.service.ReadLogs(log_pb2.ReadLogsRequest(**fields), context)
    assert context.messages[-1].eof
    return context.messages[:-1]


async def test_events_stand_where_they_happened(world):
    world.job("a", ranks=2)
    for at in (1, 3, 5):
        world.write("a", str(at), at, rank=at % 2)
    world.events.append([(None, Event(T + at, "job.warning", "a", message=str(at))) for at in (2, 4, 6)])
    world.events.append([(None, Event(T - 9, "job.warning", "a", message="of a job before it"))])
    messages = await one(world, job_id="a", events=True)
    assert [m.data.decode().split()[-1] for m in messages if m.data] == ["1", "2", "3", "4", "5", "6"]
    assert not any(m.event_cursor for m in await one(world, job_id="a"))
    behind = next(m.event_cursor for m in messages if m.data.endswith(b" 4\n"))
    later = await one(world, job_id="a", events=True, event_cursor=behind, offsets={0: 0, 1: 3})
    assert [m.data.decode().split()[-1] for m in later if m.data] == ["6"]
    last = await one(world, job_id="a", events=True, tail_lines=1, since=moment(5.5))
    assert [m.data.decode().split()[-1] for m in last if m.data] == ["6"]


async def test_up_to_a_time(world):
    world.job("a")
    for at in (1, 2, 3):
        world.write("a", f"{at}\n", at)
    for end, expected in ((0.5, ""), (2.5, "1\n2\n"), (9, "1\n2\n3\n")):
        messages = await one(world, job_id="a", follow=True, until=moment(end))
        assert b"".join(m.data for m in messages).decode() == expected
    messages = await one(world, job_id="a", until=moment(2.5), tail_lines=1)
    assert b"".join(m.data for m in messages) == b"2\n"


async def test_a_job_that_is_removed_while_it_is_read_is_no_end_of_output(world):
    world.job("a")
    world.write("a", "x" * (1 << 20), 1)
    context = Context()
    context.free = anyio.Event()
    failures = []

    async def read() -> None:
        try:
            await one(world, context, job_id="a", follow=True)
        except JobNotFound as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.sleep(0.05)
        world.end("a")
        del world.registry.jobs["a"]
        world.path("a").unlink()
        context.free.set()
    assert failures
    assert not any(m.eof for m in context.messages)


async def test_where_a_tail_begins_is_reported_first(world):
    world.job("a", ranks=2)
    world.write("a", "1\n2\n", 1)
    messages = await one(world, job_id="a", tail_lines=1)
    assert [(m.rank, m.offset, m.data) for m in messages] == [(0, 2, b""), (1, 0, b""), (0, 2, b"2\n")]
