"""Which job holds which card."""

import pytest

from agent.cards import Cards, Lease
from agent.conditions import Condition
from agent.errors import CardBusy, NodeUnhealthy, NoSuchCard
from probes.accelerator import Card
from probes.result import Action, Status
from supervisors.spec import JobSpec


def node(*indices: int) -> Cards:
    made = Cards()
    made.refresh({index: Card(index, "nvidia") for index in indices})
    return made


def wants(count: int = 0, indices: tuple[int, ...] = ()) -> JobSpec:
    return JobSpec("j", ("true",), card_count=count, card_indices=indices)


def sick(card: int) -> Condition:
    return Condition(
        item="gpu-lost",
        device=f"card {card}",
        status=Status.CRITICAL,
        code="GPU_LOST",
        reason="it fell off the bus",
        since=1.0,
        seen_at=1.0,
        action=Action.REBOOT,
        clears="reboot",
        card=card,
    )


def test_a_count_takes_the_lowest_free_ones_of_equal_cards():
    cards = node(*range(4))
    assert cards.lease("a", wants(indices=(1,)), {}) == ("nvidia", [1])
    assert cards.lease("b", wants(2), {}) == ("nvidia", [0, 2])
    assert [(x.card.index, x.job_id) for x in cards.all()] == [(0, "b"), (1, "a"), (2, "b"), (3, "")]
    cards.release("b")
    assert cards.lease("c", wants(indices=(3, 0)), {}) == ("nvidia", [3, 0])


def test_held_cards_name_their_holder_and_nothing_is_taken():
    cards = node(*range(4))
    cards.lease("first", wants(indices=(2,)), {})
    with pytest.raises(CardBusy, match="card 2 is held by job first"):
        cards.lease("x", wants(indices=(1, 2)), {})
    with pytest.raises(CardBusy, match=r"3 of 4 are free.*first"):
        cards.lease("x", wants(4), {})
    assert [lease.job_id for lease in cards.all()] == ["", "", "first", ""]


def test_cards_that_are_not_there():
    cards = node(0, 1, 2)
    with pytest.raises(NoSuchCard, match="card 7: this node has cards 0 to 2"):
        cards.lease("x", wants(indices=(0, 7)), {})
    with pytest.raises(NoSuchCard, match="4 cards: this node has cards 0 to 2"):
        cards.lease("x", wants(4), {})
    with pytest.raises(NoSuchCard, match="no cards"):
        node().lease("x", wants(1), {})


def test_a_job_without_cards_holds_nothing():
    cards = node(0)
    assert cards.lease("x", JobSpec("x", ("true",), ranks=3), {0: sick(0)}) == ("slot", [0, 1, 2])
    assert cards.held("x") == []


def test_a_lease_outlives_the_card_and_is_taken_up_again():
    cards = node(0, 1)
    cards.restore("old", [1, 5])
    cards.refresh({0: Card(0, "nvidia")})
    assert cards.all() == [
        Lease(Card(0, "nvidia")), Lease(Card(1, "nvidia"), "old"), Lease(Card(5, "nvidia"), "old")
    ]  # fmt: skip


def test_an_unfit_card_is_not_given_away():
    cards = node(0, 1, 2)
    assert cards.lease("a", wants(1), {0: sick(0)}) == ("nvidia", [1])
    with pytest.raises(NodeUnhealthy, match=r"card 0.*GPU_LOST"):
        cards.lease("b", wants(indices=(0,)), {0: sick(0)})
    with pytest.raises(NodeUnhealthy, match=r"card 0.*GPU_LOST"):
        cards.lease("b", wants(2), {0: sick(0)})
    with pytest.raises(CardBusy):
        cards.lease("b", wants(3), {0: sick(0)})
    assert cards.held("b") == []


def test_who_is_still_on_the_card_of_an_ended_job_is_named():
    cards = node(0, 1)
    cards.lease("gone", wants(1), {})
    cards.hold("gone", {0: "process 4711 (python) still holds it"})
    assert cards.all()[0].held_by == "process 4711 (python) still holds it"
    with pytest.raises(CardBusy, match="card 0: process 4711"):
        cards.lease("x", wants(indices=(0,)), {})
    with pytest.raises(CardBusy, match=r"1 of 2 are free.*process 4711"):
        cards.lease("x", wants(2), {})
    cards.release("gone")
    assert cards.lease("x", wants(2), {}) == ("nvidia", [0, 1])
    assert cards.all()[0].held_by == ""
