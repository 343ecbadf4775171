"""The index entry of an ended job: the part of it that stays in memory."""

import functools
import sys
from collections.abc import Sequence
from typing import Self

from muster.agent.jobs.entry import Entry
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.launch.modes import modelarts
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import State


@dataclass(slots=True, eq=False)
class Ended:
    """An ended job in the index. Times in seconds since the epoch; `ranks`: numbers of its ranks on this node, None if
    unknown; `folders`: names of folders in the log folder that belong to the job's user."""

    job_id: str
    accepted_at: float
    ended_at: float
    state: State
    node_rank: int
    ranks: Sequence[int] | None
    folders: tuple[str, ...]
    #: Why its record on disk cannot be trusted; empty: it can.
    damaged: str = ""
    #: Whether the program of the setting `logs.upload` has taken all its log files.
    uploaded: bool = False
    #: The user that its spec names; empty: none, and where the spec is not known.
    user: str = ""
    #: Whether it has a worker log without being asked (`modelarts.has_worker_log`).
    by_itself: bool = False
    #: Whether it has outputs that could not be delivered.
    outputs_kept: bool = False
    #: Whether it had attempts before its last one.
    retried: bool = False

    @property
    def key(self) -> tuple[float, str]:
        """The sort key of lists."""
        return self.accepted_at, self.job_id

    @property
    def since(self) -> float:
        """When it ended; if damage hides that, when it was accepted or its folder was last changed."""
        return self.ended_at or self.accepted_at

    @classmethod
    def of(cls, entry: Entry) -> Self:
        """The index entry of a job that was read completely."""
        job = entry.job
        ranks = None if entry.damaged else numbers_of([rank.rank for rank in job.ranks])
        folders = folders_of(entry.job_id, entry.spec)
        user = "" if entry.damaged else sys.intern(entry.spec.user)
        row = (entry.job_id, job.accepted_at, job.ended_at, job.state, job.node_rank, ranks, folders)
        return cls(
            *row,
            damaged=entry.damaged,
            user=user,
            by_itself=not entry.damaged and modelarts.has_worker_log(entry.spec),
            outputs_kept=job.outputs_kept,
            retried=bool(job.past),
        )


def numbers_of(ranks: Sequence[int]) -> Sequence[int]:
    """Numbers of ranks in little memory: consecutive ranks become a range that jobs share."""
    if len(ranks) and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return _range(ranks[0], len(ranks))
    return tuple(ranks)


@functools.lru_cache(maxsize=256)
def _range(first: int, count: int) -> range:
    return range(first, first + count)


def folders_of(job_id: str, spec: JobSpec) -> tuple[str, ...]:
    """Names of folders among the logs that a job's user may write to."""
    name = modelarts.job_name(job_id, spec.env)
    return (job_id,) if name == job_id else (job_id, name)
