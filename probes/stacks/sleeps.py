"""How long a thread still sleeps, by the arguments of its system call (proc(5): /proc/PID/task/TID/syscall)."""

import os
import platform
import struct
import time

#: Numbers of clock_nanosleep(2) and nanosleep(2), by machine: from asm/unistd_64.h and asm-generic/unistd.h.
_NUMBERS = {"x86_64": (230, 35), "aarch64": (115, 101)}
_CLOCKS = (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME)
#: TIMER_ABSTIME of time.h.
_ABSTIME = 1
_TIMESPEC = struct.Struct("@ll")


def wakes_in(proc: str, tid: int) -> float | None:
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
