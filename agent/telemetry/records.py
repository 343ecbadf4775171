"""Telemetry records, as `muster hang replay` reads them, and whoever wants them: callers, a file.

Nobody is waited for: a subscriber has room for some records, and where it is full the next ones are left out, and the
place is marked.
"""

import contextlib
import os
from collections import Counter, deque
from collections.abc import Container, Iterator, Sequence

import anyio
import msgspec
import structlog

from muster.agent.changes import Changes
from muster.probes.calls import watched
from muster.probes.kernel.trees import ProcessRole
from muster.probes.waits import LibraryWait, RankStack

#: How many records wait for a subscriber: with a job and the default rates 16 minutes of them. Where there are many
#: jobs it is at least so many of each: all of a look come at once.
MAX_BEHIND, OF_EACH = 64, 4
#: Seconds that a file has to take records.
FILE_S = 10.0

_log = structlog.get_logger(__name__)


class ProcRecord(msgspec.Struct, frozen=True):
    """A process. `start` in clock ticks since boot; counters only grow, what a process has waited for included."""

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
    #: Why there is no reading (muster.probes.cards.accelerator.Trouble), "HANG" for a call that does not return; left
    #: out: there is.
    trouble: str | None = None


class TelemetryRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job at one moment, in seconds since the epoch. `log_bytes`: size of each rank's log file; `net_bytes`: of all
    interfaces of the node but the loopback, both ways."""

    t: float
    job: str
    procs: tuple[ProcRecord, ...]
    cards: tuple[CardRecord, ...]
    log_bytes: dict[str, int]
    net_bytes: int | None
    #: As a card's `trouble`, of the whole driver.
    driver: str | None = None
    #: Nodes of the job; left out: one.
    nodes: int = 1
    #: Of dumps since the record before; left out: none was taken.
    stacks: tuple[RankStack, ...] = ()
    #: What the communication library says since then; left out: it was not looked at.
    library: LibraryWait | None = None
    #: Its ranks were asked for dumps since then: what they wrote may be that.
    asked: bool = False


class Lost(msgspec.Struct, frozen=True):
    """Stands where records were left out since they were not taken in time: how many, and when the first was."""

    t: float
    lost: int


class Subscription:
    """What waits for one subscriber. For one event loop."""

    def __init__(self, job_id: str) -> None:
        """`job_id`: only records of this job; empty: all."""
        self._job_id = job_id
        self._waiting: deque[TelemetryRecord | Lost] = deque()
        self._of_job: Counter[str] = Counter()
        self._some = Changes()
        self._lost: Lost | None = None

    def put(self, record: TelemetryRecord) -> None:
        """Never waits."""
        if self._job_id and record.job != self._job_id:
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
        """What waits, at least one; waits for that."""
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
    """Hands records out."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()
        #: Stacks that the next record of a job takes along.
        self._stacks: dict[str, tuple[RankStack, ...]] = {}
        self._library: dict[str, LibraryWait] = {}
        #: Jobs whose ranks are asked for dumps (True), or were since their last record.
        self._asked: dict[str, bool] = {}

    def add_stacks(self, job_id: str, stacks: Sequence[RankStack]) -> None:
        """Has the next record of this job take them along."""
        self._stacks[job_id] = (*self._stacks.get(job_id, ()), *stacks)

    def add_library(self, job_id: str, said: LibraryWait) -> None:
        """The same of what the communication library says."""
        self._library[job_id] = said

    @contextlib.contextmanager
    def asking(self, job_id: str) -> Iterator[None]:
        """Marks the records of a job whose ranks are asked for dumps meanwhile, and the one after."""
        self._asked[job_id] = True
        try:
            yield
        finally:
            self._asked[job_id] = False

    def drop_looks(self, jobs: Container[str]) -> None:
        """Forgets those of all but these jobs."""
        self._stacks = {job_id: stacks for job_id, stacks in self._stacks.items() if job_id in jobs}
        self._library = {job_id: said for job_id, said in self._library.items() if job_id in jobs}
        self._asked = {job_id: now for job_id, now in self._asked.items() if job_id in jobs}

    @property
    def wanted(self) -> bool:
        """Whether anybody takes records."""
        return bool(self._subscriptions)

    @contextlib.contextmanager
    def subscribed(self, job_id: str = "") -> Iterator[Subscription]:
        """From now on records (of this job, or all) wait there."""
        subscription = Subscription(job_id)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def publish(self, record: TelemetryRecord) -> None:
        """Hands a record to all who want it."""
        if stacks := self._stacks.pop(record.job, ()):
            record = msgspec.structs.replace(record, stacks=stacks)
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
    """Appends records to a file that an operator named, a JSON object a line; it is opened anew each time, so that it
    may be moved away."""

    def __init__(self, records: Records) -> None:
        self._records = records
        #: Sentence for an operator while the file does not take them; else empty.
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
