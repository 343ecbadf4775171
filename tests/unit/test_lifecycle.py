import copy
import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisors.errors import IllegalTransition
from supervisors.journal import FORMAT, Record
from supervisors.lifecycle import Cause, Job, Kind, Outcome, Rank, State, Verdict, replay

A, C, P, R, S, AGAIN = (
    State.ACCEPTED, State.CHECKING, State.PREPARING, State.RUNNING, State.STOPPING, State.RESTARTING,
)  # fmt: skip
FINAL = {State.SUCCEEDED, State.FAILED, State.STOPPED, State.LOST}
LIVE = set(State) - FINAL

#: Written down a second time, from design.md: kind -> where it may come, and where it leads (None: nowhere).
#: A kind that is added must be decided here.
ALLOWED: dict[Kind, tuple[set[State], State | None]] = {
    Kind.ACCEPTED: (set(), None),  # as the first record only
    Kind.CHECKING: ({A, C}, C),
    Kind.CHECKED: ({C}, None),
    Kind.TAKEN: (LIVE, None),
    Kind.PREPARING: ({A, C, P, AGAIN}, P),
    Kind.SPAWNED: ({P}, None),
    Kind.UNBORN: ({P, S}, None),
    Kind.RUNNING: ({P}, R),
    Kind.EXITED: ({P, R, S}, None),
    Kind.USAGE: (LIVE, None),
    Kind.STOPPING: (LIVE, S),
    Kind.ESCALATED: ({S}, None),
    Kind.WARNING: (LIVE, None),
    Kind.LOST_BYTES: (LIVE, None),
    Kind.ENDED: (LIVE, State.FAILED),  # as SAMPLES has it
}

SAMPLES: dict[Kind, Record] = {
    Kind.ACCEPTED: {
        "format": FORMAT, "digest": "d", "boot": "b", "card_kind": "slot", "master_addr": "127.0.0.1",
        "master_port": 29500, "by": "uid 0", "first_rank": 4, "devices": [0, 1],
    },
    Kind.CHECKING: {},
    Kind.CHECKED: {"ok": True, "results": [{"name": "disk"}], "skipped": False},
    Kind.TAKEN: {"pid": 7, "takeover": False},
    Kind.PREPARING: {"attempt": 0, "cgroup": "/x"},
    Kind.SPAWNED: {"ranks": [[4, 100, 1000], [5, 101, 1001]]},
    Kind.UNBORN: {},
    Kind.RUNNING: {"up": 6.0},
    Kind.EXITED: {"rank": 5, "outcome": "EXITED", "status": 0x700, "usage": {"cpu_user_s": 1.5}, "detail": "x"},
    Kind.USAGE: {"rank": 5, "max_rss": 4096},
    Kind.STOPPING: {"cause": "requested", "by": "me", "reason": "so", "steps": [1.0, 2.0], "up": 11.0},
    Kind.ESCALATED: {"signal": "SIGTERM", "processes": 2},
    Kind.WARNING: {"text": "w"},
    Kind.LOST_BYTES: {"rank": 4, "bytes": 10, "since": 1.0, "until": 2.0, "error": "No space left on device"},
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
        job.apply(record(kind))
        assert job.state == (target or state)
        assert job.last_time == 50.0
    else:
        with pytest.raises(IllegalTransition):
            job.apply(record(kind))
        assert job == before, "what is refused changes nothing"


@pytest.mark.parametrize("state", sorted(FINAL))
@pytest.mark.parametrize("kind", Kind)
def test_a_final_state_takes_nothing(kind, state):
    assert state not in ALLOWED[kind][0]
    with pytest.raises(IllegalTransition):
        job_in(state).apply(record(kind))


@pytest.mark.parametrize("state", State)
def test_a_job_ends_in_a_final_state_only(state):
    job = job_in(State.RUNNING)
    if state in FINAL:
        job.apply(record(Kind.ENDED, state=state.value))
        assert (job.state, job.ended_at) == (state, 50.0)
    else:
        with pytest.raises(IllegalTransition, match=f"{state}.*no final state"):
            job.apply(record(Kind.ENDED, state=state.value))


@pytest.mark.parametrize(
    ("state", "kind", "changes"),
    [
        (R, Kind.ENDED, {"state": "ACCEPTED"}),
        (R, Kind.ENDED, {"state": "SUCCEEDED", "verdict": {"nonsense": 1}}),
        (R, Kind.ENDED, {"state": "nonsense"}),
        (R, Kind.STOPPING, {"cause": "nonsense"}),
        (R, Kind.EXITED, {"rank": 6}),
        (R, Kind.EXITED, {"outcome": "nonsense"}),
    ],
)
def test_a_record_that_makes_no_sense_leaves_the_job_in_its_state(state, kind, changes):
    """Whoever catches the error must not find a job that has SUCCEEDED, say, without a verdict."""
    job = job_in(state)
    with pytest.raises((IllegalTransition, ValueError, TypeError)):
        job.apply(record(kind, **changes))
    assert job.state == state


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", ["nonsense", "", "RUNNING", None, 5])
def test_an_unknown_kind_is_refused_in_every_state(kind, state):
    job = job_in(state)
    with pytest.raises(IllegalTransition, match="unknown kind"):
        job.apply({"n": 7, "t": 1.0, "kind": kind})
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
    assert (job.attempt, job.cgroup, job.spawned, job.takeovers) == (0, "/x", True, 0)
    assert (job.checks, job.warnings) == ([{"name": "disk"}], ["w"])
    first, second = job.ranks
    assert (first.rank, first.local_rank, first.device, first.pid, first.start) == (4, 0, 0, 100, 1000)
    assert (first.started_at, first.outcome, first.status, first.lost_bytes) == (105.0, None, None, 20)
    assert (second.outcome, second.status, second.ended_at, second.detail) == (Outcome.EXITED, 0x700, 109.0, "x")
    assert (second.usage.cpu_user_s, second.usage.max_rss) == (1.5, 4096)
    assert job.stop is not None
    assert (job.stop.cause, job.stop.by, job.stop.reason) == (Cause.REQUESTED, "me", "so")
    assert (job.stop.steps, job.stop.up, job.started_up) == ((1.0, 2.0), 11.0, 6.0)
    assert (job.terminated, job.killed, job.verdict) == (True, False, None)

    job.apply(record(Kind.ESCALATED, signal="SIGKILL"))
    assert job.killed
    job.apply(record(Kind.ENDED, t=120.0))
    assert (job.state, job.ended_at, job.supervisor_pid) == (State.FAILED, 120.0, 0)
    assert job.verdict == Verdict(7, "s", None, ("l",), (4,))


def test_children_that_were_never_born_are_made_again():
    job = replay(story(Kind.ACCEPTED, Kind.TAKEN, Kind.PREPARING, Kind.SPAWNED, Kind.UNBORN))
    assert [(r.pid, r.start, r.started_at) for r in job.ranks] == [(0, 0, 0.0)] * 2
    assert (job.state, job.spawned) == (P, False)
    job.apply(record(Kind.TAKEN, takeover=True))
    job.apply(record(Kind.PREPARING))
    job.apply(record(Kind.SPAWNED, ranks=[[4, 200, 2000], [5, 201, 2001]]))
    assert [(r.pid, r.start) for r in job.ranks] == [(200, 2000), (201, 2001)]
    assert job.takeovers == 1


def test_a_second_stop_shortens_the_first_and_keeps_its_cause():
    job = replay(story(Kind.ACCEPTED, Kind.STOPPING))
    job.apply(record(Kind.STOPPING, cause="rank_failed", by="rank 4", reason="it failed", steps=[0.5], up=20.0))
    assert job.stop is not None
    assert job.stop.up == 20.0, "a shorter grace counts from when it was asked for"
    assert (job.stop.steps, job.stop.cause, job.stop.by) == ((0.5,), Cause.REQUESTED, "me")


def test_an_empty_verdict_of_an_exit_is_not_known():
    job = replay(story(Kind.ACCEPTED, Kind.PREPARING, Kind.SPAWNED, Kind.RUNNING))
    job.apply(record(Kind.EXITED, outcome="LOST", status=None))
    assert (job.rank(5).outcome, job.rank(5).status) == (Outcome.LOST, None)


@pytest.mark.parametrize("number", [-1, 0, 3, 6, 1000])
def test_a_rank_of_another_node_is_not_ours(number):
    with pytest.raises(IllegalTransition, match=f"no rank {number}"):
        job_in(R).rank(number)


def test_a_job_without_ranks_has_none():
    with pytest.raises(IllegalTransition):
        Job().rank(0)


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
        Kind.SPAWNED: [Kind.PREPARING],
        Kind.EXITED: [Kind.PREPARING],
        Kind.ESCALATED: [Kind.STOPPING],
        Kind.RUNNING: [Kind.PREPARING],
    }.get(kind, [])
    before = [] if kind is Kind.ACCEPTED else story(*prelude)
    whole = record(kind, len(before))
    optional = {"usage", "detail", "ok", "skipped", "processes", "since", "until", "error"}
    for name in set(SAMPLES[kind]) - optional:
        if kind is Kind.CHECKED and name != "results":
            continue
        with pytest.raises(IllegalTransition, match=f"record {len(before)}: {kind}: .*{name}"):
            replay([*before, {k: v for k, v in whole.items() if k != name}])


_KINDS = st.sampled_from(list(Kind)) | st.sampled_from([Kind.PREPARING, Kind.SPAWNED, Kind.RUNNING, Kind.EXITED])
_DRAWN = st.builds(
    lambda kind, rank, status, outcome, cause, state, signal: {
        name: value
        for name, value in {
            "rank": rank, "status": status, "outcome": outcome.value, "cause": cause.value, "state": state.value,
            "signal": signal,
        }.items()
        if name in SAMPLES[kind]
    } | {"kind": kind.value},
    _KINDS,
    st.sampled_from([4, 5, 6]),
    st.sampled_from([None, 0, 9, 0x100]),
    st.sampled_from(list(Outcome)),
    st.sampled_from(list(Cause)),
    st.sampled_from(list(State)),
    st.sampled_from(["SIGTERM", "SIGKILL"]),
)  # fmt: skip


def _last(records: list[Record], *kinds: Kind, **having: Any) -> Record | None:
    """The last record of these kinds."""
    fitting = (r for r in reversed(records) if r["kind"] in kinds and all(r[k] == v for k, v in having.items()))
    return next(fitting, None)


@given(st.lists(_DRAWN, max_size=25))
@settings(deadline=None, max_examples=300)
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

    told = _last(records, Kind.CHECKING, Kind.PREPARING, Kind.RUNNING, Kind.STOPPING, Kind.ENDED)
    if told is None:
        assert job.state == A
    elif told["kind"] == Kind.ENDED:
        assert job.state == told["state"]
    else:
        assert job.state == told["kind"].upper()
    assert job.state.final == (records[-1]["kind"] == Kind.ENDED) == (job.verdict is not None)
    assert (job.stop is not None) == (_last(records, Kind.STOPPING) is not None)
    assert job.killed == (_last(records, Kind.ESCALATED, signal="SIGKILL") is not None)
    assert job.spawned == ((_last(records, Kind.PREPARING, Kind.SPAWNED, Kind.UNBORN) or {}).get("kind") == "spawned")
    for rank in job.ranks:
        ends = [r for r in records if r["kind"] == Kind.UNBORN or (r["kind"] == Kind.EXITED and r["rank"] == rank.rank)]
        exited = ends[-1] if ends and ends[-1]["kind"] == Kind.EXITED else None  # who is born again has not ended
        assert rank.outcome == (exited and exited["outcome"])
        assert rank.status == (exited and exited["status"])
        born = _last(records, Kind.SPAWNED, Kind.UNBORN)
        assert (rank.pid != 0) == (born is not None and born["kind"] == Kind.SPAWNED)
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
