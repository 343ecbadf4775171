"""What a supervisor or the journal must still be told of a stop that the daemon carries out."""

import errno
from dataclasses import replace

import pytest

from muster.supervisors.job import stop_order
from muster.supervisors.job.stop_order import StopOrder
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.replay import apply
from muster.supervisors.model.states import Kind, State, StopCause
from muster.supervisors.system import trust

ORDER = StopOrder("of this job", (1.0,), "root", "a test", 100.0)


def stopped(*records: dict[str, object], cause: StopCause = StopCause.REQUESTED, up: float = 100.0) -> Job:
    """A running job behind the record of a stop, and these."""
    job = Job(state=State.RUNNING, spawned=True, ranks=[Rank(0, 0, 0)])
    stop = {"kind": Kind.STOPPING, "cause": cause, "by": "root", "reason": "a test", "steps": [1.0], "up": up}
    for number, record in enumerate([stop, *records]):
        apply(job, {"n": number, "t": 1.0} | record)
    return job


def kinds(job: Job, order: StopOrder) -> list[object]:
    return [record.get("signal", record["kind"]) for record in stop_order.due(job, order)]


@pytest.mark.parametrize(
    ("order", "due"),
    [
        (ORDER, []),
        (replace(ORDER, sent=("SIGTERM",)), ["SIGTERM"]),
        (replace(ORDER, sent=("SIGTERM", "SIGKILL")), ["SIGTERM", "SIGKILL"]),
        (replace(ORDER, steps=(0.5,)), ["stopping"]),
        (replace(ORDER, steps=(0.5,), sent=("SIGKILL",)), ["stopping", "SIGKILL"]),
    ],
)
def test_behind_the_same_stop_only_what_was_sent_is_due(order, due):
    assert kinds(stopped(), order) == due
    assert stop_order.covers(stopped(), order) is (not due)


def test_what_is_recorded_is_not_due():
    sent = {"kind": Kind.ESCALATED, "signal": "SIGTERM", "processes": 1}
    order = replace(ORDER, sent=("SIGTERM", "SIGKILL"))
    assert kinds(stopped(sent), order) == ["SIGKILL"]
    assert kinds(stopped(sent, sent | {"signal": "SIGKILL"}), order) == []


def test_what_was_sent_of_a_stop_that_nobody_asked_for_is_of_that_one_only():
    """Its job may be started again, and then the ends of the next attempt are no concern of it."""
    order = replace(ORDER, sent=("SIGKILL",), cause=StopCause.RANK_FAILED)
    assert kinds(stopped(cause=StopCause.RANK_FAILED), order) == ["SIGKILL"]
    assert kinds(stopped(cause=StopCause.RANK_FAILED, up=200.0), order) == []
    assert kinds(Job(state=State.RUNNING, spawned=True), order) == []


def test_the_file_keeps_it(tmp_path):
    order = replace(ORDER, sent=("SIGTERM",), cause=StopCause.HUNG)
    stop_order.write(tmp_path / "stops" / "job", order)
    assert stop_order.read(tmp_path / "stops" / "job", "of this job") == order
    assert stop_order.read(tmp_path / "stops" / "job", "of another") is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"steps": 1, "sent": []}'])
def test_a_damaged_order_is_none(tmp_path, content):
    (tmp_path / "job").write_text(content)
    assert stop_order.read(tmp_path / "job", "") is None


def test_without_a_descriptor_it_is_not_known_whether_there_is_one(tmp_path, monkeypatch):
    def fails(number: int) -> None:
        def read(_: object) -> bytes:
            raise OSError(number, "refused")

        monkeypatch.setattr(trust, "read", read)

    fails(errno.EMFILE)
    with pytest.raises(OSError, match="refused"):
        stop_order.read(tmp_path / "job", "")
    fails(errno.EIO)
    assert stop_order.read(tmp_path / "job", "") is None
