"""The events during a job: read from the store, and turned into a timeline around its end."""

import contextlib
import math
from collections.abc import Iterable, Sequence

import anyio

from muster.agent.errors import CursorTooOld
from muster.agent.events.event_store import Event
from muster.agent.jobs.entry import Entry
from muster.agent.node.conditions import XID, Condition
from muster.agent.node.node_notes import CLEARED, CONDITION, DRAINED, EVENT, UNDRAINED
from muster.agent.why.known import ReadableEvents
from muster.probes.checks.result import Status
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.card_identity import own_number
from muster.supervisors.model.states import Outcome

#: Time limit for reading the events, in seconds; events per turn.
READ_S = 10.0
_PAGE = 1000
#: At most so many events of one job are kept, the newest.
MAX_KEPT = 2000
#: A hardware event within so many seconds before or after the end of the first failed rank is probably the reason. The
#: time before is that of the timeouts of NCCL and gloo, after which a rank ends because another one failed.
BEFORE_S, AFTER_S = 600.0, 30.0
#: An event and a condition of the same code within so many seconds are the same finding.
SAME_S = 5.0
#: The timeline ends so many seconds after the job's end.
SHOWN_AFTER_S = 60.0
#: The kernel killed a process because memory ran out: not a fault of the node, but a possible cause.
OOM_KILL = "OOM_KILL"
#: Somebody had muster send a signal to ranks.
SIGNALLED = "job.signalled"
HANG = ("job.suspected_hang", "job.hung", "job.driver_hang", "job.recovered")
SLOW = ("job.slow_rank", "job.slow_rank_cleared")
#: The daemon came, or went.
_DAEMON = frozenset({"node.started", "node.stopping"})
_OF_NODE = frozenset({EVENT, CONDITION, CLEARED, DRAINED, UNDRAINED, "node.nursery_died"}) | _DAEMON
_OF_JOB = frozenset(
    {
        *HANG,
        *SLOW,
        SIGNALLED,
        "job.warning",
        "job.output_lost",
        "job.taken_over",
        "job.supervisor_died",
        "job.supervisor_stuck",
        "job.supervisor_works",
        "job.stopping",
        "job.running",
        "job.restarting",
        "job.ended",
        "job.step_ended",
        "rank.exited",
    }
)


@dataclass(frozen=True, slots=True)
class Happening:
    """Something at `at` (seconds since the epoch). `card` None: it is not about a card. `code`: of a finding, else
    empty. `grave`: a critical finding about the node or a card of the job, not of a drill; `open`: it began earlier
    and still lasts. `confidence` of a verdict, 0 to 1."""

    at: float
    kind: str
    text: str
    rank: int | None = None
    card: int | None = None
    code: str = ""
    grave: bool = False
    open: bool = False
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Events:
    """The events about a job, in the order of the store. `reach`: the store goes back to the job's acceptance."""

    kept: tuple[Event, ...] = ()
    reach: bool = True
    trouble: str = ""


async def read(store: ReadableEvents, entry: Entry) -> Events:
    """The events of a job, and those of the node from its acceptance until shortly after its end. Never raises.

    If the job is damaged on disk, its time of acceptance comes from the last event of that kind.
    """
    since, oldest = 0.0 if entry.damaged else entry.job.accepted_at, 0.0
    until = _until(entry)
    kept: list[Event] = []
    #: Conditions that began before the job and were still open when it was accepted.
    standing: dict[tuple[str, str], Event] = {}
    cursor: str | None = None
    trouble = ""
    try:
        with anyio.move_on_after(READ_S) as reading:
            while True:
                try:
                    batch = await store.read(cursor, _PAGE)
                except CursorTooOld:  # the next events were dropped meanwhile
                    cursor = None
                    kept.clear()
                    continue
                if not batch:
                    break
                oldest = oldest or batch[0][0].time
                cursor = batch[-1][1]
                for event, _ in batch:
                    if entry.damaged and event.job_id == entry.job_id and event.kind == "job.accepted":
                        since = event.time
                        kept.clear()
                    mine = event.job_id == entry.job_id or (event.time <= until and _of_node(event, entry))
                    if mine and event.time >= since:
                        kept.append(event)
                    elif mine and event.kind in (CONDITION, CLEARED):
                        about = (event.attributes.get("code", ""), event.attributes.get("device", ""))
                        standing.pop(about, None)
                        if event.kind == CONDITION:
                            standing[about] = event
                del kept[:-MAX_KEPT]
        if reading.cancelled_caught:
            trouble = f"reading the events took over {READ_S:g} s: some are missing"
    except OSError as error:
        trouble = f"cannot read the events: {error.strerror}"
    return Events((*standing.values(), *kept), bool(oldest) and oldest <= since, trouble)


def _until(entry: Entry) -> float:
    """When events of the node no longer concern a job."""
    job = entry.job
    if entry.damaged or not job.state.final:
        return math.inf
    return (job.ended_at or job.last_time or math.inf) + job.clock_back + SHOWN_AFTER_S


def _of_node(event: Event, entry: Entry) -> bool:
    if event.kind not in _OF_NODE:
        return False
    job, card = event.attributes.get("job", ""), event.attributes.get("card", "")
    if job:
        return job == entry.job_id
    if not card:
        # A card that this node does not have: in a container the kernel log reports the cards of the whole host.
        return not (event.attributes.get("item") == XID and event.attributes.get("device"))
    return card.isdecimal() and own_number(entry.job, int(card), event.attributes.get("uuid", "")) is not None


def happenings(events: Sequence[Event], conditions: Iterable[Condition], entry: Entry) -> list[Happening]:
    """The timeline, oldest first. `conditions`: those of the node now."""
    found = [_happening(event, entry) for event in events if event.kind in _OF_NODE or event.kind in _OF_JOB]
    told = {(one.code, one.card, one.kind) for one in found}
    until = _until(entry)
    for condition in conditions:
        mine = condition.card is None or own_number(entry.job, condition.card, condition.uuid) is not None
        if (
            not mine
            or condition.since > until
            or condition.elsewhere
            or (condition.code, condition.card, CONDITION) in told
        ):
            continue
        if condition.status in (Status.WARN, Status.CRITICAL):
            found.append(
                Happening(
                    condition.since,
                    CONDITION,
                    f"{condition.finding} ({condition.status}), still open",
                    card=condition.card,
                    code=condition.code,
                    grave=condition.status is Status.CRITICAL and not condition.injected,
                    open=True,
                )
            )
    return sorted(_once(found), key=lambda one: one.at)


def _once(found: Sequence[Happening]) -> list[Happening]:
    """Without the events that opened a condition in the same moment: the condition says the same."""
    made = {(one.code, one.card): one.at for one in found if one.kind == CONDITION}
    return [
        one for one in found if one.kind != EVENT or abs(made.get((one.code, one.card), -SAME_S) - one.at) >= SAME_S
    ]


def _happening(event: Event, entry: Entry) -> Happening:
    attributes = event.attributes
    card = attributes.get("card", "")
    critical = attributes.get("status") == Status.CRITICAL and event.kind in (CONDITION, EVENT)
    grave = critical and attributes.get("injected") != "true"
    code = attributes.get("code", "") if event.kind in (CONDITION, EVENT, CLEARED) else ""
    text = event.message
    if event.kind == EVENT and code:
        text += f" ({attributes.get('status', '')})"
    elif event.kind == "job.ended":
        text = f"the job ended as {attributes.get('state', '')}"
    if event.kind == "rank.exited" and attributes.get("outcome") == Outcome.GANG_VICTIM:
        text = f"rank {event.rank} was ended because another rank had failed"
    before = event.time < entry.job.accepted_at
    number = int(card) if card.isdecimal() else None
    sure = None
    if "confidence" in attributes:
        with contextlib.suppress(ValueError):
            sure = float(attributes["confidence"])
    rank, ranks = event.rank, attributes.get("ranks", "")
    if event.kind == "job.hung" and ranks.isdecimal():  # the others wait for this one
        rank = int(ranks)
    return Happening(event.time, event.kind, text, rank, number, code, grave, before, sure)


def near(one: Happening, zero: float) -> bool:
    """Whether it may be the reason why something ended at `zero`."""
    return zero - BEFORE_S <= one.at <= zero + AFTER_S


def chosen(all_of_them: Sequence[Happening], begin: float, zero: float, most: int) -> list[Happening]:
    """The rows to show: from `begin` until shortly after `zero`, and older conditions that were still open. The victims
    of a gang are one row. If there are too many rows, critical ones and those near `zero` stay. A daemon that came or
    went after the end has no part in it: that of a standalone run ends then, and `muster why` begins another."""
    shown = [
        one
        for one in all_of_them
        if (begin <= one.at or one.open) and one.at <= (zero if one.kind in _DAEMON else zero + SHOWN_AFTER_S)
    ]
    ends = [one for one in shown if one.kind == "rank.exited"]
    if len(ends) > 4:
        dropped = set(map(id, ends[3:]))
        rest = Happening(ends[-1].at, "rank.exited", f"{len(ends) - 3} more ranks ended")
        shown = [one for one in shown if id(one) not in dropped] + [rest]
    if len(shown) > most:
        shown.sort(key=lambda one: (not (one.grave or one.kind in HANG), abs(one.at - zero)))
        del shown[most:]
    return sorted(shown, key=lambda one: one.at)
