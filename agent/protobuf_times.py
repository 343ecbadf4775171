"""Lengths and moments of time as protobuf has them."""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from muster.agent.errors import InvalidRequest
from muster.supervisors.model.spec import Violation

#: What a google.protobuf.Duration may hold, in seconds (about 10,000 years).
MAX_DURATION_S = 315_576_000_000


def seconds(duration: Duration, field: str, found: list[Violation]) -> float:
    """Length in seconds. An invalid protobuf duration is added to `found` and counts as 0."""
    whole, nanos = duration.seconds, duration.nanos
    if abs(whole) > MAX_DURATION_S or abs(nanos) > 999_999_999 or whole * nanos < 0:
        found.append(Violation(field, f"{whole} s and {nanos} ns: is not a valid google.protobuf.Duration"))
        return 0.0
    return whole + nanos / 1e9


def bounded(duration: Duration, field: str, most: float) -> float:
    """Length in seconds, from 0 to `most`. Raises InvalidRequest."""
    found: list[Violation] = []
    value = seconds(duration, field, found)
    if not found and not 0 <= value <= most:
        found.append(Violation(field, f"{value:g} s: must be 0 to {most:.0f} s"))
    if found:
        raise InvalidRequest(found)
    return value


def timestamp(value: float) -> Timestamp | None:
    """From seconds since the epoch; 0, which the data model uses for "not yet", is not set."""
    return timestamp_ns(round(value * 1e6) * 1000) if value > 0 else None


def timestamp_ns(value: int) -> Timestamp:
    """From nanoseconds since the epoch."""
    return Timestamp(seconds=value // 1_000_000_000, nanos=value % 1_000_000_000)
