"""`muster logs`: the output of ranks."""

import time

import click

from agent.cli.address import Address, pass_address
from agent.cli.errors import Exit, StdoutFailed
from agent.cli.output import write
from agent.cli.spec_options import WHOLE, Parsed
from agent.cli.text import moment


@click.command()
@pass_address
@click.argument("job", metavar="JOB")
@click.option(
    "-r",
    "--rank",
    "ranks",
    metavar="RANK",
    type=WHOLE,
    multiple=True,
    help="Only this rank. Repeatable.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option(
    "--since",
    metavar="TIME",
    type=Parsed("time", lambda text: moment(text, time.time())),
    help="From this time on: 10m (ago), or 2030-01-31T08:00:00Z.",
)
@click.option("--tail", metavar="N", type=WHOLE, help="The last N lines of each rank.")
@click.option("--timestamps", is_flag=True, help="Begin each line with the time when it was written (to 100 ms).")
@click.option("--attempt", metavar="N", type=WHOLE, help="Only the output of this attempt, from 0.")
@click.option("--job", "own", is_flag=True, help="Only the job's own log: what muster did for it.")
@click.option("--no-label", is_flag=True, help="No `[rank N] ` before the lines of several ranks.")
def logs(
    address: Address,
    job: str,
    ranks: tuple[int, ...],
    follow: bool,
    since: float | None,
    tail: int | None,
    timestamps: bool,
    no_label: bool,
    attempt: int | None,
    own: bool,
) -> None:
    """Show the output of a job's ranks.

    Of several ranks it shows whole lines in the order of time, each behind `[rank N] `, and what muster did for the job
    (checks, what ran before the ranks, restarts, the end) behind `[job] `; of one rank the bytes as they are.

    The exit code says whether the output could be read, not how the job ended.
    """
    from agent.cli import follow as following
    from agent.cli import labels
    from agent.cli.connection import connect, get_job, utf8
    from muster.v1 import log_pb2

    request = log_pb2.ReadLogsRequest(job_id=utf8(job, "JOB"), ranks=sorted(set(ranks)), follow=follow)
    if own and (ranks or attempt is not None):
        raise click.UsageError("--job goes with neither --rank nor --attempt: it is one log for all of them")
    if attempt is not None:
        request.attempt = attempt
    if tail is not None:
        request.tail_lines = tail
    if since is not None:
        request.since.FromNanoseconds(max(0, round(since * 1e9)))
    with connect(address) as connection:
        several = not own and len(request.ranks) != 1 and len(get_job(connection, job).ranks) > 1
        if own:
            request.job_log = log_pb2.JOB_LOG_ONLY
        elif several and not no_label and not ranks and attempt is None:
            request.job_log = log_pb2.JOB_LOG_INCLUDED
        lines = labels.Lines(write, label=several and not no_label, timestamps=timestamps)
        sink = lines if several or timestamps else labels.Raw(write)
        try:
            following.read(connection, request, sink)
        except StdoutFailed as failure:
            if failure.exit_code != Exit.PIPE_CLOSED:
                raise
            raise click.exceptions.Exit(Exit.PIPE_CLOSED) from None
