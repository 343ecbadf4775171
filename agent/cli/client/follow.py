"""Reading output to its end, over restarts of the daemon."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

from muster.agent.cli.client.calls import DaemonConnection, Patience
from muster.agent.cli.exits import CallFailed, NoDaemon
from muster.agent.cli.printing import note
from muster.agent.text import clean
from muster.v1 import job_pb2, log_pb2

if TYPE_CHECKING:
    from muster.agent.logs.logs_in_place import LogsInPlace

Message = TypeVar("Message")


class Sink(Protocol):
    """Takes output of `rank N`, `job` (its own log), `muster` (events); of a node of `JOB/N`, `JOB/job`, `muster`.
    See labels.py."""

    def feed(self, source: str, data: bytes, time: float) -> None:
        """Takes output that was written at `time` (epoch seconds)."""

    def cut(self, source: str) -> None:
        """Ends a line that will not be continued."""

    def finish(self) -> None:
        """Writes what is still kept."""


def read(
    connection: DaemonConnection, request: log_pb2.ReadLogsRequest, sink: Sink, logs: "LogsInPlace | None" = None
) -> log_pb2.ReadLogsResponse:
    """Feeds all output that `request` asks for to `sink` and returns the last message, which has the verdict. What
    messages name and do not carry is read from `logs`, as long as that goes well.

    When the connection breaks, reading goes on at the byte where it stopped, or, if that was removed, as near
    to it as can be, with the next daemon, for which it looks for PATIENCE_S. Raises CallFailed, NoDaemon, BadSpec and
    what the sink raises.
    """

    def take(message: log_pb2.ReadLogsResponse) -> bool:
        own = f"service {request.service}" if request.HasField("service") else "job"
        source = own if message.job_log else f"rank {message.rank}"
        if message.in_file and logs is not None:
            for part, data in logs.read(message):
                _take(request, request, source, part, sink, data)
            return False
        return _take(request, request, source, message, sink)

    def moved(failure: CallFailed) -> bool:
        place = _moved(request, failure)
        return place is not None and not take(place)

    def stream() -> Iterator[log_pb2.ReadLogsResponse]:
        return connection.stream(connection.logs.ReadLogs, request)

    if logs is None:
        return _patiently(connection, stream, take, sink, moved)
    from muster.agent.logs.logs_in_place import NotInPlace

    try:
        last = _patiently(connection, stream, take, sink, moved)
    except NotInPlace:
        request.ClearField("folder")  # the daemon reads the rest, or says what happened to it
        return _patiently(connection, stream, take, sink, moved)
    # The daemon may have named all of it long ago: the job may have been removed since, and its name given to another.
    found = connection.patiently(connection.jobs.Get, job_pb2.GetRequest(job_id=request.job_id)).job
    if not logs.are_of(found):
        raise CallFailed("NOT_FOUND", f"job {request.job_id}: was removed while its output was read", "JOB_NOT_FOUND")
    return last


def note_missing(last: log_pb2.ReadLogsResponse) -> bool:
    """Says what of the output cannot be read any more, by the last message of a reading. Returns whether there was."""
    for gone in last.missing:
        whose = "the job's own log" if gone.job_log else f"the output of rank {gone.rank}"
        note(f"{gone.bytes} bytes of {whose} are missing: {clean(gone.reason)}")
    return bool(last.missing)


def read_node(connection: DaemonConnection, request: log_pb2.ReadNodeLogsRequest, sink: Sink) -> None:
    """As `read`, for all jobs of the node."""
    places: dict[tuple[str, int], log_pb2.JobPosition] = {}

    def take(message: log_pb2.ReadNodeLogsResponse) -> bool:
        output = message.output
        key = (message.job_id, message.accepted_at.ToNanoseconds())
        if message.job_id and key not in places:
            places[key] = request.positions.add(job_id=message.job_id, accepted_at=message.accepted_at)
        source = f"{message.job_id}/{'job' if output.job_log else output.rank}"
        return _take(request, places.get(key), source, output, sink)

    _patiently(connection, lambda: connection.stream(connection.logs.ReadNodeLogs, request), take, sink)


def _patiently(
    connection: DaemonConnection,
    stream: Callable[[], Iterator[Message]],
    take: Callable[[Message], bool],
    sink: Sink,
    moved: Callable[[CallFailed], bool] = lambda _: False,
) -> Message:
    """Gives all messages to `take` until it says that one was the last, over broken connections. `moved` says whether a
    failure was mended by going on at another place."""
    patience: Patience | None = None
    while True:
        try:
            for message in stream():
                # The time until somebody reads what we write (a pager, say) is none without a daemon.
                patience = None
                if take(message):
                    sink.finish()
                    return message
            failure: CallFailed | NoDaemon = CallFailed("UNAVAILABLE", "the daemon ended the output before its end")
        except (CallFailed, NoDaemon) as broken:
            failure = broken
            if isinstance(broken, CallFailed) and moved(broken):
                continue
        patience = patience or Patience(say=connection.say_search)
        try:
            if isinstance(failure, NoDaemon) and not connection.met:
                raise failure  # there was none to begin with: tell the user now
            patience.wait_or_raise(failure)
        except (CallFailed, NoDaemon):
            sink.finish()
            raise


def _take(
    request: log_pb2.ReadLogsRequest | log_pb2.ReadNodeLogsRequest,
    place: log_pb2.ReadLogsRequest | log_pb2.JobPosition | None,
    source: str,
    message: log_pb2.ReadLogsResponse,
    sink: Sink,
    data: bytes | None = None,
) -> bool:
    """Feeds what is new in a message, and remembers in request and `place` where to go on. True for the last one.
    `data`: what the message does not carry."""
    if message.eof:
        return True
    when = message.time.ToNanoseconds() / 1e9
    if message.event_cursor:
        if message.data:
            sink.feed("muster", clean(message.data.decode("utf-8", "replace").rstrip("\n")).encode() + b"\n", when)
        request.event_cursor = message.event_cursor
        request.ClearField("tail_lines")  # by now it is known where every file begins; of a job that is new all is read
        return False
    assert place is not None  # only an event is nobody's
    if message.truncated:
        whose = "the job's own log" if source == "job" else f"{source}: its log"
        note(f"{whose} was truncated to {message.offset} bytes; continuing there")
        sink.cut(source)
        _remember(place, message, message.offset)
    behind = _known(request, place, message)
    if message.offset > behind:
        note(f"{source}: bytes {behind} to {message.offset} are no longer stored")
        sink.cut(source)
    data = message.data if data is None else data
    if data := data[max(0, behind - _behind(message) + len(data)) :]:
        sink.feed(source, data, when)
    # Only now: if the sink could not take it, nobody has seen these bytes.
    _remember(place, message, _behind(message))
    return False


def _moved(request: log_pb2.ReadLogsRequest, failure: CallFailed) -> log_pb2.ReadLogsResponse | None:
    """Where to go on when what comes next was cut off, or removed, while there was no connection; None: it was not."""
    if failure.reason != "OFFSET_OUT_OF_RANGE":
        return None
    try:
        rank, begin, end = (int(failure.facts[key]) for key in ("rank", "begin", "end"))
    except (KeyError, ValueError):
        return None
    cut = (request.job_offset if rank < 0 else request.offsets[rank]) > end
    return log_pb2.ReadLogsResponse(rank=max(rank, 0), job_log=rank < 0, offset=end if cut else begin, truncated=cut)


def _behind(message: log_pb2.ReadLogsResponse) -> int:
    """Where the next message of this output begins."""
    return message.next_offset if message.HasField("next_offset") else message.offset + len(message.data)


def _known(
    request: log_pb2.ReadLogsRequest | log_pb2.ReadNodeLogsRequest,
    place: log_pb2.ReadLogsRequest | log_pb2.JobPosition,
    message: log_pb2.ReadLogsResponse,
) -> int:
    """How far the file that a message is of was read."""
    if message.job_log and place.job_offset:
        return place.job_offset
    if not message.job_log and message.rank in place.offsets:
        return place.offsets[message.rank]
    attempt = isinstance(request, log_pb2.ReadLogsRequest) and request.HasField("attempt")
    whole = not (attempt or request.HasField("since") or request.HasField("tail_lines"))
    return 0 if whole else message.offset


def _remember(
    place: log_pb2.ReadLogsRequest | log_pb2.JobPosition, message: log_pb2.ReadLogsResponse, offset: int
) -> None:
    if message.job_log:
        place.job_offset = offset
    else:
        place.offsets[message.rank] = offset
