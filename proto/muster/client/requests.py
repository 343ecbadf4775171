"""Requests of the calls that both clients have."""

from collections.abc import Mapping, Sequence

from google.protobuf.duration_pb2 import Duration

from muster.v1 import event_pb2, exec_pb2, job_pb2, log_pb2

#: Seconds within which a call that waits for nothing must be answered, all tries together.
ANSWER_S = 60.0
#: Seconds for which a stream that was cut looks for the next daemon.
SEARCH_S = 60.0
#: Seconds that one call of a longer wait takes at most: a wait of days finds a dead connection soon.
SLICE_S = 60.0
#: A call that every daemon answers at once.
HEALTH_CHECK = "/grpc.health.v1.Health/Check"

#: Calls that wait for a part of the time.
Slice = job_pb2.WaitRequest | job_pb2.StopRequest


def duration(seconds: float) -> Duration:
    """As protobuf wants it."""
    value = Duration()
    value.FromNanoseconds(round(seconds * 1e9))
    return value


def stop_request(job_id: str, reason: str, grace_s: float | None) -> job_pb2.StopRequest:
    """Without its `timeout`."""
    request = job_pb2.StopRequest(job_id=job_id, reason=reason)
    if grace_s is not None:
        request.grace.CopyFrom(duration(grace_s))
    return request


def log_request(what: str | log_pb2.ReadLogsRequest, *, follow: bool) -> log_pb2.ReadLogsRequest:
    """`what`: a job's id, or a request of the caller's, which `follow` does not change."""
    return log_pb2.ReadLogsRequest(job_id=what, follow=follow) if isinstance(what, str) else what


def watch_request(cursor: str, job_id: str, *, from_oldest: bool, follow: bool) -> event_pb2.WatchRequest:
    """See event.proto."""
    return event_pb2.WatchRequest(
        cursor=cursor, job_id=job_id, from_oldest=from_oldest and not cursor, no_follow=not follow
    )


def exec_request(
    job_id: str, argv: Sequence[str], rank: int | None, env: Mapping[str, str] | None, *, stdin: bool, tty: bool
) -> exec_pb2.ExecRequest:
    """The first request of a session."""
    start = exec_pb2.ExecStart(job_id=job_id, argv=argv, env=env or {}, stdin=stdin or tty, tty=tty)
    if rank is not None:
        start.rank = rank
    return exec_pb2.ExecRequest(start=start)
