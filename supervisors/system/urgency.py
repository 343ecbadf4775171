"""Which of muster's processes run ahead of others. Best effort: it needs CAP_SYS_NICE, or RLIMIT_RTPRIO.

Real-time priority is for the process that sends SIGKILL: it must run ahead of hundreds of processes that fork all the
time. A nice value would not do: where the kernel groups processes by session (sched_autogroup_enabled, on by default)
and no cgroup with the controller cpu is between, it counts within one session only. Each rank leads its own, so the
session of daemon and supervisors has the nice value: 256 ranks that are let go, or end, at once delay neither.
"""

import contextlib
import os
from collections.abc import Iterator

#: The lowest: above all that is not real-time, below whatever is.
_PRIORITY = 1


def prefer_session(nice: int) -> None:
    """Gives the session that we lead this nice value, if that is below 0."""
    if nice < 0 and os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "wb") as file:
            file.write(b"%d" % nice)


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
