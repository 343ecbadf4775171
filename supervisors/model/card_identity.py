"""Which card is which: the one place that follows a job's cards over a driver that counts anew.

A card has a number, by which a job is given it and its log files are named, and a UUID (an Ascend chip: its die).
When a card falls off the bus, or comes back, the driver gives the others new numbers with its next start. A job keeps
the numbers that it was given; what is read of its cards, who holds them and what is wrong with them goes by the UUID.
Where a UUID is not known, the number has to do.
"""

from collections.abc import Iterable, Mapping

from muster.supervisors.model.lifecycle import Job


def number_now(number: int, uuid: str, shown: Mapping[int, str]) -> int | None:
    """The number that a card has now which had `number`. `shown`: the UUIDs of the cards that there are, by number
    ("": not told). None: it is not there, and its number is another card's."""
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
        known = job.card_uuids.get(number, "")
        if (known == uuid) if known and uuid else number == card:
            return number
    return None
