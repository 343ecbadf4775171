"""The cgroup of a job's ranks: its place and its limits.

With systemd it is a leaf of the job's scope (scope.py), beside the leaf of the supervisor; otherwise a folder below our
own cgroup, if cgroup v2 permits.
"""

import contextlib
import os
import zlib
from pathlib import Path

from muster.probes.kernel import process
from muster.supervisors.paths import Root
from muster.supervisors.system import scope

#: The leaves of a scope.
SUPERVISOR, RANKS = "supervisor", "ranks"
#: Handed down to them always: so a supervisor has its share of the CPUs whatever the ranks fork, and the kernel counts
#: which processes it killed when out of memory (oom.py) where there is no limit, too.
_CONTROLLERS = ("cpu", "memory")


def find_cgroup_root() -> Path | None:
    """The folder of the cgroup v2 tree that this process is in, if we may make subtrees there."""
    mount = _mount()
    if mount is None:
        return None
    if not (own := process.cgroup()):
        return None
    folder = mount / own.lstrip("/")
    return folder if os.access(folder, os.W_OK) else None


def _mount() -> Path | None:
    mount = None
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            mount = Path(fields[1].replace("\\040", " "))
    return mount


def limit_cgroup(folder: str, memory: float | None, cpus: float | None) -> str:
    """Sets the limits of a job's cgroup: bytes of memory, number of CPUs. Returns sentences where they cannot be set.

    The controllers must be handed down by the folder above, which the kernel refuses while processes are in that. Of
    swap there is none within a limit of memory: a job would crawl for days where it should end and say why.
    """
    troubles = []
    wanted = {"memory.max": memory and str(int(memory)), "cpu.max": cpus and f"{max(1000, int(cpus * 100_000))} 100000"}
    for name, value in wanted.items():
        if not value:
            continue
        controller = name.partition(".")[0]
        if not folder:
            troubles.append(
                f"the limit of {controller} is not in force: this node has no cgroup v2 that muster may use"
            )
            continue
        try:
            if not os.path.exists(f"{folder}/{name}"):
                (Path(folder).parent / "cgroup.subtree_control").write_text(f"+{controller}")
            Path(folder, name).write_text(value)
        except OSError as error:
            troubles.append(f"the limit of {controller} is not in force: {folder}/{name}: {error.strerror}")
    if memory and os.path.exists(f"{folder}/memory.swap.max"):
        with contextlib.suppress(OSError):
            Path(folder, "memory.swap.max").write_text("0")
    return "; ".join(troubles)


def make_cgroup(root: Root, job_id: str) -> tuple[str, str]:
    """Makes the cgroup of a job's ranks. Returns its path, empty where there can be none, and, where systemd should
    have given a scope and did not, a sentence that says why. One that is there is made anew: what an earlier attempt
    did in it would keep ranks out (a job of root that handed controllers down), or count as theirs (memory.events).
    Where something lives in it, it is taken over.

    cgroup.kill (Linux 5.14) is required: without it the sweep serves as well.
    """
    trouble = enter_scope(root, job_id) if scope.is_available() else ""
    found = find_cgroup_root()
    if found is None:
        return "", trouble
    in_scope = scope.own() == scope.unit_of(root, job_id)
    if in_scope and found.name == SUPERVISOR:
        found = found.parent
    folder = found / (RANKS if in_scope else _name(root, job_id))
    try:
        if in_scope:  # where controllers are handed down, processes live in the leaves only
            (found / SUPERVISOR).mkdir(exist_ok=True)
            (found / SUPERVISOR / "cgroup.procs").write_text("0")
            for controller in _CONTROLLERS:
                with contextlib.suppress(OSError):  # not handed down to us, then
                    (found / "cgroup.subtree_control").write_text(f"+{controller}")
        remove_cgroup(folder)
        folder.mkdir(exist_ok=True)
    except OSError:
        return "", trouble
    if not (folder / "cgroup.kill").exists():
        with contextlib.suppress(OSError):
            folder.rmdir()
        return "", trouble
    return str(folder), trouble


def remove_cgroup(folder: Path) -> None:
    """With all that are below; whichever is not empty (a process that cannot be killed) stays."""
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def remove_left(root: Root, job_id: str) -> None:
    """Removes what is left of the cgroups of a job's ranks, wherever they were made; blocks as long as a walk over all
    cgroups takes. Whichever is not empty stays. Raises nothing."""
    mount = _mount()
    if mount is None:
        return
    mark = _name(root, job_id)
    for path, names, _ in os.walk(mount):
        if mark in names:
            remove_cgroup(Path(path, mark))
        names[:] = [name for name in names if not name.startswith("muster-") or name.endswith((".scope", ".slice"))]


def of_job(root: Root, job_id: str, pid: int) -> str:
    """The cgroup of a job's ranks, if this process is in it or below; empty otherwise. Raises nothing."""
    with contextlib.suppress(OSError):
        at, mount = process.cgroup(pid), _mount()
        if mount is not None and at:
            for folder in (here := Path(at), *here.parents):
                in_scope = folder.name == RANKS and folder.parent.name == scope.unit_of(root, job_id)
                if in_scope or folder.name == _name(root, job_id):
                    return str(mount / str(folder).lstrip("/"))
    return ""


def _name(root: Root, job_id: str) -> str:
    return f"muster-{zlib.crc32(os.fsencode(root.state)):08x}-{job_id}"


def enter_scope(root: Root, job_id: str) -> str:
    """Moves this supervisor into the scope of its job. Returns why it could not be, a sentence."""
    return scope.enter(scope.unit_of(root, job_id), f"muster job {job_id}")


def is_leaf(cgroup: str) -> bool:
    """Whether this cgroup of ranks is in a scope."""
    return os.path.basename(cgroup) == RANKS
