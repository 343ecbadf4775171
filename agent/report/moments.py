"""A long job around the moment at which it failed, drawn a second time and larger: in the picture of a whole day, the
last minute is as thin as a hair. Pure."""

from collections.abc import Sequence

import msgspec

from muster.agent.report import plots
from muster.agent.report.job_report import Axis, Bar, JobReport
from muster.agent.why.report import Row

#: Of a job whose steps are at least so many seconds: it ran for three hours.
FROM_STEP_S = 20.0
#: Seconds before the moment, and of all: the history has each reading of the last hour.
BEFORE_S, LONGEST_S = 900.0, 3600.0
#: A hang that ended so many seconds before the job did was its end.
_SOON_S = 120.0


def around(
    whole: Axis, last: float, failed: tuple[str, float] | None, hangs: Sequence[Bar], readings_s: float
) -> tuple[str, Axis] | None:
    """The title and the axis; None: there is nothing to see, or the whole axis shows it. `last`: the end of the job, or
    now; `failed`: what `why` counts from, and when; None: the job did not fail."""
    if whole.step < FROM_STEP_S:
        return None
    end = last if failed is None else failed[1]
    if hangs and (hangs[-1].end is None or hangs[-1].end >= end - _SOON_S):
        title, at = "Around the hang", _begin(hangs)
    elif failed is not None:
        title, at = f"Around {failed[0]}", failed[1]
    else:
        return None
    begin = max(whole.begin, at - BEFORE_S)
    return title, plots.axis(begin, min(max(last, at), begin + LONGEST_S), readings_s, whole.zone)


def _begin(hangs: Sequence[Bar]) -> float:
    """Of the last hang: what was suspected at first, and then certain."""
    begin = hangs[-1].begin
    for earlier in reversed(hangs[:-1]):
        if earlier.end is None or earlier.end < begin:
            break
        begin = earlier.begin
    return begin


def enlarged(report: JobReport) -> JobReport | None:
    """The report as far as it is about that moment; its plots have names of their own."""
    moment = report.moment
    if moment is None:
        return None
    axis = moment.axis

    def lasting(bars: list[Bar]) -> list[Bar]:
        # Cut at its begin, whose date the times of this axis do not have.
        return [
            msgspec.structs.replace(bar, begin=max(bar.begin, axis.begin))
            for bar in bars
            if bar.begin <= axis.end and (bar.end is None or bar.end >= axis.begin)
        ]

    def inside(rows: list[Row]) -> list[Row]:
        return [row for row in rows if axis.begin <= row.at <= axis.end]

    return msgspec.structs.replace(
        report,
        axis=axis,
        plots=[msgspec.structs.replace(plot, name=f"moment-{plot.name}") for plot in moment.plots],
        attempts=lasting(report.attempts),
        steps=lasting(report.steps),
        rank_bars=lasting(report.rank_bars),
        hangs=lasting(report.hangs),
        events=inside(report.events),
        node_reports=inside(report.node_reports),
    )
