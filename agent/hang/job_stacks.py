"""Stacks of jobs: taken when somebody asks and when a job seems to hang, and kept with the job."""

import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
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
from muster.probes.kernel.procfs import Procfs
from muster.probes.kernel.trees import Forest, JobProcess, JobRoots, ProcessRole
from muster.probes.stacks import ProcessStacks, StackTarget
from muster.supervisors.model.spec import Boot
from muster.v1 import job_pb2

__all__ = ["REQUEST", "JobStacks", "Stacks", "StacksSettings", "message"]

#: Of how many jobs stacks are taken at the same time (as many again where nobody has asked), how many calls may wait
#: for those of one job, and for how many seconds.
AT_ONCE, MAX_WAITING, TURN_S = 2, 4, 60.0
#: Processes of a job that are looked at: its ranks, then their workers.
MAX_PROCESSES = 256
#: Groups with native frames, where these are taken.
NATIVE_GROUPS = 3
#: Seconds that finding the job's processes, and reading or writing its files, may take.
FIND_S, FILE_S = 5.0, 5.0
#: Bytes of an answer: clients take messages of 4 MiB.
_MAX_ANSWER = 3 << 20

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StacksSettings:
    """`deadline_s`: seconds for all processes of a job. `native`: occasions on which C and C++ frames are taken as
    well, which stops one process of each of the smallest groups for a second or more; by default only of a job that is
    hung."""

    deadline_s: float = 20.0
    native: Collection[str] = ("hung",)


class JobsWithRanks(Protocol):
    """What is taken from the registry."""

    async def get(self, job_id: str) -> Entry:
        """Raises JobNotFound."""


class CardHolders(Protocol):
    """What is taken from the driver."""

    @property
    def view(self) -> View:
        """What is known of the cards: which processes hold them."""


class Stacks:
    """Belongs to one event loop."""

    def __init__(
        self, registry: JobsWithRanks, driver: CardHolders, settings: Callable[[], StacksSettings] = StacksSettings
    ) -> None:
        self._registry = registry
        self._driver = driver
        self._settings = settings
        # People do not wait behind jobs that all hang at the same moment.
        self._asked, self._automatic = anyio.CapacityLimiter(AT_ONCE), anyio.CapacityLimiter(AT_ONCE)
        self._busy: dict[str, tuple[anyio.Lock, int]] = {}

    async def take(self, job_id: str, ranks: Sequence[int] = (), occasion: str = REQUEST) -> JobStacks:
        """The stacks of a job's ranks (empty: all of this node) and of what works for them, taken now and kept.

        Takes at most `deadline_s` and 15 s from when its turn comes; one at a time of a job. A job of which nothing
        runs has none, and a sentence that says so. Raises JobNotFound, InvalidRequest, TooMany.
        """
        entry = await self._registry.get(job_id)
        wanted = _wanted(entry, ranks)
        async with self._turn(job_id, self._asked if occasion == REQUEST else self._automatic):
            taken = await self._take(entry, wanted, occasion)
            return await self._keep(entry, taken) if taken.processes else taken

    async def kept(self, job_id: str, ranks: Sequence[int] = ()) -> JobStacks:
        """Those that were taken last, of these ranks; with a sentence where there are none. Raises JobNotFound,
        InvalidRequest."""
        entry = await self._registry.get(job_id)
        wanted = _wanted(entry, ranks)
        found = await self.history(job_id)
        if not found:
            return JobStacks(0.0, "", 0, (), ("no stacks of this job are stored",))
        last = found[-1]
        return replace(last, processes=tuple(one for one in last.processes if wanted is None or one.rank in wanted))

    async def history(self, job_id: str) -> list[JobStacks]:
        """All that are kept of a job, oldest first; none where they cannot be read. Raises JobNotFound."""
        folder = (await self._registry.get(job_id)).paths.folder
        with anyio.move_on_after(FILE_S):
            try:
                return await watched.call(f"kept stacks in {folder}", lambda: kept_stacks.read_all(folder))
            except (OSError, watched.StillHanging) as error:
                _log.warning("stacks.unreadable", job=job_id, error=str(error))
        return []

    # --- parts --------------------------------------------------------------------------------------------------------

    async def _take(self, entry: Entry, ranks: frozenset[int] | None, occasion: str) -> JobStacks:
        found = JobStacks(time.time(), occasion, entry.job.attempt, (), ())
        if entry.job.state.final or not entry.job.spawned:
            what = "has ended" if entry.job.state.final else "has no process yet"
            return replace(found, notes=(f"the job {what} ({entry.job.state}): it has no stacks",))
        targets, notes = await self._targets(entry, ranks)
        settings = self._settings()
        native = NATIVE_GROUPS if occasion in settings.native else 0
        taken = await stacks.take(targets, deadline_s=settings.deadline_s, native=native)
        if not taken.processes and not notes:
            notes = ["its processes have ended: it has no stacks"]
        return replace(found, at=taken.at, processes=taken.processes, notes=(*notes, *taken.notes))

    async def _targets(self, entry: Entry, ranks: frozenset[int] | None) -> tuple[list[StackTarget], list[str]]:
        """Ranks first, then workers, of each rank in turn; and what there is to say."""
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
        found = targets(procs, roots, ranks)
        if len(found) > MAX_PROCESSES:
            note = f"the job has {len(found)} processes: showing {MAX_PROCESSES} of them; select ranks with --rank"
            return found[:MAX_PROCESSES], [note]
        return found, []

    async def _keep(self, entry: Entry, taken: JobStacks) -> JobStacks:
        """Writes them into the job's folder; where that cannot be, the answer says so."""
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
        """One at a time of a job, and so many on the node. Raises TooMany where too many wait, or it takes too long."""
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


def targets(procs: Sequence[JobProcess], roots: JobRoots, ranks: frozenset[int] | None) -> list[StackTarget]:
    """Which processes are to be looked at; `ranks` None: of all. Where a launcher has made no rank that is known as
    one: the launcher and what descends from it."""
    of_ranks: dict[int, list[StackTarget]] = {}
    for role in (ProcessRole.RANK, ProcessRole.WORKER):
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
    """As the API tells it, the smallest group first; what does not fit into 3 MiB is left out, the largest groups."""
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
    """Of a job now, those that hold its cards among them. Blocks."""
    procfs = Procfs(proc)
    try:
        return Forest(procfs).look([roots], holders)[roots.job]
    finally:
        procfs.close()


def _wanted(entry: Entry, ranks: Sequence[int]) -> frozenset[int] | None:
    """The ranks that are meant; None: all. Raises InvalidRequest."""
    job = entry.job
    if entry.spec.boot == Boot.RANKS:
        here = {rank.rank for rank in job.ranks}
    else:
        here = set(range(max(job.world_size, job.local_ranks, 1)))  # which of them are here is the launcher's affair
    unknown = [rank for rank in ranks if rank not in here]
    if unknown:
        raise InvalidRequest([no_such_rank("ranks", unknown[0], here)])
    return frozenset(ranks) or None


def _is_in(rank: int, ranks: frozenset[int] | None) -> bool:
    return ranks is None or rank in ranks
