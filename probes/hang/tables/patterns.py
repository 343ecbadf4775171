"""Table 3, patterns: the verdict about a job, and the ranks that it names. The first row that holds decides.

The rows of the scenes STARTING and IDLE are in `patterns_start.py` and `patterns_idle.py`; they stand behind these.
"""

from muster.probes.hang.facts.moment import JobMoment, Scene
from muster.probes.hang.facts.signs import NODE, Strength
from muster.probes.hang.tables.pattern import (
    SEEMS_STUCK,
    PatternRow,
    all_ranks,
    blamed,
    kind_of_proof,
    nobody,
    proof_clears,
    since_limit,
)
from muster.probes.hang.tables.patterns_idle import PATTERNS_IDLE
from muster.probes.hang.tables.patterns_start import PATTERNS_START
from muster.probes.hang.tracks.rank_track import RankTrack
from muster.probes.hang.verdicts import HangKind, HangVerdict
from muster.probes.waits import WaitKind


def _hanging(m: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """Ranks of the cards that hang."""
    ranks = m.ranks_of(m.hanging)
    return ranks, dict.fromkeys(ranks, "a call of the driver for its card does not return")


def _going_on(m: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """Ranks that go on."""

    def does(track: RankTrack) -> str:
        return "computes on the CPU" if m.is_recent(track.busy_at) else "gives signs of life"

    ranks = m.going_on
    return tuple(t.rank for t in ranks), {t.rank: f"{does(t)}, and the others wait for it" for t in ranks}


def _traced(m: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """Ranks that a debugger holds."""
    return m.traced_ranks, dict.fromkeys(m.traced_ranks, "a debugger holds it (state t)")


def _loops(m: JobMoment) -> bool:
    silent = m.now - m.stacks.since
    return (silent >= m.s.hung_s and m.stacks.one_call is not None) or (
        silent >= m.s.weak_s and m.stacks.looping is not None
    )


def _is_proven_to_loop(m: JobMoment) -> bool:
    found = m.stacks.proven if m.is_proven else None
    return found is not None and found.place.kind is WaitKind.RUNS


def _looped(m: JobMoment) -> bool:
    """It was told, and the rank is still in that call."""
    told = m.job.verdict is HangVerdict.HUNG and m.job.kind is HangKind.LIVELOCK
    return told and m.stacks.stays_in_call(m.job.verdict_at)


def _loops_for_long(m: JobMoment) -> bool:
    return _is_proven_to_loop(m) and m.stacks.loops_for(m.s.busy_s)


def _at_rest(m: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """Ranks that wait for requests or at a prompt."""
    return m.stacks.at_rest, {rank: m.stacks.waits[rank].place.text for rank in m.stacks.at_rest}


def _not_spinning(m: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """Ranks whose cards do not wait."""
    ranks = m.ranks_of(key for key in m.looks if key not in m.cards.spins)
    return ranks, dict.fromkeys(ranks, "the others wait for it")


def _slow(m: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """Ranks of the slow cards."""
    return m.ranks_of(m.slow_cards), {}


def _held(m: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """Ranks that cannot go on."""
    return tuple(sorted(m.held_spinning)), m.held_spinning


def _held_or_all(m: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """Ranks that cannot go on, else all."""
    return _held(m) if m.held_spinning else all_ranks(m)


def _steady(m: JobMoment) -> bool:
    return all(track.stirred_at - track.stirs_since >= m.s.hung_s for track in m.fallen_silent)


def _some_cards_wait(m: JobMoment) -> bool:
    lively = bool(m.cards.works) or m.is_recent(m.signs.last(Strength.STRONG))
    return bool(m.waiting_cards) and lively and len(m.waiting_cards) < len(m.looks)


def _suspect_after(m: JobMoment) -> float:
    """Later where the limit is longer than usual."""
    usual = m.limit.seconds is not None and m.limit.seconds <= m.s.hung_s
    return m.suspect_after if usual else max(m.s.suspect_s, m.s.weak_s / 2)


def _why_waits(m: JobMoment) -> str:
    return f"cards: {(m.spin_surely or m.spins)[0].why}"


def _lively_why(m: JobMoment) -> str:
    if m.is_recent(m.signs.last_of("data moves, and a log grows", (NODE,))):
        return "cards: the fabric moves data, and a log grows"
    return "processes: IO, or the network, in the last minutes"


def _spin_clears(_: JobMoment) -> tuple[str, ...]:
    return "IO of a rank above the strong floor", "power near the active median", "memory or fabric in use"


def _rank_clears(_: JobMoment) -> tuple[str, ...]:
    return "IO, or lines of a log", "the others' CPU time"


PATTERNS: tuple[PatternRow, ...] = (
    # --- whatever the cards show --------------------------------------------------------------------------------------
    PatternRow(
        "driver",
        None,
        words="a call of the cards' driver does not return",
        when=lambda m: m.job.driver_hangs or bool(m.hanging),
        verdict=HangVerdict.DRIVER_HANG,
        scenario="U15",
        rule="driver: a call does not return",
        who=_hanging,
        since=lambda m: m.now,
        clears=lambda _: ("an answer of the driver",),
    ),
    PatternRow(
        "a debugger",
        None,
        words="a debugger holds a process of a rank (state t), and no card works",
        when=lambda m: bool(m.traced_ranks) and not m.cards.works,
        verdict=HangVerdict.WAITING,
        scenario="P43",
        rule="processes: a debugger holds one",
        who=_traced,
        sure=0.9,
        clears=lambda _: ("the debugger lets it go on",),
    ),
    PatternRow(
        "proof by stacks: a loop",
        None,
        words="the next row has held for busy_s, by dumps from that time",
        when=_loops_for_long,
        verdict=HangVerdict.HUNG,
        scenario="S32",
        kind=HangKind.LIVELOCK,
        rule="stacks: the others wait for a rank that has looped in one call for busy_s, and makes nothing",
        who=blamed,
        since=lambda m: m.stacks.since,
        limit=("a call that makes nothing",),
        sure=0.7,
        clears=proof_clears,
    ),
    PatternRow(
        "a loop, or work in place",
        None,
        words="silent for proof_s, and three dumps of stacks show all but a few ranks in a collective, and these few, "
        "for suspect_soon_s, in one call, on one CPU, which neither waits nor touches memory anew; or it was told, and "
        "they are still in that call",
        when=lambda m: _is_proven_to_loop(m) or _looped(m),
        verdict=HangVerdict.HUNG,
        scenario="S7",
        kind=HangKind.LIVELOCK,
        rule="stacks: the others wait for a rank that loops in one call and makes nothing, or computes in place",
        who=blamed,
        since=lambda m: m.stacks.since,
        limit=("proof",),
        sure=0.45,
        clears=proof_clears,
    ),
    PatternRow(
        "proof by stacks",
        None,
        words="silent for proof_s, and three dumps of stacks show all but a few ranks in a collective, and these few "
        "stopped, blocked, gone, in a lock or asleep, where nothing changes",
        when=lambda m: m.is_proven,
        verdict=HangVerdict.HUNG,
        scenario="S1",
        kind=kind_of_proof,
        rule="stacks: the others wait for a rank that does not go on",
        who=blamed,
        since=lambda m: m.stacks.since,
        limit=("proof",),
        sure=0.95,
        clears=proof_clears,
    ),
    PatternRow(
        "waits for requests",
        None,
        words="silent for suspect_s, or nothing but traces of CPU time is seen of a job without cards whose logs lost "
        "their rhythm; and stacks show ranks that wait for requests or at a prompt, and the others, if there are any, "
        "wait for them",
        when=lambda m: bool(m.stacks.at_rest) and (m.silent >= m.suspect_after or m.only_stirs),
        verdict=HangVerdict.WAITING,
        scenario="S10",
        rule="stacks: it waits for requests, or at a prompt",
        who=_at_rest,
        sure=0.8,
        clears=lambda _: ("another place of a rank",),
    ),
    PatternRow(
        "a loop by stacks",
        None,
        words="silent for weak_s (hung_s if they stay in one call, on one CPU, and never wait), and the dumps of "
        "hung_s (proof_s) show all but a few ranks in a collective, and these few run through the same lines",
        when=_loops,
        verdict=HangVerdict.HUNG,
        scenario="S30",
        kind=HangKind.LIVELOCK,
        rule="stacks: the others wait for a rank that runs through the same lines: work, or a loop",
        who=blamed,
        since=lambda m: m.stacks.since,
        limit=("a call that does not return", "a loop in one place"),
        sure=0.4,
        clears=proof_clears,
    ),
    PatternRow(
        "rank loops, no cards",
        None,
        words="the job has no card; some ranks were steady for hung_s and fell silent, the others have only computed "
        "for busy_s",
        when=lambda m: m.waited_for and _steady(m) and m.now - m.no_io_since >= m.s.busy_s,
        verdict=HangVerdict.HUNG,
        scenario="P20",
        kind=HangKind.LIVELOCK,
        rule="per rank: some have fallen silent, another is busy on the CPU for too long, no IO",
        who=_going_on,
        since=lambda m: m.no_io_since,
        limit=("a busy rank",),
        sure=0.4,
        clears=_rank_clears,
    ),
    PatternRow(
        "rank seems stuck, no cards",
        None,
        words="as the next row, and two dumps of stacks show all but a few ranks in a collective, and these few in one "
        "place, where they do nothing",
        when=lambda m: m.waited_for and m.stacks.suspected is not None,
        verdict=HangVerdict.SUSPECT,
        scenario="S31",
        kind=kind_of_proof,
        rule=SEEMS_STUCK,
        who=blamed,
        since=lambda m: m.fallen_silent_at,
        limit=("a busy rank",),
        sure=0.4,
        clears=proof_clears,
    ),
    PatternRow(
        "rank is waited for, no cards",
        None,
        words="the job has no card; some ranks fell silent (suspect_s; suspect_soon_s where that is unusual: after "
        "established_s of signs, or once the logs lost their rhythm (cadence_factor)), others go on",
        when=lambda m: m.waited_for,
        verdict=HangVerdict.WAITING,
        scenario="P20",
        rule="per rank: some have fallen silent while another does not",
        who=_going_on,
        since=lambda m: m.fallen_silent_at,
        limit=("a busy rank",),
        clears=_rank_clears,
    ),
    PatternRow(
        "only traces, no cards",
        None,
        words="the job has no card, its logs lost their rhythm (cadence_factor), and for suspect_soon_s nothing but "
        "traces of CPU time was seen, which ranks that wait in a collective take, too, or traffic of the node that may "
        "be others'",
        when=lambda m: m.only_stirs and m.silent < m.suspect_after,
        verdict=HangVerdict.SUSPECT,
        scenario="S22",
        kind=HangKind.DEADLOCK,
        rule="logs: they lost their rhythm, and nothing but traces of CPU time, or traffic of the node that may be "
        "others', is seen",
        since=lambda m: m.quiet_since,
        sure=0.5,
        clears=lambda m: ("lines of a log", "IO of a rank above its floor", f"{m.s.cpu_idle_s:g} s of CPU a minute"),
    ),
    # --- lively: a card works, or the silence is short ----------------------------------------------------------------
    PatternRow(
        "cards wait for a rank at work",
        Scene.LIVELY,
        words="some cards have been waiting for suspect_s, and other cards work or a rank does IO",
        when=_some_cards_wait,
        verdict=HangVerdict.WAITING,
        scenario="H11",
        rule="per rank: some cards wait while another rank works",
        who=_not_spinning,
        since=lambda m: min(m.looks[key].since for key in m.waiting_cards),
        clears=lambda _: ("the waiting cards compute again",),
    ),
    PatternRow(
        "slow",
        Scene.LIVELY,
        words="at least half of the cards have been slow for window_s",
        when=lambda m: m.job.slow_since is not None and m.now - m.job.slow_since >= m.s.window_s,
        verdict=HangVerdict.SLOW,
        scenario="H14",
        rule=lambda m: f"rate: {m.looks[m.slow_cards[0]].why}" if m.slow_cards else "rate",
        who=_slow,
        since=lambda m: m.job.slow_since if m.job.slow_since is not None else m.now,
        sure=0.7,
        clears=lambda _: ("power and fabric at their usual rate",),
    ),
    PatternRow(
        "not begun",
        Scene.LIVELY,
        words="no sign of life yet in this attempt, and no card works",
        when=lambda m: m.life_at <= m.job.begun_at and not m.cards.works,
        verdict=None,
        scenario="H13",
    ),
    PatternRow(
        "cards work",
        Scene.LIVELY,
        words="a card works",
        when=lambda m: bool(m.cards.works),
        verdict=HangVerdict.ALIVE,
        scenario="H1",
        rule=lambda m: f"cards: {m.looks[m.cards.works[0]].why}",
        sure=0.95,
        on_cards=True,
    ),
    PatternRow(
        "processes stir, no cards",
        Scene.LIVELY,
        words="the job has no card",
        when=lambda m: not m.looks,
        verdict=HangVerdict.ALIVE,
        scenario="P20",
        rule="processes: signs of life, and the job has no card",
        sure=0.7,
    ),
    PatternRow(
        "processes work",
        Scene.LIVELY,
        words="otherwise",
        when=lambda _: True,
        verdict=HangVerdict.ALIVE,
        scenario="H12",
        rule=_lively_why,
        sure=0.95,
    ),
    # --- spinning: all cards are at full utilization ------------------------------------------------------------------
    PatternRow(
        "flat as usual",
        Scene.SPINNING,
        words="nothing says that the cards wait, and nothing changed steadily (hung_s) before the silence",
        when=lambda m: not m.confirmed and not m.spin_surely and not m.fell_silent(),
        verdict=HangVerdict.UNKNOWN,
        scenario="P23",
        rule="cards: a flat utilization as usual here, and nothing distinguishes work from waiting",
        who=nobody,
        limit=("flat utilization",),
        sure=0.2,
        clears=lambda _: ("power, memory utilization or fabric bytes of a card", "a utilization that changes"),
        on_cards=True,
    ),
    PatternRow(
        "cards wait from the start",
        Scene.SPINNING,
        words="no card was active in this attempt, and the silence is shorter than the limit",
        when=lambda m: not m.job.active and m.now - m.limit.since < (m.limit.seconds or 0.0),
        verdict=HangVerdict.WAITING,
        scenario="P10",
        rule="start: cards wait, none was active yet",
        who=_held_or_all,
        since=since_limit,
        clears=_spin_clears,
    ),
    PatternRow(
        "spin: stopped",
        Scene.SPINNING,
        words="a process is stopped by a signal",
        when=lambda m: m.stopped_spinning,
        verdict=HangVerdict.HUNG,
        scenario="P24",
        kind=HangKind.STOPPED,
        rule=_why_waits,
        who=_held,
        since=since_limit,
        ladder=_suspect_after,
        clears=_spin_clears,
        on_cards=True,
    ),
    PatternRow(
        "spin: blocked",
        Scene.SPINNING,
        words="a process cannot leave the kernel",
        when=lambda m: bool(m.held_spinning),
        verdict=HangVerdict.HUNG,
        scenario="P9",
        kind=HangKind.IO_BLOCKED,
        rule=_why_waits,
        who=_held,
        since=since_limit,
        ladder=_suspect_after,
        clears=_spin_clears,
        on_cards=True,
    ),
    PatternRow(
        "spin",
        Scene.SPINNING,
        words="otherwise",
        when=lambda _: True,
        verdict=HangVerdict.HUNG,
        scenario="U1",
        kind=HangKind.SPIN,
        rule=_why_waits,
        since=since_limit,
        ladder=_suspect_after,
        clears=_spin_clears,
        on_cards=True,
    ),
    # --- starting, idle -----------------------------------------------------------------------------------------------
    *PATTERNS_START,
    *PATTERNS_IDLE,
)
