"""One rank of a job: what its processes did in the last minutes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from muster.probes.hang.hang_records import HELPER, RANK, Proc
from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.tracks import proc_track
from muster.probes.hang.tracks.card_track import NEVER
from muster.probes.hang.tracks.level import Level
from muster.probes.hang.tracks.proc_track import ENDED, NO_GROWTH, NOTHING, TRACED, ProcState
from muster.probes.kernel.dataclass import dataclass

#: CPU time is counted in these.
_TICK_S = 0.01
#: Records with which a log must have grown before its rhythm is known, however many lines they brought.
_LEAST_GROWTHS = 4


class Interval(msgspec.Struct, array_like=True):
    """What a rank did until `at`, over `dt` seconds: bytes, CPU seconds, bytes of log."""

    at: float
    dt: float
    written: float = 0.0
    read: float = 0.0
    cpu: float = 0.0
    log: float = 0.0
    #: Bytes that reached the disk, or were meant to: what a checkpoint is measured by.
    saved: float = 0.0


@dataclass(frozen=True, slots=True)
class Doings:
    """Of the last period, per minute. None: unknown."""

    written: float | None
    read: float | None
    cpu: float | None
    log: float | None


@dataclass(frozen=True, slots=True)
class Held:
    """A process that cannot go on: `state` D, T or t, `wchan` the kernel's function, since when; `leads`: it is that of
    the rank itself."""

    pid: int
    state: str
    wchan: str
    since: float
    leads: bool


class Log(NamedTuple):
    """The log of a rank so far: bytes and lines. None: unknown."""

    size: float | None
    lines: float | None


class RankTrack(msgspec.Struct):
    """What is kept of a rank; number -1 stands for processes of no rank."""

    rank: int
    procs: dict[str, ProcState] = {}
    at: float = NEVER
    intervals: list[Interval] = []
    log_bytes: float | None = None
    log_lines: float | None = None
    #: When its own process was seen last, and which that is.
    seen_at: float = NEVER
    leader: str = ""
    #: When its counters were told last.
    io_at: float = NEVER
    cpu_at: float = NEVER
    #: Marks: when it last did IO enough to be alive, or some; computed on the CPU, or a little; wrote into its log.
    strong_at: float = NEVER
    weak_at: float = NEVER
    busy_at: float = NEVER
    some_cpu_at: float = NEVER
    log_at: float = NEVER
    #: When the record came with which its log last grew.
    grown_at: float = NEVER
    #: The last distances of the records with which its log grew (0: of two in a row, so lines come more often than
    #: records, however far apart these are), and the lines that each of these brought.
    log_gaps: list[float] = []
    gap_lines: list[float] = []
    #: Since when it gives signs, even weak ones, and has not paused for longer than a window.
    talks_since: float = NEVER
    talked_at: float = NEVER
    #: Since when its own process waits for a lock in each record; None: it did not in the last one.
    locked_since: float | None = None
    #: When a process of it, but its own, last computed.
    worker_at: float = NEVER
    #: When its own process, no helper of it, last wrote anything but its log.
    wrote_at: float = NEVER
    #: The same with traces of CPU time: what there is of a rank whose cards tell nothing. What is usual for it, and
    #: when that was looked at first.
    stirs_since: float = NEVER
    stirred_at: float = NEVER
    cpu_level: Level = msgspec.field(default_factory=Level)
    cpu_known_at: float = NEVER

    def take(
        self,
        procs: Sequence[Proc],
        log: Log,
        now: float,
        s: HangSettings,
        *,
        first: bool,
        asked: bool = False,
    ) -> str:
        """Takes the rank's processes of a record; none: the record lacks them. `first`: the job was not seen before, so
        what is counted was done before. `asked`: it was asked for a dump: that it reads, writes and logs says nothing.
        Returns why the rank began anew, or ""."""
        dt = now - self.at if self.at > NEVER else 0.0
        leader = next((p.key for p in procs if p.role == RANK and p.state not in ENDED), "")
        here = {p.key for p in procs}
        # A launcher may give one rank several processes of that role: it began anew if another took its place.
        anew = bool(leader and self.leader and leader != self.leader and self.leader not in here)
        why = f"rank {self.rank} has another process" if anew else ""
        if procs:
            self.at = now
        if leader and (anew or not self.leader):
            self.leader = leader
        if any(p.role == RANK and p.state not in ENDED for p in procs):
            self.seen_at = now
        total = Interval(now, dt)
        grown: dict[str, tuple[float, ...]] = {}
        for proc in procs:
            before = self.procs.get(proc.key)
            if before is not None and proc_track.fell(before, proc):
                why = why or f"counters of process {proc.pid} fell"
            elif before is not None and dt > 0:
                grown[proc.key] = proc_track.growth(before, proc)
            elif before is None and dt > 0 and not first and not anew and proc.key != self.leader:
                # Made since the record before, so all that it did was done since. (Not so of the rank's own process,
                # which was there, and may have been left out while it could not be read.)
                grown[proc.key] = proc_track.capped(proc_track.growth(NOTHING, proc), dt)
            if before is None or dt > 0:
                self.procs[proc.key] = proc_track.kept(proc, before, now)
            if (
                proc.key != self.leader
                and dt > 0
                and grown.get(proc.key, NO_GROWTH)[2] * s.period_s >= s.cpu_idle_s * dt
            ):
                self.worker_at = now - dt / 2
            if proc.state not in ENDED:
                self.io_at = now if proc.wchar is not None or proc.write_bytes is not None else self.io_at
                self.cpu_at = now if proc.cpu_s is not None else self.cpu_at
        if procs:
            self._forget(procs, grown, now, s)
            if not self.waits_in_lock():
                self.locked_since = None
            elif self.locked_since is None:
                self.locked_since = now - dt / 2
        if anew:
            return why
        if asked:
            grown = {key: (0.0, 0.0, cpu, 0.0) for key, (_, _, cpu, _) in grown.items()}
            self._seen(log)
        for read, written, cpu, saved in grown.values():
            total.read += read
            total.written += written
            total.cpu += cpu
            total.saved += saved
        self._log(log, now, dt, total, s)
        if grown.get(self.leader, (0.0, 0.0))[1] - total.log > s.write_floor_bytes * dt / s.period_s:
            self.wrote_at = now - dt / 2
        if dt > 0 and procs and not why:
            self.intervals.append(total)
            while self.intervals[0].at < now - max(s.window_s, s.period_s):
                del self.intervals[0]
            self._mark(total, now, s)
        return why

    def _forget(self, procs: Sequence[Proc], grown: dict[str, tuple[float, ...]], now: float, s: HangSettings) -> None:
        """Forgets processes that have exited. What one did is credited to its parent when that waits for it: this is no
        new doing of the parent's."""
        here = {proc.key for proc in procs}
        for key, gone in list(self.procs.items()):
            if key in here:
                continue
            did = proc_track.growth(NOTHING, gone)
            for other, growth in grown.items():
                if any(did) and all(new >= old for new, old in zip(growth, did, strict=True)):
                    grown[other] = tuple(new - old for new, old in zip(growth, did, strict=True))
                    del self.procs[key]
                    break
            else:
                if now - gone.at > s.gone_s:
                    del self.procs[key]

    def _log(self, log: Log, now: float, dt: float, total: Interval, s: HangSettings) -> None:
        if log.size is None:
            return
        if self.log_bytes is not None and log.size > self.log_bytes:
            total.log = log.size - self.log_bytes
            if self.log_at > NEVER:
                lines = log.lines - self.log_lines if log.lines is not None and self.log_lines is not None else 1.0
                gap = 0.0 if self.grown_at >= now - dt else now - dt / 2 - self.log_at
                self.log_gaps = [*self.log_gaps[1 - s.cadence_count :], gap]
                self.gap_lines = [*self.gap_lines[1 - s.cadence_count :], max(0.0, lines)]
            self.log_at, self.grown_at = now - dt / 2, now
        self._seen(log)

    def _seen(self, log: Log) -> None:
        """What it has written so far; what is unknown of that stays as it was."""
        self.log_bytes = log.size if log.size is not None else self.log_bytes
        self.log_lines = log.lines if log.lines is not None else self.log_lines

    def _mark(self, last: Interval, now: float, s: HangSettings) -> None:
        """Marks signs of life in the middle of the interval in which they were. A period over a floor counts where the
        interval itself holds its share, so that the last sign before a silence ends with it."""
        period = [x for x in self.intervals if x.at > now - s.period_s] or [last]
        seconds = sum(x.dt for x in period)
        to_period = s.period_s / seconds
        share = s.period_s / last.dt
        # What goes into the log goes through the rank's hands: it is weak evidence, however much it is.
        written = max(0.0, sum(x.written - x.log for x in period)) * to_period
        read = sum(x.read for x in period) * to_period
        cpu = sum(x.cpu for x in period) * to_period
        middle = now - last.dt / 2

        def over(write_floor: float, read_floor: float) -> bool:
            wrote = written >= write_floor and (last.written - last.log) * share >= write_floor
            return (wrote and written > 0) or (read >= read_floor and last.read * share >= read_floor and read > 0)

        if over(s.strong_write_bytes, s.strong_read_bytes):
            self.strong_at = middle
        if over(s.write_floor_bytes, s.read_floor_bytes):
            self.weak_at = middle
        if cpu >= s.cpu_busy_s and last.cpu * share >= s.cpu_busy_s:
            self.busy_at = middle
        if cpu >= s.cpu_idle_s and last.cpu * share >= s.cpu_idle_s:
            self.some_cpu_at = middle
        if max(self.weak_at, self.log_at) >= middle:
            if middle - self.talked_at > s.window_s:
                self.talks_since = middle
            self.talked_at = middle
        if self._stirs(last, cpu, now, s) or self.talked_at >= middle:
            if middle - self.stirred_at > s.window_s:
                self.stirs_since = middle
            self.stirred_at = middle

    def _stirs(self, last: Interval, cpu: float, now: float, s: HangSettings) -> bool:
        """Whether it takes a trace of CPU time, by what is usual for it: lately, over the period and over the window,
        since the kernel counts in ticks, and the window still holds what was before. What is usual is not changed any
        more by a rank that has fallen silent."""
        usual = self.cpu_level.median()
        self.cpu_known_at = now if self.cpu_known_at == NEVER else self.cpu_known_at
        if now - self.cpu_known_at < s.hung_s or cpu >= s.cpu_trace_ratio * usual:
            self.cpu_level.add(cpu)
        least = max(s.cpu_trace_s, s.cpu_trace_ratio * usual) / s.period_s
        seconds, taken = sum(x.dt for x in self.intervals), sum(x.cpu for x in self.intervals)
        in_period = cpu >= least * s.period_s
        return in_period and taken - _TICK_S >= least * seconds and last.cpu >= least * last.dt

    # --- answers ------------------------------------------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """It has, or had, a process."""
        return self.seen_at > NEVER or bool(self.procs)

    def is_gone(self, now: float, s: HangSettings) -> bool:
        """Its own process has exited, and so has every process that works for it."""
        if not self.is_known or now - self.seen_at <= s.gone_s:
            return False
        return not any(p.state not in ENDED and now - p.at <= s.gone_s for p in self.procs.values())

    def has_ended(self) -> bool:
        """Its own process is a zombie: that is sooner seen than that it is missing."""
        leader = self.procs.get(self.leader)
        return leader is not None and leader.state in ENDED

    def held(self, now: float, least_s: float, gone_s: float) -> list[Held]:
        """Its processes that have been in D or T for so long, the longest first."""
        return [one for one in self._kept_from_going_on(now, least_s, gone_s) if one.state != TRACED]

    def traced(self, now: float, least_s: float, gone_s: float) -> list[Held]:
        """Its processes that a debugger has held for so long, the longest first."""
        return [one for one in self._kept_from_going_on(now, least_s, gone_s) if one.state == TRACED]

    def _kept_from_going_on(self, now: float, least_s: float, gone_s: float) -> list[Held]:
        found = [
            Held(int(key.partition(":")[0]), p.held, p.wchan, p.since, key == self.leader)
            for key, p in self.procs.items()
            if p.held and p.since is not None and now - p.since >= least_s and now - p.at <= gone_s
        ]
        return sorted(found, key=lambda h: (h.since, h.pid))

    def has_rhythm(self, s: HangSettings) -> bool:
        """Its log grew often enough that the distance of its lines is known."""
        growths = len(self.log_gaps) >= min(_LEAST_GROWTHS, s.cadence_count)
        return growths and sum(self.gap_lines) >= s.cadence_count

    def waits_in_futex(self) -> bool:
        """Its own process waits for a lock, or its place is unknown."""
        return "futex" in (self.waits_in() or "futex")

    def waits_in_lock(self) -> bool:
        """Its own process sleeps in a lock: it does nothing, nor does it give its card anything to do."""
        leader = self.procs.get(self.leader)
        return leader is not None and leader.state == "S" and "futex" in leader.wchan

    def waits_in(self) -> str:
        """The kernel's function in which its own process waits; empty: in none, or unknown."""
        leader = self.procs.get(self.leader)
        return leader.wchan if leader is not None else ""

    def cpu_of_late(self, now: float, s: HangSettings) -> float | None:
        """CPU seconds per period that it took in the last one; None: unknown."""
        period = [x for x in self.intervals if x.at > now - s.period_s]
        seconds = sum(x.dt for x in period)
        if not seconds or now - self.cpu_at > s.window_s:
            return None
        return sum(x.cpu for x in period) * s.period_s / seconds

    def doings(self, now: float, s: HangSettings) -> Doings:
        """What it did of late."""
        period = [x for x in self.intervals if x.at > now - s.period_s]
        seconds = sum(x.dt for x in period)
        if not seconds:
            return Doings(None, None, None, None)
        to_minute = 60 / seconds
        io, cpu = now - self.io_at <= s.window_s, self.cpu_of_late(now, s)
        return Doings(
            round(sum(x.written for x in period) * to_minute) if io else None,
            round(sum(x.read for x in period) * to_minute) if io else None,
            round(cpu * 60 / s.period_s, 2) if cpu is not None else None,
            round(sum(x.log for x in period) * to_minute) if self.log_bytes is not None else None,
        )


def split(procs: Sequence[Proc], s: HangSettings) -> Mapping[int, list[Proc]]:
    """The processes that count, by rank (-1: of none)."""
    found: dict[int, list[Proc]] = {}
    for proc in procs:
        if proc.role != HELPER or s.io_scope == "tree":
            found.setdefault(-1 if proc.rank is None else proc.rank, []).append(proc)
    return found
