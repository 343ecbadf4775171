"""How far streams were read, and the requests that continue there: for both clients and for the command line.

Nothing here waits, and nothing here imports gRPC.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar

from muster.v1 import event_pb2, log_pb2

Streamed = TypeVar("Streamed")

#: Where the offsets of one job's output are kept. Both messages have the same fields.
_Offsets = log_pb2.ReadLogsRequest | log_pb2.JobPosition


class StreamPlace(Generic[Streamed]):
    """How far one stream was read."""

    #: Whether nothing follows what was taken; and whether a stream that ends here has had all.
    over = at_end = False

    def take(self, message: Streamed) -> Streamed | None:
        """What is new in a message that was received; None: nothing."""
        raise NotImplementedError

    def moved(self, reason: str, facts: Mapping[str, str]) -> Streamed | None:
        """The message to take before reading goes on, where an error says that the place no longer exists. None: it
        says something else."""
        return None


class WatchPlace(StreamPlace[event_pb2.WatchResponse]):
    """Of a watch."""

    def __init__(self, request: event_pb2.WatchRequest) -> None:
        self.request = event_pb2.WatchRequest()
        self.request.CopyFrom(request)

    def take(self, message: event_pb2.WatchResponse) -> event_pb2.WatchResponse:
        """All of it."""
        self.request.cursor = message.cursor
        self.request.from_oldest = False
        # The last message of a watch with an end is a bookmark.
        self.at_end = self.request.no_follow and not message.HasField("event")
        return message


class LogPlace(StreamPlace[log_pb2.ReadLogsResponse]):
    """Of the output of a job: in each rank's file, in the job's own log, and among its events."""

    def __init__(self, request: log_pb2.ReadLogsRequest) -> None:
        self.request = log_pb2.ReadLogsRequest()
        self.request.CopyFrom(request)
        self._began = False

    def known(self, message: log_pb2.ReadLogsResponse) -> int:
        """How far the file that a message is of was read. What is between there and the message is no longer stored."""
        return _known(self.request, message, self._whole)

    def take(self, message: log_pb2.ReadLogsResponse) -> log_pb2.ReadLogsResponse | None:
        """All of it but for output that was received before."""
        if message.eof or message.event_cursor:
            self._began = True
            self.over = self.at_end = message.eof
            _note_event(self.request, message)
            return message
        known = self.known(message)
        return _rest(message, known, self.take_data(message, message.data))

    def take_data(self, message: log_pb2.ReadLogsResponse, data: bytes) -> bytes:
        """What is new of the output that a message is of. `data`: that output, which with `in_file` the message does
        not carry."""
        self._began = True
        return _take(self.request, message, data, self._whole)

    def moved(self, reason: str, facts: Mapping[str, str]) -> log_pb2.ReadLogsResponse | None:
        """When what comes next was cut off or removed while there was no connection: what the daemon says of that
        within a stream. None also where the caller's own offset is wrong."""
        if reason != "OFFSET_OUT_OF_RANGE" or not self._began:
            return None
        try:
            rank, begin, end = (int(facts[name]) for name in ("rank", "begin", "end"))
        except (KeyError, ValueError):
            return None
        cut = (self.request.job_offset if rank < 0 else self.request.offsets[rank]) > end
        return log_pb2.ReadLogsResponse(
            rank=max(rank, 0), job_log=rank < 0, offset=end if cut else begin, truncated=cut
        )

    @property
    def _whole(self) -> bool:
        return not self.request.HasField("attempt") and _whole(self.request)


class NodeLogPlace(StreamPlace[log_pb2.ReadNodeLogsResponse]):
    """Of the output of all jobs of a node. An event is nobody's, and the last message neither."""

    def __init__(self, request: log_pb2.ReadNodeLogsRequest) -> None:
        self.request = log_pb2.ReadNodeLogsRequest()
        self.request.CopyFrom(request)
        self._jobs = {(each.job_id, each.accepted_at.ToNanoseconds()): each for each in self.request.positions}

    def known(self, message: log_pb2.ReadNodeLogsResponse) -> int:
        """See LogPlace."""
        return _known(self._job(message), message.output, _whole(self.request))

    def take(self, message: log_pb2.ReadNodeLogsResponse) -> log_pb2.ReadNodeLogsResponse | None:
        """See LogPlace."""
        if message.output.eof or message.output.event_cursor:
            self.over = self.at_end = message.output.eof
            _note_event(self.request, message.output)
            return message
        known = self.known(message)
        new = _rest(message.output, known, self.take_data(message, message.output.data))
        if new is None or new is message.output:
            return message if new is not None else None
        return log_pb2.ReadNodeLogsResponse(job_id=message.job_id, accepted_at=message.accepted_at, output=new)

    def take_data(self, message: log_pb2.ReadNodeLogsResponse, data: bytes) -> bytes:
        """See LogPlace."""
        return _take(self._job(message), message.output, data, _whole(self.request))

    def _job(self, message: log_pb2.ReadNodeLogsResponse) -> log_pb2.JobPosition:
        """A job that has the id of an earlier one is another job."""
        key = (message.job_id, message.accepted_at.ToNanoseconds())
        if key not in self._jobs:
            self._jobs[key] = self.request.positions.add(job_id=message.job_id, accepted_at=message.accepted_at)
        return self._jobs[key]


def behind_of(message: log_pb2.ReadLogsResponse) -> int:
    """Where the next message of the same output begins."""
    return message.next_offset if message.HasField("next_offset") else message.offset + len(message.data)


def _whole(request: log_pb2.ReadLogsRequest | log_pb2.ReadNodeLogsRequest) -> bool:
    """Whether a file of which nothing was read yet is read from its beginning."""
    return not (request.HasField("since") or request.HasField("tail_lines"))


def _note_event(
    request: log_pb2.ReadLogsRequest | log_pb2.ReadNodeLogsRequest, message: log_pb2.ReadLogsResponse
) -> None:
    if message.event_cursor:
        request.event_cursor = message.event_cursor
        # By now it is known where every file begins; of a job that is new all is read.
        request.ClearField("tail_lines")


def _known(at: _Offsets, message: log_pb2.ReadLogsResponse, whole: bool) -> int:
    if message.job_log and at.job_offset:
        return at.job_offset
    if not message.job_log and message.rank in at.offsets:
        return at.offsets[message.rank]
    return 0 if whole else message.offset


def _take(at: _Offsets, message: log_pb2.ReadLogsResponse, data: bytes, whole: bool) -> bytes:
    known, behind = _known(at, message, whole), behind_of(message)
    if message.truncated:
        known = message.offset
    elif behind <= known and message.offset < known:
        return b""
    if message.job_log:
        at.job_offset = behind
    else:
        at.offsets[message.rank] = behind
    # With a filter the data are the last bytes of what the message is of, at most.
    return data[max(0, known - behind + len(data)) :] if message.offset < known else data


def _rest(message: log_pb2.ReadLogsResponse, known: int, data: bytes) -> log_pb2.ReadLogsResponse | None:
    """The message without what was known before it; None where that is all of it."""
    if message.truncated or message.offset >= known:
        return message
    if behind_of(message) <= known:
        return None
    new = log_pb2.ReadLogsResponse()
    new.CopyFrom(message)
    new.data, new.offset = data, known
    return new
