"""Writes events about the node: conditions that begin and clear, and reports of kernel and drivers.

Each change of a condition is an event: a look cannot make many of them. Kernel and drivers can report a thousand times
a second, so the same report is an event at most once a minute, with a count.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import structlog

from muster.agent.events.event_store import Event, EventStore
from muster.agent.node.conditions import Condition, ConditionChange, Moment, said
from muster.agent.node.node_file import DrainState
from muster.probes.checks.result import Status
from muster.probes.kernel.dataclass import dataclass
from muster.probes.node.node_checks import Finding

CONDITION, CLEARED, EVENT = "node.condition", "node.condition_cleared", "node.event"
DRAINED, UNDRAINED = "node.drained", "node.undrained"
ACCEPTED = "node.card_accepted"
#: The same event is written once within so many seconds.
FLOOD_S = 60.0
#: Remembered different events; beyond that the oldest are written and forgotten.
MAX_REMEMBERED = 1024

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _RepeatedEvent:
    """An event written at `up`; it occurred `more` times since, and `last` is the last of them."""

    up: float
    more: int = 0
    last: Event | None = None


class Notes:
    """Writes events of the node. Belongs to one event loop."""

    def __init__(self, events: EventStore) -> None:
        self._events = events
        self._told: dict[tuple[str, ...], _RepeatedEvent] = {}
        #: Returns the jobs that hold cards, by the cards; set by the wiring.
        self.holders: Callable[[], Mapping[int, str]] = dict
        #: Returns the UUID of a card, "" if unknown.
        self.uuid_of: Callable[[int], str] = lambda card: ""

    def changes(self, changes: Iterable[ConditionChange], now: Moment, by: str = "") -> None:
        """Conditions that began, changed or cleared; `by`: who cleared them."""
        for change in changes:
            condition = change.condition
            attributes = self._attributes(condition)
            if change.gone:
                kind, message = CLEARED, f"{condition.finding}: cleared: {change.gone}"
            else:
                kind, message = CONDITION, f"{condition.finding} ({condition.status})"
                if change.was is not None:
                    attributes["was"] = str(change.was)
            if by:
                attributes["by"] = by
            self._append(Event(now.at, kind, message=message, attributes=attributes))

    def event(self, finding: Finding, now: Moment) -> None:
        """A report of kernel or driver. A report with the same attributes is written once a minute, with its number
        since then (`count`; missing: one)."""
        attributes = self._of_finding(finding)
        event = Event(finding.at, EVENT, message=_message(finding), attributes=attributes)
        key = tuple(f"{name}={value}" for name, value in sorted(attributes.items()))
        told = self._told.get(key)
        if told is not None and now.up - told.up < FLOOD_S:
            told.more += finding.count
            told.last = event
            return
        if told is not None:
            self._tell_rest(told)
            del self._told[key]  # moves it to the end of the order
        elif len(self._told) >= MAX_REMEMBERED:
            oldest = next(iter(self._told))
            self._tell_rest(self._told.pop(oldest))
        self._told[key] = _RepeatedEvent(now.up)
        self._append(_counted(event, finding.count) if finding.count > 1 else event)

    def flush(self, now: Moment) -> None:
        """Writes events that were held back and whose minute has passed."""
        for key, told in list(self._told.items()):
            if now.up - told.up >= FLOOD_S:
                self._tell_rest(told)
                if told.more:
                    told.up, told.more, told.last = now.up, 0, None
                else:
                    del self._told[key]

    def drained(self, drain: DrainState, now: Moment) -> None:
        """The node was taken out of service, or the reason changed."""
        message = f"{drain.by} drained the node: {drain.reason}"
        self._append(Event(now.at, DRAINED, message=message, attributes={"by": drain.by, "reason": drain.reason}))

    def undrained(self, drain: DrainState, by: str, now: Moment) -> None:
        """The node was returned to service."""
        message = f"{by} returned the node to service; it was drained because of: {drain.reason}"
        self._append(Event(now.at, UNDRAINED, message=message, attributes={"by": by, "reason": drain.reason}))

    def accepted(self, code: str, device: str, reason: str, by: str, now: Moment) -> None:
        """An operator accepted a difference among the cards as intended."""
        message = f"{device or 'the node'}: {code}: accepted by {by}: {said(reason, device)}"
        attributes = {"by": by, "code": code, "device": device}
        self._append(Event(now.at, ACCEPTED, message=message, attributes=attributes))

    def _tell_rest(self, told: _RepeatedEvent) -> None:
        if told.last is not None:
            again = replace(told.last, message=f"{told.more} more, the last: {told.last.message}")
            self._append(_counted(again, told.more))

    def _attributes(self, condition: Condition) -> dict[str, str]:
        found = {
            "code": condition.code,
            "device": condition.device,
            "status": str(condition.status),
            "item": condition.item,
            "action": str(condition.action),
            **self._of_card(condition.card, condition.uuid),
        }
        if condition.injected:
            found["injected"] = "true"
        return found

    def _of_finding(self, finding: Finding) -> dict[str, str]:
        found = {
            "code": str(finding.code),
            "device": finding.device,
            "status": str(finding.status),
            "item": finding.item,
            "action": str(finding.action),
            "source": finding.source,
            **self._of_card(finding.card, "" if finding.card is None else self.uuid_of(finding.card)),
        }
        if finding.number is not None:
            found["number"] = str(finding.number)
        return found

    def _of_card(self, card: int | None, uuid: str) -> dict[str, str]:
        if card is None:
            return {}
        job = self.holders().get(card)
        return {"card": str(card), **({"uuid": uuid} if uuid else {}), **({"job": job} if job else {})}

    def _append(self, event: Event) -> None:
        grave = event.attributes.get("status") == Status.CRITICAL and event.kind in (CONDITION, EVENT)
        (_log.error if grave else _log.info)(event.kind, text=event.message, **event.attributes)
        self._events.append([(None, event)])


def _counted(event: Event, count: int) -> Event:
    return replace(event, attributes={**event.attributes, "count": str(count)})


def _message(finding: Finding) -> str:
    return f"{finding.device or 'the node'}: {finding.code}: {said(finding.text, finding.device)}"
