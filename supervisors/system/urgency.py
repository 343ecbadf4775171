"""Real-time priority for the process that sends SIGKILL: it must run ahead of hundreds of processes that fork all the
time. Best effort: it needs CAP_SYS_NICE, or RLIMIT_RTPRIO.

A nice value would not do: where the kernel groups processes by session (autogroup), it counts within one session only.
"""

import contextlib
import os
from collections.abc import Iterator

#: The lowest: above all that is not real-time, below whatever is.
_PRIORITY = 1


class Urgency:
    """Of the calling thread. What it forks meanwhile is not urgent."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def begin(self) -> None:
        """From now on; nothing happens where the thread is real-time already."""
        before = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
        if before[1]:
            return
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(_PRIORITY))
            self._before = before

    def end(self) -> None:
        """As before."""
        if self._before is not None:
            policy, priority = self._before
            self._before = None
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, policy, os.sched_param(priority))


@contextlib.contextmanager
def urgent() -> Iterator[None]:
    """While the body runs."""
    urgency = Urgency()
    urgency.begin()
    try:
        yield
    finally:
        urgency.end()
