"""A slow rank, through a real daemon on fake cards, with the times of the rule scaled down."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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


def shown_by_all(daemon: Daemon) -> bool:
    """Whether the job has a slow rank, and all who show it say the same. False also where it was cleared while they
    were asked, as on a busy node."""
    slow = daemon.get("j").slow
    answers = {
        words: daemon.cli(*words.split()).stdout for words in ("top j -n 1 -o json", "top j", "why j", "status j")
    }
    events = [event for event in daemon.event_list("j") if event.kind == "job.slow_rank"]
    if not slow.ranks or daemon.get("j").slow != slow:
        return False
    assert list(slow.ranks) == [1]
    assert slow.reason.startswith("rank 1 takes ") and "rank 0 waits for it in " in slow.reason
    assert json.loads(slow.evidence)["ranks"]["1"]["cards"]["peers"] == [0]
    (seen,) = json.loads(answers["top j -n 1 -o json"])["jobs"]
    assert [rank.get("slow", False) for rank in seen["ranks"]] == [False, True]
    assert seen["slowRanks"] == [1]
    assert [line.endswith("  SLOW") for line in answers["top j"].splitlines()[-2:]] == [False, True]
    assert f"slow: {slow.reason}" in answers["why j"]
    assert slow.reason in answers["status j"]
    return ("1", slow.reason) in [(event.attributes["ranks"], event.message) for event in events]


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
        eventually(partial(shown_by_all, daemon), 120)
        # The next daemon goes on from there, and tells it once.
        daemon.kill()
        daemon.restart()
        assert eventually(lambda: list(daemon.get("j").slow.ranks), 60) == [1]
    eventually(lambda: not daemon.get("j").HasField("slow"), 60)

    def told() -> list[str]:
        return [event.kind for event in daemon.event_list("j") if event.kind.startswith("job.slow_rank")]

    # On a busy node it may be cleared in between; two in a row would be the same one, told again by the next daemon.
    eventually(lambda: (kinds := told()) and kinds[-1] == "job.slow_rank_cleared")
    assert told() == ["job.slow_rank", "job.slow_rank_cleared"] * (len(told()) // 2)
    assert "job.hung" not in [event.kind for event in daemon.event_list("j")]
    assert daemon.get("j").state == job_pb2.JOB_STATE_RUNNING
    assert "slow:" not in daemon.cli("why", "j").stdout


# --- without cards ----------------------------------------------------------------------------------------------------

HOST = """
[telemetry]
processes_s = 0.2
[hang]
stacks_apart_s = 0.2
[slow]
sample_after_s = 0
sample_window_s = 10
sample_odd_s = 1
min_samples = 4
min_waits = 3
"""
#: Of three ranks, one sleeps in each step, until the file with its argument's name is there.
DDP = """
import os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
def late():
    time.sleep(0.5)
while True:
    if dist.get_rank() == 2 or os.path.exists(sys.argv[1]):
        late()
    model(torch.ones(4, 8)).sum().backward()
"""


@pytest.mark.slow
@pytest.mark.torch
def test_a_slow_rank_without_cards_is_named_by_stacks(make_daemon: Callable[..., Daemon], tmp_path: Path):
    """On gloo; dumps are taken because its peers wait in futexes and it does not."""
    pytest.importorskip("torch")
    even = tmp_path / "even"
    daemon = make_daemon(HOST)
    daemon.run(sys.executable, "-c", DDP, str(even), job_id="j", ranks=3, env={"OMP_NUM_THREADS": "1"})
    eventually(lambda: daemon.get("j").HasField("slow"), 120)
    job = daemon.get("j")
    assert list(job.slow.ranks) == [2] and "ranks 0-1 wait for it in " in job.slow.reason
    seen = json.loads(job.slow.evidence)["ranks"]["2"]["stacks"]
    assert seen["does"].startswith("sleeps in ")  # late (<string>:8); where ptrace is forbidden, what the kernel says
    assert seen["waits"] >= 3 and 2 * seen["blamed"] > seen["dumps"]
    assert f"slow: {job.slow.reason}" in daemon.cli("why", "j").stdout
    shown = json.loads(daemon.cli("top", "j", "-n", "1", "-o", "json").stdout)
    assert shown["jobs"][0]["slowRanks"] == [2]
    even.touch()  # all are late now, and none waits for another
    eventually(lambda: not daemon.get("j").HasField("slow"), 60)
    eventually(lambda: "job.slow_rank_cleared" in [event.kind for event in daemon.event_list("j")], 60)
    kinds = [event.kind for event in daemon.event_list("j")]
    assert "job.slow_rank" in kinds and "job.hung" not in kinds
