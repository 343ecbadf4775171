"""The worker log: one file per job and node with the lines of all its ranks and of the job's own log, as
`muster logs JOB` shows them; ModelArts writes such a file, and here a setting does.

It is made of the ranks' files, each line once, whatever becomes of the daemon: what was read of each rank and how long
the worker log was then are stored together, and a successor cuts the file to that length and goes on from there. A disk
that is full loses nothing either: the lines are still in the ranks' files, and are written when there is room.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import anyio
import msgspec
import structlog

from muster.agent import threads
from muster.agent.host import state_file
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.entry import Entry
from muster.agent.logs import log_reading
from muster.agent.logs.labels import LabelledLines
from muster.agent.logs.log_reading import Chunk
from muster.agent.logs.log_stream import files_of
from muster.supervisors.model.states import JOB
from muster.supervisors.output.job_output import set_aside
from muster.supervisors.paths import Root
from muster.supervisors.system import trust

#: Seconds between two looks at the ranks' files; between two times that it is stored how far the log goes; until a disk
#: that takes nothing is tried again.
LOOK_S, SAVE_S, RETRY_S = 1.0, 5.0, 1.0
#: Seconds after which a disk that takes nothing is no longer waited for, once the job has ended.
GIVE_UP_S = 600.0
#: Seconds after its end for which a job gets a worker log that nobody has begun: its whole life fell between daemons.
RECENT_S = 3600.0

_log = structlog.get_logger(__name__)


class RankLines:
    """Whole lines of several ranks. `offsets`: by rank, how far its output was passed on."""

    def __init__(self, offsets: dict[int, int]) -> None:
        self.offsets = offsets
        self._out: list[bytes] = []
        self._lines = LabelledLines(self._out.append, label=True)

    def take(self, chunk: Chunk, labelled: bool) -> bytes:
        """What can be written now that these bytes are there as well."""
        rank, source = chunk.rank, _source(chunk.rank)
        self._lines.label = labelled
        if chunk.offset != self.offsets.get(rank, 0) + self._lines.held(source):
            self._lines.cut(source)  # what lay between was cut off or removed
        self._lines.feed(source, chunk.data, 0.0)
        self.offsets[rank] = chunk.offset + len(chunk.data) - self._lines.held(source)
        return self._passed_on()

    def finish(self, labelled: bool) -> bytes:
        """The lines that have not ended, since nothing will end them any more."""
        self._lines.label = labelled
        for rank in sorted(self.offsets):
            self.offsets[rank] += self._lines.held(_source(rank))
            self._lines.cut(_source(rank))
        return self._passed_on()

    def _passed_on(self) -> bytes:
        out = b"".join(self._out)
        self._out.clear()
        return out


def _source(rank: int) -> str:
    return "job" if rank == JOB else f"rank {rank}"


class _Saved(msgspec.Struct):
    """`worker.json` in a job's folder: how long the worker log was when the ranks' files were read up to `offsets`."""

    size: int = 0
    offsets: dict[int, int] = {}  # msgspec copies it
    done: bool = False


class WorkerLog:
    """Writes that of one job. Belongs to one event loop; what touches the disk is done in threads of `pool`."""

    def __init__(self, root: Root, entry: Entry, style: Callable[[], str], pool: threads.Pool) -> None:
        """`style` gives the present worker_log of [logs]."""
        self._entry = entry
        self._style = style
        self._threads = pool
        self._path = root.worker_log(entry.job_id, entry.job.node_rank)
        self._root = root
        self._size = 0
        self._saved_at = 0.0
        self._since: float | None = None
        #: Sentence for an operator while the disk takes nothing, or gives nothing.
        self.trouble = ""

    async def run(self) -> bool:
        """Writes to the job's end. False where it was told to stop before that: it can go on later."""
        entry = self._entry
        while not entry.job.ranks and not entry.job.state.final:
            await entry.changed.next()  # its rank table is still to say which ranks there are
        self._path = self._root.worker_log(entry.job_id, entry.job.node_rank)
        lines: RankLines | None = None
        while True:
            try:
                if lines is None:
                    saved = await self._threads.run(_begin, entry, self._path)
                    if saved is None or saved.done:
                        return True
                    self._size, lines = saved.size, RankLines(saved.offsets)
                return await self._follow(RankLines(lines.offsets))
            except _Deleted:
                return True
            except OSError as error:
                if await self._wait(error):
                    return True

    async def _follow(self, lines: RankLines) -> bool:
        """From where `lines` stands. Raises OSError where the ranks' files cannot be read."""
        entry, files = self._entry, files_of(self._root, self._entry)
        merge = log_reading.Merge(files, {file.rank: lines.offsets.get(file.rank, 0) for file in files})
        while (style := self._style()) != "off":
            labelled, ended, changed = style == "labelled", entry.job.state.final, entry.changed.count
            sizes = await log_reading.sizes_of(files)
            self.trouble, self._since = "", None
            if merge.begin(sizes):
                while chunks := await merge.batch():
                    await self._write(b"".join(lines.take(chunk, labelled) for chunk in chunks))
                    await self._save(lines)
            if ended:
                await self._write(lines.finish(labelled))
            await self._save(lines, done=ended)
            if ended:
                return True
            with anyio.move_on_after(LOOK_S):
                await entry.changed.beyond(changed)
        return False

    async def _write(self, data: bytes) -> None:
        """All of it, as soon as the disk takes it. Raises _Deleted."""
        while data:
            try:
                self._size = await self._threads.run(_append, self._entry, self._path, data, self._size)
            except _Deleted:
                raise
            except OSError as error:
                if await self._wait(error):
                    raise _Deleted from None
                continue
            self.trouble, self._since = "", None
            return

    async def _wait(self, error: OSError) -> bool:
        """True where it has waited long enough for a job that has ended: its own files could not be removed else, and
        room may be what is missing."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            _log.warning("logs.worker_waits", job=self._entry.job_id, error=str(error))
        waited = now - self._since
        self.trouble = (
            f"logs: {error.filename or self._path}: {error.strerror or error}; the worker log of job "
            f"{self._entry.job_id} waits for {waited:.0f} s"
        )
        if waited > GIVE_UP_S and self._entry.job.state.final:
            _log.error("logs.worker_given_up", job=self._entry.job_id, error=str(error))
            return True
        await anyio.sleep(RETRY_S)
        return False

    async def _save(self, lines: RankLines, done: bool = False) -> None:
        """How far it goes, at times; a disk that does not take it makes a successor write a part anew, no more."""
        if done or time.monotonic() - self._saved_at >= SAVE_S:
            saved = _Saved(self._size, dict(lines.offsets), done)
            with contextlib.suppress(OSError):
                await self._threads.run(_store, self._entry, saved, self._path)
            self._saved_at = time.monotonic()


class _Deleted(OSError):
    """Raised when the job was deleted meanwhile: nothing is to be left of it."""


def unfinished(root: Root, rows: Iterable[Ended]) -> list[Ended]:
    """Those of these jobs whose worker log is to be written still, if there is to be one. Blocks."""
    found = []
    for row in rows:
        if row.damaged:
            continue
        try:
            done = state_file.read(root.job(row.job_id).worker, _Saved).done
        except (OSError, ValueError):
            done = time.time() - row.ended_at > RECENT_S
        if not done:
            found.append(row)
    return found


def _begin(entry: Entry, path: Path) -> _Saved | None:
    """Where to go on; None where there is nothing to do. Raises OSError."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return state_file.read(entry.paths.worker, _Saved)
    if entry.job.state.final and time.time() - entry.job.ended_at > RECENT_S:
        return None
    set_aside([(path, path.with_suffix(".idx"))])
    _store(entry, _Saved(), path)  # before the first line: from here on, what stands in the file is ours
    return _Saved()


def _append(entry: Entry, path: Path, data: bytes, size: int) -> int:
    """Writes behind the first `size` bytes, whatever stands there; returns the new size. Raises OSError, _Deleted."""
    fd, may_be_given = _open(path, os.O_WRONLY | os.O_CREAT)
    try:
        there = os.fstat(fd).st_size
        if not there and may_be_given:
            _give(fd, entry, path)
        size = min(size, there)  # somebody may have cut it
        os.ftruncate(fd, size)
        done = 0
        while done < len(data):
            done += os.pwrite(fd, data[done:], size + done)
    finally:
        os.close(fd)
    _refuse_deleted(entry, path)
    return size + done


def _open(path: Path, flags: int) -> tuple[int, bool]:
    """See trust.open_log. The file belongs to the job's user, who can hold a lease on it (fcntl(2)): an open() that
    waits would take a thread of all jobs for 45 s; this one does not. Raises Untrusted, OSError."""
    folder = trust.open_logs(path.parent)
    try:
        return trust.open_log(path.name, flags, folder=folder)
    finally:
        os.close(folder)


def _give(fd: int, entry: Entry, path: Path) -> None:
    """To the job's user, as the ranks' files are."""
    for rank in entry.job.ranks[:1]:
        with contextlib.suppress(OSError):
            owner = path.with_name(f"{entry.job_id}-proc-rank-{rank.rank}-device-{rank.device}.txt").lstat()
            os.fchown(fd, owner.st_uid, owner.st_gid)


def _store(entry: Entry, saved: _Saved, path: Path) -> None:
    """Raises OSError, _Deleted."""
    _refuse_deleted(entry, path)
    with contextlib.suppress(FileNotFoundError):
        fd, _ = _open(path, os.O_WRONLY)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)
    state_file.write(entry.paths.worker, saved)


def _refuse_deleted(entry: Entry, path: Path) -> None:
    if not entry.paths.folder.exists():
        path.unlink(missing_ok=True)
        raise _Deleted(0, "the job was deleted", str(path))
