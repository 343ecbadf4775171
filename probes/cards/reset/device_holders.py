"""Who has a card's device open. The driver lists processes that compute, of any container; a reset is refused for any
open file."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from muster.probes.cards.accelerator import Holder
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


@dataclass(frozen=True, slots=True)
class Listed:
    """Whom a driver lists on cards, as far as they live: `visible` to us, or `unseen` (pids of the host)."""

    visible: tuple[DeviceHolder, ...] = ()
    unseen: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[str]:
        """Each of them, for a sentence."""
        yield from map(str, self.visible)
        yield from (f"pid {pid} of the host" for pid in self.unseen)


def listed(seen: Iterable[Iterable[Holder]]) -> Listed:
    """Of what the driver says of several cards, each process once. It may list one that has ended, or one of another
    PID namespace. Nobody here can say of those that /proc lacks whether they live, in a container with PIDs of its own;
    where we have the host's PIDs, they have ended. Blocks."""
    pids = sorted({holder.pid for card in seen for holder in card})
    stats = {pid: process.read_stat(pid) for pid in pids}
    alive = [stat for stat in stats.values() if stat is not None and not stat.ended]
    ours = process.pids_are_the_kernels()
    return Listed(
        tuple(DeviceHolder(stat.pid, stat.comm, start=stat.start) for stat in alive),
        () if ours else tuple(pid for pid, stat in stats.items() if stat is None),
    )


def holders(nodes: Collection[str], others: Iterable[DeviceHolder] = (), proc: Path = Path("/proc")) -> Holding:
    """The processes that have one of these device nodes open, this one among them, by pid, and those of `others` that
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
    found += [one for one in others if one.pid not in {it.pid for it in found} and _lives(one)]
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
