"""Kill -9 at random moments, and an oracle that knows what must be true afterwards.

MUSTER_CHAOS_POINTS says how many points (CI: 100), MUSTER_CHAOS_SEED which ones; the seed is printed. Whatever is
killed: no output byte is lost or doubled, every exit code is right or LOST (never invented, and only where supervisor
and nursery were both gone), no rank is started twice, no process and no FIFO is left.
"""

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from muster.supervisors.output.log_layout import Folder
from muster.supervisors.output.log_reader import Reader
from muster.v1 import job_pb2
from tests.chaos import rank as program
from tests.conftest import Daemon, alive, eventually

POINTS = int(os.environ.get("MUSTER_CHAOS_POINTS", "24"))
SEED = int(os.environ.get("MUSTER_CHAOS_SEED", "20261121"))
#: What is killed at a point: any one, any two, one of them twice, a rank.
TARGETS = (
    ("supervisor",),
    ("nursery",),
    ("daemon",),
    ("supervisor", "supervisor"),
    ("daemon", "nursery"),
    ("daemon", "supervisor"),
    ("supervisor", "daemon"),
    ("nursery", "supervisor"),
    ("supervisor", "nursery"),
    ("rank",),
)
RANKS = 3
POINTS_PER_TEST = 10


@dataclass(frozen=True)
class Plan:
    """One point: the job, who is killed, and when (seconds after the start; before the next kill)."""

    job_id: str
    lines: int
    code: int
    failing: int
    stray: bool
    stop: bool
    targets: tuple[str, ...]
    delay: float
    pause: float

    @classmethod
    def draw(cls, number: int) -> "Plan":
        rng = random.Random(f"{SEED}-{number}")
        return cls(
            job_id=f"chaos-{number}",
            lines=rng.choice((0, 20, 3000, 20000)),
            code=rng.choice((0, 0, 7, 41)),
            failing=rng.randrange(RANKS),
            stray=rng.random() < 0.4,
            stop=rng.random() < 0.15,
            targets=rng.choice(TARGETS),
            delay=rng.random() * rng.choice((0.02, 0.1, 0.4)),
            pause=rng.random() * 0.03,
        )


def strike(daemon: Daemon, plan: Any, target: str) -> bool:
    """Kills one target, if it is there at this moment."""
    if target == "daemon":
        if daemon.process is None:
            return False
        daemon.kill()
        return True
    if target == "rank":
        pids = [r.pid for r in daemon.get(plan.job_id).ranks if r.pid and not r.outcome]
        pid = pids[plan.failing % len(pids)] if pids else 0
    else:
        pid = daemon.nursery_pid() if target == "nursery" else daemon.supervisor_pid(plan.job_id)
    if not pid or pid == (daemon.process.pid if daemon.process else 0):
        return False  # not there yet, or no more: in the first moments the daemon itself has the job's lock
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def strike_all(daemon: Daemon, plan: Any) -> list[str]:
    """Carries the plan out on a job that was just started. Returns which of its targets were there; a daemon runs."""
    struck = []
    for i, target in enumerate(plan.targets):
        time.sleep(plan.pause if i else plan.delay)  # the random moment itself; nothing is waited for
        if strike(daemon, plan, target):
            struck.append(target)
    if daemon.process is None:
        daemon.start()
    if plan.stop:
        daemon.stop(plan.job_id)
    return struck


def point(daemon: Daemon, plan: Plan) -> None:
    numbers = (plan.lines, plan.code, plan.failing, int(plan.stray))
    command = (sys.executable, "-S", program.__file__, *map(str, numbers))
    spec = job_pb2.JobSpec(job_id=plan.job_id, command=command, ranks=RANKS)
    for step in (0.2, 0.3):
        spec.grace_steps.add().FromMilliseconds(int(step * 1000))
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    struck = strike_all(daemon, plan)
    check(daemon, plan, daemon.wait(plan.job_id), struck)


def check(daemon: Daemon, plan: Plan, job: Any, struck: list[str]) -> None:
    told = f"seed {SEED}, {plan}, struck {struck}: {job}"
    blind = {"supervisor", "nursery"} <= set(struck)
    folder = daemon.root.job(plan.job_id).folder
    for rank in job.ranks:
        whole = program.text(rank.rank, 0, plan.lines).encode()
        data = output(Path(rank.log_path))
        home = folder / "workspace" / f"device{rank.device}"
        starts = (home / "start").read_text().split() if (home / "start").exists() else []
        assert len(starts) <= 1, f"started twice: {told}"
        if rank.outcome == job_pb2.RANK_OUTCOME_EXITED:
            assert data == whole, f"rank {rank.rank}: {len(data)} bytes of {len(whole)}: {told}"
            assert rank.exit_code == (plan.code if rank.rank == plan.failing else 0), told
            assert len(starts) == 1, told
        elif rank.outcome == job_pb2.RANK_OUTCOME_LOST:
            assert blind, told
        elif rank.outcome == job_pb2.RANK_OUTCOME_SIGNALLED:
            assert rank.signal == signal.SIGKILL and struck == ["rank"], told
        else:
            assert rank.outcome in (
                job_pb2.RANK_OUTCOME_GANG_VICTIM,
                job_pb2.RANK_OUTCOME_STOPPED,
                job_pb2.RANK_OUTCOME_NOT_STARTED,
            ), told
        # A rank that was cut short wrote a beginning of its lines: the two halves come from two processes.
        assert whole.startswith(data) or _is_cut(data, rank.rank, plan.lines), f"rank {rank.rank}: {told}"
        assert rank.lost_log_bytes == 0, told
        assert not alive(rank.pid) or rank.pid == 0, f"rank {rank.rank} lives on: {told}"
        if (home / "stray").exists():
            for pid in (home / "stray").read_text().split():
                assert not alive(int(pid)), f"stray {pid} lives on: {told}"
    if job.state == job_pb2.JOB_STATE_SUCCEEDED:
        assert plan.code == 0, told  # also where "rank" was struck: it can have ended just before
    if not plan.stop and "rank" not in struck and plan.code and not blind:
        assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, plan.code), told
    left = eventually(lambda: not left_over(folder) or None, message=f"{left_over(folder)} left: {told}")
    assert left
    kinds = [event.kind for event in daemon.event_list(plan.job_id)]
    assert kinds.count("job.ended") == 1 and kinds.count("rank.exited") <= RANKS, (kinds, told)
    assert kinds.count("job.accepted") == 1, (kinds, told)


def output(log: Path) -> bytes:
    """All that was written, in whatever files it is by now."""
    with Reader(Folder(log.parent)) as reader:
        start, data = reader.stretch(log, 0, 1 << 40)
    assert start == 0, f"{log}: something is missing before {start}"
    return data


def _is_cut(data: bytes, rank: int, lines: int) -> bool:
    """The first half cut anywhere (its writer was killed), then the second cut anywhere."""
    first = program.text(rank, 0, lines // 2).encode()
    second = program.text(rank, lines // 2, lines).encode()
    same = 0
    while same < min(len(data), len(first)) and data[same] == first[same]:
        same += 1
    return second.startswith(data[same:])


def left_over(folder: Path) -> list[str]:
    kept = ("spec.json", "journal", "lock", "workspace", "explained.json")
    names = [p.name for p in folder.iterdir() if p.name not in kept]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                if target.startswith(f"{folder}/"):
                    names.append(f"{target} in {pid}")
    return names


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("batch", range((POINTS + POINTS_PER_TEST - 1) // POINTS_PER_TEST))
def test_kill_points(make_daemon: Callable[..., Daemon], batch: int) -> None:
    """Many points on one root, as on a node over its life; on every other one files are rotated as often as can be."""
    print(f"seed {SEED}")
    daemon = make_daemon("" if batch % 2 else "[logs]\nmax_file_bytes = 65536\n")
    for number in range(batch * POINTS_PER_TEST, min(POINTS, (batch + 1) * POINTS_PER_TEST)):
        point(daemon, Plan.draw(number))
    if batch == 0:
        assert list(daemon.root.log.glob("*.txt.*")), "files were rotated"
