"""Whether the kernel lets muster have the processes and threads that it needs: a container, session or unit may have a
limit of them."""

import contextlib
import os
from pathlib import Path

from muster.supervisors.system import cgroups

#: What a daemon adds to itself, with its nursery and a job of one rank; and a command that waits for a job. Measured at
#: their peak, on up to 4 CPUs. On more, gRPC has a thread for each CPU more in either, up to 16.
DAEMON, COMMAND = 22, 8
_FEW_CPUS, _MANY_CPUS = 4, 16


def trouble(*needed: int) -> str:
    """A sentence where there is no room for these (DAEMON, COMMAND); empty where there is. Raises nothing."""
    more_cpus = min(max(os.cpu_count() or 1, _FEW_CPUS), _MANY_CPUS) - _FEW_CPUS
    needs = sum(each + more_cpus for each in needed)
    file, most, used = min(_limits(cgroups.around("pids")), key=lambda limit: limit[1] - limit[2], default=("", 0, 0))
    if not file or most - used >= needs:
        return ""
    return (
        f"too few processes and threads are allowed here: {file} is {most}, of which {used} are in use, and muster "
        f"needs {needs} more, and those that the ranks need: raise the limit (podman and docker: --pids-limit, "
        "Kubernetes: podPidsLimit of the kubelet, systemd: TasksMax=)"
    )


def _limits(folder: Path | None) -> list[tuple[str, int, int]]:
    """Of the cgroups from this folder upwards that have one: its file, how many there may be, how many exist."""
    found = []
    for place in (folder, *folder.parents) if folder is not None else ():
        if not (place / "pids.current").exists():  # the root of the hierarchy, or above it
            break
        with contextlib.suppress(OSError, ValueError):  # "max"
            most, used = (int((place / name).read_text()) for name in ("pids.max", "pids.current"))
            found.append((str(place / "pids.max"), most, used))
    return found
