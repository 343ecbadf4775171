"""Collects the report of a node from its folders, without its daemon."""

import math
import platform
import socket
import time
from collections import Counter
from collections.abc import Sequence

import anyio

from muster.agent import threads
from muster.agent.config.schema import Config
from muster.agent.errors import HistoryUnreadable
from muster.agent.events.disk_events import DiskEvents
from muster.agent.events.event_store import Event
from muster.agent.host import build
from muster.agent.node import node_file
from muster.agent.node.node_file import NodeState
from muster.agent.report import on_disk, plots, thinning
from muster.agent.report.job_report import Axis, Bar, Plot
from muster.agent.report.node import node_jobs, node_lanes
from muster.agent.report.node.node_overview import NodeJob, NodeOverview
from muster.agent.telemetry.history.history_rows import JobSeries
from muster.agent.text import numbers, span
from muster.supervisors.paths import Root

#: At most so many reports of kernel and drivers are listed, the grave ones and the newest.
MAX_ROWS = 400
#: The pictures show so many seconds at least.
_LEAST_S = 600.0
#: Seconds that the events may take.
EVENTS_S = 30.0
_KINDS = frozenset({"job.ended", *node_lanes.LOSSES})


async def collect(root: Root, *, node: str = "", now: float | None = None) -> NodeOverview:
    """The last `telemetry.history_days` days up to `now` (seconds since the epoch; this moment). Raises only
    cancellation: `unknown` says what cannot be read."""
    source = on_disk.sources(root, "")
    config, end = source.config(), time.time() if now is None else now
    axis = axis_of(end, config.telemetry.history_days * 86400.0, config)
    events, missing = await _events(root, axis.begin)
    state, more = await threads.run(_state, root)
    entries, unread = await threads.run(node_jobs.read, root, axis.begin)
    missing += [*more, *unread, *([source.trouble] if source.trouble else [])]
    series: list[JobSeries] = []
    drawn, trouble = await plots.of_node(source.telemetry.history, axis)
    try:
        series = await source.telemetry.history.jobs(axis.begin)
    except HistoryUnreadable as error:
        trouble = str(error)
    missing += [trouble] if trouble else []
    jobs = node_jobs.made(entries, series, events, axis.begin, config.telemetry)
    known_s = end - min(
        [*_read_at(drawn, axis)[:1], *(job.begin for job in jobs), *(event.time for event in events)], default=0
    )
    if max(known_s, _LEAST_S) < (end - axis.begin) / 2:
        # A node that is new: of days of which nothing is known nothing could be seen.
        axis = axis_of(end, max(known_s, _LEAST_S), config)
        drawn, trouble = await plots.of_node(source.telemetry.history, axis)
        missing += [trouble] if trouble and trouble not in missing else []
    cards = sorted({one.card for plot in drawn for one in plot.series if one.card is not None})
    rows, counts = node_lanes.reports(event for event in events if event.time >= axis.begin)
    if len(rows) > MAX_ROWS:
        missing.append(f"of {len(rows)} reports of kernel and drivers {MAX_ROWS} are listed; all are counted")
        rows = sorted(sorted(rows, key=lambda row: (not row.grave, -row.at))[:MAX_ROWS], key=lambda row: row.at)
    recent = [event for event in events if event.time >= axis.begin]
    lost = node_lanes.losses(recent)
    conditions = _within(node_lanes.conditions(events, state, axis.begin), axis)
    drains = _within(node_lanes.drains(events, state, axis.begin), axis)
    name = node or socket.gethostname()
    return NodeOverview(
        node=name,
        made_at=end,
        days=config.telemetry.history_days,
        headline=_headline(conditions, drains, jobs, config.telemetry.history_days),
        axis=axis,
        facts=_facts(jobs, cards, axis, conditions, drains, len(rows), len(lost)),
        conditions=conditions,
        drains=drains,
        stops=_within(node_lanes.stops(events, _read_at(drawn, axis)), axis),
        jobs=jobs,
        underused_percent=config.telemetry.underused_percent,
        plots=drawn,
        reports=rows,
        counts=counts,
        losses=lost[-MAX_ROWS:],
        cards=cards,
        versions={"muster": build.FULL, "Python": platform.python_version(), "kernel": platform.release()},
        unknown=missing,
    )


def axis_of(end: float, length: float, config: Config) -> Axis:
    """The last `length` seconds, in whole steps."""
    step = thinning.axis_step(length, config.telemetry.readings_s)
    count = math.ceil(length / step)
    begin = math.floor((end - length) / step) * step + step
    return Axis(begin, begin + count * step, step, count, time.localtime(end).tm_gmtoff)


async def _events(root: Root, begin: float) -> tuple[list[Event], list[str]]:
    """Those of the node, and of jobs that ended or lost something."""
    oldest: list[float] = []

    def chosen(event: Event) -> bool:
        return event.kind.startswith("node.") or event.kind in _KINDS

    source = DiskEvents(root.events, chosen)
    found: list[Event] = []
    with anyio.move_on_after(EVENTS_S):
        try:
            told = await source.read(None, 10**9)
        except OSError as error:
            return [], [f"{root.events}: cannot be read: {error.strerror}: conditions, drains and losses are missing"]
        oldest += [event.time for event, _ in told[:1]]
        found = sorted((event for event, _ in told if chosen(event)), key=lambda event: event.time)
        lines = source.damaged
        missing = [f"{root.events}: {_many(lines, 'line')} of the events cannot be read"] if lines else []
        if oldest and oldest[0] > begin + 3600.0:
            missing.append(f"the events begin {span(oldest[0] - begin)} after the begin of these days")
        return found, missing
    return [], [f"the events could not be read within {EVENTS_S:g} s"]


def _state(root: Root) -> tuple[NodeState | None, list[str]]:
    path = root.node
    try:
        return node_file.read(path), []
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"is damaged: {error}"
        return None, [f"{path}: {why}: what still lasts is known by events alone"]


def _read_at(drawn: Sequence[Plot], axis: Axis) -> list[float]:
    """When there were readings: the begins of such steps."""
    steps = {step for plot in drawn for one in plot.series for step, mean in enumerate(one.mean) if mean is not None}
    return [axis.begin + step * axis.step for step in sorted(steps)]


def _within(bars: Sequence[Bar], axis: Axis) -> list[Bar]:
    return [bar for bar in bars if bar.end is None or bar.end >= axis.begin]


def _headline(conditions: Sequence[Bar], drains: Sequence[Bar], jobs: Sequence[NodeJob], days: float) -> str:
    """What matters most, in a sentence."""
    said = []
    if drains and drains[-1].end is None:
        said.append("the node is drained")
    lasting = [bar for bar in conditions if bar.end is None]
    grave = sum(bar.look == node_lanes.LOOKS["CRITICAL"] for bar in lasting)
    if lasting:
        said.append(f"{_many(len(lasting), 'condition')} now, {grave or 'none'} of them critical")
    states = Counter(job.state for job in jobs)
    failed = states["FAILED"] + states["LOST"]
    said.append(f"{_many(len(jobs), 'job')} in {days:g} days, {failed or 'none'} of them failed")
    if low := sum(job.underused for job in jobs):
        said.append(f"{low} with underused cards")
    text = "; ".join(said)
    return text[:1].upper() + text[1:]


def _facts(
    jobs: Sequence[NodeJob], cards: Sequence[int], axis: Axis, conditions: Sequence[Bar], drains: Sequence[Bar],
    reports: int, lost: int,
) -> dict[str, str]:  # fmt: skip
    states = Counter(job.state for job in jobs)
    found = {"jobs": ", ".join(f"{count} {state}" for state, count in states.most_common()) or "none"}
    if cards:
        held = sum(len(job.cards) * (min(job.end or axis.end, axis.end) - max(job.begin, axis.begin)) for job in jobs)
        found["cards"] = f"{numbers(cards)}"
        found["held by jobs"] = f"{min(100.0, 100 * held / (len(cards) * (axis.end - axis.begin))):.0f} % of the time"
    now = sum(bar.end is None for bar in conditions)
    found["conditions"] = f"{len(conditions)}, {now} of them now" if conditions else "none"
    found["drains"] = str(len(drains))
    found["reports of kernel and drivers"] = str(reports)
    found["losses"] = str(lost)
    return found


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("s" if count != 1 else "")
