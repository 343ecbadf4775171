"""Are the file systems that training writes to large enough?

Which number is compared is a decision. ModelArts' guide (environment pre-check) calls the item `disk-size` and asks for
"more than 32 GB" without saying of what. muster compares the file system's *size*: that is what the item's name says,
and it is a property of the node, so that a verdict that isolates the node is the same today and tomorrow. What is
*free* depends on what the last job left behind, and cleaning up mends it; too little of it is therefore a WARN, as are
too few free inodes and a file system that is mounted read-only. 1 GB is 2**30 bytes, as in `df -h` and
`docker --shm-size`.
"""

import contextlib
import os

from muster.probes.calls import watched
from muster.probes.checks.result import Action, CheckResult, Code, Status
from muster.probes.kernel.dataclass import dataclass

GB = 1 << 30
#: Of the host's namespace of shared memory, from include/linux/proc_ns.h (PROC_IPC_INIT_INO). Who has another one, a
#: container or a pod, has a /dev/shm of its own: its size is an option, and says nothing about the node.
_HOSTS_IPC = 0xEFFF_FFFF


@dataclass(frozen=True, slots=True)
class Need:
    """What one path must offer. `min_gb` must be exceeded, not just met; an empty path is not checked."""

    item: str
    path: str
    min_gb: float
    required: bool
    min_free_percent: float
    #: A container's root may well be read-only on purpose; /dev/shm and /cache are of no use then.
    writable: bool


async def check(need: Need) -> CheckResult:
    """Compares `need` with statvfs(2) of its path, which may hang on a network file system: see watched.call."""
    if not need.path:
        return CheckResult(need.item, Status.NOT_APPLICABLE, Code.DISK_OFF, "its path is not set")
    try:
        stat = await watched.call(f"statvfs {need.path}", lambda: os.statvfs(need.path))
    except (FileNotFoundError, NotADirectoryError):
        return _absent(need)
    except (OSError, ValueError) as error:
        return CheckResult(
            need.item,
            Status.UNKNOWN,
            Code.DISK_UNREADABLE,
            f"{need.path}: the file system does not answer: {getattr(error, 'strerror', None) or error}",
            threshold=_threshold(need),
            action=Action.INVESTIGATE,
        )
    return judge(need, stat, containers_own=_is_containers_own(need.path))


def judge(need: Need, stat: os.statvfs_result, *, containers_own: bool = False) -> CheckResult:
    """The rule itself, gravest finding first. `containers_own`: the file system is this container's shared memory."""
    size, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    observed = f"size {_show(size)}, available {_show(free)}"

    def found(status: Status, code: Code, reason: str, action: Action, threshold: str = "") -> CheckResult:
        return CheckResult(need.item, status, code, reason, observed, threshold or _threshold(need), action)

    if stat.f_blocks == 0:  # a tmpfs without a limit, some FUSE and pseudo file systems
        return found(
            Status.UNKNOWN,
            Code.DISK_SIZE_NOT_TOLD,
            f"{need.path}: the file system does not report its size",
            Action.INVESTIGATE,
        )
    if size <= need.min_gb * GB:
        reason = f"{need.path}: its file system has {_show(size)}, more than {need.min_gb:g} GB are needed"
        if containers_own:
            reason += ": start the container with more (--shm-size, or a volume of shared memory)"
        action = Action.INVESTIGATE if containers_own else Action.DRAIN
        return found(Status.CRITICAL, Code.DISK_SIZE_TOO_SMALL, reason, action)
    if need.writable and stat.f_flag & os.ST_RDONLY:
        return found(
            Status.WARN,
            Code.DISK_READ_ONLY,
            f"{need.path}: mounted read-only",
            Action.INVESTIGATE,
            "mounted read-write",
        )
    for code, what, left, total in (
        (Code.DISK_SPACE_LOW, "space", stat.f_bavail, stat.f_blocks),
        (Code.DISK_INODES_LOW, "inodes", stat.f_favail, stat.f_files),
    ):
        # btrfs and others count no inodes and say 0 of 0.
        if total > 0 and left * 100 < total * need.min_free_percent:
            percent = left * 100 / total
            return found(
                Status.WARN,
                code,
                f"{need.path}: only {percent:.1f} % of the {what} free ({_show(free)}, {stat.f_favail} inodes); remove"
                " what earlier jobs left",
                Action.INVESTIGATE,
                f"free {what} >= {need.min_free_percent:g} %",
            )
    return found(Status.OK, Code.DISK_OK, f"{need.path}: {observed}", Action.NONE)


def _is_containers_own(path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.normpath(path) == "/dev/shm" and os.stat("/proc/self/ns/ipc").st_ino != _HOSTS_IPC
    return False


def _absent(need: Need) -> CheckResult:
    if need.required:
        return CheckResult(
            need.item,
            Status.CRITICAL,
            Code.DISK_PATH_REQUIRED,
            f"{need.path}: does not exist, and the settings require it",
            "absent",
            _threshold(need),
            Action.DRAIN,
        )
    return CheckResult(
        need.item,
        Status.NOT_APPLICABLE,
        Code.DISK_PATH_ABSENT,
        f"{need.path}: does not exist on this host",
        "absent",
        _threshold(need),
    )


def _threshold(need: Need) -> str:
    return f"size > {need.min_gb:g} GB"


def _show(size: int) -> str:
    """Rounded down, so that a size just under a threshold does not read as if it had been met."""
    unit, name = (GB, "GB") if size >= GB else (GB >> 10, "MB")
    return f"{size * 10 // unit / 10:.1f} {name}"
