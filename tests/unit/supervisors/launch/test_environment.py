import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.supervisors.launch import environment
from muster.supervisors.launch.child import Account
from muster.supervisors.launch.environment import changed, nonce, read_exports
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import Boot, JobSpec, TrainingMode
from muster.supervisors.paths import Root

ROOT = Root.under(Path("/data/muster"))
ACCOUNT = Account("ann", 1234, 1235, "/home/ann", "/bin/zsh")
SPEC = JobSpec("train", ("x",), node_count=3, node_rank=2)


def job(ranks: int = 2, **changes: Any) -> Job:
    """The last node of three, with every other card of its node where it has any."""
    made = Job(master_addr="10.0.0.1", master_port=29500, attempt=3, accepted_at=17.25, node_rank=2, node_count=3)
    made.local_ranks, made.world_size = ranks, 3 * ranks
    made.ranks = [Rank(2 * ranks + i, i, 2 * i) for i in range(ranks)]
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def on_cards(kind: str, **changes: Any) -> Job:
    return job(card_kind=kind, cards=(0, 2), **changes)


def common_of(made: Job | None = None, account: Account = ACCOUNT, **changes: Any) -> dict[str, str]:
    return environment.common(ROOT, replace(SPEC, **changes), made or job(), account)


def env_of(made: Job | None = None, rank: int = 1, account: Account = ACCOUNT, **changes: Any) -> dict[str, str]:
    made, spec = made or job(), replace(SPEC, **changes)
    return environment.of_rank(ROOT, spec, made, made.ranks[rank], environment.common(ROOT, spec, made, account))


# --- what all processes are given -------------------------------------------------------------------------------------

COMMON = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/home/ann",
    "USER": "ann",
    "LOGNAME": "ann",
    "SHELL": "/bin/zsh",
    "LANG": "C.UTF-8",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "MUSTER_JOB_ID": "train",
    "MUSTER_ATTEMPT": "3",
    "MUSTER_NONCE": nonce(ROOT, "train", job()),
    "MA_NUM_HOSTS": "3",
    "MA_NUM_GPUS": "2",
    "MA_TASK_NAME": "worker",
    "VC_TASK_INDEX": "2",
    "VC_WORKER_NUM": "3",
    "VC_WORKER_HOSTS": "10.0.0.1",
    "MA_HOME": "/home/ann",
    "MA_JOB_DIR": str(ROOT.job("train").folder),
    "MA_LOG_DIR": str(ROOT.log),
    "WORKSPACE": str(ROOT.job("train").workspace),
}
OF_RANK = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "6",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "2",
    "GROUP_WORLD_SIZE": "3",
    "ROLE_NAME": "default",
    "ROLE_RANK": "5",
    "ROLE_WORLD_SIZE": "6",
    "TORCHELASTIC_RUN_ID": "train",
    "TORCHELASTIC_RESTART_COUNT": "3",
    "TORCHELASTIC_MAX_RESTARTS": "7",
}


def test_the_whole_environment_of_a_step():
    """Or of a launcher: it says which job and which node, and no rank."""
    assert common_of() == COMMON


def test_the_whole_environment_of_a_rank_without_cards():
    assert env_of(max_restarts=7) == COMMON | OF_RANK | {"OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("boot", [boot for boot in Boot if boot is not Boot.RANKS])
def test_a_launcher_says_itself_which_rank_its_own_are(boot):
    assert env_of(boot=boot.value, max_restarts=7) == COMMON
    assert "RANK_ID" not in env_of(on_cards("ascend"), boot=boot.value)


def test_nothing_of_our_own_environment_is_passed_on(monkeypatch):
    monkeypatch.setenv("MUSTER_TEST_SECRET", "x")
    assert "MUSTER_TEST_SECRET" not in env_of()


def test_the_specs_variables_are_over_the_defaults_and_under_the_ranks_own():
    given = {"PATH": "/mine", "HOME": "/h", "LANG": "de", "EMPTY": "", "RANK": "99", "MUSTER_NONCE": "forged"}
    env = env_of(env=given | {"MASTER_PORT": "1", "WORLD_SIZE": "1", "MUSTER_ATTEMPT": "0"})
    assert (env["PATH"], env["HOME"], env["LANG"], env["EMPTY"]) == ("/mine", "/h", "de", "")
    assert (env["RANK"], env["WORLD_SIZE"], env["MASTER_PORT"]) == ("5", "6", "29500")
    assert (env["MUSTER_NONCE"], env["MUSTER_ATTEMPT"]) == (nonce(ROOT, "train", job()), "3")


def test_a_job_that_was_begun_in_a_session_is_not_of_that():
    assert "MUSTER_EXEC_ID" not in env_of(env={"MUSTER_EXEC_ID": "4f"})


def test_the_platforms_variables_and_a_mode_are_under_the_specs():
    given = {"MA_NUM_GPUS": "9", "VC_WORKER_HOSTS": "a,b,c", "GLOG_v": "0"}
    env = common_of(env=given, training_mode=TrainingMode.HIGH_PERFORMANCE.value)
    assert {name: env[name] for name in given} == given
    assert (env["ASCEND_GLOBAL_LOG_LEVEL"], env["MA_NUM_HOSTS"]) == ("3", "3")


def test_an_account_without_a_shell_has_the_standard_one():
    assert env_of(account=Account("a", 1, 1, "/", ""))["SHELL"] == "/bin/sh"


def test_the_nodes_have_their_names():
    env = common_of(job(node_name="c"), nodes=("a", "b", "c"))
    assert (env["VC_WORKER_HOSTS"], env["MA_CURRENT_IP"]) == ("a,b,c", "c")


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, ""), ({"PYTHONPATH": "/mine:/other"}, ":/mine:/other"), ({"PYTHONPATH": ""}, "")],
)
def test_installed_requirements_are_found_first(given, expected):
    packages = "/data/muster/state/jobs/train/packages"
    assert common_of(env=given, requirements="/r.txt")["PYTHONPATH"] == packages + expected
    assert common_of(env=given).get("PYTHONPATH") == given.get("PYTHONPATH")


def test_the_threads_of_all_ranks_together_do_not_flood_the_node():
    """As torchrun does it: where there are several, and nothing is said."""
    assert env_of()["OMP_NUM_THREADS"] == "1"
    assert env_of(env={"OMP_NUM_THREADS": "8"})["OMP_NUM_THREADS"] == "8"
    assert "OMP_NUM_THREADS" not in env_of(job(1), rank=0)


# --- cards and rank tables --------------------------------------------------------------------------------------------

CARD_VARIABLES = {"CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "RANK_ID", "DEVICE_ID"}


def test_nvidia_ranks_see_the_cards_of_the_job():
    env = env_of(on_cards("nvidia"), card_count=2, env={"CUDA_VISIBLE_DEVICES": "7"})
    assert CARD_VARIABLES & set(env) == {"CUDA_VISIBLE_DEVICES"}
    assert env["CUDA_VISIBLE_DEVICES"] == "0,2"


def test_without_cards_none_are_named():
    for kind in ("nvidia", "ascend", "slot"):
        assert not CARD_VARIABLES & set(env_of(job(card_kind=kind), ranks=2))
    assert not CARD_VARIABLES & set(env_of(on_cards("slot"), card_count=2))


def test_a_launcher_sees_the_cards_of_the_job():
    assert common_of(on_cards("nvidia"), boot="torchrun")["CUDA_VISIBLE_DEVICES"] == "0,2"
    assert common_of(on_cards("ascend"), boot="msrun")["ASCEND_RT_VISIBLE_DEVICES"] == "0,2"


ASCEND = {
    "JOB_ID": "train",
    "ASCEND_DEVICE_ID": "1",
    "DEVICE_ID": "1",
    "RANK_ID": "5",
    "RANK_SIZE": "6",
    "HCCL_CONNECT_TIMEOUT": "1800",
    "ASCEND_PROCESS_LOG_PATH": "/data/muster/log/train/ascend/process_log/rank_5",
}


def test_ascend_ranks_have_what_modelarts_launcher_gives():
    env = env_of(on_cards("ascend"), card_indices=(0, 2))
    assert {name: env[name] for name in env if name not in env_of()} == ASCEND | {"ASCEND_RT_VISIBLE_DEVICES": "0,2"}


def test_on_ascend_some_may_be_given_by_the_spec():
    given = {
        "HCCL_CONNECT_TIMEOUT": "60",
        "ASCEND_PROCESS_LOG_PATH": "/p",
        "MA_VJ_NAME": "ma-job-x-ma-job",
        "JOB_ID": "q",
    }
    env = env_of(on_cards("ascend"), card_count=2, env=given)
    assert (env["HCCL_CONNECT_TIMEOUT"], env["ASCEND_PROCESS_LOG_PATH"]) == ("60", "/p")
    assert env["JOB_ID"] == "modelarts-job-x-ma-job"


OWN_TABLE = "/data/muster/state/jobs/train/rank_table.json"


def test_folders_of_the_platform_are_where_the_job_works():
    env = common_of(workdir="/data/code/", env={"MA_HOME": "/mine"})
    assert {name: env[name] for name in ("MA_HOME", "MA_JOB_DIR", "MA_LOG_DIR", "WORKSPACE")} == {
        "MA_HOME": "/mine",
        "MA_JOB_DIR": "/data",
        "MA_LOG_DIR": str(ROOT.log),
        "WORKSPACE": "/data/code/",
    }


def test_nccl_variables_are_set_on_the_platform_alone(monkeypatch):
    monkeypatch.setattr("os.path.exists", lambda path: path in ("/sys/class/net/eth0", "/sys/class/net/bond0"))
    ports = {"/sys/class/infiniband": ["mlx5_0", "mlx5_bond_0"]}
    monkeypatch.setattr("os.listdir", lambda path: ports[path])
    nccl = {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "bond0,eth0", "NCCL_IB_HCA": "^mlx5_bond_0"}
    platform = {"MA_VJ_NAME": "ma-job-1"}

    def said(**changes: Any) -> dict[str, str]:
        return {name: value for name, value in common_of(**changes).items() if name.startswith("NCCL_")}

    assert said() == {}
    assert said(env=platform) == said(env=platform, boot="torchrun") == nccl
    assert said(env=platform | {"NCCL_DEBUG": "WARN"}) == nccl | {"NCCL_DEBUG": "WARN"}
    assert said(env=platform, boot="mpi") == {}
    assert not {name for name in env_of(on_cards("ascend"), env=platform) if name.startswith("NCCL_")}
    monkeypatch.setattr("os.path.exists", lambda _: False)
    ports["/sys/class/infiniband"] = ["mlx5_bond_0"]
    assert said(env=platform) == {"NCCL_DEBUG": "INFO"}, "the only port of the node stays"


def test_a_rank_table_makes_it_an_ascend_job():
    """Also in a container in which nobody sees a device node."""
    env = env_of(job(table=OWN_TABLE), rank_table="/user/config", env={"RANK_TABLE_FILE": "/user/config"})
    assert {name: env[name] for name in env if name not in env_of()} == ASCEND | {"RANK_TABLE_FILE": OWN_TABLE}


def test_ranks_find_a_converted_table_where_the_launcher_puts_it():
    env = common_of(job(table=OWN_TABLE), rank_table="/user/config", env={"MA_MOUNT_PATH": "/mnt"})
    assert env["RANK_TABLE_FILE"] == "/mnt/rank_table/jobstart_hccl.json"


def test_a_table_that_needs_no_conversion_is_used_where_it_lies():
    env = common_of(job(table="/t/v1.json"), rank_table="/t/v1.json", env={"MA_MOUNT_PATH": "/mnt"})
    assert env["RANK_TABLE_FILE"] == "/t/v1.json"


def test_a_table_without_devices_is_none():
    given = {"RANK_TABLE_FILE": "/user/config"}
    assert "RANK_TABLE_FILE" not in common_of(job(planned=True), rank_table="/user/config", env=given)
    assert common_of(env=given)["RANK_TABLE_FILE"] == "/user/config", "not ours to judge without one"


# --- the nonce --------------------------------------------------------------------------------------------------------


def test_the_nonce_tells_jobs_apart():
    made = [
        nonce(ROOT, "a", job()),
        nonce(ROOT, "b", job()),
        nonce(Root.under(Path("/other")), "a", job()),
        nonce(ROOT, "a", job(accepted_at=17.5)),
    ]
    assert len(set(made)) == 4
    assert nonce(ROOT, "a", job()) == made[0]


def test_the_nonce_of_all_attempts_is_the_same():
    """A supervisor that takes over in the next attempt still finds what is left of this one."""
    assert nonce(ROOT, "a", job(attempt=4, master_port=1)) == nonce(ROOT, "a", job())


# --- what pre_start exports -------------------------------------------------------------------------------------------


def exported(folder: Path, *entries: bytes) -> Path:
    path = folder / "exports"
    path.write_bytes(b"".join(entry + b"\0" for entry in entries))
    return path


def test_what_a_script_changed(tmp_path):
    before = {"SAME": "1", "NEW_VALUE": "old", "GONE": "x", "EMPTY": "x"}
    path = exported(tmp_path, b"SAME=1", b"NEW_VALUE=a=b\nc", b"EMPTY=", b"ADDED=\xff")
    changes = read_exports(path, before)
    assert changes == {"NEW_VALUE": "a=b\nc", "EMPTY": "", "ADDED": "\udcff", "GONE": None}
    assert changed(before, changes) == {"SAME": "1", "NEW_VALUE": "a=b\nc", "EMPTY": "", "ADDED": "\udcff"}


def test_no_file_and_an_empty_one_change_nothing(tmp_path):
    """A script that executes another program, say, never comes to say what it exports."""
    assert read_exports(tmp_path / "missing", {"A": "1"}) == {}
    assert read_exports(exported(tmp_path), {"A": "1"}) == {}


def test_what_a_shell_has_for_itself_is_no_export(tmp_path):
    path = exported(tmp_path, b"_=/usr/bin/env", b"SHLVL=1", b"PWD=/x", b"OLDPWD=/y", b"LC_CTYPE=C.UTF-8", b"A=1")
    assert read_exports(path, {"A": "1"}) == {}
    assert read_exports(exported(tmp_path, b"A=1"), {"A": "1", "PWD": "/mine", "LC_CTYPE": "de"}) == {}


def test_which_step_it_was_is_no_export(tmp_path):
    """The step was told so, beyond what the ranks are given: they would take it for theirs."""
    path = exported(tmp_path, b"A=1", b"MUSTER_STEP=pre_start", b"MUSTER_NONCE=forged", b"MUSTER_MINE=x")
    before = {"A": "1", "MUSTER_NONCE": "n"}
    after = changed(before, read_exports(path, before))
    assert "MUSTER_STEP" not in after
    assert after["MUSTER_NONCE"] == "n"


def test_entries_that_are_none_are_passed_over(tmp_path):
    assert read_exports(exported(tmp_path, b"", b"=x", b"NOTHING", b"B=2", b""), {"A": "1"}) == {"B": "2", "A": None}


def test_a_last_entry_without_its_end_counts(tmp_path):
    path = tmp_path / "exports"
    path.write_bytes(b"A=1\0B=2")
    assert read_exports(path, {"A": "1"}) == {"B": "2"}


def test_more_than_any_process_can_be_given_is_refused_and_not_cut(tmp_path):
    """Cut off, it would read as if the script had taken all the rest of the environment away."""
    path = exported(tmp_path, *(b"V%d=%s" % (i, b"x" * 100_000) for i in range(45)), b"PATH=/bin")
    with pytest.raises(OSError, match=str(path)) as caught:
        read_exports(path, {"PATH": "/bin"})
    assert caught.value.errno == errno.E2BIG


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd"), Path.mkdir])
def test_only_a_plain_file_is_read(tmp_path, make):
    """And nothing is waited for."""
    make(tmp_path / "exports")
    try:
        assert read_exports(tmp_path / "exports", {"A": "1"}) == {}
    except OSError as error:
        assert error.errno in (errno.ELOOP, errno.EISDIR)


def test_what_says_which_job_it_is_stays():
    before = {"MUSTER_JOB_ID": "j", "MUSTER_NONCE": "n", "A": "1", "MASTER_ADDR": "a"}
    changes: dict[str, str | None] = {
        "MUSTER_JOB_ID": None,
        "MUSTER_NONCE": "forged",
        "A": None,
        "MASTER_ADDR": "b",
        "N": "2",
        "NEVER_THERE": None,
    }
    assert changed(before, changes) == {"MUSTER_JOB_ID": "j", "MUSTER_NONCE": "n", "MASTER_ADDR": "b", "N": "2"}
    assert before["A"] == "1", "the environment of the other processes is left as it was"


def test_exported_variables_do_not_change_the_number_of_a_rank():
    made = job()
    common = changed(common_of(), {"RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "4", "MASTER_ADDR": "other"})
    env = environment.of_rank(ROOT, SPEC, made, made.ranks[1], common)
    assert (env["RANK"], env["WORLD_SIZE"], env["OMP_NUM_THREADS"]) == ("5", "6", "4")
    assert env["MASTER_ADDR"] == "other", "a script may know better where to meet"


_NAME = st.text(st.characters(exclude_characters="=\0", max_codepoint=0x2FF), min_size=1, max_size=6).filter(
    lambda name: not name.startswith("MUSTER_") and name not in ("_", "SHLVL", "PWD", "OLDPWD", "LC_CTYPE")
)
_ENV = st.dictionaries(
    st.sampled_from("ABC") | _NAME, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
)


@given(before=_ENV, after=_ENV.filter(bool))
@settings(deadline=None, max_examples=100)
def test_the_ranks_get_exactly_the_environment_that_the_script_left(tmp_path_factory, before, after):
    folder = tmp_path_factory.mktemp("x")
    path = exported(folder, *(os.fsencode(name) + b"=" + os.fsencode(value) for name, value in after.items()))
    assert changed(before, read_exports(path, before)) == after


def test_cards_go_by_what_the_daemon_found_them_to_be_called():
    words = {0: "GPU-a", 2: "GPU-b"}
    assert env_of(on_cards("nvidia", card_visible=words), card_count=2)["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    env = env_of(on_cards("ascend", card_visible={0: "11", 2: "2"}), card_count=2)
    assert (env["ASCEND_RT_VISIBLE_DEVICES"], env["DEVICE_ID"], env["LOCAL_RANK"]) == ("2,11", "0", "1")


def test_each_rank_sees_its_own_mig_instance_alone():
    made = on_cards("nvidia", card_visible={0: "MIG-a", 2: "MIG-b"}, card_parents={0: 7, 2: 7})
    assert [env_of(made, rank)["CUDA_VISIBLE_DEVICES"] for rank in (0, 1)] == ["MIG-a", "MIG-b"]
    assert common_of(made)["CUDA_VISIBLE_DEVICES"] == "MIG-a,MIG-b"
    assert made.hardware == (0, 2, 7)
