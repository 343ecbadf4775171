"""The logs of a job: those of its ranks, its own, and those of its services; their FIFOs and files, by number.

The number is the rank's, JOB, or that of a service (states.py).
"""

import time
from collections.abc import Iterator
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.states import JOB, SERVICE, service_number
from muster.supervisors.paths import JobPaths, Root, index_of

#: How a line of muster's own begins in the log of a rank.
OWN_LINE = "[muster: "


@dataclass(frozen=True, slots=True)
class LogFiles:
    """File and time index of one log."""

    number: int
    path: Path
    index: Path


def job_log_files(root: Root, job_id: str, node_rank: int) -> tuple[Path, Path]:
    """File and time index of the job's own log."""
    return root.job_log(job_id, node_rank), root.job_index(job_id, node_rank)


def log_of(root: Root, job_id: str, job: Job, rank: Rank) -> LogFiles:
    """Of a rank or a service."""
    if rank.rank <= SERVICE:
        path = root.service_log(job_id, job.node_rank, rank.local_rank)
        return LogFiles(rank.rank, path, index_of(path))
    path = root.rank_log(job_id, rank.rank, rank.device)
    return LogFiles(rank.rank, path, index_of(path))


def logs_of(root: Root, job_id: str, job: Job) -> Iterator[LogFiles]:
    """All, in the order of their places in the counts (gaps.py)."""
    for rank in job.ranks:
        yield log_of(root, job_id, job, rank)
    yield LogFiles(JOB, *job_log_files(root, job_id, job.node_rank))
    for service in job.services:
        yield log_of(root, job_id, job, service)


def slot_of(job: Job, rank: Rank) -> int:
    """The place of a rank or a service in the counts: behind the ranks comes the job's own log, then the services."""
    return len(job.ranks) + 1 + rank.local_rank if rank.rank <= SERVICE else rank.local_rank


def fifo_of(paths: JobPaths, number: int) -> Path:
    """The FIFO of a rank, a service or the job."""
    if number == JOB:
        return paths.job_fifo
    return paths.fifo(number) if number > SERVICE else paths.service_fifo(service_number(number))


def stamp(at: float) -> str:
    """The time at the begin of a line, here, from seconds since the epoch."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)) + f".{int(at % 1 * 1000):03d}"


def job_line(text: str) -> str:
    """A line of the job's log by muster itself; a break of the line in it would pass for another's output."""
    return f"{stamp(time.time())} [muster] {' '.join(text.splitlines())}\n"


def is_ours(line: str) -> bool:
    """Whether a line of the job's log is muster's own."""
    return line[23:].startswith(" [muster] ")
