import time
from collections.abc import Iterator
from typing import Any

import pytest

from muster.agent.cli.client import follow
from muster.agent.cli.exits import CallFailed, NoDaemon, StdoutFailed, Why
from muster.v1 import job_pb2, log_pb2

BROKEN = CallFailed("UNAVAILABLE", "Socket closed")
END = log_pb2.ReadLogsResponse(eof=True, state=job_pb2.JOB_STATE_SUCCEEDED)


def chunk(rank: int, offset: int, data: bytes, truncated: bool = False) -> log_pb2.ReadLogsResponse:
    return log_pb2.ReadLogsResponse(rank=rank, offset=offset, data=data, truncated=truncated)


class Daemon:
    """Gives one answer after the other; an exception among the messages breaks the connection."""

    ReadLogs = ReadNodeLogs = None
    met = True

    def __init__(self, *answers: list[Any]) -> None:
        self.logs = self
        self.asked: list[dict[int, int]] = []
        self.requests: list[Any] = []
        self._answers = list(answers)
        self.said: list[str] = []

    def say_search(self, why: str) -> None:
        self.said.append(why)

    def stream(self, method: object, request: Any) -> Iterator[Any]:
        kept = type(request)()
        kept.CopyFrom(request)
        self.requests.append(kept)
        if isinstance(request, log_pb2.ReadLogsRequest):
            self.asked.append(dict(request.offsets))
        for message in self._answers.pop(0):
            if isinstance(message, Exception):
                raise message
            yield message


class Sink:
    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.cuts: list[str] = []
        self.finished = False

    def feed(self, source: str, data: bytes, time: float) -> None:
        self.data[source] = self.data.get(source, b"") + data

    def cut(self, source: str) -> None:
        self.cuts.append(source)

    def finish(self) -> None:
        self.finished = True


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)


def read(daemon: Daemon, sink: Any, **options: Any) -> log_pb2.ReadLogsResponse:
    return follow.read(daemon, log_pb2.ReadLogsRequest(job_id="x", follow=True), sink, **options)  # type: ignore[arg-type]


def lines(offset: int, data: bytes, behind: int) -> log_pb2.ReadLogsResponse:
    return log_pb2.ReadLogsResponse(offset=offset, data=data, next_offset=behind)


def test_a_search_that_broke_off_goes_on_behind_what_was_searched(capfd):
    daemon = Daemon([lines(0, b"", 70), lines(70, b"a\nb\n", 500), BROKEN], [lines(500, b"c\n", 900), END])
    sink = Sink()
    read(daemon, sink)
    assert daemon.asked == [{}, {0: 500}]
    assert sink.data == {"rank 0": b"a\nb\nc\n"}
    assert sink.cuts == [] and not capfd.readouterr().err  # what was passed over is not missing


def test_output_that_is_missing_behind_what_was_searched_is_reported(capfd):
    sink = Sink()
    read(Daemon([lines(0, b"a\n", 500), lines(600, b"", 900), END]), sink)
    said = capfd.readouterr().err
    assert sink.cuts == ["rank 0"]
    assert "bytes 500 to 600 are no longer stored" in said


def test_where_there_was_no_daemon_to_begin_with_it_is_not_waited_for():
    daemon = Daemon([NoDaemon("no daemon", Why.ABSENT)])
    daemon.met = False
    sink = Sink()
    with pytest.raises(NoDaemon):
        read(daemon, sink)
    assert sink.finished and not daemon.said


def test_reads_to_the_end():
    sink = Sink()
    assert read(Daemon([chunk(0, 0, b"ab"), chunk(1, 0, b"x"), chunk(0, 2, b"c"), END]), sink) == END
    assert sink.data == {"rank 0": b"abc", "rank 1": b"x"}
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
    assert sink.data == {"rank 0": b"abcd", "rank 1": b"x"}


def test_the_time_in_which_nobody_reads_what_was_read_is_none_without_a_daemon(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    class Pager(Sink):
        def feed(self, source: str, data: bytes, time: float) -> None:
            super().feed(source, data, time)
            clock[0] += 7200

    sink = Pager()
    assert (
        read(Daemon([chunk(0, 0, b"ab"), BROKEN], [NoDaemon("gone", Why.ABSENT)], [chunk(0, 2, b"c"), END]), sink)
        == END
    )
    assert sink.data == {"rank 0": b"abc"}


def test_bytes_that_come_twice_are_shown_once():
    sink = Sink()
    read(Daemon([chunk(0, 0, b"abcd"), chunk(0, 2, b"cdef"), chunk(0, 0, b"ab"), END]), sink)
    assert sink.data == {"rank 0": b"abcdef"}


def test_a_log_that_was_cut_is_read_on(capfd):
    sink = Sink()
    read(Daemon([chunk(0, 0, b"abcd"), chunk(0, 1, b"xy", truncated=True), END]), sink)
    assert sink.data == {"rank 0": b"abcdxy"}
    assert sink.cuts == ["rank 0"]
    assert "truncated to 1 bytes" in capfd.readouterr().err


@pytest.mark.parametrize("status", ["NOT_FOUND", "DATA_LOSS", "RESOURCE_EXHAUSTED", "OUT_OF_RANGE"])
def test_other_failures_end_it(status):
    sink = Sink()
    with pytest.raises(CallFailed, match="no"):
        read(Daemon([chunk(0, 0, b"a"), CallFailed(status, "no", "REASON")]), sink)
    assert sink.finished


def moved(rank: int, begin: int, end: int) -> CallFailed:
    facts = {"rank": str(rank), "begin": str(begin), "end": str(end)}
    return CallFailed("OUT_OF_RANGE", "no", "OFFSET_OUT_OF_RANGE", facts=facts)


def test_what_was_removed_or_cut_while_nobody_was_connected_is_reported_and_reading_goes_on(capfd):
    sink = Sink()
    daemon = Daemon(
        [chunk(0, 0, b"abc"), chunk(1, 0, b"xyz"), BROKEN],
        [moved(0, 10, 20)],
        [moved(1, 0, 2)],
        [chunk(0, 10, b"de"), chunk(1, 2, b"w"), END],
    )
    assert read(daemon, sink) == END
    assert sink.data == {"rank 0": b"abcde", "rank 1": b"xyzw"}
    assert sink.cuts == ["rank 0", "rank 1"]
    assert daemon.asked[-1] == {0: 10, 1: 2}
    told = capfd.readouterr().err
    assert "rank 0: bytes 3 to 10 are no longer stored" in told
    assert "rank 1: its log was truncated to 2 bytes" in told


def test_patience_has_an_end(monkeypatch):
    clock = iter(range(0, 10_000, 7))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    with pytest.raises(NoDaemon):
        read(Daemon(*[[NoDaemon("gone", Why.REFUSED)] for _ in range(20)]), Sink())


def test_what_the_sink_did_not_take_counts_as_unread():
    class Closed(Sink):
        def feed(self, source: str, data: bytes, time: float) -> None:
            raise StdoutFailed("closed")

    with pytest.raises(StdoutFailed):
        read(Daemon([chunk(0, 0, b"a"), END]), Closed())


def event(text: str, cursor: str) -> log_pb2.ReadLogsResponse:
    return log_pb2.ReadLogsResponse(data=text.encode(), event_cursor=cursor)


def test_events_resume_behind_the_last_and_are_made_harmless():
    sink = Sink()
    read(
        Daemon(
            [event("a \x1b[31mred\x1b[0m\n", "c-1"), BROKEN], [event("b\n", "c-2"), event("", "c-9"), BROKEN], [END]
        ),
        sink,
    )
    assert sink.data == {"muster": b"a red\nb\n"}


def test_where_a_tail_begins_is_kept_over_a_lost_connection():
    """Nothing may have been written by then: what is written meanwhile must be read all the same."""
    daemon = Daemon([chunk(0, 7, b""), chunk(1, 9, b""), event("", "c-1"), BROKEN], [END])
    follow.read(daemon, log_pb2.ReadLogsRequest(job_id="x", follow=True, tail_lines=0), Sink())  # type: ignore[arg-type]
    again = daemon.requests[1]
    assert dict(again.offsets) == {0: 7, 1: 9}
    assert again.event_cursor == "c-1"
    assert not again.HasField("tail_lines")


def of_job(job_id: str, accepted: int, output: log_pb2.ReadLogsResponse) -> log_pb2.ReadNodeLogsResponse:
    message = log_pb2.ReadNodeLogsResponse(job_id=job_id, output=output)
    message.accepted_at.FromSeconds(accepted)
    return message


def test_the_output_of_a_node_goes_on_by_job():
    sink = Sink()
    end = log_pb2.ReadNodeLogsResponse(output=END)
    own = log_pb2.ReadLogsResponse(job_log=True, offset=0, data=b"starts\n")
    daemon = Daemon(
        [
            of_job("a", 1, chunk(0, 0, b"xy")),
            of_job("b", 2, chunk(0, 0, b"z")),
            of_job("a", 3, chunk(0, 0, b"k")),  # another job of that id
            of_job("a", 1, own),
            log_pb2.ReadNodeLogsResponse(output=event("drained\n", "c-5")),
            BROKEN,
        ],
        [of_job("a", 1, chunk(0, 1, b"yw")), end],
    )
    follow.read_node(daemon, log_pb2.ReadNodeLogsRequest(follow=True), sink)  # type: ignore[arg-type]
    assert sink.data == {"a/0": b"xykw", "b/0": b"z", "a/job": b"starts\n", "muster": b"drained\n"}
    asked = daemon.requests[1]
    assert [(p.job_id, p.accepted_at.seconds, dict(p.offsets), p.job_offset) for p in asked.positions] == [
        ("a", 1, {0: 2}, 7),
        ("b", 2, {0: 1}, 0),
        ("a", 3, {0: 1}, 0),
    ]
    assert asked.event_cursor == "c-5"


def test_output_that_is_not_kept_is_reported(capfd):
    sink = Sink()
    daemon = Daemon([chunk(0, 10, b"ab"), chunk(1, 0, b"x"), chunk(0, 20, b"c"), BROKEN], [chunk(0, 30, b"d"), END])
    read(daemon, sink)
    assert sink.data == {"rank 0": b"abcd", "rank 1": b"x"}
    assert sink.cuts == ["rank 0"] * 3
    told = capfd.readouterr().err
    for gap in ("0 to 10", "12 to 20", "21 to 30"):
        assert f"rank 0: bytes {gap} are no longer stored" in told


def test_output_of_which_nothing_is_kept_is_reported(capfd):
    read(Daemon([chunk(0, 10, b""), END]), Sink())
    assert "rank 0: bytes 0 to 10 are no longer stored" in capfd.readouterr().err


def test_where_reading_was_to_begin_is_no_gap(capfd):
    for wanted in ({"tail_lines": 5}, {"attempt": 1}, {"since": {"seconds": 9}}):
        request = log_pb2.ReadLogsRequest(job_id="x", **wanted)
        follow.read(Daemon([chunk(0, 10, b"ab"), END]), request, Sink())  # type: ignore[arg-type]
    assert capfd.readouterr().err == ""
