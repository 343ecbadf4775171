"""Processes that died of a fault of their own, as the kernel's log tells it: where, and in which library."""

import re
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from muster.probes.kernel import kmsg, process
from muster.probes.kernel.dataclass import dataclass

#: Records that are looked at, at most: all that the log's usual buffer holds.
_MAX_RECORDS = 50_000
#: The log's clock stands still while the node sleeps, and is a little apart from ours, in seconds.
_SLACK_S = 2.0
#: x86: "python[4711]: segfault at 0 ip ...", "traps: python[4711] general protection fault ip:..."; arm64:
#: "python[4711]: unhandled exception: ...". A name may hold any character.
_CRASH = re.compile(
    r"^(?:traps: )?(.{1,64}?)\[([0-9]{1,10})\](?:: segfault at "
    r"|: (?:unhandled (?:exception|signal)|potentially unexpected fatal signal)| (?:general protection fault|trap ))"
)


@dataclass(frozen=True, slots=True)
class Crash:
    """A process, and the kernel's line about its end. `at`: seconds since the epoch."""

    pid: int
    name: str
    at: float
    text: str


def of_processes(pids: Collection[int], since: float, path: Path = kmsg.PATH) -> list[Crash]:
    """What the log says since `since` (seconds since the epoch) of these processes. Nothing in a container with pids
    of its own: the log names those of the host. Blocks. Raises OSError."""
    if not process.pids_are_the_kernels():
        return []
    found = []
    log = kmsg.KernelLog(path)
    log.open()
    with closing(log):
        more, count = True, 0
        while more and count < _MAX_RECORDS:
            records, more = log.read()
            count += 500
            found += [crash for one in records if one.kernel and (crash := parse(one)) is not None]
    return [crash for crash in found if crash.pid in pids and crash.at >= since - _SLACK_S]


def parse(record: kmsg.KernelRecord) -> Crash | None:
    """None for a record about anything else."""
    match = _CRASH.match(record.text)
    if match is None:
        return None
    return Crash(int(match[2]), match[1], kmsg.wall_time(record.seconds), record.text)
