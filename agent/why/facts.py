"""Gathers all facts about a job for its report; probable_cause.py judges them."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

import anyio

from muster.agent.hang.current_hang import CurrentHang
from muster.agent.jobs.entry import Entry
from muster.agent.logs.log_reading import RankLogFile
from muster.agent.why import around as why_events
from muster.agent.why import curves, log_signs, signatures
from muster.agent.why.around import OOM_KILL, Events, Happening
from muster.agent.why.curves import Minutes
from muster.agent.why.known import Known
from muster.agent.why.log_signs import Launched, Searched, Sign, Wanted
from muster.agent.why.signatures import Table
from muster.agent.why.worker_logs import Place
from muster.probes.calls import watched
from muster.probes.hang import HangVerdict
from muster.probes.kernel import kmsg, process
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.kmsg import Crash
from muster.probes.kernel.known_names import ASCEND_LOGS
from muster.probes.node import filesystems
from muster.probes.node.filesystems import Unwritable
from muster.supervisors.launch.child import Account
from muster.supervisors.launch.modes import modelarts
from muster.supervisors.model import rank_ends
from muster.supervisors.model.job_logs import log_of
from muster.supervisors.model.lifecycle import Attempt, Job, Rank
from muster.supervisors.model.states import Outcome, State
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import NotStartable
from muster.supervisors.system import oom

#: Limits of the ranks whose logs are searched: ranks that failed by themselves, and others.
MAX_FAILED, MAX_OTHERS = 16, 48
#: At most so many earlier attempts whose logs are searched, the newest; ranks of each; seconds for errors far back.
MAX_PAST, MAX_PAST_RANKS, PAST_BACK_S = 5, 16, 0.2
#: How often everything is gathered again because the job changed meanwhile.
MAX_TRIES = 3
#: Time limit for reading an operator's signatures, in seconds.
TABLE_S = 5.0
#: For a running job, output older than so many seconds is not reported.
LIVE_S = 600.0
#: A launcher's report counts if it was written within so many seconds before the launcher ended.
REPORT_S = 120.0
#: Signatures of a file system that cannot be written; of so many paths in such lines the file systems are looked at.
NO_SPACE, READ_ONLY, SHARED_MEMORY, MAX_PATHS = "no-space", "read-only", "shared-memory-full", 4


@dataclass(frozen=True, slots=True)
class Facts:
    """`zero`: the moment that times are relative to; `around`: what it is, such as "the end of rank 3". `past`: what
    the logs of earlier attempts show, by number of the attempt. `crashes`: what the kernel reports about the job's
    processes. `unwritable`: the file systems that a log calls full or read-only, by the path that it names. `uid`: the
    user of the job's processes, as the kernel's log has it; None: unknown. `suspected`: what the hang rule sees now, as
    a sentence, while it suspects that the job hangs. `killed_in_others`: pids that the kernel killed at the limit of a
    cgroup that has nothing of the job."""

    entry: Entry
    now: float
    zero: float
    around: str
    first: Rank | None
    failed: tuple[Rank, ...]
    events: Events = field(default_factory=Events)
    happenings: tuple[Happening, ...] = ()
    searched: Searched = field(default_factory=Searched)
    past: Mapping[int, Searched] | None = None
    minutes: Minutes = field(default_factory=Minutes)
    problems: tuple[str, ...] = ()
    crashes: tuple[Crash, ...] = ()
    unwritable: Mapping[str, Unwritable] = field(default_factory=dict)
    uid: int | None = None
    suspected: str = ""
    killed_in_others: frozenset[int] = frozenset()

    @property
    def job(self) -> Job:
        """The job as its journal tells it."""
        return self.entry.job

    @property
    def signs(self) -> tuple[Sign, ...]:
        """The signs in this attempt's logs."""
        return self.searched.signs

    @property
    def launched(self) -> Launched | None:
        """The launcher's report on its workers, if the rank that failed first is a launcher and ended with a report."""
        rank = self.first.rank if self.first is not None else None
        found = next((one for one in self.searched.launched if one.rank == rank), None)
        if found is None or (found.at is not None and self.zero - found.at > REPORT_S):
            return None
        return found


async def gather(known: Known, entry: Entry, folder: Path | None, *, readings: bool = True) -> Facts:
    """Never raises. The facts name what could not be read. Without `readings` nothing of the history: no cause rests on
    it, and it may wait for the disk."""
    table, problems = await _table(folder)
    facts = _begun(entry, time.time())
    for _ in range(MAX_TRIES):
        read = entry.records
        facts = await _gather(known, _begun(entry, time.time()), table, problems, readings)
        if entry.records == read:
            break
    return facts


async def _table(folder: Path | None) -> tuple[Table, tuple[str, ...]]:
    try:
        with anyio.move_on_after(TABLE_S):
            table = await watched.call(f"the signatures in {folder}", lambda: signatures.load(folder))
            return table, table.problems
    except (OSError, watched.StillHanging) as error:
        return signatures.builtin(), (f"{folder}: cannot read the signatures: {error}",)
    return signatures.builtin(), (f"{folder}: signatures were not read: no answer within {TABLE_S:g} s",)


def _begun(entry: Entry, now: float) -> Facts:
    """What the journal says."""
    job = entry.job
    failed, first = rank_ends.failures(job), rank_ends.first_failure(job)
    if first is not None and first.ended_at:
        zero, around = first.ended_at, f"the end of rank {first.rank}"
    elif rank_ends.lost_service(job) and (service := rank_ends.ended_service(job)) is not None:
        zero, around = service.ended_at, f"the end of {rank_ends.service_name(service)}"
    elif job.step is not None and job.step.ended_at and job.step.status != 0 and job.step_name != "epilog":
        zero, around = job.step.ended_at, f"the end of {job.step_name}"
    elif job.state.final and (job.ended_at or job.last_time):
        zero, around = job.ended_at or job.last_time, "the end"
        if job.stop is not None and job.state is State.STOPPED:
            zero, around = job.stop.at, "the stop"
    else:
        zero, around = now, "now"
    return Facts(entry, now, zero, around, first, tuple(failed))


async def _gather(known: Known, begun: Facts, table: Table, problems: tuple[str, ...], readings: bool) -> Facts:
    entry, job = begun.entry, begun.job
    events = Events()
    searched = Searched()
    minutes = Minutes()
    past: dict[int, Searched] = {}

    async def read_events() -> None:
        nonlocal events
        events = await why_events.read(known.events, entry)

    async def read_history() -> None:
        nonlocal minutes
        period = known.config().telemetry.readings_s
        minutes = await curves.read(known.telemetry.history, entry, begun.zero, period)

    async def search() -> None:
        nonlocal searched
        searched = await log_signs.search(_wanted(begun, known.root), table)
        for attempt in job.past[-MAX_PAST:]:
            of_attempt = _wanted_of(attempt, job, entry.job_id, known.root)
            past[attempt.number] = await log_signs.search(of_attempt, table, back_s=PAST_BACK_S)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read_events)
        if readings:
            tasks.start_soon(read_history)
        tasks.start_soon(search)
    told = why_events.happenings(events.kept, known.health.conditions, entry)
    zero, around = begun.zero, begun.around
    if entry.damaged:
        own = [event.time for event in events.kept if event.job_id == entry.job_id]
        zero, around = (own[-1], "the last event of it") if own else (zero, around)
    return Facts(
        entry,
        begun.now,
        zero,
        around,
        begun.first,
        begun.failed,
        events,
        tuple(told),
        searched,
        past,
        minutes,
        problems,
        await _crashes(begun, searched),
        await _unwritable(searched),
        _uid(entry),
        _suspected(known.hangs.found(entry)),
        await _killed_in_others(job, told),
    )


def _suspected(now: CurrentHang | None) -> str:
    return now.reason if now is not None and now.change.verdict is HangVerdict.SUSPECT else ""


async def _killed_in_others(job: Job, told: Sequence[Happening]) -> frozenset[int]:
    if not any(one.code == OOM_KILL for one in told):
        return frozenset()
    since = process.uptime() - (time.time() - job.accepted_at)
    with contextlib.suppress(OSError, watched.StillHanging), anyio.move_on_after(TABLE_S):
        return await watched.call("the kernel's log", lambda: oom.killed_in_others(job.memory_cgroup, since))
    return frozenset()


def _uid(entry: Entry) -> int | None:
    """The kernel's log has the numbers of the first user namespace."""
    try:
        is_first = Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]
        return Account.of(entry.spec.user).uid if is_first else None
    except (OSError, NotStartable):
        return None


async def _unwritable(searched: Searched) -> dict[str, Unwritable]:
    unwritable = (NO_SPACE, READ_ONLY, SHARED_MEMORY)
    paths = {sign.path for sign in searched.signs if sign.hit.signature.id in unwritable and sign.path}
    found = {path: await filesystems.unwritable(path) for path in sorted(paths)[:MAX_PATHS]}
    return {path: each for path, each in found.items() if each is not None}


async def _crashes(begun: Facts, searched: Searched) -> tuple[Crash, ...]:
    """What the kernel log says about the rank that failed first, and about processes that its output names."""
    first = begun.first
    if first is None or first.outcome not in (Outcome.EXITED, Outcome.SIGNALLED):
        return ()
    named = (worker.pid for one in searched.launched for worker in one.workers if worker.code != -signal.SIGTERM)
    pids = {pid for pid in (first.pid, *searched.pids, *named) if pid}
    try:
        with anyio.move_on_after(TABLE_S):
            since = begun.job.started_at
            found = await watched.call("the kernel's log", lambda: kmsg.crashes_of(pids, since))
            return tuple(sorted(found, key=lambda one: one.at))
    except (OSError, watched.StillHanging):
        pass  # an unreadable log is a condition of the node (KERNEL_LOG_UNREADABLE)
    return ()


def _file(root: Root, job_id: str, rank: Rank) -> RankLogFile:
    return RankLogFile(
        rank.rank, root.rank_log(job_id, rank.rank, rank.device), root.rank_index(job_id, rank.rank, rank.device)
    )


def _wanted(facts: Facts, root: Root) -> list[Wanted]:
    """The logs of this attempt: first of failed ranks, then of others; or the job's own log if a step failed."""
    job, job_id = facts.job, facts.entry.job_id
    if facts.entry.damaged:
        return []
    step = job.step
    if step is not None and step.outcome is not None and step.status != 0 and not job.spawned:
        log = RankLogFile(0, root.job_log(job_id, job.node_rank), root.job_index(job_id, job.node_rank))
        return [Wanted(None, log)]
    begins = job.past[-1].log_ends if job.past else {}
    if rank_ends.lost_service(job) and (service := rank_ends.ended_service(job)) is not None:
        files = log_of(root, job_id, job, service)
        return [Wanted(None, RankLogFile(0, files.path, files.index), begins.get(service.rank, 0))]
    ran = [rank for rank in job.ranks if rank.pid and rank.outcome is not Outcome.NOT_STARTED]
    if job.state is State.SUCCEEDED:
        return []
    own = {rank.rank for rank in facts.failed}
    others = [rank for rank in ran if rank.rank not in own]
    chosen = [rank for rank in facts.failed if rank.pid and rank.outcome is not Outcome.NOT_STARTED][:MAX_FAILED]
    workers = _workers(facts.entry)
    most = [log_signs.TAIL] * len(chosen) + [log_signs.SHORT_TAIL] * min(len(others), MAX_OTHERS)
    return [
        Wanted(
            rank.rank,
            _file(root, job_id, rank),
            begins.get(rank.rank, 0),
            None,
            size,
            _place(root, facts.entry, rank) if rank in chosen else None,
            rank.pid,
            workers,
        )
        for rank, size in zip(chosen + others[:MAX_OTHERS], most, strict=True)
    ]


def _workers(entry: Entry) -> dict[int, int]:
    """Ranks that a launcher made, by process: those that looks have found, or that is in the explanation."""
    told = entry.explained.worker if entry.explained is not None else None
    kept = {told.pid: told.rank} if told is not None and told.pid and told.rank is not None else {}
    return kept | entry.workers


#: How a command names the folder of its workers' logs: torchrun, msrun.
_LOG_DIR = re.compile(r"--log[-_]dir[= ]['\"]?([^'\" ]{1,1000})")


def _place(root: Root, entry: Entry, rank: Rank) -> Place | None:
    """Where a rank, and the processes that it starts, ran."""
    spec, job = entry.spec, entry.job
    try:
        account = Account.of(spec.user)
    except NotStartable:
        return None
    folder = modelarts.working_folder(spec.env, rank.local_rank) if spec.rank_table else ""
    folder = spec.workdir or folder or str(entry.paths.workspace / f"device{rank.device}")
    named = _LOG_DIR.findall(" ".join((*spec.command, spec.env.get("MA_EXTRA_TORCHRUN_PARAMS", ""))))
    named += [path for name in ("PET_LOG_DIR",) if (path := spec.env.get(name))]
    further = str(modelarts.further_logs(root, spec.job_id, spec.env))
    plog = spec.env.get(ASCEND_LOGS, "")
    return Place(
        account.uid,
        folder,
        job.started_at,
        tuple(named),
        (os.path.join(further, "ascend", "process_log", f"rank_{rank.rank}"),),
        (plog or os.path.join(account.home, "ascend", "log"),),
    )


def _wanted_of(attempt: Attempt, job: Job, job_id: str, root: Root) -> list[Wanted]:
    """The logs of an earlier attempt: of the rank that failed first, then of others."""
    ranks = [rank for rank in job.ranks if rank.rank in attempt.log_ends]
    ranks.sort(key=lambda rank: rank.rank != attempt.first_failed)
    before = [one.log_ends for one in job.past if one.number < attempt.number]
    return [
        Wanted(
            rank.rank,
            _file(root, job_id, rank),
            max((ends.get(rank.rank, 0) for ends in before), default=0),
            attempt.log_ends[rank.rank],
            log_signs.TAIL if rank.rank == attempt.first_failed else log_signs.SHORT_TAIL,
        )
        for rank in ranks[:MAX_PAST_RANKS]
    ]


def latest(signs: Sequence[Sign], since: float) -> list[Sign]:
    """Signs that were written after `since` (seconds since the epoch); a sign without a known time does not count."""
    return [sign for sign in signs if sign.at is not None and sign.at >= since]
