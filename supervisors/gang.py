"""One job under one supervisor: its ranks from birth to the verdict.

What happens is told by records (lifecycle.py) that are committed to the journal first; what to do next is decided in
one place, `_decide`, from what the records add up to. A successor of a supervisor that died replays the same
records and goes on from there: a fresh start is only the special case in which nothing has happened yet.
"""

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from supervisors import child, process, tee, verdict
from supervisors.containment import Containment, make_cgroup
from supervisors.control import ControlServer
from supervisors.errors import NotStartable
from supervisors.journal import Contents, Record, Writer
from supervisors.lifecycle import Cause, Job, Kind, Outcome, Rank, State, Verdict, replay
from supervisors.link import NurseryLink
from supervisors.loop import Loop, Timer
from supervisors.paths import Root
from supervisors.spec import DEFAULT_GRACE_STEPS, MAX_GRACE_S, JobSpec
from supervisors.wire import Message

#: How long SIGKILL may take before a process counts as one that cannot be killed, and how often it is sent, in seconds.
KILL_WAIT_S = 30.0
KILL_AGAIN_S = 0.02
#: How often processes that outlive their ranks are looked at, in seconds; they are nobody's children that epoll knows.
LEFTOVER_LOOK_S = 0.05
#: How long output may take to be drained at the end, in seconds. Nobody writes any more by then.
DRAIN_WAIT_S = 60.0
#: Journal and node are tried again this often after an error, in seconds.
AGAIN_S = 1.0
#: How long the status of a rank that is not our child, and that we may not read, is waited for, in seconds.
ASK_S, ASK_LOOK_S = 10.0, 0.01
#: How soon it is looked again where somebody must be left, but cannot be seen (it is just being born), in seconds.
GONE_LOOK_S = 0.002
_GATE_LOOK_S = 0.002
_GATE_WAIT_S = 10.0


class Gang:
    """Owns the journal, the ranks, their output and the control socket of one job."""

    def __init__(self, root: Root, spec: JobSpec, contents: Contents, loop: Loop, sock: socket.socket) -> None:
        """The caller holds the job's lock; `sock` leads to the nursery. Raises OSError."""
        self._root = root
        self._spec = spec
        self._paths = root.job(spec.job_id)
        self._loop = loop
        self._link = NurseryLink(loop, sock, self._on_told)
        self.job: Job = replay(contents.records)
        self._adopted = any(r["kind"] == Kind.TAKEN for r in contents.records)
        self._exits = [r["rank"] for r in contents.records if r["kind"] == Kind.EXITED]
        self._writer = Writer(self._paths.journal, contents)
        with contextlib.suppress(OSError):
            self._writer.reserve(len(self.job.ranks))  # a predecessor's is gone if it cut a torn line off
        self._control = ControlServer(loop, self._paths.control, {"stop": self._on_stop})
        self._containment = self._make_containment()
        self._lost: tee.LostCounter | None = None
        self._logs: dict[int, tee.RankLog] = {}
        self._pidfds: dict[int, int] = {}
        self._readable: list[int] = []
        self._told: dict[int, int] = {}
        self._ask_until: dict[int, float] = {}
        self._gaps: dict[int, tee.Gap] = {}
        self._begun = False
        self._first: int | None = None
        self._settling = False
        self._look_due = True
        self._kill_timer: Timer | None = None
        self._kill_at = 0.0
        self._give_up_at = 0.0
        self._retrying = False

    def begin(self) -> None:
        """Takes the job over in whatever state it is. Raises OSError where the journal cannot be written."""
        self._begun = True
        self._commit({"kind": Kind.TAKEN, "pid": os.getpid(), "takeover": self._adopted})
        self._link.tell("ready")
        job = self.job
        if job.boot_id != process.boot_id():
            self._end_after_reboot()
        elif job.spawned:
            self._adopt()
        elif job.state is State.STOPPING:
            self._conclude()
        else:
            self._prepare()

    # --- what the loop calls ------------------------------------------------------------------------------------------

    def after(self) -> None:
        """Behind every batch of events: notes who has ended, then decides."""
        if self.job.state.final or self._retrying or not self._begun:
            return
        try:
            self._commit_gaps()
            self._collect()
            self._decide()
        except OSError as error:
            # Most likely the journal takes no record (its disk is full or broken). Nothing is lost: ranks that have
            # ended stay zombies with their status until it does.
            self._say(f"{error}; trying again")
            self._retrying = True
            self._loop.later(AGAIN_S, self._retry)

    def on_child(self) -> None:
        """Waits for orphans that came to us; ranks are waited for in `_collect` only."""
        ranks = {r.pid for r in self.job.ranks if r.outcome is None}
        with contextlib.suppress(ChildProcessError):
            while True:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if info is None or info.si_pid in ranks:
                    return
                os.waitpid(info.si_pid, 0)

    def _retry(self) -> None:
        self._retrying = False
        self._look_due = True

    def _later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """A timer whose work, should the journal or the node refuse it, is tried again until it is done."""
        return self._loop.later(seconds, lambda: self._attempt(callback))

    def _attempt(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except OSError as error:
            self._say(f"{error}; trying again")
            self._later(AGAIN_S, callback)

    def _on_end_of(self, number: int) -> None:
        """A rank's pidfd is ready, and stays so: it has said all that it will."""
        self._loop.remove(self._pidfds[number])
        self._readable.append(number)

    def _on_told(self, pid: int, status: int) -> None:
        """The nursery, as the parent, knows how a rank ended that is not our child."""
        self._told[pid] = status

    def _on_output(self, number: int) -> None:
        log = self._logs[number]
        before = log.stalled
        self._note_gap(number, log.drain())
        if log.stalled and not before:
            self._later(tee.RETRY_S, lambda: self._resume(number))

    def _resume(self, number: int) -> None:
        log = self._logs.get(number)
        if log is not None:
            self._note_gap(number, log.resume())
            if log.stalled:
                self._later(tee.RETRY_S, lambda: self._resume(number))

    def _note_gap(self, number: int, gap: tee.Gap | None) -> None:
        """One record tells of all gaps of a rank since the last: a disk that flaps must not fill the journal."""
        if gap is None:
            return
        before = self._gaps.setdefault(number, gap)
        if before is not gap:
            before.bytes += gap.bytes
            before.until, before.error = gap.until, gap.error

    def _on_stop(self, message: Message) -> Message:
        steps = message.get("steps")
        if steps is not None and not _are_seconds(steps):
            return {"ok": False, "error": f"steps must be a list of seconds, together at most {MAX_GRACE_S:.0f}"}
        try:
            self._stop(Cause.REQUESTED, str(message.get("by", "")), str(message.get("reason", "")), steps)
        except OSError as error:
            return {"ok": False, "error": f"the stop cannot be recorded: {error}"}
        return {"ok": True}

    # --- records ------------------------------------------------------------------------------------------------------

    def _commit(self, *records: Record, sync: bool = True) -> None:
        """Appends to the journal, then moves the job, then tells the watchers. Raises OSError with nothing changed."""
        now = time.time()
        number = self._writer.next_number
        stamped = [{"t": now} | record for record in records]
        self._writer.append(stamped, sync=sync)
        for i, record in enumerate(stamped):
            self.job.apply({"n": number + i} | record)
        self._control.publish(self._writer.size)

    def _commit_gaps(self) -> None:
        for number, gap in list(self._gaps.items()):
            self._commit(
                {
                    "kind": Kind.LOST_BYTES,
                    "rank": number,
                    "bytes": gap.bytes,
                    "since": gap.since,
                    "until": gap.until,
                    "error": gap.error,
                },
                sync=False,
            )
            del self._gaps[number]

    def _say(self, text: str) -> None:
        """Into the nursery's log: for what belongs in no journal."""
        with contextlib.suppress(OSError):
            now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            print(f"{now} supervisor {self._spec.job_id}: {text}", file=sys.stderr, flush=True)

    # --- birth --------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        children: list[int] = []
        gate: tuple[int, int] | None = None
        try:
            account = child.Account.of(self._spec.user)
            cgroup = make_cgroup(self._root.state, self._spec.job_id)
            self._commit({"kind": Kind.PREPARING, "attempt": self.job.attempt, "cgroup": cgroup}, sync=False)
            self._containment = self._make_containment()
            workdirs = [self._workdir(rank, account) for rank in self.job.ranks]
            self._open_logs((account.uid, account.gid), fresh=True)
            gate = os.pipe()
            unborn = child.open_unborn(self._paths.unborn, len(self.job.ranks))
            for rank, workdir in zip(self.job.ranks, workdirs, strict=True):
                birth = child.Birth(
                    rank=rank.rank,
                    argv=self._spec.command,
                    env=child.environment(self._root, self._spec, self.job, rank, account),
                    workdir=workdir,
                    fifo=self._paths.fifo(rank.rank),
                    cgroup=cgroup,
                    account=account,
                )
                children.append(child.fork(birth, gate[0], gate[1], unborn))
            os.close(unborn)
            self._record_births(children)
            self._watch_ranks()
        except (OSError, NotStartable) as error:
            self._cannot_start(error, children, gate)
            return
        # One write, so that all ranks are let go or none: at most 4096 ranks, and PIPE_BUF is 4096.
        os.write(gate[1], b"1" * len(children))
        os.close(gate[0])
        os.close(gate[1])
        self._attempt(self._run)

    def _record_births(self, children: list[int]) -> None:
        spawned = []
        for rank, pid in zip(self.job.ranks, children, strict=True):
            stat = process.read_stat(pid)
            assert stat is not None  # our child, not waited for
            spawned.append([rank.rank, pid, stat.start])
        self._link.tell("ranks", pids=children)
        self._commit({"kind": Kind.SPAWNED, "ranks": spawned})

    def _run(self) -> None:
        if self.job.state is State.PREPARING:
            self._commit({"kind": Kind.RUNNING, "up": process.uptime()}, sync=False)
        self._arm_max_runtime()

    def _cannot_start(self, error: Exception, children: list[int], gate: tuple[int, int] | None) -> None:
        for fd in gate or ():
            os.close(fd)  # the children see the gate's end and leave
        for pid in children:
            os.waitpid(pid, 0)
        text = f"{error.strerror}: {error.filename or 'fork'}" if isinstance(error, OSError) else str(error)
        reason = "this node could not prepare the job"
        end = Verdict(
            verdict.OWN_FAILURE, f"the job could not be prepared: {text}",
            recommendation="RETRY_ELSEWHERE", recommendation_reason=reason,
        )  # fmt: skip
        self._put_away()
        self._end(State.FAILED, end)

    def _workdir(self, rank: Rank, account: child.Account) -> str:
        if self._spec.workdir:
            return self._spec.workdir
        folder = self._paths.workspace / f"device{rank.device}"
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if (account.uid, account.gid) != (os.geteuid(), os.getegid()):
            os.chown(folder, account.uid, account.gid, follow_symlinks=False)
        return str(folder)

    def _open_logs(self, owner: tuple[int, int], fresh: bool) -> None:
        job_id, ranks = self._spec.job_id, self.job.ranks
        self._lost = tee.LostCounter(self._paths.lost, len(ranks))
        for rank in ranks:
            fifo = self._paths.fifo(rank.rank)
            log = self._root.rank_log(job_id, rank.rank, rank.device)
            index = self._root.rank_index(job_id, rank.rank, rank.device)
            if fresh:
                tee.make_fifo(fifo, *owner)
                _set_aside(log, index)
            elif not fifo.exists():
                continue  # drained and put away before
            rank_log = tee.RankLog(fifo, log, index, owner, self._lost, rank.local_rank)
            self._logs[rank.rank] = rank_log
            if rank_log.stalled:
                self._later(0, lambda number=rank.rank: self._resume(number))  # type: ignore[misc]
            self._loop.add(rank_log.fd, lambda number=rank.rank: self._on_output(number))  # type: ignore[misc]
        self._link.hold([log.fd for log in self._logs.values()])

    # --- takeover -----------------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Goes on with ranks that a predecessor started."""
        self._link.tell("ranks", pids=[r.pid for r in self.job.ranks if r.outcome is None])
        # As the FIFOs are owned: who the job's user is need not be asked again, and may not be known at this moment.
        self._open_logs(self._owner(), fresh=False)
        self._watch_ranks()
        self._first = self._first_failed()
        if self.job.state is State.PREPARING:
            self._settling = True
            self._settle(time.monotonic() + _GATE_WAIT_S)
        elif self.job.state is State.STOPPING:
            self._resume_stop()
        else:
            self._arm_max_runtime()

    def _owner(self) -> tuple[int, int]:
        for rank in self.job.ranks:
            with contextlib.suppress(FileNotFoundError):
                stat = self._paths.fifo(rank.rank).stat()
                return stat.st_uid, stat.st_gid
        return os.geteuid(), os.getegid()

    def _first_failed(self) -> int | None:
        """By the order of the records, which is the order in which the kernel reported the ends."""
        return next((number for number in self._exits if verdict.failed(self.job.rank(number))), None)

    def _settle(self, deadline: float) -> None:
        """Finds out whether the predecessor opened the gate: once no child is before its exec any more, the `unborn`
        file tells."""
        for rank in self.job.ranks:
            stat = process.read_stat(rank.pid)
            waiting = stat is not None and stat.start == rank.start and stat.before_exec and not stat.ended
            if waiting and time.monotonic() < deadline:
                self._later(_GATE_LOOK_S, lambda: self._settle(deadline))
                return
        self._settling = False
        entries = child.read_unborn(self._paths.unborn)
        if not any(entries.get(r.pid, {}).get("reason") == child.GATE_CLOSED for r in self.job.ranks):
            self._run()
            return
        pids = [r.pid for r in self.job.ranks]
        self._commit({"kind": Kind.UNBORN})
        for rank in self.job.ranks:
            self._forget(rank.rank)
        for pid in pids:
            self._link.tell("reap", pid=pid)
        self._close_logs()
        self._attempt(self._conclude if self.job.stop is not None else self._prepare)

    def _end_after_reboot(self) -> None:
        """Nothing of another boot lives: what had not ended by then is lost, what never ran has failed."""
        ran = self.job.spawned
        text = (
            "the node was rebooted while the job was running" if ran else "the node was rebooted before the job began"
        )
        if ran:
            self._commit(*(self._lost_record(r, text) for r in self.job.ranks if r.outcome is None))
        self._put_away()
        if ran or self.job.stop is not None:
            lost = [r.rank for r in self.job.ranks if r.outcome is Outcome.LOST]
            self._first = self._first_failed() if self._first_failed() is not None else next(iter(lost), None)
            self._reach()
        else:
            self._end(
                State.FAILED,
                Verdict(
                    verdict.OWN_FAILURE, text, recommendation="RETRY_HERE", recommendation_reason="the job did not run"
                ),
            )

    def _lost_record(self, rank: Rank, detail: str) -> Record:
        return {
            "kind": Kind.EXITED, "rank": rank.rank, "outcome": Outcome.LOST, "status": None, "detail": detail,
        }  # fmt: skip

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _watch_ranks(self) -> None:
        """Exits are seen through pidfds. A rank that is gone already counts as readable: nobody can tell its status."""
        for rank in self.job.ranks:
            if rank.outcome is not None:
                continue
            pidfd = process.open_pidfd(rank.pid, rank.start)
            if pidfd is None:
                self._readable.append(rank.rank)
                continue
            self._pidfds[rank.rank] = pidfd
            self._loop.add(pidfd, lambda number=rank.rank: self._on_end_of(number))  # type: ignore[misc]

    def _collect(self) -> None:
        """Commits how ranks ended, in the order in which the kernel reported them; then they are waited for."""
        if self._settling or not self._readable:
            return
        self._readable = [n for n in dict.fromkeys(self._readable) if self.job.rank(n).outcome is None]
        found = {n: self._status(self.job.rank(n)) for n in self._readable}
        numbers = [n for n in self._readable if not self._may_yet_be_told(n, found[n])]
        if numbers:
            self._commit(*(self._exit_record(self.job.rank(n), found[n]) for n in numbers))
        self._readable = [n for n in self._readable if n not in numbers]
        for number in numbers:
            rank = self.job.rank(number)
            self._forget(number)
            self._reap(rank)
            if self._first is None and verdict.failed(rank):
                self._first = number
            self._look_due = True

    def _status(self, rank: Rank) -> int | None:
        told = self._told.get(rank.pid)
        return told if told is not None else process.final_status(rank.pid, rank.start, self._pidfds.get(rank.rank))

    def _may_yet_be_told(self, number: int, status: int | None) -> bool:
        """True while a status that we cannot read is still with somebody: the nursery, or a zombie's parent."""
        rank = self.job.rank(number)
        if status is not None or not process.is_zombie(rank.pid, rank.start):
            return False
        until = self._ask_until.setdefault(number, time.monotonic() + ASK_S)
        if time.monotonic() >= until:
            return False
        self._loop.later(ASK_LOOK_S, lambda: None)
        return True

    def _exit_record(self, rank: Rank, status: int | None) -> Record:
        entry = None
        if status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) in (125, 126, 127):
            entry = child.read_unborn(self._paths.unborn).get(rank.pid)
        detail = child.explain_exec(self._spec.command[0], entry) if entry else ""
        if status is None:
            detail = "it ended while neither its supervisor nor the nursery was there to see how"
        return {
            "kind": Kind.EXITED,
            "rank": rank.rank,
            "outcome": verdict.outcome(self.job, status, unborn=entry is not None),
            "status": status,
            "usage": process.usage(rank.pid) if status is not None else {},
            "detail": detail,
        }

    def _reap(self, rank: Rank) -> None:
        try:
            _, _, used = os.wait4(rank.pid, os.WNOHANG)
        except ChildProcessError:
            self._link.tell("reap", pid=rank.pid)
            return
        # Only the one who waits learns the peak (KiB); nothing depends on it, so it need not be on the disk yet.
        with contextlib.suppress(OSError):
            self._commit({"kind": Kind.USAGE, "rank": rank.rank, "max_rss": used.ru_maxrss * 1024}, sync=False)

    def _forget(self, number: int) -> None:
        pidfd = self._pidfds.pop(number, None)
        if pidfd is not None:
            self._loop.remove(pidfd)
            os.close(pidfd)

    def _decide(self) -> None:
        """What follows from what has happened."""
        job = self.job
        if job.state.final or self._settling or not job.spawned:
            return
        if self._first is not None and job.stop is None:
            rank = job.rank(self._first)
            self._stop(Cause.RANK_FAILED, f"rank {rank.rank}", f"it {verdict.describe(rank.status)}", None)
        if any(rank.outcome is None for rank in job.ranks):
            return
        if not self._look_due:
            return
        self._look_due = False
        self.on_child()
        if self._containment.gone():
            self._conclude()
            return
        left = self._containment.members()
        if left and job.stop is None:
            names = ", ".join(f"{s.pid} ({s.comm})" for s in left[:5])
            self._stop(
                Cause.LEFTOVERS, "muster", f"all ranks have ended, but {len(left)} process(es) live on: {names}", None
            )
        self._loop.later(LEFTOVER_LOOK_S if left else GONE_LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._look_due = True

    # --- stop ---------------------------------------------------------------------------------------------------------

    def _arm_max_runtime(self) -> None:
        limit = self._spec.max_runtime
        if limit is None:
            return
        self._later(max(0.0, limit - (process.uptime() - self.job.started_up)), self._out_of_time)

    def _out_of_time(self) -> None:
        if self.job.stop is None and not self.job.state.final:
            self._stop(Cause.MAX_RUNTIME, "max_runtime", f"{self._spec.max_runtime:g} s are over", None)

    def _stop(self, cause: Cause, by: str, reason: str, steps: list[float] | None) -> None:
        """Begins a stop, or shortens one that is under way. Raises OSError where it cannot be recorded."""
        if self.job.state.final:
            return
        own = tuple(self._spec.grace_steps) or DEFAULT_GRACE_STEPS
        wanted = own if steps is None else tuple(float(s) for s in steps)
        up = process.uptime()
        record = {"kind": Kind.STOPPING, "cause": cause, "by": by, "reason": reason, "steps": wanted, "up": up}
        if self.job.stop is not None:
            if time.monotonic() + sum(wanted) < self._kill_at:
                self._commit(record)
                self._arm_kill(sum(wanted))
            return
        self._commit(record)
        self._resume_stop()

    def _resume_stop(self) -> None:
        """What follows the record of a stop, ours or a predecessor's: SIGTERM if not sent, the rest of the grace."""
        stop = self.job.stop
        assert stop is not None
        total = sum(stop.steps)
        self._arm_kill(max(0.0, total - max(0.0, process.uptime() - stop.up)))
        self._look_due = True
        if self.job.terminated or total == 0:
            return
        # Whoever has ended by now did so by itself, and is no victim.
        self._readable += [number for number, pidfd in self._pidfds.items() if process.has_ended(pidfd)]
        with contextlib.suppress(OSError):  # tried again behind this batch; the signal must not wait for it
            self._collect()
        count = self._containment.signal(signal.SIGTERM)
        self.job.terminated = True
        with contextlib.suppress(OSError):
            self._commit({"kind": Kind.ESCALATED, "signal": "SIGTERM", "processes": count}, sync=False)

    def _arm_kill(self, seconds: float) -> None:
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._kill_at = time.monotonic() + seconds
        self._kill_timer = self._later(seconds, self._kill)

    def _kill(self) -> None:
        if self.job.state.final:
            return
        self._give_up_at = time.monotonic() + KILL_WAIT_S
        members = self._containment.kill()
        self._look_due = True
        self.job.terminated = True
        with contextlib.suppress(OSError):
            self._commit({"kind": Kind.ESCALATED, "signal": "SIGKILL", "processes": len(members)}, sync=False)
        self._later(KILL_AGAIN_S, self._kill_again)

    def _kill_again(self) -> None:
        if self.job.state.final:
            return
        left = self._containment.kill()
        self._look_due = True
        if time.monotonic() < self._give_up_at:
            self._later(KILL_AGAIN_S, self._kill_again)
            return
        self._collect()
        # Each is waited for in the kernel (state D, mostly); only the driver or a reboot can end them.
        pids = {stat.pid: stat for stat in left}
        warnings = [
            f"process {s.pid} ({process.command_line(s.pid)}) cannot be killed: state {s.state} for "
            f"{KILL_WAIT_S:.0f} s after SIGKILL; what it holds, a card maybe, stays held"
            for s in left
        ]
        self._commit(*({"kind": Kind.WARNING, "text": text} for text in warnings))
        for rank in self.job.ranks:
            if rank.outcome is None:
                seen = "it cannot be killed" if rank.pid in pids else "it was killed, and its end was not reported"
                self._commit(self._lost_record(rank, seen))
        self._conclude()

    # --- the end ------------------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        """All processes are gone: the rest of the output, then everything is put away, then the verdict."""
        for number, log in self._logs.items():
            for gap in log.drain_all(time.monotonic() + DRAIN_WAIT_S):
                self._note_gap(number, gap)
            self._note_gap(number, log.abandon())
        self._commit_gaps()
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
        self._close_logs()
        for rank in self.job.ranks:
            self._forget(rank.rank)
            with contextlib.suppress(FileNotFoundError):
                self._paths.fifo(rank.rank).unlink()
        self._containment.remove()
        for path in (self._paths.unborn, self._paths.lost):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def _end(self, state: State, end: Verdict) -> None:
        self._commit(
            {
                "kind": Kind.ENDED,
                "state": state,
                "verdict": {name: getattr(end, name) for name in Verdict.__slots__},
            }
        )
        self.leave()

    def leave(self) -> None:
        """Puts the control socket away and ends the loop: the job has ended."""
        self._link.tell("done")
        self._control.close()
        with contextlib.suppress(FileNotFoundError):
            self._paths.control.unlink()
        self._loop.stop()

    def _close_logs(self) -> None:
        for log in self._logs.values():
            self._loop.remove(log.fd)
            log.close()
        self._logs.clear()
        if self._lost is not None:
            self._lost.close()
            self._lost = None

    def _make_containment(self) -> Containment:
        mark = child.nonce(self._root, self._spec.job_id, self.job)
        return Containment(self.job.cgroup, self.job.ranks, mark, self._adopted)


def _are_seconds(steps: object) -> bool:
    """Whether these are steps of a grace: finite, none negative, together no longer than is allowed."""
    if not isinstance(steps, list) or not all(type(s) in (int, float) and 0 <= s <= MAX_GRACE_S for s in steps):
        return False
    return sum(steps) <= MAX_GRACE_S


def _set_aside(log: Path, index: Path) -> None:
    """A file of that name is the output of an earlier job whose record was removed: it is kept under another name."""
    try:
        stat = log.stat()
    except FileNotFoundError:
        return
    if stat.st_size:
        log.rename(f"{log}.{int(stat.st_mtime)}")
        with contextlib.suppress(FileNotFoundError):
            index.rename(f"{index}.{int(stat.st_mtime)}")
