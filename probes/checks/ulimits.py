"""Are the resource limits high enough for InfiniBand, which pins memory and opens a great many queues and files?

What counts is what a rank gets. That is neither what this shell has nor, always, what the daemon has: see `inherited`
for what ranks start with, and `LimitReading` for what a job's own limits make of it.
"""

import os
import re
import resource
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from muster.probes.calls import watched
from muster.probes.checks.result import Action, CheckResult, Code, Status
from muster.probes.kernel import process
from muster.probes.kernel.dataclass import dataclass

When = Literal["infiniband", "always", "never"]

ITEM = "ulimit"
_INFINITE = resource.RLIM_INFINITY
#: Names in /proc/PID/limits of those that a job may set, by number.
_NAMES = {
    resource.RLIMIT_MEMLOCK: "Max locked memory",
    resource.RLIMIT_NOFILE: "Max open files",
    resource.RLIMIT_STACK: "Max stack size",
    resource.RLIMIT_NPROC: "Max processes",
    resource.RLIMIT_CORE: "Max core file size",
}
#: Number of the capability to raise a hard limit (capabilities(7)). Root in a container often has it not.
_CAP_SYS_RESOURCE = 24
#: No process may have more descriptors than that, whatever its rights.
_NR_OPEN = "/proc/sys/fs/nr_open"


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: its name in a job's `limits`, number of the resource, name and option in a shell, bytes per unit, what
    must be exceeded (None: nothing)."""

    key: str
    number: int
    name: str
    option: str
    unit: int
    minimum: int | None

    @property
    def suffix(self) -> str:
        """The unit, as `ulimit -a` prints it."""
        return " KB" if self.unit == 1024 else ""


@dataclass(frozen=True, slots=True)
class Inherited:
    """What ranks start with: (soft, hard) by resource, a soft limit that cannot be known being None; of whom it was
    read; whether hard limits can be raised; how many descriptors the kernel allows at most."""

    values: Mapping[int, tuple[int | None, int]]
    source: str
    privileged: bool
    nr_open: int


def inherited(daemon: int = 0, nursery: int = 0, given: int | None = None) -> Inherited:
    """What ranks inherit that this nursery's supervisors start; without one (0), of the daemon; without that, of us.

    `given`: the soft limit of open files that a daemon which asks for itself gives its ranks. It has raised its own;
    of another daemon that is not known.

    Everything is the nursery's, which may be older than its daemon and then has limits of another time; but it has
    raised its own soft limit of open files, and gives ranks the limit that it was started with. Its command line says
    which (`--nofile`); where it does not, it was the daemon's if this daemon started it, and is unknown if another did.
    /proc lets every user read that of every process. Raises OSError, ValueError.
    """
    daemon = daemon or os.getpid()
    values: dict[int, tuple[int | None, int]] = dict(of_process(daemon))
    soft: int | None
    parent, source = daemon, "this process" if daemon == os.getpid() else f"the daemon, pid {daemon}"
    if given is not None or (daemon != os.getpid() and not nursery):
        values[resource.RLIMIT_NOFILE] = (given, values[resource.RLIMIT_NOFILE][1])
    if nursery:
        parent, source = nursery, f"the nursery, pid {nursery}"
        soft, _ = values[resource.RLIMIT_NOFILE]
        values = dict(of_process(nursery))
        if older := _started(nursery) < _started(daemon):
            source += ", which is older than its daemon and keeps its limits until it ends"
        if (told := _given(nursery)) is not None or older:
            soft = told
        values[resource.RLIMIT_NOFILE] = (soft, values[resource.RLIMIT_NOFILE][1])
    return Inherited(values, source, may_raise(parent), int(Path(_NR_OPEN).read_text()))


def of_process(pid: int) -> dict[int, tuple[int, int]]:
    """(soft, hard) of a process, by resource. Raises OSError, ValueError for a table that is not understood."""
    text = Path(f"/proc/{pid}/limits").read_text()
    found = {}
    for number, name in _NAMES.items():
        line = re.search(rf"^{name} +(\d+|unlimited) +(\d+|unlimited)", text, re.MULTILINE)
        if line is None:
            raise ValueError(f"/proc/{pid}/limits: has no {name!r}")
        soft, hard = (_INFINITE if word == "unlimited" else int(word) for word in line.groups())
        found[number] = (soft, hard)
    return found


def _given(nursery: int) -> int | None:
    found = re.search(rb"\0--nofile\0(-?\d+)\0", Path(f"/proc/{nursery}/cmdline").read_bytes())
    return int(found[1]) if found else None


def _started(pid: int) -> int:
    """In clock ticks since the boot. Raises OSError where there is no such process."""
    if (stat := process.read_stat(pid)) is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return stat.start


def may_raise(pid: int) -> bool:
    """The capability counts in the first user namespace only, which is the one that maps every number to itself."""
    status = Path(f"/proc/{pid}/status").read_text()
    mapped = Path(f"/proc/{pid}/uid_map").read_text().split()
    capable = bool(process.effective_capabilities(status) >> _CAP_SYS_RESOURCE & 1)
    return capable and mapped == ["0", "0", str(2**32 - 1)]


@dataclass(frozen=True, slots=True)
class LimitReading:
    """What a rank gets of one limit, in bytes or counts. `soft` None: not known. `own`: the job says so itself.
    `refused`: why the job cannot have what it says, or empty."""

    limit: Limit
    soft: int | None
    hard: int
    own: bool = False
    refused: str = ""


def reading(limit: Limit, had: Inherited, asked: Mapping[str, float]) -> LimitReading:
    """A job's own limit is soft and hard at once (-1: unlimited), and is set by the rank to be before it becomes the
    job's user; what it does not name stays as it was inherited."""
    soft, hard = had.values[limit.number]
    if limit.key not in asked:
        return LimitReading(limit, soft, hard)
    value = _INFINITE if asked[limit.key] == -1 else int(asked[limit.key])
    refused = ""
    if limit.number == resource.RLIMIT_NOFILE and _above(value, had.nr_open):
        refused = f"the kernel allows at most {had.nr_open} (sysctl fs.nr_open)"
    elif _above(value, hard) and not had.privileged:
        refused = f"the hard limit is {_show(limit, hard)}, and only root (CAP_SYS_RESOURCE) may raise it"
    return LimitReading(limit, value, value, own=True, refused=refused)


async def check(
    limits: tuple[Limit, ...],
    *,
    when: When,
    infiniband_path: str,
    user: str,
    asked: Mapping[str, float],
    read: Callable[[], Inherited] = inherited,
) -> CheckResult:
    """Compares the limits that ranks get with `limits`; `asked` are the job's own, by name.

    Neither the switch to `user` nor limits.conf (PAM) has a part in it. The soft limit is what counts, as in `ulimit
    -a` and for ModelArts. With `when` "infiniband" the minimums apply only where `infiniband_path` has entries; a limit
    that the job asks for and cannot have is found in any case but "never".
    """
    if when == "never":
        return CheckResult(ITEM, Status.NOT_APPLICABLE, Code.ULIMIT_OFF, "switched off by setting")
    try:
        applies = when == "always" or await _adapters(infiniband_path)
    except OSError as error:
        return _unreadable(f"{infiniband_path}: cannot tell whether InfiniBand is in use: {error.strerror}", limits)
    if applies or asked:
        try:
            had = read()
            readings = [reading(limit, had, asked) for limit in limits]
        except (OSError, ValueError) as error:
            return _unreadable(f"cannot tell what limits ranks get: {error}", limits)
        if refused := [r for r in readings if r.refused]:
            return _refuse(refused, had)
    if not applies:
        none = f"no InfiniBand adapter in {infiniband_path}"
        return CheckResult(ITEM, Status.NOT_APPLICABLE, Code.ULIMIT_NO_INFINIBAND, none)
    return judge([r for r in readings if r.limit.minimum is not None], user, had.source)


async def _adapters(path: str) -> bool:
    try:
        return bool(await watched.call(f"list {path}", lambda: os.listdir(path)))
    except (FileNotFoundError, NotADirectoryError):
        return False


def judge(readings: list[LimitReading], user: str, source: str) -> CheckResult:
    """The rule itself; an unlimited one exceeds everything."""
    limits = tuple(r.limit for r in readings)
    observed = ", ".join(f"{r.limit.name} {_show(r.limit, r.soft)}" for r in readings)
    who = f"ranks of user {user}" if user else "ranks"
    low = [r for r in readings if not _suffices(r.limit, r.hard if r.soft is None else r.soft)]
    unknown = [r for r in readings if r.soft is None and r not in low]
    if low:
        remedies = []
        if any(r.own for r in low):
            remedies.append("raise the job's own, or leave them out")
        if not all(r.own for r in low):
            remedies.append("raise them for musterd (Limit...= in its systemd unit, --ulimit of the container)")
        reason = f"{who} would get {'; '.join(map(_explain, low))}; {', '.join(remedies)} (inherited from {source})"
        return CheckResult(
            ITEM, Status.CRITICAL, Code.ULIMIT_TOO_LOW, reason, observed, _threshold(limits), Action.DRAIN
        )
    if unknown:
        names = ", ".join(f"{r.limit.name} (at most {_show(r.limit, r.hard)})" for r in unknown)
        reason = f"what {who} get of {names} is unknown (inherited from {source})"
        return _unreadable(reason, limits, observed)
    reason = f"{who} get {observed} (inherited from {source})"
    return CheckResult(ITEM, Status.OK, Code.ULIMIT_OK, reason, observed, _threshold(limits))


def _unreadable(reason: str, limits: tuple[Limit, ...], observed: str = "") -> CheckResult:
    return CheckResult(
        ITEM, Status.UNKNOWN, Code.ULIMIT_UNREADABLE, reason, observed, _threshold(limits), Action.INVESTIGATE
    )


def _refuse(refused: list[LimitReading], had: Inherited) -> CheckResult:
    # Not DRAIN: the node is as it should be, the job wants too much of it.
    reason = "; ".join(f"{r.limit.key}: the job asks for {_show(r.limit, r.soft)}, but {r.refused}" for r in refused)
    observed = ", ".join(f"{r.limit.name} hard {_show(r.limit, had.values[r.limit.number][1])}" for r in refused)
    return CheckResult(
        ITEM, Status.CRITICAL, Code.ULIMIT_NOT_ALLOWED, reason, observed, "what the job asks for", Action.INVESTIGATE
    )


def _above(value: int, other: int) -> bool:
    return other != _INFINITE and (value == _INFINITE or value > other)


def _suffices(limit: Limit, value: int) -> bool:
    return limit.minimum is None or _above(value, limit.minimum * limit.unit)


def _threshold(limits: tuple[Limit, ...]) -> str:
    wanted = (limit for limit in limits if limit.minimum is not None)
    return ", ".join(f"{limit.name} > {limit.minimum}{limit.suffix}" for limit in wanted)


def _explain(r: LimitReading) -> str:
    limit = r.limit
    text = f"{limit.name} (ulimit -{limit.option}) {_show(limit, r.hard if r.soft is None else r.soft)}"
    text += f", more than {limit.minimum}{limit.suffix} needed"
    if r.own:
        return f"{text} (the job's own limits.{limit.key})"
    # A user can then raise it for one job, without an administrator.
    if _suffices(limit, r.hard):
        return f"{text} (the hard limit would allow {_show(limit, r.hard)}: limits.{limit.key} of the job)"
    return text


def _show(limit: Limit, value: int | None) -> str:
    if value is None:
        return "not known"
    return "unlimited" if value == _INFINITE else f"{value // limit.unit}{limit.suffix}"
