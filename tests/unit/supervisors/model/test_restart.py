import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.supervisors.model import restart
from muster.supervisors.model.lifecycle import Attempt, Job, Rank, Stop
from muster.supervisors.model.restart import BACKOFF_S, JITTER, MAX_BACKOFF_S
from muster.supervisors.model.spec import MAX_RESTARTS, JobSpec
from muster.supervisors.model.states import STEP, Outcome, State, StopCause


def spec(max_restarts: int = 3, backoff: float | None = None) -> JobSpec:
    return JobSpec("j", ("x",), max_restarts=max_restarts, restart_backoff=backoff)


def job(*outcomes: Outcome, attempt: int = 0, stop: StopCause | None = None) -> Job:
    ranks = [Rank(i, i, i, pid=9, outcome=outcome, status=1 << 8) for i, outcome in enumerate(outcomes)]
    return Job(
        attempt=attempt, ranks=ranks, stop=None if stop is None else Stop(stop), halted=stop is StopCause.REQUESTED
    )


# --- whether ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
def test_only_what_failed_or_is_lost_is_tried_again(state):
    assert restart.allowed(spec(), job(Outcome.EXITED), state) == (state in (State.FAILED, State.LOST))


@pytest.mark.parametrize("attempts", [0, 1, 2, MAX_RESTARTS])
def test_the_budget_is_kept(attempts):
    """`max_restarts` attempts after the first: no more and no fewer."""
    made = [n for n in range(attempts + 3) if restart.allowed(spec(attempts), job(attempt=n), State.FAILED)]
    assert made == list(range(attempts))


def test_attempts_that_failed_the_pre_check_count_too():
    past = [Attempt(n, 0.0, 1.0, 125, "unfit") for n in range(2)]
    assert restart.allowed(spec(3), Job(attempt=2, past=past), State.FAILED)
    assert not restart.allowed(spec(2), Job(attempt=2, past=past), State.FAILED)


@pytest.mark.parametrize("cause", StopCause)
@pytest.mark.parametrize("state", [State.FAILED, State.LOST])
def test_what_somebody_asked_to_end_stays_ended(cause, state):
    """Also where a rank had failed before the stop came: the state then is FAILED."""
    wanted = cause in (StopCause.REQUESTED, StopCause.MAX_RUNTIME, StopCause.HUNG)
    assert restart.allowed(spec(), job(Outcome.EXITED, stop=cause), state) is not wanted


@pytest.mark.parametrize(
    ("again", "before", "most", "allowed"),
    [
        (False, 0, None, False),
        (True, 0, None, True),
        (True, restart.MAX_HANG_RESTARTS - 1, None, True),
        (True, restart.MAX_HANG_RESTARTS, None, False),
        (True, 5, 6, True),
        (True, 0, 0, False),
    ],
)
def test_a_job_that_hung_is_started_again_where_that_was_asked_for_and_not_for_ever(again, before, most, allowed):
    hung = job(Outcome.HUNG, stop=StopCause.HUNG)
    hung.hang_restarts = before
    assert hung.stop is not None
    hung.stop.again = again
    assert restart.allowed(replace(spec(), max_hang_restarts=most), hung, State.FAILED) is allowed
    hung.halted = True
    assert not restart.allowed(replace(spec(), max_hang_restarts=most), hung, State.FAILED)


def test_a_stop_that_comes_while_a_failed_gang_is_ended_counts():
    ended = job(Outcome.EXITED, Outcome.GANG_VICTIM, stop=StopCause.RANK_FAILED)
    assert restart.allowed(spec(), ended, State.FAILED)
    ended.halted = True
    assert not restart.allowed(spec(), ended, State.FAILED)


@pytest.mark.parametrize("outcome", Outcome)
def test_what_cannot_be_executed_is_not_tried_again(outcome):
    ended = job(Outcome.GANG_VICTIM, outcome, stop=StopCause.RANK_FAILED)
    assert restart.allowed(spec(), ended, State.FAILED) is (outcome is not Outcome.NOT_STARTED)


@pytest.mark.parametrize("outcome", Outcome)
def test_a_step_that_cannot_be_executed_is_not_tried_again_either(outcome):
    ended = Job(step=Rank(STEP, 0, 0, pid=9, outcome=outcome, status=127 << 8), ranks=[Rank(0, 0, 0)])
    assert restart.allowed(spec(), ended, State.FAILED) is (outcome is not Outcome.NOT_STARTED)


# --- when -------------------------------------------------------------------------------------------------------------


def test_each_pause_is_twice_the_one_before_up_to_a_longest_one():
    found = [restart.delay(spec(), n, 0.5) for n in range(1, 10)]
    assert found == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


@pytest.mark.parametrize(
    ("backoff", "number", "expected"),
    [
        (0.0, 1, 0.0),
        (0.0, 1000, 0.0),
        (0.25, 3, 1.0),
        (5.0, 10, 60.0),
        (60.0, 5, 60.0),
        (300.0, 1, 300.0),  # who asks for more than the longest pause gets it, each time
        (300.0, 7, 300.0),
        (3600.0, 1000, 3600.0),
    ],
)
def test_pauses_as_they_are_asked_for(backoff, number, expected):
    assert restart.delay(spec(backoff=backoff), number, 0.5) == expected


@pytest.mark.parametrize(
    ("uniform", "share"), [(0.0, 1 - JITTER), (0.25, 1 - JITTER / 2), (0.5, 1.0), (1.0, 1 + JITTER)]
)
def test_jitter(uniform, share):
    assert restart.delay(spec(backoff=10.0), 2, uniform) == pytest.approx(20.0 * share)


@given(
    backoff=st.none() | st.floats(0, 3600),
    number=st.integers(1, MAX_RESTARTS),
    uniform=st.none() | st.floats(0, 1),
)
def test_every_pause_is_within_its_bounds(backoff, number, uniform):
    """Around the nominal one by no more than the jitter; never negative, never endless; and it never shrinks."""
    base = BACKOFF_S if backoff is None else backoff
    nominal = restart.delay(spec(backoff=backoff), number, 0.5)
    assert base <= nominal <= max(MAX_BACKOFF_S, base) or nominal == base == 0
    assert nominal <= restart.delay(spec(backoff=backoff), number + 1, 0.5)
    drawn = restart.delay(spec(backoff=backoff), number, uniform)
    assert nominal * (1 - JITTER) * 0.999999 <= drawn <= nominal * (1 + JITTER) * 1.000001


def test_nodes_do_not_all_begin_in_the_same_moment():
    random.seed(7)
    drawn = [restart.delay(spec(backoff=10.0), 1) for _ in range(200)]
    assert len(set(drawn)) > 190
    assert min(drawn) < 9 < 11 < max(drawn)
