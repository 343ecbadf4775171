"""The worker log: one file per job and node with the lines of all its ranks and of the job's own log, as
`muster logs JOB` shows them. ModelArts writes such a file; in muster a setting says which jobs have one (`style_of`).

It contains each line of the ranks' files once, even if the daemon is killed: the offsets read from each rank and the
length of the worker log are stored together, and a successor cuts the file to that length and continues from there. A
full disk loses nothing either: the lines are still in the ranks' files, and are written when there is space.
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
from muster.supervisors.launch.modes import modelarts
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import JOB
from muster.supervisors.output.log_segments import put_aside
from muster.supervisors.paths import Root, index_of, rank_log_name
from muster.supervisors.system import trust

#: Seconds between two looks at the ranks' files; between two writes of the position; until a retry when the disk
#: accepts no writes.
LOOK_S, SAVE_S, RETRY_S = 1.0, 5.0, 1.0
#: Once the job has ended, a disk that accepts no writes is retried for at most so many seconds.
GIVE_UP_S = 600.0
#: A job that ran while no daemon did gets a worker log only within so many seconds after its end.
RECENT_S = 3600.0

_log = structlog.get_logger(__name__)


class RankLines:
    """Whole lines of several ranks. `offsets`: by rank, how much of its output was passed on."""

    def __init__(self, offsets: dict[int, int]) -> None:
        self.offsets = offsets
        self._out: list[bytes] = []
        self._lines = LabelledLines(self._out.append, label=True)

    def take(self, chunk: Chunk, labelled: bool) -> bytes:
        """The lines that these bytes complete."""
        rank, source = chunk.rank, _source(chunk.rank)
        self._lines.label = labelled
        if chunk.offset != self.offsets.get(rank, 0) + self._lines.held(source):
            self._lines.cut(source)  # the output in between was cut off or removed
        self._lines.feed(source, chunk.data, 0.0)
        self.offsets[rank] = chunk.offset + len(chunk.data) - self._lines.held(source)
        return self._passed_on()

    def finish(self, labelled: bool) -> bytes:
        """The unfinished lines: nothing will finish them any more."""
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


def style_of(setting: str, spec: JobSpec) -> str:
    """How a job's worker log is written, by worker_log of [logs]: "plain" or "labelled"; "off": it has none."""
    if setting != "auto":
        return setting
    return "plain" if modelarts.has_worker_log(spec) else "off"


class WorkerLog:
    """Writes the worker log of one job. Belongs to one event loop; the disk is used in threads of `pool`."""

    def __init__(self, root: Root, entry: Entry, setting: Callable[[], str], pool: threads.Pool) -> None:
        """`setting` gives the present worker_log of [logs]."""
        self._entry = entry
        self._setting = setting
        self._threads = pool
        self._path = root.worker_log(entry.job_id, entry.job.node_rank)
        self._root = root
        self._size = 0
        self._saved_at = 0.0
        self._since: float | None = None
        #: Sentence for an operator while the disk cannot be written or read.
        self.trouble = ""

    @property
    def _stands_in(self) -> bool:
        """Whether this daemon runs in the platform's place in its container, where the platform has a file of this name
        in the folder that it gave us."""
        return modelarts.in_container(self._entry.spec.env) and self._root.log.is_symlink()

    async def run(self) -> bool:
        """Writes to the job's end. False if it had to stop before: it can continue later."""
        entry = self._entry
        while not entry.job.ranks and not entry.job.state.final:
            await entry.changed.next()  # its rank table has not yet said which ranks exist
        self._path = self._root.worker_log(entry.job_id, entry.job.node_rank)
        lines: RankLines | None = None
        while True:
            try:
                if lines is None:
                    mine = self._setting() != "auto" or not self._stands_in
                    saved = await self._threads.run(_begin, entry, self._path, mine)
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
        """From the position of `lines`. Raises OSError if the ranks' files cannot be read."""
        entry, files = self._entry, files_of(self._root, self._entry)
        merge = log_reading.Merge(files, {file.rank: lines.offsets.get(file.rank, 0) for file in files})
        while (style := style_of(self._setting(), entry.spec)) != "off":
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
        """Writes all of it, with retries until the disk accepts it. Raises _Deleted."""
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
        """True if it has waited long enough for an ended job: while it waits, the job's own files cannot be removed,
        and that may be what frees space."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            _log.warning("logs.worker_waits", job=self._entry.job_id, error=str(error))
        waited = now - self._since
        self.trouble = (
            f"logs: {error.filename or self._path}: {error.strerror or error}; the worker log of job "
            f"{self._entry.job_id} has been waiting for {waited:.0f} s"
        )
        if waited > GIVE_UP_S and self._entry.job.state.final:
            _log.error("logs.worker_given_up", job=self._entry.job_id, error=str(error))
            return True
        await anyio.sleep(RETRY_S)
        return False

    async def _save(self, lines: RankLines, done: bool = False) -> None:
        """Stores the position from time to time; if that fails, a successor only writes a part again."""
        if done or time.monotonic() - self._saved_at >= SAVE_S:
            saved = _Saved(self._size, dict(lines.offsets), done)
            with contextlib.suppress(OSError):
                await self._threads.run(_store, self._entry, saved, self._path)
            self._saved_at = time.monotonic()


class _Deleted(OSError):
    """Raised when the job was deleted meanwhile: no file of it may remain."""


def unfinished(root: Root, rows: Iterable[Ended]) -> list[Ended]:
    """The jobs whose worker log is not complete, if it is enabled. Blocks."""
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


def _begin(entry: Entry, path: Path, mine: bool) -> _Saved | None:
    """The position to continue from; None if there is nothing to do. `mine`: a file of this name that is not of this
    job is set aside; else it is the platform's own, and stays. Raises OSError."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return state_file.read(entry.paths.worker, _Saved)
    if entry.job.state.final and time.time() - entry.job.ended_at > RECENT_S:
        return None
    if not mine and path.exists():
        _log.info("logs.worker_left", job=entry.job_id, path=str(path))
        return None
    put_aside([(path, index_of(path))])
    _store(entry, _Saved(), path)  # before the first line: from here on the file is ours
    return _Saved()


def _append(entry: Entry, path: Path, data: bytes, size: int) -> int:
    """Writes after the first `size` bytes and drops the rest; returns the new size. Raises OSError, _Deleted."""
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
    """See trust.open_log. The file belongs to the job's user, who can hold a lease on it (fcntl(2)). A waiting open()
    would block a thread that all jobs share for 45 s; this one does not wait. Raises Untrusted, OSError."""
    folder = trust.open_logs(path.parent)
    try:
        return trust.open_log(path.name, flags, folder=folder)
    finally:
        os.close(folder)


def _give(fd: int, entry: Entry, path: Path) -> None:
    """Makes the job's user the owner, as of the ranks' files."""
    for rank in entry.job.ranks[:1]:
        with contextlib.suppress(OSError):
            owner = path.with_name(rank_log_name(entry.job_id, rank.rank, rank.device)).lstat()
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
