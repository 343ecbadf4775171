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
    assert filled(POD | {"RANK": "3", "WORLD_SIZE": "8"}) == {"job_id": "train-worker-0"}, "somebody's own"
    assert filled({"HOSTNAME": "x"}) == {} and not kube_pod.concerns({"HOSTNAME": "x"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"PET_NODE_RANK": "3"}, "PET_NODE_RANK: '3' is not 0 to 2, and PET_NNODES is 3"),
        ({"PET_NODE_RANK": ""}, "PET_NODE_RANK: is not 0 to 2"),
        ({"PET_NNODES": "three"}, "PET_NNODES: 'three' is no number of pods: give --nodes and --node-rank"),
        ({"PET_NNODES": "1:4"}, "an elastic job, whose pods come and go, needs torchrun"),
        ({"PET_MASTER_ADDR": ""}, "PET_MASTER_ADDR, PET_MASTER_PORT: is no place to meet, and PET_NNODES is 3"),
        ({"PET_MASTER_PORT": "x"}, "no place to meet"),
        ({"PET_NPROC_PER_NODE": "many"}, "PET_NPROC_PER_NODE: 'many' is neither a number nor auto, gpu or cpu"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, str], said: str) -> None:
    """Else each pod would take itself for a job of its own."""
    with pytest.raises(CommandFailed, match=said.replace("(", r"\(")) as caught:
        filled(PYTORCHJOB | changes)
    assert caught.value.exit_code == Exit.USAGE
