"""Where a stream goes on: the requests after a lost connection, and what is new in what comes then."""

from muster.client.places import LogPlace, NodeLogPlace, WatchPlace
from muster.v1 import event_pb2, log_pb2


def chunk(rank: int, offset: int, data: bytes) -> log_pb2.ReadLogsResponse:
    return log_pb2.ReadLogsResponse(rank=rank, offset=offset, data=data)


def of_job(job_id: str, accepted: int, output: log_pb2.ReadLogsResponse) -> log_pb2.ReadNodeLogsResponse:
    message = log_pb2.ReadNodeLogsResponse(job_id=job_id, output=output)
    message.accepted_at.FromSeconds(accepted)
    return message


def test_a_node_is_read_on_by_job_and_gives_each_byte_once() -> None:
    place = NodeLogPlace(log_pb2.ReadNodeLogsRequest(follow=True))
    for message in (of_job("a", 1, chunk(0, 0, b"abc")), of_job("a", 2, chunk(0, 0, b"k"))):
        assert place.take(message) == message
    assert place.take(of_job("a", 1, chunk(0, 1, b"bc"))) is None
    again = place.take(of_job("a", 1, chunk(0, 1, b"bcd")))
    assert again is not None and (again.job_id, again.accepted_at.seconds) == ("a", 1)
    assert (again.output.offset, again.output.data) == (3, b"d")
    asked = [(each.accepted_at.seconds, dict(each.offsets)) for each in place.request.positions]
    assert asked == [(1, {0: 4}), (2, {0: 1})] and place.request.follow


def test_positions_of_the_caller_are_gone_on_with() -> None:
    request = log_pb2.ReadNodeLogsRequest()
    position = request.positions.add(job_id="a", offsets={0: 5})
    position.accepted_at.FromSeconds(1)
    place = NodeLogPlace(request)
    taken = place.take(of_job("a", 1, chunk(0, 3, b"defg")))
    assert taken is not None and taken.output.data == b"fg"
    assert [dict(each.offsets) for each in place.request.positions] == [{0: 7}]
    assert dict(request.positions[0].offsets) == {0: 5}  # the caller's own stays


def test_the_end_of_a_node_is_its_last_message() -> None:
    place = NodeLogPlace(log_pb2.ReadNodeLogsRequest())
    event = log_pb2.ReadNodeLogsResponse(output=log_pb2.ReadLogsResponse(data=b"drained\n", event_cursor="c-5"))
    assert place.take(event) == event and place.request.event_cursor == "c-5" and not place.over
    place.take(log_pb2.ReadNodeLogsResponse(output=log_pb2.ReadLogsResponse(eof=True)))
    assert place.over and place.at_end


def test_a_tail_is_asked_for_once() -> None:
    """What ranks write that had not written before the connection was lost is new, all of it."""
    place = LogPlace(log_pb2.ReadLogsRequest(job_id="x", follow=True, tail_lines=0, events=True))
    place.take(chunk(0, 7, b""))
    place.take(log_pb2.ReadLogsResponse(event_cursor="c-1"))
    assert not place.request.HasField("tail_lines") and dict(place.request.offsets) == {0: 7}
    assert place.known(chunk(1, 9, b"x")) == 0


def test_what_was_cut_off_or_removed_meanwhile_is_taken_as_within_a_stream() -> None:
    place = LogPlace(log_pb2.ReadLogsRequest(job_id="x"))
    facts = {"rank": "0", "begin": "10", "end": "20"}
    assert place.moved("OFFSET_OUT_OF_RANGE", facts) is None  # the caller's own offset is wrong
    place.take(chunk(0, 0, b"abc"))
    assert place.moved("JOB_NOT_FOUND", facts) is None
    moved = place.moved("OFFSET_OUT_OF_RANGE", facts)
    assert moved is not None and place.known(moved) == 3
    assert place.take(moved) == moved and dict(place.request.offsets) == {0: 10}
    cut = place.moved("OFFSET_OUT_OF_RANGE", {"rank": "0", "begin": "0", "end": "4"})
    assert cut is not None and cut.truncated
    place.take(cut)
    assert dict(place.request.offsets) == {0: 4}


def test_a_watch_with_an_end_has_ended_behind_a_bookmark() -> None:
    place = WatchPlace(event_pb2.WatchRequest(no_follow=True, from_oldest=True))
    place.take(event_pb2.WatchResponse(cursor="c-1", event=event_pb2.Event(kind="job.ended")))
    assert not place.at_end and (place.request.cursor, place.request.from_oldest) == ("c-1", False)
    place.take(event_pb2.WatchResponse(cursor="c-2"))
    assert place.at_end and not place.over
