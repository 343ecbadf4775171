"""The nursery: a warm process without threads or gRPC that forks a supervisor per job and keeps what must outlive it.

It is a subreaper: when a supervisor is killed, its ranks become the nursery's children. The nursery reaps them only
after a successor has recorded their status. It holds a read end of every rank's FIFO, so the kernel does not discard
unread output when the last writer exits. It lives as long as it has jobs or a daemon.

Its one operation is `tend`: make sure that this job has a living supervisor. Start, takeover and recovery are the same.
"""

import contextlib
import os
import signal
import sys
import time

from muster.probes.kernel import late_import

# What these import and supervisors do not use is a seventh of what all of them share.
with late_import.noted("bz2", "inspect", "ipaddress", "lzma", "selectors"):
    import dataclasses  # noqa: F401
    import shutil  # noqa: F401
    import socket
    from pathlib import Path

from muster.probes.kernel import dataclass, process
from muster.probes.kernel.process import FULL
from muster.supervisors.job import supervisor
from muster.supervisors.launch.creation.program_start import PROGRAM
from muster.supervisors.nursery import sharing
from muster.supervisors.nursery.rehearsal import rehearse
from muster.supervisors.nursery.retired import Retired
from muster.supervisors.nursery.supervised_job import say
from muster.supervisors.nursery.supervised_jobs import SupervisedJobs
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import AlreadySupervised
from muster.supervisors.system import descriptors, lock, malloc, owner_pipe, scope
from muster.supervisors.system.loop import Loop
from muster.supervisors.system.spare import Spare
from muster.supervisors.system.subreaper import become_subreaper
from muster.supervisors.wire.control import ControlClient, ControlServer, Handler, listen
from muster.supervisors.wire.messages import Message

#: Without jobs and without a daemon for so long, the nursery ends; behind the end of its owner, at once.
IDLE_S = 5.0
#: Jobs that the nursery rehearses itself: Python specializes code that has run eight times.
_REHEARSALS = 4
#: Descriptors in reserve: a client and two supervisors at the limit.
SPARE = 16


class Nursery:
    """Serves the nursery's socket."""

    def __init__(self, root: Root, listener: socket.socket, at: Path, held: lock.Lock, owned: bool) -> None:
        """`at`: where the socket is; `held`: the lock of its name, beside it. `owned`: a pipe tells of the end of the
        command that the jobs belong to (owner_pipe.py)."""
        self._spare = Spare(SPARE, self._raised)  # before anything else, so that it holds low numbers
        self._loop = Loop(self._on_trouble)
        self._at, self._held = at, held
        self._retired: Retired | None = None
        self._jobs = SupervisedJobs(
            root, self._loop, self._daemons, self._tell, self._spare, self._step_aside, self._see_name, owned
        )
        handlers: dict[str, Handler] = {"tend": self._tend, "expect": self._expect, "ended": self._ended}
        self._server = ControlServer(self._loop, listener, handlers, self._spare)
        self._spare.on_exhausted = self._on_exhausted
        self._busy_at = time.monotonic()
        #: A daemon has come; the command that the jobs belong to has ended.
        self._visited = self._owner_gone = False
        self._loop.after = self._leave_with_owner
        if owned:
            self._loop.add(owner_pipe.FD, self._on_owner_end)

    def run(self) -> None:
        """Until there is nothing left to do."""
        self._loop.later(IDLE_S, self._check_idle)
        try:
            self._loop.run()
        except BaseException as error:  # it ends us, and the next one goes on; the daemon is to say why
            with contextlib.suppress(Exception):
                self._tell({"op": "died", "job": "", "how": "ended by a defect", "error": supervisor.explain(error)})
            raise

    def _daemons(self) -> set[int]:
        return {client.pid for client in self._server.clients}

    def _tell(self, message: Message) -> None:
        for client in list(self._server.clients):
            if client.greeted:
                client.send(message)

    def _tend(self, message: Message, client: ControlClient) -> Message | None:
        job_id = message.get("job")
        if not isinstance(job_id, str):
            return {"ok": False, "error": "say which job"}
        self._jobs.tend(job_id, client)
        return None

    def _expect(self, message: Message, _: ControlClient) -> None:
        job_id, folder = message.get("job"), message.get("folder")
        if isinstance(job_id, str) and isinstance(folder, str):
            self._jobs.expect(job_id, folder)

    def _ended(self, message: Message, _: ControlClient) -> Message:
        job_id, pid, status = message.get("job"), message.get("pid"), message.get("status")
        if not (isinstance(job_id, str) and isinstance(pid, int) and isinstance(status, int)):
            return {"ok": False, "error": "say which job, pid and status"}
        return {"ok": True, "job": job_id, "pid": pid, "reap": self._jobs.ended_elsewhere(job_id, pid, status)}

    def _on_trouble(self, error: OSError) -> None:
        if error.errno in FULL:
            self._spare.make_room()
        say(f"{error}; trying again")

    def _raised(self, text: str) -> None:
        say(text)
        self._tell({"op": "notice", "text": text})

    def _on_exhausted(self) -> None:
        limit = descriptors.lowered_to()
        if limit is not None:
            self._step_aside(f"somebody lowered its limit of open files to {limit}, which it may not raise")

    def _see_name(self) -> None:
        """A daemon that got no answer (we were stopped, or hung) has given our name to another nursery."""
        if not self._held.is_at(self._at.with_suffix(".lock")):
            self._step_aside("it did not answer", named=False)

    def _step_aside(self, why: str, *, named: bool = True) -> None:
        """Gives up the name, so that a daemon starts a nursery with better limits, and only watches what it has
        (retired.py). `named`: the name is still ours."""
        if self._retired is not None:
            return
        text = f"{why}: another nursery replaces it"
        say(text)
        self._tell({"op": "died", "job": "", "how": "steps aside", "error": text})
        own = self._at if named else self._at.with_suffix(f".{os.getpid()}.lock")
        with contextlib.suppress(OSError):
            own.unlink()
        self._held.close()
        self._spare.release()
        self._retired = Retired(self._loop, self._jobs, self._at, self._loop.stop)
        self._server.close()

    def _on_owner_end(self) -> None:
        self._loop.remove(owner_pipe.FD)
        self._owner_gone = True

    def _leave_with_owner(self) -> None:
        """Without its owner no daemon comes back: nothing is left to wait for once the last one and all jobs have
        ended. A nursery to which no daemon has come yet was started to end jobs: it waits for that daemon."""
        self._visited = self._visited or bool(self._server.clients)
        if self._owner_gone and self._visited and not (self._retired or self._jobs or self._server.clients):
            self._leave()

    def _leave(self) -> None:
        with contextlib.suppress(OSError):
            self._at.unlink()
        self._loop.stop()

    def _check_idle(self) -> None:
        self._see_name()
        if self._retired is not None:
            return
        if self._jobs or self._server.clients:
            self._busy_at = time.monotonic()
        elif time.monotonic() - self._busy_at >= IDLE_S:
            self._leave()
            return
        self._spare.fill()
        self._loop.later(IDLE_S / 4, self._check_idle)


def main() -> int:
    """Daemonizes and serves. Exit code 0 in the process that was started, once the socket listens; 1 with a sentence
    on stderr where it cannot; 0 as well where another nursery serves this root already."""
    args = _arguments(sys.argv[1:])
    ignored = (*process.END_SIGNALS, *process.USER_SIGNALS)
    for number in ignored:  # jobs are worth more than the wish to end us
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ignored)
    root = Root(Path(args["run"]), Path(args["state"]), Path(args["log"]))
    owned = "owned" in args
    at = root.run / f"{args['name']}.sock"
    descriptors.close_all_but({0, 1, 2, owner_pipe.FD} if owned else {0, 1, 2})
    if owned:
        os.set_inheritable(owner_pipe.FD, False)
    descriptors.raise_limit(int(args["nofile"]) if "nofile" in args else None)
    PROGRAM.open()  # once: what supervisors execute is of the version of their own code
    read, write = os.pipe()
    if os.fork():
        os.close(write)
        word = os.read(read, 4096).decode()
        if word != "ok":
            print(f"muster-nursery: {word or 'ended before it listened'}", file=sys.stderr)
        return 0 if word == "ok" else 1
    os.close(read)
    os.setsid()
    try:
        # Held for the nursery's life; a forked supervisor does not inherit it.
        held = lock.take(at.with_suffix(".lock"))
        become_subreaper()
        listener = listen(at)
    except AlreadySupervised:
        os.write(write, b"ok")
        return 0
    except OSError as error:
        os.write(write, f"{error.filename or at}: {error.strerror}".encode())
        return 1
    os.chdir("/")
    if scope.is_available():  # out of the daemon's unit, which may be stopped, upgraded and limited on its own
        trouble = scope.enter(scope.of_nursery(root, os.getpid()), "muster: keeps supervisors and their ranks")
        if trouble:
            say(trouble)
    os.write(write, b"ok")
    os.close(write)
    malloc.return_buffers()
    process.boot_id()
    dataclass.compile_all()
    # An owned nursery has one job, and a command that would wait 30 ms longer. Another user's name may come from a
    # directory that does not answer: that must not keep a nursery from its jobs.
    if not owned and os.geteuid() == 0:
        _rehearse(root)
    nursery = Nursery(root, listener, at, held, owned)
    sharing.prepare(many=not owned)
    nursery.run()
    return 0


def _arguments(words: list[str]) -> dict[str, str]:
    """What the daemon says (nursery_start.py): --run, --state, --log: the node's folders; --name: of the socket and the
    lock in the run folder; --nofile: the soft limit of open files that ranks get, else our own; --owned: descriptor
    owner_pipe.FD ends with the jobs' owner. Supervisors share all that a parser of the standard library would leave."""
    found = {"name": "nursery"}  # where a daemon of the first release seeks it, which says no name
    rest = iter(words)
    for word in rest:
        name, equals, value = word.removeprefix("--").partition("=")
        found[name] = value if equals or name == "owned" else next(rest)
    return found


def _rehearse(root: Root) -> None:
    """Has supervisors share what the first uses of code leave: specialized bytecode, entries of Python's caches. Each
    would write the same to pages of its own, 0.4 MB. It comes before the Nursery, because a rehearsal ends without a
    wakeup descriptor. The supervisor that waits reports a failure (standby.py): it cannot rehearse, either."""
    for _ in range(_REHEARSALS):
        if rehearse(root.rehearsal):
            return


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # at once: the daemon waits for who started us, and Python would take 20 ms to tear itself down
