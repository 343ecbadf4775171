"""Common parts of the readers of output: a job's files, the requested time span, and messages."""

import time
from collections.abc import Container
from typing import TYPE_CHECKING, Protocol

from muster.agent import protobuf_times, threads
from muster.agent.errors import InvalidRequest
from muster.agent.jobs import log_ownership
from muster.agent.jobs.entry import Entry
from muster.agent.logs import line_filter, log_reading
from muster.agent.logs.line_filter import LineFilter
from muster.agent.logs.line_search import Search
from muster.agent.logs.log_events import EventLines
from muster.supervisors.model.job_logs import logs_of
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import Violation
from muster.supervisors.model.states import JOB, SERVICE
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


async def known_logs(root: Root, entry: Entry) -> Job:
    """The job whose logs there are. Of a damaged one that is what its record says up to the damage, or else the names
    in the log folder: the output is whole whatever became of the record."""
    if not entry.damaged:
        return entry.job
    if entry.known is not None and entry.known.ranks:
        return entry.known
    named = await threads.run(log_ownership.ranks_by_name, root.log, entry.job_id)
    return Job(ranks=[Rank(number, at, device) for at, (number, device) in enumerate(named)])


def files_of(root: Root, entry: Entry, job: Job | None = None) -> list[log_reading.RankLogFile]:
    """The job's own log, then those of its ranks. `job`: as from `known_logs`, where it may be a damaged one."""
    found = [file for file in _all_files(root, entry, job) if file.rank > SERVICE]
    return found[-1:] + found[:-1]


def files_of_services(root: Root, entry: Entry, job: Job | None = None) -> list[log_reading.RankLogFile]:
    """The logs of the job's services, in the order of these."""
    return [file for file in _all_files(root, entry, job) if file.rank <= SERVICE]


def _all_files(root: Root, entry: Entry, job: Job | None) -> list[log_reading.RankLogFile]:
    logs = logs_of(root, entry.job_id, job or entry.job)
    return [log_reading.RankLogFile(log.number, log.path, log.index) for log in logs]


def message(chunk: log_reading.Chunk) -> log_pb2.ReadLogsResponse:
    """The message for a reader."""
    own = chunk.rank <= JOB
    answer = log_pb2.ReadLogsResponse(
        rank=0 if own else chunk.rank, job_log=own, offset=chunk.offset, data=chunk.data, truncated=chunk.truncated
    )
    if chunk.time is not None:
        answer.time.CopyFrom(protobuf_times.timestamp_ns(chunk.time))
    if chunk.next is not None:
        answer.next_offset = chunk.next
    answer.in_file = chunk.in_file
    return answer


def reading(
    files: list[log_reading.RankLogFile],
    positions: dict[int, int],
    lines: LineFilter | None,
    resumed: Container[int],
    *,
    timed: bool = True,
) -> log_reading.Merge | Search:
    """Reads all output, or the lines that a filter lets through. `resumed`, `timed`: see Search."""
    if lines is None:
        return log_reading.Merge(files, positions, timed=timed)
    return Search(files, positions, lines, resumed, timed=timed)


def filter_of(message: log_pb2.LineFilter) -> LineFilter | None:
    """None: all lines are wanted. Raises InvalidRequest."""
    found: list[Violation] = []
    if len(message.any_of) > line_filter.MOST_ALTERNATIVES:
        text = f"{len(message.any_of)} alternatives: at most {line_filter.MOST_ALTERNATIVES}"
        found.append(Violation("lines.any_of", text))
    for number, each in enumerate(message.any_of):
        field = f"lines.any_of[{number}].parts"
        if not 1 <= len(each.parts) <= line_filter.MOST_PARTS:
            found.append(Violation(field, f"{len(each.parts)} parts: give 1 to {line_filter.MOST_PARTS}"))
        elif (size := sum(map(len, each.parts))) > line_filter.MOST_BYTES:
            found.append(Violation(field, f"{size} bytes: at most {line_filter.MOST_BYTES}"))
        elif not all(each.parts) or any(b"\n" in part for part in each.parts):
            found.append(Violation(field, "a part is empty or contains a newline: no line contains that"))
    if found:
        raise InvalidRequest(found)
    any_of = [tuple(each.parts) for each in message.any_of]
    return LineFilter(any_of, ignore_case=message.ignore_case) if any_of else None


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
