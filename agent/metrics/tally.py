"""Counters since the daemon's start, from its events. Lost output is also counted from live jobs between two events.

The label sets are bounded: none has a job, a user or a command. What happened while no daemon ran (a job ended, for
example) is counted when the next daemon reports it.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable

import anyio
import structlog

from muster.agent.errors import CursorTooOld
from muster.agent.events.event_store import Event, EventStore
from muster.agent.exposition import Catalogue, Metric, Page
from muster.agent.jobs.entry import Entry
from muster.probes.hang.verdicts import HangKind, HangVerdict
from muster.supervisors.model.states import EXPLAINED, JOB, Outcome, State

#: Events taken at a time.
_PAGE = 512
#: Label sets of one counter, at most: a node has some cards and a driver some codes.
MAX_SETS = 2048
RECOMMENDATIONS = ("NONE", "RETRY_HERE", "RETRY_ELSEWHERE", "FAIL")
#: The label of a job that makes progress again, whatever its verdict is then.
RECOVERED = "RECOVERED"
HANG_VERDICTS = (HangVerdict.SUSPECT, HangVerdict.HUNG, HangVerdict.DRIVER_HANG, RECOVERED)

OWN = Catalogue()
ENDED = OWN.counter(
    "muster_jobs_ended_total", "Ended jobs, by outcome and by recommendation.", "state", "recommendation"
)
RESTARTS = OWN.counter("muster_job_restarts_total", "Attempts of jobs that failed and were followed by another.")
RANKS_ENDED = OWN.counter("muster_ranks_ended_total", "Ranks that ended, by how.", "outcome")
PRECHECKS = OWN.counter("muster_prechecks_total", "Checks of the node before an attempt, by their result.", "result")
TAKEOVERS = OWN.counter("muster_supervisor_takeovers_total", "Supervisors that took a job over from a dead one.")
DEATHS = OWN.counter(
    "muster_supervisor_deaths_total", "Deaths of supervisors and of nurseries, and forks of a successor that failed."
)
HANGS = OWN.counter(
    "muster_hang_verdicts_total", "Verdicts on jobs that hang, or were thought to, by how they hang.", "verdict", "kind"
)
LOST_BYTES = OWN.counter(
    "muster_lost_log_bytes_total", "Bytes of output that could not be written, counted while they are lost."
)
RAISED = OWN.counter("muster_conditions_raised_total", "Conditions that came, by code; drills are not counted.", "code")
HARDWARE = OWN.counter("muster_hardware_events_total", "Events that kernel and drivers reported, by code.", "code")
XIDS = OWN.counter("muster_xid_events_total", "Xids that NVIDIA's driver reported, by card and number.", "card", "xid")

_log = structlog.get_logger(__name__)


class Tally:
    """The counters. Belongs to one event loop."""

    def __init__(self, events: EventStore, live: Callable[[], Iterable[Entry]]) -> None:
        """Counts events from now on. `live` returns the jobs that have not ended."""
        self._events, self._live = events, live
        #: Lost bytes that are counted before their event: by job, rank and begin of the open gap.
        self._ahead: dict[tuple[str, int, str], int] = {}
        self._cursor = events.newest_cursor()
        self._counts: dict[Metric, Counter[tuple[str, ...]]] = {metric: Counter() for metric in OWN.metrics}
        self._alone = anyio.Lock()
        #: The last Xid of each card, by its index.
        self.last_xid: dict[str, int] = {}
        # Every known label set starts as 0: a counter that first appears with 1 has not grown for Prometheus.
        for state in (s for s in State if s.final):
            for recommendation in RECOMMENDATIONS:
                self._counts[ENDED][state, recommendation] = 0
        for outcome in Outcome:
            self._counts[RANKS_ENDED][(outcome,)] = 0
        for result in ("passed", "refused"):
            self._counts[PRECHECKS][(result,)] = 0
        for verdict in HANG_VERDICTS:
            for kind in HangKind if verdict in (HangVerdict.SUSPECT, HangVerdict.HUNG) else ("",):
                self._counts[HANGS][verdict, kind] = 0
        for metric in OWN.metrics:
            if not metric.labels:
                self._counts[metric][()] = 0

    async def run(self) -> None:
        """Follows the events until cancelled."""
        while True:
            with contextlib.suppress(CursorTooOld):  # `catch_up` continues with the rest
                await self._events.wait_beyond(self._cursor)
            await self.catch_up()

    async def catch_up(self) -> None:
        """Counts all events until now, and the bytes lost in open gaps."""
        async with self._alone:
            live = {entry.job_id for entry in self._live()}
            await self._take_all()
            # All events of jobs that had ended before are counted already.
            self._ahead = {gap: count for gap, count in self._ahead.items() if gap[0] in live}
            for entry in self._live():
                self._look(entry)

    async def _take_all(self) -> None:
        while True:
            try:
                batch = await self._events.read(self._cursor, _PAGE)
            except CursorTooOld as error:
                _log.warning("metrics.events_missed", error=str(error))
                self._cursor = error.oldest
                continue
            if not batch:
                return
            for event, self._cursor in batch:
                self.take(event)

    def take(self, event: Event) -> None:
        """Counts one event; most events have no counter."""
        said = event.attributes
        match event.kind:
            # Other jobs get their recommendation with the explanation; a changed recommendation is not counted again.
            case "job.ended" if said.get("state") not in EXPLAINED:
                self._add(ENDED, 1, said.get("state", ""), said.get("recommendation", ""))
            case "job.explained" if "was" not in said:
                self._add(ENDED, 1, said.get("state", ""), said.get("recommendation", ""))
            case "job.restarting":
                self._add(RESTARTS, 1)
            case "job.checked":
                self._add(PRECHECKS, 1, "passed" if said.get("ok") == "true" else "refused")
            case "rank.exited":
                self._add(RANKS_ENDED, 1, said.get("outcome", ""))
            case "job.suspected_hang" | "job.hung" | "job.driver_hang":
                self._add(HANGS, 1, said.get("verdict", ""), said.get("kind", ""))
            case "job.recovered":
                self._add(HANGS, 1, RECOVERED, "")
            case "job.supervisor_died" | "node.nursery_died":
                self._add(DEATHS, _whole(said.get("count", "1")))
            case "job.taken_over":
                self._add(TAKEOVERS, 1)
            case "job.output_lost":
                self._lost(event)
            # A known condition with a new status is not counted again; a drill is never counted.
            case "node.condition" if not said.keys() & {"was", "injected"}:
                self._add(RAISED, 1, said.get("code", ""))
            case "node.event":
                self._hardware(said)

    def fill(self, page: Page) -> None:
        """Adds all counters."""
        for metric, counts in self._counts.items():
            page.add_each(metric, counts)

    def _lost(self, event: Event) -> None:
        """Adds the event's lost bytes, minus the bytes that were counted while the gap was open."""
        said, told = event.attributes, _whole(event.attributes["bytes"])
        gap = event.job_id, JOB if event.rank is None else event.rank, said.get("since", "")
        ahead = self._ahead.pop(gap, 0)
        self._add(LOST_BYTES, max(told - ahead, 0))
        if said.get("open") == "true" and ahead > told:
            self._ahead[gap] = ahead - told

    def _look(self, entry: Entry) -> None:
        """Adds the lost bytes of open gaps that are not counted yet."""
        for rank, recorded in entry.job.gaps.items():
            now = entry.gap(rank)
            lost = now.bytes - recorded.bytes if now is not None else 0
            gap = entry.job_id, rank, f"{recorded.since:.3f}"
            if lost > (ahead := self._ahead.get(gap, 0)):
                self._ahead[gap] = lost
                self._add(LOST_BYTES, lost - ahead)

    def _hardware(self, said: dict[str, str]) -> None:
        # A repeated event is reported once a minute, with its count.
        count = _whole(said.get("count", "1"))
        self._add(HARDWARE, count, said.get("code", ""))
        if said.get("item") == "xid" and "number" in said:
            card = said.get("card", "")
            self._add(XIDS, count, card, said["number"])
            if card:
                self.last_xid[card] = _whole(said["number"])

    def _add(self, metric: Metric, count: int, *labels: str) -> None:
        counts = self._counts[metric]
        if labels in counts or len(counts) < MAX_SETS:
            counts[labels] += count


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
