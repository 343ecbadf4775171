"""Processes in state D or Z: all of a node are read from time to time, those that were found at each look."""

import os
from collections.abc import Iterable
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.process import parse_stat

#: Flag of a kernel thread in the field `flags` of /proc/PID/stat (PF_KTHREAD). Some of those are in state D by design.
_KERNEL_THREAD = 0x0020_0000
#: Between two scans of a node of up to `_FEW` processes, in seconds. A larger node is scanned less often, in
#: proportion and at least each `_LONGEST_S`, so that scans cost the same on any node: they take 12 us a process.
_SCAN_S, _FEW, _LONGEST_S = 60.0, 2000, 600.0


@dataclass(frozen=True, slots=True)
class OddProcess:
    """One process that waits in the kernel (D) or has ended (Z): by pid and start time (ticks since boot) it is
    itself."""

    pid: int
    start: int
    name: str
    state: str
    parent: int


class OddProcesses:
    """What was found, from one look to the next."""

    def __init__(self) -> None:
        self._found: list[OddProcess] = []
        self._scan_at = 0.0

    def look(self, proc: Path, now: float) -> list[OddProcess]:
        """Those that the last scan found and that are odd still. `now`: seconds of CLOCK_BOOTTIME. Blocks, for half a
        second where 50,000 processes are scanned. Raises OSError where `proc` cannot be listed."""
        if now < self._scan_at:
            self._found = read(proc, [process.pid for process in self._found])
            return self._found
        with os.scandir(proc) as entries:
            pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
        self._found = read(proc, pids)
        period_s = min(_LONGEST_S, _SCAN_S * max(1.0, len(pids) / _FEW))
        self._scan_at = now + period_s - _SCAN_S / 2  # looks come each minute, some of them early
        return self._found


def read(proc: Path, pids: Iterable[int]) -> list[OddProcess]:
    """Those of `pids` in state D or Z but the kernel's own. What vanishes between two reads is passed over."""
    found = []
    for pid in pids:
        try:
            descriptor = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            data = os.read(descriptor, 1024)
        except OSError:
            continue
        finally:
            os.close(descriptor)
        end = data.rfind(b")")
        # State stands two bytes behind the name, which may hold anything.
        if data[end + 2 : end + 3] in (b"D", b"Z") and (process := parse(pid, data)) is not None:
            found.append(process)
    return found


def parse(pid: int, stat: bytes) -> OddProcess | None:
    """A line of /proc/PID/stat; None for one of the kernel's own threads, and for what is no such line."""
    found = parse_stat(pid, stat)
    if found is None or found.flags & _KERNEL_THREAD:
        return None
    return OddProcess(pid, found.start, found.comm, found.state, found.ppid)
