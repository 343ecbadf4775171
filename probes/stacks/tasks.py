"""A process and its threads as /proc shows them. Nothing here disturbs the process.

Every function blocks, possibly for ever: `cmdline` takes a lock that a process in state D can hold.
"""

import contextlib
import os
import platform
import re
import struct
import time
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.process import Stat, parse_stat
from muster.probes.stacks.record import Task

#: Threads of a process that are looked at, and those of them whose kernel stack is: a training process may have
#: hundreds, and one stack takes about 20 us to read.
MAX_TASKS, MAX_KERNEL_STACKS = 512, 64
_BYTES = 16 << 10
#: "[<0>] futex_do_wait+0x46/0x90 [module]"
_FUNCTION = re.compile(r"\[<[0-9a-fx]*>\] ([^\s+]+)(?:\+0x[0-9a-f]+/0x[0-9a-f]+)?( \[[^\]]+\])?")
_SWITCHES = re.compile(rb"^voluntary_ctxt_switches:\s*(\d+)$", re.MULTILINE)
#: Numbers of clock_nanosleep(2) and nanosleep(2), by machine: from asm/unistd_64.h and asm-generic/unistd.h.
_NUMBERS = {"x86_64": (230, 35), "aarch64": (115, 101)}
_CLOCKS = (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME)
#: TIMER_ABSTIME of time.h.
_ABSTIME = 1
_TIMESPEC = struct.Struct("@ll")


@dataclass(frozen=True, slots=True)
class KernelSide:
    """A process as the kernel has it. `command`: its program, without arguments, which may hold secrets."""

    command: str
    state: str
    parent: int
    threads: int
    tasks: tuple[Task, ...]
    is_python: bool


def read(proc: Path, pid: int, start: int) -> KernelSide | None:
    """None where the process has ended (and where its pid is another's by now). Blocks."""
    folder = f"{proc}/{pid}"
    stat = _stat(f"{folder}/stat", pid)
    if stat is None or stat.start != start:
        return None
    try:
        tids = sorted(int(name) for name in os.listdir(f"{folder}/task") if name.isdigit())
    except OSError:
        return None
    tids = [pid, *(tid for tid in tids if tid != pid)]
    found = {tid: there for tid in tids[:MAX_TASKS] if (there := _stat(f"{folder}/task/{tid}/stat", tid)) is not None}
    # The stacks that tell most come first: of the first thread, and of those that wait in the kernel.
    stacks = sorted(found, key=lambda tid: (tid != pid, found[tid].state != "D", tid))[:MAX_KERNEL_STACKS]
    tasks = []
    for tid, there in found.items():
        wchan = _text(f"{folder}/task/{tid}/wchan")
        kernel = functions(_text(f"{folder}/task/{tid}/stack")) if tid in stacks and there.state != "R" else ()
        switches = _switches(f"{folder}/task/{tid}/status") if tid in stacks else None
        wakes_in = sleep_left(folder, tid) if "nanosleep" in wchan else None
        wchan = "" if wchan == "0" else wchan
        tasks.append(Task(tid, there.comm, there.state, wchan, kernel, switches, wakes_in, there.faults))
    exe = ""
    with contextlib.suppress(OSError):
        exe = os.path.basename(os.readlink(f"{folder}/exe"))
    words = [word for word in _text(f"{folder}/cmdline").split("\0") if word]
    if (after := _stat(f"{folder}/stat", pid)) is None or after.start != start:
        return None
    is_python = exe.startswith("python") or stat.comm.startswith("python")
    command = _command(words, is_python) or stat.comm
    return KernelSide(command, stat.state, stat.ppid, stat.threads, tuple(tasks), is_python)


def is_there(proc: Path, pid: int, start: int) -> bool:
    """Whether the process is still the one that it was. Blocks."""
    stat = _stat(f"{proc}/{pid}/stat", pid)
    return stat is not None and stat.start == start


def functions(stack: str) -> tuple[str, ...]:
    """The names in /proc/PID/stack, innermost first, without offsets and what every system call begins with."""
    names = []
    for line in stack.splitlines():
        if match := _FUNCTION.match(line):
            names.append(match[1] + (match[2] or ""))
    while names and names[-1].startswith(("do_syscall", "entry_SYSCALL", "el0", "invoke_syscall", "ret_from_fork")):
        names.pop()
    return tuple(names)


def _switches(path: str) -> int | None:
    match = _SWITCHES.search(_bytes(path))
    return int(match[1]) if match else None


def _stat(path: str, tid: int) -> Stat | None:
    return parse_stat(tid, _bytes(path))


def _command(words: list[str], is_python: bool) -> str:
    """`python train.py`, `python -m package`, `sleep`: no arguments."""
    if not words:
        return ""
    program = os.path.basename(words[0])
    if is_python:
        rest = iter(words[1:])
        for word in rest:
            if word == "-m":
                return f"{program} -m {next(rest, '')}"
            if word == "-c":
                return f"{program} -c"
            if word in ("-W", "-X"):
                next(rest, None)
            elif not word.startswith("-"):
                return f"{program} {os.path.basename(word)}"
    return program


def _text(path: str) -> str:
    """Without the line end; nothing where it cannot be read."""
    return _bytes(path).decode("utf-8", "replace").rstrip("\n")


def _bytes(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _BYTES)
    except OSError:  # it has ended, or this may not be read
        return b""
    finally:
        os.close(fd)


def sleep_left(proc: str, tid: int) -> float | None:
    """Seconds after which a thread of the process in the folder `proc` wakes up, at most: of a sleep that was given a
    length, and no end, all of that. None where it does not sleep, or where this may not be read (it takes the right to
    trace the process). Blocks."""
    try:
        with open(f"{proc}/task/{tid}/syscall") as file:
            words = file.read().split()
        number, *args = int(words[0]), *(int(word, 16) for word in words[1:5])
        by_clock, plain = _NUMBERS[platform.machine()]
        if number == by_clock:
            clock, flags, place = args[0], args[1], args[2]
        elif number == plain:
            clock, flags, place = time.CLOCK_MONOTONIC, 0, args[0]
        else:
            return None
        seconds, nanoseconds = _TIMESPEC.unpack(_memory(proc, place, _TIMESPEC.size))
    except (OSError, ValueError, IndexError, KeyError, struct.error):  # it runs, has ended, or may not be read
        return None
    until: float = seconds + nanoseconds / 1e9
    if not flags & _ABSTIME:
        return until
    return until - time.clock_gettime(clock) if clock in _CLOCKS else None


def _memory(proc: str, place: int, size: int) -> bytes:
    fd = os.open(f"{proc}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size, place)
    finally:
        os.close(fd)
