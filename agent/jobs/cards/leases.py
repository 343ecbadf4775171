"""Which job holds which card.

A job holds its cards until it has ended and the driver shows no process on them (agent/jobs/cards/release.py). The
driver knows which cards exist; this module knows only who may use them.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from muster.agent.errors import CardBusy, NodeUnhealthy, NoSuchCard
from muster.agent.jobs.cards import nearness
from muster.agent.jobs.cards.doubts import Doubt
from muster.agent.node.conditions import Condition
from muster.probes.cards.accelerator import SLOT, Card
from muster.probes.cards.view import identities
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.number_lists import numbers
from muster.supervisors.model.card_identity import number_now
from muster.supervisors.model.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Lease:
    """A card and its holder. `job_id`: empty if the card is free; `held_by`: once that job has ended, a sentence about
    the process that is still on the card; `reserved`: a sentence that says why no job gets it."""

    card: Card
    job_id: str = ""
    held_by: str = ""
    reserved: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    """What a job was given: the kind and the indices of its cards. `warnings`: sentences about cards that are worse
    than others, each with the reason why the job got them all the same."""

    kind: str
    devices: list[int]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _HeldCard:
    """A job's card: its number when the job got it, and its UUID ("": unknown)."""

    job_id: str
    number: int
    uuid: str


class CardLeases:
    """Leases each card to one job at a time. Not thread-safe."""

    def __init__(self) -> None:
        self._found: Mapping[int, Card] = {}
        #: Held cards, and the number that each has now: it changes when the driver renumbers the cards.
        self._held: dict[_HeldCard, int | None] = {}
        self._holder: Mapping[int, str] = {}
        self._held_by: dict[int, str] = {}
        #: Cards that no job gets, each with a sentence that says why.
        self.reserved: Mapping[int, str] = {}

    def refresh(self, found: Mapping[int, Card]) -> None:
        """Takes over the cards that the node has now. Leases stay, also of a card that is lost."""
        self._found = found
        self._map()

    def _map(self) -> None:
        """Finds out who holds which number now."""
        shown = identities(self._found)
        self._held = {one: number_now(one.number, one.uuid, shown) for one in self._held}
        # If only the number is known, and the card of that number is known to be another job's, it is that job's.
        there = [(one, now) for one, now in self._held.items() if now is not None]
        there.sort(key=lambda pair: bool(pair[0].uuid) and shown.get(pair[1]) == pair[0].uuid)
        self._holder = {now: one.job_id for one, now in there}

    @property
    def kind(self) -> str:
        """The kind of this node's cards."""
        return next((card.kind for card in self._found.values()), SLOT)

    @property
    def holders(self) -> Mapping[int, str]:
        """Jobs by the present numbers of their cards."""
        return self._holder

    def all(self) -> list[Lease]:
        """By index."""
        indices = sorted(self._found.keys() | self._holder.keys())
        return [
            Lease(self.get(i), self._holder.get(i, ""), self._held_by.get(i, ""), self.reserved.get(i, ""))
            for i in indices
        ]

    def get(self, index: int) -> Card:
        """A card of this node, or the bare number of a lost card."""
        return self._found.get(index) or Card(index, self.kind)

    def lease(
        self,
        job_id: str,
        spec: JobSpec,
        unfit: Mapping[int, Condition],
        doubts: Mapping[int, Doubt] = MappingProxyType({}),
    ) -> Given:
        """Leases the requested cards to a job, in the order of its ranks.

        `unfit`: cards that no job gets, with the condition; `doubts`: cards that a job gets only if it names them, or
        if no others are free. A job that requests a number of cards gets cards of one model. A job that requests none
        gets its ranks' numbers as devices and holds nothing. Raises NoSuchCard, CardBusy, NodeUnhealthy; then it holds
        nothing.
        """
        if not spec.wants_cards:
            return Given(SLOT, list(range(spec.local_ranks)))
        mine = [index for index, card in self._found.items() if not card.mig]
        have = f"cards {_shown(mine)}" if mine else "no cards"
        if spec.all_cards and not mine:
            cut = "all its cards are cut into MIG instances: name these" if self._found else "ask for ranks instead"
            raise NoSuchCard(f"all cards: this node has {have}: {cut}")
        if named := tuple(mine) if spec.all_cards else spec.card_indices:
            missing = [i for i in named if i not in self._found]
            if missing:
                raise NoSuchCard(f"card {missing[0]}: this node has {have}")
            for index in named:
                if self._found[index].mig:
                    raise NoSuchCard(self._cut(self._found[index]))
            self._refuse_whole_with_parts(named)
            for index in named:
                if index in self._holder:
                    raise CardBusy(self._told(index))
                if index in self.reserved:
                    raise CardBusy(f"card {index}: {self.reserved[index]}")
            for index in named:
                if index in unfit:
                    raise NodeUnhealthy(unfit[index].sentence())
            chosen, why = list(named), "the job asks for all cards" if spec.all_cards else "the job names it"
        else:
            if spec.card_count > len(mine):
                raise NoSuchCard(f"{spec.card_count} cards: this node has {have}")
            chosen, why = self._choose(spec.card_count, unfit, doubts), "no better one of its model is free"
        self.restore(job_id, chosen, identities(self._found))
        return Given(self._found[chosen[0]].kind, chosen, (*self._mixed(chosen), *_doubted(chosen, doubts, why)))

    @property
    def held_cards(self) -> list[tuple[int, str]]:
        """Each held card: the number that it had when its job got it, and its UUID ("": unknown)."""
        return [(one.number, one.uuid) for one in self._held]

    def restore(self, job_id: str, devices: list[int], uuids: Mapping[int, str] = MappingProxyType({})) -> None:
        """Restores a lease from a journal. `uuids`: of these cards, as far as known."""
        others = {one: now for one, now in self._held.items() if one.job_id != job_id or one.number not in devices}
        self._held = others | {_HeldCard(job_id, index, uuids.get(index, "")): index for index in devices}
        self._map()

    def hold(self, job_id: str, texts: Mapping[int, str]) -> None:
        """Notes which processes are still on the cards of an ended job: a sentence by card."""
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
            self._held_by.pop(index, None)
        kept = {one: now for one, now in self._held.items() if one.job_id != job_id or card not in (None, now)}
        self._held = kept
        self._map()

    def _told(self, index: int) -> str:
        if index in self._held_by:
            return f"card {index}: {self._held_by[index]}"
        return f"card {index} is held by job {self._holder[index]}: wait for it, or stop it"

    def _choose(self, count: int, unfit: Mapping[int, Condition], doubts: Mapping[int, Doubt]) -> list[int]:
        """The free cards of one model with the least doubt, and among these cards close to one another.

        Raises NoSuchCard, CardBusy, NodeUnhealthy.
        """
        everything = self._by_model(index for index, card in self._found.items() if not card.mig)
        taken = self._holder.keys() | self.reserved.keys()
        free = {model: [c for c in cards if c.index not in taken] for model, cards in everything.items()}
        fit = {model: [c for c in cards if c.index not in unfit] for model, cards in free.items()}
        options = [_best(cards, count, doubts) for cards in fit.values() if len(cards) >= count]
        if not options:
            raise self._too_few(count, everything, free, fit, unfit)
        return min(options)[-1]

    def _by_model(self, indices: Iterable[int]) -> dict[str, list[Card]]:
        """These cards by their model. A card of unknown model counts as one of the others if these are alike; a MIG
        instance never counts as a whole card."""
        names = {card.model for card in self._found.values() if card.model and not card.mig and card.parent is None}
        only = next(iter(names)) if len(names) == 1 else ""
        found: dict[str, list[Card]] = {}
        for index in indices:
            card = self._found[index]
            found.setdefault(card.model or (only if card.parent is None else "MIG"), []).append(card)
        return found

    def _cut(self, card: Card) -> str:
        parts = [index for index, one in self._found.items() if one.parent == card.index]
        text = f"card {card.index} is in MIG mode"
        if not parts:
            return f"{text} and has no instance: create one (nvidia-smi mig -cgi), or end MIG mode (nvidia-smi -mig 0)"
        return f"{text}: name its instances, {_cards(parts)}"

    def _refuse_whole_with_parts(self, indices: Iterable[int]) -> None:
        """CUDA shows a process either whole cards or one MIG instance. Raises NoSuchCard."""
        named = [self._found[index] for index in indices]
        whole = [card.index for card in named if card.parent is None]
        parts = [card.index for card in named if card.parent is not None]
        if whole and parts:
            raise NoSuchCard(
                f"{_cards(whole)} and MIG {'instance' if len(parts) == 1 else 'instances'} {numbers(parts)}: CUDA "
                "shows a process either whole cards or an instance, never both: name whole cards alone (--cards "
                f"{_named(whole)}) or instances alone (--cards {_named(parts)})"
            )

    def _mixed(self, chosen: list[int]) -> list[str]:
        models = self._by_model(chosen)
        if len(models) < 2:
            return []
        told = ", ".join(f"{_cards(c.index for c in cards)} {model or 'unknown'}" for model, cards in models.items())
        return [f"the job names cards of different models ({told}): the gang runs at the speed of the slowest"]

    def _too_few(
        self,
        wanted: int,
        everything: Mapping[str, list[Card]],
        free: Mapping[str, list[Card]],
        fit: Mapping[str, list[Card]],
        unfit: Mapping[int, Condition],
    ) -> NoSuchCard | CardBusy | NodeUnhealthy:
        several = len(everything) > 1
        if all(len(cards) < wanted for cards in everything.values()):
            text = f"{wanted} cards of one model: this node has {_counts(everything)}"
            return NoSuchCard(f"{text}; name the cards (--cards 0,1,...) to use different models together")
        models = f" ({_counts(fit)})" if several else ""
        for model, cards in free.items():
            if wanted <= len(cards):
                sick = [unfit[card.index] for card in cards if card.index in unfit]
                of = f"cards{f' of {model}' if several and model else ''}"
                text = f"{wanted} {of}: {len(fit[model])} are free and fit"
                return NodeUnhealthy(f"{text}{models}; {sick[0].sentence()}")
        jobs = sorted({job for i, job in self._holder.items() if i in self._found})
        number, every = sum(map(len, free.values())), sum(map(len, everything.values()))
        text = f"{wanted} cards{' of one model' if several else ''}: {number} of {every} are free"
        text += f" ({_counts(free)})" if several else ""
        text += f", the others are held by {', '.join(jobs[:8])}{', ...' if len(jobs) > 8 else ''}" if jobs else ""
        lingering = [self._told(index) for index in sorted(self._held_by)]
        lingering += [f"card {index}: {why}" for index, why in sorted(self.reserved.items())]
        return CardBusy("; ".join([text, *lingering[:2]]))


def _best(cards: list[Card], count: int, doubts: Mapping[int, Doubt]) -> tuple[list[int], nearness.Cost, list[int]]:
    """For cards of one model: the grades of the chosen cards, the worst first, the cost of the distances between them,
    and their indices."""
    grades = {card.index: doubts[card.index].grade if card.index in doubts else 0 for card in cards}
    taken: list[Card] = []
    for grade in sorted(set(grades.values())):
        alike = [card for card in cards if grades[card.index] == grade]
        missing = count - len(taken)
        if missing < len(alike):
            near = nearness.choose(alike, missing, taken) if missing else []
            alike = [card for card in alike if card.index in near]
        taken += alike
    worst = sorted((grades[card.index] for card in taken), reverse=True)
    return worst, nearness.cost(cards, taken), sorted(card.index for card in taken)


def _doubted(chosen: list[int], doubts: Mapping[int, Doubt], why: str) -> list[str]:
    """One sentence for all cards with the same doubt, the gravest doubt first."""
    alike: dict[Doubt, list[int]] = {}
    for index in sorted(chosen):
        if index in doubts:
            alike.setdefault(doubts[index], []).append(index)
    order = sorted(alike, key=lambda doubt: -doubt.grade)
    return [f"{_cards(alike[doubt])}: {doubt.text}; given to the job because {why}" for doubt in order]


def _counts(models: Mapping[str, list[Card]]) -> str:
    return ", ".join(f"{len(cards)} of {model or 'an unknown model'}" for model, cards in models.items())


def _cards(indices: Iterable[int]) -> str:
    text = numbers(indices)
    return f"card {text}" if text.isdigit() else f"cards {text}"


def _named(indices: Iterable[int]) -> str:
    return ",".join(map(str, indices))


def _shown(indices: list[int]) -> str:
    contiguous = len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1))
    return f"{indices[0]} to {indices[-1]}" if contiguous else ", ".join(str(i) for i in indices)
