"""The output of all jobs of the node as one stream."""

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from muster.agent import protobuf_times
from muster.agent.api import access
from muster.agent.api.services import ServerContext
from muster.agent.errors import JobNotFound
from muster.agent.host import turns
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.entry import Entry
from muster.agent.logs import log_reading
from muster.agent.logs.line_search import Search
from muster.agent.logs.log_events import EventLines
from muster.agent.logs.log_stream import Span, events_before, files_of, filter_of, message, reading
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.states import JOB
from muster.v1 import log_pb2

if TYPE_CHECKING:
    from grpc import aio

    _Context = aio.ServicerContext[log_pb2.ReadNodeLogsRequest, log_pb2.ReadNodeLogsResponse]

#: Most files that are read at once. Each costs a reader about a kilobyte, and two microseconds per look.
MAX_FILES = 1024

#: A job: its id, and when it was accepted in nanoseconds, since an id can be used again.
_Key = tuple[str, int]


@dataclass(slots=True)
class _Round:
    """The jobs of one round, and their files, which have numbers instead of ranks."""

    jobs: list[tuple[_Key, int, bool]]
    streams: list[tuple[Entry, log_reading.RankLogFile]]
    files: list[log_reading.RankLogFile]
    watcher: log_reading.Watcher
    merge: log_reading.Merge | Search | None = None


class NodeReading:
    """One call of ReadNodeLogs. It goes in rounds, so that jobs can come and go between two of them."""

    def __init__(self, server: ServerContext, request: log_pb2.ReadNodeLogsRequest) -> None:
        """Raises InvalidRequest."""
        self._server = server
        self._follow = request.follow
        self._tail = request.tail_lines if request.HasField("tail_lines") else None
        self._span = Span(request)
        self._lines = filter_of(request.lines)
        self._events: EventLines | None = None
        if request.events:
            since, until = self._span.since, self._span.until
            self._events = EventLines(
                server.events, "", request.event_cursor, since=since, until=until, may_see=server.may_see
            )
        #: Where the reader is in a file, once it has had something of it.
        self._at: dict[tuple[_Key, int], int] = {}
        for place in request.positions:
            # Any numbers: those that no job has are of none. ToNanoseconds would not take them.
            key = (place.job_id, place.accepted_at.seconds * 1_000_000_000 + place.accepted_at.nanos)
            self._at |= {(key, rank): offset for rank, offset in place.offsets.items()}
            if place.job_offset:
                self._at[key, JOB] = place.job_offset
        self._now: _Round | None = None
        #: Jobs of which nothing more is to be read.
        self._done: set[_Key] = set()
        #: The registry's version at the last look for other jobs.
        self._seen = -1

    async def run(self, context: "_Context") -> None:
        """To the end: of the history, or of the time that is asked for. Raises InvalidRequest, OSError."""
        if self._tail is not None and self._events is not None:
            await self._events.last(self._tail)
        await self._server.registry.ended.indexed.wait()
        left_out = self._leave_out()
        bookmarked = False
        while True:
            over = self._span.over or not self._follow
            if self._moved():
                self._now = await self._begin(self._jobs())
            now = self._now
            assert now is not None
            seen = now.watcher.generation
            try:
                await self._read(now, context)
            except OSError as error:
                await self._pass_over(now, error, context)
                self._now = None
                continue
            self._tail = None  # of what comes later all is read
            if not bookmarked:
                bookmarked = True
                await self._note(left_out, context)
            self._finish(key for key, _, ended in now.jobs if ended)
            if over:
                break
            await now.watcher.wait(seen, self._news)
        await context.write(log_pb2.ReadNodeLogsResponse(output=log_pb2.ReadLogsResponse(eof=True)))

    def _news(self) -> bool:
        return self._span.over or self._moved() or (self._events is not None and self._events.more)

    def _moved(self) -> bool:
        """Whether the jobs differ from those of the present round."""
        if self._now is None:
            return True
        version = self._server.registry.version
        if self._seen != version:  # else nothing has come, changed or gone
            if self._now.jobs != _look(self._jobs()):
                return True
            self._seen = version
        return False

    def _finish(self, jobs: Iterable[_Key]) -> None:
        """Nothing more is to be read of these."""
        self._done.update(jobs)
        self._seen = -1

    def _jobs(self) -> list[Entry | Ended]:
        """What is read in a round: of the jobs that have not ended, then of those accepted last, as much as may be."""
        chosen: list[Entry | Ended] = []
        count = 0
        for job in self._candidates():
            count += 1 + _ranks(job)
            if count > MAX_FILES and chosen:
                break
            chosen.append(job)
        return chosen

    def _candidates(self) -> Iterator[Entry | Ended]:
        """Jobs that have not ended, then those that have, the newest first."""
        since = (self._span.since or 0) / 1e9
        registry = self._server.registry
        reach = access.reach()
        live = [job for job in registry.live() if not job.damaged and reach.covers(job.spec.user)]
        known = {job.job_id for job in live}
        ended = (
            row
            for row in registry.ended.rows()
            if not row.damaged and row.ended_at >= since and row.job_id not in known and reach.covers(row.user)
        )
        jobs: Iterator[Entry | Ended] = itertools.chain(live, ended)
        return (job for job in jobs if _key(job) not in self._done)

    def _leave_out(self) -> str:
        """Jobs that have ended and are too many for the first round are in none. Says which; empty: none of them."""
        chosen = {_key(entry) for entry in self._jobs()}
        left = [job for job in self._candidates() if _key(job) not in chosen and job.state.final]
        self._finish(_key(job) for job in left)
        if not left:
            return ""
        text = f"left out {len(left)} ended jobs: {left[0].job_id} and those accepted before it"
        return f"{text}: the daemon reads at most {MAX_FILES} files at once; read one with `muster logs JOB`\n"

    async def _begin(self, jobs: list[Entry | Ended]) -> _Round:
        entries = []
        for job in jobs:
            with contextlib.suppress(JobNotFound):  # it was removed meanwhile
                entries.append(job if isinstance(job, Entry) else await self._server.registry.get(job.job_id))
        streams = [(entry, file) for entry in entries for file in files_of(self._server.root, entry)]
        files = [replace(file, rank=number) for number, (_, file) in enumerate(streams)]
        return _Round(_look(jobs), streams, files, log_reading.Watcher(files, anyio.sleep_forever, lambda: False))

    async def _read(self, now: _Round, context: "_Context") -> None:
        """All that there is now."""
        sizes = await self._span.cut(now.files, await log_reading.sizes_of(now.files))
        if now.merge is None:
            places = await self._places(now, sizes, context)
            begun = {number for number, (entry, file) in enumerate(now.streams) if (_key(entry), file.rank) in self._at}
            now.merge = reading(now.files, places, self._lines, begun)
        over = self._span.over or not self._follow
        ended = {key for key, _, ended in now.jobs if ended or over}
        if now.merge.begin(sizes, {number for number, (entry, _) in enumerate(now.streams) if _key(entry) in ended}):
            while now.merge.left:
                async with turns.sending():
                    for chunk in await now.merge.batch():
                        await self._tell(chunk.order, context)
                        await self._pass_on(now, chunk, context)
        await self._tell(None, context)

    async def _places(self, now: _Round, sizes: dict[int, int], context: "_Context") -> dict[int, int]:
        """Where reading begins, by number."""
        places = {}
        for number, (entry, file) in enumerate(now.streams):
            at = self._at.get((_key(entry), file.rank))
            if at is not None:
                places[number] = min(at, sizes[number])
                if at > sizes[number] and self._span.until is None:  # cut while nobody looked
                    await self._pass_on(now, log_reading.Chunk(number, sizes[number], b"", truncated=True), context)
        fresh = [file for file in now.files if file.rank not in places]
        places |= await log_reading.starts(fresh, sizes, {}, self._tail, self._span.since)
        if self._tail is not None:
            for number, offset in places.items():
                await self._pass_on(now, log_reading.Chunk(number, offset, b""), context)
        return places

    async def _pass_on(self, now: _Round, chunk: log_reading.Chunk, context: "_Context") -> None:
        entry, file = now.streams[chunk.rank]
        key = _key(entry)
        answer = log_pb2.ReadNodeLogsResponse(job_id=entry.job_id, output=message(replace(chunk, rank=file.rank)))
        answer.accepted_at.CopyFrom(protobuf_times.timestamp_ns(key[1]))
        await context.write(answer)
        self._at[key, file.rank] = chunk.behind

    async def _tell(self, when: int | None, context: "_Context") -> None:
        while told := await events_before(self._events, when):
            for each in told:
                await context.write(log_pb2.ReadNodeLogsResponse(output=each))

    async def _pass_over(self, now: _Round, error: OSError, context: "_Context") -> None:
        """A job with a file that cannot be read is not shown, and keeps nobody from seeing the others. Raises `error`
        where it names no file."""
        for entry, file in now.streams:
            named = str(error.filename)
            if named in (str(file.path), str(file.index)) or named.startswith(f"{file.path}."):  # a segment
                self._finish([_key(entry)])
                await self._note(
                    f"left out job {entry.job_id}: cannot read {error.filename}: {error.strerror}\n", context
                )
                return
        raise error

    async def _note(self, text: str, context: "_Context") -> None:
        """A line of ours; empty: a bookmark."""
        cursor = (self._events.cursor if self._events is not None else "") or self._server.events.oldest_cursor()
        output = log_pb2.ReadLogsResponse(data=text.encode("utf-8", "replace"), event_cursor=cursor)
        await context.write(log_pb2.ReadNodeLogsResponse(output=output))


def _key(job: Entry | Ended) -> _Key:
    return job.job_id, round(job.key[0] * 1e9)


def _ranks(job: Entry | Ended) -> int:
    return len(job.job.ranks) if isinstance(job, Entry) else len(job.ranks or ())


def _look(jobs: list[Entry | Ended]) -> list[tuple[_Key, int, bool]]:
    """What a round depends on."""
    return [(_key(job), _ranks(job), job.state.final) for job in jobs]
