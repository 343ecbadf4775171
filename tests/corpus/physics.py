"""A node whose ranks act as told, and the telemetry that a sampler would record of it.

What happens and what is seen are two things: ranks act in spells with exact rates; a `Weather` then drops records,
repeats readings, takes some away and adds noise.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from muster.probes.waits import LibraryWait, RankStack

#: Utilization of a card at a time: of seconds in the spell.
Curve = Callable[[float, random.Random], float]
#: Bytes of a line of log.
LINE = 80
FUTEX, SLEEP, POLL = "futex_wait_queue", "hrtimer_nanosleep", "ep_poll"


def flat(percent: float) -> Curve:
    """Always the same."""
    return lambda _seconds, _rng: percent


def between(low: float, high: float) -> Curve:
    """Anything from one to the other, independent from reading to reading."""
    return lambda _seconds, rng: rng.uniform(low, high)


def bursts(high: float, period_s: float, share: float) -> Curve:
    """High for a share of each period, else 0."""
    return lambda seconds, _rng: high if (seconds % period_s) < share * period_s else 0.0


def alternating(low: float, high: float) -> Curve:
    """One of the two, by chance."""
    return lambda _seconds, rng: rng.choice((low, high))


_NOTHING = flat(0)


@dataclass(frozen=True)
class Stack:
    """A dump of a rank as record_stacks.py stores it: `t` in seconds since the first of them."""

    t: float
    state: str
    wchan: str
    frames: tuple[str, ...]
    moves: bool = False
    switches: int | None = None
    others: int | None = None
    in_collective: bool = False
    wakes_in: float | None = None
    helped: bool = False
    faults: int | None = None


@dataclass(frozen=True)
class Act:
    """What a rank does. Power is a share of the limit (None: the card's idle power), fabric in bytes per second, `cpu`
    in CPU seconds per second, IO and log in bytes per second."""

    util: Curve = _NOTHING
    power: float | None = None
    #: The power over time, in the place of `power`.
    powers: Curve | None = None
    mem: float = 0.0
    fabric: float = 0.0
    cpu: float = 0.0
    read: float = 0.0
    write: float = 0.0
    log: float = 0.0
    #: Bytes received into memory, per second: traffic of the node.
    net: float = 0.0
    state: str = "S"
    wchan: str = FUTEX
    #: False: the process has ended.
    there: bool = True
    #: Dumps of its stack; none: it cannot be had.
    stacks: tuple[Stack, ...] = ()
    #: The collective in which it waits, as its communication library says.
    inside: str = ""
    #: Of steps shorter than a record: what it is seen doing at a time (of the play), by its state, wchan and stacks.
    seen: "Callable[[float], Act] | None" = None


@dataclass(frozen=True)
class Extra:
    """A process beside the rank's own, from begin to end; `state` and `wchan` are its own."""

    rank: int | None
    role: str = "worker"
    read: float = 0.0
    write: float = 0.0
    cpu: float = 0.0
    start_s: float = 0.0
    end_s: float = math.inf
    state: str = "S"
    wchan: str = POLL


@dataclass(frozen=True)
class Spell:
    """An act from a time on, in seconds since the begin of the trace."""

    at: float
    act: Act


@dataclass
class Play:
    """What happens on a node: each rank's spells, other processes, and how long it is watched."""

    ranks: list[list[Spell]]
    end: float
    extras: list[Extra] = field(default_factory=list)
    kind: str = "nvidia"
    #: When all processes are made anew with counters from 0.
    restarts: tuple[float, ...] = ()
    #: From when on a call of the driver hangs, and its cards tell nothing.
    driver_hangs_at: float = math.inf
    #: From when on the cards of these ranks (None: all) tell nothing; from when on no process is told of.
    unseen_from: float = math.inf
    unseen: tuple[int, ...] | None = None
    no_procs_from: float = math.inf


@dataclass(frozen=True)
class Weather:
    """How it is seen. Shares are per record or reading."""

    interval_s: float = 15.0
    jitter_s: float = 1.0
    util_noise: float = 1.0
    util_gauss: bool = False
    power_noise: float = 0.02
    drift: float = 0.0
    dropped: float = 0.03
    stale: float = 0.03
    limit_w: float = 700.0
    idle_share: float = 0.13
    no_util: bool = False
    no_power: bool = False
    no_mem: bool = False
    no_fabric: bool = False
    no_log: bool = False
    no_wchan: bool = False
    no_net: bool = False
    no_limit: bool = False
    no_cpu: bool = False
    no_cards: bool = False
    #: Of the job; the others tell nothing.
    nodes: int = 1
    #: Seconds during which one card tells nothing, at a random time.
    dark_s: float = 0.0
    #: Traffic of others on the node, bytes per second.
    other_net: float = 20e3
    #: The records say what the job moves of the node's traffic; with short connections of others, only at least.
    own_net_known: bool = False
    short_connections: bool = False
    integers: bool = True


def records(play: Play, weather: Weather, rng: random.Random, job: str = "job") -> Iterator[dict[str, Any]]:
    """The telemetry, record by record."""
    base = rng.randrange(1_600_000_000, 1_800_000_000)
    times = [0.0]
    while times[-1] < play.end:
        times.append(times[-1] + weather.interval_s + rng.uniform(-weather.jitter_s, weather.jitter_s))
    dark = rng.randrange(len(play.ranks)) if play.ranks else 0
    dark_from = rng.uniform(0, max(1.0, play.end - weather.dark_s))
    drift = rng.uniform(0, 2 * math.pi)
    offsets = [rng.uniform(0.97, 1.03) for _ in play.ranks]
    net, net_noise = rng.uniform(1e9, 1e12), 0.0
    before: dict[str, Any] = {}
    fabric_base = [rng.uniform(0, 1e14) for _ in play.ranks]
    last = 0.0
    for t in times:
        net_noise += weather.other_net * rng.uniform(0, 2) * (t - last)
        last = t
        cards = []
        for r, spells in enumerate(play.ranks):
            spell = _spell(spells, t)
            act = spell.act
            noise = rng.gauss(0, weather.util_noise) if weather.util_gauss else rng.uniform(-1, 1) * weather.util_noise
            util = min(100.0, max(0.0, act.util(t - spell.at, rng) + noise))
            share = weather.idle_share if act.power is None else act.power
            share = share if act.powers is None else act.powers(t - spell.at, rng)
            swing = 1 + weather.drift * math.sin(drift + t / 3000)
            # The act's power is that of an otherwise usual card; what idles draws more where the offset is high.
            share = max(share * swing, weather.idle_share)
            power = weather.limit_w * offsets[r] * share * (1 + rng.gauss(0, weather.power_noise))
            mem = min(100.0, max(0.0, act.mem + (rng.uniform(-1, 1) if act.mem else rng.uniform(0, 0.6))))
            hidden = (weather.dark_s and r == dark and dark_from <= t < dark_from + weather.dark_s) or (
                t >= play.driver_hangs_at or (t >= play.unseen_from and (play.unseen is None or r in play.unseen))
            )
            card: dict[str, Any] = {
                "index": r,
                "kind": play.kind,
                "util": None if weather.no_util or hidden else round(util) if weather.integers else round(util, 2),
                "mem_util": None if weather.no_mem or hidden else round(mem) if weather.integers else round(mem, 2),
                "power_w": None if weather.no_power or hidden else round(max(1.0, power), 2),
                "power_limit_w": None if weather.no_limit or hidden else weather.limit_w,
                "fabric_bytes": None
                if weather.no_fabric or hidden
                else int(fabric_base[r] + _integral(spells, t, "fabric")),
                "rank": r,
            }
            if t >= play.driver_hangs_at:
                card["trouble"] = "HANG"
            elif before and rng.random() < weather.stale:
                card = before["cards"][r]
            cards.append(card)
        received = sum(_integral(spells, t, "net") for spells in play.ranks)
        logged = [] if weather.no_log else [(r, _logged(spells, t)) for r, spells in enumerate(play.ranks)]
        record = {
            "t": round(base + t, 3),
            "job": job,
            "procs": _procs(play, t, weather) if t < play.no_procs_from else [],
            "cards": [] if weather.no_cards else cards,
            "log_bytes": {str(r): size for r, size in logged},
            "log_lines": {str(r): size // LINE for r, size in logged},
            "net_bytes": None if weather.no_net else int(net + net_noise + received),
        }
        record["nodes"] = weather.nodes
        if before and rng.random() < weather.dropped:
            continue
        here = {"received": received, "moved": received + net_noise}
        if before and weather.own_net_known:
            seconds, most = record["t"] - before["t"], "received"
            record["job_net_least"] = (received - before["received"]) / seconds
            if weather.short_connections:
                most = "moved"
            record["job_net_rate"] = (here[most] - before[most]) / seconds
        before = record | here | {"cards": cards}
        yield record


def counted_down(first: Stack, passed: float) -> float | None:
    """Of a sleep, when it ends; of short ones, one behind the other, another has begun."""
    if first.wakes_in is None:
        return None
    return max(first.wakes_in - passed, min(first.wakes_in, 5.0))


def dump(play: Play, t: float, wall: float) -> list[RankStack]:
    """A dump of the stacks of all ranks at this time of the play; counters go on as they did while it was recorded."""
    found = []
    for r, spells in enumerate(play.ranks):
        act = _seen(spells, t)
        if not act.there or not act.stacks:
            continue
        first, last = act.stacks[0], act.stacks[-1]
        passed = max(0.0, t - _spell(spells, t).at)

        def counted(name: str, first: Stack = first, last: Stack = last, passed: float = passed) -> int | None:
            begin, end = getattr(first, name), getattr(last, name)
            if begin is None or end is None:
                return None
            rate = (end - begin) / (last.t - first.t) if last.t > first.t else 0.0
            return int(begin + rate * passed)

        counters: dict[str, float | None] = {name: counted(name) for name in ("switches", "others", "faults")}
        counters["wakes_in"] = counted_down(first, passed)
        found.append(RankStack(**asdict(first) | {"t": wall, "rank": r, "pid": 1000 + r} | counters))
    return found


def asked(play: Play, t: float, wall: float) -> LibraryWait | None:
    """What the communication library says at this time of the play."""
    acts = [_spell(spells, t).act for spells in play.ranks]
    inside = tuple((rank, act.inside) for rank, act in enumerate(acts) if act.inside)
    if not inside:
        return None
    return LibraryWait(wall, "", inside, tuple(rank for rank, act in enumerate(acts) if not act.inside))


def _spell(spells: Sequence[Spell], t: float) -> Spell:
    found = spells[0]
    for spell in spells:
        if spell.at <= t:
            found = spell
    return found


def _seen(spells: Sequence[Spell], t: float) -> Act:
    act = _spell(spells, t).act
    return act if act.seen is None else act.seen(t)


def _integral(spells: Sequence[Spell], t: float, name: str, since: float = 0.0) -> float:
    total = 0.0
    for i, spell in enumerate(spells):
        end = min(t, spells[i + 1].at if i + 1 < len(spells) else t)
        begin = max(spell.at, since)
        if end > begin:
            total += getattr(spell.act, name) * (end - begin)
    return total


def _logged(spells: Sequence[Spell], t: float, since: float = 0.0) -> int:
    """In whole lines."""
    return int(_integral(spells, t, "log", since) // LINE) * LINE


def _procs(play: Play, t: float, weather: Weather) -> list[dict[str, Any]]:
    attempt = sum(1 for at in play.restarts if at <= t)
    begin = max([0.0, *(at for at in play.restarts if at <= t)])
    found = []
    for r, spells in enumerate(play.ranks):
        act = _seen(spells, t)
        if not act.there:
            continue
        found.append(
            {
                "pid": 1000 + 100 * attempt + r,
                "start": 5000 + int(begin * 100) + r,
                "rank": r,
                "role": "rank",
                "cpu_s": None if weather.no_cpu else round(3 + _integral(spells, t, "cpu", begin), 2),
                "rchar": int(4e7 + _integral(spells, t, "read", begin)),
                "wchar": int(2e4 + _integral(spells, t, "write", begin)) + _logged(spells, t, begin),
                "read_bytes": int(_integral(spells, t, "read", begin) * 0.5),
                "write_bytes": int(_integral(spells, t, "write", begin) * 0.9),
                "state": act.state,
                "wchan": None if weather.no_wchan or act.state == "R" else act.wchan,
            }
        )
    for i, extra in enumerate(play.extras):
        if not max(extra.start_s, begin) <= t < extra.end_s:
            continue
        done = t - max(extra.start_s, begin)
        found.append(
            {
                "pid": 5000 + 100 * attempt + i,
                "start": 9000 + int(begin * 100) + i,
                "rank": extra.rank,
                "role": extra.role,
                "cpu_s": round(0.5 + extra.cpu * done, 2),
                "rchar": int(1e6 + extra.read * done),
                "wchar": int(1e3 + extra.write * done),
                "read_bytes": 0,
                "write_bytes": 0,
                "state": extra.state,
                "wchan": None if weather.no_wchan else extra.wchan,
            }
        )
    return found


def only(play: Play, *ranks: int) -> Play:
    """What another node than the others' would see: these ranks alone."""
    return replace(play, ranks=[play.ranks[r] for r in ranks], extras=[])
