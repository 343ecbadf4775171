"""How far a card is to be trusted."""

from dataclasses import replace

import pytest

from muster.agent.jobs.cards.doubts import doubts, status
from muster.agent.node.conditions import Condition
from muster.probes.cards.accelerator import Card, Health, Trouble
from muster.probes.cards.driver import Seen, Sick, View
from muster.probes.checks.result import Status

VIEW = View("nvidia", "570", {i: Card(i, "nvidia") for i in range(4)})
HOT = Condition("temperature", "card 1", Status.WARN, "GPU_TEMPERATURE", "it is too hot", 1.0, 1.0, card=1)
HANGS = Sick(Trouble.HANG, "a call has not returned for 12 s", 1.0)


def test_healthy_cards_are_in_no_doubt():
    assert doubts([], VIEW) == {}
    assert status([], VIEW, 0) is Status.OK


def test_the_gravest_of_several_counts():
    unknown = replace(HOT, status=Status.UNKNOWN, code="DRIVER_HANG", reason="it hangs")
    found = doubts([unknown, HOT], VIEW)
    assert (found[1].status, found[1].text) == (Status.UNKNOWN, "DRIVER_HANG: it hangs")
    assert status([unknown, HOT], VIEW, 1) is Status.UNKNOWN


def test_a_card_that_does_not_answer_is_doubtful_before_a_check_says_so():
    found = doubts([HOT], replace(VIEW, sick={2: HANGS}))
    assert {index: doubt.status for index, doubt in found.items()} == {1: Status.WARN, 2: Status.UNKNOWN}
    assert found[1].grade < found[2].grade
    assert "12 s" in found[2].text


@pytest.mark.parametrize(
    ("untold", "doubtful"),
    [("npu_health", True), ("remapped", True), ("recovery_action", True), ("ecc_uncorrected", True), ("temp_c", False)],
)
def test_a_card_that_answers_and_does_not_tell_its_health_is_doubtful(untold: str, doubtful: bool):
    mute = Seen(1.0, Health(untold={untold: "the call gives -8005"}))
    shown = replace(VIEW, health={2: mute, 3: Seen(1.0, Health(npu_health=0))})
    found = doubts([HOT], shown)
    if not doubtful:
        assert found.keys() == {1} and status([], shown, 2) is Status.OK
        return
    assert found.keys() == {1, 2} and found[2].status is Status.UNKNOWN and "-8005" in found[2].text
    assert [status([], shown, index) for index in (2, 3)] == [Status.UNKNOWN, Status.OK]


def test_a_driver_that_does_not_answer_casts_doubt_on_each_card():
    found = doubts([HOT], replace(VIEW, driver=HANGS))
    assert {doubt.status for doubt in found.values()} == {Status.UNKNOWN} and len(found) == 4


def test_which_cards_there_are_says_nothing_of_those_that_are_there():
    new = replace(HOT, item="inventory", code="CARD_NEW", reason="it was not there before")
    assert doubts([new], VIEW) == {}


def test_a_condition_of_the_node_casts_no_doubt_on_a_card():
    assert doubts([replace(HOT, device="", card=None)], VIEW) == {}
