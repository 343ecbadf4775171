"""The last minutes of cards and ranks, as `muster top` has seen them and as the daemon has kept them."""

import math
from collections import deque
from collections.abc import Sequence

from muster.probes.kernel.dataclass import dataclass
from muster.v1 import node_pb2, telemetry_pb2

#: Seconds that are kept, and readings of one series, at most.
KEPT_S, MOST = 3600.0, 4000
#: Seconds of a step of the daemon's history that is fine enough for a curve.
PAST_STEP_S = 5
#: What is kept of a card and of a rank.
UTIL, MEMORY, POWER = "utilization", "memory", "power"
CPU, RESIDENT, READ, WRITE = "cpu", "resident", "read", "write"
#: The names that the API has for those of a card.
METRICS = {
    "gpuUtil": UTIL, "npuUtil": UTIL, "gpuMemUsage": MEMORY, "npuMemUsage": MEMORY, "power": POWER,
}  # fmt: skip

#: Of a card: its number; of a rank: its job and number. With the name of what was read.
Key = tuple[int | tuple[str, int], str]


@dataclass(frozen=True, slots=True)
class Column:
    """A stretch of time: mean and most of what was read in it."""

    mean: float
    most: float


class Recent:
    """Readings by time, in seconds since the epoch, oldest first."""

    def __init__(self) -> None:
        self._found: dict[Key, deque[tuple[float, float]]] = {}
        #: When the first reading of a rank came: the daemon's history of them cannot be asked for.
        self.ranks_since = 0.0

    def take(self, now: telemetry_pb2.GetTelemetryResponse) -> None:
        """A look at the node."""
        at = now.at.ToNanoseconds() / 1e9
        for card in now.cards:
            for name, value in _of_card(card).items():
                self._add((card.index, name), at, value)
        for job in now.jobs:
            for rank in job.ranks:
                for name, value in _of_rank(rank).items():
                    self.ranks_since = self.ranks_since or at
                    self._add(((job.job_id, rank.rank), name), at, value)

    def fill(self, past: telemetry_pb2.GetHistoryResponse) -> None:
        """What was before the first look. A mean is that of its whole step. Call it before `take`."""
        steps = range(0, max(1, past.step.ToSeconds()), PAST_STEP_S)
        for series in past.series:
            name = METRICS.get(series.metric)
            if name is not None and series.HasField("card"):
                for point in series.points:
                    for later in steps:
                        self._add((series.card, name), point.at.ToNanoseconds() / 1e9 + later, point.mean)

    def _add(self, key: Key, at: float, value: float) -> None:
        kept = self._found.setdefault(key, deque(maxlen=MOST))
        if math.isfinite(value) and (not kept or at > kept[-1][0]):
            kept.append((at, value))
            while at - kept[0][0] > KEPT_S:
                kept.popleft()

    def columns(self, key: Key, end: float, seconds: float, count: int) -> list[Column | None]:
        """The time before `end` in so many parts; None: nothing was read in that part, nor shortly before."""
        each = seconds / count
        parts: list[list[float]] = [[] for _ in range(count)]
        last = [-math.inf] * count
        for at, value in self._found.get(key, ()):
            place = count - 1 - int((end - at) / each)
            if 0 <= place < count and at <= end:
                parts[place].append(value)
                last[place] = at
        found: list[Column | None] = []
        for place, values in enumerate(parts):
            if values:
                found.append(Column(sum(values) / len(values), max(values)))
            else:  # the readings are further apart than the columns
                before = found[-1] if found and _near(last[:place], end - each * (count - 1 - place)) else None
                found.append(before)
        return found


def _near(times: Sequence[float], at: float) -> bool:
    """Whether one of them is at most the longest pause of the daemon's readings ago, and so still valid."""
    return bool(times) and at - max(times) <= 15.0


def _of_card(card: node_pb2.Card) -> dict[str, float]:
    reading, found = card.reading, {}
    if reading.HasField("utilization"):
        found[UTIL] = reading.utilization
    if (share := memory_share(card)) is not None:
        found[MEMORY] = share
    if reading.HasField("power_watts"):
        found[POWER] = reading.power_watts
    return found


def _of_rank(rank: telemetry_pb2.RankTelemetry) -> dict[str, float]:
    found: dict[str, float] = {}
    if rank.HasField("cpu"):
        found[CPU] = rank.cpu
    if rank.HasField("memory_bytes"):
        found[RESIDENT] = float(rank.memory_bytes)
    if rank.HasField("read_rate"):
        found[READ] = rank.read_rate
    if rank.HasField("write_rate"):
        found[WRITE] = rank.write_rate
    return found


def memory_share(card: node_pb2.Card) -> float | None:
    """How much of the card's memory is in use, in percent; None: not known."""
    reading = card.reading
    total = reading.memory_total_bytes if reading.HasField("memory_total_bytes") else card.memory_bytes
    return 100.0 * reading.memory_used_bytes / total if reading.HasField("memory_used_bytes") and total else None
