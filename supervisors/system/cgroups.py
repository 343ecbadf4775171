"""The cgroup of a job's ranks, by which the kernel knows all of them.

With systemd it is a leaf of the job's scope (scope.py), beside the leaf of the supervisor; otherwise a folder below our
own cgroup, if cgroup v2 permits; otherwise one in the freezer of cgroup v1. Its limits: controllers/job_limits.py.
"""

import contextlib
import os
import zlib
from pathlib import Path

from muster.probes.kernel import mount_table, process
from muster.supervisors.paths import Root
from muster.supervisors.system import scope
from muster.supervisors.system.controllers import hierarchies, job_limits

#: The leaves of a scope.
SUPERVISOR, RANKS = "supervisor", "ranks"
#: What a unit with Delegate=yes gives as DelegateSubgroup (systemd 254): musterd, nursery and supervisors are in there.
DAEMON = "muster-daemon"
#: Handed down to them always: so a supervisor has its share of the CPUs whatever the ranks fork, and the kernel counts
#: which processes it killed when out of memory (oom.py) where there is no limit, too.
_CONTROLLERS = ("cpu", "memory")


def find_cgroup_root() -> Path | None:
    """The folder of the cgroup v2 tree that this process is in, if we may make subtrees there. Of a cgroup that is
    DAEMON's it is the one above: that has no process itself, so that it can hand controllers down to jobs."""
    mount = _mount()
    if mount is None:
        return None
    if not (own := process.cgroup()):
        return None
    folder = mount / own.lstrip("/")
    if folder.name == DAEMON and folder.parent != mount:
        folder = folder.parent
    return folder if os.access(folder, os.W_OK) else None


def _mount() -> Path | None:
    mounts = [one.path for one in mount_table.read(kind="cgroup2")]
    return Path(mounts[-1]) if mounts else None


def make_cgroup(root: Root, job_id: str) -> tuple[str, str]:
    """Makes the cgroup of a job's ranks. Returns its path, empty where there can be none, and, where systemd should
    have given a scope and did not, a sentence that says why. One that is there is made anew: what an earlier attempt
    did in it would keep ranks out (a job of root that handed controllers down), or count as theirs (memory.events).
    Where something lives in it, it is taken over.

    Of v2 cgroup.kill (Linux 5.14) is required. Where that is missing v1's freezer serves, and without it the sweep.
    """
    trouble = enter_scope(root, job_id) if scope.is_available() else ""
    return _make_v2(root, job_id) or _make_freezer(root, job_id), trouble


def _make_v2(root: Root, job_id: str) -> str:
    found = find_cgroup_root()
    if found is None:
        return ""
    in_scope = scope.own() == scope.unit_of(root, job_id)
    if in_scope and found.name == SUPERVISOR:
        found = found.parent
    folder = found / (RANKS if in_scope else name_of(root, job_id))
    try:
        if in_scope:  # where controllers are handed down, processes live in the leaves only
            (found / SUPERVISOR).mkdir(exist_ok=True)
            (found / SUPERVISOR / "cgroup.procs").write_text("0")
            for controller in _CONTROLLERS:
                with contextlib.suppress(OSError):  # not handed down to us, then
                    (found / "cgroup.subtree_control").write_text(f"+{controller}")
        job_limits.remove(folder)
        folder.mkdir(exist_ok=True)
    except OSError:
        return ""
    if not (folder / "cgroup.kill").exists() or not job_limits.can_hold_processes(folder):
        with contextlib.suppress(OSError):
            folder.rmdir()
        return ""
    return str(folder)


def _make_freezer(root: Root, job_id: str) -> str:
    return job_limits.make_folders(name_of(root, job_id), ["freezer"]).get("freezer", "")


def around(controller: str) -> Path | None:
    """The cgroup in which the kernel counts this process for a controller ("memory", "pids"), be it of a container, a
    session or a scheduler; it need not be ours to change. None where there is none. Raises nothing."""
    with contextlib.suppress(OSError):
        if (v1 := hierarchies.folder_of(controller)) is not None:
            return v1
        if (mount := _mount()) is not None and (own := process.cgroup()):
            return mount / own.lstrip("/")
    return None


def remove_left(root: Root, job_id: str) -> None:
    """Removes what is left of the cgroups of a job's ranks, wherever they were made; blocks as long as a walk over all
    cgroups takes. Whichever is not empty stays. Raises nothing."""
    mount, mark = _mount(), name_of(root, job_id)
    for hierarchy in [*([mount] if mount is not None else []), *hierarchies.mounts()]:
        for path, names, _ in os.walk(hierarchy):
            if mark in names:
                job_limits.remove(Path(path, mark))
            names[:] = [name for name in names if not name.startswith("muster-") or name.endswith((".scope", ".slice"))]


def of_job(root: Root, job_id: str, pid: int) -> str:
    """The cgroup of a job's ranks, if this process is in it or below; empty otherwise. Raises nothing."""
    with contextlib.suppress(OSError):
        at, mount = process.cgroup(pid), _mount()
        if mount is not None and at:
            for folder in (here := Path(at), *here.parents):
                in_scope = folder.name == RANKS and folder.parent.name == scope.unit_of(root, job_id)
                if in_scope or folder.name == name_of(root, job_id):
                    return str(mount / str(folder).lstrip("/"))
        frozen = hierarchies.folder_of("freezer", pid)
        for folder in (frozen, *frozen.parents) if frozen is not None else ():
            if folder.name == name_of(root, job_id):
                return str(folder)
    return ""


def name_of(root: Root, job_id: str) -> str:
    """Of the job's folder in any hierarchy."""
    return f"muster-{zlib.crc32(os.fsencode(root.state)):08x}-{job_id}"


def enter_scope(root: Root, job_id: str) -> str:
    """Moves this supervisor into the scope of its job. Returns why it could not be, a sentence."""
    return scope.enter(scope.unit_of(root, job_id), f"muster job {job_id}")


def is_leaf(cgroup: str) -> bool:
    """Whether this cgroup of ranks is in a scope."""
    return os.path.basename(cgroup) == RANKS
