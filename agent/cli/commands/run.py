"""`muster run` and `start`: a job in the foreground, or in the background."""

import os
import time
from typing import TYPE_CHECKING

import click

from muster.agent.cli.client.address import Address, naming_option, pass_address
from muster.agent.cli.exits import CommandFailed, NoDaemon, Why
from muster.agent.cli.printing import as_dict, emit, emit_json, note, on_terminal, short_format_option
from muster.agent.cli.spec import caller
from muster.agent.cli.spec.job_spec import Draft
from muster.agent.cli.spec.spec_options import spec_options
from muster.supervisors.model.spec import Boot, JobSpec

if TYPE_CHECKING:
    pass

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
@click.option("--attach", metavar="JOB", help="With --hosts: attach to a job that was started there.")
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
    stop the job, with its grace. A second Ctrl-C kills it, and so does a second SIGTERM more than 4 s after the first.
    An earlier SIGTERM changes nothing, because schedulers send it twice.

    The ranks run in this folder and with this umask, as with srun and torchrun; python3 runs a script `train.py` that
    is not executable. For a daemon on another node or ranks of another user, see `muster start --help`.

    The ranks get a small default environment and the variables from --env. Without a daemon, or with --standalone,
    muster starts a daemon for this job only, and the ranks get the whole environment of this command. In a ModelArts
    container muster then replaces the ModelArts launcher: it uses the launcher's rank table, job name, log folder and
    working folder.

    With --hosts each of these nodes runs a part of the job. All parts start, or none. Each line begins with
    `[NODE/RANK] `, and --max-restarts restarts all parts.

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
    caller.fill_boot_files(draft, wanted=not no_boot_files)
    if attach is not None and not several:
        raise click.UsageError("--attach needs --hosts or --hosts-file: name the daemons that have the job")
    try:
        if several:
            code = _on_several(draft, hosts, hosts_file, attach, alone, show=show, quiet=quiet, label=not no_label)
        elif alone or not _answers(address, quiet):
            from muster.agent.cli.foreground import launcher

            log_dir = launcher.fill(draft, log_dir, boot_files=not no_boot_files)
            code = _standalone(draft.spec(), log_dir, show, quiet, not no_label)
        else:
            code = _on_a_daemon(address, draft, show=show, quiet=quiet, label=not no_label)
    except CommandFailed as failure:
        from muster.agent.cli.foreground import termination_log

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
        raise click.UsageError(f"{other}: not together with --hosts, which names the daemons: give only one of them")
    found = several.read(context, hosts, hosts_file)
    run = gang_run.GangRun(found, show=show, quiet=quiet, label=label)
    if attach is not None:
        if draft.asked.command:
            raise click.UsageError("--attach takes no command: the job has one")
        if draft.written:
            option = next(iter(draft.written.values()))
            raise click.UsageError(f"{option}: not with --attach, since the job has its own: leave it out")
        return run.attach(attach)
    return run.run(several.spec_of(draft, found), "master_port" in draft.written)


def _on_a_daemon(address: Address, draft: Draft, *, show: bool, quiet: bool, label: bool) -> int:
    """The exit code. Raises CommandFailed."""
    from muster.agent.cli.client.calls import connect
    from muster.agent.cli.client.interrupts import Interrupts
    from muster.agent.cli.foreground.attached_job import AttachedJob

    folder = _fill(address, draft)
    spec = draft.spec()
    with Interrupts() as interrupts, connect(address) as connection:
        job = AttachedJob(connection, interrupts, spec, show=show, quiet=quiet, label=label, own=False)
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


def _standalone(spec: JobSpec, log_dir: str | None, show: bool, quiet: bool, label: bool) -> int:
    from muster.agent.cli.client import standalone
    from muster.agent.cli.client.interrupts import Interrupts

    grace_s = sum(spec.stop_steps())
    with (
        Interrupts(hangup=True) as interrupts,
        standalone.bring(log_dir, grace_s, interrupts, spec.job_id, spec.node_rank) as own,
    ):
        # All of this takes a while, during which the daemon starts.
        from muster.agent.cli.client import follow  # noqa: F401
        from muster.agent.cli.client.calls import connect
        from muster.agent.cli.foreground.attached_job import AttachedJob
        from muster.agent.cli.spec import submit  # noqa: F401
        from muster.agent.logs import labels  # noqa: F401

        with connect(own.address) as connection:
            own.wait_ready()
            job = AttachedJob(connection, interrupts, spec, show=show, quiet=quiet, label=label, own=True)
            code = job.run()
        # msrun leaves a file of each worker, too, whatever the end was.
        own.keep_logs = not job.succeeded or spec.boot == Boot.MSRUN
        own.failed = job.failed
    if own.report is not None and not quiet:
        note(f"the report of the job is {own.report}")
    if own.keep_logs and (log_dir is None or interrupts.first) and not quiet:
        note(f"the logs of the ranks are in {own.log_dir if log_dir is None else os.path.abspath(log_dir)}")
    if own.kept is not None and not job.succeeded and not quiet:
        note(f"see what happened: muster why {own.kept.job_id}; muster logs {own.kept.job_id}")
    return code


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
