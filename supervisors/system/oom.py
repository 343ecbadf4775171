"""Whether the kernel killed a process because it ran out of memory. The exit status shows only a SIGKILL.

Two sources: the counter of the job's own cgroup (memory.events; v1: memory.oom_control), and the kernel's log, which
names the process.
"""

import contextlib
import os
import re
import time

from muster.probes.kernel import process

#: "Out of memory: Killed process 4711 (python) ...", "Memory cgroup out of memory: ..." and, with
#: vm.oom_kill_allocating_task, "Out of memory (oom_kill_allocating_task): ...". A name may hold a parenthesis.
_KILLED = re.compile(r"ut of memory(?: \(\w+\))?: Killed process ([0-9]+) \((.*?)\)(?:[ ,]|$)", re.MULTILINE)
#: Of a rank whose SIGKILL was somebody else's.
NOT_THE_KERNEL = "neither muster nor the kernel's OOM killer sent it"
_NUMBER = re.compile(r"[0-9]+")
#: Records of the kernel's log that are looked at, at most: all that its usual buffer holds.
_MAX_RECORDS = 50_000
#: So much below a limit it is reached: the kernel counts memory in batches of some pages for each CPU.
_BATCH = 4 << 20
#: The log's clock stands still while the node sleeps, and is a little apart from ours, in seconds.
_SLACK_S = 2.0


def kills(cgroup: str) -> int:
    """How many processes of a cgroup (path) the kernel has killed so far; 0 where it does not count them (v1 does from
    Linux 4.13)."""
    for counters in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError, ValueError):
            for line in process.read_file(f"{cgroup}/{counters}").splitlines():
                name, _, number = line.partition(b" ")
                if name == b"oom_kill":
                    return int(number)
    return 0


def limit_reached(cgroup: str) -> int:
    """The limit of a cgroup (path), in bytes, where it is that which has been reached; else 0."""
    with contextlib.suppress(OSError, ValueError):
        with open(f"{cgroup}/memory.events.local", encoding="ascii") as file:
            reached = any(line.startswith("oom ") and line != "oom 0\n" for line in file)
        with open(f"{cgroup}/memory.max", encoding="ascii") as file:
            return int(file.read()) if reached else 0
    return _limit_reached_v1(cgroup)


def _limit_reached_v1(cgroup: str) -> int:
    """v1 tells the peak, and counts kills whatever the reason; how often the limit was met not every kernel counts."""
    numbers = []
    for name in ("memory.limit_in_bytes", "memory.max_usage_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(f"{cgroup}/{name}", encoding="ascii") as file:
            numbers.append(int(file.read()))
    return numbers[0] if len(numbers) == 2 and numbers[1] > numbers[0] - _BATCH and kills(cgroup) else 0


def victims(since: float) -> dict[int, str] | None:
    """Processes that the kernel has killed since `since` (seconds of CLOCK_BOOTTIME): name by pid, as its log tells.

    None where the log may not be read, or names processes by other numbers than we know them by.
    """
    if not process.pids_are_the_kernels():
        return None
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - since + _SLACK_S
    oldest = time.clock_gettime(time.CLOCK_MONOTONIC) - age
    found: dict[int, str] = {}
    try:
        for _ in range(_MAX_RECORDS):
            try:
                record = os.read(fd, 8192)
            except BrokenPipeError:  # overwritten before it was read: the next one
                continue
            except OSError:  # EAGAIN: the end; EINVAL: longer than any record can be
                break
            if not record:
                break
            found |= parse(record.decode("utf-8", "replace"), oldest)
    finally:
        os.close(fd)
    return found


def parse(record: str, oldest: float) -> dict[int, str]:
    """The process of one record of /dev/kmsg, "priority,number,microseconds,flags;text", that is not older than
    `oldest` (seconds of CLOCK_MONOTONIC)."""
    head, _, text = record.partition(";")
    fields = head.split(",")
    match = _KILLED.search(text)
    if match is None or len(fields) < 3 or not _NUMBER.fullmatch(fields[2]) or int(fields[2]) / 1e6 < oldest:
        return {}
    return {int(match[1]): match[2]}
