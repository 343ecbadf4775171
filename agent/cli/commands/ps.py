"""`muster ps`: which jobs there are; and all jobs of a daemon in pages, for commands that need them."""

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.exits import CallFailed, NoDaemon
from muster.agent.cli.parameters import Parsed, pair
from muster.agent.cli.printing import as_dict, columns, emit, emit_json, emit_json_list, format_option, wide
from muster.agent.text import clean, command_line, shorten, span, table, table_parts

if TYPE_CHECKING:
    from muster.agent.cli.client.calls import DaemonConnection
    from muster.agent.cli.terminal import LiveScreen
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
            from muster.agent.cli.terminal import LiveScreen, can_be_live

            shown = LiveScreen(not as_json and can_be_live())
            try:
                shown.run(lambda: _watch(connection, ended_too, dict(label), as_json, shown))
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


def _watch(
    connection: "DaemonConnection", ended_too: bool, labels: dict[str, str], as_json: bool, shown: "LiveScreen"
) -> NoReturn:
    """Looks until Ctrl-C, over restarts of the daemon. Without `ended_too` the end of a job is its last line."""
    from muster.agent.cli.client.calls import Patience

    live = shown.live
    patience: Patience | None = None
    known: dict[str, list[str]] = {}
    head, newest = True, time.time_ns()
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
