"""Kill -9 at random moments of a job with a pre_start, restarts and an epilog.

As in test_kill_points.py; and besides: each attempt's ranks are started once, no attempt is doubled or left out, the
budget of restarts holds, pre_start runs once per attempt and the epilog once, over any death meanwhile.
"""

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from muster.v1 import job_pb2
from tests.chaos.test_kill_points import POINTS, POINTS_PER_TEST, SEED, TARGETS, left_over, strike_all
from tests.conftest import Daemon, alive, eventually

RANKS = 2
#: The rank: says once per attempt that it began, writes its lines, ends as it is told.
RANK = """
echo $$ >>"start-$MUSTER_ATTEMPT"
i=0
while [ $i -lt {lines} ]; do echo "$RANK $MUSTER_ATTEMPT $FROM_PRE $i"; i=$((i+1)); done
[ "$RANK" = {failing} ] && [ "$MUSTER_ATTEMPT" -lt {good} ] && exit $((10+MUSTER_ATTEMPT))
exit 0
"""


@dataclass(frozen=True)
class Plan:
    """`good`: number of the first attempt in which no rank fails; `allowed`: restarts."""

    job_id: str
    lines: int
    failing: int
    good: int
    allowed: int
    stop: bool
    targets: tuple[str, ...]
    delay: float
    pause: float

    @classmethod
    def draw(cls, number: int) -> "Plan":
        rng = random.Random(f"restart-{SEED}-{number}")
        return cls(
            job_id=f"again-{number}",
            lines=rng.choice((0, 5, 400)),
            failing=rng.randrange(RANKS),
            good=rng.choice((0, 1, 2, 9)),
            allowed=rng.choice((0, 1, 2, 3)),
            stop=rng.random() < 0.15,
            targets=rng.choice([names for names in TARGETS if names != ("rank",)]),
            delay=rng.random() * rng.choice((0.05, 0.2, 0.5)),
            pause=rng.random() * 0.05,
        )

    @property
    def attempts(self) -> int:
        """How many there are when nothing is lost."""
        return min(self.good, self.allowed) + 1


def point(daemon: Daemon, plan: Plan, folder: Path) -> None:
    folder.mkdir()
    (folder / "pre.sh").write_text(f'echo $MUSTER_ATTEMPT >>"{folder}/pre"; export FROM_PRE=p$MUSTER_ATTEMPT\n')
    (folder / "epilog.sh").write_text(f'echo $MUSTER_STATE $MUSTER_EXIT_CODE >>"{folder}/epilog"\n')
    script = RANK.format(lines=plan.lines, failing=plan.failing, good=plan.good)
    spec = job_pb2.JobSpec(
        job_id=plan.job_id, command=("sh", "-c", script), ranks=RANKS, max_restarts=plan.allowed,
        pre_start=str(folder / "pre.sh"), epilog=str(folder / "epilog.sh"),
    )  # fmt: skip
    spec.restart_backoff.FromMilliseconds(30)
    for step in (200, 300):
        spec.grace_steps.add().FromMilliseconds(step)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    struck = strike_all(daemon, plan)
    check(daemon, plan, daemon.wait(plan.job_id), struck, folder)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def check(daemon: Daemon, plan: Plan, job: Any, struck: list[str], folder: Path) -> None:
    told = f"seed {SEED}, {plan}, struck {struck}: {job}"
    blind = {"supervisor", "nursery"} <= set(struck)
    numbers = [past.number for past in job.past_attempts]
    assert numbers == list(range(job.attempt)) and job.attempt <= plan.allowed, told
    pre, epilog = lines_of(folder / "pre"), lines_of(folder / "epilog")
    assert len(set(pre)) == len(pre) and {int(n) for n in pre} <= set(range(job.attempt + 1)), (pre, told)
    assert len(epilog) <= 1, (epilog, told)
    for rank in job.ranks:
        home = daemon.root.job(plan.job_id).workspace / f"device{rank.device}"
        data = Path(rank.log_path).read_bytes() if Path(rank.log_path).exists() else b""
        parts = re.split(rb"(?m)^\[muster: attempt \d+ .*\]\n", data)
        for attempt, part in enumerate(parts):
            whole = "".join(f"{rank.rank} {attempt} p{attempt} {i}\n" for i in range(plan.lines)).encode()
            assert whole.startswith(part.removesuffix(b"\n")) or whole == part, (attempt, part[-200:], told)
            assert len(lines_of(home / f"start-{attempt}")) <= 1, f"started twice: {told}"
            if not blind and not plan.stop and rank.rank == plan.failing:
                assert part == whole, (attempt, len(part), len(whole), told)
        assert not rank.pid or not alive(rank.pid), told
    if not plan.stop and not blind:
        assert job.attempt + 1 == plan.attempts == len(pre), (pre, told)
        failed = plan.good > job.attempt
        state = job_pb2.JOB_STATE_FAILED if failed else job_pb2.JOB_STATE_SUCCEEDED
        code = 10 + job.attempt if failed else 0
        assert (job.state, job.verdict.exit_code) == (state, code), told
        assert epilog == [f"{'FAILED' if failed else 'SUCCEEDED'} {code}"], (epilog, told)
        for past in job.past_attempts:
            assert (past.exit_code, past.first_failed_rank) == (10 + past.number, plan.failing), told
    left = daemon.root.job(plan.job_id).folder
    assert eventually(lambda: not left_over(left) or None, message=f"{left_over(left)} left: {told}")
    kinds = [event.kind for event in daemon.event_list(plan.job_id)]
    assert kinds.count("job.ended") == 1 and kinds.count("job.restarting") == job.attempt, (kinds, told)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("batch", range((POINTS // 2 + POINTS_PER_TEST - 1) // POINTS_PER_TEST))
def test_restart_points(daemon: Daemon, tmp_path: Path, batch: int) -> None:
    print(f"seed {SEED}")
    for number in range(batch * POINTS_PER_TEST, min(POINTS // 2, (batch + 1) * POINTS_PER_TEST)):
        point(daemon, Plan.draw(number), tmp_path / f"point-{number}")
