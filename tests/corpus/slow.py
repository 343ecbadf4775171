"""Ranks that keep their peers waiting (L), and jobs of which that must not be said (E): steps of seconds, so that each
reading of a card falls somewhere into one.

`python -m tests.corpus --slow` says of all scenarios how often a rank was SLOW.
"""

import bisect
import functools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from muster.probes.hang import Detector, HangSettings
from muster.probes.hang.dump_schedule import DUMPS
from muster.probes.hang.hang_records import Record, read
from muster.probes.hang.slow import SlowChange, SlowRule, SlowVerdict
from tests.corpus.measure import DELAY_S, dumps_between, trace
from tests.corpus.physics import FUTEX, LINE, POLL, SLEEP, Act, Curve, Play, Spell, between, dump
from tests.corpus.scenarios import MINUTE, SCENARIOS, Scenario, Setting, Told, asleep, spin
from tests.corpus.stacked import STACKED, at
from tests.corpus.variations import VARIATIONS

#: What a rank does in a phase: utilization and power (share of the limit; 0: idle).
Phase = tuple[float, float]


@dataclass(frozen=True)
class Step:
    """A step of one rank: its phases, each a share of the step. What is left of the step it waits on its card."""

    phases: Sequence[tuple[float, Phase]]


#: By how much the length of a step differs from that of the others.
_UNEVEN = 0.1


def _begins(s: Setting, step_s: float) -> list[float]:
    """When the steps of four hours begin."""
    begins = [0.0]
    while begins[-1] < 240 * MINUTE:
        begins.append(begins[-1] + step_s * s.rng.uniform(1 - _UNEVEN, 1 + _UNEVEN))
    return begins


def _curves(s: Setting, begins: Sequence[float], steps: Sequence[Step]) -> tuple[Curve, Curve]:
    """Utilization and power of a rank that does these steps in turn."""

    def phase(seconds: float) -> Phase:
        number = bisect.bisect_right(begins, seconds) - 1
        left = (seconds - begins[number]) / (begins[number + 1] - begins[number])
        for share, found in steps[number % len(steps)].phases:
            if left < share:
                return found
            left -= share
        return 100.0, s.spin_power

    return (lambda t, _rng: phase(t)[0]), (lambda t, _rng: phase(t)[1])


def _in_step(s: Setting, *ranks: Sequence[Step], least_s: float = 2.0) -> list[Act]:
    """All ranks do their steps together; the last one is that of all that are left."""
    fabric, cpu = s.rng.uniform(0.3e9, 3e9), s.rng.uniform(0.9, 1.3)
    begins = _begins(s, s.rng.uniform(least_s, max(40.0, 1.5 * least_s)))
    acts = []
    for r in range(s.ranks):
        util, power = _curves(s, begins, ranks[min(r, len(ranks) - 1)])
        acts.append(Act(util=util, powers=power, mem=20.0, fabric=fabric, cpu=cpu, log=LINE / 30, state="R"))
    return acts


def _work(s: Setting, share: float) -> Step:
    """Work for this share of the step."""
    return Step([(share, (100.0, s.work_power))])


def _even(s: Setting) -> list[Act]:
    """All ranks take the same time, and wait for each other for a tenth of it."""
    return _in_step(s, [_work(s, 0.9)])


def _then(s: Setting, *parts: tuple[float, list[Act]]) -> list[list[Spell]]:
    """These acts of all ranks, one part after the other, each so many minutes long."""
    ranks: list[list[Spell]] = [[] for _ in range(s.ranks)]
    begin = 0.0
    for minutes, acts in parts:
        for mine, act in zip(ranks, acts, strict=True):
            mine.append(Spell(begin, act))
        begin += minutes * MINUTE
    return ranks


def _slow_from(s: Setting, acts: Callable[[int], list[Act]], again: bool) -> Told:
    """Even steps, then those of `acts`, which takes the number of the slow rank; then even ones again."""
    before, rank = s.rng.uniform(12, 30), s.rng.randrange(s.ranks)
    even = _even(s)
    parts = [(before, even), (40.0, acts(rank))] + ([(40.0, even)] if again else [])
    ranks = _then(s, *parts)
    return Told(Play(ranks, sum(part[0] for part in parts) * MINUTE, kind=s.kind), before * MINUTE, rank)


def throttled_card(s: Setting) -> Told:
    """A card is throttled: its work takes twice to five times as long, at less power"""
    factor = s.rng.uniform(2.0, 5.0)
    slow = Step([(1.0, (100.0, max(s.spin_power + 0.05, s.work_power * s.rng.uniform(0.35, 0.8))))])
    fast = _work(s, 1 / factor)
    return _slow_from(
        s, lambda rank: _in_step(s, *[[slow] if r == rank else [fast] for r in range(s.ranks)]), again=True
    )


def slow_input(s: Setting) -> Told:
    """A rank waits for its data while its card idles; its peers wait for it"""
    share = 1 / s.rng.uniform(2.0, 5.0)
    late, fast = Step([(1 - share, (0.0, 0.0)), (1.0, (100.0, s.work_power))]), _work(s, share)
    return _slow_from(
        s, lambda rank: _in_step(s, *[[late] if r == rank else [fast] for r in range(s.ranks)]), again=True
    )


def slow_with_stacks(s: Setting) -> Told:
    """No cards: steps of minutes, for most of which the peers wait for one rank, as stacks show"""
    rank, begin = s.rng.randrange(s.ranks), 20 * MINUTE
    ranks: list[list[Spell]] = [[] for _ in range(s.ranks)]
    works = Act(cpu=1.0, state="R", log=LINE / 5)
    for mine in ranks:
        mine.append(Spell(0, works))
    now, wait = begin, s.rng.uniform(6, 8)
    while now < begin + 90 * MINUTE:
        for r, mine in enumerate(ranks):
            computes = at(Act(cpu=0.99, state="R"), "torch-evaluates")
            mine.append(Spell(now, computes if r == rank else at(asleep(cpu=0.002), "torch-reduce")))
            mine.append(Spell(now + wait * MINUTE, works))
        now += (wait + 4.5) * MINUTE
    return Told(Play(ranks, now, kind=s.kind), begin, rank)


def _host(s: Setting, *steps: Sequence[tuple[float, str, Act]], log: float = LINE / 5) -> list[list[Spell]]:
    """Ranks without cards in steps of a second, each of which is a number of parts, one after the other: the share of
    the step, the stack, and the act at which it is seen then; for the rest of the step it waits in a collective. The
    last one is that of all that are left."""
    step_s, ranks = s.rng.uniform(0.3, 2.0), []
    rates = [s.rng.uniform(0.02, 1.0) for _ in range(s.ranks)]

    def seen(parts: Sequence[tuple[float, str, Act]], t: float) -> Act:
        # Not at a multiple of the distance of records.
        left = random.Random(f"{t:.2f} {step_s}").random()
        for share, life, act in parts:
            if left < share:
                return at_times(act, life, t / step_s)
            left -= share
        return at_times(WAITS, "torch-reduce", t / step_s)

    for r in range(s.ranks):
        parts = steps[min(r, len(steps) - 1)]
        act = Act(cpu=rates[r], log=log if r == 0 else 0.0, seen=functools.partial(seen, parts))
        ranks.append([Spell(0, act)])
    return ranks


WORKS, NAPS, WAITS = Act(state="R"), asleep(SLEEP), asleep(FUTEX)


def at_times(act: Act, life: str, times: float) -> Act:
    """The same with its stack, in the middle of a run that has waited so often."""
    first = replace(at(act, life).stacks[0], switches=int(2 * times))
    return replace(act, stacks=(first,))


def slow_host(s: Setting) -> Told:
    """No cards: short steps in which one rank computes, sleeps or loads twice to 50 times as long as its peers"""
    rank, share = s.rng.randrange(s.ranks), 1 / s.rng.uniform(2.0, 50.0)
    odd = s.rng.choice((("torch-evaluates", WORKS), ("torch-guilty_sleep", NAPS), ("torch-loads", asleep(POLL))))
    slow, fast = [(1.0, *odd)], [(share, "torch-evaluates", WORKS)]
    ranks, even = _host(s, *[slow if r == rank else fast for r in range(s.ranks)]), _host(s, fast)
    for mine, alike in zip(ranks, even, strict=True):
        mine[:] = [
            Spell(0, alike[0].act),
            Spell(10 * MINUTE, mine[0].act),
            Spell(40 * MINUTE, alike[0].act),
        ]
    return Told(Play(ranks, 60 * MINUTE, kind=s.kind), 10 * MINUTE, rank)


def even_host(s: Setting) -> Told:
    """No cards: short steps of the same length"""
    share = s.rng.uniform(0.3, 0.95)
    return Told(Play(_host(s, [(share, "torch-evaluates", WORKS)]), 60 * MINUTE, kind=s.kind))


def host_rank_0_saves(s: Setting) -> Told:
    """No cards: rank 0 writes logs and checkpoints for a part of each step, its peers wait for it"""
    share = s.rng.uniform(0.05, 0.25)
    saves = ("torch-saves", Act(state="D", wchan="folio_wait_writeback"))
    works = (1 - share, "torch-evaluates", WORKS)
    return Told(Play(_host(s, [works, (1.0, *saves)], [works], log=LINE * 5), 60 * MINUTE, kind=s.kind))


def host_loader(s: Setting) -> Told:
    """No cards: one rank waits for its data for most of each step, its peers compute as long"""
    share = s.rng.uniform(0.8, 1.0)
    loads = [(share * 0.8, "torch-loads", asleep(POLL)), (share * 0.2, "torch-evaluates", WORKS)]
    return Told(Play(_host(s, loads, [(share, "torch-evaluates", WORKS)]), 60 * MINUTE, kind=s.kind))


def host_in_turn(s: Setting) -> Told:
    """No cards: in each step another rank takes twice to ten times as long"""
    share, ranks = 1 / s.rng.uniform(2.0, 10.0), s.ranks
    acts = _host(s, [(share, "torch-evaluates", WORKS)])

    def seen(rank: int, t: float) -> Act:
        rng = random.Random(f"{t:.2f}")
        works = rng.randrange(ranks) == rank or rng.random() < share
        return at_times(WORKS, "torch-evaluates", t) if works else at_times(WAITS, "torch-reduce", t)

    for r, spells in enumerate(acts):
        spells[0] = Spell(0, replace(spells[0].act, seen=functools.partial(seen, r)))
    return Told(Play(acts, 60 * MINUTE, kind=s.kind))


def host_server(s: Setting) -> Told:
    """No cards: an inference server: rank 0 waits for requests, the others for work in queues of their own"""
    share = s.rng.uniform(0.0, 0.3)
    busy = (share, "torch-evaluates", WORKS)
    first = [busy, (1.0, "alone-asyncio", asleep("do_epoll_wait"))]
    others = [busy, (1.0, s.rng.choice(("torch-queue", "alone-event", "torch-reduce")), WAITS)]
    return Told(Play(_host(s, first, others), 60 * MINUTE, kind=s.kind))


def host_evaluates(s: Setting) -> Told:
    """No cards: rank 0 evaluates for one to three minutes, each quarter of an hour; the others wait for it"""
    share = s.rng.uniform(0.5, 0.95)
    ranks, now = _host(s, [(share, "torch-evaluates", WORKS)]), 10 * MINUTE
    even = [spells[0].act for spells in ranks]
    while now < 55 * MINUTE:
        wait = s.rng.uniform(1, 3) * MINUTE
        for r, spells in enumerate(ranks):
            waits = at(asleep(cpu=0.002), "torch-reduce")
            spells.append(Spell(now, at(Act(cpu=0.99, state="R"), "torch-evaluates") if r == 0 else waits))
            spells.append(Spell(now + wait, even[r]))
        now += 15 * MINUTE
    return Told(Play(ranks, 60 * MINUTE, kind=s.kind))


def _means(s: Setting, share: float, idle: float, fabric: float, first: int) -> list[Act]:
    """What cards show of steps that are far shorter than a reading: the mean. All work for this share of the step; rank
    `first` idles for `idle` of it, the others wait, as it does for the rest."""
    acts = []
    for r in range(s.ranks):
        rests = idle if r == first else 0.0
        power = share * s.work_power + (1 - share - rests) * s.spin_power + rests * 0.13
        util = between(100 * (1 - rests) - 4, min(100.0, 100 * (1 - rests) + 4)) if rests else between(98, 100)
        acts.append(Act(util=util, power=power, mem=20.0, fabric=fabric, cpu=1.0, log=LINE / 30, state="R"))
    return acts


def short_steps(s: Setting) -> Told:
    """Steps of a part of a second, for which one rank gets its data late: its card idles for a part of each"""
    factor, fabric = s.rng.uniform(1.8, 5.0), s.rng.uniform(0.3e9, 3e9)
    before, rank = s.rng.uniform(12, 30), s.rng.randrange(s.ranks)
    even = _means(s, 0.92, 0.0, fabric, rank)
    late = _means(s, 0.92 / factor, 1 - 1 / factor, fabric / factor, rank)
    ranks = _then(s, (before, even), (40.0, late), (40.0, even))
    return Told(Play(ranks, (before + 80) * MINUTE, kind=s.kind), before * MINUTE, rank)


def uneven_by_design(s: Setting) -> Told:
    """Short steps in which the cards of one rank have less to do, by design: a critic, a last stage, a server"""
    acts = _means(s, s.rng.uniform(0.4, 0.9), s.rng.uniform(0.1, 0.6), s.rng.uniform(0.3e9, 3e9), 0)
    acts = [acts[0], *(replace(act, util=between(98, 100), power=s.work_power * 0.9) for act in acts[1:])]
    return Told(Play(_then(s, (90.0, acts)), 90 * MINUTE, kind=s.kind))


def another_phase(s: Setting) -> Told:
    """Short steps, then another phase of the job with less power on all cards, in which all get their data late"""
    fabric, share = s.rng.uniform(0.3e9, 3e9), s.rng.uniform(0.3, 0.8)
    first = _means(s, 0.92, 0.0, fabric, 0)
    power = share * s.work_power + (1 - share) * 0.13
    second = [replace(act, util=between(100 * share - 5, 100 * share + 5), power=power) for act in first]
    return Told(Play(_then(s, (30.0, first), (60.0, second)), 90 * MINUTE, kind=s.kind))


def even_steps(s: Setting) -> Told:
    """Even steps"""
    return Told(Play(_then(s, (90.0, _even(s))), 90 * MINUTE, kind=s.kind))


def pipeline(s: Setting) -> Told:
    """Stages of a pipeline of which one has up to 1.25 times the work, by design"""
    acts = _in_step(s, [_work(s, 0.9)], [_work(s, 0.9 / s.rng.uniform(1.0, 1.25))])
    return Told(Play(_then(s, (90.0, acts)), 90 * MINUTE, kind=s.kind))


def one_after_the_other(s: Setting) -> Told:
    """A pipeline of one batch: one stage computes at a time, all others wait for it"""
    share, spins, works = 1 / s.ranks, (100.0, s.spin_power), (100.0, s.work_power)
    acts = _in_step(s, *[[Step([(r * share, spins), (share, works)])] for r in range(s.ranks)], least_s=4)
    return Told(Play(_then(s, (90.0, acts)), 90 * MINUTE, kind=s.kind))


def in_turn(s: Setting) -> Told:
    """Each step another rank has twice the work: uneven batches, experts"""
    steps = [[_work(s, 1.0 if n == r else 0.5) for n in range(s.ranks)] for r in range(s.ranks)]
    return Told(Play(_then(s, (90.0, _in_step(s, *steps))), 90 * MINUTE, kind=s.kind))


def rank_0_logs(s: Setting) -> Told:
    """Rank 0 logs and evaluates for a part of each minute, its peers wait for it"""
    share = s.rng.uniform(0.05, 0.25)
    rest = s.rng.choice(((0.0, 0.0), (60.0, 0.5 * s.work_power)))
    first = Step([(1 - share, (100.0, s.work_power)), (1.0, rest)])
    acts = _in_step(s, [first], [_work(s, 1 - share)], least_s=20)
    return Told(Play(_then(s, (90.0, acts)), 90 * MINUTE, kind=s.kind))


def independent(s: Setting) -> Told:
    """Ranks that have nothing to do with each other, some of which idle a lot, or run small kernels"""
    ranks = []
    for _ in range(s.ranks):
        begins = _begins(s, s.rng.uniform(2, 60))
        rest = s.rng.choice(((0.0, 0.0), (99.0, s.spin_power * 1.2)))
        step = Step([(s.rng.uniform(0.2, 1.0), (100.0, s.work_power)), (1.0, rest)])
        util, power = _curves(s, begins, [step])
        ranks.append([Spell(0, Act(util=util, powers=power, mem=20.0, cpu=1.0, log=LINE / 30, state="R"))])
    return Told(Play(ranks, 90 * MINUTE, kind=s.kind))


def short_saves(s: Setting) -> Told:
    """Rank 0 saves for up to a minute, each five to ten minutes"""
    even, save = _even(s), Act(cpu=0.5, write=50e6, state="D", wchan="folio_wait_writeback")
    waits = replace(spin(s), mem=0.0)
    parts: list[tuple[float, list[Act]]] = []
    for _ in range(12):
        parts += [(s.rng.uniform(5, 10), even), (s.rng.uniform(0.2, 1.0), [save] + [waits] * (s.ranks - 1))]
    return Told(Play(_then(s, *parts), sum(part[0] for part in parts) * MINUTE, kind=s.kind))


def shared_cards(s: Setting) -> Told:
    """Another load on all cards, so that nothing waits at little power"""
    step = Step([(0.6, (100.0, s.work_power)), (1.0, (100.0, 0.7 * s.work_power))])
    acts = [replace(act, util=between(90, 100)) for act in _in_step(s, [step])]
    return Told(Play(_then(s, (90.0, acts)), 90 * MINUTE, kind=s.kind))


def _life(name: str, make: Callable[[Setting], Told], ranks: Sequence[int] = (2, 4, 8), **more: object) -> Scenario:
    return Scenario(name, make.__doc__ or "", make, None, (), ranks=tuple(ranks), **more)  # type: ignore[arg-type]


SLOW = (
    _life("L1", throttled_card),
    _life("L2", slow_input, kinds=("nvidia",)),
    _life("L4", short_steps, kinds=("nvidia",)),
    _life("L3", slow_with_stacks, ranks=(3, 4, 8), weather={"no_cards": True}),
    _life("L5", slow_host, ranks=(2, 3, 8), weather={"no_cards": True}),
)
EVEN = tuple(
    _life(f"E{number}", make)
    for number, make in enumerate(
        (
            even_steps,
            pipeline,
            one_after_the_other,
            in_turn,
            rank_0_logs,
            independent,
            short_saves,
            shared_cards,
            uneven_by_design,
            another_phase,
        ),
        1,
    )
) + tuple(
    _life(f"E{number}", make, ranks=(2, 3, 8), weather={"no_cards": True})
    for number, make in enumerate(
        (even_host, host_rank_0_saves, host_loader, host_in_turn, host_server, host_evaluates), 11
    )
)


ALL = {scenario.name: scenario for scenario in (*SLOW, *EVEN, *SCENARIOS, *VARIATIONS, *STACKED)}


@dataclass(frozen=True)
class SlowOutcome:
    """Of one run: what was said, and what of it is wrong, or empty. `delay_min` from the onset to SLOW."""

    scenario: str
    seed: int
    changes: tuple[SlowChange, ...]
    delay_min: float | None
    wrong: str


def sampled(rule: SlowRule, play: Play, begin: float, seen: Iterable[Record]) -> Iterator[Record]:
    """The records with the dumps that the rule wants; it must be fed each of them before the next."""
    due: list[float] = []
    for record in seen:
        taken = [time for time in due if time <= record.t]
        due = [time for time in due if time > record.t]
        samples = [stack for time in taken for stack in dump(play, time - begin, time)]
        yield replace(record, samples=tuple(samples))
        if rule.wants_samples:
            due = [record.t + DELAY_S + number * HangSettings().stacks_apart_s for number in range(DUMPS)]


def run_slow(scenario: Scenario, seed: int, *, harsh: bool = False) -> SlowOutcome:
    """One seed of a scenario: of those in SLOW the rank must be named, and no other; of any other none."""
    told, lines = trace(scenario, seed, harsh=harsh)
    hang, rule, settings = Detector(), SlowRule(), HangSettings()
    changes = []
    seen = [read(line) for line in lines]
    for record in sampled(rule, told.play, seen[0].t, dumps_between(hang, told.play, seen)):
        hang.feed(record)
        if (change := rule.feed(record, hang.job, settings)) is not None:
            changes.append(change)
    said = [change for change in changes if change.verdict is SlowVerdict.SLOW]
    if scenario not in SLOW:
        wrong = f"SLOW: {said[0].ranks}" if said else ""
        return SlowOutcome(scenario.name, seed, tuple(changes), None, wrong)
    assert told.onset is not None and told.culprit is not None
    begin = lines[0]["t"] + told.onset
    wrong = ""
    if not said:
        wrong = "not told"
    elif other := next((change for change in said if change.ranks != (told.culprit,)), None):
        wrong = f"names {other.ranks} instead of {told.culprit}"
    elif said[0].t < begin:
        wrong = "SLOW before the onset"
    elif scenario.name != "L3" and rule.ranks:
        wrong = "still SLOW at the end"
    delay = (said[0].t - begin) / 60 if said else None
    return SlowOutcome(scenario.name, seed, tuple(changes), delay, wrong)
