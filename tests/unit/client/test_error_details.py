"""The details of an error, read without googleapis-common-protos, beside what that writes."""

from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from muster.client.error_details import ErrorDetails, parse


@given(
    reason=st.text(),
    facts=st.dictionaries(st.text(), st.text(), max_size=4),
    violations=st.lists(st.tuples(st.text(), st.text()), max_size=4),
    delay=st.none() | st.tuples(st.integers(0, 1 << 33), st.integers(0, 999_999_999)),
)
def test_what_google_writes_is_read(
    reason: str, facts: dict[str, str], violations: list[tuple[str, str]], delay: tuple[int, int] | None
) -> None:
    status = status_pb2.Status(code=9, message="a text with \N{SNOWMAN}")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="muster", metadata=facts))
    status.details.add().Pack(error_details_pb2.LocalizedMessage(locale="en", message="another kind"))
    bad = [error_details_pb2.BadRequest.FieldViolation(field=field, description=text) for field, text in violations]
    status.details.add().Pack(error_details_pb2.BadRequest(field_violations=bad))
    if delay is not None:
        pause = duration_pb2.Duration(seconds=delay[0], nanos=delay[1])
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=pause))
    found = parse(status.SerializeToString())
    after = delay[0] + delay[1] / 1e9 if delay is not None else None
    assert found == ErrorDetails(reason, facts, tuple(violations), after)


@given(st.binary())
def test_bytes_that_are_no_status_do_no_harm(data: bytes) -> None:
    assert isinstance(parse(data), ErrorDetails)
