"""Messages from their descriptors: valid ones, nearly valid ones, and bytes that are none.

They come from a seed, so that what was found can be found again.

What could do harm on the machine of the tests is held to harmless values: commands are `true`, paths lead nowhere.
"""

import random
import string
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from muster.probes.checks.result import Code

#: Jobs that may be there; the seeds of a run begin with some of them.
JOBS = [f"fuzz-{number}" for number in range(12)]
#: Sessions that were begun, as the caller learns of them.
SESSIONS = ["0123456789ab"]
_TEXTS = [
    "", "a", "0", "..", "../../etc/passwd", "/", "/dev/null", "/no/such", "x" * 300, "x" * 5000, "\0", "a\nb",
    "\x1b[31m", "%s%n",
    "\u202e", "é", "\ud7ff", "\U0001f600", "nobody", "*", "-1", "1e999", "fuzz-0\0", "FUZZ-0", "null", "{}", "[" * 2000,
]  # fmt: skip
_SMALL = [0, 1, 2, 3]
_INTEGERS = [4, 127, 128, 255, 4095, 4096, 4097, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**64 - 1]
_FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")]
_F = FieldDescriptor
_RANGES = {
    kind: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    for bits, signed, kinds in (
        (32, True, (_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32)),
        (32, False, (_F.TYPE_UINT32, _F.TYPE_FIXED32)),
        (64, True, (_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64)),
        (64, False, (_F.TYPE_UINT64, _F.TYPE_FIXED64)),
    )
    for kind in kinds
}
#: Fields by name of message and field, whose values are held to these; the first is good.
_HELD: dict[str, list[Any]] = {
    "JobSpec.command": [["true"], ["true"], ["true"], [], [""], ["\0"], ["/no/such"], ["true", "x" * 140_000]],
    # 2 and more are refused on a node without cards only above 4096: as many as are refused, or few.
    "JobSpec.ranks": [0, 1, 1, 2, 3, 4097, 2**32 - 1],
    "JobSpec.boot": ["", "", "", "ranks", "nonsense", "\0"],
    "JobSpec.pre_start": ["", "", "", "/no/such", "relative", "\0"],
    "JobSpec.epilog": ["", "", "", "/no/such", "relative", "\0"],
    "JobSpec.requirements": ["", "", "", "/no/such", "relative", "\0"],
    "JobSpec.rank_table": ["", "", "", "/no/such.json", "/dev/null", "/proc/self/environ", "relative", "\0"],
    "JobSpec.max_restarts": [0, 0, 0, 1, 2**32 - 1],
    "JobSpec.user": ["", "", "nobody", "no-such-user", "4294967295", "99999999999", "\0"],
    "JobSpec.workdir": ["", "", "/tmp", "/no/such", "/etc/passwd", "relative", "\0"],
    "Notify.webhook": ["", "http://127.0.0.1:1/", "http://", "ftp://127.0.0.1", "http://127.0.0.1:99999/", "\0"],
    "Notify.secret": ["", "a secret", "x" * 256, "x" * 100_000, "\0", "\n"],
    "ExecStart.argv": [["true"], ["true"], [], [""], ["/no/such"], ["\0"], ["true", "x" * 140_000]],
    "RunCommandRequest.argv": [["true"], ["true"], [], [""], ["/no/such"], ["\0"], ["true", "x" * 140_000]],
}
#: Fields without which a request means nothing.
_MOSTLY = ("job_id", "spec", "start", "reason", "code")
#: Values that are right, mixed among the others.
_KNOWN: dict[str, list[str]] = {
    "job_id": JOBS,
    "code": [code.value for code in Code],
    "items": ["root_space", "shm", "ulimit", "dns"],
    "metrics": ["cpuUsage", "gpuUtil", "power"],
    "reason": ["a reason"],
    "session_id": SESSIONS,
    "key": ["rule", "hung_s", "A", "PATH", "MA_VJ_NAME", "RANK_TABLE_FILE"],
}


def text(rng: random.Random, name: str = "") -> str:
    """One that is meant for a field of this name, or any."""
    known = _KNOWN.get(name)
    if known and rng.random() < 0.7:
        return rng.choice(known)
    if rng.random() < 0.7:
        return rng.choice(_TEXTS)
    return "".join(rng.choices(string.printable, k=rng.randrange(20)))


def fill(rng: random.Random, message: Message, depth: int = 0, share: float = 0.0) -> Message:
    """Sets a share of the fields of a message, and returns it. With few set, more of the messages are good ones."""
    kind = message.DESCRIPTOR
    share = share or rng.choice([0.05, 0.2, 0.7])
    for field in kind.fields:
        held = _HELD.get(f"{kind.name}.{field.name}")
        if held is not None:
            value = rng.choice(held) if rng.random() < share else held[0]
            if field.is_repeated:
                getattr(message, field.name).extend(value)
            else:
                setattr(message, field.name, value)
        elif rng.random() < (0.85 if field.name in _MOSTLY else share):
            _set(rng, message, field, depth)
    return message


def _set(rng: random.Random, message: Message, field: Any, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entries = getattr(message, field.name)
        value = field.message_type.fields_by_name["value"]
        for _ in range(_count(rng)):
            key = _scalar(rng, field.message_type.fields_by_name["key"])
            if value.message_type is not None:
                fill(rng, entries[key], depth + 1)
            else:
                entries[key] = _scalar(rng, value)
    elif field.is_repeated:
        for _ in range(_count(rng)):
            if field.message_type is not None:
                fill(rng, getattr(message, field.name).add(), depth + 1)
            else:
                getattr(message, field.name).append(_scalar(rng, field))
    elif field.message_type is not None:
        if depth < 6:
            fill(rng, getattr(message, field.name), depth + 1)
            getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _scalar(rng, field))


def _count(rng: random.Random) -> int:
    return rng.choice([0, 1, 1, 2, 3]) if rng.random() < 0.98 else 300


def _scalar(rng: random.Random, field: Any) -> Any:
    if field.type == _F.TYPE_STRING:
        return text(rng, field.name)
    if field.type == _F.TYPE_BYTES:
        return rng.randbytes(rng.choice([0, 1, 100, 70_000]))
    if field.type == _F.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == _F.TYPE_ENUM:
        return rng.choice([*(value.number for value in field.enum_type.values), 99, -1])
    if field.type in (_F.TYPE_DOUBLE, _F.TYPE_FLOAT):
        return rng.choice(_FLOATS)
    low, high = _RANGES[field.type]
    wide = [*_INTEGERS, *(-number for number in _INTEGERS), rng.randrange(low, high)]
    return min(max(rng.choice(_SMALL if rng.random() < 0.6 else wide), low), high)


def encoded(rng: random.Random, kind: Descriptor) -> bytes:
    """A message of this kind as bytes, of one call in five with some of them changed."""
    data = fill(rng, GetMessageClass(kind)()).SerializeToString()
    if rng.random() < 0.8:
        return data
    how = rng.randrange(4)
    if how == 0:
        return rng.randbytes(rng.choice([1, 2, 10, 100, 1000]))
    if how == 1:
        return data[: rng.randrange(len(data) + 1)]
    if how == 2:
        return data + data[: rng.randrange(len(data) + 1)]
    # Of small requests only: a changed byte must not make another command of `true`.
    return data if b"true" in data else _changed(rng, data)


def _changed(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(min(len(changed), rng.randrange(1, 4))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)
