"""Stacks of jobs: taken on request and when a job seems to hang, and stored with the job."""

import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import anyio
import structlog

from muster.agent import protobuf_times
from muster.agent.errors import InvalidRequest, TooMany
from muster.agent.hang import kept_stacks
from muster.agent.hang.kept_stacks import REQUEST, JobStacks
from muster.agent.jobs.entry import Entry, no_such_rank
from muster.agent.telemetry import job_processes
from muster.probes import stacks
from muster.probes.calls import watched
from muster.probes.cards.driver import View
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.procfs import Procfs
from muster.probes.kernel.trees import Forest, JobProcess, JobRoots, ProcessRole
from muster.probes.stacks import ProcessStacks, StackTarget
from muster.supervisors.model.spec import Boot
from muster.v1 import job_pb2

__all__ = ["REQUEST", "JobStacks", "Stacks", "StacksSettings", "message"]

#: Stacks of so many jobs are taken at the same time (and of as many again without a request); so many calls may wait
#: for those of one job, for so many seconds.
AT_ONCE, MAX_WAITING, TURN_S = 2, 4, 60.0
#: Limit of the examined processes of a job: its ranks, then their workers.
MAX_PROCESSES = 256
#: Limit of the groups with native frames, if these are taken.
NATIVE_GROUPS = 3
#: Time limits in seconds: for finding the job's processes, for reading or writing its files.
FIND_S, FILE_S = 5.0, 5.0
#: Limit of an answer in bytes: clients accept messages of 4 MiB.
_MAX_ANSWER = 3 << 20

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StacksSettings:
    """`deadline_s`: seconds for all processes of a job. `native`: the occasions on which C and C++ frames are taken as
    well, which pauses one process of each of the smallest groups for a second or more; by default only if the job is
    hung."""

    deadline_s: float = 20.0
    native: Collection[str] = ("hung",)


class JobsWithRanks(Protocol):
    """The part of the registry that stacks use."""

    async def get(self, job_id: str) -> Entry:
        """Raises JobNotFound."""


class CardHolders(Protocol):
    """The part of the driver that stacks use."""

    @property
    def view(self) -> View:
        """The present view of the cards, with the processes that hold them."""


class Stacks:
    """Belongs to one event loop."""

    def __init__(
        self, registry: JobsWithRanks, driver: CardHolders, settings: Callable[[], StacksSettings] = StacksSettings
    ) -> None:
        self._registry = registry
        self._driver = driver
        self._settings = settings
        # Requests of people do not queue behind jobs that all hang at the same moment.
        self._asked, self._automatic = anyio.CapacityLimiter(AT_ONCE), anyio.CapacityLimiter(AT_ONCE)
        self._busy: dict[str, tuple[anyio.Lock, int]] = {}

    async def take(self, job_id: str, ranks: Sequence[int] = (), occasion: str = REQUEST) -> JobStacks:
        """Takes the stacks of a job's ranks (empty: all of this node) and of their workers, and stores them.

        Takes at most `deadline_s` and 15 s once its turn comes; one call at a time per job. A job without processes has
        no stacks, but a sentence that says so. Raises JobNotFound, InvalidRequest, TooMany.
        """
        entry = await self._registry.get(job_id)
        wanted = _wanted(entry, ranks)
        async with self._turn(job_id, self._asked if occasion == REQUEST else self._automatic):
            taken = await self._take(entry, wanted, occasion)
            return await self._keep(entry, taken) if taken.processes else taken

    async def look(self, job_id: str) -> JobStacks:
        """Takes the stacks of a job's ranks without their workers, and stores nothing. Raises JobNotFound, TooMany."""
        entry = await self._registry.get(job_id)
        async with self._turn(job_id, self._automatic):
            return await self._take(entry, None, "", workers=False)

    async def targets(self, job_id: str) -> Sequence[StackTarget]:
        """The processes of a job's ranks without their workers. Raises JobNotFound."""
        found, _ = await self._targets(await self._registry.get(job_id), None, workers=False)
        return found

    async def kept(self, job_id: str, ranks: Sequence[int] = ()) -> JobStacks:
        """The last stored stacks of these ranks, with a sentence if there are none. Raises JobNotFound,
        InvalidRequest."""
        entry = await self._registry.get(job_id)
        wanted = _wanted(entry, ranks)
        found = await self.history(job_id)
        if not found:
            return JobStacks(0.0, "", 0, (), ("no stacks of this job are stored",))
        last = found[-1]
        return replace(last, processes=tuple(one for one in last.processes if wanted is None or one.rank in wanted))

    async def history(self, job_id: str) -> list[JobStacks]:
        """All stored stacks of a job, oldest first; empty if they cannot be read. Raises JobNotFound."""
        folder = (await self._registry.get(job_id)).paths.folder
        with anyio.move_on_after(FILE_S):
            try:
                return await watched.call(f"kept stacks in {folder}", lambda: kept_stacks.read_all(folder))
            except (OSError, watched.StillHanging) as error:
                _log.warning("stacks.unreadable", job=job_id, error=str(error))
        return []

    # --- parts --------------------------------------------------------------------------------------------------------

    async def _take(
        self, entry: Entry, ranks: frozenset[int] | None, occasion: str, *, workers: bool = True
    ) -> JobStacks:
        found = JobStacks(time.time(), occasion, entry.job.attempt, (), ())
        if entry.job.state.final or not entry.job.spawned:
            what = "has ended" if entry.job.state.final else "has no process yet"
            return replace(found, notes=(f"the job {what} ({entry.job.state}): it has no stacks",))
        targets, notes = await self._targets(entry, ranks, workers=workers)
        settings = self._settings()
        native = NATIVE_GROUPS if occasion in settings.native else 0
        taken = await stacks.take(targets, deadline_s=settings.deadline_s, native=native)
        if not taken.processes and not notes:
            notes = ["its processes have ended: it has no stacks"]
        return replace(found, at=taken.at, processes=taken.processes, notes=(*notes, *taken.notes))

    async def _targets(
        self, entry: Entry, ranks: frozenset[int] | None, *, workers: bool
    ) -> tuple[list[StackTarget], list[str]]:
        """Ranks first, then workers, of each rank in turn; and notes."""
        roots = job_processes.roots(entry, self._driver.view.uuids)
        holders = {one.pid: index for index, seen in self._driver.view.holders.items() for one in seen.value}
        procs: tuple[JobProcess, ...] | None = None
        with anyio.move_on_after(FIND_S):
            try:
                procs = await watched.call(f"the processes of job {entry.job_id}", lambda: processes_of(roots, holders))
            except (OSError, ValueError, watched.StillHanging) as error:
                _log.warning("stacks.no_tree", job=entry.job_id, error=str(error))
        if procs is None:
            own = [StackTarget(root.rank, root.pid, root.start) for root in roots.roots if _is_in(root.rank, ranks)]
            return own, [
                f"/proc does not answer within {FIND_S:g} s: showing only the processes that muster itself started"
            ]
        found = targets(procs, roots, ranks, workers=workers)
        if len(found) > MAX_PROCESSES:
            note = f"the job has {len(found)} processes: showing {MAX_PROCESSES} of them; select ranks with --rank"
            return found[:MAX_PROCESSES], [note]
        return found, []

    async def _keep(self, entry: Entry, taken: JobStacks) -> JobStacks:
        """Writes them into the job's folder; if that fails, the answer says so."""
        folder = entry.paths.folder
        trouble = f"{folder}: does not answer within {FILE_S:g} s"
        with anyio.move_on_after(FILE_S):
            try:
                await watched.call(f"keep stacks in {folder}", lambda: kept_stacks.write(folder, taken))
                return taken
            except (OSError, watched.StillHanging) as error:
                trouble = f"{folder}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        _log.warning("stacks.not_kept", job=entry.job_id, error=trouble)
        return replace(taken, notes=(*taken.notes, f"these stacks are not stored: {trouble}"))

    @asynccontextmanager
    async def _turn(self, job_id: str, limiter: anyio.CapacityLimiter) -> AsyncIterator[None]:
        """One call at a time per job, a limited number on the node. Raises TooMany if too many wait, or for too
        long."""
        lock, users = self._busy.get(job_id, (anyio.Lock(), 0))
        if users > MAX_WAITING:
            raise TooMany(f"calls that wait for stacks of job {job_id}", MAX_WAITING)
        self._busy[job_id] = (lock, users + 1)
        try:
            async with AsyncExitStack() as held:
                with anyio.move_on_after(TURN_S) as waiting:
                    await held.enter_async_context(lock)
                    await held.enter_async_context(limiter)
                if waiting.cancelled_caught:
                    raise TooMany("jobs whose stacks are taken", AT_ONCE)
                yield
        finally:
            _, users = self._busy.pop(job_id)
            if users > 1:
                self._busy[job_id] = (lock, users - 1)


def targets(
    procs: Sequence[JobProcess], roots: JobRoots, ranks: frozenset[int] | None, *, workers: bool = True
) -> list[StackTarget]:
    """The processes to examine; `ranks` None: of all ranks. If a launcher has not yet made a recognized rank: the
    launcher and its descendants."""
    of_ranks: dict[int, list[StackTarget]] = {}
    for role in (ProcessRole.RANK, ProcessRole.WORKER) if workers else (ProcessRole.RANK,):
        for proc in procs:
            if proc.role is role and proc.rank is not None and _is_in(proc.rank, ranks):
                of_ranks.setdefault(proc.rank, []).append(StackTarget(proc.rank, proc.stat.pid, proc.stat.start))
    if not any(proc.role is ProcessRole.RANK for proc in procs):
        first = min((root.rank for root in roots.roots), default=0)
        return [StackTarget(first, proc.stat.pid, proc.stat.start) for proc in procs]
    lists = [of_ranks[rank] for rank in sorted(of_ranks)]
    longest = max((len(one) for one in lists), default=0)
    return [one[place] for place in range(longest) for one in lists if place < len(one)]


def message(taken: JobStacks) -> job_pb2.GetStacksResponse:
    """The answer of the API, the smallest group first; the largest groups are left out if they do not fit into 3
    MiB."""
    answer = job_pb2.GetStacksResponse(
        at=protobuf_times.timestamp(taken.at), occasion=taken.occasion, notes=taken.notes
    )
    size, groups = answer.ByteSize(), stacks.grouped(taken.processes)
    for number, group in enumerate(groups):
        one = job_pb2.StackGroup(
            owners=[_owner(owner) for owner in group.owners], stack="\n".join(group.lines), source=group.source
        )
        size += one.ByteSize() + 8
        if size > _MAX_ANSWER:
            answer.notes.append(
                f"{len(groups) - number} more groups do not fit into an answer: select ranks with --rank"
            )
            break
        answer.groups.append(one)
    return answer


def _owner(process: ProcessStacks) -> job_pb2.StackOwner:
    main = process.main
    return job_pb2.StackOwner(
        rank=process.rank,
        pid=process.pid,
        command=process.command,
        state=main.state if main is not None else process.state,
        threads=process.threads,
        wchan=main.wchan if main is not None else "",
    )


def processes_of(roots: JobRoots, holders: Mapping[int, int], proc: Path = Path("/proc")) -> tuple[JobProcess, ...]:
    """The present processes of a job, including those that hold its cards. Blocks."""
    procfs = Procfs(proc)
    try:
        return Forest(procfs).look([roots], holders)[roots.job]
    finally:
        procfs.close()


def _wanted(entry: Entry, ranks: Sequence[int]) -> frozenset[int] | None:
    """The selected ranks; None: all. Raises InvalidRequest."""
    job = entry.job
    if entry.spec.boot == Boot.RANKS:
        here = {rank.rank for rank in job.ranks}
    else:
        here = set(range(max(job.world_size, job.local_ranks, 1)))  # the launcher decides which of them are here
    unknown = [rank for rank in ranks if rank not in here]
    if unknown:
        raise InvalidRequest([no_such_rank("ranks", unknown[0], here)])
    return frozenset(ranks) or None


def _is_in(rank: int, ranks: frozenset[int] | None) -> bool:
    return ranks is None or rank in ranks
