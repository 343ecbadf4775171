"""Telemetry records, as `muster hang replay` reads them, and their subscribers: callers, a file.

muster waits for no subscriber. Each has room for some records; when it is full, the next ones are dropped and replaced
by a mark.
"""

import contextlib
import os
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Sequence

import anyio
import msgspec
import structlog

from muster.agent.changes import Changes
from muster.probes.calls import watched
from muster.probes.kernel.trees import ProcessRole
from muster.probes.waits import LibraryWait, RankStack

#: Records that wait for a subscriber: 16 minutes of one job at the default rates. With many jobs at least this many
#: records of each wait, because all records of a look come at once.
MAX_BEHIND, OF_EACH = 64, 4
#: Seconds that a write of records to a file may take.
FILE_S = 10.0

_log = structlog.get_logger(__name__)


class ProcRecord(msgspec.Struct, frozen=True):
    """A process. `start` in clock ticks since boot; counters only grow and include reaped children."""

    pid: int
    start: int
    rank: int | None
    role: ProcessRole
    cpu_s: float
    rchar: int | None
    wchar: int | None
    read_bytes: int | None
    write_bytes: int | None
    state: str
    wchan: str | None


class CardRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A card of the job. Percent and watts; `fabric_bytes` since the driver was loaded; `rank` over all nodes."""

    index: int
    kind: str
    util: float | None
    mem_util: float | None
    power_w: float | None
    power_limit_w: float | None
    fabric_bytes: int | None
    rank: int | None
    #: The reason for a missing reading (muster.probes.cards.accelerator.Trouble), "HANG" for a call that does not
    #: return; omitted if there is a reading.
    trouble: str | None = None


class TelemetryRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job at one moment, in seconds since the epoch. `log_bytes`: size of each rank's log file; `net_bytes`: of all
    interfaces of the node except the loopback, both ways; `log_lines`: lines of each log that were counted so far, from
    some beginning."""

    t: float
    job: str
    procs: tuple[ProcRecord, ...]
    cards: tuple[CardRecord, ...]
    log_bytes: dict[str, int]
    net_bytes: int | None
    #: As a card's `trouble`, of the whole driver.
    driver: str | None = None
    #: Nodes of the job; left out: unknown, as in records of other programs.
    nodes: int = 0
    #: Of dumps since the record before; left out: none was taken.
    stacks: tuple[RankStack, ...] = ()
    #: What the communication library says since then; left out: it was not looked at.
    library: LibraryWait | None = None
    #: Its ranks were asked for dumps since then: what they wrote may be that.
    asked: bool = False
    log_lines: dict[str, int] = msgspec.field(default_factory=dict)
    #: As `stacks`, of a job that goes on: for the rule of slow ranks.
    samples: tuple[RankStack, ...] = ()
    #: Bytes a second that the job itself moved at most since the record before, both ways; left out: unknown.
    job_net_rate: float | None = None
    #: The same, at least: by connections that are its own beyond doubt.
    job_net_least: float | None = None


class Lost(msgspec.Struct, frozen=True):
    """Replaces records that a slow subscriber lost: their number, and the time of the first."""

    t: float
    lost: int


#: Whether a subscriber may have a record.
Sees = Callable[[TelemetryRecord], bool]


class Subscription:
    """The records that wait for one subscriber. Belongs to one event loop."""

    def __init__(self, job_id: str, sees: Sees) -> None:
        """`job_id`: only records of this job; empty: all that the subscriber sees."""
        self._job_id, self._sees = job_id, sees
        self._waiting: deque[TelemetryRecord | Lost] = deque()
        self._of_job: Counter[str] = Counter()
        self._some = Changes()
        self._lost: Lost | None = None

    def put(self, record: TelemetryRecord) -> None:
        """Never waits."""
        if (self._job_id and record.job != self._job_id) or not self._sees(record):
            return
        if len(self._waiting) >= MAX_BEHIND and self._of_job[record.job] >= OF_EACH:
            self._lost = Lost(record.t, 1) if self._lost is None else Lost(self._lost.t, self._lost.lost + 1)
            return
        if self._lost is not None:
            self._waiting.append(self._lost)
            self._lost = None
        self._waiting.append(record)
        self._of_job[record.job] += 1
        self._some.tell()

    async def some(self) -> list[TelemetryRecord | Lost]:
        """The waiting records; waits until there is at least one."""
        while not self._waiting:
            await self._some.next()
        found = list(self._waiting)
        self._waiting.clear()
        self._of_job.clear()
        if self._lost is not None:
            found.append(self._lost)
            self._lost = None
        return found


class Records:
    """Distributes records to subscribers."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()
        #: Stacks that the next record of a job takes along.
        self._stacks: dict[str, tuple[RankStack, ...]] = {}
        self._samples: dict[str, tuple[RankStack, ...]] = {}
        self._library: dict[str, LibraryWait] = {}
        #: Jobs whose ranks are asked for dumps (True), or were since their last record.
        self._asked: dict[str, bool] = {}

    def add_stacks(self, job_id: str, stacks: Sequence[RankStack]) -> None:
        """Adds these stacks to the next record of this job."""
        self._stacks[job_id] = (*self._stacks.get(job_id, ()), *stacks)

    def add_samples(self, job_id: str, stacks: Sequence[RankStack]) -> None:
        """The same, of a job that goes on: the hang rule does not see them."""
        self._samples[job_id] = (*self._samples.get(job_id, ()), *stacks)

    def add_library(self, job_id: str, said: LibraryWait) -> None:
        """Adds the communication library's answers to the next record of this job."""
        self._library[job_id] = said

    @contextlib.contextmanager
    def asking(self, job_id: str) -> Iterator[None]:
        """Marks the records of a job while its ranks are asked for dumps, and the record after that."""
        self._asked[job_id] = True
        try:
            yield
        finally:
            self._asked[job_id] = False

    def drop_looks(self, jobs: Container[str]) -> None:
        """Drops the pending data of all other jobs."""
        self._stacks = {job_id: stacks for job_id, stacks in self._stacks.items() if job_id in jobs}
        self._samples = {job_id: stacks for job_id, stacks in self._samples.items() if job_id in jobs}
        self._library = {job_id: said for job_id, said in self._library.items() if job_id in jobs}
        self._asked = {job_id: now for job_id, now in self._asked.items() if job_id in jobs}

    @property
    def wanted(self) -> bool:
        """Whether there is a subscriber."""
        return bool(self._subscriptions)

    @contextlib.contextmanager
    def subscribed(self, job_id: str = "", sees: Sees = lambda _: True) -> Iterator[Subscription]:
        """Subscribes to the records of this job, or of all jobs; `sees`: whether the subscriber may have a record."""
        subscription = Subscription(job_id, sees)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def publish(self, record: TelemetryRecord) -> None:
        """Gives a record to its subscribers."""
        if stacks := self._stacks.pop(record.job, ()):
            record = msgspec.structs.replace(record, stacks=stacks)
        if samples := self._samples.pop(record.job, ()):
            record = msgspec.structs.replace(record, samples=samples)
        if (said := self._library.pop(record.job, None)) is not None:
            record = msgspec.structs.replace(record, library=said)
        if record.job in self._asked:
            record = msgspec.structs.replace(record, asked=True)
            if not self._asked[record.job]:
                del self._asked[record.job]
        for subscription in self._subscriptions:
            subscription.put(record)


def encoded(record: TelemetryRecord | Lost) -> bytes:
    """As JSON, without a line end."""
    return msgspec.json.encode(record)


class RecordFile:
    """Appends records to the operator's file, one JSON object per line. It opens the file anew each time, so that the
    operator may move it away."""

    def __init__(self, records: Records) -> None:
        self._records = records
        #: A sentence for an operator while writing fails; otherwise empty.
        self.trouble = ""

    async def follow(self, path: str) -> None:
        """Writes new records until cancelled."""
        with self._records.subscribed() as subscription:
            while True:
                lines = b"".join(encoded(record) + b"\n" for record in await subscription.some())
                await self._write(path, lines)

    async def _write(self, path: str, lines: bytes) -> None:
        why = f"it did not take them within {FILE_S:g} s"
        done = False
        try:
            with anyio.move_on_after(FILE_S):
                await watched.call(f"the records {path}", lambda: append(path, lines))
                done = True
        except (OSError, watched.StillHanging) as error:
            why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        if done:
            self.trouble = ""
            return
        if not self.trouble:
            _log.warning("records.unwritten", path=path, error=why)
        self.trouble = f"telemetry.record: {path}: records are lost: {why}"


def append(path: str, data: bytes) -> None:
    """Appends all of it, or nothing. Blocks. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        size = os.fstat(fd).st_size
        try:
            written = 0
            while written < len(data):
                written += os.write(fd, data[written:])
        except OSError:
            with contextlib.suppress(OSError):  # no regular file
                os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)
