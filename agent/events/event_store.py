"""What happened on this node, on disk, in order, with cursors that outlive the daemon.

The store is a row of append-only segments (see segments.py). Events have numbers, which only grow. A kill of the daemon
loses nothing that a watcher has seen, since an event is written before it is shown; a crash of the machine can, and so
the numbers of another boot begin 2**20 higher and no cursor ever names two events. Events of jobs are derived from
their journals; each carries the number of its record, so that after a restart the missing ones are added, and
none twice.

A thread writes, so that a disk that does not answer keeps nobody waiting. While a disk refuses events, or has not
answered for SHOW_S, they are shown all the same and wait in memory, in order, until it takes them.
"""

import asyncio
import contextlib
import os
import re
import time
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import field
from functools import partial
from pathlib import Path

import anyio
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
#: Seconds after which events are shown although the disk has not taken them.
SHOW_S = 2.0
#: Seconds that the disk has for the last events when the daemon ends.
CLOSE_S = 3.0
#: What the thread says: the segment; if it has begun that, the segment and its descriptor; bytes of each line; what
#: went wrong.
_Written = tuple[Segment, tuple[Segment, int] | None, list[int], OSError | None]
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
        #: How many of them the thread has, the first ones; the number of the last event that readers see.
        self._flying, self._shown = 0, self._next - 1
        #: A segment is being begun: nothing is written meanwhile. What was written is being put onto the disk.
        self._turning = self._syncing = False
        #: Events that were given up, since there were more than MAX_PENDING.
        self._lost = 0
        self._grown, self._dirty = Changes(), Changes()
        self._loop = asyncio.get_running_loop()
        self._writer = threads.InOrder("events")
        #: Looks whether the event that was the last then has been written.
        self._look: asyncio.TimerHandle | None = None
        # Abandoned when the daemon ends: a disk that hangs must not keep it.
        self._threads = threads.Pool(4, abandon_on_cancel=True)
        # One at a time: where the disk hangs, no second thread waits for it.
        self._syncs = threads.Pool(1, abandon_on_cancel=True)
        # Not abandoned: a segment that came later would spoil the order of the numbers.
        self._turns = threads.Pool(1)
        #: Sentences for an operator: what is damaged, what cannot be written.
        self.damage = [f"{s.path}: {s.damaged} damaged line(s) skipped" for s in found if s.damaged]
        self._unwritten, self._unsynced = read.trouble, ""

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
        """Has events written with their keys, and then wakes the watchers. Never waits.

        They are written into the page cache: from then on a kill of the daemon cannot lose them; `run` puts them onto
        the disk. When the disk is full or silent they are shown all the same, wait in memory, and are tried again.
        """
        for key, event in events:
            self._pending.append((self._next, key, event))
            self._numbers.append(self._next)
            self._recent.append(event)
            self._next += 1
            if key is not None:
                self._marks.jobs[key.job_id] = (key.accepted_at, key.record)
            self._marks.tell(event.kind, event.job_id, event.time)
            if event.job_id and event.rank is None:
                _log.info(event.kind, job=event.job_id, text=event.message or None)
        if not self._pending:
            return
        excess = len(self._pending) - MAX_PENDING
        if excess > 0:
            gone = self._pending[self._flying : self._flying + excess]
            del self._pending[self._flying : self._flying + excess]
            self._lost += len(gone)
        if self._unwritten:
            self._show(self._next - 1)
        self._write()
        if len(self._recent) >= 2 * RECENT:
            self._recent_after = self._numbers[-RECENT - 1]
            del self._recent[:-RECENT], self._numbers[:-RECENT]

    def tell(self, event: Event) -> None:
        """As `append`, of an event that is derived from no record."""
        self.append([(None, event)])

    def last_record(self, job_id: str, accepted_at: float) -> int:
        """The number of the last record of this job that became an event; -1 for none."""
        known, record = self._marks.jobs.get(job_id, (0.0, -1))
        return record if known == accepted_at else -1

    def told(self, job_id: str) -> int:
        """The number of the last record that became an event of the job that has this id, or had it last; -1 for
        none."""
        return self._marks.jobs.get(job_id, (0.0, -1))[1]

    def last_told(self, kind: str, job_id: str = "") -> float:
        """The time of the last event of a kind in REMEMBERED, of this job or of the node; 0 for none."""
        return self._marks.told.get(job_id, {}).get(kind, 0.0)

    def keep_only(self, job_ids: set[str]) -> None:
        """Forgets what is known of jobs that are no more."""
        self._marks.keep_only(job_ids)

    def forget(self, job_id: str) -> None:
        """The job was deleted; its events stay."""
        self._marks.jobs.pop(job_id, None)
        self._marks.told.pop(job_id, None)

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator."""
        found = [*self.damage, *([self._unsynced] if self._unsynced else [])]
        if self._unwritten:
            lost = f", {self._lost} older ones are lost" if self._lost else ""
            found.append(f"{self._unwritten}; {len(self._pending)} wait in memory{lost}")
        return found

    def _show(self, number: int) -> None:
        """Readers see the events up to this one."""
        self._shown = max(self._shown, number)
        self._grown.tell()

    def _write(self) -> None:
        """Gives what waits to the thread, unless that has something."""
        if self._pending and not self._flying and not self._turning:
            self._flying = len(self._pending)
            lines = [segments.encode(self._line(*one)) for one in self._pending]
            piece = partial(self._written, self._segments[-1], self._fd, lines)
            # A disk that refuses at once must not be asked anew, with all that waits, for each event of a burst.
            self._writer.ask(piece, self._told, patient=bool(self._unwritten))
        if self._look is None and self._shown < self._next - 1:
            self._look = self._loop.call_later(SHOW_S, self._looked, self._next - 1)

    def _written(self, active: Segment, fd: int, lines: list[bytes]) -> _Written:
        """The thread's part of `_write`."""
        taken, failure = None, None
        try:
            if fd < 0:
                active, fd = taken = self._take_up(self._pending[0][0])
            _write(fd, b"".join(lines), active.size)
        except OSError as error:
            failure = error
        return active, taken, list(map(len, lines)), failure

    def _told(self, written: _Written) -> None:
        """Takes what the thread says."""
        active, taken, sizes, failure = written
        count, self._flying = self._flying, 0
        self._dirty.tell()
        if taken is not None:
            self._fd = taken[1]
            self._segments = [s for s in self._segments if s.size] + [taken[0]]
        if failure is not None:
            self._unwritten = f"cannot write events to {active.path}: {failure.strerror}"
            self._show(self._next - 1)
            return
        for (number, _, _), size in zip(self._pending[:count], sizes, strict=True):
            active.note(number, active.size)
            active.size += size
        last = self._pending[count - 1][0]
        del self._pending[:count]
        if self._unwritten and not self._pending:
            self._unwritten = ""
            if self._lost:
                self._tell_lost()
        self._show(last)
        self._write()

    def _tell_lost(self) -> None:
        lost, self._lost = self._lost, 0
        message = f"{lost} events are lost: the disk did not take them, and more than {MAX_PENDING} waited"
        _log.warning("events.lost", lost=lost)
        self.append([(None, Event(time.time(), "node.events_lost", message=message, attributes={"events": str(lost)}))])

    def _looked(self, last: int) -> None:
        """SHOW_S after the event with the number `last` was appended."""
        self._look = None
        if self._shown < last:
            self._unwritten = f"cannot write events to {self._segments[-1].path}: its disk does not answer"
            _log.warning("events.unwritten", error="the disk does not answer")
            self._show(self._next - 1)
        self._write()
        if self._flying and self._look is None:
            self._writer.poke()
            self._look = self._loop.call_later(SHOW_S, self._looked, self._shown)

    def _take_up(self, first: int) -> tuple[Segment, int]:
        """Begins to write into a folder that could only be read so far. Raises OSError. Blocks."""
        if not (self._folder / "epoch").exists():
            state_file.write_text(self._folder / "epoch", self._epoch + "\n")
        return _begun(self._folder, first)

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
        await self._settled()
        after = self._segments[0].first - 1 if cursor is None else self._number(cursor)
        if after >= self._shown:
            return []
        if after >= self._recent_after:
            start = bisect_right(self._numbers, after)
            stop = min(start + limit, bisect_right(self._numbers, self._shown))
            found = list(zip(self._numbers[start:stop], self._recent[start:stop], strict=True))
        else:
            found = await self._from_disk(after, limit)
        return [(event, self._cursor(number)) for number, event in found]

    async def _from_disk(self, after: int, limit: int) -> list[tuple[int, Event]]:
        start = max(bisect_right(self._segments, after + 1, key=lambda s: s.first) - 1, 0)
        # What waits, and sizes, are taken now: what is written later is no part of this answer.
        waiting = [(number, event) for number, _, event in self._pending if number <= self._shown]
        parts = [(s.path, s.offset_of(after + 1), s.size) for s in self._segments[start:]]
        try:
            lines = await self._threads.run(segments.read, parts, after, limit)
        except FileNotFoundError:
            raise CursorTooOld(self.oldest_cursor()) from None  # dropped in this very moment
        found = [(x.q, Event(x.t, x.k, x.j, x.r, x.m, x.s, x.a)) for x in lines]
        last = found[-1][0] if found else after
        found += [(number, event) for number, event in waiting if number > last]  # behind all that is on disk
        return found[:limit]

    async def _settled(self) -> None:
        """Returns when readers see all that was appended before."""
        last = self._next - 1
        while self._shown < last:
            await self._grown.next()

    async def wait_beyond(self, cursor: str) -> None:
        """Returns when there is an event behind `cursor`. Raises as `read` does."""
        after = self._number(cursor)
        while self._shown <= after:
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
                self._write()
                await self._sync()
                self._unsynced = ""
                await self._keep_bound()
            except OSError as error:
                self._unsynced = f"cannot sync events in {self._folder} to the disk: {error.strerror}"
                _log.warning("events.unwritten", error=str(error))
                self._dirty.tell()
            await anyio.sleep(SYNC_S)

    async def stored(self) -> None:
        """Returns when all that was appended before is on the disk: what is written after that, neither a kill nor a
        crash of the machine leaves without its event. Returns after SHOW_S where the disk does not take it, which is a
        `trouble`."""
        with contextlib.suppress(OSError), anyio.move_on_after(SHOW_S):
            await self._settled()
            if not self._unwritten:
                await self._sync()

    async def answers(self) -> None:
        """Returns when the disk has answered, be it with an error, or is being waited for: a new daemon would get no
        answer either."""
        if self._unwritten or self._syncing:
            return
        with contextlib.suppress(OSError), anyio.move_on_after(SHOW_S):
            await self._sync()

    async def close(self) -> None:
        """Puts all that was written onto the disk, as far as it takes it, and soon."""
        await self._settled()
        synced = False
        try:
            with anyio.move_on_after(CLOSE_S):
                await self._sync()
                synced = True
        except OSError as error:
            _log.warning("events.unwritten", error=str(error))
        self._turning = True  # nothing is written any more
        if self._look is not None:
            self._look.cancel()
        if self._fd >= 0 and synced and not self._flying:
            os.close(self._fd)

    async def _sync(self) -> None:
        if self._fd < 0:
            return
        await self._syncs.run(self._put_down, self._fd)

    def _put_down(self, fd: int) -> None:
        """Raises OSError. Blocks."""
        self._syncing = True
        try:
            os.fdatasync(fd)
        finally:
            self._syncing = False

    async def _keep_bound(self) -> None:
        if self._pending or self._fd < 0:
            return  # what is not on disk must not count as told
        if self._segments[-1].size * PARTS >= self.keep_bytes:
            await self._begin_segment()
            if self._pending:
                return  # next time, when these are written, too
        sizes = [s.size for s in self._segments]
        drop = 0
        while drop < len(sizes) - 1 and sum(sizes[drop:]) > self.keep_bytes:
            drop += 1
        if drop == 0:
            return
        # First what the dropped ones say of jobs is saved, and all that it counts is on disk; then no reader is sent to
        # them any more; then they go.
        saved = self._marks.copy()
        await self._sync()
        await self._threads.run(state_file.write, self._folder / "marks", saved)
        dropped, self._segments = self._segments[:drop], self._segments[drop:]
        await self._threads.run(_unlink, [s.path for s in dropped])

    async def _begin_segment(self) -> None:
        before, self._turning = self._fd, True
        try:
            segment, self._fd = await self._turns.run(_begun, self._folder, self._next)
            self._segments.append(segment)
        finally:
            self._turning = False
            self._write()
        try:
            await self._syncs.run(_put_aside, before, self._folder)  # behind who still syncs it
        finally:
            os.close(before)


def _begun(folder: Path, first: int) -> tuple[Segment, int]:
    """A new segment, opened. Raises OSError."""
    segment = segments.create(folder, first)
    return segment, os.open(segment.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _put_aside(before: int, folder: Path) -> None:
    """Puts a finished segment onto the disk, and the name of the next one. Raises OSError."""
    os.fdatasync(before)
    sync_folder(folder)


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
