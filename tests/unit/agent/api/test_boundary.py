"""Errors, cancellation, streams and the end of the server, over a real unix socket with a fake registry behind it."""

import asyncio
import getpass
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import grpc
import pytest
import structlog
from google.protobuf.duration_pb2 import Duration
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from muster.agent import errors
from muster.agent.api import boundary, server
from muster.agent.api.access import Caller, Role
from muster.agent.api.audit import Audit
from muster.agent.api.identity import PeerProcess
from muster.agent.api.server import ServerContext
from muster.agent.api.services import event_service
from muster.agent.api.slots import Listeners
from muster.agent.config.access_settings import AccessTable, SocketTable, TlsTable
from muster.agent.config.hardening_settings import HardeningTable
from muster.agent.config.schema import ExecTable, LimitsTable, TelemetryTable
from muster.agent.events.event_store import Event
from muster.agent.jobs.cards.leases import Lease
from muster.agent.jobs.damaged.damaged_jobs import DamagedJobs
from muster.agent.jobs.entry import Entry
from muster.client import connect, facts, failure, retry_after, target
from muster.probes.cards.accelerator import Card
from muster.probes.cards.view import View
from muster.supervisors.model import lifecycle
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.spec import JobSpec, Violation
from muster.supervisors.model.states import State
from muster.supervisors.paths import JobPaths, Root
from muster.v1 import event_pb2, job_pb2, log_pb2, node_pb2
from tests.unit.ended_jobs import NoEnded
from tests.unit.waiting import LIMIT_S, until

SPEC = job_pb2.JobSpec(job_id="j", command=["true"])


def job_entry(job_id="j", accepted_at=1.0, state=State.RUNNING, **spec):
    job = lifecycle.Job(state=state, accepted_at=accepted_at, ranks=[Rank(0, 0, 0)])
    return Entry(job_id, JobSpec(job_id, ("true",), **spec), job, JobPaths(Path("/state/jobs") / job_id))


class FakeLeasing:
    """No cards."""

    def all(self):
        return [Lease(Card(0, "slot"), "j")]

    def held_by(self, job_id):
        return None

    async def wait_freed(self, job_id):
        return None


def server_context(registry: Any, events: Any, config: Any, root: Root) -> ServerContext:
    """A node without cards, of which nothing is wrong."""
    driver: Any = SimpleNamespace(view=View())
    health: Any = SimpleNamespace(conditions=[], drain=None, trouble=[], pending=["mounts"])
    silent: Any = SimpleNamespace(trouble=[], work=["compresses a log"])
    hangs: Any = SimpleNamespace(trouble="", found=lambda entry: None, slow=lambda entry: None)
    return ServerContext(
        registry=registry,
        events=events,
        driver=driver,
        health=health,
        resets=silent,
        telemetry=silent,
        metrics=silent,
        notifier=silent,
        stacks=silent,
        audit=Audit(root.audit_log),
        hangs=hangs,
        keeping=silent,
        slots=Listeners(lambda: config),
        tls=None,
        config=lambda: config,
        root=root,
        started_at=1000.0,
        stopping=anyio.Event(),
    )


class FakeRegistry:
    """`answer`, when set, is what every call does."""

    nursery_pid = 7

    def __init__(self):
        self.answer = None
        self.jobs = {"j": job_entry()}
        self.asked = []
        self.waited_for = anyio.Event()
        self.cancelled = anyio.Event()
        self.over = anyio.Event()
        self.leasing = FakeLeasing()
        self.ended = NoEnded()
        reserve: Any = None  # climbs nothing, since no damaged job is told to it
        self.damaged = DamagedJobs(Root.under(Path("/state")), reserve, lambda: None)

    def warnings(self):
        return ["a warning"]

    async def accepted(self, job_id: str) -> None:
        """No start is under way."""

    async def get(self, job_id):
        if job_id not in self.jobs:
            raise errors.JobNotFound(job_id)
        return self.jobs[job_id]

    def known(self, job_id):
        return self.jobs.get(job_id)

    async def wait_explained(self, entry):
        pass

    def live(self):
        return sorted(self.jobs.values(), key=lambda e: (e.job.accepted_at, e.job_id), reverse=True)

    async def start(self, spec, by, folder=None, asked_by="", new_name=False):
        self.asked.append((spec, by))
        if self.answer is not None:
            await self.answer()
        return await self.get("j"), False

    async def stop(self, job_id, steps, by, reason, hung=None):
        self.asked.append((job_id, steps, by, reason))
        if self.answer is not None:
            await self.answer()
        return await self.get(job_id)

    async def wait_change(self, entry):
        await anyio.sleep_forever()

    async def wait_ended(self, job_id):
        self.waited_for.set()
        try:
            await self.over.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self.jobs[job_id]

    def end(self):
        """The job has ended."""
        entry = self.jobs["j"]
        entry.job.state = State.STOPPED
        entry.records += 1
        entry.wake()
        self.over.set()

    async def delete(self, job_id, keep_logs, force=False):
        raise errors.JobNotEnded(job_id)


class FakeEvents:
    """Cursors are numbers of events."""

    def __init__(self):
        self.events = []
        self.grown = anyio.Event()

    def add(self, kind, job_id="j"):
        self.events.append(Event(1.0, kind, job_id))
        self.grown.set()
        self.grown = anyio.Event()

    def newest_cursor(self):
        return str(len(self.events))

    def oldest_cursor(self):
        return "0"

    async def read(self, cursor, limit):
        first = int(cursor or 0)
        if first < 0:
            raise errors.CursorTooOld("0")
        return [(event, str(first + i + 1)) for i, event in enumerate(self.events[first : first + limit])]

    async def wait_beyond(self, cursor):
        while len(self.events) <= int(cursor):
            await self.grown.wait()


@pytest.fixture
async def world():
    # A short folder of its own: a socket's address has 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="mb"))
    root = Root.under(folder)
    root.run.mkdir()
    root.log.mkdir()
    config: Any = SimpleNamespace(
        limits=LimitsTable(max_followers=2, max_watchers=2),
        exec=ExecTable(),
        socket=SocketTable(),
        tls=TlsTable(),
        jobs=SimpleNamespace(grace_steps=(1.0,)),
        hardening=HardeningTable(),
        access=AccessTable(),
        telemetry=TelemetryTable(),
    )
    registry: Any = FakeRegistry()
    events: Any = FakeEvents()
    context = server_context(registry, events, config, root)
    task = asyncio.create_task(_serve(context, ready := asyncio.Event()))
    await ready.wait()
    async with connect(str(root.socket), "the tests") as client:
        yield SimpleNamespace(
            context=context, client=client, registry=context.registry, events=context.events, config=config, task=task
        )
    context.stopping.set()
    await asyncio.wait_for(task, LIMIT_S)
    shutil.rmtree(folder)


async def _serve(context, ready):
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.serve, context)
        ready.set()


async def failed(call):
    """The error of a call that fails, and fails soon."""
    with pytest.raises(aio.AioRpcError) as caught:
        await asyncio.wait_for(_finished(call), LIMIT_S)
    return caught.value


async def _finished(call):
    if hasattr(call, "__aiter__"):
        async for _ in call:
            pass
    else:
        await call


def start(world, **kwargs):
    return world.client.jobs.Start(job_pb2.StartRequest(spec=SPEC), **kwargs)


def raising(error):
    async def answer():
        raise error

    return answer


@pytest.mark.parametrize(
    ("error", "code", "reason", "retry"),
    [
        (errors.JobNotFound("x"), "NOT_FOUND", "JOB_NOT_FOUND", None),
        (errors.JobIdConflict("x"), "ALREADY_EXISTS", "JOB_ID_CONFLICT", None),
        (errors.CardBusy("card 3 is held by job a"), "FAILED_PRECONDITION", "CARD_BUSY", None),
        (errors.NoSuchCard("card 9"), "FAILED_PRECONDITION", "NO_SUCH_CARD", None),
        (errors.JobNotEnded("x"), "FAILED_PRECONDITION", "JOB_NOT_ENDED", None),
        (errors.TooManyJobs(64), "RESOURCE_EXHAUSTED", "TOO_MANY_JOBS", 5.0),
        (errors.TooMany("stacks", 4), "RESOURCE_EXHAUSTED", "TOO_MANY_STREAMS", 5.0),
        (errors.NoSlot("watchers", 4, "a.sock"), "RESOURCE_EXHAUSTED", "TOO_MANY_STREAMS", 1.0),
        (errors.NoSlot("commands", 4, "a.sock", reason="TOO_MANY"), "RESOURCE_EXHAUSTED", "TOO_MANY", 1.0),
        (errors.NoRoom("/state is full"), "RESOURCE_EXHAUSTED", "NO_ROOM", 30.0),
        (errors.ShuttingDown(), "UNAVAILABLE", "STOPPING", 1.0),
        (errors.SupervisorUnreachable("job x"), "UNAVAILABLE", "SUPERVISOR_UNREACHABLE", 1.0),
        (errors.JournalUnreadable("x", "line 3"), "DATA_LOSS", "JOURNAL_DAMAGED", None),
        (errors.CursorTooOld("5"), "OUT_OF_RANGE", "CURSOR_TOO_OLD", None),
        (errors.OffsetOutOfRange(0, 9, 5), "OUT_OF_RANGE", "OFFSET_OUT_OF_RANGE", None),
    ],
)
async def test_a_domain_error_has_its_code_and_details(world, error, code, reason, retry):
    world.registry.answer = raising(error)
    seen = await failed(start(world))
    assert seen.code() is grpc.StatusCode[code]
    assert failure(seen) == (reason, str(error), [])
    assert retry_after(seen) == retry
    assert seen.details() == str(error)


async def test_violations_name_each_field(world):
    seen = await failed(world.client.jobs.Start(job_pb2.StartRequest(spec=job_pb2.JobSpec(job_id="/", ranks=9999))))
    assert seen.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [field for field, _ in failure(seen).violations] == ["job_id", "command", "ranks"]
    assert failure(await failed(world.client.jobs.Start(job_pb2.StartRequest()))).violations[0][0] == "spec"
    assert world.registry.asked == []


@pytest.mark.parametrize("text", ["x" * 600, "\u4e2d" * 300, "\udcff\n\x00", ""])
async def test_an_error_of_any_size_arrives(world, text):
    """A status over 8 KiB is dropped by the client's library: the caller would see another error."""
    world.registry.answer = raising(errors.InvalidRequest([Violation(f"env[{i}{text}]", text) for i in range(5000)]))
    seen = await failed(start(world))
    assert seen.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failure(seen).reason == "INVALID_REQUEST"
    assert failure(seen).violations[-1][1].startswith("and ")


async def test_a_defect_is_scrubbed_and_logged_with_its_number(world):
    world.registry.answer = raising(ValueError("password=hunter2"))
    with structlog.testing.capture_logs() as logged:
        seen = await failed(start(world))
    assert seen.code() is grpc.StatusCode.INTERNAL
    assert "hunter2" not in seen.details() + repr(seen.trailing_metadata())
    (entry,) = [entry for entry in logged if "incident" in entry]
    assert entry["incident"] in seen.details()
    assert entry["method"] == "/muster.v1.JobService/Start"
    assert isinstance(entry["exc_info"], ValueError)


async def test_an_error_carries_facts_for_programs(world):
    world.registry.answer = raising(errors.OffsetOutOfRange(3, 9, 5))
    assert facts(await failed(start(world))) == {"rank": "3", "begin": "0", "end": "5"}


async def test_an_own_cancellation_is_answered(world):
    """Without a boundary the client would wait for ever."""
    world.registry.answer = raising(asyncio.CancelledError())
    seen = await failed(start(world))
    assert seen.code() is grpc.StatusCode.INTERNAL
    assert failure(seen).reason == "DEFECT"


@pytest.mark.parametrize(
    ("leaves", "reason"),
    [
        ([errors.NoRoom("full")], "NO_ROOM"),
        ([errors.NoRoom("full"), asyncio.CancelledError()], "NO_ROOM"),
        ([BaseExceptionGroup("inner", [errors.CardBusy("card 1")])], "CARD_BUSY"),
        ([errors.NoRoom("full"), ValueError("other")], "DEFECT"),
        ([asyncio.CancelledError()], "DEFECT"),
    ],
)
async def test_groups_are_looked_into(world, leaves, reason):
    world.registry.answer = raising(BaseExceptionGroup("unhandled errors in a TaskGroup", leaves))
    assert failure(await failed(start(world))).reason == reason


async def test_a_client_that_left_in_a_task_group_is_in_the_audit_log(tmp_path):
    """As of an Exec stream, whose answers a task of the handler writes."""
    path = tmp_path / "audit.log"
    config: Any = SimpleNamespace(limits=LimitsTable(), exec=ExecTable())
    slots = Listeners(lambda: config).add("operators", "socket")
    registry: Any = FakeRegistry()
    audit = Audit(path)
    guard = boundary.Boundary(lambda _: Caller(Role.OPERATOR, "socket"), audit, slots, registry)
    behaviour = raising(ExceptionGroup("", [aio.InternalError()]))
    guarded = guard.guard(lambda request, context: behaviour(), "/muster.v1.ExecService/Exec")
    with pytest.raises(asyncio.CancelledError):
        await guarded(iter(()), SimpleNamespace(invocation_metadata=tuple, add_done_callback=lambda _: None))
    audit.settle(60)
    assert [json.loads(line)["answer"] for line in path.read_text().splitlines()] == ["CANCELLED"]


async def test_a_task_group_in_a_handler(world):
    async def answer():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            raise errors.CardBusy("card 1 is held")

    world.registry.answer = answer
    assert failure(await failed(start(world))).reason == "CARD_BUSY"


async def test_a_clients_cancellation_reaches_the_handler_and_is_not_logged(world):
    with structlog.testing.capture_logs() as logged:
        call = world.client.jobs.Wait(job_pb2.WaitRequest(job_id="j"))
        await world.registry.waited_for.wait()
        call.cancel()
        await asyncio.wait_for(world.registry.cancelled.wait(), LIMIT_S)
    assert not [entry for entry in logged if "incident" in entry]


async def test_a_clients_deadline(world):
    for seconds in (0.2, 5.0, 60.0):  # the longer ones for a machine so busy that the call has not come by then
        seen = await failed(world.client.jobs.Wait(job_pb2.WaitRequest(job_id="j"), timeout=seconds))
        assert seen.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if world.registry.waited_for.is_set():
            break
    await asyncio.wait_for(world.registry.cancelled.wait(), LIMIT_S)


async def test_a_client_that_goes_away_in_a_stream_is_no_defect(world):
    path = world.context.root.rank_log("j", 0, 0)
    path.write_bytes(b"x" * (64 << 20))
    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            call = world.client.logs.ReadLogs(log_pb2.ReadLogsRequest(job_id="j", follow=True))
            await call.read()
            call.cancel()
            await asyncio.sleep(0.1)
    assert not [entry for entry in logged if "incident" in entry]


async def test_output_arrives_whole(world):
    data = os.urandom(5 << 20)
    world.context.root.rank_log("j", 0, 0).write_bytes(data)
    messages = [m async for m in world.client.logs.ReadLogs(log_pb2.ReadLogsRequest(job_id="j"))]
    assert b"".join(message.data for message in messages) == data
    assert messages[-1].eof


async def test_streams_are_limited_and_never_keep_a_stop_out(world):
    watches = [world.client.events.Watch(event_pb2.WatchRequest()) for _ in range(2)]
    for watch in watches:
        await watch.read()
    seen = await failed(world.client.events.Watch(event_pb2.WatchRequest()))
    assert (seen.code(), failure(seen).reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_STREAMS")
    zero = job_pb2.StopRequest(job_id="j", timeout=Duration())
    assert not (await asyncio.wait_for(world.client.jobs.Stop(zero), LIMIT_S)).ended
    watches[0].cancel()

    async def another() -> Any:
        """The first message, once there is room for another stream."""
        while True:
            try:
                return await world.client.events.Watch(event_pb2.WatchRequest()).read()
            except grpc.aio.AioRpcError as error:
                assert failure(error).reason == "TOO_MANY_STREAMS"

    assert (await asyncio.wait_for(another(), LIMIT_S)).cursor == "0"


# --- jobs ------------------------------------------------------------------------------------------------------------


async def test_the_caller_is_passed_on(world):
    await start(world)
    await start(world, metadata=(("muster-caller", "x" * 500),))
    async with connect(f"unix://{world.context.root.socket}") as client:
        await client.jobs.Start(job_pb2.StartRequest(spec=SPEC))
    first, second, third = (by for _, by in world.registry.asked)
    me = PeerProcess(os.geteuid(), os.getegid(), os.getpid(), getpass.getuser())
    assert (first, third) == (f"{me}, calling itself 'the tests'", str(me))
    assert second == f"{me}, calling itself {'x' * 128!r}"


async def test_stop_answers_at_its_timeout_and_when_the_job_has_ended(world):
    def stop(**fields):
        return asyncio.wait_for(world.client.jobs.Stop(job_pb2.StopRequest(job_id="j", **fields)), LIMIT_S)

    assert not (await stop(timeout=Duration(nanos=50_000_000), grace=Duration(), reason="why")).ended
    [(job_id, steps, by, why)] = world.registry.asked
    assert (job_id, steps, why) == ("j", (0.0,), "why") and by.endswith("calling itself 'the tests'")
    world.registry.end()
    answer = await stop()
    assert (answer.ended, answer.job.state) == (True, job_pb2.JOB_STATE_STOPPED)
    assert world.registry.asked[-1][1] is None
    for bad in ({"grace": Duration(seconds=-1)}, {"timeout": Duration(seconds=86401)}, {"reason": "x" * 2000}):
        (field,) = bad
        seen = await failed(world.client.jobs.Stop(job_pb2.StopRequest(job_id="j", **bad)))
        assert [name for name, _ in failure(seen).violations] == [field]


async def test_wait(world):
    short = job_pb2.WaitRequest(job_id="j", timeout=Duration(nanos=50_000_000))
    assert not (await world.client.jobs.Wait(short)).ended
    world.registry.end()
    assert (await world.client.jobs.Wait(job_pb2.WaitRequest(job_id="j"))).ended


async def test_jobs_that_may_yet_be_read_are_listed_and_refused(world):
    world.registry.jobs["j"].give_up("/state/jobs/j/journal: line 2: the checksum does not fit")
    world.registry.jobs["j"].unread = True
    listed = await world.client.jobs.List(job_pb2.ListRequest())
    assert "line 2" in listed.jobs[0].warnings[0]
    for call in (
        world.client.jobs.Get(job_pb2.GetRequest(job_id="j")),
        world.client.jobs.Wait(job_pb2.WaitRequest(job_id="j")),
        world.client.logs.ReadLogs(log_pb2.ReadLogsRequest(job_id="j")),
    ):
        assert (await failed(call)).code() is grpc.StatusCode.DATA_LOSS


async def test_pages_are_whole_while_jobs_come_and_go(world):
    world.registry.jobs = {f"j{i:03}": job_entry(f"j{i:03}", accepted_at=float(i // 2)) for i in range(250)}
    seen, token = [], ""
    while True:
        page = await world.client.jobs.List(job_pb2.ListRequest(page_size=60, page_token=token))
        seen += [job.job_id for job in page.jobs]
        world.registry.jobs[f"new{len(seen)}"] = job_entry(f"new{len(seen)}", accepted_at=1e6 + len(seen))
        world.registry.jobs.pop(seen[-1])
        token = page.next_page_token
        if not token:
            break
    assert seen == [f"j{i:03}" for i in reversed(range(250))]


async def test_page_sizes(world):
    world.registry.jobs = {str(i): job_entry(str(i), accepted_at=float(i)) for i in range(1200)}
    assert len((await world.client.jobs.List(job_pb2.ListRequest())).jobs) == 100
    assert len((await world.client.jobs.List(job_pb2.ListRequest(page_size=100_000))).jobs) == 1000
    ranks = [Rank(i, i, i) for i in range(1024)]
    for entry in world.registry.jobs.values():
        entry.job.ranks = ranks
        entry.records += 1
    page = await world.client.jobs.List(job_pb2.ListRequest(page_size=1000))
    assert 1 <= len(page.jobs) < 30
    assert page.ByteSize() < 4 << 20
    assert page.next_page_token


async def test_lists_are_filtered_and_tokens_belong_to_their_filter(world):
    world.registry.jobs = {
        str(i): job_entry(str(i), float(i), State.RUNNING if i % 2 else State.FAILED, labels={"n": str(i % 3)})
        for i in range(12)
    }
    failed_jobs = job_pb2.ListRequest(states=[job_pb2.JOB_STATE_FAILED], labels={"n": "0"}, page_size=1)
    page = await world.client.jobs.List(failed_jobs)
    assert [job.job_id for job in page.jobs] == ["6"]
    failed_jobs.page_token = page.next_page_token
    page = await world.client.jobs.List(failed_jobs)
    assert ([job.job_id for job in page.jobs], page.next_page_token) == (["0"], "")
    other = job_pb2.ListRequest(page_token=failed_jobs.page_token)
    for bad in (other, job_pb2.ListRequest(page_token="nonsense"), job_pb2.ListRequest(page_token="WzEsMl0=")):
        seen = await failed(world.client.jobs.List(bad))
        assert seen.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert failure(seen).violations[0][0] == "page_token"
    unknown = job_pb2.ListRequest.FromString(b"\x18\x63")  # a state of a later version
    assert failure(await failed(world.client.jobs.List(unknown))).violations[0][0] == "states"


async def test_delete_and_node(world):
    assert failure(await failed(world.client.jobs.Delete(job_pb2.DeleteRequest(job_id="j")))).reason == "JOB_NOT_ENDED"
    node = (await world.client.node.GetNode(node_pb2.GetNodeRequest())).node
    assert (node.daemon_pid, node.nursery_pid, node.active_jobs) == (os.getpid(), 7, 1)
    assert (node.api_version, node.cards[0].job_id, list(node.warnings)) == ("muster.v1", "j", ["a warning"])
    assert (node.daemon_started_at.seconds, list(node.pending_checks)) == (1000, ["mounts"])
    assert list(node.log_work) == ["compresses a log"]


# --- events ----------------------------------------------------------------------------------------------------------


async def test_a_watch_begins_now_follows_and_resumes(world):
    world.events.add("job.accepted")
    watch = world.client.events.Watch(event_pb2.WatchRequest())
    first = await watch.read()
    assert (first.HasField("event"), first.cursor) == (False, "1")
    world.events.add("job.running", "other")
    world.events.add("job.ended")
    assert [(await watch.read()).event.kind for _ in range(2)] == ["job.running", "job.ended"]
    again = [m async for m in world.client.events.Watch(event_pb2.WatchRequest(cursor="1", job_id="j", no_follow=True))]
    assert [(m.event.kind, m.cursor) for m in again] == [("job.ended", "3"), ("", "3")]
    whole = [m async for m in world.client.events.Watch(event_pb2.WatchRequest(from_oldest=True, no_follow=True))]
    assert [m.cursor for m in whole] == ["1", "2", "3", "3"]
    seen = await failed(world.client.events.Watch(event_pb2.WatchRequest(cursor="-1")))
    assert (seen.code(), failure(seen).reason) == (grpc.StatusCode.OUT_OF_RANGE, "CURSOR_TOO_OLD")


async def test_bookmarks_come_in_silence(world):
    written: Any = []
    service: Any = event_service.EventService(world.context, bookmark_s=0.05)

    async def write(message):
        written.append(message)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.Watch, event_pb2.WatchRequest(job_id="none"), SimpleNamespace(write=write))
        await until(lambda: len(written) >= 3)
        tasks.cancel_scope.cancel()
    assert not any(message.HasField("event") for message in written)


# --- the server ------------------------------------------------------------------------------------------------------


async def test_the_sockets_mode(world):
    assert stat.S_IMODE(world.context.root.socket.stat().st_mode) == 0o660


async def test_a_socket_that_cannot_be_bound_says_why(world):
    missing = server_context(world.registry, world.events, world.config, Root.under(Path("/nonexistent/x")))
    with pytest.raises(errors.StartupError, match=r"/nonexistent/x/run/identity\.sock"):
        await server.serve(missing)


async def test_an_unknown_group_is_refused(world, tmp_path):
    config: Any = SimpleNamespace(limits=world.config.limits, socket=SimpleNamespace(mode=0o660, group="no-such-group"))
    root = Root(run=world.context.root.log, state=tmp_path, log=tmp_path)
    context = server_context(world.registry, world.events, config, root)
    with pytest.raises(errors.StartupError, match="no-such-group"):
        await server.serve(context)


async def test_health_and_reflection(world):
    health: Any = health_pb2_grpc.HealthStub(world.client.channel)
    for name in ("", "muster.v1.JobService", "muster.v1.LogService"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    seen = await failed(health.Check(health_pb2.HealthCheckRequest(service="nothing")))
    assert seen.code() is grpc.StatusCode.NOT_FOUND
    reflection: Any = reflection_pb2_grpc.ServerReflectionStub(world.client.channel)
    call = reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="*")]))
    answer = await call.read()
    names = {service.name for service in answer.list_services_response.service}
    assert {"muster.v1.JobService", "muster.v1.EventService", "grpc.health.v1.Health"} <= names
    call.cancel()


async def test_the_end_of_the_server_ends_every_call_with_a_status(world):
    wait = world.client.jobs.Wait(job_pb2.WaitRequest(job_id="j"))
    world.context.root.rank_log("j", 0, 0).write_bytes(b"x\n")
    follow = world.client.logs.ReadLogs(log_pb2.ReadLogsRequest(job_id="j", follow=True))
    await follow.read()  # gRPC may give a call its turn after later ones: none is left that has not begun
    watch = aiter(world.client.events.Watch(event_pb2.WatchRequest()))
    await anext(watch)
    health: Any = health_pb2_grpc.HealthStub(world.client.channel)
    status = health.Watch(health_pb2.HealthCheckRequest())
    assert (await status.read()).status == health_pb2.HealthCheckResponse.SERVING
    await world.registry.waited_for.wait()
    world.context.stopping.set()
    assert (await status.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    for call in (follow, watch, wait):
        seen = await failed(call)
        assert (seen.code(), failure(seen).reason) == (grpc.StatusCode.UNAVAILABLE, "STOPPING")
    await asyncio.wait_for(world.task, LIMIT_S)
    assert not world.context.root.socket.exists()
    seen = await failed(start(world))
    assert seen.code() is grpc.StatusCode.UNAVAILABLE
    assert failure(seen).reason == "UNAVAILABLE"


async def test_a_call_under_way_finishes_when_the_server_ends(world):
    begun = anyio.Event()

    async def answer():
        begun.set()
        await asyncio.sleep(0.3)

    world.registry.answer = answer
    call = asyncio.ensure_future(start(world))
    await begun.wait()
    world.context.stopping.set()
    assert (await asyncio.wait_for(call, LIMIT_S)).job.job_id == "j"


async def test_a_client_that_does_not_read_does_not_hold_up_the_end(world):
    world.context.root.rank_log("j", 0, 0).write_bytes(b"x" * (64 << 20))
    call = world.client.logs.ReadLogs(log_pb2.ReadLogsRequest(job_id="j", follow=True))
    await call.read()
    await asyncio.sleep(0.3)
    world.context.stopping.set()
    await asyncio.wait_for(world.task, LIMIT_S)


def test_only_the_boundary_knows_grpcs_codes():
    for name in dir(errors):
        error = getattr(errors, name)
        if isinstance(error, type) and issubclass(error, errors.ApiError):
            assert error.code in grpc.StatusCode.__members__


def test_addresses():
    assert target("/run/muster/muster.sock") == "unix:/run/muster/muster.sock"
    assert target("unix:///run/muster.sock") == "unix:///run/muster.sock"
    assert target("node7:7777") == "node7:7777"
    assert target("run/muster.sock") == "unix:run/muster.sock"
    assert target("dns:///node7:7777") == "dns:///node7:7777"
    assert boundary.DOMAIN == "muster"
