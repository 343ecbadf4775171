import copy
import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.supervisors.model.journal import FORMAT, Record
from muster.supervisors.model.lifecycle import Job, Rank, Verdict
from muster.supervisors.model.replay import apply, replay
from muster.supervisors.model.states import JOB, SERVICE, STEP, Kind, Outcome, State, StopCause
from muster.supervisors.supervision_errors import IllegalTransition

A, C, P, R, S, AGAIN = (
    State.ACCEPTED, State.CHECKING, State.PREPARING, State.RUNNING, State.STOPPING, State.RESTARTING,
)  # fmt: skip
FINAL = {State.SUCCEEDED, State.FAILED, State.STOPPED, State.LOST}
LIVE = set(State) - FINAL
#: Where a process of the job may be: ranks, or a step. An epilog may come behind checks, when an attempt was before.
BEGUN = LIVE - {A}

#: Written down a second time, from design.md: kind -> where it may come, and where it leads (None: nowhere).
#: A kind that is added must be decided here.
ALLOWED: dict[Kind, tuple[set[State], State | None]] = {
    Kind.ACCEPTED: (set(), None),  # as the first record only
    Kind.CHECKING: ({A, C, AGAIN}, C),
    Kind.CHECKED: ({C}, None),
    Kind.PLANNED: ({A, C}, None),
    Kind.TAKEN: (LIVE, None),
    Kind.PREPARING: ({A, C, P, AGAIN}, P),
    Kind.SERVICES: ({P}, None),
    Kind.SPAWNED: ({P}, None),
    Kind.UNBORN: (BEGUN, None),
    Kind.RUNNING: ({P}, R),
    Kind.STEP: (BEGUN, None),
    Kind.EXITED: (BEGUN, None),
    Kind.USAGE: (LIVE, None),
    Kind.STOPPING: (LIVE, S),
    Kind.ESCALATED: ({S}, None),
    Kind.WARNING: (LIVE, None),
    Kind.LOST_BYTES: (LIVE, None),
    Kind.RESTARTING: ({C, P, R, S}, AGAIN),
    Kind.CONCLUDED: (BEGUN, None),
    Kind.ENDED: (LIVE, State.FAILED),  # as SAMPLES has it
}

SAMPLES: dict[Kind, Record] = {
    Kind.ACCEPTED: {
        "format": FORMAT, "digest": "d", "boot": "b", "card_kind": "slot", "master_addr": "127.0.0.1",
        "master_port": 29500, "by": "uid 0", "first_rank": 4, "devices": [0, 1], "cards": [2, 3], "node_rank": 2,
        "node_count": 3, "node_name": "c", "local_ranks": 2, "world_size": 6,
    },
    Kind.CHECKING: {},
    Kind.CHECKED: {"ok": True, "results": [{"name": "disk"}], "skipped": False},
    Kind.PLANNED: {
        "card_kind": "ascend", "master_addr": "10.0.0.1", "master_port": 18888, "table": "/t.json", "numbers": [4, 5],
        "first_rank": 0, "devices": [0, 1], "cards": [6, 7], "node_rank": 1, "node_count": 2, "node_name": "10.0.0.2",
        "local_ranks": 2, "world_size": 8,
    },
    Kind.TAKEN: {"pid": 7, "takeover": False},
    Kind.PREPARING: {"attempt": 0, "cgroup": "/x", "oom_kills": 3},
    Kind.STEP: {"name": "pre_start", "pid": 90, "start": 900, "boot": "b", "up": 5.0, "argv": ["sh", "-c", "x"]},
    Kind.SERVICES: {"services": [], "boot": "b", "up": 7.0},
    Kind.SPAWNED: {"ranks": [[4, 100, 1000], [5, 101, 1001]], "boot": "b"},
    Kind.UNBORN: {},
    Kind.RUNNING: {"up": 6.0},
    Kind.EXITED: {"rank": 5, "outcome": "EXITED", "status": 0x700, "usage": {"cpu_user_s": 1.5}, "detail": "x"},
    Kind.USAGE: {"rank": 5, "max_rss": 4096},
    Kind.STOPPING: {"cause": "requested", "by": "me", "reason": "so", "steps": [1.0, 2.0], "up": 11.0},
    Kind.ESCALATED: {"signal": "SIGTERM", "processes": 2},
    Kind.WARNING: {"text": "w"},
    Kind.LOST_BYTES: {"rank": 4, "bytes": 10, "since": 1.0, "until": 2.0, "error": "No space left on device"},
    Kind.RESTARTING: {
        "attempt": 1, "verdict": {"exit_code": 9, "summary": "r", "first_failed": 5}, "log_ends": {"4": 10, "5": 20},
        "delay_s": 1.5, "up": 26.0,
    },
    Kind.CONCLUDED: {"state": "FAILED", "verdict": {"exit_code": 7, "summary": "c", "victims": [4]}},
    Kind.ENDED: {"state": "FAILED", "verdict": {"exit_code": 7, "summary": "s", "victims": [4], "last_lines": ["l"]}},
}  # fmt: skip


def record(kind: Kind, n: int = 7, t: float = 50.0, **changes: Any) -> Record:
    return {"n": n, "t": t, "kind": kind.value} | copy.deepcopy(SAMPLES[kind]) | changes


def story(*kinds: Kind) -> list[Record]:
    """Samples of these kinds, numbered, a second apart."""
    return [record(kind, n, 100.0 + n) for n, kind in enumerate(kinds)]


def job_in(state: State) -> Job:
    ranks = [Rank(4, 0, 0, pid=100, start=1000), Rank(5, 1, 1, pid=101, start=1001)]
    return Job(state=state, ranks=ranks, last_time=1.0, spawned=True)


# --- the table --------------------------------------------------------------------------------------------------------


def test_every_kind_is_decided_here():
    assert set(ALLOWED) == set(SAMPLES) == set(Kind)


def test_final_states():
    assert {state for state in State if state.final} == FINAL


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", Kind)
def test_each_kind_in_each_state(kind, state):
    job = job_in(state)
    before = copy.deepcopy(job)
    states, target = ALLOWED[kind]
    if state in states:
        apply(job, record(kind))
        assert job.state == (target or state)
        assert job.last_time == 50.0
    else:
        with pytest.raises(IllegalTransition):
            apply(job, record(kind))
        assert job == before, "what is refused changes nothing"


@pytest.mark.parametrize("state", sorted(FINAL))
@pytest.mark.parametrize("kind", Kind)
def test_a_final_state_takes_nothing(kind, state):
    assert state not in ALLOWED[kind][0]
    with pytest.raises(IllegalTransition):
        apply(job_in(state), record(kind))


@pytest.mark.parametrize("state", State)
def test_a_job_ends_in_a_final_state_only(state):
    job = job_in(State.RUNNING)
    if state in FINAL:
        apply(job, record(Kind.ENDED, state=state.value))
        assert (job.state, job.ended_at) == (state, 50.0)
    else:
        with pytest.raises(IllegalTransition, match=f"{state}.*not a final state"):
            apply(job, record(Kind.ENDED, state=state.value))


@pytest.mark.parametrize(
    ("state", "kind", "changes"),
    [
        (R, Kind.ENDED, {"state": "ACCEPTED"}),
        (R, Kind.ENDED, {"state": "SUCCEEDED", "verdict": {"nonsense": 1}}),
        (R, Kind.ENDED, {"state": "nonsense"}),
        (R, Kind.STOPPING, {"cause": "nonsense"}),
        (R, Kind.EXITED, {"rank": 6}),
        (R, Kind.EXITED, {"outcome": "nonsense"}),
        (P, Kind.EXITED, {"rank": STEP}),  # there is no step
        (R, Kind.CONCLUDED, {"state": "RUNNING"}),
        (R, Kind.CONCLUDED, {"verdict": None}),
        (R, Kind.RESTARTING, {"verdict": {}}),
        (R, Kind.RESTARTING, {"verdict": []}),
        (R, Kind.RESTARTING, {"log_ends": 5}),
        (R, Kind.RESTARTING, {"log_ends": {"x": 5}}),
        (C, Kind.PLANNED, {"numbers": [4]}),
        (C, Kind.PLANNED, {"numbers": None, "first_rank": None}),
    ],
)
def test_a_record_that_makes_no_sense_leaves_the_job_in_its_state(state, kind, changes):
    """The handler of the error must not find a job that has SUCCEEDED, say, without a verdict."""
    job = job_in(state)
    with pytest.raises((IllegalTransition, ValueError, TypeError)):
        apply(job, record(kind, **changes))
    assert job.state == state
    assert (job.verdict, job.concluded) == (None, None)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", ["nonsense", "", "RUNNING", None, 5])
def test_an_unknown_kind_is_refused_in_every_state(kind, state):
    job = job_in(state)
    with pytest.raises(IllegalTransition, match="unknown kind"):
        apply(job, {"n": 7, "t": 1.0, "kind": kind})
    assert job == job_in(state)


@pytest.mark.parametrize("number", [0, FORMAT + 1, "1", None])
def test_another_format_is_refused(number):
    with pytest.raises(IllegalTransition, match=f"format {number}"):
        replay([record(Kind.ACCEPTED, 0, format=number)])


# --- what records mean ------------------------------------------------------------------------------------------------


def test_the_life_of_a_job():
    job = replay(
        story(
            Kind.ACCEPTED, Kind.CHECKING, Kind.CHECKED, Kind.TAKEN, Kind.PREPARING, Kind.SPAWNED, Kind.RUNNING,
            Kind.LOST_BYTES, Kind.LOST_BYTES, Kind.EXITED, Kind.USAGE, Kind.STOPPING, Kind.ESCALATED, Kind.WARNING,
        )
    )  # fmt: skip
    assert (job.state, job.accepted_at, job.started_at, job.ended_at, job.last_time) == (S, 100.0, 106.0, 0.0, 113.0)
    assert (job.digest, job.boot_id, job.card_kind, job.accepted_by) == ("d", "b", "slot", "uid 0")
    assert (job.master_addr, job.master_port, job.supervisor_pid) == ("127.0.0.1", 29500, 7)
    assert (job.attempt, job.cgroup, job.oom_kills, job.spawned, job.takeovers) == (0, "/x", 3, True, 0)
    assert (job.node_rank, job.node_count, job.node_name) == (2, 3, "c")
    assert (job.local_ranks, job.world_size, job.cards) == (2, 6, (2, 3))
    assert (job.planned, job.has_table, job.halted, job.ends) == (False, False, True, [5])
    assert (job.checks, job.warnings) == ([{"name": "disk"}], ["w"])
    first, second = job.ranks
    assert (first.rank, first.local_rank, first.device, first.pid, first.start) == (4, 0, 0, 100, 1000)
    assert (first.started_at, first.outcome, first.status, first.lost_bytes) == (105.0, None, None, 20)
    assert (second.outcome, second.status, second.ended_at, second.detail) == (Outcome.EXITED, 0x700, 109.0, "x")
    assert (second.usage.cpu_user_s, second.usage.max_rss) == (1.5, 4096)
    assert job.stop is not None
    assert (job.stop.cause, job.stop.by, job.stop.reason) == (StopCause.REQUESTED, "me", "so")
    assert (job.stop.steps, job.stop.up, job.started_up) == ((1.0, 2.0), 11.0, 6.0)
    assert (job.terminated, job.killed, job.verdict) == (True, False, None)

    apply(job, record(Kind.ESCALATED, signal="SIGKILL"))
    assert job.killed
    apply(job, record(Kind.ENDED, t=120.0))
    assert (job.state, job.ended_at, job.supervisor_pid) == (State.FAILED, 120.0, 0)
    assert job.verdict == Verdict(7, "s", None, ("l",), (4,))


def test_children_that_were_never_spawned_are_made_again():
    job = replay(story(Kind.ACCEPTED, Kind.TAKEN, Kind.PREPARING, Kind.SPAWNED, Kind.UNBORN))
    assert [(r.pid, r.start, r.started_at) for r in job.ranks] == [(0, 0, 0.0)] * 2
    assert (job.state, job.spawned) == (P, False)
    apply(job, record(Kind.TAKEN, takeover=True))
    apply(job, record(Kind.PREPARING))
    apply(job, record(Kind.SPAWNED, ranks=[[4, 200, 2000], [5, 201, 2001]]))
    assert [(r.pid, r.start) for r in job.ranks] == [(200, 2000), (201, 2001)]
    assert job.takeovers == 1


def test_a_second_stop_shortens_the_first_and_keeps_its_cause():
    job = replay(story(Kind.ACCEPTED, Kind.STOPPING))
    apply(job, record(Kind.STOPPING, cause="rank_failed", by="rank 4", reason="it failed", steps=[0.5], up=20.0))
    assert job.stop is not None
    assert job.stop.up == 20.0, "a shorter grace counts from when it was asked for"
    assert (job.stop.steps, job.stop.cause, job.stop.by) == ((0.5,), StopCause.REQUESTED, "me")
    assert job.halted, "asked for once, asked for"


@pytest.mark.parametrize("cause", StopCause)
def test_only_a_stop_that_somebody_asked_for_halts_a_job(cause):
    job = replay(story(Kind.ACCEPTED, Kind.PREPARING, Kind.SPAWNED, Kind.RUNNING))
    apply(job, record(Kind.STOPPING, cause=cause.value))
    assert job.halted == (cause is StopCause.REQUESTED)
    apply(job, record(Kind.STOPPING, cause="requested", by="you", reason="now", steps=[0.0]))
    assert job.halted
    assert job.stop is not None
    assert job.stop.cause is cause, "what it ends of stays"
    assert job.stop.by == ("you" if cause is StopCause.LEFTOVERS else "me")


def test_an_empty_verdict_of_an_exit_is_not_known():
    job = replay(story(Kind.ACCEPTED, Kind.PREPARING, Kind.SPAWNED, Kind.RUNNING))
    apply(job, record(Kind.EXITED, outcome="LOST", status=None))
    assert (job.rank(5).outcome, job.rank(5).status) == (Outcome.LOST, None)


# --- where the ranks are ----------------------------------------------------------------------------------------------


def test_a_job_is_placed_once_its_rank_table_is_there():
    job = replay(story(Kind.ACCEPTED, Kind.CHECKING, Kind.PLANNED))
    assert (job.state, job.planned, job.has_table, job.table) == (C, True, True, "/t.json")
    assert (job.card_kind, job.master_addr, job.master_port, job.cards) == ("ascend", "10.0.0.1", 18888, (6, 7))
    assert (job.node_rank, job.node_count, job.node_name) == (1, 2, "10.0.0.2")
    assert (job.local_ranks, job.world_size) == (2, 8)
    assert [(rank.rank, rank.local_rank, rank.device) for rank in job.ranks] == [(4, 0, 0), (5, 1, 1)]


def test_a_rank_table_may_number_as_it_likes():
    job = replay([*story(Kind.ACCEPTED, Kind.CHECKING), record(Kind.PLANNED, 2, numbers=[7, 2])])
    assert [(rank.rank, rank.local_rank, rank.device) for rank in job.ranks] == [(7, 0, 0), (2, 1, 1)]
    assert (job.rank(7).local_rank, job.rank(2).local_rank) == (0, 1)
    for number in (0, 1, 3, 6, 8):
        with pytest.raises(IllegalTransition, match=f"no rank {number}"):
            job.rank(number)


def test_a_table_without_devices_leaves_the_ranks_as_they_are_counted():
    changes: dict[str, Any] = {"numbers": [], "first_rank": 8, "devices": [0, 1, 2], "cards": [], "table": ""}
    job = replay([*story(Kind.ACCEPTED), record(Kind.PLANNED, 1, **changes)])
    assert (job.planned, job.has_table) == (True, False)
    assert [rank.rank for rank in job.ranks] == [8, 9, 10]


def test_a_place_needs_numbers_from_somewhere():
    whole = record(Kind.PLANNED, 1)
    with pytest.raises(IllegalTransition, match="first_rank"):
        replay([*story(Kind.ACCEPTED), {k: v for k, v in whole.items() if k not in ("numbers", "first_rank")}])


def test_a_job_whose_table_is_not_there_yet_has_no_ranks():
    changes: dict[str, Any] = {"devices": [], "cards": [], "local_ranks": 0, "world_size": 0}
    job = replay([record(Kind.ACCEPTED, 0, **changes)])
    assert (job.ranks, job.processes(), job.world_size) == ([], [], 0)


@pytest.mark.parametrize("number", [-1, 0, 3, 6, 1000])
def test_a_rank_of_another_node_is_not_ours(number):
    with pytest.raises(IllegalTransition, match=f"no rank {number}"):
        job_in(R).rank(number)


def test_a_job_without_ranks_has_none():
    with pytest.raises(IllegalTransition):
        Job().rank(0)


# --- steps ------------------------------------------------------------------------------------------------------------


def ended(n: int, number: int, status: int | None = 0, outcome: Outcome = Outcome.EXITED, t: float = 60.0) -> Record:
    return record(Kind.EXITED, n, t, rank=number, status=status, outcome=outcome.value, detail="")


def test_a_step_is_what_runs():
    job = replay(story(Kind.ACCEPTED, Kind.PREPARING, Kind.STEP))
    assert job.in_step
    assert (job.step_name, job.step_up, job.spawned) == ("pre_start", 5.0, False)
    (step,) = job.processes()
    assert step is job.step is job.rank(STEP)
    assert (step.pid, step.start, step.started_at, step.argv) == (90, 900, 102.0, ("sh", "-c", "x"))
    assert (step.role, step.outcome) == ("pre_start", None)


def test_a_step_that_ended_well_is_done():
    job = replay([*story(Kind.ACCEPTED, Kind.PREPARING, Kind.STEP), ended(3, STEP)])
    assert not job.in_step
    assert (job.processes(), job.steps_done) == ([], {"pre_start"})
    assert job.step is not None, "it is still known how it ended"
    assert (job.step.outcome, job.step.status, job.step.ended_at) == (Outcome.EXITED, 0, 60.0)
    assert job.ends == [], "no rank has ended"
    apply(job, record(Kind.USAGE, 4, rank=STEP))
    assert job.step.usage.max_rss == 4096


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(Outcome.EXITED, 0x100), (Outcome.SIGNALLED, 9), (Outcome.LOST, None), (Outcome.STOPPED, 0), (Outcome.LOST, 0)],
)
def test_a_step_that_did_not_end_well_is_not_done(outcome, status):
    job = replay([*story(Kind.ACCEPTED, Kind.PREPARING, Kind.STEP), ended(3, STEP, status, outcome)])
    assert (job.in_step, job.steps_done) == (False, set())


def test_steps_come_one_after_the_other_and_then_the_ranks():
    job = replay([*story(Kind.ACCEPTED, Kind.PREPARING), record(Kind.STEP, 2, name="requirements"), ended(3, STEP)])
    apply(job, record(Kind.STEP, 4, name="pre_start", pid=91))
    assert job.in_step
    assert (job.step_name, job.rank(STEP).pid) == ("pre_start", 91)
    apply(job, ended(5, STEP))
    assert job.steps_done == {"requirements", "pre_start"}
    apply(job, record(Kind.SPAWNED, 6))
    assert (job.step, job.in_step, job.processes()) == (None, False, job.ranks)
    with pytest.raises(IllegalTransition, match="no rank -1"):
        job.rank(STEP)


def test_a_step_that_was_never_spawned_is_made_again():
    job = replay(story(Kind.ACCEPTED, Kind.PREPARING, Kind.STEP, Kind.UNBORN))
    assert (job.step, job.in_step, job.processes(), job.steps_done) == (None, False, [], set())
    assert job.state is P


SERVED = record(Kind.ACCEPTED, 0, services=[["redis", ["/bin/sh", "-c", "redis"]]])


def test_services_run_beside_the_ranks_of_one_attempt():
    job = replay([SERVED, record(Kind.PREPARING, 1), record(Kind.STEP, 2), ended(3, STEP)])
    assert [(one.rank, one.role, one.argv[2], one.pid) for one in job.services] == [(SERVICE, "redis", "redis", 0)]
    assert not job.has_services
    apply(job, record(Kind.SERVICES, 4, services=[[SERVICE, 90, 900]]))
    assert (job.step, job.has_services, job.processes()) == (None, True, job.services)
    apply(job, record(Kind.SPAWNED, 5))
    assert job.processes() == [*job.ranks, *job.services]
    assert job.made_last() == job.ranks
    apply(job, record(Kind.UNBORN, 6))  # of the ranks
    assert (job.spawned, job.services[0].pid, job.made_last()) == (False, 90, job.services)
    apply(job, record(Kind.UNBORN, 7))
    assert (job.has_services, job.services[0].pid, job.services[0].role) == (False, 0, "redis")
    apply(job, record(Kind.SERVICES, 8, services=[[SERVICE, 91, 910]]))
    apply(job, ended(9, SERVICE, 0x300))
    assert (job.services[0].status, job.ends) == (0x300, [])
    apply(job, record(Kind.STOPPING, 10, cause="service_ended"))
    apply(job, record(Kind.ESCALATED, 11, services=True))
    assert (job.terminated, job.services_told) == (True, True)
    apply(job, record(Kind.RESTARTING, 12))
    assert (job.has_services, job.services_told, job.services[0].status) == (False, False, None)


def test_an_epilog_that_was_never_spawned_leaves_the_ranks_as_they_ended():
    records = story(Kind.ACCEPTED, Kind.PREPARING, Kind.SPAWNED, Kind.RUNNING)
    records += [ended(4, 4, 0x700), ended(5, 5), record(Kind.CONCLUDED, 6), record(Kind.STEP, 7, name="epilog")]
    job = replay([*records, record(Kind.UNBORN, 8)])
    assert job.step is None
    assert ([rank.status for rank in job.ranks], job.ends, job.spawned) == ([0x700, 0], [4, 5], True)


def test_what_runs_at_each_moment():
    """The records of a job with everything, and how many processes are there behind each."""
    seen = []
    job = Job()
    for made in (
        record(Kind.ACCEPTED, 0), record(Kind.CHECKING, 1), record(Kind.PREPARING, 2), record(Kind.STEP, 3),
        ended(4, STEP), record(Kind.SPAWNED, 5), record(Kind.RUNNING, 6), ended(7, 4), ended(8, 5, 0x700),
        record(Kind.RESTARTING, 9), record(Kind.PREPARING, 10, attempt=1), record(Kind.SPAWNED, 11),
        record(Kind.UNBORN, 12), record(Kind.PREPARING, 13, attempt=1), record(Kind.SPAWNED, 14), ended(15, 4),
        ended(16, 5), record(Kind.CONCLUDED, 17), record(Kind.STEP, 18, name="epilog"), ended(19, STEP),
    ):  # fmt: skip
        apply(job, made)
        seen.append([process.rank for process in job.processes()])
    ranks = [4, 5]
    assert seen == [
        [], [], [], [STEP], [], ranks, ranks, ranks, ranks, [], [], ranks, [], [], ranks, ranks, ranks, ranks, [STEP],
        ranks,
    ]  # fmt: skip


def test_processes_of_a_launcher_have_a_command_of_their_own():
    own: dict[str, Any] = {"argv": [["torchrun", "x"], ["y"]], "roles": ["ps", "worker"], "serves": [True, False]}
    job = replay([*story(Kind.ACCEPTED, Kind.PREPARING), record(Kind.SPAWNED, 2, **own)])
    assert [(rank.argv, rank.role, rank.serves) for rank in job.ranks] == [
        (("torchrun", "x"), "ps", True), (("y",), "worker", False)
    ]  # fmt: skip
    plain = replay(story(Kind.ACCEPTED, Kind.PREPARING, Kind.SPAWNED))
    assert [(rank.argv, rank.role, rank.serves) for rank in plain.ranks] == [((), "rank", False)] * 2


# --- another attempt --------------------------------------------------------------------------------------------------


def failed_attempt() -> list[Record]:
    """A whole attempt of a job with steps, in which all that a restart has to forget or to keep is set."""
    own: dict[str, Any] = {"argv": [["a"], ["b"]], "roles": ["worker"] * 2, "serves": [True] * 2}
    return [
        *story(Kind.ACCEPTED, Kind.CHECKING, Kind.CHECKED, Kind.TAKEN, Kind.PREPARING),
        record(Kind.STEP, 5, name="requirements"), ended(6, STEP), record(Kind.STEP, 7), ended(8, STEP),
        record(Kind.SPAWNED, 9, 109.0, **own), record(Kind.RUNNING, 10, 110.0, up=6.0), record(Kind.LOST_BYTES, 11),
        ended(12, 5, 0x900), record(Kind.STOPPING, 13, cause="rank_failed"), record(Kind.ESCALATED, 14),
        record(Kind.ESCALATED, 15, signal="SIGKILL"), ended(16, 4, 9, Outcome.GANG_VICTIM), record(Kind.WARNING, 17),
    ]  # fmt: skip


def test_what_a_restart_keeps_and_what_it_forgets():
    before = replay(failed_attempt())
    assert (before.steps_done, before.ends) == ({"requirements", "pre_start"}, [5, 4])
    assert (before.terminated, before.killed, before.stop is not None) == (True, True, True)
    job = replay([*failed_attempt(), record(Kind.RESTARTING, 18, 120.0)])
    assert job.state is AGAIN

    (past,) = job.past
    assert (past.number, past.started_at, past.ended_at) == (0, 110.0, 120.0)
    assert (past.exit_code, past.summary, past.first_failed, past.log_ends) == (9, "r", 5, {4: 10, 5: 20})
    assert (job.attempt, job.ran_s) == (1, 20.0), "max_runtime counts what all attempts ran"
    assert (job.restart_up, job.restart_at) == (27.5, 121.5)

    kept = ("digest", "boot_id", "cgroup", "supervisor_pid", "checks", "warnings", "cards", "node_rank", "takeovers")
    assert {name: getattr(job, name) for name in kept} == {name: getattr(before, name) for name in kept}
    assert job.steps_done == {"requirements"}, "what is installed stays so, the script runs again"
    assert [rank.lost_bytes for rank in job.ranks] == [10, 0], "they are lost for good"

    assert (job.stop, job.terminated, job.killed, job.step, job.verdict) == (None, False, False, None, None)
    assert (job.started_at, job.started_up, job.spawned, job.ends) == (0.0, 0.0, False, [])
    assert job.ranks == [Rank(4, 0, 0, lost_bytes=10), Rank(5, 1, 1)]


def test_the_next_attempt_is_like_the_first():
    job = replay([*failed_attempt(), record(Kind.RESTARTING, 18, 120.0)])
    for made in (
        record(Kind.PREPARING, 19, attempt=1, oom_kills=5), record(Kind.STEP, 20), ended(21, STEP),
        record(Kind.SPAWNED, 22, 130.0, ranks=[[4, 200, 2000], [5, 201, 2001]]),
        record(Kind.RUNNING, 23, 131.0, up=40.0), ended(24, 4), ended(25, 5),
    ):  # fmt: skip
        apply(job, made)
    assert (job.state, job.attempt, job.oom_kills, job.ran_s) == (R, 1, 5, 20.0)
    assert (job.started_at, job.started_up, job.ends) == (131.0, 40.0, [4, 5])
    assert job.steps_done == {"requirements", "pre_start"}
    assert [(rank.pid, rank.started_at, rank.status) for rank in job.ranks] == [(200, 130.0, 0), (201, 130.0, 0)]


def test_the_time_of_all_attempts_adds_up_and_never_shrinks():
    job = replay(failed_attempt())
    apply(job, record(Kind.RESTARTING, 18, up=26.0))
    for n, (began, over) in enumerate([(30.0, 42.0), (50.0, 49.0)], 1):  # a clock that goes back counts as none
        apply(job, record(Kind.PREPARING, attempt=n))
        apply(job, record(Kind.SPAWNED))
        apply(job, record(Kind.RUNNING, up=began))
        apply(job, record(Kind.RESTARTING, attempt=n + 1, up=over))
    assert (job.ran_s, job.attempt, len(job.past)) == (32.0, 3, 3)


def test_an_attempt_whose_ranks_never_ran_takes_no_time():
    """A node that was not fit: the checks come again."""
    job = replay(story(Kind.ACCEPTED, Kind.CHECKING, Kind.CHECKED, Kind.RESTARTING))
    assert (job.state, job.attempt, job.ran_s, job.past[0].started_at) == (AGAIN, 1, 0.0, 0.0)
    apply(job, record(Kind.CHECKING))
    apply(job, record(Kind.CHECKED, results=[]))
    apply(job, record(Kind.PREPARING, attempt=1))
    assert (job.state, job.attempt, job.checks) == (P, 1, [])


def test_a_script_runs_again_with_each_attempt_that_is_prepared():
    """Also where the record of the restart was lost with a machine that crashed."""
    job = replay([*story(Kind.ACCEPTED, Kind.PREPARING), record(Kind.STEP, 2, name="pre_start"), ended(3, STEP)])
    apply(job, record(Kind.PREPARING))
    assert job.steps_done == {"pre_start"}, "the same attempt goes on under another supervisor"
    apply(job, record(Kind.PREPARING, attempt=1))
    assert job.steps_done == set()


def test_a_job_that_is_stopped_between_two_attempts():
    job = replay([*failed_attempt(), record(Kind.RESTARTING, 18), record(Kind.STOPPING, 19)])
    assert (job.state, job.halted, job.processes()) == (S, True, [])
    apply(job, record(Kind.ENDED, state="STOPPED"))
    assert job.state is State.STOPPED


# --- the end, and what comes before it --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
def test_a_job_is_concluded_with_a_final_state_only(state):
    job = job_in(R)
    if state in FINAL:
        apply(job, record(Kind.CONCLUDED, state=state.value))
        assert job.concluded == (state, Verdict(7, "c", None, (), (4,)))
    else:
        with pytest.raises(IllegalTransition, match=f"concluded with {state}.*not a final state"):
            apply(job, record(Kind.CONCLUDED, state=state.value))
        assert job.concluded is None
    assert (job.state, job.verdict, job.ended_at) == (R, None, 0.0), "its epilog is still to come"


def test_a_step_behind_the_ranks_does_not_change_how_they_ended():
    records = story(Kind.ACCEPTED, Kind.PREPARING, Kind.SPAWNED, Kind.RUNNING)
    records += [ended(4, 4), ended(5, 5), record(Kind.CONCLUDED, 6, state="SUCCEEDED"), record(Kind.STEP, 7)]
    job = replay([*records, ended(8, STEP, 0x100)])
    assert (job.ends, [rank.status for rank in job.ranks]) == ([4, 5], [0, 0])
    assert job.concluded is not None
    assert job.concluded[0] is State.SUCCEEDED


def test_what_the_jobs_own_log_lost_is_a_warning():
    job = replay([*story(Kind.ACCEPTED), record(Kind.LOST_BYTES, 1, rank=JOB, bytes=12)])
    assert [rank.lost_bytes for rank in job.ranks] == [0, 0]
    (warning,) = job.warnings
    assert "12 bytes" in warning
    assert "No space left on device" in warning


# --- replay -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("records", [[], [record(Kind.CHECKING, 0)], [record(Kind.TAKEN, 0), record(Kind.ACCEPTED, 1)]])
def test_a_journal_begins_with_accepted(records):
    with pytest.raises(IllegalTransition, match="begin with"):
        replay(records)


def test_a_job_is_accepted_once():
    with pytest.raises(IllegalTransition, match="once"):
        replay(story(Kind.ACCEPTED, Kind.ACCEPTED))


@pytest.mark.parametrize("kind", Kind)
def test_a_record_that_lacks_what_its_kind_carries_is_refused_with_its_number(kind):
    prelude = [Kind.ACCEPTED, Kind.CHECKING]
    prelude += {
        Kind.SERVICES: [Kind.PREPARING],
        Kind.SPAWNED: [Kind.PREPARING],
        Kind.EXITED: [Kind.PREPARING],
        Kind.ESCALATED: [Kind.STOPPING],
        Kind.RUNNING: [Kind.PREPARING],
    }.get(kind, [])
    before = [] if kind is Kind.ACCEPTED else story(*prelude)
    whole = record(kind, len(before))
    optional = {"usage", "detail", "ok", "skipped", "processes", "since", "until", "error"}
    if kind is Kind.PLANNED:
        optional |= {"numbers", "first_rank"}  # one of the two
    for name in set(SAMPLES[kind]) - optional:
        if kind is Kind.CHECKED and name != "results":
            continue
        with pytest.raises(IllegalTransition, match=f"record {len(before)}: {kind}: .*{name}"):
            replay([*before, {k: v for k, v in whole.items() if k != name}])


_KINDS = st.sampled_from(list(Kind)) | st.sampled_from(
    [Kind.PREPARING, Kind.SPAWNED, Kind.RUNNING, Kind.EXITED, Kind.STEP, Kind.RESTARTING]
)


@st.composite
def _drawn(draw: st.DrawFn) -> Record:
    """A record as it may stand in a journal, with its kind and with what it carries; its number is still to come."""
    kind = draw(_KINDS)
    made = copy.deepcopy(SAMPLES[kind])
    values = {
        "rank": st.sampled_from([4, 5, 5, 6, STEP]),
        "status": st.sampled_from([None, 0, 0, 9, 0x100]),
        "outcome": st.sampled_from([outcome.value for outcome in Outcome] + ["EXITED"] * 3),
        "cause": st.sampled_from([cause.value for cause in StopCause]),
        "state": st.sampled_from([state.value for state in State]),
        "signal": st.sampled_from(["SIGTERM", "SIGKILL"]),
        "name": st.sampled_from(["requirements", "pre_start", "epilog"]),
        "attempt": st.integers(0, 2),
    }
    for name in sorted(values.keys() & made.keys()):
        made[name] = draw(values[name])
    return made | {"kind": kind.value}


@given(st.lists(_drawn(), max_size=30))
@settings(deadline=None, max_examples=400)
def test_every_record_is_refused_or_leads_where_the_table_says(drawn):
    """Over any sequence: what the table allows leads to its state, and what it does not allow changes nothing."""
    job = replay(story(Kind.ACCEPTED))
    expected = A
    for n, made in enumerate(drawn, 1):
        kind = Kind(made["kind"])
        states, target = ALLOWED[kind]
        if kind is Kind.ENDED:
            target = State(made["state"])
        known = {4, 5} if job.step is None else {4, 5, STEP}
        nonsense = made.get("rank", 4) not in known or State(made.get("state", "FAILED")) not in FINAL
        before = copy.deepcopy(job)
        try:
            apply(job, {"n": n, "t": 100.0 + n} | made)
        except IllegalTransition:
            assert expected not in states or nonsense
            assert job == before
        else:
            assert expected in states
            assert not nonsense
            expected = target or expected
        assert job.state is expected
    assert set(State) == {state for states, _ in ALLOWED.values() for state in states} | FINAL


def _last(records: list[Record], *kinds: Kind, **having: Any) -> Record | None:
    """The last record of these kinds."""
    fitting = (r for r in reversed(records) if r["kind"] in kinds and all(r[k] == v for k, v in having.items()))
    return next(fitting, None)


def _parts(records: list[Record]) -> tuple[list[Record], list[Record]]:
    """Of a journal that makes sense: the records of this attempt, and of these the ones of the step that is run, or was
    last. The others of this attempt are of its ranks."""
    attempt: list[Record] = []
    step: list[Record] = []
    made_last = Kind.SERVICES, Kind.SPAWNED
    for made in records:
        kind = made["kind"]
        if kind == Kind.RESTARTING:
            attempt, step = [], []
        elif kind == Kind.STEP:
            step = [made]
        elif kind == Kind.UNBORN and step and _last(step, Kind.EXITED) is None:
            step = []  # of the step, not of the ranks
        elif kind == Kind.UNBORN and (_last(attempt, *made_last) or made)["kind"] == Kind.SERVICES:
            attempt.append(made | {"kind": "unborn services"})
        elif kind == Kind.EXITED and made["rank"] == STEP:
            step.append(made)
        else:
            if kind in (Kind.SPAWNED, Kind.SERVICES):
                step = []
            attempt.append(made)
    return attempt, step


@given(st.lists(_drawn(), max_size=30))
@settings(deadline=None, max_examples=400)
def test_nothing_is_known_without_a_record_for_it(drawn):
    """From any sequence of records the table lets some through: what then is known of the job, a record has said."""
    records = story(Kind.ACCEPTED)
    for changes in drawn:
        trial = [*records, record(Kind(changes["kind"]), len(records)) | changes]
        try:
            replay(trial)
        except IllegalTransition:
            continue
        records = trial
    job = replay(records)
    attempt, of_step = _parts(records)

    told = _last(
        records, Kind.CHECKING, Kind.PREPARING, Kind.RUNNING, Kind.STOPPING, Kind.RESTARTING, Kind.ENDED
    )  # fmt: skip
    if told is None:
        assert job.state == A
    elif told["kind"] == Kind.ENDED:
        assert job.state == told["state"]
    else:
        assert job.state == told["kind"].upper()
    assert job.state.final == (records[-1]["kind"] == Kind.ENDED) == (job.verdict is not None)
    assert (job.stop is not None) == (_last(attempt, Kind.STOPPING) is not None)
    assert job.halted == (_last(records, Kind.STOPPING, cause="requested") is not None)
    assert job.killed == (_last(attempt, Kind.ESCALATED, signal="SIGKILL") is not None)
    assert job.terminated == (_last(attempt, Kind.ESCALATED) is not None)
    assert job.spawned == ((_last(attempt, Kind.PREPARING, Kind.SPAWNED, Kind.UNBORN) or {}).get("kind") == "spawned")
    assert job.planned == (_last(records, Kind.PLANNED) is not None)
    concluded = _last(records, Kind.CONCLUDED)
    assert (job.concluded and job.concluded[0]) == (concluded and concluded["state"])
    assert len(job.past) == sum(r["kind"] == Kind.RESTARTING for r in records)
    for rank in job.ranks:
        fresh = (Kind.UNBORN, Kind.PLANNED)  # who is born again, or was not known before, has not ended
        ends = [r for r in attempt if r["kind"] in fresh or (r["kind"] == Kind.EXITED and r["rank"] == rank.rank)]
        exited = ends[-1] if ends and ends[-1]["kind"] == Kind.EXITED else None
        assert rank.outcome == (exited and exited["outcome"])
        assert rank.status == (exited and exited["status"])
        born = _last(attempt, Kind.SPAWNED, *fresh)
        assert (rank.pid != 0) == (born is not None and born["kind"] == Kind.SPAWNED)

    assert (job.step is None) == (not of_step)
    assert job.in_step == (len(of_step) == 1)
    if job.step is not None:
        exited = of_step[-1] if len(of_step) > 1 else None
        assert (job.step.role, job.step.status) == (of_step[0]["name"], exited and exited["status"])
    for name in job.steps_done:
        ran = [i for i, r in enumerate(records) if r["kind"] == Kind.STEP and r["name"] == name]
        assert any(
            r["kind"] == Kind.EXITED and (r["rank"], r["outcome"], r["status"]) == (STEP, "EXITED", 0)
            for r in records[ran[0] :]
        )
    assert dataclasses.asdict(replay(copy.deepcopy(records))) == dataclasses.asdict(job)


_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=3) | st.sampled_from(list(State)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_a_journal_that_makes_no_sense_is_refused_with_one_error(data):
    """Whatever values a record carries: a job, or IllegalTransition, and nothing else."""
    records = story(*data.draw(st.lists(_KINDS, min_size=1, max_size=6).map(lambda kinds: [Kind.ACCEPTED, *kinds])))
    victim = data.draw(st.sampled_from(records))
    victim[data.draw(st.sampled_from(sorted(set(victim) - {"n"})))] = data.draw(_VALUE)
    try:
        job = replay(records)
    except IllegalTransition:
        return
    assert isinstance(job.state, State)
