"""Plays a scenario, runs a rule over its telemetry, and compares what is said with what must be said."""

import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.probes.hang import Change, Detector, HangSettings, HangVerdict, PlainDetector, detector
from muster.probes.hang.dump_schedule import dump_times
from muster.probes.hang.hang_records import Record, read
from muster.probes.waits import RankStack
from tests.corpus.log_rule import LogRule
from tests.corpus.physics import Play, asked, dump, records
from tests.corpus.scenarios import Scenario, Setting, Told, harsh_weather, usual_weather

#: Seconds that a dump takes.
DELAY_S = 0.5
#: Seconds that two looks at a communication library take.
LIBRARY_S = 20.0
#: Verdicts of which the last that a scenario has counts for its delay.
_GRAVE = ("SUSPECT", "HUNG", "DRIVER_HANG")
#: Minutes that bad readings may add to a delay.
HARSH_MIN = 32.0


@dataclass(frozen=True)
class Outcome:
    """Of one run. `delay_min` from the onset to the verdict that counts, None where it was not told. `wrong`: what is
    not as the table wants it, or empty."""

    scenario: str
    seed: int
    harsh: bool
    hung: bool
    delay_min: float | None
    verdicts: tuple[str, ...]
    wrong: str
    #: Minutes from the onset to the first SUSPECT (HUNG where there is none before), and to HUNG.
    suspect_min: float = math.inf
    hung_min: float = math.inf
    #: How often it was SUSPECT.
    suspected: int = 0


def trace(scenario: Scenario, seed: int, *, harsh: bool = False) -> tuple[Told, list[dict[str, Any]]]:
    """What happens, and its telemetry."""
    rng = random.Random(f"{scenario.name} {seed} {harsh}")
    weather = replace((harsh_weather if harsh else usual_weather)(scenario, rng), **scenario.weather)
    power = rng.uniform(0.6, 0.95) if weather.idle_share < 0.2 else rng.uniform(0.7, 0.95)
    setting = Setting(
        ranks=rng.choice(scenario.ranks),
        kind=rng.choice(scenario.kinds),
        rng=rng,
        work_power=power,
        spin_power=max(0.15, weather.idle_share + rng.uniform(0.0, 0.03)),
    )
    told = scenario.make(setting)
    if harsh and scenario.within_min is not None and scenario.name not in ("U15", "U17"):
        told.play.end += HARSH_MIN * 60
    return told, list(records(told.play, weather, rng))


def run(scenario: Scenario, seed: int, rule: HangSettings | Callable[[], LogRule], *, harsh: bool = False) -> Outcome:
    """One seed of a scenario."""
    told, lines = trace(scenario, seed, harsh=harsh)
    found = detector(rule) if isinstance(rule, HangSettings) else rule()
    changes = list(changes_of(found, told.play, [read(line) for line in lines]))
    begin = lines[0]["t"]
    onset = None if told.onset is None else begin + told.onset
    return judge(scenario, seed, changes, onset, told.culprit, harsh=harsh)


def changes_of(found: Detector | PlainDetector | LogRule, play: Play, seen: Sequence[Record]) -> Iterator[Change]:
    """What a detector says of these records of a play, with dumps of stacks where and when the daemon takes some."""
    for record in dumps_between(found, play, seen):
        yield from found.feed(record)


def dumps_between(found: Detector | PlainDetector | LogRule, play: Play, seen: Sequence[Record]) -> Iterator[Record]:
    """The records with the dumps that the daemon takes; the detector must be fed each of them before the next."""
    begin, since, suspected = seen[0].t, 0.0, math.inf
    after: float | None = None
    due: Iterator[float] = iter(())
    for record in seen:
        stacks: list[RankStack] = []
        while after is not None and since + after <= record.t:
            stacks += dump(play, since + after - begin, since + after)
            after = next(due)
        said = None
        if found.verdict is HangVerdict.SUSPECT and record.t - suspected >= LIBRARY_S:
            suspected, said = math.inf, asked(play, record.t - begin, record.t)
        before = found.verdict
        yield replace(record, stacks=tuple(stacks), library=said) if stacks or said else record
        if before is not HangVerdict.SUSPECT:
            suspected = record.t
        if not found.wants_stacks:
            after = None
        elif after is None:
            since, due = record.t + DELAY_S, dump_times(found.settings.stacks_apart_s)
            after = next(due)


def judge(
    scenario: Scenario, seed: int, changes: list[Change], onset: float | None, culprit: int | None, *, harsh: bool
) -> Outcome:
    """What is wrong with these verdicts."""
    said = tuple(str(change.verdict) for change in changes)
    hung = [change for change in changes if change.verdict == "HUNG"]
    times = [c.t for c in changes if c.verdict in ("SUSPECT", "HUNG") and onset is not None and c.t >= onset]
    after = [math.inf if onset is None or not at else (at[0] - onset) / 60 for at in (times, [c.t for c in hung])]
    outcome = functools.partial(
        _outcome, name=scenario.name, seed=seed, harsh=harsh, hung=bool(hung), suspect=after[0], until_hung=after[1]
    )
    if hung and (scenario.within_min is None or scenario.name == "U17"):
        return outcome(None, said, f"false alarm: HUNG {hung[0].kind} at {_minutes(hung[0], onset)}")
    counts = next((verdict for verdict in reversed(scenario.verdicts) if verdict in _GRAVE), "")
    first = next((c for c in changes if c.verdict == counts and (onset is None or c.t >= onset)), None)
    delay = None
    if scenario.within_min is not None:
        assert onset is not None
        if hung and hung[0].t < onset:
            return outcome(None, said, "false alarm: HUNG before the onset")
        if first is None:
            return outcome(None, said, f"missed: no {counts}")
        delay = (first.t - onset) / 60
        if delay > scenario.within_min + (HARSH_MIN if harsh else 0.0):
            return outcome(delay, said, f"late: {delay:.1f} min")
    if harsh:
        return outcome(delay, said, "")
    if scenario.kind and hung and hung[0].kind != scenario.kind:
        return outcome(delay, said, f"HUNG {hung[0].kind} instead of {scenario.kind}")
    if culprit is not None and scenario.kind and hung and hung[0].ranks != (culprit,):
        return outcome(delay, said, f"names ranks {hung[0].ranks} instead of {culprit}")
    surest = max((change.confidence for change in hung), default=0.0)
    if hung and (surest >= HangSettings().action_confidence) != scenario.high_confidence:
        return outcome(delay, said, f"confidence {surest}")
    rest = iter(said)
    if missing := [verdict for verdict in scenario.verdicts if verdict not in rest]:
        return outcome(delay, said, f"{missing[0]} was not told")
    if scenario.may and (more := [verdict for verdict in said if verdict not in scenario.may]):
        return outcome(delay, said, f"told {more[0]}")
    return outcome(delay, said, "")


def _outcome(
    delay: float | None,
    said: tuple[str, ...],
    wrong: str,
    *,
    name: str,
    seed: int,
    harsh: bool,
    hung: bool,
    suspect: float,
    until_hung: float,
) -> Outcome:
    return Outcome(name, seed, harsh, hung, delay, said, wrong, suspect, until_hung, said.count("SUSPECT"))


def for_plain(scenario: Scenario) -> Scenario:
    """The plain rule knows no kinds, no culprits and no other verdicts: it is only asked for HUNG in time."""
    last = scenario.verdicts[-1:] if scenario.verdicts[-1:] == ("HUNG",) else ()
    verdicts = last or (scenario.verdicts if scenario.within_min is not None else ())
    return replace(scenario, kind="", verdicts=verdicts, may=(), high_confidence=True)


def _minutes(change: Change, onset: float | None) -> str:
    return f"{change.t:.0f}" if onset is None else f"{(change.t - onset) / 60:.1f} min"
