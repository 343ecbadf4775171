"""Are the resource limits high enough for InfiniBand, which pins memory and opens a great many queues and files?"""

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from probes import watched
from probes.result import Action, CheckResult, Code, Status

When = Literal["infiniband", "always", "never"]

ITEM = "ulimit"


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: number of the resource, its name and option in a shell, bytes per unit, what must be exceeded."""

    number: int
    name: str
    option: str
    unit: int
    minimum: int

    @property
    def suffix(self) -> str:
        return " KB" if self.unit == 1024 else ""


async def check(
    limits: tuple[Limit, ...],
    *,
    when: When,
    infiniband_path: str,
    user: str,
    read: Callable[[int], tuple[int, int]] = resource.getrlimit,
) -> CheckResult:
    """Compares the limits that ranks get with `limits`.

    Ranks inherit the limits of this process: nursery and supervisors do not change them, neither does the switch to
    `user` (PAM, which reads limits.conf, has no part in it). The soft limit is what counts, as in `ulimit -a` and for
    ModelArts. With `when` "infiniband" the check applies only where `infiniband_path` has entries.
    """
    if when == "never":
        return CheckResult(ITEM, Status.NOT_APPLICABLE, Code.ULIMIT_OFF, "switched off by setting")
    if when == "infiniband":
        try:
            adapters = await watched.call(f"list {infiniband_path}", lambda: os.listdir(infiniband_path))
        except (FileNotFoundError, NotADirectoryError):
            adapters = []
        except OSError as error:
            return CheckResult(
                ITEM,
                Status.UNKNOWN,
                Code.ULIMIT_UNREADABLE,
                f"{infiniband_path}: cannot tell whether InfiniBand is in use: {error.strerror}",
                action=Action.INVESTIGATE,
            )
        if not adapters:
            return CheckResult(
                ITEM, Status.NOT_APPLICABLE, Code.ULIMIT_NO_INFINIBAND, f"no InfiniBand adapter in {infiniband_path}"
            )
    return judge([(limit, *read(limit.number)) for limit in limits], user)


def judge(readings: list[tuple[Limit, int, int]], user: str) -> CheckResult:
    """The rule itself, for (limit, soft, hard) in bytes or counts; RLIM_INFINITY exceeds everything."""
    observed = ", ".join(f"{limit.name} {_show(limit, soft)}" for limit, soft, _ in readings)
    threshold = ", ".join(f"{limit.name} > {limit.minimum}{limit.suffix}" for limit, _, _ in readings)
    who = f"ranks of user {user}" if user else "ranks"
    low = [_explain(*reading) for reading in readings if not _exceeds(reading[0], reading[1])]
    if low:
        remedy = "raise them for musterd (Limit...= in its systemd unit, --ulimit of the container)"
        reason = f"{who} would get {'; '.join(low)}; {remedy}"
        return CheckResult(ITEM, Status.CRITICAL, Code.ULIMIT_TOO_LOW, reason, observed, threshold, Action.DRAIN)
    return CheckResult(ITEM, Status.OK, Code.ULIMIT_OK, f"{who} get {observed}", observed, threshold)


def _exceeds(limit: Limit, value: int) -> bool:
    return value == resource.RLIM_INFINITY or value > limit.minimum * limit.unit


def _explain(limit: Limit, soft: int, hard: int) -> str:
    text = f"{limit.name} (ulimit -{limit.option}) {_show(limit, soft)}, more than {limit.minimum}{limit.suffix} needed"
    # Whoever reads this can then raise it in the job's own script, without an administrator.
    return f"{text} (the hard limit would allow {_show(limit, hard)})" if _exceeds(limit, hard) else text


def _show(limit: Limit, value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value // limit.unit}{limit.suffix}"
