"""Whether NVIDIA's fabric manager runs: a process that sets up the NVSwitches of a node."""

from pathlib import Path

#: The kernel cuts a process's name (nv-fabricmanager) to 15 bytes.
NAME = "nv-fabricmanage"


def is_running(proc: Path = Path("/proc")) -> bool:
    """Whether there is such a process. In a container those of the host are not seen. Blocks for some milliseconds."""
    return any(_name(folder) == NAME for folder in proc.iterdir() if folder.name.isdigit())


def _name(folder: Path) -> str:
    try:
        return (folder / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""  # it has ended
