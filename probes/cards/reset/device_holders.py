"""Who has a card's device open. The driver lists processes that compute, of any container; a reset is refused for any
open file."""

from collections.abc import Collection, Iterable
from pathlib import Path

from muster.probes.kernel import open_files, process
from muster.probes.kernel.dataclass import dataclass

#: What is known to hold cards, by the start of its name (which the kernel cuts to 15 bytes), and how it lets go.
_KNOWN = {
    "nv-hostengine": "DCGM: `systemctl stop nvidia-dcgm`, and start it again afterwards",
    "dcgm-exporter": "an exporter of metrics: stop its service or pod, and start it again afterwards",
    "nvidia-persiste": "nvidia-persistenced: `systemctl stop nvidia-persistenced`, and start it again afterwards",
    "nvidia-device-p": "the device plugin of Kubernetes: label the node `nvidia.com/gpu.deploy.device-plugin=false`",
    "gpu-feature-dis": "GPU feature discovery: label the node `nvidia.com/gpu.deploy.gpu-feature-discovery=false`",
    "nvsm": "NVIDIA System Management: `systemctl stop nvsm`",
    "Xorg": "a display server: stop it",
    "npu-exporter": "an exporter of metrics: stop its service or pod, and start it again afterwards",
    "ascend-dmi": "a test of the card: wait for its end",
}


@dataclass(frozen=True, slots=True)
class DeviceHolder:
    """A process with open files of devices (`nodes`), or one that the driver lists. `command` is the name of its
    program alone, `start` its start in clock ticks since boot (0: it was not asked for)."""

    pid: int
    command: str
    nodes: tuple[str, ...] = ()
    start: int = 0

    def __str__(self) -> str:
        known = next((told for name, told in _KNOWN.items() if self.command.startswith(name)), "")
        return f"pid {self.pid} ({self.command})" + (f", {known}" if known else "")


@dataclass(frozen=True, slots=True)
class Holding:
    """All holders that are seen, and how many processes could not be looked at."""

    holders: tuple[DeviceHolder, ...]
    hidden: int = 0


def unseen(pids: Iterable[int]) -> tuple[int, ...]:
    """Those of these processes of which nobody here can say whether they live: none where we have the host's PIDs, and
    all that /proc lacks in a container with PIDs of its own. Blocks."""
    if process.pids_are_the_kernels():
        return ()
    return tuple(pid for pid in sorted(pids) if process.read_stat(pid) is None)


def visible(pids: Iterable[int]) -> tuple[DeviceHolder, ...]:
    """Those of these processes that live and can be seen: a driver may list one that has ended, or one of another PID
    namespace (`unseen`). Blocks."""
    stats = [stat for pid in sorted(pids) if (stat := process.read_stat(pid)) is not None and not stat.ended]
    return tuple(DeviceHolder(stat.pid, stat.comm, start=stat.start) for stat in stats)


def holders(nodes: Collection[str], listed: Iterable[DeviceHolder] = (), proc: Path = Path("/proc")) -> Holding:
    """The processes that have one of these device nodes open, this one among them, by pid, and those of `listed` that
    still live. Without root those of other users are hidden. Blocks: some 10 ms for a thousand processes."""
    found, hidden = [], 0
    for folder in sorted(proc.iterdir(), key=_number):
        if not folder.name.isdigit():
            continue
        try:
            numbers = open_files.numbers(int(folder.name), proc)
        except PermissionError:
            hidden += 1
            continue
        except OSError:
            continue  # it has ended
        held = sorted({path for number in numbers if (path := _path(folder, number, proc)) in nodes})
        if held:
            found.append(DeviceHolder(int(folder.name), _command(folder), tuple(held)))
    found += [one for one in listed if one.pid not in {it.pid for it in found} and _lives(one)]
    return Holding(tuple(found), hidden)


def _lives(one: DeviceHolder) -> bool:
    stat = process.read_stat(one.pid)
    return stat is not None and stat.start == one.start and not stat.ended


def _number(folder: Path) -> int:
    return int(folder.name) if folder.name.isdigit() else 0


def _path(folder: Path, number: int, proc: Path) -> str:
    try:
        return open_files.target(folder.name, number, proc)
    except OSError:
        return ""  # closed meanwhile


def _command(folder: Path) -> str:
    try:
        return (folder / "comm").read_text(errors="replace").strip()
    except OSError:
        return "?"
