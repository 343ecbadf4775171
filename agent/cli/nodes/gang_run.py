"""`muster run --hosts`: one job on several nodes, started on all of them or on none, and again after a failure."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from muster.agent.cli.client.calls import caller_name, credentials_of
from muster.agent.cli.client.interrupts import Interrupts
from muster.agent.cli.exits import BadSpec, CommandFailed, Exit, NoDaemon
from muster.agent.cli.nodes.gang_follow import SILENT_S, GangFollow
from muster.agent.cli.nodes.hosts import GangHost
from muster.agent.cli.printing import note
from muster.agent.host import end_signals
from muster.agent.messages.spec_message import spec_to
from muster.client import BlockingClient, FailedAsk, Gang, GangNotStarted, GangPart, connect_blocking
from muster.client.gang import ATTEMPT, FINAL, PORTS, SIZE, attempt_id, find, label_number, labels_of
from muster.client.together import PATIENCE_S
from muster.supervisors.model import restart
from muster.supervisors.model.spec import JobSpec, Violation
from muster.v1 import job_pb2

#: How often another port is tried where one is in use.
TRIES = 3
MAX_ID = 128
#: Exit codes of a command that cannot be executed: another try would end in the same way.
_NEVER = (126, 127)


class GangRun:
    """A job on several nodes, at the terminal (or pipe) of this command."""

    def __init__(self, hosts: list[GangHost], *, show: bool, quiet: bool, label: bool) -> None:
        self._hosts = hosts
        self._show, self._quiet, self._label = show, quiet, label
        self._gang = Gang(())
        self._name = ""
        self._interrupts = Interrupts()

    def run(self, spec: JobSpec, port_given: bool) -> int:
        """Starts the job and follows it to its end, over its restarts; the exit code. `spec`: of the first node.
        `port_given`: its master_port is not to be changed. Raises CommandFailed."""
        self._name = spec.job_id
        longest = len(attempt_id(spec.job_id, spec.max_restarts))
        if spec.max_restarts and longest > MAX_ID:
            text = (
                f"{spec.job_id!r}: with the number of a restart behind it it has {longest} characters: at most {MAX_ID}"
            )
            raise BadSpec([Violation("--job-id", text)])
        begun, attempt = time.monotonic(), 0
        with self._interrupts, self._clients() as clients:
            while True:
                self._start(spec, attempt, port_given, clients)
                code, again = self._follow({})
                if not again or attempt >= spec.max_restarts or code in _NEVER:
                    return code
                with self._told_of("no longer restarted"):
                    if not self._all_over():
                        return code
                if spec.max_runtime is not None:  # of all tries together
                    left = spec.max_runtime - (time.monotonic() - begun)
                    if left <= 0:
                        return code
                    spec, begun = replace(spec, max_runtime=left), time.monotonic()
                attempt += 1
                delay = restart.delay(spec, attempt)
                note(f"restart {attempt} of {spec.max_restarts} on all {len(self._hosts)} nodes in {delay:.1f} s")
                with self._told_of("no longer restarted"):
                    time.sleep(delay)

    def _all_over(self) -> bool:
        """Whether no part of the last try runs any more, as its daemon says: else two tries would run at once."""
        for part, job in self._gang.jobs(PATIENCE_S).items():
            node = self._gang.parts[part].node
            if isinstance(job, FailedAsk):
                note(f"{node}: {job}; the job is not restarted: its part there may still run")
                return False
            if job.state not in FINAL:
                note(f"{node}: its part has not ended; the job is not restarted")
                return False
        return True

    def attach(self, name: str) -> int:
        """Takes a job up again that another command started; the exit code. Raises CommandFailed."""
        self._name = name
        with self._clients() as clients:
            by_node = {host.label: clients[host.label] for host in self._hosts}
            gang, silent = find(name, by_node, SILENT_S)
            for node, failed in silent.items():
                note(f"{node}: {failed}")
            if gang is None:
                raise CommandFailed(
                    f"no job {name!r} of several nodes at {', '.join(host.label for host in self._hosts)}",
                    Exit.NO_DAEMON if silent else Exit.NO_SUCH_JOB,
                )
            self._gang = gang
            with self._interrupts:
                return self._taken_up()

    def _taken_up(self) -> int:
        gang = self._gang
        jobs = {part: job for part, job in gang.jobs().items() if not isinstance(job, FailedAsk)}
        ended_at = {part: job.ended_at.ToNanoseconds() / 1e9 for part, job in jobs.items() if job.HasField("ended_at")}
        size = label_number(gang.parts[0].spec, SIZE)
        bad = {job.state for job in jobs.values()} & FINAL - {job_pb2.JOB_STATE_SUCCEEDED}
        if len(jobs) == size and not bad and any(job.awaits_release for job in jobs.values()):
            # The command died before the last part was released.
            try:
                self._begin(gang.begin)
            except GangNotStarted as failure:
                raise self._not_started(failure, label_number(gang.parts[0].spec, ATTEMPT)) from None
        code = self._follow(ended_at)[0]
        if missing := size - len(gang.parts):
            note(f"{missing} of {size} parts of the job are on other hosts: name all of them with --hosts")
        return code or (Exit.MUSTER_FAILED if missing else 0)

    def _begin(self, begin: Callable[[], None]) -> None:
        """Calls `start` or `begin` of the gang. Raises GangNotStarted, and CommandFailed for a signal by which nothing
        was started. One that comes when all parts have begun is an order to stop, as it is later."""
        try:
            with self._interrupts.taking_back():
                begin()
        except KeyboardInterrupt:
            if not self._gang.begun:
                raise self._interrupted(f"stopped before the job started{self._gang.left}") from None

    @contextmanager
    def _told_of(self, told: str) -> Iterator[None]:
        """Inside, where nothing of the job runs, a signal is a CommandFailed that says `told`."""
        try:
            with self._interrupts.taking_back():
                yield
        except KeyboardInterrupt:
            raise self._interrupted(told) from None

    def _interrupted(self, told: str) -> CommandFailed:
        number = self._interrupts.first
        return CommandFailed(f"{end_signals.name(number)}: {told}", 128 + number)

    def _follow(self, ended_at: dict[int, float]) -> tuple[int, bool]:
        return GangFollow(
            self._gang,
            self._name,
            self._hosts,
            ended_at,
            self._interrupts,
            show=self._show,
            quiet=self._quiet,
            label=self._label,
        ).to_end()

    # --- start --------------------------------------------------------------------------------------------------------

    def _start(self, spec: JobSpec, attempt: int, port_given: bool, clients: dict[str, BlockingClient]) -> None:
        for tried in range(TRIES):
            if not port_given:
                spec = replace(spec, master_port=random.choice(PORTS))
            self._gang = Gang(self._parts(spec, attempt, clients))
            try:
                self._begin(self._gang.start)
            except GangNotStarted as failure:
                if set(failure.reasons.values()) == {"PORT_IN_USE"} and not port_given and tried + 1 < TRIES:
                    continue
                raise self._not_started(failure, attempt) from None
            if self._show:
                where = ", ".join(host.label for host in self._hosts)
                note(f"job {self._name} runs on {where}" + (f" (restart {attempt})" if attempt else ""))
            return

    def _not_started(self, failure: GangNotStarted, attempt: int) -> CommandFailed:
        for host in self._hosts:
            if failure.reasons.get(host.label) == "UNAVAILABLE":
                try:
                    host.address.probe()
                except NoDaemon as found:  # knows more than gRPC, and what to do
                    note(f"{host.label}: {found.message}")
        code = Exit.NO_DAEMON if set(failure.reasons.values()) <= _NO_ANSWER else Exit.REFUSED
        text = f"job {self._name} was not started on any node: {failure}"
        return CommandFailed(text, Exit.MUSTER_FAILED if attempt else code)

    def _parts(self, spec: JobSpec, attempt: int, clients: dict[str, BlockingClient]) -> list[GangPart]:
        size = len(self._hosts)
        job_id = attempt_id(self._name, attempt)
        parts = []
        for number, host in enumerate(self._hosts):
            env = spec.env | ({"TORCHELASTIC_RESTART_COUNT": str(attempt)} if attempt else {})
            marks = spec.labels | labels_of(self._name, number, size, attempt)
            # A failure is for all nodes: this command starts all of them again.
            on_hang = "stop" if spec.on_hang == "restart" else spec.on_hang
            mine = replace(
                spec, job_id=job_id, node_rank=number, env=env, labels=marks, max_restarts=0, on_hang=on_hang
            )
            parts.append(GangPart(host.label, clients[host.label], spec_to(mine, secrets=True)))
        return parts

    @contextmanager
    def _clients(self) -> Iterator[dict[str, BlockingClient]]:
        with ExitStack() as stack:
            yield {
                host.label: stack.enter_context(
                    connect_blocking(str(host.address), caller_name(), credentials_of(host.address))
                )
                for host in self._hosts
            }


#: Reasons of daemons that did not answer at all.
_NO_ANSWER = {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
