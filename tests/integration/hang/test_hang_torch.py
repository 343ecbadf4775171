"""A real DDP job on gloo, of which one rank stops taking part: what is told of it, and of the same job before."""

import importlib.util
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.v1 import job_pb2
from tests.conftest import Daemon, eventually
from tests.corpus.acted import IDLE, SPIN, WORK, Watcher, looks, stage, told
from tests.fakes import FakeCards, NoCompiler

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="needs PyTorch: pip install -r examples/ddp/requirements.txt",
    ),
]
SCRIPT = Path(__file__).with_name("ddp_absent.py")
RANKS, ODD = 3, 1

Stage = tuple[Daemon, FakeCards, Watcher]


@pytest.fixture
def on_stage(tmp_path: Path) -> Iterator[Stage]:
    try:
        with stage(tmp_path, "nvidia", RANKS) as made:
            yield made
    except NoCompiler as error:
        pytest.skip(str(error))


def trains(on_stage: Stage, how: str, absent: Path, cards: bool, **fields: Any) -> None:
    """Starts it, and sees that for long nothing is told against it."""
    daemon, fake, watcher = on_stage
    example = ("--steps", "1000000", "--step-time", "0.02", "--timeout", "3600")
    spec = job_pb2.JobSpec(
        job_id="ddp", command=[sys.executable, str(SCRIPT), str(absent), str(ODD), how, *example], **fields
    )
    spec.grace_steps.add().FromMilliseconds(500)
    if cards:
        spec.cards.count = RANKS
    else:
        spec.ranks = RANKS
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    for card in fake:
        WORK.on(card)
    eventually(lambda: b"step" in daemon.output(daemon.get("ddp")), 240)
    assert watcher.wait("ddp", time.time(), looks(80))
    # A second in which this machine holds one of them up is a minute to the detector, and the others wait for it.
    assert {change.verdict for change in watcher.changes["ddp"]} <= {"ALIVE", "WAITING"}


@pytest.mark.slow
def test_a_rank_that_sleeps_is_found_named_and_ended(on_stage: Stage, tmp_path: Path) -> None:
    daemon, fake, watcher = on_stage
    absent = tmp_path / "absent"
    trains(on_stage, "sleep", absent, True, on_hang="stop")
    absent.touch()
    for rank, card in enumerate(fake):
        (IDLE if rank == ODD else SPIN).on(card)
    assert watcher.wait("ddp", time.time(), told("HUNG"))
    verdicts = [str(change.verdict) for change in watcher.changes["ddp"]]
    said = [verdict for verdict in verdicts if verdict in ("SUSPECT", "HUNG")]
    # A tick of CPU time is a sign of life in a minute that is a second.
    assert set(said[:-1]) == {"SUSPECT"} and said[-1] == "HUNG", said
    hung = watcher.changes["ddp"][-1]
    assert (str(hung.kind), hung.ranks) == ("spin", (ODD,))
    assert hung.evidence["row"] == "proof by stacks" and "sleeps in" in hung.evidence["culprit"]["does"]
    job = daemon.wait("ddp", 120)
    assert job.state == job_pb2.JOB_STATE_FAILED
    assert job.ranks[ODD].outcome == job_pb2.RANK_OUTCOME_HUNG
    assert {job.ranks[rank].outcome for rank in (0, 2)} == {job_pb2.RANK_OUTCOME_GANG_VICTIM}
    culprit = (
        rf"rank {ODD} sleeps in prepare_next_batch \(\S*ddp_absent.py:\d+\) since [\d:]{{8}}; ranks 0,2 wait for it in "
    )
    assert re.match(f"hung: {culprit}", job.verdict.summary), job.verdict.summary
    assert job.verdict.first_failed_rank == ODD
    (event,) = [event for event in daemon.event_list("ddp") if event.kind == "job.hung"]
    assert re.match(culprit, event.message) and event.attributes["ranks"] == str(ODD), event
    cause = json.loads(daemon.cli("why", "ddp", "-o", "json").stdout)["cause"]
    assert re.match(f"it hung: {culprit}", cause["text"]), cause
    why = daemon.cli("why", "ddp").stdout
    assert f"rank {ODD}" in why.splitlines()[1] and "hung" in why.splitlines()[1]
    # Where it was, and that the others were elsewhere.
    stacks = why[why.index("Stored stacks") :]
    assert f"rank {ODD} (hung)" in stacks and "prepare_next_batch (ddp_absent.py" in stacks
    shown = daemon.cli("stacks", "ddp", "--kept").stdout
    assert shown.index("prepare_next_batch") < shown.index("train_step (train_ddp.py")


@pytest.mark.slow
def test_a_rank_that_computes_for_ever_is_waited_for_and_then_hung(on_stage: Stage, tmp_path: Path) -> None:
    _, fake, watcher = on_stage
    absent = tmp_path / "absent"
    trains(on_stage, "spin", absent, False, hang={"busy_s": "20"})
    absent.touch()
    for rank, card in enumerate(fake):
        (IDLE if rank == ODD else SPIN).on(card)
    assert watcher.wait("ddp", time.time(), told("HUNG"))
    hung = watcher.changes["ddp"][-1]
    waiting = [change for change in watcher.changes["ddp"] if change.verdict in ("WAITING", "SUSPECT")]
    assert (hung.verdict, str(hung.kind)) == ("HUNG", "livelock")
    assert waiting[-1].ranks == hung.ranks == (ODD,)
    # Dumps that show it twice at one place make it SUSPECT: it may be a loop of C as well.
    assert {str(change.kind) for change in waiting if change.verdict == "SUSPECT"} <= {"livelock"}


@pytest.mark.slow
def test_a_rank_in_a_loop_of_c_is_found_and_named_and_ended_only_after_busy_s(on_stage: Stage, tmp_path: Path) -> None:
    daemon, _, watcher = on_stage
    absent = tmp_path / "absent"
    trains(on_stage, "c", absent, False, on_hang="stop", hang={"busy_s": "20"})
    absent.touch()
    assert watcher.wait("ddp", time.time(), told("HUNG"))
    hung = watcher.changes["ddp"][-1]
    assert (str(hung.kind), hung.ranks, hung.confidence) == ("livelock", (ODD,), 0.45)
    assert (hung.evidence["row"], hung.evidence["limit_rows"]) == ("a loop, or work in place", ["proof"])
    assert re.match(r"runs in prepare_next_batch \(\S*ddp_absent.py:\d+\)", hung.evidence["culprit"]["does"])
    job = daemon.wait("ddp", 120)
    told_of = [event for event in daemon.event_list("ddp") if event.kind in ("job.hung", "job.hang_not_acted")]
    kinds = [(event.kind, event.attributes["confidence"]) for event in told_of]
    assert kinds == [("job.hung", "0.45"), ("job.hang_not_acted", "0.45"), ("job.hung", "0.7")]
    assert (job.state, job.verdict.first_failed_rank) == (job_pb2.JOB_STATE_FAILED, ODD)
    assert job.ranks[ODD].outcome == job_pb2.RANK_OUTCOME_HUNG
    assert re.match(rf"hung: rank {ODD} runs in prepare_next_batch ", job.verdict.summary), job.verdict.summary
