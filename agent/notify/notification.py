"""One notification: the events that cause one, its content, and its possible results."""

from datetime import UTC, datetime

import msgspec

from muster.agent.events.event_store import Event
from muster.agent.node import node_notes
from muster.agent.text import cut
from muster.probes.checks.result import Status
from muster.supervisors.model.states import State

#: Maximum characters of a message and of each attribute, and maximum number of attributes.
MAX_TEXT = 4096
MAX_ATTRIBUTES = 64

#: By the kind of the event. While a driver hangs, it is unknown whether the job hangs.
_NAMES = {
    "job.suspected_hang": "suspected_hang",
    "job.driver_hang": "suspected_hang",
    "job.hung": "hung",
    "job.recovered": "recovered",
    "job.slow_rank": "slow_rank",
    "job.slow_rank_cleared": "slow_rank",
}
#: Conditions of muster itself: they refuse no job, but an operator should know of them.
_OF_MUSTER = frozenset({"SUPERVISOR_CRASHING", "DAEMON_DEGRADED"})
#: For a receiver, a LOST job is a failed job.
_ENDS = {State.FAILED: "failed", State.LOST: "failed", State.STOPPED: "stopped"}


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """A notification. `id` is the event's id, so every repetition has the same; `time` in seconds since the epoch."""

    id: str
    event: str
    kind: str
    time: float
    job: str = ""
    message: str = ""
    attributes: dict[str, str] = {}  # msgspec copies it


class NotTaken(Exception):
    """Raised when a receiver did not accept a notification, and may accept it later. `after`: the pause in seconds
    that it asked for."""

    def __init__(self, text: str, after: float = 0.0) -> None:
        super().__init__(text)
        self.after = after


class NotificationRefused(Exception):
    """Raised when a receiver refuses this notification for good."""


def names(event: Event) -> tuple[str, ...]:
    """The names of an event, the most specific first; empty if the event causes no notification."""
    said = event.attributes
    match event.kind:
        case "job.running":
            return ("started",)
        case "job.explained":
            return ("explained",)
        case "job.output_lost" if said.get("open") == "true":
            return ("output_lost",)
        case "job.ended":
            special = _ENDS.get(State(said["state"])) if said.get("state") in frozenset(State) else None
            return (special, "ended") if special else ("ended",)
        case kind if kind in _NAMES:
            return (_NAMES[kind],)
        # A condition that is no longer CRITICAL is reported, too, because it was reported before.
        case node_notes.CONDITION | node_notes.CLEARED:
            told = Status.CRITICAL in (said.get("status"), said.get("was")) or said.get("code") in _OF_MUSTER
            return ("node_condition",) if told else ()
        case node_notes.DRAINED | node_notes.UNDRAINED:
            return ("node_drained",)
    return ()


def item(event: Event, number: str, name: str) -> Item:
    """The notification of an event with this name; `number` is the event's cursor."""
    attributes = {key: cut(value, MAX_TEXT) for key, value in list(event.attributes.items())[:MAX_ATTRIBUTES]}
    job = event.job_id or attributes.get("job", "")
    return Item(number, name, event.kind, event.time, job, cut(event.message, MAX_TEXT), attributes)


def body(item: Item, node: str) -> bytes:
    """The body that is sent: a JSON object. `node` is this host's name."""
    at = datetime.fromtimestamp(item.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return msgspec.json.encode(
        {
            "id": item.id,
            "event": item.event,
            "kind": item.kind,
            "time": at,
            "node": node,
            "job": item.job,
            "message": item.message,
            "attributes": item.attributes,
        }
    )
