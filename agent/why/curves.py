"""What a job's cards and processes did in the minutes before its end, from the history."""

import math
import time
from collections.abc import Sequence

import anyio

from muster.agent.errors import HistoryUnreadable
from muster.agent.jobs.entry import Entry
from muster.agent.telemetry import job_processes
from muster.agent.telemetry.history.history_rows import (
    CARD_MEM,
    CPU,
    FRESH_S,
    MEM,
    POWER,
    TENSOR,
    THIN_S,
    UTIL,
    FoundSeries,
    Step,
)
from muster.agent.why.known import ReadableHistory
from muster.probes.kernel.dataclass import dataclass

#: Seconds before the end that are shown, the number of steps, and the time limit for the history in seconds.
WINDOW_S, STEPS, READ_S = 600.0, 20, 10.0
#: The last so many steps with a reading count as "at the end".
LAST = 2
#: In percent: an idle card is below, a busy card above, a full memory above.
IDLE, BUSY, FULL = 5.0, 90.0, 97.0
#: In percent: tensor cores that worked less did next to nothing.
TENSOR_IDLE = 1.0


@dataclass(frozen=True, slots=True)
class Curve:
    """A card of the job, or (`card` None) all its processes. Percent and watts, a mean for each step; None if there was
    no reading."""

    card: int | None
    rank: int | None
    util: tuple[float | None, ...] = ()
    memory: tuple[float | None, ...] = ()
    power: tuple[float | None, ...] = ()
    cpu: tuple[float | None, ...] = ()
    tensor: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Minutes:
    """Curves from `begin` (seconds since the epoch), in steps of `step` seconds. `missing`: a sentence that says why
    there are none, or empty."""

    begin: float = 0.0
    step: float = 0.0
    curves: tuple[Curve, ...] = ()
    missing: str = ""


async def read(history: ReadableHistory, entry: Entry, zero: float, readings_s: float) -> Minutes:
    """The minutes before `zero` in which the attempt ran. Never raises."""
    begin = max(zero - WINDOW_S, entry.job.started_at)
    if not entry.job.started_at or zero <= begin:
        return Minutes(missing="its ranks did not run, so there are no readings")
    step = readings_s * max(1, math.ceil((zero - begin) / STEPS / readings_s))
    if time.time() - zero > FRESH_S - WINDOW_S:
        step = max(step, THIN_S)  # older readings are kept by the minute only
    begin = math.floor(begin / step) * step
    found: list[FoundSeries] = []
    try:
        with anyio.move_on_after(READ_S) as reading:
            found = await history.job(entry.job_id, begin, zero, step)
    except HistoryUnreadable as error:
        return Minutes(missing=str(error))
    if reading.cancelled_caught:
        return Minutes(missing=f"the history did not answer within {READ_S:g} s")
    if not any(one.key.kind == "job" and one.key.born == entry.job.accepted_at for one in found):
        found = []
    count = math.ceil((zero - begin) / step)
    curves = [_curve(one, entry, count) for one in found if one.steps]
    curves.sort(key=lambda curve: (curve.card is None, curve.card or 0))
    if not curves:
        ran = zero - entry.job.started_at
        return Minutes(missing=f"it has no readings (it ran for {ran:.1f} s)")
    return Minutes(begin, step, tuple(curves))


def _curve(found: FoundSeries, entry: Entry, count: int) -> Curve:
    def means(metric: int) -> tuple[float | None, ...]:
        return tuple(_mean(found.steps.get(place), metric) for place in range(count))

    if found.key.kind == "job":
        return Curve(None, None, cpu=means(CPU), memory=means(MEM))
    card = found.card
    rank = None
    if card is not None and card in entry.job.cards:
        rank = job_processes.rank_of_card(entry, entry.job.cards.index(card))
    return Curve(card, rank, means(UTIL), means(CARD_MEM), means(POWER), tensor=means(TENSOR))


def _mean(step: Step | None, metric: int) -> float | None:
    triple = step.values[metric] if step is not None else None
    return None if triple is None else triple[0]


def last(values: Sequence[float | None]) -> float | None:
    """The mean of the last readings; None if there are none."""
    told = [value for value in values if value is not None][-LAST:]
    return math.fsum(told) / len(told) if told else None


def peak(values: Sequence[float | None]) -> float | None:
    """The highest value; None if there is none."""
    return max((value for value in values if value is not None), default=None)


def remarks(minutes: Minutes) -> list[str]:
    """Sentences about what stands out at the end: cards that were idle while others were busy, memory that was full."""
    cards = [curve for curve in minutes.curves if curve.card is not None]
    found, unused = [], []
    ends = {curve.card: value for curve in cards if (value := last(curve.util)) is not None}
    if len(ends) > 1:
        idle = [card for card, value in ends.items() if card is not None and value <= IDLE]
        busy = [card for card, value in ends.items() if card is not None and value >= BUSY]
        if idle and busy and len(idle) * 2 <= len(ends) and len(idle) + len(busy) == len(ends):
            names = _names([curve for curve in cards if curve.card in idle], cards)
            found.append(f"{names} stayed idle at the end while the others were busy")
    for curve in cards:
        util, tensor = last(curve.util), last(curve.tensor)
        if util is not None and util >= BUSY and tensor is not None and tensor <= TENSOR_IDLE:
            unused.append(curve)
    if unused:
        found.append(
            f"{_names(unused, cards)}: the tensor cores were idle at the end although "
            "utilization was high: a kernel that waited, copied, or computed without them"
        )
    full = [curve for curve in cards if (peak(curve.memory) or 0.0) >= FULL]
    if full:
        found.append(f"the memory of {_names(full, cards)} was full")
    for curve in minutes.curves:
        if curve.card is None and (peak(curve.memory) or 0.0) >= FULL - 7:
            found.append(f"its processes used {peak(curve.memory):.0f} % of the node's memory")
    return found


def _names(chosen: Sequence[Curve], cards: Sequence[Curve]) -> str:
    """Each by its number, or all of them."""
    if len(chosen) == len(cards) > 2:
        return f"all {len(cards)} cards"
    return ", ".join(
        f"card {curve.card}" + (f" (rank {curve.rank})" if curve.rank is not None else "") for curve in chosen
    )
