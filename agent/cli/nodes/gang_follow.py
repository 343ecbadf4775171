"""A job on several nodes that runs: its output, its orders to stop, and its one verdict."""

import math
import queue
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from muster.agent.cli import show
from muster.agent.cli.client import follow
from muster.agent.cli.client.address import Address
from muster.agent.cli.client.calls import DaemonConnection, connect
from muster.agent.cli.client.interrupts import Interrupts
from muster.agent.cli.exits import CommandFailed, Exit, StdoutFailed
from muster.agent.cli.foreground import passing_on
from muster.agent.cli.nodes.hosts import GangHost
from muster.agent.cli.printing import note, write
from muster.agent.host import end_signals
from muster.agent.host.end_signals import Ask
from muster.agent.logs import labels
from muster.client import FailedAsk, Gang, GangPart
from muster.client.together import PATIENCE_S
from muster.probes.kernel.dataclass import dataclass
from muster.v1 import job_pb2, log_pb2

#: Seconds between two looks at parts that say nothing, and for which a daemon may be silent.
LOOK_S, SILENT_S = 2.0, 60.0
#: Nodes to which a signal is passed on at the same time.
PASS_ON_AT_ONCE = 64
#: Seconds for which a daemon that was given up is asked to stop its part, once the job is over on the other nodes.
LEFT_S = 300.0


@dataclass(frozen=True, slots=True)
class _End:
    """How a part ended, as far as it is known: the last message of its output, or why that could not be read."""

    part: int
    last: log_pb2.ReadLogsResponse | None = None
    failure: CommandFailed | None = None

    @property
    def succeeded(self) -> bool:
        last = self.last
        return last is not None and last.state == job_pb2.JOB_STATE_SUCCEEDED and last.verdict.exit_code == 0


class GangFollow:
    """One try of a job on several nodes, at the terminal (or pipe) of this command, to its end."""

    def __init__(
        self,
        gang: Gang,
        name: str,
        hosts: list[GangHost],
        ended_at: dict[int, float],
        interrupts: Interrupts,
        *,
        show: bool,
        quiet: bool,
        label: bool,
    ) -> None:
        """`ended_at`: when parts ended that had ended before this command read their output; seconds since the epoch,
        by part. `interrupts`: handles signals since before the parts were started."""
        self._gang, self._name, self._hosts, self._ended_at = gang, name, hosts, ended_at
        self._interrupts = interrupts
        self._show, self._quiet, self._label = show, quiet, label
        self._ends: queue.SimpleQueue[_End] = queue.SimpleQueue()
        #: Orders to stop, reason and grace, that a daemon has not taken yet, by part.
        self._owed: dict[int, tuple[str, float | None]] = {}

    def to_end(self) -> tuple[int, bool]:
        """The exit code, and whether the job may be started again: it failed, and nobody stopped it."""
        lines = labels.LabelledLines(write, label=True) if self._label else labels.Raw(write)
        one = threading.Lock()
        places = {host.label: host.address for host in self._hosts}
        for number, part in enumerate(self._gang.parts):
            sink = _Merged(lines, part.node, one)
            reader = threading.Thread(
                target=self._read, args=(number, part, places[part.node], sink), name=part.node, daemon=True
            )
            reader.start()
        with self._interrupts.calling(self._order, self._pass_on):
            try:
                ends = self._collect()
            except KeyboardInterrupt:
                note(f"no longer waiting; {self._goes_on()}")
                return 128 + self._interrupts.first, False
            except StdoutFailed as failure:
                note(f"{failure.message}; {self._goes_on()}")
                code = failure.exit_code if failure.exit_code == Exit.PIPE_CLOSED else Exit.MUSTER_FAILED
                return code, False
        with one:
            lines.finish()
        code, failed = self._verdict(ends)
        self._insist()
        return code, failed and not self._interrupts.first

    def _read(self, number: int, part: GangPart, address: Address, sink: "_Merged") -> None:
        """In a thread of its own: the output of one part to its end."""
        request = log_pb2.ReadLogsRequest(job_id=part.spec.job_id, follow=True, events=True, only_losses=True)
        try:
            with connect(address) as connection:
                connection.quiet, connection.met = self._quiet, True  # it started the part: it may be restarting now
                last = follow.read(connection, request, sink)
                self._ends.put(_End(number, self._complete(connection, part, last)))
        except CommandFailed as failure:
            self._ends.put(_End(number, failure=failure))

    def _complete(
        self, connection: DaemonConnection, part: GangPart, last: log_pb2.ReadLogsResponse
    ) -> log_pb2.ReadLogsResponse:
        """The last message, with the verdict."""
        if not last.HasField("verdict"):
            request = job_pb2.WaitRequest(job_id=part.spec.job_id)
            job = connection.patiently(connection.jobs.Wait, request, None).job
            last.verdict.CopyFrom(job.verdict)
            last.state = job.state
        return last

    def _collect(self) -> list[_End]:
        """All ends in the order in which they came. With the first that is no success the others are stopped. Raises
        StdoutFailed, and CommandFailed where no daemon answers any more: then the job goes on without this command."""
        ends: dict[int, _End] = {}
        silent: dict[int, float] = {}
        every, stopped = set(range(len(self._gang.parts))), False
        while len(ends) < len(every):
            self._order_again()
            found: list[_End] = []
            with suppress(queue.Empty):
                found.append(self._ends.get(timeout=LOOK_S))
            if not found:
                found, reason = self._look(every - set(ends), silent)
                if reason and not stopped:
                    stopped = True
                    self._stop(reason, None, every - set(ends))
            for end in found:
                if isinstance(end.failure, StdoutFailed):
                    raise end.failure
                if end.last is None and not stopped and self._cut_off(silent):
                    raise CommandFailed(f"none of the nodes answers; {self._goes_on()}", Exit.MUSTER_FAILED)
                ends.setdefault(end.part, end)  # one that was given up may end after all
                if end.last is not None:
                    self._owed.pop(end.part, None)
                if not end.succeeded and not stopped:
                    stopped = True
                    if others := every - set(ends):
                        self._stop(f"{self._node(end)}: {_summary(end)}", None, others)
                if end.last is None:  # the job is over without this part, which may still run
                    self._owed.setdefault(end.part, (f"{self._node(end)}: {_summary(end)}", None))
        return list(ends.values())

    def _look(self, parts: set[int], silent: dict[int, float]) -> tuple[list[_End], str]:
        """What the readers of the output do not notice: parts whose daemon has not answered for SILENT_S, and, as a
        reason to stop the others, one that has failed while its output cannot be passed on. `silent`: since when a
        daemon does not answer."""
        given_up, reason = [], ""
        for part, job in self._gang.jobs(0.0, parts, LOOK_S).items():
            if not isinstance(job, FailedAsk):
                silent.pop(part, None)
                if job.state in (job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_LOST):
                    reason = reason or f"{self._gang.parts[part].node}: {job.verdict.summary}"
            elif time.monotonic() - silent.setdefault(part, time.monotonic()) >= SILENT_S:
                text = f"the daemon has not answered for {SILENT_S:g} s"
                given_up.append(_End(part, failure=CommandFailed(text, Exit.MUSTER_FAILED)))
        return given_up, reason

    def _cut_off(self, silent: dict[int, float]) -> bool:
        """Whether all daemons are silent, for longer than a restart takes: it is this node that reaches none."""
        return len(silent) == len(self._gang.parts) and time.monotonic() - max(silent.values()) > PATIENCE_S

    def _insist(self) -> None:
        """A part that was given up, or that could not be stopped, runs on without the others: its daemon is asked
        again for LEFT_S, or until a signal comes."""
        asked, end = self._interrupts.asked, time.monotonic() + LEFT_S
        if self._owed:
            nodes = ", ".join(self._gang.parts[part].node for part in sorted(self._owed))
            note(f"{nodes}: trying to stop the part there for up to {LEFT_S / 60:g} min; Ctrl-C leaves it")
        while self._owed and self._interrupts.asked == asked and time.monotonic() < end:
            self._order_again()
            if self._owed:
                time.sleep(LOOK_S / 4)
        for part in sorted(self._owed):
            again = f"`muster stop {self._gang.parts[part].spec.job_id}` there, once it answers"
            note(f"{self._gang.parts[part].node}: its part may still run: run {again}")

    def _order(self, ask: Ask, number: int) -> None:
        """Called in the thread of `Interrupts`."""
        name, kill = end_signals.name(number), ask is not Ask.STOP
        if not self._quiet:
            again = "press Ctrl-C again to kill it" if number == signal.SIGINT else "another one kills it"
            note(f"{name}: killing the job on all nodes" if kill else f"{name}: stopping the job; {again}")
        self._stop(name, 0.0 if kill else None, None)

    def _pass_on(self, number: int) -> None:
        """Called in a thread of `Interrupts`."""
        with ThreadPoolExecutor(min(len(self._gang.parts), PASS_ON_AT_ONCE)) as nodes:
            for part in self._gang.parts:
                call = partial(part.client.call, part.client.jobs.Signal, within_s=passing_on.ANSWER_S)
                nodes.submit(passing_on.pass_on, part.spec.job_id, number, call, part.node)

    def _stop(self, reason: str, grace_s: float | None, among: set[int] | None) -> None:
        """Orders parts to stop, all with None. Called in two threads. A daemon that does not take the order now gets it
        later (`_order_again`)."""
        refused = self._gang.stop(reason, grace_s, among)
        for part in range(len(self._gang.parts)) if among is None else among:
            if part not in refused:
                self._owed.pop(part, None)
                continue
            self._owed[part] = (reason, grace_s)
            note(f"{self._gang.parts[part].node}: cannot be stopped now, trying again: {refused[part]}")

    def _order_again(self) -> None:
        owed = dict(self._owed)
        for order in set(owed.values()):
            parts = {part for part, same in owed.items() if same == order}
            for part in parts - set(self._gang.stop(*order, parts, patience_s=0.0, answer_s=LOOK_S)):
                note(f"{self._gang.parts[part].node}: its part is being stopped")
                if self._owed.get(part) == order:  # the user has not asked for more meanwhile
                    self._owed.pop(part, None)

    def _verdict(self, ends: list[_End]) -> tuple[int, bool]:
        """Says how the job ended. Returns its exit code, that of the part that failed first, and whether it failed in
        such a way that another try is in order: not where somebody stopped it, nor at the end of its time."""
        failed = [end for end in ends if not end.succeeded]
        if not failed:
            if self._show:
                note(f"job {self._name} SUCCEEDED on {len(ends)} nodes")
            return 0, False
        # Of a job that is taken up again the ends come in any order.
        failed.sort(key=lambda end: self._ended_at.get(end.part, math.inf))
        # What was ended because of another part is no cause; nor is a node that only fell silent, if one says why.
        first = min(failed, key=_innocence)
        last = first.last
        again = last is not None and last.state == job_pb2.JOB_STATE_FAILED and last.verdict.reason != "TIMED_OUT"
        code = _code(first)
        if last is not None and last.state == job_pb2.JOB_STATE_STOPPED:  # so are all: as on one node, the first not 0
            code = next(filter(None, map(_code, failed)), 0)
        if self._quiet:
            return code, again
        if last is None:
            assert first.failure is not None
            told = f"{self._node(first)}: {first.failure.message}"
            note(f"job {self._name} LOST: {told}; the other nodes were stopped; its part there may still run")
            return code, False
        state = job_pb2.JobState.Name(last.state).removeprefix("JOB_STATE_")
        note(f"job {self._name} {state}: {self._node(first)}: {last.verdict.summary}")
        verdict, job_id = last.verdict, self._gang.parts[first.part].spec.job_id
        if advice := show.advice_of(verdict):
            cause = f"{verdict.cause}; " if verdict.cause else ""
            note(f"{self._node(first)}: {cause}{advice} (muster why {job_id} --address {self._address(first)})")
        for end in failed:
            if end.failure is not None and end is not first:
                note(f"{self._node(end)}: {end.failure.message}")
        return code, again

    def _node(self, end: _End) -> str:
        return self._gang.parts[end.part].node

    def _address(self, end: _End) -> Address:
        return next(host.address for host in self._hosts if host.label == self._node(end))

    def _goes_on(self) -> str:
        hosts = ",".join(host.written for host in self._hosts)
        return f"the job continues: `muster run --attach {self._name} --hosts {hosts}` takes it up again"


class _Merged:
    """The output of one node among that of the others, each line as `[node/rank]`. Any thread may feed it."""

    def __init__(self, lines: "labels.LabelledLines | labels.Raw", node: str, one: threading.Lock) -> None:
        self._lines, self._node, self._one = lines, node, one

    def feed(self, source: str, data: bytes, time: float) -> None:
        if source == "muster":
            note(f"{self._node}: " + data.decode("utf-8", "replace").rstrip("\n"))
            return
        with self._one:
            self._lines.feed(self._named(source), data, time)

    def cut(self, source: str) -> None:
        with self._one:
            self._lines.cut(self._named(source))

    def finish(self) -> None:
        """The lines that have not ended are passed on at the end of all nodes."""

    def _named(self, source: str) -> str:
        return f"{self._node}/{source.removeprefix('rank ')}"


def _summary(end: _End) -> str:
    if end.last is not None:
        return end.last.verdict.summary
    assert end.failure is not None
    return end.failure.message


def _code(end: _End) -> int:
    if end.last is None:
        return Exit.MUSTER_FAILED
    stopped = end.last.state == job_pb2.JOB_STATE_STOPPED  # 0 where all ranks ended well within the grace
    return end.last.verdict.exit_code or (0 if stopped else Exit.MUSTER_FAILED)


def _innocence(end: _End) -> int:
    """The least is to blame; of equal ones the first that ended."""
    if end.last is None:
        return 1
    return 2 if end.last.state == job_pb2.JOB_STATE_STOPPED else 0
