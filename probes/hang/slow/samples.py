"""The slow rank of a job without cards: what its processes are seen doing with each record, which costs nothing more,
says when a series of dumps is worth its price; the dumps say who waits for whom.

A record has of each rank the state of its first thread and the function of the kernel in which it waits. Ranks that
wait in a collective are all alike, in a futex mostly, and a rank for which they wait is not. That is a sign and no
proof: ranks wait in a futex for their own threads, too.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import msgspec

from muster.probes.hang.dump_schedule import DUMPS
from muster.probes.hang.hang_records import Record
from muster.probes.hang.slow.dumps import StackEvidence, grouped, late
from muster.probes.hang.slow.looks import few
from muster.probes.hang.slow.slow_settings import SlowSettings
from muster.probes.hang.tracks.card_track import NEVER
from muster.probes.hang.tracks.state import JobState
from muster.probes.hang.verdicts import HangVerdict
from muster.probes.kernel.dataclass import dataclass
from muster.probes.waits import RankStack, WaitKind, WaitPlace, place

#: Records that a sign needs, at least, and a mark that nothing but dumps would end.
_SIGN_LOOKS, _ENOUGH_LOOKS = 8, 16
#: Series in a row, while there is a sign, before their distance grows.
_EAGER = 4
#: Standard deviations, as of readings of cards.
_CHANCE = 2.0
#: Least share, by chance, of the dumps with waiting peers in which they wait for this rank: it is no coin.
_MOSTLY = 0.5
_FUTEX, _RUNS = "futex", "R"
#: Verdicts under which the hang rule has many dumps of its own, or nothing runs.
_NOT_NOW = (HangVerdict.SUSPECT, HangVerdict.HUNG, HangVerdict.DRIVER_HANG, HangVerdict.IDLE)


class HostLook(msgspec.Struct, array_like=True):
    """The ranks at one record, `at` in the detector's clock: the few that are `odd` while all others do the same."""

    at: float
    odd: list[int]


class SampledDump(msgspec.Struct):
    """A dump, for this rule or the hang rule. `at` in the detector's clock, `t` in seconds since the epoch. `blamed`:
    for whom the `peers` wait; `left`: since the dump before they left their wait, or wrote a log."""

    at: float
    t: float
    blamed: list[int]
    peers: list[int] = []
    does: str = ""
    waits_in: str = ""
    left: bool = False
    framed: bool = True


class Sampled(msgspec.Struct):
    """What is kept of a job without cards."""

    looks: list[HostLook] = []
    dumps: list[SampledDump] = []
    #: When the next series may begin, how far the one after it is, and how many were taken for the present sign.
    next_at: float = NEVER
    distance_s: float = 0.0
    eager: int = 0
    #: Of the last dump: how often each rank's first thread had waited; when its log had grown last.
    switches: dict[int, int] = {}
    grown_at: dict[int, float] = {}


def take(kept: Sampled, record: Record, job: JobState, s: SlowSettings) -> bool:
    """Takes what a record has, after the job has. Whether a series of dumps is to be taken now."""
    if any(track.used for track in job.cards.values()):  # its cards say more
        kept.looks, kept.dumps, kept.next_at = [], [], NEVER
        return False
    if job.now - job.begun_at >= s.sample_after_s and (look := _look(job)) is not None:
        kept.looks.append(look)
    while kept.looks and kept.looks[0].at <= job.now - s.sample_window_s:
        del kept.looks[0]
    for stacks in grouped((*record.stacks, *record.samples)):
        kept.dumps.append(_sample(kept, stacks, record, job))
    while kept.dumps and kept.dumps[0].at < job.now - s.dump_window_s:
        del kept.dumps[0]
    return _is_due(kept, job, s)


def _look(job: JobState) -> HostLook | None:
    """None where too little is seen."""
    doing: dict[int, str] = {}
    known = [track for rank, track in job.ranks.items() if rank >= 0 and track.is_known]
    for track in known:
        proc = track.procs.get(track.leader)
        if proc is None or proc.at != job.now or not proc.state:
            continue
        if proc.state == _RUNS:
            doing[track.rank] = _RUNS
        elif proc.wchan or proc.state != "S":
            doing[track.rank] = _FUTEX if proc.wchan.startswith(_FUTEX) else proc.state + proc.wchan
    if len(known) < 2 or len(doing) < len(known):
        return None
    for usual in (_FUTEX, _RUNS):
        odd = sorted(rank for rank, what in doing.items() if what != usual)
        if len(odd) <= few(len(doing)) and len(odd) < len(doing):
            return HostLook(job.now, odd)
    return HostLook(job.now, [])


def _sample(kept: Sampled, stacks: Sequence[RankStack], record: Record, job: JobState) -> SampledDump:
    places = {stack.rank: _place(stack) for stack in stacks}
    culprit = late(places)
    before = kept.switches
    kept.switches = before | {stack.rank: stack.switches for stack in stacks if stack.switches is not None}
    wrote, kept.grown_at = kept.grown_at, {rank: track.grown_at for rank, track in job.ranks.items()}
    found = SampledDump(job.now - max(0.0, record.t - stacks[0].t), stacks[0].t, [])
    found.framed = any(stack.frames for stack in stacks)
    if culprit is not None:
        found.blamed, found.peers, found.does = list(culprit.ranks), list(culprit.peers), culprit.does
        found.waits_in = culprit.waits.call or (culprit.waits.line if found.framed else "")
        moved = [kept.switches.get(rank, 0) > before[rank] for rank in culprit.peers if rank in before]
        logged = any(kept.grown_at.get(rank, NEVER) > wrote.get(rank, math.inf) for rank in culprit.peers)
        found.left = logged or (bool(moved) and all(moved))
    return found


def _place(stack: RankStack) -> WaitPlace:
    """PyTorch computes in the frames in which it waits (`_engine_run_backward`), but without a card it does not run
    while it waits."""
    found = place(stack)
    if stack.state == _RUNS and found.kind is WaitKind.COLLECTIVE:
        frame = next((frame for frame in stack.frames if frame.partition(" (")[0] == found.call), "")
        if "(torch/" in frame:
            return WaitPlace(WaitKind.RUNS, "", found.line)
    return found


# --- when ------------------------------------------------------------------------------------------------------------


def _is_due(kept: Sampled, job: JobState, s: SlowSettings) -> bool:
    """Whether a series begins now; the next one is moved on then."""
    ranks = sum(track.is_known and rank >= 0 for rank, track in job.ranks.items())
    if not s.sample_s or ranks < 2 or job.verdict in _NOT_NOW:
        return False
    if kept.next_at == NEVER:
        kept.next_at, kept.distance_s = job.begun_at + s.sample_s, s.sample_s
    if kept.dumps and job.now - kept.dumps[-1].at < s.sample_odd_s / 2:
        return False  # the hang rule takes some, too, while it says WAITING
    is_signed = bool(_signs(kept.looks, s, s.factor)) or _is_blamed(kept.dumps[-DUMPS:])
    if is_signed and kept.eager < _EAGER and job.now >= kept.next_at - kept.distance_s + s.sample_odd_s:
        kept.eager += 1
        kept.next_at, kept.distance_s = job.now + s.sample_s, s.sample_s
        return True
    if job.now < kept.next_at:
        return False
    kept.eager = kept.eager if is_signed else 0
    kept.distance_s = min(2 * kept.distance_s, max(s.sample_s, s.dump_window_s / 2))
    kept.next_at = job.now + kept.distance_s
    return True


def _is_blamed(dumps: Sequence[SampledDump]) -> bool:
    """One rank in most of them."""
    ranks = [rank for dump in dumps for rank in dump.blamed]
    return any(ranks.count(rank) * 2 > len(dumps) for rank in set(ranks))


# --- judgement --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sign:
    """Of a rank that is odd in so many of the looks."""

    odd: int
    looks: int

    @property
    def factor(self) -> float:
        """How many times as long as its peers it is at work; at least that, if it was odd each time."""
        return (self.looks + 1) / (self.looks - self.odd + 1)


def _signs(looks: Sequence[HostLook], s: SlowSettings, factor: float) -> dict[int, _Sign]:
    """Of the ranks that are odd by this factor, by themselves."""
    if len(looks) < _SIGN_LOOKS:
        return {}
    odd = [look for look in looks if look.odd]
    signs = {rank: _Sign(sum(rank in look.odd for look in odd), len(looks)) for look in odd for rank in look.odd}
    return {
        rank: sign for rank, sign in signs.items() if sign.odd >= s.alone_share * len(odd) and sign.factor >= factor
    }


def judge(kept: Sampled, s: SlowSettings, slow: Collection[int]) -> Mapping[int, StackEvidence]:
    """The slow ranks. `slow`: those that are SLOW already."""
    counted = _without_long_waits(kept.dumps, s.longest_wait_s)
    found = {}
    for rank in sorted({rank for dump in counted for rank in dump.blamed}):
        already = rank in slow
        sign = _signs(kept.looks, s, s.clear_factor if already else s.factor).get(rank)
        if kept.looks and sign is None and (not already or len(kept.looks) >= _ENOUGH_LOOKS):
            continue  # its peers do not wait, or not for it
        if sign is not None and not already and sign.looks < _ENOUGH_LOOKS:
            continue
        dumps = counted[-s.min_samples :] if already else counted
        evidence = _evidence(rank, dumps, sign)
        if evidence is not None and _is_slow(evidence, dumps, s, already=already):
            found[rank] = evidence
    return found


def _evidence(rank: int, dumps: Sequence[SampledDump], sign: _Sign | None) -> StackEvidence | None:
    mine = [dump for dump in dumps if rank in dump.blamed]
    if not mine:
        return None
    last, by_dumps = mine[-1], _Sign(len(mine), len(dumps))
    best = sign or by_dumps
    return StackEvidence(
        rank=rank,
        peers=tuple(last.peers),
        factor=best.factor,
        dumps=len(dumps),
        blamed=len(mine),
        waits=sum(
            rank in dump.blamed and (dump.left or not number or rank not in dumps[number - 1].blamed)
            for number, dump in enumerate(dumps)
        ),
        does=last.does,
        waits_in=last.waits_in,
        since=mine[0].t,
        # Without frames it is not seen that they wait for each other.
        confidence=len(mine) / sum(bool(dump.blamed) for dump in dumps) * (1.0 if last.framed else 0.5),
        at_least=best.odd == best.looks,
        readings=sign.looks if sign else 0,
        odd=sign.odd if sign else 0,
    )


def _is_slow(found: StackEvidence, dumps: Sequence[SampledDump], s: SlowSettings, *, already: bool) -> bool:
    share, blaming = found.blamed / found.dumps, sum(bool(dump.blamed) for dump in dumps)
    alone = found.blamed / blaming
    if already:
        return alone >= s.alone_share / 2 and (found.readings > 0 or found.factor >= s.clear_factor)
    return (
        found.dumps >= s.min_samples
        and found.waits >= s.min_waits
        and alone >= s.alone_share
        and _surely(alone, blaming) >= _MOSTLY
        and _surely(share, found.dumps) >= 1 - 1 / s.factor
    )


def _surely(share: float, count: int) -> float:
    """At least, with what may be chance taken off."""
    return share - _CHANCE * math.sqrt(share * (1 - share) / count)


def _without_long_waits(dumps: Sequence[SampledDump], longest_s: float) -> list[SampledDump]:
    """Of a wait that was not left for longer than that, none: it is an evaluation or a checkpoint."""
    waits: list[list[SampledDump]] = []
    for dump in dumps:
        if waits and dump.blamed and not dump.left and waits[-1][-1].blamed == dump.blamed:
            waits[-1].append(dump)
        else:
            waits.append([dump])
    return [dump for wait in waits if wait[-1].at - wait[0].at <= longest_s for dump in wait]
