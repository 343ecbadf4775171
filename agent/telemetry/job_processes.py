"""The root processes of a job, and the cards of its ranks: the facts that telemetry needs about a job."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from muster.agent.jobs.entry import Entry
from muster.agent.telemetry.history.history_rows import SeriesKey
from muster.agent.telemetry.job_usage import RankPlace
from muster.probes.kernel.trees import JobProcess, JobRoots, ProcessRole, RootProcess
from muster.supervisors.launch import job_services
from muster.supervisors.model.card_identity import numbers_now
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import Boot

#: Replaces the number of a card that the driver does not show.
_NOT_THERE = -1


def key(entry: Entry) -> SeriesKey:
    """Its history."""
    return SeriesKey("job", entry.job_id, entry.job.accepted_at)


def roots(entry: Entry, shown: Mapping[int, str] = MappingProxyType({})) -> JobRoots:
    """The job's processes that muster started and has not reaped, and the process that adopts its orphans. `shown`:
    UUIDs of the node's cards, by number; they give the present numbers of the job's cards for queries of the driver."""
    job = entry.job
    now = numbers_now(job, job.cards, shown)
    return JobRoots(
        entry.job_id,
        tuple(
            RootProcess(one.rank, one.pid, one.start, one.launches or one.role == job_services.SSHD)
            for one in _started(job)
        ),
        job.supervisor_pid,
        tuple(now.get(card, _NOT_THERE) for card in job.cards),
        _first_rank(entry),
    )


def begun(entry: Entry) -> list[tuple[int, int]]:
    """The same processes by pid and start time: for who asks each second whether there are others."""
    return [(one.pid, one.start) for one in _started(entry.job)]


def _started(job: Job) -> list[Rank]:
    if not job.spawned:
        return []
    # mpirun on node 0 starts the ranks of the other nodes below these nodes' sshd.
    doors = [one for one in job.services if one.role == job_services.SSHD]
    return [one for one in (*job.ranks, *doors) if one.pid]


def places(entry: Entry) -> list[RankPlace]:
    """The ranks that muster itself started."""
    ranks = entry.job.ranks if entry.job.spawned else []
    return [RankPlace(rank.rank, rank.device, rank.pid) for rank in ranks if not rank.launches]


def device(entry: Entry, local: int | None) -> int:
    """The device of a rank that a launcher started, by its local number `local` on this node."""
    cards = entry.job.cards
    return cards[local] if local is not None and local < len(cards) else local or 0


def rank_of_card(entry: Entry, place: int) -> int | None:
    """The rank, over all nodes, that has the job's card at this place of its list."""
    ranks = entry.job.ranks
    if entry.spec.boot == Boot.RANKS:
        return ranks[place].rank if place < len(ranks) else None
    return _first_rank(entry) + place


def nodes_told(processes: Sequence[JobProcess], cards: int) -> int:
    """Nodes over which a launcher of the job's own has spread its ranks, as these say; 1 where none says more. `cards`:
    of the job on this node."""
    ranks = [proc for proc in processes if proc.role is ProcessRole.RANK and proc.world]
    here = max((proc.local_world or max(len(ranks), cards) for proc in ranks), default=1)
    return max((math.ceil((proc.world or 1) / max(1, here)) for proc in ranks), default=1)


def _first_rank(entry: Entry) -> int:
    """Of this node, over all nodes. Launchers number node by node."""
    job = entry.job
    if entry.spec.boot == Boot.RANKS:
        return job.ranks[0].rank if job.ranks else 0
    return job.node_rank * job.local_ranks
