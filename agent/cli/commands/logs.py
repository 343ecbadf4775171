"""`muster logs`: the output of ranks."""

import re
import time

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.exits import Exit, StdoutFailed
from muster.agent.cli.parameters import WHOLE, Parsed
from muster.agent.cli.printing import note, write
from muster.agent.text import moment

_TIME = Parsed("time", lambda text: moment(text, time.time()))


@click.command()
@pass_address
@click.argument("job", metavar="[JOB]", required=False)
@click.option(
    "-r",
    "--rank",
    "ranks",
    metavar="RANK",
    type=WHOLE,
    multiple=True,
    help="Show only this rank. Repeatable.",
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the job has ended.")
@click.option("--since", metavar="TIME", type=_TIME, help="Begin at this time: 10m (ago), or 2030-01-31T08:00:00Z.")
@click.option("--until", metavar="TIME", type=_TIME, help="End at this time; with --follow, wait for it.")
@click.option("--tail", metavar="N", type=WHOLE, help="Show the last N lines of each rank.")
@click.option("--grep", metavar="REGEX", help="Show only lines that match this Python regular expression.")
@click.option("--ignore-case", is_flag=True, help="With --grep: ignore case.")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time (to 100 ms).")
@click.option("--attempt", metavar="N", type=WHOLE, help="Show only this attempt, counted from 0.")
@click.option("--job", "own", is_flag=True, help="Show only the job's own log: what muster did for the job.")
@click.option("--service", metavar="N", type=WHOLE, help="Show only the output of service N of the job, from 0.")
@click.option("--node", is_flag=True, help="Show all jobs of the node, each line after `[JOB/RANK] `.")
@click.option("--no-label", is_flag=True, help="Omit `[rank N] ` before the lines of several ranks.")
@click.option("--no-events", is_flag=True, help="Omit the `[muster] ` lines from the output of several ranks.")
def logs(
    address: Address,
    job: str | None,
    ranks: tuple[int, ...],
    follow: bool,
    since: float | None,
    until: float | None,
    tail: int | None,
    grep: str | None,
    ignore_case: bool,
    timestamps: bool,
    attempt: int | None,
    own: bool,
    service: int | None,
    node: bool,
    no_label: bool,
    no_events: bool,
) -> None:
    """Show the output of a job's ranks, or of all jobs of the node.

    With several ranks it prints whole lines in order of time, each after `[rank N] `. Lines after `[job] ` show what
    muster did for the job: checks, steps, restarts, the end. Lines after `[muster] ` are other events of the job: gaps,
    hangs, a replaced supervisor. With one rank it prints the bytes unchanged.

    If somebody deleted, moved or truncated a log, a line on stderr at the end names it and the missing bytes.

    The exit code says whether the output is complete, not how the job ended: 1 if some output is missing.
    """
    from muster.agent.cli.client import follow as following
    from muster.agent.cli.client.calls import connect, get_job, utf8
    from muster.agent.cli.client.knowing import knowing
    from muster.agent.logs import labels
    from muster.agent.logs.logs_in_place import LogsInPlace
    from muster.v1 import log_pb2

    if node == bool(job):
        raise click.UsageError("give a JOB, or --node for all jobs of the node" + (", not both" if node else ""))
    if node and (ranks or own or service is not None or attempt is not None):
        raise click.UsageError("--node shows all jobs of the node: leave out --rank, --job, --service and --attempt")
    if service is not None and (ranks or own or attempt is not None):
        raise click.UsageError("--service shows one log for all attempts: leave out --rank, --job and --attempt")
    if own and (ranks or attempt is not None):
        raise click.UsageError("--job shows one log for all ranks and attempts: leave out --rank and --attempt")
    pattern = _pattern(grep, ignore_case)
    request: log_pb2.ReadLogsRequest | log_pb2.ReadNodeLogsRequest
    if node:
        request = log_pb2.ReadNodeLogsRequest(follow=follow, events=not no_events)
    else:
        request = log_pb2.ReadLogsRequest(job_id=utf8(job or "", "JOB"), ranks=sorted(set(ranks)), follow=follow)
        if attempt is not None:
            request.attempt = attempt
        if own:
            request.job_log = log_pb2.JOB_LOG_ONLY
        if service is not None:
            request.service = service
    if tail is not None:
        request.tail_lines = tail
    match = None
    if pattern is not None:
        from muster.agent.cli.client.pattern_parts import wanted_lines
        from muster.agent.logs.line_filter import LineFilter, LineMatch

        lines = None
        if (wanted := wanted_lines(pattern)) is not None:
            request.lines.CopyFrom(wanted)
            lines = LineFilter([tuple(each.parts) for each in wanted.any_of], ignore_case=wanted.ignore_case)
        match = LineMatch(pattern, lines)
    for field, value in ((request.since, since), (request.until, until)):
        if value is not None:
            field.FromNanoseconds(max(0, round(value * 1e9)))
    with knowing(address, job or "") as where, connect(where) as connection:
        several, in_place = node, None
        if isinstance(request, log_pb2.ReadLogsRequest):
            alone = own or service is not None
            if not alone and (where.path is not None or len(request.ranks) != 1):
                found = get_job(connection, job or "")
                # Of a job that waits for its rank table it is not known yet.
                several = len(request.ranks) != 1 and len(found.ranks) != 1
                in_place = LogsInPlace.seen(found, request) if where.path is not None else None
            request.without_times = not timestamps
            if several and not no_label and not ranks and attempt is None:
                request.job_log = log_pb2.JOB_LOG_INCLUDED
                request.events = not no_events
            elif not several and not no_events and service is None:
                request.events = request.only_losses = True
        label = several and not no_label
        sink: following.Sink = labels.Raw(write, aside=note)
        if several or timestamps or pattern is not None:
            sink = labels.LabelledLines(write, label=label, timestamps=timestamps, several=several, grep=match)
            if in_place is not None and match is not None:
                in_place.search(match, sink, follow=follow)
        missing = False
        try:
            if isinstance(request, log_pb2.ReadNodeLogsRequest):
                following.read_node(connection, request, sink)
            else:
                missing = following.note_missing(following.read(connection, request, sink, in_place))
        except StdoutFailed as failure:
            if failure.exit_code != Exit.PIPE_CLOSED:
                raise
            raise click.exceptions.Exit(Exit.PIPE_CLOSED) from None
        finally:
            if in_place is not None:
                in_place.close()
    if missing:
        raise click.exceptions.Exit(Exit.FAILURE)


def _pattern(grep: str | None, ignore_case: bool) -> "re.Pattern[str] | None":
    """Raises UsageError."""
    if grep is None:
        if ignore_case:
            raise click.UsageError("--ignore-case needs --grep")
        return None
    try:
        return re.compile(grep, re.IGNORECASE if ignore_case else 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise click.UsageError(f"--grep {grep!r}: not a regular expression: {error}") from None
