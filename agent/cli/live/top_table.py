"""One look of `muster top` as a table of 80 columns, and its rows."""

from collections.abc import Mapping, Sequence

from muster.agent.cli import show
from muster.agent.text import clean, numbers, ranks, shorten, size, time_of_day
from muster.v1 import node_pb2, telemetry_pb2

_BARS = " ▁▂▃▄▅▆▇█"
#: Looks whose utilization is drawn, beside each card.
CURVE = 16
TENSOR = " TENSOR"
#: Characters of a job's name that are shown in any case.
_LEAST_NAME = 12
RANK_HEAD_NARROW = f"{'RANK':>4} {'CPU':>6} {'MEMORY':>8}"
RANK_HEAD = f"{'RANK':>5} {'DEV':>4} {'PID':>8} {'CPU':>7} {'MEMORY':>9} {'READ/S':>10} {'WRITE/S':>10} S PROCS"


def screen(now: telemetry_pb2.GetTelemetryResponse, sparks: Mapping[int, Sequence[float | None]], width: int) -> str:
    """One look as lines of at most `width` columns."""
    lines = [head(now)]
    cards = [card for card in now.cards if card.kind != "slot"]
    if cards:
        # The column takes its room from the curve: the line stays as long as it is.
        known = any(card.reading.activity.HasField("tensor") for card in cards)
        room, more = (CURVE - len(TENSOR), TENSOR) if known else (CURVE, "")
        columns = f"{'CARD':>4} {'UTIL':>5}{more} {'':<{room}} {'MEMORY':>13} {'POWER':>9} {'TEMP':>4}  HEALTH   JOB"
        lines += ["", columns]
        lines += [shorten(_card(card, list(sparks[card.index])[-room:], room), width) for card in cards]
    for job in now.jobs:
        lines += ["", shorten(job_line(job, width), width)]
        if job.ranks:
            lines.append(RANK_HEAD)
            lines += [shorten(rank_line(rank), width) for rank in job.ranks]
    return "\n".join(lines) + "\n"


def head(now: telemetry_pb2.GetTelemetryResponse) -> str:
    """The first line."""
    said = ["muster top", time_of_day(now.at.ToSeconds())]
    if now.HasField("cpu_usage"):
        said.append(f"cpu {now.cpu_usage:.0f}%")
    if now.HasField("mem_usage"):
        said.append(f"memory {now.mem_usage:.0f}%")
    said.append(f"{len(now.jobs)} job{'s' if len(now.jobs) != 1 else ''}")
    return "  ".join(said)


def spark(values: Sequence[float | None]) -> str:
    """A character per value of 0 to 100 percent, the newest last; a space where the driver reported none."""
    top_bar = len(_BARS) - 1
    return "".join(" " if v is None else _BARS[max(1, min(top_bar, round(v / 100 * top_bar)))] for v in values)


def _card(card: node_pb2.Card, values: Sequence[float | None], room: int) -> str:
    """`room`: columns of the curve; what it has less than all of them is the tensor cores'."""
    r = card.reading
    util = f"{r.utilization:.0f}%" if r.HasField("utilization") else "-"
    if room < CURVE:
        util = f"{util:>5}{tensor(card)}"
    memory, power, temperature = of_card(card)
    line = f"{card.index:>4} {util:>5} {spark(values):>{room}} {memory:>13} {power:>9} {temperature:>4}"
    return f"{line}  {card.health:<8} {clean(card.job_id) or 'free'}"


def job_line(job: telemetry_pb2.JobTelemetry, width: int) -> str:
    """The line above its ranks. What does not fit is cut from a long name: the state is not left out for it."""
    text = f"  {show.state(job.state)}"
    # None at all are those of a job that was not looked at yet.
    text += f"  {job.processes} process{'es' if job.processes != 1 else ''}" if job.processes else ""
    devices = numbers({rank.device for rank in job.ranks})
    text += f"  devices {devices}" if devices else ""
    if job.HasField("card_utilization"):
        text += f"  cards average {job.card_utilization:.0f}%"
    text += f"  SLOW {ranks(job.slow_ranks)}" if job.slow_ranks else ""
    text += "  UNDERUSED" if job.underused else ""
    return f"JOB {shorten(clean(job.job_id), max(_LEAST_NAME, width - len('JOB ' + text)))}{text}"


def rank_line(rank: telemetry_pb2.RankTelemetry, *, narrow: bool = False) -> str:
    """Under RANK_HEAD; `narrow`: under RANK_HEAD_NARROW."""
    cpu = f"{rank.cpu:.0f}%" if rank.HasField("cpu") else "-"
    memory = size(rank.memory_bytes) if rank.HasField("memory_bytes") else "-"
    if narrow:
        return f"{rank.rank:>4} {cpu:>6} {memory:>8}" + ("  SLOW" if rank.slow else "")
    read = size(round(rank.read_rate)) if rank.HasField("read_rate") else "-"
    written = size(round(rank.write_rate)) if rank.HasField("write_rate") else "-"
    place = f"{rank.rank:>5} {rank.device:>4} {rank.pid or '-':>8}"
    processes = str(rank.processes) if rank.HasField("at") else "-"
    return f"{place} {cpu:>7} {memory:>9} {read:>10} {written:>10} {rank.state or '-'} {processes:>5}" + (
        "  SLOW" if rank.slow else ""
    )


def tensor(card: node_pb2.Card) -> str:
    """The column TENSOR."""
    activity = card.reading.activity
    return f"{f'{activity.tensor:.0f}%' if activity.HasField('tensor') else '-':>{len(TENSOR)}}"


def of_card(card: node_pb2.Card) -> tuple[str, str, str]:
    """Memory, power, temperature."""
    r, memory = card.reading, "-"
    if r.HasField("memory_used_bytes"):
        total = r.memory_total_bytes if r.HasField("memory_total_bytes") else card.memory_bytes
        memory = f"{r.memory_used_bytes / 2**30:.1f}/{total / 2**30:.1f}G"
    power = "-"
    if r.HasField("power_watts"):
        limit = f"/{r.power_limit_watts:.0f}" if r.HasField("power_limit_watts") else ""
        power = f"{r.power_watts:.0f}{limit}W"
    return memory, power, f"{r.temperature:.0f}C" if r.HasField("temperature") else "-"
