"""Which job holds which card."""

import pytest

from muster.agent.errors import CardBusy, NodeUnhealthy, NoSuchCard
from muster.agent.jobs.cards.doubts import Doubt
from muster.agent.jobs.cards.leases import CardLeases, Given, Lease
from muster.agent.node.conditions import Condition
from muster.probes.cards.accelerator import Card
from muster.probes.checks.result import Action, Status
from muster.supervisors.model.spec import JobSpec


def node(*indices: int) -> CardLeases:
    made = CardLeases()
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
    assert cards.lease("a", wants(indices=(1,)), {}) == Given("nvidia", [1])
    assert cards.lease("b", wants(2), {}) == Given("nvidia", [0, 2])
    assert [(x.card.index, x.job_id) for x in cards.all()] == [(0, "b"), (1, "a"), (2, "b"), (3, "")]
    cards.release("b")
    assert cards.lease("c", wants(indices=(3, 0)), {}) == Given("nvidia", [3, 0])


def test_held_cards_name_their_holder_and_nothing_is_taken():
    cards = node(*range(4))
    cards.lease("first", wants(indices=(2,)), {})
    with pytest.raises(CardBusy, match="card 2 is held by job first"):
        cards.lease("x", wants(indices=(1, 2)), {})
    with pytest.raises(CardBusy, match=r"3 of 4 are free.*first"):
        cards.lease("x", wants(4), {})
    assert [lease.job_id for lease in cards.all()] == ["", "", "first", ""]


def test_all_cards_are_given_or_none():
    every = JobSpec("j", ("true",), all_cards=True)
    cards = node(*range(3))
    assert cards.lease("a", every, {}) == Given("nvidia", [0, 1, 2])
    cards.release("a")
    with pytest.raises(NodeUnhealthy, match="card 1: GPU_LOST"):
        cards.lease("a", every, {1: sick(1)})
    cards.lease("b", wants(indices=(2,)), {})
    with pytest.raises(CardBusy, match="card 2 is held by job b"):
        cards.lease("a", every, {})
    assert [lease.job_id for lease in cards.all()] == ["", "", "b"]
    with pytest.raises(NoSuchCard, match="all cards: this node has no cards: ask for ranks instead"):
        node().lease("a", every, {})
    cards.refresh({0: Card(0, "nvidia", mig=True)})
    with pytest.raises(NoSuchCard, match="all its cards are cut into MIG instances"):
        cards.lease("a", every, {})


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
    assert cards.lease("x", JobSpec("x", ("true",), ranks=3), {0: sick(0)}) == Given("slot", [0, 1, 2])
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
    assert cards.lease("a", wants(1), {0: sick(0)}) == Given("nvidia", [1])
    with pytest.raises(NodeUnhealthy, match=r"card 0.*GPU_LOST"):
        cards.lease("b", wants(indices=(0,)), {0: sick(0)})
    with pytest.raises(NodeUnhealthy, match=r"card 0.*GPU_LOST"):
        cards.lease("b", wants(2), {0: sick(0)})
    with pytest.raises(CardBusy):
        cards.lease("b", wants(3), {0: sick(0)})
    assert cards.held("b") == []


def test_a_process_left_on_the_card_of_an_ended_job_is_named():
    cards = node(0, 1)
    cards.lease("gone", wants(1), {})
    cards.hold("gone", {0: "process 4711 (python) still holds it"})
    assert cards.all()[0].held_by == "process 4711 (python) still holds it"
    with pytest.raises(CardBusy, match="card 0: process 4711"):
        cards.lease("x", wants(indices=(0,)), {})
    with pytest.raises(CardBusy, match=r"1 of 2 are free.*process 4711"):
        cards.lease("x", wants(2), {})
    cards.release("gone")
    assert cards.lease("x", wants(2), {}) == Given("nvidia", [0, 1])
    assert cards.all()[0].held_by == ""


# --- doubtful cards, and models ---------------------------------------------------------------------------------------

HOT = Doubt(Status.WARN, "GPU_TEMPERATURE: it is too hot")
HANGS = Doubt(Status.UNKNOWN, "it does not answer (HANG): a call has not returned for 12 s")


def mixed(*models: str, **more: object) -> CardLeases:
    """Cards of these models, by index."""
    made = CardLeases()
    made.refresh({i: Card(i, "nvidia", model=model, **more) for i, model in enumerate(models)})  # type: ignore[arg-type]
    return made


def test_healthy_cards_first_then_those_with_warnings_and_last_those_that_do_not_answer():
    cards = node(*range(8))
    doubts = {0: HANGS, 1: HOT, 2: HANGS, 5: HOT}
    assert cards.lease("a", wants(4), {}, doubts) == Given("nvidia", [3, 4, 6, 7])
    hot = cards.lease("b", wants(2), {}, doubts)
    assert hot.devices == [1, 5]
    assert hot.warnings == (
        "cards 1,5: GPU_TEMPERATURE: it is too hot; given to the job because no better one of its model is free",
    )
    last = cards.lease("c", wants(1), {}, doubts)
    assert last.devices == [0]
    assert "card 0: it does not answer (HANG)" in last.warnings[0]


def test_as_few_doubtful_cards_as_can_be_and_the_gravest_is_reported_first():
    cards = node(*range(4))
    given = cards.lease("a", wants(3), {}, {0: HANGS, 1: HOT, 2: HOT})
    assert given.devices == [1, 2, 3]
    cards.release("a")
    given = cards.lease("a", wants(4), {}, {0: HOT, 3: HANGS})
    assert [text.partition(":")[0] for text in given.warnings] == ["card 3", "card 0"]


def test_nearness_decides_among_cards_of_the_same_health():
    made = CardLeases()
    # Pairs 0-1, 2-3, 4-5, 6-7; of the first two one card each is doubtful.
    made.refresh({i: Card(i, "nvidia", model="H100", peers=(i ^ 1,)) for i in range(8)})
    doubts = {1: HOT, 3: HANGS}
    assert made.lease("a", wants(2), {}, doubts).devices == [4, 5]
    # All healthy ones, and with them the neighbour of one of them.
    made.release("a")
    assert made.lease("b", wants(7), {}, doubts).devices == [0, 1, 2, 4, 5, 6, 7]
    made.release("b")
    two = dict.fromkeys((0, 1, 2, 3, 5), HOT)
    assert made.lease("c", wants(4), {}, two).devices == [4, 5, 6, 7]


def test_a_job_that_names_a_doubtful_card_gets_it_and_a_warning():
    given = node(0, 1).lease("a", wants(indices=(1,)), {}, {1: HANGS})
    assert given.devices == [1]
    assert given.warnings == (f"card 1: {HANGS.text}; given to the job because the job names it",)


def test_a_gang_has_cards_of_one_model():
    cards = mixed("A100", "H100", "H100", "A100", "H100")
    assert cards.lease("a", wants(2), {}).devices == [0, 3]
    assert cards.lease("b", wants(3), {}) == Given("nvidia", [1, 2, 4])


def test_the_model_with_the_healthier_cards():
    cards = mixed("A100", "A100", "H100", "H100")
    assert cards.lease("a", wants(2), {}, {0: HOT}).devices == [2, 3]
    assert cards.lease("b", wants(2), {}, {0: HOT}).devices == [0, 1]


def test_a_number_that_no_model_has_says_how_many_of_each_are_free():
    cards = mixed("A100", "A100", "H100", "H100", "H100")
    with pytest.raises(NoSuchCard, match=r"4 cards of one model: this node has 2 of A100, 3 of H100; name the cards"):
        cards.lease("x", wants(4), {})
    cards.lease("a", wants(indices=(2,)), {})
    with pytest.raises(CardBusy, match=r"3 cards of one model: 4 of 5 are free \(2 of A100, 2 of H100\).*held by a"):
        cards.lease("x", wants(3), {})
    cards.release("a")
    with pytest.raises(NodeUnhealthy, match=r"3 cards of H100: 2 are free and fit \(2 of A100, 2 of H100\); card 4"):
        cards.lease("x", wants(3), {4: sick(4)})
    assert cards.held("x") == []


def test_cards_of_different_models_that_the_job_names_are_given_with_a_warning():
    given = mixed("A100", "H100", "H100").lease("a", wants(indices=(0, 2)), {})
    assert given.devices == [0, 2]
    assert "different models (card 0 A100, card 2 H100)" in given.warnings[0]


def test_a_card_that_has_not_said_what_it_is_counts_as_the_others_where_these_are_alike():
    cards = mixed("H100", "", "H100")
    assert cards.lease("a", wants(3), {}, {1: HANGS}).devices == [0, 1, 2]
    cards = mixed("H100", "", "A100")
    with pytest.raises(NoSuchCard, match=r"1 of H100, 1 of an unknown model, 1 of A100"):
        cards.lease("a", wants(2), {})


def test_a_card_that_is_cut_into_instances_is_of_another_model():
    cards = CardLeases()
    cards.refresh({i: Card(i, "nvidia", model="H100", mig=i == 0) for i in range(3)})
    assert cards.lease("a", wants(2), {}).devices == [1, 2]


def test_whole_cards_and_instances_are_never_mixed():
    """CUDA shows a process either whole cards or one instance."""
    cards = CardLeases()
    cards.refresh(
        {i: Card(i, "nvidia", mig=i == 0) for i in range(3)} | {i: Card(i, "nvidia", parent=0) for i in (1000, 1001)}
    )
    with pytest.raises(NoSuchCard, match=r"cards 1-2 and MIG instance 1001: .* \(--cards 1,2\) .* \(--cards 1001\)"):
        cards.lease("a", wants(indices=(1, 1001, 2)), {})
    assert cards.held("a") == []
    assert cards.lease("a", wants(1), {}).devices == [1]
    with pytest.raises(NoSuchCard, match="3 cards of one model: this node has 2 of an unknown model, 2 of MIG"):
        cards.lease("b", wants(3), {})
    assert cards.lease("b", wants(2), {}).devices == [1000, 1001]


def counted(*uuids: str) -> dict[int, Card]:
    return {i: Card(i, "nvidia", uuid=uuid) for i, uuid in enumerate(uuids)}


def test_a_lease_knows_its_card_by_uuid_when_the_driver_counts_anew():
    cards = CardLeases()
    cards.restore("a", [2, 3], {2: "c", 3: "d"})
    cards.refresh(counted("a", "c", "d"))  # "b" has gone
    assert {lease.card.index: lease.job_id for lease in cards.all()} == {0: "", 1: "a", 2: "a"}
    with pytest.raises(CardBusy, match="card 1 is held by job a"):
        cards.lease("x", wants(indices=(1,)), {})
    assert cards.lease("x", wants(1), {}).devices == [0]
    cards.release("a", 1)
    assert cards.lease("y", wants(indices=(1,)), {}).devices == [1]
    cards.release("a")
    assert cards.held("a") == [] and cards.held("x") == [0]
    cards.refresh(counted("a", "b", "c", "d"))  # it is there again
    assert cards.held("x") == [0] and cards.held("y") == [2]
    assert cards.lease("z", wants(2), {}).devices == [1, 3]


def test_a_uuid_of_several_cards_says_nothing():
    cards = CardLeases()
    cards.refresh(counted("same", "same", ""))
    assert cards.lease("a", wants(1), {}).devices == [0]
    assert cards.lease("b", wants(1), {}).devices == [1]
    assert cards.lease("c", wants(1), {}).devices == [2]
    cards.release("a")
    assert cards.held("b") == [1]


def test_a_job_on_one_of_two_cards_with_one_uuid_does_not_get_the_other_once_its_own_is_gone():
    """Virtual NPUs tell the number of their chip's die."""
    cards, both = CardLeases(), counted("same", "same")
    cards.refresh(both)
    assert cards.lease("a", wants(1), {}).devices == [0] and cards.lease("b", wants(1), {}).devices == [1]
    cards.refresh({0: both[0]})
    assert {lease.card.index: lease.job_id for lease in cards.all()} == {0: "a", 1: "b"}
    cards.release("a")
    assert cards.lease("c", wants(1), {}).devices == [0], "job b is on card 1"
    cards.refresh(both)
    assert cards.held("b") == [1]
