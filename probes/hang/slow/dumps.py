"""Dumps of stacks of a job, as far as the hang rule had them taken anyway: for whom its ranks wait in most of them."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import msgspec

from muster.probes.hang.hang_records import Record
from muster.probes.hang.slow.slow_settings import SlowSettings
from muster.probes.hang.tracks.state import JobState
from muster.probes.hang.verdicts import HangVerdict
from muster.probes.kernel.dataclass import dataclass
from muster.probes.waits import AT_REST, Culprit, RankStack, WaitPlace, blame, place


class DumpedWait(msgspec.Struct):
    """A time in which the job was not ALIVE. `begin` and `end` in the detector's clock, `end` None while it lasts; `t`:
    its begin in seconds since the epoch. `dumps` were taken in it; in `blamed` of them the peers wait for this rank."""

    begin: float
    t: float
    end: float | None = None
    dumps: int = 0
    blamed: dict[int, int] = {}
    #: Of the last dump that blames a rank.
    peers: list[int] = []
    does: str = ""
    waits_in: str = ""

    def lasted(self, now: float) -> float:
        """Seconds so far."""
        return (now if self.end is None else self.end) - self.begin


def take(waits: list[DumpedWait], record: Record, job: JobState, on_card: Collection[int], window_s: float) -> None:
    """Takes what a record has, after the job has. `on_card`: ranks whose cards wait. Forgets old waits."""
    last = waits[-1] if waits else None
    if job.verdict in (None, HangVerdict.ALIVE, HangVerdict.IDLE):
        if last is not None and last.end is None:
            last.end = job.now
    else:
        if last is None or last.end is not None:
            begin = max(job.silent_since, job.begun_at)
            last = DumpedWait(begin, record.t - (job.now - begin))
            waits.append(last)
        for stacks in grouped(record.stacks):
            culprit = late({stack.rank: place(stack) for stack in stacks}, on_card)
            last.dumps += 1
            if culprit is not None:
                last.peers, last.does = list(culprit.peers), culprit.does
                last.waits_in = culprit.waits.call or culprit.waits.line
                for rank in culprit.ranks:
                    last.blamed[rank] = last.blamed.get(rank, 0) + 1
    while waits and waits[0].end is not None and waits[0].end < job.now - window_s:
        del waits[0]


def grouped(stacks: Sequence[RankStack]) -> list[list[RankStack]]:
    """Dump by dump, of several ranks each."""
    by_time: dict[float, dict[int, RankStack]] = defaultdict(dict)
    for stack in stacks:
        by_time[stack.t][stack.rank] = stack
    return [list(same.values()) for _, same in sorted(by_time.items()) if len(same) > 1]


def late(places: Mapping[int, WaitPlace], on_card: Collection[int] = ()) -> Culprit | None:
    """The ranks for which the others wait, by one dump; a rank that waits to be asked is not late."""
    culprit = blame(places, on_card)
    return None if culprit is not None and culprit.place.kind in AT_REST else culprit


@dataclass(frozen=True, slots=True)
class StackEvidence:
    """Of one rank: in `blamed` of so many `dumps` its peers wait for it, in so many separate `waits`, which make the
    job's steps `factor` (or `at_least` that) times as long. `since` the first of them; `confidence` 0 to 1. Of dumps
    that were taken for this rule: the rank is `odd` in so many of the `readings` of all processes."""

    rank: int
    peers: tuple[int, ...]
    factor: float
    dumps: int
    blamed: int
    waits: int
    does: str
    waits_in: str
    since: float
    confidence: float
    at_least: bool = False
    readings: int = 0
    odd: int = 0

    def is_slow(self, s: SlowSettings, *, already: bool) -> bool:
        """By these numbers; of one that is SLOW already less is asked for."""
        if self.blamed < s.dump_share * self.dumps:
            return False
        if already:
            return self.factor >= s.clear_factor
        return self.factor >= s.factor and self.dumps >= s.min_dumps and self.waits >= s.min_dump_waits

    def as_dict(self) -> dict[str, object]:
        """As JSON takes it."""
        return {
            "peers": list(self.peers),
            "factor": round(self.factor, 2),
            "dumps": self.dumps,
            "blamed": self.blamed,
            "waits": self.waits,
            "does": self.does,
            "waits_in": self.waits_in,
            "at_least": self.at_least,
            "readings": self.readings,
            "odd": self.odd,
        }


def judge(
    waits: Sequence[DumpedWait], now: float, s: SlowSettings, slow: Collection[int]
) -> Mapping[int, StackEvidence]:
    """The slow ranks. `slow`: those that are SLOW already."""
    counted = [wait for wait in waits if wait.dumps and wait.lasted(now) <= s.longest_dump_wait_s]
    found = {}
    for rank in sorted({rank for wait in counted for rank in wait.blamed}):
        mine = [wait for wait in counted if wait.blamed.get(rank, 0) >= s.dump_share * wait.dumps]
        if len(mine) < 2 or mine[0].end is None:
            continue
        # From the end of a wait on, so that each wait counts with the work before it.
        passed, waited = now - mine[0].end, sum(wait.lasted(now) for wait in mine[1:])
        dumps, blamed = sum(wait.dumps for wait in counted), sum(wait.blamed[rank] for wait in mine)
        evidence = StackEvidence(
            rank=rank,
            peers=tuple(mine[-1].peers),
            factor=passed / max(passed - waited, 1.0),
            dumps=dumps,
            blamed=blamed,
            waits=len(mine),
            does=mine[-1].does,
            waits_in=mine[-1].waits_in,
            since=mine[0].t,
            confidence=blamed / dumps,
        )
        if evidence.is_slow(s, already=rank in slow):
            found[rank] = evidence
    return found
