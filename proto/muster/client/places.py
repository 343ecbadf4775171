"""How far streams were read, and the requests that continue there."""

from collections.abc import Mapping

from muster.client.errors import MusterError
from muster.v1 import event_pb2, log_pb2


class WatchPlace:
    """Of a watch."""

    def __init__(self, request: event_pb2.WatchRequest) -> None:
        self.request = event_pb2.WatchRequest()
        self.request.CopyFrom(request)
        self._bookmark = False

    def take(self, message: event_pb2.WatchResponse) -> None:
        """A message was received."""
        self.request.cursor = message.cursor
        self.request.from_oldest = False
        self._bookmark = not message.HasField("event")

    @property
    def at_end(self) -> bool:
        """Whether a stream that ends here has had all: the last message of one with an end is a bookmark."""
        return self.request.no_follow and self._bookmark


class LogPlace:
    """Of the output of a job: in each rank's file, in the job's own log, and among its events."""

    def __init__(self, request: log_pb2.ReadLogsRequest) -> None:
        self.request = log_pb2.ReadLogsRequest()
        self.request.CopyFrom(request)
        self._began = False
        self._whole = not (request.HasField("attempt") or request.HasField("since") or request.HasField("tail_lines"))

    def take(self, message: log_pb2.ReadLogsResponse) -> log_pb2.ReadLogsResponse | None:
        """What is new in a message, which is all of it but for output that was received before; None: nothing."""
        self._began = True
        if message.eof:
            return message
        if message.event_cursor:
            self.request.event_cursor = message.event_cursor
            return message
        behind = self._known(message)
        if message.truncated or message.offset >= behind:
            self._remember(message, behind_of(message))
            return message
        seen = behind - message.offset
        if behind_of(message) <= behind:
            return None
        new = log_pb2.ReadLogsResponse()
        new.CopyFrom(message)
        # With a filter the data are the last bytes of what the message is of, at most.
        new.data = message.data[max(0, behind - behind_of(message) + len(message.data)) :]
        new.offset = message.offset + seen
        self._remember(message, behind_of(message))
        return new

    def moved(self, error: MusterError) -> log_pb2.ReadLogsResponse | None:
        """Where to go on when what comes next was cut off or removed while there was no connection, as the daemon says
        it within a stream; None: the error is another one, or the caller's own offset is wrong."""
        if error.reason != "OFFSET_OUT_OF_RANGE" or not self._began:
            return None
        try:
            rank, begin, end = _range(error.facts)
        except (KeyError, ValueError):
            return None
        cut = (self.request.job_offset if rank < 0 else self.request.offsets[rank]) > end
        message = log_pb2.ReadLogsResponse(
            rank=max(rank, 0), job_log=rank < 0, offset=end if cut else begin, truncated=cut
        )
        self._remember(message, message.offset)
        return message

    def _known(self, message: log_pb2.ReadLogsResponse) -> int:
        """How far the file that a message is of was read."""
        if message.job_log and self.request.job_offset:
            return self.request.job_offset
        if not message.job_log and message.rank in self.request.offsets:
            return self.request.offsets[message.rank]
        return 0 if self._whole else message.offset

    def _remember(self, message: log_pb2.ReadLogsResponse, offset: int) -> None:
        if message.job_log:
            self.request.job_offset = offset
        else:
            self.request.offsets[message.rank] = offset


def behind_of(message: log_pb2.ReadLogsResponse) -> int:
    """Where the next message of the same output begins."""
    return message.next_offset if message.HasField("next_offset") else message.offset + len(message.data)


def _range(facts: Mapping[str, str]) -> tuple[int, int, int]:
    return int(facts["rank"]), int(facts["begin"]), int(facts["end"])
