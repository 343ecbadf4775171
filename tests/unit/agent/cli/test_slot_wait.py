"""A command that finds no slot says so after a second, and goes on by itself."""

from types import SimpleNamespace

import pytest

from muster.agent.cli.client import calls, slot_wait
from muster.agent.cli.client.calls import Patience
from muster.agent.cli.client.slot_wait import SAY_AGAIN_S, SlotWait
from muster.agent.cli.exits import CallFailed, NoDaemon, Why

FACTS = {"what": "readers of logs", "limit": "256", "listener": "/run/muster/reader.sock"}
FULL = CallFailed("RESOURCE_EXHAUSTED", "too many readers of logs", "TOO_MANY_STREAMS", 1.0, FACTS)


class Clock:
    """Time that only passes in a pause."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        # These modules' own: other threads of the tests sleep, too.
        for module in (slot_wait, calls):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_it_says_so_after_a_second_and_then_each_minute(clock: Clock) -> None:
    said: list[tuple[float, str]] = []
    wait = SlotWait(say=lambda text: said.append((clock.now - 100, text)))
    while clock.now < 100 + 2 * SAY_AGAIN_S - 1:
        before = clock.now
        wait.wait_or_raise(FULL)
        assert 1.0 <= clock.now - before <= 1.31
    wait.over()
    assert [round(when) for when, _ in said[:-1]] == [1, 61]
    assert said[0][1] == (
        "waiting for a free slot: /run/muster/reader.sock serves 256 readers of logs, its limit; no action needed"
    )
    assert said[-1][1].startswith("got a slot after ")


def test_a_slot_within_a_second_is_not_worth_a_word(clock: Clock) -> None:
    said: list[str] = []
    wait = SlotWait(say=said.append)
    wait.over()
    wait.wait_or_raise(CallFailed("RESOURCE_EXHAUSTED", "", "TOO_MANY_STREAMS", 0.2, FACTS))
    wait.over()
    assert said == []


def test_a_wait_with_an_end(clock: Clock) -> None:
    wait = SlotWait(5.0, lambda _: None)
    with pytest.raises(CallFailed) as caught:
        for _ in range(10):
            wait.wait_or_raise(FULL)
    assert caught.value is FULL
    assert 103 <= clock.now <= 105


@pytest.mark.parametrize(
    "failure",
    [
        CallFailed("RESOURCE_EXHAUSTED", "no room", "NO_ROOM", 1.0),
        CallFailed("RESOURCE_EXHAUSTED", "the job has 64 sessions", "TOO_MANY", 1.0),
        CallFailed("UNAVAILABLE", "", facts=FACTS),
        NoDaemon("gone", Why.REFUSED),
    ],
)
def test_other_failures_are_not_waited_for(clock: Clock, failure: CallFailed | NoDaemon) -> None:
    with pytest.raises(type(failure)) as caught:
        SlotWait().wait_or_raise(failure)
    assert caught.value is failure
    assert clock.now == 100


def test_a_search_for_the_next_daemon_says_so_once_and_has_an_end(clock: Clock) -> None:
    said: list[tuple[float, str]] = []
    patience = Patience(60.0, say=lambda text: said.append((clock.now - 100, text)))
    ends = CallFailed("UNAVAILABLE", "the daemon is stopping", "STOPPING", 0.3)
    with pytest.raises(CallFailed) as caught:
        while True:
            patience.wait_or_raise(ends)
    assert caught.value is ends
    assert [(round(when, 3), text) for when, text in said] == [(1.0, "the daemon is stopping")]
    assert 58 < clock.now - 100 <= 60
