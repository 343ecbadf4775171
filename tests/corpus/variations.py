"""Beyond the 34 scenarios: what a training job also does without being hung, and hangs after work of other shapes."""

from dataclasses import replace

from tests.corpus.physics import FUTEX, LINE, POLL, SLEEP, Act, Extra, Play, Spell, between, bursts, flat
from tests.corpus.scenarios import MB, MINUTE, Scenario, Setting, Told, asleep, spin, work


def _cycle(s: Setting, minutes: float, *spells: tuple[float, Act, Act]) -> Told:
    """These spells (minutes, of rank 0, of its peers) again and again."""
    ranks: list[list[Spell]] = [[] for _ in range(s.ranks)]
    at = 0.0
    while at < minutes * MINUTE:
        for length, first, others in spells:
            for r, mine in enumerate(ranks):
                mine.append(Spell(at, first if r == 0 else others))
            at += length * MINUTE * s.rng.uniform(0.8, 1.2)
    return Told(Play(ranks, at, kind=s.kind))


def checkpoints(s: Setting) -> Told:
    """Rank 0 saves for minutes, on and on; its peers wait on their cards."""
    act = work(s)
    save = Act(cpu=0.5, write=s.rng.uniform(5, 60) * MB, state="D", wchan="folio_wait_writeback")
    peers = spin(s) if s.rng.random() < 0.7 else asleep()
    return _cycle(s, 150, (s.rng.uniform(8, 25), act, act), (s.rng.uniform(1, 6), save, peers))


def slow_save(s: Setting) -> Told:
    """A save that ends in a silent flush to a file server: D for up to 20 minutes after gigabytes were written."""
    act = work(s)
    write = Act(cpu=0.5, write=60 * MB, state="D", wchan="rpc_wait_bit_killable")
    flush = Act(state="D", wchan="nfs_wait_bit_killable")
    peers = spin(s)
    return _cycle(s, 120, (20, act, act), (2, write, peers), (15, flush, peers))


def evaluation(s: Setting) -> Told:
    """Another load on the cards: less power, less memory traffic, no fabric; nothing is written for its time."""
    act = work(s)
    curve = s.rng.choice((flat(100), between(20, 90), bursts(60, 30, 0.5)))
    power = max(s.spin_power + 0.06, s.work_power * s.rng.uniform(0.3, 0.9))
    other = Act(util=curve, power=power, mem=s.rng.uniform(6, 30), cpu=1.0, state="R")
    return _cycle(s, 150, (s.rng.uniform(10, 30), act, act), (s.rng.uniform(5, 25), other, other))


def evaluation_on_one(s: Setting) -> Told:
    """Rank 0 evaluates for up to 40 minutes, its peers wait for it."""
    act = work(s)
    other = Act(
        util=s.rng.choice((between(20, 90), flat(97))), power=0.6 * s.work_power + 0.1, mem=20, cpu=1.0, state="R"
    )
    return _cycle(s, 150, (15, act, act), (s.rng.uniform(10, 40), other, spin(s)))


def evaluation_on_host(s: Setting) -> Told:
    """A metric on the CPU, for up to 40 minutes, in memory."""
    act = work(s)
    host = Act(cpu=s.rng.uniform(0.8, 8.0), state="R")
    return _cycle(s, 150, (15, act, act), (s.rng.uniform(10, 40), host, s.rng.choice((asleep(), host, spin(s)))))


def small_kernels_on_one(s: Setting) -> Told:
    """Rank 0 evaluates with small kernels, at less than half of its power; its peers wait for it."""
    act = work(s)
    power = s.rng.uniform(min(1.7 * s.spin_power, 0.48 * s.work_power), 0.48 * s.work_power)
    other = Act(
        util=flat(99), power=power, mem=s.rng.uniform(2, 3), cpu=1.0, state="R", log=LINE / s.rng.uniform(5, 40)
    )
    return _cycle(s, 150, (15, act, act), (s.rng.uniform(10, 40), other, spin(s)))


def small_kernels(s: Setting) -> Told:
    """One card, and long phases of small kernels, at less than half of its power, that log."""
    act = replace(work(s), log=LINE / 30)
    power = s.rng.uniform(min(1.3 * s.spin_power, 0.6 * s.work_power), 0.6 * s.work_power)
    other = Act(util=flat(99), power=power, mem=0.5, cpu=1.0, state="R", log=LINE / s.rng.uniform(5, 40), write=600)
    return _cycle(s, 150, (15, act, act), (s.rng.uniform(10, 40), other, other))


def long_on_host(s: Setting) -> Told:
    """More than an hour on the CPU in the middle of a job, with a line of log a minute."""
    act = work(s)
    host = Act(cpu=s.rng.uniform(0.8, 8.0), state="R", log=LINE / s.rng.uniform(20, 60))
    return _cycle(s, 200, (20, act, act), (s.rng.uniform(70, 90), host, s.rng.choice((asleep(), host, spin(s)))))


def paused_child(s: Setting) -> Told:
    """A child that the program keeps stopped, while its rank computes on the CPU for up to 40 minutes."""
    told = evaluation_on_host(s)
    return replace(told, play=replace(told.play, extras=[Extra(0, state="T")]))


def warm_up(s: Setting) -> Told:
    """Half an hour of compilation and small steps, with more and more power."""
    ranks: list[list[Spell]] = [[] for _ in range(s.ranks)]
    for step in range(10):
        share = 0.2 + 0.08 * step
        act = Act(
            util=bursts(100, 90, share) if step < 6 else flat(100),
            power=max(s.spin_power, s.work_power * share),
            mem=4 + 3 * step,
            fabric=1e8 * step if s.ranks > 1 else 0.0,
            cpu=2.0,
            read=1e5,
            state="R",
        )
        for mine in ranks:
            mine.append(Spell(step * 180.0, act))
    for mine in ranks:
        mine.append(Spell(1800, work(s)))
    return Told(Play(ranks, 5400, kind=s.kind))


def throttled(s: Setting) -> Told:
    """Cards get hot and slower by and by: half of the power in the end, and all else less in proportion."""
    first = replace(work(s), util=flat(100), mem=40.0)
    ranks: list[list[Spell]] = [[] for _ in range(s.ranks)]
    for step in range(30):
        share = 1 - 0.5 * step / 29
        act = replace(first, power=max(s.spin_power, s.work_power * share), mem=40 * share, fabric=first.fabric * share)
        for mine in ranks:
            mine.append(Spell(step * 240.0, act))
    return Told(Play(ranks, 7200, kind=s.kind))


def waits_for_data(s: Setting) -> Told:
    """The loaders are slow: cards idle for up to 20 minutes while files are read."""
    act = work(s)
    loads = Act(cpu=s.rng.uniform(0.02, 0.3), read=s.rng.uniform(0.1, 20) * MB, wchan=POLL)
    return _cycle(s, 120, (s.rng.uniform(2, 20), act, act), (s.rng.uniform(5, 20), loads, asleep()))


def idle_cards(s: Setting) -> Told:
    """Half of the job's cards are never used."""
    act, ranks = work(s), s.ranks
    spells = [[Spell(0, act if r < ranks / 2 else asleep(FUTEX, 0.001))] for r in range(ranks)]
    return Told(Play(spells, 6000, kind=s.kind))


def short_waits(s: Setting) -> Told:
    """Cards that wait for a barrier for up to 9 minutes, on and on, with nobody at work on this node: for another."""
    act = work(s)
    waits = s.rng.choice((spin(s), asleep())) if s.kind == "nvidia" else spin(s)
    return _cycle(s, 150, (s.rng.uniform(3, 20), act, act), (s.rng.uniform(2, 7.5), waits, waits))


def short_sleeps(s: Setting) -> Told:
    """Ranks of one node that wait for something outside of the job for up to 9 minutes, on and on."""
    act, waits = work(s), asleep(FUTEX if s.kind == "nvidia" else POLL)
    return _cycle(s, 150, (s.rng.uniform(3, 20), act, act), (s.rng.uniform(2, 7.5), waits, waits))


def short_retries(s: Setting) -> Told:
    """Ranks that wait for something outside of the job for up to 15 minutes, and write a line of log now and then."""
    act, line = work(s), LINE / s.rng.choice((5, 15, 30))
    waits = replace(asleep(s.rng.choice((SLEEP, POLL)), cpu=0.01), log=line)
    return _cycle(s, 150, (s.rng.uniform(3, 20), act, act), (s.rng.uniform(2, 15), waits, waits))


def one_polls(s: Setting) -> Told:
    """All cards wait for up to 9 minutes, and one rank's program waits for a socket or a child."""
    act, waits = work(s), spin(s)
    sends = replace(waits, wchan=s.rng.choice((POLL, "do_wait", "sk_wait_data", SLEEP)))
    return _cycle(s, 150, (s.rng.uniform(4, 20), act, act), (s.rng.uniform(2, 7.5), sends, waits))


def workers_compile(s: Setting) -> Told:
    """All cards wait for up to 9 minutes, and processes of one rank compile for it."""
    act, waits = work(s), spin(s)
    told = _cycle(s, 150, (s.rng.uniform(4, 20), act, act), (s.rng.uniform(2, 7.5), waits, waits))
    spells = told.play.ranks[0]
    ends = [*(spell.at for spell in spells[1:]), told.play.end]
    told.play.extras[:] = [
        Extra(0, cpu=0.7, start_s=spell.at, end_s=end, state="R")
        for spell, end in zip(spells, ends, strict=True)
        if spell.act is waits
    ]
    return told


def small_kernels_on_all(s: Setting) -> Told:
    """All ranks evaluate with very small kernels, at the power of waiting, for up to 9 minutes without a line."""
    act = replace(work(s), log=LINE / 30)
    power = s.spin_power * s.rng.uniform(1.0, 1.3)
    other = Act(util=flat(100), power=power, mem=0.5, cpu=1.0, state="R", log=LINE / 600)
    return _cycle(s, 150, (s.rng.uniform(5, 15), act, act), (s.rng.uniform(2, 7.5), other, other))


def _after(s: Setting, act: Act, hangs: Act) -> Told:
    """This work for a while, then this for good."""
    until = s.rng.uniform(6, 40) * MINUTE
    return Told(
        Play([[Spell(0, act), Spell(until, hangs)] for _ in range(s.ranks)], until + 16 * MINUTE, [], s.kind), until
    )


def bursts_then_sleep(s: Setting) -> Told:
    """A deadlock after work whose cards pause for more than half of the time."""
    act = replace(work(s), util=bursts(95, s.rng.uniform(30, 90), s.rng.uniform(0.35, 0.5)))
    return _after(s, act, asleep())


def little_then_spin(s: Setting) -> Told:
    """A spin after work at little more than twice the power of waiting, or less."""
    act = replace(work(s), util=between(40, 100), power=s.spin_power * s.rng.uniform(1.8, 2.2), mem=20.0, fabric=1e9)
    return _after(s, act, spin(s))


VARIATIONS = tuple(
    Scenario(
        f"V{number}", (make.__doc__ or "").partition(":")[0].partition(";")[0].rstrip("."), make, None, (), ranks=ranks
    )
    for number, (make, ranks) in enumerate(
        (
            (checkpoints, (1, 2, 8)),
            (slow_save, (1, 2, 8)),
            (evaluation, (1, 2, 8)),
            (evaluation_on_one, (2, 8)),
            (evaluation_on_host, (1, 2, 8)),
            (warm_up, (1, 2, 8)),
            (throttled, (1, 2, 8)),
            (waits_for_data, (1, 2, 8)),
            (idle_cards, (2, 8)),
            (short_waits, (1, 2, 8)),
            (small_kernels_on_one, (2, 8)),
            (small_kernels, (1,)),
            (long_on_host, (1, 2, 8)),
            (paused_child, (1, 2, 8)),
            (short_sleeps, (1, 2, 8)),
            (one_polls, (2, 8)),
            (workers_compile, (2, 8)),
            (small_kernels_on_all, (2, 8)),
            (short_retries, (1, 2, 8)),
        ),
        1,
    )
)
_OTHER_NODES = {"V10": {"nodes": 2}}
VARIATIONS = (
    *(replace(one, weather=_OTHER_NODES.get(one.name, {})) for one in VARIATIONS),
    Scenario(
        "W1", "A deadlock after work in bursts", bursts_then_sleep, 11, ("HUNG",), kind="deadlock", kinds=("nvidia",)
    ),
    Scenario("W2", "A spin at half the power of work", little_then_spin, 12, ("HUNG",), kind="spin", ranks=(2, 8)),
)
