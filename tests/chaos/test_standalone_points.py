"""`muster run --standalone`: any three of command, daemon, nursery and supervisor are killed, at random moments.

Nothing survives its command, and nothing ends with the others. MUSTER_CHAOS_POINTS and MUSTER_CHAOS_SEED as for the
pairs (test_pairs.py); an eighth of the points.
"""

import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from muster.supervisors.model import journal
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.replay import replay
from muster.supervisors.paths import Root
from tests.chaos.test_kill_points import POINTS, SEED
from tests.conftest import eventually
from tests.standalone import Run

PROCESSES = ("client", "daemon", "nursery", "supervisor")
#: Of ranks that do not care, which are killed behind it; and of those that save: more than a busy machine takes.
GRACE_S, LONG_GRACE_S = 3.0, 30.0
#: Ranks write numbered lines until `go` exists. Asked to end, they save, or do not care.
RANK = """
trap '{trap}' TERM; echo up; n=0
until [ -e {folder}/go ]; do n=$((n + 1)); echo "line $n"; sleep 0.02; done
echo "last $n"; exit 7
"""


@dataclass(frozen=True)
class Plan:
    """`kills`: who, and how many seconds after the one before. `moment`: seconds from the start of the command; None:
    once the ranks are up. `asked`: everybody gets SIGTERM first, as from a scheduler."""

    kills: tuple[tuple[str, float], ...]
    moment: float | None
    asked: bool
    stubborn: bool

    @classmethod
    def draw(cls, seed: int, number: int) -> "Plan":
        rng = random.Random(f"standalone-{seed}-{number}")
        who = rng.sample(PROCESSES, rng.randint(1, 3))
        if number % 2 == 0:  # the pair that nobody else strikes
            who = list(dict.fromkeys(("client", "daemon", *who)))[:3]
            rng.shuffle(who)
        return cls(
            kills=tuple((name, rng.random() * rng.choice((0.0, 0.05, 0.5))) for name in who),
            moment=rng.random() * 1.5 if rng.random() < 0.3 else None,
            asked=rng.random() < 0.25,
            stubborn=rng.random() < 0.3,
        )


@pytest.mark.chaos
@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", range(max(2, POINTS // 8)))
def test_standalone_point(number: int) -> None:
    plan = Plan.draw(SEED, number)
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        trap = "" if plan.stubborn else "sleep 0.5; echo saved; exit 3"
        grace_s = GRACE_S if plan.stubborn else LONG_GRACE_S
        run = Run(folder, RANK.format(folder=folder, trap=trap), "--grace", f"{grace_s:g}s")
        try:
            struck = _strike(run, plan)
            told = f"seed {SEED}, point {number}, {plan}, struck {struck}"
            if "client" in struck:
                # The grace, SIGKILL, and what daemon and nursery take to leave.
                eventually(run.gone, grace_s + 35, f"nothing survives its command: {told}")
                _ended_with_its_command(folder, plan, told)
            else:
                _goes_on(run, plan, told)
        finally:
            run.process.kill()
            run.process.communicate()
            (folder / "go").touch()
            eventually(run.gone, 60, "nothing of it is left")


def _strike(run: Run, plan: Plan) -> list[str]:
    """Returns who there was to be killed."""
    if plan.moment is None:
        run.wait_up()
    else:
        time.sleep(plan.moment)
    if plan.asked:
        for who in ("ranks", *PROCESSES):
            _signal(run.find(who), signal.SIGTERM)
    struck = []
    for who, pause in plan.kills:
        time.sleep(pause)
        found = set(run.find(who)) - (set(run.find("supervisor")) if who == "nursery" else set())
        if _signal(sorted(found), signal.SIGKILL):
            struck.append(who)
    return struck


def _signal(pids: Sequence[int], number: int) -> bool:
    sent = False
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            sent = True
    return sent


def _job(folder: Path) -> Job | None:
    """None: it was not recorded, or everything was put away."""
    for root in folder.glob("muster-*"):
        path = Root.under(root).job("x").journal
        if path.exists():
            return replay(journal.read(path).records)
    return None


def _ended_with_its_command(folder: Path, plan: Plan, told: str) -> None:
    job = _job(folder)
    if job is not None and job.spawned:
        assert job.state.final and job.state != "SUCCEEDED", (told, job)
        assert job.verdict is not None
        if not plan.asked:
            assert "the command that started it has ended" in job.verdict.summary, (told, job.verdict)
    for path in folder.glob("muster-*/log/x-proc-rank-*.txt"):
        lines = path.read_text().splitlines()
        assert _numbers(lines) == list(range(1, len(_numbers(lines)) + 1)), (told, path)
        if plan.moment is None and not plan.stubborn:
            assert lines[-1] == "saved", (told, lines[-3:])


def _goes_on(run: Run, plan: Plan, told: str) -> None:
    if not plan.asked:
        (run.folder / "go").touch()
    code, out, err = run.end()
    text = "\n".join(err)
    early = plan.moment is not None
    if early and (
        (code == 143 and plan.asked) or (code == 125 and "the daemon of this job was killed by SIGKILL" in text)
    ):
        return  # there was no job yet
    if plan.asked:
        assert code in (3, 137, 143), (told, code, text)
        assert "STOPPED" in text or "LOST" in text, (told, text)
        return
    if {who for who, _ in plan.kills} >= {"nursery", "supervisor"} and "LOST" in text:
        return  # nobody was left who could tell
    assert code == 7, (told, code, text)
    ends = []
    for rank in (0, 1):
        lines = [line.partition("] ")[2] for line in out if line.startswith(f"[rank {rank}] ")]
        assert _numbers(lines) == list(range(1, len(_numbers(lines)) + 1)), (told, rank)
        ends += [line == f"last {len(_numbers(lines))}" for line in lines[-1:]]
    if len(plan.kills) < 3:  # else nobody may have held what a rank wrote right before its end
        assert any(ends), (told, out[-10:])  # the other one may have been ended because this one failed


def _numbers(lines: Sequence[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.startswith("line ")]
