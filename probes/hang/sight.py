"""A job at one moment, as its verdict needs it: which cards work, wait or idle, and what their ranks do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.tracks.card_look import CardLook, State
from muster.probes.hang.tracks.card_track import NEVER, CardTrack
from muster.probes.hang.tracks.rank_track import Held, RankTrack
from muster.probes.hang.tracks.state import JobState
from muster.probes.hang.verdicts import Kind, Verdict

Looks = Mapping[str, CardLook]


#: What a hang loses of its confidence where what is not seen may be all that tells it from work: so nobody is stopped.
UNSEEN = 0.5


@dataclass(slots=True)
class Finding:
    """What is to be said. `since` when, in the detector's clock: of a silence its begin. `limit_s`: after which it is
    HUNG, None where it never will be. `odd`: what each rank does that stands out."""

    verdict: Verdict
    rule: str
    since: float
    kind: Kind | None = None
    ranks: tuple[int, ...] = ()
    odd: dict[int, str] = field(default_factory=dict)
    limit_s: float | None = None
    limit_why: str = ""
    confidence: float = 0.9
    missing: list[str] = field(default_factory=list)
    clears: list[str] = field(default_factory=list)
    asleep: bool = False


@dataclass(slots=True)
class Host:
    """What the ranks of idle cards do on the host."""

    busy_at: float
    weak_at: float
    io_at: float
    log_at: float
    known: bool
    io_known: bool
    cpu_known: bool
    held: dict[int, list[Held]]
    weak: str = ""


@dataclass(slots=True)
class Sight:
    """One job at one moment: its cards by what they do, and what its ranks do."""

    job: JobState
    looks: Looks
    s: HangSettings
    works: list[str] = field(default_factory=list)
    low: list[str] = field(default_factory=list)
    spins: list[str] = field(default_factory=list)
    dark: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for key, look in self.looks.items():
            if look.state in (State.WORKS, State.SLOW):
                self.works.append(key)
            elif look.state in (State.SPINS, State.FLAT):
                self.spins.append(key)
            elif look.state is State.LOW:
                self.low.append(key)
            else:
                self.dark.append(key)

    # --- times --------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Of the detector's clock."""
        return self.job.now

    def life_at(self) -> float:
        """The last sign of life that is beyond doubt."""
        job = self.job
        at = max([job.begun_at, job.work_at, *(track.strong_at for track in job.ranks.values())])
        if not self.looks:
            at = max(at, self.stirred_at())
        # Only a rank whose card idles can be the one that receives.
        return max(at, job.net_at) if self.low or self.dark or not self.looks else at

    def stirred_at(self) -> float:
        """The last sign of life of a process, however small: it counts where no card tells anything."""
        return max((track.stirred_at for track in self.job.ranks.values()), default=NEVER)

    def silent_since(self) -> float:
        """The begin of the silence: the last sign of life, or when the last card began to do what it does."""
        ends = [self.looks[key].since for key in (*self.spins, *self.low, *self.dark) if not self.is_unused(key)]
        return max([self.life_at(), *ends])

    # --- parts --------------------------------------------------------------------------------------------------------

    def card(self, key: str) -> CardTrack:
        """By its key in the job."""
        return self.job.cards[key]

    def is_unused(self, key: str) -> bool:
        """A card that this job never used, beside others that it did: it says nothing."""
        return self.job.active and not self.card(key).used and any(c.used for c in self.job.cards.values())

    def rank_of(self, key: str) -> int:
        """Of a card; -1 where that is not told."""
        rank = self.card(key).rank
        return -1 if rank is None else rank

    def ranks_of(self, keys: Iterable[str]) -> tuple[int, ...]:
        """Their ranks, those that are known."""
        return tuple(sorted({rank for key in keys if (rank := self.rank_of(key)) >= 0}))

    def all_ranks(self) -> tuple[int, ...]:
        """Of the cards; where these name none, of the processes."""
        named = self.ranks_of(self.looks)
        return named or tuple(sorted(rank for rank, track in self.job.ranks.items() if rank >= 0 and track.is_known))

    def host_of(self, keys: list[str]) -> Host:
        """What the ranks of these cards do, and processes that belong to no card."""
        job, s, now = self.job, self.s, self.now
        wanted = {self.rank_of(key) for key in keys}
        with_card = {self.rank_of(key) for key in self.looks}
        if -1 in wanted or not keys:
            wanted |= set(job.ranks)
        tracks = [t for rank, t in job.ranks.items() if rank in wanted or rank not in with_card]
        known = [t for t in tracks if t.is_known]
        living = [t for t in known if not t.is_gone(now, s) and not t.has_ended()]
        busy_at = now if self._share_cpus(living) else max((t.busy_at for t in tracks), default=NEVER)
        busy = now - busy_at <= s.recent_s
        held = {
            t.rank: found
            for t in known
            if (found := [h for h in t.held(now, 0.8 * s.window_s, s.gone_s) if self._cannot_go_on(h, busy)])
        }
        weak = {
            "some IO": max((t.weak_at for t in tracks), default=NEVER),
            "some CPU time": max((t.some_cpu_at for t in tracks), default=NEVER),
            # Of a rank that waits on its card a line is no sign: watchdogs write.
            "its log grows": max((t.log_at for t in tracks), default=NEVER),
        }
        newest = max(weak, key=lambda name: weak[name])
        return Host(
            busy_at=busy_at,
            weak_at=weak[newest],
            io_at=weak["some IO"],
            log_at=weak["its log grows"],
            known=now - job.procs_at <= s.window_s,
            io_known=all(now - t.io_at <= s.window_s for t in living),
            cpu_known=all(now - t.cpu_at <= s.window_s for t in living),
            held=held,
            weak=newest,
        )

    def _share_cpus(self, ranks: list[RankTrack]) -> bool:
        """Each of them computes, and together as much as one that does so alone: they have few CPUs."""
        cpus = [t.doings(self.now, self.s).cpu for t in ranks if t.rank >= 0]
        told = [cpu * self.s.period_s / 60 for cpu in cpus if cpu is not None]
        return 1 < len(told) == len(cpus) and min(told) >= self.s.cpu_idle_s and sum(told) >= self.s.cpu_busy_s

    def _cannot_go_on(self, held: Held, busy: bool) -> bool:
        """A child that is stopped is no reason where its rank computes, or where the job worked on for long without it:
        programs pause their own."""
        paused = held.state == "T" and not held.leads
        return not paused or not (busy or held.since < self.job.work_at - self.s.hung_s)

    def odd(self, keys: Iterable[str], host: Host) -> dict[int, str]:
        """What each rank of these cards does that its peers do not."""
        found: dict[int, str] = {}
        for key in keys:
            rank = self.rank_of(key)
            if rank < 0 or self.is_unused(key):
                continue
            found[rank] = self._state_of(rank, host)
        return found

    def has_left(self, rank: int) -> bool:
        """Its process has ended, and the job did not work on for long without it."""
        track = self.job.ranks.get(rank)
        if track is None or not (track.is_gone(self.now, self.s) or track.has_ended()):
            return False
        return track.seen_at >= self.job.work_at - self.s.hung_s

    def left(self) -> dict[int, str]:
        """Of ranks that all wait, the few that have ended."""
        ranks = [t.rank for t in tracks(self.job) if t.rank >= 0]
        odd = [rank for rank in ranks if self.has_left(rank)]
        return dict.fromkeys(odd, "its process has ended") if 2 * len(odd) < len(ranks) else {}

    def _state_of(self, rank: int, host: Host) -> str:
        track = self.job.ranks.get(rank)
        if track is None or not track.is_known:
            return "no process of it is told, its card idles"
        if track.is_gone(self.now, self.s) or track.has_ended():
            return "its process has ended"
        if held := host.held.get(rank):
            words = "is stopped" if held[0].state == "T" else f"cannot leave the kernel ({held[0].wchan or 'state D'})"
            return f"process {held[0].pid} {words}"
        doings = track.doings(self.now, self.s)
        cpu = "CPU time not told" if doings.cpu is None else f"{doings.cpu:g} s of CPU a minute"
        return f"its card idles, {cpu}"

    def patient(self, limit: float, why: str) -> tuple[float, str]:
        """A limit and its reason, longer where the job came out of a long silence before."""
        survived = min(self.s.patience_ratio * self.job.survived_s, self.s.patience_max_s)
        return (survived, "the job came out of such a silence before") if survived > limit else (limit, why)

    def fell_silent(self, since: float) -> bool:
        """Cards, logs or processes gave signs for a good while, until about then."""
        s, job = self.s, self.job
        cards = [(card.varies_since, card.varied_at) for card in job.cards.values()]
        ranks = [(track.talks_since, track.talked_at) for track in job.ranks.values()]
        spells = [(begin, until) for begin, until in (*cards, *ranks) if begin > NEVER]
        return any(until - begin >= s.hung_s and abs(until - since) <= s.window_s for begin, until in spells)

    def waits_for_files(self, held: Iterable[Held]) -> bool:
        """One of these is in D for a file system."""
        waits = tuple(self.s.file_system_waits.split(",")) if self.s.file_system_waits else ()
        return any(h.state == "D" and h.wchan.startswith(waits) for h in held if h.wchan)

    def all_stopped_stirring(self, since: float) -> bool:
        """Several ranks gave signs for a good while, until all of them ended at about that time."""
        s, ranks = self.s, [t for t in tracks(self.job) if t.rank >= 0]
        steady = [t.stirred_at - t.stirs_since >= s.hung_s and since - t.stirred_at <= s.window_s for t in ranks]
        return len(ranks) > 1 and all(steady)

    def waits_otherwise(self) -> dict[int, str]:
        """Of ranks that all wait, the few that wait for something else than the most of them, or that just sleep."""
        waits = {t.rank: t.waits_in() for t in tracks(self.job) if t.rank >= 0 and not t.has_ended()}
        places = sorted(set(waits.values()), key=list(waits.values()).count)
        if len(places) != 2 or not all(places):
            return {}
        few, most = places
        odd = [rank for rank, place in waits.items() if place == few]
        if 2 * len(odd) == len(waits):
            few, most = sorted(places, key=lambda place: "nanosleep" not in place)
            odd = [rank for rank, place in waits.items() if place == few] if "nanosleep" in few else []
        return dict.fromkeys(odd, f"waits in {few}, the others in {most}")

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Readings that are not told of at least one of these cards."""
        looks = [self.looks[key] for key in keys]
        if not looks:
            return ["cards"]
        names = ("util", "power", "mem")
        found = [name for name in names if any(getattr(look, name) is None for look in looks)]
        silent = [key for key in keys if self.card(key).fabric_bytes is None]
        return [*found, "fabric"] if silent else found


def tracks(job: JobState) -> list[RankTrack]:
    """Of all ranks that have, or had, processes."""
    return [track for _, track in sorted(job.ranks.items()) if track.is_known]
