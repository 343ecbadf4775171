"""What the status line of `muster run` says of its job: state, ranks, utilization, time, steps."""

import threading
import time
from types import TracebackType
from typing import Self

from muster.agent.cli import show
from muster.agent.cli.client.calls import DaemonConnection
from muster.agent.cli.exits import CommandFailed
from muster.agent.cli.live.status_line import Part, StatusLine, clock
from muster.agent.cli.live.step_rate import StepRate
from muster.agent.text import clean, numbers
from muster.v1 import job_pb2, telemetry_pb2

#: Seconds between two drawings, and between two questions to the daemon: until the ranks run, and then; for an answer.
DRAW_S, BEFORE_S, ASK_S, ANSWER_S = 0.5, 0.5, 2.0, 3.0
#: Seconds for a drawing that goes on while the command ends.
_LAST_S = 5.0
_GREEN, _YELLOW, _RED, _DIM = "32", "33", "1;31", "2"
_LOOKS = {"RUNNING": _GREEN, "SUCCEEDED": _GREEN, "FAILED": _RED, "LOST": _RED, "STOPPING": _YELLOW}


class JobLine:
    """Keeps the line current, in a thread, for the length of a `with`."""

    def __init__(self, connection: DaemonConnection, job: job_pb2.Job) -> None:
        self._connection, self._job = connection, job
        self._use: telemetry_pb2.GetTelemetryResponse | None = None
        self._silent = False
        self._line = StatusLine()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="status line", daemon=True)
        #: Of the output that the command reads.
        self.steps = StepRate()

    def __enter__(self) -> Self:
        self._line.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_LAST_S)
        self._line.__exit__(kind, error, trace)

    def _serve(self) -> None:
        asked = -ASK_S
        while not self._over.is_set():
            self._line.show(parts(self._job, self._use, self.steps.now(time.time()), time.time(), silent=self._silent))
            apart = ASK_S if self._job.state == job_pb2.JOB_STATE_RUNNING else BEFORE_S
            if time.monotonic() - asked >= apart:
                asked = time.monotonic()
                self._ask()
                continue
            self._over.wait(DRAW_S)

    def _ask(self) -> None:
        """A daemon that does not answer is searched for by those who read the output; here it is only said."""
        try:
            request = job_pb2.GetRequest(job_id=self._job.job_id)
            self._job = self._connection.call(self._connection.jobs.Get, request, ANSWER_S).job
            if self._job.state == job_pb2.JOB_STATE_RUNNING:
                about = telemetry_pb2.GetTelemetryRequest(job_id=self._job.job_id)
                self._use = self._connection.call(self._connection.telemetry.GetTelemetry, about, ANSWER_S)
            self._silent = False
        except (CommandFailed, ValueError):  # ValueError: the command is over, and its connection closed
            self._silent = True


def parts(
    job: job_pb2.Job,
    use: telemetry_pb2.GetTelemetryResponse | None,
    steps: float | None,
    now: float,
    *,
    silent: bool = False,
) -> list[Part]:
    """The parts of the line, the most important one first. `now`: seconds since the epoch; `steps`: in a second;
    `silent`: what is known is not new."""
    state = show.state(job.state)
    found = [Part(state, _LOOKS.get(state, _YELLOW))]
    if job.step:
        found.append(Part(clean(job.step)))
    elif job.awaits_release:
        found.append(Part("waits for its release"))
    begun = job.started_at if job.HasField("started_at") else job.accepted_at
    found.append(Part(clock(max(0.0, now - show.seconds(begun)))))
    if bad := show.hang(job):
        found.append(Part(bad, _RED))
    if job.slow.ranks:
        found.append(Part(f"SLOW rank {numbers(job.slow.ranks)}", _YELLOW))
    if silent:
        found.append(Part("no answer from the daemon", _YELLOW))
    found.append(Part(_ranks(job)))
    if use is not None and state == "RUNNING":
        told = [card.reading.utilization for card in use.cards if card.reading.HasField("utilization")]
        found += [Part(f"cards {sum(told) / len(told):.0f}%")] if told else []
        cpu = [rank.cpu for one in use.jobs for rank in one.ranks if rank.HasField("cpu")]
        found += [Part(f"cpu {sum(cpu):.0f}%")] if cpu and not told else []
    if steps is not None:
        found.append(Part(rate(steps)))
    if job.attempt:
        found.append(Part(f"attempt {job.attempt} of {job.spec.max_restarts}"))
    return [*found, Part(clean(job.job_id), _DIM)]


def rate(steps: float) -> str:
    """3.2 steps/s; of slow ones 41 s/step."""
    return f"{steps:.3g} steps/s" if steps >= 1 else f"{1 / steps:.3g} s/step" if steps > 0 else "0 steps/s"


def _ranks(job: job_pb2.Job) -> str:
    alive = sum(bool(rank.pid) and rank.outcome == job_pb2.RANK_OUTCOME_UNSPECIFIED for rank in job.ranks)
    return f"{alive} of {len(job.ranks)} ranks" if len(job.ranks) != 1 else "1 rank" if alive else "0 of 1 ranks"
