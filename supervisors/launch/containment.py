"""Which processes belong to a job, and how to reach all of them with a signal.

Always: the process groups of the ranks, and all descendants of this supervisor, which is a subreaper, so double-forked
and `setsid` processes cannot escape. After a takeover the orphans of a job may be children of the nursery or of init:
muster finds them by the nonce in their environment. If the job has its own cgroup, the kernel knows all its processes
and `cgroup.kill` ends them at once; in cgroup v1 they are frozen first.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from muster.probes.kernel import marks, process
from muster.probes.kernel.process import FULL, Stat
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.system.controllers import freezer, job_limits

#: So many empty scans in a row are taken for the truth on a node that makes processes all the time; a second of them.
ENOUGH_SCANS = 20


class Containment:
    """The processes of one job."""

    def __init__(
        self,
        cgroup: str,
        ranks: Callable[[], list[Rank]],
        nonce: str,
        adopted: bool,
        parent: Callable[[], int] = os.getpid,
        is_marked: Callable[[int], bool] | None = None,
        cgroup_of: Callable[[int], str] | None = None,
    ) -> None:
        """`ranks` gives what runs at the moment: the ranks, or a step. `adopted`: this supervisor is not the parent of
        them, so that orphans may be anywhere. `parent`: the supervisor, where it is not us who ask; 0 for none.
        `is_marked`: in the place of the nonce, where that is not known; `cgroup_of`: the job's cgroup by a process that
        has its mark, or nothing, where it is not known."""
        self._parent = parent
        self._cgroup = Path(cgroup) if cgroup else None
        self._ranks = ranks
        entry = marks.mark(marks.NONCE, nonce)
        self._is_marked = is_marked or (lambda pid: process.environ_has(pid, entry))
        self._cgroup_of = cgroup_of
        self._adopted = adopted
        self._empty_scans = 0

    def renew(self, cgroup: str) -> None:
        """Another attempt of the job begins, in this cgroup. Nothing of an earlier one lives; what comes is ours."""
        self._cgroup = Path(cgroup) if cgroup else None
        self._adopted, self._empty_scans = False, 0

    def gone(self, *, kept: bool = False) -> bool:
        """Whether nothing of the job lives, by the cgroup or a scan. `kept`: children of ours that have ended
        are not waited for yet, and say nothing. An empty scan of /proc proves nothing: a process that forks and exits
        can be missed by it for ever.

        The cgroup counts its processes; a subreaper without children has no descendants. After a takeover
        without a cgroup that can be read a scan proves something if no process was made meanwhile: what lived was
        listed, and did not pass its place on to a child. Where processes are made all the time, many empty scans must
        do.
        """
        populated = self._populated()
        if populated:
            return False
        if not self._adopted and not kept:
            return not self._has_children() or (self._all_children_kept() and not self.members())
        if populated is not None:
            return not self._living_children()
        before = process.last_pid()
        if self.members():
            self._empty_scans = 0
            return False
        self._empty_scans += ENOUGH_SCANS if before == process.last_pid() else 1
        return self._empty_scans >= ENOUGH_SCANS

    def members(self) -> list[Stat]:
        """The living processes of the job that can be seen at this moment (zombies have ended)."""
        stats = process.all_stats()
        children: dict[int, list[int]] = {}
        for stat in stats.values():
            children.setdefault(stat.ppid, []).append(stat.pid)
        found = set(self._cgroup_pids())
        parent = self._parent()
        found.update(children.get(parent, ()) if parent else ())
        found.update(r.pid for r in self._ranks() if r.pid in stats and stats[r.pid].start == r.start)
        if self._adopted:
            oldest = min((r.start for r in self._ranks() if r.start), default=0)
            marked = [s.pid for s in stats.values() if s.start >= oldest and self._is_marked(s.pid)]
            found.update(marked)
            of = self._cgroup_of if self._cgroup is None else None
            if of is not None and (folder := next(filter(None, map(of, marked)), "")):
                self._cgroup = Path(folder)
                found.update(self._cgroup_pids())
        todo = list(found)
        while todo:
            for pid in children.get(todo.pop(), ()):
                if pid not in found:
                    found.add(pid)
                    todo.append(pid)
        found -= {os.getpid(), parent}
        for pid in found - stats.keys():  # spawned since /proc was listed
            young = process.read_stat(pid)
            if young is not None:
                stats[pid] = young
        return [stats[pid] for pid in found if pid in stats and not stats[pid].ended]

    def signal(self, number: int) -> int:
        """Signals every process of the job once; returns to how many. A stopped process is continued, so that it can
        act on the signal."""
        return self._signal(number, self.members(), set())

    def signal_all_but(self, number: int, spared: Callable[[list[Stat]], set[int]]) -> int:
        """As `signal`. `spared` says of the living processes which are left out, by their pids."""
        members = self.members()
        return self._signal(number, members, spared(members))

    def _signal(self, number: int, members: list[Stat], spared: set[int]) -> int:
        members = [stat for stat in members if stat.pid not in spared]
        groups = set()
        for rank in self._ranks():
            if rank.pid in spared:
                continue
            # A process group may be signalled by its number as long as its leader has not been waited for.
            stat = process.read_stat(rank.pid) if rank.pid and rank.outcome is None else None
            if stat is not None and stat.start == rank.start and stat.pgrp == rank.pid:
                groups.add(rank.pid)
        for group in groups:
            _killpg(group, number)
        for stat in members:
            if stat.pgrp not in groups:
                process.send(stat.pid, stat.start, number)
                process.send(stat.pid, stat.start, signal.SIGCONT)
        for group in groups:
            _killpg(group, signal.SIGCONT)
        return len(members)

    def kill(self) -> list[Stat]:
        """SIGKILL to everything; returns what was alive before. To be repeated until nothing is.

        A group dies at once, whatever it forks. All groups of the job's processes are its own: each rank began
        a session, and groups do not reach over sessions.
        """
        if self._cgroup is not None and freezer.is_freezer(self._cgroup):
            with freezer.frozen(self._cgroup):
                return self._kill_each()
        if self._cgroup is not None:
            try:
                (self._cgroup / "cgroup.kill").write_text("1")
            except OSError as error:
                _raise_if_full(error)
        return self._kill_each()

    def _kill_each(self) -> list[Stat]:
        members = self.members()
        for group in {stat.pgrp for stat in members} - {os.getpgrp(), self._parent(), 0}:
            _killpg(group, signal.SIGKILL)
        for stat in members:
            process.send(stat.pid, stat.start, signal.SIGKILL)
        return members

    def remove(self) -> None:
        """Removes the cgroup, unless it still has a process (which cannot be killed)."""
        if self._cgroup is not None:
            job_limits.remove(self._cgroup)

    def _populated(self) -> bool | None:
        """None: not known. There is no cgroup; or a predecessor removed it when it was empty; or somebody took its file
        system away, which looks the same."""
        if self._cgroup is None:
            return None
        if freezer.is_freezer(self._cgroup):
            return bool(self._cgroup_pids())
        try:
            return b"populated 1" in process.read_file(f"{self._cgroup}/cgroup.events")
        except OSError as error:
            _raise_if_full(error)
            return None

    def _living_children(self) -> list[Stat]:
        return [s for s in process.all_stats().values() if s.ppid == os.getpid() and not s.ended]

    def _cgroup_pids(self) -> list[int]:
        if self._cgroup is None:
            return []
        pids: list[int] = []
        try:
            for folder, _, _ in os.walk(self._cgroup, onerror=_raise_if_full):
                # 0 stands for a process of another pid namespace, which has no number here.
                pids += [pid for line in Path(folder, "cgroup.procs").read_text().split() if (pid := int(line)) > 0]
        except OSError as error:
            _raise_if_full(error)
        return pids

    @staticmethod
    def _has_children() -> bool:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    @staticmethod
    def _all_children_kept() -> bool:
        """Whether all our children have ended and none can be waited for: debuggers keep them. False where the kernel
        does not list them (CONFIG_PROC_CHILDREN)."""
        try:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return False
            pids = process.read_file(f"/proc/self/task/{os.getpid()}/children").split()
        except OSError as error:
            _raise_if_full(error)
            return False
        stats = [process.read_stat(int(pid)) for pid in pids]
        return bool(stats) and all(stat is not None and stat.ended for stat in stats)


def _raise_if_full(error: OSError) -> None:
    """Without a descriptor nothing was read: this must not look like "no process is left"."""
    if error.errno in FULL:
        raise error


def _killpg(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
