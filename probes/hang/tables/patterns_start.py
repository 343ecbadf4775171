"""Table 3, continued: some cards idle or are not seen, none spins, and none was active in this attempt."""

from functools import partial

from muster.probes.hang.facts.moment import JobMoment, Scene
from muster.probes.hang.tables.pattern import (
    BUSY,
    STOPPED,
    UNSEEN,
    PatternRow,
    all_ranks,
    computing,
    odd_ranks,
    sleep_clears,
)
from muster.probes.hang.verdicts import HangKind, HangVerdict

RESTARTED = "start: cards were never active in this attempt, in another they were; processes sleep"


def _stuck_since(m: JobMoment) -> float:
    return max(m.since, min(h.since for held in m.host.held.values() for h in held))


def _silent_at_start(m: JobMoment) -> float:
    return m.now - max(m.since, m.host.busy_at)


def _restarted_and_asleep(m: JobMoment) -> bool:
    asleep = m.now - max(m.job.begun_at, m.host.busy_at, m.host.weak_at)
    return m.job.active_before and not m.unseen and asleep >= m.s.startup_s


_starting = partial(PatternRow, scene=Scene.STARTING, who=odd_ranks, clears=sleep_clears, asleep=True)

PATTERNS_START: tuple[PatternRow, ...] = (
    _starting(
        "start: stopped",
        words="a process is stopped by a signal",
        when=lambda m: m.host.stopped_at is not None,
        verdict=HangVerdict.HUNG,
        scenario="P21",
        kind=HangKind.STOPPED,
        rule=f"{STOPPED}, from the start",
        since=_stuck_since,
        ladder=lambda m: m.s.suspect_s,
        limit=("a start",),
        less=0.3,
    ),
    _starting(
        "start: blocked",
        words="a process cannot leave the kernel",
        when=lambda m: bool(m.host.held),
        verdict=HangVerdict.HUNG,
        scenario="P25",
        kind=HangKind.IO_BLOCKED,
        rule="processes: one cannot leave the kernel, from the start",
        since=_stuck_since,
        ladder=lambda m: m.s.suspect_s,
        limit=("a start",),
        less=0.3,
    ),
    _starting(
        "start: some IO",
        words="the last weak evidence is some IO, within recent_periods",
        when=lambda m: m.is_recent(m.host.weak_at) and m.host.weak == "some IO",
        verdict=HangVerdict.ALIVE,
        scenario="P26",
        rule="processes: some IO, cards not yet active",
        limit=("never active",),
        sure=0.7,
    ),
    _starting(
        "start: busy, not seen",
        words="a rank computes on the CPU, and no card reports utilization",
        when=lambda m: m.busy and m.unseen and bool(m.looks) and m.silent >= m.s.suspect_s,
        verdict=HangVerdict.UNKNOWN,
        scenario="P27",
        rule=BUSY,
        who=computing,
        limit=("a loop or work",),
        sure=0.3,
    ),
    _starting(
        "start: busy",
        words="a rank computes on the CPU",
        when=lambda m: m.busy and m.silent >= m.s.suspect_s,
        verdict=HangVerdict.BUSY_HOST,
        scenario="H10",
        rule=BUSY,
        who=computing,
        limit=("a loop or work", "a busy host"),
        sure=0.8,
    ),
    _starting(
        "start: just begun",
        words="silent, and not computing, for less than suspect_s",
        when=lambda m: _silent_at_start(m) < m.s.suspect_s,
        verdict=None,
        scenario="P37",
    ),
    _starting(
        "start: NPUs idle after a restart",
        words="cards were active in an earlier attempt, ranks have been asleep for startup_s, NPUs' fabrics are silent",
        when=lambda m: _restarted_and_asleep(m) and m.npus_fell_silent,
        verdict=HangVerdict.HUNG,
        scenario="P28",
        kind=HangKind.NOTIFY_WAIT,
        rule=RESTARTED,
        limit=("a start",),
        less=0.3,
    ),
    _starting(
        "start: idle after a restart",
        words="cards were active in an earlier attempt, and ranks have been asleep for startup_s",
        when=_restarted_and_asleep,
        verdict=HangVerdict.HUNG,
        scenario="P29",
        kind=HangKind.DEADLOCK,
        rule=RESTARTED,
        limit=("a start",),
        less=0.3,
    ),
    _starting(
        "start: not seen",
        words="no card reports utilization",
        when=lambda m: m.unseen and bool(m.looks),
        verdict=HangVerdict.UNKNOWN,
        scenario="P30",
        rule=UNSEEN,
        limit=("never active",),
        sure=0.3,
    ),
    _starting(
        "idle",
        words="otherwise",
        when=lambda _: True,
        verdict=HangVerdict.IDLE,
        scenario="H13",
        rule="start: cards were never active, processes sleep",
        who=all_ranks,
        limit=("never active",),
        sure=0.8,
    ),
)
