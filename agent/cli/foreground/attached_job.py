"""A job that a command runs in the foreground: its output, its status line, signals, and the exit code."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from muster.agent.cli.exits import CallFailed, CommandFailed, Exit, NoDaemon, StdoutFailed, not_started
from muster.agent.cli.printing import note, write
from muster.agent.host import end_signals
from muster.agent.host.end_signals import Ask
from muster.supervisors.model.spec import JobSpec

if TYPE_CHECKING:
    from muster.agent.cli.client.calls import DaemonConnection
    from muster.agent.cli.client.follow import Sink
    from muster.agent.cli.client.interrupts import Interrupts
    from muster.agent.cli.live.job_line import JobLine
    from muster.agent.cli.live.step_rate import StepRate
    from muster.v1 import job_pb2, log_pb2


class _Sink:
    """The output of one rank as it is, that of several labelled if `label`; how many there are is asked for when the
    first byte comes."""

    def __init__(self, label: bool, count: Callable[[], int], steps: "StepRate | None" = None) -> None:
        self._label = label
        self._count = count
        self._steps = steps
        self._sink: Sink | None = None

    def feed(self, source: str, data: bytes, time: float) -> None:
        if source == "muster":
            note(data.decode("utf-8", "replace").rstrip("\n"))
            return
        if self._steps is not None:
            self._steps.take(source, data, time)
        if self._sink is None:
            from muster.agent.logs import labels

            labelled = self._label and self._count() > 1
            self._sink = labels.LabelledLines(write, label=True) if labelled else labels.Raw(write)
        self._sink.feed(source, data, time)

    def cut(self, source: str) -> None:
        if self._sink is not None:
            self._sink.cut(source)

    def finish(self) -> None:
        if self._sink is not None:
            self._sink.finish()


class AttachedJob:
    """A job and the terminal (or pipe) that it runs at."""

    def __init__(
        self,
        connection: "DaemonConnection",
        interrupts: "Interrupts",
        spec: JobSpec,
        *,
        show: bool,
        quiet: bool,
        label: bool,
        own: bool,
    ) -> None:
        self._connection = connection
        connection.quiet = quiet
        self._interrupts = interrupts
        self._spec = spec
        self._show = show
        self._quiet = quiet
        self._label = label
        self._own = own
        #: Device and inode of the spec's folder, where it is this command's.
        self.folder: tuple[int, int] | None = None
        #: Whether the job has ended, and well.
        self.succeeded = False
        #: Whether it has ended, and not because somebody stopped it.
        self.failed = False

    def run(self) -> int:
        """The exit code. Raises CommandFailed: before the job is accepted as any command, later with exit code 125."""
        from muster.agent.cli.spec.submit import STOPPING, submit

        try:
            answer = submit(self._connection, self._spec, folder=self.folder, own=self._own)
        except CallFailed as failure:
            if self._own and failure.reason == STOPPING:  # it got the signal that we got, or only it did
                raise not_started(self._interrupts.first or signal.SIGTERM) from None
            raise
        with self._interrupts.calling(self._stop, self._pass_on):
            if self._show:
                note(f"job {answer.job.job_id} {'exists already' if answer.already_existed else 'accepted'}")
            try:
                return self._follow(answer.job)
            except StdoutFailed as failure:
                return self._nobody_reads(failure)
            except (CallFailed, NoDaemon) as failure:
                raise CommandFailed(f"{failure.message}\n{self._goes_on()}", Exit.MUSTER_FAILED) from None
            except KeyboardInterrupt:
                note(f"no longer waiting; {self._goes_on()}")
                return 128 + self._interrupts.first

    def _follow(self, job: "job_pb2.Job") -> int:
        with self._status_line(job) as line:
            last = self._read(job, line)
        return self._verdict(last)

    def _read(self, job: "job_pb2.Job", line: "JobLine | None") -> "log_pb2.ReadLogsResponse":
        from muster.agent.cli.client import follow
        from muster.agent.cli.progress import Progress
        from muster.v1 import log_pb2

        progress = Progress(self._connection, job) if self._show else None
        sink = _Sink(self._label, lambda: self._count(job), line.steps if line is not None else None)
        # Without progress, too, muster reports lost output.
        losses = not (self._show or self._quiet)
        request = log_pb2.ReadLogsRequest(job_id=job.job_id, follow=True, events=losses, only_losses=losses)
        last = follow.read(self._connection, request, sink)
        if not self._quiet:
            follow.note_missing(last)
        if progress is not None:
            progress.finish()
        return last

    def _status_line(self, job: "job_pb2.Job") -> "AbstractContextManager[JobLine | None]":
        if self._quiet:
            return nullcontext()
        from muster.agent.cli.live import at_terminal

        return at_terminal.job_line(self._connection, job)

    def _count(self, job: "job_pb2.Job") -> int:
        """Its ranks on this node; a job with a rank table has them only once the table exists. Raises CallFailed,
        NoDaemon."""
        from muster.v1 import job_pb2

        if not job.ranks:
            job = self._connection.patiently(self._connection.jobs.Get, job_pb2.GetRequest(job_id=job.job_id)).job
        return len(job.ranks)

    def _verdict(self, last: "log_pb2.ReadLogsResponse") -> int:
        from muster.agent.cli import show
        from muster.agent.cli.foreground import termination_log
        from muster.v1 import job_pb2

        verdict, state = last.verdict, last.state
        if not last.HasField("verdict"):
            request = job_pb2.WaitRequest(job_id=self._spec.job_id)
            job = self._connection.patiently(self._connection.jobs.Wait, request, None).job
            verdict, state = job.verdict, job.state
        self.succeeded = state == job_pb2.JOB_STATE_SUCCEEDED and verdict.exit_code == 0
        self.failed = state in (job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_LOST)
        name = job_pb2.JobState.Name(state).removeprefix("JOB_STATE_")
        words = [verdict.cause, f"job {self._spec.job_id} {name}: {verdict.summary}", show.advice_of(verdict)]
        termination_log.write("\n".join(filter(None, words)))
        if self._show or ((not self.succeeded or self._interrupts.first) and not self._quiet):
            note(f"job {self._spec.job_id} {name}: {verdict.summary}")
            self._say_cause(verdict)
        return verdict.exit_code

    def _say_cause(self, verdict: "job_pb2.Verdict") -> None:
        """The cause, where it says more than the verdict, and what to do."""
        from muster.agent.cli import show

        advice = show.advice_of(verdict)
        if not advice:
            return
        says_more = verdict.cause_signature or verdict.cause_kind in ("node", "memory", "hang")
        if says_more or verdict.HasField("failed_worker"):
            names_it = verdict.cause.startswith(("rank ", "ranks ")) or not verdict.HasField("cause_rank")
            who = "" if names_it else f"rank {verdict.cause_rank}: "
            note(f"{who}{verdict.cause} (muster why {self._spec.job_id}); {advice}")
        else:
            note(f"{advice} (muster why {self._spec.job_id})")

    def _nobody_reads(self, failure: StdoutFailed) -> int:
        if self._own:
            self._order("stdout closed", kill=False, wait=True)
        if not self._quiet:
            note(f"{failure.message}; {self._goes_on()}")
        return failure.exit_code if failure.exit_code == Exit.PIPE_CLOSED else Exit.MUSTER_FAILED

    def _goes_on(self) -> str:
        job_id = self._spec.job_id
        if self._own:
            return f"job {job_id} stopped with its daemon"
        return f"job {job_id} continues: follow it with `muster logs -f {job_id}`, end it with `muster stop {job_id}`"

    def _stop(self, ask: Ask, number: int) -> None:
        """Called in the thread of `Interrupts`."""
        name = end_signals.name(number)
        kill = ask is not Ask.STOP
        if not self._quiet:
            again = (
                "press Ctrl-C again to kill it"
                if number == signal.SIGINT
                else f"another {name} after {end_signals.SAME_S:g} s kills it"
            )
            note(f"{name}: killing the job" if kill else f"{name}: stopping the job; {again}")
        if self._own and number == signal.SIGTERM:
            name += end_signals.time_limit(os.environ, time.time())
        self._order(name, kill, wait=False)

    def _order(self, reason: str, kill: bool, wait: bool) -> None:
        from muster.agent.cli.client.calls import proto_duration
        from muster.v1 import job_pb2

        request = job_pb2.StopRequest(job_id=self._spec.job_id, reason=reason)
        if not wait:
            request.timeout.CopyFrom(proto_duration(0))
        if kill:
            request.grace.CopyFrom(proto_duration(0))
        try:
            self._connection.patiently(self._connection.jobs.Stop, request, None)
        except CommandFailed as failure:
            note(f"cannot stop the job: {failure.message}")

    def _pass_on(self, number: int) -> None:
        """Called in a thread of `Interrupts`. A daemon that is being started again is waited for: the signal may be
        the last chance to save anything."""
        from muster.agent.cli.foreground import passing_on

        call = partial(self._connection.patiently, self._connection.jobs.Signal, timeout=passing_on.ANSWER_S)
        passing_on.pass_on(self._spec.job_id, number, call, beside=self._own)
