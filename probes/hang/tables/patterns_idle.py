"""Table 3, continued: some cards idle or are not seen, and the others, if there are any, wait. Processes decide."""

from collections.abc import Callable
from functools import partial

from muster.probes.hang.facts.moment import JobMoment, Scene
from muster.probes.hang.tables.pattern import (
    BUSY,
    SEEMS_STUCK,
    STOPPED,
    UNSEEN,
    PatternRow,
    blamed,
    computing,
    kind_of_proof,
    odd_ranks,
    proof_clears,
    sleep_clears,
    with_cards,
)
from muster.probes.hang.verdicts import HangKind, HangVerdict
from muster.probes.kernel.dataclass import dataclass

ASLEEP = with_cards("processes: no IO and no CPU time", ", cards idle")
BLOCKED = with_cards("processes: one cannot leave the kernel, no IO", ", cards idle")
NPU = "npu: utilization, fabric and CPU time all near 0"
WAITED_FOR = "per rank: cards wait for a rank that does nothing"


def _only_weak(m: JobMoment) -> str:
    return with_cards(f"processes: nothing but weak evidence of life ({m.host.weak})", ", cards idle")(m)


# --- how long ---------------------------------------------------------------------------------------------------------


def _limit(m: JobMoment) -> float:
    return m.limit.seconds or 0.0


def _weak(m: JobMoment) -> float:
    return max(_limit(m), m.s.weak_s)


def _slept_too_long(m: JobMoment) -> bool:
    """Asleep for the limit. Weak evidence that ended soon after all else says nothing of what goes on since."""
    asleep, done = m.now - m.asleep_at, m.now - m.done_at
    weak = done >= _weak(m) and asleep >= _weak(m) - m.s.suspect_s
    return m.may_hang and (asleep >= _limit(m) or weak)


def _weak_too_long(m: JobMoment) -> bool:
    return m.may_hang and m.now - m.done_at >= _weak(m)


def _stopped_too_long(m: JobMoment) -> bool:
    stopped = m.host.stopped_at
    if not m.may_hang or stopped is None:
        return False
    return m.now - max(m.since, stopped) >= min(_limit(m), m.s.hung_s)


def _without_lines(m: JobMoment) -> float:
    """Since when a rank that computes has not written a line: who writes lines is at work."""
    return max(m.since, m.host.log_at)


def _loops(m: JobMoment) -> bool:
    too_long = max(m.s.busy_s, _limit(m))
    return m.may_hang and not m.blind and m.now - _without_lines(m) >= too_long


def _sleeps(m: JobMoment) -> bool:
    """Asleep for as long as a sleep is suspected after."""
    return m.now - m.asleep_at >= min(m.suspect_after, m.s.npu_suspect_ratio * _limit(m))


def _is_suspect(m: JobMoment) -> bool:
    weak = m.suspect_after if m.idles_at_once else max(m.s.suspect_s, m.s.weak_s / 2)
    return _sleeps(m) or m.now - m.done_at >= weak


def _is_not_seen(m: JobMoment) -> bool:
    # Cards that drew the power of work, and all fell to that of waiting at once, are seen well enough.
    return m.unseen and bool(m.looks) and not (m.dim and m.idles_at_once)


def _suspect_since(m: JobMoment) -> float:
    return m.asleep_at if _sleeps(m) else m.done_at


def _is_busy(m: JobMoment) -> bool:
    return m.busy and m.silent >= m.s.suspect_s


def _is_waited_for(m: JobMoment) -> bool:
    """It computes since the cards wait: what is counted over a period may be from before."""
    return m.busy and bool(m.cards.spins) and m.host.busy_at - m.since >= min(m.suspect_after, m.s.period_s)


# --- who --------------------------------------------------------------------------------------------------------------


def _busy_for_others(m: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """Ranks that compute and whose cards do not wait."""
    ranks = tuple(rank for rank in m.computing if rank not in m.spinning_ranks) or m.odd_ranks
    return ranks, dict.fromkeys(ranks, "computes on the CPU, and the others wait for it")


def _few_that_loop(m: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """The minority that computes, else ranks that stand out, else all."""
    if not m.cards.spins and 0 < 2 * len(m.computing) < len(m.all_ranks):
        return m.computing, dict.fromkeys(m.computing, "computes on the CPU")
    return odd_ranks(m)


# --- the rows ---------------------------------------------------------------------------------------------------------


_idle = partial(PatternRow, scene=Scene.IDLE, who=odd_ranks, clears=sleep_clears, asleep=True)


@dataclass(frozen=True, slots=True)
class _Sleepers:
    """Of ranks that sleep: how, in words and as a condition; the sentence about it; scenarios of SUSPECT and HUNG."""

    name: str
    words: str
    when: Callable[[JobMoment], bool]
    kind: HangKind
    rule: str | Callable[[JobMoment], str]
    suspect: str
    hung: str


#: In this order, in both places below.
_SLEEPERS: tuple[_Sleepers, ...] = (
    _Sleepers(
        "stopped",
        "a process is stopped by a signal",
        lambda m: m.host.stopped_at is not None,
        *(HangKind.STOPPED, STOPPED, "P45", "P31"),
    ),
    _Sleepers(
        "blocked",
        "a process cannot leave the kernel",
        lambda m: bool(m.host.blocked),
        *(HangKind.IO_BLOCKED, BLOCKED, "P46", "U8"),
    ),
    _Sleepers(
        "peers spin",
        "the cards of other ranks wait",
        lambda m: bool(m.cards.spins),
        *(HangKind.SPIN, WAITED_FOR, "U10", "U10"),
    ),
    _Sleepers(
        "NPUs wait",
        "the limit is that of NPUs that wait (table 2)",
        lambda m: m.limit.set_by == "NPUs wait" and m.npus_fell_silent,
        *(HangKind.NOTIFY_WAIT, NPU, "U11", "U11"),
    ),
    _Sleepers(
        "NPUs idle",
        "the fabrics of NPUs that idle fell silent",
        lambda m: m.npus_fell_silent,
        *(HangKind.NOTIFY_WAIT, ASLEEP, "P32", "P32"),
    ),
    _Sleepers(
        "deadlock",
        "nothing else stands out",
        lambda _: True,
        *(HangKind.DEADLOCK, ASLEEP, "U6", "U6"),
    ),
)


def _asleep_rows() -> tuple[PatternRow, ...]:
    return tuple(
        _idle(
            f"asleep: {how.name}",
            words=f"asleep for the limit, and {how.words}",
            when=_both(_slept_too_long, how.when),
            verdict=HangVerdict.HUNG,
            scenario=how.hung,
            kind=how.kind,
            rule=how.rule,
            since=lambda m: m.asleep_at,
        )
        for how in _SLEEPERS
    )


def _suspect_rows() -> tuple[PatternRow, ...]:
    return tuple(
        _idle(
            f"suspect: {how.name}",
            words=f"asleep for suspect_s (suspect_soon_s where that is unusual) or npu_suspect_ratio of the limit, or "
            f"only weak evidence for half of weak_s (as soon where all cards began to idle at once); "
            f"{how.words}",
            when=_both(_is_suspect, how.when),
            verdict=HangVerdict.SUSPECT,
            scenario=how.suspect,
            kind=how.kind,
            rule=how.rule,
            since=_suspect_since,
        )
        for how in _SLEEPERS
    )


def _both(first: Callable[[JobMoment], bool], second: Callable[[JobMoment], bool]) -> Callable[[JobMoment], bool]:
    return lambda m: first(m) and second(m)


PATTERNS_IDLE: tuple[PatternRow, ...] = (
    _idle(
        "stopped",
        words="a process has been stopped by a signal for the limit, or for hung_s if that is shorter",
        when=_stopped_too_long,
        verdict=HangVerdict.HUNG,
        scenario="P38",
        kind=HangKind.STOPPED,
        rule=STOPPED,
    ),
    _idle(
        "peers may compute",
        words="nothing says that the cards at full utilization wait; none was active in this attempt, or nothing "
        "changed steadily (hung_s) before the silence",
        when=lambda m: m.peers_are_unsure and (not m.job.active or not m.fell_silent()),
        verdict=HangVerdict.UNKNOWN,
        scenario="P16",
        rule="cards: a flat utilization as usual here, and nothing distinguishes work from waiting",
        limit=("the others may compute",),
        sure=0.2,
        on_cards=True,
    ),
    *_asleep_rows(),
    _idle(
        "weak evidence: blocked",
        words="only weak evidence for weak_s, and a process cannot leave the kernel",
        when=lambda m: _weak_too_long(m) and bool(m.host.blocked),
        verdict=HangVerdict.HUNG,
        scenario="P33",
        kind=HangKind.IO_BLOCKED,
        rule=_only_weak,
        since=lambda m: m.done_at,
        limit=("weak evidence",),
        less=0.15,
    ),
    _idle(
        "weak evidence",
        words="only weak evidence for weak_s",
        when=_weak_too_long,
        verdict=HangVerdict.HUNG,
        scenario="U13",
        kind=HangKind.LIVELOCK,
        rule=_only_weak,
        since=lambda m: m.done_at,
        limit=("weak evidence",),
        less=0.15,
    ),
    _idle(
        "loop",
        words="a rank has computed on the CPU for busy_s without a line of log, and a card reports something",
        when=_loops,
        verdict=HangVerdict.HUNG,
        scenario="U14",
        kind=HangKind.LIVELOCK,
        rule=with_cards("processes: busy on the CPU for too long, no lines of a log", ", cards idle"),
        who=_few_that_loop,
        since=_without_lines,
        limit=("a busy host, some IO", "a busy host, no log", "a busy host"),
        less=0.25,
        asleep=False,
    ),
    _idle(
        "seems stuck, waited for",
        words="as the next row, and two dumps of stacks show all but a few ranks in a collective, and these few in one "
        "place, where they do nothing",
        when=lambda m: _is_waited_for(m) and m.stacks.suspected is not None,
        verdict=HangVerdict.SUSPECT,
        scenario="S24",
        kind=kind_of_proof,
        rule=SEEMS_STUCK,
        who=blamed,
        limit=("a busy host",),
        sure=0.4,
        clears=proof_clears,
        asleep=False,
    ),
    _idle(
        "busy, waited for",
        words="a rank has computed on the CPU for period_s of the silence, and cards of other ranks wait",
        when=_is_waited_for,
        verdict=HangVerdict.WAITING,
        scenario="P39",
        rule="per rank: cards wait for a rank that computes on the CPU",
        who=_busy_for_others,
        limit=("a busy host",),
        sure=0.8,
    ),
    _idle(
        "busy, not seen",
        words="a rank computes on the CPU, and no card reports anything",
        when=lambda m: _is_busy(m) and m.blind and bool(m.looks),
        verdict=HangVerdict.UNKNOWN,
        scenario="P34",
        rule=BUSY,
        who=computing,
        limit=("a loop or work",),
        sure=0.3,
    ),
    _idle(
        "busy",
        words="a rank computes on the CPU",
        when=_is_busy,
        verdict=HangVerdict.BUSY_HOST,
        scenario="H8",
        rule=BUSY,
        who=computing,
        limit=("a loop or work", "a busy host"),
        sure=0.8,
    ),
    _idle(
        "some cards wait from the start",
        words="no card was active in this attempt, silent for suspect_s",
        when=lambda m: not m.job.active and m.silent >= m.s.suspect_s,
        verdict=HangVerdict.WAITING,
        scenario="P35",
        rule="start: cards wait, none was active yet",
    ),
    _idle(
        "not seen",
        words="as the rows for SUSPECT below, and no card reports utilization, nor did the power of all fall at once "
        "after steady work",
        when=lambda m: _is_suspect(m) and _is_not_seen(m),
        verdict=HangVerdict.UNKNOWN,
        scenario="P47",
        rule=UNSEEN,
        since=_suspect_since,
    ),
    *_suspect_rows(),
)
