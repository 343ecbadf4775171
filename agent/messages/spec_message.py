"""The spec of a job as a message, by the table of its fields.

Apart from convert.py, which is the daemon's: the commands send specs too, and would load half of the daemon with it.
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from muster.agent.protobuf_times import seconds
from muster.agent.text import plain
from muster.supervisors.model.spec import FIELDS, JobSpec, Violation
from muster.supervisors.model.spec_fields import LIMITS, Delay, Field, LimitTable, Steps, TimeLimit
from muster.v1 import job_pb2

_BY_PATH = {field.api: field for field in FIELDS.values()}
#: Fields of which a message does not say that they are empty, 0 or false: these are what it has without them.
_EMPTY_IS_UNSET = {
    field.name
    for path, field in _BY_PATH.items()
    if "." in path or not job_pb2.JobSpec.DESCRIPTOR.fields_by_name[path].has_presence or field.default == {}
}
#: Names of limits in the message.
_LIMITS = {name: f"{name}_{unit}" if unit else name for name, unit in LIMITS.items()}


def duration(value: float) -> Duration:
    """From seconds."""
    nanos = round(value * 1e9)
    return Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)


def spec_to(spec: JobSpec, *, secrets: bool = False) -> job_pb2.JobSpec:
    """The spec as a listing may show it: without the values of its environment, which are secrets. With `secrets` as
    a request to start it."""
    found: dict[str, Any] = {}
    for path, field in _BY_PATH.items():
        value = getattr(spec, field.name)
        if value is None or (not value and field.name in _EMPTY_IS_UNSET):
            continue  # most fields of most specs, and a List has thousands of them
        value = _to(field, field.hide(value) if field.hide and not secrets else value)
        outer, _, inner = path.rpartition(".")
        (found.setdefault(outer, {}) if outer else found)[inner] = value
    return job_pb2.JobSpec(**found)


def said_in(message: job_pb2.JobSpec, found: list[Violation]) -> dict[str, Any]:
    """The fields that a message sets, by their names in JobSpec. Lengths of time that protobuf does not allow are added
    to `found`."""
    return {field.name: _from(field, value, found) for field, value in _set_in(message)}


def _to(field: Field, value: Any) -> Any:
    """A value of a field as protobuf takes it."""
    match field:
        case TimeLimit() | Delay():
            return duration(value)
        case Steps():
            return [duration(step) for step in value]
        case LimitTable():
            return {_LIMITS[name]: value[name] if name == "cpus" else int(value[name]) for name in value}
    match value:
        case str():
            return plain(value)
        case dict():
            return {plain(key): plain(text) for key, text in value.items()}
        case tuple():
            return [plain(word) if isinstance(word, str) else word for word in value]
    return value


def _from(field: Field, value: Any, found: list[Violation]) -> Any:
    match field:
        case TimeLimit() | Delay():
            return seconds(value, field.api, found)
        case Steps():
            return tuple(seconds(step, f"{field.api}[{i}]", found) for i, step in enumerate(value))
        case LimitTable():
            return {name: float(getattr(value, wire)) for name, wire in _LIMITS.items() if value.HasField(wire)}
    if field.many:
        return tuple(value)
    return dict(value) if isinstance(field.default, dict) else value


def _set_in(message: Message, prefix: str = "") -> Iterator[tuple[Field, Any]]:
    """Fields that are set, in messages within too. `cards` and `notify` are such messages."""
    for descriptor, value in message.ListFields():
        path = prefix + descriptor.name
        if path in _BY_PATH:
            yield _BY_PATH[path], value
        else:
            yield from _set_in(value, path + ".")
