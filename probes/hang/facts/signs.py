"""Signs of life of a job at one record, each with its source, rank, time and strength."""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from muster.probes.hang.tracks.card_look import CardLook, CardState
from muster.probes.hang.tracks.card_track import NEVER
from muster.probes.hang.tracks.state import JobState
from muster.probes.kernel.dataclass import dataclass

#: The rank of a sign that belongs to the node, or to no rank.
NODE = -1


class Strength(enum.StrEnum):
    """How much a sign says."""

    CARD = "card"  # a card works
    STRONG = "strong"  # a process does so much IO that it is alive beyond doubt
    NETWORK = "network"  # the job receives, or the node: IO of no process
    BUSY = "busy"  # a process computes on the CPU: work, or a loop
    WEAK = "weak"  # helpers inside a dead rank do as much
    LOG = "log"  # the log grows: a retry loop logs, too
    TRACE = "trace"  # anything at all


class SignOfLife(NamedTuple):
    """A sign of life: of which row, of which rank (`NODE`: of none), and when (in the detector's clock) it was last
    seen."""

    source: str
    strength: Strength
    rank: int
    at: float


@dataclass(frozen=True, slots=True)
class CardsByState:
    """What the cards of a job do now, by their keys."""

    works: Sequence[str]
    spins: Sequence[str]
    low: Sequence[str]
    dark: Sequence[str]

    @classmethod
    def of(cls, looks: Iterable[tuple[str, CardLook]]) -> "CardsByState":
        """From what each of them does."""
        works, spins, low, dark = [], [], [], []
        for key, look in looks:
            if look.state in (CardState.WORKS, CardState.SLOW):
                works.append(key)
            elif look.state in (CardState.SPINS, CardState.FLAT):
                spins.append(key)
            elif look.state is CardState.LOW:
                low.append(key)
            else:
                dark.append(key)
        return cls(works, spins, low, dark)

    @property
    def none(self) -> bool:
        """The job has no card."""
        return not (self.works or self.spins or self.low or self.dark)


#: Reads when a sign was last seen: ranks and times.
Seen = Callable[[JobState], Iterable[tuple[int, float]]]
#: Whether a sign ends a silence, by what the cards do.
Ends = Callable[[CardsByState], bool]


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """A row: a sign of life. `words`: what it is, with the settings that are its thresholds. `ends` and `ends_words`:
    when it ends a silence. `scenario`: one of the corpus whose verdicts rest on it."""

    source: str
    strength: Strength
    words: str
    seen: Seen
    ends: Ends
    ends_words: str
    scenario: str


@dataclass(frozen=True, slots=True)
class SignsOfLife:
    """All signs of life at one record."""

    signs: Sequence[SignOfLife]
    ending: frozenset[str]

    @classmethod
    def of(cls, job: JobState, cards: CardsByState, table: Sequence[EvidenceRow]) -> "SignsOfLife":
        """What the rows of the table see."""
        signs = [
            SignOfLife(row.source, row.strength, rank, at) for row in table for rank, at in row.seen(job) if at > NEVER
        ]
        return cls(signs, frozenset(row.source for row in table if row.ends(cards)))

    def life_at(self) -> float:
        """The last sign that ends a silence; NEVER without any."""
        return max((sign.at for sign in self.signs if sign.source in self.ending), default=NEVER)

    def last(self, *strengths: Strength, ranks: Collection[int] | None = None) -> float:
        """When a sign of such a strength was seen last, of these ranks (None: of any); NEVER without any."""
        return max((sign.at for sign in self._of(strengths, ranks)), default=NEVER)

    def last_of(self, source: str, ranks: Collection[int]) -> float:
        """When the sign of this row was seen last, of these ranks."""
        return max((sign.at for sign in self.signs if sign.source == source and sign.rank in ranks), default=NEVER)

    def newest(self, *strengths: Strength, ranks: Collection[int]) -> SignOfLife | None:
        """The last of them; of several at one time the one whose row stands first."""
        return max(self._of(strengths, ranks), key=lambda sign: sign.at, default=None)

    def ranks_with(self, strength: Strength, since: float) -> tuple[int, ...]:
        """Ranks that showed such a sign since then, in order."""
        return tuple(sorted({sign.rank for sign in self._of((strength,), None) if sign.rank >= 0 and sign.at >= since}))

    def _of(self, strengths: Sequence[Strength], ranks: Collection[int] | None) -> Iterator[SignOfLife]:
        return (sign for sign in self.signs if sign.strength in strengths and (ranks is None or sign.rank in ranks))
