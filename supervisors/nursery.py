"""The nursery: a warm process without threads or gRPC that forks a supervisor per job and keeps what must outlive it.

It is a subreaper: when a supervisor is killed its ranks become the nursery's children. It does not wait for them until
a successor has written their status down. It holds a read end of every rank's FIFO, so that output which nobody has
drained is not thrown away with the last process that had it open. It lives as long as it has jobs or a daemon.

One operation, `tend`: see to it that this job has a living supervisor. That is a start, a takeover and a recovery.
"""

import argparse
import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from supervisors import PROTOCOL, journal, limits, process, supervisor, wire
from supervisors.errors import AlreadySupervised, ProtocolError, SupervisionError
from supervisors.lifecycle import replay
from supervisors.link import FDS, pair
from supervisors.loop import Loop
from supervisors.paths import Root
from supervisors.tee import open_reader

_PR_SET_CHILD_SUBREAPER = 36
#: Without jobs and without a daemon for so long, the nursery ends.
IDLE_S = 5.0
#: A supervisor that dies sooner than this after its start is started again only after a pause.
EARLY_S = 2.0
#: How long nobody is accepted after there was no descriptor for it, in seconds.
REST_S = 1.0
PAUSES_S = (0.0, 0.1, 0.5, 2.0, 10.0)


@dataclass(slots=True)
class Ward:
    """A job that is tended. `own`: the supervisor is our child; else another nursery forked it."""

    job_id: str
    pid: int
    pidfd: int
    own: bool
    started: float
    sock: socket.socket | None = None
    ready: bool = False
    failures: int = 0
    done: bool = False
    ranks: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    holds: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    waiting: list["Client"] = field(default_factory=list)


class Client:
    """A connection of a daemon."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.lines = wire.Lines()
        self.greeted = False

    def send(self, message: wire.Message) -> None:
        """A client that does not read its few answers loses them; it must ask again anyway."""
        with contextlib.suppress(OSError):
            self.sock.send(wire.encode(message), socket.MSG_DONTWAIT)


class Nursery:
    """Serves `nursery.sock` and looks after the wards."""

    def __init__(self, root: Root, listener: socket.socket) -> None:
        self._root = root
        self._listener = listener
        self._loop = Loop(self._on_child, self._after, _say)
        self._loop.add(listener.fileno(), self._accept)
        self._wards: dict[str, Ward] = {}
        self._clients: dict[int, Client] = {}
        self._idle_since = time.monotonic()
        signal.signal(signal.SIGTERM, lambda *_: None)  # jobs are worth more than the wish to end us

    def run(self) -> None:
        """Until there is nothing left to do."""
        self._loop.later(IDLE_S, self._check_idle)
        self._loop.run()

    # --- clients ------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor to be had
            self._loop.rest(self._listener.fileno(), REST_S)
            return
        client = Client(sock)
        self._clients[sock.fileno()] = client
        self._loop.add(sock.fileno(), lambda: self._serve(client))

    def _serve(self, client: Client) -> None:
        try:
            data = client.sock.recv(65536, socket.MSG_DONTWAIT)
            if not data:
                self._drop(client)
                return
            for line in client.lines.feed(data):
                self._answer(client, wire.decode(line))
        except BlockingIOError:
            return
        except ProtocolError as error:
            client.send({"op": "error", "ok": False, "error": str(error)})
            self._drop(client)
        except OSError:
            self._drop(client)

    def _answer(self, client: Client, message: wire.Message) -> None:
        op = message["op"]
        if op == "hello":
            theirs = message.get("protocol")
            client.greeted = theirs == PROTOCOL
            reply: wire.Message = {"op": op, "ok": client.greeted, "protocol": PROTOCOL, "pid": os.getpid()}
            if not client.greeted:
                reply["error"] = f"this nursery speaks protocol {PROTOCOL}, not {theirs}"
            client.send(reply)
        elif not client.greeted:
            raise ProtocolError("say hello first")
        elif op == "tend" and isinstance(message.get("job"), str):
            self._tend(message["job"], client)
        else:
            client.send({"op": op, "ok": False, "error": f"unknown operation {op!r}"})

    def _drop(self, client: Client) -> None:
        fd = client.sock.fileno()
        self._loop.remove(fd)
        self._clients.pop(fd, None)
        client.sock.close()
        for ward in self._wards.values():
            if client in ward.waiting:
                ward.waiting.remove(client)
        self._idle_since = time.monotonic()

    # --- wards --------------------------------------------------------------------------------------------------------

    def _tend(self, job_id: str, client: Client | None) -> None:
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
        if ward.ready:
            self._announce(ward)

    def _take_up(self, job_id: str) -> Ward:
        """A ward for a job that we do not know: another nursery's supervisor that lives, or a new one of ours."""
        paths = self._root.job(job_id)
        if not paths.journal.exists():
            raise FileNotFoundError(f"{paths.journal}: there is no such job")
        holder = supervisor.lock_holder(paths.lock)
        stat = process.read_stat(holder) if holder else None
        pidfd = process.open_pidfd(holder, stat.start) if stat is not None else None
        if pidfd is None:
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
        for path in self._root.job(ward.job_id).folder.glob("rank-*.fifo"):
            with contextlib.suppress(OSError):
                ward.holds.append(open_reader(path))

    def _fork(self, job_id: str, before: Ward | None = None) -> Ward:
        """Forks a supervisor; `before` is the ward of the one that it succeeds, whose holds go on. Raises OSError."""
        ours, theirs = pair()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            _become_supervisor(self._root, job_id, theirs)
        theirs.close()
        # Not waited for yet, so the pid is its own.
        ward = Ward(job_id, pid, os.pidfd_open(pid), own=True, started=time.monotonic(), sock=ours)
        if before is not None:
            ward.ranks, ward.holds = before.ranks, before.holds + before.fresh
            ward.waiting, ward.failures = before.waiting, before.failures
        elif any(self._root.job(job_id).folder.glob("rank-*.fifo")):
            self._hold_by_path(ward)
        self._adopt(ward)
        return ward

    def _on_word(self, ward: Ward) -> None:
        """Takes what the supervisor has said; all of it, since it may be dead already."""
        if ward.sock is None:
            return
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(ward.sock, wire.MAX_LINE * 2, FDS)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            ward.fresh += fds
            try:
                if not data:
                    raise ProtocolError("it has closed the link")
                self._hear(ward, wire.decode(data))
            except ProtocolError:
                self._loop.remove(ward.sock.fileno())
                ward.sock.close()
                ward.sock = None
                return

    def _hear(self, ward: Ward, message: wire.Message) -> None:
        op = message["op"]
        if op == "ready":
            ward.ready = True
            self._announce(ward)
        elif op == "ranks":
            ward.ranks = set(message["pids"])
            self._tell_ended(ward)
        elif op == "hold" and message.get("last"):
            ward.holds, ward.fresh, old = ward.fresh, [], ward.holds
            for fd in old:
                os.close(fd)
        elif op == "reap" and message["pid"] in ward.ranks:
            ward.ranks.discard(message["pid"])
            with contextlib.suppress(ChildProcessError):
                os.waitpid(message["pid"], os.WNOHANG)
        elif op == "done":
            ward.done = True

    def _tell_ended(self, ward: Ward) -> None:
        """What the supervisor of an adopted rank may not be able to read, its parent can: how it ended."""
        if ward.sock is None:
            return
        for pid in ward.ranks - ward.told:
            status = process.peek_child(pid)
            if status is not None:
                with contextlib.suppress(OSError):  # a supervisor that does not read is told again
                    ward.sock.send(wire.encode({"op": "ended", "pid": pid, "status": status}))
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
        if ward.done or code in (supervisor.DONE, supervisor.UNUSABLE) or self._has_ended(ward.job_id):
            self._close(ward, "the journal cannot be used" if code == supervisor.UNUSABLE else "the job has ended")
            return
        if code == supervisor.BUSY:  # lost a race against another nursery's: look who has the job
            self._wards.pop(ward.job_id)
            self._tend(ward.job_id, None)
            for client in ward.waiting:
                self._tend(ward.job_id, client)
            successor = self._wards.get(ward.job_id)
            if successor is not None:
                successor.ranks |= ward.ranks
                successor.holds += ward.holds + ward.fresh
            return
        early = time.monotonic() - ward.started < EARLY_S
        ward.failures = min(ward.failures + 1, len(PAUSES_S) - 1) if early else 0
        ward.ready = False
        self._loop.later(PAUSES_S[ward.failures], lambda: self._succeed(ward))

    def _succeed(self, ward: Ward) -> None:
        try:
            self._fork(ward.job_id, before=ward)
        except OSError as error:  # EAGAIN, ENOMEM: the job's processes live on, and so we try until it works
            _say(f"cannot fork a supervisor for {ward.job_id}: {error}")
            self._loop.later(PAUSES_S[-2], lambda: self._succeed(ward))

    def _has_ended(self, job_id: str) -> bool:
        """Read from the journal, since a killed supervisor cannot say it. A damaged one is not worked with either."""
        try:
            return replay(journal.read(self._root.job(job_id).journal).records).state.final
        except FileNotFoundError:
            return True
        except SupervisionError as error:
            _say(f"{job_id}: {error}")
            return True
        except OSError as error:
            _say(f"{job_id}: {error}")
            return False

    def _close(self, ward: Ward, why: str) -> None:
        self._wards.pop(ward.job_id, None)
        for fd in ward.holds + ward.fresh:
            os.close(fd)
        for client in ward.waiting:
            client.send({"op": "tend", "job": ward.job_id, "ok": False, "error": why})
        self._idle_since = time.monotonic()
        self._on_child()

    # --- children -----------------------------------------------------------------------------------------------------

    def _on_child(self) -> None:
        """Waits for orphans that are nobody's rank. Supervisors are seen through their pidfds."""
        for ward in list(self._wards.values()):
            self._on_word(ward)
            self._tell_ended(ward)
        kept = {ward.pid for ward in self._wards.values() if ward.own}
        kept.update(*(ward.ranks for ward in self._wards.values()))
        for pid in _children():
            if pid not in kept:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _check_idle(self) -> None:
        idle = not self._wards and not self._clients
        if not idle:
            self._idle_since = time.monotonic()
        elif time.monotonic() - self._idle_since >= IDLE_S:
            self._loop.stop()
            return
        self._loop.later(IDLE_S / 4, self._check_idle)

    def _after(self) -> None:
        """Nothing is decided behind a batch of events here."""


def _children() -> list[int]:
    me = os.getpid()
    try:
        return [int(word) for word in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [stat.pid for stat in process.all_stats().values() if stat.ppid == me]


def _become_supervisor(root: Root, job_id: str, sock: socket.socket) -> None:
    """In the child; never returns. Closes all that is the nursery's: other jobs' FIFOs above all."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        os.closerange(3, sock.fileno())
        os.closerange(sock.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        _set_subreaper()
        status = supervisor.supervise(root, job_id, sock)
    except BaseException:
        with contextlib.suppress(OSError):
            traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)


def _set_subreaper() -> None:
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(0, "prctl(PR_SET_CHILD_SUBREAPER) was refused")


def _say(text: object) -> None:
    with contextlib.suppress(OSError):
        print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} nursery: {text}", file=sys.stderr, flush=True)


def _listen(root: Root) -> socket.socket:
    """Binds the socket; whoever holds the lock may replace a dead one's."""
    with contextlib.suppress(FileNotFoundError):
        root.nursery_socket.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)
    try:
        with wire.SocketAt(root.nursery_socket) as name:
            sock.bind(name)
    finally:
        os.umask(before)
    sock.listen(16)
    return sock


def main() -> int:
    """Daemonizes and serves. Exit code 0 in the process that was started, once the socket listens; 1 with a sentence
    on stderr where it cannot; 0 as well where another nursery serves this root already."""
    parser = argparse.ArgumentParser(prog="muster-nursery", description="forks and keeps the supervisors of muster")
    for name in ("run", "state", "log"):
        parser.add_argument(f"--{name}", type=Path, required=True, help=f"the node's {name} folder")
    args = parser.parse_args()
    root = Root(args.run, args.state, args.log)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    limits.raise_descriptors()
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
        supervisor.take_lock(root.nursery_lock)
        _set_subreaper()
        listener = _listen(root)
    except AlreadySupervised:
        os.write(write, b"ok")
        return 0
    except OSError as error:
        os.write(write, f"{error.filename or root.nursery_socket}: {error.strerror}".encode())
        return 1
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(write, b"ok")
    os.close(write)
    nursery = Nursery(root, listener)
    gc.collect()
    gc.freeze()  # what is there now is shared with every supervisor: the collector must not touch and so copy it
    nursery.run()
    with contextlib.suppress(FileNotFoundError):
        root.nursery_socket.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
