"""Runs a program that ends with the process that started it: `python -m muster.probes.active.bounded PID COMMAND...`.

The kernel kills the program as soon as the thread of PID that started it has ended, for whatever reason: a test of a
card must not continue when nobody waits for it. A program of muster's replaces this one, so there is one process. One
of the site's may be a script that calls another program, which the kernel would let be: this process stays its parent,
and ends the whole process group.
"""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Sequence
from types import FrameType

_PR_SET_PDEATHSIG = 1


def command(program: Sequence[str]) -> tuple[str, ...]:
    """The arguments after an interpreter that run a program so, for this process."""
    return ("-I", "-m", __name__, str(os.getpid()), *program)


def end_with_parent(number: int) -> None:
    """Has the kernel send this process the signal as soon as the thread that started it has ended. Raises OSError. Who
    started it may have ended before the call: compare os.getppid() behind it."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(arguments: list[str]) -> None:
    """Does not return."""
    parent, *program = arguments
    ours = program[0] == sys.executable
    if not ours:
        if os.getpgrp() != os.getpid():
            os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, _end_group)
    try:
        end_with_parent(signal.SIGKILL if ours else signal.SIGTERM)
    except OSError as error:
        sys.exit(f"prctl: {error.strerror}")
    if os.getppid() != int(parent):  # it had ended before the call above
        return
    try:
        if ours:
            os.execvp(program[0], program)
        pid = os.posix_spawnp(program[0], program, os.environ)
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")
    _end_as(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _end_group(_number: int, _frame: FrameType | None) -> None:
    os.killpg(0, signal.SIGKILL)


def _end_as(code: int) -> None:
    """As the program ended: with its exit code, or by its signal."""
    if code >= 0:
        sys.exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left a core dump, if one is wanted
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main(sys.argv[1:])
