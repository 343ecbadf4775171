"""Conditions, drains and times without a daemon, of the events of a node and its present state."""

from muster.agent.events.event_store import Event
from muster.agent.node.conditions import Condition, Latched
from muster.agent.node.node_file import DrainState, NodeState
from muster.agent.report.node import node_lanes
from muster.probes.checks.result import Status

XID = {"item": "xid", "device": "card 3", "code": "GPU_XID_RESET", "status": "CRITICAL", "card": "3"}
DISK = {"item": "disk", "device": "/data", "code": "DISK_FULL", "status": "WARN"}


def _event(at: float, kind: str, **attributes: str) -> Event:
    return Event(at, kind, message=f"{kind} at {at:g}", attributes=attributes)


def test_a_condition_lasts_from_its_begin_to_its_end_and_is_as_grave_as_it_was_at_its_worst() -> None:
    begun, cleared = "node.condition", "node.condition_cleared"
    events = [
        _event(5, cleared, **DISK | {"device": "/old"}),
        _event(10, begun, **DISK),
        _event(20, begun, **DISK | {"status": "CRITICAL"}),
        _event(30, begun, **DISK),
        _event(40, cleared, **DISK),
        _event(50, begun, **XID),
        _event(60, begun, **DISK),
    ]
    found = [(bar.name, bar.begin, bar.end, bar.look) for bar in node_lanes.conditions(events, None, 1.0)]
    assert found == [
        ("DISK_FULL /old", 1.0, 5, "suspect"),
        ("DISK_FULL /data", 10, 40, "failed"),
        ("GPU_XID_RESET card 3", 50, None, "failed"),
        ("DISK_FULL /data", 60, None, "suspect"),
    ]
    # The node's file knows better what lasts: also what began before the events, and what ended unseen.
    old = Condition("mount", "/home", Status.WARN, "MOUNT_MISSING", "is not mounted", 0.5, 60.0)
    kept = Condition("disk", "/data", Status.WARN, "DISK_FULL", "91 %", 60.0, 60.0)
    now = NodeState(conditions=[Latched(old, 0.0), Latched(kept, 0.0)])
    bars = {bar.name: bar for bar in node_lanes.conditions(events, now, 1.0)}
    assert (bars["MOUNT_MISSING /home"].begin, bars["MOUNT_MISSING /home"].end) == (0.5, None)
    assert bars["GPU_XID_RESET card 3"].end == 50 and "its end is not recorded" in bars["GPU_XID_RESET card 3"].text
    assert bars["DISK_FULL /data"].end is None


def test_a_drain_lasts_until_the_node_is_returned_over_changes_of_its_reason() -> None:
    events = [
        _event(5, "node.undrained"),
        _event(10, "node.drained"),
        _event(15, "node.drained"),
        _event(20, "node.undrained"),
    ]
    assert [(bar.begin, bar.end) for bar in node_lanes.drains(events, None, 1.0)] == [(1.0, 5), (10, 20)]
    now = NodeState(drain=DrainState("maintenance", "bob", 30.0))
    *_, last = node_lanes.drains(events, now, 1.0)
    assert (last.begin, last.end, last.text) == (30.0, None, "bob drained the node: maintenance")


def test_a_daemon_that_was_killed_is_missed_from_its_last_event_on() -> None:
    events = [
        _event(1, "node.started"), _event(5, "node.stopping"), _event(9, "node.started"), _event(12, "node.condition"),
        _event(20, "node.started"),
    ]  # fmt: skip
    found = [(bar.begin, bar.end, bar.look) for bar in node_lanes.stops(events)]
    assert found == [(5, 9, "stopped"), (12, 20, "lost")]
    # It took readings after its last event.
    assert [bar.begin for bar in node_lanes.stops(events, [2.0, 6.0, 16.0, 22.0])] == [5, 16.0]


def test_a_first_daemon_is_not_missed_before_though_the_kernels_log_goes_back_further() -> None:
    assert node_lanes.stops([_event(1, "node.event", **XID), _event(9, "node.started")]) == []


def test_reports_are_counted_with_those_that_came_too_often_to_be_written() -> None:
    events = [_event(at, "node.event", number="79", **XID, **more) for at, more in ((1.0, {}), (2.0, {"count": "40"}))]
    events.append(_event(3, "node.event", code="GPU_XID_OTHER", device="card 1", count="x"))
    rows, counts = node_lanes.reports(events)
    assert [(row.card, row.code, row.grave) for row in rows] == [
        (3, "GPU_XID_RESET", True), (3, "GPU_XID_RESET", True), (None, "GPU_XID_OTHER", False),
    ]  # fmt: skip
    assert [(one.number, one.count, one.last) for one in counts] == [("79", 41, 2.0), ("", 1, 3)]
