"""A real nursery with one job, without a daemon, and a client of its supervisor's control socket."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Self

from muster.probes.kernel import process
from muster.supervisors import PROTOCOL
from muster.supervisors.launch.session_start import read_environ
from muster.supervisors.model import journal
from muster.supervisors.model.journal import Contents, Writer
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.replay import replay
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.paths import Root
from muster.supervisors.system import lock
from muster.supervisors.wire import frames, messages
from muster.supervisors.wire.frames import FROM_SESSION, TO_SESSION, Frame, Parser
from tests.unit.supervision import DEADLINE_S, until

NAME = "job"


def connect(path: Path, timeout: float) -> socket.socket:
    """A blocking connection to the socket at `path`, however long that is. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        with messages.SocketAt(path) as name:
            sock.connect(name)
    except OSError:
        sock.close()
        raise
    return sock


class Node:
    """Runs jobs below a folder."""

    def __init__(self, folder: Path) -> None:
        self.root = Root.under(folder)
        for path in (self.root.run, self.root.state, self.root.log, self.root.jobs):
            path.mkdir(parents=True, exist_ok=True)
        self._begin()

    def _begin(self) -> None:
        """Starts a nursery, unless there is one."""
        places = [f"--{name}={getattr(self.root, name)}" for name in ("run", "state", "log")]
        places.append(f"--name={self.root.nursery_name}")
        with open(self.root.nursery_log, "ab") as log:
            subprocess.run(
                [sys.executable, "-m", "muster.supervisors.nursery.nursery", *places], check=True, stderr=log
            )

    def start(self, *command: str, name: str = NAME, ranks: int = 1, **fields: Any) -> "Running":
        """A job, once its ranks run."""
        spec = JobSpec(name, command, ranks=ranks, **({"grace_steps": (2.0,)} | fields))
        paths = self.root.job(name)
        paths.folder.mkdir(mode=0o711)
        paths.spec.write_text(spec.to_json())
        count = spec.processes
        accepted = {
            "t": time.time(), "kind": "accepted", "format": journal.FORMAT, "digest": spec.digest(),
            "boot": process.boot_id(), "up": process.uptime(), "card_kind": "slot", "master_addr": "127.0.0.1",
            "master_port": 29500, "by": "test", "first_rank": 0, "devices": list(range(count)), "cards": [],
            "node_rank": 0, "node_count": 1, "node_name": "", "local_ranks": spec.local_ranks,
            "world_size": spec.local_ranks,
        }  # fmt: skip
        writer = Writer(paths.journal, Contents([], 0, torn=False))
        writer.append([accepted])
        writer.close()
        running = Running(self.root, name)
        self.tend(name)
        running.until_state("RUNNING")
        return running

    def tend(self, name: str = NAME) -> None:
        sock = until(self._nursery, "a nursery listens")
        assert sock is not None
        with sock:
            _ask(sock, {"op": "hello", "protocol": PROTOCOL})
            assert _ask(sock, {"op": "tend", "job": name})["ok"]

    def _nursery(self) -> socket.socket | None:
        """A connection to the nursery, or to another one: without jobs it exits after some seconds."""
        try:
            return connect(self.root.nursery_socket, DEADLINE_S)
        except OSError:
            self._begin()
            return None

    def close(self) -> None:
        """Ends all that there is."""
        nursery = lock.holder(self.root.nursery_lock)
        stats = process.all_stats()
        doomed = {nursery} - {0}
        ours = f"{zlib.crc32(os.fsencode(self.root.state)):08x}-"  # somebody else may have a job of that name
        doomed |= {s.pid for s in stats.values() if read_environ(s.pid).get("MUSTER_NONCE", "").startswith(ours)}
        for path in self.root.jobs.iterdir():
            doomed.add(lock.holder(path / "lock"))
        for pid in (nursery, *doomed):  # the nursery first: it would make successors
            if pid and pid in stats:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class Running:
    """A job."""

    def __init__(self, root: Root, name: str) -> None:
        self.root, self.name, self.paths = root, name, root.job(name)
        self._socks: list[socket.socket] = []

    @property
    def job(self) -> Job:
        return replay(journal.read(self.paths.journal).records)

    @property
    def supervisor(self) -> int:
        return lock.holder(self.paths.lock)

    def until_state(self, *states: str) -> Job:
        until(lambda: self.job.state in states, f"the job is {' or '.join(states)}; it is {self.job.state}")
        return self.job

    def output(self, rank: int = 0) -> str:
        path = self.root.rank_log(self.name, rank, rank)
        return path.read_text() if path.exists() else ""

    def connect(self) -> socket.socket:
        """That has said hello."""
        sock = until(self._connected, "the supervisor listens")
        assert sock is not None
        self._socks.append(sock)
        assert _ask(sock, {"op": "hello", "protocol": PROTOCOL})["ok"]
        return sock

    def hang_up(self) -> None:
        """Closes all connections that are still open."""
        while self._socks:
            self._socks.pop().close()

    def _connected(self) -> socket.socket | None:
        try:
            return connect(self.paths.control, DEADLINE_S)
        except OSError:
            return None

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        with self.connect() as sock:
            return _ask(sock, {"op": op} | fields)

    def sessions(self) -> list[dict[str, Any]]:
        return list(self.ask("sessions")["sessions"])

    def exec(self, *argv: str, **fields: Any) -> "Attached":
        """Begins a session; fails the test where it is refused."""
        return Attached(self.connect()).begin({"argv": list(argv)} | fields)

    def attach(self, session: str, stdout: int | None = None, stderr: int | None = None) -> "Attached":
        attached = Attached(self.connect())
        attached.opened({"op": "attach", "session": session, "stdout": stdout, "stderr": stderr}, b"")
        assert attached.answer["ok"], attached.answer
        return attached

    def refusal(self, body: bytes | dict[str, Any], size: int | None = None) -> dict[str, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with self.connect() as sock:
            sock.sendall(messages.encode({"op": "exec", "size": len(data) if size is None else size}) + data)
            answer = _line(sock)[0]
        assert not answer["ok"]
        return answer

    def until_gone(self) -> None:
        """Until nothing of the job is left but what is in its folder."""
        until(lambda: not self.paths.control.exists(), "the supervisor has ended")


class Attached:
    """One client of a session: takes all that comes and acknowledges it, unless told otherwise."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.answer: dict[str, Any] = {}
        self.out, self.err = bytearray(), bytearray()
        #: Offsets of what comes next, bytes of input that the command has taken, and those that were sent.
        self.at = {frames.STDOUT: 0, frames.STDERR: 0}
        self.taken = self.sent = 0
        #: Whether output jumped, and the last frame.
        self.jumped = 0
        self.end: dict[str, Any] | None = None
        self.left: dict[str, Any] | None = None
        self.acks = True
        self._parser = Parser(FROM_SESSION)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def begin(self, request: dict[str, Any]) -> Self:
        data = json.dumps(request).encode()
        self.opened({"op": "exec", "size": len(data)}, data)
        assert self.answer["ok"], self.answer
        return self

    def opened(self, order: dict[str, Any], body: bytes) -> None:
        self.sock.sendall(messages.encode(order) + body)
        self.answer, early = _line(self.sock)
        if self.answer["ok"]:
            self.at = {frames.STDOUT: self.answer["stdout"], frames.STDERR: self.answer["stderr"]}
            self.sent = self.answer["input"]
            self._take(early)

    @property
    def session(self) -> str:
        return str(self.answer["session"])

    @property
    def pid(self) -> int:
        return int(self.answer["pid"])

    def send(self, kind: bytes, *numbers: int, data: bytes = b"") -> None:
        self.sock.sendall(TO_SESSION.encode(kind, *numbers, data=data))

    def type(self, data: bytes) -> None:
        """Input, at most a frame."""
        self.send(frames.INPUT, self.sent, data=data)
        self.sent += len(data)

    def close_input(self) -> None:
        self.send(frames.CLOSE, self.sent)

    def step(self) -> bool:
        """Takes what comes next. False: the connection is closed."""
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        self._take(data)
        return bool(data)

    def _take(self, data: bytes) -> None:
        for frame in self._parser.feed(data):
            self._on(frame)

    def _on(self, frame: Frame) -> None:
        if frame.kind in self.at:
            self.jumped += frame.numbers[0] - self.at[frame.kind]
            self.at[frame.kind] = frame.numbers[0] + len(frame.data)
            (self.out if frame.kind == frames.STDOUT else self.err).extend(frame.data)
            if self.acks:
                self.ack()
        elif frame.kind == frames.ACK:
            self.taken = frame.numbers[0]
        elif frame.kind == frames.EXITED:
            self.end = json.loads(frame.data)
        elif frame.kind == frames.LEFT:
            self.left = json.loads(frame.data)

    def ack(self) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # closed behind what is still to be read
            self.send(frames.ACK, self.at[frames.STDOUT], self.at[frames.STDERR])

    def until(self, text: bytes) -> Self:
        """Until this is in the output."""
        while text not in self.out:
            assert self.end is None, f"the session ended without {text!r}: {bytes(self.out)!r} {self.end}"
            assert self.step(), f"the connection was closed without {text!r}: {bytes(self.out)!r}"
        return self

    def finish(self) -> dict[str, Any]:
        """Until the end; returns it."""
        while self.end is None:
            assert self.step(), f"the connection was closed without an end: {bytes(self.out[-200:])!r}"
        self.sock.close()
        return self.end


def _ask(sock: socket.socket, message: dict[str, Any]) -> dict[str, Any]:
    sock.sendall(messages.encode(message))
    return _line(sock)[0]


def _line(sock: socket.socket) -> tuple[dict[str, Any], bytes]:
    """The next line as a message, and what came behind it."""
    data = b""
    while b"\n" not in data:
        part = sock.recv(1 << 16)
        assert part, "the connection was closed without an answer"
        data += part
    line, _, rest = data.partition(b"\n")
    return messages.decode(line), rest
