"""What a job is asked to be. The rules that a request must meet are in spec_rules.py."""

import enum
import json
import re
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Self

MAX_RANKS = 4096
MAX_GRACE_S = 24 * 3600.0
MAX_LABELS = 64
#: Linux' own limit for one argument or environment string (MAX_ARG_STRLEN), in bytes.
MAX_STRING = 131072
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: SIGTERM, then looks after 1, 2, 4 and 8 s, then SIGKILL: the steps of ModelArts' launcher (15 s in all).
DEFAULT_GRACE_STEPS = (1.0, 2.0, 4.0, 8.0)
#: Longest wait for what the platform brings (a completed rank table; names and sshd ports of an MPI job), in seconds.
DEFAULT_READY_S = 600.0
#: Time limits of what runs before and after the ranks, in seconds.
DEFAULT_SCRIPT_S = 600.0
DEFAULT_REQUIREMENTS_S = 1800.0
#: What a limit may be set to beside a number: no limit.
UNLIMITED = -1


class Boot(enum.StrEnum):
    """Who makes the ranks: muster itself, or a launcher that muster starts once per node; see boot.py."""

    RANKS = "ranks"
    TORCHRUN = "torchrun"
    MSRUN = "msrun"
    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"
    MPI = "mpi"


class OnHang(enum.StrEnum):
    """What is done about a job that is found hung."""

    NOTIFY = "notify"
    STOP = "stop"
    RESTART = "restart"


class TrainingMode(enum.StrEnum):
    """MindSpore's training modes: presets of the environment; see presets.py."""

    NORMAL = "normal"
    HIGH_PERFORMANCE = "high_performance"
    DIAGNOSIS = "diagnosis"


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
    boot: str = Boot.RANKS.value
    nodes: tuple[str, ...] = ()
    rank_table: str = ""
    ready_timeout: float | None = None
    max_restarts: int = 0
    restart_backoff: float | None = None
    pre_start: str = ""
    pre_start_timeout: float | None = None
    requirements: str = ""
    requirements_timeout: float | None = None
    epilog: str = ""
    epilog_timeout: float | None = None
    limits: dict[str, float] = field(default_factory=dict)
    umask: int | None = None
    nice: int = 0
    training_mode: str = ""
    on_hang: str = ""
    max_hang_restarts: int | None = None
    #: Settings of the hang rule, as they are written, by name.
    hang: dict[str, str] = field(default_factory=dict)
    notify_webhook: str = ""
    notify_events: tuple[str, ...] = ()
    notify_secret: str = ""

    @property
    def local_ranks(self) -> int:
        """Ranks on this node, by whomever they are made. Of a job whose rank table says it: 1, see `counted`."""
        return len(self.card_indices) or self.card_count or self.ranks or 1

    @property
    def counted(self) -> bool:
        """False where only the rank table tells how many ranks there are."""
        return not self.rank_table or self.wants_cards or bool(self.ranks)

    @property
    def processes(self) -> int:
        """What muster itself starts on this node: its ranks, or a launcher; a parameter server beside a worker."""
        if self.boot == Boot.RANKS:
            return self.local_ranks
        return 2 if self.boot == Boot.TENSORFLOW and self.node_count > 1 else 1

    @property
    def wants_cards(self) -> bool:
        return bool(self.card_count or self.card_indices)

    def to_json(self) -> str:
        """Canonical: equal specs give equal text, also over versions that know more fields: defaults are left out."""
        plain = asdict(self)
        for name, default in _DEFAULTS.items():
            if plain[name] == default:
                del plain[name]
        return json.dumps(plain, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`, without the fields that only a newer version knows. Raises ValueError or TypeError for
        anything else."""
        raw: dict[str, Any] = json.loads(text)
        if not isinstance(raw, dict):
            raise TypeError(f"a spec is a JSON object, not {type(raw).__name__}")
        for name in ("command", "card_indices", "grace_steps", "nodes", "notify_events"):
            raw[name] = tuple(raw.get(name, ()))
        return cls(**{name: value for name, value in raw.items() if name in cls.__slots__})

    def digest(self) -> str:
        """SHA-256 over all fields, hexadecimal: what makes a second start the same or another job. One rank that is
        asked for is the one that a job has by default."""
        return _sha256(replace(self, ranks=0) if self._one_rank else self)

    def has_digest(self, digest: str) -> bool:
        """Whether a record with this digest is of the same spec."""
        if digest == self.digest():
            return True
        # Earlier versions gave one rank that was asked for another digest.
        return self._one_rank and digest == _sha256(replace(self, ranks=1))

    @property
    def _one_rank(self) -> bool:
        """With a rank table, `ranks` says how many devices the table must have: 0 is another request then."""
        return self.ranks in (0, 1) and not self.wants_cards and not self.rank_table

    def differences(self, other: "JobSpec") -> list[str]:
        """The fields of the API in which two specs differ, without their values: "ranks", "env['A']"."""
        found: dict[str, None] = {}
        for name in _FIELDS:
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours == theirs or (name == "ranks" and self._one_rank and other._one_rank):
                continue
            if isinstance(ours, dict) and isinstance(theirs, dict):
                form = "limits.{}" if name == "limits" else name + "[{!r}]"
                keys = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
                found.update(dict.fromkeys(form.format(key[:40]) for key in keys))
            else:
                found[_API_NAMES.get(name, name)] = None
        return list(found)


def _sha256(spec: JobSpec) -> str:
    import hashlib

    return hashlib.sha256(spec.to_json().encode("utf-8", "surrogateescape")).hexdigest()


def _defaults() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for f in fields(JobSpec):
        if f.default is not MISSING:
            found[f.name] = f.default
        elif f.default_factory is not MISSING:
            found[f.name] = f.default_factory()
    return found


_DEFAULTS = _defaults()
_FIELDS = tuple(f.name for f in fields(JobSpec))
#: Names in the API (proto/muster/v1/job.proto) of fields that are called otherwise here.
_API_NAMES = {
    "card_count": "cards",
    "card_indices": "cards",
    "notify_webhook": "notify.webhook",
    "notify_events": "notify.events",
    "notify_secret": "notify.secret",
}
