"""Which events are worth a notification, and what it says."""

import json

import pytest

from muster.agent.events.event_store import Event
from muster.agent.notify import notification
from muster.agent.notify.notification import names
from muster.supervisors.model.rules.notify_rules import EVENTS


def event(kind: str, **attributes: str) -> Event:
    return Event(1_700_000_000.25, kind, "job-1", message="what happened", attributes=attributes)


@pytest.mark.parametrize(
    ("kind", "attributes", "expected"),
    [
        ("job.running", {"attempt": "0"}, ("started",)),
        ("job.ended", {"state": "SUCCEEDED"}, ("ended",)),
        ("job.ended", {"state": "FAILED"}, ("failed", "ended")),
        ("job.ended", {"state": "LOST"}, ("failed", "ended")),
        ("job.ended", {"state": "STOPPED"}, ("stopped", "ended")),
        ("job.ended", {"state": "SOMETHING"}, ("ended",)),
        ("job.ended", {}, ("ended",)),
        ("job.explained", {"state": "FAILED"}, ("explained",)),
        ("job.suspected_hang", {}, ("suspected_hang",)),
        ("job.driver_hang", {}, ("suspected_hang",)),
        ("job.hung", {}, ("hung",)),
        ("job.recovered", {}, ("recovered",)),
        ("job.slow_rank", {}, ("slow_rank",)),
        ("job.slow_rank_cleared", {}, ("slow_rank",)),
        ("node.condition", {"status": "CRITICAL"}, ("node_condition",)),
        ("node.condition", {"status": "WARN"}, ()),
        ("node.condition", {"status": "WARN", "was": "CRITICAL"}, ("node_condition",)),
        ("node.condition", {"status": "WARN", "was": "UNKNOWN"}, ()),
        ("node.condition_cleared", {"status": "CRITICAL"}, ("node_condition",)),
        ("node.condition_cleared", {"status": "WARN"}, ()),
        ("node.drained", {}, ("node_drained",)),
        ("node.undrained", {}, ("node_drained",)),
        ("node.event", {"status": "CRITICAL"}, ()),
        ("node.started", {}, ()),
        ("job.accepted", {}, ()),
        ("job.restarting", {}, ()),
        ("rank.exited", {"outcome": "EXITED"}, ()),
    ],
)
def test_names(kind: str, attributes: dict[str, str], expected: tuple[str, ...]) -> None:
    assert names(event(kind, **attributes)) == expected
    assert set(expected) <= set(EVENTS)


def test_what_is_sent() -> None:
    item = notification.item(event("job.ended", state="FAILED", exit_code="7"), "0123456789abcdef-17", "failed")
    assert json.loads(notification.body(item, "node-3")) == {
        "id": "0123456789abcdef-17",
        "event": "failed",
        "kind": "job.ended",
        "time": "2023-11-14T22:13:20.250Z",
        "node": "node-3",
        "job": "job-1",
        "message": "what happened",
        "attributes": {"state": "FAILED", "exit_code": "7"},
    }


def test_a_condition_of_a_card_names_the_job_that_has_it() -> None:
    raised = Event(1.0, "node.condition", attributes={"status": "CRITICAL", "card": "3", "job": "job-9"})
    assert notification.item(raised, "x-1", "node_condition").job == "job-9"


def test_long_texts_are_cut_and_many_attributes_left_out() -> None:
    long = Event(1.0, "job.hung", "j", message="m" * 100_000, attributes={f"a{i}": "v" * 100_000 for i in range(1000)})
    body = notification.body(notification.item(long, "x-1", "hung"), "n")
    assert len(body) < 65 * 4200
    assert json.loads(body)["message"].endswith("m...")
