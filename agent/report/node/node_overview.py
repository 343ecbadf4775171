"""Some days of a node as data: all that the pages show, and nothing else. docs/reference/report.md."""

import msgspec

from muster.agent.report.job_report import Axis, Bar, Plot
from muster.agent.why.report import Row

VERSION = 1


class NodeJob(msgspec.Struct, frozen=True, rename="camel"):
    """A job: when it had its cards. `end` null: it still has them. `use`: mean utilization of its cards in percent,
    over `useS` seconds; null without readings. `idleCardH`: hours of cards that were not used."""

    job_id: str
    state: str
    begin: float
    end: float | None
    look: str
    cards: list[int]
    text: str = ""
    use: float | None = None
    use_s: float = 0.0
    underused: bool = False
    idle_card_h: float | None = None


class ReportCount(msgspec.Struct, frozen=True, rename="camel"):
    """How often kernel or driver reported something: its code, the number behind it (of an Xid), about which device."""

    code: str
    number: str
    device: str
    count: int
    last: float
    grave: bool


class NodeOverview(msgspec.Struct, frozen=True, rename="camel"):
    """A node. Times are seconds since the epoch."""

    node: str
    made_at: float
    days: float
    headline: str
    axis: Axis
    facts: dict[str, str]
    conditions: list[Bar]
    drains: list[Bar]
    stops: list[Bar]
    jobs: list[NodeJob]
    underused_percent: float
    plots: list[Plot]
    reports: list[Row]
    counts: list[ReportCount]
    losses: list[Row]
    cards: list[int]
    versions: dict[str, str]
    unknown: list[str]
    version: int = VERSION
