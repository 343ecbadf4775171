"""What the history is made of: series, rows, steps; no SQL and no disk."""

import math
from collections.abc import Sequence

from muster.probes.kernel.dataclass import dataclass

#: What a row says, in this order: percent, but `power` in watts. `sm` to `dram` are those of Activity; the last four
#: are bytes per second: over the links between cards, through read- and write-like calls, into the log.
METRICS = ("cpu", "mem", "util", "card_mem", "power", "sm", "tensor", "dram", "fabric", "read", "write", "log")
CPU, MEM, UTIL, CARD_MEM, POWER, SM, TENSOR, DRAM, FABRIC, READ, WRITE, LOG = range(12)
#: Seconds that are kept at full rate, and seconds per row after that.
FRESH_S, THIN_S = 3600.0, 60.0


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """What a series is about. `kind` is "node", "card", "job" or "rank"; `name` the card's uuid, the job's id, or that
    and the rank's number; `born` tells a job from a later one of the same id: when it was accepted."""

    kind: str
    name: str = ""
    born: float = 0.0

    def of_rank(self, rank: int) -> "SeriesKey":
        """The series of a rank of this job. Its `cpu` is in percent of one CPU."""
        return SeriesKey("rank", f"{self.name}/{rank}", self.born)

    @property
    def rank(self) -> int | None:
        """The number of the rank that it is about."""
        number = self.name.rpartition("/")[2]
        return int(number) if self.kind == "rank" and number.isdecimal() else None

    def has(self, other: "SeriesKey") -> bool:
        """Whether the other one is a rank of this job."""
        return other.kind == "rank" and other.born == self.born and other.name.rpartition("/")[0] == self.name


@dataclass(frozen=True, slots=True)
class Busy:
    """How much a job's cards have worked since its ranks were let go (`since`, seconds since the epoch): percent times
    seconds, over so many seconds of readings."""

    since: float = 0.0
    total: float = 0.0
    seconds: float = 0.0

    @property
    def mean(self) -> float | None:
        """In percent."""
        return self.total / self.seconds if self.seconds > 0 else None

    def is_underused(self, percent: float, after_s: float) -> bool:
        """Whether that is below `percent`, over at least `after_s` seconds."""
        return self.mean is not None and self.seconds >= after_s and self.mean < percent


@dataclass(frozen=True, slots=True)
class SeriesFacts:
    """What is known of a series beside its rows. `card`: its index now. Of a job also its cards, with the index of
    each; `live`: it has not ended."""

    card_kind: str = ""
    card: int | None = None
    live: bool = True
    busy: Busy = Busy()
    cards: tuple[tuple[SeriesKey, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds between two readings, days that are kept, bytes on disk."""

    step_s: float
    days: float
    bytes: int

    @property
    def fresh(self) -> int:
        """Rows of a ring at full rate."""
        return max(1, math.ceil(FRESH_S / self.step_s))

    @property
    def thin(self) -> int:
        """Rows of a ring of minutes."""
        return max(1, math.ceil(self.days * 86400 / THIN_S)) + 1


#: A row: seconds since the epoch, and a value or None for each metric.
Row = tuple[float, Sequence[float | None]]
#: Mean, least and most.
Triple = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Step:
    """What a series comes to in a step of time, for each metric; None where there is nothing. `weight`: seconds of
    readings."""

    weight: float
    values: tuple[Triple | None, ...]


#: The steps of a series, by their number from the begin of what was asked for.
Steps = dict[int, Step]


@dataclass(frozen=True, slots=True)
class FoundSeries:
    """A series, and what it has of the time that was asked for. `card`: the index that it has, or had in the job."""

    key: SeriesKey
    card_kind: str
    card: int | None
    steps: Steps


@dataclass(frozen=True, slots=True)
class JobSeries:
    """A job as the history knows it, also after its record was removed. `last`: its last reading, in seconds since the
    epoch; `cards`: the indices that its cards had."""

    key: SeriesKey
    last: float
    live: bool
    busy: Busy
    cards: tuple[int, ...]


def joined(one: Step | None, other: Step) -> Step:
    """Two parts of a step as one."""
    if one is None:
        return other
    weight = one.weight + other.weight
    values: list[Triple | None] = []
    for a, b in zip(one.values, other.values, strict=True):
        if a is None or b is None:
            values.append(a or b)
        else:
            mean, least, most = (a[0] * one.weight + b[0] * other.weight) / weight, min(a[1], b[1]), max(a[2], b[2])
            values.append((min(max(mean, least), most), least, most))  # rounding can put it outside
    return Step(weight, tuple(values))
