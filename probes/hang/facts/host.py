"""What the ranks of some cards do on the host."""

from collections.abc import Sequence

from muster.probes.hang.facts.readings import HELD, Readings
from muster.probes.hang.facts.signs import Strength
from muster.probes.hang.tracks.rank_track import Held, RankTrack
from muster.probes.kernel.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """`busy_at`, `weak_at`, `io_at`, `log_at`: when they last computed on the CPU, gave weak evidence of life (`weak`:
    which), did some IO, logged. `known`: the records have processes; `io_known`, `cpu_known`: with these
    counters. `log_known`: they have the size of a log. `held`: processes that cannot go on, by rank."""

    busy_at: float
    weak_at: float
    weak: str
    io_at: float
    log_at: float
    known: bool
    io_known: bool
    cpu_known: bool
    log_known: bool
    held: dict[int, list[Held]]

    @property
    def stopped_at(self) -> float | None:
        """Since when a process is stopped by a signal: the last one; None without any."""
        return max((h.since for held in self.held.values() for h in held if h.state == "T"), default=None)

    @property
    def blocked(self) -> list[Held]:
        """Processes that cannot leave the kernel."""
        return [h for held in self.held.values() for h in held if h.state == "D"]


def host_of(r: Readings, keys: Sequence[str]) -> Host:
    """What the ranks of these cards do, and processes that belong to no card."""
    wanted = {r.rank_of(key) for key in keys}
    with_card = {r.rank_of(key) for key in r.looks}
    if -1 in wanted or not keys:
        wanted |= set(r.job.ranks)
    ranks = {rank for rank in r.job.ranks if rank in wanted or rank not in with_card}
    known = [track for rank, track in r.job.ranks.items() if rank in ranks and track.is_known]
    living = [track for track in known if not r.has_ended(track)]
    signs, s = r.signs, r.s
    busy_at = r.now if _share_cpus(r, living) else signs.last(Strength.BUSY, ranks=ranks)
    busy = r.is_recent(busy_at)
    newest = signs.newest(Strength.WEAK, Strength.LOG, ranks=ranks)
    return Host(
        busy_at=busy_at,
        weak_at=signs.last(Strength.WEAK, Strength.LOG, ranks=ranks),
        weak=newest.source if newest is not None else "",
        io_at=signs.last_of("some IO", ranks),
        log_at=signs.last(Strength.LOG, ranks=ranks),
        known=r.now - r.job.procs_at <= s.window_s,
        io_known=all(r.now - track.io_at <= s.window_s for track in living),
        cpu_known=all(r.now - track.cpu_at <= s.window_s for track in living),
        log_known=any(track.log_bytes is not None for track in living),
        held={track.rank: held for track in known if (held := _held(r, track, busy))},
    )


def in_file_system(r: Readings, held: Sequence[Held]) -> bool:
    """One of these is in D for a file system."""
    return any(h.state == "D" and h.wchan.startswith(r.s.file_systems) for h in held if h.wchan)


def _share_cpus(r: Readings, ranks: Sequence[RankTrack]) -> bool:
    """Each of them computes, and together as much as one that does so alone: they have few CPUs."""
    told = [track.cpu_of_late(r.now, r.s) for track in ranks if track.rank >= 0]
    cpus = [cpu for cpu in told if cpu is not None]
    return 1 < len(cpus) == len(told) and min(cpus) >= r.s.cpu_idle_s and sum(cpus) >= r.s.cpu_busy_s


def _held(r: Readings, track: RankTrack, busy: bool) -> list[Held]:
    """Processes of this rank that cannot go on. A child that is stopped is no reason where its rank computes, or where
    the job worked on for long without it: programs pause their own."""
    held = track.held(r.now, HELD * r.s.window_s, r.s.gone_s)
    long_ago = r.job.work_at - r.s.hung_s
    return [h for h in held if h.state != "T" or h.leads or not (busy or h.since < long_ago)]
