"""The live screen of `muster top`: all cards with their last minutes, the odd ones first; or one card, or one rank."""

import math
from collections.abc import Sequence

from muster.agent.cli.live import top_table
from muster.agent.cli.live.recent import (
    CPU,
    MEMORY,
    POWER,
    READ,
    RESIDENT,
    UTIL,
    WRITE,
    Column,
    Key,
    Recent,
    memory_share,
)
from muster.agent.cli.live.top_choice import HELPS, TopChoice
from muster.agent.report import thinning
from muster.agent.text import clean, local, shorten, size, span
from muster.v1 import node_pb2, telemetry_pb2

#: Columns of a line of a card but for its curve and what stands behind `JOB`, and those of the names below a plot.
_BESIDE, _LABEL = 30, 11
#: Fewest columns for what stands behind `JOB`. A longer one takes up to half of what it shares with the curve.
_NAME = 14
#: In fewer columns a card has a curve and its job alone, a rank its use of CPU and memory. Fewest that there is a
#: layout for.
_NARROW, _NARROWEST = 56, 20
#: `_BESIDE` and `_NAME` there.
_BESIDE_NARROW, _NAME_NARROW = 11, 7
#: A name in fewer columns is only cut.
_SHORTEST_NAME = 6
#: Rows of a large plot.
_LEAST, _TALLEST = 3, 14
#: A screen of so many rows is too low to say what it leaves out.
_HINTED = 8
_EIGHTHS = " ▁▂▃▄▅▆▇█"
#: Steps of the distance by which cards are sorted: a card that wavers stays where it is. In percent.
_STEADY = 5.0


def screen(
    now: telemetry_pb2.GetTelemetryResponse,
    recent: Recent,
    choice: TopChoice,
    width: int,
    height: int,
    *,
    silent: str = "",
) -> str:
    """At most `height` lines of at most `width` columns; the last one names the keys. `silent`: that all of it is not
    new, and why, in place of the second line."""
    card = next((one for one in now.cards if one.index == choice.card), None)
    found = _rank_of(now, choice)
    view = _View(now, recent, choice, max(width, _NARROWEST), height)
    if card is not None:
        lines = view.card(card)
    elif found is not None:
        lines = view.rank(*found)
    else:
        lines = view.all()
    if len(lines) > height - 1:
        lines = list(filter(None, lines))
    if silent:
        lines[1:2] = [silent] if lines[1:2] == [""] else [silent, *lines[1:2]]
    if (more := len(lines) - (height - 1)) > 0 and height > _HINTED:
        lines[height - 2 :] = [f"... {more + 1} more lines: j shows one job, r one rank, a taller terminal all"]
    lines = [shorten(line, width) for line in lines[: height - 1]]
    keys = next((each for each in HELPS if len(each) <= width), HELPS[-1])
    return "\n".join([*lines, *[""] * (height - 1 - len(lines)), shorten(keys, width)]) + "\n"


def _rank_of(
    now: telemetry_pb2.GetTelemetryResponse, choice: TopChoice
) -> tuple[telemetry_pb2.JobTelemetry, telemetry_pb2.RankTelemetry] | None:
    for job in now.jobs:
        for rank in job.ranks:
            if choice.rank == (job.job_id, rank.rank):
                return job, rank
    return None


class _View:
    """One look, for one size of the screen."""

    def __init__(
        self, now: telemetry_pb2.GetTelemetryResponse, recent: Recent, choice: TopChoice, width: int, height: int
    ) -> None:
        self._now, self._recent, self._choice = now, recent, choice
        self._width, self._height = width, height
        self._narrow = width < _NARROW
        self._rank_head = top_table.RANK_HEAD_NARROW if self._narrow else top_table.RANK_HEAD
        self._head = top_table.head(now)

    def _columns(self, key: Key, count: int) -> list[Column | None]:
        """Ends at a full column, so that the curve moves by whole columns."""
        each = self._choice.span / count
        end = math.ceil(self._now.at.ToNanoseconds() / 1e9 / each) * each
        return self._recent.columns(key, end, self._choice.span, count)

    def all(self) -> list[str]:
        """Cards, then jobs with their ranks; of one job alone if one is chosen."""
        choice = self._choice
        order = "by number" if choice.by_number else "odd first"
        about = f"job {clean(choice.job)}, " if choice.job else ""
        lines = [f"{self._head}  {about}{_short(choice.span)}, {order}"]
        cards = [one for one in self._now.cards if one.kind != "slot" and choice.job in ("", one.job_id)]
        if cards:
            lines += ["", *self._cards(cards)]
        for job in self._now.jobs:
            if choice.job in ("", job.job_id):
                lines += ["", top_table.job_line(job, self._width)]
                lines += [self._rank_head, *self._ranks(job)] if job.ranks else []
        return lines

    def _cards(self, cards: Sequence[node_pb2.Card]) -> list[str]:
        tensor = not self._narrow and any(card.reading.activity.HasField("tensor") for card in cards)
        shared = self._width - (_BESIDE_NARROW if self._narrow else _BESIDE) - (len(top_table.TENSOR) if tensor else 0)
        # As if each were odd: the curves do not move when one becomes so.
        longest = max(len(_label(card, odd=bool(card.job_id))) for card in cards)
        name = max(_NAME_NARROW if self._narrow else _NAME, min(longest, shared // 2))
        count = max(4 if self._narrow else 12, shared - name)
        curves = {card.index: self._columns((card.index, UTIL), count) for card in cards}
        odd, far = self._oddness(cards, curves)
        if not self._choice.by_number:
            cards = sorted(
                cards,
                key=lambda one: (
                    one.health in ("OK", ""), one.index not in odd, -round(far[one.index] / _STEADY), one.index,
                ),
            )  # fmt: skip
        begin = f"-{_short(self._choice.span)}"
        time = f"{begin}{'now':>{count - len(begin)}}"
        head = f"CARD UTIL{top_table.TENSOR if tensor else ''}  {time}   MEM POWER TEMP  JOB"
        if self._narrow:
            head = f"CARD UTIL {begin:<{count}} JOB"
        labels = {one.index: _label(one, odd=one.index in odd, room=name) for one in cards}
        return [head, *(self._card_line(one, curves[one.index], labels[one.index], tensor) for one in cards)]

    def _oddness(
        self, cards: Sequence[node_pb2.Card], curves: dict[int, list[Column | None]]
    ) -> tuple[set[int], dict[int, float]]:
        """Cards that stand out among those of their job, and how far each is from the others of it, in percent."""
        odd: set[int] = set()
        far = dict.fromkeys(curves, 0.0)
        for job in {card.job_id for card in cards if card.job_id}:
            mine = [card.index for card in cards if card.job_id == job]
            series = [[None if one is None else one.mean for one in curves[index]] for index in mine]
            if (place := thinning.odd_one(series, 100.0)) is not None:
                odd.add(mine[place])
            far |= {index: max(both) for index, *both in zip(mine, *thinning.distances(series), strict=True)}
        return odd, far

    def _card_line(self, card: node_pb2.Card, curve: Sequence[Column | None], label: str, tensor: bool) -> str:
        _, power, temperature = top_table.of_card(card)
        share = memory_share(card)
        util = f"{card.reading.utilization:.0f}%" if card.reading.HasField("utilization") else "-"
        util = f"{util:>4}" + (top_table.tensor(card) if tensor else "")
        memory = "-" if share is None else f"{share:.0f}%"
        line = top_table.spark([None if one is None else one.mean for one in curve])
        if self._narrow:
            return f"{card.index:>4} {util} {line} {label}"
        power = f"{power.partition('/')[0]}W" if "/" in power else power
        return f"{card.index:>4} {util}  {line}  {memory:>4} {power:>5} {temperature:>4}  {label}"

    def _ranks(self, job: telemetry_pb2.JobTelemetry) -> list[str]:
        ranks = list(job.ranks)
        if not self._choice.by_number and len(ranks) > 2:
            cpu = [[rank.cpu if rank.HasField("cpu") else None] for rank in ranks]
            far = dict(zip((rank.rank for rank in ranks), thinning.distances(cpu)[0], strict=True))
            ranks.sort(key=lambda rank: (not rank.slow, -round(far[rank.rank] / 2 / _STEADY), rank.rank))
        return [self._rank_line(rank) for rank in ranks]

    def _rank_line(self, rank: telemetry_pb2.RankTelemetry) -> str:
        return top_table.rank_line(rank, narrow=self._narrow)

    def card(self, card: node_pb2.Card) -> list[str]:
        """One card."""
        memory, power, temperature = top_table.of_card(card)
        whose = f"job {clean(card.job_id)}" if card.job_id else "free"
        said = f"memory {memory}  power {power}  {temperature}  {card.health}"
        if card.reading.activity.HasField("tensor"):
            said += f"  tensor cores {card.reading.activity.tensor:.0f}%"
        return [
            f"{self._head}  {_short(self._choice.span)}", "",
            f"CARD {card.index}  {clean(card.model)}  {whose}".rstrip(), said, "",
            "Utilization in %", *self._plot((card.index, UTIL), 100.0), "",
            self._curve("Memory", (card.index, MEMORY), 100.0, "%"),
            self._curve("Power", (card.index, POWER), card.reading.power_limit_watts or 0.0, "W"),
        ]  # fmt: skip

    def rank(self, job: telemetry_pb2.JobTelemetry, rank: telemetry_pb2.RankTelemetry) -> list[str]:
        """One rank."""
        key = (job.job_id, rank.rank)
        since, now = self._recent.ranks_since, self._now.at.ToSeconds()
        begun = f", since {local(since, now)}" if since > now - self._choice.span else ""
        return [
            f"{self._head}  {_short(self._choice.span)}", "", f"RANK {rank.rank} of job {clean(job.job_id)}",
            self._rank_head, self._rank_line(rank), "",
            f"CPU in % of one CPU, with all descendants{begun}", *self._plot((key, CPU), 100.0), "",
            self._curve("Memory", (key, RESIDENT), 0.0, "B"), self._curve("Read/s", (key, READ), 0.0, "B"),
            self._curve("Written/s", (key, WRITE), 0.0, "B"),
        ]  # fmt: skip

    def _plot(self, key: Key, least: float) -> list[str]:
        """A large one: means as bars, the most of each column as a dot. `least`: the end of the scale, or more."""
        rows = max(_LEAST, min(_TALLEST, self._height - 16))
        columns = self._columns(key, self._width - _LABEL)
        top = max([least, *(thinning.nice(one.most) for one in columns if one is not None)])
        lines = []
        for row in range(rows - 1, -1, -1):
            label = f"{top:g}" if row == rows - 1 else f"{top / 2:g}" if row == rows // 2 else "0" if row == 0 else ""
            lines.append(f"{label:>{_LABEL - 2}} |" + "".join(_cell(one, row, rows, top) for one in columns))
        begin = f"-{_short(self._choice.span)}"
        return [*lines, " " * _LABEL + begin + f"{'now':>{self._width - _LABEL - len(begin)}}"]

    def _curve(self, name: str, key: Key, most: float, unit: str) -> str:
        """A small one, with its last value."""
        # On a narrow terminal there is the last value alone.
        columns = self._columns(key, max(1, self._width - _LABEL - 11))
        told = [one.mean for one in columns if one is not None]
        most = max([most, *told, 1e-9])
        last = "-" if not told else size(round(told[-1])) if unit == "B" else f"{told[-1]:.0f}{unit}"
        drawn = top_table.spark([None if one is None else 100 * one.mean / most for one in columns])
        return f"{name:<{_LABEL}}{last:>9}" if self._narrow else f"{name:<{_LABEL}}{drawn} {last:>9}"


def _cell(one: Column | None, row: int, rows: int, top: float) -> str:
    if one is None:
        return " "
    filled = one.mean / top * rows - row
    if filled >= 1:
        return _EIGHTHS[-1]
    if filled > 0:
        return _EIGHTHS[max(1, int(filled * 8))]
    if int(one.most / top * rows - 1e-9) == row:
        return "·"
    return "▁" if row == 0 else " "


def _label(card: node_pb2.Card, *, odd: bool, room: int = 0) -> str:
    """What stands behind `JOB`; in so little `room` a name loses its middle: jobs often differ in the last characters
    alone."""
    health = [card.health] if card.health not in ("OK", "") else []
    words = [*health, *(["ODD"] if odd else []), clean(card.job_id) or "free"]
    left = room - len(" ".join(["", *words[:-1]]))
    if _SHORTEST_NAME < left < len(words[-1]):
        words[-1] = words[-1][: left // 2] + "…" + words[-1][-((left - 1) // 2) :]
    return " ".join(words)


def _short(seconds: int) -> str:
    return f"{seconds // 60}m" if seconds < 3600 else span(seconds)
