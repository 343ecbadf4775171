import os

import pytest

from agent.cli import spec
from agent.cli.errors import BadSpec, Failure
from agent.cli.spec import Draft
from supervisors.spec import JOB_ID, JobSpec


def test_every_key_of_the_draft_can_be_in_a_file():
    assert set(spec._PARSERS) == set(spec.KEYS)


def test_a_file_with_everything():
    draft = spec.from_table(
        {
            "job-id": "demo",
            "command": ["python", "train.py"],
            "cards": "0,3",
            "env": {"A": "1", "N": 2},
            "workdir": "/tmp",
            "user": "nobody",
            "nodes": ["a", "b"],
            "node_rank": 1,
            "master_port": 29500,
            "skip_check": True,
            "max-runtime": "2h",
            "grace": [1, "500ms"],
            "labels": {"team": "x"},
        }
    )
    assert draft.spec() == JobSpec(
        job_id="demo",
        command=("python", "train.py"),
        env={"A": "1", "N": "2"},
        card_indices=(0, 3),
        workdir="/tmp",
        user="nobody",
        grace_steps=(1.0, 0.5),
        master_addr="a",
        master_port=29500,
        node_rank=1,
        node_count=2,
        labels={"team": "x"},
        skip_check=True,
        max_runtime=7200.0,
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"comand": ["x"]}, "unknown key 'comand': did you mean 'command'"),
        ({"label": {}}, "did you mean 'labels'"),
        ({"zzz": 1}, "known are cards, command"),
        ({"command": "a b"}, "there is no shell"),
        ({"command": ["a", 1]}, "list of texts"),
        ({"ranks": "2"}, "whole number"),
        ({"ranks": True}, "whole number"),
        ({"ranks": -1}, "whole number"),
        ({"cards": "0-3"}, "number of cards"),
        ({"cards": [1.5]}, "whole number"),
        ({"skip_check": 1}, "true or false"),
        ({"max_runtime": "soon"}, "is no duration"),
        ({"grace": [1, True]}, "must be text"),
        ({"nodes": "a,,b"}, "names of all nodes"),
        ({"job_id": "a", "job-id": "b"}, "the same key"),
        ({"env": ["A=1"]}, "must be a table"),
    ],
)
def test_a_wrong_file_is_refused(table, message):
    with pytest.raises(ValueError, match=message):
        spec.from_table(table)


def test_a_wrong_variable_is_refused_without_its_value():
    with pytest.raises(ValueError, match="TOKEN") as caught:
        spec.from_table({"env": {"TOKEN": ["hunter2"]}})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("written", "meant"), [("2", 2), ("0,3", [0, 3]), ("3,", [3]), (4, 4), ([1], [1]), ("0", 0)])
def test_cards(written, meant):
    assert spec.cards(written) == meant


def test_options_win_over_the_file():
    draft = Draft(command=["a"], ranks=2, env={"A": "1", "B": "1"}, job_id="file", labels={"l": "1"})
    draft.override(Draft(cards=[1], env={"B": "2"}, job_id="option"))
    assert draft.spec() == JobSpec(
        job_id="option", command=("a",), card_indices=(1,), env={"A": "1", "B": "2"}, labels={"l": "1"}
    )


def test_no_command_is_wrong_usage():
    with pytest.raises(Failure, match="no command") as caught:
        Draft(command=[]).spec()
    assert caught.value.exit_code == 2


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(BadSpec) as caught:
        Draft(command=["x"], job_id="a/b", ranks=0, nodes=["a", "b"]).spec()
    fields = [line.partition(":")[0] for line in caught.value.message.splitlines()]
    assert fields == ["ranks", "node_rank", "job_id", "master_addr"]
    assert caught.value.exit_code == 2


def test_what_is_not_utf8_is_refused():
    with pytest.raises(BadSpec, match=r"command\[1\]: is not UTF-8"):
        Draft(command=["x", os.fsdecode(b"\xff")]).spec()


@pytest.mark.parametrize("program", ["train.py", "/usr/bin/python3", "./-x", "", "日本", "a b"])
def test_a_made_up_id_is_a_legal_one(program):
    first, second = spec.new_id([program, "x"]), spec.new_id([program, "x"])
    assert first != second
    assert JOB_ID.fullmatch(first)


def test_the_message_says_what_the_spec_says():
    from agent import convert

    full = JobSpec(
        job_id="demo",
        command=("a", "b"),
        env={"A": "1"},
        card_indices=(1, 2),
        workdir="/tmp",
        user="u",
        grace_steps=(0.5, 2.0),
        master_addr="a",
        master_port=1,
        node_rank=1,
        node_count=2,
        labels={"l": "v"},
        skip_check=True,
        max_runtime=0.25,
    )
    for one in (full, JobSpec(job_id="x", command=("a",)), JobSpec(job_id="x", command=("a",), card_count=2)):
        assert convert.spec_from(spec.to_proto(one)) == one
