"""The manifests of examples/kubernetes: what the schemas of two releases of Kubernetes, and muster, say of them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.agent.cli.spec import kube_pod
from muster.agent.cli.spec.job_spec import Draft
from tests.conftest import BIN

FOLDER = Path(__file__).parents[3] / "examples" / "kubernetes"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
#: The newest of the validator's, and one that is two years older.
RELEASES = ("1.37", "1.31")


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def of_kubernetes(document: dict[str, Any]) -> list[dict[str, Any]]:
    """It, or the pods that an operator makes of it."""
    if document["kind"] != "MPIJob":
        return [document]
    templates = [spec["template"] for spec in document["spec"]["mpiReplicaSpecs"].values()]
    named = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}}
    return [named | {"spec": template["spec"]} for template in templates]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_are_as_kubernetes_wants_them(path: Path, release: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="needs examples/kubernetes/requirements.txt")
    found = [one for document in documents(path) for one in of_kubernetes(document)]
    assert len(found) >= 2
    for document in found:
        assert validator.validate(document, release, strict=True)


#: What the CustomResourceDefinition of mpi-operator caa3c47 (July 2026) has besides the pods' templates.
MPI_JOB = {
    "spec": {
        "launcherCreationPolicy",
        "mpiImplementation",
        "mpiReplicaSpecs",
        "runLauncherAsWorker",
        "runPolicy",
        "slotsPerWorker",
        "sshAuthMountPath",
    },
    "runPolicy": {
        "activeDeadlineSeconds",
        "backoffLimit",
        "cleanPodPolicy",
        "managedBy",
        "schedulingPolicy",
        "suspend",
        "ttlSecondsAfterFinished",
    },
    "replica": {"replicas", "restartPolicy", "template"},
}


def test_the_job_of_the_mpi_operator_is_as_its_definition_wants_it() -> None:
    (job,) = documents(FOLDER / "mpijob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec = job["spec"]
    assert set(spec) <= MPI_JOB["spec"] and set(spec["runPolicy"]) <= MPI_JOB["runPolicy"]
    assert set(spec["mpiReplicaSpecs"]) == {"Launcher", "Worker"}
    assert spec["runPolicy"]["cleanPodPolicy"] in ("Running", "All"), "the workers do not end by themselves"
    for replica in spec["mpiReplicaSpecs"].values():
        assert set(replica) <= MPI_JOB["replica"]
    assert spec["slotsPerWorker"] == cards_of(spec["mpiReplicaSpecs"]["Worker"]["template"])


def cards_of(template: dict[str, Any]) -> int:
    (container,) = template["spec"]["containers"]
    return int(container["resources"]["limits"]["nvidia.com/gpu"])


def test_the_account_of_muster_kube_may_do_what_it_does_and_nothing_else() -> None:
    found = {document["kind"]: document for document in documents(FOLDER / "kube.yaml")}
    rules = {(one, verb) for r in found["ClusterRole"]["rules"] for one in r["resources"] for verb in r["verbs"]}
    assert rules == {("nodes", verb) for verb in ("get", "list", "watch", "patch")} | {("nodes/status", "patch")}
    (subject,) = found["ClusterRoleBinding"]["subjects"]
    spec = found["DaemonSet"]["spec"]["template"]["spec"]
    assert subject["name"] == spec["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
    assert found["ClusterRoleBinding"]["roleRef"]["name"] == found["ClusterRole"]["metadata"]["name"]
    assert {"operator": "Exists"} in spec["tolerations"], "it runs on the node that it has tainted"


def test_a_manifest_that_is_wrong_is_found() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="needs examples/kubernetes/requirements.txt")
    (_, job) = documents(FOLDER / "job.yaml")
    job["spec"]["template"]["spec"]["containers"][0]["command"] = "muster"
    with pytest.raises(validator.ValidationError):
        validator.validate(job, RELEASES[0], strict=True)


def test_the_daemons_configuration_is_one(tmp_path: Path) -> None:
    (config,) = [d for d in documents(FOLDER / "daemonset.yaml") if d["kind"] == "ConfigMap"]
    file = tmp_path / "musterd.toml"
    file.write_text(config["data"]["musterd.toml"])
    done = subprocess.run(
        [BIN / "musterd", "--root", tmp_path, "--config", file, "--check-config"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_uses_the_folders_of_the_host_runs_as_root() -> None:
    """They are root's, and the user of muster's own image is not."""
    for document in (d for path in MANIFESTS for d in documents(path) if d["kind"] == "DaemonSet"):
        pod = document["spec"]["template"]["spec"]
        assert any("hostPath" in volume for volume in pod["volumes"])
        assert [c["securityContext"].get("runAsUser") for c in pod["containers"]] == [0], document["metadata"]["name"]


def containers() -> list[dict[str, Any]]:
    every = [d for path in MANIFESTS for document in documents(path) for d in of_kubernetes(document)]
    pods = [d["spec"]["template"] for d in every if d["kind"] in ("DaemonSet", "Job")]
    pods += [d for d in every if d["kind"] == "Pod"]
    return [one for pod in pods for one in pod["spec"]["containers"]]


def test_their_commands_are_musters() -> None:
    """Each word that begins with -- is an option of the command."""
    commands = [container["command"] for container in containers()]
    commands += [
        c[name]["exec"]["command"] for c in containers() for name in ("readinessProbe", "livenessProbe") if name in c
    ]
    assert len(commands) == 7
    for program, *words in commands:
        ours = words[: words.index("--")] if "--" in words else words
        command = {"check": ["check", "run"]}.get(ours[0], [word for word in ours[:1] if not word.startswith("-")])
        shown = subprocess.run(
            [BIN / program, *command, "--help"], capture_output=True, text=True, timeout=60, check=True
        )
        assert all(word.split("=")[0] in shown.stdout for word in ours if word.startswith("-")), (program, words)


def test_the_pods_of_the_job_are_its_nodes() -> None:
    (container,) = [c for c in containers() if c["command"][-1] == "train.py" and "mpirun" not in c["command"]]
    env = {one["name"]: one.get("value", "1") for one in container["env"]}
    draft = Draft()
    kube_pod.fill(draft, env)
    asked = draft.asked
    assert (asked.node_count, asked.node_rank, asked.master_addr) == (2, 1, "train-0.train")
    (_, job) = documents(FOLDER / "job.yaml")
    spec = job["spec"]["template"]["spec"]
    assert job["spec"]["completions"] == asked.node_count and spec["subdomain"] == "train"
    assert spec["terminationGracePeriodSeconds"] > 30, "longer than the grace"


def test_the_plugin_of_node_problem_detector(tmp_path: Path) -> None:
    """Field by field as pkg/custompluginmonitor of NPD reads it: a permanent rule needs a condition that is listed."""
    found = json.loads((FOLDER / "node-problem-detector.json").read_text())
    assert found["plugin"] == "custom" and found["source"] == "muster"
    listed = {condition["type"] for condition in found["conditions"]}
    (rule,) = found["rules"]
    assert rule["type"] == "permanent" and rule["condition"] in listed
    assert rule["timeout"] <= found["pluginConfig"]["timeout"], "the rule's may not be longer"
    done = subprocess.run(
        [BIN / "muster", *rule["args"], "--root", tmp_path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2 and 0 < len(done.stdout.strip().encode()) <= found["pluginConfig"]["max_output_length"]
