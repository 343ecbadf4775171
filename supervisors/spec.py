"""What a job is asked to be, and the rules that a request must meet."""

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Self

MAX_RANKS = 4096
MAX_GRACE_S = 24 * 3600.0
MAX_LABELS = 64
#: Linux' own limit for one argument or environment string (MAX_ARG_STRLEN), in bytes.
MAX_STRING = 131072
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: SIGTERM, then looks after 1, 2, 4 and 8 s, then SIGKILL: the steps of ModelArts' launcher (15 s in all).
DEFAULT_GRACE_STEPS = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request that is wrong: its name, and what it was and what is allowed in one sentence."""

    field: str
    description: str


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A request to run a job; the meaning of the fields is told in proto/muster/v1/job.proto. Times are in seconds.

    `ranks` is 0 where `card_count` or `card_indices` say how many there are.
    """

    job_id: str
    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    ranks: int = 0
    card_count: int = 0
    card_indices: tuple[int, ...] = ()
    workdir: str = ""
    user: str = ""
    grace_steps: tuple[float, ...] = ()
    master_addr: str = ""
    master_port: int = 0
    node_rank: int = 0
    node_count: int = 1
    labels: dict[str, str] = field(default_factory=dict)
    skip_check: bool = False
    max_runtime: float | None = None

    @property
    def local_ranks(self) -> int:
        """Processes on this node."""
        return len(self.card_indices) or self.card_count or self.ranks or 1

    @property
    def wants_cards(self) -> bool:
        return bool(self.card_count or self.card_indices)

    def to_json(self) -> str:
        """Canonical: equal specs give equal text."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`. Raises ValueError or TypeError for anything else."""
        raw: dict[str, Any] = json.loads(text)
        if not isinstance(raw, dict):
            raise TypeError(f"a spec is a JSON object, not {type(raw).__name__}")
        for name in ("command", "card_indices", "grace_steps"):
            raw[name] = tuple(raw.get(name, ()))
        return cls(**raw)

    def digest(self) -> str:
        """SHA-256 over all fields, hexadecimal: what makes a second start the same or another job."""
        import hashlib

        return hashlib.sha256(self.to_json().encode("utf-8", "surrogateescape")).hexdigest()


def violations(spec: JobSpec) -> list[Violation]:
    """Everything that is wrong with a spec as such; what depends on this node (users, cards) is not looked at."""
    found: list[Violation] = []

    def bad(name: str, description: str) -> None:
        found.append(Violation(name, description))

    if not JOB_ID.fullmatch(spec.job_id):
        shown = spec.job_id if len(spec.job_id) <= 40 else f"{spec.job_id[:40]}... ({len(spec.job_id)} characters)"
        bad("job_id", f"{shown!r}: allowed are 1 to 128 of A-Z a-z 0-9 . _ - beginning with a letter or a digit")
    if not spec.command:
        bad("command", "is empty: give the program to run and its arguments")
    elif not spec.command[0]:
        bad("command[0]", "is an empty string: give the program to run")
    for i, word in enumerate(spec.command):
        _check_string(found, f"command[{i}]", word)
    for name, value in spec.env.items():
        if not name or "=" in name or "\0" in name:
            bad(f"env[{name!r}]", "a name must not be empty and must not contain '=' or NUL")
        else:
            _check_string(found, f"env[{name}]", f"{name}={value}")
    if spec.ranks and spec.wants_cards:
        bad("ranks", f"{spec.ranks} together with cards: give one of the two; each card gets one rank")
    if not 0 <= spec.ranks <= MAX_RANKS:
        bad("ranks", f"{spec.ranks}: allowed are 1 to {MAX_RANKS}")
    if spec.card_count and spec.card_indices:
        bad("cards", "count and indices: give one of the two")
    if not 0 <= spec.card_count <= MAX_RANKS:
        bad("cards.count", f"{spec.card_count}: allowed are 1 to {MAX_RANKS}")
    if len(set(spec.card_indices)) != len(spec.card_indices):
        bad("cards.indices", f"{list(spec.card_indices)}: a card is named twice")
    _check_folder(found, spec.workdir)
    if "\0" in spec.user or len(spec.user) > 256:
        bad("user", "must be a user's name or number")
    _check_grace(found, spec.grace_steps)
    if not 0 <= spec.master_port <= 65535:
        bad("master_port", f"{spec.master_port}: allowed are 1 to 65535, or 0 for a free one")
    if "\0" in spec.master_addr or len(spec.master_addr) > 253:
        bad("master_addr", "must be a host name or address")
    if not 1 <= spec.node_count <= 65536:
        bad("node_count", f"{spec.node_count}: allowed are 1 to 65536")
    elif not 0 <= spec.node_rank < spec.node_count:
        bad("node_rank", f"{spec.node_rank}: with {spec.node_count} node(s) allowed are 0 to {spec.node_count - 1}")
    if spec.node_count > 1 and not (spec.master_addr and spec.master_port):
        bad("master_addr", "a job of several nodes needs master_addr and master_port, the same on every node")
    if len(spec.labels) > MAX_LABELS:
        bad("labels", f"{len(spec.labels)} labels: allowed are {MAX_LABELS}")
    for key, value in spec.labels.items():
        sizes = _size(key), _size(value)
        if not key or None in sizes or max(size or 0 for size in sizes) > 256 or "\0" in key + value:
            bad(f"labels[{key[:40]!r}]", "a key has 1 to 256 bytes, a value at most 256")
    if spec.max_runtime is not None and not 0 < spec.max_runtime <= 10 * 365 * 24 * 3600:
        bad("max_runtime", f"{spec.max_runtime} s: must be above 0 and at most ten years")
    return found


def _size(value: str) -> int | None:
    """Bytes that a process is given for it; None for what cannot be written as bytes."""
    try:
        return len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return None


def _check_string(found: list[Violation], name: str, value: str) -> None:
    size = _size(value)
    if "\0" in value:
        found.append(Violation(name, "contains a NUL character, which no process can be given"))
    elif size is None:
        found.append(Violation(name, "is no text: it contains half of a character"))
    elif size >= MAX_STRING:
        found.append(Violation(name, f"is longer than the {MAX_STRING - 1} bytes that the kernel allows"))


def _check_folder(found: list[Violation], workdir: str) -> None:
    if not workdir:
        return
    if not workdir.startswith("/"):
        found.append(Violation("workdir", f"{workdir!r}: must be an absolute path"))
    if "\0" in workdir or len(workdir) > 4095:
        found.append(Violation("workdir", "must be a path of at most 4095 characters without NUL"))


def _check_grace(found: list[Violation], steps: tuple[float, ...]) -> None:
    if len(steps) > 64:
        found.append(Violation("grace_steps", f"{len(steps)} steps: allowed are 64"))
    if any(not 0 <= step <= MAX_GRACE_S for step in steps) or sum(steps) > MAX_GRACE_S:
        allowed = f"each at least 0 s, together at most {MAX_GRACE_S:.0f} s"
        found.append(Violation("grace_steps", f"{list(steps)}: {allowed}"))
