"""File systems: free space, what must be mounted, and network file systems that do not answer."""

import errno
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import anyio

from muster.probes.calls import watched
from muster.probes.checks.result import CheckResult, Code, Status
from muster.probes.kernel import mount_table
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.mount_table import MountEntry
from muster.probes.node.node_check import About, Look, NodeCheck, NodeRule
from muster.probes.node.node_settings import words

FREE = NodeCheck(
    "disk-free",
    "space and inodes are left on file systems that matter (`disk_paths`)",
    60.0,
    (Code.FS_SPACE_LOW, Code.FS_INODES_LOW, Code.FS_UNREADABLE),
)
MOUNTS = NodeCheck(
    "mounts",
    "file systems are mounted (`mounts`), and none became read-only",
    30.0,
    (Code.FS_NOT_MOUNTED, Code.FS_READ_ONLY),
)
NFS = NodeCheck("nfs", "network file systems answer", 60.0, (Code.NFS_HANGS, Code.NFS_STALE, Code.NFS_NOT_RESPONDING))

#: Full: less than this share of the blocks, or of the inodes, is left. Seconds for an answer to that.
_FULL, _FULL_ANSWER_S = 0.01, 2.0
#: Whose servers are elsewhere. FUSE types of such are named by their program.
_NETWORK = re.compile(
    r"nfs4?|cifs|smb3|lustre|ceph|gpfs|beegfs|glusterfs|fuse\.(?:glusterfs|ceph|juicefs|s3fs|obsfs|lustre|sshfs)"
)
#: Types of file systems on disks of the node, which the kernel makes read-only after an error.
_ON_DISK = re.compile(r"ext[234]|xfs|btrfs|f2fs")
#: Options that stand for "read-only", also as newer kernels write it when a file system was shut down.
_READ_ONLY = frozenset({"ro", "emergency_ro", "shutdown"})


@dataclass(frozen=True, slots=True)
class Mount:
    """Where something is mounted, of which type, from what, whether it cannot be written, and whether it was mounted
    to be written, and its file system became read-only: the kernel does that after an error."""

    path: str
    type: str
    source: str
    read_only: bool
    became_read_only: bool = False


def mounts_of(entries: Iterable[MountEntry]) -> list[Mount]:
    """Of what is mounted; of several on one path the last counts, as it hides the others."""
    found: dict[str, Mount] = {}
    for one in entries:
        mounted = not _READ_ONLY.isdisjoint(one.options)
        system = not _READ_ONLY.isdisjoint(one.system_options)
        became = system and not mounted and _ON_DISK.fullmatch(one.type) is not None
        found.pop(one.path, None)
        found[one.path] = Mount(one.path, one.type, one.source, mounted or system, became)
    return list(found.values())


def mount_of(path: str, table: Sequence[Mount]) -> Mount | None:
    """The mount that an absolute path lies on, as far as its words tell: links are not followed, as that would ask file
    systems, which may not answer."""
    lies_on = [m for m in table if m.path == "/" or path == m.path or path.startswith(m.path + "/")]
    return max(lies_on, key=lambda mount: len(mount.path), default=None)


@dataclass(frozen=True, slots=True)
class Unwritable:
    """A file system that somebody could not write: whether other nodes have it, too, and whether it is full now, or
    became read-only by an error. `size`, `free`: in bytes; 0: not known."""

    mount: str
    type: str
    shared: bool
    full: bool = False
    became_read_only: bool = False
    size: int = 0
    free: int = 0


async def unwritable(path: str) -> Unwritable | None:
    """About the file system of an absolute path that could not be written: a job that filled it with its own files left
    room again when they were removed. None: not known. Never raises."""
    try:
        mount = mount_of(path, mounts_here())
        if mount is None or is_shared(mount):
            return None if mount is None else Unwritable(mount.path, mount.type, True)
        full, size, free = False, 0, 0
        with anyio.move_on_after(_FULL_ANSWER_S):
            now = await watched.call(f"statvfs {mount.path}", lambda: os.statvfs(mount.path))
            no_inodes = now.f_files > 0 and now.f_favail < _FULL * now.f_files
            full = no_inodes or now.f_bavail < _FULL * now.f_blocks
            size, free = now.f_blocks * now.f_frsize, now.f_bavail * now.f_frsize
        return Unwritable(mount.path, mount.type, False, full, mount.became_read_only, size, free)
    except (OSError, watched.StillHanging):
        return None


def is_shared(mount: Mount) -> bool:
    """Whether other nodes have it, too."""
    return _NETWORK.fullmatch(mount.type) is not None


async def free(look: Look) -> list[CheckResult]:
    """statvfs(2) of each path, side by side; a hanging path delays no other. Of muster's own folders those count that
    are on no file system that is asked for already."""
    results: dict[str, list[CheckResult]] = {}
    devices: dict[str, int] = {}

    async def one(path: str) -> None:
        say = About(FREE.item, path)
        try:
            with anyio.fail_after(look.settings.look_deadline_s * 0.9):
                stat, devices[path] = await watched.call(
                    f"statvfs {path}", lambda: (os.statvfs(path), os.stat(path).st_dev)
                )
        except (TimeoutError, watched.StillHanging):
            results[path] = [say.found(Code.PROBE_TIMED_OUT, "its file system does not answer")]
        except OSError as error:
            results[path] = [say.found(Code.FS_UNREADABLE, f"does not answer: {error.strerror or error}")]
        else:
            results[path] = judge_free(say, stat, look.settings.disk_free_percent)

    paths = list(dict.fromkeys([*words(look.settings.disk_paths), *look.own_paths]))
    async with anyio.create_task_group() as group:
        for path in paths:
            group.start_soon(one, path)
    first = {devices[path]: path for path in reversed(paths) if path in devices}
    own = set(look.own_paths) - set(words(look.settings.disk_paths))
    wanted = [path for path in paths if path not in own or first.get(devices.get(path, -1), path) == path]
    return [result for path in wanted for result in results[path]]


def judge_free(say: About, stat: os.statvfs_result, least_percent: float) -> list[CheckResult]:
    """Of space and inodes at least so much must be free for others than root; a file system without a size passes."""
    found, observed = [], []
    for code, what, left, total in (
        (Code.FS_SPACE_LOW, "space", stat.f_bavail, stat.f_blocks),
        (Code.FS_INODES_LOW, "inodes", stat.f_favail, stat.f_files),
    ):
        if total > 0:
            percent = left * 100 / total
            observed.append(f"{percent:.1f} % of the {what} free")
            if percent < least_percent:
                found.append(say.found(code, f"only {observed[-1]}", observed[-1], f"at least {least_percent:g} %"))
    return found or [say.ok(", ".join(observed) or "its file system reports no size", ", ".join(observed))]


async def mounts(look: Look) -> list[CheckResult]:
    """What `mounts` names, and each file system on a disk that could be written before."""
    table = await watched.call("read mountinfo", lambda: mounts_here(look.roots.proc))
    return judge_mounts(table, look)


def judge_mounts(table: Sequence[Mount], look: Look) -> list[CheckResult]:
    """The rule itself, for the mounts as they are."""
    there, wanted = {mount.path: mount for mount in table}, words(look.settings.mounts)
    results = []
    for entry in wanted:
        path, read_only_is_fine = entry.removesuffix(":ro"), entry.endswith(":ro")
        say, mount = About(MOUNTS.item, path), there.get(path.rstrip("/") or "/")
        if mount is None:
            results.append(say.found(Code.FS_NOT_MOUNTED, "it is not mounted", "absent", "mounted"))
        elif mount.read_only and not read_only_is_fine:
            results.append(say.found(Code.FS_READ_ONLY, "it is mounted read-only", _line(mount), "mounted read-write"))
        else:
            results.append(say.ok("it is mounted", _line(mount)))
    named = {entry.removesuffix(":ro") for entry in wanted}
    for mount in table:
        key, say = (MOUNTS.item, mount.path, mount.source), About(MOUNTS.item, mount.path)
        if mount.path in named or not _ON_DISK.fullmatch(mount.type):
            continue
        if not mount.read_only:
            look.memory.once.add(key)
            results.append(say.ok("it can be written", _line(mount)))
        elif key in look.memory.once or mount.became_read_only:
            # A node whose root cannot be written serves no job; of another one its job's pre-check decides.
            status = None if mount.path == "/" else Status.WARN
            reason = "it became read-only"
            results.append(say.found(Code.FS_READ_ONLY, reason, _line(mount), "as it was: read-write", status=status))
    return results or [About(MOUNTS.item).ok("nothing that must be mounted, and no file system on a disk")]


def _line(mount: Mount) -> str:
    return f"{mount.source} {mount.type} {'ro' if mount.read_only else 'rw'}"


async def nfs(look: Look) -> list[CheckResult]:
    """Asks each network file system, side by side, for its size; a hanging file system is left to its thread."""
    table = await watched.call("read mountinfo", lambda: mounts_here(look.roots.proc))
    shares = [mount for mount in table if _NETWORK.fullmatch(mount.type)]
    answers: dict[str, str] = {}

    async def one(mount: Mount) -> None:
        try:
            with anyio.fail_after(look.settings.nfs_timeout_s):
                await watched.call(f"statvfs {mount.path}", lambda: os.statvfs(mount.path))
            answers[mount.path] = ""
        except (TimeoutError, watched.StillHanging) as error:
            answers[mount.path] = str(error) or f"no answer within {look.settings.nfs_timeout_s:g} s"
        except OSError as error:
            answers[mount.path] = "stale" if error.errno == errno.ESTALE else f"error: {error.strerror or error}"

    async with anyio.create_task_group() as group:
        for mount in shares:
            group.start_soon(one, mount)
    results = [judge_share(mount, answers[mount.path], look) for mount in shares]
    return results or [About(NFS.item).off("no network file system is mounted")]


def judge_share(mount: Mount, answer: str, look: Look) -> CheckResult:
    """What the answer of a network file system means: "" good, "stale", "error: ..." or a sentence on its silence."""
    say, wanted = About(NFS.item, mount.path), look.settings.nfs_looks
    silent = answer not in ("", "stale") and not answer.startswith("error: ")
    streak = look.memory.streaks.note((NFS.item, mount.path), silent, look.now, NFS.interval_s / 2)
    source = f"{mount.source} ({mount.type})"
    if answer == "stale":
        return say.found(Code.NFS_STALE, "its server no longer knows it (ESTALE)", source, "it answers")
    if answer.startswith("error: "):
        return say.found(Code.FS_UNREADABLE, f"does not answer: {answer.removeprefix('error: ')}", source)
    if silent and streak.looks >= wanted:
        reason = f"no answer in {streak.looks} looks in a row, over {look.now - streak.since:.0f} s"
        return say.found(Code.NFS_HANGS, reason, source, f"fewer than {wanted}", evidence=answer)
    if silent:
        return say.found(
            Code.NODE_PENDING, f"no answer (look {streak.looks} of {wanted} in a row)", source, evidence=answer
        )
    return say.ok("it answers", source)


def mounts_here(proc: Path = Path("/proc")) -> list[Mount]:
    """What is mounted where this process is. Raises OSError."""
    return mounts_of(mount_table.read(proc))


def _free_applies(look: Look) -> str:
    return "" if words(look.settings.disk_paths) or look.own_paths else "no path is named (`disk_paths`)"


def _nfs_applies(look: Look) -> str:
    try:
        shares = [mount for mount in mounts_here(look.roots.proc) if _NETWORK.fullmatch(mount.type)]
    except OSError as error:
        return f"the mounts cannot be read: {error.strerror or error}"
    return "" if shares else "no network file system is mounted"


def _mounts_apply(look: Look) -> str:
    return "" if (look.roots.proc / "self/mountinfo").exists() else "there is no /proc/self/mountinfo"


RULES = (NodeRule(FREE, free, _free_applies), NodeRule(MOUNTS, mounts, _mounts_apply), NodeRule(NFS, nfs, _nfs_applies))
