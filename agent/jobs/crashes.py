"""Supervisors and nurseries that die: each death is logged and an event; repeated deaths are a condition.

A single death is harmless: a takeover handles it. A supervisor or nursery that dies repeatedly, or gets no successor,
is a condition of the node, SUPERVISOR_CRASHING, and a warning of the job, until a supervisor has lived for a while.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import field, replace

import structlog

from muster.agent.events.event_store import Event, EventStore
from muster.agent.jobs.entry import Entry
from muster.agent.link.nursery_client import MAX_LINE, Which
from muster.probes.calls.heartbeat import tick
from muster.probes.checks.codes import EXPLANATIONS
from muster.probes.checks.result import CheckResult, Code, Status, one_line
from muster.probes.kernel.dataclass import dataclass

#: So many deaths within so many seconds are too many; so long after the last one the condition ends.
MANY, WINDOW_S = 3, 60.0
#: Limits per job: counted deaths, remembered pids.
MOST = 1000
CLEAR_S = EXPLANATIONS[Code.SUPERVISOR_CRASHING].age_s
#: Seconds between two events about the same job after many of them.
FLOOD_S = 60.0
#: Seconds between two looks for conditions that have ended.
LOOK_S = 5.0
ITEM = "supervision"
_BOTH = "it died or could not be started"

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Deaths:
    """The deaths of one job, or of the nursery. Times are of time.monotonic()."""

    last: float = 0.0
    #: Deaths of the last WINDOW_S: when, and whether it had lived.
    recent: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=MOST))
    known: deque[Which] = field(default_factory=lambda: deque(maxlen=MOST))
    told_at: float = float("-inf")
    untold: int = 0
    reason: str = ""


class Crashes:
    """Belongs to one event loop."""

    def __init__(
        self, events: EventStore, found: Callable[[CheckResult], None], entry: Callable[[str], Entry | None]
    ) -> None:
        """`found` latches a condition; `entry` returns a job by its id."""
        self._events, self._found, self._entry = events, found, entry
        self._deaths: dict[str, _Deaths] = {}

    def died(self, job_id: str, how: str, error: str, lived: bool = True, which: Which | None = None) -> None:
        """A supervisor died, or (no job) the nursery, or (not `lived`) could not be started; `error`: the end of its
        traceback, if it has one. `which` is counted once, though the nursery reports it when it happens, and again to
        each request for a supervisor until there is one."""
        now = time.monotonic()
        self._forget(now)
        deaths = self._deaths.setdefault(job_id, _Deaths())
        if which is not None:
            if which in deaths.known:
                return
            deaths.known.append(which)
        deaths.last = now
        deaths.recent.append((now, lived))
        while now - deaths.recent[0][0] >= WINDOW_S:
            deaths.recent.popleft()
        deaths.untold += 1
        who = f"the supervisor of job {job_id}" if job_id else "the nursery"
        last = one_line(error.strip().rpartition("\n")[2])[:MAX_LINE]
        deaths.reason = f"{who} {how}" + (f": {last}" if last else "")
        _log.error("supervisor.died", job=job_id or None, pid=which and which[0], how=how, traceback=error or None)
        many = len(deaths.recent) >= MANY
        if not many or now - deaths.told_at >= FLOOD_S:
            attributes = {"how": how, "error": error.strip(), "count": str(deaths.untold)}
            kind = "job.supervisor_died" if job_id else "node.nursery_died"
            event = Event(time.time(), kind, job_id, message=deaths.reason, attributes=attributes)
            self._events.append([(None, event)])
            deaths.told_at, deaths.untold = now, 0
        if many:
            self._condition(job_id, deaths)

    async def run(self) -> None:
        """Ends warnings about supervisors that have lived for a while, until cancelled."""
        while True:
            await tick(LOOK_S)
            self._forget(time.monotonic())

    def _condition(self, job_id: str, deaths: _Deaths) -> None:
        meaning = EXPLANATIONS[Code.SUPERVISOR_CRASHING]
        lived = [lived for _, lived in deaths.recent]
        what = "it died" if all(lived) else "its start failed" if not any(lived) else _BOTH
        reason = f"{deaths.reason}; {what} {len(lived)} times within {WINDOW_S:g} s"
        result = CheckResult(ITEM, Status.WARN, Code.SUPERVISOR_CRASHING, reason, action=meaning.action)
        self._found(replace(result, device=f"job {job_id}" if job_id else "nursery"))
        if (entry := self._entry(job_id)) is not None:
            entry.note("supervisor", f"SUPERVISOR_CRASHING: {reason}; `muster stop` still works")

    def _forget(self, now: float) -> None:
        for job_id, deaths in list(self._deaths.items()):
            if now - deaths.last >= CLEAR_S:
                self._drop(job_id)

    def _drop(self, job_id: str) -> None:
        del self._deaths[job_id]
        if (entry := self._entry(job_id)) is not None:
            entry.note("supervisor", "")
