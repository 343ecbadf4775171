"""One notification: which events are worth one, what it says, and what may become of it."""

from datetime import UTC, datetime

import msgspec

from muster.agent.events.event_store import Event
from muster.agent.node import node_notes
from muster.probes.checks.result import Status
from muster.supervisors.model.states import State

#: Characters of a message and of each attribute, and how many attributes there are: a receiver is not to be flooded.
MAX_TEXT = 4096
MAX_ATTRIBUTES = 64

#: While a driver hangs nobody can say whether the job does.
_HANG = {
    "job.suspected_hang": "suspected_hang",
    "job.driver_hang": "suspected_hang",
    "job.hung": "hung",
    "job.recovered": "recovered",
}
#: Conditions of muster itself, which refuse no job and are worth somebody's look all the same.
_OF_MUSTER = frozenset({"SUPERVISOR_CRASHING", "DAEMON_DEGRADED"})
#: A lost job is one that failed for whoever waits for it.
_ENDS = {State.FAILED: "failed", State.LOST: "failed", State.STOPPED: "stopped"}


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """A notification. `id` is the event's own, so that it is the same however often it is sent; `time` in seconds since
    the epoch."""

    id: str
    event: str
    kind: str
    time: float
    job: str = ""
    message: str = ""
    attributes: dict[str, str] = {}  # msgspec copies it


class NotTaken(Exception):
    """Raised when a receiver did not take a notification, and may take it later. `after` is how long it asked to be
    left alone, in seconds."""

    def __init__(self, text: str, after: float = 0.0) -> None:
        super().__init__(text)
        self.after = after


class NotificationRefused(Exception):
    """Raised when a receiver says that it will never take this notification."""


def names(event: Event) -> tuple[str, ...]:
    """What an event is called, the most special name first; nothing where it is none that is notified."""
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
        case kind if kind in _HANG:
            return (_HANG[kind],)
        # One that was grave and is not any more is told, too: somebody was woken for it.
        case node_notes.CONDITION | node_notes.CLEARED:
            told = Status.CRITICAL in (said.get("status"), said.get("was")) or said.get("code") in _OF_MUSTER
            return ("node_condition",) if told else ()
        case node_notes.DRAINED | node_notes.UNDRAINED:
            return ("node_drained",)
    return ()


def item(event: Event, number: str, name: str) -> Item:
    """The notification of an event that is called so; `number` is the event's cursor."""
    attributes = {key: _cut(value) for key, value in list(event.attributes.items())[:MAX_ATTRIBUTES]}
    job = event.job_id or attributes.get("job", "")
    return Item(number, name, event.kind, event.time, job, _cut(event.message), attributes)


def body(item: Item, node: str) -> bytes:
    """What is sent: a JSON object. `node` is this host's name."""
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


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
