"""How people write the fields of a spec: behind an option, or in job.toml."""

import os
import re
from collections.abc import Callable
from typing import Any

from muster.agent import text
from muster.agent.cli.parameters import pair, whole
from muster.supervisors.model import spec_fields as kinds
from muster.supervisors.model.spec import MAX_RANKS
from muster.supervisors.model.spec_fields import UNLIMITED, Field

#: Bytes of a file that a command reads, at most.
MAX_FILE = 4 << 20
#: Several numbers of cards; a serial number has more digits.
_NUMBERS = re.compile(r"[0-9]{1,4}(?:[,-][0-9]{1,4})+,?")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def from_option(field: Field, written: str) -> Any:
    """The value behind an option; of a table one pair of name and value. Raises ValueError."""
    match field:
        case kinds.Variables():
            return _variable(written)
        case kinds.LimitTable():
            name, value = pair(written)
            return name, limit(value)
        case kinds.Inputs():
            return _input(written)
        case kinds.Outputs():
            path, equals, url = written.partition("=")
            if not equals:
                raise ValueError("must be PATH=URL, as in checkpoints=s3://bucket/run-7 (-o json prints JSON)")
            return path, url
        case _ if isinstance(field.default, dict):
            return pair(written)
        case kinds.Whole() if type(field) is kinds.Whole and field.least >= 0:
            return whole(written)
        case kinds.Services():
            return written
    return from_toml(field, written)


def from_toml(field: Field, value: object) -> Any:
    """The value of a key of job.toml. Raises ValueError."""
    return _READ.get(type(field), _text_of)(field, value)


def _variable(written: str) -> tuple[str, str]:
    """NAME=VALUE, or NAME for the caller's own value."""
    if "=" in written:
        return pair(written)
    if written not in os.environ:
        raise ValueError(f"{written!r} is not set in this environment: give NAME=VALUE, or set it")
    return written, os.environ[written]


def cards(value: object) -> int | tuple[int, ...] | bool:
    """A number of cards, or the indices of some: 2, "0,3", "0-3,7", [0, 3]; "3," is card 3 alone; True for "all".
    Raises ValueError."""
    if isinstance(value, list):
        return tuple(_number(index) for index in value)
    if not isinstance(value, str):
        return _number(value)
    written = value.strip()
    if written == "all":
        return True
    if written.isascii() and written.isdigit() and len(written) <= 9:
        return int(written)
    return number_list(written, "a number of cards, as in 2, indices, as in 0,3 or 0-3,7 (3, for card 3 alone), or all")


def number_list(written: str, what: str) -> tuple[int, ...]:
    """Numbers and ranges, as muster prints them: "0,3", "0-3,7". A comma may end them. `what`: for people, what must be
    written. Raises ValueError."""
    found: list[int] = []
    for part in written.removesuffix(",").split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{written!r}: must be {what}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"{written!r}: the range {match[0]} goes down: write {last}-{first}")
        if len(found) + last - first >= MAX_RANKS:
            raise ValueError(f"{written!r}: names more than {MAX_RANKS} numbers")
        found += range(first, last + 1)
    return tuple(found)


def card_names(written: str) -> list[str]:
    """The cards of one word: several numbers, as in "0-3,7"; or one name: a number, a UUID, a serial number, a bus id.
    Raises ValueError."""
    if not _NUMBERS.fullmatch(written):
        return [written]
    return [str(number) for number in number_list(written, "numbers and ranges")]


def _input(written: str) -> tuple[str, str]:
    """URL=PATH, turned round. A URL may have = in it, so that it ends at the last one. Raises ValueError."""
    url, equals, path = written.rpartition("=")
    if not equals:
        raise ValueError("must be URL=PATH, as in s3://bucket/mnist=data")
    return path, url


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def limit(value: object) -> float:
    """A limit: a number, one with k, m, g or t (powers of 1024), "unlimited". Raises ValueError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if abs(value) > 1 << 63:
            raise ValueError("is too large a number")
        return float(value)
    written = _text(value).strip().lower()
    if written in ("unlimited", "infinity", "-1"):
        return float(UNLIMITED)
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([kmgt]?)b?", written)
    if match is None:
        raise ValueError(f"{value!r}: must be a number, as in 65536 or 64g, or unlimited")
    return float(match[1]) * _UNITS[match[2]]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r}: must be text, in quotes")
    return value


def _text_of(field: Field, value: object) -> str:
    return _text(value)


def _number(value: object) -> int:
    # The upper bound is that of a field in the API; the rules of the spec are tighter and say so better.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise ValueError(f"{value!r}: must be a whole number from 0")
    return value


def _whole(field: Field, value: object) -> int:
    """What may be below 0 may be text as well: TOML and shells quote a minus."""
    if field.least >= 0:
        return _number(value)
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,3}", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r}: must be a whole number from {field.allows()}")
    return value


def _octal(field: Field, value: object) -> int:
    """022, "0o22", 18: text is octal, as in a shell."""
    if not isinstance(value, str):
        return _number(value)
    digits = value.removeprefix("0o")
    if not digits or len(digits) > 4 or not set(digits) <= set("01234567"):
        raise ValueError(f"{value!r}: must be octal, as in 022")
    return int(digits, 8)


def _flag(field: Field, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r}: must be true or false")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return text.duration(str(value))
    return text.duration(_text(value))


def _steps(field: Field, value: object) -> tuple[float, ...]:
    return tuple(_seconds(step) for step in value) if isinstance(value, list) else (_seconds(value),)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ValueError(f"{value!r}: must be a list of texts")
    return tuple(value)


def _words(field: Field, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        raise ValueError(f'{value!r}: must be a list of words, as in ["python", "train.py"]: muster uses no shell')
    return _texts(value)


def _names(field: Field, value: object) -> tuple[str, ...]:
    """a,b, or a list."""
    names = tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else _texts(value)
    if not names or not all(names):
        raise ValueError(f"{value!r}: must be {field.what}")
    return names


def _webhook(field: Field, value: object) -> str:
    """A URL, or @FILE with one as its only line: everybody can read a command line, and a webhook's URL often is a
    password."""
    written = _text(value)
    return _only_line(written[1:], "the URL") if written.startswith("@") else written


def _secret(field: Field, value: object) -> str:
    """@FILE with the secret as its only line: the command reads it, so that no command line has it."""
    written = _text(value)
    if not written.startswith("@"):
        raise ValueError("must be @FILE, a file with the secret: other users can read a command line")
    if not (secret := _only_line(written[1:], "the secret")):
        raise ValueError(f"{written[1:]}: is empty: write the secret into the file")
    return secret


def _only_line(path: str, what: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read(MAX_FILE).splitlines()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not text: must hold one line, {what}") from None
    if len(lines) != 1:
        raise ValueError(f"{path}: has {len(lines)} lines: must hold one, {what}")
    return lines[0].strip()


def _table(value: object, example: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r}: must be a table, as in {example}")
    return value


def _pairs(field: Field, value: object) -> dict[str, str]:
    found = {}
    for name, entry in _table(value, '{ NAME = "value" }').items():
        if isinstance(entry, bool) or not isinstance(entry, (str, int)):
            # The value itself is not shown: it may be a secret.
            raise ValueError(f"{name}: must be text in quotes or a whole number, is {type(entry).__name__}")
        found[name] = str(entry)
    return found


def _limits(field: Field, value: object) -> dict[str, float]:
    found = {}
    for name, entry in _table(value, '{ nofile = 65536, memlock = "unlimited" }').items():
        try:
            found[name] = limit(entry)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return found


def _settings(field: Field, value: object) -> dict[str, str]:
    """As a command line has them, whatever TOML has."""
    settings = _table(value, "{ hung_s = 900 }")
    return {name: str(entry).lower() if isinstance(entry, bool) else str(entry) for name, entry in settings.items()}


_READ: dict[type[Field], Callable[[Field, object], Any]] = {
    kinds.Services: lambda _, value: _texts(value),
    kinds.Cards: lambda _, value: cards(value),
    kinds.TimeLimit: lambda _, value: _seconds(value),
    kinds.Delay: lambda _, value: _seconds(value),
    kinds.Flag: _flag,
    kinds.Whole: _whole,
    kinds.Octal: _octal,
    kinds.Steps: _steps,
    kinds.Words: _words,
    kinds.Hosts: _names,
    kinds.EventNames: _names,
    kinds.Paths: _names,
    kinds.Capabilities: _names,
    kinds.Webhook: _webhook,
    kinds.Secret: _secret,
    kinds.Variables: _pairs,
    kinds.Labels: _pairs,
    kinds.Inputs: _pairs,
    kinds.Outputs: _pairs,
    kinds.LimitTable: _limits,
    kinds.RuleSettings: _settings,
}
