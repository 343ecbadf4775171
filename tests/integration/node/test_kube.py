"""`muster kube` against an API server that speaks the documented REST: what it writes, what it leaves alone, and what
it does where the server refuses, changes, breaks off or never answers."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.agent.cli.fitness.gate import FIT, NOT_FIT, UNKNOWN, Fitness
from tests.conftest import BIN, Daemon, eventually
from tests.fakes import kube_api
from tests.fakes.kube_api import KubeApi
from tests.integration.node.test_gate import CONFIG

pytest.importorskip("kubernetes", reason="needs examples/kubernetes/requirements.txt")

from muster.agent.cli.commands.kube import node_api
from muster.agent.cli.commands.kube.kube_loop import KubeLoop, KubePace
from muster.agent.cli.commands.kube.node_api import NodeApi
from muster.agent.cli.commands.kube.node_marks import KubeMarks

# Older releases of the library call urllib3 in a way that it dislikes.
pytestmark = pytest.mark.filterwarnings("ignore:HTTPResponse.getheader:DeprecationWarning")

SICK = Fitness(NOT_FIT, ("GPU_LOST (card 2): it does not answer",))
OTHERS = "nvidia.com/gpu=present:NoSchedule"
OURS = "muster/unfit=GPU_LOST:NoSchedule"
MARKS = KubeMarks(label="muster/fit", effect="NoSchedule")


@pytest.fixture
def api() -> Iterator[KubeApi]:
    with kube_api.running() as made:
        yield made


class Looping:
    """A loop in a thread; `verdict` is what its daemon says."""

    def __init__(self, api: KubeApi, folder: Path, marks: KubeMarks = MARKS, settle_s: float = 0.0) -> None:
        self.verdict = Fitness(FIT)
        self.said: list[str] = []
        nodes = NodeApi("gpu-7", str(api.kubeconfig(folder)))
        pace = KubePace(every_s=0.05, settle_s=settle_s)
        self.loop = KubeLoop(nodes, lambda: self.verdict, marks, pace, self.said.append, self.said.append)
        self.thread = threading.Thread(target=self.loop.run, daemon=True)

    def end(self, how: str = "keep") -> None:
        self.loop.end()
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.loop.leave(how)

    def has_said(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in list(self.said))


@pytest.fixture
def looping(api: KubeApi, tmp_path: Path) -> Iterator[Callable[..., Looping]]:
    made: list[Looping] = []

    def make(*args: Any, **more: Any) -> Looping:
        made.append(Looping(api, tmp_path, *args, **more))
        made[-1].thread.start()
        return made[-1]

    yield make
    for one in made:
        one.loop.end()
        one.thread.join(60)


def labelled(api: KubeApi) -> str | None:
    assert api.node is not None
    label: str | None = api.node["metadata"]["labels"].get("muster/fit")
    return label


def is_sick(api: KubeApi) -> bool:
    """The condition comes last."""
    return api.condition().get("status") == "True" and OURS in api.taints()


def test_a_verdict_is_written_and_nothing_of_others_is_changed(api: KubeApi, looping: Callable[..., Looping]) -> None:
    ready, loop = api.condition("Ready"), looping()
    eventually(lambda: api.condition().get("status") == "False" and labelled(api) == "true")
    began = api.condition()["lastTransitionTime"]
    loop.verdict = SICK
    eventually(lambda: is_sick(api))
    assert api.taints() == [OTHERS, OURS]
    assert (api.condition()["status"], api.condition()["reason"]) == ("True", "MusterNodeIsNotFit")
    assert api.condition()["message"] == SICK.reason and labelled(api) == "false"
    assert api.condition()["lastTransitionTime"] >= began
    # What muster cannot say keeps nobody away, and lets nobody in.
    loop.verdict = Fitness(UNKNOWN, ("no daemon",))
    eventually(lambda: api.condition()["status"] == "Unknown" and labelled(api) == "unknown")
    assert api.taints() == [OTHERS, OURS]
    loop.verdict = Fitness(FIT)
    eventually(lambda: api.condition()["status"] == "False")
    assert api.taints() == [OTHERS] and labelled(api) == "true"
    assert api.condition("Ready") == ready
    assert api.node is not None and api.node["metadata"]["labels"]["nvidia.com/gpu.present"] == "true"


def test_an_object_that_is_right_is_not_written_again(api: KubeApi, looping: Callable[..., Looping]) -> None:
    loop = looping()
    eventually(lambda: api.condition().get("status") == "False")
    loop.loop.end()
    loop.thread.join(60)
    writes, again = len(api.bodies), looping()
    eventually(lambda: again.loop.verdict == FIT, message="the second one had its turn")
    again.verdict = SICK
    eventually(lambda: is_sick(api))
    assert len(api.bodies) == writes + 3, "condition, label and taint of the second verdict, and nothing before"


def test_a_loop_that_was_killed_goes_on_where_it_was(api: KubeApi, looping: Callable[..., Looping]) -> None:
    first = looping()
    first.verdict = SICK
    eventually(lambda: api.taints() == [OTHERS, OURS])
    first.loop.end()
    first.thread.join(60)  # and leaves as a kill does: nothing is taken back
    looping()
    eventually(lambda: api.taints() == [OTHERS] and api.condition()["status"] == "False")


def test_a_better_verdict_must_last_and_a_worse_one_counts_at_once(
    api: KubeApi, looping: Callable[..., Looping]
) -> None:
    loop = looping(settle_s=3600.0)
    loop.verdict = SICK
    eventually(lambda: is_sick(api))
    loop.verdict = Fitness(FIT)
    eventually(lambda: loop.loop.verdict == FIT, message="the loop has seen it")
    assert api.taints() == [OTHERS, OURS] and api.condition()["status"] == "True"


def test_what_somebody_else_changes_meanwhile_is_not_lost(api: KubeApi, looping: Callable[..., Looping]) -> None:
    """A taint list is replaced as a whole: the write is refused with 409, and repeated on what is there by then."""
    raced: list[str] = []

    def add_another(node: dict[str, Any]) -> None:
        node["spec"]["taints"].append({"key": "other", "effect": "NoExecute"})

    def race(method: str, path: str) -> None:
        if method == "PATCH" and not path.endswith("/status") and not raced:
            raced.append(path)
            api.change(add_another)

    loop = looping(KubeMarks(effect="NoSchedule"))
    eventually(lambda: api.condition().get("status") == "False")
    api.fault = race
    loop.verdict = SICK
    eventually(lambda: OURS in api.taints())
    assert api.taints() == [OTHERS, "other=:NoExecute", OURS] and raced


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, ("401", "the token is not valid")),
        (403, ("403", "ClusterRole of examples/kubernetes/kube.yaml")),
        (404, ("404", "kubectl get nodes")),
        (500, ("500", "played 500", "look into its log")),
        (503, ("503", "played 503", "kubectl get --raw /readyz")),
        (429, ("429", "played 429", "give a longer --every")),
        (418, ("418", "played 418", "check that it is one, and no proxy")),
        (0, ("cannot", "gpu-7", "the connection was closed before the end of the answer: check the API server")),
    ],
)
def test_a_refusal_is_printed_with_its_remedy_and_tried_again(
    api: KubeApi, looping: Callable[..., Looping], status: int, words: tuple[str, ...]
) -> None:
    refused: list[str] = []

    def refuse(method: str, path: str) -> tuple[int, dict[str, str]] | None:
        if method != "PATCH" or len(refused) >= 2:
            return None
        refused.append(path)
        return status, {"Retry-After": "1"} if status == 429 else {}

    api.fault = refuse
    loop = looping()
    eventually(lambda: labelled(api) == "true")
    assert loop.has_said(*words), loop.said
    assert sum(words[0] in line and "cannot" in line for line in loop.said) == 1, "told once"
    eventually(lambda: loop.has_said("takes changes again"))


@pytest.mark.parametrize(
    "garbage",
    [
        b"null",
        b"<html>Sign in</html>",
        b"[]",
        b"{}",
        b'{"kind": "Node", "metadata": null}',
        b'{"kind": "Node", "metadata": {"name": "another", "resourceVersion": "9"}}',
        b'{"metadata": {"name": "gpu-7", "resourceVersion": "9"}, "status": {"conditions": 7}}',
        b'{"type": "MODIFIED", "object": null}\n{"type": "MODIFIED"}\n',
    ],
)
def test_an_answer_that_is_no_node_is_never_taken_for_one(
    api: KubeApi, looping: Callable[..., Looping], garbage: bytes
) -> None:
    """As of a proxy: to reads, writes and watches, and in the middle of them. It would be a node that carries no marks,
    or a write that never was."""
    loop = looping()
    eventually(lambda: labelled(api) == "true" and api.watchers)
    api.fault = lambda method, path: garbage
    asked, began = len(api.asked), time.monotonic()
    api.end_watches()
    loop.verdict = SICK
    eventually(lambda: loop.has_said("cannot patch node gpu-7: the answer is not a Node object: check"))
    assert not loop.has_said("pydantic") and not loop.has_said("Error("), loop.said
    eventually(lambda: ("GET", "/api/v1/nodes/gpu-7") in api.asked[asked:], message="read anew")
    assert labelled(api) == "true" and not loop.has_said(OURS), loop.said
    watches = sum(path.endswith("?watch") for _, path in api.asked[asked:])
    assert watches <= 3 + time.monotonic() - began, "a watch that ends at once is not begun again at once"
    api.fault = lambda method, path: None
    eventually(lambda: is_sick(api) and labelled(api) == "false")
    eventually(lambda: loop.has_said("takes changes again"))


def test_what_stands_before_the_server_may_ask_for_minutes_not_for_years(api: KubeApi, tmp_path: Path) -> None:
    api.fault = lambda method, path: (429, {"Retry-After": "9" * 400})
    with pytest.raises(node_api.KubeFailed) as failure:
        NodeApi("gpu-7", str(api.kubeconfig(tmp_path))).read()
    assert 0 < failure.value.retry_after <= 3600


def test_a_watch_that_breaks_or_is_too_old_is_begun_anew(api: KubeApi, looping: Callable[..., Looping]) -> None:
    loop = looping()
    eventually(lambda: labelled(api) == "true" and api.watchers)

    def unlabel(node: dict[str, Any]) -> None:
        del node["metadata"]["labels"]["muster/fit"]

    # In the middle of a line; then with what etcd has dropped; then the server restarts.
    api.broken_watches = True
    api.change(unlabel)
    eventually(lambda: labelled(api) == "true", message="read anew")
    eventually(lambda: loop.has_said("cannot watch node gpu-7: the connection was closed before the end", "proxies"))
    api.broken_watches = False
    gone: Iterator[tuple[int, dict[str, str]]] = iter([(410, {})])
    api.fault = lambda method, path: next(gone, None) if path.endswith("?watch") else None
    api.end_watches()
    eventually(lambda: next(gone, "over") == "over")
    eventually(lambda: api.watchers, message="a new watch")
    api.change(unlabel)
    eventually(lambda: labelled(api) == "true")
    assert not loop.has_said("410")


def test_a_node_that_is_removed_and_comes_back(api: KubeApi, looping: Callable[..., Looping]) -> None:
    loop = looping()
    eventually(lambda: labelled(api) == "true")
    api.node = None
    api.end_watches()
    loop.verdict = SICK
    eventually(lambda: loop.has_said("404", "kubectl get nodes"))
    api.node = kube_api.a_node()
    eventually(lambda: api.taints() == [OTHERS, OURS] and api.condition().get("status") == "True")


def test_a_server_that_never_answers_is_given_up(
    api: KubeApi, looping: Callable[..., Looping], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_api, "CALL_S", (5.0, 0.2))
    answer, stuck = threading.Event(), threading.Event()

    def hang(method: str, path: str) -> None:
        if method == "PATCH" and not answer.is_set():
            stuck.set()
            answer.wait(60)

    api.fault = hang
    loop = looping()
    assert stuck.wait(60)
    eventually(lambda: loop.has_said("cannot patch", "the API server did not answer in time: see whether"))
    answer.set()
    eventually(lambda: labelled(api) == "true")


def test_the_end_that_keeps_all_waits_for_no_server(
    api: KubeApi, looping: Callable[..., Looping], tmp_path: Path
) -> None:
    loop = looping()
    eventually(lambda: labelled(api) == "true" and api.watchers)
    asked: list[str] = []
    loop.loop.end()
    loop.thread.join(60)
    api.fault = lambda method, path: asked.append(path)
    loop.loop.leave("keep")
    assert asked == []


@pytest.mark.parametrize(
    ("how", "left"),
    [
        ("keep", ("True", "false", [OTHERS, OURS])),
        ("unknown", ("Unknown", "unknown", [OTHERS, OURS])),
        ("remove", (None, None, [OTHERS])),
    ],
)
def test_what_is_left_at_the_end(
    api: KubeApi, looping: Callable[..., Looping], how: str, left: tuple[str | None, str | None, list[str]]
) -> None:
    loop = looping()
    loop.verdict = SICK
    eventually(lambda: is_sick(api))
    loop.end(how)
    assert (api.condition().get("status"), labelled(api), api.taints()) == left


def test_a_condition_is_confirmed_though_nothing_changes(api: KubeApi, looping: Callable[..., Looping]) -> None:
    looping(KubeMarks(heartbeat_s=1.0))
    first = eventually(api.condition)
    eventually(lambda: api.condition()["lastHeartbeatTime"] > first["lastHeartbeatTime"])
    assert api.condition()["lastTransitionTime"] == first["lastTransitionTime"]


def test_all_that_is_written_is_as_kubernetes_wants_it(api: KubeApi, looping: Callable[..., Looping]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="needs examples/kubernetes/requirements.txt")
    loop = looping()
    loop.verdict = SICK
    eventually(lambda: is_sick(api))
    for release in ("1.37", "1.31"):
        assert validator.validate(api.node, release, strict=True)


# --- the command ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def command(api: KubeApi, daemon: Daemon, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    config = str(api.kubeconfig(folder))
    words = [str(BIN / "muster"), "kube", "--root", str(daemon.folder), "--kubeconfig", config, "--every", "0.1s"]
    with subprocess.Popen(
        [*words, *options],
        env={**os.environ, "NODE_NAME": "gpu-7", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_the_command_follows_the_daemon(make_daemon: Callable[..., Daemon], api: KubeApi, tmp_path: Path) -> None:
    daemon = make_daemon(CONFIG)
    options = ("--label", "muster/fit", "--taint", "NoExecute", "--settle", "0s", "--at-end", "unknown")
    with command(api, daemon, tmp_path, *options) as kube:
        eventually(lambda: api.condition().get("status") == "False", message="all checks had their turn")
        assert daemon.cli("node", "drain", "a new power supply").returncode == 0
        drained = eventually(lambda: (found := api.condition()).get("status") == "True" and found)
        assert "muster/unfit=drained:NoExecute" in api.taints()
        assert drained["message"].endswith("a new power supply")
        kube.kill()
        kube.wait(60)
    assert daemon.cli("node", "undrain").returncode == 0
    with command(api, daemon, tmp_path, *options) as kube:
        eventually(lambda: api.taints() == [OTHERS] and labelled(api) == "true")
        daemon.kill()
        eventually(lambda: api.condition()["status"] == "Unknown")
        daemon.restart()
        eventually(lambda: api.condition()["status"] == "False")
        kube.send_signal(signal.SIGTERM)
        assert kube.wait(60) == 0
        assert kube.stdout is not None
        said = kube.stdout.read()
    assert "condition MusterNodeProblem is Unknown: muster kube has exited" in said, said
    assert api.condition()["status"] == "Unknown" and api.taints() == [OTHERS]


def test_once_and_without_writing(api: KubeApi, tmp_path: Path) -> None:
    def once(*options: str) -> subprocess.CompletedProcess[str]:
        config = str(api.kubeconfig(tmp_path))
        words = [str(BIN / "muster"), "kube", "--root", str(tmp_path), "--kubeconfig", config, *options]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    dry = once("--node", "gpu-7", "--dry-run")
    assert (dry.returncode, api.bodies) == (0, [])
    assert "would write: condition MusterNodeProblem is Unknown: no daemon" in dry.stdout
    assert once("--node", "gpu-7", "--once").returncode == 0
    assert api.condition()["status"] == "Unknown"
    wrong = once("--node", "gpu-8", "--once")
    assert wrong.returncode == 1 and "kubectl get nodes" in wrong.stderr


def test_without_the_library(tmp_path: Path) -> None:
    (tmp_path / "kubernetes.py").write_text("raise ImportError('No module named kubernetes')\n")
    done = subprocess.run(
        [sys.executable, "-m", "muster.agent.cli.main", "kube", "--once"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and "pip install 'muster-agent[kubernetes]'" in done.stderr, done.stderr


def test_no_server_listens(api: KubeApi, tmp_path: Path) -> None:
    file = api.kubeconfig(tmp_path)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nobody listens
        text = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{closed.getsockname()[1]}", file.read_text())
        file.write_text(text)
        words = [str(BIN / "muster"), "kube", "--node", "gpu-7", "--once", "--kubeconfig", str(file)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "no connection to the API server: [Errno 111]" in done.stderr, done
    assert "check its address" in done.stderr


@pytest.mark.parametrize("content", [b"a: [b", b"[]", b"\xff\xfe", b""])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mine"
    file.write_bytes(content)
    words = [str(BIN / "muster"), "kube", "--once"]
    environ = {name: value for name, value in os.environ.items() if name != "KUBERNETES_SERVICE_HOST"}
    for options, env in (["--kubeconfig", str(file)], environ), ([], environ | {"KUBECONFIG": str(file)}):
        done = subprocess.run([*words, *options], env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2 and f"muster: no cluster: {file}: " in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


def test_no_cluster(tmp_path: Path) -> None:
    done = subprocess.run(
        [BIN / "muster", "kube", "--once", "--kubeconfig", tmp_path / "none"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    said = f"muster: --kubeconfig: {tmp_path}/none: No such file or directory: name a file that you can read\n"
    assert done.stderr == said
