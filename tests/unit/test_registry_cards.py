"""Which job holds which card."""

from pathlib import Path

import pytest

from agent import cards
from agent.cards import Card, Cards
from agent.errors import CardBusy, NoSuchCard
from supervisors.spec import JobSpec


def wants(count: int = 0, indices: tuple[int, ...] = ()) -> JobSpec:
    return JobSpec("j", ("true",), card_count=count, card_indices=indices)


def test_device_nodes_tell_the_cards(tmp_path: Path):
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia0x", "davinci0"):
        (tmp_path / name).touch()
    assert cards.find(4, tmp_path) == {0: "nvidia", 2: "nvidia", 10: "nvidia"}


def test_ascend_cards_and_slots(tmp_path: Path):
    assert cards.find(2, tmp_path) == {0: "slot", 1: "slot"}
    assert cards.find(0, tmp_path / "none") == {}
    for name in ("davinci0", "davinci1", "davinci_manager"):
        (tmp_path / name).touch()
    assert cards.find(8, tmp_path) == {0: "ascend", 1: "ascend"}


def test_a_count_takes_the_lowest_free_ones():
    node = Cards(dict.fromkeys(range(4), "nvidia"))
    assert node.lease("a", wants(indices=(1,))) == ("nvidia", [1])
    assert node.lease("b", wants(2)) == ("nvidia", [0, 2])
    assert node.all() == [
        Card(0, "nvidia", "b"), Card(1, "nvidia", "a"), Card(2, "nvidia", "b"), Card(3, "nvidia")
    ]  # fmt: skip
    node.release("b")
    assert node.lease("c", wants(indices=(3, 0))) == ("nvidia", [3, 0])


def test_held_cards_name_their_holder_and_nothing_is_taken():
    node = Cards(dict.fromkeys(range(4), "nvidia"))
    node.lease("first", wants(indices=(2,)))
    with pytest.raises(CardBusy, match="card 2 is held by job first"):
        node.lease("x", wants(indices=(1, 2)))
    with pytest.raises(CardBusy, match=r"3 of 4 are free.*first"):
        node.lease("x", wants(4))
    assert [card.job_id for card in node.all()] == ["", "", "first", ""]


def test_cards_that_are_not_there():
    node = Cards({0: "nvidia", 1: "nvidia", 2: "nvidia"})
    with pytest.raises(NoSuchCard, match="card 7: this node has cards 0 to 2"):
        node.lease("x", wants(indices=(0, 7)))
    with pytest.raises(NoSuchCard, match="4 cards: this node has cards 0 to 2"):
        node.lease("x", wants(4))
    with pytest.raises(NoSuchCard, match="no cards"):
        Cards({}).lease("x", wants(1))


def test_a_job_without_cards_holds_nothing():
    node = Cards({0: "nvidia"})
    assert node.lease("a", JobSpec("a", ("true",), ranks=3)) == ("slot", [0, 1, 2])
    assert node.all() == [Card(0, "nvidia")]


def test_a_lease_outlives_its_card():
    node = Cards({0: "nvidia", 1: "nvidia"})
    node.restore("a", [1])
    node.refresh({0: "nvidia"})
    assert node.all() == [Card(0, "nvidia"), Card(1, "nvidia", "a")]
    with pytest.raises(NoSuchCard):
        node.lease("b", wants(indices=(1,)))
