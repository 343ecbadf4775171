"""The report of a job on one node as data: all that the pages show, and nothing else. docs/reference/report.md."""

import msgspec

from muster.agent.why.report import ReportedCause, Row

#: Of this structure; a later one may have more keys.
VERSION = 1


class Said(msgspec.Struct, frozen=True, rename="camel"):
    """What muster says about the job, in the words of `muster why` and `muster status`."""

    state: str
    headline: str
    recommendation: str = ""
    reason: str = ""
    exit_code: int | None = None
    cause: ReportedCause | None = None
    other_causes: list[ReportedCause] = []  # msgspec copies it
    repeated: str = ""
    next_steps: list[str] = []


class Bar(msgspec.Struct, frozen=True, rename="camel"):
    """Something that lasted; `end` null: it still does. `look`: how it is drawn (looks.py)."""

    name: str
    begin: float
    end: float | None
    look: str
    text: str = ""
    rank: int | None = None


class RankLine(msgspec.Struct, frozen=True, rename="camel"):
    """A rank of this node, in the last attempt. Null where it is not known."""

    rank: int
    device: int
    pid: int | None
    outcome: str
    status: str
    look: str
    started_at: float | None
    ended_at: float | None
    cpu_s: float | None = None
    max_rss: int | None = None
    detail: str = ""


class PlotSeries(msgspec.Struct, frozen=True, rename="camel"):
    """A card or a rank: mean, least and most of each step; null where there is no reading. `odd`: it stands out;
    `culprit`: of the rank that failed first or hangs, in the words of `why`."""

    name: str
    rank: int | None
    card: int | None
    mean: list[float | None]
    least: list[float | None]
    most: list[float | None]
    odd: bool = False
    culprit: bool = False
    why: str = ""


class Plot(msgspec.Struct, frozen=True, rename="camel"):
    """A reading of all cards or ranks, in steps of the axis. `most`: the upper end of its scale, from 0."""

    name: str
    title: str
    unit: str
    of: str
    most: float
    series: list[PlotSeries]
    sentence: str = ""


class Axis(msgspec.Struct, frozen=True, rename="camel"):
    """The time axis of everything: seconds since the epoch; `count` steps of `step` seconds from `begin` on. `zone`:
    seconds that the node's local time is ahead of UTC."""

    begin: float
    end: float
    step: float
    count: int
    zone: int = 0


class CloseUp(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the time with an axis and plots of its own: a long job around its failure or hang."""

    title: str
    axis: Axis
    plots: list[Plot]


class StackGroup(msgspec.Struct, frozen=True, rename="camel"):
    """Processes with the same stack."""

    head: str
    lines: list[str]


class StackSet(msgspec.Struct, frozen=True, rename="camel"):
    """Stacks that were stored at a moment; the smallest group first."""

    at: float
    occasion: str
    attempt: int
    groups: list[StackGroup]
    notes: list[str] = []


class CulpritWords(msgspec.Struct, frozen=True, rename="camel"):
    """The last lines of the culprit. `whose`: "rank 3"; `file`: its log."""

    whose: str = ""
    file: str = ""
    lines: list[str] = []


class ReportCard(msgspec.Struct, frozen=True, rename="camel"):
    """A card of the job."""

    card: int
    kind: str
    uuid: str
    rank: int | None


class NodeCheckLine(msgspec.Struct, frozen=True, rename="camel"):
    """A check of the node before the start."""

    item: str
    status: str
    code: str
    reason: str


class JobReport(msgspec.Struct, frozen=True, rename="camel"):
    """A job on one node. Times are seconds since the epoch."""

    job_id: str
    node: str
    node_rank: int
    node_count: int
    made_at: float
    said: Said
    axis: Axis
    facts: dict[str, str]
    attempts: list[Bar]
    steps: list[Bar]
    ranks: list[RankLine]
    rank_bars: list[Bar]
    hangs: list[Bar]
    events: list[Row]
    plots: list[Plot]
    checks: list[NodeCheckLine]
    warnings: list[str]
    node_reports: list[Row]
    stacks: list[StackSet]
    last_words: CulpritWords
    command: str
    settings: dict[str, str]
    environment: list[str]
    cards: list[ReportCard]
    versions: dict[str, str]
    remarks: list[str]
    unknown: list[str]
    version: int = VERSION
    moment: CloseUp | None = None
