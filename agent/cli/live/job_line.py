"""What the status line of `muster run` says of its job: state, ranks, utilization, time, steps; before and after the
ranks how far a copy is, and what a step has printed last."""

import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from muster.agent.cli import show
from muster.agent.cli.client.calls import DaemonConnection
from muster.agent.cli.exits import CommandFailed
from muster.agent.cli.live.status_line import Part, StatusLine, clock
from muster.agent.cli.live.step_rate import StepRate
from muster.agent.text import STATE_COLOURS, clean, numbers, size
from muster.supervisors.model.job_logs import is_ours
from muster.v1 import job_pb2, log_pb2, telemetry_pb2

#: Seconds between two drawings, and between two questions to the daemon: until the ranks run, and then; for an answer.
DRAW_S, BEFORE_S, ASK_S, ANSWER_S = 0.5, 0.5, 2.0, 3.0
#: Seconds for a drawing that goes on while the command ends.
_LAST_S = 5.0
#: Seconds over which the speed of a copy is a mean.
_SPEED_S = 10.0
_GREEN, _YELLOW, _RED, _DIM = "32", "33", "1;31", "2"
_COLOURS = {"green": _GREEN, "red": _RED}


class JobLine:
    """Keeps the line current, in a thread, for the length of a `with`."""

    def __init__(self, connection: DaemonConnection, job: job_pb2.Job) -> None:
        self._connection, self._job = connection, job
        self._use: telemetry_pb2.GetTelemetryResponse | None = None
        self._silent = False
        #: The step, and what it has printed last.
        self._last_words = ("", "")
        self._speed = CopySpeed()
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
            words = self._last_words[1] if self._last_words[0] == self._job.step else ""
            known = (self._job, self._use, self.steps.now(time.time()), time.time())
            self._line.show(parts(*known, silent=self._silent, speed=self._speed.now, last_words=words))
            apart = ASK_S if self._job.state == job_pb2.JOB_STATE_RUNNING and not self._job.step else BEFORE_S
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
            if self._job.HasField("staging"):
                self._speed.take(self._job.step, self._job.staging.bytes_done, time.monotonic())
            elif self._job.step:
                self._last_words = (self._job.step, self._read_last_words())
            elif self._job.state == job_pb2.JOB_STATE_RUNNING:
                about = telemetry_pb2.GetTelemetryRequest(job_id=self._job.job_id)
                self._use = self._connection.call(self._connection.telemetry.GetTelemetry, about, ANSWER_S)
            self._silent = False
        except (CommandFailed, ValueError):  # ValueError: the command is over, and its connection closed
            self._silent = True

    def _read_last_words(self) -> str:
        """The last line of the job's own log. Raises CommandFailed."""
        logs = self._connection.logs
        request = log_pb2.ReadLogsRequest(job_id=self._job.job_id, job_log=log_pb2.JOB_LOG_ONLY, tail_lines=1)
        answers = self._connection.stream(logs.ReadLogs, request, quiet=True, timeout=ANSWER_S)
        return last_words(b"".join(answer.data for answer in answers))


class CopySpeed:
    """Bytes in a second, by what is copied now and then."""

    def __init__(self) -> None:
        self._step = ""
        self._seen: deque[tuple[float, int]] = deque()

    def take(self, step: str, done: int, at: float) -> None:
        """So many bytes of this step are copied."""
        if step != self._step or (self._seen and done < self._seen[-1][1]):
            self._step = step
            self._seen.clear()
        self._seen.append((at, done))
        while len(self._seen) > 2 and self._seen[1][0] <= at - _SPEED_S:
            self._seen.popleft()

    @property
    def now(self) -> float | None:
        """None where it is not known."""
        if len(self._seen) < 2:
            return None
        (begun, before), (at, done) = self._seen[0], self._seen[-1]
        return (done - before) / (at - begun) if at > begun else None


def last_words(log: bytes) -> str:
    """The last line of what a step has printed; of a bar that is rewritten in place, its last state."""
    lines = [part for line in log.decode("utf-8", "replace").splitlines() for part in (line.strip(),) if part]
    return "" if not lines or is_ours(lines[-1]) else clean(lines[-1].expandtabs(1))


def parts(
    job: job_pb2.Job,
    use: telemetry_pb2.GetTelemetryResponse | None,
    steps: float | None,
    now: float,
    *,
    silent: bool = False,
    speed: float | None = None,
    last_words: str = "",
) -> list[Part]:
    """The parts of the line, the most important one first. `now`: seconds since the epoch; `steps`: in a second;
    `silent`: what is known is not new; `speed`: bytes of a copy in a second; `last_words`: of a step."""
    state = show.state(job.state)
    found = [Part(state, _COLOURS.get(STATE_COLOURS.get(state, ""), _YELLOW))]
    if job.step:
        found += _step(job, speed)
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
    if job.step and last_words and not job.HasField("staging"):
        return [*found, Part(last_words, cut=True)]  # where the line ends, it is cut
    if not job.step:
        found.append(Part(_ranks(job)))
    if use is not None and state == "RUNNING" and not job.step:
        told = [card.reading.utilization for card in use.cards if card.reading.HasField("utilization")]
        found += [Part(f"cards {sum(told) / len(told):.0f}%")] if told else []
        cpu = [rank.cpu for one in use.jobs for rank in one.ranks if rank.HasField("cpu")]
        found += [Part(f"cpu {sum(cpu):.0f}%")] if cpu and not told else []
    if steps is not None and not job.step:
        found.append(Part(rate(steps)))
    if job.attempt:
        found.append(Part(f"attempt {job.attempt} of {job.spec.max_restarts}"))
    return [*found, Part(clean(job.job_id), _DIM)]


def _step(job: job_pb2.Job, speed: float | None) -> list[Part]:
    """What runs before or after the ranks, and how far a copy is."""
    if not job.HasField("staging"):
        return [Part(clean(job.step))]
    told = job.staging
    found = [Part(f"{clean(job.step)} {size(told.bytes_done)} of {size(told.bytes)}")] if told.files else []
    found = found or [Part(clean(job.step))]
    if speed:
        left = max(0, told.bytes - told.bytes_done) / speed
        found.append(Part(f"{size(int(speed))}/s, {clock(left)} left"))
    if told.files > 1:
        found.append(Part(f"{told.files_done} of {told.files} files"))
    if told.retries:
        found.append(Part(f"{told.retries} retries", _YELLOW))
    return found


def rate(steps: float) -> str:
    """3.2 steps/s; of slow ones 41 s/step."""
    return f"{steps:.3g} steps/s" if steps >= 1 else f"{1 / steps:.3g} s/step" if steps > 0 else "0 steps/s"


def _ranks(job: job_pb2.Job) -> str:
    alive = sum(bool(rank.pid) and rank.outcome == job_pb2.RANK_OUTCOME_UNSPECIFIED for rank in job.ranks)
    return f"{alive} of {len(job.ranks)} ranks" if len(job.ranks) != 1 else "1 rank" if alive else "0 of 1 ranks"
