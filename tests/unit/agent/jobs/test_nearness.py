"""Which free cards a job is given."""

import pytest

from muster.agent.jobs.cards.nearness import choose
from muster.probes.cards.accelerator import Card


def cards(count: int, *, numa: int = 0, linked: int = 0) -> list[Card]:
    """`numa` cards on each NUMA node, and groups of `linked` with links among one another."""
    made = []
    for i in range(count):
        first = i // linked * linked if linked else 0
        peers = tuple(p for p in range(first, first + linked) if p != i) if linked else ()
        made.append(Card(i, "nvidia", numa_node=i // numa if numa else None, peers=peers))
    return made


def without(all_cards: list[Card], *taken: int) -> list[Card]:
    return [card for card in all_cards if card.index not in taken]


def test_of_cards_of_which_nothing_is_known_the_lowest():
    assert choose(cards(4096), 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("free", "count", "chosen"),
    [
        (without(cards(8, numa=4), 0), 4, [4, 5, 6, 7]),
        (without(cards(8, numa=4), 0, 1), 2, [2, 3]),  # the node that is begun already
        (without(cards(8, numa=4), 0, 1, 4), 2, [2, 3]),
        (without(cards(8, numa=4), 0, 1, 4, 5, 6), 3, [2, 3, 7]),
        (cards(8, numa=4), 1, [0]),
    ],
)
def test_one_numa_node(free, count, chosen):
    assert choose(free, count) == chosen


@pytest.mark.parametrize(
    ("free", "count", "chosen"),
    [
        (without(cards(8, linked=2), 0), 2, [2, 3]),
        (without(cards(8, linked=2), 0), 1, [1]),  # and not one of a whole pair
        (without(cards(8, linked=4, numa=8), 1), 4, [4, 5, 6, 7]),
        (without(cards(8, linked=4, numa=8), 1), 3, [0, 2, 3]),
    ],
)
def test_linked_cards(free, count, chosen):
    assert choose(free, count) == chosen


def test_links_count_more_than_the_node():
    across = [Card(0, "nvidia", numa_node=0, peers=(3,)), Card(1, "nvidia", numa_node=0)]
    across += [Card(2, "nvidia", numa_node=1), Card(3, "nvidia", numa_node=1, peers=(0,))]
    assert choose(across, 2) == [0, 3]


def test_not_enough():
    with pytest.raises(ValueError, match="3 of 2 cards"):
        choose(cards(2), 3)
