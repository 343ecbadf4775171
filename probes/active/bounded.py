"""Runs a program that ends with the process that started it: `python -m muster.probes.active.bounded PID COMMAND...`.

The kernel kills the program as soon as the thread of PID that started it has ended, for whatever reason: a test of a
card must not continue when nobody waits for it. The program replaces this one, so there is one process.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def command(program: Sequence[str]) -> tuple[str, ...]:
    """The arguments after an interpreter that run a program so, for this process."""
    return ("-I", "-m", __name__, str(os.getpid()), *program)


def main(arguments: list[str]) -> None:
    """Does not return."""
    parent, *program = arguments
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() == int(parent):  # otherwise it had ended before the call above
        try:
            os.execvp(program[0], program)
        except OSError as error:
            sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
