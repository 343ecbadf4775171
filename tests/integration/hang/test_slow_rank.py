"""A slow rank, through a real daemon on fake cards, with the times of the rule scaled down."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from muster.v1 import job_pb2, telemetry_pb2
from tests.conftest import Daemon, eventually
from tests.fakes import FakeCard, FakeCards
from tests.integration.hang.test_hang import CONFIG, STILL

SLOW = (
    CONFIG
    + """
[slow]
window_s = 12
min_readings = 8
clear_factor = 1.1
after_s = 0
hold_s = 0
longest_wait_s = 3
min_waits = 3
"""
)


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[FakeCards]:
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 2) as made:
        yield made


def works(card: FakeCard) -> None:
    card.util = 100
    card.power_w = 520
    card.mem_util = 40
    card.fabric_rate = 2e9


def waits(card: FakeCard) -> None:
    """In a collective: all that it does is to look whether the other is there."""
    card.util = 100
    card.power_w = 110
    card.mem_util = 0
    card.fabric_rate = 0


def records(daemon: Daemon, job_id: str) -> Iterator[int]:
    """A number for each record that the daemon makes of the job."""
    stream = daemon.telemetry.RecordTelemetry(telemetry_pb2.RecordTelemetryRequest(job_id=job_id), timeout=120)
    try:
        yield from (number for number, _ in enumerate(stream))
    finally:
        stream.cancel()


@contextmanager
def step_by_step(cards: FakeCards) -> Iterator[None]:
    """Card 1 computes all the time, card 0 waits for it in two thirds of each step."""
    over = threading.Event()

    def steps() -> None:
        while not over.wait(0.2):
            waits(cards[0])
            over.wait(0.4)
            works(cards[0])

    thread = threading.Thread(target=steps)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_a_slow_rank_is_named_and_cleared_and_nothing_acts_on_it(make_daemon: Callable[..., Daemon], cards: FakeCards):
    daemon = make_daemon(SLOW, cards.env)
    for card in cards:
        works(card)
    spec = job_pb2.JobSpec(job_id="j", command=STILL, cards=job_pb2.CardRequest(count=2), grace_steps=[])
    spec.on_hang = "stop"
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    daemon.until_running("j")
    for number in records(daemon, "j"):  # what work is like
        if number == 40:
            break
    assert not daemon.get("j").HasField("slow")
    with step_by_step(cards):
        eventually(lambda: daemon.get("j").HasField("slow"), 120)
        job = daemon.get("j")
        assert list(job.slow.ranks) == [1]
        assert job.slow.reason.startswith("rank 1 takes ") and "rank 0 waits for it in " in job.slow.reason
        assert json.loads(job.slow.evidence)["ranks"]["1"]["cards"]["peers"] == [0]
        events = [event for event in daemon.event_list("j") if event.kind == "job.slow_rank"]
        assert ("1", job.slow.reason) in [(event.attributes["ranks"], event.message) for event in events]
        seen = json.loads(daemon.cli("top", "j", "-n", "1", "-o", "json").stdout)
        assert [rank.get("slow", False) for rank in seen["jobs"][0]["ranks"]] == [False, True]
        assert seen["jobs"][0]["slowRanks"] == [1]
        assert [line.endswith("  SLOW") for line in daemon.cli("top", "j").stdout.splitlines()[-2:]] == [False, True]
        assert f"slow: {job.slow.reason}" in daemon.cli("why", "j").stdout
        assert job.slow.reason in daemon.cli("status", "j").stdout
        # The next daemon goes on from there, and tells it once.
        daemon.kill()
        daemon.restart()
        assert eventually(lambda: list(daemon.get("j").slow.ranks), 60) == [1]
    eventually(lambda: not daemon.get("j").HasField("slow"), 60)
    kinds = [event.kind for event in daemon.event_list("j")]
    told = [kind for kind in kinds if kind.startswith("job.slow_rank")]
    # On a busy node it may be cleared in between; two in a row would be the same one, told again by the next daemon.
    assert told and told == ["job.slow_rank", "job.slow_rank_cleared"] * (len(told) // 2)
    assert "job.hung" not in kinds and daemon.get("j").state == job_pb2.JOB_STATE_RUNNING
    assert "slow:" not in daemon.cli("why", "j").stdout
