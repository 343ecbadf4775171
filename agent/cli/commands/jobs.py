"""`muster stop`, `wait`, `rm`, `ps`: commands about whole jobs."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.exits import CallFailed, CommandFailed, Exit, NoDaemon
from muster.agent.cli.parameters import DURATION, Parsed, pair
from muster.agent.cli.printing import (
    as_dict,
    columns,
    emit,
    emit_json,
    emit_json_list,
    format_option,
    note,
    note_failure,
    wide,
)
from muster.agent.text import clean, command_line, shorten, span, table, table_parts

if TYPE_CHECKING:
    from muster.agent.cli.client.calls import DaemonConnection
    from muster.v1 import job_pb2

#: Jobs of the first page, which comes soon, and of each further page.
_FIRST_PAGE, PAGE = 100, 500
#: Seconds between two looks of `ps --watch`.
WATCH_S = 1.0
HEAD = ("JOB", "STATE", "RANKS", "CARDS", "ACCEPTED", "RAN", "EXIT", "COMMAND")
#: What is left out where a line is too narrow for a long id, one after the other.
_LEFT_OUT = ("RAN", "CARDS", "RANKS")
#: Characters of a command where nobody says how many fit into a line, and where too few do.
_COMMAND_WIDTH, _LEAST_COMMAND = 60, 12
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

        code = _each(jobs, one, at_once=_AT_ONCE if every else 1)
    if as_json:
        emit_json({"jobs": [as_dict(job) for job in stopped]})
    raise click.exceptions.Exit(code)


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
    from muster.v1 import job_pb2

    end = None if timeout is None else time.monotonic() + timeout
    with connect(address) as connection:
        address.probe()  # says at once that there is no daemon; one that goes from here on is being restarted
        name = utf8(job, "JOB")
        connection.patiently(connection.jobs.Get, job_pb2.GetRequest(job_id=name))  # at once: there is no such job
        request = job_pb2.WaitRequest(job_id=name)
        if end is not None:
            request.timeout.CopyFrom(proto_duration(max(0.0, end - time.monotonic())))
        try:
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


@click.command()
@pass_address
@click.option("-a", "--all", "ended_too", is_flag=True, help="Also list jobs that have ended.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the ids.")
@click.option(
    "--label", metavar="KEY=VALUE", type=Parsed("label", pair), multiple=True, help="List only jobs with this label."
)
@click.option(
    "-w", "--watch", is_flag=True, help="Keep the list current; without a terminal, print each job when it changes."
)
@format_option
def ps(
    address: Address, ended_too: bool, quiet: bool, label: tuple[tuple[str, str], ...], watch: bool, as_json: bool
) -> None:
    """List jobs, the newest first."""
    from muster.agent.cli.client.calls import connect

    if watch and quiet:
        raise click.UsageError("--watch shows how jobs change, and --quiet only their ids: give only one of them")
    with connect(address) as connection:
        if watch:
            try:
                _watch(connection, ended_too, dict(label), as_json)
            except KeyboardInterrupt:
                return
        pages = list_pages(connection, ended_too, dict(label))
        # Each page is shown as it comes: a user does not wait for the last of thousands of jobs.
        if as_json:
            emit_json_list("jobs", (as_dict(job) for page in pages for job in page))
        elif quiet:
            for page in pages:
                emit("".join(f"{clean(job.job_id)}\n" for job in page))
        else:
            jobs = FittingJobs(first := next(pages))
            for text in table_parts(jobs.head, map(jobs.rows, itertools.chain([first], pages))):
                emit(text)


def _watch(connection: "DaemonConnection", ended_too: bool, labels: dict[str, str], as_json: bool) -> NoReturn:
    """Looks until Ctrl-C, over restarts of the daemon. Without `ended_too` the end of a job is its last line."""
    from muster.agent.cli.client.calls import Patience
    from muster.agent.cli.terminal import LiveScreen, can_be_live

    live = not as_json and can_be_live()
    patience: Patience | None = None
    known: dict[str, list[str]] = {}
    head, newest = True, time.time_ns()
    with LiveScreen(live) as shown:
        while True:
            try:
                jobs = list(list_jobs(connection, ended_too, labels))
                if not (live or ended_too):
                    jobs += _ended(connection, labels, known.keys() - {job.job_id for job in jobs}, newest)
                    jobs = list({job.job_id: job for job in jobs}.values())  # one may have ended between the two looks
                patience = Patience()
            except (CallFailed, NoDaemon) as failure:
                if patience is None:  # there was nothing yet: say so at once
                    raise
                patience.wait_or_raise(failure)
                continue
            if live:
                fitting = FittingJobs(jobs)
                shown.draw(table(fitting.head, fitting.rows(jobs)))
                time.sleep(WATCH_S)
                continue
            rows = {job.job_id: _table_row(job, time.time()) for job in jobs}
            lasting = {job_id: [*row[:4], row[6]] for job_id, row in rows.items()}  # times go on by themselves
            changed = [job for job in reversed(jobs) if lasting[job.job_id] != known.get(job.job_id)]
            known = {job.job_id: lasting[job.job_id] for job in jobs if ended_too or not job.HasField("ended_at")}
            newest = max(newest, *(job.accepted_at.ToNanoseconds() for job in jobs), 0)
            if as_json:
                for job in changed:
                    emit_json(as_dict(job), line=True)
            elif changed or head:
                fitting = fitting if not head else FittingJobs(jobs)
                text = table(fitting.head, fitting.rows(changed))
                emit(text if head else text.partition("\n")[2])
                head = False
            time.sleep(WATCH_S)


def _ended(
    connection: "DaemonConnection", labels: dict[str, str], known: set[str], newest: int
) -> "Iterator[job_pb2.Job]":
    """Jobs that have ended since the last look: of those that ran then, as far as they were not removed, and those that
    were accepted after `newest` (nanoseconds since the epoch). Raises CallFailed, NoDaemon."""
    from muster.agent.cli.client.calls import get_job

    for job in list_jobs(connection, True, labels):
        if job.accepted_at.ToNanoseconds() <= newest:
            break
        if job.HasField("ended_at") and job.job_id not in known:
            yield job
    for job_id in known:
        try:
            yield get_job(connection, job_id)
        except CallFailed as failure:
            if failure.status != "NOT_FOUND":
                raise


def list_jobs(connection: "DaemonConnection", ended_too: bool, labels: dict[str, str]) -> "Iterator[job_pb2.Job]":
    """All of them. Raises CallFailed."""
    for page in list_pages(connection, ended_too, labels):
        yield from page


def list_pages(
    connection: "DaemonConnection", ended_too: bool, labels: dict[str, str]
) -> "Iterator[Sequence[job_pb2.Job]]":
    """All jobs in pages, each asked for when the one before was taken. Raises CallFailed."""
    from muster.agent.cli.client.calls import utf8
    from muster.v1 import job_pb2

    for text in (*labels, *labels.values()):
        utf8(text, "--label")
    request = job_pb2.ListRequest(page_size=_FIRST_PAGE, labels=labels)
    if not ended_too:
        ended = {"SUCCEEDED", "FAILED", "STOPPED", "LOST", "UNSPECIFIED"}
        names = [(name, value) for name, value in job_pb2.JobState.items()]
        request.states.extend(value for name, value in names if name.removeprefix("JOB_STATE_") not in ended)
    while True:
        page = connection.call(connection.jobs.List, request)
        yield page.jobs
        if not page.next_page_token:
            return
        request.page_token, request.page_size = page.next_page_token, PAGE


class FittingJobs:
    """`ps`, with as much of the commands as fits beside the rest, and without the columns that do not fit beside long
    ids."""

    def __init__(self, jobs: "Sequence[job_pb2.Job]") -> None:
        """`jobs`: the first of them, by which the columns are chosen."""
        self._places = list(range(len(HEAD)))
        self._most: int | None = None
        if wide():
            return
        width, self._most = columns(), _COMMAND_WIDTH
        if width is None:
            return
        now = time.time()
        cells = zip(HEAD[:-1], *(_table_row(job, now)[:-1] for job in jobs), strict=True)
        widths = [max(map(len, column)) + 2 for column in cells]
        rest = sum(widths)
        for name in _LEFT_OUT:
            if width - rest < _LEAST_COMMAND:
                place = HEAD.index(name)
                self._places.remove(place)
                rest -= widths[place]
        self._most = max(_LEAST_COMMAND, width - rest)

    @property
    def head(self) -> list[str]:
        return [HEAD[place] for place in self._places]

    def rows(self, jobs: "Sequence[job_pb2.Job]") -> list[list[str]]:
        """Below the head."""
        now, found = time.time(), []
        for job in jobs:
            row = _table_row(job, now)
            if self._most is not None:
                row[-1] = shorten(row[-1], self._most)
            found.append([row[place] for place in self._places])
        return found


def _table_row(job: "job_pb2.Job", now: float) -> list[str]:
    """The words of `ps` below HEAD; `now` in seconds since the epoch."""
    from muster.agent.cli import show

    exit_code = str(job.verdict.exit_code) if job.HasField("ended_at") else "-"
    accepted = show.seconds(job.accepted_at)
    return [
        job.job_id,
        ", ".join(
            filter(None, (show.state(job.state), show.hang(job), show.gap(job), show.stuck(job), show.living(job)))
        ),
        str(len(job.ranks)),
        show.devices(job),
        f"{span(now - accepted)} ago" if accepted else "-",
        show.lasted(job, now),
        exit_code,
        command_line(job.spec.command),
    ]


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
