"""Which job holds which card.

A job holds its cards until it has ended and the driver shows nobody on them any more (agent/release.py). Which cards
there are is the driver's to tell; this knows only who may have them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from agent import nearness
from agent.conditions import Condition
from agent.errors import CardBusy, NodeUnhealthy, NoSuchCard
from probes.accelerator import SLOT, Card
from supervisors.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Lease:
    """A card with who holds it. `job_id`: empty where it is free; `held_by`: a sentence, once that job has ended, about
    who is still on the card."""

    card: Card
    job_id: str = ""
    held_by: str = ""


class Cards:
    """Leases cards to jobs, each to one at a time. Not for several threads."""

    def __init__(self) -> None:
        self._found: Mapping[int, Card] = {}
        self._holder: dict[int, str] = {}
        self._held_by: dict[int, str] = {}

    def refresh(self, found: Mapping[int, Card]) -> None:
        """Takes over what the node has now. Leases stay, also of a card that is gone."""
        self._found = found

    @property
    def kind(self) -> str:
        """Of the cards of this node."""
        return next((card.kind for card in self._found.values()), SLOT)

    def all(self) -> list[Lease]:
        """By index."""
        indices = sorted(self._found.keys() | self._holder.keys())
        return [
            Lease(self._found.get(i) or Card(i, self.kind), self._holder.get(i, ""), self._held_by.get(i, ""))
            for i in indices
        ]

    def get(self, index: int) -> Card:
        """A card of this node, or the bare number of one that is gone."""
        return self._found.get(index) or Card(index, self.kind)

    def lease(self, job_id: str, spec: JobSpec, unfit: Mapping[int, Condition]) -> tuple[str, list[int]]:
        """Gives a job the cards that it wants: their kind and indices, in the order of its ranks.

        `unfit`: cards that no job is to get, with the condition. A job that wants none gets its ranks' numbers as
        devices and holds nothing. Raises NoSuchCard, CardBusy, NodeUnhealthy; nothing is held then.
        """
        if not spec.wants_cards:
            return SLOT, list(range(spec.local_ranks))
        have = f"cards {_shown(list(self._found))}" if self._found else "no cards"
        if spec.card_indices:
            missing = [i for i in spec.card_indices if i not in self._found]
            if missing:
                raise NoSuchCard(f"card {missing[0]}: this node has {have}")
            for index in spec.card_indices:
                if index in self._holder:
                    raise CardBusy(self._told(index))
            for index in spec.card_indices:
                if index in unfit:
                    raise NodeUnhealthy(unfit[index].sentence())
            chosen = list(spec.card_indices)
        else:
            if spec.card_count > len(self._found):
                raise NoSuchCard(f"{spec.card_count} cards: this node has {have}")
            free = [card for i, card in self._found.items() if i not in self._holder]
            fit = [card for card in free if card.index not in unfit]
            if spec.card_count > len(fit):
                raise self._too_few(spec.card_count, free, unfit)
            chosen = nearness.choose(fit, spec.card_count)
        self.restore(job_id, chosen)
        return self._found[chosen[0]].kind, chosen

    def restore(self, job_id: str, devices: list[int]) -> None:
        """Takes a lease up again that a journal tells of."""
        self._holder.update(dict.fromkeys(devices, job_id))

    def hold(self, job_id: str, texts: Mapping[int, str]) -> None:
        """Notes who is still on the cards of a job that has ended: a sentence by card."""
        for index, holder in self._holder.items():
            if holder == job_id:
                self._held_by.pop(index, None)
                if index in texts:
                    self._held_by[index] = texts[index]

    def held(self, job_id: str) -> list[int]:
        """Indices of the cards that a job holds."""
        return sorted(index for index, holder in self._holder.items() if holder == job_id)

    def release(self, job_id: str, card: int | None = None) -> None:
        """Gives back one card that a job holds, or all of them."""
        for index in self.held(job_id) if card is None else [card]:
            del self._holder[index]
            self._held_by.pop(index, None)

    def _told(self, index: int) -> str:
        if index in self._held_by:
            return f"card {index}: {self._held_by[index]}"
        return f"card {index} is held by job {self._holder[index]}: wait for it, or stop it"

    def _too_few(self, wanted: int, free: list[Card], unfit: Mapping[int, Condition]) -> CardBusy | NodeUnhealthy:
        if wanted <= len(free):
            sick = [unfit[card.index] for card in free if card.index in unfit]
            return NodeUnhealthy(f"{wanted} cards: {len(free) - len(sick)} are free and fit; {sick[0].sentence()}")
        jobs = sorted({job for i, job in self._holder.items() if i in self._found})
        text = f"{wanted} cards: {len(free)} of {len(self._found)} are free, the others are held by "
        text += f"{', '.join(jobs[:8])}{', ...' if len(jobs) > 8 else ''}"
        lingering = [self._told(index) for index in sorted(self._held_by)]
        return CardBusy("; ".join([text, *lingering[:2]]))


def _shown(indices: list[int]) -> str:
    contiguous = len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1))
    return f"{indices[0]} to {indices[-1]}" if contiguous else ", ".join(str(i) for i in indices)
