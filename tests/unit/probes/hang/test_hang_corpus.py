"""The hang rule on a few seeds of every scenario; `python -m tests.corpus` runs many."""

import pytest

from muster.probes.hang import HangSettings
from tests.corpus.measure import run
from tests.corpus.rows import ROWS
from tests.corpus.scenarios import BY_NAME, SCENARIOS, Scenario
from tests.corpus.stacked import STACKED
from tests.corpus.variations import VARIATIONS

HEALTHY = [scenario for scenario in (*SCENARIOS, *VARIATIONS, *STACKED) if scenario.within_min is None]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_what_must_be_reported_is_reported_in_time(scenario: Scenario) -> None:
    assert run(scenario, 1, HangSettings()).wrong == ""


@pytest.mark.parametrize("scenario", VARIATIONS, ids=lambda scenario: scenario.name)
def test_so_is_it_of_other_life_and_other_hangs(scenario: Scenario) -> None:
    assert run(scenario, 1, HangSettings()).wrong == ""


@pytest.mark.parametrize("scenario", STACKED, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("seed", [1, 2])
def test_stacks_prove_a_hang_and_explain_a_silence(scenario: Scenario, seed: int) -> None:
    assert run(scenario, seed, HangSettings()).wrong == ""


def test_records_that_are_lost_are_no_pause_of_a_log() -> None:
    """Two in a row were lost in this trace while the log grew, and others use the node's network all the time."""
    (scenario,) = [one for one in STACKED if one.name == "S34"]
    assert run(scenario, 10013, HangSettings()).wrong == ""


@pytest.mark.parametrize("scenario", ROWS, ids=lambda scenario: scenario.name)
def test_each_row_of_the_tables_has_a_scenario(scenario: Scenario) -> None:
    assert run(scenario, 1, HangSettings()).wrong == ""


@pytest.mark.parametrize(
    "scenario",
    HEALTHY,
    ids=lambda scenario: scenario.name,
)
def test_bad_readings_make_no_false_alarm(scenario: Scenario) -> None:
    assert not run(scenario, 3, HangSettings(), harsh=True).hung


def test_the_plain_rule_errs_where_it_must() -> None:
    """It takes a flat utilization for a hang, and a helper's IO for life."""
    plain = HangSettings(rule="plain", plain_s=600)
    assert run(BY_NAME["H10"], 1, plain).hung
    assert not run(BY_NAME["U2"], 1, plain).hung
    assert run(BY_NAME["U6"], 1, plain).hung


def test_a_corpus_that_expects_the_opposite_fails() -> None:
    """What compares can fail: a hang is no healthy job, and silence is no hang."""
    assert any(run(BY_NAME["H8"], seed, HangSettings(busy_s=600)).wrong.startswith("false alarm") for seed in range(6))
    assert run(BY_NAME["U6"], 1, HangSettings(hung_s=86400, weak_s=86400, busy_s=86400)).wrong.startswith("missed")
