"""TorchX's states from those of the jobs."""

import json

import pytest

pytest.importorskip("torchx", reason="needs TorchX: pip install -r examples/torchx/requirements.txt")

from torchx.specs import AppState, is_terminal

from muster.client import FailedAsk
from muster.client.gang import FINAL
from muster.torchx.app_jobs import FoundApp, FoundPart
from muster.torchx.app_status import STATES, first_failed, response, state
from muster.torchx.daemon_hosts import DaemonHost, HostTls
from muster.v1 import job_pb2

SILENT = {DaemonHost("gone:1"): FailedAsk("UNAVAILABLE", "no daemon answers", False)}


def found(words: str, size: int = 0, silent: bool = False) -> FoundApp:
    """An app whose jobs have these states: "running failed"."""
    names = words.split()
    parts = []
    for number, name in enumerate(names):
        labels = {"torchx-app": "x", "torchx-role": "t", "torchx-replica": str(number), "torchx-part": str(number)}
        labels |= {"torchx-size": str(size or len(names)), "torchx-replicas": str(size or len(names))}
        spec = job_pb2.JobSpec(command=["sh"], labels=labels)
        job = job_pb2.Job(job_id=f"x-{number}", state=job_pb2.JobState.Value(f"JOB_STATE_{name.upper()}"), spec=spec)
        job.ended_at.FromSeconds(1000 - number)
        parts.append(FoundPart(DaemonHost(f"h{number}:1"), HostTls(), job))
    return FoundApp("x", parts, dict(SILENT) if silent else {})


def test_each_state_has_one_and_they_end_together() -> None:
    assert set(STATES) == set(job_pb2.JobState.values()) - {job_pb2.JOB_STATE_UNSPECIFIED}
    assert {name for name, mapped in STATES.items() if is_terminal(mapped)} == FINAL


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("accepted accepted", AppState.SUBMITTED),
        ("accepted checking", AppState.PENDING),
        ("preparing running", AppState.RUNNING),
        ("restarting restarting", AppState.PENDING),
        ("restarting running", AppState.RUNNING),
        ("succeeded preparing", AppState.RUNNING),
        ("failed running", AppState.RUNNING),
        ("stopping failed", AppState.RUNNING),
        ("failed stopped succeeded", AppState.FAILED),
        ("lost succeeded", AppState.FAILED),
        ("stopped succeeded", AppState.CANCELLED),
        ("succeeded succeeded", AppState.SUCCEEDED),
    ],
)
def test_the_state_of_an_app(states: str, expected: AppState) -> None:
    assert state(found(states)) is expected


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("running", AppState.RUNNING),
        ("succeeded", AppState.UNKNOWN),
        ("failed", AppState.FAILED),
        ("stopped", AppState.CANCELLED),
    ],
)
def test_an_app_of_which_a_daemon_does_not_answer(states: str, expected: AppState) -> None:
    app = found(states, size=2, silent=True)
    assert state(app) is expected
    described = response(app)
    assert "1 of 2 replicas are not known: no answer from gone:1" in described.msg
    assert [replica.state for replica in described.roles_statuses[0].replicas][1] is AppState.UNKNOWN


def test_success_is_not_made_up_where_a_part_was_removed() -> None:
    app = found("succeeded", size=2)
    assert state(app) is AppState.UNKNOWN
    app.submitted_here = True
    assert state(app) is AppState.FAILED, "and who waits for it does not wait for ever"


def test_the_first_failure_is_that_of_the_earliest_end() -> None:
    app = found("failed lost succeeded")
    first = first_failed(app.parts)
    assert first is not None and first.replica == 1
    error = json.loads(response(app).structured_error_msg)
    assert error["muster"]["state"] == "LOST" and error["message"]["extraInfo"]["timestamp"] == "999"
    assert first_failed(found("succeeded stopped").parts) is None


@pytest.mark.parametrize("label", ["", "-1", "1e9", "\u0663", "99999999999", "x"])
def test_labels_that_somebody_else_wrote(label: str) -> None:
    app = found("running")
    for name in ("torchx-size", "torchx-replica", "torchx-replicas", "torchx-part"):
        app.parts[0].job.spec.labels[name] = label
    described = response(app)
    assert described.state is AppState.RUNNING and described.roles[0].num_replicas == 1
