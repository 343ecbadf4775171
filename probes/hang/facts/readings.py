"""What is known of a job at one record: what its cards do, its signs of life, and since when it is silent."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from muster.probes.hang.facts.signs import CardsByState, EvidenceRow, SignsOfLife
from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.tracks.card_look import CardLook, CardState, Eye
from muster.probes.hang.tracks.card_track import CardTrack
from muster.probes.hang.tracks.rank_track import RankTrack
from muster.probes.hang.tracks.state import JobState
from muster.probes.kernel.known_names import ASCEND

#: Share of the window for which a process must be in state D, T or t.
HELD = 0.8


class Readings:
    """One job at one record. Times are those of the detector's clock."""

    def __init__(
        self, job: JobState, looks: Mapping[str, CardLook], s: HangSettings, evidence: Sequence[EvidenceRow]
    ) -> None:
        """`looks`: what each card does, by its key in the job. `evidence`: table 1."""
        self.job, self.looks, self.s, self.now = job, looks, s, job.now
        self.cards = CardsByState.of(looks.items())
        self.signs = SignsOfLife.of(job, self.cards, evidence)

    # --- times --------------------------------------------------------------------------------------------------------

    @cached_property
    def life_at(self) -> float:
        """The last sign of life that ends a silence; of an attempt without any its begin."""
        return max(self.job.begun_at, self.signs.life_at())

    @cached_property
    def since(self) -> float:
        """The begin of the silence: the last sign of life, or when the last card began to do what it does."""
        quiet = (*self.cards.spins, *self.cards.low, *self.cards.dark)
        return max([self.life_at, *(self.looks[key].since for key in quiet if not self.is_unused(key))])

    @cached_property
    def silent(self) -> float:
        """Seconds since then."""
        return self.now - self.since

    def is_recent(self, at: float) -> bool:
        """What was seen then counts as a sign of now."""
        return self.now - at <= self.s.recent_s

    @cached_property
    def lost_rhythm(self) -> bool:
        """The logs of some ranks grew steadily, and none of these does for far longer than ever before."""
        s, steady = self.s, [track for track in self.ranks if track.has_rhythm(self.s)]

        def limit(gaps: Sequence[float]) -> float:
            # That lines come more often than records is all that is known of those that come with each.
            longest = max(gaps)
            return s.suspect_soon_s if longest <= 2 * self.job.usual_s else s.cadence_factor * longest

        return bool(steady) and all(self.now - track.log_at >= limit(track.log_gaps) for track in steady)

    @cached_property
    def worked_steadily(self) -> bool:
        """The cards worked for `established_s` without a pause, until the silence."""
        return self.job.spell_at - self.job.spell_since >= self.s.established_s

    @cached_property
    def wait_at_once(self) -> bool:
        """After steady work all cards wait beyond doubt, but for those that idle."""
        spins = [self.looks[key] for key in self.cards.spins]
        surely = bool(spins) and all(look.state is CardState.SPINS and look.confirmed for look in spins)
        return surely and not self.cards.works and not self.cards.dark and self.worked_steadily

    @cached_property
    def idles_at_once(self) -> bool:
        """After steady work all cards that count idle, or draw no more where more is not known; of a job without cards,
        each rank gave signs of life steadily, and gives none. Its processes are known, and none is held: of such ones
        more is known later. And it never came out of so long a silence."""
        if self.silent < self.s.patience_ratio * self.job.survived_s:
            return False
        if self.now - self.job.procs_at > 2 * self.job.usual_s:
            return False
        if any(track.held(self.now, 0.0, self.s.gone_s) for track in self.tracks):
            return False
        if not self.looks:
            living = [track for track in self.ranks if not self.has_ended(track)]
            steady = self.s.established_s
            return bool(living) and all(track.stirred_at - track.stirs_since >= steady for track in living)
        dim = [key for key in self.cards.dark if self.looks[key].state is CardState.DIM]
        others = (*self.cards.works, *self.cards.spins, *(key for key in self.cards.dark if key not in dim))
        return bool(self.idle_cards or dim) and not others and self.worked_steadily

    def fell_silent(self) -> bool:
        """Cards, logs or processes gave signs for a good while, until the silence began."""
        s, job = self.s, self.job
        cards = [(card.varies_since, card.varied_at) for card in job.cards.values()]
        ranks = [(track.talks_since, track.talked_at) for track in job.ranks.values()]
        return any(u - begin >= s.hung_s and abs(u - self.since) <= s.window_s for begin, u in (*cards, *ranks))

    # --- ranks --------------------------------------------------------------------------------------------------------

    @cached_property
    def tracks(self) -> list[RankTrack]:
        """Of all ranks that have, or had, processes; -1 stands for processes of no rank."""
        return [track for _, track in sorted(self.job.ranks.items()) if track.is_known]

    @cached_property
    def ranks(self) -> list[RankTrack]:
        """The same without the processes of no rank."""
        return [track for track in self.tracks if track.rank >= 0]

    @cached_property
    def all_ranks(self) -> tuple[int, ...]:
        """Of the cards; where these name none, of the processes."""
        return self.ranks_of(self.looks) or tuple(track.rank for track in self.ranks)

    @cached_property
    def traced_ranks(self) -> tuple[int, ...]:
        """Ranks with a process that a debugger holds."""
        held_s, gone_s = HELD * self.s.window_s, self.s.gone_s
        return tuple(track.rank for track in self.ranks if track.traced(self.now, held_s, gone_s))

    def has_ended(self, track: RankTrack) -> bool:
        """Its process has ended."""
        return track.is_gone(self.now, self.s) or track.has_ended()

    def was_left_behind(self, track: RankTrack) -> bool:
        """Its process has ended, and the job worked on for `hung_s` without it: it is no reason for a hang."""
        return self.has_ended(track) and track.seen_at < self.job.work_at - self.s.hung_s

    def is_reason(self, rank: int) -> bool:
        """Its process has ended, and the job did not work on for long without it."""
        track = self.job.ranks.get(rank)
        return track is not None and self.has_ended(track) and not self.was_left_behind(track)

    # --- cards --------------------------------------------------------------------------------------------------------

    def card(self, key: str) -> CardTrack:
        """By its key in the job."""
        return self.job.cards[key]

    def is_unused(self, key: str) -> bool:
        """A card that this job never used, beside others that it did: it says nothing."""
        return self.job.active and not self.card(key).used and any(c.used for c in self.job.cards.values())

    def rank_of(self, key: str) -> int:
        """Of a card; -1 where that is not known."""
        rank = self.card(key).rank
        return -1 if rank is None else rank

    def ranks_of(self, keys: Iterable[str]) -> tuple[int, ...]:
        """Their ranks, those that are known."""
        return tuple(sorted({rank for key in keys if (rank := self.rank_of(key)) >= 0}))

    def missing_of(self, keys: Iterable[str]) -> list[str]:
        """Readings that at least one of these cards does not have."""
        keys = list(keys)
        looks = [self.looks[key] for key in keys]
        if not looks:
            return ["cards"]
        found = [name for name in ("util", "power", "mem") if any(getattr(look, name) is None for look in looks)]
        return [*found, "fabric"] if any(self.card(key).fabric_bytes is None for key in keys) else found

    @cached_property
    def hanging(self) -> list[str]:
        """Cards for which a call of the driver does not return."""
        return [key for key, card in self.job.cards.items() if card.hangs]

    @cached_property
    def idle_cards(self) -> list[str]:
        """Cards that idle and count: those that the job used before, or all if it has no other."""
        used = [key for key in self.cards.low if not self.is_unused(key)]
        return used or ([] if self.cards.spins or self.cards.dark else list(self.cards.low))

    @cached_property
    def spinning_ranks(self) -> tuple[int, ...]:
        """Ranks of cards at full utilization that do not compute."""
        return self.ranks_of(self.cards.spins)

    @cached_property
    def waiting_cards(self) -> list[str]:
        """Cards that spin beyond doubt, for at least `suspect_s`."""
        looks = [(key, self.looks[key]) for key in self.cards.spins]
        return [k for k, look in looks if look.state is CardState.SPINS and self.now - look.since >= self.s.suspect_s]

    @cached_property
    def slow_cards(self) -> list[str]:
        """Cards that work at less than half of their rate."""
        return [key for key in self.cards.works if self.looks[key].state is CardState.SLOW]

    @cached_property
    def peers_are_unsure(self) -> bool:
        """That the cards at full utilization wait is not known: they may as well compute."""
        peers = [self.looks[key] for key in self.cards.spins]
        return bool(peers) and not any(look.state is CardState.SPINS or look.confirmed for look in peers)

    def fabrics_fell_silent(self, keys: Iterable[str]) -> bool:
        """The fabrics of all these cards were in use and are silent."""
        return all(Eye(self.card(key), self.now, self.s).fabric_dead(self.since) for key in keys)

    @cached_property
    def npus_fell_silent(self) -> bool:
        """The cards that idle are NPUs whose fabrics were in use and are silent."""
        npus = bool(self.idle_cards) and all(self.card(key).kind == ASCEND for key in self.idle_cards)
        return npus and self.fabrics_fell_silent(self.idle_cards)

    @cached_property
    def npus_wait(self) -> bool:
        """All cards are NPUs that idle after steady work, none of their fabrics moves data, all ranks wait for a
        lock."""
        low = self.cards.low
        return (
            bool(low)
            and len(low) == len(self.looks)
            and self.worked_steadily
            and all(self.card(key).kind == ASCEND for key in low)
            and self.fabrics_fell_silent(low)
            and all(t.waits_in_futex() for t in self.ranks)
        )
