"""Looks at the cards of a job, one with each record: which ranks wait for others, and which of them go on."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from muster.probes.hang.hang_records import CardReading, Record
from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.slow.slow_settings import SlowSettings
from muster.probes.hang.tracks.card_track import CardTrack, draws_apart, median
from muster.probes.hang.tracks.state import JobState, card_key
from muster.probes.kernel.dataclass import dataclass

#: Looks nearer to each other than this share of the window (7.5 s of 15 min) need not all be kept.
_APART = 1 / 120
#: Share of the window that the looks must span.
SPAN = 0.8
#: Most ranks that may be slow, as a share of all; the same for ranks that a look does not see.
_FEW, _UNSEEN = 1 / 3, 1 / 4
#: Standard deviations by which the share of readings with waiting peers may be too high by chance.
_CHANCE = 2.0


class RankLook(msgspec.Struct, array_like=True):
    """The ranks at one record. `at` in the detector's clock, `t` the record's time. `waits`: they wait for others, at
    these `shares` of their cards' usual power (0: unknown, or idle); `goes`: they do not; `idle`: of these, those whose
    cards idle. `moved`: the fabric of those that wait moved data
    since the look before, so that this is another wait."""

    at: float
    t: float
    waits: list[int]
    shares: list[float]
    goes: list[int]
    idle: list[int]
    moved: bool = False
    #: Of steps shorter than a reading: utilization of cards that idle for a part; and which cards are at full
    #: utilization while data move, and whether at less than their usual power.
    partly: dict[int, float] = {}
    pinned: dict[int, bool] = {}

    @property
    def waited_for(self) -> list[int]:
        """The few ranks for which all others wait."""
        return self.goes if self.waits and len(self.goes) <= few(len(self.waits) + len(self.goes)) else []


def few(ranks: int) -> int:
    """How many of so many ranks may be slow."""
    return max(1, int(_FEW * ranks))


def take(looks: list[RankLook], found: RankLook, window_s: float) -> None:
    """Adds a look, unless it is too near to the one before."""
    if looks and found.at - looks[-1].at < _APART * window_s:
        return
    looks.append(found)


def look_of(record: Record, job: JobState, s: HangSettings) -> RankLook | None:
    """The look at this record, which the job has taken. None where it does not show enough."""
    by_rank = cards_by_rank(record, job)
    cards, ranks = [pair for mine in by_rank.values() for pair in mine], set(by_rank)
    if len(ranks) < 2 or not _communicates([track for _, track in cards], s):
        return None
    said = {id(track): _says(card, track, job, s) for card, track in cards}
    found = RankLook(job.now, record.t, [], [], [], [])
    for rank in sorted(ranks):
        mine = by_rank[rank]
        answers = [said[id(track)] for _, track in mine]
        if False in answers:
            found.goes.append(rank)
            if all(card.util is not None and card.util <= s.low_percent for card, _ in mine):
                found.idle.append(rank)
        elif None not in answers:
            found.waits.append(rank)
            found.shares.append(_share(mine, s))
    if len(ranks) - len(found.waits) - len(found.goes) > int(_UNSEEN * len(ranks)):
        return None
    rates = [moved(track, s) for _, track in cards if track.rank in found.waits]
    found.moved = bool(rates) and all(rates)
    return found


def cards_by_rank(record: Record, job: JobState) -> dict[int, list[tuple[CardReading, CardTrack]]]:
    """The cards that the job has used: their readings, and what is kept of them."""
    found: dict[int, list[tuple[CardReading, CardTrack]]] = {}
    for card in record.cards or ():
        track = job.cards.get(card_key(card))
        if track is not None and track.rank is not None and track.used:
            found.setdefault(track.rank, []).append((card, track))
    return found


def _says(card: CardReading, track: CardTrack, job: JobState, s: HangSettings) -> bool | None:
    """Whether the card waits; None also of a reading that only repeats the one before."""
    return track.waits_in(card, s) if track.util_at == job.now else None


def _communicates(tracks: Sequence[CardTrack], s: HangSettings) -> bool:
    """Unless their fabrics are known, and known not to be used: such ranks do not wait for each other."""
    return any(track.fabric_bytes is None or track.fabric_usual(s) is not None for track in tracks)


def _share(cards: Sequence[tuple[CardReading, CardTrack]], s: HangSettings) -> float:
    """Of the usual power of a rank's cards that wait; 0 where that says nothing of their waiting."""
    shares = [
        card.power_w / active
        for card, track in cards
        if card.power_w is not None and (active := track.active_power(s)) and (card.util or 0.0) >= s.high_percent
    ]
    return max(shares) if len(shares) == len(cards) else 0.0


def moved(track: CardTrack, s: HangSettings) -> bool:
    """Its fabric moved data between the last two readings."""
    usual, last = track.fabric_usual(s), track.samples[-1].fabric if track.samples else None
    return usual is not None and last is not None and last > max(s.fabric_floor_bytes, s.fabric_dead_ratio * usual)


# --- judgement --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CardEvidence:
    """Of one rank. `factor`: it is at work this many times as long as its peers, `surely` at least; `waited`: of so
    many `readings` the peers wait for it in so many, in so many separate `waits`; `alone`: the share of all readings
    with waiting ranks in which they wait for this one; `idle`: its card idles in most of them. `since` the first of
    them, record's time."""

    rank: int
    peers: tuple[int, ...]
    factor: float
    surely: float
    readings: int
    waited: int
    waits: int
    alone: float
    idle: bool
    since: float

    @property
    def confidence(self) -> float:
        """0 to 1."""
        return self.alone

    def is_slow(self, s: SlowSettings, *, already: bool) -> bool:
        """By these numbers; of one that is SLOW already less is asked for."""
        if already:
            return self.factor >= s.clear_factor and self.alone >= s.alone_share / 2
        return self.surely >= s.factor and self.alone >= s.alone_share and self.waits >= s.min_waits

    def as_dict(self) -> dict[str, object]:
        """As JSON takes it."""
        return {
            "peers": list(self.peers),
            "factor": round(self.factor, 2),
            "readings": self.readings,
            "waited": self.waited,
            "waits": self.waits,
            "alone": round(self.alone, 2),
            "card_idles": self.idle,
        }


def judge(
    looks: Sequence[RankLook], s: SlowSettings, hang: HangSettings, slow: Sequence[int]
) -> Mapping[int, CardEvidence]:
    """The slow ranks. `slow`: those that are SLOW already."""
    if not looks or looks[-1].at - looks[0].at < SPAN * s.window_s:
        return {}
    computes = _computing(looks, s, hang)
    counted = list(_without_long_waits([_corrected(look, computes) for look in looks], s.longest_wait_s))
    ranks = sorted({rank for look in counted for rank in (*look.waits, *look.goes)})
    if len(counted) < s.min_readings or len(ranks) < 2:
        return {}
    waiting = [look for look in counted if look.waited_for]
    odd = [rank for rank in ranks if sum(rank in look.waited_for for look in waiting) * 2 >= max(1, len(waiting))]
    # Where all are never at work at once, they work in turn; or all readings fall into one phase of their steps.
    together = sum(not look.waits for look in counted)
    if not odd or len(odd) > few(len(ranks)) or together < s.min_waits:
        return {}
    peers = tuple(rank for rank in ranks if rank not in odd)
    at_work = {rank: _at_work(rank, counted) for rank in ranks}
    usual = median([at_work[rank] for rank in peers])
    by_chance = _CHANCE * math.sqrt(usual * (1 - usual) / len(counted))
    found: dict[int, CardEvidence] = {}
    for rank in odd:
        waited = [look for look in waiting if rank in look.waited_for]
        evidence = CardEvidence(
            rank=rank,
            peers=peers,
            factor=at_work[rank] / usual,
            surely=at_work[rank] / min(1.0, usual + by_chance),
            readings=len(counted),
            waited=len(waited),
            waits=sum(1 for _ in _waits_for(rank, counted)),
            alone=len(waited) / len(waiting),
            idle=2 * sum(rank in look.idle for look in waited) > len(waited),
            since=waited[0].t,
        )
        if evidence.is_slow(s, already=rank in slow):
            found[rank] = evidence
    return found


def _computing(looks: Sequence[RankLook], s: SlowSettings, hang: HangSettings) -> set[int]:
    """Ranks that seem to wait, and draw far more power then than the others do: their cards may be throttled."""
    shares: dict[int, list[float]] = {}
    for look in looks:
        for rank, share in zip(look.waits, look.shares, strict=True):
            if share > 0:
                shares.setdefault(rank, []).append(share)
    usual = {rank: median(mine) for rank, mine in shares.items() if len(mine) >= s.min_waits}
    others = {rank: [usual[other] for other in usual if other != rank] for rank in usual}
    apart = {rank for rank in usual if others[rank] and draws_apart(usual[rank], others[rank], hang)}
    return apart if len(apart) <= few(len(usual)) else set()


def _corrected(look: RankLook, computes: Collection[int]) -> RankLook:
    """With these ranks at work where they seem to wait."""
    if not any(rank in computes for rank in look.waits):
        return look
    waits = [(rank, share) for rank, share in zip(look.waits, look.shares, strict=True) if rank not in computes]
    goes = sorted({*look.goes, *(rank for rank in look.waits if rank in computes)})
    return RankLook(look.at, look.t, [r for r, _ in waits], [share for _, share in waits], goes, look.idle, look.moved)


def _at_work(rank: int, looks: Sequence[RankLook]) -> float:
    """The share of its looks in which it waits for nobody."""
    seen = [rank in look.goes for look in looks if rank in look.goes or rank in look.waits]
    return sum(seen) / len(seen) if seen else 0.0


def _waits_for(rank: int, looks: Sequence[RankLook]) -> Iterator[list[RankLook]]:
    """The waits of others for a rank, each as its looks. A wait lasts until one of the others goes on; that the rank
    itself seems to wait in between does not end it."""
    wait: list[RankLook] = []
    for look in looks:
        waited_for = rank in look.waited_for
        if wait and (look.moved or not (waited_for or not look.goes)):
            yield wait
            wait = []
        if waited_for:
            wait.append(look)
    if wait:
        yield wait


def _without_long_waits(looks: Sequence[RankLook], longest_s: float) -> Iterator[RankLook]:
    long: set[float] = set()
    for rank in {rank for look in looks for rank in look.waited_for}:
        for wait in _waits_for(rank, looks):
            if wait[-1].at - wait[0].at > longest_s:
                long.update(look.at for look in wait)
    return (look for look in looks if look.at not in long)
