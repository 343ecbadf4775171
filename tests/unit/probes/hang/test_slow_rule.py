"""The rule of slow ranks, on telemetry of jobs with a slow rank and of jobs without; `python -m tests.corpus --slow`
plays more of it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from muster.probes.hang import Detector, HangSettings, Record
from muster.probes.hang.hang_records import CardReading, read
from muster.probes.hang.slow import SlowChange, SlowRule, SlowSettings, SlowVerdict
from tests.corpus.measure import trace
from tests.corpus.scenarios import SCENARIOS, Scenario
from tests.corpus.slow import ALL, EVEN, SLOW, run_slow, sampled
from tests.corpus.variations import VARIATIONS


@pytest.mark.parametrize("scenario", SLOW, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_slow_rank_is_named_and_clears_by_itself(scenario: Scenario, seed: int) -> None:
    assert run_slow(scenario, seed).wrong == ""


@pytest.mark.parametrize(
    "scenario",
    [*EVEN, *(one for one in (*SCENARIOS, *VARIATIONS) if one.within_min is None)],
    ids=lambda scenario: scenario.name,
)
def test_a_healthy_job_has_no_slow_rank(scenario: Scenario) -> None:
    assert run_slow(scenario, 1).wrong == ""


@pytest.mark.parametrize("scenario", EVEN, ids=lambda scenario: scenario.name)
def test_bad_readings_make_no_slow_rank(scenario: Scenario) -> None:
    assert run_slow(scenario, 2, harsh=True).wrong == ""


def records(name: str, seed: int) -> list[Record]:
    return [read(line) for line in trace(ALL[name], seed)[1]]


def told(seen: Sequence[Record], rule: SlowRule | None = None, stored: bool = False) -> list[SlowChange]:
    """What is said; `stored`: of a rule that is stored and goes on with each record."""
    detector, rule, settings = Detector(), rule or SlowRule(), HangSettings()
    changes = []
    for record in seen:
        detector.feed(record)
        if stored:
            rule = SlowRule.restored(json.loads(json.dumps(rule.state())), rule.settings)
        if (change := rule.feed(record, detector.job, settings)) is not None:
            changes.append(change)
    return changes


def test_it_begins_and_ends_and_says_why() -> None:
    begins, ends = told(records("L1", 1))
    assert (begins.verdict, ends.verdict, ends.ranks) == (SlowVerdict.SLOW, SlowVerdict.EVEN, ())
    (rank,) = begins.ranks
    seen = begins.evidence["ranks"][str(rank)]["cards"]
    assert begins.since < begins.t < ends.t
    assert rank not in seen["peers"] and seen["factor"] >= 1.5 and 0 < seen["waited"] <= seen["readings"]
    assert set(begins.evidence["thresholds"]) >= {"window_s", "factor", "min_waits"}
    assert begins.as_dict()["rule"] == "slow"


@pytest.mark.parametrize("name", ["L2", "L4"])
def test_a_rule_that_goes_on_from_its_state_says_the_same(name: str) -> None:
    seen = records(name, 1)
    assert told(seen, stored=True) == told(seen) != []


def test_a_state_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="no state of version"):
        SlowRule.restored({"version": 0})
    with pytest.raises(ValueError, match="damaged"):
        SlowRule.restored({"version": 1, "job": {"looks": 3}})


def test_the_factor_is_a_setting() -> None:
    assert told(records("L1", 1), SlowRule(SlowSettings(factor=20.0))) == []


def test_a_job_of_one_rank_has_no_slow_rank() -> None:
    seen = [replace(record, cards=(record.cards or ())[:1]) for record in records("L1", 1)]
    assert told(seen) == []


def without(card: CardReading, name: str) -> CardReading:
    return replace(card, **{name: None})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["util", "power_w", "rank"])
def test_without_readings_nothing_is_reported(name: str) -> None:
    seen = [
        replace(record, cards=tuple(without(card, name) for card in record.cards or ())) for record in records("L1", 1)
    ]
    assert told(seen) == []


def test_another_attempt_begins_anew() -> None:
    seen = records("L1", 1)
    first = told(seen)[0]
    number = next(i for i, record in enumerate(seen) if record.t == first.t)
    again = [
        replace(
            record, procs=tuple(replace(proc, key=f"9{proc.key}", pid=proc.pid + 90) for proc in record.procs or ())
        )
        for record in seen[number + 1 :]
    ]
    ends = told([*seen[: number + 1], *again])[1]
    assert ends.verdict is SlowVerdict.EVEN and ends.t == again[0].t


def test_it_changes_no_verdict_of_the_hang_rule() -> None:
    """It reads what the detector keeps, and leaves it as it is."""
    alone, beside, rule, settings = Detector(), Detector(), SlowRule(), HangSettings()
    for record in records("L2", 2):
        assert alone.feed(record) == beside.feed(record)
        rule.feed(record, beside.job, settings)
    assert alone.state() == beside.state() and rule.settings == SlowSettings()


@pytest.mark.parametrize(
    ("values", "says"),
    [({"clear_factor": 2.0}, "clear_factor: 2: must be at most factor"), ({"window_s": 200.0}, "longest_wait_s: 120:")],
)
def test_settings_that_do_not_fit_together_are_refused(values: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SlowSettings(**values).check_together()  # type: ignore[arg-type]


# --- without cards ----------------------------------------------------------------------------------------------------


def played(name: str, rule: SlowRule, blind: bool = False) -> Iterator[tuple[Record, SlowChange | None]]:
    """A job without cards, with the dumps that the rule wants. `blind`: ptrace is forbidden."""
    told, lines = trace(ALL[name], 1)
    detector, seen = Detector(), [read(line) for line in lines]
    for record in sampled(rule, told.play, seen[0].t, seen):
        if blind:
            record = replace(record, samples=tuple(replace(stack, frames=()) for stack in record.samples))
        detector.feed(record)
        yield record, rule.feed(record, detector.job, HangSettings())


def test_where_stacks_may_not_be_read_the_kernel_says_who_waits() -> None:
    sure, unsure = (
        next(change for _, change in played("L5", SlowRule(), blind) if change is not None) for blind in (False, True)
    )
    assert sure.ranks == unsure.ranks and sure.confidence > 0.5 >= unsure.confidence
    (rank,) = sure.ranks
    seen = sure.evidence["ranks"][str(rank)]["stacks"]
    assert seen["waits_in"] == "all_reduce" and seen["odd"] > seen["readings"] / 3
    assert unsure.evidence["ranks"][str(rank)]["stacks"]["waits_in"] == ""


def test_without_dumps_no_rank_of_a_job_without_cards_is_slow() -> None:
    rule = SlowRule(SlowSettings(sample_s=0))
    assert [record.t for record, change in played("L5", rule) if record.samples or change] == []


@pytest.mark.parametrize(("name", "most"), [("E11", 6), ("E13", 10), ("E15", 10), ("L5", 12)])
def test_dumps_are_rare(name: str, most: int) -> None:
    """Series in an hour or more, of which each costs the node three dumps of each rank."""
    rule = SlowRule()
    assert 0 < sum(rule.wants_samples for _ in played(name, rule)) <= most


def test_a_rule_that_goes_on_from_its_state_says_the_same_of_dumps() -> None:
    seen = [record for record, _ in played("L5", SlowRule())]
    assert told(seen, stored=True) == told(seen) != []
