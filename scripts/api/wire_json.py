"""Messages in protobuf's JSON form, and as the pages show it: what fits on a line is on one, and long texts are cut."""

import json
from typing import Any

from google.protobuf import descriptor_pool

# They make the descriptors known.
from muster.v1 import event_pb2, exec_pb2, job_pb2, log_pb2, node_pb2, probe_pb2, telemetry_pb2  # noqa: F401

_WIDTH = 116
_LONGEST = 300


def method(name: str) -> Any:
    """The descriptor of "JobService/Get"."""
    service, _, called = name.partition("/")
    return descriptor_pool.Default().FindServiceByName(f"muster.v1.{service}").methods_by_name[called]


def shown(value: Any, indent: int = 0) -> str:
    """Of a message in protobuf's JSON form. `indent`: of its first line, which is not part of the text."""
    one = _one_line(value)
    if indent + len(one) <= _WIDTH or not isinstance(value, dict | list) or not value:
        return one
    inside = " " * (indent + 2)
    if isinstance(value, dict):
        parts = []
        for key, each in value.items():
            name = f"{json.dumps(key)}: "
            parts.append(name + shown(each, indent + 2))
        return "{\n" + ",\n".join(inside + part for part in parts) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(inside + shown(each, indent + 2) for each in value) + "\n" + " " * indent + "]"


def _one_line(value: Any) -> str:
    if isinstance(value, str) and len(value) > _LONGEST:
        value = value[:_LONGEST] + "…"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_one_line(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_one_line, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
