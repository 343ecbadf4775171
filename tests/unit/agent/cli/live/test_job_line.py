"""What the status line says."""

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from muster.agent.cli.live import job_line
from muster.agent.cli.live.step_rate import StepRate
from muster.v1 import job_pb2, node_pb2, telemetry_pb2


@pytest.mark.parametrize(
    ("first", "second", "rate"),
    [
        (b"step 10 loss 0.5\n", b"step 30 loss 0.4\n", 2.0),
        (b"[epoch 1] iter: [7/100] lr 3e-4\n", b"[epoch 1] iter: [17/100]\n", 1.0),
        (b"{'global_step': 100}", b"{'global_step': 105}", 0.5),
        (b"\r 4%|#  | 40/1000 [00:12<10:00,  3it/s]", b"\r 9%|## | 90/1000 [00:22<10:00]", 5.0),
        (b"Iteration 1\nIteration 5\n", b"Iteration 6\nIteration 9", 0.4),
    ],
)
def test_steps_are_counted_as_trainings_print_them(first: bytes, second: bytes, rate: float) -> None:
    steps = StepRate()
    steps.take("rank 0", first, 100.0)
    assert steps.now(100.0) is None
    steps.take("rank 1", second, 105.0)  # the others take the same steps
    steps.take("rank 0", second, 110.0)
    assert steps.now(110.0) == pytest.approx(rate)
    # A step that is late lowers it; one that does not come makes it unknown.
    assert 0 < (steps.now(140.0) or 0) < rate
    assert steps.now(300.0) is None


def test_what_is_no_step_is_none() -> None:
    steps = StepRate()
    for at, line in enumerate(
        (b"step size 5\n", b"timesteps 5\n", b"step 0.5\n", b"1/2 done", b"steps: many", b"\xff\xfe")
    ):
        steps.take("rank 0", line, 10.0 * at)
    assert steps.now(60.0) is None
    # Another epoch begins anew.
    for at, number in enumerate((90, 100, 1, 2, 3)):
        steps.take("rank 0", b"step %d\n" % number, 100.0 + at)
    assert steps.now(104.0) == pytest.approx(1.0)


def test_the_parts_are_what_matters_in_its_order() -> None:
    ranks = [job_pb2.Rank(rank=0, pid=5), job_pb2.Rank(rank=1, pid=6, outcome=job_pb2.RANK_OUTCOME_EXITED)]
    job = job_pb2.Job(
        job_id="j", state=job_pb2.JOB_STATE_RUNNING, ranks=ranks, attempt=1, started_at=Timestamp(seconds=1000),
        spec=job_pb2.JobSpec(max_restarts=3), hang=job_pb2.HangVerdict(verdict="HUNG", kind="spin"),
        slow=job_pb2.SlowRanks(ranks=[1]),
    )  # fmt: skip
    cards = [node_pb2.Card(reading=node_pb2.CardReading(utilization=share)) for share in (90, 100)]
    use = telemetry_pb2.GetTelemetryResponse(cards=cards)
    said = [part.text for part in job_line.parts(job, use, 0.25, 1075.0, silent=True)]
    assert said == [
        "RUNNING", "1m15s", "HUNG (spin)", "SLOW rank 1", "no answer from the daemon", "1 of 2 ranks", "cards 95%",
        "4 s/step", "attempt 1 of 3", "j",
    ]  # fmt: skip
    # Before and after the ranks: nothing of them, and what the step has printed last, as far as there is room.
    waits = job_pb2.Job(state=job_pb2.JOB_STATE_PREPARING, step="requirements", accepted_at=Timestamp(seconds=1000))
    line = job_line.parts(waits, None, None, 1012.0, last_words="Collecting torch")
    assert [part.text for part in line] == ["PREPARING", "requirements", "12s", "Collecting torch"] and line[-1].cut


def test_a_copy_says_how_far_it_is_and_how_long_it_takes() -> None:
    copies = job_pb2.Job(
        job_id="j", state=job_pb2.JOB_STATE_PREPARING, step="inputs", accepted_at=Timestamp(seconds=1000),
        staging=job_pb2.StagingProgress(files=3, files_done=1, bytes=3 << 30, bytes_done=1 << 30, retries=2),
    )  # fmt: skip
    assert [part.text for part in job_line.parts(copies, None, None, 1012.0, speed=100 * 2**20, last_words="x")] == [
        "PREPARING", "inputs 1.0GiB of 3.0GiB", "100.0MiB/s, 20s left", "1 of 3 files", "2 retries", "12s", "j",
    ]  # fmt: skip
    copies.staging.Clear()
    copies.staging.SetInParent()  # it looks what there is to copy
    assert [part.text for part in job_line.parts(copies, None, None, 1012.0)][:3] == ["PREPARING", "inputs", "12s"]


def test_the_speed_of_a_copy_is_that_of_its_last_seconds() -> None:
    speed = job_line.CopySpeed()
    assert speed.now is None
    speed.take("inputs", 0, 100.0)
    assert speed.now is None
    for at in range(1, 31):
        speed.take("inputs", 1000 * min(at, 10), 100.0 + at)
    assert speed.now == 0  # nothing has come for ten seconds
    speed.take("outputs", 500, 131.0)  # another copy begins anew
    assert speed.now is None
    speed.take("outputs", 700, 132.0)
    assert speed.now == 200


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (b"", ""),
        (b"a\nlast line\n", "last line"),
        (b" 10%|#  \r 90%|###\r", "90%|###"),
        (b"\x1b[31mred\x1b[0m\tand \x07 more", "red and \\x07 more"),
        (b"2026-11-28T10:00:00.000 [muster] pre_start: begins\n", ""),
    ],
)
def test_the_last_words_of_a_step_are_one_clean_line(log: bytes, words: str) -> None:
    assert job_line.last_words(log) == words
