"""What the stacks of the ranks prove: which ranks are elsewhere than the others, and do not go on."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from muster.probes.hang.facts.readings import Readings
from muster.probes.hang.facts.signs import Strength
from muster.probes.hang.tracks.card_look import CardState
from muster.probes.hang.tracks.rank_wait import RankWait
from muster.probes.kernel.dataclass import dataclass
from muster.probes.waits import AT_REST, IN_COLLECTIVE, Culprit, WaitKind, WaitPlace, blame, waits_for_others

#: Dumps that must show the same: for a proof; for a suspicion.
LOOKS, FEW_LOOKS = 3, 2
#: CPU time of a rank in which one thread computes, in CPUs: those of its library take a little, too.
_ONE_CPU = 1.2
#: Dumps of several nodes are one look at the job within so many distances of dumps.
_APART = 3


@dataclass(frozen=True)
class StackProof:
    """What the dumps of a job say at one record. `since`: the begin of the silence that they are about."""

    r: Readings
    since: float

    @cached_property
    def waits(self) -> dict[int, RankWait]:
        """Of the ranks in the last dump, if that is one of this silence."""
        last = max((wait.at for wait in self.r.job.waits.values()), default=-1.0)
        if last < self.since:
            return {}
        return {
            rank: wait
            for rank, wait in sorted(self.r.job.waits.items())
            if wait.at >= last - _APART * self.r.s.stacks_apart_s
        }

    @cached_property
    def culprit(self) -> Culprit | None:
        """The ranks to blame by the last dump."""
        places = {rank: wait.place for rank, wait in self.waits.items()}
        if not self._says_library:
            absent: list[int] = []
        else:
            job = self.r.job
            absent = [rank for rank in job.library_absent if rank not in places]
            missing = {rank: call for rank, call in job.library_inside.items() if rank not in places}
            places |= {rank: WaitPlace(WaitKind.COLLECTIVE, call) for rank, call in missing.items()}
            places |= dict.fromkeys(absent, WaitPlace(WaitKind.ABSENT))
        if not places:
            return None
        gone = [t.rank for t in self.r.ranks if t.rank not in places and self.r.is_reason(t.rank)]
        places |= dict.fromkeys(gone, WaitPlace(WaitKind.EXITED))
        found = blame(places, self._known_to_wait)
        if found is not None and found.waits.kind not in IN_COLLECTIVE and self._says_library:
            calls = [self.r.job.library_inside[rank] for rank in found.peers if rank in self.r.job.library_inside]
            return replace(found, waits=replace(found.waits, call=calls[0])) if calls else found
        return found

    @property
    def _says_library(self) -> bool:
        """The communication library was looked at in this silence, and says where ranks wait."""
        return self.r.job.library_at >= self.since and bool(self.r.job.library_inside)

    @cached_property
    def _known_to_wait(self) -> set[int]:
        """Ranks that wait in a collective, by their cards or by the library."""
        inside = set(self.r.job.library_inside) if self._says_library else set()
        return self._waiting_on_cards | inside

    @cached_property
    def proven(self) -> Culprit | None:
        """The same, if it is proven: several dumps show each rank at one place, nobody wrote a line since the first of
        them, and the rank to blame is stopped, blocked, gone, in a lock or asleep, and did nothing meanwhile, or it
        is in one call that makes nothing: a loop, or a computation in memory that it already has."""
        found = self._unchanged(LOOKS)
        return found if found is not None and all(self._is_stuck(rank) for rank in found.ranks) else None

    @cached_property
    def suspected(self) -> Culprit | None:
        """The same of fewer dumps, and for however long, on however many CPUs: worth a report, and too little to act
        on."""
        found = self._unchanged(FEW_LOOKS)
        return found if found is not None and all(self._seems_stuck(rank) for rank in found.ranks) else None

    def _unchanged(self, looks: int) -> Culprit | None:
        """The ranks to blame, where so many dumps show each rank at one place, and the ranks to blame do nothing."""
        found = self.culprit
        if found is None or any(wait.looks < looks for wait in self.waits.values()):
            return None
        if not all(self._waits_for_others(rank) for rank in found.peers):
            return None  # they wait at one line of the program: for what is not known
        signs, odd = self.r.signs, found.ranks
        first = max(self._first(rank, odd) for rank in self.waits)
        if signs.last(Strength.LOG) >= first:
            return None
        resting = [rank for rank in odd if rank not in self.waits or self.waits[rank].kind is not WaitKind.RUNS]
        busy = max(signs.last_of("some IO", odd), signs.last_of("some CPU time", resting)) >= first
        return None if busy else found

    def stays_in_call(self, told_at: float) -> bool:
        """Whether the ranks to blame were in one call in all dumps since this was told. They may have waited: to
        read C frames holds a thread for a moment."""
        found, signs = self.culprit, self.r.signs
        waits = [self.waits[rank] for rank in found.ranks if rank in self.waits] if found is not None else []
        if found is None or len(waits) < len(found.ranks):
            return False
        silent = max(signs.last(Strength.LOG), signs.last_of("some IO", found.ranks)) < told_at
        return silent and all(wait.kind is WaitKind.RUNS and wait.since <= told_at for wait in waits)

    def loops_for(self, seconds: float) -> bool:
        """Whether the ranks to blame have been in the one call that makes nothing for so long: a loop, if it is not
        the longest computation that is usual."""
        found = self.proven
        waits = [self.waits[rank] for rank in found.ranks if rank in self.waits] if found is not None else []
        return bool(waits) and all(wait.at - wait.barren_since >= seconds for wait in waits)

    @cached_property
    def looping(self) -> Culprit | None:
        """The rank to blame, if it ran through the same lines in all dumps of `hung_s`: work or a loop."""
        found = self.culprit
        if found is None or any(wait.looks < LOOKS for wait in self.waits.values()):
            return None
        runs = [self.waits[rank] for rank in found.ranks if rank in self.waits]
        long = all(wait.kind is WaitKind.RUNS and wait.at - wait.since >= self.r.s.hung_s for wait in runs)
        return found if runs and len(runs) == len(found.ranks) and long else None

    @cached_property
    def one_call(self) -> Culprit | None:
        """The rank to blame, if its thread stayed in one call for `proof_s`: it never waited, took no more
        than a CPU, and neither wrote nor read; whether it touched memory anew is not known. A call that does not
        return, or one that takes long."""
        found = self.culprit
        if found is None or any(rank not in self.waits for rank in found.ranks):
            return None
        if any(wait.looks < LOOKS for wait in self.waits.values()):
            return None
        runs = [self.waits[rank] for rank in found.ranks]
        stays = all(
            wait.kind is WaitKind.RUNS
            and wait.faults is None
            and wait.still_looks >= LOOKS
            and wait.at - wait.still_since >= self.r.s.proof_s
            for wait in runs
        )
        first, signs = max(wait.still_since for wait in runs), self.r.signs
        silent = max(signs.last(Strength.LOG), signs.last_of("some IO", found.ranks)) < first
        return found if stays and silent and all(self._takes_one_cpu(rank) for rank in found.ranks) else None

    @cached_property
    def at_rest(self) -> tuple[int, ...]:
        """Ranks that wait for requests or at a prompt, if all others do so too, or wait for these."""
        rest = [rank for rank, wait in self.waits.items() if wait.kind in AT_REST]
        wait = all(self._waits_for_others(rank) for rank in self.waits if rank not in rest)
        return tuple(rest) if wait else ()

    def elsewhere(self, *kinds: WaitKind) -> bool:
        """A rank waits for one of these."""
        return any(wait.kind in kinds for wait in self.waits.values())

    def _waits_for_others(self, rank: int) -> bool:
        if rank not in self.waits:
            return rank in self._known_to_wait
        return waits_for_others(self.waits[rank].place, on_card=rank in self._known_to_wait)

    def _first(self, rank: int, odd: Sequence[int]) -> float:
        """The first of the last dumps that count."""
        wait = self.waits[rank]
        if wait.kind is WaitKind.RUNS and rank in odd:
            return wait.still_since if wait.faults is None else wait.barren_since
        return max(wait.since, wait.still_since) if wait.kind in (WaitKind.LOCK, WaitKind.SLEEP) else wait.since

    def _is_stuck(self, rank: int) -> bool:
        wait = self.waits.get(rank)
        if wait is None:  # it has exited, or only the library says that it did not come
            return rank not in self.r.job.library_absent
        if wait.kind is WaitKind.STOPPED:
            return True
        if wait.kind is WaitKind.BLOCKED:  # of a place that is not known nothing is
            return wait.wchan not in ("", "0") and not wait.wchan.startswith(self.r.s.file_systems)
        if wait.kind is WaitKind.RUNS:
            return self._loops(wait, rank)
        if wait.kind is WaitKind.SLEEP:
            return wait.still_looks >= LOOKS and self._sleeps_on(wait)
        # A thread of the program may be the one that it waits for, and do something: receive data, say.
        receives = self.r.signs.last(Strength.NETWORK) >= max(wait.since, wait.still_since)
        return wait.kind is WaitKind.LOCK and wait.still_looks >= LOOKS and not wait.helped and not receives

    def _seems_stuck(self, rank: int) -> bool:
        wait = self.waits.get(rank)
        if wait is None or wait.kind not in (WaitKind.RUNS, WaitKind.SLEEP, WaitKind.LOCK):
            return self._is_stuck(rank)
        if wait.kind is WaitKind.RUNS and wait.faults is not None:
            return wait.barren_looks >= FEW_LOOKS
        return wait.still_looks >= FEW_LOOKS and not wait.helped

    def _loops(self, wait: RankWait, rank: int) -> bool:
        """Whether its thread has been in one call for a minute, on one CPU, and neither waited nor touched memory anew:
        a call that makes something needs some for it. It may wait for a card, where nobody sees what that does."""
        return (
            wait.barren_looks >= LOOKS
            and wait.at - wait.barren_since >= self.r.s.suspect_soon_s
            and self._takes_one_cpu(rank)
            and not any(self.r.rank_of(key) == rank for key in self.r.cards.dark)
        )

    def _takes_one_cpu(self, rank: int) -> bool:
        track, s = self.r.job.ranks.get(rank), self.r.s
        cpu = track.cpu_of_late(self.r.now, s) if track is not None else None
        return cpu is not None and s.cpu_idle_s <= cpu <= _ONE_CPU * s.period_s

    def _sleeps_on(self, wait: RankWait) -> bool:
        """Whether it has slept for a minute and goes on for longer than anybody pauses between two tries; or has slept
        as long, where its system call does not say until when."""
        asleep, long = wait.at - wait.still_since, self.r.s.hung_s
        if wait.wakes_in is None:
            return asleep >= long
        return asleep >= self.r.s.suspect_soon_s and asleep + wait.wakes_in >= long

    @cached_property
    def _waiting_on_cards(self) -> set[int]:
        """Ranks all of whose cards spin beyond doubt."""
        spins: set[int] = set()
        other: set[int] = set()
        for key, look in self.r.looks.items():
            if not self.r.is_unused(key):
                (spins if look.state is CardState.SPINS else other).add(self.r.rank_of(key))
        return spins - other - {-1}
