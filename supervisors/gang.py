"""One job under one supervisor: its ranks from birth to the verdict.

What happens is told by records (lifecycle.py) that are committed to the journal first; what to do next is decided in
one place, `_decide`, from what the records add up to. A successor of a supervisor that died replays the same
records and goes on from there: a fresh start is only the special case in which nothing has happened yet.
"""

import contextlib
import os
import socket
import sys
import time

from supervisors import child, process, tee, verdict
from supervisors.containment import Containment, make_cgroup
from supervisors.control import JournalServer
from supervisors.ends import Ends
from supervisors.errors import NotStartable
from supervisors.escalation import KILL_WAIT_S, Escalation
from supervisors.journal import Contents
from supervisors.ledger import Ledger
from supervisors.lifecycle import Cause, Kind, Rank, State, Verdict
from supervisors.link import NurseryLink
from supervisors.loop import AGAIN_S, Loop
from supervisors.output import Output
from supervisors.paths import Root
from supervisors.process import Stat
from supervisors.spec import DEFAULT_GRACE_STEPS, MAX_GRACE_S, JobSpec
from supervisors.wire import Message

#: How often processes that outlive their ranks are looked at, in seconds; they are nobody's children that epoll knows.
LEFTOVER_LOOK_S = 0.05
#: How soon it is looked again where somebody must be left, but cannot be seen (it is just being born), in seconds.
GONE_LOOK_S = 0.002
_GATE_LOOK_S = 0.002
_GATE_WAIT_S = 10.0


class Gang:
    """The ranks of one job and all that belongs to them. The caller holds the job's lock."""

    def __init__(self, root: Root, spec: JobSpec, contents: Contents, sock: socket.socket) -> None:
        """`sock` leads to the nursery. Raises OSError."""
        self._root = root
        self._spec = spec
        self._paths = root.job(spec.job_id)
        self.loop = loop = Loop(self._say)
        loop.on_child, loop.after = self._wait_for_orphans, self._after
        self._control = JournalServer(loop, self._paths.control, self._on_stop)
        self._ledger = ledger = Ledger(self._paths, contents, self._control.publish)
        self.job = ledger.job
        self._link = NurseryLink(loop, sock)
        self._output = Output(root, spec.job_id, loop, ledger)
        self._ends = Ends(self._paths, spec.command[0], loop, ledger, self._link)
        self._escalation = Escalation(
            loop, ledger, lambda: self._containment, self._note_ends, self._look_again, self._give_up
        )
        self._adopted = any(r["kind"] == Kind.TAKEN for r in contents.records)
        self._containment = self._contain()
        # By the order of the records, which is the order in which the kernel reported the ends.
        exits = [r["rank"] for r in contents.records if r["kind"] == Kind.EXITED]
        self._first: int | None = next((n for n in exits if verdict.failed(self.job.rank(n))), None)
        # Until `begin` is through, and while it is not known whether the ranks were let go, nothing is decided.
        self._undecided = True
        self._look_due = True
        self._gone_look = GONE_LOOK_S
        self._resting = False
        # The first thing that the loop does, so that what has ended already is an event like any other. Not attempted
        # again here: a supervisor that cannot begin makes room for a successor.
        loop.once(self._begin)

    def _begin(self) -> None:
        """Takes the job over in whatever state it is. Raises OSError where the journal cannot be written."""
        job = self.job
        self._ledger.commit({"kind": Kind.TAKEN, "pid": os.getpid(), "takeover": self._adopted}, tell=self._adopted)
        self._link.tell("ready")
        self._undecided = False
        if job.boot_id != process.boot_id():
            self._end_after_reboot()
        elif job.spawned:
            self._adopt()
        elif job.state is State.STOPPING:
            self._conclude()
        else:
            self._prepare()

    # --- what the loop calls ------------------------------------------------------------------------------------------

    def _after(self) -> None:
        """Behind every batch of events: notes who has ended, then decides."""
        if self.job.state.final or self._resting or self._undecided:
            return
        try:
            self._output.commit_gaps()
            self._note_ends(look=False)
            self._decide()
        except OSError as error:
            # Most likely the journal takes no record (its disk is full or broken). Nothing is lost: ranks that have
            # ended stay zombies with their status until it does.
            self._say(error)
            self._resting = True
            self.loop.later(AGAIN_S, self._go_on)

    def _go_on(self) -> None:
        self._resting = False
        self._look_due = True

    def _wait_for_orphans(self) -> None:
        """Waits for those that came to us; ranks are waited for once their end is written down."""
        ranks = {r.pid for r in self.job.ranks if r.outcome is None}
        with contextlib.suppress(ChildProcessError):
            while True:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if info is None or info.si_pid in ranks:
                    return
                os.waitpid(info.si_pid, 0)

    def _on_stop(self, message: Message) -> Message:
        steps = message.get("steps")
        if steps is not None and not _are_seconds(steps):
            return {"ok": False, "error": f"steps must be a list of seconds, together at most {MAX_GRACE_S:.0f}"}
        try:
            self._stop(Cause.REQUESTED, str(message.get("by", "")), str(message.get("reason", "")), steps)
        except OSError as error:
            return {"ok": False, "error": f"the stop cannot be recorded: {error}"}
        return {"ok": True}

    def _say(self, error: OSError) -> None:
        """Into the nursery's log: what belongs in no journal."""
        with contextlib.suppress(OSError):
            now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            print(f"{now} supervisor {self._spec.job_id}: {error}; trying again", file=sys.stderr, flush=True)

    # --- birth --------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        children: list[int] = []
        gate: tuple[int, int] | None = None
        try:
            account = child.Account.of(self._spec.user)
            cgroup = make_cgroup(self._root.state, self._spec.job_id)
            preparing = {"kind": Kind.PREPARING, "attempt": self.job.attempt, "cgroup": cgroup}
            self._ledger.commit(preparing, sync=False, tell=False)
            self._containment = self._contain()
            self._paths.workspace.mkdir(exist_ok=True)
            self._paths.workspace.chmod(0o711)  # to be passed through by the job's user, whatever our umask is
            workdirs = [self._workdir(rank, account) for rank in self.job.ranks]
            owner = (account.uid, account.gid)
            self._output.make_fifos(self.job.ranks, owner)
            gate = os.pipe()
            unborn = child.open_unborn(self._paths.unborn, len(self.job.ranks))
            # All is ready before the first fork: each fork makes us copy again every page that we touch behind it.
            births = [
                child.Birth(
                    rank=rank.rank,
                    argv=self._spec.command,
                    env=child.environment(self._root, self._spec, self.job, rank, account),
                    workdir=workdir,
                    fifo=self._paths.fifo(rank.rank),
                    cgroup=cgroup,
                    account=account,
                )
                for rank, workdir in zip(self.job.ranks, workdirs, strict=True)
            ]
            with child.signals_blocked():
                for birth in births:
                    children.append(child.fork(birth, gate[0], gate[1], unborn))
            os.close(unborn)
            # While they get as far as the gate.
            self._link.hold(self._output.open(self.job.ranks, owner, fresh=True))
            self._record_births(children)
            self._ends.watch()
        except (OSError, NotStartable) as error:
            self._cannot_start(error, children, gate)
            return
        # One write, so that all ranks are let go or none: at most 4096 ranks, and PIPE_BUF is 4096.
        os.write(gate[1], b"1" * len(children))
        os.close(gate[0])
        os.close(gate[1])
        self.loop.attempt(self._run)

    def _workdir(self, rank: Rank, account: child.Account) -> str:
        if self._spec.workdir:
            return self._spec.workdir
        folder = self._paths.workspace / f"device{rank.device}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o755)
        if (account.uid, account.gid) != (os.geteuid(), os.getegid()):
            os.chown(folder, account.uid, account.gid, follow_symlinks=False)
        return str(folder)

    def _record_births(self, children: list[int]) -> None:
        spawned = []
        for rank, pid in zip(self.job.ranks, children, strict=True):
            stat = process.read_stat(pid)
            assert stat is not None  # our child, not waited for
            spawned.append([rank.rank, pid, stat.start])
        self._link.tell("ranks", pids=children)
        self._ledger.commit({"kind": Kind.SPAWNED, "ranks": spawned})

    def _run(self) -> None:
        if self.job.state is State.PREPARING:
            self._ledger.commit({"kind": Kind.RUNNING, "up": process.uptime()}, sync=False)
        self._arm_max_runtime()

    def _arm_max_runtime(self) -> None:
        limit = self._spec.max_runtime
        if limit is not None:
            self.loop.later(max(0.0, limit - (process.uptime() - self.job.started_up)), self._out_of_time)

    def _out_of_time(self) -> None:
        if self.job.stop is None:
            self._stop(Cause.MAX_RUNTIME, "max_runtime", f"{self._spec.max_runtime:g} s are over", None)

    def _cannot_start(self, error: Exception, children: list[int], gate: tuple[int, int] | None) -> None:
        for fd in gate or ():
            os.close(fd)  # the children see the gate's end and leave
        for pid in children:
            os.waitpid(pid, 0)
        text = f"{error.strerror}: {error.filename or 'fork'}" if isinstance(error, OSError) else str(error)
        self._put_away()
        self._end(*verdict.not_prepared(f"the job could not be prepared: {text}", elsewhere=True))

    # --- takeover -----------------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Goes on with ranks that a predecessor started."""
        ranks = self.job.ranks
        self._link.tell("ranks", pids=[r.pid for r in ranks if r.outcome is None])
        owner = self._output.owner(ranks) or (os.geteuid(), os.getegid())
        self._link.hold(self._output.open(ranks, owner, fresh=False))
        self._ends.watch()
        if not self.job.started_up:
            self._undecided = True
            self._settle(time.monotonic() + _GATE_WAIT_S)
        else:
            self._carry_on()

    def _carry_on(self) -> None:
        if self.job.state is State.STOPPING:
            self._escalation.go_on()
        else:
            self._run()

    def _settle(self, deadline: float) -> None:
        """Finds out whether the predecessor opened the gate: once no child is before its exec any more, the `unborn`
        file tells."""
        for rank in self.job.ranks:
            stat = process.read_stat(rank.pid)
            waiting = stat is not None and stat.start == rank.start and stat.before_exec and not stat.ended
            if waiting and time.monotonic() < deadline:
                self.loop.later(_GATE_LOOK_S, lambda: self._settle(deadline))
                return
        entries = child.read_unborn(self._paths.unborn)
        if any(entries.get(r.pid, {}).get("reason") == child.GATE_CLOSED for r in self.job.ranks):
            self._bear_again()
        else:
            self._undecided = False
            self._carry_on()

    def _bear_again(self) -> None:
        pids = [r.pid for r in self.job.ranks]
        self._ledger.commit({"kind": Kind.UNBORN})
        self._ends.forget_all()
        for pid in pids:
            self._link.tell("reap", pid=pid)
        self._output.close()
        self._undecided = False
        self.loop.attempt(self._conclude if self.job.stop is not None else self._prepare)

    def _end_after_reboot(self) -> None:
        """Nothing of another boot lives: what had not ended by then is lost, what never ran has failed."""
        if self.job.spawned:
            left = [r for r in self.job.ranks if r.outcome is None]
            self._ends.lose(left, "the node was rebooted while the job was running")
            if self._first is None and left:
                self._first = left[0].rank
        self._put_away()
        if self.job.spawned or self.job.stop is not None:
            self._reach()
        else:
            self._end(*verdict.not_prepared("the node was rebooted before the job began", elsewhere=False))

    # --- decisions ----------------------------------------------------------------------------------------------------

    def _note_ends(self, look: bool = True) -> None:
        """Raises OSError where the journal cannot be written. While it is not known whether the ranks were let go, how
        they ended says nothing yet."""
        if self._undecided:
            return
        for number in self._ends.collect(look=look):
            if self._first is None and verdict.failed(self.job.rank(number)):
                self._first = number
            self._look_due = True

    def _decide(self) -> None:
        """What follows from what has happened."""
        job = self.job
        if not job.spawned:
            return
        if self._first is not None and job.stop is None:
            rank = job.rank(self._first)
            self._stop(Cause.RANK_FAILED, f"rank {rank.rank}", f"it {verdict.describe(rank.status)}", None)
        if any(rank.outcome is None for rank in job.ranks) or not self._look_due:
            return
        self._look_due = False
        self._wait_for_orphans()
        if self._containment.gone():
            self._conclude()
            return
        left = self._containment.members()
        if left and job.stop is None:
            names = ", ".join(f"{s.pid} ({s.comm})" for s in left[:5])
            self._stop(Cause.LEFTOVERS, "muster", f"{len(left)} process(es) outlive their ranks: {names}", None)
        self._gone_look = min(self._gone_look * 2, LEFTOVER_LOOK_S)
        self.loop.later(LEFTOVER_LOOK_S if left else self._gone_look, self._look_again)

    def _look_again(self) -> None:
        self._look_due = True

    def _stop(self, cause: Cause, by: str, reason: str, steps: list[float] | None) -> None:
        own = tuple(self._spec.grace_steps) or DEFAULT_GRACE_STEPS
        self._escalation.begin(cause, by, reason, own if steps is None else tuple(float(s) for s in steps))

    def _give_up(self, left: list[Stat]) -> None:
        """Each is waited for in the kernel (state D, mostly); only the driver or a reboot can end them."""
        self._note_ends()
        for s in left:
            text = (
                f"process {s.pid} ({process.command_line(s.pid)}) cannot be killed: state {s.state} for "
                f"{KILL_WAIT_S:.0f} s after SIGKILL; what it holds, a card maybe, stays held"
            )
            if text not in self.job.warnings:
                self._ledger.commit({"kind": Kind.WARNING, "text": text})
        self._ends.lose([r for r in self.job.ranks if r.outcome is None], "it cannot be killed")
        self._conclude()

    # --- the end ------------------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        """All processes are gone: the rest of the output, then everything is put away, then the verdict."""
        self._output.drain()
        self._output.commit_gaps()
        self._put_away()
        self._reach()

    def _reach(self) -> None:
        first: Rank | None = None
        last: tuple[str, ...] = ()
        if self._first is not None:
            first = self.job.rank(self._first)
            last = tee.tail(self._root.rank_log(self._spec.job_id, first.rank, first.device))
        self._end(*verdict.reach(self.job, first, last))

    def _put_away(self) -> None:
        self._output.close()
        self._ends.forget_all()
        for rank in self.job.ranks:
            with contextlib.suppress(FileNotFoundError):
                self._paths.fifo(rank.rank).unlink()
        self._containment.remove()
        for path in (self._paths.unborn, self._paths.lost):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def _end(self, state: State, end: Verdict) -> None:
        fields = {name: getattr(end, name) for name in Verdict.__slots__}
        self._ledger.commit({"kind": Kind.ENDED, "state": state, "verdict": fields})
        self._link.tell("done")
        self._control.close()
        with contextlib.suppress(FileNotFoundError):
            self._paths.control.unlink()
        self.loop.stop()

    def _contain(self) -> Containment:
        mark = child.nonce(self._root, self._spec.job_id, self.job)
        return Containment(self.job.cgroup, self.job.ranks, mark, self._adopted)


def _are_seconds(steps: object) -> bool:
    """Whether these are steps of a grace: finite, none negative, together no longer than is allowed."""
    if not isinstance(steps, list) or not all(type(s) in (int, float) and 0 <= s <= MAX_GRACE_S for s in steps):
        return False
    return sum(steps) <= MAX_GRACE_S
