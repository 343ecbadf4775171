"""Which free cards a job gets: cards that are close to one another, while large groups stay complete."""

from collections.abc import Sequence

from muster.probes.cards.accelerator import Card

#: The cost of a choice of cards, the lowest is the best; see `choose`.
Cost = tuple[int, int, int, list[int]]


def choose(free: Sequence[Card], count: int, begun: Sequence[Card] = ()) -> list[int]:
    """Indices of `count` of these cards, ascending. `begun`: cards that the job gets in any case; the others should be
    close to them.

    The goals, in this order: as many pairs with a direct link as possible, few NUMA nodes, few free cards left over in
    the nodes and linked groups that the choice touches, low numbers. Each card is tried as the first one, and the
    others are added one by one. That is not always the best choice, but it is for cards in groups (NVLink pairs,
    boards, sockets). Without knowledge about them all cards are alike: the lowest numbers. Raises ValueError for fewer
    than `count`.
    """
    if count > len(free):
        raise ValueError(f"{count} of {len(free)} cards")
    cards = sorted(free, key=lambda card: card.index)
    if not any(card.peers or card.numa_node is not None for card in (*cards, *begun)):
        return [card.index for card in cards[:count]]
    starts = [list(begun)] if begun else [[first] for first in cards]
    groups = [_grown(cards, start, len(begun) + count) for start in starts]
    best = min(groups, key=lambda group: cost(cards, group))
    return sorted({card.index for card in best} - {card.index for card in begun})


def cost(free: Sequence[Card], group: Sequence[Card]) -> Cost:
    """The cost, by the goals of `choose`, of giving a job this group of the free cards."""
    taken = {card.index for card in group}
    linked = sum(_links(group, card) for card in group)
    nodes = {card.numa_node for card in group}
    begun = {peer for card in group for peer in card.peers}
    left = sum(card.index not in taken and (card.numa_node in nodes or card.index in begun) for card in free)
    return -linked, len(nodes), left, sorted(taken)


def _grown(cards: Sequence[Card], start: Sequence[Card], count: int) -> list[Card]:
    group = list(start)
    rest = [card for card in cards if card not in group]
    while len(group) < count:
        nearest = min(rest, key=lambda card: (-_links(group, card), -_neighbours(group, card), card.index))
        rest.remove(nearest)
        group.append(nearest)
    return group


def _links(group: Sequence[Card], card: Card) -> int:
    return sum(other.index in card.peers for other in group)


def _neighbours(group: Sequence[Card], card: Card) -> int:
    return sum(card.numa_node is not None and other.numa_node == card.numa_node for other in group)
