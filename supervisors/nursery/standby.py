"""Supervisors as processes: how one is forked, and the one that is forked ahead and waits for its job.

A fork and what the child does first take three of the milliseconds for which the start of a job would wait, and the
first use of all that the child shares with the nursery another five. So the nursery keeps one supervisor without a job,
which rehearses one (rehearsal.py), and gives it the next one. A job that comes before there is another one, or while
that rehearses, is forked for, as is any where the one that waits is stopped or dead.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time

from muster.probes.kernel import process
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.job import supervisor
from muster.supervisors.launch import keyring
from muster.supervisors.launch.creation.program_start import PROGRAM
from muster.supervisors.nursery.rehearsal import rehearse
from muster.supervisors.nursery.supervised_job import say
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import ProtocolError
from muster.supervisors.system import descriptors, owner_pipe
from muster.supervisors.system.loop import Loop
from muster.supervisors.system.subreaper import become_subreaper
from muster.supervisors.wire import messages
from muster.supervisors.wire.link import pair

#: Seconds until another one is forked: without a start or a word of a supervisor, for starts need the CPUs, and this
#: takes as much of them as one; and behind a refusal, or a death.
QUIET_S, AGAIN_S = 0.15, 5.0
#: By a signal, by a debugger.
_STOPPED = ("T", "t")


@dataclass(frozen=True, slots=True)
class Forked:
    """A supervisor's process, not waited for yet, and our end of its link."""

    pid: int
    pidfd: int
    sock: socket.socket

    def close(self) -> None:
        """It sees the end of the link, and exits if it has no job."""
        os.close(self.pidfd)
        self.sock.close()


def fork(root: Root, link: tuple[socket.socket, socket.socket], owned: bool, job_id: str = "") -> Forked:
    """A supervisor for this job, or for the one that it will be given over the link. Raises OSError, with the link
    closed."""
    ours, theirs = link
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        _become_supervisor(root, theirs, owned, job_id)
    theirs.close()
    return Forked(pid, os.pidfd_open(pid), ours)


class Standby:
    """The supervisor that waits for its job."""

    def __init__(self, root: Root, loop: Loop, owned: bool) -> None:
        """`owned`: as for Nursery. Such a nursery has one job: nothing follows the first that is taken."""
        self._root, self._loop, self._owned = root, loop, owned
        self._forked: Forked | None = None
        #: Whether it has said that it waits.
        self._ready = False
        #: None is forked before (time.monotonic()).
        self._not_before = 0.0
        self._closed = False
        loop.later(0.0, self._fork)

    @property
    def pid(self) -> int:
        """0: there is none."""
        return self._forked.pid if self._forked is not None else 0

    def take(self, job_id: str, folder: str = "") -> Forked | None:
        """Gives it this job. None: there is none that can work. `folder`: where a daemon is about to record the job
        (link.py)."""
        self.postpone()
        forked = self._forked
        if forked is None:
            return None
        stat = process.read_stat(forked.pid)
        lives = stat is not None and not stat.ended and stat.state not in _STOPPED
        if lives and not self._waits(forked):
            return None
        self._forget(forked)
        if self._owned:
            self._closed = True
        else:
            self._loop.later(QUIET_S, self._fork)
        if lives:
            with contextlib.suppress(OSError):
                forked.sock.send(messages.encode({"op": "job", "job": job_id, "folder": folder}))
                return forked
        forked.close()
        return None

    def postpone(self) -> None:
        """A job starts, or gets on, or ends: it needs the CPUs."""
        self._not_before = time.monotonic() + QUIET_S

    def close(self) -> None:
        """There are no more jobs."""
        self._closed = True
        if self._forked is not None:
            forked = self._forked
            self._forget(forked)
            forked.close()

    def _waits(self, forked: Forked) -> bool:
        """False while it rehearses."""
        with contextlib.suppress(OSError, ProtocolError):
            while not self._ready and (data := forked.sock.recv(messages.MAX_LINE)):
                self._ready = messages.decode(data)["op"] == "waits"
        return self._ready

    def _fork(self) -> None:
        """Where the node refuses one, the fork for the next job reports that."""
        if self._closed or self._forked is not None:
            return
        if (left := self._not_before - time.monotonic()) > 0:
            self._loop.later(left, self._fork)
            return
        try:
            if descriptors.lowered_to() is not None:
                raise OSError
            forked = self._forked = fork(self._root, pair(), self._owned)
        except OSError:
            self._loop.later(AGAIN_S, self._fork)
            return
        self._loop.add(forked.pidfd, lambda: self._on_end(forked))

    def _on_end(self, forked: Forked) -> None:
        self._forget(forked)
        forked.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(forked.pid, os.WNOHANG)
        self._loop.later(AGAIN_S, self._fork)

    def _forget(self, forked: Forked) -> None:
        self._loop.remove(forked.pidfd)
        self._forked, self._ready = None, False


def _become_supervisor(root: Root, sock: socket.socket, owned: bool, job_id: str) -> None:
    """In the child; never returns. Closes all that is the nursery's: other jobs' FIFOs above all."""
    status, folder = 1, ""
    try:
        signal.set_wakeup_fd(-1)
        kept = {0, 1, 2, sock.fileno()} | PROGRAM.fds | ({owner_pipe.FD} if owned else set())
        descriptors.close_all_but(kept)
        become_subreaper()
        keyring.begin_own()
        if not job_id:
            if trouble := rehearse(root.rehearsal):
                say(trouble)
            with contextlib.suppress(OSError):  # it has died, as we are about to find out
                sock.send(messages.encode({"op": "waits"}))
            job_id, folder = _wait_for_job(sock)
        if not job_id:
            os._exit(supervisor.DONE)
        descriptors.raise_again()
        status = supervisor.supervise(root, job_id, sock, owned, folder)
    except BaseException as error:
        text = supervisor.explain(error)
        with contextlib.suppress(OSError):  # first: it needs no disk
            sock.send(messages.encode({"op": "died", "error": text}))
        say(f"supervisor of {job_id or 'no job yet'}: {text}")
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)


def _wait_for_job(sock: socket.socket) -> tuple[str, str]:
    """The job's id, empty where the nursery has none any more, or has died; and the folder in which it is about to be
    recorded, empty where it is recorded already."""
    link = select.poll()
    link.register(sock, select.POLLIN)
    while True:
        link.poll()
        with contextlib.suppress(BlockingIOError):
            try:
                data = sock.recv(messages.MAX_LINE)
            except ConnectionError:
                return "", ""
            message = messages.decode(data) if data else {}
            if message and message["op"] != "job":
                raise ProtocolError(f"{message['op']}: no job yet")
            return str(message.get("job", "")), str(message.get("folder", ""))
