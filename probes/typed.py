"""JSON and plain values as values of a type, by msgspec, for every thread.

msgspec learns what a class holds at the class's first use, and another thread that uses the class meanwhile meets it
half learnt: the process ends with a segmentation fault (seen with msgspec 0.22). So muster decodes only by way of this
module, where classes are learnt one after the other.
"""

# ruff: noqa: TID251  # nobody else calls these

import threading
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")

_learning = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decoder(kind: type[_T]) -> msgspec.json.Decoder[_T]:
    """What reads JSON as values of this type: the same one for every caller and thread."""
    found = _decoders.get(kind)
    if found is None:
        with _learning:
            found = _decoders.get(kind) or msgspec.json.Decoder(kind)
            _decoders[kind] = found
    return found


def decode(data: bytes | str, kind: type[_T]) -> _T:
    """The value in a JSON text. Raises msgspec.DecodeError (with msgspec.ValidationError, for another type),
    UnicodeDecodeError and RecursionError."""
    return decoder(kind).decode(data)


def convert(value: object, kind: type[_T], *, strict: bool = True) -> _T:
    """A plain value (of dicts, lists, strings, numbers) as one of this type. `strict`: no number is read from a string.
    Raises msgspec.ValidationError."""
    decoder(kind)
    return msgspec.convert(value, kind, strict=strict)
