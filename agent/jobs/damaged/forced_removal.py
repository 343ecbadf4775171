"""`muster rm --force`: removes all files of a job, in any state. Everything here blocks.

It refuses a job that has a living process: a holder of its lock, or a process on the node with the job's mark in its
environment. Finding such a process needs no journal.
"""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from muster.agent.errors import JobAlive, JobNotFound
from muster.agent.jobs import log_ownership
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.job_folder import remove_tree
from muster.agent.jobs.log_ownership import KnownJob, Owner
from muster.probes.kernel import marks, process
from muster.probes.kernel.process import Stat
from muster.supervisors.launch import environment
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import AlreadySupervised
from muster.supervisors.system import cgroups, lock


def living(root: Root, job_id: str) -> list[Stat]:
    """Processes of a job with this id under this root that have not ended."""
    mark = marks.mark(marks.NONCE, environment.nonce_prefix(root, job_id))
    return [stat for pid, stat in process.all_stats().items() if not stat.ended and process.environ_begins(pid, mark)]


def refuse_living(root: Root, job_id: str) -> None:
    """Raises JobAlive if a supervisor has the job, or a process of it lives."""
    with _locked(root, job_id, ended=False):
        pass


def remove(root: Root, job_id: str, entry: Entry | None, keep_logs: bool) -> list[str]:
    """Removes a job's folder, or what else is in its place, and, unless `keep_logs`, its log files. Returns a sentence
    about each thing that could not be removed. `entry`: the job, as far as it is known.

    Raises JobAlive, JobNotFound, and OSError if it can remove nothing; the folder then still exists.
    """
    if not job_id or job_id.startswith(".") or "/" in job_id:
        raise JobNotFound(job_id)
    path = root.jobs / job_id
    if entry is None and not (path.is_symlink() or path.exists()):
        raise JobNotFound(job_id)
    with _locked(root, job_id, ended=entry is None or entry.job.state.final):
        left = [] if keep_logs else _remove_logs(root, _owner(job_id, entry))
        aside = root.jobs / f".{job_id[:128]}.{secrets.token_hex(4)}"
        with contextlib.suppress(FileNotFoundError):  # somebody else removed it, and the daemon still listed it
            path.rename(aside)
        if aside.is_dir() and not aside.is_symlink():
            if trouble := remove_tree(aside):
                left.append(trouble)
        else:
            aside.unlink(missing_ok=True)
        cgroups.remove_left(root, job_id)
    return left


@contextlib.contextmanager
def _locked(root: Root, job_id: str, *, ended: bool) -> Iterator[None]:
    """Holds the job's lock if it can be opened. Raises JobAlive."""
    paths = root.job(job_id)
    held = None
    if paths.folder.is_dir() and not paths.folder.is_symlink():
        try:
            held = lock.take(paths.lock, paths.folder)
        except AlreadySupervised:
            raise JobAlive(job_id, _whose(lock.holder(paths.lock)), ended) from None
        except OSError:
            pass  # nobody can hold a lock that cannot be opened; the processes decide
    try:
        if found := living(root, job_id):
            raise JobAlive(job_id, process.names(found), ended)
        yield
    finally:
        if held is not None:
            held.close()


def _whose(pid: int) -> str:
    stat = process.read_stat(pid) if pid else None
    return process.names([stat]) if stat is not None else "its supervisor"


def _owner(job_id: str, entry: Entry | None) -> Owner:
    if entry is not None:
        return log_ownership.owner(entry)
    return KnownJob(job_id, 0, None, (job_id,))


def _remove_logs(root: Root, owner: Owner) -> list[str]:
    left: list[str] = []
    for _ in range(2):  # a segment that was compressed meanwhile has another name
        left = []
        try:
            files = log_ownership.of_job(root.log, owner)
        except OSError as error:
            return [f"{error.filename or root.log}: cannot list log files: {error.strerror}"]
        for path in files.paths:
            left += _unlinked(path)
    with contextlib.suppress(OSError):  # it was listed just now
        left += log_ownership.remove_obstacles(root.log, owner)
    for folder in files.folders:
        if folder.name == owner.job_id and (trouble := remove_tree(folder)):
            left.append(trouble)
    return left


def _unlinked(path: Path) -> list[str]:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return [f"{path}: cannot remove it: {error.strerror}"]
    return []
