"""A debugger that has stopped a process and does not look at it any more.

`python -m tests.tracer PID` attaches to each thread, prints `attached` and waits to be killed.
"""

import ctypes
import os
import signal
import sys

_PTRACE_ATTACH, _WALL = 16, 0x40000000


def main() -> None:
    """See above."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name in os.listdir(f"/proc/{sys.argv[1]}/task"):
        if libc.ptrace(_PTRACE_ATTACH, int(name), None, None):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.waitpid(int(name), _WALL)
    print("attached", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
