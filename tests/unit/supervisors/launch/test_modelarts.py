import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.supervisors.launch.modes import modelarts
from muster.supervisors.launch.modes.modelarts import MASTER_PORT, missing_node_rank, understood
from muster.supervisors.launch.spec_rules import violations
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import Boot, JobSpec
from muster.supervisors.paths import Root

#: As it comes in from a request: nothing said, so that even the boot mode is still to be found out.
ASKED = JobSpec("j", ("x",), boot="")
ROOT = Root.under(Path("/data/muster"))
HOSTS = "job-worker-0.job, job-worker-1.job,job-worker-2.job"
NAMES = ("job-worker-0.job", "job-worker-1.job", "job-worker-2.job")


@pytest.fixture(autouse=True)
def no_platform(monkeypatch, tmp_path):
    """Whatever lies on the machine of the test."""
    monkeypatch.setattr(modelarts, "DEFAULT_TABLE", str(tmp_path / "user" / "config" / "jobstart_hccl.json"))


def said(asked: JobSpec = ASKED, /, **env: str) -> dict[str, Any]:
    """What of a spec is another than its default because of these variables."""
    made = understood(replace(asked, env=env))
    usual = replace(asked, env=env, boot=asked.boot or "ranks")
    return {
        name: getattr(made, name) for name in JobSpec.__slots__ if getattr(made, name) != getattr(usual, name)
    }  # fmt: skip


# --- what the platform says -------------------------------------------------------------------------------------------


def test_without_a_platform_nothing_is_reported():
    assert said() == {}
    assert understood(ASKED).boot == "ranks"
    assert said(MA_HOME="/home", MA_JOB_DIR="/home/job", VC_WORKER_NUM="3") == {}


@pytest.mark.parametrize(
    ("method", "boot"),
    [("torchrun", "torchrun"), ("msrun", "msrun"), ("TorchRun", "torchrun"), ("", "ranks"), ("horovod", "ranks")],
)
def test_the_boot_mode(method, boot):
    assert understood(replace(ASKED, env={"MA_RUN_METHOD": method})).boot == boot


@pytest.mark.parametrize("boot", Boot)
def test_a_boot_mode_that_is_asked_for_wins(boot):
    for method in ("torchrun", "msrun"):
        assert understood(replace(ASKED, boot=boot.value, env={"MA_RUN_METHOD": method})).boot == boot


def test_the_number_of_cards():
    assert said(MA_NUM_GPUS="8") == {"card_count": 8}
    assert said(MA_NUM_GPUS="0") == {}, "a host without cards"
    for asked in ({"ranks": 2}, {"card_count": 2}, {"card_indices": (3,)}, {"rank_table": "/t"}):
        assert said(replace(ASKED, **asked), MA_NUM_GPUS="8") == {}


def test_several_nodes():
    found = said(VC_WORKER_HOSTS=HOSTS, VC_TASK_INDEX="2", MA_NUM_GPUS="8")
    assert found == {
        "nodes": NAMES, "node_count": 3, "node_rank": 2, "master_addr": NAMES[0], "master_port": MASTER_PORT,
        "card_count": 8,
    }  # fmt: skip
    assert violations(understood(replace(ASKED, env={"VC_WORKER_HOSTS": HOSTS, "VC_TASK_INDEX": "2"}))) == []


def test_a_node_alone_is_no_several_nodes():
    """Its name is not needed, and its port is a free one."""
    assert said(VC_WORKER_HOSTS="job-worker-0.job", VC_TASK_INDEX="0") == {}
    assert said(VC_WORKER_HOSTS="", VC_TASK_INDEX="3") == {}


def test_the_port_at_which_nodes_meet():
    several = {"VC_WORKER_HOSTS": HOSTS}
    assert said(**several, MA_TORCHRUN_MASTER_PORT="19999")["master_port"] == 19999
    assert said(**several, MA_TORCHRUN_MASTER_PORT="")["master_port"] == 18888
    assert "master_port" not in said(replace(ASKED, master_port=7), **several, MA_TORCHRUN_MASTER_PORT="19999")
    assert said(MA_TORCHRUN_MASTER_PORT="19999") == {}, "of a node alone torchrun takes one itself"


def test_what_is_asked_for_of_the_nodes_wins():
    env = {"VC_WORKER_HOSTS": HOSTS, "VC_TASK_INDEX": "1"}
    named = replace(ASKED, nodes=("a", "b"), node_count=2, master_addr="c", master_port=9)
    assert said(named, **env) == {"node_rank": 1}
    assert said(replace(named, node_rank=1), VC_WORKER_HOSTS=HOSTS, VC_TASK_INDEX="0") == {}
    assert said(replace(ASKED, node_count=2, node_rank=1, master_addr="c", master_port=9), **env) == {}


def test_the_first_node_is_where_they_meet():
    assert said(replace(ASKED, nodes=("a", "b"), node_count=2, master_port=9)) == {"master_addr": "a"}
    assert said(replace(ASKED, nodes=("a",))) == {}


def test_names_alone_tell_how_many_nodes_there_are():
    assert said(replace(ASKED, nodes=("a", "b"), master_addr="a")) == {"node_count": 2}


@pytest.mark.parametrize(
    ("env", "field"),
    [
        ({"VC_WORKER_HOSTS": HOSTS, "VC_TASK_INDEX": "3"}, "node_rank"),
        ({"VC_WORKER_HOSTS": HOSTS, "MA_TORCHRUN_MASTER_PORT": "70000"}, "master_port"),
        ({"MA_NUM_GPUS": "5000"}, "cards.count"),
        ({"VC_WORKER_HOSTS": "a,b,a"}, "nodes"),
        ({"VC_WORKER_HOSTS": "a,b/c"}, "nodes[1]"),
    ],
)
def test_what_cannot_be_is_refused_and_not_passed_over(env, field):
    """Two nodes that both took themselves for the first would wait for each other for ever."""
    assert [violation.field for violation in violations(understood(replace(ASKED, env=env)))] == [field]


@pytest.mark.parametrize("index", [None, "", "x", "-1", "²", "9999999999"])
def test_several_nodes_of_which_nothing_says_which_this_is(index):
    env = {"VC_WORKER_HOSTS": HOSTS} | ({} if index is None else {"VC_TASK_INDEX": index})
    asked = replace(ASKED, env=env)
    text = missing_node_rank(asked, node_rank_said=False)
    assert text.startswith("VC_WORKER_HOSTS names 3 nodes, and VC_TASK_INDEX ") and text.endswith(": give 0 to 2")
    assert missing_node_rank(asked, node_rank_said=True) == ""
    for other in (
        replace(asked, env=env | {"VC_TASK_INDEX": "0"}),
        replace(asked, node_rank=1),
        replace(asked, nodes=("a", "b"), node_count=2),
        replace(asked, rank_table="/t.json"),
        replace(asked, env=env | {"VC_WORKER_HOSTS": "a"}),
    ):
        assert missing_node_rank(other, node_rank_said=False) == ""


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "²", "٣", " 8", "9999999999", "0x8"])
def test_what_is_no_number_says_nothing(text):
    assert said(MA_NUM_GPUS=text) == {}


# --- its rank table ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "table"),
    [
        ({"RANK_TABLE_FILE": "/user/config"}, "/user/config"),
        ({"RANK_TABLE_FILE_V_1_0": "/t/v1.json"}, "/t/v1.json"),
        ({"RANK_TABLE_FILE_V_1_0": "/t/v1.json", "RANK_TABLE_FILE": "/user/config"}, "/t/v1.json"),
        ({"RANK_TABLE_FILE_V_1_0": "", "RANK_TABLE_FILE": "/user/config"}, "/user/config"),
        ({"RANK_TABLE_FILE": ""}, ""),
        ({"MA_VJ_NAME": "ma-job-1"}, ""),  # the default's file is not there
    ],
)
def test_where_the_rank_table_is(env, table):
    assert understood(replace(ASKED, env=env)).rank_table == table


def test_the_default_table_counts_on_the_platform_only():
    Path(modelarts.DEFAULT_TABLE).parent.mkdir(parents=True)
    Path(modelarts.DEFAULT_TABLE).touch()
    assert understood(replace(ASKED, env={"MA_VJ_NAME": "ma-job-1"})).rank_table == modelarts.DEFAULT_TABLE
    assert (
        understood(replace(ASKED, env={"MA_VJ_NAME": "j", "RANK_TABLE_FILE": ""})).rank_table == modelarts.DEFAULT_TABLE
    )
    assert understood(replace(ASKED, env={"RANK_TABLE_FILE": "/mine"})).rank_table == "/mine"
    assert said() == {}
    assert said(MA_NUM_GPUS="8") == {"card_count": 8}


@pytest.mark.parametrize("boot", Boot)
@pytest.mark.parametrize(("enable", "wanted"), [("True", True), ("true", True), ("False", False), ("", False)])
def test_only_who_reads_a_table_waits_for_one(boot, enable, wanted):
    env = {"RANK_TABLE_FILE": "/user/config", "MS_RANKTABLE_ENABLE": enable}
    expected = boot is Boot.RANKS or (boot is Boot.MSRUN and wanted)
    assert bool(understood(replace(ASKED, boot=boot.value, env=env)).rank_table) is expected
    if boot in (Boot.TORCHRUN, Boot.MSRUN):
        by_variable = understood(replace(ASKED, env=env | {"MA_RUN_METHOD": boot.value}))
        assert bool(by_variable.rank_table) is expected


def test_a_table_that_is_asked_for_wins():
    assert said(replace(ASKED, rank_table="/mine"), RANK_TABLE_FILE="/user/config") == {}


def test_a_table_says_nodes_and_cards_itself():
    env = {"RANK_TABLE_FILE": "/t", "VC_WORKER_HOSTS": HOSTS, "VC_TASK_INDEX": "1", "MA_NUM_GPUS": "8"}
    assert said(**env) == {"rank_table": "/t"}


def test_a_container_is_known_by_what_the_launcher_needs():
    assert not modelarts.in_container({})
    assert not modelarts.in_container({"MA_NUM_GPUS": "8", "VC_TASK_INDEX": "0", "MA_VJ_NAME": ""})
    for name in ("MA_VJ_NAME", "RANK_TABLE_FILE", "RANK_TABLE_FILE_V_1_0"):
        assert modelarts.in_container({name: "x"})


# --- over all of them -------------------------------------------------------------------------------------------------

_ENV = st.fixed_dictionaries(
    {},
    optional={
        "MA_RUN_METHOD": st.sampled_from(["torchrun", "msrun", "MSRUN", "other", ""]),
        "MA_NUM_GPUS": st.sampled_from(["0", "1", "8", "5000", "x", ""]),
        "VC_WORKER_HOSTS": st.sampled_from(["", "a", "a,b", "a, b ,c", "a,,b", "a,a", ",", " "]),
        "VC_TASK_INDEX": st.sampled_from(["0", "1", "2", "9", "-1", "x"]),
        "VC_WORKER_NUM": st.sampled_from(["1", "2"]),
        "MA_TORCHRUN_MASTER_PORT": st.sampled_from(["", "19999", "0", "70000"]),
        "RANK_TABLE_FILE": st.sampled_from(["", "/user/config", "/t.json"]),
        "RANK_TABLE_FILE_V_1_0": st.sampled_from(["", "/v1.json"]),
        "MA_VJ_NAME": st.sampled_from(["", "ma-job-1"]),
        "MS_RANKTABLE_ENABLE": st.sampled_from(["", "True", "false"]),
    },
)
_ASKED = st.builds(
    JobSpec,
    st.just("j"),
    st.just(("python", "x.py")),
    env=_ENV,
    boot=st.sampled_from(["", "", *(boot.value for boot in Boot)]),
    ranks=st.integers(0, 2),
    card_count=st.integers(0, 2),
    card_indices=st.sampled_from([(), (), (3,)]),
    nodes=st.sampled_from([(), (), ("a",), ("x", "y"), ("x", "y", "z")]),
    node_count=st.integers(1, 3),
    node_rank=st.integers(0, 2),
    master_addr=st.sampled_from(["", "m"]),
    master_port=st.sampled_from([0, 7]),
    rank_table=st.sampled_from(["", "", "/mine"]),
)


@given(_ASKED)
@settings(deadline=None, max_examples=500)
def test_what_is_understood_once_is_understood(asked):
    """The command line understands it and so does the daemon: both must come to the same job."""
    once = understood(asked)
    assert understood(once) == once


@given(_ASKED)
@settings(deadline=None, max_examples=300)
def test_a_value_that_was_asked_for_is_never_changed(asked):
    made = understood(asked)
    nothing = JobSpec("j", ("python", "x.py"), boot="")
    for name in JobSpec.__slots__:
        if name == "node_count" and asked.nodes:
            assert made.node_count == max(asked.node_count, len(asked.nodes))
        elif getattr(asked, name) != getattr(nothing, name):
            assert getattr(made, name) == getattr(asked, name)
    assert made.env == asked.env
    assert made.boot in [*Boot]


@given(_ASKED)
@settings(deadline=None, max_examples=300)
def test_of_a_good_request_nothing_bad_is_made_unless_a_variable_is(asked):
    """A platform whose variables fit together makes no spec that is refused."""
    fits = {
        "VC_WORKER_HOSTS": "a,b", "VC_TASK_INDEX": "1", "MA_NUM_GPUS": "8", "MA_TORCHRUN_MASTER_PORT": "19999",
        "RANK_TABLE_FILE": "/user/config", "MS_RANKTABLE_ENABLE": "True",
    }  # fmt: skip
    chosen = {name: fits[name] for name in asked.env if name in fits}
    plain = JobSpec("j", ("python", "x.py"), boot=asked.boot)
    made = understood(replace(plain, env=chosen | {"RANK_TABLE_FILE": "/user/config"}))
    assert violations(made) == []


# --- what the ranks are given -----------------------------------------------------------------------------------------


def job(**changes: Any) -> Job:
    made = Job(node_rank=1, node_count=2, local_ranks=8, world_size=16, master_addr="10.0.0.1", master_port=18888)
    made.ranks = [Rank(8 + i, i, i) for i in range(8)]
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_what_the_platform_would_set_in_a_container():
    spec = JobSpec("j", ("x",), nodes=("a", "b"), node_count=2, node_rank=1)
    assert modelarts.variables(spec, job(node_name="b")) == {
        "MA_NUM_HOSTS": "2", "MA_NUM_GPUS": "8", "MA_TASK_NAME": "worker", "VC_TASK_INDEX": "1", "VC_WORKER_NUM": "2",
        "VC_WORKER_HOSTS": "a,b", "MA_CURRENT_IP": "b",
    }  # fmt: skip
    alone = modelarts.variables(JobSpec("j", ("x",)), job(node_rank=0, node_count=1))
    assert (alone["VC_WORKER_HOSTS"], "MA_CURRENT_IP" in alone) == ("10.0.0.1", False)


def test_what_is_set_is_understood_again():
    """A job that is started from within a job's environment comes to the same nodes and cards."""
    spec = JobSpec("j", ("x",), nodes=("a", "b"), node_count=2, node_rank=1)
    again = understood(replace(ASKED, env=modelarts.variables(spec, job(node_name="b"))))
    assert (again.nodes, again.node_count, again.node_rank, again.card_count) == (("a", "b"), 2, 1, 8)


def test_what_the_launcher_sets_for_each_process():
    """Section 1 of the facts: numbers are this node's for the device, the job's for the rank."""
    for rank in job().ranks:
        env = modelarts.of_rank(ROOT, JobSpec("train", ("x",)), job(), rank, {}, rank.local_rank)
        assert env == {
            "JOB_ID": "train",
            "ASCEND_DEVICE_ID": str(rank.local_rank),
            "DEVICE_ID": str(rank.local_rank),
            "RANK_ID": str(rank.rank),
            "RANK_SIZE": "16",
            "HCCL_CONNECT_TIMEOUT": "1800",
            "ASCEND_PROCESS_LOG_PATH": f"/data/muster/log/train/ascend/process_log/rank_{rank.rank}",
        }


def test_what_the_launcher_leaves_as_it_is_set():
    given_env = {"HCCL_CONNECT_TIMEOUT": "600", "ASCEND_PROCESS_LOG_PATH": "/plog", "RANK_ID": "99", "DEVICE_ID": "99"}
    env = modelarts.of_rank(ROOT, JobSpec("j", ("x",)), job(), job().ranks[3], given_env, 3)
    assert (env["HCCL_CONNECT_TIMEOUT"], env["ASCEND_PROCESS_LOG_PATH"]) == ("600", "/plog")
    assert (env["RANK_ID"], env["DEVICE_ID"]) == ("11", "3")


def test_logs_behind_a_link_are_named_as_the_link_says(tmp_path):
    """A daemon of one's own that stands in for the launcher: the path is to be the launcher's, letter by letter."""
    root = Root.under(tmp_path)
    root.log.symlink_to("/mnt/./log")
    env = modelarts.of_rank(root, JobSpec("j", ("x",)), job(), job().ranks[0], {}, 0)
    assert env["ASCEND_PROCESS_LOG_PATH"] == "/mnt/./log/j/ascend/process_log/rank_8"
    plain = Root.under(tmp_path / "other")
    env = modelarts.of_rank(plain, JobSpec("j", ("x",)), job(), job().ranks[0], {}, 0)
    assert env["ASCEND_PROCESS_LOG_PATH"] == f"{tmp_path}/other/log/j/ascend/process_log/rank_8"


@pytest.mark.parametrize(
    ("platform", "name"),
    [
        ("ma-job-3f2e", "modelarts-job-3f2e"),
        ("x-ma-job-ma-job", "x-modelarts-job-ma-job"),
        ("other", "other"),
        ("", "mine"),
        ("../etc", "mine"),
        ("/etc", "mine"),
        ("..", "mine"),
        (".hidden", "mine"),
        ("a b", "mine"),
        ("ma-job-" + "x" * 128, "mine"),
    ],
)
def test_the_name_of_the_job_on_the_platform(platform, name):
    """It names a folder that is given to the job's user and removed with the job: it must not lead elsewhere."""
    assert modelarts.job_name("mine", {"MA_VJ_NAME": platform}) == name
    folder = os.path.normpath(ROOT.job_logs(modelarts.job_name("mine", {"MA_VJ_NAME": platform})))
    assert os.path.dirname(folder) == "/data/muster/log"


def test_off_the_platform_a_job_has_its_own_name():
    assert modelarts.job_name("mine", {}) == "mine"


@pytest.mark.parametrize(
    ("env", "table", "folder"),
    [
        ({}, "", ""),
        ({"MA_VJ_NAME": "ma-job-1"}, "", "/cache/device3"),
        ({"MA_MOUNT_PATH": "/mnt"}, "/mnt/rank_table/jobstart_hccl.json", "/mnt/workspace/device3"),
        ({"MA_MOUNT_PATH": "/mnt/"}, "/mnt/rank_table/jobstart_hccl.json", "/mnt/workspace/device3"),
        (
            {"MA_MOUNT_PATH": "/mnt", "MA_VJ_NAME": "x"},
            "/mnt/rank_table/jobstart_hccl.json",
            "/mnt/workspace/device3",
        ),
        ({"MA_MOUNT_PATH": "relative"}, "", ""),
        ({"MA_MOUNT_PATH": "", "MA_VJ_NAME": "x"}, "", "/cache/device3"),
    ],
)
def test_where_the_launcher_puts_table_and_working_folders(env, table, folder):
    assert (modelarts.table_path(env), modelarts.working_folder(env, 3)) == (table, folder)


def test_where_the_launcher_keeps_the_logs(tmp_path):
    assert modelarts.log_folder({"MA_MOUNT_PATH": str(tmp_path)}) == "/tmp/log", "only where the folder is there"
    (tmp_path / "log").mkdir()
    assert modelarts.log_folder({"MA_MOUNT_PATH": str(tmp_path)}) == f"{tmp_path}/log"
    assert modelarts.log_folder({}) == modelarts.log_folder({"MA_MOUNT_PATH": ""}) == "/tmp/log"


@pytest.mark.parametrize("name", ["", "..", "/", "../x", "a/b", "x" * 300, "-x", "a\n", "a\x1b[31m", "\u00fc"])
def test_a_name_that_cannot_be_one_is_not_used_and_told_of(name):
    env = {"MA_VJ_NAME": name}
    assert modelarts.job_name("job", env) == "job"
    text = modelarts.name_trouble("job", env)
    assert text.startswith("MA_VJ_NAME is ") and "muster uses job instead" in text and "unset it" in text
    assert text.isascii() and text.isprintable() and len(text) < 300
    assert ("(300 characters)" in text) == (len(name) == 300)


@pytest.mark.parametrize("env", [{}, {"MA_VJ_NAME": "ma-job-1"}])
def test_a_valid_or_missing_name_is_not_reported(env):
    assert modelarts.name_trouble("job", env) == ""
