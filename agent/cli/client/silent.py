"""Why a daemon that holds its socket does not answer, and the remedy: from the kernel, not from the daemon."""

import contextlib
import resource
from pathlib import Path

from muster.agent.cli.client.address import Address
from muster.probes.kernel import open_files, process

#: A daemon with fewer descriptors to spare takes no connection.
_SPARE_FILES = 4
#: A daemon with less memory to spare, in bytes, makes no thread.
_SPARE_MEMORY = 64 << 20
_ON = "Its jobs continue"


def why(address: Address, timeout: float = 1.0) -> str:
    """A sentence about the listening process, with the remedy; empty if the process is unknown.
    Blocks for at most `timeout` seconds."""
    try:
        pid = address.listener(timeout)
    except OSError:
        pid = 0
    if not pid:
        return ""
    who = f"musterd (pid {pid})"
    with contextlib.suppress(OSError):
        stat = process.read_stat(pid)
        if stat is not None and stat.state in "Tt":
            return f"{who} {process.STUCK[stat.state]}: continue it with `kill -CONT {pid}`. {_ON}"
        if stat is not None and stat.state == "D":
            return f"{who} {process.STUCK[stat.state]}: look at its disks and at `dmesg`. {_ON}"
    if limit := _reached(pid):
        return f"{who} {limit}. {_ON}"
    return (
        f"{who} does not answer: restart it with `systemctl restart musterd`, or with `kill -9 {pid}` and a new start. "
        f"{_ON}, and the next daemon takes them over"
    )


def _reached(pid: int) -> str:
    """The limit at which the process is, with the remedy; empty where it is at none that can be read."""
    with contextlib.suppress(OSError):
        files, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = len(open_files.numbers(pid))
        if files != resource.RLIM_INFINITY and used > files - _SPARE_FILES:
            return (
                f"has {used} files open and its limit is {files}: raise the limit with "
                f"`prlimit --pid {pid} --nofile=65536:65536` (as root) and LimitNOFILE= of its service, or restart it"
            )
    with contextlib.suppress(OSError):
        memory, _ = resource.prlimit(pid, resource.RLIMIT_AS)
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        if memory != resource.RLIM_INFINITY and used > memory - _SPARE_MEMORY:
            return (
                f"has {used >> 20} MiB of address space and its limit is {memory >> 20} MiB: raise it with "
                f"`prlimit --pid {pid} --as=unlimited:unlimited` (as root) and LimitAS= of its service, or restart it"
            )
    return ""
