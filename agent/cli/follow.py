"""Reading a job's output to its end, over restarts of the daemon."""

from typing import Protocol

from agent.cli.connection import Connection, Patience
from agent.cli.errors import CallFailed, NoDaemon
from agent.cli.output import note
from muster.v1 import log_pb2
from supervisors.states import JOB


class Sink(Protocol):
    """Takes the output of ranks, and the job's own log as rank JOB; see labels.py."""

    def feed(self, rank: int, data: bytes, time: float) -> None: ...

    def finish(self) -> None: ...


def read(
    connection: Connection, request: log_pb2.ReadLogsRequest, sink: Sink, *, insist: bool = False
) -> log_pb2.ReadLogsResponse:
    """Feeds all output that `request` asks for to `sink` and returns the last message, which has the verdict.

    When the connection breaks, reading goes on at the byte where it stopped, with the next daemon, for which it looks
    for PATIENCE_S; with `insist` it waits as long for a daemon that has too many readers. Raises CallFailed, NoDaemon,
    BadSpec and what the sink raises.
    """
    patience = Patience()
    while True:
        try:
            for message in connection.stream(connection.logs.ReadLogs, request):
                patience = Patience()
                if message.eof:
                    sink.finish()
                    return message
                if message.truncated:
                    whose = "the job's own log" if message.job_log else f"rank {message.rank}: its log"
                    note(f"{whose} was cut to {message.offset} bytes by somebody; going on there")
                    _remember(request, message, message.offset)
                _take(request, message, sink)
            failure: CallFailed | NoDaemon = CallFailed("UNAVAILABLE", "the daemon ended the output before its end")
        except (CallFailed, NoDaemon) as broken:
            failure = broken
        try:
            patience.wait_or_raise(failure, insist=insist)
        except (CallFailed, NoDaemon):
            sink.finish()
            raise


def _take(request: log_pb2.ReadLogsRequest, message: log_pb2.ReadLogsResponse, sink: Sink) -> None:
    """Feeds what is new in a message, and remembers where the rank's next byte is."""
    data = message.data
    if message.job_log:
        data = data[max(0, request.job_offset - message.offset) :]
    elif message.rank in request.offsets:
        data = data[max(0, request.offsets[message.rank] - message.offset) :]
    if data:
        sink.feed(JOB if message.job_log else message.rank, data, message.time.ToNanoseconds() / 1e9)
    # Only now: if the sink could not take it, nobody has seen these bytes.
    _remember(request, message, message.offset + len(message.data))


def _remember(request: log_pb2.ReadLogsRequest, message: log_pb2.ReadLogsResponse, offset: int) -> None:
    if message.job_log:
        request.job_offset = offset
    else:
        request.offsets[message.rank] = offset
