"""Processes that a step or ranks left running after their end, and the moment when none of them is left."""

import contextlib
import os
import time

from muster.supervisors.job.context import JobContext
from muster.supervisors.job.ends import Ends
from muster.supervisors.launch.creation.underway import Underway
from muster.supervisors.session.sessions import Sessions

#: How often processes that outlive their ranks are looked at, in seconds; epoll does not report their ends.
LEFTOVER_LOOK_S = 0.05
#: Seconds until the next look when a process must exist but is not visible yet (it is being spawned).
GONE_LOOK_S = 0.002


class Remains:
    """Looks at them when there is a reason: each look is at all processes of the node."""

    def __init__(self, context: JobContext, ends: Ends, sessions: Sessions, underway: Underway) -> None:
        """`underway`: of the gang, or step, that is being created."""
        self._context, self._ends, self._sessions, self._underway = context, ends, sessions, underway
        #: Whether something has changed since the last look.
        self.due = True
        self._pause = GONE_LOOK_S
        #: Some cannot be killed: muster no longer waits for them.
        self.stuck = False
        #: Since when nothing of the job is seen to live, or its end is to be recorded, where the journal did not take
        #: that then (seconds since the epoch); 0: not so.
        self.over_at = 0.0

    def look(self) -> None:
        """Processes may be gone: there is reason for another look, behind this batch of events."""
        self.due = True

    def all_gone(self) -> bool:
        """Whether nothing is left of what ran, or nothing that could be ended."""
        self.due = False
        self.wait_for_orphans()
        return self.stuck or self._context.containment.gone()

    def look_later(self, seen: bool) -> None:
        """`seen`: whether some of those that are left could be seen."""
        if seen:
            self.over_at = 0.0
        self._pause = min(self._pause * 2, LEFTOVER_LOOK_S)
        self._context.loop.later(LEFTOVER_LOOK_S if seen else self._pause, self.look)

    def gone_unrecorded(self) -> bool:
        """Whether nothing lives any more, though the ends cannot be written yet. Raises OSError."""
        if not self.due or any(r.outcome is None for r in self._context.job.processes()):
            return False
        self.due = False
        self.wait_for_orphans()
        left = self._context.containment.members()
        if not left:
            self.over_at = self.over_at or time.time()
        if self._context.containment.gone(kept=True):
            return True
        self.look_later(bool(left))
        return False

    def wait_for_orphans(self) -> None:
        """Waits for those that came to us, and for sessions; ranks are waited for once their end is written down."""
        self._sessions.reap()
        if self._underway.lasts or self._sessions.comes:
            return  # whose ends are whose is known once they are on record
        ranks = {r.pid for r in self._context.job.processes() if r.outcome is None}
        ranks.update(r.pid for r in self._ends.unreaped)
        with contextlib.suppress(ChildProcessError):
            while True:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if info is None or info.si_pid in ranks:
                    return
                if not self._sessions.reap():
                    os.waitpid(info.si_pid, 0)
