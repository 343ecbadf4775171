"""Kinds of fields in the spec of a job: its type in options, files and messages, and the values that it allows.

`spec.py` holds the table of fields. How people write a value: `agent/cli/spec/spec_values.py`. How a message carries
it: `agent/messages/spec_message.py`. Both go by the kind of the field.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY
from typing import Any, ClassVar

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.rules import capabilities, notify_rules, staging_urls
from muster.supervisors.paths import is_reserved

JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: The kernel's limit for one argument or environment string (MAX_ARG_STRLEN), in bytes.
MAX_STRING = 131072
#: Most characters of a text whose field names no limit.
MAX_TEXT = 256
#: Longest time limit, in seconds: ten years.
MAX_S = 10 * 365 * 24 * 3600.0
MAX_STEPS = 64
#: Most paths of a list.
MAX_PATHS = 64
#: The kernel's own limit of processes and threads on 64-bit machines (PID_MAX_LIMIT).
MAX_PIDS = 1 << 22
#: A limit may have this value instead of a number: no limit.
UNLIMITED = -1
#: Limits of a process (setrlimit) and of a job (cgroup) by their names in a spec, with their units.
PROCESS_LIMITS = {"nofile": "", "memlock": "bytes", "stack": "bytes", "core": "bytes", "nproc": ""}
JOB_LIMITS = {"memory": "bytes", "cpus": "", "pids": ""}
LIMITS = PROCESS_LIMITS | JOB_LIMITS
RESERVED = "muster uses such names for its own files, which lie beside those of jobs: choose another name"

#: The part of a value ("[0]"; empty: the whole value), and a sentence: what it is, and what is allowed.
Problems = Iterator[tuple[str, str]]


@dataclass(eq=False, repr=False, match_args=False)  # what it leaves out costs each command a millisecond
class Field:
    """One field of JobSpec. A subclass is a kind of field, and says which values it allows.

    `help` is for `--help` and the reference page; `{allowed}` stands for the allowed values. `more` is for the page
    alone. `name` and `default` come from the dataclass.
    """

    metavar: str
    help: str
    _: KW_ONLY
    more: str = ""
    #: Option and key in job.toml, where they are not called like the field. None: the field has no option, no key.
    option: str | None = ""
    key: str | None = ""
    #: Path in the message JobSpec of job.proto, where it is not the name.
    api: str = ""
    #: In words: what applies when the field is not set. Empty: nothing, or the default.
    unset: str = ""
    #: The smallest and the largest value, or the largest size; units are those of the field.
    least: float = 0
    most: float = 0
    #: The only words that are allowed; empty: all.
    allowed: tuple[str, ...] = ()
    #: What the value is, in words: "a host name".
    what: str = ""
    #: Returns a form of the value that may be shown; None: the value is no secret.
    hide: Callable[[Any], Any] | None = None
    name: str = ""
    default: Any = None

    #: What job.toml has for it, in words.
    toml: ClassVar[str] = "text"
    #: The value is a tuple.
    many: ClassVar[bool] = False

    def problems(self, value: Any) -> Problems:
        """Everything that is wrong with a value as such."""
        yield from ()

    def allows(self) -> str:
        """The allowed values in words; empty where `what` and `toml` say it."""
        return ", ".join(self.allowed) or self.what

    def part(self, key: str) -> str:
        """How one entry of a table is named behind the name of its field."""
        return f"[{key[:40]!r}]"


class Text(Field):
    """Any text without NUL, up to `most` characters (0: MAX_TEXT)."""

    def problems(self, value: str) -> Problems:
        most = self.most or MAX_TEXT
        if "\0" in value or len(value) > most:
            yield "", f"must be {self.what or 'text'}, of at most {most:g} characters without NUL"


class JobId(Field):
    """The id of a job: part of file names, so no path, and no name of muster's own files."""

    def problems(self, value: str) -> Problems:
        if not JOB_ID.fullmatch(value):
            shown = value if len(value) <= 40 else f"{value[:40]}... ({len(value)} characters)"
            yield "", f"{shown!r}: must be {self.what}"
        elif is_reserved(value):
            yield "", f"{value!r}: {RESERVED}"


class FilePath(Field):
    """An absolute path; empty: none."""

    toml = "path"

    def problems(self, value: str) -> Problems:
        if value and not value.startswith("/"):
            yield "", f"{value!r}: must be an absolute path"
        if "\0" in value or len(value) > 4095:
            yield "", "must be a path of at most 4095 characters without NUL"


class Paths(Field):
    """Absolute paths, each once."""

    toml = 'list of texts, or text as in `"/a,/b"`'
    many = True

    def problems(self, value: tuple[str, ...]) -> Problems:
        for i, path in enumerate(value):
            if not path.startswith("/") or "\0" in path or len(path) > 4095:
                yield f"[{i}]", f"{path[:80]!r}: must be an absolute path of at most 4095 characters without NUL"
            elif any(part in (".", "..") for part in path.split("/")):
                yield f"[{i}]", f"{path[:80]!r}: must be a path without . and .."
        if len(set(value)) != len(value) or len(value) > MAX_PATHS:
            yield "", f"must name each path once, at most {MAX_PATHS}"


class Capabilities(Field):
    """Names of capabilities, with or without CAP_; or one word, none or all."""

    toml = 'list of texts, or text as in `"sys_nice,net_raw"`'
    many = True

    def problems(self, value: tuple[str, ...]) -> Problems:
        if problem := capabilities.problem(value):
            yield "", problem


class Choice(Field):
    """One of the `allowed` words."""

    def problems(self, value: str) -> Problems:
        if value not in self.allowed:
            yield "", f"{value[:40]!r}: must be one of {', '.join(self.allowed)}"


class Flag(Field):
    """Yes or no."""

    toml = "true or false"


class Whole(Field):
    """A whole number from `least` to `most`."""

    toml = "number"

    def problems(self, value: int) -> Problems:
        if not self.least <= value <= self.most:
            yield "", f"{value}: must be {self.allows()}"

    def allows(self) -> str:
        return f"{self.least:.0f} to {self.most:.0f}"


class Cards(Whole):
    """How many cards. It shares option and key with `Indices`, which cards."""

    toml = 'number, list of indices, or `"all"`'


class Indices(Field):
    """Which cards, by number; each once."""

    many = True

    def problems(self, value: tuple[int, ...]) -> Problems:
        if not value:
            yield "", "is empty: give how many cards, or which"
        if len(set(value)) != len(value):
            yield "", f"{list(value)}: names a card twice: name each once"


class AllCards(Flag):
    """All that the node has, however many they are. It shares option and key with `Cards`."""


class Octal(Field):
    """A number that people write in octal, from `least` to `most`."""

    toml = 'octal text as in `"077"`, or a number'

    def problems(self, value: int) -> Problems:
        if not self.least <= value <= self.most:
            yield "", f"{value:#o}: must be {self.allows()}"

    def allows(self) -> str:
        return f"{int(self.least):#o} to {int(self.most):#o}".replace("0o0 ", "0 ")


class TimeLimit(Field):
    """Seconds, above 0 and at most ten years."""

    toml = "duration"

    def problems(self, value: float) -> Problems:
        if not 0 < value <= MAX_S:
            yield "", f"{value} s: must be {self.allows()}"

    def allows(self) -> str:
        return "above 0 and at most ten years"


class Delay(Field):
    """Seconds from `least` to `most`."""

    toml = "duration"

    def problems(self, value: float) -> Problems:
        if not self.least <= value <= self.most:
            yield "", f"{value:g} s: must be {self.allows()}"

    def allows(self) -> str:
        return f"{self.least:g} to {self.most:g} s"


class Steps(Field):
    """Lengths of time that follow each other; together at most `most` seconds."""

    toml = "duration, or list of durations"
    many = True

    def problems(self, value: tuple[float, ...]) -> Problems:
        if len(value) > MAX_STEPS:
            yield "", f"{len(value)} steps: must be at most {MAX_STEPS}"
        if any(not 0 <= step <= self.most for step in value) or sum(value) > self.most:
            yield "", f"{list(value)}: each step must be at least 0 s, all together at most {self.most:g} s"

    def allows(self) -> str:
        return f"at most {MAX_STEPS} steps, together at most {self.most / 3600:g} h"


class Words(Field):
    """A command: a program and its arguments."""

    toml = "list of texts"
    many = True

    def problems(self, value: tuple[str, ...]) -> Problems:
        if not value:
            yield "", "is empty: give the program to run and its arguments"
        elif not value[0]:
            yield "[0]", "is an empty string: give the program to run"
        for i, word in enumerate(value):
            yield from _string_problems(f"[{i}]", word)


class Services(Field):
    """Commands of a shell, at most `most`. An option gives one, and may be repeated."""

    toml = "list of texts"
    many = True

    def problems(self, value: tuple[str, ...]) -> Problems:
        if len(value) > self.most:
            yield "", f"{len(value)} commands: must be at most {self.most:g}"
        for i, text in enumerate(value):
            if not text.strip():
                yield f"[{i}]", "is empty: give a command"
            yield from _string_problems(f"[{i}]", text)

    def allows(self) -> str:
        return f"at most {self.most:g} commands"


class Hosts(Field):
    """Names or addresses of nodes, each once."""

    toml = 'list of texts, or text as in `"a,b"`'
    many = True

    def problems(self, value: tuple[str, ...]) -> Problems:
        for i, name in enumerate(value):
            if not name or len(name) > 253 or not name.isprintable() or any(c in name for c in " ,/"):
                yield f"[{i}]", f"{name[:80]!r}: must be a host name or address"
        if len(set(value)) != len(value):
            yield "", "must name each node once"

    def allows(self) -> str:
        return "host names or addresses, each once"


class EventNames(Field):
    """Kinds of events that are sent to the webhook."""

    toml = Hosts.toml
    many = True

    def problems(self, value: tuple[str, ...]) -> Problems:
        if problem := notify_rules.events_problem(value, self.allowed):
            yield "", problem


class Webhook(Field):
    """The URL that notifications go to."""

    toml = "URL, or `@FILE` with the URL as its only line"

    def problems(self, value: str) -> Problems:
        if problem := notify_rules.webhook_problem(value):
            yield "", problem


class Secret(Field):
    """One line of text that is never shown. People name the file that has it."""

    toml = "`@FILE` with the secret as its only line"

    def problems(self, value: str) -> Problems:
        if problem := notify_rules.secret_problem(value):
            yield "", problem


class Variables(Field):
    """Environment variables. No sentence shows a value: it may be a secret."""

    toml = "table"

    def problems(self, value: dict[str, str]) -> Problems:
        for name, text in value.items():
            if not name or "=" in name or "\0" in name:
                yield self.part(name), "a name must not be empty and must not contain '=' or NUL"
            else:
                yield from _string_problems(self.part(name), f"{name}={text}")


class StagingUrl(Field):
    """A URL that something is copied from."""

    toml = "URL"

    def problems(self, value: str) -> Problems:
        if value and (problem := staging_urls.problem(value)):
            yield "", problem

    def allows(self) -> str:
        return "a URL, as in s3://bucket/folder"


class Inputs(Field):
    """By path: the URL that is copied there."""

    toml = "table: by path the URL"

    def problems(self, value: dict[str, str]) -> Problems:
        for path, problem in staging_urls.problems(value):
            yield self.part(path), problem
        yield from _same_place(value)


class Outputs(Field):
    """By path: the URL that it is copied to."""

    toml = Inputs.toml

    def problems(self, value: dict[str, str]) -> Problems:
        for path, problem in staging_urls.problems(value, written=True):
            yield self.part(path), problem
        yield from _same_place(value)
        targets = [url.rstrip("/") for url in value.values()]
        if len(set(targets)) != len(targets):
            yield "", "names a URL twice: give each path a URL of its own"


def _same_place(paths: dict[str, str]) -> Problems:
    if path := staging_urls.twice(paths):
        yield "", f"names the path {path!r} twice: give each URL a path of its own"


class Labels(Field):
    """At most `most` pairs of texts."""

    toml = "table"

    def problems(self, value: dict[str, str]) -> Problems:
        if len(value) > self.most:
            yield "", f"{len(value)} labels: must be at most {self.most:g}"
        for key, text in value.items():
            sizes = _size(key), _size(text)
            if not key or None in sizes or max(size or 0 for size in sizes) > 256 or "\0" in key + text:
                yield self.part(key), "a key must have 1 to 256 bytes, a value at most 256"

    def allows(self) -> str:
        return f"at most {self.most:g}; keys and values of at most 256 bytes"


class LimitTable(Field):
    """Limits of each process and of the job, by name; -1: no limit."""

    toml = f"table of {', '.join(f'`{name}`' for name in LIMITS)}"

    def problems(self, value: dict[str, float]) -> Problems:
        for name, number in value.items():
            if name not in LIMITS:
                yield self.part(name), f"is not known: must be one of {', '.join(LIMITS)}"
            elif name == "pids":
                if not (1 <= number <= MAX_PIDS and number % 1 == 0):
                    most = f"a whole number, 1 to {MAX_PIDS}, the kernel's own limit; leave it out for no limit"
                    yield self.part(name), f"{limit_text(number)}: must be {most}"
            elif name in JOB_LIMITS:
                if not (math.isfinite(number) and 0 < number < 1 << 63):
                    yield (
                        self.part(name),
                        f"{limit_text(number)}: must be above 0 and below 2^63; leave it out for no limit",
                    )
            elif number != UNLIMITED and not (math.isfinite(number) and 0 <= number < 1 << 63 and number % 1 == 0):
                yield self.part(name), f"{limit_text(number)}: must be a whole number from 0, or unlimited (-1)"

    def allows(self) -> str:
        return 'a number, `"64g"`, `"unlimited"`'

    def part(self, key: str) -> str:
        return f".{key[:40]}"


def limit_text(value: float) -> str:
    """A limit as somebody writes it: all digits, or `unlimited`."""
    if value == UNLIMITED:
        return "unlimited"
    return str(int(value)) if math.isfinite(value) and value % 1 == 0 else str(value)


class RuleSettings(Field):
    """Settings of the hang rule. What they may be depends on those of the node: agent/jobs/admission.py."""

    toml = "table"


def _size(value: str) -> int | None:
    """Bytes of a text as a process gets it; None: it cannot be written as bytes."""
    try:
        return len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return None


def _string_problems(part: str, value: str) -> Problems:
    size = _size(value)
    if "\0" in value:
        yield part, "contains a NUL character, which no process can be given"
    elif size is None:
        yield part, "contains a surrogate, half of a UTF-16 character: give text that UTF-8 can encode"
    elif size >= MAX_STRING:
        yield part, f"is longer than the {MAX_STRING - 1} bytes that the kernel allows"
