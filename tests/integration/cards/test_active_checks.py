"""`muster check --active` on fake cards, whose driver's libcuda plays results, speeds and faults."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from muster.probes.active import torch_program
from muster.v1 import job_pb2, node_pb2, probe_pb2
from tests.conftest import BIN, alive, eventually
from tests.fakes import build
from tests.fakes.cards import FakeCards

TESTS = ("compute", "memory", "transfer", "peers")


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
    return {where: c["code"] for where, c in found.items() if c["code"] not in ("ACTIVE_OK", "NODE_NOT_APPLICABLE")}


def test_cards_that_are_right_and_fast(check):
    found = check()
    assert set(found) == {(test, card) for test in (*TESTS, "allreduce") for card in range(4)}
    assert found["peers", 1]["observed"] == "peer_gb_s 390, peers 3"
    assert {found["allreduce", card]["code"] for card in range(4)} == {"NODE_NOT_APPLICABLE"}
    assert "set python in [active]" in found["allreduce", 0]["reason"]
    assert not codes(found), found
    assert found["compute", 0]["observed"] == "tflops 600"
    assert found["memory", 3]["observed"].startswith("memory_gb_s 3000")
    assert check.code == 0


def test_cards_of_ones_choice(check):
    alone = check(args=("--cards", "2,"))
    assert {card for _, card in alone} == {2}
    assert (alone["peers", 2]["code"], alone["peers", 2]["reason"]) == (
        "NODE_NOT_APPLICABLE",
        "there is no other free card",
    )
    assert check.code == 0
    assert {card for _, card in check(args=("--cards", "2"))} == {0, 1}


def test_a_wrong_result_is_the_end_of_a_card(check, cards):
    found = check(f"{cards[1].bus_id} wrong 3")
    assert codes(found) == {(test, 1): "ACTIVE_WRONG_RESULT" for test in TESTS[:3]}
    assert found["peers", 1]["reason"] == "it has failed another test"
    assert found["peers", 0]["observed"] == "peer_gb_s 390, peers 2"
    assert (found["compute", 1]["status"], found["compute", 1]["action"]) == ("CRITICAL", "RMA")
    assert "3 results" in found["compute", 1]["reason"]
    assert "no daemon knows that card 1 failed" in check.notes
    assert check.code == 2


def test_of_a_copy_that_arrives_wrong_the_card_is_blamed_that_all_of_them_have_in_common(check, cards):
    found = check(f"{cards[0].bus_id} peer_wrong 1", args=("--cards", "0,1"))
    assert codes(found) == {("peers", n): "ACTIVE_WRONG_RESULT" for n in (0, 1)}, "it can be either"
    assert codes(check(f"{cards[0].bus_id} peer_wrong 1")) == {("peers", 0): "ACTIVE_WRONG_RESULT"}


def test_a_slow_card_beside_its_twins(check, cards):
    found = check(f"{cards[2].bus_id} memory_gb_s 2650", f"{cards[1].bus_id} peers 0")
    assert found["peers", 1]["code"] == "NODE_NOT_APPLICABLE", "it has no way to the others"
    assert codes(found) == {("memory", 2): "ACTIVE_SLOW"}
    assert "0.9 of the node's median" in found["memory", 2]["reason"]
    assert found["memory", 2]["status"] == "WARN"


def test_all_cards_slower_than_their_model(check):
    found = check("memory_gb_s 2000")
    assert codes(found) == {("memory", card): "ACTIVE_SLOW" for card in range(4)}
    assert "the limit of a NVIDIA H100" in found["memory", 0]["reason"]


def test_a_link_that_is_slower_than_the_others(check, cards):
    found = check(f"{cards[3].bus_id} peer_gb_s 300")
    assert codes(found) == {("peers", 3): "ACTIVE_SLOW"}
    assert "peer_gb_s 300 is below" in found["peers", 3]["reason"]


@pytest.mark.slow
def test_cards_slower_than_they_were(check):
    for _ in range(3):
        assert not codes(check("transfer_gb_s 60"))
    found = check("transfer_gb_s 52")
    assert codes(found) == {("transfer", card): "ACTIVE_SLOW" for card in range(4)}
    assert "its own median before" in found["transfer", 0]["reason"]
    for _ in range(4):  # it does not become its own measure
        assert check("transfer_gb_s 52", args=("--cards", "0,"))["transfer", 0]["code"] == "ACTIVE_SLOW"


@pytest.mark.slow
def test_a_card_that_is_to_stay_slower(check, cards, make_daemon):
    daemon = make_daemon("[health]\n", cards.env)
    check.root = daemon.folder
    eventually(lambda: len(node(daemon).cards) == 4)
    slow = ("transfer_gb_s 52",)
    for _ in range(3):
        assert not codes(check("transfer_gb_s 60"))
    assert codes(check(*slow)) == {("transfer", card): "ACTIVE_SLOW" for card in range(4)}
    assert daemon.cli("check", "clear", "ACTIVE_SLOW", "card 2").returncode == 0
    assert codes(check(*slow)) == {("transfer", card): "ACTIVE_SLOW" for card in (0, 1, 3)}


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
        ("init 100", "ACTIVE_FAILED", "CUDA does not see the card that NVML lists"),
        ("segv 1", "ACTIVE_FAILED", "SIGSEGV ended it"),
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
    found = check(f"{cards[3].bus_id} hang 1", settings="deadline_s = 4\n", seconds="0.0123")
    assert codes(found) == {(test, 3): "ACTIVE_NO_END" for test in TESTS[:3]}
    assert not programs("0.0123"), "nothing is left of the tests"


def programs(seconds):
    """Pids of tests that measure for so long."""
    ours = f"muster.probes.active.(card|peer)_program .* {seconds}$"
    found = subprocess.run(["pgrep", "-f", ours], capture_output=True, text=True, check=False).stdout
    return [int(pid) for pid in found.split()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_tests_whose_command_is_killed(check, cards, number):
    with open(os.path.join(cards.env["LD_LIBRARY_PATH"].partition(":")[0], "cuda.plan"), "w") as file:
        file.write("hang 1\n")
    seconds = f"0.0{int(number)}77"
    (check.folder / "musterd.toml").write_text(f"[active]\nseconds = {seconds}\n")
    words = [BIN / "muster", "--root", check.root, "check", "gpu-check", "--active"]
    command = subprocess.Popen(
        [*words, "--config", check.folder / "musterd.toml"],
        env={**os.environ, **cards.env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        working = eventually(lambda: len(found := programs(seconds)) == 4 and found, message="a test for each card")
        command.send_signal(number)
        command.wait(60)
        eventually(lambda: not any(map(alive, working)), message="the tests have ended")
    finally:
        command.kill()
        command.wait(60)


def test_a_card_that_somebody_takes_meanwhile_is_not_blamed(check, cards):
    """The card hangs until a stranger holds it, and is slow then."""
    plan = Path(cards.env["LD_LIBRARY_PATH"].partition(":")[0], "cuda.plan")
    plan.write_text("hang 1\n")
    (check.folder / "musterd.toml").write_text("[active]\nseconds = 0.0155\n")
    words = [BIN / "muster", "--root", check.root, "check", "gpu-check", "--active", "-o", "json", "--cards", "0,"]
    user = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    working = subprocess.Popen(
        [*words, "--config", check.folder / "musterd.toml"],
        env={**os.environ, **cards.env},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: programs("0.0155"), message="the first test works")
        cards[0].hold(user.pid, 1 << 30)
        plan.write_text("tflops 100\n")
        out, _ = working.communicate(timeout=110)
    finally:
        working.kill()
        user.kill()
        user.communicate()
    found = {c["item"]: c for c in json.loads(out)["checks"] if c["item"].startswith("active")}
    assert found["active compute"]["code"] == "ACTIVE_NOT_RUN"
    assert f"by the end of the test pid {user.pid} is on it" in found["active compute"]["reason"]
    assert f"not run: pid {user.pid} is on it" in found["active memory"]["reason"]


def test_a_card_in_use_is_left_alone(check, cards):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as user:
        cards[0].hold(user.pid, 1 << 30)
        found = check()
        assert codes(found) == {(test, 0): "ACTIVE_NOT_RUN" for test in TESTS}
        assert f"pid {user.pid} is on it" in found["compute", 0]["reason"]
        # The driver may not list those that compute, although it says that nobody draws.
        for code in (3, 999):
            cards[0].fail("nvmlDeviceGetComputeRunningProcesses_v3", code)
            found = check()
            assert codes(found) == {(test, 0): "ACTIVE_NOT_RUN" for test in TESTS}, code
            assert "does not say whether a process is on it" in found["compute", 0]["reason"]
        user.kill()


def test_a_card_that_a_job_holds_is_left_alone_before_its_first_process_is_on_it(check, cards, make_daemon):
    daemon = make_daemon(env=cards.env)
    check.root = daemon.folder
    eventually(lambda: len(daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node.cards) == 4)
    assert daemon.cli("start", "--job-id", "early", "--cards", "2,", "--", "sleep", "1000").returncode == 0
    found = check()
    assert codes(found) == {(test, 2): "ACTIVE_NOT_RUN" for test in TESTS}
    assert "job early holds it" in found["memory", 2]["reason"]
    assert found["peers", 0]["observed"] == "peer_gb_s 390, peers 2"
    assert daemon.cli("stop", "early").returncode == 0
    assert not codes(check())


def test_a_missing_library_of_the_driver_is_not_held_against_the_card(check, cards):
    os.unlink(os.path.join(cards.env["LD_LIBRARY_PATH"].partition(":")[0], "libcuda.so.1"))
    found = check(args=("--cards", "0,"))
    assert codes(found) == {(test, 0): "ACTIVE_NOT_RUN" for test in TESTS[:3]}
    assert "libcuda.so.1" in found["compute", 0]["reason"]


@pytest.mark.parametrize("content", ["", "{", None])
def test_a_damaged_history_is_reported_and_set_aside(check, tmp_path, content):
    past = tmp_path / "root/state/active.json"
    if content is None:
        os.mkfifo(past)
    else:
        past.write_text(content)
    assert not codes(check(args=("--cards", "0,")))
    (aside,) = past.parent.glob("active.json.damaged-*")
    assert aside.name in check.notes and (content is None or aside.read_text() == content)
    assert not codes(check(args=("--cards", "0,"))) and "active.json" not in check.notes
    assert json.loads(past.read_text())["cards"], "what was measured is kept from then on"


def test_a_history_of_a_newer_release_stays(check, tmp_path):
    past = tmp_path / "root/state/active.json"
    past.write_text('{"version": 99}')
    assert not codes(check(args=("--cards", "0,")))
    assert "newer musterd" in check.notes and past.read_text() == '{"version": 99}'


def test_an_instance_of_a_split_card_is_not_passed_over(check, cards):
    cards[1].mig, cards[1].mig_count = 1, 2
    found = check(args=("--cards", "1100,"))
    assert found["compute", 1100]["code"] == "ACTIVE_NOT_RUN" and "MIG" in found["compute", 1100]["reason"]
    assert check.code == 3


def test_a_host_without_cards(tmp_path):
    command = [BIN / "muster", "--root", tmp_path, "check", "gpu-check", "--active", "--all"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "there are no cards to test" in done.stdout


@pytest.mark.slow
def test_the_daemon_gives_no_job_a_card_that_failed(check, cards, make_daemon):
    daemon = make_daemon("[health]\n", cards.env)
    check.root = daemon.folder

    def conditions():
        return [(c.code, c.device) for c in node(daemon).conditions if c.item.startswith("active ")]

    def refused(card):
        done = daemon.cli("start", "--cards", f"{card},", "--", "true")
        if done.returncode == 0:  # a card that the job still has is not tested
            daemon.wait(job_id := done.stdout.strip())
            eventually(lambda: daemon.get(job_id).cards_free)
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


# --- with PyTorch -----------------------------------------------------------------------------------------------------


@pytest.fixture
def python(tmp_path):
    """Makes what stands in for an interpreter: a script that gets `test`, `kind`, `rank` and `world`, and says what it
    was given in a file."""

    def make(script):
        path = tmp_path / "python"
        path.write_text(
            "#!/bin/sh\n"
            "test=$2 kind=$3 rank=$5 world=$6\n"
            f'echo "$test $kind $rank $world $CUDA_VISIBLE_DEVICES$ASCEND_RT_VISIBLE_DEVICES" >>{tmp_path}/given\n'
            'answer() { printf \'{"wrong": %s, "measured": {"%s": %s}}\\n\' $2 $1 $3; }\n'
            f"{script}\n"
        )
        path.chmod(0o755)
        return f'python = "{path}"\n'

    return make


def of_all(found):
    return {card: (c["code"], c["reason"]) for (test, card), c in found.items() if test == "allreduce"}


def test_a_sum_over_all_cards(check, python, tmp_path):
    found = of_all(check(settings=python("answer allreduce${world}_gb_s 0 400")))
    assert {code for code, _ in found.values()} == {"ACTIVE_OK"}
    assert found[0][1].endswith("allreduce4_gb_s 400")
    given = sorted((tmp_path / "given").read_text().split("\n")[:-1])
    assert given == [f"allreduce nvidia {n} 4 {n}" for n in range(4)]
    kept = json.loads((tmp_path / "root/state/active.json").read_text())["cards"]
    assert all(figures["allreduce4_gb_s"] == [400.0] for figures in kept.values())


@pytest.mark.parametrize(
    ("script", "code", "words", "deadline"),
    [
        ("[ $rank != 2 ] || exit 9; sleep 600", "ACTIVE_NOT_RUN", "the test ended with 9", 60),
        ("sleep 600", "ACTIVE_NOT_RUN", "no end after 2 s", 2),
        ('echo \'{"failed": "ncclUnhandledCudaError", "code": 0}\'', "ACTIVE_NOT_RUN", "ncclUnhandledCudaError", 60),
        ("answer allreduce4_gb_s 5 400", "ACTIVE_WRONG_RESULT", "5 results of the allreduce test are wrong", 60),
        (
            "answer allreduce4_gb_s 5 1; echo done",
            "ACTIVE_WRONG_RESULT",
            "5 results of the allreduce test are wrong",
            60,
        ),
        ("answer allreduce4_gb_s 0 NaN", "ACTIVE_NOT_RUN", "measured nothing", 60),
        ("answer allreduce4_gb_s 0 1e999", "ACTIVE_NOT_RUN", "measured nothing", 60),
        ('echo \'{"wrong": 0, "measured": {}}\'', "ACTIVE_NOT_RUN", "measured nothing", 60),
        ("kill -SEGV $$", "ACTIVE_NOT_RUN", "SIGSEGV ended it", 60),
    ],
)
@pytest.mark.slow
def test_a_sum_that_does_not_come_out(check, python, tmp_path, script, code, words, deadline):
    found = of_all(check(settings=python(script) + f"deadline_s = {deadline}\n"))
    assert {(told, words in reason) for told, reason in found.values()} == {(code, True)}, found
    # Of this test: another worker runs others.
    ours = f"{tmp_path}/python .*torch_program.py allreduce"
    assert not subprocess.run(["pgrep", "-f", ours], capture_output=True, check=False).stdout


def test_nothing_is_left_of_what_a_script_calls_when_the_command_is_killed(tmp_path, python):
    config = tmp_path / "musterd.toml"
    config.write_text(f"[active]\n{python(f'sleep 1000 & echo $! >>{tmp_path}/pids; wait')}")
    words = [BIN / "muster", "--root", tmp_path, "check", "gpu-check", "--active", "--config", config]
    command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pids = tmp_path / "pids"
    try:
        eventually(lambda: pids.exists() and len(pids.read_text().splitlines()) == 2)
        command.kill()
        command.wait(60)
        eventually(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()), message="they have ended")
    finally:
        command.kill()
        command.wait(60)


def test_the_tests_of_ascend_cards_are_pytorchs(tmp_path, python):
    with FakeCards.for_test(tmp_path / "npus", "ascend", 2) as npus:
        check = Check(npus, tmp_path)
        found = check()
        assert codes(found) == {(test, n): "ACTIVE_NOT_RUN" for test in TESTS[:3] for n in range(2)}
        assert "set python in [active]" in found["compute", 0]["reason"]
        found = check(settings=python("[ $test != memory ] || exit 1; answer tflops 0 280"))
        assert codes(found) == {("memory", n): "ACTIVE_NOT_RUN" for n in range(2)}
        assert found["compute", 1]["observed"] == "tflops 280"
        given = (tmp_path / "given").read_text().splitlines()
        assert "compute ascend   0" in given and "allreduce ascend 1 2 1" in given


@pytest.mark.slow
def test_pytorch_on_a_host_without_cards(tmp_path):
    pytest.importorskip("torch", reason="needs examples/ddp/requirements.txt")
    config = tmp_path / "musterd.toml"
    config.write_text(f'[active]\nseconds = 0.1\npython = "{sys.executable}"\n')
    words = [BIN / "muster", "--root", tmp_path, "check", "gpu-check", "--active", "--config", config, "-o", "json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=110, check=False)
    (found,) = [c for c in json.loads(done.stdout)["checks"] if c["item"] == "active allreduce"]
    assert found["code"] == "ACTIVE_OK", found
    assert found["observed"].startswith("allreduce2_gb_s ")


@pytest.mark.slow
@pytest.mark.parametrize("test", ["compute", "memory", "transfer"])
def test_pytorchs_tests_of_one_device(test):
    """On the CPU, the only device that this machine certainly has."""
    pytest.importorskip("torch", reason="needs examples/ddp/requirements.txt")
    program = [sys.executable, torch_program.__file__, test, "cpu", "0.05"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=110, check=True)
    said = json.loads(done.stdout)
    assert said["wrong"] == 0 and all(value > 0 for value in said["measured"].values())


# --- by the daemon ----------------------------------------------------------------------------------------------------


def plan(cards, *lines):
    Path(cards.env["LD_LIBRARY_PATH"].partition(":")[0], "cuda.plan").write_text("".join(f"{line}\n" for line in lines))


def checking_daemon(make_daemon, cards, settings):
    """One whose jobs are checked, but for what this machine may lack."""
    daemon = make_daemon(env=cards.env)
    daemon.kill()
    disks = "root_min_gb = 0\nshm_min_gb = 0\ncache_min_gb = 0\n"
    skip = "kernel-log,storage,kernel,memory-errors,oom,disk-free,mounts,nfs,d-state,zombies,pids,file-descriptors,ib"
    daemon.config.write_text(f'[checks]\npolicy = "enforce"\n{disks}[health]\nskip = "{skip}"\n{settings}')
    daemon.restart()
    return daemon


@pytest.mark.slow
def test_a_jobs_cards_are_tested_before_it(cards, make_daemon):
    settings = '[active]\nseconds = 0.01\nbefore_job = "compute, memory"\n'
    daemon = checking_daemon(make_daemon, cards, settings)
    plan(cards, f"{cards[1].bus_id} wait 719", f"{cards[2].bus_id} transfer_gb_s 1")

    def started(card):
        spec = job_pb2.JobSpec(command=["true"], cards=job_pb2.CardRequest(indices=[card]))
        return daemon.wait(daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job.job_id)

    assert started(2).state == job_pb2.JOB_STATE_SUCCEEDED, "the transfer is not asked for"
    refused = started(1)
    assert refused.state == job_pb2.JOB_STATE_FAILED and "active compute: card 1: " in refused.verdict.summary
    assert refused.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_ELSEWHERE
    assert ("ACTIVE_FAILED", "card 1") in {(c.code, c.device) for c in node(daemon).conditions}
    kept = json.loads((daemon.root.state / "active.json").read_text())["cards"]
    assert [set(figures) for figures in kept.values()] == [{"tflops", "memory_gb_s"}]


@pytest.mark.slow
def test_a_job_that_is_stopped_leaves_nothing_of_the_tests_before_it(cards, make_daemon):
    settings = '[active]\nseconds = 0.0166\nbefore_job = "compute"\n'
    daemon = checking_daemon(make_daemon, cards, settings)
    plan(cards, "hang 1")

    def start():
        spec = job_pb2.JobSpec(command=["true"], cards=job_pb2.CardRequest(indices=[0]))
        return daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job.job_id

    job = start()
    eventually(lambda: programs("0.0166"))
    daemon.stop(job)
    assert daemon.wait(job).state == job_pb2.JOB_STATE_STOPPED
    eventually(lambda: not programs("0.0166"))
    start()
    eventually(lambda: programs("0.0166"))
    daemon.kill()
    eventually(lambda: not programs("0.0166"), message="nor does a daemon that was killed")


@pytest.mark.slow
def test_free_cards_are_tested_while_the_node_is_drained(cards, make_daemon):
    daemon = make_daemon("[health]\n[active]\nseconds = 0.0188\nin_drain = true\n", cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    spec = job_pb2.JobSpec(command=["sleep", "600"], cards=job_pb2.CardRequest(indices=[3]), skip_check=True)
    job = daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job.job_id
    daemon.until_running(job)
    plan(cards, f"{cards[1].bus_id} wrong 2")

    def tested():
        return [dict(e.attributes) for e in daemon.event_list() if e.kind == "node.tested"]

    assert daemon.cli("node", "drain", "a look at the cards").returncode == 0
    eventually(lambda: tested() == [{"cards": "0,1,2", "bad": "3"}])
    assert ("ACTIVE_WRONG_RESULT", "card 1") in {(c.code, c.device) for c in node(daemon).conditions}
    # The last one, once its job has ended; and none of them twice.
    daemon.stop(job)
    eventually(lambda: [one["cards"] for one in tested()] == ["0,1,2", "3"])
    # Back in service, nobody waits for a test.
    plan(cards, "hang 1")
    assert daemon.cli("node", "undrain").returncode == 0
    assert daemon.cli("node", "drain", "once more").returncode == 0
    eventually(lambda: len(programs("0.0188")) == 4)
    assert daemon.cli("node", "undrain").returncode == 0
    eventually(lambda: not programs("0.0188"))
    assert len(tested()) == 2


def test_a_terminal_shows_which_test_runs_and_a_pipe_does_not(check, cards):
    pytest.importorskip("pyte")
    from tests.screen import Screen

    check(args=("--cards", "0,"), seconds="0.3")  # five tests are longer than what comes before the first drawing
    assert "checking the node" not in check.notes
    config = check.folder / "musterd.toml"
    command = [
        BIN / "muster",
        "--root",
        check.root,
        "check",
        "gpu-check",
        "--active",
        "--config",
        config,
        "--cards",
        "0,",
    ]
    with Screen([str(word) for word in command], env=cards.env) as terminal:
        assert terminal.end() == 0
        assert b"checking the node" in terminal.raw
        # Whichever runs when the line is drawn.
        assert re.search(rb"test [1-5] of 5: [a-z]", terminal.raw)
        assert terminal.lines[0].startswith("ITEM") and not any("checking" in line for line in terminal.lines)
