"""The effect of SIGTERM, SIGINT and SIGHUP on processes with jobs to end: the command `muster run`, and the daemon.

A request to end often sends several signals: Slurm sends SIGTERM, SIGCONT and SIGTERM within 4 ms at a time limit, an
init signals every process of a container, a script forwards a signal that its process group got as well. So a signal
right after another one is the same request. Ctrl-C pressed twice is a second request.
"""

import enum
import signal
from collections.abc import Mapping

from muster.agent.text import local

#: Seconds for which a further signal counts as the one before.
SAME_S = 4.0
#: Slurm looks for jobs whose time is over twice a minute, and may be some seconds early.
_EARLY_S = 5.0


class Ask(enum.IntEnum):
    """What is asked for, in the order in which it is."""

    STOP = 1  # end the jobs, with their grace
    KILL = 2  # end them now
    LEAVE = 3  # wait for their end no longer


class EndSignals:
    """Counts the signals of one process."""

    def __init__(self) -> None:
        self._asked = 0
        self._at = 0.0
        self._interrupted = False
        #: Number of the signal that came first; 0: none did.
        self.first = 0

    def take(self, number: int, now: float) -> Ask | None:
        """What this signal asks for; None for what was asked already. `now`: seconds of a monotonic clock."""
        again = number == signal.SIGINT and self._interrupted
        self._interrupted |= number == signal.SIGINT
        if self._asked and not again and now - self._at < SAME_S:
            return None
        # No call from the look at `_asked` to here: Python handles another signal only behind one, and that other
        # signal would count as a request of its own.
        if self._asked < Ask.LEAVE:
            self._asked += 1
        self._at = now
        self.first = self.first or number
        return Ask(self._asked)


def name(number: int) -> str:
    """As people read it: "SIGTERM"; SIGINT is Ctrl-C."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def time_limit(env: Mapping[str, str], now: float) -> str:
    """Behind a signal that comes `now` (seconds since the epoch): when the job's time was to be over, if it is; else
    "". It is what Slurm planned at the start: a limit that is changed later is not in the environment."""
    end = env.get("SLURM_JOB_END_TIME", "")
    over = end.isdigit() and len(end) < 12 and now >= int(end) - _EARLY_S
    return f"; Slurm's time limit was {local(int(end))}" if over else ""
