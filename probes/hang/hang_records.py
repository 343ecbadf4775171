"""Telemetry records, as the sampler writes them (docs/concepts/telemetry.md), read with distrust: a reading that is no
number is missing, and a record without a time or a job is not a record."""

import json
import math
from dataclasses import field
from typing import Any

from muster.probes.kernel.dataclass import dataclass
from muster.probes.waits import LibraryWait, RankStack

RANK, WORKER, HELPER = "rank", "worker", "helper"
#: The word with which a card says that a call of its driver does not return
#: (`muster.probes.cards.accelerator.Trouble.HANG`).
HANG = "HANG"
#: Beyond every clock and every counter.
_MOST = 1e18
#: Frames of a stack, and characters of a frame.
_MOST_FRAMES, _MOST_FRAME = 64, 300


class BadRecord(ValueError):
    """Raised for a line that is no telemetry record. The message says what it lacks."""


@dataclass(frozen=True, slots=True)
class Proc:
    """A process. Counters in bytes and CPU seconds; None: unknown. `rank` None: unknown, or none."""

    key: str
    pid: int
    rank: int | None
    role: str
    cpu_s: float | None
    rchar: float | None
    wchar: float | None
    read_bytes: float | None
    write_bytes: float | None
    state: str
    wchan: str


@dataclass(frozen=True, slots=True)
class CardReading:
    """A card. Percent, watts, bytes; None: unknown. `hangs`: a call of the driver for it does not return."""

    index: int
    kind: str
    rank: int | None
    util: float | None
    mem_util: float | None
    power_w: float | None
    power_limit_w: float | None
    fabric_bytes: float | None
    hangs: bool


@dataclass(frozen=True, slots=True)
class Record:
    """A job at time `t`. `procs` and `cards` None: unknown, which is not the same as none. `others`: nodes of the job
    of which this tells nothing; `nodes_known`: the record says on how many nodes the job is. `stacks`: of dumps that
    were taken since the record before; `library`: of the last two looks since then; `asked`: ranks were asked for
    dumps since then, so that what they wrote may be that; `log_lines`: lines of each rank's log so far, from some
    beginning; left out: not counted. `samples`: as `stacks`, of a job that goes on, for the rule of slow ranks.
    `net_bytes`: of the node, with all its jobs; `job_net_rate`: bytes a second of this job, at most, since the
    record before."""

    t: float
    job: str
    procs: tuple[Proc, ...] | None
    cards: tuple[CardReading, ...] | None
    log_bytes: dict[int, float]
    has_log: bool
    net_bytes: float | None
    driver_hangs: bool
    others: int = 0
    nodes_known: bool = False
    stacks: tuple[RankStack, ...] = ()
    library: LibraryWait | None = None
    asked: bool = False
    log_lines: dict[int, float] = field(default_factory=dict)
    samples: tuple[RankStack, ...] = ()
    job_net_rate: float | None = None
    job_net_least: float | None = None


def parse(line: str | bytes) -> Record | None:
    """The record of a line; None of a line that only says that records were left out there. Raises BadRecord."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"not JSON: {error}") from None
    if isinstance(value, dict) and "lost" in value and "job" not in value:
        return None
    return read(value)


def read(value: object) -> Record:
    """The record of a decoded JSON object. Raises BadRecord."""
    if not isinstance(value, dict):
        raise BadRecord(f"a record is a JSON object, this is {_what(value)}")
    t = _number(value.get("t"))
    if t is None:
        raise BadRecord(f"t: {_what(value.get('t'))}: must be a number of seconds")
    job = value.get("job")
    if not isinstance(job, str) or not job:
        raise BadRecord(f"job: {_what(job)}: must be a job's id")
    procs, cards, log, net = (value.get(name) for name in ("procs", "cards", "log_bytes", "net_bytes"))
    return Record(
        t=t,
        job=job,
        procs=_procs(procs) if isinstance(procs, list) else None,
        cards=_cards(cards) if isinstance(cards, list) else None,
        log_bytes=_by_rank(log),
        has_log=isinstance(log, dict),
        net_bytes=_counter(net),
        driver_hangs=value.get("driver") == HANG,
        others=max(0, (_whole(value.get("nodes")) or 1) - 1),
        nodes_known=bool(_whole(value.get("nodes"))),
        stacks=_stacks(value.get("stacks")),
        library=_library(value.get("library")),
        asked=value.get("asked") is True,
        log_lines=_by_rank(value.get("log_lines")),
        samples=_stacks(value.get("samples")),
        job_net_rate=_counter(value.get("job_net_rate")),
        job_net_least=_counter(value.get("job_net_least")),
    )


def _procs(values: list[Any]) -> tuple[Proc, ...]:
    found: dict[str, Proc] = {}
    for value in values:
        if not isinstance(value, dict):
            continue
        pid = _whole(value.get("pid"))
        if pid is None:
            continue
        rank = _whole(value.get("rank"))
        role = value.get("role")
        # Of a process that is not known to be a helper a sign of life counts.
        role = role if role in (RANK, WORKER, HELPER) else WORKER
        # Written through str(), for a start time may be given in ticks or as a fraction of seconds.
        key = f"{pid}:{value.get('start')!s:.40}"
        state, wchan = value.get("state"), value.get("wchan")
        found[key] = Proc(
            key,
            pid,
            rank,
            role,
            _counter(value.get("cpu_s")),
            _counter(value.get("rchar")),
            _counter(value.get("wchar")),
            _counter(value.get("read_bytes")),
            _counter(value.get("write_bytes")),
            state[:1] if isinstance(state, str) else "",
            wchan[:80] if isinstance(wchan, str) else "",
        )
    # Sorted, so that the order in which they were read says nothing.
    return tuple(sorted(found.values(), key=lambda proc: proc.key))


def _cards(values: list[Any]) -> tuple[CardReading, ...]:
    # Nodes whose records were joined may each have a card of this index.
    found: dict[tuple[int, int], CardReading] = {}
    for value in values:
        if not isinstance(value, dict):
            continue
        index, rank = _whole(value.get("index")), _whole(value.get("rank"))
        if index is None:
            continue
        kind = value.get("kind")
        util, mem = _counter(value.get("util")), _counter(value.get("mem_util"))
        found[index, -1 if rank is None else rank] = CardReading(
            index,
            kind if isinstance(kind, str) else "",
            rank,
            None if util is None else min(util, 100.0),
            None if mem is None else min(mem, 100.0),
            _counter(value.get("power_w")),
            _counter(value.get("power_limit_w")) or None,
            _counter(value.get("fabric_bytes")),
            value.get("trouble") == HANG,
        )
    return tuple(found[key] for key in sorted(found))


def _stacks(values: object) -> tuple[RankStack, ...]:
    found = []
    for value in values if isinstance(values, list) else ():
        if not isinstance(value, dict):
            continue
        t, rank, pid = _number(value.get("t")), _whole(value.get("rank")), _whole(value.get("pid"))
        state, wchan, frames = value.get("state"), value.get("wchan"), value.get("frames")
        if t is None or rank is None or pid is None or not isinstance(state, str) or not state:
            continue
        found.append(
            RankStack(
                t=t,
                rank=rank,
                pid=pid,
                state=state[:1],
                wchan=wchan[:80] if isinstance(wchan, str) else "",
                frames=tuple(frame[:_MOST_FRAME] for frame in frames[:_MOST_FRAMES] if isinstance(frame, str))
                if isinstance(frames, list)
                else (),
                moves=value.get("moves") is True,
                switches=_whole(value.get("switches")),
                others=_whole(value.get("others")),
                in_collective=value.get("in_collective") is True,
                wakes_in=_number(value.get("wakes_in")),
                helped=value.get("helped") is True,
                faults=_whole(value.get("faults")),
            )
        )
    return tuple(sorted(found, key=lambda stack: (stack.t, stack.rank)))


def _library(value: object) -> LibraryWait | None:
    if not isinstance(value, dict) or (t := _number(value.get("t"))) is None:
        return None
    inside, absent, text = value.get("inside"), value.get("absent"), value.get("text")
    found: dict[int, str] = {}
    for pair in inside if isinstance(inside, list) else ():
        if isinstance(pair, list) and len(pair) == 2 and (rank := _whole(pair[0])) is not None:
            found[rank] = pair[1][:_MOST_FRAME] if isinstance(pair[1], str) else ""
    gone = [rank for one in (absent if isinstance(absent, list) else ()) if (rank := _whole(one)) is not None]
    words = text[: 4 * _MOST_FRAME] if isinstance(text, str) else ""
    return LibraryWait(t, words, tuple(sorted(found.items())), tuple(sorted(gone)))


def _by_rank(value: object) -> dict[int, float]:
    found: dict[int, float] = {}
    if isinstance(value, dict):
        for rank, size in value.items():
            number = _counter(size)
            if number is not None and isinstance(rank, str) and rank.isascii() and rank.isdigit() and len(rank) < 10:
                found[int(rank)] = number
    return found


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -_MOST < value < _MOST and math.isfinite(value) else None


def _counter(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and number >= 0 else None


def _whole(value: object) -> int | None:
    number = _counter(value)
    return int(number) if number is not None and number < 2**31 else None


def _what(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
