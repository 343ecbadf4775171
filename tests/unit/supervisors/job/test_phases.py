"""What follows from the records of a job."""

from typing import Any

import pytest

from muster.supervisors.job.phases import Phase, phase
from muster.supervisors.job.steps import EPILOG, PRE_START
from muster.supervisors.model.journal import FORMAT
from muster.supervisors.model.lifecycle import Job, Verdict
from muster.supervisors.model.replay import replay
from muster.supervisors.model.staging_progress import OUTPUTS
from muster.supervisors.model.states import STEP, StopCause

VERDICT = {name: getattr(Verdict(1, "failed"), name) for name in Verdict.__slots__}
ACCEPTED = {
    "kind": "accepted", "format": FORMAT, "digest": "", "boot": "b", "card_kind": "slot", "master_addr": "",
    "master_port": 0, "by": "", "first_rank": 0, "devices": [0, 1], "cards": [], "node_rank": 0, "node_count": 1,
    "node_name": "", "local_ranks": 2, "world_size": 2,
}  # fmt: skip
PREPARING = {"kind": "preparing", "attempt": 0, "cgroup": "", "oom_kills": 0}
STOPPING = {"kind": "stopping", "cause": StopCause.REQUESTED, "by": "", "reason": "", "steps": [1.0], "up": 2.0}
SPAWNED = {"kind": "spawned", "ranks": [[0, 11, 5], [1, 12, 5]], "boot": "b"}
RUNNING = {"kind": "running", "up": 3.0}
RESTARTING = {"kind": "restarting", "attempt": 1, "verdict": VERDICT, "log_ends": {}, "delay_s": 10.0, "up": 100.0}
BOTH = [OUTPUTS, EPILOG]
CONCLUDED = {"kind": "concluded", "state": "FAILED", "verdict": VERDICT}
ENDED = {"kind": "ended", "state": "FAILED", "verdict": VERDICT}


def step(name: str) -> dict[str, Any]:
    return {"kind": "step", "name": name, "argv": [], "pid": 10, "start": 5, "boot": "b", "up": 1.0}


def ended(rank: int, code: int = 0) -> dict[str, Any]:
    return {"kind": "exited", "rank": rank, "outcome": "EXITED", "status": code << 8}


RAN: list[dict[str, Any]] = [PREPARING, SPAWNED, RUNNING, ended(0, 1), ended(1)]


def job(*records: dict[str, Any]) -> Job:
    return replay([{"n": n, "t": 1.0} | record for n, record in enumerate([ACCEPTED, *records])])


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], Phase.ATTEMPT_DUE),
        ([PREPARING], Phase.ATTEMPT_DUE),
        ([STOPPING], Phase.STOPPED_EARLY),
        ([PREPARING, STOPPING], Phase.STOPPED_EARLY),
        ([PREPARING, step(PRE_START)], Phase.STEP_RUNS),
        ([PREPARING, step(PRE_START), STOPPING], Phase.STEP_RUNS),
        ([PREPARING, step(PRE_START), ended(STEP)], Phase.STEP_ENDED),
        ([PREPARING, step(PRE_START), {"kind": "unborn"}], Phase.ATTEMPT_DUE),
        ([PREPARING, step(PRE_START), ended(STEP), SPAWNED], Phase.RANKS_LET_GO),
        ([PREPARING, SPAWNED], Phase.RANKS_LET_GO),
        ([PREPARING, SPAWNED, {"kind": "unborn"}], Phase.ATTEMPT_DUE),
        ([PREPARING, SPAWNED, STOPPING], Phase.RANKS_RUN),
        ([PREPARING, SPAWNED, RUNNING, ended(0)], Phase.RANKS_RUN),
        (RAN, Phase.RANKS_ENDED),
        ([*RAN, RESTARTING], Phase.PAUSED),
        ([*RAN, RESTARTING, STOPPING], Phase.STOPPED_EARLY),
        ([*RAN, RESTARTING, PREPARING | {"attempt": 1}], Phase.ATTEMPT_DUE),
        ([*RAN, CONCLUDED], Phase.AFTER_DUE),
        ([PREPARING, step(PRE_START), ended(STEP, 1), CONCLUDED], Phase.AFTER_DUE),
        ([*RAN, CONCLUDED, step(EPILOG)], Phase.STEP_RUNS),
        ([*RAN, CONCLUDED, step(EPILOG), {"kind": "unborn"}], Phase.AFTER_DUE),
        ([*RAN, CONCLUDED, step(EPILOG), ended(STEP)], Phase.STEP_ENDED),
        ([*RAN, CONCLUDED | {"after": BOTH}], Phase.AFTER_DUE),
        ([*RAN, CONCLUDED | {"after": BOTH}, step(OUTPUTS)], Phase.STEP_RUNS),
        ([*RAN, CONCLUDED | {"after": BOTH}, step(OUTPUTS), ended(STEP, 1)], Phase.STEP_ENDED),
        ([*RAN, CONCLUDED | {"after": BOTH}, step(OUTPUTS), ended(STEP), CONCLUDED], Phase.AFTER_DUE),
        ([*RAN, ENDED], Phase.OVER),
    ],
)
def test_the_records_say_what_is_next(records, expected):
    assert phase(job(*records), up=105.0) is expected


def test_a_pause_ends_with_its_time():
    assert phase(job(*RAN, RESTARTING), up=110.0) is Phase.ATTEMPT_DUE
