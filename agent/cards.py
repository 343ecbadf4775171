"""The cards of the node, and which job holds which."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from agent.errors import CardBusy, NoSuchCard
from supervisors.spec import JobSpec

#: Device nodes and the kind of card that they stand for, in the order in which they are looked for.
_NODES = ((re.compile(r"nvidia(\d+)"), "nvidia"), (re.compile(r"davinci(\d+)"), "ascend"))


@dataclass(frozen=True, slots=True)
class Card:
    """A card, or a slot of a host without cards. `job_id`: who holds it, or empty."""

    index: int
    kind: str
    job_id: str = ""


def find(slots: int, dev: Path = Path("/dev")) -> dict[int, str]:
    """The kind of each card of this node by its index; `slots` many of the kind "slot" where there is no card."""
    try:
        names = os.listdir(dev)
    except OSError:
        names = []
    for pattern, kind in _NODES:
        found = sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))
        if found:
            return dict.fromkeys(found, kind)
    return dict.fromkeys(range(slots), "slot")


class Cards:
    """Leases cards to jobs, each to one at a time. Not for several threads."""

    def __init__(self, found: dict[int, str]) -> None:
        self._found = found
        self._holder: dict[int, str] = {}

    def refresh(self, found: dict[int, str]) -> None:
        """Takes over what the node has now. Leases stay, also of a card that is gone."""
        self._found = found

    def all(self) -> list[Card]:
        """By index."""
        kind = next(iter(self._found.values()), "slot")
        indices = sorted(self._found.keys() | self._holder.keys())
        return [Card(i, self._found.get(i, kind), self._holder.get(i, "")) for i in indices]

    def lease(self, job_id: str, spec: JobSpec) -> tuple[str, list[int]]:
        """Gives a job the cards that it wants: their kind and indices, in the order of its ranks.

        A job that wants none gets its ranks' numbers as devices and holds nothing. Raises NoSuchCard, CardBusy.
        """
        if not spec.wants_cards:
            return "slot", list(range(spec.local_ranks))
        have = f"cards {_shown(list(self._found))}" if self._found else "no cards"
        if spec.card_indices:
            missing = [i for i in spec.card_indices if i not in self._found]
            if missing:
                raise NoSuchCard(f"card {missing[0]}: this node has {have}")
            for index in spec.card_indices:
                if index in self._holder:
                    raise CardBusy(f"card {index} is held by job {self._holder[index]}: wait for it, or stop it")
            chosen = list(spec.card_indices)
        else:
            if spec.card_count > len(self._found):
                raise NoSuchCard(f"{spec.card_count} cards: this node has {have}")
            free = [i for i in self._found if i not in self._holder]
            if spec.card_count > len(free):
                jobs = sorted({job for i, job in self._holder.items() if i in self._found})
                raise CardBusy(
                    f"{spec.card_count} cards: {len(free)} of {len(self._found)} are free, the others are held by "
                    f"{', '.join(jobs[:8])}{', ...' if len(jobs) > 8 else ''}"
                )
            chosen = free[: spec.card_count]
        self.restore(job_id, chosen)
        return self._found[chosen[0]], chosen

    def restore(self, job_id: str, devices: list[int]) -> None:
        """Takes a lease up again that a journal tells of."""
        self._holder.update(dict.fromkeys(devices, job_id))

    def release(self, job_id: str) -> None:
        """Gives back all that a job holds."""
        self._holder = {index: holder for index, holder in self._holder.items() if holder != job_id}


def _shown(indices: list[int]) -> str:
    contiguous = len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1))
    return f"{indices[0]} to {indices[-1]}" if contiguous else ", ".join(str(i) for i in indices)
