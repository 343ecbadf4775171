"""Which card is which: the one place that follows a job's cards over a driver that counts anew.

A card has a number, by which a job is given it and its log files are named, and a UUID (an Ascend chip: its die).
When a card falls off the bus, or comes back, the driver gives the others new numbers with its next start. A job keeps
the numbers that it was given; what is read of its cards, who holds them and what is wrong with them goes by the UUID.
Where a UUID is not known, the number has to do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Self

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.lifecycle import Job


@dataclass(frozen=True, slots=True)
class CardsNow:
    """What the job's processes have to call its cards in the next attempt, by the job's own numbers. The daemon decides
    that (agent/jobs/cards/cards_now.py) and keeps it in `JobPaths.cards_now`; the supervisor reads it before each
    attempt.

    `uuids`: the cards that this describes; `words`: as `Job.card_visible`, for each card; `nodes`: as `Job.card_nodes`;
    `missing`: UUIDs of cards that the driver does not list any more.
    """

    uuids: Mapping[int, str]
    words: Mapping[int, str] = field(default_factory=dict)
    nodes: Mapping[int, str] = field(default_factory=dict)
    missing: Mapping[int, str] = field(default_factory=dict)

    def is_of(self, job: Job) -> bool:
        """Whether it is about just the cards that the job has."""
        return self.uuids == {card: job.card_uuids.get(card, "") for card in job.cards}

    def written(self, boot: str) -> dict[str, Any]:
        """As JSON. `boot`: the boot of the node in which it holds."""
        return {"boot": boot} | {name: _keyed(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def of_written(cls, found: Any, boot: str) -> Self | None:
        """None for what is of another boot. Raises ValueError for what `written` does not give."""
        try:
            if found["boot"] != boot:
                return None
            return cls(*({int(card): str(value) for card, value in found[name].items()} for name in cls.__slots__))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"it does not describe cards: {error!r}") from None


def _keyed(by_card: Mapping[int, str]) -> dict[str, str]:
    return {str(card): value for card, value in by_card.items()}


def missing_of(job: Job, shown: Mapping[int, str]) -> dict[int, str] | None:
    """By the job's own number the UUIDs of those of its cards that are not among `shown` (UUIDs by number); None where
    that is not known, since not every card says who it is."""
    known = set(shown.values())
    away = {card: uuid for card in job.cards if (uuid := job.card_uuids.get(card, "")) not in known or not uuid}
    return None if away and (not all(away.values()) or not all(shown.values())) else away


def is_same(number: int, uuid: str, other: int, other_uuid: str) -> bool:
    """Whether two cards that were seen at different moments are one: by UUID, and by number where one is not known."""
    return uuid == other_uuid if uuid and other_uuid else number == other


def number_now(number: int, uuid: str, shown: Mapping[int, str]) -> int | None:
    """The number that a card has now which had `number`. `shown`: the UUIDs of the cards that there are, by number
    ("": not told). None: it is missing, and its number belongs to another card."""
    same = [index for index, other in shown.items() if uuid and other == uuid]
    if len(same) == 1:
        return same[0]
    there = shown.get(number, "")
    return None if uuid and there and there != uuid else number


def numbers_now(job: Job, cards: Iterable[int], shown: Mapping[int, str]) -> dict[int, int]:
    """By number at the job's start the one that each of these cards of the job has now; without those that are not
    there."""
    found = {card: number_now(card, job.card_uuids.get(card, ""), shown) for card in cards}
    return {card: index for card, index in found.items() if index is not None}


def own_number(job: Job, card: int, uuid: str) -> int | None:
    """The job's own number of a card (of one of which it has a MIG instance, too) that has, or had, the number `card`
    at another moment; None where it is none of its cards. `uuid`: "" where it is not known."""
    for number in job.hardware:
        if is_same(number, job.card_uuids.get(number, ""), card, uuid):
            return number
    return None
