"""Cheap reads of /proc, many at a time: what a process does, and what the node does.

Measured on Linux 6.18: a file opened relative to a descriptor of /proc, read once and closed costs 5 to 8 us, half of
what Python's `open` costs. Everything here blocks, and a file of a process whose memory is being torn down or replaced
can block for long: the callers do it in a thread that nothing waits for, and `reading` tells which process it is.

A process may vanish between any two reads, which is no error: then there is None. Want of descriptors or memory is
raised: it says nothing of a process.
"""

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.process import FULL, Stat, parse_stat

#: One line or a few; an environment can be larger, and of that this much is looked at.
_SMALL, _LARGE = 4096, 256 << 10
_WANTING = frozenset({*FULL, errno.ENOMEM})
_INTERESTING = (b"rchar", b"wchar", b"read_bytes", b"write_bytes")


@dataclass(frozen=True, slots=True)
class Io:
    """Of /proc/PID/io, in bytes since the start, children that were waited for included."""

    rchar: int
    wchar: int
    read_bytes: int
    write_bytes: int


@dataclass(frozen=True, slots=True)
class NodeTotals:
    """Of the whole node. CPU time in clock ticks over all CPUs since boot, memory in bytes, `net_bytes` both ways over
    all interfaces but the loopback. None: could not be read."""

    busy_ticks: int | None = None
    all_ticks: int | None = None
    mem_total: int | None = None
    mem_available: int | None = None
    net_bytes: int | None = None


class Procfs:
    """One open /proc. Not for several threads at once."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        """Raises OSError where `root` cannot be opened."""
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        #: Process whose files are being read at this moment (0: none), and how many files were read so far.
        self.reading = 0
        self.reads = 0

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def pids(self) -> set[int]:
        """Of all processes that can be seen. Raises OSError."""
        return {int(name) for name in os.listdir(self._fd) if name.isdigit()}

    def newest_pid(self) -> int | None:
        """The pid that the kernel gave out last, to a process or a thread; None where /proc does not tell it, or shows
        another PID namespace than this process is in. Raises OSError without descriptors or memory."""
        try:
            if os.readlink("self", dir_fd=self._fd) != str(os.getpid()):
                return None
        except OSError:
            return None
        word = self._read("loadavg", _SMALL).split()[-1:]
        return int(word[0]) if word and word[0].isdigit() else None

    def is_process(self, pid: int) -> bool:
        """Whether this is a process, and not a thread: /proc/TID can be opened, but is not listed."""
        for line in self._of(pid, "status").splitlines():
            if line.startswith(b"Tgid:"):
                return line[5:].strip() == b"%d" % pid
        return False

    def exists(self, pid: int) -> bool:
        """Whether a process or thread has this number. Touches none of its files."""
        try:
            os.stat(str(pid), dir_fd=self._fd)
        except OSError:
            return False
        return True

    def stat(self, pid: int) -> Stat | None:
        """None where there is no such process, or where it is hidden (hidepid). Raises OSError as all of these do."""
        return parse_stat(pid, self._of(pid, "stat"))

    def io(self, pid: int) -> Io | None:
        """None also without permission: another user's process, unless the caller is root."""
        found: dict[bytes, int] = {}
        for line in self._of(pid, "io").splitlines():
            name, _, value = line.partition(b": ")
            if name in _INTERESTING:
                found[name] = int(value)
        if len(found) < len(_INTERESTING):
            return None
        return Io(found[b"rchar"], found[b"wchar"], found[b"read_bytes"], found[b"write_bytes"])

    def wchan(self, pid: int) -> str | None:
        """The kernel's function in which its first thread waits; None where it waits in none, or that is not told."""
        text = self._of(pid, "wchan").decode("ascii", "replace").strip()
        return text if text not in ("", "0") else None

    def environ(self, pid: int, names: Mapping[bytes, str]) -> dict[str, str]:
        """The values with which a process was started, of the variables in `names`, by the names given there."""
        found: dict[str, str] = {}
        for entry in self._of(pid, "environ", _LARGE).split(b"\0"):
            name, equals, value = entry.partition(b"=")
            if equals and name in names:
                found[names[name]] = value.decode("utf-8", "replace")
        return found

    def command(self, pid: int) -> list[str]:
        """Its command line, as far as it fits into 4 KiB."""
        return [word.decode("utf-8", "replace") for word in self._of(pid, "cmdline").split(b"\0") if word]

    def node(self) -> NodeTotals:
        """What cannot be read is None. Raises OSError without descriptors or memory."""
        busy, total = _cpu(self._read("stat"))
        memory = _memory(self._read("meminfo"))
        return NodeTotals(
            busy, total, memory.get(b"MemTotal"), memory.get(b"MemAvailable"), _net(self._read("net/dev"))
        )

    def _of(self, pid: int, name: str, size: int = _SMALL) -> bytes:
        self.reading = pid
        try:
            return self._read(f"{pid}/{name}", size)
        finally:
            self.reading = 0
            self.reads += 1

    def _read(self, path: str, size: int = _LARGE) -> bytes:
        """Nothing if it cannot be read. seq_file returns at most a page per read: read on for more."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError as error:
            if error.errno in _WANTING:
                raise
            return b""
        try:
            data = part = os.read(fd, size)
            while size > _SMALL and part and len(data) < size:
                part = os.read(fd, size - len(data))
                data += part
            return data
        except OSError:  # ESRCH: it ended meanwhile; EACCES: io is guarded at the read as well
            return b""
        finally:
            os.close(fd)


def _cpu(data: bytes) -> tuple[int | None, int | None]:
    """Busy and all ticks of the first line of /proc/stat. Waiting for a disk is idle; `guest` is in `user` already."""
    line = data.partition(b"\n")[0].split()
    if len(line) < 5 or line[0] != b"cpu":
        return None, None
    ticks = [int(field) for field in line[1:9]]
    idle = ticks[3] + (ticks[4] if len(ticks) > 4 else 0)
    return sum(ticks) - idle, sum(ticks)


def _memory(data: bytes) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for line in data.splitlines()[:8]:
        name, _, rest = line.partition(b":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _net(data: bytes) -> int | None:
    total = None
    for line in data.splitlines()[2:]:
        name, _, rest = line.partition(b":")
        fields = rest.split()
        if name.strip() != b"lo" and len(fields) >= 9:
            total = (total or 0) + int(fields[0]) + int(fields[8])
    return total
