"""What an error carries beside status and message: google.rpc's Status with ErrorInfo, BadRequest and RetryInfo.

Read by hand, so that the client needs no googleapis-common-protos: these messages have few fields, and keep them.
"""

from collections.abc import Iterator
from typing import NamedTuple

#: The end of a detail's type, and the fields that are read: see google/rpc/error_details.proto.
_INFO, _BAD, _RETRY = "google.rpc.ErrorInfo", "google.rpc.BadRequest", "google.rpc.RetryInfo"


class ErrorDetails(NamedTuple):
    """Those of one error; empty where it has none."""

    reason: str = ""
    facts: dict[str, str] = {}  # noqa: RUF012  # of a NamedTuple, which nobody changes
    violations: tuple[tuple[str, str], ...] = ()
    retry_after: float | None = None


def parse(status: bytes) -> ErrorDetails:
    """Of a google.rpc.Status. Bytes that are none have no details."""
    found = ErrorDetails()
    try:
        for detail in _parts(status, 3):
            kind, value = _text(detail, 1).rpartition("/")[2], _part(detail, 2)
            if kind == _INFO:
                facts = {_text(entry, 1): _text(entry, 2) for entry in _parts(value, 3)}
                found = found._replace(reason=_text(value, 1), facts=facts)
            elif kind == _BAD:
                violations = tuple((_text(entry, 1), _text(entry, 2)) for entry in _parts(value, 1))
                found = found._replace(violations=violations)
            elif kind == _RETRY:
                delay = _part(value, 1)
                found = found._replace(retry_after=_number(delay, 1) + _number(delay, 2) / 1e9)
    except (IndexError, ValueError):
        return ErrorDetails()
    return found


def _parts(message: bytes, field: int) -> list[bytes]:
    return [value for number, value in _fields(message) if number == field and isinstance(value, bytes)]


def _part(message: bytes, field: int) -> bytes:
    return (_parts(message, field) or [b""])[-1]


def _text(message: bytes, field: int) -> str:
    return _part(message, field).decode()


def _number(message: bytes, field: int) -> int:
    found = [value for number, value in _fields(message) if number == field and isinstance(value, int)]
    return found[-1] if found else 0


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values; text and messages as bytes. Raises IndexError, ValueError for bytes that are no message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        at += size
        if at > len(message):
            raise IndexError(at)
        yield number, message[at - size : at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
