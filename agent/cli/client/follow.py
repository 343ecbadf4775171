"""Reading output to its end, over restarts of the daemon. Where it goes on is the client's rule (places.py there)."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

from muster.agent.cli.client.calls import DaemonConnection, Patience
from muster.agent.cli.exits import CallFailed, NoDaemon
from muster.agent.cli.printing import note
from muster.agent.text import clean
from muster.client.places import LogPlace, NodeLogPlace
from muster.v1 import job_pb2, log_pb2

if TYPE_CHECKING:
    from muster.agent.logs.logs_in_place import LogsInPlace
    from muster.agent.logs.pieces.piece_search import Found

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
    place = LogPlace(request)

    def feed(source: str, message: log_pb2.ReadLogsResponse, data: "bytes | Found") -> None:
        if isinstance(data, bytes):
            known = place.known(message)
            _feed(sink, source, message, known, place.take_data(message, data))
        elif logs is not None:
            place.take_data(message, b"")
            logs.show(source, data, message.time.ToNanoseconds() / 1e9)

    def take(message: log_pb2.ReadLogsResponse) -> bool:
        if message.eof or message.event_cursor:
            place.take(message)
            return _event(sink, message)
        own = f"service {request.service}" if request.HasField("service") else "job"
        source = own if message.job_log else f"rank {message.rank}"
        if message.in_file and logs is not None:
            message.offset = max(message.offset, min(place.known(message), message.next_offset))
            for part, data in logs.read(message, source):
                feed(source, part, data)
        else:
            feed(source, message, message.data)
        return False

    def moved(failure: CallFailed) -> bool:
        message = place.moved(failure.reason, failure.facts)
        return message is not None and not take(message)

    def stream() -> Iterator[log_pb2.ReadLogsResponse]:
        return connection.stream(connection.logs.ReadLogs, place.request)

    if logs is None:
        return _patiently(connection, stream, take, sink, moved)
    from muster.agent.logs.logs_in_place import NotInPlace

    try:
        last = _patiently(connection, stream, take, sink, moved)
    except NotInPlace:
        place.request.ClearField("folder")  # the daemon reads the rest, or says what happened to it
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
    place = NodeLogPlace(request)

    def take(message: log_pb2.ReadNodeLogsResponse) -> bool:
        output = message.output
        if output.eof or output.event_cursor:
            place.take(message)
            return _event(sink, output)
        known = place.known(message)
        source = f"{message.job_id}/{'job' if output.job_log else output.rank}"
        _feed(sink, source, output, known, place.take_data(message, output.data))
        return False

    _patiently(connection, lambda: connection.stream(connection.logs.ReadNodeLogs, place.request), take, sink)


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


def _event(sink: Sink, message: log_pb2.ReadLogsResponse) -> bool:
    """Feeds the line of an event. True for the last message, which has none."""
    if message.data and not message.eof:
        text = clean(message.data.decode("utf-8", "replace").rstrip("\n"))
        sink.feed("muster", text.encode() + b"\n", message.time.ToNanoseconds() / 1e9)
    return message.eof


def _feed(sink: Sink, source: str, message: log_pb2.ReadLogsResponse, known: int, new: bytes) -> None:
    """Feeds what is `new` in a message, and says what is missing before it: its file was read up to `known`."""
    if message.truncated:
        whose = "the job's own log" if source == "job" else f"{source}: its log"
        note(f"{whose} was truncated to {message.offset} bytes; continuing there")
        sink.cut(source)
    elif message.offset > known:
        note(f"{source}: bytes {known} to {message.offset} are no longer stored")
        sink.cut(source)
    if new:
        sink.feed(source, new, message.time.ToNanoseconds() / 1e9)
