"""Common parts of the readers of output: a job's files, the requested time span, and messages."""

import time
from typing import TYPE_CHECKING, Protocol

from muster.agent import protobuf_times, threads
from muster.agent.errors import InvalidRequest
from muster.agent.jobs.entry import Entry
from muster.agent.logs import log_reading
from muster.agent.logs.log_events import EventLines
from muster.supervisors.model.spec import Violation
from muster.supervisors.model.states import JOB
from muster.supervisors.output.job_output import job_log_files
from muster.supervisors.paths import Root
from muster.v1 import log_pb2

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

#: So many nanoseconds after a time, the time index has everything written before it.
_INDEXED_NS = 300_000_000


class _Timed(Protocol):
    """A request with `since` and `until`."""

    @property
    def since(self) -> "Timestamp": ...
    @property
    def until(self) -> "Timestamp": ...


class Span:
    """The requested time span: `since` and `until` in nanoseconds since the epoch, None if open."""

    def __init__(self, request: _Timed) -> None:
        """Raises InvalidRequest."""
        self.since = _ns(request.since)
        self.until = _ns(request.until)
        self._threads = threads.Pool(1)
        if self.since is not None and self.until is not None and self.until < self.since:
            raise InvalidRequest([Violation("until", "is before `since`: the time span is empty")])

    @property
    def over(self) -> bool:
        """Whether no more output of that time can arrive."""
        return self.until is not None and time.time_ns() > self.until + _INDEXED_NS

    async def cut(self, files: list[log_reading.RankLogFile], sizes: dict[int, int]) -> dict[int, int]:
        """`sizes`, up to the first output after this time. Raises OSError."""
        if self.until is None or time.time_ns() <= self.until:
            return sizes
        return await self._threads.run(_cut, files, sizes, self.until)


def files_of(root: Root, entry: Entry) -> list[log_reading.RankLogFile]:
    """The job's own log, then those of its ranks."""
    own = log_reading.RankLogFile(JOB, *job_log_files(root, entry.job_id, entry.job.node_rank))
    return [own] + [
        log_reading.RankLogFile(
            rank.rank,
            root.rank_log(entry.job_id, rank.rank, rank.device),
            root.rank_index(entry.job_id, rank.rank, rank.device),
        )
        for rank in entry.job.ranks
    ]


def message(chunk: log_reading.Chunk) -> log_pb2.ReadLogsResponse:
    """The message for a reader."""
    own = chunk.rank == JOB
    answer = log_pb2.ReadLogsResponse(
        rank=0 if own else chunk.rank, job_log=own, offset=chunk.offset, data=chunk.data, truncated=chunk.truncated
    )
    if chunk.time is not None:
        answer.time.CopyFrom(protobuf_times.timestamp_ns(chunk.time))
    return answer


async def events_before(events: EventLines | None, when: int | None) -> list[log_pb2.ReadLogsResponse]:
    """Messages of the next events at or before `when` (nanoseconds; None: at any time); an empty list: no more."""
    if events is None:
        return []
    return [
        log_pb2.ReadLogsResponse(data=line, time=protobuf_times.timestamp_ns(at), event_cursor=cursor)
        for line, at, cursor in await events.take(when)
    ]


def _cut(files: list[log_reading.RankLogFile], sizes: dict[int, int], until: int) -> dict[int, int]:
    return {file.rank: log_reading.offset_until(file, until, sizes[file.rank]) for file in files}


def _ns(moment: "Timestamp") -> int | None:
    value = moment.seconds * 1_000_000_000 + moment.nanos
    return value or None
