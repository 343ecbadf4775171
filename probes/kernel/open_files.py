"""The open files of a process, as /proc/PID/fd lists them."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def numbers(pid: int | str = "self", proc: Path | str = "/proc") -> list[int]:
    """The descriptors of a process; of this one, that of the listing too, which is closed by now. Raises OSError."""
    return [int(name) for name in os.listdir(f"{proc}/{pid}/fd")]


def count() -> int | None:
    """How many descriptors this process has, at the cost of one stat: Linux 6.2 and later give it as the size of the
    folder (proc(5)); None where that is not told."""
    try:
        return os.stat("/proc/self/fd").st_size or None
    except OSError:
        return None


def target(pid: int | str, number: int, proc: Path | str = "/proc") -> str:
    """The file of a descriptor: a path, which may end in " (deleted)", or "socket:[4711]". Raises OSError."""
    return os.readlink(f"{proc}/{pid}/fd/{number}")


def targets(pid: int) -> Iterator[str]:
    """The targets of all descriptors that can be read; none where that cannot be read."""
    with contextlib.suppress(OSError):
        for number in numbers(pid):
            with contextlib.suppress(OSError):
                yield target(pid, number)
