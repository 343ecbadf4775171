"""LogService: the output of ranks."""

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from muster.agent.api.services import ServerContext
from muster.agent.api.services.node_log_service import NodeReading
from muster.agent.errors import InvalidRequest, JobNotFound, JournalUnreadable, LogUnreadable
from muster.agent.host import turns
from muster.agent.jobs.entry import Entry, no_such_rank
from muster.agent.logs import log_losses, log_reading, logs_in_place
from muster.agent.logs.line_search import Search
from muster.agent.logs.log_events import EventLines
from muster.agent.logs.log_stream import (
    Span,
    events_before,
    files_of,
    files_of_services,
    filter_of,
    known_logs,
    message,
    reading,
)
from muster.agent.messages import convert
from muster.agent.text import plain
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.spec import Violation
from muster.supervisors.model.states import JOB
from muster.v1 import log_pb2, log_pb2_grpc

if TYPE_CHECKING:
    from grpc import aio

    _Context = aio.ServicerContext[log_pb2.ReadLogsRequest, log_pb2.ReadLogsResponse]
    _NodeContext = aio.ServicerContext[log_pb2.ReadNodeLogsRequest, log_pb2.ReadNodeLogsResponse]


class LogService(log_pb2_grpc.LogServiceServicer):
    """Serves files; a slow reader waits in its own call, with one batch in memory."""

    def __init__(self, context: ServerContext) -> None:
        self._server = context
        # One watcher per job, for as long as it has followers. An id can be used again after a Delete: the time of
        # acceptance tells the two jobs apart. Each party has its own: a caller that needs all of it waits for its turn.
        self.watchers: WeakValueDictionary[tuple[str, float, turns.Party], log_reading.Watcher] = WeakValueDictionary()

    async def ReadLogs(  # type: ignore[override]  # the generated base wants an iterator: those are finalised by grpc in another task
        self, request: log_pb2.ReadLogsRequest, context: "_Context"
    ) -> None:
        """See log.proto. Raises InvalidRequest, JobNotFound (also where it is removed meanwhile), JournalUnreadable,
        LogUnreadable, OffsetOutOfRange."""
        entry = await self._server.registry.get(request.job_id)
        if entry.damaged and entry.unread:  # it may yet be read
            _refuse_damaged(entry)
        try:
            await self._read(request, entry, context)
        except OSError as error:
            raise LogUnreadable(entry.job_id, error) from error

    async def ReadNodeLogs(  # type: ignore[override]  # the generated base wants an iterator, as of ReadLogs
        self, request: log_pb2.ReadNodeLogsRequest, context: "_NodeContext"
    ) -> None:
        """See log.proto. Raises InvalidRequest, LogUnreadable."""
        try:
            await NodeReading(self._server, request).run(context)
        except OSError as error:
            raise LogUnreadable("", error) from error

    async def _read(self, request: log_pb2.ReadLogsRequest, entry: Entry, context: "_Context") -> None:
        limits = _Limits(entry, request)
        lines = filter_of(request.lines)
        timed = not (request.without_times and (request.only_losses or not request.events))
        events = await _events(self._server, entry, request, limits.span)
        while request.follow and not entry.job.ranks and not entry.job.state.final:
            await self._server.registry.wait_change(entry)  # its rank table is still to say which ranks there are
            _refuse_damaged(entry)
        files = self._chosen(entry, request, await known_logs(self._server.root, entry))
        watcher = self._watcher(entry)
        seen = watcher.generation
        sizes = await limits.cut(files, await log_reading.sizes_of(files))
        at = await _starts(request, files, sizes, limits)
        asked = dict(request.offsets)
        for rank, offset in at.items():
            # Otherwise the start of reading is unknown until the first output, which may never come.
            if request.HasField("tail_lines") or (offset and rank not in asked):
                await context.write(message(log_reading.Chunk(rank, offset, b"")))
        begun = dict(at) if limits.begins_late else {}
        own = {file.rank: request.job_offset for file in files if file.rank <= JOB and request.job_offset}
        timed = timed or len(files) > 1
        merge: log_reading.Merge | Search
        if await turns.in_turn(_is_seen, request, files):
            merge = log_reading.Merge(files, at, timed=timed, in_file=True)
        else:
            merge = reading(files, at, lines, asked | own, timed=timed)
        bookmarked = events is None
        while True:
            ended = entry.job.state.final or limits.over
            if ended or not request.follow:  # after the end: nothing comes any more
                sizes = await limits.cut(files, await log_reading.sizes_of(files))
                self._refuse_removed(entry)
            if merge.begin(sizes, sizes if ended or not request.follow else ()):
                while merge.left:
                    async with turns.sending():
                        for chunk in await merge.batch():
                            while told := await events_before(events, chunk.order):
                                for each in told:
                                    await context.write(each)
                            await context.write(message(chunk))
                            at[chunk.rank] = chunk.behind
            while told := await events_before(events, None):
                for each in told:
                    await context.write(each)
            if events is not None and not bookmarked:
                bookmarked = True
                await context.write(log_pb2.ReadLogsResponse(event_cursor=events.cursor))
            if ended or not request.follow:
                break
            await watcher.wait(seen, lambda: limits.over or (events is not None and events.more))
            _refuse_damaged(entry)
            if watcher.generation != seen:
                seen, sizes = watcher.generation, await limits.cut(files, watcher.sizes)
        if any(at[rank] < size for rank, size in sizes.items()):
            self._refuse_removed(entry)
        if request.follow:
            await self._server.registry.wait_explained(entry)
        last = log_pb2.ReadLogsResponse(eof=True, state=convert.state_to(entry.job.state))
        last.missing.extend(await self._missing(entry, files, begun, sizes if limits.cuts else {}))
        if entry.job.state.final and (verdict := convert.verdict_of(entry)) is not None:
            last.verdict.CopyFrom(verdict)
        await context.write(last)

    async def _missing(
        self, entry: Entry, files: list[log_reading.RankLogFile], starts: dict[int, int], stops: dict[int, int]
    ) -> list[log_pb2.MissingOutput]:
        """What of [start, stop) of these files somebody took away. Raises OSError."""
        found = await turns.in_turn(
            lambda: log_losses.missing(files, starts, stops, log_losses.ends(entry.job, entry.paths))
        )
        return [
            log_pb2.MissingOutput(
                rank=max(one.rank, 0), job_log=one.rank <= JOB, bytes=one.bytes, reason=plain(one.why)
            )
            for one in found
        ]

    def _chosen(self, entry: Entry, request: log_pb2.ReadLogsRequest, job: Job) -> list[log_reading.RankLogFile]:
        if request.HasField("service"):
            return [_service(request, files_of_services(self._server.root, entry, job))]
        files = {file.rank: file for file in files_of(self._server.root, entry, job)}
        job_log = files.pop(JOB)
        if request.job_log == log_pb2.JOB_LOG_ONLY:
            if request.offsets:
                raise InvalidRequest([Violation("offsets", "JOB_LOG_ONLY reads no rank: give job_offset")])
            return [job_log]
        found: list[Violation] = []
        for rank in request.ranks:
            if rank not in files:
                found.append(no_such_rank("ranks", rank, files))
        chosen = {rank: file for rank, file in files.items() if not request.ranks or rank in request.ranks}
        if not found:
            for rank in request.offsets:
                if rank not in chosen:
                    what = "the request does not read this rank: add it to ranks, or leave the offset out"
                    found.append(Violation(f"offsets[{rank}]", what))
        if found:
            raise InvalidRequest(found)
        return [*chosen.values(), *([job_log] if request.job_log == log_pb2.JOB_LOG_INCLUDED else [])]

    def _watcher(self, entry: Entry) -> log_reading.Watcher:
        key = (entry.job_id, entry.job.accepted_at, turns.PARTY.get())
        watcher = self.watchers.get(key)
        if watcher is None:
            watcher = log_reading.Watcher(
                [*files_of(self._server.root, entry), *files_of_services(self._server.root, entry)],
                lambda: self._server.registry.wait_change(entry),
                lambda: entry.job.state.final or bool(entry.damaged),
            )
            self.watchers[key] = watcher
        return watcher

    def _refuse_removed(self, entry: Entry) -> None:
        """A job that was removed has no files any more: what was read of them is not all. Raises JobNotFound."""
        if self._server.registry.known(entry.job_id) is not entry:
            raise JobNotFound(entry.job_id)


class _Limits:
    """Where the output that is asked for begins and ends in the ranks' files: by attempt, and by time."""

    def __init__(self, entry: Entry, request: log_pb2.ReadLogsRequest) -> None:
        """Raises InvalidRequest, also for an attempt that has not begun."""
        self.span = Span(request)
        self._request = request
        self._entry = entry
        self._attempt = request.attempt if request.HasField("attempt") else None
        if self._attempt is not None and self._attempt > entry.job.attempt:
            what = f"{self._attempt}: the present attempt of this job is {entry.job.attempt}"
            raise InvalidRequest([Violation("attempt", what)])

    @property
    def over(self) -> bool:
        """Whether nothing more can come of it."""
        return self._passed or self.span.over

    @property
    def begins_late(self) -> bool:
        """Whether what is asked for may begin after the output does."""
        asked = self._request
        late = asked.HasField("tail_lines") or asked.offsets or asked.job_offset or self._attempt
        return bool(late) or self.span.since is not None

    @property
    def cuts(self) -> bool:
        """Whether what is asked for may end before the output does."""
        return self._passed or self.span.until is not None

    @property
    def _passed(self) -> bool:
        return self._attempt is not None and self._attempt < self._entry.job.attempt

    def begins(self) -> dict[int, int]:
        """By rank, in bytes; empty where all is asked for."""
        return self._end_of(self._attempt - 1) if self._attempt else {}

    async def cut(self, files: list[log_reading.RankLogFile], sizes: dict[int, int]) -> dict[int, int]:
        """`sizes`, up to the end of the attempt if that is over, and to the end of the time. The job's own log is not
        cut by attempt. Raises OSError."""
        sizes = await self.span.cut(files, sizes)
        if self._attempt is None or not self._passed:
            return sizes
        ends = self._end_of(self._attempt)
        return {rank: size if rank == JOB else min(size, ends.get(rank, 0)) for rank, size in sizes.items()}

    def _end_of(self, attempt: int) -> dict[int, int]:
        """Of an attempt whose ranks never ran it is where the one before it ended."""
        ends: dict[int, int] = {}
        for past in self._entry.job.past:
            if past.number <= attempt:
                ends |= past.log_ends
        return ends


def _service(request: log_pb2.ReadLogsRequest, files: list[log_reading.RankLogFile]) -> log_reading.RankLogFile:
    """The log of the service that is asked for. Raises InvalidRequest."""
    found = []
    if request.ranks or request.offsets or request.events or request.HasField("attempt"):
        what = "not together with ranks, offsets, events or attempt: a service has one log; leave them out"
        found.append(Violation("service", what))
    if request.service >= len(files):
        there = f"has services 0 to {len(files) - 1}" if files else "has no services"
        found.append(Violation("service", f"{request.service}: the job {there}"))
    if found:
        raise InvalidRequest(found)
    return files[request.service]


async def _events(
    server: ServerContext, entry: Entry, request: log_pb2.ReadLogsRequest, span: Span
) -> EventLines | None:
    if not request.events:
        return None
    # A job before this one may have had the same id.
    since = max(round(entry.job.accepted_at * 1e9), span.since or 0)
    events = EventLines(
        server.events,
        entry.job_id,
        request.event_cursor,
        since=since,
        until=span.until,
        losses_of=_losses_of(request) if request.only_losses else None,
    )
    if request.HasField("tail_lines"):
        await events.last(request.tail_lines)
    return events


def _is_seen(request: log_pb2.ReadLogsRequest, files: list[log_reading.RankLogFile]) -> bool:
    """Whether the reader sees the folder of these files."""
    return request.HasField("folder") and bool(files) and request.folder == logs_in_place.identity(files[0].path.parent)


def _losses_of(request: log_pb2.ReadLogsRequest) -> Callable[[int | None], bool]:
    """The ranks whose lost output the reader asks for; None stands for the job's own log."""
    ranks = frozenset(request.ranks)

    def wanted(rank: int | None) -> bool:
        if rank is None:
            return request.job_log != log_pb2.JOB_LOG_UNSPECIFIED
        return request.job_log != log_pb2.JOB_LOG_ONLY and (not ranks or rank in ranks)

    return wanted


async def _starts(
    request: log_pb2.ReadLogsRequest, files: list[log_reading.RankLogFile], sizes: dict[int, int], limits: _Limits
) -> dict[int, int]:
    lines = request.tail_lines if request.HasField("tail_lines") else None
    offsets = dict(request.offsets)
    offsets |= {file.rank: request.job_offset for file in files if file.rank <= JOB and request.job_offset}
    starts = await log_reading.starts(files, sizes, offsets, lines, limits.span.since)
    begins = limits.begins()
    return {rank: max(start, begins.get(rank, 0)) for rank, start in starts.items()}


def _refuse_damaged(entry: Entry) -> None:
    if entry.damaged:
        raise JournalUnreadable(entry.job_id, entry.damaged)
