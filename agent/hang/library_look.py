"""What the communication library of a suspected job says: ranks inside a collective, and ranks that did not come.

Nothing is asked of a job that is not suspected anyway: an answer of NCCL's RAS has crashed jobs (versions before 2.29.2
are not asked), and each dump of the flight recorder costs the job a moment.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence

import anyio
import structlog

from muster.probes import library
from muster.probes.calls import watched
from muster.probes.kernel import process
from muster.probes.kernel.dataclass import dataclass
from muster.probes.library import DumpSource, LibraryFinding, LibraryVerdict, RasTarget, RasTrouble
from muster.probes.stacks import StackTarget
from muster.probes.waits import LibraryWait

#: Seconds between the two looks of which a finding is made, and that each of them may take.
APART_S, LOOK_S = 10.0, 15.0
#: Processes whose NCCL is looked at: one that answers is enough.
_ASKED = 3
#: Seconds that reading /proc of all ranks may take.
_READ_S = 10.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank's process, its owner, and what it found in its environment when it started."""

    target: StackTarget
    uid: int
    environ: tuple[bytes, ...]


async def look(job_id: str, targets: Sequence[StackTarget], world: int, t: float, since: float) -> LibraryWait | None:
    """Looks twice; None where no library answers, or where it says nothing of where ranks wait. `targets`: the ranks'
    own processes; `world`: ranks of the job on all nodes; `t`: now, and `since`: the begin of the silence, in seconds
    since the epoch. Raises nothing but cancellation."""
    ranks: list[_Rank] = []
    with anyio.move_on_after(_READ_S):
        try:
            ranks = await watched.call(f"the environments of job {job_id}", lambda: _ranks(targets))
        except (OSError, watched.StillHanging) as error:
            _log.info("library.unread", job=job_id, error=str(error))
    if not ranks:
        return None
    found = await _by_flight_recorder(ranks, world)
    if found is None or found.verdict is LibraryVerdict.UNDECIDED:
        pids = await library.inner_pids([rank.target.pid for rank in ranks])
        found = await _by_hccl(ranks, pids, since, t) or await _by_ras(job_id, ranks, pids) or found
    if found is None:
        return None
    _log.info("library.said", job=job_id, verdict=str(found.verdict), text=found.reason)
    if not found.stands_still:
        return LibraryWait(t, found.reason)
    calls = {rank: one.call.rpartition(":")[2] for one in reversed(found.stuck) for rank in one.inside}
    return LibraryWait(t, found.reason, tuple(sorted(calls.items())), found.culprits)


def _ranks(targets: Sequence[StackTarget]) -> list[_Rank]:
    """Those that live and may be read. Blocks."""
    found: dict[int, _Rank] = {}
    for target in targets:
        environ, now = process.environ(target.pid), process.read_stat(target.pid)
        if environ and now is not None and now.start == target.start:
            with contextlib.suppress(FileNotFoundError):
                found.setdefault(target.rank, _Rank(target, os.stat(f"/proc/{target.pid}").st_uid, tuple(environ)))
    return list(found.values())


async def _by_flight_recorder(ranks: Sequence[_Rank], world: int) -> LibraryFinding | None:
    """None where no rank can be asked."""
    sources = [library.dump_source(r.target.rank, r.target.pid, r.target.start, r.uid, r.environ) for r in ranks]
    asked: list[DumpSource] = [source for source in sources if source.pipe]
    if not asked:
        return None
    first = await library.take_dumps(asked, LOOK_S)
    if not first.dumps:
        return None
    await anyio.sleep(APART_S)
    second = await library.take_dumps(asked, LOOK_S)
    return library.find_laggards(first.dumps, second.dumps, range(world))


async def _by_hccl(ranks: Sequence[_Rank], pids: Mapping[int, int], since: float, now: float) -> LibraryFinding | None:
    """None where HCCL has logged nothing of this silence."""
    sources = [
        library.plog_source(r.target.rank, r.target.pid, r.target.start, r.uid, pids[r.target.pid], r.environ)
        for r in ranks
        if r.target.pid in pids
    ]
    return library.judge_heartbeats(await library.read_heartbeats(sources, LOOK_S), since, now)


async def _by_ras(job_id: str, ranks: Sequence[_Rank], pids: Mapping[int, int]) -> LibraryFinding | None:
    """None where nobody answers, or may be asked."""
    job = {pids[rank.target.pid]: rank.target.rank for rank in ranks if rank.target.pid in pids}
    for rank in ranks[:_ASKED]:
        try:
            host, port = library.ras_address(rank.environ)
            version = await library.mapped_version(rank.target.pid)
            target = RasTarget(rank.target.pid, rank.uid, host, port, version)
            first = await library.ask_ras(target, pids)
            await anyio.sleep(APART_S)
            return library.judge_answers(first, await library.ask_ras(target, pids), job)
        except RasTrouble as error:
            _log.info("ras.no_answer", job=job_id, rank=rank.target.rank, error=str(error))
    return None
