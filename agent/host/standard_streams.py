"""The standard streams of the daemon, from the first moment on."""

import os
import sys


def open_closed() -> None:
    """Opens /dev/null in the place of stdin, stdout and stderr, as far as they are closed: else the next file would get
    their number, and what libraries print would go into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            fd = os.open(os.devnull, os.O_RDWR)
            if fd != number:
                os.dup2(fd, number)
                os.close(fd)
            os.set_inheritable(number, True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (for as long as we live)
