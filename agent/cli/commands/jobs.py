"""`muster stop`, `wait`, `rm`, `signal`: commands that end a job, wait for its end, remove what it left, and tell its
ranks something."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.exits import CallFailed, CommandFailed, Exit, NoDaemon
from muster.agent.cli.parameters import DURATION, WHOLE
from muster.agent.cli.printing import as_dict, emit, emit_json, format_option, note, note_failure, on_terminal
from muster.agent.text import clean

if TYPE_CHECKING:
    from muster.v1 import job_pb2

#: Why a job cannot be stopped that `rm --force` removes all the same, if none of its processes lives.
_REMOVED_ALL_THE_SAME = frozenset({"JOB_NOT_FOUND", "JOURNAL_DAMAGED", "SUPERVISOR_UNREACHABLE"})
#: Jobs that `stop --all` waits for at the same time.
_AT_ONCE = 64


@click.command()
@pass_address
@click.argument("jobs", nargs=-1, metavar="JOB...")
@click.option("--all", "every", is_flag=True, help="Stop all jobs of the node, in parallel.")
@click.option("--grace", metavar="DURATION", type=DURATION, help="Time from SIGTERM to SIGKILL; 0 kills at once.")
@click.option("--timeout", metavar="DURATION", type=DURATION, help="Wait this long for the end; default: grace + 35s.")
@click.option("--reason", metavar="TEXT", default="", help="Reason, for events and `muster why`.")
@format_option
def stop(
    address: Address,
    jobs: tuple[str, ...],
    every: bool,
    grace: float | None,
    timeout: float | None,
    reason: str,
    as_json: bool,
) -> None:
    """Stop jobs and everything that they started.

    Returns when the jobs have ended and their cards are free, and prints their states. The exit code is 1 if a job has
    not ended in time, or a process still holds its cards. A job that has already ended does not change. If the disk
    cannot store the record of the end, the command returns once no process of the job is left, and says so.
    """
    from muster.agent.cli.client.calls import connect, proto_duration, utf8
    from muster.v1 import job_pb2

    if bool(jobs) == every:
        raise click.UsageError("name the jobs, or give --all")
    with connect(address) as connection:
        stopped: list[job_pb2.Job] = []
        if every:
            from muster.agent.cli.commands.ps import list_jobs

            jobs = tuple(job.job_id for job in list_jobs(connection, False, {}))

        def one(job_id: str) -> None:
            request = job_pb2.StopRequest(job_id=utf8(job_id, "JOB"), reason=utf8(reason, "--reason"))
            if grace is not None:
                request.grace.CopyFrom(proto_duration(grace))
            if timeout is not None:
                request.timeout.CopyFrom(proto_duration(timeout))
            answer = connection.call(connection.jobs.Stop, request, None)
            stopped.append(answer.job)
            for text in answer.remarks:
                note(f"job {answer.job.job_id}: {text}")
            if not (answer.ended or answer.gone):
                raise _not_ended(answer.job)
            if not as_json:
                emit(_line(answer.job))
            if answer.job.held_by:
                raise _cards_held(answer.job)

        with _stopping(jobs):
            code = _each(jobs, one, at_once=_AT_ONCE if every else 1)
    if as_json:
        emit_json({"jobs": [as_dict(job) for job in stopped]})
    raise click.exceptions.Exit(code)


def _stopping(jobs: Sequence[str]) -> AbstractContextManager[object]:
    """A line for a person. Without a terminal, nothing is imported for it."""
    if not on_terminal():
        return nullcontext()
    from muster.agent.cli.live.at_terminal import working

    return working(f"stopping {clean(jobs[0]) if len(jobs) == 1 else f'{len(jobs)} jobs'}")


@click.command(short_help="Wait for a job's end.")
@pass_address
@click.argument("job", metavar="JOB")
@click.option("--timeout", metavar="DURATION", type=DURATION, help="Give up after this time with exit code 124.")
@format_option
def wait(address: Address, job: str, timeout: float | None, as_json: bool) -> None:
    """Wait for a job's end, print its state and exit with its exit code.

    Other exit codes: 124 timeout, 3 no such job, 4 no daemon, 125 muster itself failed.
    """
    from muster.agent.cli.client.calls import connect, proto_duration, utf8
    from muster.agent.cli.live import at_terminal
    from muster.v1 import job_pb2

    end = None if timeout is None else time.monotonic() + timeout
    with connect(address) as connection:
        address.probe()  # says at once that there is no daemon; one that goes from here on is being restarted
        name = utf8(job, "JOB")
        # At once: there is no such job.
        found = connection.patiently(connection.jobs.Get, job_pb2.GetRequest(job_id=name)).job
        request = job_pb2.WaitRequest(job_id=name)
        if end is not None:
            request.timeout.CopyFrom(proto_duration(max(0.0, end - time.monotonic())))
        try:
            with at_terminal.job_line(connection, found):
                answer = connection.patiently(connection.jobs.Wait, request, None)
        except (CallFailed, NoDaemon) as failure:
            if failure.exit_code != Exit.NO_SUCH_JOB:
                failure.exit_code = int(Exit.MUSTER_FAILED)
            raise
    if as_json:
        emit_json(as_dict(answer.job))
    if not answer.ended:
        raise CommandFailed(f"job {job} has not ended: it is {_state(answer.job)}", Exit.TIMEOUT)
    if not as_json:
        emit(_line(answer.job))
    raise click.exceptions.Exit(answer.job.verdict.exit_code)


@click.command(short_help="Remove ended jobs.")
@pass_address
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--keep-logs", is_flag=True, help="Keep the log files of the ranks.")
@click.option(
    "-f",
    "--force",
    is_flag=True,
    help="Stop a running job first; also remove the files of a job whose journal is damaged.",
)
def rm(address: Address, jobs: tuple[str, ...], keep_logs: bool, force: bool) -> None:
    """Remove ended jobs: their journal, their workspace and their logs."""
    from muster.agent.cli.client.calls import connect, utf8
    from muster.v1 import job_pb2

    with connect(address) as connection:

        def one(job_id: str) -> None:
            utf8(job_id, "JOB")
            answer = job_pb2.StopResponse(ended=True)
            if force:
                stop = job_pb2.StopRequest(job_id=job_id, reason="muster rm --force")
                try:
                    answer = connection.call(connection.jobs.Stop, stop, None)
                except CallFailed as failure:
                    if failure.reason not in _REMOVED_ALL_THE_SAME:
                        raise
            request = job_pb2.DeleteRequest(job_id=job_id, keep_logs=keep_logs, force=force)
            try:
                left = connection.call(connection.jobs.Delete, request).left
            except CallFailed as failure:
                if failure.reason == "JOB_NOT_ENDED" and not answer.ended:
                    raise _not_ended(answer.job) from None
                if failure.reason == "JOB_NOT_ENDED" and not force:
                    raise CommandFailed(f"{failure.message}, or give --force", Exit.REFUSED) from None
                raise
            for text in left:
                note(text)
            emit(f"{clean(job_id)}\n")

        code = _each(jobs, one)
    raise click.exceptions.Exit(code)


@click.command(short_help="Send a signal to the ranks of a job.")
@pass_address
@click.argument("job", metavar="JOB")
@click.option("-s", "--signal", "name", metavar="SIGNAL", required=True, help="Name or number: USR1, SIGUSR1, 10.")
@click.option("-r", "--rank", "ranks", metavar="RANK", type=WHOLE, multiple=True, help="Only to this rank. Repeatable.")
@click.option("--force", is_flag=True, help="Also to ranks that do not handle the signal, which usually ends them.")
@format_option
def signal(address: Address, job: str, name: str, ranks: Sequence[int], force: bool, as_json: bool) -> None:
    """Send a signal to the ranks of a job, such as USR1 to have them save a checkpoint.

    In each rank it goes to the main process, if that handles it; behind a shell or a launcher, to the first process
    that does. A rank without one is left alone and named, and the exit code is 1. To end a job, use `muster stop`.
    """
    from muster.agent.cli.client.calls import connect, utf8
    from muster.agent.cli.foreground import passing_on
    from muster.v1 import job_pb2

    request = job_pb2.SignalRequest(job_id=utf8(job, "JOB"), signal=utf8(name, "--signal"), force=force)
    request.ranks.extend(sorted(set(ranks)))
    with connect(address) as connection:
        answer = connection.call(connection.jobs.Signal, request)
    missed = [one for one in answer.ranks if not one.pids]
    if as_json:
        emit_json(as_dict(answer))
    else:
        for text in passing_on.texts([one for one in answer.ranks if one.pids], answer.signal):
            emit(f"{clean(job)}: {text}\n")
        for text in passing_on.texts(missed, answer.signal):
            note(f"{clean(job)}: {text}")
    raise click.exceptions.Exit(int(Exit.FAILURE) if missed else 0)


def _each(jobs: tuple[str, ...], one: Callable[[str], None], at_once: int = 1) -> int:
    """Does it for every job, also after a failure; the exit code is the first failure's. No daemon ends it."""

    def attempt(job_id: str) -> int:
        try:
            one(job_id)
        except NoDaemon:
            raise
        except CommandFailed as failure:
            note_failure(failure)
            return failure.exit_code
        return 0

    if at_once == 1:
        codes = [attempt(job_id) for job_id in jobs]
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(at_once) as threads:
            codes = list(threads.map(attempt, jobs))
    return next(filter(None, codes), 0)


def _not_ended(job: "job_pb2.Job") -> CommandFailed:
    lines = [f"job {job.job_id} has not ended: it is {_state(job)}", *job.warnings]
    if job.living:
        lines.append(f"its processes still run: {', '.join(job.living)}")
    return CommandFailed("\n".join(lines))


def _cards_held(job: "job_pb2.Job") -> CommandFailed:
    return CommandFailed("\n".join([f"job {job.job_id} has ended, but its cards are not free", *job.held_by]))


def _state(job: "job_pb2.Job") -> str:
    from muster.agent.cli import show

    return show.state(job.state)


def _line(job: "job_pb2.Job") -> str:
    return f"{clean(job.job_id)} {_state(job)}\n"
