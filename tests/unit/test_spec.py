import dataclasses
import json
import math
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisors.spec import MAX_GRACE_S, MAX_LABELS, MAX_RANKS, MAX_STRING, JobSpec, violations

GOOD = JobSpec("job-1", ("python", "train.py"))
FIELDS = tuple(f.name for f in dataclasses.fields(JobSpec))

#: Another value than GOOD's for every field: a field that is added must be added here too.
OTHER: dict[str, Any] = {
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
}


def spec(**changes: Any) -> JobSpec:
    return dataclasses.replace(GOOD, **changes)


def fields_of(bad: JobSpec) -> list[str]:
    return [v.field for v in violations(bad)]


# --- rules ------------------------------------------------------------------------------------------------------------

NODES: dict[str, Any] = {"node_count": 2, "master_addr": "a", "master_port": 1}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"job_id": ""}, ["job_id"]),
        ({"job_id": "a/b"}, ["job_id"]),
        ({"job_id": ".."}, ["job_id"]),
        ({"job_id": "-a"}, ["job_id"]),
        ({"job_id": "a\n"}, ["job_id"]),
        ({"job_id": "ä"}, ["job_id"]),
        ({"job_id": "a" * 129}, ["job_id"]),
        ({"job_id": "a" * 300}, ["job_id"]),
        ({"command": ()}, ["command"]),
        ({"command": ("",)}, ["command[0]"]),
        ({"command": ("a", "b\0c")}, ["command[1]"]),
        ({"command": ("a", "b" * MAX_STRING)}, ["command[1]"]),
        ({"env": {"": "1"}}, ["env['']"]),
        ({"env": {"A=B": "1"}}, ["env['A=B']"]),
        ({"env": {"A\0B": "1"}}, ["env['A\\x00B']"]),
        ({"env": {"A": "1\0"}}, ["env[A]"]),
        ({"env": {"A": "é" * (MAX_STRING // 2)}}, ["env[A]"]),
        ({"ranks": -1}, ["ranks"]),
        ({"ranks": MAX_RANKS + 1}, ["ranks"]),
        ({"ranks": 100_000}, ["ranks"]),
        ({"ranks": 2, "card_count": 2}, ["ranks"]),
        ({"ranks": 2, "card_indices": (0, 1)}, ["ranks"]),
        ({"card_count": 1, "card_indices": (0,)}, ["cards"]),
        ({"card_count": -1}, ["cards.count"]),
        ({"card_count": MAX_RANKS + 1}, ["cards.count"]),
        ({"card_indices": (1, 2, 1)}, ["cards.indices"]),
        ({"workdir": "relative"}, ["workdir"]),
        ({"workdir": "/a\0"}, ["workdir"]),
        ({"workdir": "/" + "a" * 4095}, ["workdir"]),
        ({"workdir": "a" * 5000}, ["workdir", "workdir"]),
        ({"user": "a\0"}, ["user"]),
        ({"user": "a" * 257}, ["user"]),
        ({"grace_steps": (1.0,) * 65}, ["grace_steps"]),
        ({"grace_steps": (-0.1,)}, ["grace_steps"]),
        ({"grace_steps": (math.nan,)}, ["grace_steps"]),
        ({"grace_steps": (math.inf,)}, ["grace_steps"]),
        ({"grace_steps": (MAX_GRACE_S, 1.0)}, ["grace_steps"]),
        ({"master_port": -1}, ["master_port"]),
        ({"master_port": 65536}, ["master_port"]),
        ({"master_addr": "a\0"}, ["master_addr"]),
        ({"master_addr": "a" * 254}, ["master_addr"]),
        ({"node_count": 0}, ["node_count"]),
        ({"node_count": 65537, "master_addr": "a", "master_port": 1}, ["node_count"]),
        ({"node_rank": 1}, ["node_rank"]),
        ({"node_rank": -1}, ["node_rank"]),
        (NODES | {"node_rank": 2}, ["node_rank"]),
        (NODES | {"master_addr": ""}, ["master_addr"]),
        (NODES | {"master_port": 0}, ["master_addr"]),
        ({"labels": {str(i): "" for i in range(MAX_LABELS + 1)}}, ["labels"]),
        ({"labels": {"": "x"}}, ["labels['']"]),
        ({"labels": {"k" * 257: "x"}}, [f"labels['{'k' * 40}']"]),
        ({"labels": {"k": "é" * 129}}, ["labels['k']"]),
        ({"labels": {"k": "\0"}}, ["labels['k']"]),
        ({"max_runtime": 0.0}, ["max_runtime"]),
        ({"max_runtime": -1.0}, ["max_runtime"]),
        ({"max_runtime": math.nan}, ["max_runtime"]),
        ({"max_runtime": math.inf}, ["max_runtime"]),
    ],
)
def test_a_wrong_field_is_named(changes, expected):
    assert fields_of(spec(**changes)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"job_id": "a"},
        {"job_id": "0" + "a._-" * 31 + "xyz"},
        {"command": ("a", "", " ", "é\n")},
        {"command": ("a", "b" * (MAX_STRING - 1))},
        {"env": {"A": "", "b c": "=", "X": "\udce9"}},
        {"ranks": MAX_RANKS},
        {"card_count": MAX_RANKS},
        {"card_indices": (7, 0)},
        {"workdir": "/"},
        {"grace_steps": (0.0,)},
        {"grace_steps": (MAX_GRACE_S,)},
        {"grace_steps": (0.5,) * 64},
        {"master_port": 65535},
        NODES | {"node_rank": 1},
        {"labels": {str(i): "" for i in range(MAX_LABELS)}},
        {"labels": {"k" * 256: "v" * 256}},
        {"max_runtime": 0.001},
    ],
)
def test_what_is_allowed_passes(changes):
    assert violations(spec(**changes)) == []


def test_all_that_is_wrong_is_told_at_once_in_sentences():
    bad = spec(
        job_id="../x",
        command=("",),
        env={"A=B": "x", "OK": "a\0"},
        ranks=-3,
        workdir="here",
        user="\0",
        grace_steps=(-1.0,),
        master_port=70000,
        node_count=0,
        labels={"": ""},
        max_runtime=-1.0,
    )
    found = violations(bad)
    assert [v.field for v in found] == [
        "job_id", "command[0]", "env['A=B']", "env[OK]", "ranks", "workdir", "user", "grace_steps", "master_port",
        "node_count", "labels['']", "max_runtime",
    ]  # fmt: skip
    assert all(v.description for v in found)
    assert "-3" in found[4].description
    assert str(MAX_RANKS) in found[4].description


def test_a_secret_is_in_no_description():
    found = violations(spec(env={"TOKEN": "hunter2\0", "A=B": "hunter2", "LONG": "hunter2" * MAX_STRING}))
    assert len(found) == 3
    assert "hunter2" not in str(found)


def test_a_long_id_is_shown_short():
    (violation,) = violations(spec(job_id="a" * 300))
    assert "300 characters" in violation.description
    assert len(violation.description) < 200


@pytest.mark.parametrize("env", [{"A" * MAX_STRING: ""}, {"A": "x" * (MAX_STRING - 1)}])
def test_name_and_value_together_must_fit_into_what_the_kernel_allows(env):
    """MAX_ARG_STRLEN is for `NAME=VALUE` and its NUL; execve(2) would answer E2BIG."""
    assert len(violations(spec(env=env))) == 1


@pytest.mark.parametrize("changes", [{"env": {"A": "\ud800"}}, {"command": ("\ud800",)}, {"labels": {"k": "\ud800"}}])
def test_text_that_no_process_can_be_given_is_a_violation_and_no_crash(changes):
    """JSON and TOML can carry a lone surrogate; neither the kernel nor protobuf can."""
    assert len(violations(spec(**changes))) == 1


@given(
    st.builds(
        JobSpec,
        st.text(),
        st.lists(st.text()).map(tuple),
        env=st.dictionaries(st.text(), st.text()),
        ranks=st.integers(),
        card_count=st.integers(),
        card_indices=st.lists(st.integers()).map(tuple),
        workdir=st.text(),
        user=st.text(),
        grace_steps=st.lists(st.floats()).map(tuple),
        master_addr=st.text(),
        master_port=st.integers(),
        node_rank=st.integers(),
        node_count=st.integers(),
        labels=st.dictionaries(st.text(), st.text()),
        max_runtime=st.none() | st.floats(),
    )
)
@settings(deadline=None, max_examples=200)
def test_what_passes_the_rules_is_safe_to_use(any_spec):
    """Whatever is asked: an answer and no exception, and nothing that passes leads out of the job's folder."""
    if violations(any_spec):
        return
    assert set(any_spec.job_id) <= set(string.ascii_letters + string.digits + "._-")
    assert any_spec.job_id not in ("", ".", "..")
    assert any_spec.local_ranks >= 1
    assert any_spec.command[0]
    assert not any("\0" in text for text in (*any_spec.command, *any_spec.env, *any_spec.env.values()))


@pytest.mark.parametrize(
    ("changes", "ranks", "cards"),
    [
        ({}, 1, False),
        ({"ranks": 3}, 3, False),
        ({"card_count": 4}, 4, True),
        ({"card_indices": (5, 6)}, 2, True),
    ],
)
def test_number_of_ranks(changes, ranks, cards):
    assert (spec(**changes).local_ranks, spec(**changes).wants_cards) == (ranks, cards)


# --- text and digest --------------------------------------------------------------------------------------------------


def test_every_field_is_decided_here():
    assert set(OTHER) == set(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_in_the_text_and_in_the_digest(name):
    other = spec(**{name: OTHER[name]})
    assert other != GOOD
    assert other.digest() != GOOD.digest()
    assert JobSpec.from_json(other.to_json()) == other


def test_digests_of_all_single_changes_differ_from_each_other():
    assert len({spec(**{name: OTHER[name]}).digest() for name in FIELDS}) == len(FIELDS)


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


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "[]", "null", "5", '"x"', '{"job_id": "a", "command": 5}', '{"job_id": "a", "new": 1}']
)
def test_anything_else_is_refused(text):
    with pytest.raises((ValueError, TypeError)):
        JobSpec.from_json(text)
