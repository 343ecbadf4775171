"""The jobs that a nursery tends: their supervisors, their ranks when these are orphans, and the FIFOs held for them."""

import contextlib
import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator

from muster.probes.kernel import process
from muster.probes.kernel.process import FULL
from muster.supervisors.birth import keyring
from muster.supervisors.job import supervisor
from muster.supervisors.model import journal
from muster.supervisors.model.replay import replay
from muster.supervisors.nursery.ward import Ward, children_of_ours, how, say
from muster.supervisors.output.tee import open_reader
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import ProtocolError, SupervisionError, explain
from muster.supervisors.system import descriptors, lock, owner_pipe
from muster.supervisors.system.loop import AGAIN_S, Loop
from muster.supervisors.system.spare import Spare
from muster.supervisors.system.subreaper import become_subreaper
from muster.supervisors.wire import messages
from muster.supervisors.wire.control import Client
from muster.supervisors.wire.link import FDS, pair

#: A supervisor that dies sooner than this after its start is started again only after a pause; both in seconds.
EARLY_S = 2.0
PAUSES_S = (0.0, 0.1, 0.5, 2.0, 10.0)
#: How long a nursery that forked the supervisor is given to replace it, if it lives: it is the ranks' parent then.
YIELD_S = 0.5


class Wards:
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
        self._wards: dict[str, Ward] = {}

    def __len__(self) -> int:
        return len(self._wards)

    def reap(self) -> None:
        """Waits for orphans that are nobody's rank. Supervisors are seen through their pidfds."""
        try:
            children = set(children_of_ours())
        except OSError as error:  # no descriptor to be had, say: they stay zombies for a while
            if error.errno in FULL:
                self._spare.make_room()
            say(f"{error}; trying again")
            self._loop.later(AGAIN_S, self.reap)
            return
        for ward in list(self._wards.values()):
            self._on_word(ward)
            self._tell_ended(ward, children)
        kept = {ward.pid for ward in self._wards.values() if ward.own}
        kept.update(*(ward.ranks for ward in self._wards.values()))
        for pid in children - kept:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        for ward in [ward for ward in self._wards.values() if ward.left and not ward.ranks & children]:
            self._drop(ward)

    def retire(self) -> None:
        """From now on no supervisor is forked. Those that live are looked after, and ranks that came to us are kept
        until another nursery's supervisor has recorded their ends (retired.py)."""
        self._retired = True

    def ends(self) -> Iterator[tuple[str, int, int]]:
        """Job, pid and status of ranks that have ended and are kept for a supervisor of another nursery."""
        for ward in self._wards.values():
            if ward.left:
                for pid in ward.ranks:
                    status = process.peek_child(pid)
                    if status is not None:
                        yield ward.job_id, pid, status

    def let_go(self, job_id: str, pid: int) -> None:
        """The end of a rank that is kept here is recorded, or its job has ended."""
        ward = self._wards.get(job_id)
        if ward is not None and ward.left and pid in ward.ranks:
            ward.ranks.discard(pid)
            self.reap()

    def ended_elsewhere(self, job_id: str, pid: int, status: int) -> bool:
        """Another nursery's child, a rank of this job, has ended so. Returns whether it may be waited for."""
        ward = self._wards.get(job_id)
        if ward is None:
            return self.has_ended(job_id)
        if pid in ward.ranks and ward.sock is not None:
            with contextlib.suppress(OSError):  # it is said again
                ward.sock.send(messages.encode({"op": "ended", "pid": pid, "status": status}))
        return pid in ward.recorded

    def tend(self, job_id: str, client: Client | None) -> None:
        """Sees to it that the job has a living supervisor; `client` is told once that listens, or why there is none."""
        ward = self._wards.get(job_id)
        if ward is None:
            try:
                ward = self._take_up(job_id)
            except (OSError, SupervisionError) as error:
                if client is not None:
                    client.send({"op": "tend", "job": job_id, "ok": False, "error": str(error)})
                return
        if client is not None:
            ward.waiting.append(client)
            if ward.death is not None and not ward.ready:
                client.send(ward.death)
        if ward.ready:
            self._announce(ward)

    def _take_up(self, job_id: str) -> Ward:
        """A ward for a job that we do not know: another nursery's supervisor that lives, or a new one of ours."""
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
        ward = Ward(job_id, holder, pidfd, own=False, started=time.monotonic(), ready=True)
        self._adopt(ward)
        self._hold_by_path(ward)
        return ward

    def _adopt(self, ward: Ward) -> None:
        self._wards[ward.job_id] = ward
        self._loop.add(ward.pidfd, lambda: self._on_supervisor_end(ward))
        if ward.sock is not None:
            self._loop.add(ward.sock.fileno(), lambda: self._on_word(ward))

    def _hold_by_path(self, ward: Ward) -> None:
        """For a supervisor that cannot tell us of its FIFOs: another nursery forked it, or it is not born yet."""
        for path in self._root.job(ward.job_id).folder.glob("*.fifo"):
            with contextlib.suppress(OSError):
                ward.holds.append(open_reader(path))

    def _fork(self, job_id: str, before: Ward | None = None) -> Ward:
        """Forks a supervisor; `before` is the ward of the one that it succeeds, whose holds go on. Raises OSError."""
        self._find_fit()
        ours, theirs = self._pair()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            _become_supervisor(self._root, job_id, theirs, self._owned)
        theirs.close()
        # Not waited for yet, so the pid is its own.
        ward = Ward(job_id, pid, os.pidfd_open(pid), own=True, started=time.monotonic(), sock=ours)
        if before is not None:
            ward.ranks, ward.holds = before.ranks, before.holds + before.fresh
            ward.recorded = before.recorded
            ward.waiting, ward.failures, ward.death = before.waiting, before.failures, before.death
        elif any(self._root.job(job_id).folder.glob("*.fifo")):
            self._hold_by_path(ward)
        self._adopt(ward)
        return ward

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
                say(f"{error.strerror}: descriptors in reserve are used for a supervisor")

    def _on_word(self, ward: Ward) -> None:
        """Takes what the supervisor has said; all of it, since it may be dead already."""
        if ward.sock is None:
            return
        while True:
            try:
                data, fds, flags, _ = socket.recv_fds(ward.sock, messages.MAX_LINE * 2, FDS)
            except BlockingIOError:
                return
            except OSError:
                data, fds, flags = b"", [], 0
            ward.fresh += fds
            ward.short |= bool(flags & socket.MSG_CTRUNC)
            try:
                if not data:
                    raise ProtocolError("it has closed the link")
                self._hear(ward, messages.decode(data))
            except (ProtocolError, KeyError, TypeError, ValueError):
                self._loop.remove(ward.sock.fileno())
                ward.sock.close()
                ward.sock = None
                return

    def _hear(self, ward: Ward, message: messages.Message) -> None:
        op = message["op"]
        if op == "ready":
            ward.ready = True
            self._announce(ward)
        elif op == "ranks":
            ward.ranks = set(message["pids"])
            ward.told.clear()  # of an attempt before: a pid can come again
            ward.recorded -= ward.ranks
            self._tell_ended(ward, ward.ranks)
        elif op == "hold" and message.get("last"):
            # Should there have been no room for all of them, the old ones are better than some.
            old = ward.fresh if ward.short else ward.holds
            ward.holds, ward.fresh, ward.short = ward.holds if ward.short else ward.fresh, [], False
            for fd in old:
                os.close(fd)
        elif op == "reap" and message["pid"] in ward.ranks:
            ward.ranks.discard(message["pid"])
            ward.recorded.add(message["pid"])
            with contextlib.suppress(ChildProcessError):
                os.waitpid(message["pid"], os.WNOHANG)
        elif op == "done":
            ward.done = True
        elif op == "died":
            ward.error = str(message["error"])

    def _tell_ended(self, ward: Ward, children: set[int]) -> None:
        """What the supervisor of an adopted rank may not be able to read, its parent can: how it ended."""
        if ward.sock is None:
            return
        for pid in (ward.ranks & children) - ward.told:
            status = process.peek_child(pid)
            if status is not None:
                with contextlib.suppress(OSError):  # a supervisor that does not read is told again
                    ward.sock.send(messages.encode({"op": "ended", "pid": pid, "status": status}))
                    ward.told.add(pid)

    def _announce(self, ward: Ward) -> None:
        for client in ward.waiting:
            client.send({"op": "tend", "job": ward.job_id, "ok": True, "pid": ward.pid})
        ward.waiting.clear()

    def _on_supervisor_end(self, ward: Ward) -> None:
        """A supervisor is gone. Its successor starts only now, when it is dead for sure: two must never write."""
        self._on_word(ward)
        code = None
        if ward.own:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(ward.pid, os.WNOHANG)
                if pid == 0:
                    return
                code = os.waitstatus_to_exitcode(status)
        self._loop.remove(ward.pidfd)
        os.close(ward.pidfd)
        if ward.sock is not None:
            self._loop.remove(ward.sock.fileno())
            ward.sock.close()
        if ward.done or code in (supervisor.DONE, supervisor.UNUSABLE) or self.has_ended(ward.job_id):
            self._close(ward, "the journal cannot be used" if code == supervisor.UNUSABLE else "the job has ended")
            return
        if code == supervisor.BUSY and not self._retired and self._holder(ward.job_id) not in (0, *self._daemons()):
            # Lost a race against another nursery's: look who has the job.
            self._wards.pop(ward.job_id)
            self.tend(ward.job_id, None)
            for client in ward.waiting:
                self.tend(ward.job_id, client)
            successor = self._wards.get(ward.job_id)
            if successor is not None:
                successor.ranks |= ward.ranks
                successor.holds += ward.holds + ward.fresh
            else:
                for fd in ward.holds + ward.fresh:
                    os.close(fd)
            return
        self._report(ward, how(code), ward.error)
        early = time.monotonic() - ward.started < EARLY_S
        ward.failures = min(ward.failures + 1, len(PAUSES_S) - 1) if early else 0
        ward.ready = False
        pause = max(PAUSES_S[ward.failures], 0.0 if ward.own else YIELD_S)
        self._loop.later(pause, lambda: self._succeed(ward))

    def _succeed(self, ward: Ward) -> None:
        try:
            self._fork(ward.job_id, before=ward)
        except OSError as error:  # EAGAIN, ENOMEM: the job's processes live on, and so we try until it works
            if self._retired:
                ward.left, ward.own, ward.sock = True, False, None
                self.reap()
                return
            say(f"cannot fork a supervisor for {ward.job_id}: {error}")
            ward.refused += 1
            self._report(ward, "has no successor", f"the nursery cannot fork one: {explain(error)}", lived=False)
            self._loop.later(PAUSES_S[-2], lambda: self._succeed(ward))

    def _holder(self, job_id: str) -> int:
        """Pid of the supervisor that has a job; 0 for none that can be seen."""
        try:
            return lock.holder(self._root.job(job_id).lock)
        except OSError as error:
            say(f"{job_id}: {error}")
            return 0

    def _report(self, ward: Ward, how: str, error: str, *, lived: bool = True) -> None:
        """Tells the daemons of the death of a supervisor, and keeps that for one that comes later. `lived`: False where
        none could be started."""
        which = {"pid": ward.pid, "refused": ward.refused}
        ward.death = {"op": "died", "job": ward.job_id, "how": how, "error": error, "lived": lived} | which
        self._tell(ward.death)

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

    def _drop(self, ward: Ward) -> None:
        self._wards.pop(ward.job_id, None)
        for fd in ward.holds + ward.fresh:
            os.close(fd)

    def _close(self, ward: Ward, why: str) -> None:
        self._drop(ward)
        for path in self._root.job(ward.job_id).controls:
            with contextlib.suppress(OSError):  # left by a supervisor that was killed behind its job's last record
                path.unlink()
        for client in ward.waiting:
            client.send({"op": "tend", "job": ward.job_id, "ok": False, "error": why})
        self.reap()


def _become_supervisor(root: Root, job_id: str, sock: socket.socket, owned: bool) -> None:
    """In the child; never returns. Closes all that is the nursery's: other jobs' FIFOs above all."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        descriptors.close_all_but({0, 1, 2, sock.fileno()} | ({owner_pipe.FD} if owned else set()))
        descriptors.raise_again()
        become_subreaper()
        keyring.begin_own()
        status = supervisor.supervise(root, job_id, sock, owned)
    except BaseException as error:
        text = supervisor.explain(error)
        with contextlib.suppress(OSError):  # first: it needs no disk
            sock.send(messages.encode({"op": "died", "error": text}))
        say(f"supervisor of {job_id}: {text}")
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)
