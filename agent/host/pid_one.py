"""The daemon, or a command, as PID 1 of a PID namespace: what is different from the first moment on. Later: ending.py,
orphans.py."""

import os
import signal
from types import FrameType


def is_init() -> bool:
    """Whether this process is PID 1 of its PID namespace."""
    return os.getpid() == 1


def leave_when_asked() -> None:
    """The kernel gives PID 1 no signal that it has no handler for: until this process handles signals itself, one ends
    it as it would any other process."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
