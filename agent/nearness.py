"""Which free cards a job is given: such as are close to one another, and such that large groups stay whole."""

from collections.abc import Sequence

from probes.accelerator import Card


def choose(free: Sequence[Card], count: int) -> list[int]:
    """Indices of `count` of these cards, ascending.

    Wanted, in this order: as many pairs with a direct link as can be, as few NUMA nodes, as few free cards left over on
    the nodes and in the linked groups that are begun, the lowest numbers. Every card is tried as the first one, and the
    others are added one by one: not always the best of all choices, but it is for cards in groups (NVLink pairs,
    boards, sockets). Cards of which nothing is known are all alike: the lowest numbers. Raises ValueError for fewer
    than `count`.
    """
    if count > len(free):
        raise ValueError(f"{count} of {len(free)} cards")
    cards = sorted(free, key=lambda card: card.index)
    if not any(card.peers or card.numa_node is not None for card in cards):
        return [card.index for card in cards[:count]]
    groups = [_grown(cards, first, count) for first in cards]
    best = min(groups, key=lambda group: _cost(cards, group))
    return sorted(card.index for card in best)


def _grown(cards: Sequence[Card], first: Card, count: int) -> list[Card]:
    group = [first]
    rest = [card for card in cards if card is not first]
    while len(group) < count:
        nearest = min(rest, key=lambda card: (-_links(group, card), -_neighbours(group, card), card.index))
        rest.remove(nearest)
        group.append(nearest)
    return group


def _links(group: Sequence[Card], card: Card) -> int:
    return sum(other.index in card.peers for other in group)


def _neighbours(group: Sequence[Card], card: Card) -> int:
    return sum(card.numa_node is not None and other.numa_node == card.numa_node for other in group)


def _cost(cards: Sequence[Card], group: Sequence[Card]) -> tuple[int, int, int, list[int]]:
    taken = {card.index for card in group}
    linked = sum(_links(group, card) for card in group)
    nodes = {card.numa_node for card in group}
    begun = {peer for card in group for peer in card.peers}
    left = sum(card.index not in taken and (card.numa_node in nodes or card.index in begun) for card in cards)
    return -linked, len(nodes), left, sorted(taken)
