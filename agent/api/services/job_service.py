"""JobService: start, look at, stop, wait for, forget jobs."""

import base64
import binascii
import hashlib
import heapq
import itertools
import json
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

from muster.agent import protobuf_times, threads
from muster.agent.api import access, own_jobs
from muster.agent.api.job_messages import JobMessages
from muster.agent.api.services import ServerContext
from muster.agent.errors import InvalidRequest, JobIdConflict, JournalUnreadable, SupervisorUnreachable
from muster.agent.hang import job_stacks
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.entry import Entry
from muster.agent.messages import convert
from muster.agent.text import plain
from muster.supervisors.model.spec import MAX_GRACE_S, Violation
from muster.supervisors.model.staging_progress import STEPS, StagingProgress
from muster.supervisors.model.states import State
from muster.supervisors.system.ladder import KILL_WAIT_S
from muster.v1 import job_pb2, job_pb2_grpc

if TYPE_CHECKING:
    from grpc import aio

    from muster.agent.api.signalling import Signalling

    _Context = aio.ServicerContext[Any, Any]

DEFAULT_PAGE = 100
MAX_PAGE = 1000
#: A page ends here even if it has fewer jobs than asked for: gRPC clients take messages of 4 MiB.
MAX_PAGE_BYTES = 1 << 20
#: Ranks of a page that are put into it in one turn of the event loop: some 2 ms where none of them is kept.
TURN_RANKS = 200
#: Jobs of a page that are read from disk in one thread hop.
JOBS_AT_ONCE = 25
#: Seconds that a stop may take, over its grace, until the answer says that it has not ended: as long as the supervisor
#: waits for processes that cannot be killed, and until it has then recorded the end. And seconds until a stop must be
#: in the journal.
STOP_MARGIN_S = KILL_WAIT_S + 5.0
RECORD_S = 30.0
#: Seconds more for a job whose processes must be found first; and that the record of an end is waited for, once nothing
#: of the job lives.
LOOK_MARGIN_S, RECORDED_S = 4.0, 3.0
UNRECORDED = "no process of the job is left; muster records its end as soon as its journal takes a record"
_MAX_TIMEOUT_S = 24 * 3600.0
_MAX_REASON = 1024

_Key = tuple[float, str]


class JobService(job_pb2_grpc.JobServiceServicer):
    """Turns requests into calls of the registry, and jobs into messages."""

    def __init__(self, context: ServerContext) -> None:
        self._server = context
        self._messages = JobMessages(context.root)
        self._signalling: Signalling | None = None
        self._reporting = anyio.Lock()  # a whole report takes a tenth of a second of a core, or more

    async def Start(self, request: job_pb2.StartRequest, context: "_Context") -> job_pb2.StartResponse:
        """See job.proto. Raises InvalidRequest, NotTheirs and what Registry.start raises."""
        if not request.HasField("spec"):
            raise InvalidRequest([Violation("spec", "is not set: give the spec of a job")])
        asked, config = convert.spec_from(request.spec), self._server.config()
        spec = own_jobs.as_themselves(access.reach(), asked, config.hardening)
        theirs = "" if access.reach().is_everything else spec.user
        folder = request.workdir_identity
        of_caller = (folder.device, folder.inode) if request.HasField("workdir_identity") else None
        try:
            entry, existed = await self._server.registry.start(
                spec, access.named(context), of_caller, theirs, new_name=not request.spec.job_id
            )
        except (JobIdConflict, JournalUnreadable):
            # What differs from another user's job tells what that has.
            await own_jobs.check_job(access.reach(), "", spec.job_id, self._server.registry)
            raise
        return job_pb2.StartResponse(job=self._message(entry), already_existed=existed)

    async def Get(self, request: job_pb2.GetRequest, context: "_Context") -> job_pb2.GetResponse:
        """See job.proto. Raises JobNotFound, JournalUnreadable."""
        entry = await self._server.registry.get(request.job_id)
        if entry.damaged and entry.unread and not self._server.registry.damaged.living(entry.job_id):
            raise JournalUnreadable(request.job_id, entry.damaged)
        message = self._message(entry)
        if message.step in STEPS:
            path = self._server.root.job(entry.job_id).staging_progress
            if (progress := await threads.run(StagingProgress.read, path)) is not None:
                message.staging.CopyFrom(convert.staging_to(progress))
        return job_pb2.GetResponse(job=message)

    async def List(self, request: job_pb2.ListRequest, context: "_Context") -> job_pb2.ListResponse:
        """See job.proto. Raises InvalidRequest."""
        known = set(job_pb2.JobState.values()) - {job_pb2.JOB_STATE_UNSPECIFIED}
        bad = [Violation("states", f"{state}: is not a state") for state in request.states if state not in known]
        if bad:
            raise InvalidRequest(bad)
        names = {job_pb2.JobState.Name(state).removeprefix("JOB_STATE_") for state in request.states}
        behind = last = _read_token(request) if request.page_token else (math.inf, "")
        response = job_pb2.ListResponse()
        most = min(request.page_size or DEFAULT_PAGE, MAX_PAGE)
        # A page begins behind the last job of the page before, not at a number: jobs that come or go between two
        # pages neither repeat nor hide another.
        living = self._server.registry.damaged.living
        found = (
            job
            for job in await self._jobs(names)
            if job.key < behind and (not names or job.state in names or living(job.job_id))
        )
        size = 0
        while some := list(itertools.islice(found, min(JOBS_AT_ONCE, most - len(response.jobs) + 1))):
            async for key, message in self._messages_of(some, dict(request.labels)):
                if len(response.jobs) == most or size >= MAX_PAGE_BYTES:
                    response.next_page_token = _token(request, last)
                    return response
                response.jobs.append(message)
                size += message.ByteSize()
                last = key
        return response

    async def _jobs(self, states: set[str]) -> Iterable[Entry | Ended]:
        """Those that may be in one of these states (none: all) and that the caller may reach, newest first."""
        registry, reach = self._server.registry, access.reach()
        live: list[Entry | Ended] = [job for job in registry.live() if reach.covers(job.spec.user)]
        if states and not any(State(state).final for state in states):
            damaged = (job for job in registry.damaged.entries() if reach.covers(job.spec.user))
            return sorted([*live, *damaged], key=lambda job: job.key, reverse=True)
        await registry.ended.indexed.wait()
        known = {job.job_id for job in live}
        ended = (row for row in registry.ended.rows() if row.job_id not in known and reach.covers(row.user))
        return heapq.merge(live, ended, key=lambda job: job.key, reverse=True)

    async def _messages_of(
        self, jobs: Sequence[Entry | Ended], labels: Mapping[str, str]
    ) -> AsyncIterator[tuple[_Key, job_pb2.Job]]:
        """Of the jobs with these labels, each with its key. Those that are not in memory are read from disk, at once,
        and are not kept."""
        registry = self._server.registry
        entries = {job.job_id: job if isinstance(job, Entry) else registry.ended.find(job.job_id) for job in jobs}
        wanted = [job_id for job_id, entry in entries.items() if entry is None]
        read = await threads.run(self._messages.read, wanted, labels) if wanted else {}
        ranks = 0
        for job in jobs:
            if (entry := entries[job.job_id]) is not None:
                if all(entry.spec.labels.get(key) == value for key, value in labels.items()):
                    yield job.key, self._message(entry)
            elif (made := read.get(job.job_id)) is not None and registry.ended.row(job.job_id) is job:
                yield job.key, self._present(made.message, made.entry)
            else:
                continue
            # A page may hold thousands of ranks, so other calls come in between; but not behind each job: a turn of the
            # loop may be long.
            ranks += 1 + (len(entry.job.ranks) if entry is not None else 0)
            if ranks >= TURN_RANKS:
                ranks = 0
                await checkpoint()

    async def Stop(self, request: job_pb2.StopRequest, context: "_Context") -> job_pb2.StopResponse:
        """See job.proto. Raises InvalidRequest, JobNotFound, SupervisorUnreachable, and JournalUnreadable of a damaged
        job of which nothing lives."""
        steps: tuple[float, ...] | None = None
        if request.HasField("grace"):
            steps = (protobuf_times.bounded(request.grace, "grace", MAX_GRACE_S),)
        timeout = None
        if request.HasField("timeout"):
            timeout = protobuf_times.bounded(request.timeout, "timeout", _MAX_TIMEOUT_S)
        if len(request.reason) > _MAX_REASON:
            raise InvalidRequest(
                [Violation("reason", f"has {len(request.reason)} characters: at most {_MAX_REASON} are allowed")]
            )
        began = anyio.current_time()
        registry = self._server.registry
        by = access.named(context)
        await registry.accepted(request.job_id)
        entry = await registry.get(request.job_id)
        if not entry.damaged:
            # The order itself is not subject to the caller's timeout: one of 0 means "stop it and do not wait".
            hang = self._server.hangs.found(entry)
            hung = (hang.since, hang.reason) if hang is not None and hang.is_proven else None
            with anyio.move_on_after(RECORD_S) as recording:
                entry = await registry.stop(request.job_id, steps, by, request.reason, hung)
            if recording.cancelled_caught:
                text = f"job {request.job_id}: its supervisor did not accept the stop within {RECORD_S:g} s"
                raise SupervisorUnreachable(f"{text}: stop the job again")
        if timeout is None:
            default = self._server.config().jobs.grace_steps
            under_way = entry.job.stop.steps if entry.job.stop is not None else ()
            timeout = sum(steps or under_way or entry.spec.grace_steps or default) + STOP_MARGIN_S
        deadline = began + timeout
        remarks: list[str] = []
        if not entry.damaged:
            entry = await self._stopped(entry, deadline)
            if entry.damaged:  # since then, and maybe ended by the order that was given already
                remarks = [f"the outcome of its ranks is unknown: {entry.damaged}"]
        if entry.damaged:
            try:
                with anyio.CancelScope(deadline=deadline + LOOK_MARGIN_S):
                    remarks = await registry.stop_damaged(entry, steps, by, request.reason)
            except JournalUnreadable:
                if not remarks:
                    raise
            gone = not registry.damaged.living(entry.job_id)
            return job_pb2.StopResponse(job=self._message(entry), ended=gone, gone=gone, remarks=map(plain, remarks))
        if entry.job.state.final:
            with anyio.CancelScope(deadline=deadline):
                await registry.leasing.wait_freed(entry.job_id)
        ended = entry.job.state.final
        if entry.gone and not ended:
            remarks = [UNRECORDED, *(entry.notes or {}).values()]
        return job_pb2.StopResponse(
            job=self._message(entry), ended=ended, gone=ended or entry.gone, remarks=map(plain, remarks)
        )

    async def _stopped(self, entry: Entry, deadline: float) -> Entry:
        """The entry, once its job has ended, or nothing of it lives and nobody can record that."""
        with anyio.CancelScope(deadline=deadline):
            while not (entry.job.state.final or entry.gone):
                await entry.changed.next()
            # A supervisor that just comes back, say, is given the time to tell how it ended.
            # A supervisor that runs and reports that it cannot write is not waited for.
            with anyio.move_on_after(0 if entry.owed else RECORDED_S):
                entry = await self._server.registry.wait_ended(entry.job_id)
        return entry

    async def Signal(self, request: job_pb2.SignalRequest, context: "_Context") -> job_pb2.SignalResponse:
        """See job.proto. Raises InvalidRequest, JobNotFound, JournalUnreadable, RankNotRunning."""
        from muster.agent.api.signalling import Signalling  # only now: the daemon starts sooner

        entry = await self._server.readable(request.job_id)
        if self._signalling is None:
            self._signalling = Signalling(self._server.events)
        return await self._signalling.send(entry, request, access.named(context))

    async def Wait(self, request: job_pb2.WaitRequest, context: "_Context") -> job_pb2.WaitResponse:
        """See job.proto. Raises InvalidRequest, JobNotFound, JournalUnreadable."""
        timeout = math.inf
        if request.HasField("timeout"):
            timeout = protobuf_times.bounded(request.timeout, "timeout", protobuf_times.MAX_DURATION_S)
        began = anyio.current_time()
        entry = await self._ended(await self._server.registry.get(request.job_id), began + timeout)
        if entry.job.state.final:
            with anyio.CancelScope(deadline=began + timeout):
                await self._server.registry.wait_explained(entry)
        return job_pb2.WaitResponse(job=self._message(entry), ended=entry.job.state.final)

    async def Release(self, request: job_pb2.ReleaseRequest, context: "_Context") -> job_pb2.ReleaseResponse:
        """See job.proto. Raises JobNotFound, JournalUnreadable."""
        await self._server.readable(request.job_id)
        return job_pb2.ReleaseResponse(job=self._message(await self._server.registry.let_begin(request.job_id)))

    async def Delete(self, request: job_pb2.DeleteRequest, context: "_Context") -> job_pb2.DeleteResponse:
        """See job.proto. Raises JobNotFound, JobNotEnded, NoRoom."""
        left = await self._server.registry.delete(request.job_id, request.keep_logs, request.force)
        self._messages.forget(request.job_id)
        return job_pb2.DeleteResponse(left=[plain(text) for text in left])

    async def GetReport(self, request: job_pb2.GetReportRequest, context: "_Context") -> job_pb2.GetReportResponse:
        """See job.proto. Raises JobNotFound."""
        entry = await self._server.registry.get(request.job_id)
        if request.whole:
            async with self._reporting:
                return job_pb2.GetReportResponse(whole=await self._whole(entry))
        from muster.agent.api import report_json  # only now: the daemon starts sooner
        from muster.agent.why import page
        from muster.agent.why import report as why_report

        folder = self._server.config().why.signatures_dir
        signatures = Path(folder) if folder else None
        stacks = await self._kept_stacks(entry)
        report = await why_report.report(self._server, entry, signatures=signatures, stacks=stacks)
        text = page.page(report, colour=request.color)
        json = report_json.encode(report, entry, self._server.root)
        return job_pb2.GetReportResponse(text=plain(text), json=plain(json))

    async def GetStacks(self, request: job_pb2.GetStacksRequest, context: "_Context") -> job_pb2.GetStacksResponse:
        """See job.proto. Raises InvalidRequest, JobNotFound, TooMany."""
        taken = self._server.stacks.kept if request.kept else self._server.stacks.take
        return job_stacks.message(await taken(request.job_id, tuple(request.ranks)))

    async def _whole(self, entry: Entry) -> bytes:
        from muster.agent.report import gathering, writing

        made = await gathering.collect(self._server, entry)
        import gzip

        return await threads.run(lambda: gzip.compress(writing.text(made, writing.JSON).encode(), 6))

    async def _kept_stacks(self, entry: Entry) -> str:
        """The smallest group of those that were taken last of this attempt, as text; "" where there are none."""
        taken = [one for one in await self._server.stacks.history(entry.job_id) if one.attempt == entry.job.attempt]
        if not taken or not (groups := job_stacks.message(taken[-1]).groups):
            return ""
        ranks = ", ".join(sorted({str(owner.rank) for owner in groups[0].owners}))
        return f"rank {ranks} ({taken[-1].occasion}):\n{groups[0].stack}"

    async def _ended(self, entry: Entry, deadline: float) -> Entry:
        """The entry, once its job has ended or the deadline (of the event loop's clock) is over. Raises
        JournalUnreadable of a damaged job of which something lives, or whose record may yet be read."""
        if not entry.job.state.final:
            with anyio.CancelScope(deadline=deadline):
                entry = await self._server.registry.wait_ended(entry.job_id)
        if entry.damaged and (entry.unread or self._server.registry.damaged.living(entry.job_id)):
            raise JournalUnreadable(entry.job_id, entry.damaged)
        return entry

    def _message(self, entry: Entry) -> job_pb2.Job:
        """The job as it is now."""
        message = job_pb2.Job()
        message.CopyFrom(self._messages.of(entry))
        return self._present(message, entry)

    def _present(self, message: job_pb2.Job, entry: Entry) -> job_pb2.Job:
        held_by = self._server.registry.leasing.held_by(entry.job_id)
        hangs = self._server.hangs
        convert.add_present(message, entry, held_by, hangs.found(entry), hangs.slow(entry))
        if living := [*map(plain, self._server.registry.damaged.living(entry.job_id))]:
            message.living.extend(living)
            message.warnings.append(
                f"its processes still run: {', '.join(living)}: end them with `muster stop {entry.job_id}`"
            )
        return message


def _filter_digest(request: job_pb2.ListRequest) -> str:
    asked = json.dumps([sorted(set(request.states)), sorted(request.labels.items())])
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def _token(request: job_pb2.ListRequest, last: _Key) -> str:
    return base64.urlsafe_b64encode(json.dumps([*last, _filter_digest(request)]).encode()).decode()


def _read_token(request: job_pb2.ListRequest) -> _Key:
    """The key of the last job of the page before. Raises InvalidRequest."""
    try:
        accepted_at, job_id, digest = json.loads(base64.b64decode(request.page_token, altchars=b"-_", validate=True))
        if not isinstance(accepted_at, float) or not isinstance(job_id, str):
            raise ValueError("not a key")
    except (binascii.Error, ValueError, TypeError):
        raise InvalidRequest(
            [Violation("page_token", "is not from this daemon: begin again without a token")]
        ) from None
    if digest != _filter_digest(request):
        raise InvalidRequest(
            [Violation("page_token", "belongs to a list with another filter: keep states and labels over all pages")]
        )
    return accepted_at, job_id
