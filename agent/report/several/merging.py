"""Reports of one job from several nodes become one: the same structure, so the same pages. Pure, but for `read`."""

import math
import os
import select
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from muster.agent.report import plots, thinning
from muster.agent.report.job_report import VERSION, Axis, Bar, CloseUp, JobReport, Plot, PlotSeries
from muster.agent.why.causes import first_node
from muster.agent.why.causes.first_node import NodePart
from muster.agent.why.report import Row
from muster.probes import typed

#: Nobody has compared the clocks of the nodes: two failures are put in an order if they are further apart than two of
#: these, in seconds.
CLOCK_DOUBT_S = 0.5
#: How long a pipe may be without a writer, in seconds.
WRITER_S = 10.0
_FAILED = ("FAILED", "LOST")
_T = TypeVar("_T", bound=msgspec.Struct)


class NotMergeable(Exception):
    """Raised when files are no reports, or not of one job. The text is a sentence for the user."""


def read(path: Path) -> JobReport:
    """A report as `-o json` writes it, from a file or a pipe. Blocks. Raises NotMergeable."""
    try:
        content = _content(path)
    except OSError as error:
        raise NotMergeable(f"{path}: cannot be read: {error.strerror}") from None
    return parsed(content, str(path))


def parsed(content: bytes, name: str) -> JobReport:
    """A report from its JSON. `name`: for people, where that is from. Raises NotMergeable."""
    try:
        found = typed.decode(content, JobReport)
    except msgspec.DecodeError as error:
        why = f"is not a report of a job in JSON ({error}): make it with `muster report JOB -o FILE.json`"
        raise NotMergeable(f"{name}: {why}") from None
    axes = [found.axis, *([found.moment.axis] if found.moment is not None else [])]
    if found.version != VERSION or not all(axis.step > 0 and axis.count > 0 for axis in axes):
        raise NotMergeable(f"{name}: is of version {found.version} of muster's reports, this muster reads {VERSION}")
    return found


def _content(path: Path) -> bytes:
    """Raises OSError and NotMergeable."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISREG(mode):
            return file.read()
        if not stat.S_ISFIFO(mode):
            raise NotMergeable(f"{path}: is neither a file nor a pipe")
        poll, data = select.poll(), bytearray()
        poll.register(file.fileno(), select.POLLIN)
        while (piece := file.read(1 << 20)) != b"" or not data:
            if piece is None:  # a writer has it open: as long as that takes
                poll.poll()
            elif piece:
                data += piece
            elif not (seen := poll.poll(WRITER_S * 1000)):
                raise NotMergeable(f"{path}: nobody writes into this pipe: start the program that does, or name a file")
            elif not seen[0][1] & select.POLLIN:
                break  # a writer was there, and has written nothing
        return bytes(data)


def merged(reports: Sequence[JobReport]) -> JobReport:
    """At least one report. Raises NotMergeable."""
    if len({(one.node, one.node_rank) for one in reports}) < len(reports):
        raise NotMergeable("two of the reports are of the same node: give one for each node")
    names = sorted({one.job_id for one in reports})
    if len(names) > 1:
        raise NotMergeable(f"the reports are of several jobs: {', '.join(names[:5])}")
    reports = sorted(reports, key=lambda one: one.node_rank)
    parts = [_part(one) for one in reports]
    to_blame = first_node.first([NodePart(*part, CLOCK_DOUBT_S) for part in parts])
    chief = reports[to_blame[0] if to_blame else 0]
    axis = _axis([one.axis for one in reports])
    drawn = _plots(reports, axis)
    took = [(one.attempts, len(one.cards)) for one in reports]
    count = max(one.node_count for one in reports)
    missing = [f"{one.node}: {text}" for one in reports for text in one.unknown]
    missing.append("the clocks of the nodes were not compared: each time is that of its node")
    if len(reports) < count:
        missing.append(f"of {count} nodes of the job {count - len(reports)} have no report here")
    nodes = ", ".join(one.node for one in reports)
    return msgspec.structs.replace(
        chief,
        node=nodes,
        node_rank=0,
        node_count=1,  # the nodes are named
        made_at=max(one.made_at for one in reports),
        said=msgspec.structs.replace(
            chief.said,
            headline=_headline(reports, to_blame),
            next_steps=[f"{chief.node}: {step}" for step in chief.said.next_steps],
        ),
        axis=axis,
        facts=_facts(reports) | plots.card_hours(took, max(one.made_at for one in reports), drawn),
        # A row for each node: the attempts of all lie at the same time.
        attempts=[
            msgspec.structs.replace(_named(one, bar), rank=one.node_rank) for one in reports for bar in one.attempts
        ],
        steps=[_named(one, bar) for one in reports for bar in one.steps],
        ranks=sorted((rank for one in reports for rank in one.ranks), key=lambda rank: rank.rank),
        rank_bars=[bar for one in reports for bar in one.rank_bars],
        hangs=[_named(one, bar) for one in reports for bar in one.hangs],
        events=_rows((one, row) for one in reports for row in one.events),
        plots=drawn,
        moment=_moment(reports, chief),
        checks=[
            msgspec.structs.replace(check, item=f"{one.node}: {check.item}") for one in reports for check in one.checks
        ],
        warnings=[f"{one.node}: {text}" for one in reports for text in one.warnings],
        node_reports=_rows((one, row) for one in reports for row in one.node_reports),
        stacks=sorted(
            (
                msgspec.structs.replace(taken, occasion=f"{one.node}, {taken.occasion}".rstrip(", "))
                for one in reports
                for taken in one.stacks
            ),
            key=lambda taken: taken.at,
        ),
        last_words=msgspec.structs.replace(chief.last_words, whose=f"{chief.last_words.whose} on {chief.node}")
        if chief.last_words.lines
        else chief.last_words,
        cards=[
            msgspec.structs.replace(card, kind=f"{card.kind} of {one.node}") for one in reports for card in one.cards
        ],
        remarks=[f"{one.node}: {text}" for one in reports for text in one.remarks],
        unknown=missing,
    )


def _part(one: JobReport) -> tuple[bool, str, float]:
    """Whether it failed, the kind of its cause, and the moment of its first failure."""
    rows = [row for row in (*one.events, *one.node_reports) if row.seconds]
    ends = [rank.ended_at for rank in one.ranks if rank.ended_at]
    at = rows[0].at - rows[0].seconds if rows else min(ends, default=one.axis.end)
    return one.said.state in _FAILED, one.said.cause.kind if one.said.cause is not None else "", at


def _headline(reports: Sequence[JobReport], to_blame: Sequence[int]) -> str:
    told = [f"{reports[place].node}: {reports[place].said.headline}" for place in to_blame]
    if not told:
        states = dict.fromkeys(one.said.state for one in reports)
        return f"No part has failed; {', '.join(states)} on {len(reports)} nodes"
    if len(told) == 1:
        return f"First failed {told[0]}"
    return "Failed first (the clocks do not show in which order): " + "; ".join(told)


def _facts(reports: Sequence[JobReport]) -> dict[str, str]:
    """Those that are the same everywhere, and what became of each part."""
    same = {
        name: text
        for name, text in reports[0].facts.items()
        if name != plots.CARD_HOURS and all(one.facts.get(name) == text for one in reports)
    }
    return same | {f"on {one.node}": f"{one.said.state}: {one.said.headline}" for one in reports}


def _named(one: JobReport, bar: Bar) -> Bar:
    return msgspec.structs.replace(bar, name=f"{one.node}: {bar.name}")


def _rows(found: Iterable[tuple[JobReport, Row]]) -> list[Row]:
    named = [msgspec.structs.replace(row, text=f"{one.node}: {row.text}") for one, row in found]
    return sorted(named, key=lambda row: row.at)


def _axis(axes: Sequence[Axis]) -> Axis:
    """From the first begin to the last end; a step is as long as the longest of one node, or several of it."""
    begin, end = min(one.begin for one in axes), max(one.end for one in axes)
    longest = max(one.step for one in axes)
    step = longest * max(1, math.ceil((end - begin) / longest / thinning.STEPS))
    begin = math.floor(begin / step) * step
    count = math.ceil((end - begin) / step)
    return Axis(begin, begin + step * count, step, count, axes[0].zone)


def _moment(reports: Sequence[JobReport], chief: JobReport) -> CloseUp | None:
    """That of the node to blame, with the readings of the others at that time."""
    if chief.moment is None:
        return None
    parts = [
        msgspec.structs.replace(one, axis=one.moment.axis, plots=one.moment.plots)
        for one in reports
        if one.moment is not None
    ]
    return msgspec.structs.replace(
        chief.moment, title=f"{chief.moment.title} on {chief.node}", plots=_plots(parts, chief.moment.axis)
    )


def _plots(reports: Sequence[JobReport], axis: Axis) -> list[Plot]:
    names = dict.fromkeys(plot.name for one in reports for plot in one.plots)
    return [_plot([(one, plot) for one in reports for plot in one.plots if plot.name == name], axis) for name in names]


def _plot(found: Sequence[tuple[JobReport, Plot]], axis: Axis) -> Plot:
    """Of all nodes, in the unit of the largest readings."""
    head = max((plot for _, plot in found), key=lambda plot: plot.most * plots.factor(plot.unit))
    made = []
    for one, plot in found:
        scale = plots.factor(plot.unit) / plots.factor(head.unit)
        made += [_series(one, series, axis, scale) for series in plot.series]
    odd = thinning.odd_one([one.mean for one in made], head.most)
    series = [msgspec.structs.replace(one, odd=place == odd) for place, one in enumerate(made)]
    return msgspec.structs.replace(head, series=series, sentence=plots.sentence(series, head.unit))


def _series(one: JobReport, series: PlotSeries, axis: Axis, scale: float) -> PlotSeries:
    """In the steps of the common axis: means are averaged, leasts and mosts stay."""
    sums, counts = [0.0] * axis.count, [0] * axis.count
    least: list[float | None] = [None] * axis.count
    most: list[float | None] = [None] * axis.count
    for number, values in enumerate(zip(series.mean, series.least, series.most, strict=True)):
        place = int((one.axis.begin + (number + 0.5) * one.axis.step - axis.begin) / axis.step)
        if None in values or not 0 <= place < axis.count:
            continue
        mean, low, high = (value * scale for value in values if value is not None)
        sums[place] += mean
        counts[place] += 1
        least[place] = low if (before := least[place]) is None else min(before, low)
        most[place] = high if (before := most[place]) is None else max(before, high)
    means = [round(total / count, 2) if count else None for total, count in zip(sums, counts, strict=True)]
    return msgspec.structs.replace(series, name=f"{one.node}: {series.name}", mean=means, least=least, most=most)
