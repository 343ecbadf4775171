"""`muster check --active` on fake cards, whose driver's libcuda plays results, speeds and faults."""

import json
import os
import shutil
import subprocess
import sys

import grpc
import pytest

from muster.v1 import job_pb2, node_pb2, probe_pb2
from tests.conftest import BIN, eventually
from tests.fakes import build
from tests.fakes.cards import FakeCards

TESTS = ("compute", "memory", "transfer")


@pytest.fixture
def cards(tmp_path):
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 4) as made:
        shutil.copy(build.library("cuda"), made.env["LD_LIBRARY_PATH"].partition(":")[0])
        yield made
        made.restore()


class Check:
    """The command; `code` and `notes` are its last exit code and stderr."""

    def __init__(self, cards, folder):
        self.cards, self.folder = cards, folder
        self.root = folder / "root"
        (self.root / "state").mkdir(parents=True)
        self.code, self.notes = 0, ""

    def __call__(self, *plans, settings="", args=(), seconds="0.01"):
        """The active results by test and card."""
        with open(os.path.join(self.cards.env["LD_LIBRARY_PATH"].partition(":")[0], "cuda.plan"), "w") as file:
            file.write("".join(f"{line}\n" for line in plans))
        config = self.folder / "musterd.toml"
        config.write_text(f"[active]\nseconds = {seconds}\n{settings}")
        command = [BIN / "muster", "--root", self.root, "check", "gpu-check", "--active", "-o", "json"]
        done = subprocess.run(
            [*command, "--config", config, *args],
            capture_output=True,
            text=True,
            timeout=110,
            env={**os.environ, **self.cards.env},
            check=False,
        )
        assert done.stdout, done.stderr
        self.code, self.notes = done.returncode, done.stderr
        checks = json.loads(done.stdout)["checks"]
        return {(c["item"].removeprefix("active "), c["card"]): c for c in checks if c["item"].startswith("active")}


@pytest.fixture
def check(cards, tmp_path):
    return Check(cards, tmp_path)


def codes(found):
    return {where: c["code"] for where, c in found.items() if c["code"] != "ACTIVE_OK"}


def test_cards_that_are_right_and_fast(check):
    found = check()
    assert set(found) == {(test, card) for test in TESTS for card in range(4)}
    assert not codes(found), found
    assert found["compute", 0]["observed"] == "tflops 600"
    assert found["memory", 3]["observed"].startswith("memory_gb_s 3000")
    assert check.code == 0


def test_cards_of_ones_choice(check):
    assert {card for _, card in check(args=("--cards", "2,"))} == {2}
    assert {card for _, card in check(args=("--cards", "2"))} == {0, 1}


def test_a_wrong_result_is_the_end_of_a_card(check, cards):
    found = check(f"{cards[1].bus_id} wrong 3")
    assert codes(found) == {(test, 1): "ACTIVE_WRONG_RESULT" for test in TESTS}
    assert (found["compute", 1]["status"], found["compute", 1]["action"]) == ("CRITICAL", "RMA")
    assert "3 results" in found["compute", 1]["reason"]
    assert "no daemon knows that card 1 failed" in check.notes
    assert check.code == 2


def test_a_slow_card_beside_its_twins(check, cards):
    found = check(f"{cards[2].bus_id} memory_gb_s 2650")
    assert codes(found) == {("memory", 2): "ACTIVE_SLOW"}
    assert "0.9 of the node's median" in found["memory", 2]["reason"]
    assert found["memory", 2]["status"] == "WARN"


def test_all_cards_slower_than_their_model(check):
    found = check("memory_gb_s 2000")
    assert codes(found) == {("memory", card): "ACTIVE_SLOW" for card in range(4)}
    assert "the limit of a NVIDIA H100" in found["memory", 0]["reason"]


def test_cards_slower_than_they_were(check):
    for _ in range(3):
        assert not codes(check("transfer_gb_s 60"))
    found = check("transfer_gb_s 52")
    assert codes(found) == {("transfer", card): "ACTIVE_SLOW" for card in range(4)}
    assert "its own median before" in found["transfer", 0]["reason"]


def test_limits_of_a_site(check, tmp_path):
    limits = tmp_path / "limits.toml"
    limits.write_text('[[card]]\nmodel = ["H100"]\ncompute_tflops = 700\n')
    setting = f'limits_file = "{limits}"\n'
    assert codes(check(settings=setting)) == {("compute", card): "ACTIVE_SLOW" for card in range(4)}
    limits.write_text('[[card]]\nmodel = ["H100"]\ncompute_tflops = "many"\n')
    with pytest.raises(AssertionError, match=r"limits\.toml.*many"):
        check(settings=setting)


@pytest.mark.parametrize(
    ("plan", "code", "words"),
    [
        ("init 802", "ACTIVE_FAILED", "is the fabric manager running?"),
        ("init 999", "ACTIVE_FAILED", "cuInit"),
        ("init 100", "ACTIVE_NOT_RUN", "cuInit"),
        ("alloc 2", "ACTIVE_NOT_RUN", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("wait 214", "ACTIVE_FAILED", "CUDA_ERROR_ECC_UNCORRECTABLE"),
        ("launch 719", "ACTIVE_FAILED", "CUDA_ERROR_LAUNCH_FAILED"),
    ],
)
def test_what_the_driver_refuses(check, plan, code, words):
    found = check(plan, args=("--cards", "0,"))
    assert found["compute", 0]["code"] == code
    assert words in found["compute", 0]["reason"]


@pytest.mark.slow
def test_a_card_that_never_answers_is_given_up_twice(check, cards):
    found = check(f"{cards[3].bus_id} hang 1", settings="deadline_s = 2\n", seconds="0.0123")
    assert codes(found) == {(test, 3): "ACTIVE_NO_END" for test in TESTS}
    # Nothing is left of the tests.
    ours = "muster.probes.active.card_program .* 0.0123$"
    assert not subprocess.run(["pgrep", "-f", ours], capture_output=True, check=False).stdout


def test_a_card_in_use_is_left_alone(check, cards):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as user:
        cards[0].hold(user.pid, 1 << 30)
        found = check()
        assert codes(found) == {(test, 0): "ACTIVE_NOT_RUN" for test in TESTS}
        assert f"in use by pid {user.pid}" in found["compute", 0]["reason"]
        user.kill()


def test_a_missing_library_of_the_driver_is_not_held_against_the_card(check, cards):
    os.unlink(os.path.join(cards.env["LD_LIBRARY_PATH"].partition(":")[0], "libcuda.so.1"))
    found = check(args=("--cards", "0,"))
    assert codes(found) == {(test, 0): "ACTIVE_NOT_RUN" for test in TESTS}
    assert "libcuda.so.1" in found["compute", 0]["reason"]


def test_a_damaged_history_is_reported_and_kept(check, tmp_path):
    past = tmp_path / "root/state/active.json"
    past.write_text("{")
    assert not codes(check(args=("--cards", "0,")))
    assert "active.json" in check.notes and past.read_text() == "{"


def test_a_host_without_cards(tmp_path):
    command = [BIN / "muster", "--root", tmp_path, "check", "gpu-check", "--active", "--all"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "there are no cards to test" in done.stdout


def test_the_daemon_gives_no_job_a_card_that_failed(check, cards, make_daemon):
    daemon = make_daemon("[health]\n", cards.env)
    check.root = daemon.folder

    def conditions():
        return [(c.code, c.device) for c in node(daemon).conditions if c.item.startswith("active ")]

    def refused(card):
        done = daemon.cli("start", "--cards", f"{card},", "--", "true")
        return done.returncode == 5 and "ACTIVE_" in done.stderr

    check(f"{cards[1].bus_id} wait 719", args=("--cards", "1,"))
    assert set(conditions()) == {("ACTIVE_FAILED", "card 1")}
    assert refused(1) and not refused(2)
    # A good test ends it, but for a result that was wrong.
    check(f"{cards[2].bus_id} wrong 1", args=("--cards", "1,2"))
    assert set(conditions()) == {("ACTIVE_WRONG_RESULT", "card 2")}
    check(args=("--cards", "2,"))
    assert refused(2) and not refused(1)
    daemon.kill()
    daemon.restart()
    assert refused(2)
    assert daemon.cli("check", "clear", "ACTIVE_WRONG_RESULT").returncode == 0
    assert not conditions() and not refused(2)


def node(daemon):
    return daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node


@pytest.mark.parametrize(
    ("item", "code", "device"),
    [
        ("ecc", "ACTIVE_FAILED", "card 1"),
        ("active compute", "GPU_LOST", "card 1"),
        ("active compute", "ACTIVE_FAILED", "card 77"),
        ("active compute", "ACTIVE_FAILED", "the node"),
    ],
)
def test_only_results_of_active_tests_of_this_nodes_cards_are_taken(make_daemon, cards, item, code, device):
    daemon = make_daemon(env=cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    told = job_pb2.CheckResult(item=item, code=code, device=device, reason="made up")
    with pytest.raises(grpc.RpcError) as caught:
        daemon.probes.ReportResults(probe_pb2.ReportResultsRequest(results=[told]), timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
