"""A job at one record, as the rows of tables 2 and 3 read it."""

import enum
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property

from muster.probes.hang.facts import odd_ranks
from muster.probes.hang.facts.host import Host, host_of, in_file_system
from muster.probes.hang.facts.proof import StackProof
from muster.probes.hang.facts.readings import Readings
from muster.probes.hang.facts.signs import Strength
from muster.probes.hang.tracks.card_look import CardLook, CardState
from muster.probes.hang.tracks.card_track import NEVER, draws_apart
from muster.probes.hang.tracks.rank_track import RankTrack
from muster.probes.hang.verdicts import HangKind, HangVerdict
from muster.probes.kernel.dataclass import dataclass

#: The kernel's functions in which servers and notebooks wait.
_EVENTS = ("ep_poll", "epoll", "accept", "n_tty_read")


class Scene(enum.StrEnum):
    """What the cards of a job show; each row of tables 2 and 3 is for one of these, or for any."""

    LIVELY = "lively"
    SPINNING = "spinning"
    STARTING = "starting"
    IDLE = "idle"


#: What each of them is. The first that holds counts.
SCENE_WORDS = {
    Scene.LIVELY: "a card works, or the silence is shorter than suspect_s (suspect_soon_s where that is unusual: all "
    "cards began to wait or idle at once after steady work (established_s), or all ranks of a job without cards fell "
    "silent at once, or the logs lost their rhythm (cadence_factor))",
    Scene.SPINNING: "all cards are at full utilization, or at a flat one, and none shows that it computes",
    Scene.STARTING: "no card is at full utilization, and none was active in this attempt",
    Scene.IDLE: "some cards idle or are not seen; the others, if there are any, wait for them",
}


@dataclass(slots=True)
class SilenceLimit:
    """After how much silence a job is HUNG: what the rows of table 2 add up to.

    `seconds` None: never. `since`: begin of the silence, in the detector's clock. `rows`: those that apply; `set_by`:
    the one that set `seconds`.
    """

    seconds: float | None
    why: str
    since: float
    confidence: float = 0.9
    missing: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    set_by: str = ""


@dataclass(slots=True)
class Decision:
    """What is to be said. `row`: of table 3, which decided it. `since` in the detector's clock. `odd`: what each rank
    does that stands out. `asleep`: it rests on processes that sleep. `on_cards`: it rests on what cards do."""

    row: str
    verdict: HangVerdict
    kind: HangKind | None
    rule: str
    since: float
    ranks: tuple[int, ...]
    odd: dict[int, str]
    limit: SilenceLimit
    confidence: float
    clears: Sequence[str]
    asleep: bool
    on_cards: bool


class JobMoment(Readings):
    """What the conditions of the tables ask for. `limit`: what table 2 says so far; `decision`: what table 3 says."""

    limit: SilenceLimit
    decision: Decision | None = None

    @cached_property
    def scene(self) -> Scene:
        """The first that holds."""
        if self.cards.works or self.silent < self.suspect_after:
            return Scene.LIVELY
        if (
            self.cards.spins
            and not self.idle_cards
            and all(self.rank_of(key) in self.spinning_ranks for key in self.cards.dark)
        ):
            return Scene.SPINNING
        return Scene.IDLE if self.job.active or self.cards.spins else Scene.STARTING

    @cached_property
    def suspect_after(self) -> float:
        """Seconds of silence."""
        soon = self.wait_at_once or self.npus_wait or self.lost_rhythm or self.idles_at_once
        return min(self.s.suspect_soon_s, self.s.suspect_s) if soon else self.s.suspect_s

    @cached_property
    def quiet_since(self) -> float:
        """The last sign of life but traces of CPU time, which ranks that wait in a collective take, too, and traffic of
        the node that may be others'."""
        more = (strength for strength in Strength if strength not in (Strength.TRACE, Strength.NETWORK))
        return max(self.job.begun_at, self.job.net_own_at, self.signs.last(*more))

    @cached_property
    def only_stirs(self) -> bool:
        """The job has no card, its logs lost their rhythm, and nothing but traces of CPU time, or traffic of the node
        that may be others', is seen since."""
        return not self.looks and self.lost_rhythm and self.now - self.quiet_since >= self.s.suspect_soon_s

    @cached_property
    def sign_at(self) -> float:
        """The last sign that ends a silence which was told."""
        return self.quiet_since if self.only_stirs else self.life_at

    @cached_property
    def stacks(self) -> StackProof:
        """What the dumps of this silence say."""
        if self.only_stirs:
            return StackProof(self, self.quiet_since)
        return StackProof(self, self._others_did_io_at if self.waited_for else self.since)

    @cached_property
    def is_proven(self) -> bool:
        """Silent for `proof_s`, and the stacks prove who does not go on."""
        quiet = self.waited_for or self.only_stirs or self.scene is not Scene.LIVELY
        return (
            quiet
            and self.now - self.stacks.since >= min(self.s.proof_s, self.s.hung_s)
            and self.stacks.proven is not None
        )

    @cached_property
    def host(self) -> Host:
        """What the ranks do that the scene is about. What the rank of a card at full utilization does says nothing of
        the others, also where it has other cards that it never used."""
        if self.scene is Scene.SPINNING:
            return host_of(self, self.cards.spins)
        low = [key for key in self.cards.low if key not in self.idle_cards]
        unused = [key for key in low if self.rank_of(key) not in self.spinning_ranks]
        return host_of(self, [*self.idle_cards, *self.cards.dark, *unused])

    @cached_property
    def only_npus_wait(self) -> bool:
        """The same of the cards that count."""
        return self.npus_wait and len(self.idle_cards) == len(self.looks)

    @cached_property
    def computing(self) -> tuple[int, ...]:
        """Ranks that compute on the CPU now."""
        return self.signs.ranks_with(Strength.BUSY, self.now - self.s.recent_s)

    # --- all cards at full utilization --------------------------------------------------------------------------------

    @cached_property
    def spins(self) -> list[CardLook]:
        """Cards at full utilization that do not compute, or of which that is not known."""
        return [self.looks[key] for key in self.cards.spins]

    @cached_property
    def spin_surely(self) -> list[CardLook]:
        """Those of them whose power says that they wait."""
        return [look for look in self.spins if look.state is CardState.SPINS]

    @cached_property
    def confirmed(self) -> bool:
        """Of most cards two signs agree that they wait, and none seems to compute for the others."""
        return 2 * sum(look.confirmed for look in self.spins) >= len(self.spins) and not self._one_computes()

    @cached_property
    def unsure_power(self) -> bool:
        """Nothing but a low power, or not even that, says that they wait."""
        return not self.confirmed or 2 * len(self.spin_surely) < len(self.spins)

    @cached_property
    def draws_much(self) -> bool:
        """Most cards draw less than usual, but not as little as one that waits beyond doubt."""
        shares = [_share(look) or 0.0 for look in self.spins]
        return 2 * sum(share >= self.s.power_strict_ratio for share in shares) > len(shares)

    @cached_property
    def logging(self) -> set[int]:
        """Ranks whose logs go on growing while cards wait."""
        return {rank for rank, track in self.job.ranks.items() if self._goes_on(track.log_at)}

    @cached_property
    def all_log(self) -> bool:
        """Those of all these cards do."""
        return self.logging.issuperset(self.spinning_ranks)

    @cached_property
    def used_fabric(self) -> bool:
        """A card of these moved data over its fabric while it worked."""
        return any(self.card(key).fabric_usual(self.s) is not None for key in self.cards.spins)

    @cached_property
    def data_moves(self) -> bool:
        """The fabrics of all of them go on moving data."""
        return all(self._goes_on(self.card(key).moved_at) for key in self.cards.spins)

    def _goes_on(self, last: float) -> bool:
        """What was last seen then is none of what came before the silence."""
        return self.is_recent(last) and last - self.since >= self.s.period_s

    @cached_property
    def writes_its_own(self) -> bool:
        """The job has one card, and its rank writes a little: its lines may go to a file."""
        wrote = any(self.now - track.wrote_at <= self.s.window_s for track in self.job.ranks.values())
        return len(self.spins) == 1 and wrote

    @cached_property
    def held_spinning(self) -> dict[int, str]:
        """Ranks that cannot go on, though their cards have not finished what they were given."""
        return odd_ranks.held(self, self.cards.spins, self.host)

    @cached_property
    def stopped_spinning(self) -> bool:
        """One of these is stopped by a signal."""
        return any(h.state == "T" for rank in self.held_spinning for h in self.host.held[rank])

    @cached_property
    def nobody_left(self) -> bool:
        """All ranks of the job are here for certain, the cards of each began to wait at once, and their processes have
        been in locks since: none does anything that the others may wait for, nor gives its card small kernels to do."""
        ranks = [track for track in self.ranks if not self.has_ended(track)]
        return (
            self.job.nodes_known
            and not self.job.others
            and self.wait_at_once
            and not any(look.mid for look in self.spins)
            and bool(ranks)
            and all(track.rank in self.spinning_ranks and self._stays_locked(track) for track in ranks)
            and self.signs.last(Strength.LOG) <= self.since + self.s.suspect_soon_s
        )

    def _stays_locked(self, track: RankTrack) -> bool:
        begun = self.since + self.s.suspect_soon_s
        return track.locked_since is not None and max(track.locked_since, track.worker_at) <= begun

    @cached_property
    def cannot_come(self) -> bool:
        """All cards but those of a few ranks began to wait at once, and these ranks have ended or are stopped."""
        idle = self.ranks_of(self.idle_cards)
        return self.wait_at_once and bool(idle) and all(self._is_out(rank) for rank in idle)

    def _is_out(self, rank: int) -> bool:
        held = self.host.held.get(rank, ())
        return self.is_reason(rank) or any(h.state == "T" and h.leads for h in held)

    def _one_computes(self) -> bool:
        """A card draws far more than the others: they may wait for it. Without power, its memory says so."""
        shares = sorted(share for look in self.spins if (share := _share(look)) is not None)
        if len(shares) > 1:
            return draws_apart(shares[-1], shares[:-1], self.s)
        dead = self.s.mem_dead_percent
        return any(not look.confirmed and look.mem is not None and look.mem > dead for look in self.spins)

    # --- cards that idle, or are not seen -----------------------------------------------------------------------------

    @cached_property
    def blind(self) -> bool:
        """No card reports anything."""
        dim = any(self.looks[key].state is CardState.DIM for key in self.cards.dark)
        return not self.idle_cards and not self.cards.spins and not dim

    @cached_property
    def dim(self) -> bool:
        """No card reports utilization, but one reports power, which is that of a card that waits."""
        return bool(self.cards.dark) and not self.blind and not self.idle_cards and not self.cards.spins

    @cached_property
    def waits_for_events(self) -> bool:
        """The own process of each rank waits for events: for requests, or at a terminal."""
        waits = [track.waits_in() for track in self.ranks if not self.has_ended(track)]
        return bool(waits) and all(any(name in wait for name in _EVENTS) for wait in waits)

    @cached_property
    def unseen(self) -> bool:
        """No card reports utilization."""
        return self.blind or self.dim

    @cached_property
    def busy(self) -> bool:
        """A rank of these cards computes on the CPU now."""
        return self.is_recent(self.host.busy_at)

    @cached_property
    def asleep_at(self) -> float:
        """Since when nothing at all is seen of them."""
        return max(self.done_at, self.host.weak_at)

    @cached_property
    def done_at(self) -> float:
        """Since when nothing but weak evidence is seen of them. If no card reports anything, weak evidence and traces
        count as well."""
        weak = (self.host.weak_at, self.signs.last(Strength.TRACE)) if self.blind else ()
        return max(self.since, self.host.busy_at, *weak)

    @cached_property
    def may_hang(self) -> bool:
        """The records have processes, and the time for a start is over."""
        s, job = self.s, self.job
        begun = job.begun_at + (s.startup_busy_s if self.busy else s.startup_s)
        return self.host.known and (job.active or self.now >= begun)

    @cached_property
    def waits_for_files(self) -> bool:
        """A process waits in D for a file system."""
        return in_file_system(self, [h for held in self.host.held.values() for h in held])

    @cached_property
    def stopped_together(self) -> bool:
        """Several ranks gave signs for a good while, until all of them ended when the silence began."""
        s = self.s
        steady = [
            t.stirred_at - t.stirs_since >= s.hung_s and self.since - t.stirred_at <= s.window_s for t in self.ranks
        ]
        return len(self.ranks) > 1 and all(steady)

    @cached_property
    def odd(self) -> dict[int, str]:
        """What the ranks do that the others wait for, or that cannot go on, or that differ from the rest."""
        if self.cards.spins:
            return odd_ranks.idle(self, self.idle_cards, self.host)
        if self.host.held:
            return odd_ranks.held(self, self.idle_cards, self.host)
        return odd_ranks.ended(self) or odd_ranks.waits_otherwise(self)

    @cached_property
    def odd_ranks(self) -> tuple[int, ...]:
        """Their numbers, or those of all ranks."""
        if self.host.held and not self.cards.spins:
            return tuple(sorted(rank for rank in self.host.held if rank >= 0)) or self.all_ranks
        return tuple(self.odd) or self.all_ranks

    # --- no cards -----------------------------------------------------------------------------------------------------

    @cached_property
    def fallen_silent(self) -> list[RankTrack]:
        """Ranks that gave signs and of which nothing is seen for `suspect_s`; for `suspect_soon_s` where that is
        unusual, after signs for at least `established_s` or after lines with a rhythm, which was lost."""
        s, living = self.s, [track for track in self.ranks if not self.has_ended(track)]
        quiet = [track for track in living if self.now - track.stirred_at >= self.suspect_after]

        def unusual(track: RankTrack) -> bool:
            return self.lost_rhythm or track.stirred_at - track.stirs_since >= s.established_s

        return [t for t in quiet if unusual(t) or NEVER < t.stirred_at <= self.now - s.suspect_s]

    @cached_property
    def going_on(self) -> list[RankTrack]:
        """The other ranks."""
        silent = {track.rank for track in self.fallen_silent}
        return [track for track in self.ranks if not self.has_ended(track) and track.rank not in silent]

    @cached_property
    def waited_for(self) -> bool:
        """The job has no card, some ranks have fallen silent, and each of the others does something."""
        if self.looks or not self.fallen_silent or not self.going_on:
            return False
        weak = [self.signs.last(Strength.WEAK, Strength.LOG, ranks=(track.rank,)) for track in self.going_on]
        return self.is_recent(min(weak))

    @cached_property
    def fallen_silent_at(self) -> float:
        """When the last of the silent ranks was seen to do anything."""
        return max(track.stirred_at for track in self.fallen_silent)

    @cached_property
    def no_io_since(self) -> float:
        """Since when these are silent, the others do no IO and write no lines, and nothing is received."""
        return max(self._others_did_io_at, self.signs.last(Strength.NETWORK))

    @cached_property
    def _others_did_io_at(self) -> float:
        """The same without what the node receives."""
        others = [track.rank for track in self.going_on]
        io = [self.signs.last_of("some IO", others), self.signs.last(Strength.LOG, ranks=others)]
        return max(self.fallen_silent_at, *io)


def _share(look: CardLook) -> float | None:
    """Of its own active power."""
    return look.power / look.power_active if look.power is not None and look.power_active else None
