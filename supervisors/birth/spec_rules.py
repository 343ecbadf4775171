"""The rules that the spec of a job must meet, whatever the node is like."""

import math

from muster.supervisors.birth.limits import RESOURCES
from muster.supervisors.birth.modes import boot, modelarts
from muster.supervisors.model import notify_rules
from muster.supervisors.model.spec import (
    JOB_ID,
    MAX_GRACE_S,
    MAX_LABELS,
    MAX_RANKS,
    MAX_STRING,
    UNLIMITED,
    Boot,
    JobSpec,
    OnHang,
    TrainingMode,
    Violation,
)
from muster.supervisors.paths import is_reserved

#: Longest time limit that can be asked for, in seconds: ten years.
_MAX_S = 10 * 365 * 24 * 3600.0
MAX_RESTARTS = 1000
#: Names of those `limits` that are the cgroup's: bytes, and a number of CPUs.
_RESERVED = "is how muster calls files of its own, which lie beside those of jobs: choose another name"
CGROUP_RESOURCES = ("memory", "cpus")


def violations(spec: JobSpec) -> list[Violation]:
    """Everything that is wrong with a spec as such; what depends on this node (users, cards) is not looked at."""
    found: list[Violation] = []

    def bad(name: str, description: str) -> None:
        found.append(Violation(name, description))

    if not JOB_ID.fullmatch(spec.job_id):
        shown = spec.job_id if len(spec.job_id) <= 40 else f"{spec.job_id[:40]}... ({len(spec.job_id)} characters)"
        bad("job_id", f"{shown!r}: allowed are 1 to 128 of A-Z a-z 0-9 . _ - beginning with a letter or a digit")
    elif is_reserved(spec.job_id):
        bad("job_id", f"{spec.job_id!r}: {_RESERVED}")
    platform = modelarts.platform_name(spec.env)
    if is_reserved(platform):
        bad("env[MA_VJ_NAME]", f"{platform!r}: {_RESERVED}")
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
    _check_path(found, "workdir", spec.workdir)
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
    if spec.nodes and len(spec.nodes) != spec.node_count:
        bad(
            "nodes",
            f"{len(spec.nodes)} names for {spec.node_count} node(s): name every node once, in the order of node_rank",
        )
    for i, name in enumerate(spec.nodes):
        if not name or len(name) > 253 or not name.isprintable() or any(c in name for c in " ,/"):
            bad(f"nodes[{i}]", f"{name[:80]!r}: must be a host name or address")
    if len(set(spec.nodes)) != len(spec.nodes):
        bad("nodes", "a name stands twice: name every node once")
    if spec.node_count > 1 and not (spec.master_addr and spec.master_port):
        bad("master_addr", "a job of several nodes needs master_addr and master_port, the same on every node")
    _check_boot(found, spec)
    _check_hang(found, spec)
    notify = notify_rules.job_problems(spec.notify_webhook, spec.notify_events, spec.notify_secret)
    found += [Violation(*problem) for problem in notify]
    _check_before_and_after(found, spec)
    _check_limits(found, spec)
    if len(spec.labels) > MAX_LABELS:
        bad("labels", f"{len(spec.labels)} labels: allowed are {MAX_LABELS}")
    for key, value in spec.labels.items():
        sizes = _size(key), _size(value)
        if not key or None in sizes or max(size or 0 for size in sizes) > 256 or "\0" in key + value:
            bad(f"labels[{key[:40]!r}]", "a key has 1 to 256 bytes, a value at most 256")
    _check_time(found, "max_runtime", spec.max_runtime)
    if not 0 <= spec.max_restarts <= MAX_RESTARTS:
        bad("max_restarts", f"{spec.max_restarts}: allowed are 0 to {MAX_RESTARTS}")
    if spec.restart_backoff is not None and not 0 <= spec.restart_backoff <= 3600:
        bad("restart_backoff", f"{spec.restart_backoff:g} s: allowed are 0 to 3600 s")
    return found


def _check_time(found: list[Violation], name: str, value: float | None) -> None:
    if value is not None and not 0 < value <= _MAX_S:
        found.append(Violation(name, f"{value} s: must be above 0 and at most ten years"))


def _check_boot(found: list[Violation], spec: JobSpec) -> None:
    if spec.boot not in frozenset(Boot):
        allowed = ", ".join(Boot)
        found.append(Violation("boot", f"{spec.boot[:40]!r}: allowed are {allowed}"))
    else:
        found += boot.problems(spec)
    if spec.training_mode and spec.training_mode not in frozenset(TrainingMode):
        found.append(Violation("training_mode", f"{spec.training_mode[:40]!r}: allowed are {', '.join(TrainingMode)}"))


def _check_hang(found: list[Violation], spec: JobSpec) -> None:
    if spec.on_hang and spec.on_hang not in frozenset(OnHang):
        found.append(Violation("on_hang", f"{spec.on_hang[:40]!r}: allowed are {', '.join(OnHang)}"))
    if spec.on_hang == OnHang.RESTART and not spec.max_restarts:
        found.append(Violation("on_hang", "is restart, and max_restarts is 0: say how often it may be started again"))
    if spec.max_hang_restarts is not None and not 0 <= spec.max_hang_restarts <= MAX_RESTARTS:
        found.append(Violation("max_hang_restarts", f"{spec.max_hang_restarts}: allowed are 0 to {MAX_RESTARTS}"))


def _check_before_and_after(found: list[Violation], spec: JobSpec) -> None:
    for name in ("rank_table", "pre_start", "requirements", "epilog"):
        _check_path(found, name, getattr(spec, name))
    for name in ("ready_timeout", "pre_start_timeout", "requirements_timeout", "epilog_timeout"):
        _check_time(found, name, getattr(spec, name))


def _check_limits(found: list[Violation], spec: JobSpec) -> None:
    for name, value in spec.limits.items():
        if name not in (*RESOURCES, *CGROUP_RESOURCES):
            allowed = ", ".join((*RESOURCES, *CGROUP_RESOURCES))
            found.append(Violation(f"limits.{name[:40]}", f"is not known: allowed are {allowed}"))
        elif name in CGROUP_RESOURCES:
            if not (math.isfinite(value) and 0 < value < 1 << 63):
                found.append(
                    Violation(f"limits.{name}", f"{value}: must be above 0 and below 2^63; leave it out for no limit")
                )
        elif value != UNLIMITED and not (math.isfinite(value) and 0 <= value < 1 << 63 and value == int(value)):
            found.append(Violation(f"limits.{name}", f"{value}: must be a whole number from 0, or -1 for unlimited"))
    if spec.umask is not None and not 0 <= spec.umask <= 0o777:
        found.append(Violation("umask", f"{spec.umask:#o}: allowed are 0 to 0o777"))
    if not -20 <= spec.nice <= 19:
        found.append(Violation("nice", f"{spec.nice}: allowed are -20 to 19"))


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


def _check_path(found: list[Violation], name: str, path: str) -> None:
    if not path:
        return
    if not path.startswith("/"):
        found.append(Violation(name, f"{path!r}: must be an absolute path"))
    if "\0" in path or len(path) > 4095:
        found.append(Violation(name, "must be a path of at most 4095 characters without NUL"))


def _check_grace(found: list[Violation], steps: tuple[float, ...]) -> None:
    if len(steps) > 64:
        found.append(Violation("grace_steps", f"{len(steps)} steps: allowed are 64"))
    if any(not 0 <= step <= MAX_GRACE_S for step in steps) or sum(steps) > MAX_GRACE_S:
        allowed = f"each at least 0 s, together at most {MAX_GRACE_S:.0f} s"
        found.append(Violation("grace_steps", f"{list(steps)}: {allowed}"))
