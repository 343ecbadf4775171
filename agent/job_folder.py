"""A job's folder: made whole or not at all, taken up again, removed. Everything here blocks."""

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from agent.entry import Entry
from agent.errors import JobNotEnded, NoRoom
from agent.state_folder import sync_folder
from supervisors import journal, supervisor
from supervisors.errors import AlreadySupervised
from supervisors.journal import Contents, Record, Writer
from supervisors.lifecycle import Job, place, replay
from supervisors.output import job_line, job_log_files, set_aside
from supervisors.paths import JobPaths, Root
from supervisors.spec import JOB_ID, JobSpec


@dataclass(slots=True)
class Held:
    """A job that no supervisor has yet: the daemon has its lock, and writes its journal."""

    lock: int
    writer: Writer

    def close(self) -> None:
        """Lets go: from here on only a supervisor writes."""
        self.writer.close()
        os.close(self.lock)


def tidy(paths: JobPaths) -> None:
    """Removes what a supervisor that was killed right behind its job's last record could not. Raises OSError."""
    paths.control.unlink(missing_ok=True)


def set_logs_aside(root: Root, job_id: str, job: Job) -> None:
    """Files with the names that this job's will have are output of an earlier job of that name whose record was
    removed: they are kept under other names. Raises OSError."""
    for log, index in _files(root, job_id, job):
        set_aside(log, index)


def _files(root: Root, job_id: str, job: Job) -> Iterator[tuple[Path, Path]]:
    """Log and time index of each rank, and of the job itself."""
    for rank in job.ranks:
        names = (job_id, rank.rank, rank.device)
        yield root.rank_log(*names), root.rank_index(*names)
    yield job_log_files(root, job_id, job.node_rank)


def append_log(log: Path, lines: Sequence[str]) -> None:
    """Lines of muster's own behind a job's log, which nobody else writes yet. Raises OSError."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    with open(fd, "wb") as file:
        file.write("".join(job_line(line) for line in lines).encode("utf-8", "replace"))


def create(root: Root, spec: JobSpec, accepted: Record) -> Held:
    """Makes a job's folder with the record `accepted`, on disk and locked. Raises NoRoom, with nothing left behind.

    It is made under another name: a job is there with all its files, or it is not there.
    """
    temporary = JobPaths(root.jobs / f".{spec.job_id}.{secrets.token_hex(4)}")
    folder = temporary.folder
    held: Held | None = None
    try:
        folder.mkdir()
        folder.chmod(0o711)  # whatever the umask is: the job's user passes through it to the working folder
        lock = supervisor.take_lock(temporary.lock)
        try:
            held = Held(lock, Writer(temporary.journal, Contents([], 0, torn=False)))
        except OSError:
            os.close(lock)
            raise
        _write(temporary.spec, spec.to_json().encode())
        held.writer.reserve(spec.local_ranks)
        held.writer.append([accepted], sync=False)
        here = Job()
        place(here, accepted)
        set_logs_aside(root, spec.job_id, here)
        _sync([temporary.spec, temporary.journal, folder])
        folder = folder.rename(root.job(spec.job_id).folder)
        sync_folder(root.jobs)
    except OSError as error:
        if held is not None:
            held.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise NoRoom(
            f"{root.jobs}: the job cannot be recorded: {error.strerror}; nothing was started. Make room, then try again"
        ) from error
    return held


def reclaim(paths: JobPaths) -> Held | None:
    """Takes a job up whose daemon ended before a supervisor had it; None where a supervisor has or had it.

    Raises JournalDamaged, IllegalTransition, OSError.
    """
    try:
        lock = supervisor.take_lock(paths.lock)
    except AlreadySupervised:
        return None
    try:
        contents = journal.read(paths.journal)
        job = replay(contents.records)
        if job.supervisor_pid or job.state.final:
            os.close(lock)
            return None
        return Held(lock, Writer(paths.journal, contents))
    except BaseException:
        os.close(lock)
        raise


def remove(root: Root, entry: Entry, keep_logs: bool) -> str:
    """Removes a job's folder and, unless `keep_logs`, its log files. Returns a sentence about what is left.

    The log files go first: should the daemon be killed meanwhile, the job is still there and can be deleted again.
    Raises JobNotEnded for one whose journal is damaged while its supervisor lives, OSError with the job still there.
    """
    if entry.damaged and supervisor.lock_holder(entry.paths.lock):
        raise JobNotEnded(entry.job_id)
    if not keep_logs:
        for path in _logs(root, entry):
            path.unlink(missing_ok=True)
        # Of the job's user; rmtree follows no link that this user puts there meanwhile. One that the platform's name of
        # the job (MA_VJ_NAME) gave another name may be other jobs' as well, and stays.
        shutil.rmtree(root.job_logs(entry.job_id), ignore_errors=True)
    gone = root.jobs / f".{entry.job_id}.{secrets.token_hex(4)}"
    entry.paths.folder.rename(gone)
    return remove_tree(gone)


def remove_tree(folder: Path) -> str:
    """Removes as much as can be; returns a sentence about the first thing that could not, or nothing."""
    trouble = ""

    def failed(_: object, path: str, info: tuple[type[BaseException], BaseException, object]) -> None:
        nonlocal trouble
        trouble = trouble or f"{path}: cannot be removed: {info[1]}"

    shutil.rmtree(folder, onerror=failed)
    return trouble


def folders(root: Root) -> tuple[list[str], list[Path], list[Path]]:
    """What is in the folder of jobs: their ids, half-made or half-removed ones, and what does not belong there."""
    ids, leftovers, strange = [], [], []
    for path in sorted(root.jobs.iterdir()):
        if path.name.startswith("."):
            leftovers.append(path)
        elif JOB_ID.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            ids.append(path.name)
        else:
            strange.append(path)
    return ids, leftovers, strange


def _logs(root: Root, entry: Entry) -> list[Path]:
    if not entry.damaged:
        return [path for pair in _files(root, entry.job_id, entry.job) for path in pair]
    # Its ranks cannot be known: whatever has a name that they can have.
    pattern = re.compile(re.escape(entry.job_id) + r"-(proc-rank-\d+-device-\d+\.(txt|idx)|muster-\d+\.(log|idx))")
    return [path for path in root.log.iterdir() if pattern.fullmatch(path.name)]


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        file.write(data)


def _sync(paths: list[Path]) -> None:
    """All at the same time, which takes a file system about as long as one: a start waits for it. Raises OSError."""
    with ThreadPoolExecutor(len(paths)) as threads:
        list(threads.map(_sync_one, paths))


def _sync_one(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
