"""Which rank did not come to a collective, from two answers of NCCL's RAS.

RAS counts what was launched, for five kinds of collectives; not what completed, no sends and receives, and nothing that
a CUDA graph replays (src/include/nccl_common.h, src/plugin/profiler.cc). Ray's detector has the same rule: counts that
differ between ranks, and of which none moves (python/ray/train/v2/_internal/callbacks/nv_hang_detector.py).
"""

from collections.abc import Mapping, Sequence

from muster.probes.kernel import number_lists
from muster.probes.kernel.dataclass import dataclass
from muster.probes.library.collective_finding import (
    LibraryFinding,
    LibraryVerdict,
    StuckCollective,
    finding_of,
    shown,
)
from muster.probes.library.nccl_ras import IN_PROGRESS, WELL, RasAnswer, RasCommunicator, RasMissingRank, RasRank

#: Seconds between two answers, at least: a difference within one step is normal.
MIN_GAP_S = 5.0


def judge_answers(first: RasAnswer, second: RasAnswer, job: Mapping[int, int]) -> LibraryFinding:
    """The finding over two answers. `job`: the ranks of the job on this node, by pid as the process calls itself (NSpid
    in /proc/PID/status); ranks of a communicator are joined to them by host and pid.

    - Any count that moved, in any communicator: MOVES. So does a communicator that came or went.
    - Ranks whose count stands still below that of others did not come: ABSENT. Ranks on other nodes are named in words.
    - Ranks each of which is ahead in another kind of collective called different ones: MISMATCH.
    - Ranks that do not report, and no count that lags: UNDECIDED, their processes may be stopped.
    - Equal counts that stand still: EVEN. All ranks launched what the others did; RAS does not tell whether that
      completed, or whether the job computes, or is idle.
    """
    if second.at - first.at < MIN_GAP_S:
        reason = f"the two answers of RAS are less than {MIN_GAP_S:g} s apart"
        return LibraryFinding(LibraryVerdict.UNDECIDED, reason)
    before, after = _by_identity(first), _by_identity(second)
    if before.keys() != after.keys():
        return LibraryFinding(LibraryVerdict.MOVES, "communicators came or went between two answers of RAS")
    job_ranks = _JobRanks(job, second.local)
    changed = [one for identity, comm in after.items() for one in _moved(before[identity], comm)]
    if changed:
        moved = tuple(sorted({rank for one in changed if (rank := job_ranks.of(one)) is not None}))
        who = number_lists.ranks(moved) if moved else "ranks on other nodes"
        return LibraryFinding(
            LibraryVerdict.MOVES, f"{who} launched collectives between two answers of RAS", moved=moved
        )
    if failed := [one for comm in second.communicators for one in comm.ranks if _has_failed(one)]:
        who = ", ".join(job_ranks.text(one) for one in failed[:4])
        return LibraryFinding(LibraryVerdict.UNDECIDED, f"NCCL reports an error or an abort in {who}")
    running = [_counted(comm) for comm in second.communicators if comm.ranks and all(map(_is_running, comm.ranks))]
    if lagging := [one for one in running if one.late]:
        return finding_of(_stuck(lagging, job_ranks))
    silent = [comm for comm in second.communicators if comm.missing_ranks]
    if silent:
        who = ", ".join(dict.fromkeys(job_ranks.text(one) for comm in silent for one in comm.missing_ranks[:4]))
        return LibraryFinding(LibraryVerdict.UNDECIDED, f"RAS has no report of {who}: stopped or unreachable")
    if second.communicators and not running:
        return LibraryFinding(LibraryVerdict.UNDECIDED, "no communicator runs: each is being made or closed")
    if not any(one.counted for one in running):
        return LibraryFinding(LibraryVerdict.IDLE, "RAS has counted no collective")
    reason = (
        "all ranks launched the same collectives, and none launches more: RAS does not tell whether these completed"
    )
    return LibraryFinding(LibraryVerdict.EVEN, reason)


@dataclass(frozen=True, slots=True)
class _JobRanks:
    by_pid: Mapping[int, int]
    local: frozenset[str]

    def of(self, one: RasRank | RasMissingRank) -> int | None:
        """Its rank of the job; None for one of another node."""
        return self.by_pid.get(one.pid) if one.host in self.local else None

    def text(self, one: RasRank | RasMissingRank) -> str:
        rank = self.of(one)
        if rank is not None:
            return f"rank {rank}"
        return f"rank {one.rank} of the communicator (pid {one.pid} on {shown(one.host, 60)})"

    def split(self, found: Sequence[RasRank | RasMissingRank]) -> tuple[int, ...]:
        """Those of the job, on this node."""
        return tuple(sorted({rank for one in found if (rank := self.of(one)) is not None}))


def _by_identity(answer: RasAnswer) -> dict[tuple[str, str], RasCommunicator]:
    return {comm.identity: comm for comm in answer.communicators}


def _moved(before: RasCommunicator, after: RasCommunicator) -> list[RasRank]:
    """Ranks with other counts than before; one that reports in one answer only has not shown that it moves."""
    counts = {one.rank: one.collective_counts for one in before.ranks}
    return [one for one in after.ranks if one.rank in counts and counts[one.rank] != one.collective_counts]


def _has_failed(one: RasRank) -> bool:
    return one.status.async_error not in (WELL, IN_PROGRESS) or one.status.abort_flag


def _is_running(one: RasRank) -> bool:
    status = one.status
    return status.init_state == WELL and not status.finalize_called and not status.destroy_flag


@dataclass(frozen=True, slots=True)
class _Counted:
    """A communicator by its counts. `late`: the ranks that are behind others, each with the kinds of collectives, and
    the number that comes next; `ahead`: those that are behind nobody; `counted`: whether there was any collective."""

    comm: RasCommunicator
    late: tuple[tuple[RasRank, tuple[str, ...]], ...]
    ahead: tuple[RasRank, ...]
    number: int
    counted: bool


def _counted(comm: RasCommunicator) -> _Counted:
    most: dict[str, int] = {}
    for one in comm.ranks:
        for kind, count in one.collective_counts.items():
            most[kind] = max(most.get(kind, 0), count)
    late: list[tuple[RasRank, tuple[str, ...]]] = []
    ahead: list[RasRank] = []
    least: list[int] = []
    for one in comm.ranks:
        kinds = tuple(kind for kind, count in most.items() if one.collective_counts.get(kind, 0) < count)
        least += [one.collective_counts.get(kind, 0) for kind in kinds]
        if kinds:
            late.append((one, kinds))
        else:
            ahead.append(one)
    return _Counted(comm, tuple(late), tuple(ahead), 1 + min(least, default=0), any(most.values()))


def _stuck(lagging: Sequence[_Counted], job: _JobRanks) -> list[StuckCollective]:
    waiting = {_device(one) for counted in lagging for one in counted.ahead}
    found = []
    for counted in lagging:
        comm, late = counted.comm, [one for one, _ in counted.late]
        kinds = sorted({kind for _, behind in counted.late for kind in behind})
        group = f"{shown(comm.hash, 40)} of {comm.size}"
        unknown = job.split(comm.missing_ranks)
        if not counted.ahead:
            ahead = {kind: job.split([one for one, behind in counted.late if kind not in behind]) for kind in kinds}
            calls = tuple((shown(kind, 40), ranks) for kind, ranks in ahead.items())
            found.append(StuckCollective(group, "", counted.number, job.split(late), (), unknown, calls=calls))
            continue
        absent = job.split(late)
        away = [one for one in late if job.of(one) is None]
        # As with ranks of this node: one that waits in another communicator is not to blame, if somebody else is.
        elsewhere = tuple(job.text(one) for one in away if _device(one) not in waiting or not absent)
        inside = tuple(rank for rank in job.split(counted.ahead) if rank not in absent)
        call = " or ".join(shown(kind, 40) for kind in kinds)
        found.append(StuckCollective(group, call, counted.number, inside, absent, unknown, elsewhere))
    return found


def _device(one: RasRank) -> tuple[str, int, int]:
    """A process may have several ranks, of a card each."""
    return one.host, one.pid, one.cuda_dev
