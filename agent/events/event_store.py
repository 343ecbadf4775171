"""What happened on this node, on disk, in order, with cursors that outlive the daemon.

The store is a row of append-only segments (see segments.py). Events have numbers, which only grow. A kill of the daemon
loses nothing that a watcher has seen, since an event is written before it is shown; a crash of the machine can, and so
the numbers of another boot begin 2**20 higher and no cursor ever names two events. Events of jobs are derived from
their journals; each carries the number of its record, so that after a restart the missing ones are added, and
none twice.
"""

import contextlib
import os
import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path

import anyio
import msgspec
import structlog
from anyio.abc import TaskStatus

from muster.agent import threads
from muster.agent.changes import Changes
from muster.agent.errors import CursorTooOld, InvalidRequest
from muster.agent.events import opening, segments
from muster.agent.events.opening import StoreContents
from muster.agent.events.segments import Segment
from muster.agent.host import state_file
from muster.probes.kernel import process
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.spec import Violation
from muster.supervisors.system.atomic_file import sync_folder

#: Events that wait in memory for a disk, at most: the oldest are given up.
MAX_PENDING = 20_000
#: Newest events kept in memory, for the watchers that are up to date.
RECENT = 1024
#: The bound on disk is kept by dropping whole segments, each about this part of it.
PARTS = 8
#: Seconds between two syncs.
SYNC_S = 0.5
_CURSOR = re.compile(r"([0-9a-f]{16})-(\d{1,18})")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """See event.proto. `time` in seconds since the epoch, `seconds` the length of the step that ended here."""

    time: float
    kind: str
    job_id: str = ""
    rank: int | None = None
    message: str = ""
    seconds: float = 0.0
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordKey:
    """What an event was derived from: a record of a job's journal. The time of acceptance tells a job from a later one
    of the same id."""

    job_id: str
    accepted_at: float
    record: int


class EventStore:
    """Belongs to one event loop. Reading never waits for writing, and nobody's reading for another's."""

    def __init__(self, folder: Path, keep_bytes: int, read: StoreContents) -> None:
        """Use `open`."""
        epoch, found, marks = read.epoch, read.found, read.marks
        self._folder = folder
        #: Bytes that the store may have on disk.
        self.keep_bytes = keep_bytes
        self._epoch = epoch
        self._segments = found
        self._marks = marks
        self._next = read.next_number
        self._fd = -1 if read.trouble else os.open(found[-1].path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._recent: list[Event] = []
        self._numbers: list[int] = []
        self._recent_after = self._next - 1
        #: What is not on disk, with its number.
        self._pending: list[tuple[int, RecordKey | None, Event]] = []
        self._grown, self._dirty = Changes(), Changes()
        self._threads = threads.Pool(4)
        #: Sentences for an operator: what is damaged, what cannot be written.
        self.damage = [f"{s.path}: {s.damaged} damaged line(s) skipped" for s in found if s.damaged]
        self._unwritten = read.trouble

    @classmethod
    async def open(cls, folder: Path, keep_bytes: int, *, boot_id: str = "") -> "EventStore":
        """Opens the store in `folder` (which exists), mends a torn end and goes on behind it.

        In a folder that cannot be written now it shows what can be read, and new events wait in memory. Raises OSError
        for one that cannot be read.
        """
        boot = boot_id or process.boot_id()
        return cls(folder, keep_bytes, await threads.run(opening.load, folder, boot))

    # --- writing ------------------------------------------------------------------------------------------------------

    def append(self, events: Iterable[tuple[RecordKey | None, Event]]) -> None:
        """Writes events with their keys and wakes the watchers.

        One write into the page cache: from then on a kill of the daemon cannot lose them; `run` puts them onto the
        disk. When the disk is full they are shown all the same, wait in memory, and `run` tries again.
        """
        for key, event in events:
            self._pending.append((self._next, key, event))
            self._numbers.append(self._next)
            self._recent.append(event)
            self._next += 1
            if key is not None:
                self._marks.jobs[key.job_id] = (key.accepted_at, key.record)
            if event.job_id and event.rank is None:
                _log.info(event.kind, job=event.job_id, text=event.message or None)
        if not self._pending:
            return
        self._flush()
        if len(self._recent) >= 2 * RECENT:
            self._recent_after = self._numbers[-RECENT - 1]
            del self._recent[:-RECENT], self._numbers[:-RECENT]
        self._grown.tell()
        self._dirty.tell()

    def last_record(self, job_id: str, accepted_at: float) -> int:
        """The number of the last record of this job that became an event; -1 for none."""
        known, record = self._marks.jobs.get(job_id, (0.0, -1))
        return record if known == accepted_at else -1

    def told(self, job_id: str) -> int:
        """The number of the last record that became an event of the job that has this id, or had it last; -1 for
        none."""
        return self._marks.jobs.get(job_id, (0.0, -1))[1]

    def keep_only(self, job_ids: set[str]) -> None:
        """Forgets what is known of jobs that are no more."""
        self._marks.jobs = {job_id: mark for job_id, mark in self._marks.jobs.items() if job_id in job_ids}

    def forget(self, job_id: str) -> None:
        """The job was deleted; its events stay."""
        self._marks.jobs.pop(job_id, None)

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator."""
        return [*self.damage, *([self._unwritten] if self._unwritten else [])]

    def _flush(self) -> None:
        """Writes what waits; where that does not work it waits on."""
        active = self._segments[-1]
        try:
            if self._fd < 0:
                active = self._take_up()
            offset = active.size
            lines = []
            for number, key, event in self._pending:
                line = segments.encode(self._line(number, key, event))
                active.note(number, offset)
                offset += len(line)
                lines.append(line)
            _write(self._fd, b"".join(lines), active.size)
        except OSError as error:
            active.unnote(active.size)
            del self._pending[:-MAX_PENDING]
            many = len(self._pending)
            self._unwritten = f"cannot write events to {active.path}: {error.strerror}; {many} wait in memory"
            return
        self._unwritten = ""
        active.size = offset
        self._pending.clear()

    def _take_up(self) -> Segment:
        """Begins to write into a folder that could only be read so far. Raises OSError."""
        if not (self._folder / "epoch").exists():
            state_file.write_text(self._folder / "epoch", self._epoch + "\n")
        segment = segments.create(self._folder, self._pending[0][0] if self._pending else self._next)
        self._fd = os.open(segment.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._segments = [s for s in self._segments if s.size] + [segment]
        return segment

    def _line(self, number: int, key: RecordKey | None, event: Event) -> segments.Line:
        accepted_at, record = (key.accepted_at, key.record) if key is not None else (0.0, -1)
        return segments.Line(
            number, event.time, event.kind, event.job_id, accepted_at, record,
            event.rank, event.message, event.seconds, event.attributes,
        )  # fmt: skip

    # --- reading ------------------------------------------------------------------------------------------------------

    async def read(self, cursor: str | None, limit: int) -> list[tuple[Event, str]]:
        """At most `limit` events behind `cursor` (None: from the oldest), each with the cursor behind it.

        Raises CursorTooOld where the history no longer reaches back so far, InvalidRequest for what is no cursor.
        """
        after = self._segments[0].first - 1 if cursor is None else self._number(cursor)
        if after >= self._next - 1:
            return []
        if after >= self._recent_after:
            start = bisect_right(self._numbers, after)
            found = list(zip(self._numbers[start : start + limit], self._recent[start : start + limit], strict=True))
        else:
            found = await self._from_disk(after, limit)
        return [(event, self._cursor(number)) for number, event in found]

    async def _from_disk(self, after: int, limit: int) -> list[tuple[int, Event]]:
        start = max(bisect_right(self._segments, after + 1, key=lambda s: s.first) - 1, 0)
        # Sizes are taken now: what is written later is no part of this answer.
        parts = [(s.path, s.offset_of(after + 1), s.size) for s in self._segments[start:]]
        try:
            lines = await self._threads.run(segments.read, parts, after, limit)
        except FileNotFoundError:
            raise CursorTooOld(self.oldest_cursor()) from None  # dropped in this very moment
        found = [(x.q, Event(x.t, x.k, x.j, x.r, x.m, x.s, x.a)) for x in lines]
        last = found[-1][0] if found else after
        found += [(number, event) for number, _, event in self._pending if number > last]  # behind all that is on disk
        return found[:limit]

    async def wait_beyond(self, cursor: str) -> None:
        """Returns when there is an event behind `cursor`. Raises as `read` does."""
        after = self._number(cursor)
        while self._next - 1 <= after:
            await self._grown.next()

    def newest_cursor(self) -> str:
        """Behind the last event: what comes from now on."""
        return self._cursor(self._next - 1)

    def oldest_cursor(self) -> str:
        """Before the first event that is kept."""
        return self._cursor(self._segments[0].first - 1)

    def _cursor(self, number: int) -> str:
        return f"{self._epoch}-{number}"

    def _number(self, cursor: str) -> int:
        match = _CURSOR.fullmatch(cursor)
        if match is None:
            raise InvalidRequest([Violation("cursor", "is not from this service: begin again without a cursor")])
        number = int(match[2])
        if match[1] != self._epoch or number < self._segments[0].first - 1:
            raise CursorTooOld(self.oldest_cursor())
        if number >= self._next:
            raise InvalidRequest([Violation("cursor", "names an event that has not happened yet")])
        return number

    # --- upkeep -------------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Syncs, keeps the size limit, and retries failed writes, until cancelled."""
        task_status.started()
        seen = 0
        while True:
            seen = await self._dirty.beyond(seen)
            try:
                if self._pending:
                    self._flush()
                await self._sync()
                await self._keep_bound()
            except OSError as error:
                self._unwritten = f"cannot sync events in {self._folder} to the disk: {error.strerror}"
                _log.warning("events.unwritten", error=str(error))
                self._dirty.tell()
            if self._pending:
                self._dirty.tell()
            await anyio.sleep(SYNC_S)

    async def answers(self) -> None:
        """Returns when the disk has answered, be it with an error."""
        with contextlib.suppress(OSError):
            await self._sync()

    async def close(self) -> None:
        """Puts all that was written onto the disk, as far as it takes it."""
        try:
            await self._sync()
        except OSError as error:
            _log.warning("events.unwritten", error=str(error))
        if self._fd >= 0:
            os.close(self._fd)

    async def _sync(self) -> None:
        if self._fd < 0:
            return
        await self._threads.run(os.fdatasync, self._fd)

    async def _keep_bound(self) -> None:
        if self._pending or self._fd < 0:
            return  # what is not on disk must not count as told
        if self._segments[-1].size * PARTS >= self.keep_bytes:
            await self._begin_segment()
        sizes = [s.size for s in self._segments]
        drop = 0
        while drop < len(sizes) - 1 and sum(sizes[drop:]) > self.keep_bytes:
            drop += 1
        if drop == 0:
            return
        # First what the dropped ones say of jobs is saved, and all that it counts is on disk; then no reader is sent to
        # them any more; then they go.
        saved = msgspec.structs.replace(self._marks, jobs=dict(self._marks.jobs))
        await self._sync()
        await self._threads.run(state_file.write, self._folder / "marks", saved)
        dropped, self._segments = self._segments[:drop], self._segments[drop:]
        await self._threads.run(_unlink, [s.path for s in dropped])

    async def _begin_segment(self) -> None:
        before = self._fd
        segment = segments.create(self._folder, self._next)
        self._fd = os.open(segment.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._segments.append(segment)
        try:
            await self._threads.run(os.fdatasync, before)
            await self._threads.run(sync_folder, self._folder)
        finally:
            os.close(before)


def _write(fd: int, data: bytes, offset: int) -> None:
    """All or nothing. Raises OSError."""
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(fd, data[written:], offset + written)
    except OSError:
        os.ftruncate(fd, offset)
        raise


def _unlink(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
