"""Hangs, through a real daemon on fake cards, with the times of the rule scaled down: verdict, stacks, actions."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.probes.hang.slow import SlowRule, SlowSettings
from muster.v1 import job_pb2, telemetry_pb2
from tests.conftest import BIN, Daemon, eventually, running
from tests.fakes import FakeCards

CONFIG = """
[cards]
release_timeout_s = 1
[telemetry]
readings_s = 0.1
health_s = 0.1
holders_s = 0.2
processes_s = 0.2
[hang]
period_s = 1
active_s = 0.5
window_s = 2
suspect_s = 3
hung_s = 6
established_s = 1
startup_s = 60
gap_s = 30
gone_s = 20
dark_s = 30
"""
#: Says nothing and does nothing, on purpose.
STILL = (sys.executable, "-c", "import threading\ndef stuck():\n    threading.Event().wait(1000)\nstuck()")


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[FakeCards]:
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 2) as made:
        yield made


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon], cards: FakeCards) -> Daemon:
    return make_daemon(CONFIG, cards.env)


def start(daemon: Daemon, job_id: str, **fields: Any) -> Any:
    request = job_pb2.CardRequest(count=2)
    fields = {"command": STILL} | fields
    spec = job_pb2.JobSpec(job_id=job_id, cards=request, grace_steps=[], **fields)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    return daemon.until_running(job_id)


def work(cards: FakeCards) -> None:
    """Both compute, each in its own rhythm."""
    for i, card in enumerate(cards):
        card.curve([(0, 60 + i), (0.7, 98), (1.5, 70), (2.3 + i / 10, 95), (3, 60 + i)])
        card.power_w = 520
        card.mem_util = 40
        card.fabric_rate = 2e9


def spin(cards: FakeCards) -> None:
    """A collective that never completes."""
    for card in cards:
        card.util = 100
        card.power_w = 110
        card.mem_util = 0
        card.fabric_rate = 0


def worked(daemon: Daemon, cards: FakeCards, job_id: str) -> None:
    """Long enough for the rule to know what work is like: so many records."""
    work(cards)
    stream = daemon.telemetry.RecordTelemetry(telemetry_pb2.RecordTelemetryRequest(job_id=job_id), timeout=60)
    for number, _ in enumerate(stream):
        if number == 40:
            break
    stream.cancel()
    eventually(lambda: verdict(daemon, job_id) == "ALIVE")


def verdict(daemon: Daemon, job_id: str) -> str:
    return str(daemon.get(job_id).hang.verdict)


def kinds(daemon: Daemon, job_id: str) -> list[str]:
    return [event.kind for event in daemon.event_list(job_id)]


def suspected(daemon: Daemon, job_id: str, times: int = 1) -> bool:
    """By the events: the verdict may be another one before somebody has looked."""
    return kinds(daemon, job_id).count("job.suspected_hang") >= times


def test_the_next_daemon_tells_what_was_found_of_a_job_that_has_ended_since(make_daemon: Callable[..., Daemon]):
    """The first was killed while the stacks were taken; what is written here is what it had written."""
    daemon = make_daemon()
    daemon.run("false", job_id="j")
    at = daemon.wait("j").accepted_at.ToNanoseconds() / 1e9
    daemon.kill()
    found = {"t": at, "job": "j", "verdict": "HUNG", "kind": "spin", "ranks": [0], "confidence": 0.9, "evidence": {}}
    by_cards = {"waited": 7, "readings": 10, "card_idles": False, "peers": [1], "factor": 2.0}
    slow = {"t": at, "job": "j", "verdict": "SLOW", "ranks": [0], "since": at, "confidence": 0.8}
    slow["evidence"] = {"ranks": {"0": {"cards": by_cards}}}
    kept = {"attempt": [at, 0], "state": {}, "found": found, "since": at, "untold": "job.hung"}
    daemon.root.job("j").hang.write_text(
        json.dumps(kept | {"slow": {"state": SlowRule(SlowSettings()).state(), "untold": slow}})
    )
    daemon.root.job("j").hang.chmod(0o600)
    for _ in range(2):
        daemon.start()
        eventually(lambda: {"job.hung", "job.slow_rank"} <= set(kinds(daemon, "j")))
        assert kinds(daemon, "j").count("job.hung") == kinds(daemon, "j").count("job.slow_rank") == 1
        daemon.kill()


@pytest.mark.slow
def test_a_spinning_job_is_suspected_then_hung_and_gets_on_again(daemon: Daemon, cards: FakeCards):
    work(cards)
    start(daemon, "j")
    worked(daemon, cards, "j")
    spin(cards)
    eventually(lambda: suspected(daemon, "j"), 60)
    eventually(lambda: verdict(daemon, "j") == "HUNG", 60)
    found = daemon.get("j").hang
    assert found.kind == "spin" and found.confidence > 0.5 and "thresholds" in found.evidence
    # It is told, and nothing more.
    assert daemon.get("j").state == job_pb2.JOB_STATE_RUNNING
    eventually(lambda: "job.hung" in kinds(daemon, "j"), 60)  # once its stacks are taken
    assert kinds(daemon, "j").count("job.suspected_hang") == kinds(daemon, "j").count("job.hung") == 1
    # The stacks of that moment are kept.
    kept = eventually(lambda: daemon.jobs.GetStacks(job_pb2.GetStacksRequest(job_id="j", kept=True), timeout=60), 60)
    assert kept.occasion in ("suspected hang", "hung")
    assert "stuck" in daemon.cli("stacks", "j", "--kept").stdout
    work(cards)
    eventually(lambda: kinds(daemon, "j").count("job.recovered") == 1, 60)
    assert verdict(daemon, "j") == "ALIVE"


@pytest.mark.slow
def test_a_detector_goes_on_over_a_restart_of_the_daemon(daemon: Daemon, cards: FakeCards):
    work(cards)
    start(daemon, "j")
    worked(daemon, cards, "j")
    spin(cards)
    eventually(lambda: "job.suspected_hang" in kinds(daemon, "j"), 60)
    daemon.kill()
    daemon.restart()
    eventually(lambda: "job.hung" in kinds(daemon, "j"), 60)
    assert kinds(daemon, "j").count("job.suspected_hang") == 1
    daemon.kill()
    daemon.restart()
    eventually(lambda: verdict(daemon, "j") == "HUNG", 60)
    assert kinds(daemon, "j").count("job.hung") == 1


@pytest.mark.slow
def test_what_is_run_by_hand_in_a_dead_job_does_not_bring_it_to_life(daemon: Daemon, cards: FakeCards):
    work(cards)
    start(daemon, "j")
    worked(daemon, cards, "j")
    reads = "echo begun; while :; do cat /bin/sh >/dev/null; sleep 0.05; done"
    env = os.environ | daemon.env | {"MUSTER_ROOT": str(daemon.folder)}
    command = [str(BIN / "muster"), "exec", "j", "--", "sh", "-c", reads]
    with running(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as session:
        assert session.stdout is not None and session.stdout.readline() == b"begun\n"
        spin(cards)
        eventually(lambda: verdict(daemon, "j") == "HUNG", 60)
        assert session.poll() is None
        session.terminate()


@pytest.mark.slow
def test_other_numbers_count_once_the_configuration_is_read_again_and_nothing_is_forgotten(
    make_daemon: Callable[..., Daemon], cards: FakeCards
):
    daemon = make_daemon(CONFIG.replace("hung_s = 6", "hung_s = 3600"), cards.env)
    work(cards)
    start(daemon, "j")
    worked(daemon, cards, "j")
    spin(cards)
    eventually(lambda: verdict(daemon, "j") == "SUSPECT", 60)
    written = daemon.config.read_text()
    daemon.config.write_text(written.replace("hung_s = 3600", "hung_s = 4"))
    os.kill(daemon.pid, signal.SIGHUP)
    eventually(lambda: verdict(daemon, "j") == "HUNG", 60)
    daemon.config.write_text(written.replace("hung_s = 3600", "hung_s = 5"))
    daemon.kill()
    daemon.restart()
    eventually(lambda: verdict(daemon, "j") == "HUNG", 60)
    work(cards)
    eventually(lambda: "job.recovered" in kinds(daemon, "j"), 60)
    kinds_told = ("job.suspected_hang", "job.hung", "job.recovered")
    told = [event for event in daemon.event_list("j") if event.kind in kinds_told]
    assert [event.kind for event in told] == list(kinds_told), told


@pytest.mark.slow
def test_a_job_is_ended_for_it_where_that_was_asked_for(daemon: Daemon, cards: FakeCards):
    work(cards)
    start(daemon, "j", on_hang="stop")
    worked(daemon, cards, "j")
    spin(cards)
    job = daemon.wait("j", 120)
    assert job.state == job_pb2.JOB_STATE_FAILED
    assert "hung" in job.verdict.summary and "spin" in job.verdict.summary
    assert {rank.outcome for rank in job.ranks} <= {job_pb2.RANK_OUTCOME_HUNG, job_pb2.RANK_OUTCOME_GANG_VICTIM}
    assert job_pb2.RANK_OUTCOME_HUNG in {rank.outcome for rank in job.ranks}
    assert job.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_HERE
    assert "hung" in daemon.cli("why", "j").stdout


@pytest.mark.slow
def test_a_hang_that_a_library_ends_is_the_cause(daemon: Daemon, cards: FakeCards, tmp_path: Path):
    """Its time limit has passed. Ranks that give up waiting show signs of life: the job has not recovered."""
    text = (
        "[rank0]:[E1130 02:44:13 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds "
        "before timing out."
    )
    gives_up = f"until test -e {tmp_path}/over; do sleep 0.1; done; echo '{text}'; exit 1"
    work(cards)
    start(daemon, "j", command=("sh", "-c", gives_up))
    worked(daemon, cards, "j")
    spin(cards)
    eventually(lambda: verdict(daemon, "j") == "HUNG", 120)
    work(cards)
    eventually(lambda: kinds(daemon, "j").count("job.recovered") == 1, 60)
    (tmp_path / "over").touch()
    job = daemon.explained("j")
    assert job.verdict.cause.startswith("it hung: HUNG (spin)"), job.verdict
    assert job.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_HERE
    assert job.verdict.recommendation_reason == "the job hung, and no fault of the node is known"
    report = json.loads(daemon.cli("why", "j", "-o", "json").stdout)
    assert [cause["signature"] for cause in report["otherCauses"]] == ["nccl-timeout"], report


@pytest.mark.slow
def test_the_verdict_of_a_job_that_was_stopped_while_it_hung_says_so(daemon: Daemon, cards: FakeCards):
    work(cards)
    start(daemon, "j")
    worked(daemon, cards, "j")
    spin(cards)
    eventually(lambda: verdict(daemon, "j") == "HUNG", 120)
    assert daemon.cli("stop", "j", "--reason", "no use").returncode == 0
    job = daemon.explained("j")
    assert job.state == job_pb2.JOB_STATE_STOPPED
    assert re.match(r"hung since 20[-0-9]+ [0-9:]{8}, then stopped by .*: no use", job.verdict.summary), job.verdict
    assert job.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_HERE
    report = json.loads(daemon.cli("why", "j", "-o", "json").stdout)
    causes = [report["cause"], *report["otherCauses"]]
    assert [cause["kind"] for cause in causes] == ["hang", "stop"], causes
    assert causes[0]["text"].startswith("it hung: HUNG (spin)"), causes
    assert (job.verdict.cause, job.verdict.cause_kind) == (causes[0]["text"], "hang")
    assert f"{job.verdict.cause}\n" in daemon.cli("status", "j").stdout
    daemon.kill()
    daemon.restart()
    assert daemon.get("j").verdict == job.verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "least"),
    [
        ({"hang": {"action_confidence": "1"}}, "1"),
        # What its ranks wait for may be one that works, on the other node.
        ({"node_count": 2, "master_addr": "127.0.0.1", "master_port": 29500}, "0.5"),
    ],
)
def test_of_little_confidence_nobody_is_stopped_and_that_is_reported(
    daemon: Daemon, cards: FakeCards, fields: dict[str, Any], least: str
):
    work(cards)
    start(daemon, "j", on_hang="stop", **fields)
    worked(daemon, cards, "j")
    spin(cards)
    eventually(lambda: "job.hang_not_acted" in kinds(daemon, "j"), 120)
    before = set(daemon.root.job("j").folder.glob("stacks-*.json"))
    daemon.kill()
    daemon.restart()
    eventually(lambda: verdict(daemon, "j") == "HUNG", 60)
    eventually(lambda: set(daemon.root.job("j").folder.glob("stacks-*.json")) - before, 60, "they are taken again")
    assert "hang" in daemon.cli("why", "j").stdout
    (told,) = [event for event in daemon.event_list("j") if event.kind == "job.hang_not_acted"]
    assert told.message.startswith("action stop skipped: confidence 0.")
    assert told.message.endswith(f"is below action_confidence, {least}")
    assert (daemon.get("j").state, verdict(daemon, "j")) == (job_pb2.JOB_STATE_RUNNING, "HUNG")


@pytest.mark.slow
def test_a_job_that_hangs_is_started_again_within_its_budget(daemon: Daemon, cards: FakeCards):
    work(cards)
    start(daemon, "j", on_hang="restart", max_restarts=5, max_hang_restarts=1)
    worked(daemon, cards, "j")
    spin(cards)
    eventually(lambda: daemon.get("j").attempt == 1, 120)
    work(cards)
    daemon.until_running("j")
    worked(daemon, cards, "j")
    spin(cards)
    job = daemon.wait("j", 120)
    assert (job.state, job.attempt) == (job_pb2.JOB_STATE_FAILED, 1)


@pytest.mark.slow
def test_an_attempt_whose_cards_wait_from_the_start_is_watched_over_a_restart_of_the_daemon(
    daemon: Daemon, cards: FakeCards
):
    """They still wait from the attempt before; that is nothing yet. Then it works, and hangs as that one did."""
    work(cards)
    start(daemon, "j", on_hang="restart", max_restarts=5)
    worked(daemon, cards, "j")
    spin(cards)
    eventually(lambda: daemon.get("j").attempt == 1, 120)
    daemon.until_running("j")
    eventually(lambda: verdict(daemon, "j") == "WAITING", 60)
    daemon.kill()
    daemon.restart()
    worked(daemon, cards, "j")
    spin(cards)
    eventually(lambda: suspected(daemon, "j", 2), 60)
    eventually(lambda: daemon.get("j").attempt == 2, 120)
    assert kinds(daemon, "j").count("job.hung") == 2


@pytest.mark.slow
def test_a_job_has_numbers_of_its_own(daemon: Daemon, cards: FakeCards):
    work(cards)
    start(daemon, "j", hang={"suspect_s": "2", "hung_s": "3600"})
    worked(daemon, cards, "j")
    spin(cards)
    eventually(lambda: verdict(daemon, "j") == "SUSPECT", 60)
    refused = daemon.cli("start", "--cards", "2", "--on-hang", "restart", "--", "true")
    assert refused.returncode == 2 and "max_restarts" in refused.stderr
