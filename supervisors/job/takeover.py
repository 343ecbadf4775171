"""What a successor takes over: whether the processes that its predecessor made were let go, or are to be made again."""

import time
from collections.abc import Callable
from pathlib import Path

from muster.probes.kernel import process
from muster.supervisors.job.ends import Ends
from muster.supervisors.launch import child
from muster.supervisors.model.ledger import Ledger
from muster.supervisors.system.loop import Loop
from muster.supervisors.wire.link import NurseryLink

_GATE_LOOK_S = 0.002
_GATE_WAIT_S = 10.0


class Takeover:
    """Of ranks, or of a step, that a predecessor started."""

    def __init__(
        self, unborn: Path, loop: Loop, ledger: Ledger, ends: Ends, link: NurseryLink, carry_on: Callable[[], None]
    ) -> None:
        """`carry_on` is called when they are known to have been let go."""
        self._unborn, self._loop, self._ledger = unborn, loop, ledger
        self._ends, self._link, self._carry_on = ends, link, carry_on
        #: While it is not known whether they were let go: how they ended says nothing yet.
        self.undecided = False

    def adopt(self) -> None:
        """Goes on with them. Raises OSError."""
        job = self._ledger.job
        self._link.tell("ranks", pids=[r.pid for r in job.processes() if r.outcome is None])
        self._ends.watch()
        if job.in_step or not job.started_up:
            self.undecided = True
            self._settle(time.monotonic() + _GATE_WAIT_S)
        else:
            self._carry_on()

    def _settle(self, deadline: float) -> None:
        """Finds out whether the predecessor opened the gate: once no child is before its exec any more, the `unborn`
        file tells."""
        ranks = self._ledger.job.processes()
        for rank in ranks:
            stat = process.read_stat(rank.pid)
            waiting = stat is not None and stat.start == rank.start and stat.before_exec and not stat.ended
            if waiting and time.monotonic() < deadline:
                self._loop.later(_GATE_LOOK_S, lambda: self._settle(deadline))
                return
        entries = child.read_unborn(self._unborn)
        if any(entries.get(r.pid, {}).get("reason") == child.GATE_CLOSED for r in ranks):
            self._bear_again()
        else:
            self.undecided = False
            self._carry_on()

    def _bear_again(self) -> None:
        self._ends.take_back()
        self.undecided = False
