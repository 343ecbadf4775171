"""What is taken from the variables that operators put into a pod."""

import os
from typing import Any

import pytest

from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.spec import kube_pod
from muster.agent.cli.spec.job_spec import Draft
from muster.supervisors.model.spec import FIELDS

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "train-worker-0"}
#: PyTorchJob (training operator 1.9) with a Master, in the first worker: pkg/controller.v1/pytorch/envvar.go.
PYTORCHJOB = POD | {
    "PYTHONUNBUFFERED": "1",
    "MASTER_ADDR": "train-master-0",
    "MASTER_PORT": "23456",
    "RANK": "1",
    "WORLD_SIZE": "24",
    "PET_MASTER_ADDR": "train-master-0",
    "PET_MASTER_PORT": "23456",
    "PET_NODE_RANK": "1",
    "PET_NNODES": "3",
    "PET_NPROC_PER_NODE": "8",
}
#: TrainJob of Kubeflow's trainer 2 (pkg/runtime/framework/plugins/torch/torch.go).
TRAINJOB = POD | {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "auto",
    "PET_NODE_RANK": "0",
    "PET_MASTER_ADDR": "t-node-0-0.t",
    "PET_MASTER_PORT": "29500",
    "JOB_COMPLETION_INDEX": "0",
}
#: Volcano's pytorch and svc plugins: RANK and WORLD_SIZE count pods.
VOLCANO = POD | {
    "VC_TASK_INDEX": "0",
    "VK_TASK_INDEX": "0",
    "VC_MASTER_HOSTS": "t-master-0.t",
    "VC_MASTER_NUM": "1",
    "MASTER_ADDR": "t-master-0.t",
    "MASTER_PORT": "23456",
    "RANK": "1",
    "WORLD_SIZE": "2",
}


def filled(env: dict[str, str], **said: Any) -> dict[str, Any]:
    """What is taken from the environment, by field."""
    draft = Draft()
    for name, value in said.items():
        draft.say(FIELDS[name], value, f"--{name}")
    kube_pod.fill(draft, env)
    return {name: getattr(draft.asked, name) for name in draft.written if name not in said}


@pytest.fixture(params=[True, False], ids=["cards", "no cards"])
def cards(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether there are device nodes."""
    names = ["null", "nvidia0", "nvidiactl"] if request.param else ["null", "nvidiactl", "davinci_manager"]
    monkeypatch.setattr(os, "listdir", lambda _: names)
    return bool(request.param)


def test_a_pod_of_a_pytorchjob_is_a_node_of_its_job(cards: bool) -> None:
    assert filled(PYTORCHJOB) == {
        "job_id": "train-worker-0",
        "node_count": 3,
        "node_rank": 1,
        "master_addr": "train-master-0",
        "master_port": 23456,
        "card_count" if cards else "ranks": 8,
    }


def test_a_pod_of_a_trainjob(cards: bool) -> None:
    found = filled(TRAINJOB)
    assert (found["node_count"], found["node_rank"]) == (2, 0)
    assert (found["master_addr"], found["master_port"]) == ("t-node-0-0.t", 29500)
    assert found.get("all_cards", False) is cards
    assert found.get("ranks", 0) == (0 if cards else len(os.sched_getaffinity(0)))


@pytest.mark.usefixtures("cards")
def test_a_pod_of_a_jobset_has_its_number_from_kubernetes() -> None:
    jobset = {name: value for name, value in TRAINJOB.items() if name != "PET_NODE_RANK"}
    found = filled(jobset | {"JOB_COMPLETION_INDEX": "1"})
    assert (found["node_count"], found["node_rank"], found["master_addr"]) == (2, 1, "t-node-0-0.t")
    with pytest.raises(CommandFailed, match="JOB_COMPLETION_INDEX: '2' is not 0 to 1, and PET_NNODES is 2"):
        filled(jobset | {"JOB_COMPLETION_INDEX": "2"})
    with pytest.raises(CommandFailed, match="PET_NNODES is 2, and neither PET_NODE_RANK nor JOB_COMPLETION_INDEX is"):
        filled(jobset | {"JOB_COMPLETION_INDEX": ""})


def test_volcano_counts_pods() -> None:
    assert filled(VOLCANO) == {
        "job_id": "train-worker-0",
        "node_count": 2,
        "node_rank": 1,
        "master_addr": "t-master-0.t",
        "master_port": 23456,
    }


@pytest.mark.usefixtures("cards")
def test_what_somebody_says_wins() -> None:
    said = {"nodes": ("a", "b"), "node_rank": 1, "card_indices": (0, 1), "job_id": "mine"}
    assert filled(PYTORCHJOB, **said) == {}
    assert filled(PYTORCHJOB, master_port=5)["master_addr"] == "train-master-0"
    assert filled(PYTORCHJOB, rank_table="/t").keys() == {"job_id"}
    assert filled(PYTORCHJOB, boot="torchrun").keys() >= {"node_rank", "node_count", "master_addr"}


def test_a_launcher_gets_the_number_of_processes_too(cards: bool) -> None:
    assert filled(PYTORCHJOB, boot="torchrun")["card_count" if cards else "ranks"] == 8


def test_one_pod_is_a_job_on_one_node() -> None:
    assert filled(POD | {"PET_NNODES": "1", "PET_NODE_RANK": "0"}) == {"job_id": "train-worker-0"}
    assert filled(POD | {"PET_NNODES": "1:1"}) == {"job_id": "train-worker-0"}
    assert filled(POD) == {"job_id": "train-worker-0"}
    assert filled(POD | {"RANK": "0", "WORLD_SIZE": "1"}) == {"job_id": "train-worker-0"}
    assert filled({"HOSTNAME": "x"}) == {} and not kube_pod.concerns({"HOSTNAME": "x"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"PET_NODE_RANK": "3"}, "PET_NODE_RANK: '3' is not 0 to 2, and PET_NNODES is 3"),
        ({"PET_NODE_RANK": ""}, "PET_NODE_RANK is not set, and PET_NNODES is 3: give --nodes, --node-rank and --mas"),
        (
            {"PET_NNODES": "three"},
            "PET_NNODES: 'three' is not a number of pods: give --nodes, --node-rank and --master",
        ),
        ({"PET_NNODES": "1:4"}, "an elastic job, whose pods come and go, needs torchrun"),
        ({"PET_MASTER_ADDR": ""}, "PET_MASTER_ADDR is not set, and PET_NNODES is 3: give --master-addr and --master-p"),
        ({"PET_MASTER_PORT": "x"}, "PET_MASTER_PORT: 'x' is not a port, and PET_NNODES is 3: give --master-addr and"),
        ({"PET_NPROC_PER_NODE": "many"}, "PET_NPROC_PER_NODE: 'many' is neither a number nor auto, gpu or cpu"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, str], said: str) -> None:
    """Else each pod would take itself for a job of its own."""
    with pytest.raises(CommandFailed, match=said.replace("(", r"\(")) as caught:
        filled(PYTORCHJOB | changes)
    assert caught.value.exit_code == Exit.USAGE


# --- RANK and WORLD_SIZE of pods --------------------------------------------------------------------------------------

#: An older training operator, or a manifest by hand.
BY_HAND = POD | {"MASTER_ADDR": "j-0.j", "MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": "1"}


def test_rank_and_world_size_alone_count_pods() -> None:
    """Volcano's pytorch plugin without its env plugin says no more, either."""
    placed = {
        "job_id": "train-worker-0", "node_count": 2, "node_rank": 1, "master_addr": "j-0.j", "master_port": 23456,
    }  # fmt: skip
    assert filled(BY_HAND) == placed
    indexed = {name: value for name, value in BY_HAND.items() if name != "RANK"} | {"JOB_COMPLETION_INDEX": "1"}
    assert filled(indexed) == placed
    assert filled(BY_HAND, master_addr="x", master_port=9) == {
        "job_id": "train-worker-0",
        "node_count": 2,
        "node_rank": 1,
    }


def test_rank_and_world_size_of_a_rank_count_ranks() -> None:
    """A rank that starts a job of its own is one pod."""
    assert filled(BY_HAND | {"TORCHELASTIC_RUN_ID": "train"}) == {"job_id": "train-worker-0"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"RANK": "2"}, "RANK: '2' is not 0 to 1, and WORLD_SIZE is 2: give --nodes, --node-rank and --master-port"),
        ({"RANK": "x"}, "RANK: 'x' is not 0 to 1"),
        ({"RANK": ""}, "RANK is not set, and WORLD_SIZE is 2: give --nodes, --node-rank and --master-port"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE: 'two' is not a number of pods"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set, and WORLD_SIZE is 2: give --master-addr and --master-port"),
        ({"MASTER_PORT": ""}, "MASTER_PORT is not set, and WORLD_SIZE is 2: give --master-addr and --master-port"),
    ],
)
def test_half_a_set_is_refused(changes: dict[str, str], said: str) -> None:
    with pytest.raises(CommandFailed, match=said) as caught:
        filled(BY_HAND | changes)
    assert caught.value.exit_code == Exit.USAGE
    assert filled(BY_HAND | changes, nodes=("a", "b"), node_rank=0).keys() == {"job_id"}, "nothing is refused"


# --- LeaderWorkerSet --------------------------------------------------------------------------------------------------

LWS = POD | {"LWS_LEADER_ADDRESS": "s-0.s.default", "LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "3"}


def test_a_pod_of_a_leaderworkerset() -> None:
    found = filled(LWS)
    assert (found["node_count"], found["node_rank"]) == (4, 3)
    assert (found["master_addr"], found["master_port"]) == ("s-0.s.default", 18888)
    assert filled(LWS | {"MASTER_PORT": "29500"})["master_port"] == 29500
    assert filled(LWS | {"LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0"}) == {"job_id": "train-worker-0"}
    with pytest.raises(CommandFailed, match="LWS_WORKER_INDEX is not set, and LWS_GROUP_SIZE is 4"):
        filled(LWS | {"LWS_WORKER_INDEX": ""})


# --- the hosts that Volcano names -------------------------------------------------------------------------------------

LED = {"VC_MASTER_HOSTS": "j-master-0.j", "VC_WORKER_HOSTS": "j-worker-0.j,j-worker-1.j", "VC_TASK_INDEX": "0"}
TRAINERS = {"VC_TRAINER_HOSTS": "j-trainer-0.j,j-trainer-1.j"}


def test_master_and_workers_are_one_job() -> None:
    """Each of them has a pod of index 0, and one rank 0."""
    names = ("j-master-0.j", "j-worker-0.j", "j-worker-1.j")
    for i, name in enumerate(names):
        found = filled(POD | LED | {"HOSTNAME": name.removesuffix(".j")})
        assert (found["nodes"], found["node_rank"], found["master_port"]) == (names, i, 18888)
    found = filled(POD | LED | {"HOSTNAME": "j-master-0", "MASTER_PORT": "23456"})
    assert found["master_port"] == 23456, "the pytorch plugin's"


def test_a_task_of_any_name() -> None:
    found = filled(POD | TRAINERS | {"HOSTNAME": "j-trainer-1"})
    assert (found["nodes"], found["node_rank"]) == (("j-trainer-0.j", "j-trainer-1.j"), 1)
    found = filled(POD | TRAINERS | {"HOSTNAME": "j-trainer-1.j.default.svc.cluster.local"})
    assert found["node_rank"] == 1, "setHostnameAsFQDN"
    found = filled(POD | TRAINERS | {"HOSTNAME": "host-17", "VC_TASK_INDEX": "1"})
    assert found["node_rank"] == 1, "a pod in the network of its host is known by its index alone"
    addresses = {"VC_TRAINER_HOSTS": "10.0.0.1,10.0.0.2", "HOSTNAME": "10.0.0.2"}
    assert filled(POD | addresses)["node_rank"] == 1
    assert filled(POD | {"VC_TRAINER_HOSTS": "j-trainer-0.j"}) == {"job_id": "train-worker-0"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            LED | {"HOSTNAME": "host-17"},
            "VC_MASTER_HOSTS, VC_WORKER_HOSTS: 3 hosts, and HOSTNAME=host-17 is none of them",
        ),
        (TRAINERS, "HOSTNAME=train-worker-0 is none of them, and VC_TASK_INDEX is not set: give --nodes, --node-rank"),
        (TRAINERS | {"VC_TASK_INDEX": "2"}, "VC_TASK_INDEX is '2'"),
        (
            {"VC_PS_HOSTS": "j-ps-0.j", "VC_WORKER_HOSTS": "j-worker-0.j", "HOSTNAME": "j-ps-0"},
            "VC_PS_HOSTS, VC_WORKER_HOSTS: 2 hosts of 2 tasks, and it is not known which of them are one job",
        ),
    ],
)
def test_a_pod_that_is_not_known_is_refused(changes: dict[str, str], said: str) -> None:
    """Else two pods would take themselves for the first."""
    with pytest.raises(CommandFailed, match=said) as caught:
        filled(POD | changes)
    assert caught.value.exit_code == Exit.USAGE
    assert filled(POD | changes, nodes=("here",)).keys() <= {"job_id"}
    assert filled(BY_HAND | changes)["master_addr"] == "j-0.j", "what counts pods knows"


def test_hosts_of_tensorflow_are_refused() -> None:
    cluster = '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}'
    with pytest.raises(
        CommandFailed, match="TF_CONFIG names 2 hosts, and muster does not read it: give --nodes, --nod"
    ):
        filled(POD | {"TF_CONFIG": cluster})
    for other in ('{"cluster": {"worker": ["a:1"]}}', "not JSON", "[]", '{"cluster": 3}'):
        assert filled(POD | {"TF_CONFIG": other}) == {"job_id": "train-worker-0"}
    assert filled(BY_HAND | {"TF_CONFIG": cluster})["node_count"] == 2
