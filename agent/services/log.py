"""LogService: the output of ranks."""

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import anyio
from anyio.lowlevel import checkpoint

from agent import convert, logs
from agent.entry import Entry
from agent.errors import InvalidRequest, JournalUnreadable, LogUnreadable
from agent.services import ServerContext, Slots
from muster.v1 import log_pb2, log_pb2_grpc
from supervisors.output import job_log_files
from supervisors.spec import Violation
from supervisors.states import JOB

if TYPE_CHECKING:
    from grpc import aio

    _Context = aio.ServicerContext[log_pb2.ReadLogsRequest, log_pb2.ReadLogsResponse]


#: Seconds that a turn of the event loop may take before followers make room.
LONG_TURN_S = 0.004


class LogService(log_pb2_grpc.LogServiceServicer):
    """Serves files; whoever reads slowly waits in its own call, with one batch in memory."""

    def __init__(self, context: ServerContext) -> None:
        self._server = context
        self._slots = Slots("readers of logs", lambda: context.config().limits.max_followers)
        # One watcher per job, for as long as it has followers. An id can be used again after a Delete: the time of
        # acceptance tells the two jobs apart.
        self._watchers: WeakValueDictionary[tuple[str, float], logs.Watcher] = WeakValueDictionary()

    async def ReadLogs(  # type: ignore[override]  # the generated base wants an iterator: those are finalised by grpc in another task
        self, request: log_pb2.ReadLogsRequest, context: "_Context"
    ) -> None:
        """See log.proto. Raises InvalidRequest, JobNotFound, JournalUnreadable, LogUnreadable, OffsetOutOfRange,
        TooMany."""
        with self._slots.taken():
            entry = self._server.registry.get(request.job_id)
            _refuse_damaged(entry)
            try:
                await self._read(request, entry, context)
            except OSError as error:
                raise LogUnreadable(entry.job_id, error) from error

    async def _read(self, request: log_pb2.ReadLogsRequest, entry: Entry, context: "_Context") -> None:
        while request.follow and not entry.job.ranks and not entry.job.state.final:
            await self._server.registry.wait_change(entry)  # its rank table is still to say which ranks there are
            _refuse_damaged(entry)
        files = self._chosen(entry, request)
        limits = _Limits(entry, request)
        watcher = self._watcher(entry)
        seen = watcher.generation
        sizes = limits.cut(await logs.sizes_of(files))
        merge = logs.Merge(files, await _starts(request, files, sizes, limits.begins()))
        while True:
            ended = entry.job.state.final or limits.over
            if ended or not request.follow:
                sizes = limits.cut(await logs.sizes_of(files))  # after the end: nothing comes any more
            if merge.begin(sizes):
                while chunks := await merge.batch():
                    for chunk in chunks:
                        await context.write(_message(chunk))
                    await _give_way()
            if ended or not request.follow:
                break
            await watcher.wait(seen, lambda: limits.over)
            _refuse_damaged(entry)
            if watcher.generation != seen:
                seen, sizes = watcher.generation, limits.cut(watcher.sizes)
        last = log_pb2.ReadLogsResponse(eof=True, state=convert.state_to(entry.job.state))
        if entry.job.state.final and (verdict := convert.verdict_of(entry.job)) is not None:
            last.verdict.CopyFrom(verdict)
        await context.write(last)

    def _chosen(self, entry: Entry, request: log_pb2.ReadLogsRequest) -> list[logs.LogFile]:
        files = {file.rank: file for file in self._files(entry)}
        job_log = files.pop(JOB)
        if request.job_log == log_pb2.JOB_LOG_ONLY:
            return [job_log]
        found: list[Violation] = []
        for rank in request.ranks:
            if rank not in files:
                allowed = f"{min(files)} to {max(files)}" if files else "none"
                found.append(Violation("ranks", f"{rank}: the ranks of this job on this node are {allowed}"))
        chosen = {rank: file for rank, file in files.items() if not request.ranks or rank in request.ranks}
        if not found:
            for rank in request.offsets:
                if rank not in chosen:
                    found.append(Violation(f"offsets[{rank}]", "this rank is not among those that are read"))
        if found:
            raise InvalidRequest(found)
        return [*chosen.values(), *([job_log] if request.job_log == log_pb2.JOB_LOG_INCLUDED else [])]

    def _files(self, entry: Entry) -> list[logs.LogFile]:
        root = self._server.root
        own = logs.LogFile(JOB, *job_log_files(root, entry.job_id, entry.job.node_rank))
        return [own] + [
            logs.LogFile(
                rank.rank,
                root.rank_log(entry.job_id, rank.rank, rank.device),
                root.rank_index(entry.job_id, rank.rank, rank.device),
            )
            for rank in entry.job.ranks
        ]

    def _watcher(self, entry: Entry) -> logs.Watcher:
        key = (entry.job_id, entry.job.accepted_at)
        watcher = self._watchers.get(key)
        if watcher is None:
            watcher = logs.Watcher(
                self._files(entry),
                lambda: self._server.registry.wait_change(entry),
                lambda: entry.job.state.final or bool(entry.damaged),
            )
            self._watchers[key] = watcher
        return watcher


async def _give_way() -> None:
    """Lets other calls go first: with hundreds of followers of a flood, a turn of the event loop is as long as all
    their writes together, and a Stop has to wait for some turns. Whoever finds the turns long stays out of a few."""
    began = anyio.current_time()
    await checkpoint()
    turn = anyio.current_time() - began
    if turn > LONG_TURN_S:
        await anyio.sleep(min(turn * 8, 0.25))


class _Limits:
    """Where the output of the attempt that is asked for begins and ends in the ranks' files."""

    def __init__(self, entry: Entry, request: log_pb2.ReadLogsRequest) -> None:
        """Raises InvalidRequest for an attempt that has not begun."""
        self._entry = entry
        self._attempt = request.attempt if request.HasField("attempt") else None
        if self._attempt is not None and self._attempt > entry.job.attempt:
            what = f"{self._attempt}: the present attempt of this job is {entry.job.attempt}"
            raise InvalidRequest([Violation("attempt", what)])

    @property
    def over(self) -> bool:
        """Whether nothing more can come of it."""
        return self._attempt is not None and self._attempt < self._entry.job.attempt

    def begins(self) -> dict[int, int]:
        """By rank, in bytes; empty where all is asked for."""
        return self._end_of(self._attempt - 1) if self._attempt else {}

    def cut(self, sizes: dict[int, int]) -> dict[int, int]:
        """`sizes`, up to the end of the attempt if that is over. The job's own log is not cut."""
        if self._attempt is None or not self.over:
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


async def _starts(
    request: log_pb2.ReadLogsRequest, files: list[logs.LogFile], sizes: dict[int, int], begins: dict[int, int]
) -> dict[int, int]:
    since = request.since.seconds * 1_000_000_000 + request.since.nanos if request.HasField("since") else None
    lines = request.tail_lines if request.HasField("tail_lines") else None
    offsets = dict(request.offsets)
    if request.job_offset and request.job_log:
        offsets[JOB] = request.job_offset
    starts = await logs.starts(files, sizes, offsets, lines, since)
    return {rank: max(start, begins.get(rank, 0)) for rank, start in starts.items()}


def _refuse_damaged(entry: Entry) -> None:
    if entry.damaged:
        raise JournalUnreadable(entry.job_id, entry.damaged)


def _message(chunk: logs.Chunk) -> log_pb2.ReadLogsResponse:
    own = chunk.rank == JOB
    message = log_pb2.ReadLogsResponse(
        rank=0 if own else chunk.rank, job_log=own, offset=chunk.offset, data=chunk.data, truncated=chunk.truncated
    )
    if chunk.time is not None:
        message.time.CopyFrom(convert.timestamp_ns(chunk.time))
    return message
