"""A job's folder: created completely or not at all, reclaimed, removed. Everything here blocks."""

import contextlib
import errno
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import structlog

from muster.agent.errors import JobNotEnded, NoRoom
from muster.agent.jobs import log_ownership
from muster.agent.jobs.entry import Entry, Told, load
from muster.agent.link.holds import Holds
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.job import stop_order
from muster.supervisors.model import journal
from muster.supervisors.model.job_logs import job_line, job_log_files, logs_of
from muster.supervisors.model.journal import Contents, Record, Writer
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.replay import replay
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.spec_fields import JOB_ID
from muster.supervisors.output.gaps import remove_counts
from muster.supervisors.output.log_segments import put_aside
from muster.supervisors.output.time_index import INDEX_RECORD
from muster.supervisors.paths import JobPaths, Root
from muster.supervisors.supervision_errors import AlreadySupervised, remedy
from muster.supervisors.system import lock as job_lock
from muster.supervisors.system import trust

_log = structlog.get_logger(__name__)


class Creation:
    """Whether a job comes into being: decided once, by the thread that makes its folder or by who gives it up before.
    For every thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._decided: bool | None = None

    def commit(self) -> bool:
        """Whether the folder may get the job's name; from here on it cannot be given up."""
        return self._decide(True)

    def give_up(self) -> bool:
        """Whether there will be no such job."""
        return not self._decide(False)

    def _decide(self, wish: bool) -> bool:
        with self._lock:
            if self._decided is None:
                self._decided = wish
            return self._decided


@dataclass(slots=True)
class HeldJob:
    """A job without a supervisor so far: the daemon has its lock and writes its journal."""

    lock: job_lock.Lock
    writer: Writer
    #: Of a job that was created just now; empty where its FIFOs could not be made.
    holds: Holds | None = None
    #: A supervisor may have it already.
    released: bool = False

    def close(self) -> None:
        """Releases the job: from here on only a supervisor writes. Its FIFOs stay held."""
        self.released = True
        self.writer.close()
        self.lock.close()


def tidy(root: Root, paths: JobPaths) -> None:
    """Removes files that a supervisor would have removed: it was killed right after its job's last record, or before
    the job was stopped without a supervisor. Raises OSError."""
    stop_order.remove(root.stop_order(paths.folder.name))
    for path in [*paths.controls, *paths.folder.glob("*.fifo"), paths.unborn, paths.exports]:
        path.unlink(missing_ok=True)
    remove_counts(paths)


def load_all(root: Root, job_ids: Iterable[str]) -> list[tuple[Entry, Told]]:
    """These jobs with all their events; see entry.load. Also removes what supervisors of ended jobs could not
    remove."""
    found = [load(job_id, root.job(job_id)) for job_id in job_ids]
    for entry, _ in found:
        if entry.job.state.final and not entry.damaged:
            with contextlib.suppress(OSError):
                tidy(root, entry.paths)
    return found


def set_logs_aside(root: Root, job_id: str, job: Job) -> None:
    """Renames files with the names that this job's logs will have: they are output of an earlier job with this name
    whose record was removed. Raises OSError."""
    put_aside(_files(root, job_id, job))


def _files(root: Root, job_id: str, job: Job) -> Iterator[tuple[Path, Path]]:
    """Log and time index of each rank and each service, and of the job itself."""
    for log in logs_of(root, job_id, job):
        yield log.path, log.index


def append_log(log: Path, index: Path, lines: Sequence[str]) -> None:
    """Appends muster's lines, and their time, to a job's log, which nobody else writes yet. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    folder = trust.open_logs(log.parent)
    try:
        with open(trust.open_log(log.name, flags, folder=folder)[0], "wb") as file:
            start = os.fstat(file.fileno()).st_size
            file.write("".join(job_line(line) for line in lines).encode("utf-8", "replace"))
        with contextlib.suppress(OSError), open(trust.open_log(index.name, flags, folder=folder)[0], "wb") as file:
            file.write(INDEX_RECORD.pack(start, time.time_ns()))
    finally:
        os.close(folder)


def say_in_log(root: Root, job_id: str, job: Job, lines: Sequence[str]) -> None:
    """As `append_log`, best effort: the journal has the facts."""
    try:
        append_log(*job_log_files(root, job_id, job.node_rank), lines)
    except OSError as error:
        _log.warning("job.log_not_written", job=job_id, error=str(error))


def create(
    root: Root,
    spec: JobSpec,
    accepted: Record,
    seccomp: bytes = b"",
    more: Sequence[Record] = (),
    *,
    new_name: bool = False,
    begun: Callable[[str], object] | None = None,
    creation: Creation | None = None,
) -> HeldJob:
    """Creates a job's folder with the record `accepted` and those that follow it at once, and the filter of its system
    calls if it has one, on disk and locked. `new_name`: no other job has ever had this id. `begun` is called
    with the name of the folder once that is locked; with it the job is released as soon as it is on disk, for nothing
    comes before its supervisor. Raises NoRoom, and leaves nothing behind; also if the `creation` was given up.

    It is created under another name first, so a job exists with all its files or not at all.
    """
    temporary = JobPaths(root.jobs / f".{spec.job_id}.{secrets.token_hex(4)}")
    name = temporary.folder.name
    if not new_name:  # left by an earlier job with this name that was removed by force
        stop_order.remove(root.stop_order(spec.job_id))
        remove_counts(root.job(spec.job_id))
    held: HeldJob | None = None
    try:
        with contextlib.ExitStack() as opened:
            jobs = _opened(opened, root.jobs)
            try:
                os.mkdir(name, 0o700, dir_fd=jobs)
                folder = _opened(opened, name, jobs)
                os.fchmod(folder, 0o711)  # whatever the umask is: the job's user must reach the working folder
                lock = job_lock.take(temporary.lock, temporary.folder)
                try:
                    held = HeldJob(lock, Writer(temporary.journal, Contents([], 0, torn=False)))
                except OSError:
                    lock.close()
                    raise
                if begun is not None:
                    begun(name)
                files = [temporary.spec, temporary.journal, temporary.folder]
                _write(temporary.spec, spec.to_json().encode(), folder)
                if seccomp:
                    _write(temporary.seccomp, seccomp, folder)
                    files.append(temporary.seccomp)
                held.writer.reserve(spec.local_ranks)
                held.writer.append([accepted, *more], sync=False)
                here = replay([{"n": 0} | accepted])
                if not new_name:  # a look at all files in the log folder
                    set_logs_aside(root, spec.job_id, here)
                if not spec.rank_table:  # which says what ranks there are
                    held.holds = _held_fifos(root.job(spec.job_id), temporary, here)
                _sync(files)
                if creation is not None and not creation.commit():
                    raise OSError(errno.ETIMEDOUT, "the disk answered too late")
                os.rename(name, spec.job_id, src_dir_fd=jobs, dst_dir_fd=jobs)
                name = spec.job_id
                os.fsync(jobs)
            except OSError:
                # Before its lock: a supervisor may wait for that, and must not find the folder under the job's name.
                shutil.rmtree(name, ignore_errors=True, dir_fd=jobs)
                if held is not None:
                    held.close()
                    if held.holds is not None:
                        held.holds.release()
                raise
    except OSError as error:
        # A name without a folder is one of the job's own files.
        where = error.filename if os.path.isabs(os.fsdecode(error.filename or "")) else root.jobs
        raise NoRoom(
            f"{where}: cannot record the job: {error.strerror}; nothing was started"
            + (f": {what}, then try again" if (what := remedy(error)) else "")
        ) from error
    if begun is not None:
        held.close()
    return held


def _held_fifos(paths: JobPaths, now: JobPaths, job: Job) -> Holds:
    """The FIFOs of a job whose folder is elsewhere `now`. Without free descriptors the job is created all the same: its
    FIFOs are made later."""
    holds = Holds(paths)
    with contextlib.suppress(OSError):
        holds.take([one.rank for one in (*job.ranks, *job.services)], create=True, at=now)
    return holds


def reclaim(paths: JobPaths) -> HeldJob | None:
    """Reclaims a job without a supervisor that never had a process; None for others.

    Raises JournalDamaged, IllegalTransition, OSError.
    """
    try:
        lock = job_lock.take(paths.lock, paths.folder)
    except AlreadySupervised:
        return None
    try:
        contents = journal.read(paths.journal)
        job = replay(contents.records)
        if job.state.final or (job.supervisor_pid and job.has_run):
            lock.close()
            return None
        return HeldJob(lock, Writer(paths.journal, contents))
    except BaseException:
        lock.close()
        raise


def note(paths: JobPaths, due: Callable[[Job], list[Record]]) -> None:
    """Records what is `due` according to the journal, in place of a supervisor; does nothing if one lives. Raises
    JournalDamaged, IllegalTransition, OSError."""
    try:
        lock = job_lock.take(paths.lock, paths.folder)
    except AlreadySupervised:
        return
    writer: Writer | None = None
    try:
        contents = journal.read(paths.journal)
        job, now = replay(contents.records), time.time()
        records = [{"t": now} | record for record in due(job)]
        if records and not job.state.final:
            writer = Writer(paths.journal, contents)
            writer.append(records)
    finally:
        if writer is not None:
            writer.close()
        lock.close()


def remove(root: Root, entry: Entry, keep_logs: bool) -> str:
    """Removes a job's folder and, unless `keep_logs`, its log files. Returns a sentence about what remains.

    The log files are removed first: if the daemon is killed meanwhile, the job still exists and can be deleted again.
    Raises JobNotEnded for a job with a damaged journal whose supervisor lives; OSError if the job still exists.
    """
    if entry.damaged and job_lock.holder(entry.paths.lock):
        raise JobNotEnded(entry.job_id)
    if not keep_logs:
        for _ in range(2):  # a segment that was compressed meanwhile has another name
            files = log_ownership.of_job(root.log, log_ownership.owner(entry))
            for path in files.paths:
                path.unlink(missing_ok=True)
        # A folder named by the platform (MA_VJ_NAME) may belong to other jobs as well, and stays.
        with contextlib.suppress(OSError):
            own = (entry.job_id, root.own_job_logs(entry.job_id).name)
            log_ownership.remove_folders(path for path in files.folders if path.name in own)
    left: list[str] = []
    if entry.job.hardening.private_tmp:  # outputs were kept, or its supervisor was killed right after the last record
        from muster.supervisors.launch.hardening import private_tmp  # few jobs have one

        left = [remove_tree(Path(path)) for path in private_tmp.existing(entry.job.hardening.tmp_name(entry.job_id))]
    gone = root.jobs / f".{entry.job_id}.{secrets.token_hex(4)}"
    with contextlib.ExitStack() as opened:
        jobs = _opened(opened, root.jobs)
        os.rename(entry.job_id, gone.name, src_dir_fd=jobs, dst_dir_fd=jobs)
    return "; ".join(filter(None, (*left, remove_tree(gone))))


def remove_tree(folder: Path) -> str:
    """Removes as much as possible, whatever a job's user has done to it; returns a sentence about what could not be
    removed, or ""."""
    try:
        log_ownership.remove_folders([folder])
    except OSError as error:
        return f"{folder}: cannot remove it: {error.strerror}"
    return ""


def folders(root: Root) -> tuple[list[str], list[Path], list[Path]]:
    """The contents of the folder of jobs: ids, incomplete folders, and anything else."""
    ids, leftovers, strange = [], [], []
    with os.scandir(root.jobs) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                leftovers.append(root.jobs / entry.name)
            elif JOB_ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                ids.append(entry.name)
            else:
                strange.append(root.jobs / entry.name)
    return sorted(ids), sorted(leftovers), sorted(strange)


def _opened(opened: contextlib.ExitStack, folder: Path | str, within: int | None = None) -> int:
    """A descriptor of one of muster's folders, closed with `opened`. Raises OSError."""
    flags = os.O_RDONLY if within is None else os.O_RDONLY | os.O_NOFOLLOW
    fd = trust.open_folder(folder, folder=within, flags=flags)
    opened.callback(os.close, fd)
    return fd


def _write(path: Path, data: bytes, folder: int) -> None:
    fd = trust.open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=folder)
    with open(fd, "wb") as file:
        file.write(data)


def _sync(paths: list[Path]) -> None:
    """One after the other: the first takes the others' metadata along, and threads for them would take longer to begin
    than they need. Raises OSError."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
