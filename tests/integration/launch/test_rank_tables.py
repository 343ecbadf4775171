"""Rank tables: waited for, read, converted, and made into ranks, with the variables, folders and file names that
ModelArts' launcher gives (its rules are told in docs/guides/drop-in.md and docs/reference/rank-tables.md)."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.v1 import job_pb2, node_pb2
from tests.conftest import Daemon, eventually
from tests.integration.launch.tables import DUMP, ONE, TWO, TWO_CONVERTED, changed, put, template1, template2
from tests.ports import free_port

TRAIN = Path(__file__).parents[3] / "examples" / "train.py"
FAILED, STOPPED, SUCCEEDED = job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_STOPPED, job_pb2.JOB_STATE_SUCCEEDED


def start(daemon: Daemon, table: Path | str, *command: str, **fields: Any) -> Any:
    ready_s = fields.pop("ready_s", 0.0)
    given: dict[str, Any] = {"job_id": "x", "command": command or (sys.executable, "-c", DUMP)}
    spec = job_pb2.JobSpec(**(given | fields), rank_table=str(table))
    if ready_s:
        spec.ready_timeout.FromMilliseconds(int(ready_s * 1000))
    return daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job


def dumps(daemon: Daemon, job_id: str = "x") -> list[dict[str, Any]]:
    """What each rank of a job that must succeed has said, in the order of its devices."""
    job = daemon.wait(job_id)
    assert job.state == SUCCEEDED, job.verdict.summary
    return [json.loads(daemon.output(job, index)) for index in range(len(job.ranks))]


def looked_at(daemon: Daemon, job_id: str = "x") -> None:
    """Returns once the job waits for its table."""
    eventually(lambda: daemon.get(job_id).state == job_pb2.JOB_STATE_CHECKING, 60, "it waits for its table")


def left(daemon: Daemon, job_id: str = "x") -> set[str]:
    """What is in the folder of a job that was never started, over its record."""
    names = {entry.name for entry in daemon.root.job(job_id).folder.iterdir()} - {
        "spec.json",
        "journal",
        "lock",
        "explained.json",
        ".explained.json.new",  # which becomes that one
    }
    return names | {entry.name for entry in daemon.root.log.iterdir() if "-proc-rank-" in entry.name}


# --- the wait ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before",
    [None, "", '{"status": "completed", "server_co', {"status": "initializing", "server_list": []}],
    ids=["missing", "empty", "torn", "initializing"],
)
def test_a_job_waits_until_its_table_is_completed(daemon: Daemon, tmp_path: Path, before: object) -> None:
    path = tmp_path / "table.json"
    if before is not None:
        put(path, before)
    start(daemon, path)
    looked_at(daemon)
    job = daemon.get("x")
    assert (list(job.ranks), left(daemon)) == ([], set())
    assert daemon.cli("status", "x").returncode == daemon.cli("why", "x").returncode == daemon.cli("ps").returncode == 0
    put(path, ONE)
    assert [rank["env"]["RANK_ID"] for rank in dumps(daemon)] == ["1", "0"]


def test_a_folder_is_given_and_its_table_comes_later(daemon: Daemon, tmp_path: Path) -> None:
    folder = tmp_path / "config"
    start(daemon, folder)
    looked_at(daemon)
    put(folder / "jobstart_hccl.json", ONE)
    assert len(dumps(daemon)) == 2


@pytest.mark.slow
def test_the_wait_has_an_end(daemon: Daemon, tmp_path: Path) -> None:
    path = put(tmp_path / "table.json", {"status": "initializing"})
    start(daemon, path, ready_s=1.5)
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code) == (FAILED, 125)
    assert job.verdict.summary == (
        f"{path}: is not completed after 1.5 s ({path}: status: is 'initializing', not yet 'completed'); "
        "nothing was started"
    )
    assert (list(job.ranks), left(daemon)) == ([], set())
    assert "is not completed" in daemon.cli("why", "x").stdout
    assert (
        daemon.cli("run", "--job-id", "y", "--rank-table", str(path), "--ready-timeout", "1s", "true").returncode == 125
    )


def test_a_stop_ends_the_wait(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    start(daemon, path)
    looked_at(daemon)
    assert daemon.cli("stop", "x", "--reason", "enough").returncode == 0
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code) == (STOPPED, 128 + signal.SIGTERM)
    assert "enough" in job.verdict.summary
    assert (list(job.ranks), left(daemon)) == ([], set())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_that_is_ended_goes_on_waiting(daemon: Daemon, tmp_path: Path, number: int) -> None:
    path = put(tmp_path / "table.json", {"status": "initializing"})
    start(daemon, path)
    looked_at(daemon)
    daemon.kill(number)
    daemon.restart()
    assert daemon.get("x").state == job_pb2.JOB_STATE_CHECKING
    put(path, ONE)
    assert [rank["env"]["RANK_ID"] for rank in dumps(daemon)] == ["1", "0"]


def test_a_job_that_waits_holds_nobody_up(daemon: Daemon, tmp_path: Path) -> None:
    start(daemon, tmp_path / "never.json")
    looked_at(daemon)
    daemon.run("true", job_id="other")
    assert daemon.wait("other").state == SUCCEEDED
    daemon.stop("x")


# --- what the ranks are given -----------------------------------------------------------------------------------------


def test_template_2(daemon: Daemon, tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    put(tmp_path / "config" / "jobstart_hccl.json", TWO)
    env = {
        "MA_VJ_NAME": "ma-job-1-ma-job",
        "MA_CURRENT_INSTANCE_NAME": "job-train-9",
        "MA_MOUNT_PATH": str(mount),
        "RANK_TABLE_FILE": str(tmp_path / "config"),
    }
    spec = job_pb2.JobSpec(job_id="x", command=(sys.executable, "-c", DUMP), env=env)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    ranks = dumps(daemon)
    assert len(ranks) == 3
    converted = mount / "rank_table" / "jobstart_hccl.json"
    for index, rank in enumerate(ranks):
        plog = daemon.root.log / "modelarts-job-1-ma-job" / "ascend" / "process_log" / f"rank_{index}"
        expected = {
            "JOB_ID": "modelarts-job-1-ma-job",
            "ASCEND_DEVICE_ID": str(index),
            "DEVICE_ID": str(index),
            "RANK_ID": str(index),
            "RANK_SIZE": "5",
            "HCCL_CONNECT_TIMEOUT": "1800",
            "ASCEND_PROCESS_LOG_PATH": str(plog),
            "RANK_TABLE_FILE": str(converted),
            "RANK": str(index),
            "LOCAL_RANK": str(index),
            "WORLD_SIZE": "5",
            "LOCAL_WORLD_SIZE": "3",
            "GROUP_RANK": "0",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "18888",
        }
        assert {name: rank["env"].get(name) for name in expected} == expected
        assert rank["cwd"] == str(mount / "workspace" / f"device{index}")
        assert plog.is_dir()
        assert json.loads(rank["table"]) == TWO_CONVERTED
        assert (daemon.root.log / f"x-proc-rank-{index}-device-{index}.txt").is_file()
    assert json.loads(daemon.root.job("x").rank_table.read_text()) == TWO_CONVERTED
    assert sorted(path.name for path in mount.rglob("*")) == [
        *("device0", "device1", "device2", "jobstart_hccl.json", "rank_table", "workspace"),
    ]


def test_the_second_server_of_template_2_without_a_mount(daemon: Daemon, tmp_path: Path) -> None:
    path = put(tmp_path / "table.json", TWO)
    env = {"MA_CURRENT_INSTANCE_NAME": "job-train-10", "HCCL_CONNECT_TIMEOUT": "60"}
    env |= {"ASCEND_PROCESS_LOG_PATH": str(tmp_path / "plog")}
    start(daemon, path, env=env)
    ranks = dumps(daemon)
    assert [(rank["env"]["RANK_ID"], rank["env"]["DEVICE_ID"]) for rank in ranks] == [("3", "0"), ("4", "1")]
    for index, rank in enumerate(ranks):
        assert {name: rank["env"][name] for name in env} == env
        assert (rank["env"]["RANK_TABLE_FILE"], rank["env"]["JOB_ID"]) == (str(daemon.root.job("x").rank_table), "x")
        assert rank["cwd"] == str(daemon.root.job("x").workspace / f"device{index}")
        assert (daemon.root.log / f"x-proc-rank-{index + 3}-device-{index}.txt").is_file()
    assert (tmp_path / "plog").is_dir()


def test_two_instances_on_one_server_are_one_node(daemon: Daemon, tmp_path: Path) -> None:
    table = template2([("j-0", "s", [("0", ""), ("1", "")]), ("j-1", "s", [("2", "")])], [("k-0", "s", [("3", "")])])
    start(daemon, put(tmp_path / "table.json", table), env={"MA_CURRENT_INSTANCE_NAME": "j-1"})
    assert [rank["env"]["RANK_ID"] for rank in dumps(daemon)] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("env", "ranks"),
    [({"MA_CURRENT_HOST_IP": "10.0.0.2"}, ["2", "0"]), ({}, ["1"])],
    ids=["by its address", "the first"],
)
def test_template_1_is_handed_on_as_it_is(
    daemon: Daemon, tmp_path: Path, env: dict[str, str], ranks: list[str]
) -> None:
    table = template1(("10.0.0.1", [("0", "", "1")]), ("10.0.0.2", [("0", "", "2"), ("1", "", "0")]))
    path = put(tmp_path / "table.json", json.dumps(table, indent=3))
    mount = {"MA_MOUNT_PATH": str(tmp_path / "mount")}
    start(daemon, "", env=env | mount | {"RANK_TABLE_FILE_V_1_0": str(path), "RANK_TABLE_FILE": "/nowhere"})
    found = dumps(daemon)
    assert [rank["env"]["RANK_ID"] for rank in found] == ranks
    for index, rank in enumerate(found):
        assert (rank["env"]["RANK_TABLE_FILE"], rank["env"]["RANK_SIZE"]) == (str(path), "3")
        assert rank["table"] == path.read_text()
        assert rank["cwd"] == str(tmp_path / "mount" / "workspace" / f"device{index}")
    assert not (tmp_path / "mount" / "rank_table").exists()
    assert not daemon.root.job("x").rank_table.exists()


def test_a_table_without_devices_is_taken_from_the_ranks(daemon: Daemon, tmp_path: Path) -> None:
    path = put(tmp_path / "table.json", template2([("j-0", "s", [])]))
    start(daemon, path, ranks=2, env={"RANK_TABLE_FILE": str(path)})
    ranks = dumps(daemon)
    assert len(ranks) == 2
    assert all("RANK_TABLE_FILE" not in rank["env"] for rank in ranks)


def test_a_given_folder_is_where_the_ranks_work(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    start(daemon, put(tmp_path / "t.json", ONE), workdir=str(tmp_path / "here"), env={"MA_MOUNT_PATH": str(tmp_path)})
    assert {rank["cwd"] for rank in dumps(daemon)} == {str(tmp_path / "here")}
    assert not (tmp_path / "workspace").exists()


def test_a_name_that_leads_elsewhere_is_not_followed(daemon: Daemon, tmp_path: Path) -> None:
    """MA_VJ_NAME becomes part of a path, which is made for the job's user and removed with the job."""
    other = daemon.root.log / "other" / "kept"
    other.parent.mkdir()
    other.touch()
    for number, name in enumerate(["../log/other", "other/..", ".."]):
        job_id = f"x{number}"
        start(daemon, put(tmp_path / "t.json", ONE), job_id=job_id, env={"MA_VJ_NAME": name})
        assert {rank["env"]["JOB_ID"] for rank in dumps(daemon, job_id)} == {job_id}
        warned = [text for text in daemon.get(job_id).warnings if f"MA_VJ_NAME is {name!r}" in text]
        assert len(warned) == 1 and f"{job_id} instead" in warned[0]
        assert daemon.cli("rm", job_id).returncode == 0
    assert other.exists()


@pytest.mark.slow
def test_two_daemons_are_two_servers_of_one_table(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    """Their ranks really meet: through MASTER_ADDR, which is the table's first server."""
    table = template2(
        [("j-1", "127.0.0.2", [("0", ""), ("1", "")]), ("j-0", "127.0.0.1", [("0", ""), ("1", ""), ("2", "")])]
    )
    path = tmp_path / "table.json"
    nodes = [make_daemon(), make_daemon()]
    port = free_port()
    for number, node in enumerate(nodes):
        env = {"MA_CURRENT_INSTANCE_NAME": f"j-{number}", "PYTHONUNBUFFERED": "1"}
        start(node, path, sys.executable, str(TRAIN), "--steps", "3", env=env, master_port=port)
        looked_at(node)
    put(path, table)
    jobs = [node.wait("x", 110) for node in nodes]
    assert [job.state for job in jobs] == [SUCCEEDED] * 2, nodes[0].output(jobs[0]).decode()
    assert [[rank.rank for rank in job.ranks] for job in jobs] == [[0, 1, 2], [3, 4]]
    assert [(job.world_size, job.master_addr, job.master_port) for job in jobs] == [(5, "127.0.0.1", port)] * 2
    assert b"step 3/3" in nodes[0].output(jobs[0])


# --- tables that cannot be -------------------------------------------------------------------------------------------


_DEVICES = ("group_list", 0, "instance_list", 0, "devices")
BAD: dict[str, tuple[object, str]] = {
    "no JSON": ("{]", "line 1 column 2: is not JSON"),
    "a list": ("[1]", "must be an object"),
    "no template": ({"status": "completed"}, "has neither group_list (template 2) nor server_list (template 1)"),
    "a field is missing": (
        changed(TWO, *_DEVICES, 0, to={"device_id": "0"}),
        "group_list[0].instance_list[0].devices[0]: has no device_ip",
    ),
    "a card twice": (
        changed(TWO, *_DEVICES, 1, "device_id", to="0"),
        "group_list[0].instance_list[0].devices[1].device_id: '0' occurs twice on server '10.0.0.2'",
    ),
    "an address twice": (
        changed(TWO, *_DEVICES, 1, "device_ip", to="10.1.0.5"),
        "device_ip: '10.1.0.5' occurs twice",
    ),
    "a pod twice": (changed(TWO, "group_list", 0, "instance_list", 0, "pod_name", to="job-train-9"), "pod_name"),
    "a key twice": ('{"status": "completed", "status": "completed", "server_list": []}', "status: occurs twice"),
    "a wrong count": (changed(TWO, "group_list", 0, "device_count", to="8"), "group_list[0].device_count: is 8, but"),
    "a rank too large": (
        changed(ONE, "server_list", 0, "device", 0, "rank_id", to="7"),
        "device[0].rank_id: is 7, but",
    ),
    "a rank twice": (changed(ONE, "server_list", 0, "device", 0, "rank_id", to="0"), "rank_id: '0' occurs twice"),
    "no device and no ranks": (template2([("j-0", "s", [])]), "has no device: give the number of ranks"),
}


def failure(daemon: Daemon, job_id: str = "x") -> str:
    """Why a job failed that must not have started anything."""
    job = daemon.wait(job_id)
    assert (job.state, job.verdict.exit_code) == (FAILED, 125), job.verdict.summary
    assert job.verdict.summary.endswith("; nothing was started")
    assert {rank.outcome for rank in job.ranks} <= {job_pb2.RANK_OUTCOME_NOT_STARTED}
    assert left(daemon, job_id) == set()
    return str(job.verdict.summary)


@pytest.mark.parametrize("case", BAD)
def test_a_table_that_cannot_be_is_refused_with_the_place(shared: Daemon, tmp_path: Path, case: str) -> None:
    table, words = BAD[case]
    path = put(tmp_path / "table.json", table)
    job_id = f"bad-{list(BAD).index(case)}"
    mount = tmp_path / "mount"
    spec = job_pb2.JobSpec(job_id=job_id, command=["true"], rank_table=str(path), env={"MA_MOUNT_PATH": str(mount)})
    shared.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    said = failure(shared, job_id)
    assert said.startswith(f"{path}: ") and words in said, said
    assert not mount.exists()


def test_a_huge_table_is_refused_and_not_read(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    start(daemon, path)
    assert f"has {1 << 40} bytes, at most" in failure(daemon)


@pytest.mark.parametrize(
    ("table", "env", "words"),
    [
        (TWO, {"MA_CURRENT_INSTANCE_NAME": "other-1"}, "group_list: does not contain this node, instance 'other-1'"),
        (TWO_CONVERTED, {"MA_CURRENT_HOST_IP": "9.9.9.9"}, "server_list: does not contain this node, server '9.9.9.9'"),
    ],
)
def test_a_table_without_this_node(
    daemon: Daemon, tmp_path: Path, table: object, env: dict[str, str], words: str
) -> None:
    start(daemon, put(tmp_path / "table.json", table), env=env)
    assert words in failure(daemon)


def test_a_table_that_contradicts_the_request(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = make_daemon("[cards]\nslots = 4\n")
    path = put(tmp_path / "table.json", ONE)
    start(daemon, path, ranks=3)
    assert f"{path}: gives 2 device(s) to server 10.0.0.1, and the job asks for 3 ranks" in failure(daemon)
    start_again = job_pb2.JobSpec(
        job_id="y", command=["true"], rank_table=str(path), cards=job_pb2.CardRequest(count=4)
    )
    daemon.jobs.Start(job_pb2.StartRequest(spec=start_again), timeout=60)
    assert "the job asks for 4 cards" in failure(daemon, "y")
    assert all(not card.job_id for card in daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node.cards), (
        "cards are given back"
    )
    spec = job_pb2.JobSpec(
        job_id="z", command=["true"], rank_table=str(path), nodes=["a", "b"], master_port=1, master_addr="a"
    )
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    assert "has 1 server(s), and the job is one of 2 node" in failure(daemon, "z")


def test_cards_that_agree_with_the_table_are_held(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = make_daemon("[cards]\nslots = 4\n")
    path = put(tmp_path / "table.json", ONE)
    start(daemon, path, cards=job_pb2.CardRequest(indices=[3, 1]))
    assert [rank["env"]["DEVICE_ID"] for rank in dumps(daemon)] == ["0", "1"]


def test_what_is_no_file(daemon: Daemon, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "table.json")
    start(daemon, tmp_path / "table.json")
    assert "is not a regular file" in failure(daemon)
