import dataclasses
import math
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.supervisors.launch.limits import RESOURCES
from muster.supervisors.launch.spec_rules import violations
from muster.supervisors.model.rules.notify_rules import JOB_EVENTS
from muster.supervisors.model.spec import MAX_GRACE_S, MAX_LABELS, MAX_RANKS, MAX_RESTARTS, Boot, JobSpec, TrainingMode
from muster.supervisors.model.spec_fields import JOB_LIMITS, MAX_STRING
from muster.supervisors.output.log_segments import new_path, removed_path, segment_path
from muster.supervisors.paths import Root, is_reserved

GOOD = JobSpec("job-1", ("python", "train.py"))


def spec(**changes: Any) -> JobSpec:
    return dataclasses.replace(GOOD, **changes)


def fields_of(bad: JobSpec) -> list[str]:
    return [v.field for v in violations(bad)]


NODES: dict[str, Any] = {"node_count": 2, "master_addr": "a", "master_port": 1}


#: What muster may call a file or folder of its own among the logs.
OF_MUSTER = (
    "audit.log",
    "audit.log.1",
    "nursery.log",
    "musterd.log",
    "x.idx",
    "x-proc-rank-0-device-0.txt",
    "x-proc-rank-0-device-0.txt.0000000000000000-0000000000000010.gz",
    "x-proc-rank-0-device-0.txt.1700000000",
    "x-muster-0.log",
    "x-worker-12.log.removed",
    "x-muster-0.idx",
    "x.removed",
    "x.new",
    "x.logs",
)


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
        *(({"job_id": name}, ["job_id"]) for name in OF_MUSTER),
        *(({"env": {"MA_VJ_NAME": name}}, ["env['MA_VJ_NAME']"]) for name in OF_MUSTER),
        ({"command": ()}, ["command"]),
        ({"command": ("",)}, ["command[0]"]),
        ({"command": ("a", "b\0c")}, ["command[1]"]),
        ({"command": ("a", "b" * MAX_STRING)}, ["command[1]"]),
        ({"env": {"": "1"}}, ["env['']"]),
        ({"env": {"A=B": "1"}}, ["env['A=B']"]),
        ({"env": {"A\0B": "1"}}, ["env['A\\x00B']"]),
        ({"env": {"A": "1\0"}}, ["env['A']"]),
        ({"env": {"A": "é" * (MAX_STRING // 2)}}, ["env['A']"]),
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
        (NODES | {"master_port": 0}, ["master_port"]),
        ({"labels": {str(i): "" for i in range(MAX_LABELS + 1)}}, ["labels"]),
        ({"labels": {"": "x"}}, ["labels['']"]),
        ({"labels": {"k" * 257: "x"}}, [f"labels['{'k' * 40}']"]),
        ({"labels": {"k": "é" * 129}}, ["labels['k']"]),
        ({"labels": {"k": "\0"}}, ["labels['k']"]),
        ({"max_runtime": 0.0}, ["max_runtime"]),
        ({"max_runtime": -1.0}, ["max_runtime"]),
        ({"max_runtime": math.nan}, ["max_runtime"]),
        ({"max_runtime": math.inf}, ["max_runtime"]),
        ({"max_runtime": 4e8}, ["max_runtime"]),
        ({"boot": ""}, ["boot"]),
        ({"boot": "horovod"}, ["boot"]),
        ({"boot": "RANKS"}, ["boot"]),
        ({"boot": "x" * 10_000}, ["boot"]),
        ({"training_mode": "fast"}, ["training_mode"]),
        (NODES | {"nodes": ("a",)}, ["nodes"]),
        (NODES | {"nodes": ("a", "b", "c")}, ["nodes"]),
        (NODES | {"nodes": ("a", "a")}, ["nodes"]),
        (NODES | {"nodes": ("a", "")}, ["nodes[1]"]),
        (NODES | {"nodes": ("a b", "c,d")}, ["nodes[0]", "nodes[1]"]),
        (NODES | {"nodes": ("../a", "b\n")}, ["nodes[0]", "nodes[1]"]),
        (NODES | {"nodes": ("a" * 254, "\ud800")}, ["nodes[0]", "nodes[1]"]),
        ({"nodes": ("a", "b")}, ["nodes"]),
        ({"rank_table": "table.json"}, ["rank_table"]),
        (
            {"pre_start": "x.sh", "requirements": "r.txt", "epilog": "e\0"},
            ["pre_start", "requirements", "epilog", "epilog"],
        ),
        ({"ready_timeout": 0.0}, ["ready_timeout"]),
        ({"pre_start_timeout": -1.0}, ["pre_start_timeout"]),
        ({"requirements_timeout": math.nan}, ["requirements_timeout"]),
        ({"epilog_timeout": math.inf}, ["epilog_timeout"]),
        ({"max_restarts": -1}, ["max_restarts"]),
        ({"max_restarts": MAX_RESTARTS + 1}, ["max_restarts"]),
        ({"restart_backoff": -0.1}, ["restart_backoff"]),
        ({"restart_backoff": math.nan}, ["restart_backoff"]),
        ({"restart_backoff": 3600.5}, ["restart_backoff"]),
        ({"umask": -1}, ["umask"]),
        ({"umask": 0o1000}, ["umask"]),
        ({"nice": -21}, ["nice"]),
        ({"nice": 20}, ["nice"]),
        ({"limits": {"files": 1.0}}, ["limits.files"]),
        ({"limits": {"": 1.0, "x" * 100: 1.0}}, ["limits.", f"limits.{'x' * 40}"]),
        *(
            ({"limits": {name: value}}, [f"limits.{name}"])
            for name in RESOURCES
            for value in (-2.0, 0.5, math.nan, 2.0**63)
        ),
        *(({"limits": {name: value}}, [f"limits.{name}"]) for name in JOB_LIMITS for value in (0.0, -1.0, math.inf)),
    ],
)
def test_a_wrong_field_is_named(changes, expected):
    assert fields_of(spec(**changes)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"job_id": "a"},
        {"job_id": "audit"},
        {"job_id": "x-muster-0"},
        {"job_id": "x-proc-rank-0-device-0"},
        {"job_id": "v1.logs2"},
        {"env": {"MA_VJ_NAME": "ma-job-x"}},
        {"env": {"MA_VJ_NAME": "no/id"}},
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
        *({"boot": boot.value} for boot in Boot if boot is not Boot.MPI),
        *({"training_mode": mode.value} for mode in TrainingMode),
        NODES | {"nodes": ("worker-0.job.svc", "fe80::1%eth0")},
        {"nodes": ("alone",)},
        {"rank_table": "/user/config", "ready_timeout": 0.1},
        {"pre_start": "/a b.sh", "requirements": "/r.txt", "epilog": "/é", "epilog_timeout": 3e8},
        {"max_restarts": MAX_RESTARTS, "restart_backoff": 0.0},
        {"restart_backoff": 3600.0},
        {"umask": 0},
        {"umask": 0o777},
        {"nice": -20},
        {"nice": 19},
        {"limits": dict.fromkeys(RESOURCES, -1.0)},
        {"limits": dict.fromkeys(RESOURCES, 0.0)},
        {"limits": {"memory": 2.0**62, "cpus": 0.5, "memlock": 2.0**62}},
    ],
)
def test_what_is_allowed_passes(changes):
    assert violations(spec(**changes)) == []


def test_all_that_is_wrong_is_reported_at_once_in_sentences():
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
        "job_id", "command[0]", "ranks", "env['A=B']", "env['OK']", "workdir", "user", "node_count", "master_port",
        "max_runtime", "grace_steps", "labels['']",
    ]  # fmt: skip
    assert all(v.description for v in found)
    assert found[2].description == f"-3: must be 1 to {MAX_RANKS}"


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
        boot=st.sampled_from([*Boot]) | st.text(),
        nodes=st.lists(st.text()).map(tuple),
        rank_table=st.text(),
        max_restarts=st.integers(),
        restart_backoff=st.none() | st.floats(),
        pre_start=st.text(),
        limits=st.dictionaries(st.sampled_from([*RESOURCES, *JOB_LIMITS]) | st.text(), st.floats()),
        umask=st.none() | st.integers(),
        nice=st.integers(),
        training_mode=st.text(),
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
    ("changes", "shown"),
    [
        ({"boot": "horovod"}, ("'horovod'", "ranks, torchrun, msrun, pytorch, tensorflow, mpi, command")),
        ({"training_mode": "fast"}, ("'fast'", "normal, high_performance, diagnosis")),
        ({"nodes": ("a", "b", "c"), **NODES}, ("3 names for 2",)),
        ({"limits": {"files": 1.0}}, ("nofile, memlock, stack, core, nproc, memory, cpus",)),
        ({"limits": {"nofile": 0.5}}, ("0.5", "or unlimited (-1)")),
        ({"limits": {"pids": -1.0}}, ("unlimited: must be a whole number, 1 to 4194304",)),
        ({"limits": {"pids": 9999999.0}}, ("9999999: must",)),
        ({"limits": {"memory": -1.0}}, ("unlimited: must be above 0", "leave it out for no limit")),
        ({"umask": 0o7777}, ("0o7777", "0o777")),
        ({"nice": 40}, ("40", "-20 to 19")),
        ({"max_restarts": 5000}, ("5000", str(MAX_RESTARTS))),
        ({"pre_start": "x.sh"}, ("'x.sh'", "absolute")),
        ({"epilog_timeout": -3.0}, ("-3.0 s", "above 0")),
    ],
)
def test_what_it_was_and_what_is_allowed_is_reported(changes, shown):
    (violation,) = violations(spec(**changes))
    assert all(part in violation.description for part in shown)
    assert len(violation.description) < 250


def test_a_name_of_muster_s_own_is_refused_in_words():
    (found,) = violations(spec(env={"MA_VJ_NAME": "audit.log"}))
    assert found.description == (
        "'audit.log': muster uses such names for its own files, which lie beside those of jobs: choose another name"
    )


def test_every_file_that_muster_makes_among_the_logs_has_a_reserved_name():
    root = Root.under(Path("/r"))
    log = root.rank_log("j", 3, 1)
    made = [
        *(root.audit_log, root.nursery_log, log, root.rank_index("j", 3, 1), root.job_log("j", 0)),
        *(root.job_index("j", 0), root.worker_log("j", 0), root.own_job_logs("j"), root.report("j", 0)),
        *(segment_path(log, 0, 10), removed_path(log), new_path(log), Path(f"{segment_path(log, 0, 10)}.gz.part")),
    ]
    assert [path.name for path in made if not is_reserved(path.name)] == []


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"notify_webhook": "http://h/", "notify_events": JOB_EVENTS, "notify_secret": "s e c r e t"}, []),
        ({"notify_events": ("failed",)}, ["notify.events"]),
        ({"notify_webhook": "http://h/", "notify_events": ("node_condition",)}, ["notify.events"]),
        ({"notify_webhook": "h", "notify_events": ("hang",)}, ["notify.webhook", "notify.events"]),
        ({"notify_secret": "s"}, ["notify.secret"]),
        ({"notify_webhook": "http://h/", "notify_secret": "s\n"}, ["notify.secret"]),
        ({"notify_webhook": "http://h/", "notify_secret": "é" * 2049}, ["notify.secret"]),
    ],
)
def test_notifications_that_a_job_asks_for(changes: dict[str, Any], fields: list[str]) -> None:
    assert fields_of(spec(**changes)) == fields


def test_a_border_names_a_field_in_its_own_way() -> None:
    bad = spec(nice=40, node_count=2, master_port=1, env={"A=B": ""}, limits={"files": 1.0})
    found = [v.field for v in violations(bad, lambda field: f"--{field}")]
    assert found == ["--env['A=B']", "--limits.files", "--nice", "--master_addr"]
