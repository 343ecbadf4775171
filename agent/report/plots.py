"""The readings of a job's cards and ranks as plots on one time axis, from the history."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import anyio

from muster.agent import threads
from muster.agent.errors import HistoryUnreadable
from muster.agent.jobs.entry import Entry
from muster.agent.report import lanes, thinning
from muster.agent.report.job_report import Axis, Bar, Plot, PlotSeries
from muster.agent.telemetry import job_processes
from muster.agent.telemetry.history.history_disk import DiskHistory
from muster.agent.telemetry.history.history_rows import (
    CARD_MEM,
    CPU,
    DRAM,
    FABRIC,
    LOG,
    MEM,
    POWER,
    READ,
    SM,
    TENSOR,
    UTIL,
    WRITE,
    FoundSeries,
    Step,
)
from muster.agent.why.known import ReadableHistory
from muster.probes.kernel.dataclass import dataclass

#: Seconds that the history may take.
READ_S = 30.0
#: In the head of a report: what the job took.
CARD_HOURS = "card hours"
#: The last so many steps count as "at the end".
LAST = 5
_RATES = (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1.0))


@dataclass(frozen=True, slots=True)
class _PlotKind:
    """A plot: its metric in the history, of cards or of ranks. `most`: the scale's end; None: of the largest value, and
    not below `floor`, so that nothing looks much that is next to nothing."""

    name: str
    title: str
    metric: int
    of: str
    unit: str
    most: float | None = None
    floor: float = 0.0


READINGS = (
    _PlotKind("utilization", "Utilization", UTIL, "card", "%", 100.0),
    _PlotKind("sm", "Multiprocessors at work", SM, "card", "%", 100.0),
    _PlotKind("tensor", "Tensor cores at work", TENSOR, "card", "%", 100.0),
    _PlotKind("dram", "Memory interface at work", DRAM, "card", "%", 100.0),
    _PlotKind("memory", "Card memory", CARD_MEM, "card", "%", 100.0),
    _PlotKind("power", "Power", POWER, "card", "W", floor=100.0),
    _PlotKind("fabric", "Links between cards", FABRIC, "card", "B/s", floor=1e6),
    _PlotKind("cpu", "CPU", CPU, "rank", "% of a CPU", floor=100.0),
    _PlotKind("read", "Read", READ, "rank", "B/s", floor=1e3),
    _PlotKind("written", "Written", WRITE, "rank", "B/s", floor=1e3),
    _PlotKind("log", "Log", LOG, "rank", "B/s", floor=1e3),
)
#: Of a node, whose cards come first.
OF_NODE = (
    *(one for one in READINGS if one.of == "card"),
    _PlotKind("cpu", "CPU of the node", CPU, "node", "%", 100.0),
    _PlotKind("host", "Memory of the node", MEM, "node", "%", 100.0),
)


def axis(begin: float, end: float, readings_s: float, zone: int) -> Axis:
    """From `begin` to `end`, in whole steps."""
    step = thinning.axis_step(max(end - begin, 1.0), readings_s)
    begin = math.floor(begin / step) * step
    count = math.floor((end - begin) / step) + 1
    return Axis(begin, max(end, begin + step * count), step, count, zone)


async def of_node(history: DiskHistory, axis: Axis) -> tuple[list[Plot], str]:
    """As `read`, of a node with all its cards."""
    found: list[FoundSeries] = []
    try:
        with anyio.move_on_after(READ_S) as reading:
            found = await history.node(axis.begin, axis.end, axis.step)
    except HistoryUnreadable as error:
        return [], str(error)
    if reading.cancelled_caught:
        return [], f"the history did not answer within {READ_S:g} s"
    plots = await threads.run(lambda: [_plot(one, found, None, axis, {}) for one in OF_NODE])
    return [plot for plot in plots if plot is not None], ""


async def read(
    history: ReadableHistory, entry: Entry, axis: Axis, culprits: Mapping[int, str], limit: float
) -> tuple[list[Plot], str]:
    """The plots that have readings, and a sentence about what is missing, or "". Never raises. `culprits`: ranks that
    are drawn in any case, and why; `limit`: on anyio's clock."""
    found: list[FoundSeries] = []
    try:
        with anyio.CancelScope(deadline=limit) as reading:
            found = await history.job(entry.job_id, axis.begin, axis.end, axis.step, ranks=True)
    except HistoryUnreadable as error:
        return [], str(error)
    if reading.cancelled_caught:
        return [], f"the history did not answer within {READ_S:g} s"
    key = job_processes.key(entry)
    if not any(one.key == key for one in found):
        return [], ""
    # A day of many ranks is half a million numbers: not on the daemon's loop.
    return await threads.run(_plots, found, entry, axis, culprits), ""


def _plots(found: Sequence[FoundSeries], entry: Entry, axis: Axis, culprits: Mapping[int, str]) -> list[Plot]:
    plots = [_plot(one, found, entry, axis, culprits) for one in READINGS]
    return [plot for plot in plots if plot is not None]


def _plot(
    reading: _PlotKind, found: Sequence[FoundSeries], entry: Entry | None, axis: Axis, culprits: Mapping[int, str]
) -> Plot | None:
    chosen = [one for one in found if one.key.kind == reading.of and _has(one, reading.metric)]
    if not chosen:
        return None
    told = [
        triple for one in chosen for step in one.steps.values() if (triple := step.values[reading.metric]) is not None
    ]
    top = max(reading.floor, *(triple[2] for triple in told))
    unit, scale = reading.unit, 1.0
    if unit == "B/s":
        unit, scale = next(((name, size) for name, size in _RATES if top >= size), _RATES[-1])
    most = reading.most or thinning.nice(top / scale)
    made = [_series(one, reading.metric, entry, axis, scale) for one in chosen]
    odd = thinning.odd_one([one.mean for one in made], most)
    series = [
        PlotSeries(
            one.name, one.rank, one.card, one.mean, one.least, one.most,
            odd=place == odd, culprit=one.rank in culprits, why="" if one.rank is None else culprits.get(one.rank, ""),
        )
        for place, one in enumerate(made)
    ]  # fmt: skip
    return Plot(reading.name, reading.title, unit, reading.of, most, series, sentence(series, unit))


def _has(one: FoundSeries, metric: int) -> bool:
    return any(step.values[metric] is not None for step in one.steps.values())


def _series(one: FoundSeries, metric: int, entry: Entry | None, axis: Axis, scale: float) -> PlotSeries:
    def of(place: int) -> list[float | None]:
        return [_rounded(one.steps.get(number), metric, place, scale) for number in range(axis.count)]

    if (rank := one.key.rank) is not None:
        return PlotSeries(f"rank {rank}", rank, None, of(0), of(1), of(2))
    if one.key.kind == "node":
        return PlotSeries("the node", None, None, of(0), of(1), of(2))
    card, rank = one.card, None
    if entry is not None and card is not None and card in entry.job.cards:
        rank = job_processes.rank_of_card(entry, entry.job.cards.index(card))
    name = f"card {card}" + (f" (rank {rank})" if rank is not None else "")
    return PlotSeries(name, rank, card, of(0), of(1), of(2))


def _rounded(step: Step | None, metric: int, place: int, scale: float) -> float | None:
    triple = step.values[metric] if step is not None else None
    if triple is None or not math.isfinite(triple[place]):
        return None
    value = triple[place] / scale
    return round(value, 1 if value >= 10 else 2)


def sentence(series: Sequence[PlotSeries], unit: str) -> str:
    """What a picture shows, for those who do not see it."""
    several = (
        f"{len(series)} {'cards' if series[0].card is not None else 'ranks'}" if len(series) > 1 else series[0].name
    )
    lows, highs = _told(series, lambda one: one.least), _told(series, lambda one: one.most)
    mean = _number(_average(series))
    least, most = _number(min(lows)), _number(max(highs))
    if least == most:
        said = f"{several}: {mean} {unit} all the time"
    else:
        said = f"{several}: {least} to {most} {unit}, {mean} {unit} on average"
    for one in series:
        if one.odd or one.culprit:
            why = "stands out" if one.odd else one.why
            told = _number(last(one.mean))
            said += f"; {one.name} {why}: {told} {unit} at the end"
            others = [value for other in series if other is not one and (value := last(other.mean)) is not None]
            if others:
                said += f", the others {_number(sum(others) / len(others))} {unit}"
    return said


def card_hours(parts: Iterable[tuple[Sequence[Bar], int]], last: float, drawn: Iterable[Plot]) -> dict[str, str]:
    """What all attempts took of the cards, what of it was for nothing, and how much of it they were used, as a line of
    the head; nothing of a job without cards. `parts`: attempts and number of cards, of each node; `last`: the end of
    what has none."""
    held = failed = 0.0
    again = False
    for bars, cards in parts:
        again |= len(bars) > 1
        for bar in bars:
            hours = max(0.0, (last if bar.end is None else bar.end) - bar.begin) * cards / 3600
            held += hours
            failed += hours if bar.look in (lanes.FAILED, lanes.LOST) else 0.0
    if not held:
        return {}
    said = [f"{held:.3g}"]
    if again and failed:
        said.append(f"{failed:.3g} of them in attempts that failed")
    said += [f"{_number(_average(plot.series))} % utilization" for plot in drawn if plot.name == READINGS[0].name]
    return {CARD_HOURS: ", ".join(said)}


def factor(unit: str) -> float:
    """How many of the basic unit one of this is: 1e9 for GB/s."""
    return dict(_RATES).get(unit, 1.0)


def last(values: Sequence[float | None]) -> float | None:
    """The mean of the last readings; None if there are none."""
    told = [value for value in values if value is not None][-LAST:]
    return sum(told) / len(told) if told else None


def _told(series: Sequence[PlotSeries], of: Callable[[PlotSeries], list[float | None]]) -> list[float]:
    return [value for one in series for value in of(one) if value is not None] or [0.0]


def _average(series: Sequence[PlotSeries]) -> float:
    means = _told(series, lambda one: one.mean)
    return sum(means) / len(means)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")
