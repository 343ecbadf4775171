"""The 34 scenarios: what happens, and what must be said. H are healthy, U are not."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.corpus.physics import (
    FUTEX,
    POLL,
    SLEEP,
    Act,
    Extra,
    Play,
    Spell,
    Weather,
    alternating,
    between,
    bursts,
    flat,
)

MINUTE, MB = 60.0, 1e6


@dataclass(frozen=True)
class Setting:
    """What a scenario is played on. `powers`: shares of the limit of work and of waiting on the card."""

    ranks: int
    kind: str
    rng: random.Random
    work_power: float
    spin_power: float


@dataclass(frozen=True)
class Told:
    """A play, and when what is wrong with it begins (None: nothing is)."""

    play: Play
    onset: float | None = None
    culprit: int | None = None


@dataclass(frozen=True)
class Scenario:
    """`within_min`: minutes from the onset to HUNG at most (U15: to DRIVER_HANG, U17: to SUSPECT), None: never HUNG.
    `verdicts`: those that must be told, in this order, others may be between. `may`: all that may be told."""

    name: str
    what: str
    make: Callable[[Setting], Told]
    within_min: float | None
    verdicts: tuple[str, ...]
    may: tuple[str, ...] = ()
    kind: str = ""
    kinds: tuple[str, ...] = ("nvidia", "ascend")
    ranks: tuple[int, ...] = (1, 2, 8)
    no_util: bool = False
    #: Of what is surest, whether muster would act on it.
    high_confidence: bool = True
    #: Life that nothing distinguishes from a hang until it ends: counted as neither.
    undecided: bool = False
    #: How it is seen, whatever the weather is else: fields of `physics.Weather`.
    weather: Mapping[str, Any] = field(default_factory=dict)


# --- acts -------------------------------------------------------------------------------------------------------------


def work(s: Setting, rng: random.Random | None = None) -> Act:
    """Training as usual, of one of the usual shapes."""
    rng = rng or s.rng
    curve = rng.choice(
        (flat(100), flat(99), between(60, 100), between(85, 99), alternating(40, 100), bursts(95, 40, 0.7))
    )
    return Act(
        util=curve,
        power=s.work_power,
        mem=rng.uniform(15, 60),
        fabric=rng.uniform(0.3e9, 5e9) if s.ranks > 1 else 0.0,
        cpu=rng.uniform(0.9, 1.3),
        read=rng.choice((0.0, 200.0, 2e6)),
        write=rng.choice((0.0, 20.0)),
        log=rng.choice((0.0, 5.0, 100.0)),
        state="R",
    )


def spin(s: Setting) -> Act:
    """Waits in a collective on the card: full utilization, little power, threads that yield."""
    return Act(util=flat(100), power=s.spin_power, cpu=2 * s.rng.uniform(0.5, 1.0), wchan=FUTEX)


def asleep(wchan: str = FUTEX, cpu: float = 0.005) -> Act:
    """Nothing at all."""
    return Act(wchan=wchan, cpu=cpu)


def warmup(s: Setting) -> Act:
    """Imports, model on the CPU, first kernels."""
    return Act(util=between(0, 30), power=None, cpu=0.9, read=5e6, write=100, log=30, state="R")


def steady_work(s: Setting, least_min: float = 6.0, most_min: float = 35.0) -> tuple[list[list[Spell]], float]:
    """A start-up, then steady work; and when that ends."""
    start = s.rng.uniform(0, 3) * MINUTE
    until = start + s.rng.uniform(least_min, most_min) * MINUTE
    shape = s.rng.getrandbits(32)
    ranks = []
    for _ in range(s.ranks):
        act = work(s, random.Random(shape))
        ranks.append([Spell(0, warmup(s)), Spell(start, act)] if start > 5 else [Spell(0, act)])
    return ranks, until


def go_over_to(ranks: list[list[Spell]], at: float, *acts: Act) -> None:
    """From then on each rank does its act, the last one all that are left."""
    for r, spells in enumerate(ranks):
        spells.append(Spell(at, acts[min(r, len(acts) - 1)]))


def _hangs(s: Setting, *acts: Act, tail_min: float = 16.0, extras: list[Extra] | None = None) -> Told:
    """Work, then these acts, until the end."""
    ranks, until = steady_work(s)
    go_over_to(ranks, until, *acts)
    return Told(Play(ranks, until + tail_min * MINUTE, extras or [], s.kind), until)


def _works(s: Setting, act: Act, minutes: float = 60.0, extras: list[Extra] | None = None) -> Told:
    """The same from the begin to the end."""
    return Told(Play([[Spell(0, act)] for _ in range(s.ranks)], minutes * MINUTE, extras or [], s.kind))


# --- healthy ----------------------------------------------------------------------------------------------------------


def h1(s: Setting) -> Told:
    act = Act(util=flat(100), power=0.85, mem=40, fabric=2e9 if s.ranks > 1 else 0, cpu=1.0, log=80 / 600, state="R")
    return _works(s, act, 90)


def h2(s: Setting) -> Told:
    return _works(s, Act(util=between(30, 95), power=0.5, mem=20, fabric=1e8, cpu=1.0, write=50, log=100, state="R"))


def h3(s: Setting) -> Told:
    act = Act(util=bursts(90, 47, 0.3), power=0.4, mem=15, cpu=0.4, wchan=POLL)
    extras = [Extra(r, "worker", read=3e6, cpu=0.3) for r in range(s.ranks) for _ in range(2)]
    return _works(s, act, 60, extras)


def h4(s: Setting) -> Told:
    return _works(s, Act(util=between(97, 100), power=0.8, mem=30, cpu=1.0, state="R"), 90)


def h5(s: Setting) -> Told:
    """Rank 0 saves for ten minutes, each hour."""
    ranks, until = steady_work(s)
    save = Act(cpu=0.4, write=45 * MB, state="D", wchan="folio_wait_writeback")
    peers = spin(s) if s.kind == "nvidia" else asleep()
    go_over_to(ranks, until, save, replace(peers, power=0.2 if s.kind == "nvidia" else None))
    done = until + 10 * MINUTE
    for spells in ranks:
        spells.append(Spell(done, spells[-2].act))
    return Told(Play(ranks, done + 20 * MINUTE, [], s.kind))


def h6(s: Setting) -> Told:
    act = Act(util=flat(95), power=0.8, mem=35, fabric=1e9 if s.ranks > 1 else 0, cpu=1.0, state="R")
    saves = [
        Extra(0, "worker", write=80 * MB, cpu=0.3, start_s=a * MINUTE, end_s=(a + 4) * MINUTE) for a in (10, 30, 50)
    ]
    return _works(s, act, 60, saves)


def h7(s: Setting) -> Told:
    ranks, until = steady_work(s)
    burst = Act(write=1.15 * 2**30 / 30, cpu=0.5, state="R")
    stuck = Act(
        state="D", wchan=s.rng.choice(("wait_for_partner", "fifo_open", "kernel_clone", "rpc_wait_bit_killable"))
    )
    go_over_to(ranks, until, burst, replace(asleep(), wchan=POLL))
    for r, spells in enumerate(ranks):
        spells.append(Spell(until + 30, stuck if r == 0 else asleep(POLL)))
        spells.append(Spell(until + 30 + 8 * MINUTE, spells[-3].act))
    return Told(Play(ranks, until + 25 * MINUTE, [], s.kind), until + 30)


def h8(s: Setting) -> Told:
    ranks, until = steady_work(s) if s.rng.random() < 0.5 else ([[] for _ in range(s.ranks)], 0.0)
    hashes = Act(cpu=0.99, state="R")
    go_over_to(ranks, until, hashes)
    after = work(s)
    for spells in ranks:
        spells.append(Spell(until + 20 * MINUTE, after))
    return Told(Play(ranks, until + 35 * MINUTE, [], s.kind))


def h9(s: Setting) -> Told:
    blips = Act(util=lambda _t, rng: 20.0 if rng.random() < 0.05 else 0.0, cpu=0.1, wchan="do_wait")
    play = Play([[Spell(0, blips)] for _ in range(s.ranks)], 40 * MINUTE, kind=s.kind)
    for child in range(160):
        begin = child // 8 * 110.0 + s.rng.uniform(0, 20)
        end = begin + s.rng.uniform(60, 110)
        play.extras.append(Extra(0, "worker", 20e3, 2e3, 0.95, begin, end, "R", ""))
    after = work(s)
    for spells in play.ranks:
        spells.append(Spell(36 * MINUTE, after))
    return Told(play)


def h10(s: Setting) -> Told:
    acts = [Act(cpu=0.99, state="R"), asleep(POLL)]
    ranks = [[Spell(0, acts[min(r, 1)])] for r in range(s.ranks)]
    after = work(s)
    for spells in ranks:
        spells.append(Spell(30 * MINUTE, after))
    return Told(Play(ranks, 45 * MINUTE, kind=s.kind))


def h11(s: Setting) -> Told:
    tokenizes = Act(cpu=0.98, read=s.rng.choice((0.0, 1e5, 3e6)), write=s.rng.choice((0.0, 3e5)), state="R")
    peers = replace(spin(s), power=0.2)
    before, until = steady_work(s) if s.rng.random() < 0.3 else ([[] for _ in range(s.ranks)], 0.0)
    go_over_to(before, until, tokenizes, peers)
    after = work(s)
    for spells in before:
        spells.append(Spell(until + 40 * MINUTE, after))
    return Told(Play(before, until + 55 * MINUTE, kind=s.kind))


def h12(s: Setting) -> Told:
    ranks, until = steady_work(s) if s.rng.random() < 0.6 else ([[] for _ in range(s.ranks)], 0.0)
    receives = Act(cpu=s.rng.uniform(0.01, 0.3), net=s.rng.uniform(5e6, 300e6), wchan="sk_wait_data")
    go_over_to(ranks, until, receives, asleep(POLL))
    after = work(s)
    for spells in ranks:
        spells.append(Spell(until + 15 * MINUTE, after))
    return Told(Play(ranks, until + 30 * MINUTE, kind=s.kind))


def h13(s: Setting) -> Told:
    begin = Act(cpu=0.8, read=3e6, state="R")
    ranks = [[Spell(0, begin), Spell(s.rng.uniform(1, 20), asleep(SLEEP, 0.001))] for _ in range(s.ranks)]
    return Told(Play(ranks, 150 * MINUTE, kind=s.kind))


def h14(s: Setting) -> Told:
    fast = Act(util=flat(100), power=0.8, mem=40, fabric=2e9, cpu=1.0, state="R", log=20)
    slow = replace(fast, power=0.5, mem=18, fabric=0.8e9, log=7)
    until = s.rng.uniform(10, 30) * MINUTE
    ranks = [[Spell(0, fast), Spell(until, slow)] for _ in range(s.ranks)]
    return Told(Play(ranks, until + 30 * MINUTE, kind=s.kind), until)


def h15(s: Setting) -> Told:
    act = Act(util=flat(80), power=0.6, mem=30, cpu=1.0, state="R")
    spells, at = [], 0.0
    for _ in range(8):
        spells += [Spell(at, act), Spell(at + 60, asleep(SLEEP))]
        at += 60 + 8 * MINUTE
    return Told(Play([list(spells) for _ in range(s.ranks)], at, kind=s.kind))


def h16(s: Setting) -> Told:
    ranks, until = steady_work(s)
    act = ranks[0][-1].act
    for spells in ranks:
        spells.append(Spell(until, Act(cpu=0.6, read=5e6, state="R")))
        spells.append(Spell(until + 100, act))
    return Told(Play(ranks, until + 20 * MINUTE, kind=s.kind, restarts=(until,)))


# --- not healthy ------------------------------------------------------------------------------------------------------


def u1(s: Setting) -> Told:
    return _hangs(s, spin(s))


def u2(s: Setting) -> Told:
    role = s.rng.choice(("helper", "worker"))
    return _hangs(s, spin(s), extras=[Extra(r, role, 1800, 85, 0.01) for r in range(s.ranks)])


def u3(s: Setting) -> Told:
    return _hangs(s, spin(s), extras=[Extra(None, "helper", 500, 500, 0.01)])


def u4(s: Setting) -> Told:
    return _hangs(s, replace(spin(s), read=530))


def u5(s: Setting) -> Told:
    return _hangs(s, asleep(FUTEX, 0.01), extras=[Extra(r, "worker", wchan=FUTEX) for r in range(s.ranks)])


def u6(s: Setting) -> Told:
    return _hangs(s, asleep())


def u7(s: Setting) -> Told:
    return _hangs(s, asleep(SLEEP, 0.0))


def u8(s: Setting) -> Told:
    stuck = Act(state="D", wchan=s.rng.choice(("kernel_clone", "wait_for_vfork_done", "fifo_open")))
    told = _hangs(s, stuck, asleep(POLL))
    assert told.onset is not None
    told.play.extras.append(Extra(0, "worker", start_s=told.onset, wchan="wait_for_partner"))
    return replace(told, culprit=0)


def _one(s: Setting, act: Act) -> Told:
    """One rank does this, the others wait for it."""
    culprit = s.rng.randrange(s.ranks)
    ranks, until = steady_work(s)
    acts = [spin(s) if r != culprit else act for r in range(s.ranks)]
    go_over_to(ranks, until, *acts)
    return Told(Play(ranks, until + 16 * MINUTE, kind=s.kind), until, culprit)


def u9(s: Setting) -> Told:
    return _one(s, Act(state="T", wchan="do_signal_stop"))


def u10(s: Setting) -> Told:
    return _one(s, Act(there=False))


def u11(s: Setting) -> Told:
    return _hangs(s, Act(cpu=s.rng.uniform(0.0, 0.06), fabric=5 * 1500 / 60))


def u13(s: Setting) -> Told:
    return _hangs(s, Act(cpu=0.01, log=s.rng.choice((16.0, 80.0, 300.0)), wchan=SLEEP), tail_min=26)


def u14(s: Setting) -> Told:
    return _hangs(s, Act(cpu=0.99, state="R"), asleep(POLL), tail_min=66)


def u15(s: Setting) -> Told:
    ranks, until = steady_work(s)
    return Told(Play(ranks, until + 5 * MINUTE, kind=s.kind, driver_hangs_at=until), until)


def u16(s: Setting) -> Told:
    return _hangs(s, asleep(), tail_min=26)


def u17(s: Setting) -> Told:
    ranks, until = steady_work(s)
    go_over_to(ranks, until, asleep())
    for spells in ranks:
        spells.append(Spell(until + 7 * MINUTE, replace(spells[-2].act, util=between(85, 95))))
    return Told(Play(ranks, until + 25 * MINUTE, kind=s.kind), until)


def u18(s: Setting) -> Told:
    extras = [Extra(None, "helper", 0, 0, 0.01, wchan=SLEEP), Extra(0, "worker", 0, 0, 0.02, wchan="do_wait")]
    return _hangs(s, spin(s), extras=extras)


_LIVE = ("ALIVE", "BUSY_HOST", "WAITING")
SCENARIOS = (
    Scenario("H1", "hash in memory, 80 B of log in 10 min", h1, None, ("ALIVE",), ("ALIVE",)),
    Scenario("H2", "compute, 1 KB of log a step", h2, None, ("ALIVE",), ("ALIVE",)),
    Scenario("H3", "file-reading loader children", h3, None, ("ALIVE",), ("ALIVE",)),
    Scenario("H4", "touches a warm mmap", h4, None, ("ALIVE",), ("ALIVE",)),
    Scenario("H5", "rank 0 writes 45 MB/s for 10 min", h5, None, (), ("ALIVE", "WAITING")),
    Scenario("H6", "child writes a checkpoint", h6, None, ("ALIVE",), ("ALIVE",)),
    Scenario("H7", "1 GiB write, 8 min in D", h7, None, ("SUSPECT", "ALIVE"), (*_LIVE, "SUSPECT"), ranks=(1, 2, 8)),
    Scenario("H8", "sha256 loop for 20 min, no IO", h8, None, ("BUSY_HOST",), _LIVE),
    Scenario("H9", "8 compiler children", h9, None, ("ALIVE",), _LIVE),
    Scenario("H10", "spins 30 min at the start", h10, None, ("ALIVE",), _LIVE),
    Scenario("H11", "A tokenizes 40 min, B spins", h11, None, (), ("ALIVE", "WAITING"), ranks=(2, 8)),
    Scenario("H12", "receives into memory for 15 min", h12, None, ("ALIVE",), (*_LIVE, "IDLE")),
    Scenario("H13", "sleeps from launch", h13, None, ("IDLE",), ("ALIVE", "IDLE")),
    Scenario("H14", "steps three times slower", h14, None, ("ALIVE", "SLOW"), ("ALIVE", "SLOW"), ranks=(2, 8)),
    Scenario("H15", "60 s work, 8 min idle, again", h15, None, ("ALIVE",), ("ALIVE", "SUSPECT")),
    Scenario("H16", "restart in the window", h16, None, ("ALIVE",), ("ALIVE",)),
    Scenario("U1", "futex and yield threads", u1, 11, ("HUNG",), kind="spin", kinds=("nvidia",)),
    Scenario("U2", "U1 and a child with IO", u2, 11, ("HUNG",), kind="spin", kinds=("nvidia",)),
    Scenario("U3", "U1 under an echo server", u3, 11, ("HUNG",), kind="spin", kinds=("nvidia",)),
    Scenario("U4", "U1 and a psutil thread", u4, 11, ("HUNG",), kind="spin", kinds=("nvidia",)),
    Scenario("U5", "queue get loop, worker asleep", u5, 11, ("HUNG",), kind="deadlock", kinds=("nvidia",)),
    Scenario("U6", "a lock taken twice", u6, 11, ("HUNG",), kind="deadlock", kinds=("nvidia",)),
    Scenario("U7", "sleep holds the GIL", u7, 11, ("HUNG",), kind="deadlock", kinds=("nvidia",)),
    Scenario("U8", "posix_spawn opens a FIFO", u8, 11, ("HUNG",), kind="io_blocked"),
    Scenario("U9", "one rank stopped, peers spin", u9, 11, ("HUNG",), kind="stopped", ranks=(2, 8)),
    Scenario("U10", "one rank exits, peers spin", u10, 11, ("HUNG",), kind="spin", ranks=(2, 8)),
    Scenario(
        "U11", "NPU: waits for a notification", u11, 6, ("HUNG",), kind="notify_wait", kinds=("ascend",), ranks=(2, 8)
    ),
    Scenario("U12", "NPU: as U1", u1, 11, ("HUNG",), kind="spin", kinds=("ascend",)),
    Scenario("U13", "failing connect, a log line each 5 s", u13, 21, ("HUNG",), kind="livelock"),
    Scenario("U14", "`while True` after steady work", u14, 61, ("BUSY_HOST", "HUNG"), kind="livelock"),
    Scenario("U15", "a driver that never returns", u15, 0.5, ("DRIVER_HANG",)),
    Scenario(
        *("U16", "U6 with no utilization", u16, 21, ("SUSPECT", "HUNG")),
        kind="deadlock",
        no_util=True,
        high_confidence=False,
        kinds=("nvidia",),
    ),
    Scenario("U17", "U6 for 7 min, then resumes", u17, 6, ("SUSPECT", "ALIVE"), kinds=("nvidia",)),
    Scenario("U18", "U1 under a wrapper with a log tail", u18, 11, ("HUNG",), kind="spin", kinds=("nvidia",)),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def usual_weather(scenario: Scenario, rng: random.Random) -> Weather:
    """The jitter that every trace has."""
    return Weather(
        interval_s=15.0,
        jitter_s=rng.uniform(0, 1.5),
        dropped=rng.uniform(0, 0.08),
        stale=rng.uniform(0, 0.08),
        limit_w=rng.choice((250.0, 300.0, 400.0, 700.0)),
        idle_share=rng.uniform(0.10, 0.15),
        no_util=scenario.no_util,
        power_noise=rng.uniform(0, 0.04),
        integers=rng.random() < 0.5,
    )


def harsh_weather(scenario: Scenario, rng: random.Random) -> Weather:
    """Whatever may come besides: readings that are missing, noise, drift, a card that is not seen for minutes."""

    def sometimes(share: float) -> bool:
        return rng.random() < share

    return Weather(
        interval_s=rng.choice((5.0, 10.0, 15.0, 15.0, 30.0, 60.0)),
        jitter_s=rng.uniform(0, 3),
        util_gauss=sometimes(0.3),
        dropped=rng.uniform(0, 0.15),
        stale=rng.uniform(0, 0.15),
        limit_w=rng.choice((150.0, 300.0, 400.0, 700.0, 1000.0)),
        idle_share=rng.uniform(0.10, 0.30),
        power_noise=rng.uniform(0, 0.10),
        drift=rng.uniform(0, 0.1),
        no_util=scenario.no_util,
        no_power=sometimes(0.15),
        no_mem=sometimes(0.2),
        no_fabric=sometimes(0.2),
        no_log=sometimes(0.1),
        no_wchan=sometimes(0.2),
        no_net=sometimes(0.1) and scenario.name != "H12",
        no_limit=sometimes(0.15),
        dark_s=0.0 if scenario.name == "U17" else rng.choice((0.0, 0.0, 180.0, 400.0)),
        other_net=rng.choice((0.0, 20e3, 300e3)),
        integers=sometimes(0.5),
    )
