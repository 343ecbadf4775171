"""`muster run` and `start`: a job in the foreground, or in the background."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from muster.agent.cli.client.address import Address, naming_option, pass_address
from muster.agent.cli.exits import CallFailed, CommandFailed, Exit, NoDaemon, StdoutFailed, Why, not_started
from muster.agent.cli.printing import as_dict, emit, emit_json, note, on_terminal, short_format_option, write
from muster.agent.cli.spec import caller
from muster.agent.cli.spec.job_spec import Draft, is_utf8
from muster.agent.cli.spec.spec_options import spec_options
from muster.agent.host import end_signals
from muster.agent.host.end_signals import Ask
from muster.supervisors.launch.modes import modelarts
from muster.supervisors.model.spec import DEFAULT_GRACE_STEPS, FIELDS, Boot, JobSpec

if TYPE_CHECKING:
    from muster.agent.cli.client.calls import DaemonConnection
    from muster.agent.cli.client.follow import Sink
    from muster.agent.cli.client.interrupts import Interrupts
    from muster.agent.cli.live.job_line import JobLine
    from muster.agent.cli.live.step_rate import StepRate
    from muster.v1 import job_pb2, log_pb2

#: Seconds to wait for an answer if the daemon's socket exists: the daemon may be restarting.
RESTART_S = 5.0


@click.command(context_settings={"allow_interspersed_args": False})
@pass_address
@spec_options
@click.option("--standalone", "alone", is_flag=True, help="Start a daemon for this job only.")
@click.option("--log-dir", metavar="DIR", help="With --standalone: keep the ranks' logs here.")
@click.option(
    "--hosts",
    metavar="A,B",
    help="Run the job on these nodes together: for each daemon [NAME@]HOST[:PORT] (7443, with --tls-*) or unix:PATH.",
)
@click.option("--hosts-file", metavar="FILE", help="The same from a file with one host per line.")
@click.option("--attach", metavar="JOB", help="With --hosts: take up a job again that was started there.")
@click.option(
    "--no-boot-files",
    is_flag=True,
    help="In a ModelArts container: leave ma-pre-start.sh (or .py) and pip-requirements.txt beside the script alone.",
)
@click.option(
    "--no-label",
    is_flag=True,
    help="Print the output of several ranks unchanged: no `[rank N] `, no wait for whole lines.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show progress on stderr even if it is not a terminal.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors of muster itself on stderr.")
def run(
    address: Address,
    draft: Draft,
    alone: bool,
    log_dir: str | None,
    hosts: str | None,
    hosts_file: str | None,
    attach: str | None,
    no_boot_files: bool,
    no_label: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Run a job, show its output, and exit with its exit code.

    The output of the ranks goes to stdout; with several ranks, each line begins with `[rank N] `. Ctrl-C and SIGTERM
    stop the job, with its grace. A second Ctrl-C kills it, and so does a second SIGTERM that comes more than 4 s after
    the first. An earlier one counts as the first, since schedulers send SIGTERM twice.

    The ranks run in this folder and with this umask, as with srun and torchrun; a script `train.py` that is not
    executable is run by python3. (A daemon of another node, ranks of another user: as `start --help` says.)

    The ranks get a small default environment and the variables from --env. Without a daemon, or with --standalone,
    muster starts a daemon for this job only, and the ranks get the whole environment of this command. With --hosts the
    job has a part on each of these nodes, all or none of which begin; each line begins with `[NODE/RANK] `, and
    --max-restarts starts all parts again. In a ModelArts
    container muster then replaces the ModelArts launcher: it uses the launcher's rank table, job name, log folder and
    working folder.

    Exit code: the job's (128+n for a signal; of several ranks, the first failure's), 126 not executable, 127 not found,
    125 if muster itself failed. Before the job is accepted: 2 wrong usage or spec, 4 no daemon, 5 refused.
    """
    if alone and (option := naming_option(click.get_current_context())):
        raise click.UsageError(
            f"{option} names a daemon, but --standalone starts one of its own: give only one of them"
        )
    if log_dir is not None and not alone:
        raise click.UsageError("--log-dir needs --standalone: any other daemon has its own log folder")
    show = (verbose or on_terminal()) and not quiet
    several = hosts is not None or hosts_file is not None
    if attach is not None and not several:
        raise click.UsageError("--attach needs --hosts or --hosts-file: which daemons have the job")
    try:
        if several:
            code = _on_several(draft, hosts, hosts_file, attach, alone, show=show, quiet=quiet, label=not no_label)
        elif alone or not _answers(address, quiet):
            log_dir = _as_launcher(draft, log_dir, boot_files=not no_boot_files)
            code = _standalone(draft.spec(), log_dir, show, quiet, not no_label)
        else:
            code = _on_a_daemon(address, draft, show=show, quiet=quiet, label=not no_label)
    except CommandFailed as failure:
        from muster.agent.cli.client import termination_log

        termination_log.write(failure.message)
        raise
    raise click.exceptions.Exit(code)


def _on_several(
    draft: Draft,
    hosts: str | None,
    hosts_file: str | None,
    attach: str | None,
    alone: bool,
    *,
    show: bool,
    quiet: bool,
    label: bool,
) -> int:
    """The exit code. Raises CommandFailed."""
    from muster.agent.cli.nodes import gang_run
    from muster.agent.cli.nodes import hosts as several

    context = click.get_current_context()
    if alone or naming_option(context):
        other = "--standalone" if alone else naming_option(context)
        raise click.UsageError(f"{other}: not together with --hosts, which names the daemons")
    found = several.read(context, hosts, hosts_file)
    run = gang_run.GangRun(found, show=show, quiet=quiet, label=label)
    if attach is not None:
        if draft.asked.command:
            raise click.UsageError("--attach takes no command: the job has one")
        if draft.written:
            raise click.UsageError(f"{next(iter(draft.written.values()))}: not with --attach: the job has its own")
        return run.attach(attach)
    return run.run(several.spec_of(draft, found), "master_port" in draft.written)


def _on_a_daemon(address: Address, draft: Draft, *, show: bool, quiet: bool, label: bool) -> int:
    """The exit code. Raises CommandFailed."""
    from muster.agent.cli.client.calls import connect
    from muster.agent.cli.client.interrupts import Interrupts

    folder = _fill(address, draft)
    spec = draft.spec()
    with Interrupts() as interrupts, connect(address) as connection:
        job = _Attached(connection, interrupts, spec, show=show, quiet=quiet, label=label, own=False)
        job.folder = folder
        return job.run()


def _fill(address: Address, draft: Draft) -> tuple[int, int] | None:
    """For a daemon that was there before. Returns the identity of this folder where the job is to run in it. Raises
    CommandFailed."""
    return caller.fill(draft) if address.path is not None else None  # it is on this node, as this folder is


def _answers(address: Address, quiet: bool) -> bool:
    """Whether there is a daemon. Raises NoDaemon where there may be one that this user cannot reach, and where just
    this address was asked for: a job that was meant for it must not run elsewhere."""
    end = time.monotonic() + RESTART_S
    while True:
        try:
            address.probe()
            return True
        except NoDaemon as failure:
            if failure.why is Why.REFUSED and time.monotonic() < end:
                time.sleep(0.1)
                continue
            if address.explicit or failure.why not in (Why.ABSENT, Why.REFUSED):
                raise
        if not quiet:
            note(f"no daemon at {address}: starting one for this job only")
        return False


def _as_launcher(draft: Draft, log_dir: str | None, *, boot_files: bool) -> str | None:
    """Fills the draft up with what a launcher without a daemon would take from its surroundings; returns the folder for
    the logs, None for one of our own. Raises CommandFailed."""
    caller.fill_umask(draft)
    asked = draft.asked
    env = _environment() | asked.env
    draft.asked = asked = replace(asked, env=env, command=caller.with_python(asked.command, asked.code))
    table = asked.rank_table or modelarts.rank_table(asked.boot, env)
    if not os.path.isabs(table):
        draft.asked = replace(draft.asked, rank_table=table)  # relative to this folder, as the launcher would take it
    if not table and not modelarts.in_container(env):
        from muster.agent.cli.spec import kube_pod, slurm_step

        if env.get("SLURM_JOB_ID"):
            slurm_step.fill(draft, env)
        elif kube_pod.concerns(env):
            kube_pod.fill(draft, env)
    if "workdir" not in draft.written and not (table and modelarts.working_folder(env, 0)):
        draft.asked = replace(draft.asked, workdir=caller.here())
    if not modelarts.in_container(env):
        return log_dir
    if boot_files:
        for field, path in modelarts.beside_boot_file(asked.command, asked.workdir or caller.here()).items():
            if field not in draft.written:
                draft.say(FIELDS[field], path, "beside the boot file")
    if table:
        address, port = modelarts.meeting_point(env)
        address, port = asked.master_addr or address, asked.master_port or port
        draft.asked = replace(draft.asked, master_addr=address, master_port=port)
    if "job_id" not in draft.written:
        draft.asked = replace(draft.asked, job_id=modelarts.job_name("", env))
        if trouble := modelarts.name_trouble("another id", env):
            note(trouble)
    return log_dir or modelarts.log_folder(env)


def _environment() -> dict[str, str]:
    """This process' environment, as far as it can be passed on."""
    env = {}
    for name, value in os.environ.items():
        if (name + value).isascii() or is_utf8(name + value):
            env[name] = value
        else:
            note(f"environment: leaving out {name!a}: its value is not UTF-8")
    return env


def _standalone(spec: JobSpec, log_dir: str | None, show: bool, quiet: bool, label: bool) -> int:
    from muster.agent.cli.client import standalone
    from muster.agent.cli.client.interrupts import Interrupts

    grace_s = sum(spec.grace_steps or DEFAULT_GRACE_STEPS)
    with (
        Interrupts(hangup=True) as interrupts,
        standalone.bring(log_dir, grace_s, interrupts, spec.job_id, spec.node_rank) as own,
    ):
        # All of this takes a while, during which the daemon starts.
        from muster.agent.cli.client import follow  # noqa: F401
        from muster.agent.cli.client.calls import connect
        from muster.agent.cli.spec import submit  # noqa: F401
        from muster.agent.logs import labels  # noqa: F401

        with connect(own.address) as connection:
            own.wait_ready()
            job = _Attached(connection, interrupts, spec, show=show, quiet=quiet, label=label, own=True)
            code = job.run()
        # msrun leaves a file of each worker, too, whatever the end was.
        own.keep_logs = not job.succeeded or spec.boot == Boot.MSRUN
        own.failed = job.failed
    if own.report is not None and not quiet:
        note(f"the report of the job is {own.report}")
    if own.keep_logs and (log_dir is None or interrupts.first) and not quiet:
        note(f"the logs of the ranks are in {own.log_dir}")
    if own.kept is not None and not job.succeeded and not quiet:
        note(f"see what happened: muster why {own.kept.job_id}; muster logs {own.kept.job_id}")
    return code


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


class _Attached:
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
        with self._interrupts.calling(self._stop):
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
        """Below the output, where there is a terminal for it. Nothing of it is imported elsewhere."""
        if self._quiet or not on_terminal():
            return nullcontext()
        from muster.agent.cli.live import status_line

        if not status_line.wanted():
            return nullcontext()
        from muster.agent.cli.live.job_line import JobLine

        return JobLine(self._connection, job)

    def _count(self, job: "job_pb2.Job") -> int:
        """Its ranks on this node; a job with a rank table has them only once the table exists. Raises CallFailed,
        NoDaemon."""
        from muster.v1 import job_pb2

        if not job.ranks:
            job = self._connection.patiently(self._connection.jobs.Get, job_pb2.GetRequest(job_id=job.job_id)).job
        return len(job.ranks)

    def _verdict(self, last: "log_pb2.ReadLogsResponse") -> int:
        from muster.agent.cli import show
        from muster.agent.cli.client import termination_log
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
            from muster.agent.cli.spec import slurm_step

            name += slurm_step.time_limit(os.environ, time.time())
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


@click.command(context_settings={"allow_interspersed_args": False})
@pass_address
@spec_options
@short_format_option
def start(address: Address, draft: Draft, as_json: bool) -> None:
    """Start a job and print its id.

    The ranks run in this folder and with this umask, and get a small default environment and the variables from --env.
    With a daemon of another node (HOST:PORT), as another user (--user) and with ModelArts' variables in --env each rank
    runs in a folder of its own, unless --workdir names one. With an id that exists and the same spec, `start` prints
    the existing job; with another spec it fails with exit code 5.
    """
    folder = _fill(address, draft)
    spec = draft.spec()
    from muster.agent.cli.client.calls import connect
    from muster.agent.cli.spec.submit import submit

    with connect(address) as connection:
        answer = submit(connection, spec, folder=folder)
    if answer.already_existed and on_terminal():
        note(f"job {answer.job.job_id} exists already, with the same spec")
    if as_json:
        emit_json(as_dict(answer.job))
    else:
        emit(f"{answer.job.job_id}\n")
