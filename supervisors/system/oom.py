"""Whether the kernel killed a process because it ran out of memory. The exit status shows only a SIGKILL.

Two sources: the counter of the job's own cgroup (memory.events; v1: memory.oom_control), and the kernel's log, which
names the process.
"""

import contextlib
import os
import re
import time
from collections.abc import Sequence

from muster.probes.kernel import kmsg, process
from muster.probes.kernel.kmsg import KernelRecord
from muster.supervisors.system import cgroups

#: "Out of memory: Killed process 4711 (python) ...", "Memory cgroup out of memory: ..." and, with
#: vm.oom_kill_allocating_task, "Out of memory (oom_kill_allocating_task): ...". A name may hold a parenthesis.
_KILLED = re.compile(r"ut of memory(?: \(\w+\))?: Killed process ([0-9]+) \((.*?)\)(?:[ ,]|$)", re.DOTALL)
#: The line before it (Linux 5.0), which tells whose limit was reached.
_LIMITED = re.compile(
    r"^oom-kill:constraint=CONSTRAINT_MEMCG,.*,oom_memcg=(.*),task_memcg=.*,task=(.*),pid=([0-9]+),", re.DOTALL
)
#: What each such record contains.
_WORDS = (b"ut of memory", b"oom-kill:")
#: Seconds for which a process that was killed may be why another one ends: the timeouts of NCCL and gloo.
_LATER_S = 600.0
#: Of a rank whose SIGKILL was somebody else's.
NOT_THE_KERNEL = "neither muster nor the kernel's OOM killer sent it"
#: So much below a limit it is reached: the kernel counts memory in batches of some pages for each CPU.
_BATCH = 4 << 20


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


def kills_around() -> int:
    """The same of the cgroup in which the kernel counts the memory of this process."""
    around = cgroups.around("memory")
    return kills(str(around)) if around is not None else 0


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
    records = _records()
    if records is None:
        return None
    found: dict[int, str] = {}
    for record in records:
        found |= parse(record, _oldest(since))
    return found


def killed_at_limit(cgroup: str, since: float) -> str | None:
    """The process that the kernel killed last since `since` (seconds of CLOCK_BOOTTIME) because this cgroup (path) had
    reached its limit: "python (pid 4711)"; "a process" where its log does not tell. None where that is too long ago to
    be why something ends now."""
    recent = max(since, time.clock_gettime(time.CLOCK_BOOTTIME) - _LATER_S)
    records = _records() or ()
    found = [who for record in records if (who := parse_limited(record, _oldest(since), cgroup))]
    if not found:
        return "a process"
    return found[-1] if any(parse_limited(record, _oldest(recent), cgroup) for record in records) else None


def killed_in_others(cgroup: str, since: float) -> frozenset[int]:
    """Processes (pids) that the kernel has killed since `since` (seconds of CLOCK_BOOTTIME) because a cgroup without
    anything of a job had reached its limit; the job's memory is counted in `cgroup` (path; empty: none of its own).
    Empty where the log may not be read, or the cgroups around this process are unknown, as in a container. Blocks."""
    own = ""
    with contextlib.suppress(OSError):
        own = process.cgroup(hierarchy="memory") or process.cgroup()
    around = _names(own)
    found = [_LIMITED.search(record.text) for record in (_records() or ()) if record.seconds >= _oldest(since)]
    return frozenset(
        int(match[3]) for match in found if match is not None and around and not concerns(match[1], cgroup, around)
    )


def concerns(limited: str, cgroup: str, around: Sequence[str]) -> bool:
    """Whether there may be processes of a job in the cgroup `limited` (as the host sees it): it is the job's, in it, or
    around it. Only names are compared. `around`: those of the cgroups around this process, from the outermost."""
    names, mine = _names(limited), os.path.basename(cgroup)
    if not names or mine in names or names[-1] in (*around, *_names(cgroup)):
        return True
    if mine or around[-1] not in names:
        return False
    return not names[names.index(around[-1]) + 1].startswith("muster-")  # else another job's


def _names(cgroup: str) -> list[str]:
    return [name for name in cgroup.split("/") if name]


def _oldest(since: float) -> float:
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - since + kmsg.SLACK_S
    return time.clock_gettime(time.CLOCK_MONOTONIC) - age


def _records() -> list[KernelRecord] | None:
    """What the kernel's log has about processes that were killed; None as for `victims`."""
    with contextlib.suppress(OSError):
        return kmsg.since_boot(_WORDS) if process.pids_are_the_kernels() else None
    return None


def parse(record: KernelRecord, oldest: float) -> dict[int, str]:
    """The process of a record that is not older than `oldest` (seconds of CLOCK_MONOTONIC)."""
    match = _KILLED.search(record.text) if record.seconds >= oldest else None
    return {int(match[1]): match[2]} if match is not None else {}


def parse_limited(record: KernelRecord, oldest: float, cgroup: str) -> str:
    """As `parse`, "name (pid N)", of a process that was killed because this cgroup (path) had reached its limit. The
    log has the cgroup as the host sees it, so only the name is compared. Empty for any other record."""
    match = _LIMITED.search(record.text) if record.seconds >= oldest else None
    here = match is not None and os.path.basename(cgroup) == os.path.basename(match[1])
    return f"{match[2]} (pid {match[3]})" if match is not None and here else ""
