"""Processes by their identity (boot id, pid, start time), and what the kernel tells of their end.

The rule behind recovery: *a rank is waited for only after its status is in the journal*. Until then it stays a zombie,
and the kernel keeps the truth for the next reader. A zombie's status can be read by more than its parent:

- its parent peeks with waitid(2) and WNOWAIT;
- anyone who may ptrace it reads the last field of /proc/PID/stat (`exit_code`, proc(5));
- the holder of a pidfd asks PIDFD_GET_INFO once the parent has waited for it (Linux 6.15 and later).
"""

import contextlib
import errno
import fcntl
import functools
import os
import re
import select
import signal
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from muster.probes.kernel.dataclass import dataclass

if TYPE_CHECKING:
    import socket

#: Of the pid namespace that the kernel began with (include/linux/proc_ns.h, PROC_PID_INIT_INO).
_FIRST_NAMESPACE = "pid:[4026531836]"
#: task->flags: forked but did not execute anything yet (include/linux/sched.h).
_PF_FORKNOEXEC = 0x40
_PIDFD_INFO_EXIT = 1 << 3
#: _IOWR(0xFF, 11, 64 bytes); include/uapi/linux/pidfd.h.
_PIDFD_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
#: Signals that ask a process to end. They go to whole groups, containers and steps of Slurm, so muster's own processes
#: get them as well as the ranks.
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Signals by which a scheduler or a person tells a program something, and which end one that expects none. They go to
#: whole groups, too, and are the ranks' alone.
USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
#: The states of /proc/PID/stat in which a process does nothing, whatever is asked of it.
STUCK = {"T": "is stopped (SIGSTOP)", "t": "is stopped by a debugger (state t)", "D": "hangs in the kernel (state D)"}
#: What open(2) and its like say at a limit of the process, or of the node.
FULL = (errno.EMFILE, errno.ENFILE)
#: struct ucred (include/linux/socket.h): pid, uid and gid.
_UCRED = struct.Struct("iII")
_EFFECTIVE = re.compile(r"^CapEff:\s*([0-9a-f]+)", re.MULTILINE)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def peer(connection: "socket.socket") -> tuple[int, int]:
    """Pid and uid of the process at the other end of a unix socket, as they were when it connected or began to listen.
    The pid is 0 where it is in a PID namespace that cannot be seen from here. Raises OSError."""
    import socket  # only now: not every command asks a socket

    pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid


@functools.cache
def boot_id() -> str:
    """Random at each boot: processes of another boot have ended. Read once: a nursery's supervisors know it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def pids_are_the_kernels() -> bool:
    """Whether the kernel's log names processes by the numbers that we know. False in a container with pids of its own,
    and if that is unknown."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE
    except OSError:
        return False


def uptime() -> float:
    """Seconds since the boot, suspended time included: a clock that no one can set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/PID/stat says. Times in clock ticks, those of children that were waited for included, `start` since
    boot; `rss` in bytes; `faults`: how often it touched a page of memory that was not there; `threads`: where the first
    one has ended, it and those that have not (`with_living_threads`)."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgrp: int
    session: int
    flags: int
    user_ticks: int
    system_ticks: int
    threads: int
    start: int
    exit_code: int
    rss: int = 0
    faults: int = 0

    @property
    def cpu_s(self) -> float:
        """Seconds of CPU time, with that of the children that it has waited for."""
        return (self.user_ticks + self.system_ticks) / TICKS_PER_S

    @property
    def ended(self) -> bool:
        """A process whose first thread has ended is a zombie to look at, but lives as long as its other threads."""
        return self.state == "X" or (self.state == "Z" and self.threads <= 1)

    @property
    def before_exec(self) -> bool:
        """True for a process that was forked and has not executed a program."""
        return bool(self.flags & _PF_FORKNOEXEC)


def identity(pid: int) -> tuple[int, int]:
    """Pid and start time of a child that was not waited for."""
    stat = read_stat(pid)
    assert stat is not None
    return pid, stat.start


def names(stats: list[Stat]) -> str:
    """Some of them, for people: "4711 (python), 4712 (sh)"."""
    return ", ".join(f"{s.pid} ({s.comm})" for s in stats[:5]) + (", ..." if len(stats) > 5 else "")


def read_stat(pid: int) -> Stat | None:
    """None where there is no such process, or where it is hidden from us (hidepid)."""
    try:
        data = _read_once(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return with_living_threads(parse_stat(pid, data), lambda: _thread_stats(pid))


def with_living_threads(stat: Stat | None, thread_stats: Callable[[], Iterable[bytes]]) -> Stat | None:
    """The same, but for threads that have ended. A debugger keeps those that it traces until it asks for them, and with
    them their process, of which nothing is left but its exit code. `thread_stats`: /proc/PID/task/*/stat; one that
    cannot be read counts as living: it may have ended behind another that it began."""
    if stat is None or stat.state != "Z" or stat.threads <= 1:
        return stat
    found = [parse_stat(stat.pid, data) for data in thread_stats()]
    return replace(stat, threads=1 + sum(one is None or one.state not in ("Z", "X") for one in found))


def _thread_stats(pid: int) -> Iterator[bytes]:
    try:
        tids = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return
    for tid in tids:
        try:
            yield _read_once(f"/proc/{pid}/task/{tid}/stat")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            yield b""


def _read_once(path: str) -> bytes:
    """A file of /proc that one read(2) gives: `open` makes eight system calls of it, not three. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def read_file(path: str) -> bytes:
    """All of a small file of the kernel, with half of the system calls that `open` makes of it. Raises OSError."""
    found = b""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while data := os.read(fd, 1 << 16):
            found += data
    finally:
        os.close(fd)
    return found


def parse_stat(pid: int, data: bytes) -> Stat | None:
    """Of what /proc/PID/stat says; None where that is nothing."""
    # The name may hold anything, parentheses and newlines too: it ends at the last one.
    head, _, tail = data.rpartition(b")")
    f = tail.split()
    try:
        return Stat(
            pid=pid,
            comm=head.partition(b"(")[2].decode("utf-8", "replace"),
            state=f[0].decode("ascii", "replace"),
            ppid=int(f[1]),
            pgrp=int(f[2]),
            session=int(f[3]),
            flags=int(f[6]),
            user_ticks=int(f[11]) + int(f[13]),
            system_ticks=int(f[12]) + int(f[14]),
            threads=int(f[17]),
            start=int(f[19]),
            exit_code=int(f[49]),
            rss=int(f[21]) * PAGE_BYTES,
            faults=int(f[7]) + int(f[9]),
        )
    except (IndexError, ValueError):
        return None


def all_stats() -> dict[int, Stat]:
    """Every process that can be seen. Those that vanish meanwhile are left out."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = read_stat(int(name))
            if stat is not None:
                found[stat.pid] = stat
    return found


def waited_for_cpu(pid: int) -> float:
    """Seconds that the main thread of a process wanted to run and had no processor (the second field of
    /proc/PID/schedstat); 0 where the kernel does not tell, or the process is gone."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read(128).split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def last_pid() -> int:
    """The pid that was given out last (proc(5), loadavg): while it is the same, no process is made. Raises OSError."""
    with open("/proc/loadavg", "rb") as file:
        return int(file.read(128).split()[4])


def open_pidfd(pid: int, start: int) -> int | None:
    """A pidfd for the process with this identity; None if it has exited (another may have its pid by now).

    Raises OSError where there is no descriptor to be had: that says nothing of the process.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # a thread of another process by now
            return None
        raise
    try:
        stat = read_stat(pid)
    except OSError:
        os.close(pidfd)
        raise
    if stat is None or stat.start != start:
        os.close(pidfd)
        return None
    return pidfd


def wait_ended(pidfd: int, seconds: float) -> bool:
    """Waits so long for the end of the process, all its threads included; whether it has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def send(pid: int, start: int, number: int) -> bool:
    """Signals the process with this identity and no other; False if it has exited."""
    pidfd = open_pidfd(pid, start)
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(pidfd)


def peek_child(pid: int) -> int | None:
    """The status, as wait(2) encodes it, of a child that has ended; it stays a zombie. None: not ended, no child."""
    with contextlib.suppress(ChildProcessError):
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is not None:
            if info.si_code == os.CLD_EXITED:
                return info.si_status << 8
            return info.si_status | (0x80 if info.si_code == os.CLD_DUMPED else 0)
    return None


def final_status(pid: int, start: int, pidfd: int | None) -> int | None:
    """The status, as wait(2) encodes it, of a process that has ended; None where we cannot tell.

    Does not wait for it: a zombie stays one.
    """
    status = peek_child(pid)
    if status is not None:
        return status
    stat = read_stat(pid)
    # Where we may not look, exit_code reads 0; /proc/PID/io is guarded by the same right and says so. (A zombie's is
    # root's alone: for others a 0 needs the parent's word.)
    if stat is not None and stat.start == start and stat.ended and (stat.exit_code or _may_look(pid)):
        again = read_stat(pid)
        if again is not None and again.start == start and again.exit_code == stat.exit_code:
            return stat.exit_code
    return _status_by_pidfd(pidfd) if pidfd is not None else None


def _may_look(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            file.read()
    except OSError:
        return False
    return True


def _status_by_pidfd(pidfd: int) -> int | None:
    request = bytearray(struct.pack("<Q", _PIDFD_INFO_EXIT) + bytes(56))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, request)
    except OSError:
        return None
    (mask,) = struct.unpack_from("<Q", request, 0)
    if not mask & _PIDFD_INFO_EXIT:
        return None
    (status,) = struct.unpack_from("<i", request, 60)
    return int(status)


def usage(pid: int) -> dict[str, float | int]:
    """What an ended but not waited-for process used: `lifecycle.Usage`'s fields but for `max_rss`.

    Seconds and bytes, its waited-for descendants included. What cannot be read is left out.
    """
    found: dict[str, float | int] = {}
    stat = read_stat(pid)
    if stat is not None:
        found["cpu_user_s"] = stat.user_ticks / TICKS_PER_S
        found["cpu_system_s"] = stat.system_ticks / TICKS_PER_S
    with contextlib.suppress(OSError, ValueError):
        for line in _read_once(f"/proc/{pid}/io").splitlines():
            name, _, value = line.partition(b":")
            key = name.decode()
            if key in ("rchar", "wchar", "read_bytes", "write_bytes"):
                found[key] = int(value)
    return found


def cgroup(pid: int | None = None, hierarchy: str = "") -> str:
    """The path of a process (None: this one) in the tree of cgroup v2, or in a hierarchy of v1; "" without one. Raises
    OSError."""
    mark = f":{hierarchy}:/"
    lines = os.fsdecode(read_file(f"/proc/{pid or 'self'}/cgroup")).split("\n")
    return next((line.partition(mark[:-1])[2] for line in lines if mark in line), "")


def environ_begins(pid: int, begin: bytes) -> bool:
    """Whether a process was started with a variable that begins so; False where that cannot be read. Raises OSError
    where there is no descriptor to be had."""
    return any(entry.startswith(begin) for entry in environ(pid))


def environ_has(pid: int, entry: bytes) -> bool:
    """Whether a process was started with this NAME=VALUE; False where that cannot be read. Raises OSError where there
    is no descriptor to be had."""
    return entry in environ(pid)


def environ(pid: int) -> list[bytes]:
    """The variables that a process was started with, NAME=VALUE each; none where they cannot be read. Raises OSError
    where there is no descriptor to be had: that says nothing of the process."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError as error:
        if error.errno in FULL:
            raise
        return []


def effective_capabilities(status: str) -> int:
    """The mask of the capabilities in force, from the text of /proc/PID/status; 0 where it does not say."""
    found = _EFFECTIVE.search(status)
    return int(found[1], 16) if found else 0
