"""Ranks that keep their peers waiting (L), and jobs of which that must not be said (E): steps of seconds, so that each
reading of a card falls somewhere into one.

`python -m tests.corpus --slow` says of all scenarios how often a rank was SLOW.
"""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from muster.probes.hang import Detector, HangSettings
from muster.probes.hang.hang_records import read
from muster.probes.hang.slow import SlowChange, SlowRule, SlowVerdict
from tests.corpus.measure import dumps_between, trace
from tests.corpus.physics import LINE, Act, Curve, Play, Spell, between
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


def run_slow(scenario: Scenario, seed: int, *, harsh: bool = False) -> SlowOutcome:
    """One seed of a scenario: of those in SLOW the rank must be named, and no other; of any other none."""
    told, lines = trace(scenario, seed, harsh=harsh)
    hang, rule, settings = Detector(), SlowRule(), HangSettings()
    changes = []
    for record in dumps_between(hang, told.play, [read(line) for line in lines]):
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
