"""The jobs that a nursery tends: their supervisors, their ranks when these are orphans, and the FIFOs held for them."""

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Iterator

from muster.probes.kernel import process
from muster.probes.kernel.process import FULL
from muster.supervisors.job import supervisor
from muster.supervisors.model import journal
from muster.supervisors.model.replay import replay
from muster.supervisors.nursery.standby import Standby, fork
from muster.supervisors.nursery.supervised_job import SupervisedJob, children_of_ours, how, say
from muster.supervisors.output.tee import open_reader
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import ProtocolError, SupervisionError, explain
from muster.supervisors.system import descriptors, lock
from muster.supervisors.system.loop import AGAIN_S, Loop
from muster.supervisors.system.spare import Spare
from muster.supervisors.wire import messages
from muster.supervisors.wire.control import ControlClient
from muster.supervisors.wire.link import FDS, pair

#: A supervisor that dies sooner than this after its start is started again only after a pause; both in seconds.
EARLY_S = 2.0
PAUSES_S = (0.0, 0.1, 0.5, 2.0, 10.0)
#: A supervisor that is not ready so many seconds after its fork is late: the nursery tells waiting daemons its pid.
LATE_S = 2.0
#: How long a nursery that forked the supervisor is given to replace it, if it lives: it is the ranks' parent then.
YIELD_S = 0.5


class SupervisedJobs:
    """All jobs of one nursery."""

    def __init__(
        self,
        root: Root,
        loop: Loop,
        daemons: Callable[[], set[int]],
        tell: Callable[[messages.Message], None],
        spare: Spare,
        step_aside: Callable[[str], None],
        see_name: Callable[[], None],
        owned: bool,
    ) -> None:
        """`daemons`: pids of those that are connected, which hold a job's lock for moments only; `tell` sends them a
        message. `spare`: given up where there is no descriptor for a fork. `step_aside` is called with the reason where
        a supervisor would get too few descriptors from us: see retired.py; `see_name` before each fork: it retires us
        where another nursery has our name. `owned`: see Nursery."""
        self._owned = owned
        self._daemons, self._tell, self._spare = daemons, tell, spare
        self._step_aside, self._see_name = step_aside, see_name
        self._retired = False
        self._root = root
        self._loop = loop
        loop.on_child = self.reap
        self._jobs: dict[str, SupervisedJob] = {}
        self._standby = Standby(root, loop, owned)

    def __len__(self) -> int:
        return len(self._jobs)

    def reap(self) -> None:
        """Reaps orphans that are no rank. The pidfds of supervisors report their ends."""
        try:
            children = set(children_of_ours())
        except OSError as error:  # no descriptor to be had, say: they stay zombies for a while
            if error.errno in FULL:
                self._spare.make_room()
            say(f"{error}; trying again")
            self._loop.later(AGAIN_S, self.reap)
            return
        for job in list(self._jobs.values()):
            self._on_word(job)
            self._tell_ended(job, children)
        kept = {job.pid for job in self._jobs.values() if job.own} | {self._standby.pid}
        kept.update(*(job.ranks for job in self._jobs.values()))
        for pid in children - kept:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        for job in [job for job in self._jobs.values() if job.left and not job.ranks & children]:
            self._drop(job)

    def retire(self) -> None:
        """From now on no supervisor is forked. Those that live are looked after, and ranks that came to us are kept
        until another nursery's supervisor has recorded their ends (retired.py)."""
        self._retired = True
        self._standby.close()

    def ends(self) -> Iterator[tuple[str, int, int]]:
        """Job, pid and status of ranks that have ended and are kept for a supervisor of another nursery."""
        for job in self._jobs.values():
            if job.left:
                for pid in job.ranks:
                    status = process.peek_child(pid)
                    if status is not None:
                        yield job.job_id, pid, status

    def let_go(self, job_id: str, pid: int) -> None:
        """The end of a rank that is kept here is recorded, or its job has ended."""
        job = self._jobs.get(job_id)
        if job is not None and job.left and pid in job.ranks:
            job.ranks.discard(pid)
            self.reap()

    def ended_elsewhere(self, job_id: str, pid: int, status: int) -> bool:
        """Another nursery's child, a rank of this job, has ended so. Returns whether it may be waited for."""
        job = self._jobs.get(job_id)
        if job is None:
            return self.has_ended(job_id)
        if pid in job.ranks and job.sock is not None:
            with contextlib.suppress(OSError):  # the next try repeats it
                job.sock.send(messages.encode({"op": "ended", "pid": pid, "status": status}))
        return pid in job.recorded

    def tend(self, job_id: str, client: ControlClient | None) -> None:
        """Makes sure that the job has a living supervisor; tells `client` when it listens, or why there is none."""
        job = self._jobs.get(job_id)
        if job is None:
            try:
                job = self._take_up(job_id)
            except (OSError, SupervisionError) as error:
                if client is not None:
                    client.send({"op": "tend", "job": job_id, "ok": False, "error": str(error)})
                return
        if job.expected:
            self._is_recorded(job)
            job.started = time.monotonic()
            self._loop.later(LATE_S, lambda: self._tell_late(job))
        if client is not None:
            job.waiting.append(client)
            if job.death is not None and not job.ready:
                client.send(job.death)
        if job.ready:
            self._announce(job)
        elif time.monotonic() - job.started >= LATE_S:
            self._tell_late(job)

    def expect(self, job_id: str, folder: str) -> None:
        """A daemon is about to record this job in `folder`, and has its lock. The supervisor that waits, if there is
        one, gets it now: it begins once the daemon lets go of the lock, so that no hand-over is waited for. Nothing is
        forked for it; `tend`, which follows, makes sure that there is a supervisor."""
        if job_id in self._jobs:
            return
        with contextlib.suppress(OSError):
            self._find_fit()
            if (forked := self._standby.take(job_id, folder)) is not None:
                job = SupervisedJob(job_id, forked.pid, forked.pidfd, True, time.monotonic(), forked.sock)
                job.expected = True
                self._adopt(job)

    def _is_recorded(self, job: SupervisedJob) -> None:
        """It was expected, and is a job like any other from now on. Before, it had no FIFOs where they belong."""
        job.expected = False
        self._hold_by_path(job)

    def _take_up(self, job_id: str) -> SupervisedJob:
        """Takes up a job that we do not know: another nursery's supervisor that lives, or a new one of ours."""
        paths = self._root.job(job_id)
        if not paths.journal.exists():
            raise FileNotFoundError(f"{paths.journal}: there is no such job")
        holder = self._holder(job_id)
        stat = process.read_stat(holder) if holder else None
        pidfd = process.open_pidfd(holder, stat.start) if stat is not None else None
        if pidfd is None or holder in self._daemons():
            if pidfd is not None:
                os.close(pidfd)
            return self._fork(job_id)
        job = SupervisedJob(job_id, holder, pidfd, own=False, started=time.monotonic(), ready=True)
        self._adopt(job)
        self._hold_by_path(job)
        return job

    def _adopt(self, job: SupervisedJob) -> None:
        self._jobs[job.job_id] = job
        self._loop.add(job.pidfd, lambda: self._on_supervisor_end(job))
        if job.sock is not None:
            self._loop.add(job.sock.fileno(), lambda: self._on_word(job))

    def _hold_by_path(self, job: SupervisedJob) -> None:
        """For a supervisor that cannot tell us of its FIFOs: another nursery forked it, or it does not run yet."""
        for path in self._root.job(job.job_id).folder.glob("*.fifo"):
            with contextlib.suppress(OSError):
                job.holds.append(open_reader(path))

    def _fork(self, job_id: str, before: SupervisedJob | None = None) -> SupervisedJob:
        """A supervisor for the job; `before` is its predecessor, whose holds stay. Raises OSError."""
        self._find_fit()
        forked = self._standby.take(job_id) or fork(self._root, self._pair(), self._owned, job_id)
        job = SupervisedJob(job_id, forked.pid, forked.pidfd, own=True, started=time.monotonic(), sock=forked.sock)
        if before is not None:
            job.ranks, job.holds = before.ranks, before.holds + before.fresh
            job.recorded = before.recorded
            job.waiting, job.failures, job.death = before.waiting, before.failures, before.death
        elif any(self._root.job(job_id).folder.glob("*.fifo")):
            self._hold_by_path(job)
        self._adopt(job)
        self._loop.later(LATE_S, lambda: self._tell_late(job))
        return job

    def _tell_late(self, job: SupervisedJob) -> None:
        """It may be stopped, or hang: nobody else knows of it as long as it has taken no lock."""
        if job.ready or self._jobs.get(job.job_id) is not job or (stat := process.read_stat(job.pid)) is None:
            return
        for client in job.waiting:
            client.send({"op": "late", "job": job.job_id, "pid": job.pid, "start": stat.start})

    def _find_fit(self) -> None:
        """Looks whether it is for us to fork, and a supervisor would get the descriptors that we were given. Raises
        OSError where another nursery is to do it, or would if a daemon is there to start one with better limits."""
        self._see_name()
        self._spare.raise_limit()
        limit = descriptors.lowered_to()
        if limit is not None and self._daemons():
            self._step_aside(f"somebody lowered its limit of open files to {limit}, which it may not raise")
        if self._retired:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def _pair(self) -> tuple[socket.socket, socket.socket]:
        """As `pair`, with a descriptor left for the pidfd. Raises OSError."""
        while True:
            try:
                third = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    return pair()
                finally:
                    os.close(third)
            except OSError as error:
                if error.errno not in FULL or not self._spare.make_room():
                    raise
                say(f"{error.strerror}: using reserved file descriptors for a supervisor")

    def _on_word(self, job: SupervisedJob) -> None:
        """Takes what the supervisor has said; all of it, since it may be dead already."""
        if job.sock is None:
            return
        while True:
            try:
                data, fds, flags, _ = socket.recv_fds(job.sock, messages.MAX_LINE * 2, FDS)
            except BlockingIOError:
                return
            except OSError:
                data, fds, flags = b"", [], 0
            self._standby.postpone()
            job.fresh += fds
            job.short |= bool(flags & socket.MSG_CTRUNC)
            try:
                if not data:
                    raise ProtocolError("it has closed the link")
                self._hear(job, messages.decode(data))
            except (ProtocolError, KeyError, TypeError, ValueError):
                self._loop.remove(job.sock.fileno())
                job.sock.close()
                job.sock = None
                return

    def _hear(self, job: SupervisedJob, message: messages.Message) -> None:
        op = message["op"]
        if op == "ready":
            job.ready = True
            if job.expected:
                self._is_recorded(job)
            self._announce(job)
        elif op == "ranks":
            job.ranks = set(message["pids"])
            job.told.clear()  # of an attempt before: a pid can come again
            job.recorded -= job.ranks
            self._tell_ended(job, job.ranks)
        elif op == "hold" and message.get("last"):
            # Should there have been no room for all of them, the old ones are better than some.
            old = job.fresh if job.short else job.holds
            job.holds, job.fresh, job.short = (
                job.holds if job.short else job.fresh,
                [],
                False,
            )
            for fd in old:
                os.close(fd)
        elif op == "reap" and message["pid"] in job.ranks:
            job.ranks.discard(message["pid"])
            job.recorded.add(message["pid"])
            with contextlib.suppress(ChildProcessError):
                os.waitpid(message["pid"], os.WNOHANG)
        elif op == "done":
            job.done = True
        elif op == "died":
            job.error = str(message["error"])

    def _tell_ended(self, job: SupervisedJob, children: set[int]) -> None:
        """What the supervisor of an adopted rank may not be able to read, its parent can: how it ended."""
        if job.sock is None:
            return
        for pid in (job.ranks & children) - job.told:
            status = process.peek_child(pid)
            if status is not None:
                with contextlib.suppress(OSError):  # a supervisor that does not read gets it again
                    job.sock.send(messages.encode({"op": "ended", "pid": pid, "status": status}))
                    job.told.add(pid)

    def _announce(self, job: SupervisedJob) -> None:
        for client in job.waiting:
            client.send({"op": "tend", "job": job.job_id, "ok": True, "pid": job.pid})
        job.waiting.clear()

    def _on_supervisor_end(self, job: SupervisedJob) -> None:
        """A supervisor has exited. Its successor starts only now: two must never write."""
        self._standby.postpone()
        self._on_word(job)
        code = None
        if job.own:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(job.pid, os.WNOHANG)
                if pid == 0:
                    return
                code = os.waitstatus_to_exitcode(status)
        self._loop.remove(job.pidfd)
        os.close(job.pidfd)
        if job.sock is not None:
            self._loop.remove(job.sock.fileno())
            job.sock.close()
        if job.expected:  # it was not recorded, or will be tended
            self._drop(job)
            return
        if job.done or code in (supervisor.DONE, supervisor.UNUSABLE) or self.has_ended(job.job_id):
            unusable = job.error or "its files cannot be used"
            self._close(job, unusable if code == supervisor.UNUSABLE else "the job has ended")
            return
        if code == supervisor.BUSY and not self._retired and self._holder(job.job_id) not in (0, *self._daemons()):
            # Lost a race against another nursery's supervisor: see which one has the job.
            self._jobs.pop(job.job_id)
            self.tend(job.job_id, None)
            for client in job.waiting:
                self.tend(job.job_id, client)
            successor = self._jobs.get(job.job_id)
            if successor is not None:
                successor.ranks |= job.ranks
                successor.holds += job.holds + job.fresh
            else:
                for fd in job.holds + job.fresh:
                    os.close(fd)
            return
        self._report(job, how(code), job.error)
        early = time.monotonic() - job.started < EARLY_S
        job.failures = min(job.failures + 1, len(PAUSES_S) - 1) if early else 0
        job.ready = False
        pause = max(PAUSES_S[job.failures], 0.0 if job.own else YIELD_S)
        self._loop.later(pause, lambda: self._succeed(job))

    def _succeed(self, job: SupervisedJob) -> None:
        try:
            self._fork(job.job_id, before=job)
        except OSError as error:  # EAGAIN, ENOMEM: the job's processes live on, and so we try until it works
            if self._retired:
                job.left, job.own, job.sock = True, False, None
                self.reap()
                return
            say(f"cannot fork a supervisor for {job.job_id}: {error}")
            job.refused += 1
            self._report(job, "has no successor", f"the nursery cannot fork one: {explain(error)}", lived=False)
            self._loop.later(PAUSES_S[-2], lambda: self._succeed(job))

    def _holder(self, job_id: str) -> int:
        """Pid of the supervisor that has a job; 0 for none that can be seen."""
        try:
            return lock.holder(self._root.job(job_id).lock)
        except OSError as error:
            say(f"{job_id}: {error}")
            return 0

    def _report(self, job: SupervisedJob, how: str, error: str, *, lived: bool = True) -> None:
        """Tells the daemons of the death of a supervisor, and keeps that for a daemon that connects later. `lived`:
        False where none could be started."""
        which = {"pid": job.pid, "refused": job.refused}
        job.death = {"op": "died", "job": job.job_id, "how": how, "error": error, "lived": lived} | which
        self._tell(job.death)

    def has_ended(self, job_id: str) -> bool:
        """Read from the journal, since a killed supervisor cannot say it. A damaged one is not worked with either."""
        try:
            return replay(journal.read(self._root.job(job_id).journal).records).state.final
        except FileNotFoundError:
            return True
        except SupervisionError as error:
            say(f"{job_id}: {error}")
            return True
        except OSError as error:
            say(f"{job_id}: {error}")
            return False

    def _drop(self, job: SupervisedJob) -> None:
        self._jobs.pop(job.job_id, None)
        for fd in job.holds + job.fresh:
            os.close(fd)

    def _close(self, job: SupervisedJob, why: str) -> None:
        self._drop(job)
        for path in self._root.job(job.job_id).controls:
            with contextlib.suppress(OSError):  # left by a supervisor that was killed behind its job's last record
                path.unlink()
        for client in job.waiting:
            client.send({"op": "tend", "job": job.job_id, "ok": False, "error": why})
        self.reap()
