"""How ranks end: the supervisor sees the end through a pidfd, records it, and only then reaps the rank."""

import contextlib
import itertools
import os
import select
import signal
import time
from collections.abc import Callable, Set

from muster.probes.kernel import process
from muster.supervisors.launch import child
from muster.supervisors.model import rank_ends
from muster.supervisors.model.ledger import Ledger
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.staging_progress import STEPS, StagingProgress
from muster.supervisors.model.states import Kind, Outcome
from muster.supervisors.paths import JobPaths
from muster.supervisors.system import cgroups, oom
from muster.supervisors.system.loop import Loop
from muster.supervisors.wire.link import NurseryLink

#: How long the status of a rank that is not our child, and that we may not read, is waited for, in seconds.
ASK_S, ASK_LOOK_S = 10.0, 0.01


class Ends:
    """Watches the ranks of one job."""

    def __init__(self, paths: JobPaths, command: str, loop: Loop, ledger: Ledger, link: NurseryLink) -> None:
        """`command`: the first word of what ranks execute, for messages, unless they say another."""
        self._paths = paths
        self._command = command
        self._loop = loop
        self._ledger = ledger
        self._link = link
        #: While it is not known whether they were let go, by a predecessor maybe: how they ended says nothing yet.
        self.undecided = True
        self._pidfds: dict[int, int] = {}
        # An epoll of their own: it lists the ended ranks in the order of their ends, for every reader and whatever
        # happened besides in this turn of the loop. The kernel keeps no exit times by which to sort later.
        self._ending = select.epoll()
        self._numbers: dict[int, int] = {}
        self._readable: list[int] = []
        #: Ranks that had ended before they were watched: the kernel lists them in the order in which they were added.
        self._found: set[int] = set()
        self._told: dict[int, int] = {}
        #: What the kernel's log says about running out of memory, as read for the ends that are collected now.
        self._victims: tuple[dict[int, str] | None] | None = None
        self._ask_until: dict[int, float] = {}
        #: Their ends are known, but not on disk yet: until then they stay zombies, which keep their status.
        self._unreaped: list[Rank] = []
        link.on_ended = self._told.__setitem__
        loop.add(self._ending.fileno(), self._note)

    def watch(self) -> None:
        """All ranks that have not ended. A vanished rank counts as readable: its status is lost.

        Raises OSError where there is no descriptor to be had.
        """
        for rank in self._ledger.job.processes():
            if rank.outcome is not None or rank.rank in self._pidfds:
                continue
            pidfd = process.open_pidfd(rank.pid, rank.start)
            if pidfd is None:
                self._readable.append(rank.rank)
            else:
                self._watch(rank.rank, pidfd)
        self._note()
        self._found.update(self._readable)

    @property
    def found(self) -> Set[int]:
        """Ranks that had ended before they were watched."""
        return self._found

    def collect(self, before: Callable[[], object], *, look: bool = False) -> list[int]:
        """Records how ranks ended, in the order in which the kernel reported it (`rank_ends.first_failure` goes by it).
        They are waited for (`reap`) once that is on disk; until then they stay zombies with their status.

        `before` is called once it is known which of them have ended, and before one is judged: it learns of what may
        have ended them. Who ends meanwhile is left for the next time. `look`: at all of them, also where no event has
        told yet, or none ever does: the kernel tells of no end while a debugger keeps threads that have ended. Returns
        their numbers. Raises OSError where /proc cannot be read, and what `before` raises.
        """
        if look:
            self._note()
            self._note_kept()
        if self._readable:
            before()
        self._readable = [n for n in dict.fromkeys(self._readable) if self._rank(n).outcome is None]
        found = {n: self._status(self._rank(n)) for n in self._readable}
        self._victims = None
        # A rank that ended after one whose status is still unknown is recorded after it, too.
        numbers = list(itertools.takewhile(lambda n: not self._may_yet_be_told(n, found[n]), self._readable))
        if numbers:
            self._ledger.owe(*(self._record(self._rank(n), found[n]) for n in numbers))
        self._readable = [n for n in self._readable if n not in numbers]
        for number in numbers:
            self.forget(number)
        self._unreaped += [self._rank(number) for number in numbers]
        self.reap()
        return numbers

    @property
    def unreaped(self) -> list[Rank]:
        """Ranks that have ended and are kept as zombies, because the journal takes no record."""
        return self._unreaped

    def reap(self) -> None:
        """Waits for those whose ends are on disk."""
        if self._unreaped and not self._ledger.owes:
            ranks, self._unreaped = self._unreaped, []
            self._wait_for(ranks)

    def lose(self, ranks: list[Rank], detail: str) -> None:
        """Records that the ends of these ranks are unknown."""
        records = [
            {"kind": Kind.EXITED, "rank": r.rank, "outcome": Outcome.LOST, "status": None, "detail": detail}
            for r in ranks
        ]
        if records:
            self._ledger.owe(*records)

    def take_back(self) -> None:
        """Of processes that were recorded and then never let go: they are to be made again."""
        made = [(rank.rank, rank.pid) for rank in self._ledger.job.made_last()]
        self._ledger.owe({"kind": Kind.UNBORN})
        for number, pid in made:
            self.forget(number)
            self._readable = [other for other in self._readable if other != number]
            self._found.discard(number)
            self._told.pop(pid, None)
            self._ask_until.pop(number, None)
            self._link.tell("reap", pid=pid)

    def forget_all(self) -> None:
        """Forgets ranks that are spawned again, or no longer exist."""
        for number in list(self._pidfds):
            self.forget(number)
        self._readable.clear()
        self._found.clear()
        self._told.clear()
        self._ask_until.clear()

    def forget(self, number: int) -> None:
        """Ends the wait for this rank."""
        pidfd = self._pidfds.pop(number, None)
        if pidfd is not None:
            if self._numbers.pop(pidfd, None) is not None:
                self._ending.unregister(pidfd)
            os.close(pidfd)

    def _rank(self, number: int) -> Rank:
        return self._ledger.job.rank(number)

    def _watch(self, number: int, pidfd: int) -> None:
        try:
            self._ending.register(pidfd, select.EPOLLIN)
        except OSError:
            os.close(pidfd)
            raise
        self._pidfds[number] = pidfd
        self._numbers[pidfd] = number

    def _note(self) -> None:
        """Who has ended since the last time."""
        while self._numbers and (ready := self._ending.poll(0, len(self._numbers))):
            for pidfd, _ in ready:
                self._ending.unregister(pidfd)  # it stays ready, and has said all that it will
                self._readable.append(self._numbers.pop(pidfd))

    def _note_kept(self) -> None:
        """Who has ended and is kept by a debugger."""
        for pidfd, number in list(self._numbers.items()):
            rank = self._rank(number)
            stat = process.read_stat(rank.pid)
            ended = stat is not None and stat.start == rank.start and stat.ended
            if ended and not process.wait_ended(pidfd, 0):  # else the kernel tells it next time, in the right order
                self._ending.unregister(pidfd)
                self._readable.append(self._numbers.pop(pidfd))

    def _status(self, rank: Rank) -> int | None:
        told = self._told.get(rank.pid)
        return told if told is not None else process.final_status(rank.pid, rank.start, self._pidfds.get(rank.rank))

    def _may_yet_be_told(self, number: int, status: int | None) -> bool:
        """True while a status that we cannot read is still with somebody: the nursery, or a zombie's parent. And for
        as long as the process lives, whatever made us ask."""
        rank = self._rank(number)
        stat = process.read_stat(rank.pid) if status is None else None
        if stat is None or stat.start != rank.start:
            return False
        if stat.ended and time.monotonic() >= self._ask_until.setdefault(number, time.monotonic() + ASK_S):
            return False
        self._loop.later(ASK_LOOK_S, lambda: None)  # wakes us up: `collect` is called behind every batch of events
        return True

    def _record(self, rank: Rank, status: int | None) -> dict[str, object]:
        entry = None
        if status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) in child.GIVEN_UP:
            entry = child.read_unborn(self._paths.unborn).get(rank.pid)
        detail = child.explain_exec(rank.argv[0] if rank.argv else self._command, entry) if entry else ""
        told = None
        if not entry and status is not None and rank is self._ledger.job.step and self._ledger.job.step_name in STEPS:
            told = StagingProgress.read(self._paths.staging_progress)
            detail = told.error if told is not None and status else ""
        if status is None:
            detail = "it ended while neither its supervisor nor the nursery was running"
        outcome = rank_ends.outcome(self._ledger.job, rank.rank, status, unborn=entry is not None)
        if outcome is Outcome.SIGNALLED and status is not None and os.WTERMSIG(status) == signal.SIGKILL:
            outcome, detail = self._who_killed(rank)
        limit = 0
        if outcome in (Outcome.EXITED, Outcome.SIGNALLED) and status and not detail:
            limit, detail = self._memory_below()
        record: dict[str, object] = {
            "kind": Kind.EXITED,
            "rank": rank.rank,
            "outcome": outcome,
            "status": status,
            "usage": process.usage(rank.pid) if status is not None else {},
            "detail": detail,
        }
        if limit:
            record["memory_limit"] = limit
        if told is not None and told.beside and not status:
            record["beside"] = told.beside
        return record | ({"found_by": os.getpid()} if rank.rank in self._found else {})

    def _who_killed(self, rank: Rank) -> tuple[Outcome, str]:
        """The sender of a SIGKILL that was not ours: the kernel, out of memory, or another process."""
        job = self._ledger.job
        if self._victims is None:  # once for all that ended at the same time: it is long
            self._victims = (oom.victims(min(r.start for r in job.processes()) / process.TICKS_PER_S),)
        victims = self._victims[0]
        if victims is not None:
            if rank.pid in victims:
                how = f"the kernel killed it: out of memory ({victims[rank.pid]})"
                return Outcome.OUT_OF_MEMORY, how + self._of_limit()
            return Outcome.SIGNALLED, oom.NOT_THE_KERNEL
        if self._killed_others():
            how = "the kernel killed a process of the job: out of memory"
            return Outcome.OUT_OF_MEMORY, how + self._of_limit()
        if self._killed_around():
            limit = oom.limit_reached(str(cgroups.around("memory")))
            at = f", at its limit of {limit >> 20} MiB" if limit else ""
            return Outcome.OUT_OF_MEMORY, f"the kernel killed a process of the cgroup around the job: out of memory{at}"
        return Outcome.SIGNALLED, f"muster did not send it; {_out_of_memory_around()}"

    def _killed_others(self) -> bool:
        """Whether the kernel has killed more processes of the job in this attempt than are known to be ranks."""
        job = self._ledger.job
        return bool(job.memory_cgroup) and oom.kills(job.memory_cgroup) - job.oom_kills > self._counted()

    def _killed_around(self) -> bool:
        """The same of the cgroup around a job that has none of its own: of a container, say."""
        before = self._ledger.job.oom_kills_around
        return before is not None and oom.kills_around() - before > self._counted()

    def _counted(self) -> int:
        return sum(rank.outcome is Outcome.OUT_OF_MEMORY for rank in self._ledger.job.ranks)

    def _memory_below(self) -> tuple[int, str]:
        """The job's memory limit, and what the kernel did, where it killed a process that is no rank because the limit
        had been reached: its parent then ends with an exit code that does not tell. 0 where it did not."""
        job = self._ledger.job
        limit = oom.limit_reached(job.memory_cgroup) if self._killed_others() else 0
        if not limit:
            return 0, ""
        since = min(r.start for r in job.processes()) / process.TICKS_PER_S
        who = oom.killed_at_limit(job.memory_cgroup, since)
        return (limit, f"out of memory: the kernel killed {who} of the job{self._of_limit()}") if who else (0, "")

    def _of_limit(self) -> str:
        limit = oom.limit_reached(self._ledger.job.memory_cgroup)
        return f": the job reached its limit of {limit >> 20} MiB" if limit else ""

    def _wait_for(self, ranks: list[Rank]) -> None:
        """Only wait4(2) reports the peak (KiB); nothing depends on it, so it need not be on disk yet."""
        used = []
        for rank in ranks:
            try:
                pid, _, resources = os.wait4(rank.pid, os.WNOHANG)
            except ChildProcessError:
                self._link.tell("reap", pid=rank.pid)
                continue
            if pid:  # else a debugger keeps it
                used.append({"kind": Kind.USAGE, "rank": rank.rank, "max_rss": resources.ru_maxrss * 1024})
        if used:
            with contextlib.suppress(OSError):
                self._ledger.commit(*used, sync=False, tell=False)


def _out_of_memory_around() -> str:
    """What is known of the kernel where its log cannot be read: it counts for the cgroup around the job, a container's
    or a session's. That need not have been this job's process, nor now."""
    around = cgroups.around("memory")
    count = oom.kills(str(around)) if around is not None else 0
    if not count:
        return "the kernel may have run out of memory, but its log cannot be read"
    limit = oom.limit_reached(str(around))
    at = f", at its limit of {limit >> 20} MiB" if limit else ""
    processes = "1 process" if count == 1 else f"{count} processes"
    return f"the kernel, whose log cannot be read, has killed {processes} of {around} so far: out of memory{at}"
