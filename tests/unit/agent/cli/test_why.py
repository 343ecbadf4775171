"""`muster why` with a daemon of a version that makes no reports."""

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from muster.agent.cli import main
from muster.v1 import job_pb2, job_pb2_grpc


class Earlier(job_pb2_grpc.JobServiceServicer):
    """Knows the job x, and no GetReport."""

    def Get(self, request: job_pb2.GetRequest, context: Any) -> job_pb2.GetResponse:
        verdict = job_pb2.Verdict(exit_code=7, summary="rank 1 exited with code 7", first_failed_rank=1, victims=[0])
        ranks = [job_pb2.Rank(rank=number, device=number, exit_code=7 * number) for number in range(2)]
        job = job_pb2.Job(job_id=request.job_id, state=job_pb2.JOB_STATE_FAILED, verdict=verdict, ranks=ranks)
        job.ended_at.FromSeconds(1_800_000_000)
        return job_pb2.GetResponse(job=job)


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # What it does not have it would tell wherever a test before this one has led the log.
    monkeypatch.setattr(logging.getLogger("grpc._server"), "disabled", True)
    server = grpc.server(ThreadPoolExecutor(2))
    job_pb2_grpc.add_JobServiceServicer_to_server(Earlier(), server)  # type: ignore[abstract]  # an earlier one has fewer methods
    address = f"unix:{tmp_path / 's'}"
    server.add_insecure_port(address)
    server.start()
    monkeypatch.setenv("MUSTER_ADDRESS", address)
    yield
    server.stop(None).wait()


@pytest.mark.usefixtures("earlier")
def test_it_shows_what_the_daemon_knows(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.execute(["why", "x"]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith("x: FAILED at ")
    assert "First failure: rank 1 on device 1" in shown and "Victims: rank 0" in shown


@pytest.mark.usefixtures("earlier")
def test_it_prints_the_keys_that_it_always_had(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.execute(["why", "x", "-o", "json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["firstFailure"]["rank"], told["verdict"]["exitCode"]) == (1, 7)
