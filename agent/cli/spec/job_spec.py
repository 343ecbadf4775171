"""The spec of a job from options and job.toml. Both have the same keys; options win."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from muster.agent import text
from muster.agent.cli.exits import BadSpec, Exit, Failure
from muster.supervisors.birth.modes import modelarts
from muster.supervisors.birth.spec_rules import violations
from muster.supervisors.model.spec import JOB_ID, JobSpec, Violation

if TYPE_CHECKING:
    from muster.v1 import job_pb2

F = TypeVar("F", bound=Callable[..., Any])
_MAX_FILE = 4 << 20


@dataclass(slots=True)
class Draft:
    """What was asked for so far; None where nothing was said. Durations are in seconds."""

    job_id: str | None = None
    command: list[str] | None = None
    cards: int | list[int] | None = None
    ranks: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    nodes: list[str] | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    skip_check: bool | None = None
    max_runtime: float | None = None
    grace: list[float] | None = None
    labels: dict[str, str] = field(default_factory=dict)
    boot: str | None = None
    rank_table: str | None = None
    ready_timeout: float | None = None
    max_restarts: int | None = None
    restart_backoff: float | None = None
    pre_start: str | None = None
    pre_start_timeout: float | None = None
    requirements: str | None = None
    requirements_timeout: float | None = None
    epilog: str | None = None
    epilog_timeout: float | None = None
    limits: dict[str, float] = field(default_factory=dict)
    umask: int | None = None
    nice: int | None = None
    training_mode: str | None = None
    on_hang: str | None = None
    max_hang_restarts: int | None = None
    hang: dict[str, str] = field(default_factory=dict)
    notify_webhook: str | None = None
    notify_events: list[str] | None = None
    notify_secret: str | None = None

    def override(self, other: "Draft") -> None:
        """Takes over what `other` says; `env`, `labels`, `limits` and `hang` are joined, name by name."""
        for name in KEYS:
            value = getattr(other, name)
            if name in ("env", "labels", "limits", "hang"):
                getattr(self, name).update(value)
            elif value is not None:
                setattr(self, name, value)
        if other.ranks is not None and other.cards is None:
            self.cards = None  # `--ranks` on the command line replaces the cards of the file, and the other way round
        elif other.cards is not None and other.ranks is None:
            self.ranks = None

    def spec(self) -> JobSpec:
        """The whole spec; a job without an id gets one, so that a lost answer can be asked for again.

        Raises BadSpec with everything that is wrong, and Failure (usage) where there is no command.
        """
        if self.command is None or not self.command:
            raise Failure("no command: give it behind --, as in `muster run --ranks 2 -- python train.py`", Exit.USAGE)
        found: list[Violation] = []
        if self.ranks == 0:
            found.append(Violation("ranks", "0: allowed are 1 to 4096; leave it out for one rank"))
        if self.cards in (0, []):
            found.append(Violation("cards", "0: give how many cards, or which"))
        nodes = self.nodes or []
        if len(nodes) > 1 and self.node_rank is None:
            found.append(Violation("node_rank", f"is not set: say which of the {len(nodes)} nodes this is, from 0"))
        spec = JobSpec(
            job_id=self.job_id if self.job_id is not None else new_id(self.command),
            command=tuple(self.command),
            env=self.env,
            ranks=self.ranks or 0,
            card_count=self.cards if isinstance(self.cards, int) else 0,
            card_indices=tuple(self.cards) if isinstance(self.cards, list) else (),
            # A relative folder is one from here; the daemon is elsewhere.
            workdir=_absolute(self.workdir),
            user=self.user or "",
            grace_steps=tuple(self.grace or ()),
            master_addr=self.master_addr or (nodes[0] if nodes else ""),
            master_port=self.master_port or 0,
            node_rank=self.node_rank or 0,
            node_count=len(nodes) or 1,
            labels=self.labels,
            skip_check=bool(self.skip_check),
            max_runtime=self.max_runtime,
            boot=self.boot or "",
            nodes=tuple(nodes),
            rank_table=_absolute(self.rank_table),
            ready_timeout=self.ready_timeout,
            max_restarts=self.max_restarts or 0,
            restart_backoff=self.restart_backoff,
            pre_start=_absolute(self.pre_start),
            pre_start_timeout=self.pre_start_timeout,
            requirements=_absolute(self.requirements),
            requirements_timeout=self.requirements_timeout,
            epilog=_absolute(self.epilog),
            epilog_timeout=self.epilog_timeout,
            limits=self.limits,
            umask=self.umask,
            nice=self.nice or 0,
            training_mode=self.training_mode or "",
            on_hang=self.on_hang or "",
            max_hang_restarts=self.max_hang_restarts,
            hang=self.hang,
            notify_webhook=self.notify_webhook or "",
            notify_events=tuple(self.notify_events or ()),
            notify_secret=self.notify_secret or "",
        )
        spec = modelarts.understood(spec, node_rank_said=self.node_rank is not None)
        found += violations(spec)
        if found:
            raise BadSpec(found)
        _refuse_bytes(spec)
        return spec


KEYS = tuple(Draft.__slots__)


def _absolute(path: str | None) -> str:
    return os.path.abspath(path) if path else ""


def new_id(command: list[str]) -> str:
    """An id that nobody else has, beginning with the program's name so that people know it again."""
    name = "".join(c for c in os.path.basename(command[0])[:24] if c.isascii() and (c.isalnum() or c in "._-"))
    tail = os.urandom(4).hex()
    return f"{name}-{tail}" if JOB_ID.fullmatch(name) else f"job-{tail}"


def _refuse_bytes(spec: JobSpec) -> None:
    """Raises BadSpec for text that is not UTF-8, which is all that the daemon's API takes."""
    texts = {f"command[{i}]": word for i, word in enumerate(spec.command)}
    texts |= {f"env[{name!a}]": name + value for name, value in spec.env.items()}
    texts |= {f"labels[{key!a}]": key + value for key, value in spec.labels.items()}
    for name in ("workdir", "user", "master_addr", "rank_table", "pre_start", "requirements", "epilog"):
        texts[name] = getattr(spec, name)
    texts |= {f"nodes[{i}]": name for i, name in enumerate(spec.nodes)}
    if bad := [name for name, value in texts.items() if not _is_utf8(value)]:
        raise BadSpec([Violation(name, "is not UTF-8, which is all that the daemon's API takes") for name in bad])


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def to_proto(spec: JobSpec) -> "job_pb2.JobSpec":
    """The message for Start."""
    from muster.agent.messages.spec_message import spec_to

    return spec_to(spec, secrets=True)


# --- job.toml ---------------------------------------------------------------------------------------------------------


def read_file(path: str) -> Draft:
    """The draft in a TOML file; "-" is stdin. Raises Failure (usage), which names file, key and what is allowed."""
    import tomllib

    shown = "standard input" if path == "-" else path
    try:
        if path == "-":
            with open(0, "rb", closefd=False) as file:
                raw = file.read(_MAX_FILE + 1)
        else:
            with open(path, "rb") as file:
                raw = file.read(_MAX_FILE + 1)
        if len(raw) > _MAX_FILE:
            raise Failure(f"{shown}: is larger than {_MAX_FILE >> 20} MiB; that is no spec of a job", Exit.USAGE)
        return from_table(tomllib.loads(raw.decode()))
    except OSError as error:
        raise Failure(f"{shown}: {error.strerror}", Exit.USAGE) from None
    except ValueError as error:  # also what is no UTF-8 and no TOML
        raise Failure(f"{shown}: {error}", Exit.USAGE) from None


def from_table(table: Mapping[str, Any]) -> Draft:
    """The draft that a TOML table describes; keys may be written with - or _. Raises ValueError."""
    draft = Draft()
    seen: dict[str, str] = {}
    for written, value in table.items():
        key = written.replace("-", "_")
        if key not in _PARSERS:
            import difflib  # takes longer to load than all the rest of this file

            near = difflib.get_close_matches(key, _PARSERS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"unknown key {written!r}: {hint}known are {', '.join(sorted(_PARSERS))}")
        if key in seen:
            raise ValueError(f"{written!r} and {seen[key]!r} are the same key: give one of the two")
        seen[key] = written
        try:
            setattr(draft, key, _PARSERS[key](value))
        except ValueError as error:
            raise ValueError(f"{written}: {error}") from None
    return draft


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r}: must be text, in quotes")
    return value


def _whole(value: object) -> int:
    # The upper bound is that of a field in the API; the rules of the spec are tighter and say so better.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise ValueError(f"{value!r}: must be a whole number from 0")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r}: must be true or false")
    return value


def _command(value: object) -> list[str]:
    if isinstance(value, str):
        raise ValueError(f'{value!r}: must be a list of words, as in ["python", "train.py"]: there is no shell')
    return _texts(value)


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ValueError(f"{value!r}: must be a list of texts")
    return value


def _nodes(value: object) -> list[str]:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else _texts(value)
    if not names or not all(names):
        raise ValueError(f"{value!r}: must be the names of all nodes, as in a,b")
    return names


def webhook(value: object) -> str:
    """A URL, or @FILE with one as its only line: a command line can be read by all, and a webhook's URL often
    is a password. Raises ValueError."""
    written = _text(value)
    return _only_line(written[1:], "the URL") if written.startswith("@") else written


def notify_secret(value: object) -> str:
    """@FILE with the secret as its only line: it is read here, so that no command line has it. Raises ValueError."""
    written = _text(value)
    if not written.startswith("@"):
        raise ValueError("must be @FILE, a file with the secret: what is written here is read by others")
    if not (secret := _only_line(written[1:], "the secret")):
        raise ValueError(f"{written[1:]}: is empty: write the secret into it")
    return secret


def _only_line(path: str, what: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read(_MAX_FILE).splitlines()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is no text: must hold one line, {what}") from None
    if len(lines) != 1:
        raise ValueError(f"{path}: has {len(lines)} lines: must hold one, {what}")
    return lines[0].strip()


def events(value: object) -> list[str]:
    """Names of events, as in failed,hung. Raises ValueError; which ones there are is for the rules of the spec."""
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else _texts(value)
    if not names or not all(names):
        raise ValueError(f"{value!r}: must be names of events, as in failed,hung")
    return names


def cards(value: object) -> int | list[int]:
    """A number of cards, or the indices of some: 2, "0,3", [0, 3]; "3," is card 3 alone. Raises ValueError."""
    if isinstance(value, list):
        return [_whole(index) for index in value]
    if not isinstance(value, str):
        return _whole(value)
    parts = [part.strip() for part in value.split(",")]
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        raise ValueError(f"{value!r}: must be a number of cards, as in 2, or indices, as in 0,3 (3, for card 3 alone)")
    return [int(part) for part in parts] if "," in value else int(parts[0])


def _seconds(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return text.duration(str(value))
    return text.duration(_text(value))


def _grace(value: object) -> list[float]:
    return [_seconds(step) for step in value] if isinstance(value, list) else [_seconds(value)]


def _table(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f'{value!r}: must be a table, as in {{ NAME = "value" }}')
    found = {}
    for name, entry in value.items():
        if isinstance(entry, bool) or not isinstance(entry, (str, int)):
            # The value itself is not shown: it may be a secret.
            raise ValueError(f"{name}: must be text in quotes or a whole number, is {type(entry).__name__}")
        found[name] = str(entry)
    return found


def umask(value: object) -> int:
    """022, "0o22", 18: text is octal, as in a shell. Raises ValueError."""
    if isinstance(value, str):
        digits = value.removeprefix("0o")
        if not digits or len(digits) > 4 or not set(digits) <= set("01234567"):
            raise ValueError(f"{value!r}: must be octal, as in 022")
        return int(digits, 8)
    return _whole(value)


def nice(value: object) -> int:
    if isinstance(value, str):
        if not re.fullmatch(r"-?[0-9]{1,3}", value):
            raise ValueError(f"{value!r}: must be a whole number from -20 to 19")
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r}: must be a whole number from -20 to 19")
    return value


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def limit(value: object) -> float:
    """A limit: a number, one with k, m, g or t (powers of 1024), "unlimited". Raises ValueError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if abs(value) > 1 << 63:
            raise ValueError("is too large a number")
        return float(value)
    written = _text(value).strip().lower()
    if written in ("unlimited", "infinity", "-1"):
        return -1.0
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([kmgt]?)b?", written)
    if match is None:
        raise ValueError(f"{value!r}: must be a number, as in 65536 or 64g, or unlimited")
    return float(match[1]) * _UNITS[match[2]]


def _limits(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        raise ValueError(f'{value!r}: must be a table, as in {{ nofile = 65536, memlock = "unlimited" }}')
    found = {}
    for name, entry in value.items():
        try:
            found[name] = limit(entry)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return found


def _settings(value: object) -> dict[str, str]:
    """As they are written on a command line, whatever TOML has them as."""
    if not isinstance(value, dict):
        raise ValueError("is a table of settings")
    return {name: str(entry).lower() if isinstance(entry, bool) else str(entry) for name, entry in value.items()}


_PARSERS: dict[str, Callable[[object], Any]] = {
    "job_id": _text,
    "command": _command,
    "cards": cards,
    "ranks": _whole,
    "env": _table,
    "workdir": _text,
    "user": _text,
    "nodes": _nodes,
    "node_rank": _whole,
    "master_addr": _text,
    "master_port": _whole,
    "skip_check": _flag,
    "max_runtime": _seconds,
    "grace": _grace,
    "labels": _table,
    "boot": _text,
    "rank_table": _text,
    "ready_timeout": _seconds,
    "max_restarts": _whole,
    "restart_backoff": _seconds,
    "pre_start": _text,
    "pre_start_timeout": _seconds,
    "requirements": _text,
    "requirements_timeout": _seconds,
    "epilog": _text,
    "epilog_timeout": _seconds,
    "limits": _limits,
    "umask": umask,
    "nice": nice,
    "training_mode": _text,
    "on_hang": _text,
    "max_hang_restarts": _whole,
    "hang": _settings,
    "notify_webhook": webhook,
    "notify_events": events,
    "notify_secret": notify_secret,
}
