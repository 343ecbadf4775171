"""Detects that the supervisor of a live job is stopped (SIGSTOP) or hangs in the kernel. Then no process empties the
FIFOs of its ranks, and no other part of muster would report it."""

import time
from collections.abc import Callable

import structlog

from muster.agent import threads
from muster.agent.events.event_store import Event
from muster.agent.jobs.entry import Entry
from muster.probes.kernel import process
from muster.probes.kernel.process import STUCK
from muster.supervisors.supervision_errors import explain
from muster.supervisors.system import lock

#: Seconds between two looks, and between looks while the supervisor seems stuck.
LOOK_S, AGAIN_S = 5.0, 1.0
#: Seconds in which every look must find it stuck: each write is also in state D for a moment.
STUCK_S = 10.0
#: Kinds of events.
STUCK_KIND, WORKS_KIND = "job.supervisor_stuck", "job.supervisor_works"
#: The states in which it does nothing, with their names in the API and in events.
WORDS = {"T": "stopped", "t": "traced", "D": "hangs"}

_log = structlog.get_logger(__name__)


class StuckSupervisor:
    """Of one live job."""

    def __init__(self, entry: Entry, tell: Callable[[Event], None], *, was_stuck: bool = False) -> None:
        """Stores the state in `entry`, and reports each change. `was_stuck`: so an earlier daemon reported last."""
        self._entry, self._tell, self._was_stuck = entry, tell, was_stuck
        #: The supervisor that the last looks in a row found stuck, and how many they were.
        self._stuck, self._looks = 0, 0
        self._said = ""

    async def run(self, rounds: threads.Rounds) -> None:
        """Looks, until cancelled."""
        try:
            await rounds.join(self._try, self._take, lambda: AGAIN_S if self._stuck else LOOK_S)
        finally:
            self._entry.note("stuck", "")
            self._entry.stuck = ""

    def _try(self) -> tuple[int, str] | OSError:
        """Blocks."""
        try:
            return self._look()
        except OSError as error:
            return error

    def _take(self, found: tuple[int, str] | OSError) -> None:
        if isinstance(found, OSError):  # out of descriptors, for example: the last known state stays
            _log.info("supervisor.not_looked_at", job=self._entry.job_id, error=explain(found))
        else:
            self.saw(*found)

    def saw(self, pid: int, state: str) -> None:
        """Takes one look: the pid of the supervisor (0: none), and its state as in /proc/PID/stat."""
        stuck = pid if state in STUCK else 0
        self._looks = 0 if not stuck else self._looks + 1 if stuck == self._stuck else 1
        self._stuck = stuck
        if self._looks > STUCK_S / AGAIN_S:
            self._say(_sentence(pid, state, self._entry.job.has_run), WORDS[state], pid)
        elif not (stuck and self._was_stuck):
            self._say("", "", pid)

    def _say(self, text: str, word: str, pid: int) -> None:
        if text == self._said and not (self._was_stuck and not text):
            return
        self._was_stuck = False
        kind, said = STUCK_KIND, text
        if text:
            _log.warning("supervisor.stuck", job=self._entry.job_id, text=text)
        else:
            kind, said = WORKS_KIND, "its supervisor runs again"
            _log.info("supervisor.runs_again", job=self._entry.job_id)
        self._said = text
        self._entry.note("stuck", text)
        self._entry.stuck = word
        attributes = {"pid": str(pid)} | ({"state": word} if word else {})
        self._tell(Event(time.time(), kind, self._entry.job_id, message=said, attributes=attributes))

    def _look(self) -> tuple[int, str]:
        """Blocks. Raises OSError."""
        pid, start = self._entry.awaited
        if pid and (stat := process.read_stat(pid)) is not None and stat.start == start and stat.state in STUCK:
            return pid, stat.state
        pid = self._entry.job.supervisor_pid
        stat = process.read_stat(pid) if pid else None
        if stat is None or stat.state not in STUCK:
            return pid, ""
        # The journal's word may be of one long gone. The lock is asked only about one that seems to be stuck: where no
        # supervisor lives this daemon may have the lock itself, which the question would release.
        return (pid, stat.state) if lock.holder(self._entry.paths.lock) == pid else (0, "")


def _sentence(pid: int, state: str, has_run: bool) -> str:
    what = "output of its ranks waits" if has_run else "the job does not begin"
    text = f"its supervisor (pid {pid}) {STUCK[state]}: {what}; `muster stop` works"
    if state == "T":
        text += f"; `kill -CONT {pid}` continues it"
    return text
