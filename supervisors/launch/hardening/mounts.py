"""What of this node's mounts becomes read-only for a job, and what stays writable within it."""

from collections.abc import Iterable, Iterator, Sequence

from muster.probes.kernel import mount_table
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.hardening import is_below

#: Of the kernel: what a mount must keep when it is mounted again (MS_*), by the words of /proc/self/mountinfo.
_OPTIONS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
#: Devices, shared memory and the kernel's own files stay as they are, unless they are named.
_INTERFACES = ("/dev", "/proc", "/sys")


@dataclass(frozen=True, slots=True)
class NodeMount:
    """A mount of this node: where, and its options (MS_*)."""

    path: str
    options: int


def read() -> list[NodeMount]:
    """Of this process; of several at one place the last. Raises OSError."""
    found: dict[str, NodeMount] = {}
    for one in mount_table.read():
        found[one.path] = NodeMount(one.path, sum(flag for word, flag in _OPTIONS.items() if word in one.options))
    return list(found.values())


@dataclass(frozen=True, slots=True)
class MountView:
    """What of the file system a job has otherwise than the node. `writable`: stays so within what is read-only;
    `private`: folders in the place of the node's, which stay writable, too; `shown`: what the node has below those, and
    the job too, each by a mount of its own."""

    writable: Sequence[str]
    private: Sequence[str] = ()
    shown: Sequence[str] = ()

    def keeps(self, path: str) -> bool:
        """Whether what is read-only around it leaves it as it is."""
        hidden = _in_one(path, self.private) and not _in_one(path, self.shown)
        return hidden or _in_one(path, self.writable)


def read_only(
    paths: Sequence[str], view: MountView, mounts: Iterable[NodeMount]
) -> tuple[list[tuple[str, str]], list[tuple[str, int, int]]]:
    """What to bind, and what to make read-only then: see `Confinement`. `paths`: of the job's view."""
    there = {mount.path: mount for mount in mounts}
    binds = [(path, path) for path in paths if path not in there]
    binds += [(path, path) for path in view.writable if _in_one(path, paths)]
    found: dict[str, tuple[str, int, int]] = {}
    for path in paths:
        for inner in _within(path, there.values(), view):
            found.setdefault(inner.path, (inner.path, inner.options, 1))
    shown = [path for path in view.shown if _in_one(path, paths) and not view.keeps(path)]
    for path in [*shown, *paths]:
        found[path] = (path, _around(path, there), 0)
    return binds, list(found.values())


def _in_one(path: str, folders: Iterable[str]) -> bool:
    return any(is_below(path, folder) for folder in folders)


def _within(path: str, mounts: Iterable[NodeMount], view: MountView) -> Iterator[NodeMount]:
    left_out = [folder for folder in _INTERFACES if not is_below(path, folder)]
    for mount in mounts:
        inside = mount.path != path and is_below(mount.path, path)
        if inside and not view.keeps(mount.path) and not _in_one(mount.path, left_out):
            yield mount


def _around(path: str, mounts: dict[str, NodeMount]) -> int:
    """The options of the mount that a path is in."""
    return max((m for m in mounts.values() if is_below(path, m.path)), key=_length).options


def _length(mount: NodeMount) -> int:
    return len(mount.path)
