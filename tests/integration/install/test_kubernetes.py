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


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_are_as_kubernetes_wants_them(path: Path, release: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="needs examples/kubernetes/requirements.txt")
    found = documents(path)
    assert len(found) >= 2
    for document in found:
        assert validator.validate(document, release, strict=True)


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


def containers() -> list[dict[str, Any]]:
    every = [d for path in MANIFESTS for d in documents(path) if d["kind"] in ("DaemonSet", "Job")]
    return [one for d in every for one in d["spec"]["template"]["spec"]["containers"]]


def test_their_commands_are_musters() -> None:
    """Each word that begins with -- is an option of the command."""
    commands = [container["command"] for container in containers()]
    commands += [
        c[name]["exec"]["command"] for c in containers() for name in ("readinessProbe", "livenessProbe") if name in c
    ]
    assert len(commands) == 4
    for program, *words in commands:
        ours = words[: words.index("--")] if "--" in words else words
        command = {"check": ["check", "run"]}.get(ours[0], [word for word in ours[:1] if not word.startswith("-")])
        shown = subprocess.run(
            [BIN / program, *command, "--help"], capture_output=True, text=True, timeout=60, check=True
        )
        assert all(word.split("=")[0] in shown.stdout for word in ours if word.startswith("-")), (program, words)


def test_the_pods_of_the_job_are_its_nodes() -> None:
    (container,) = [c for c in containers() if "run" in c["command"]]
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
