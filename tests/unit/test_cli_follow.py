import time
from collections.abc import Iterator
from typing import Any

import pytest

from agent.cli import follow
from agent.cli.errors import CallFailed, NoDaemon, StdoutFailed, Why
from muster.v1 import job_pb2, log_pb2

BROKEN = CallFailed("UNAVAILABLE", "Socket closed")
END = log_pb2.ReadLogsResponse(eof=True, state=job_pb2.JOB_STATE_SUCCEEDED)


def chunk(rank: int, offset: int, data: bytes, truncated: bool = False) -> log_pb2.ReadLogsResponse:
    return log_pb2.ReadLogsResponse(rank=rank, offset=offset, data=data, truncated=truncated)


class Daemon:
    """Gives one answer after the other; an exception among the messages breaks the connection."""

    ReadLogs = None

    def __init__(self, *answers: list[Any]) -> None:
        self.logs = self
        self.asked: list[dict[int, int]] = []
        self._answers = list(answers)

    def stream(self, method: object, request: log_pb2.ReadLogsRequest) -> Iterator[log_pb2.ReadLogsResponse]:
        self.asked.append(dict(request.offsets))
        for message in self._answers.pop(0):
            if isinstance(message, Exception):
                raise message
            yield message


class Sink:
    def __init__(self) -> None:
        self.data: dict[int, bytes] = {}
        self.finished = False

    def feed(self, rank: int, data: bytes, time: float) -> None:
        self.data[rank] = self.data.get(rank, b"") + data

    def finish(self) -> None:
        self.finished = True


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)


def read(daemon: Daemon, sink: Any, **options: Any) -> log_pb2.ReadLogsResponse:
    return follow.read(daemon, log_pb2.ReadLogsRequest(job_id="x", follow=True), sink, **options)  # type: ignore[arg-type]


def test_reads_to_the_end():
    sink = Sink()
    assert read(Daemon([chunk(0, 0, b"ab"), chunk(1, 0, b"x"), chunk(0, 2, b"c"), END]), sink) == END
    assert sink.data == {0: b"abc", 1: b"x"}
    assert sink.finished


def test_goes_on_where_the_connection_broke():
    sink = Sink()
    daemon = Daemon(
        [chunk(0, 0, b"ab"), BROKEN],
        [NoDaemon("gone", Why.REFUSED)],
        [NoDaemon("gone", Why.ABSENT)],
        [CallFailed("UNAVAILABLE", "starting", "STARTING", 0.0)],
        [chunk(0, 2, b"cd"), chunk(1, 0, b"x")],  # ended without its last message
        [END],
    )
    assert read(daemon, sink) == END
    assert daemon.asked == [{}, {0: 2}, {0: 2}, {0: 2}, {0: 2}, {0: 4, 1: 1}]
    assert sink.data == {0: b"abcd", 1: b"x"}


def test_bytes_that_come_twice_are_shown_once():
    sink = Sink()
    read(Daemon([chunk(0, 0, b"abcd"), chunk(0, 2, b"cdef"), chunk(0, 0, b"ab"), END]), sink)
    assert sink.data == {0: b"abcdef"}


def test_a_log_that_was_cut_is_read_on(capfd):
    sink = Sink()
    read(Daemon([chunk(0, 0, b"abcd"), chunk(0, 1, b"xy", truncated=True), END]), sink)
    assert sink.data == {0: b"abcdxy"}
    assert "cut to 1 bytes" in capfd.readouterr().err


@pytest.mark.parametrize("status", ["NOT_FOUND", "DATA_LOSS", "RESOURCE_EXHAUSTED", "OUT_OF_RANGE"])
def test_other_failures_end_it(status):
    sink = Sink()
    with pytest.raises(CallFailed, match="no"):
        read(Daemon([chunk(0, 0, b"a"), CallFailed(status, "no", "REASON")]), sink)
    assert sink.finished


def test_insists_where_there_are_too_many_readers():
    full = CallFailed("RESOURCE_EXHAUSTED", "too many", "TOO_MANY_STREAMS", 0.0)
    assert read(Daemon([full], [full], [END]), Sink(), insist=True) == END


def test_patience_has_an_end(monkeypatch):
    clock = iter(range(0, 10_000, 7))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    with pytest.raises(NoDaemon):
        read(Daemon(*[[NoDaemon("gone", Why.REFUSED)] for _ in range(20)]), Sink())


def test_what_the_sink_did_not_take_counts_as_unread():
    class Closed(Sink):
        def feed(self, rank: int, data: bytes, time: float) -> None:
            raise StdoutFailed("closed")

    with pytest.raises(StdoutFailed):
        read(Daemon([chunk(0, 0, b"a"), END]), Closed())
