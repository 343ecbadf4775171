import dataclasses
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.supervisors.model.spec import FIELDS, Boot, JobSpec
from tests.unit.spec_samples import sample

GOOD = JobSpec("job-1", ("python", "train.py"))
#: Another value than GOOD's for every field.
OTHER: dict[str, Any] = {field.name: sample(field)[0] for field in FIELDS.values()}
#: The same of the fields whose digests journals hold by now.
RECORDED: dict[str, Any] = {
    "job_id": "job-2",
    "command": ("python", "train.py", ""),
    "env": {"A": "1"},
    "ranks": 2,
    "card_count": 2,
    "card_indices": (3,),
    "workdir": "/tmp",
    "user": "nobody",
    "grace_steps": (1.0,),
    "master_addr": "10.0.0.1",
    "master_port": 29500,
    "node_rank": 1,
    "node_count": 2,
    "labels": {"team": "x"},
    "skip_check": True,
    "max_runtime": 60.0,
    "boot": "torchrun",
    "nodes": ("a", "b"),
    "rank_table": "/user/config",
    "ready_timeout": 60.0,
    "max_restarts": 3,
    "restart_backoff": 0.0,
    "pre_start": "/pre.sh",
    "pre_start_timeout": 60.0,
    "requirements": "/r.txt",
    "requirements_timeout": 60.0,
    "epilog": "/end.sh",
    "epilog_timeout": 60.0,
    "limits": {"nofile": -1.0},
    "umask": 0,
    "nice": 5,
    "training_mode": "normal",
    "on_hang": "stop",
    "max_hang_restarts": 0,
    "hang": {"hung_s": "900"},
    "notify_webhook": "https://example.org/hook",
    "notify_events": ("hung",),
}


def spec(**changes: Any) -> JobSpec:
    return dataclasses.replace(GOOD, **changes)


# --- what it says ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "ranks", "cards"),
    [
        ({}, 1, False),
        ({"ranks": 3}, 3, False),
        ({"card_count": 4}, 4, True),
        ({"card_indices": (5, 6)}, 2, True),
        ({"all_cards": True}, 1, True),
        ({"all_cards": True, "card_count": 8}, 8, True),
    ],
)
def test_number_of_ranks(changes, ranks, cards):
    assert (spec(**changes).local_ranks, spec(**changes).wants_cards) == (ranks, cards)


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({}, True),
        ({"rank_table": "/t"}, False),
        ({"rank_table": "/t", "ranks": 1}, True),
        ({"rank_table": "/t", "card_count": 1}, True),
        ({"rank_table": "/t", "card_indices": (0,)}, True),
    ],
)
def test_who_says_how_many_ranks_there_are(changes, counted):
    """Where nobody does it is one, unless a rank table is to say it."""
    assert spec(**changes).counted is counted


@pytest.mark.parametrize(
    ("boot", "nodes", "processes"),
    [(Boot.RANKS, 1, 4), (Boot.RANKS, 2, 4), (Boot.TENSORFLOW, 1, 1), (Boot.TENSORFLOW, 2, 2)]
    + [(boot, nodes, 1) for boot in sorted(set(Boot) - {Boot.RANKS, Boot.TENSORFLOW}) for nodes in (1, 3)],
)
def test_what_is_started_on_a_node(boot, nodes, processes):
    """Its ranks, or a launcher that makes them; and a parameter server beside a worker."""
    made = spec(boot=boot.value, node_count=nodes, ranks=4)
    assert (made.processes, made.local_ranks) == (processes, 4)


# --- text and digest --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_in_the_text_and_in_the_digest(name):
    other = spec(**{name: OTHER[name]})
    assert other != GOOD
    assert other.digest() != GOOD.digest()
    assert JobSpec.from_json(other.to_json()) == other


def test_digests_of_all_single_changes_differ_from_each_other():
    assert len({spec(**{name: OTHER[name]}).digest() for name in FIELDS}) == len(FIELDS)


def test_one_rank_is_the_default_also_where_it_is_asked_for():
    assert spec(ranks=1).digest() == GOOD.digest()
    assert spec(ranks=1).differences(GOOD) == []
    # As earlier versions wrote it into a journal.
    recorded = "7ed38fadde0f3ee71e4e3a00acd108e7d413fc4d3e1106be45acd65eb3cda439"
    assert hashlib.sha256(spec(ranks=1).to_json().encode()).hexdigest() == recorded
    assert spec(ranks=1).has_digest(recorded) and GOOD.has_digest(recorded)
    assert not spec(ranks=2).has_digest(recorded) and not spec(nice=1).has_digest(recorded)
    # A table with two devices is what one asks for, and not what the other does.
    assert spec(ranks=1, rank_table="/t").digest() != spec(rank_table="/t").digest()
    assert not spec(rank_table="/t").has_digest(spec(ranks=1, rank_table="/t").digest())
    assert spec(ranks=1, rank_table="/t").differences(spec(rank_table="/t")) == ["ranks"]


@pytest.mark.parametrize("name", FIELDS)
def test_a_difference_names_its_field_and_no_value(name):
    (found,) = spec(**{name: OTHER[name]}).differences(GOOD)
    shown = {"card_count": "cards", "card_indices": "cards", "limits": "limits.nofile", "hang": "hang['hung_s']"}
    shown |= {"all_cards": "cards", "env": f"env[{next(iter(OTHER['env']))!r}]", "labels": "labels['team']"}
    shown |= {"inputs": "inputs['d']", "outputs": "outputs['o']"}
    assert found == shown.get(name, name.replace("notify_", "notify."))
    assert GOOD.differences(spec(**{name: OTHER[name]})) == [found]


def test_all_differences_are_named():
    ours = spec(env={"A": "1", "B": "2", "C": "3"}, nice=1)
    theirs = spec(env={"A": "1", "B": "3", "D": "4"}, nice=2, card_count=1)
    assert ours.differences(theirs) == ["cards", "env['B']", "env['C']", "env['D']", "nice"]


def test_what_has_its_default_is_left_out():
    """So that a version that knows more fields finds the same job in what an older one wrote."""
    assert json.loads(GOOD.to_json()) == {"job_id": "job-1", "command": ["python", "train.py"]}
    for name in set(FIELDS) - {"job_id", "command"}:
        assert set(json.loads(spec(**{name: OTHER[name]}).to_json())) == {"job_id", "command", name}


@pytest.mark.parametrize("name", sorted(set(FIELDS) - {"job_id", "command"}))
def test_a_default_that_is_asked_for_is_the_default(name):
    assert spec(**{name: getattr(JobSpec("x", ("x",)), name)}).digest() == GOOD.digest()


@pytest.mark.parametrize(
    ("made", "digest"),
    [
        (GOOD, "c53c71f4b50863da025a2541477f7d652b6aae7d23f8b9124bd12ac7fb6918ce"),
        (spec(**RECORDED), "0bfb12d0f21e9596a5d8a46d15c2880fec3d682df68060c519a7de457842e6f7"),
    ],
)
def test_a_digest_stays_what_it_is(made, digest):
    """Kept in journals: another one makes of a job that is asked for again a conflict. Only a new field changes that of
    a spec that sets it."""
    assert made.digest() == digest


@given(st.dictionaries(st.text(), st.text()), st.randoms())
@settings(deadline=None, max_examples=50)
def test_digest_does_not_depend_on_the_order_of_dictionaries(env, random):
    items = list(env.items())
    random.shuffle(items)
    assert spec(env=env).digest() == spec(env=dict(items)).digest()
    assert spec(labels=env).to_json() == spec(labels=dict(items)).to_json()


# Text as Python has it: with the surrogates that stand for bytes which are not UTF-8.
_TEXT = st.text(st.characters() | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF, categories=["Cs"]))


@given(
    st.builds(
        JobSpec,
        _TEXT,
        st.lists(_TEXT).map(tuple),
        env=st.dictionaries(_TEXT, _TEXT),
        card_indices=st.lists(st.integers()).map(tuple),
        grace_steps=st.lists(st.floats(allow_nan=False)).map(tuple),
        labels=st.dictionaries(_TEXT, _TEXT),
        skip_check=st.booleans(),
        max_runtime=st.none() | st.floats(allow_nan=False),
        boot=_TEXT,
        nodes=st.lists(_TEXT).map(tuple),
        rank_table=_TEXT,
        restart_backoff=st.none() | st.floats(allow_nan=False),
        limits=st.dictionaries(_TEXT, st.floats(allow_nan=False)),
        umask=st.none() | st.integers(),
        nice=st.integers(),
    )
)
@settings(deadline=None, max_examples=100)
def test_json_round_trip(any_spec):
    text = any_spec.to_json()
    again = JobSpec.from_json(text)
    assert again == any_spec
    assert again.to_json() == text
    assert again.digest() == any_spec.digest()
    assert text.isascii(), "it is written to a file in whatever encoding the process has"


def test_an_older_text_without_a_field_has_its_default():
    raw = json.loads(spec(grace_steps=(1.0,), max_runtime=3.0).to_json())
    del raw["max_runtime"], raw["grace_steps"]
    assert JobSpec.from_json(json.dumps(raw)) == GOOD


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "null", "5", '"x"', '{"job_id": "a", "command": 5}'])
def test_anything_else_is_refused(text):
    with pytest.raises((ValueError, TypeError)):
        JobSpec.from_json(text)


def test_a_field_of_a_newer_version_is_passed_over():
    assert JobSpec.from_json('{"job_id": "a", "command": ["x"], "new": 1}') == JobSpec("a", ("x",))
