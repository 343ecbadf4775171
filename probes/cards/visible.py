"""What CUDA_VISIBLE_DEVICES or ASCEND_RT_VISIBLE_DEVICES calls a card in the processes of a job. The one place that
decides it.

Ascend: CANN's number, which counts the chips of this container from 0. NVIDIA: the card's index, as long as CUDA
certainly counts the cards as NVML does; else its UUID, and always that of a MIG instance.
"""

from collections.abc import Collection, Mapping, Sequence

from muster.probes.cards.accelerator import ASCEND, NVIDIA, Card, Trouble
from muster.probes.cards.view import Sick
from muster.probes.kernel.known_names import CUDA_ORDER, PCI_ORDER


def words(
    chosen: Sequence[Card], every: Collection[Card], sick: Mapping[int, Sick], env: Mapping[str, str]
) -> dict[int, str]:
    """The word for each of these cards by its index. `every`: all cards that the driver lists here; `sick`: those that
    do not answer; `env`: the job's own variables."""
    last = max((card.index for card in chosen), default=0)
    plain = _counted_alike(last, every, sick) and env.get(CUDA_ORDER, PCI_ORDER) == PCI_ORDER
    return {card.index: _word(card, plain=plain) for card in chosen}


def word(card: Card, every: Collection[Card], sick: Mapping[int, Sick]) -> str:
    """The word for one card, in a job without variables of its own; "" for a card that no job gets, and for a slot."""
    return words([card], every, sick, {})[card.index] if card.kind in (NVIDIA, ASCEND) and not card.mig else ""


def _word(card: Card, *, plain: bool) -> str:
    if card.kind == ASCEND:
        return str(card.index if card.numbers.logical is None else card.numbers.logical)
    if card.kind == NVIDIA and (not plain or card.parent is not None):
        return card.uuid or str(card.index)
    return str(card.index)


def _counted_alike(last: int, every: Collection[Card], sick: Mapping[int, Sick]) -> bool:
    """Whether CUDA surely counts as NVML does, as far as to the card `last`: it leaves out cards that it cannot open
    (not this container's, lost), and counts otherwise where one is in MIG mode."""
    before = {card.index for card in every if card.kind == NVIDIA and card.index <= last and card.parent is None}
    lost = any(sick[index].trouble not in (Trouble.NOT_TOLD, Trouble.HANG) for index in before & sick.keys())
    return not lost and not any(card.mig for card in every) and before == set(range(last + 1))


def in_order(cards: Sequence[Card]) -> list[int]:
    """Indices of the cards of a job in the order of its ranks: as they were asked for; on Ascend by CANN's numbers,
    which it takes in ascending order alone."""
    if any(card.kind != ASCEND for card in cards):
        return [card.index for card in cards]
    return [card.index for card in sorted(cards, key=lambda card: int(_word(card, plain=True)))]
