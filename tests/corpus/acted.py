"""The scenarios as real processes under a real daemon: actors.py does on the CPU what is told, fake cards show what
the cards would, and time passes 60 times as fast.

What must be said of each stands in scenarios.py. Nothing here rests on the speed of the machine: a part of a scenario
is over when the detector has looked so many times, has seen so many seconds pass, or has said what it must.
"""

import json
import math
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from muster.probes.hang import Change, HangKind, HangSettings, HangVerdict, PlainDetector
from muster.probes.hang.hang_records import read
from muster.v1 import job_pb2, telemetry_pb2
from tests.conftest import Daemon, eventually
from tests.corpus.measure import Outcome, for_plain, judge
from tests.corpus.scaled import scaled
from tests.corpus.scenarios import BY_NAME, Scenario
from tests.fakes import FakeCards
from tests.fakes.card import FakeCard
from tests.fakes.models import MODELS

SCALE = 60.0
#: Seconds that the detector has for a verdict, beyond all that a loaded machine may need.
PATIENCE_S = 150.0
#: Of CPU time a machine on which many actors run together has little for each; and what else goes over its network
#: must not keep a dead job alive.
SETTINGS = replace(scaled(HangSettings(), SCALE), cpu_idle_s=0.025, cpu_busy_s=0.05, net_floor_bytes=1e15)
PLAIN = HangSettings(rule="plain", plain_s=600.0 / SCALE)
CONFIG = """
[cards]
release_timeout_s = 1
driver_deadline_s = 5
[telemetry]
readings_s = 0.25
health_s = 0.25
holders_s = 2
processes_s = 0.25
[hang]
"""
ACTORS = Path(__file__).with_name("actors.py")
#: Seconds between two looks at what the daemon says of its jobs.
_LOOK_S = 0.2


# --- what the cards show ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Show:
    """`util`: percent, or a curve of (seconds, percent); `power`: share of the limit, None: idle; `fabric` in bytes per
    second."""

    util: float | tuple[tuple[float, float], ...] = 0.0
    power: float | None = None
    mem: float = 0.0
    fabric: float = 0.0

    def on(self, card: FakeCard) -> None:
        """The card shows it from now on."""
        if isinstance(self.util, tuple):
            card.curve(self.util)
        else:
            card.util = self.util
        card.power_w = MODELS[card.model].idle if self.power is None else self.power * card.power_limit_w
        card.mem_util, card.fabric_rate = self.mem, self.fabric


IDLE = Show()
WORK = Show(((0, 62), (0.4, 97), (0.9, 70), (1.3, 95), (1.7, 62)), 0.75, 40, 2e9)
SPIN = Show(100, 0.15)


# --- when a part is over ----------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What is known of a job since a part began, at `since`."""

    since: float
    records: Sequence[Mapping[str, Any]]
    changes: Sequence[Change]


Over = Callable[[Seen], bool]


def looks(count: int) -> Over:
    """The detector has looked so many times."""
    return lambda seen: len(seen.records) >= count


def passed(minutes: float) -> Over:
    """It has seen so many minutes of the table pass."""
    return lambda seen: bool(seen.records) and seen.records[-1]["t"] >= seen.since + minutes * 60 / SCALE


def told(*verdicts: str, then: int = 0) -> Over:
    """It has said one of these, and looked so many times since."""

    def over(seen: Seen) -> bool:
        at = next((change.t for change in seen.changes if change.verdict in verdicts), math.inf)
        return at < math.inf and sum(record["t"] > at for record in seen.records) >= then

    return over


def wrote(count: int) -> Over:
    """Its processes wrote so many bytes."""

    def written(record: Mapping[str, Any]) -> int:
        return sum(proc["wchar"] or 0 for proc in record["procs"] or ())

    return lambda seen: bool(seen.records) and written(seen.records[-1]) - written(seen.records[0]) >= count


@dataclass(frozen=True)
class Part:
    """What the cards of the ranks show (the last one that of all that are left), until when. `onset`: what is wrong
    begins with it. `do`: what else is done, with the scenario's folder and cards. `after`: what the processes must have
    done before the cards show it: a busy machine may let them begin late, and what they do is all that speaks for them.
    """

    shows: tuple[Show, ...]
    over: Over
    onset: bool = False
    do: Callable[[Path, Sequence[FakeCard]], object] | None = None
    after: Over | None = None


@dataclass(frozen=True)
class Act:
    """How a scenario is acted. `hang`: settings of the job's own; `spec`: other fields of it."""

    name: str
    parts: tuple[Part, ...]
    ranks: int = 1
    kind: str = "nvidia"
    culprit: int | None = None
    hang: Mapping[str, float] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scenario(self) -> Scenario:
        """What must be said."""
        found = BY_NAME[self.name]
        # The deadline of the driver's calls is not scaled.
        return replace(found, within_min=0.5 * SCALE) if self.name == "U15" else found


def _open_fifo(folder: Path, _cards: Sequence[FakeCard]) -> None:
    """Lets a reader go that waits for a writer."""
    os.close(os.open(folder / "fifo", os.O_WRONLY | os.O_NONBLOCK))


def _no_util(_folder: Path, cards: Sequence[FakeCard]) -> None:
    for card in cards:
        card.fail("nvmlDeviceGetUtilizationRates", 3)


def _driver_hangs(_folder: Path, cards: Sequence[FakeCard]) -> None:
    for card in cards:
        card.hang()


def _works(*shows: Show, count: int = 80) -> tuple[Part, ...]:
    """The same for a long time."""
    return (Part(shows or (WORK,), looks(count)),)


#: Steady work for longer than anything has to be known of it (established_s is 3 minutes).
_FIRST = Part((WORK,), looks(45))
_ON = Part((WORK,), looks(24))


def _hangs(*shows: Show, until: str = "") -> tuple[Part, ...]:
    """Work, then this, until that or HUNG is told; after HUNG a little longer, for the plain rule."""
    return _FIRST, Part(shows, told(until, "HUNG") if until else told("HUNG", then=8), onset=True)


_CYCLE = (Part((Show(80, 0.6, 30),), looks(12)), Part((IDLE,), passed(8)))
_FAST, _SLOW = Show(100, 0.8, 40, 2e9), Show(100, 0.5, 18, 8e8)
#: The detector's patience where an actor is to go on in time: a test may be late by that.
_LONGER = {"hung_s": 60.0, "npu_hung_s": 60.0}
#: Of a rank that must be seen to act all the time: a second without the CPU is no silence.
_STEADY = {"suspect_soon_s": SETTINGS.suspect_s}
ACTS = {
    act.name: act
    for act in (
        Act("H1", _works(Show(100, 0.85, 40, 2e9))),
        Act("H2", _works(Show(((0, 30), (0.6, 95), (1.1, 30)), 0.5, 20, 1e8))),
        Act("H3", _works(Show(((0, 90), (0.5, 90), (0.5, 0), (1.6, 0)), 0.4, 15))),
        Act("H4", _works(Show(((0, 97), (0.7, 100), (1.2, 97)), 0.8, 30))),
        Act("H5", (_FIRST, Part((IDLE, Show(100, 0.2)), looks(60), after=wrote(1 << 20)), _ON), ranks=2, hang=_STEADY),
        Act("H6", (_FIRST, Part((Show(95, 0.8, 35, 1e9),), looks(60)), _ON)),
        Act("H7", (*_hangs(IDLE, until="SUSPECT"), Part((WORK,), told("ALIVE"), do=_open_fifo))),
        Act("H8", (_FIRST, Part((IDLE,), passed(20)), Part((WORK,), told("ALIVE"))), hang=_STEADY),
        Act("H9", (Part((Show(((0, 0), (3, 0), (3, 20), (3.1, 0), (3.3, 0))),), looks(90)), _ON)),
        Act("H10", (Part((IDLE,), passed(30)), _ON), ranks=2),
        Act("H11", (Part((IDLE, Show(100, 0.2)), passed(40)), _ON), ranks=2),
        Act("H13", (Part((IDLE,), looks(120)),)),
        Act("H14", (Part((_FAST,), looks(45)), Part((_SLOW,), told("SLOW"), onset=True), Part((_FAST,), looks(24)))),
        Act("H15", _CYCLE * 2 + _CYCLE[:1], hang=_LONGER),
        Act("H16", (_FIRST, Part((IDLE,), looks(8)), _ON), spec={"max_restarts": 1}),
        Act("U1", _hangs(SPIN)),
        Act("U2", _hangs(SPIN)),
        Act("U3", _hangs(SPIN)),
        Act("U4", _hangs(SPIN)),
        Act("U5", _hangs(IDLE)),
        Act("U6", _hangs(IDLE)),
        Act("U7", _hangs(IDLE)),
        Act("U8", _hangs(IDLE), culprit=0, ranks=2),
        Act("U9", _hangs(SPIN, IDLE), culprit=1, ranks=2),
        Act("U10", _hangs(SPIN, IDLE), culprit=1, ranks=2),
        Act("U11", _hangs(Show(fabric=5 * 1500 / 60)), kind="ascend", ranks=2),
        Act("U12", _hangs(SPIN), kind="ascend"),
        Act("U13", _hangs(IDLE)),
        Act("U14", _hangs(IDLE)),
        Act("U15", (_FIRST, Part((WORK,), told("DRIVER_HANG"), onset=True, do=_driver_hangs)), kind="ascend"),
        Act("U16", (replace(_FIRST, do=_no_util), Part((IDLE,), told("HUNG"), onset=True))),
        Act("U17", (*_hangs(IDLE, until="SUSPECT"), Part((WORK,), told("ALIVE"))), hang=_LONGER),
        Act("U18", _hangs(SPIN)),
    )
}  # fmt: skip


# --- the play ---------------------------------------------------------------------------------------------------------


class Watcher:
    """Takes down what the daemon's detectors are given, and what they say of each job."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._ended = threading.Event()
        self.records: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.changes: dict[str, list[Change]] = defaultdict(list)

    @contextmanager
    def watching(self) -> Iterator["Watcher"]:
        """From now on, in two threads."""
        stream = self._daemon.telemetry.RecordTelemetry(telemetry_pb2.RecordTelemetryRequest())
        threads = [threading.Thread(target=self._take, args=(stream,)), threading.Thread(target=self._ask)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            stream.cancel()
            for thread in threads:
                thread.join()

    def wait(self, job: str, since: float, over: Over) -> bool:
        """Until this is over; whether it was, in time."""
        records, changes = self.records[job], self.changes[job]
        first, begun, deadline = len(records), len(changes), time.monotonic() + PATIENCE_S
        while not over(Seen(since, records[first:], changes[begun:])):
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S / 4)
        return True

    def _take(self, stream: Any) -> None:
        with suppress(grpc.RpcError):
            for answer in stream:
                record = json.loads(answer.line)
                if "job" in record:  # else it says that some were left out
                    self.records[record["job"]].append(record)

    def _ask(self) -> None:
        while not self._ended.wait(_LOOK_S):
            for job in self._daemon.jobs.List(job_pb2.ListRequest(page_size=1000), timeout=60).jobs:
                mine, found = self.changes[job.job_id], job.hang
                if not found.verdict or (mine and mine[-1].verdict == found.verdict):
                    continue
                kind = HangKind(found.kind) if found.kind else None
                evidence, ranks = json.loads(found.evidence), tuple(found.ranks)
                verdict = HangVerdict(found.verdict)
                mine.append(Change(time.time(), job.job_id, verdict, kind, ranks, found.confidence, evidence))


@dataclass(frozen=True)
class Played:
    """What came of it: by the daemon's rule, and by the plain one on the same records. `events` are their kinds."""

    act: Act
    outcome: Outcome
    plain: Outcome
    events: tuple[str, ...]


def play(
    act: Act, daemon: Daemon, cards: FakeCards, watcher: Watcher, where: Path, number: int, late: bool = False
) -> Played:
    """Acts one scenario as a job of a folder of its own below `where`, from its start to its end."""
    job = f"{act.name.lower()}-{number}"
    folder = where / f"play-{job}"
    folder.mkdir()
    os.mkfifo(folder / "fifo")
    spec = job_pb2.JobSpec(
        job_id=job,
        command=[sys.executable, "-E", str(ACTORS), act.name, str(folder)],
        cards=job_pb2.CardRequest(count=act.ranks),
        hang={name: str(value) for name, value in act.hang.items()},
        **act.spec,
    )
    spec.restart_backoff.FromMilliseconds(100)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=120)
    mine = [cards[rank.device] for rank in daemon.until_running(job).ranks]
    begin, onset = time.time(), None
    for stage, part in enumerate(act.parts):
        at = time.time()
        if part.after is not None:
            (folder / str(stage)).touch()
            if not watcher.wait(job, at, part.after):
                break
        for rank, card in enumerate(mine):
            part.shows[min(rank, len(part.shows) - 1)].on(card)
        if part.do is not None:
            part.do(folder, mine)
        (folder / str(stage)).touch()
        onset = at if part.onset else onset
        if not watcher.wait(job, at, part.over):
            break
    changes = list(watcher.changes[job])
    plain = PlainDetector(PLAIN)
    by_plain = [change for record in list(watcher.records[job]) for change in plain.feed(read(record))]
    if any(change.verdict is HangVerdict.HUNG for change in changes):  # its event waits for the stacks
        eventually(lambda: any(event.kind == "job.hung" for event in daemon.event_list(job)), PATIENCE_S)
    events = tuple(event.kind for event in daemon.event_list(job))
    for card in mine:
        card.restore()
    daemon.stop(job, grace_s=0)

    def judged(scenario: Scenario, said: Sequence[Change]) -> Outcome:
        in_minutes = [replace(change, t=begin + (change.t - begin) * SCALE) for change in said]
        if late and scenario.within_min is not None:
            scenario = replace(scenario, within_min=math.inf)
        if late and act.name == "H16":
            scenario = replace(scenario, may=(*scenario.may, "IDLE"))  # its eight looks may take that long
        began = None if onset is None else begin + (onset - begin) * SCALE
        return judge(scenario, number, in_minutes, began, act.culprit, harsh=False)

    return Played(act, judged(act.scenario, changes), judged(for_plain(act.scenario), by_plain), events)


@contextmanager
def stage(folder: Path, kind: str, count: int) -> Iterator[tuple[Daemon, FakeCards, Watcher]]:
    """A daemon with fake cards, for as many acts at a time. Raises tests.fakes.build.NoCompiler."""
    usual = asdict(HangSettings())
    table = [f"{name} = {value!r}" for name, value in asdict(SETTINGS).items() if value != usual[name]]
    with ExitStack() as stack:
        cards = stack.enter_context(FakeCards.make(folder / "cards", kind, count))
        daemon = Daemon(folder, CONFIG + "\n".join(table), cards.env)
        stack.callback(daemon.close)
        stack.callback(cards.restore)
        yield daemon.start(), cards, stack.enter_context(Watcher(daemon).watching())


def play_all(acts: Sequence[Act], folder: Path, at_once: int, rounds: int = 1, *, late: bool = False) -> list[Played]:
    """So many of them at a time, each on cards of its own, as often as that. `late`: a verdict may be late."""
    with ExitStack() as stack:
        stages = {}
        for kind in sorted({act.kind for act in acts}):
            (folder / kind).mkdir()
            ranks = sorted((act.ranks for act in acts if act.kind == kind), reverse=True)
            stages[kind] = stack.enter_context(stage(folder / kind, kind, sum(ranks[:at_once])))
        with ThreadPoolExecutor(at_once) as pool:
            waiting = [
                pool.submit(play, act, *stages[act.kind], folder / act.kind, number, late)
                for number in range(rounds)
                for act in acts
            ]
            return [one.result() for one in waiting]
