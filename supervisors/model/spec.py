"""The spec of a job: the table of all its fields.

Options, job.toml, messages, rules, defaults, digest and the reference page derive from the table. `spec_fields.py` has
the kinds of fields. Rules about several fields at once are in `launch/spec_rules.py`.
"""

import enum
import json
from collections.abc import Sequence
from dataclasses import MISSING, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Self

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model import spec_fields as kind
from muster.supervisors.model.rules import staging_urls
from muster.supervisors.model.rules.notify_rules import JOB_EVENTS, without_secrets
from muster.supervisors.system import trust

MAX_RANKS = 4096
MAX_GRACE_S = 24 * 3600.0
MAX_LABELS = 64
MAX_SERVICES = 16
MAX_RESTARTS = 1000
#: SIGTERM, then looks after 1, 2, 4 and 8 s, then SIGKILL: the steps of ModelArts' launcher (15 s in all).
DEFAULT_GRACE_STEPS = (1.0, 2.0, 4.0, 8.0)
#: Longest wait for what the platform brings (a completed rank table; names and sshd ports of an MPI job), in seconds.
DEFAULT_READY_S = 600.0
#: Time limits of what runs before and after the ranks, in seconds.
DEFAULT_SCRIPT_S = 600.0
DEFAULT_REQUIREMENTS_S = 1800.0
DEFAULT_STAGING_S = 7200.0
#: Tries in a row without a byte of progress, of what is copied before and after the ranks.
DEFAULT_STAGING_TRIES = 8
#: Of a field that may be switched on and off; empty: whatever is usual.
YES_NO = ("yes", "no")


class Boot(enum.StrEnum):
    """Who makes the ranks: muster itself, or a launcher or the job's command, which muster starts once per node; see
    boot.py."""

    RANKS = "ranks"
    TORCHRUN = "torchrun"
    MSRUN = "msrun"
    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"
    MPI = "mpi"
    COMMAND = "command"


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


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g}m"


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request that is wrong: its name, and what it was and what is allowed in one sentence."""

    field: str
    description: str


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A request to run a job. Times are in seconds.

    Each field is a row of the table: type, kind, metavar, help, names that differ, rule, default. The order is that of
    `--help`. How to add a field: CONTRIBUTING.md.
    """

    # fmt: off
    job_id: Annotated[str, kind.JobId(
        "ID", "Name of the job. The same id with the same spec is the same job.", unset="muster makes one",
        what="1 to 128 of A-Z a-z 0-9 . _ -, beginning with a letter or a digit",
    )]
    command: Annotated[tuple[str, ...], kind.Words(
        "COMMAND...", "The program and its arguments, exactly as given: no shell.", option=None,
        more="Everything from the first word that is not an option belongs to it.",
    )]
    card_count: Annotated[int, kind.Cards(
        "N|I,J-K|all",
        "One rank per card: N free cards, the cards with these indices (`0-3,7`; `3,` means card 3 alone), or all.",
        more="Free cards are of one model, healthy ones first. Not together with `ranks`.", key="cards",
        api="cards.count", least=1, most=MAX_RANKS, unset="none, or `MA_NUM_GPUS` of `env`",
    )] = 0
    card_indices: Annotated[tuple[int, ...], kind.Indices("", "", key="cards", api="cards.indices")] = ()
    all_cards: Annotated[bool, kind.AllCards("", "", key="cards", api="cards.all")] = False
    ranks: Annotated[int, kind.Whole(
        "N", "Number of ranks on a host without cards.", least=1, most=MAX_RANKS,
        unset="1, or what the rank table says",
    )] = 0
    env: Annotated[dict[str, str], kind.Variables(
        "NAME[=VALUE]", "Set a variable for the ranks; without =VALUE, to the value it has here.",
        more="muster shows the values nowhere.", hide=lambda env: dict.fromkeys(env, ""),
    )] = field(default_factory=dict)
    workdir: Annotated[str, kind.FilePath(
        "DIR", "Working folder of the ranks.",
        unset="a new folder for each rank; `run` and `start` on the node itself: this folder",
    )] = ""
    user: Annotated[str, kind.Text(
        "NAME", "Run ranks and scripts as this user.", more="Needs a daemon that runs as root.",
        unset="the daemon's user", most=256, what="a user's name or number",
    )] = ""
    nodes: Annotated[tuple[str, ...], kind.Hosts(
        "A,B", "Names of all nodes of the job, the same on each node; the ranks meet at the first.",
        unset="none, or `VC_WORKER_HOSTS` of `env`", what="names of all nodes, as in a,b",
    )] = ()
    node_count: Annotated[int, kind.Whole(
        "", "Number of nodes; `nodes` sets it.", option=None, key=None, least=1, most=65536,
    )] = 1
    node_rank: Annotated[int, kind.Whole(
        "I", "Which of the nodes this is, from 0; needed with several nodes.", most=65535,
    )] = 0
    master_addr: Annotated[str, kind.Text(
        "ADDR", "Where the ranks meet, if not at the first node.", unset="the first node, or 127.0.0.1", most=253,
        what="a host name or address",
    )] = ""
    master_port: Annotated[int, kind.Whole(
        "PORT", "Port at which the ranks meet.", most=65535,
        more="Needed with several nodes, the same on each (torchrun: 18888).", unset="a free port",
    )] = 0
    skip_check: Annotated[bool, kind.Flag(
        "", "Skip the pre-checks. What `muster node` shows as CRITICAL still refuses the job.",
    )] = False
    max_runtime: Annotated[float | None, kind.TimeLimit(
        "DURATION", "End the job when its ranks have run this long, all attempts together.", unset="no limit",
        more="The job then fails with exit code 124.",
    )] = None
    grace_steps: Annotated[tuple[float, ...], kind.Steps(
        "DURATION", "Time from SIGTERM to SIGKILL when the job is stopped.",
        more="A list sets the steps: after each of them muster checks whether the processes have ended.", key="grace",
        most=MAX_GRACE_S, unset="15s in steps of 1, 2, 4 and 8s",
    )] = ()
    boot: Annotated[str, kind.Choice(
        "MODE", "Who starts the ranks, muster (ranks), a launcher, or the command itself: {allowed}.",
        more="[Boot modes](../guides/boot-modes.md)", allowed=tuple(Boot),
        unset="ranks, or `MA_RUN_METHOD` of `env`",
    )] = Boot.RANKS.value
    rank_table: Annotated[str, kind.FilePath(
        "FILE", "Ascend's rank table, or its folder; the start waits until it is completed.",
        more="[Rank tables](../reference/rank-tables.md)", unset="none, or what ModelArts' variables in `env` say",
    )] = ""
    ready_timeout: Annotated[float | None, kind.TimeLimit(
        "DURATION", "Longest wait for the rank table, or for the nodes of an MPI job.", unset=_minutes(DEFAULT_READY_S),
    )] = None
    max_restarts: Annotated[int, kind.Whole(
        "N", "Start all ranks again after a failure, at most N times.", most=MAX_RESTARTS,
    )] = 0
    restart_backoff: Annotated[float | None, kind.Delay(
        "DURATION", "Pause before the first restart; each further pause is twice as long, up to 60s.", most=3600,
        unset="1s",
    )] = None
    pre_start: Annotated[str, kind.FilePath(
        "SCRIPT", "Run this script before the ranks of each attempt; the ranks get the variables that it exports.",
    )] = ""
    pre_start_timeout: Annotated[float | None, kind.TimeLimit(
        "DURATION", "Time limit of `pre_start`.", option=None, unset=_minutes(DEFAULT_SCRIPT_S),
    )] = None
    services: Annotated[tuple[str, ...], kind.Services(
        "CMD", "Run this shell command beside the ranks, from before their start until after their end.",
        more="The job fails if it ends before them. [Services](../guides/services.md)", option="service", least=1,
        most=MAX_SERVICES,
    )] = ()
    requirements: Annotated[str, kind.FilePath(
        "FILE", "Install these requirements with pip before the first attempt, for this job alone.",
    )] = ""
    requirements_timeout: Annotated[float | None, kind.TimeLimit(
        "DURATION", "Time limit of `requirements`.", option=None, unset=_minutes(DEFAULT_REQUIREMENTS_S),
    )] = None
    code: Annotated[str, kind.StagingUrl(
        "URL", "Copy this code before the first attempt; the ranks then work in its folder.",
        more="The folder lies in `workdir`, and its name is the last part of the URL. "
        "[Code, inputs and outputs by URL](../guides/staging.md)", hide=staging_urls.shown,
    )] = ""
    boot_files: Annotated[bool, kind.Flag(
        "", "Use `pip-requirements.txt` and `ma-pre-start.sh` (or `.py`) beside the boot file, the first script of "
        "the command, as `requirements` and `pre_start`.", option=None,
    )] = False
    inputs: Annotated[dict[str, str], kind.Inputs(
        "URL=PATH", "Copy a file or folder to PATH before the first attempt.",
        more="A relative path starts at the ranks' working folder; `{node}`, `{host}`, `{job}` in the URL as for "
        "`outputs`.", option="input", hide=staging_urls.all_shown,
    )] = field(default_factory=dict)
    outputs: Annotated[dict[str, str], kind.Outputs(
        "PATH=URL", "Copy a file or folder to URL after the end, if the job has succeeded.",
        more="A relative path starts at the ranks' working folder. In the URL `{node}` stands for the number of the "
        "node in the job, `{host}` for its name, `{job}` for the job's id.",
        option="output", hide=staging_urls.all_shown,
    )] = field(default_factory=dict)
    output_always: Annotated[bool, kind.Flag(
        "", "Copy the outputs after a failure or a stop, too.",
    )] = False
    staging_credentials: Annotated[str, kind.FilePath(
        "FILE", "Keys for the URLs of code, inputs and outputs: a TOML file that only its owner may read.",
    )] = ""
    staging_timeout: Annotated[float | None, kind.TimeLimit(
        "DURATION", "Time limit of each of the copies: code, inputs, outputs.", unset=_minutes(DEFAULT_STAGING_S),
    )] = None
    staging_tries: Annotated[int | None, kind.Whole(
        "N", "Give up a copy after N tries in a row without a byte.", option=None, least=1, most=1000,
        unset=str(DEFAULT_STAGING_TRIES),
    )] = None
    epilog: Annotated[str, kind.FilePath("SCRIPT", "Run this script once after the end, whatever the result.")] = ""
    epilog_timeout: Annotated[float | None, kind.TimeLimit(
        "DURATION", "Time limit of `epilog`.", option=None, unset=_minutes(DEFAULT_SCRIPT_S),
    )] = None
    limits: Annotated[dict[str, float], kind.LimitTable(
        "NAME=VALUE", "Limit of each rank (nofile, memlock, stack, core, nproc) or of the job (memory, cpus, pids).",
        more="[Limits, user, umask, nice](../concepts/ranks.md#limits-user-umask-nice)", option="limit",
        unset="the daemon's limits",
    )] = field(default_factory=dict)
    umask: Annotated[int | None, kind.Octal(
        "MASK", "File mode mask of ranks and scripts.", most=0o777,
        unset="022; `run` and `start` on the node itself: this umask",
    )] = None
    nice: Annotated[int, kind.Whole(
        "N", "Scheduling priority of the ranks, {allowed}.", least=-20, most=19,
        more="Below 0 needs a daemon that runs as root.",
    )] = 0
    no_new_privs: Annotated[str, kind.Choice(
        "yes|no", "Keep programs of the job from gaining privileges (sudo, setuid, file capabilities).",
        more="[Lock a node down: jobs](../guides/lock-down.md#jobs)", allowed=YES_NO,
        unset="no; jobs of other users than the daemon's: what `[hardening]` says, yes",
    )] = ""
    capabilities: Annotated[tuple[str, ...], kind.Capabilities(
        "A,B|none|all", "The capabilities that programs of the job can have at most (bounding set).",
        more="[Lock a node down: jobs](../guides/lock-down.md#jobs)",
        unset="all; jobs of other users than the daemon's: what `[hardening]` says, none",
        what="names of capabilities, as in net_bind_service,sys_nice, or none, or all",
    )] = ()
    private_tmp: Annotated[str, kind.Choice(
        "yes|no", "Give the job a /tmp and /var/tmp of its own, which muster removes at its end.",
        more="[Lock a node down: jobs](../guides/lock-down.md#jobs)", allowed=YES_NO,
        unset="no; jobs of other users than the daemon's: what `[hardening]` says, no",
    )] = ""
    read_only: Annotated[tuple[str, ...], kind.Paths(
        "A,B", "Folders and files that the job cannot write to.",
        more="[Lock a node down: jobs](../guides/lock-down.md#jobs)",
        unset="none; jobs of other users than the daemon's: those of `[hardening]`",
        what="absolute paths, as in /usr,/etc",
    )] = ()
    seccomp: Annotated[str, kind.FilePath(
        "FILE", "Filter the job's system calls by this profile: JSON as for docker and podman, on the node.",
        more="[Lock a node down: seccomp profiles](../guides/lock-down.md#seccomp-profiles)",
        unset="none; jobs of other users than the daemon's: that of `[hardening]`",
    )] = ""
    training_mode: Annotated[str, kind.Choice(
        "MODE", "MindSpore's environment: {allowed}.", more="[Training modes](../concepts/ranks.md#training-modes)",
        allowed=tuple(TrainingMode),
    )] = ""
    on_hang: Annotated[str, kind.Choice(
        "ACTION", "What muster does about a job that hangs: {allowed}.",
        more="Only from the confidence `action_confidence` on; `restart` within `max_restarts`. "
        "[Is a job hung?](../concepts/hang.md)",
        allowed=tuple(OnHang), unset="notify",
    )] = ""
    max_hang_restarts: Annotated[int | None, kind.Whole(
        "N", "Start the job again after a hang at most N times.", option=None, most=MAX_RESTARTS, unset="3",
    )] = None
    hang: Annotated[dict[str, str], kind.RuleSettings(
        "", "Settings of the hang rule for this job, over those of the node.",
        more="[Is a job hung?](../concepts/hang.md)",
        option=None,
    )] = field(default_factory=dict)
    notify_webhook: Annotated[str, kind.Webhook(
        "URL|@FILE", "Post this job's events to URL, or to the URL in FILE: all users can read a command line.",
        more="[Notifications](../guides/notify.md)", api="notify.webhook", hide=without_secrets,
    )] = ""
    notify_events: Annotated[tuple[str, ...], kind.EventNames(
        "A,B", "Which events to post: {allowed}.", api="notify.events", allowed=JOB_EVENTS, unset="all but slow_rank",
        what="names of events, as in failed,hung",
    )] = ()
    notify_secret: Annotated[str, kind.Secret(
        "@FILE", "Sign the notifications with the secret in FILE.", api="notify.secret", hide=lambda _: "",
    )] = ""
    hold: Annotated[bool, kind.Flag(
        "", "Start the ranks only after a call of Release: the barrier of a job on several nodes.", option=None,
        key=None,
    )] = False
    labels: Annotated[dict[str, str], kind.Labels(
        "KEY=VALUE", "A label of the job, for `muster ps --label`.", option="label", most=MAX_LABELS,
    )] = field(default_factory=dict)
    # fmt: on

    @property
    def local_ranks(self) -> int:
        """Ranks on this node, made by muster or a launcher. Of a job whose rank table says it: 1, see `counted`. Of a
        request for all cards likewise; the spec of a job that has them says how many they are."""
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
        """Whether it asks for cards, by count or by number, or for all."""
        return bool(self.card_count or self.card_indices or self.all_cards)

    def stop_steps(self, asked: Sequence[float] | None = None) -> tuple[float, ...]:
        """The steps of a stop, in seconds: those that were asked for; None: the job's own, or muster's."""
        return tuple(map(float, asked)) if asked is not None else tuple(self.grace_steps) or DEFAULT_GRACE_STEPS

    def to_json(self) -> str:
        """Canonical: equal specs give equal text, also over versions that know more fields: defaults are left out."""
        values = ((name, getattr(self, name), about.default) for name, about in FIELDS.items())
        plain = {name: value for name, value, default in values if value != default}
        return json.dumps(plain, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`, without the fields that only a newer version knows. Raises ValueError or TypeError for
        anything else."""
        raw: dict[str, Any] = json.loads(text)
        if not isinstance(raw, dict):
            raise TypeError(f"a spec is a JSON object, not {type(raw).__name__}")
        for name in _MANY & raw.keys():
            raw[name] = tuple(raw[name])
        return cls(**{name: value for name, value in raw.items() if name in FIELDS})

    @classmethod
    def read(cls, path: Path, job_id: str) -> Self:
        """The spec of this job from its folder. Raises ValueError or TypeError where the file is damaged, or is that of
        another job, whose folder somebody has put here; Untrusted, OSError."""
        spec = cls.from_json(trust.read(path).decode())
        if spec.job_id != job_id:
            raise ValueError(f"it is the spec of job {spec.job_id!r}: somebody put that job's folder here")
        return spec

    def digest(self) -> str:
        """SHA-256 over all fields, hexadecimal: what makes a second start the same or another job. One rank that is
        asked for is the default."""
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
        for name, about in FIELDS.items():
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours == theirs or (name == "ranks" and self._one_rank and other._one_rank):
                continue
            if isinstance(ours, dict):
                keys = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
                found.update(dict.fromkeys(about.api + about.part(key) for key in keys))
            else:  # a job has so many cards or just these: one thing to a user
                found["cards" if about.key == "cards" else about.api] = None
        return list(found)


def _sha256(spec: JobSpec) -> str:
    import hashlib

    return hashlib.sha256(spec.to_json().encode("utf-8", "surrogateescape")).hexdigest()


def _bound(row: Any) -> kind.Field:
    """A row of the table with the names and the default that it leaves to the dataclass."""
    about: kind.Field = row.type.__metadata__[0]
    about.name = row.name
    about.default = row.default if row.default_factory is MISSING else row.default_factory()
    about.api = about.api or row.name
    about.key = row.name if about.key == "" else about.key
    option = about.option or (about.key or "").replace("_", "-")
    about.option = f"--{option}" if option and about.option is not None else None
    about.allowed = tuple(map(str, about.allowed))  # members of an enum are more than words to click
    about.help = about.help.replace("{allowed}", about.allows())
    return about


#: The table, by name, in the order of the dataclass.
FIELDS = {row.name: _bound(row) for row in fields(JobSpec)}


def variable(name: str) -> str:
    """What an environment variable is called in a message: env['A']."""
    return "env" + FIELDS["env"].part(name)


_MANY = {name for name, about in FIELDS.items() if about.many}
