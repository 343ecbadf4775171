"""What is known of the cards at one moment, and which of them do not answer."""

import enum
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Generic, TypeVar

from muster.probes.cards.accelerator import SLOT, Card, DriverError, Health, Holder, Reading, Trouble
from muster.probes.kernel.dataclass import dataclass

T = TypeVar("T")


#: Troubles that may be of the one call alone.
_OF_THE_CALL = frozenset({Trouble.NOT_TOLD, Trouble.FAILED})


class What(enum.Enum):
    """Kinds of calls."""

    READINGS = "readings"
    HEALTH = "health"
    HOLDERS = "holders"


@dataclass(frozen=True, slots=True)
class Sick:
    """Why there is no answer. `since`: epoch seconds of the first failure in a row, of the call where it hangs."""

    trouble: Trouble
    text: str
    since: float


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """A value and when it was read, in epoch seconds."""

    at: float
    value: T


@dataclass(frozen=True, slots=True)
class View:
    """What is known of the cards: a snapshot that is replaced and never changed.

    A card that did not answer has no value. `sick` has the cards whose last call of some kind failed; one
    that hangs is HANG whatever was asked, and has no values at all. `driver`: what is wrong with all of it.
    """

    kind: str = SLOT
    version: str = ""
    cards: Mapping[int, Card] = field(default_factory=dict)
    readings: Mapping[int, Seen[Reading]] = field(default_factory=dict)
    health: Mapping[int, Seen[Health]] = field(default_factory=dict)
    holders: Mapping[int, Seen[tuple[Holder, ...]]] = field(default_factory=dict)
    sick: Mapping[int, Sick] = field(default_factory=dict)
    driver: Sick | None = None
    deaf_s: float = 0.0

    @property
    def whole(self) -> Mapping[int, Card]:
        """The cards without the instances of those that are in MIG mode: the pieces of hardware."""
        return {index: card for index, card in self.cards.items() if card.parent is None}

    @property
    def uuids(self) -> Mapping[int, str]:
        """See `identities`."""
        return identities(self.cards)

    def owners(self, indices: Iterable[int]) -> frozenset[int]:
        """These cards, and those of which they are instances: whose trouble is theirs."""
        parents = (self.cards[index].parent for index in indices if index in self.cards)
        return frozenset(indices) | {parent for parent in parents if parent is not None}

    def shared(self, by_card: Mapping[int, T]) -> dict[int, T]:
        """What is known of cards, of their instances too."""
        inherited = {index: card.parent for index, card in self.cards.items() if card.parent in by_card}
        return {**{index: by_card[parent] for index, parent in inherited.items() if parent is not None}, **by_card}


def described_by(cards: Mapping[int, Card], card: Card) -> dict[int, Card]:
    """The cards with what one of them tells of itself, and with the instances that it has now."""
    others = {index: one for index, one in cards.items() if one.parent != card.index}
    return dict(sorted((others | {one.index: one for one in (card, *card.instances)}).items()))


def linked(cards: Mapping[int, Card], links: Mapping[int, tuple[int, ...]]) -> dict[int, Card]:
    """The cards with their direct links, as far as the driver reports them."""
    return {index: replace(card, peers=links.get(index, card.peers)) for index, card in cards.items()}


def identities(cards: Mapping[int, Card]) -> dict[int, str]:
    """By number, what a card is known by under another number. "" of one that does not tell, or tells the same as
    another: virtual NPUs have the number of their chip's die."""
    often = Counter(card.uuid for card in cards.values())
    return {index: card.uuid if often[card.uuid] == 1 else "" for index, card in cards.items()}


class CardTroubles:
    """Which cards failed, in what and since when."""

    def __init__(self) -> None:
        self.hanging: dict[int, Sick] = {}
        self._failed: dict[tuple[int, What], Sick] = {}

    def answered(self, index: int, what: What) -> None:
        """The card answered such a call: nothing is wrong with it there any more."""
        self._failed.pop((index, what), None)
        self.hanging.pop(index, None)

    def failed(self, index: int, what: What, error: DriverError) -> None:
        """Such a call failed. The time of its first failure is kept."""
        before = self._failed.get((index, what))
        self._failed[index, what] = Sick(error.trouble, str(error), before.since if before else time.time())
        self.hanging.pop(index, None)

    def hangs(self, index: int, error: DriverError, since: float) -> None:
        """A call has not returned since `since` (epoch seconds); the first such time is kept."""
        before = self.hanging.get(index)
        self.hanging[index] = Sick(error.trouble, str(error), before.since if before else since)

    def sick(self, cards: Iterable[int]) -> dict[int, Sick]:
        """By card what is worst: it hangs, or the first kind of call that failed, but that something is not told only
        where nothing else is wrong. A card that does not report its processes, or fails in nothing else, is not sick:
        it must not be reset for that."""
        if not self.hanging and not self._failed:
            return {}
        found: dict[int, Sick] = {}
        for index in cards:
            failed = [(what, self._failed[index, what]) for what in What if (index, what) in self._failed]
            failed = [(w, sick) for w, sick in failed if w is not What.HOLDERS or sick.trouble not in _OF_THE_CALL]
            told = [sick for _, sick in failed if sick.trouble is not Trouble.NOT_TOLD]
            untold = [sick for _, sick in failed]
            if index in self.hanging:
                found[index] = self.hanging[index]
            elif told or untold:
                found[index] = (told or untold)[0]
        return found


def with_slots(view: View, slots: tuple[Card, ...]) -> View:
    """The view of a host without cards, with so many slots."""
    return view if len(slots) == len(view.cards) else replace(view, cards={card.index: card for card in slots})
