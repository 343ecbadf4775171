"""Samples the node's cards and jobs: keeps the latest readings, stores the history, makes records."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import anyio
from anyio.abc import TaskStatus

from muster.agent.config.schema import Config
from muster.agent.jobs.entry import Entry
from muster.agent.telemetry import job_processes
from muster.agent.telemetry.freshness import lasts
from muster.agent.telemetry.history.history_rows import (
    CARD_MEM,
    CPU,
    DRAM,
    FABRIC,
    LOG,
    MEM,
    POWER,
    READ,
    SM,
    TENSOR,
    UTIL,
    WRITE,
    Bounds,
    Busy,
    SeriesFacts,
    SeriesKey,
)
from muster.agent.telemetry.history.history_store import History
from muster.agent.telemetry.job_usage import JobUsage, Meter, NodeUsage, RankPlace, RankUsage
from muster.agent.telemetry.recording import Recording
from muster.agent.telemetry.records import Records
from muster.probes.cards.accelerator import SLOT, Activity, Card, Reading
from muster.probes.cards.driver import Driver, View
from muster.probes.cards.sampler import ProcessLook, Sampler
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.trees import JobRoots
from muster.supervisors.model.card_identity import numbers_now
from muster.supervisors.model.spec import Boot
from muster.supervisors.paths import Root

#: Seconds until a started or ended job is noticed here.
NOTICE_S = 5.0
#: Seconds for which muster looks each second whether a launcher has made ranks: it imports PyTorch or MindSpore before.
LAUNCHING_S = 30.0
#: Between two readings of the cards' health for somebody who watches: on an H100 the calls of one take 4.2 ms together,
#: 3.2 of them the energy counter (tests/fixtures/nvml/).
WATCHED_HEALTH_S = 5.0
#: The node's own series; and which metrics are added up over cards, where of others the mean is taken.
_NODE, _SUMMED = SeriesKey("node"), frozenset({POWER, FABRIC})


class SampledJobs(Protocol):
    """The part of the registry that this module needs."""

    def live(self) -> list[Entry]:
        """Jobs that have not ended, newest first."""


@dataclass(frozen=True, slots=True)
class JobSample:
    """The latest readings of a job. `mean`: utilization of its cards since its ranks started, in percent; `usage`:
    None if its processes were not looked at yet, or it has ended."""

    entry: Entry
    usage: JobUsage | None
    mean: float | None
    underused: bool

    @property
    def ranks(self) -> Sequence[RankUsage]:
        """The present ranks of a job that has not ended. A rank that no look has found yet has only its identity."""
        if self.entry.job.state.final:
            return ()
        told = self.usage.ranks if self.usage is not None else ()
        if self.entry.spec.boot != Boot.RANKS:
            return told  # only a look finds the ranks that a launcher starts
        known = {(rank.rank, rank.pid): rank for rank in told}
        return [known.get((p.rank, p.pid)) or _not_looked_at(p) for p in job_processes.places(self.entry)]


class Telemetry:
    """Belongs to one event loop. Call `load`, then `run`."""

    def __init__(
        self, root: Root, settings: Callable[[], Config], driver: Driver, registry: SampledJobs, *, owned: bool = False
    ) -> None:
        """`settings` returns the present configuration. `owned`: see History. Raises OSError if there is no /proc."""
        self._settings = settings
        self._registry = registry
        self.history = History(root.telemetry, self._bounds, owned=owned)
        self.records = Records()
        self._driver = driver
        self.recording = Recording(
            root, self.records, lambda: settings().telemetry.record, lambda: driver.view, self._note_logs
        )
        self._sampler = Sampler(
            lambda: settings().telemetry,
            driver,
            self.roots,
            idle_percent=self._idle_percent,
            on_readings=self.take_readings,
            on_look=self.take_look,
        )
        self._meter = Meter()
        self._live: list[Entry] = []
        self._listed_at = 0.0
        #: Jobs of the look at processes that is under way.
        self._asked: dict[str, Entry] = {}
        #: Pid and start time of the processes of which those began that it, or the one before, has looked at.
        self._begun: frozenset[tuple[int, int]] = frozenset()
        self._usage: dict[str, JobUsage] = {}
        self._node: NodeUsage | None = None
        self._looked_up = 0.0
        #: When the last record was made of a look, and where the processes began that it saw.
        self._recorded_up = -math.inf
        self._recorded: frozenset[tuple[int, int]] = frozenset()
        #: When somebody who watches last had the cards' health read.
        self._health_up = -math.inf
        self._busy: dict[SeriesKey, Busy] = {}
        self._read_up = 0.0
        #: The cards as the driver listed them, the series of each, and of which of them the history was told.
        self._cards: Mapping[int, Card] = {}
        self._keys: Mapping[int, SeriesKey] = {}
        self._told: set[int] = set()
        #: When each card was last asked what its parts did: that is noted once, not with each reading.
        self._activity_at: dict[int, float] = {}
        #: The links' counter of each card, and when it was read (seconds since the epoch).
        self._fabric: dict[int, tuple[float, int]] = {}

    # --- answers ------------------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator."""
        return [*self.history.trouble, *(text for text in (self._sampler.trouble, self.recording.trouble) if text)]

    @property
    def skipped(self) -> dict[str, int]:
        """Skipped readings, because one took longer than its period, by kind of reading."""
        return {beat.name: beat.skipped for beat in self._sampler.heartbeats}

    @property
    def node(self) -> NodeUsage | None:
        """The usage of the whole node; None before the first look, and while there is none."""
        return self._node if self._is_fresh else None

    @property
    def underused(self) -> list[str]:
        """Jobs whose cards average below `telemetry.underused_percent`, over at least `underused_after_s`."""
        return [entry.job_id for entry in self._jobs() if self._is_underused(self._busy_of(entry))]

    def watched(self) -> None:
        """Somebody looks at the cards and jobs: has processes looked at and the cards' health read sooner than in their
        periods, for the next answer. Records, and with them the hang rule, keep their period."""
        self._sampler.look_soon()
        if (now := time.monotonic()) - self._health_up >= WATCHED_HEALTH_S:
            self._health_up = now
            self._sampler.health_soon()

    def jobs(self) -> list[JobSample]:
        """Of all jobs that have not ended, newest first."""
        return [self._sample(entry, self._busy_of(entry)) for entry in self._jobs(anew=True)]

    async def job(self, entry: Entry) -> JobSample:
        """Of one job, ended or not."""
        busy = self._busy_of(entry)
        if busy is None and entry.job.state.final:
            busy = _of_attempt(await self.history.busy_of(job_processes.key(entry)), entry)
        return self._sample(entry, busy)

    def _sample(self, entry: Entry, busy: Busy | None) -> JobSample:
        self._hasten([entry])
        usage = self._usage.get(entry.job_id) if self._is_fresh and not entry.job.state.final else None
        return JobSample(entry, usage, busy.mean if busy else None, self._is_underused(busy))

    @property
    def _is_fresh(self) -> bool:
        return time.monotonic() - self._looked_up <= lasts(self._settings().telemetry.processes_s)

    def _busy_of(self, entry: Entry) -> Busy | None:
        """The mean of the present attempt, as far as memory has it: reads no disk."""
        key = job_processes.key(entry)
        return _of_attempt(self._busy.get(key) or self.history.busy.get(key), entry)

    def _is_underused(self, busy: Busy | None) -> bool:
        settings = self._settings().telemetry
        return busy is not None and busy.is_underused(settings.underused_percent, settings.underused_after_s)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Opens the history. Never raises."""
        await self.history.load()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Samples until cancelled. Then it writes the rest of the history to disk."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.history.run)
            await tasks.start(self._sampler.run)
            tasks.start_soon(self.recording.run, name="telemetry records")
            task_status.started()

    def _bounds(self) -> Bounds:
        telemetry = self._settings().telemetry
        return Bounds(telemetry.readings_s, telemetry.history_days, telemetry.history_bytes)

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _jobs(self, anew: bool = False) -> list[Entry]:
        """Jobs that had not ended at the last listing, newest first."""
        now = time.monotonic()
        if anew or now - self._listed_at >= NOTICE_S:
            before, self._live, self._listed_at = self._live, self._registry.live(), now
            known = {job_processes.key(entry) for entry in self._live}
            for entry in before:
                if job_processes.key(entry) not in known:
                    self._end(entry)
            self.history.busy = {key: busy for key, busy in self.history.busy.items() if key in known}
        return self._live

    def _end(self, entry: Entry) -> None:
        key = job_processes.key(entry)
        self.history.end(key)
        self._usage.pop(entry.job_id, None)
        self._busy.pop(key, None)

    def roots(self) -> list[JobRoots]:
        """The root processes of each job for the next look."""
        live = [entry for entry in self._jobs(anew=True) if entry.job.supervisor_pid or entry.job.spawned]
        self._asked = {entry.job_id: entry for entry in live}
        self._begun = frozenset(begun for entry in live for begun in job_processes.begun(entry))
        return [job_processes.roots(entry, self._driver.view.uuids) for entry in live]

    def _idle_percent(self, job_id: str) -> float:
        """Utilization up to which the hang rule takes a card of a job for idle."""
        rule, own = self._settings().hang, self._asked[job_id].spec.hang
        try:
            return (rule.with_written(own) if own else rule).low_percent
        except ValueError:  # settings that an earlier version knew: the hang watch says so
            return rule.low_percent

    def _hasten(self, entries: Sequence[Entry]) -> None:
        """Looks soon at processes that have started since the last look, so that rates exist one period later; and,
        for a while, whether a launcher has made its ranks: one that exits soon would not be known by its process."""
        live = [entry for entry in entries if not entry.job.state.final]
        launching = any(_launches(entry) and not entry.workers for entry in live)
        if launching or not all(self._begun.issuperset(job_processes.begun(entry)) for entry in live):
            self._sampler.look_soon()

    # --- what comes ---------------------------------------------------------------------------------------------------

    def take_readings(self, view: View) -> None:
        """After each reading of the cards."""
        up, before = time.monotonic(), self._read_up
        self._read_up = up
        self._hasten(self._jobs())
        if view.kind == SLOT or not view.cards:
            return
        at = self.history.tick(time.time())
        # A missing reading is not counted: a pause is no reading.
        period = self._settings().telemetry.readings_s
        passed = min(up - before, 2 * period) if before else period
        keys = self._series(view)
        values = {
            index: self._values(view, index, seen.value) for index, seen in view.readings.items() if index in keys
        }
        for index, value in values.items():
            if index not in self._told:
                self._told.add(index)
                self.history.tell(keys[index], SeriesFacts(view.kind, index))
            self.history.note(keys[index], at, value)
        self.history.note(_NODE, at, _together([value for index, value in values.items() if index in view.whole]))
        for entry in self._jobs():
            if entry.job.cards and entry.job.started_at and not entry.job.state.final:
                now = numbers_now(entry.job, entry.job.cards, view.uuids)
                mine = _together([values[index] for index in now.values() if index in values])
                self._note_job(entry, view, now, at, mine, passed)

    def _series(self, view: View) -> Mapping[int, SeriesKey]:
        """Of each card. They are worked out, and told to the history anew, where the driver lists other cards."""
        if view.cards is not self._cards:
            self._cards, self._told = view.cards, set()
            self._keys = {index: card_key(card) for index, card in view.cards.items()}
            self.history.tell(_NODE, SeriesFacts(view.kind))
        return self._keys

    def _values(self, view: View, index: int, reading: Reading) -> dict[int, float]:
        """What a card has told, by metric."""
        used, total, activity = reading.mem_used, reading.mem_total, self._new_activity(view, index)
        found = {
            UTIL: reading.util,
            CARD_MEM: 100 * used / total if total and used is not None else None,
            POWER: reading.power_w,
            FABRIC: self._new_fabric(view, index),
        }
        if activity is not None:
            found |= {SM: activity.sm, TENSOR: activity.tensor, DRAM: activity.dram}
        return {metric: value for metric, value in found.items() if value is not None}

    def _new_activity(self, view: View, index: int) -> Activity | None:
        """None where it is known already, or not told."""
        seen = view.health.get(index)
        if seen is None or seen.value.activity is None or self._activity_at.get(index) == seen.at:
            return None
        self._activity_at[index] = seen.at
        return seen.value.activity

    def _new_fabric(self, view: View, index: int) -> float | None:
        """Bytes per second over a card's links since its health was read before; None where it was not read again."""
        seen = view.health.get(index)
        if seen is None or seen.value.fabric_bytes is None:
            return None
        before = self._fabric.get(index)
        if before is not None and seen.at == before[0]:
            return None
        self._fabric[index] = (seen.at, seen.value.fabric_bytes)
        # The clock was set back; the driver was loaded anew.
        if before is None or seen.at < before[0] or seen.value.fabric_bytes < before[1]:
            return None
        return (seen.value.fabric_bytes - before[1]) / (seen.at - before[0])

    def _note_job(
        self,
        entry: Entry,
        view: View,
        now: Mapping[int, int],
        at: float,
        values: Mapping[int, float],
        passed: float,
    ) -> None:
        """`now`: the present numbers of the job's cards, by the job's own numbers."""
        busy = self._busy_of(entry) or Busy(entry.job.started_at)
        if (util := values.get(UTIL)) is not None:
            busy = Busy(busy.since, busy.total + util * passed, busy.seconds + passed)
        key = job_processes.key(entry)
        self._busy[key] = busy
        keys = self._series(view)
        cards = tuple((keys[index], own) for own, index in now.items() if index in keys)
        self.history.tell(key, SeriesFacts(view.kind, busy=busy, cards=cards))
        self.history.note(key, at, values)

    def take_look(self, look: ProcessLook) -> None:
        """After each look at the processes."""
        asked = self._asked
        places = {job: job_processes.places(entry) for job, entry in asked.items()}
        self._looked_up = look.up
        self._node, self._usage = self._meter.take(
            look, places, lambda job, local: job_processes.device(asked[job], local)
        )
        self.history.note(_NODE, look.at, {CPU: self._node.cpu, MEM: self._node.mem})
        for job, usage in self._usage.items():
            if asked[job].spec.boot != Boot.RANKS:
                asked[job].workers.update((rank.pid, rank.rank) for rank in usage.ranks)
            if asked[job].job.started_at:
                key = job_processes.key(asked[job])
                if not self.history.knows(key):  # it has no cards, or they were not read yet
                    self.history.tell(key, SeriesFacts(asked[job].job.card_kind))
                self.history.note(key, look.at, {CPU: usage.cpu, MEM: usage.mem})
                for rank in usage.ranks:
                    values = {CPU: rank.cpu, READ: rank.read_rate, WRITE: rank.write_rate}
                    if any(value is not None for value in values.values()):
                        self._note_rank(key.of_rank(rank.rank), look.at, values)
        # A little less than the period: a look that was due is never one too soon.
        due = look.up - self._recorded_up >= 0.9 * self._settings().telemetry.processes_s
        if due or not self._begun <= self._recorded:
            self._recorded_up, self._recorded = look.up, self._begun
            self.recording.take(look, asked)

    def _note_rank(self, key: SeriesKey, at: float, values: Mapping[int, float | None]) -> None:
        if not self.history.knows(key):
            self.history.tell(key, SeriesFacts())
        self.history.note(key, at, values)

    def _note_logs(self, at: float, rates: Mapping[str, Mapping[int, float]]) -> None:
        """Bytes per second that the ranks of jobs have written into their logs."""
        for entry in self._live:
            if entry.job.started_at and not entry.job.state.final:
                for rank, rate in rates.get(entry.job_id, {}).items():
                    self._note_rank(job_processes.key(entry).of_rank(rank), at, {LOG: rate})


def _of_attempt(busy: Busy | None, entry: Entry) -> Busy | None:
    """The mean of the present attempt; of the last attempt if the job has ended."""
    return busy if busy is not None and busy.since == entry.job.started_at else None


def _not_looked_at(place: RankPlace) -> RankUsage:
    """The identity of a rank whose process no look has found yet; `at` is 0."""
    return RankUsage(place.rank, place.device, place.pid, 0, None, None, None, None, state="", at=0.0)


def _launches(entry: Entry) -> bool:
    """A launcher that has begun lately."""
    begun = entry.job.started_at
    return entry.spec.boot != Boot.RANKS and bool(begun) and time.time() - begun <= LAUNCHING_S


def card_key(card: Card) -> SeriesKey:
    """The series of a card, by its UUID: its history follows it into another slot."""
    return SeriesKey("card", card.uuid or card.bus_id or f"{card.kind} {card.index}")


def _together(values: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Means over several cards, sums of power and of what passed their links; nothing of what no card tells."""
    sums: dict[int, float] = {}
    counts: dict[int, int] = {}
    for card in values:
        for metric, value in card.items():
            sums[metric] = sums.get(metric, 0.0) + value
            counts[metric] = counts.get(metric, 0) + 1
    return {metric: total if metric in _SUMMED else total / counts[metric] for metric, total in sums.items()}
