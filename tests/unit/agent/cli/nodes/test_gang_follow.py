"""Following one try of a job on several nodes while the next one already runs."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.agent.cli.client import follow
from muster.agent.cli.client.address import Address
from muster.agent.cli.nodes import gang_follow, gang_run
from muster.agent.cli.nodes.gang_run import GangRun
from muster.agent.cli.nodes.hosts import GangHost
from muster.client import FailedAsk, Gang
from muster.supervisors.model.spec import JobSpec
from muster.v1 import job_pb2, log_pb2

HOSTS = [GangHost(node, node, Address(Path("/nowhere", node))) for node in ("a", "b")]


class TwoTries:
    """Two nodes. The first try fails on a while b says nothing; the output of b then ends during the second try."""

    def __init__(self) -> None:
        self.stopped: list[tuple[str, tuple[int, ...]]] = []
        self.late: threading.Thread | None = None
        self._second = threading.Event()

    def read(self, connection: Any, request: log_pb2.ReadLogsRequest, sink: Any) -> log_pb2.ReadLogsResponse:
        """In the place of `follow.read`."""
        node = threading.current_thread().name
        if request.job_id == "j":
            if node == "a":
                return ended(job_pb2.JOB_STATE_FAILED, 7)
            self.late = threading.current_thread()
            assert self._second.wait(60)
            return ended(job_pb2.JOB_STATE_FAILED, 9)
        self._second.set()
        assert self.late is not None
        self.late.join(60)
        return ended(job_pb2.JOB_STATE_SUCCEEDED, 0)


def ended(state: job_pb2.JobState.ValueType, exit_code: int) -> log_pb2.ReadLogsResponse:
    return log_pb2.ReadLogsResponse(state=state, verdict=job_pb2.Verdict(exit_code=exit_code, summary=f"{exit_code}"))


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> TwoTries:
    tries = TwoTries()

    class Parts(Gang):
        def start(self) -> None:
            """As if each daemon had taken its part."""

        def stop(
            self,
            reason: str,
            grace_s: float | None = None,
            among: Iterable[int] | None = None,
            patience_s: float = 0.0,
            answer_s: float = 0.0,
        ) -> dict[int, FailedAsk]:
            tries.stopped.append((self.parts[0].spec.job_id, tuple(among or ())))
            return {}

        def jobs(
            self, patience_s: float = 0.0, among: Iterable[int] | None = None, answer_s: float = 0.0
        ) -> dict[int, job_pb2.Job | FailedAsk]:
            """b does not answer while it is looked at; at the end of the first try both have ended."""
            first = self.parts[0].spec.job_id == "j"
            state = job_pb2.JOB_STATE_FAILED if first else job_pb2.JOB_STATE_RUNNING
            silent = {1} if first and among is not None else set[int]()
            return {
                part: FailedAsk("UNAVAILABLE", "", refused=False) if part in silent else job_pb2.Job(state=state)
                for part in (range(2) if among is None else among)
            }

    @contextmanager
    def connect(address: Address) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace()

    monkeypatch.setattr(gang_run, "Gang", Parts)
    monkeypatch.setattr(gang_follow, "connect", connect)
    monkeypatch.setattr(follow, "read", tries.read)
    monkeypatch.setattr(gang_follow, "LOOK_S", 0.01)
    monkeypatch.setattr(gang_follow, "SILENT_S", 0.0)
    return tries


def test_a_late_end_of_an_earlier_try_does_not_end_the_present_one(tries: TwoTries) -> None:
    run = GangRun(HOSTS, show=False, quiet=True, label=False)
    spec = JobSpec("j", ("true",), node_count=2, max_restarts=1, restart_backoff=0.0)
    assert run.run(spec, port_given=True) == 0
    assert tries.late is not None and not tries.late.is_alive()
    assert {job_id for job_id, _ in tries.stopped} == {"j"}
