"""Cheap reads of /proc, many at a time: what a process does, what the node does, and which processes came.

Measured on Linux 6.18: a file opened relative to a descriptor of /proc, read once and closed costs 5 to 8 us, half of
what Python's `open` costs. Everything here blocks, and a file of a process whose memory is being torn down or replaced
can block for long: the callers do it in a thread that nothing waits for, and `reading` tells which process it is.

A process may vanish between any two reads, which is no error: then there is None. Want of descriptors or memory is
raised: it says nothing of a process.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.process import FULL, Stat, parse_stat, with_living_threads

#: One line or a few; an environment can be larger, and of that this much is looked at; a table of sockets.
_SMALL, _LARGE, _LARGEST = 4096, 256 << 10, 16 << 20
_WANTING = frozenset({*FULL, errno.ENOMEM})
_INTERESTING = (b"rchar", b"wchar", b"read_bytes", b"write_bytes")
#: What the descriptor of an io_uring points to.
_RING = "anon_inode:[io_uring]"
#: New pids since the last look, at most, that are tried one by one: more of them cost as much as a listing.
MOST_TRIED = 1000
#: Every process is looked at each so many looks: a pid that was given out again is seen then at the latest. On a node
#: of more than `FEW` processes that is rarer in proportion, so that these looks cost the same per hour on any node.
FULL_EACH = 20
FEW = 2000


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
        return with_living_threads(parse_stat(pid, self._of(pid, "stat")), lambda: self._thread_stats(pid))

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

    def net_namespace(self, pid: str) -> int | None:
        """The number of a process' network namespace, of this process for "self"; None where that may not be read, or
        there is no such process."""
        try:
            return os.stat(f"{pid}/ns/net", dir_fd=self._fd).st_ino
        except OSError as error:
            if error.errno in _WANTING:
                raise
            return None

    def net_bytes(self, pid: int) -> int | None:
        """As `NodeTotals.net_bytes`, of the network namespace of a process."""
        return _net(self._of(pid, "net/dev", _LARGE))

    def tcp_opens(self) -> int | None:
        """How many TCP connections this network namespace has opened and accepted since its start."""
        lines = [line.split() for line in self._read("self/net/snmp").splitlines() if line.startswith(b"Tcp:")]
        if len(lines) != 2:
            return None
        told = dict(zip(*lines, strict=False))
        try:
            return int(told[b"ActiveOpens"]) + int(told[b"PassiveOpens"])
        except (KeyError, ValueError):
            return None

    def net_table(self, name: str, column: int) -> Iterator[int]:
        """The numbers in a column of a table of /proc/net."""
        for line in self._read(f"self/net/{name}", _LARGEST).splitlines()[1:]:
            words = line.split()
            if len(words) > column and words[column].isdigit():
                yield int(words[column])

    def sockets(self, pid: int, most: int) -> tuple[set[int], int] | None:
        """The inodes of the sockets that a process has open, and the number of its descriptors; None where they may not
        be read, or are more than `most`, or an io_uring of it holds files that are no descriptors."""
        found: set[int] = set()
        self.reading = pid
        try:
            folder = os.open(f"{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                names = os.listdir(folder)
                if len(names) > most:
                    return None
                for name in names:
                    try:
                        target = os.readlink(name, dir_fd=folder)
                    except FileNotFoundError:  # closed meanwhile
                        continue
                    if target.startswith("socket:["):
                        found.add(int(target[8:-1]))
                    elif target == _RING and not self._is_bare_ring(pid, name):
                        return None
            finally:
                os.close(folder)
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            return set(), 0
        except OSError as error:
            if error.errno in _WANTING:
                raise
            return None
        finally:
            self.reading = 0
            self.reads += 1
        return found, len(names)

    def _is_bare_ring(self, pid: int, number: str) -> bool:
        """Whether no file is registered with an io_uring."""
        lines = self._read(f"{pid}/fdinfo/{number}").splitlines()
        return any(line.split() == [b"UserFiles:", b"0"] for line in lines)

    def node(self) -> NodeTotals:
        """What cannot be read is None. Raises OSError without descriptors or memory."""
        busy, total = _cpu(self._read("stat"))
        memory = _memory(self._read("meminfo"))
        return NodeTotals(
            busy, total, memory.get(b"MemTotal"), memory.get(b"MemAvailable"), _net(self._read("net/dev"))
        )

    def _thread_stats(self, pid: int) -> Iterator[bytes]:
        try:
            tasks = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError as error:
            if error.errno in _WANTING:
                raise
            return
        try:
            names = os.listdir(tasks)
        except (FileNotFoundError, ProcessLookupError):
            return
        finally:
            os.close(tasks)
        for name in names:
            yield self._of(pid, f"task/{name}/stat")

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


@dataclass(slots=True)
class _Reading:
    """One look: the counter (None: it is of no use here), what came by it, and all pids where they were listed."""

    counter: int | None
    came: set[int]
    listed: set[int] | None = None


class Arrivals:
    """Which processes came, from one look to the next, without a listing of /proc where the kernel's counter of pids
    tells.

    Linux gives out pids in ascending order and begins anew at the top. /proc/loadavg ends with the newest one. So
    whatever came between two looks has a pid between the two readings; so have threads, which are no processes. A
    listing of 10,000 processes takes 13 ms of CPU, the counter and a few new processes a hundredth of that.

    The counter is believed only after a listing has confirmed it: every pid that was new to the listing lay between the
    readings, and there was one. A container may show the /proc of another PID namespace or a made-up loadavg, and a
    restored checkpoint chooses its pids. Each listing confirms or refutes the counter again.

    Not for several threads at once.
    """

    def __init__(self, procfs: Procfs) -> None:
        self._procfs = procfs
        self._last = _Reading(None, set())
        self._now = self._last
        #: Of the last listing.
        self._listed: set[int] = set()
        self._listed_at: int | None = None
        self._confirmed = False
        self._looks = 0

    def look(self, every: bool) -> set[int]:
        """Pids of processes that came since the last look that was `taken`; with `every`, and each `FULL_EACH` looks,
        of all processes. Raises OSError where /proc cannot be listed, or there are no descriptors to read it with."""
        full = every or self._looks % (FULL_EACH * max(1, len(self._listed) // FEW)) == 0
        counter, before = self._procfs.newest_pid(), self._last.counter
        usable = self._confirmed and counter is not None and before is not None and 0 <= counter - before <= MOST_TRIED
        if usable and not full:
            assert counter is not None and before is not None
            tried = range(before + 1, counter + 1)
            self._now = _Reading(counter, {pid for pid in tried if self._procfs.is_process(pid)})
            # Those of the last look once more: a parent may have ended between the two reads, and with it the line.
            return self._now.came | self._last.came
        listed = self._procfs.pids()
        self._now = _Reading(counter, set(), listed)
        return listed if full else listed - self._listed

    def taken(self) -> None:
        """What the last look gave was dealt with. Without it, the next look begins at the same place."""
        self._looks += 1
        self._last = self._now
        if self._now.listed is not None:
            self._confirm(self._now.listed, self._now.counter)
            self._listed, self._listed_at = self._now.listed, self._now.counter

    def _confirm(self, listed: set[int], counter: int | None) -> None:
        after, begin = self._procfs.newest_pid(), self._listed_at
        if counter is None or after is None or begin is None:
            self._confirmed = False
        elif begin <= counter <= after:  # not over the top
            new = listed - self._listed
            if new:
                self._confirmed = min(new) > begin and max(new) <= after


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
