"""A scenario for each row of the rule's tables (`probes/hang/tables/`) that no other scenario shows."""

from dataclasses import replace

from tests.corpus.physics import FUTEX, LINE, POLL, SLEEP, Act, Play, Spell, between, flat
from tests.corpus.scenarios import MINUTE, Scenario, Setting, Told, asleep, spin, u8, u16

FIFO, NFS = "fifo_open", "nfs_wait_bit_killable"
SLEEPS, COMPUTES = asleep(), Act(cpu=0.99, state="R")
#: Work whose utilization changes, of a rank that logs.
CHANGES = Act(util=between(60, 95), power=0.75, mem=35, fabric=1e9, cpu=1.0, log=20, state="R")
#: Work at a flat utilization, of which only the fabric tells.
FLAT = Act(util=flat(100), power=0.75, mem=35, fabric=1e9, cpu=1.0, state="R")
#: Without cards: signs of life, and a trace of them.
STEADY = Act(cpu=0.01, log=40, wchan=FUTEX)


def _then(
    s: Setting, before: Act | None, *acts: Act, minutes: float = 16.0, later: tuple[float, Act] | None = None
) -> Told:
    """This work, then each rank does its act, the last one all that are left; `later`: from so many minutes on rank 0
    does this. Without work before: from the begin."""
    until = s.rng.uniform(14, 20) * MINUTE if before is not None else 0.0
    ranks = []
    for rank in range(s.ranks):
        spells = [Spell(0, before)] if before is not None else []
        spells.append(Spell(until, acts[min(rank, len(acts) - 1)]))
        if later is not None and rank == 0:
            spells.append(Spell(until + later[0] * MINUTE, later[1]))
        ranks.append(spells)
    return Told(Play(ranks, until + minutes * MINUTE, kind=s.kind), until)


def _play(told: Told, **changed) -> Told:
    return replace(told, play=replace(told.play, **changed))


def _from_rank_0(told: Told) -> Told:
    return replace(told, culprit=0)


def _stopped(act: Act) -> Act:
    return replace(act, state="T", wchan="do_signal_stop")


def weak_io(s: Setting) -> Told:
    return _then(s, CHANGES, Act(cpu=0.01, write=200, wchan=SLEEP), minutes=26)


def weak_cpu(s: Setting) -> Told:
    return _then(s, CHANGES, Act(cpu=0.15, wchan=SLEEP), minutes=26)


def trace(s: Setting) -> Told:
    return replace(_then(s, STEADY, Act(cpu=0.008), minutes=40), onset=None)


def spin_no_power_no_memory(s: Setting) -> Told:
    return _then(s, CHANGES, spin(s), minutes=67)


def spin_no_power_no_log(s: Setting) -> Told:
    return _then(s, CHANGES, spin(s), minutes=46)


def spin_no_power(s: Setting) -> Told:
    return _then(s, CHANGES, spin(s), minutes=26)


def spin_one_card_writes(s: Setting) -> Told:
    return _then(s, CHANGES, replace(spin(s), write=150))


def spin_mid(s: Setting) -> Told:
    return _then(s, CHANGES, replace(spin(s), util=flat(50)), minutes=28)


def spin_blocked_by_files(s: Setting) -> Told:
    waits = spin(s)
    return _from_rank_0(_then(s, CHANGES, replace(waits, state="D", wchan=NFS), waits, minutes=36))


def spin_stopped(s: Setting) -> Told:
    waits = spin(s)
    return _from_rank_0(_then(s, CHANGES, _stopped(waits), waits))


def traced(s: Setting) -> Told:
    """For 20 minutes; then the debugger lets it go on."""
    waits = spin(s)
    told = _then(s, CHANGES, replace(waits, state="t", wchan="ptrace_stop"), waits, minutes=35)
    assert told.onset is not None
    for spells in told.play.ranks:
        spells.append(Spell(told.onset + 20 * MINUTE, CHANGES))
    return replace(told, onset=None)


def small_kernels_that_move_data(s: Setting) -> Told:
    """At little power, and nothing in memory: 200 MB of fabric, and 300 bytes of log a minute of rank 0."""
    small = Act(util=flat(100), power=s.spin_power, fabric=200e6 / 60, cpu=1.0, state="R")
    return replace(_then(s, CHANGES, replace(small, log=5), small, minutes=40), onset=None)


def small_kernels_in_silence(s: Setting) -> Told:
    """The same without a line of log."""
    small = Act(util=flat(100), power=s.spin_power, fabric=200e6 / 60, cpu=1.0, state="R")
    return replace(_then(s, CHANGES, small, minutes=40), onset=None)


def small_kernels_of_each_rank(s: Setting) -> Told:
    """Cards without a fabric, whose ranks write a line each 16 s."""
    small = Act(util=flat(100), power=s.spin_power, log=5, cpu=1.0, state="R")
    return replace(_then(s, replace(CHANGES, fabric=0.0), small, minutes=70), onset=None)


def spin_with_lines(s: Setting) -> Told:
    """Its fabric fell silent, and something writes a line a minute, as before."""
    lines = replace(CHANGES, log=LINE / 60)
    return _then(s, lines, replace(spin(s), log=LINE / 60), spin(s), minutes=26)


def server(s: Setting) -> Told:
    """It served, and waits for requests; something writes a line a minute."""
    return _then(s, CHANGES, Act(cpu=0.01, log=LINE / 60, wchan=POLL), minutes=26)


def spin_from_start(s: Setting) -> Told:
    return _then(s, None, spin(s), minutes=66)


def spin_flat_as_usual(s: Setting) -> Told:
    return replace(_then(s, FLAT, spin(s), minutes=70), onset=None)


def some_spin_from_start(s: Setting) -> Told:
    return _from_rank_0(_then(s, None, SLEEPS, spin(s), minutes=66))


def peers_may_compute(s: Setting) -> Told:
    return replace(_then(s, FLAT, SLEEPS, spin(s), minutes=70), onset=None)


def peers_wait_perhaps(s: Setting) -> Told:
    return _from_rank_0(_then(s, CHANGES, SLEEPS, spin(s), minutes=26))


def no_processes(s: Setting) -> Told:
    told = _then(s, CHANGES, SLEEPS, minutes=40)
    assert told.onset is not None
    return replace(_play(told, no_procs_from=told.onset), onset=None)


def no_cpu_time(s: Setting) -> Told:
    return _then(s, CHANGES, SLEEPS, minutes=26)


def blocked_somewhere(s: Setting) -> Told:
    return _from_rank_0(_then(s, CHANGES, Act(state="D", wchan=FIFO), SLEEPS))


def blocked_by_files(s: Setting) -> Told:
    return _from_rank_0(_then(s, CHANGES, Act(state="D", wchan=NFS), SLEEPS, minutes=36))


def blocked_with_log(s: Setting) -> Told:
    return _from_rank_0(_then(s, CHANGES, Act(state="D", wchan=FIFO, log=40), SLEEPS, minutes=26))


def silent_together(s: Setting) -> Told:
    return _then(s, STEADY, Act(cpu=0.0))


def one_card_unseen(s: Setting) -> Told:
    told = _then(s, CHANGES, SLEEPS, minutes=26)
    assert told.onset is not None
    return _play(told, unseen_from=told.onset, unseen=(0,))


def patience(s: Setting) -> Told:
    """Silent for 9.5 minutes, then for 10.9."""
    told = _then(s, CHANGES, SLEEPS, minutes=45)
    assert told.onset is not None
    for spells in told.play.ranks:
        for minute, act in ((9.5, CHANGES), (24, SLEEPS), (34.9, CHANGES)):
            spells.append(Spell(told.onset + minute * MINUTE, act))
    return replace(told, onset=None)


def less_cpu(s: Setting) -> Told:
    """Eight CPUs, then one."""
    return replace(_then(s, Act(cpu=8.0, log=40, state="R"), Act(cpu=0.9, state="R"), minutes=70), onset=None)


def one_goes_on(s: Setting) -> Told:
    return _from_rank_0(_then(s, STEADY, Act(cpu=0.9, state="R"), Act(cpu=0.0), minutes=67))


def stopped_from_start(s: Setting) -> Told:
    return _from_rank_0(_then(s, None, _stopped(SLEEPS), SLEEPS, minutes=66))


def blocked_from_start(s: Setting) -> Told:
    return _from_rank_0(_then(s, None, Act(state="D", wchan=FIFO), SLEEPS, minutes=66))


def weak_io_from_start(s: Setting) -> Told:
    return replace(_then(s, None, Act(cpu=0.01, write=200, wchan=SLEEP), minutes=30), onset=None)


def busy_unseen_from_start(s: Setting) -> Told:
    return replace(_play(_then(s, None, COMPUTES, minutes=30), unseen_from=100.0), onset=None)


def asleep_after_restart(s: Setting) -> Told:
    told = _then(s, CHANGES, asleep(POLL, 0.0), minutes=67)
    assert told.onset is not None
    return _play(told, restarts=(told.onset,))


def unseen_from_start(s: Setting) -> Told:
    return replace(_then(s, None, asleep(SLEEP, 0.001), minutes=70), onset=None)


def stopped_later(s: Setting) -> Told:
    return _from_rank_0(_then(s, CHANGES, SLEEPS, later=(5.5, _stopped(SLEEPS))))


def npus_poll(s: Setting) -> Told:
    return _then(s, CHANGES, asleep(POLL))


def busy_unseen(s: Setting) -> Told:
    return replace(_then(s, replace(CHANGES, read=3e6), COMPUTES, minutes=70), onset=None)


def computes_then_sleeps(s: Setting) -> Told:
    told = _then(s, None, COMPUTES, minutes=30)
    for spells in told.play.ranks:
        spells.append(Spell(8 * MINUTE, asleep(POLL, 0.0)))
    return replace(told, onset=None)


def stopped_with_log(s: Setting) -> Told:
    return _from_rank_0(_then(s, CHANGES, _stopped(SLEEPS), replace(SLEEPS, log=40)))


def stopped_without_log(s: Setting) -> Told:
    return _from_rank_0(_then(s, CHANGES, _stopped(SLEEPS), SLEEPS))


def one_computes(s: Setting) -> Told:
    told = _then(s, CHANGES, COMPUTES, spin(s), minutes=50)
    assert told.onset is not None
    for spells in told.play.ranks:
        spells.append(Spell(told.onset + 40 * MINUTE, CHANGES))
    return replace(told, onset=None)


def loops_with_io(s: Setting) -> Told:
    return _then(s, CHANGES, replace(COMPUTES, write=300), SLEEPS, minutes=67)


def loops(s: Setting) -> Told:
    return _then(s, CHANGES, COMPUTES, SLEEPS, minutes=67)


def small_kernels_that_log(s: Setting) -> Told:
    small = Act(util=flat(99), power=0.33, mem=0.0, cpu=1.0, log=4, state="R")
    return replace(_then(s, replace(CHANGES, power=0.85), small, minutes=40), onset=None)


def spin_after_save(s: Setting) -> Told:
    waits = spin(s)
    return _then(s, CHANGES, replace(waits, write=120e6), waits, minutes=36, later=(0.5, waits))


def other_nodes(s: Setting) -> Told:
    return _then(s, CHANGES, SLEEPS)


_GPU, _NPU, _MANY = ("nvidia",), ("ascend",), (2, 8)
_BLIND = {"no_power": True, "no_mem": True}
_NO_CARDS = {"no_cards": True}
_START = ("WAITING", "HUNG")

ROWS: tuple[Scenario, ...] = (
    # --- signs of life ------------------------------------------------------------------------------------------------
    Scenario("P1", "asleep, with some IO", weak_io, 21, ("HUNG",), kind="livelock"),
    Scenario("P2", "asleep, with some CPU time", weak_cpu, 21, ("HUNG",), kind="livelock", ranks=(1, 2)),
    Scenario(
        "P3", "no cards: a trace of CPU time", trace, None, ("ALIVE",), ("ALIVE",), weather=_NO_CARDS | {"no_log": True}
    ),
    # --- all cards at full utilization --------------------------------------------------------------------------------
    Scenario(
        *("P4", "spin: neither power nor memory is told", spin_no_power_no_memory, 62, ("HUNG",)),
        kind="spin",
        high_confidence=False,
        weather=_BLIND,
    ),
    Scenario(
        *("P5", "spin: neither power nor a log is told", spin_no_power_no_log, 42, ("HUNG",)),
        kind="spin",
        high_confidence=False,
        weather={"no_power": True, "no_log": True},
    ),
    Scenario(
        *("P6", "spin: no power is told", spin_no_power, 22, ("HUNG",)),
        kind="spin",
        high_confidence=False,
        weather={"no_power": True},
    ),
    Scenario(
        *("P7", "spin of one card, whose rank writes", spin_one_card_writes, 11, ("HUNG",)),
        kind="spin",
        high_confidence=False,
        ranks=(1,),
    ),
    Scenario("P8", "spin at half of the utilization", spin_mid, 26, ("HUNG",), kind="spin"),
    Scenario(
        *("P9", "spin: one rank waits for a file server", spin_blocked_by_files, 31, ("HUNG",)),
        kind="io_blocked",
        ranks=_MANY,
    ),
    Scenario("P10", "spin from the start", spin_from_start, 62, _START, kind="spin", high_confidence=False),
    Scenario(
        *("P11", "asleep, and no process is told of", no_processes, None, ("SUSPECT",), ("ALIVE", "SUSPECT")),
        weather={"no_log": True},
    ),
    # --- cards that idle or are not seen ------------------------------------------------------------------------------
    Scenario(
        *("P12", "asleep, and no CPU time is told", no_cpu_time, 21, ("SUSPECT", "HUNG")),
        kind="deadlock",
        kinds=_GPU,
        weather={"no_cpu": True},
    ),
    Scenario(
        *("P13", "blocked, and where is not told", blocked_somewhere, 11, ("HUNG",)),
        kind="io_blocked",
        high_confidence=False,
        weather={"no_wchan": True},
    ),
    Scenario(
        *("P14", "no cards: all ranks fall silent together", silent_together, 11, ("HUNG",)),
        kind="deadlock",
        ranks=_MANY,
        weather=_NO_CARDS,
    ),
    Scenario(
        *("P15", "asleep, and a card is not seen", one_card_unseen, 24, ("HUNG",)),
        kind="deadlock",
        kinds=_GPU,
        ranks=_MANY,
    ),
    Scenario(
        *("P16", "one rank asleep, its peers' cards as always", peers_may_compute, None, ("UNKNOWN",)),
        ("ALIVE", "UNKNOWN"),
        ranks=_MANY,
        weather=_BLIND,
    ),
    Scenario("P17", "asleep, one rank waits for a file server", blocked_by_files, 31, ("HUNG",), kind="io_blocked"),
    Scenario("P18", "asleep for 9.5 minutes, then for 10.9", patience, None, ("SUSPECT", "ALIVE"), kinds=_GPU),
    Scenario(
        *("P19", "no cards: one CPU after eight", less_cpu, None, ("BUSY_HOST",), ("ALIVE", "BUSY_HOST")),
        weather=_NO_CARDS,
    ),
    Scenario(
        *("P20", "no cards: one rank computes, the others are silent", one_goes_on, 62, _START),
        kind="livelock",
        high_confidence=False,
        ranks=_MANY,
        weather=_NO_CARDS,
    ),
    Scenario(
        *("P21", "stopped from the start", stopped_from_start, 62, ("SUSPECT", "HUNG")),
        kind="stopped",
    ),
    Scenario(
        *("P22", "asleep, and another node is not seen", other_nodes, 11, ("HUNG",)),
        kind="deadlock",
        high_confidence=False,
        kinds=_GPU,
        weather={"nodes": 2},
    ),
    Scenario(
        *("P23", "cards at full utilization, as always", spin_flat_as_usual, None, ("UNKNOWN",), ("ALIVE", "UNKNOWN")),
        ranks=_MANY,
        weather=_BLIND,
    ),
    Scenario("P24", "spin: one rank is stopped", spin_stopped, 11, ("HUNG",), kind="stopped", ranks=_MANY),
    Scenario("P25", "blocked from the start", blocked_from_start, 62, ("SUSPECT", "HUNG"), kind="io_blocked"),
    Scenario("P26", "some IO from the start", weak_io_from_start, None, ("ALIVE",), ("ALIVE",)),
    Scenario(
        *("P27", "computes from the start, cards not seen", busy_unseen_from_start, None, ("UNKNOWN",)),
        ("ALIVE", "UNKNOWN"),
    ),
    Scenario(
        *("P28", "NPUs asleep after a restart", asleep_after_restart, 62, ("IDLE", "HUNG")),
        kind="notify_wait",
        kinds=_NPU,
    ),
    Scenario(
        *("P29", "asleep after a restart", asleep_after_restart, 62, ("IDLE", "HUNG")),
        kind="deadlock",
        kinds=_GPU,
    ),
    Scenario(
        *("P30", "asleep from the start, cards not seen", unseen_from_start, None, ("UNKNOWN",), ("UNKNOWN",)),
        no_util=True,
    ),
    Scenario("P31", "asleep, then stopped", stopped_later, 11, ("SUSPECT", "HUNG"), kind="stopped", kinds=_GPU),
    Scenario("P32", "NPUs idle, ranks poll", npus_poll, 11, ("SUSPECT", "HUNG"), kind="notify_wait", kinds=_NPU),
    Scenario("P33", "blocked, and a log that grows", blocked_with_log, 21, ("HUNG",), kind="io_blocked"),
    Scenario(
        *("P34", "computes, cards not seen", busy_unseen, None, ("UNKNOWN",), ("ALIVE", "UNKNOWN")),
        no_util=True,
        weather={"no_power": True},
    ),
    Scenario(
        *("P35", "one rank asleep from the start, its peers spin", some_spin_from_start, 62, _START),
        kind="spin",
        ranks=_MANY,
    ),
    Scenario(
        *("P36", "one rank asleep, its peers' cards are flat now", peers_wait_perhaps, 22, ("HUNG",)),
        kind="spin",
        ranks=_MANY,
        weather=_BLIND,
    ),
    Scenario(
        *("P37", "computes for 8 minutes, then asleep", computes_then_sleeps, None, ("BUSY_HOST", "IDLE")),
        ("ALIVE", "BUSY_HOST", "IDLE"),
    ),
    Scenario(
        *("P38", "one rank is stopped, the others log", stopped_with_log, 11, ("HUNG",)),
        kind="stopped",
        ranks=_MANY,
    ),
    Scenario(
        *("P39", "one rank computes for 40 minutes, its peers spin", one_computes, None, ("WAITING", "ALIVE")),
        ("ALIVE", "WAITING"),
        ranks=_MANY,
    ),
    Scenario(
        *("P40", "one card, and small kernels that log", small_kernels_that_log, None, ("ALIVE",), ("ALIVE",)),
        ranks=(1,),
    ),
    Scenario("P41", "spin after a save", spin_after_save, 32, ("HUNG",), kind="spin"),
    Scenario(
        *("P42", "one rank computes for ever, and does some IO", loops_with_io, 62, ("BUSY_HOST", "HUNG")),
        kind="livelock",
        high_confidence=False,
    ),
    Scenario("P43", "a debugger holds one rank", traced, None, ("WAITING", "ALIVE"), ("ALIVE", "SUSPECT", "WAITING")),
    Scenario(
        *("P44", "small kernels that move data and log", small_kernels_that_move_data, None, ("ALIVE",), ("ALIVE",)),
        kinds=_GPU,
        ranks=_MANY,
    ),
    Scenario(
        *("P49", "small kernels that move data, without a log", small_kernels_in_silence, None, ("ALIVE", "SUSPECT")),
        kinds=_GPU,
        ranks=_MANY,
    ),
    Scenario(
        *("P50", "small kernels that log, on cards without a fabric", small_kernels_of_each_rank, None, ("ALIVE",)),
        ("ALIVE",),
        kinds=_GPU,
        ranks=_MANY,
        weather={"no_fabric": True},
    ),
    Scenario(
        *("P51", "spin, and a line of log a minute", spin_with_lines, 21, ("SUSPECT", "HUNG")),
        kind="spin",
        kinds=_GPU,
        ranks=_MANY,
        high_confidence=False,
    ),
    Scenario(
        *("P52", "a server that waits for requests", server, 21, ("HUNG",)),
        kind="livelock",
        high_confidence=False,
        kinds=_GPU,
    ),
    Scenario(
        *("P45", "one rank is stopped, its peers sleep, and there is no log", stopped_without_log, 11),
        ("SUSPECT", "HUNG"),
        kind="stopped",
        kinds=_GPU,
        ranks=_MANY,
        weather={"no_log": True},
    ),
    Scenario(
        *("P46", "a rank cannot leave the kernel, and there is no log", u8, 11, ("SUSPECT", "HUNG")),
        kind="io_blocked",
        weather={"no_log": True},
    ),
    Scenario(
        *("P47", "U16, and the power is not told, either", u16, 21, ("UNKNOWN", "HUNG")),
        kind="deadlock",
        no_util=True,
        high_confidence=False,
        kinds=_GPU,
        weather={"no_power": True},
    ),
    Scenario(
        *("P48", "one rank computes for ever, and there is no log", loops, 62, ("BUSY_HOST", "HUNG")),
        kind="livelock",
        high_confidence=False,
        weather={"no_log": True},
    ),
)
