"""The limits of a job as a whole: memory, CPUs, and processes with their threads.

Each is set where the node has its controller: in a v1 hierarchy, in a folder that the job's processes enter for it; or
in the job's cgroup of v2, whose folder above must hand the controller down, which the kernel refuses while processes
are in that. Of swap there is none within a limit of memory: a job would crawl for days where it should end.
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.system.controllers import hierarchies

#: CPU time is given out in periods of so many microseconds; a job gets at least the kernel's smallest share of one.
_PERIOD_US, _LEAST_US = 100_000, 1000


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Bytes, number of CPUs, number of processes and threads; None: no limit. `usual_pids`: nobody asked for that one,
    so it is not missed either."""

    memory: float | None = None
    cpus: float | None = None
    pids: float | None = None
    usual_pids: bool = False

    def wanted(self) -> dict[str, float]:
        """By controller."""
        values = {"memory": self.memory, "cpu": self.cpus, "pids": self.pids}
        return {controller: value for controller, value in values.items() if value}


def make_folders(name: str, wanted: Iterable[str]) -> dict[str, str]:
    """Folders in the v1 hierarchies of these controllers, anew: their counters begin at 0. Left out are those that this
    node has in v2, or not at all, and those in which we may make none. `name`: of the folders."""
    found: dict[str, str] = {}
    for controller in wanted:
        own = hierarchies.writable_folder(controller)
        if own is None:
            continue
        with contextlib.suppress(OSError):
            folder = own / name
            remove(folder)
            folder.mkdir(exist_ok=True)
            found[controller] = str(folder)
    return found


def set_limits(cgroup: str, folders: Mapping[str, str], limits: JobLimits) -> str:
    """`cgroup`: the job's own; `folders`: those of v1, by controller. Returns sentences where a limit cannot be set."""
    troubles = []
    for controller, value in limits.wanted().items():
        folder = folders.get(controller, cgroup)
        if not folder:
            trouble = "this node has no cgroup that muster may use"
        else:
            in_v1 = controller in folders
            trouble = _write(folder, _V1[controller](value) if in_v1 else _v2(controller, value), v2=not in_v1)
        if trouble and not (controller == "pids" and limits.usual_pids):
            troubles.append(f"the limit of {controller} is not in force: {trouble}")
    return "; ".join(troubles)


def pids_in_force(cgroup: str, folders: Mapping[str, str]) -> int:
    """How many processes and threads the job can have, as the kernel says; 0: any number."""
    folder = folders.get("pids", cgroup)
    with contextlib.suppress(OSError, ValueError):
        return int(Path(folder, "pids.max").read_text()) if folder else 0
    return 0  # "max"


def remove(folder: Path) -> None:
    """With all that are below; whichever is not empty (a process that cannot be killed) stays."""
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)


#: Files and what is written into them, in this order; of those with ? only where they exist.
_Files = dict[str, str]


def _memory_v1(value: float) -> _Files:
    return {"memory.limit_in_bytes": str(int(value)), "?memory.memsw.limit_in_bytes": str(int(value))}


def _cpu_v1(value: float) -> _Files:
    return {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(_quota(value))}


def _pids(value: float) -> _Files:
    return {"pids.max": str(int(value))}


_V1 = {"memory": _memory_v1, "cpu": _cpu_v1, "pids": _pids}


def _v2(controller: str, value: float) -> _Files:
    match controller:
        case "memory":
            return {"memory.max": str(int(value)), "?memory.swap.max": "0"}
        case "cpu":
            return {"cpu.max": f"{_quota(value)} {_PERIOD_US}"}
    return _pids(value)


def _quota(cpus: float) -> int:
    return max(_LEAST_US, int(cpus * _PERIOD_US))


def can_hold_processes(folder: Path) -> bool:
    """Whether this cgroup of v2 takes processes. Below a cgroup that has threads of its own under a controller (cpu,
    pids) it does not: the kernel calls it invalid."""
    with contextlib.suppress(OSError):
        return (folder / "cgroup.type").read_text().strip() != "domain invalid"
    return True


def _hand_down(above: Path, controller: str) -> None:
    """Raises OSError. The kernel refuses memory where the cgroup above has processes, but takes cpu and pids: no folder
    below could then have a process any more. The root of all is free to."""
    busy = (above / "cgroup.type").exists() and (above / "cgroup.procs").read_text()
    if busy and controller in (above / "cgroup.controllers").read_text().split():
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    (above / "cgroup.subtree_control").write_text(f"+{controller}")


def _write(folder: str, files: _Files, *, v2: bool) -> str:
    """Returns why it cannot be done."""
    path = Path(folder)
    for name, value in files.items():
        path = Path(folder, name.removeprefix("?"))
        try:
            if v2 and not path.exists() and not name.startswith("?"):
                _hand_down(Path(folder).parent, name.partition(".")[0])
            if path.exists() or not name.startswith("?"):
                path.write_text(value)
        except OSError as error:
            if not name.startswith("?"):
                return f"{path}: {error.strerror}"
    return ""
