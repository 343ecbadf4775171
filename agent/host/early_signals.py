"""Signals that daemon and command take from their first moment, before their imports: as PID 1 of a PID namespace those
that end it (later: ending.py, orphans.py), and in the daemon SIGUSR1 and SIGUSR2, which are for ranks.

Slurm signals every process of a step, a shell a whole group. Where the daemon got such a signal, the ranks have it, and
the command that got it, too, need not pass it on.
"""

import math
import os
import signal
import time
from types import FrameType

_came: dict[int, float] = {}


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


def leave_to_ranks() -> None:
    """From now on, SIGUSR1 and SIGUSR2 do nothing here, nor does one that was blocked. A handler and not SIG_IGN, which
    the programs that the daemon executes would inherit."""
    from muster.probes.kernel.process import USER_SIGNALS  # takes longer than all that comes before

    for number in USER_SIGNALS:
        signal.signal(number, lambda came, _: _came.__setitem__(came, time.monotonic()))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, USER_SIGNALS)


def take(number: int, since: float) -> bool:
    """Whether one came since then; it counts for this call alone."""
    came = came_last(number) >= since
    if came:
        del _came[number]
    return came


def came_last(number: int) -> float:
    """When one of them came last, by the monotonic clock; minus infinity: never."""
    return _came.get(number, -math.inf)
