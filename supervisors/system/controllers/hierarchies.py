"""Where a process is in the hierarchies of cgroup v1."""

import os
from collections.abc import Iterable
from pathlib import Path

from muster.probes.kernel import mount_table
from muster.probes.kernel.mount_table import MountEntry


def folder_of(controller: str, pid: int | str = "self", proc: Path = Path("/proc")) -> Path | None:
    """The folder of a process in the hierarchy of a v1 controller; None where the node has none, or does not show it.
    Raises nothing."""
    try:
        own = _path(controller, (proc / str(pid) / "cgroup").read_text(errors="surrogateescape"))
        mounted = _mount(controller, mount_table.read(proc, "cgroup"))
    except OSError:
        return None
    if own is None or mounted is None:
        return None
    root, mount = mounted
    # In a container without a namespace of cgroups the paths are those of the host, and only its own part is mounted.
    if root != "/" and own != root and not own.startswith(f"{root}/"):
        return None
    inner = own if root == "/" else own[len(root) :]
    return mount / inner.strip("/") if ".." not in inner.split("/") else None


def writable_folder(controller: str) -> Path | None:
    """Of this process, if it may make folders there."""
    folder = folder_of(controller)
    return folder if folder is not None and os.access(folder, os.W_OK) else None


def mounts() -> list[Path]:
    """Where the node's v1 hierarchies of the controllers are mounted that muster uses."""
    try:
        every = list(mount_table.read(kind="cgroup"))
    except OSError:
        return []
    found = (_mount(controller, every) for controller in ("memory", "cpu", "pids", "freezer"))
    return list(dict.fromkeys(one[1] for one in found if one is not None))


def _path(controller: str, text: str) -> str | None:
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path
    return None


def _mount(controller: str, mounts: Iterable[MountEntry]) -> tuple[str, Path] | None:
    """What of the hierarchy is mounted, and where; the last one, which covers others."""
    found = None
    for one in mounts:
        if controller in one.system_options:
            found = one.root, Path(one.path)
    return found
