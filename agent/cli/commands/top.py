"""`muster top`: cards, jobs and ranks, live."""

import os
import shutil
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.parameters import DURATION
from muster.agent.cli.printing import as_dict, emit_json, format_option, write
from muster.agent.cli.terminal import LiveScreen, can_be_live
from muster.agent.text import clean, numbers, ranks, shorten, size

if TYPE_CHECKING:
    from muster.agent.cli.client.calls import DaemonConnection
    from muster.v1 import node_pb2, telemetry_pb2

_BARS = " ▁▂▃▄▅▆▇█"
#: Looks whose utilization is drawn, beside each card.
_SPARK = 16
#: Columns where the terminal does not tell, and the fewest that are laid out for.
_WIDTH = 80
_TENSOR = " TENSOR"

_Sparks = dict[int, deque[float | None]]


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
    """Show the activity of cards and ranks, live; Ctrl-C exits.

    Of a card it shows utilization (now and before), memory, power, temperature, and the job that holds it. TENSOR, from
    NVIDIA's Hopper on, is the share of the last seconds in which its tensor cores worked: a card at 100% whose tensor
    cores are idle waits, copies, or computes without them. Of a rank it shows CPU, memory and input/output of its
    process and all descendants. `-` marks a reading that is not available, SLOW a rank for which its peers wait.
    """
    from muster.agent.cli.client.calls import connect, utf8

    job = utf8(job, "JOB")
    with connect(address) as connection:
        if record is not None:
            _record(connection, job, record)
            return
        live = not as_json and can_be_live()
        looks = count if count is not None else (0 if live or as_json else 1)
        try:
            _look(connection, job, max(interval, 0.1), looks, live, as_json)
        except KeyboardInterrupt:
            pass


def _look(connection: "DaemonConnection", job: str, interval: float, looks: int, live: bool, as_json: bool) -> None:
    """`looks`: 0 is forever."""
    from muster.v1 import telemetry_pb2

    request = telemetry_pb2.GetTelemetryRequest(job_id=job)
    sparks: _Sparks = defaultdict(lambda: deque(maxlen=_SPARK))
    done = 0
    with LiveScreen(live) as shown:
        while True:
            now = connection.patiently(connection.telemetry.GetTelemetry, request)
            for card in now.cards:
                reading = card.reading
                sparks[card.index].append(reading.utilization if reading.HasField("utilization") else None)
            if as_json:
                emit_json(as_dict(now), line=True)
            else:
                width = max(shutil.get_terminal_size((_WIDTH, 24)).columns, _WIDTH) if live else _WIDTH
                shown.draw(screen(now, sparks, width))
            done += 1
            if looks and done >= looks:
                return
            time.sleep(interval)


def screen(now: "telemetry_pb2.GetTelemetryResponse", sparks: _Sparks, width: int) -> str:
    """One look as lines of at most `width` columns."""
    head = ["muster top", time.strftime("%H:%M:%S", time.localtime(now.at.ToSeconds()))]
    if now.HasField("cpu_usage"):
        head.append(f"cpu {now.cpu_usage:.0f}%")
    if now.HasField("mem_usage"):
        head.append(f"memory {now.mem_usage:.0f}%")
    head.append(f"{len(now.jobs)} job{'s' if len(now.jobs) != 1 else ''}")
    lines = ["  ".join(head)]
    cards = [card for card in now.cards if card.kind != "slot"]
    if cards:
        # The column takes its room from the curve: the line stays as long as it is.
        tensor = any(card.reading.activity.HasField("tensor") for card in cards)
        room, more = (_SPARK - len(_TENSOR), _TENSOR) if tensor else (_SPARK, "")
        columns = f"{'CARD':>4} {'UTIL':>5}{more} {'':<{room}} {'MEMORY':>13} {'POWER':>9} {'TEMP':>4}  HEALTH   JOB"
        lines += ["", columns]
        lines += [shorten(_card(card, list(sparks[card.index])[-room:], room), width) for card in cards]
    for job in now.jobs:
        lines += ["", shorten(_job(job), width)]
        if job.ranks:
            lines.append(
                f"{'RANK':>5} {'DEV':>4} {'PID':>8} {'CPU':>7} {'MEMORY':>9} {'READ/S':>10} {'WRITE/S':>10} S PROCS"
            )
            lines += [shorten(_rank(rank), width) for rank in job.ranks]
    return "\n".join(lines) + "\n"


def spark(values: Sequence[float | None]) -> str:
    """A character per value of 0 to 100 percent, the newest last; a space where the driver reported none."""
    top_bar = len(_BARS) - 1
    return "".join(" " if v is None else _BARS[max(1, min(top_bar, round(v / 100 * top_bar)))] for v in values)


def _card(card: "node_pb2.Card", values: Sequence[float | None], room: int) -> str:
    """`room`: columns of the curve; what it has less than all of them is the tensor cores'."""
    r = card.reading
    util = f"{r.utilization:.0f}%" if r.HasField("utilization") else "-"
    if room < _SPARK:
        tensor = f"{r.activity.tensor:.0f}%" if r.activity.HasField("tensor") else "-"
        util = f"{util:>5}{tensor:>{len(_TENSOR)}}"
    memory = "-"
    if r.HasField("memory_used_bytes"):
        total = r.memory_total_bytes if r.HasField("memory_total_bytes") else card.memory_bytes
        memory = f"{r.memory_used_bytes / 2**30:.1f}/{total / 2**30:.1f}G"
    power = f"{r.power_watts:.0f}" if r.HasField("power_watts") else "-"
    if r.HasField("power_limit_watts"):
        power += f"/{r.power_limit_watts:.0f}"
    temperature = f"{r.temperature:.0f}C" if r.HasField("temperature") else "-"
    line = f"{card.index:>4} {util:>5} {spark(values):>{room}} {memory:>13} {power + 'W':>9} {temperature:>4}"
    return f"{line}  {card.health:<8} {clean(card.job_id) or 'free'}"


def _job(job: "telemetry_pb2.JobTelemetry") -> str:
    from muster.agent.cli import show

    text = f"JOB {clean(job.job_id)}  {show.state(job.state)}"
    # None at all are those of a job that was not looked at yet.
    text += f"  {job.processes} process{'es' if job.processes != 1 else ''}" if job.processes else ""
    devices = numbers({rank.device for rank in job.ranks})
    text += f"  devices {devices}" if devices else ""
    if job.HasField("card_utilization"):
        text += f"  cards average {job.card_utilization:.0f}%"
    text += f"  SLOW {ranks(job.slow_ranks)}" if job.slow_ranks else ""
    return text + ("  UNDERUSED" if job.underused else "")


def _rank(rank: "telemetry_pb2.RankTelemetry") -> str:
    cpu = f"{rank.cpu:.0f}%" if rank.HasField("cpu") else "-"
    memory = size(rank.memory_bytes) if rank.HasField("memory_bytes") else "-"
    read = size(round(rank.read_rate)) if rank.HasField("read_rate") else "-"
    written = size(round(rank.write_rate)) if rank.HasField("write_rate") else "-"
    place = f"{rank.rank:>5} {rank.device:>4} {rank.pid or '-':>8}"
    processes = str(rank.processes) if rank.HasField("at") else "-"
    return f"{place} {cpu:>7} {memory:>9} {read:>10} {written:>10} {rank.state or '-'} {processes:>5}" + (
        "  SLOW" if rank.slow else ""
    )


def _record(connection: "DaemonConnection", job: str, path: str) -> None:
    from muster.v1 import telemetry_pb2

    request = telemetry_pb2.RecordTelemetryRequest(job_id=job)
    try:
        fd = 1 if path == "-" else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CommandFailed(f"--record: {path}: {error.strerror}", Exit.USAGE) from None
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
        raise CommandFailed(f"--record: {path}: {error.strerror}") from None
    finally:
        if fd != 1:
            os.close(fd)
