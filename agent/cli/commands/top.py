"""`muster top`: cards, jobs and ranks, live."""

import os
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.parameters import DURATION
from muster.agent.cli.printing import as_dict, emit, emit_json, format_option, write
from muster.agent.cli.terminal import can_be_live

if TYPE_CHECKING:
    from muster.agent.cli.client.calls import DaemonConnection

#: Columns of a look that is no live one.
_WIDTH = 80


@click.command()
@pass_address
@click.argument("job", required=False, default="", metavar="[JOB]")
@click.option(
    "--interval", metavar="DURATION", type=DURATION, default="1s", show_default=True, help="Time between two readings."
)
@click.option(
    "-n", "--count", type=click.IntRange(min=1), help="Exit after N readings. [default: 1 if stdout is not a terminal]"
)
@click.option(
    "--record",
    metavar="FILE",
    help="Show nothing; append telemetry records to FILE, for `muster hang replay`. - is stdout.",
)
@format_option
def top(address: Address, job: str, interval: float, count: int | None, record: str | None, as_json: bool) -> None:
    """Show the activity of cards and ranks, live; q or Ctrl-C exits.

    On a terminal each card has a curve of its last minutes, and the cards that stand out come first: those with a
    fault, then those that differ most from the others of their job (ODD). Keys: j, c, r show the next job, card, rank
    (J, C, R the previous one), a all; s sorts by number; t changes the time that the curves show.

    For each card it shows utilization (now and before), memory, power, temperature, and the job that holds it. TENSOR,
    on NVIDIA cards since Hopper, is the share of the last seconds in which the tensor cores worked: a card at 100% with
    idle tensor cores waits, copies, or computes without them. For each rank it shows CPU, memory and input/output of
    its process and all descendants. `-` marks a reading that is not available, SLOW a rank that its peers wait for.
    """
    from muster.agent.cli.client.calls import connect, utf8

    job = utf8(job, "JOB")
    if record is not None and (count is not None or as_json):
        raise click.UsageError("--record goes on until Ctrl-C or the end of JOB: leave out -n and -o")
    with connect(address) as connection:
        if record is not None:
            _record(connection, job, record)
            return
        live = not as_json and can_be_live()
        looks = count if count is not None else (0 if live or as_json else 1)
        try:
            if live:
                from muster.agent.cli.live.top_live import TopLive

                TopLive(connection, job).run(max(interval, 0.1), looks)
            else:
                _look(connection, job, max(interval, 0.1), looks, as_json)
        except KeyboardInterrupt:
            pass


def _look(connection: "DaemonConnection", job: str, interval: float, looks: int, as_json: bool) -> None:
    """`looks`: 0 is forever."""
    from muster.agent.cli.live import top_table
    from muster.v1 import telemetry_pb2

    request = telemetry_pb2.GetTelemetryRequest(job_id=job)
    sparks: defaultdict[int, deque[float | None]] = defaultdict(lambda: deque(maxlen=top_table.CURVE))
    done = 0
    while True:
        now = connection.patiently(connection.telemetry.GetTelemetry, request)
        for card in now.cards:
            reading = card.reading
            sparks[card.index].append(reading.utilization if reading.HasField("utilization") else None)
        if as_json:
            emit_json(as_dict(now), line=True)
        else:
            emit(top_table.screen(now, sparks, _WIDTH))
        done += 1
        if looks and done >= looks:
            return
        time.sleep(interval)


def _record(connection: "DaemonConnection", job: str, path: str) -> None:
    from muster.v1 import telemetry_pb2

    request = telemetry_pb2.RecordTelemetryRequest(job_id=job)
    try:
        fd = 1 if path == "-" else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CommandFailed(f"--record: cannot open {path}: {error.strerror}", Exit.USAGE) from None
    try:
        for answer in connection.stream(connection.telemetry.RecordTelemetry, request):
            line = answer.line.encode() + b"\n"
            if fd == 1:
                write(line)
            elif os.write(fd, line) < len(line):
                raise OSError(28, "No space left on device")
    except KeyboardInterrupt:
        pass
    except OSError as error:
        raise CommandFailed(f"--record: cannot write {path}: {error.strerror}") from None
    finally:
        if fd != 1:
            os.close(fd)
