"""Which processes belong to which job, and what they are to it: rank, worker or helper.

A process is (pid, start time), as everywhere. The rules:

- *rank*: the rank's own process. Where a launcher makes the ranks, a descendant of the launcher that holds a card, or
  was started with a rank number in its environment that the launcher does not have, the uppermost of each line.
- *worker*: what descends from a rank, or is in its session without that a parent tells it (a daemon that double-forked
  before it was seen first).
- *helper*: everything else: launchers, steps, other children of the supervisor, and whatever is known by name to watch
  and not to train, with all that descends from it. Its doings say nothing of the training.
- *session*: what somebody runs in the job by hand (`muster exec`), with all that descends from it. It is not of the
  training at all: who looks into a dead job does not bring it to life.

A process that has been seen belongs to its job for as long as it lives, whatever its parent becomes. The job's own
supervisor is not of the job.
"""

import enum
import os
from collections.abc import Iterable, Mapping, Sequence

from muster.probes.kernel import marks
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.known_names import MPI_RANK, RANK, RANK_ID
from muster.probes.kernel.process import Stat
from muster.probes.kernel.procfs import Arrivals, Io, Procfs


class ProcessRole(enum.StrEnum):
    """What a process is to its job."""

    RANK = "rank"
    WORKER = "worker"
    HELPER = "helper"
    SESSION = "session"


#: Names that do IO in a job that is dead (reference: wandb's helpers write 5 to 118 KB a minute), as the kernel has
#: them, cut to 15 characters; a trailing * stands for anything. Of a Python program its script's or module's name.
HELPERS = (
    *("wandb*", "tensorboard*", "nvidia-smi", "npu-smi", "hccn_tool", "nvtop", "dcgmi", "nv-hostengine"),
    *("dcgm-exporter", "npu-exporter", "node_exporter", "prometheus*", "aim", "mlflow", "py-spy"),
)
#: Variables by which launchers tell a process its number: torchrun, Open MPI, CANN and msrun.
_NUMBERS = {
    RANK.encode(): "rank",
    MPI_RANK.encode(): "mpi_rank",
    RANK_ID.encode(): "rank_id",
    b"LOCAL_RANK": "local",
    b"OMPI_COMM_WORLD_LOCAL_RANK": "mpi_local",
    b"DEVICE_ID": "device_id",
    b"WORLD_SIZE": "world",
    b"OMPI_COMM_WORLD_SIZE": "mpi_world",
    b"RANK_SIZE": "rank_size",
    b"LOCAL_WORLD_SIZE": "local_world",
    b"OMPI_COMM_WORLD_LOCAL_SIZE": "mpi_local_world",
    # That of a session.
    marks.SESSION.encode(): "session",
}
_RANK_NUMBERS = ("rank", "mpi_rank", "rank_id")
_LOCAL_NUMBERS = ("local", "mpi_local", "device_id")
_WORLDS = ("world", "mpi_world", "rank_size")
_LOCAL_WORLDS = ("local_world", "mpi_local_world")


@dataclass(frozen=True, slots=True)
class RootProcess:
    """A process that muster started for a job. `launcher`: it makes the ranks itself, in numbers that it gives."""

    rank: int
    pid: int
    start: int
    launcher: bool = False


@dataclass(frozen=True, slots=True)
class JobRoots:
    """Where a job's processes begin. `supervisor`: pid of the process that they are re-parented to; 0: not known.
    `cards`: indices of its cards, in the order of its ranks on this node, the first of which is `first_rank`."""

    job: str
    roots: tuple[RootProcess, ...]
    supervisor: int = 0
    cards: tuple[int, ...] = ()
    first_rank: int = 0


@dataclass(frozen=True, slots=True)
class JobProcess:
    """A process of a job at one moment. `rank`: number over all nodes of the rank that it is or works for; None of a
    helper and of a session. `local`: which of this node's ranks that is. `io` None: may not be read. `world` and
    `local_world`: of a rank, how many there are on all nodes and on this one, as a launcher of the job has told it."""

    rank: int | None
    local: int | None
    role: ProcessRole
    stat: Stat
    io: Io | None
    wchan: str | None
    world: int | None = None
    local_world: int | None = None


@dataclass(slots=True, eq=False)
class _Member:
    """A process that belongs to a job, with the parent that it had when it was seen first."""

    stat: Stat
    roots: JobRoots
    parent: "_Member | None"
    root: RootProcess | None = None
    local: int | None = None
    rank: int | None = None
    world: int | None = None
    local_world: int | None = None
    role: ProcessRole = ProcessRole.HELPER
    #: It is, or descends from, something known by name as a helper.
    named: bool = False
    #: A launcher, or what descends from one and is no rank: here ranks may appear.
    launches: bool = False
    #: Its name and its numbers, once they were looked at since it executed what it runs.
    known_as: str = ""
    numbers: dict[str, str] | None = None


class Forest:
    """The trees of all jobs, from one look to the next. Not for several threads at once."""

    def __init__(self, procfs: Procfs, helpers: Sequence[str] = HELPERS, avoid: Iterable[int] = ()) -> None:
        """`avoid`: pids whose files are not to be touched."""
        self._procfs = procfs
        self._exact = {name[:15] for name in helpers if not name.endswith("*")}
        self._prefixes = tuple(name[:-1] for name in helpers if name.endswith("*"))
        self._avoid = set(avoid)
        self._jobs: dict[str, JobRoots] = {}
        #: By pid; a parent always comes before its children.
        self._members: dict[int, _Member] = {}
        #: Ranks by their session, which what descends from them shares unless it leaves it.
        self._sessions: dict[int, _Member] = {}
        self._arrivals = Arrivals(procfs)
        self._full_due = True
        #: Files that may be read again since the last look.
        self._trusted: set[int] = set()

    def look(self, jobs: Sequence[JobRoots], holders: Mapping[int, int]) -> dict[str, tuple[JobProcess, ...]]:
        """The processes of each of these jobs, as they are now. `holders`: pids on a card, with its index.

        Costs three small reads per process of a job, and a few per process that came since the last look (`Arrivals`);
        all processes are looked at when a job has new roots, and from time to time. Blocks. Raises OSError where /proc
        cannot be listed, or there are no descriptors to read it with.
        """
        self._full_due |= self._take(jobs)
        came = self._arrivals.look(self._full_due)
        self._avoid = {pid for pid in self._avoid if self._procfs.exists(pid)}
        fresh = self._refresh()  # a process with a former member's pid is new, seen or not
        for pid in (came | self._trusted) - self._members.keys() - self._avoid:
            if pid not in fresh and (stat := self._procfs.stat(pid)) is not None:
                fresh[pid] = stat
        # Only now: where a read has failed, the next look begins with the same processes.
        self._arrivals.taken()
        self._full_due = False
        self._trusted.clear()
        if fresh:
            self._plant(fresh)
            self._adopt(fresh)
        found: dict[str, list[JobProcess]] = {job: [] for job in self._jobs}
        for pid, member in self._members.items():
            self._judge(member, holders)
            stat = member.stat
            wchan = self._procfs.wchan(pid) if stat.state != "R" else None
            io, worlds = self._procfs.io(pid), (member.world, member.local_world)
            proc = JobProcess(member.rank, member.local, member.role, stat, io, wchan, *worlds)
            found[member.roots.job].append(proc)
        return {job: tuple(procs) for job, procs in found.items()}

    def trust(self, pid: int) -> None:
        """The files of this process may be read again."""
        self._avoid.discard(pid)
        self._trusted.add(pid)

    # --- members ------------------------------------------------------------------------------------------------------

    def _take(self, jobs: Sequence[JobRoots]) -> bool:
        """Takes the jobs as they are now; whether one of them has roots that it did not have."""
        before, self._jobs = self._jobs, {roots.job: roots for roots in jobs}
        # Another attempt begins anew: what is left of the one before it is still below the supervisor.
        kept = {job for job, roots in self._jobs.items() if job in before and before[job].roots == roots.roots}
        for pid, member in list(self._members.items()):
            if member.roots.job in kept:
                member.roots = self._jobs[member.roots.job]
            else:
                del self._members[pid]
        # A session outlives its leader: a rank has ended, and what it has left behind is its still.
        self._sessions = {sid: leader for sid, leader in self._sessions.items() if leader.roots.job in kept}
        return any(before.get(job) != roots for job, roots in self._jobs.items())

    def _refresh(self) -> dict[int, Stat]:
        """Looks at the members again, and forgets those that have exited. Returns the processes that have their pids
        now."""
        others: dict[int, Stat] = {}
        for pid, member in list(self._members.items()):
            stat = self._procfs.stat(pid) if pid not in self._avoid else None
            if stat is not None and stat.start == member.stat.start:
                if stat.comm != member.stat.comm or stat.before_exec != member.stat.before_exec:
                    member.known_as, member.numbers = "", None
                member.stat = stat
                continue
            del self._members[pid]
            if stat is not None:
                others[pid] = stat
        return others

    def _plant(self, fresh: Mapping[int, Stat]) -> None:
        """Takes in the jobs' roots, and gives up sessions whose number is another's by now."""
        for sid, leader in list(self._sessions.items()):
            if fresh.get(sid, leader.stat).start != leader.stat.start:
                del self._sessions[sid]
        for roots in self._jobs.values():
            for local, root in enumerate(roots.roots):
                stat = fresh.get(root.pid)
                if stat is not None and stat.start == root.start and root.pid not in self._members:
                    member = self._members[root.pid] = _Member(stat, roots, None, root, local)
                    if not root.launcher:
                        self._sessions[root.pid] = member

    def _adopt(self, fresh: Mapping[int, Stat]) -> None:
        """Takes those into their jobs' trees that descend from a member, or are below a supervisor."""
        supervisors = {roots.supervisor: roots for roots in self._jobs.values() if roots.supervisor}
        strangers: set[int] = set()
        for pid in fresh:
            line: list[Stat] = []
            passed: set[int] = set()
            at = pid
            while at not in self._members and at not in supervisors and at not in strangers:
                stat = fresh.get(at)
                if stat is None or at in passed:  # in a circle: a pid on the way was given out again between two reads
                    break
                passed.add(at)
                line.append(stat)
                at = stat.ppid
            if not line:
                continue
            parent = self._members.get(at)
            below = parent.roots if parent is not None else supervisors.get(at)
            while parent is None and line:  # re-parented before it was seen first
                leader = self._sessions.get(line[-1].session)
                if leader is not None and line[-1].start >= leader.stat.start:
                    parent, below = leader, leader.roots
                elif below is not None:
                    break
                else:
                    strangers.add(line.pop().pid)
            for stat in reversed(line):
                assert below is not None
                parent = self._members[stat.pid] = _Member(stat, below, parent)

    # --- what they are ------------------------------------------------------------------------------------------------

    def _judge(self, member: _Member, holders: Mapping[int, int]) -> None:
        """Says what a process is; its parent was judged before it."""
        parent, root = member.parent, member.root
        if root is not None:
            member.launches = root.launcher
            member.role, member.rank = (ProcessRole.HELPER, None) if root.launcher else (ProcessRole.RANK, root.rank)
            return
        if self._is_of_session(member):
            member.role = ProcessRole.SESSION
            return
        member.named = (parent is not None and parent.named) or self._is_helper(member)
        member.launches = parent is not None and parent.launches
        member.role, member.rank, member.local = ProcessRole.HELPER, None, None
        if member.named:
            return
        if parent is not None and parent.role != ProcessRole.HELPER:
            member.role, member.rank, member.local = ProcessRole.WORKER, parent.rank, parent.local
        elif member.launches:
            self._perhaps_rank(member, holders)

    def _is_of_session(self, member: _Member) -> bool:
        """Sessions are the supervisor's children, as are steps and what was re-parented to it."""
        if member.parent is not None:
            return member.parent.role is ProcessRole.SESSION
        return "session" in self._numbers(member)

    def _perhaps_rank(self, member: _Member, holders: Mapping[int, int]) -> None:
        """Below a launcher: whether this is a rank, and which."""
        roots = member.roots
        mine = self._numbers(member)
        parents = self._numbers(member.parent) if member.parent is not None else {}
        rank = _number(mine, _RANK_NUMBERS)
        told = rank is not None and rank != _number(parents, _RANK_NUMBERS)
        card = holders.get(member.stat.pid)
        place = roots.cards.index(card) if card is not None and card in roots.cards else None
        if not told and place is None:
            return
        local = _number(mine, _LOCAL_NUMBERS) if told else place
        if not told:
            rank = roots.first_rank + (place or 0)
        member.role, member.rank, member.local, member.launches = ProcessRole.RANK, rank, local, False
        member.world, member.local_world = _number(mine, _WORLDS), _number(mine, _LOCAL_WORLDS)

    def _numbers(self, member: _Member) -> Mapping[str, str]:
        if member.stat.before_exec:
            return self._numbers(member.parent) if member.parent is not None else {}
        if member.numbers is None:
            member.numbers = self._procfs.environ(member.stat.pid, _NUMBERS)
        return member.numbers

    def _is_helper(self, member: _Member) -> bool:
        if not member.known_as:
            member.known_as = member.stat.comm
            if member.stat.comm.startswith("python") and not member.stat.before_exec:
                member.known_as = _program(self._procfs.command(member.stat.pid)) or member.stat.comm
        name = member.known_as[:15]
        return name in self._exact or (bool(self._prefixes) and member.known_as.startswith(self._prefixes))


def _program(command: Sequence[str]) -> str:
    """What an interpreter runs: the name of its script, or the uppermost package of its module."""
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return next(words, "").partition(".")[0]
        if word == "-c":
            return ""
        if word in ("-W", "-X"):
            next(words, None)
        elif not word.startswith("-"):
            return os.path.basename(word)
    return ""


def _number(found: Mapping[str, str], names: Sequence[str]) -> int | None:
    for name in names:
        if found.get(name, "").isdigit():
            return int(found[name])
    return None
