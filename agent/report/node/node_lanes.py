"""What lasted on a node: conditions, drains, times without a daemon; of its events and its present state. Pure."""

from collections.abc import Iterable, Sequence

from muster.agent.events.event_store import Event
from muster.agent.node.conditions import Condition
from muster.agent.node.node_file import NodeState
from muster.agent.node.node_notes import CLEARED, CONDITION, DRAINED, EVENT, UNDRAINED
from muster.agent.report.job_report import Bar
from muster.agent.report.lanes import FAILED, LOST, STOPPED, SUSPECT
from muster.agent.report.node.node_overview import ReportCount
from muster.agent.text import plain
from muster.agent.why.report import Row
from muster.agent.why.words import shown
from muster.probes.checks.result import Status

#: Events of losses.
LOSSES = ("job.output_lost", "logs.upload_failed", "node.audit_lost", "node.nursery_died")
#: By how grave a condition was at its worst.
LOOKS = {"CRITICAL": FAILED, "UNKNOWN": LOST, "WARN": SUSPECT}
_Key = tuple[str, str, str, str]


def conditions(events: Iterable[Event], now: NodeState | None, begin: float) -> list[Bar]:
    """One bar for each time that a condition lasted. `now`: what the node has at this moment, None: not known.
    `begin`: of the report; what began before the first event is drawn from there."""
    open_now = {_key_of(one.condition): one.condition for one in now.conditions} if now is not None else None
    found: list[Bar] = []
    lasting: dict[_Key, Bar] = {}
    for event in events:
        if event.kind not in (CONDITION, CLEARED):
            continue
        key, text = _key(event), _text(event.message)
        bar = lasting.pop(key, None)
        if event.kind == CLEARED:
            bar = bar or Bar(_name(key), begin, None, _look(event), text)
            found.append(Bar(bar.name, bar.begin, event.time, bar.look, bar.text))
        else:
            looks = [_look(event)] + ([bar.look] if bar is not None else [])
            worst = min(looks, key=list(LOOKS.values()).index)
            lasting[key] = Bar(_name(key), event.time if bar is None else bar.begin, None, worst, text)
    for key, bar in lasting.items():
        if open_now is not None and key not in open_now:
            bar = Bar(bar.name, bar.begin, bar.begin, bar.look, f"{bar.text}; its end is not recorded")
        found.append(bar)
    for key, one in (open_now or {}).items():
        if key not in lasting:
            found.append(Bar(_name(key), one.since, None, LOOKS.get(one.status, SUSPECT), _text(one.finding)))
    return sorted(found, key=lambda bar: bar.begin)


def drains(events: Iterable[Event], now: NodeState | None, begin: float) -> list[Bar]:
    """The times in which the node was drained."""
    found: list[Bar] = []
    lasting: Bar | None = None
    for event in events:
        if event.kind == DRAINED:
            since = event.time if lasting is None else lasting.begin
            lasting = Bar("drained", since, None, STOPPED, _text(event.message))
        elif event.kind == UNDRAINED:
            bar = lasting or Bar("drained", begin, None, STOPPED, _text(event.message))
            found.append(Bar(bar.name, bar.begin, event.time, bar.look, bar.text))
            lasting = None
    drain = now.drain if now is not None else None
    if lasting is None and drain is not None:
        lasting = Bar("drained", drain.since, None, STOPPED, _text(f"{drain.by} drained the node: {drain.reason}"))
    return [*found, lasting] if lasting is not None else found


def stops(events: Sequence[Event], read_at: Sequence[float] = ()) -> list[Bar]:
    """The times without a daemon. Where it did not say that it ends, the time begins with its last event before, or
    with its last reading: `read_at`, in order. What the kernel's log reports is no sign of it: the next daemon reads
    that as well."""
    found: list[Bar] = []
    last: Event | None = None
    for event in events:
        if event.kind == "node.started" and last is not None:
            clean = last.kind == "node.stopping"
            text = (
                "the daemon was stopped" if clean else "the daemon ended without a word: killed, or the node was down"
            )
            since = last.time if clean else max([last.time, *(at for at in read_at if at < event.time)])
            found.append(Bar("no daemon", since, event.time, STOPPED if clean else LOST, text))
        if event.kind.startswith("node.") and event.kind != EVENT:
            last = event
    return found


def reports(events: Iterable[Event]) -> tuple[list[Row], list[ReportCount]]:
    """What kernel and drivers reported: each report, and how often each was made."""
    rows, counts = [], dict[tuple[str, str, str], ReportCount]()
    for event in events:
        if event.kind != EVENT:
            continue
        about = event.attributes
        code, number, device = (_text(about.get(name, "")) for name in ("code", "number", "device"))
        grave = about.get("status") == Status.CRITICAL
        rows.append(Row(event.time, 0.0, event.kind, _text(event.message), None, card_of(event), code, grave))
        before = counts.get((code, number, device))
        often = _number(about.get("count", "1")) or 1
        counts[code, number, device] = ReportCount(
            code, number, device, often + (before.count if before is not None else 0), event.time,
            grave or (before is not None and before.grave),
        )  # fmt: skip
    return rows, sorted(counts.values(), key=lambda one: (not one.grave, -one.count))


def losses(events: Iterable[Event]) -> list[Row]:
    """Output, uploads and lines of the audit log that were lost, and dead nurseries."""
    found = []
    for event in events:
        if event.kind in LOSSES:
            whose = f"{event.job_id}: " if event.job_id and event.job_id not in event.message else ""
            text = _text(whose + event.message)
            found.append(Row(event.time, 0.0, event.kind, text, event.rank, None, "", event.kind == "job.output_lost"))
    return found


def card_of(event: Event) -> int | None:
    """The number of the card that it is about."""
    return _number(event.attributes.get("card", ""))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _key(event: Event) -> _Key:
    about = event.attributes
    return (*(about.get(name, "") for name in ("item", "device", "code")), about.get("injected", ""))  # type: ignore[return-value]


def _key_of(one: Condition) -> _Key:
    return one.item, one.device, one.code, "true" if one.injected else ""


def _name(key: _Key) -> str:
    _, device, code, injected = key
    return _text(" ".join(filter(None, (code, device, "(drill)" if injected else ""))), 80)


def _look(event: Event) -> str:
    return LOOKS.get(event.attributes.get("status", ""), SUSPECT)


def _text(text: str, width: int = 500) -> str:
    return shown(plain(text), width)
