"""Control sockets of supervisors and of the nursery: which clients they accept, and how they answer (messages.py)."""

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from muster.probes.kernel import process
from muster.supervisors import PROTOCOL
from muster.supervisors.model.journal import Record
from muster.supervisors.supervision_errors import ProtocolError
from muster.supervisors.system.loop import Loop
from muster.supervisors.system.spare import Spare
from muster.supervisors.wire import messages as wire

#: A client that lets so many bytes pile up does not read; it is dropped.
MAX_BACKLOG = 65536
#: How long the socket accepts no connection after descriptors ran out, in seconds.
REST_S = 1.0
#: How long all clients together have for what is still to be sent to them when a server closes, in seconds.
CLOSE_S = 1.0
#: Seconds that a refused client has to disconnect.
LEAVE_S = 5.0


def _nothing() -> None:
    """Nobody asked."""


def listen(path: Path) -> socket.socket:
    """A socket at `path` that only its owner can connect to. An existing socket belongs to a dead predecessor and is
    removed: the caller holds the lock that says so. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)
    try:
        with wire.SocketAt(path) as name:
            sock.bind(name)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    sock.listen(64)
    return sock


class ControlClient:
    """One connection. What is sent after the client has closed it is dropped."""

    def __init__(
        self, loop: Loop, sock: socket.socket, on_gone: Callable[["ControlClient"], None], pid: int = 0
    ) -> None:
        """`pid`: of the process that connected."""
        self.sock = sock
        self.pid = pid
        self.lines = wire.Lines()
        self.greeted = False
        self._loop = loop
        self._on_gone = on_gone
        self._out = b""
        self._reader: Callable[[bytes], None] | None = None
        self._on_ready: Callable[[], None] = _nothing
        self._on_lost: Callable[[], None] = _nothing
        self._leaves = False

    @property
    def gone(self) -> bool:
        """Whether the connection is closed."""
        return self.sock.fileno() < 0

    @property
    def backlog(self) -> int:
        """Bytes that it has not taken yet."""
        return len(self._out)

    def hand_over(
        self,
        reader: Callable[[bytes], None],
        ready: Callable[[], None] = _nothing,
        lost: Callable[[], None] = _nothing,
    ) -> None:
        """What comes behind the line that was just read is no line, but `reader`'s. `ready` is called when it may have
        taken all that was written, `lost` once it is closed, by either side."""
        self._reader, self._on_ready, self._on_lost = reader, ready, lost

    def hand_back(self, rest: bytes) -> None:
        """What comes from now on are lines again, beginning with `rest`."""
        self._reader, self._on_ready, self._on_lost = None, _nothing, _nothing
        self.lines.add(rest)

    def next_line(self) -> bytes | None:
        """None where the next has not come as a whole. Raises ProtocolError."""
        while self._reader is not None and not self.gone:
            rest = self.lines.take_rest()
            if not rest:
                return None
            self._reader(rest)
        return None if self.gone else self.lines.next()

    def send(self, message: wire.Message) -> None:
        """Never blocks."""
        if self.gone:
            return
        data = wire.encode(message)
        if len(self._out) + len(data) > MAX_BACKLOG:
            self.drop()
        else:
            self.write(data)

    def write(self, data: bytes) -> None:
        """Never blocks. How much may pile up is the caller's care: see `backlog`."""
        if not self.gone:
            self._out += data
            self.flush()

    def flush(self) -> None:
        """Sends what the peer takes now."""
        try:
            self._out = self._out[self.sock.send(self._out) :] if self._out else b""
        except BlockingIOError:
            pass
        except OSError:
            self.drop()
            return
        if self._leaves and not self._out:
            self.drop()
            return
        self._loop.want(self.sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if self._out else 0))

    def ready(self) -> None:
        """The daemon is connected, and may have room again."""
        if not self.gone and not self._out:
            self._on_ready()

    def leave(self, data: bytes) -> None:
        """Sends it away: the last that it is given is `data`, and nothing is heard of it any more."""
        if self.gone:
            return
        self.hand_over(lambda _: None)
        self._leaves = True
        self._loop.later(LEAVE_S, self.drop)
        self.write(data)

    def finish(self, seconds: float) -> None:
        """Gives it so long to take what is still to be sent, then drops it."""
        if self._out and not self.gone:
            with contextlib.suppress(OSError):
                self.sock.settimeout(seconds)
                self.sock.sendall(self._out)
        self.drop()

    def drop(self) -> None:
        """Closes the connection; what was not sent is lost."""
        if not self.gone:
            self._on_gone(self)
            self._loop.remove(self.sock.fileno())
            self.sock.close()
            self._on_lost()


#: Answers a request. None: the answer is sent later.
Handler = Callable[[wire.Message, ControlClient], wire.Message | None]


class ControlServer:
    """Serves a listening socket on a `Loop`. Every client has its own buffer, and none can make us wait."""

    def __init__(
        self, loop: Loop, sock: socket.socket | None, handlers: dict[str, Handler], spare: Spare | None = None
    ) -> None:
        """`spare`: descriptors that are given up for a client where there are no others."""
        self._loop = loop
        self._spare = spare
        self._sock = sock
        self._handlers = handlers
        self.clients: set[ControlClient] = set()
        if sock is not None:
            self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop.add(sock.fileno(), self._accept)

    def serve(self, handlers: dict[str, Handler]) -> None:
        """From now on these requests, too."""
        self._handlers |= handlers

    def close(self) -> None:
        """Lets clients have what is still in their buffers, for a second at most, then closes."""
        deadline = time.monotonic() + CLOSE_S
        for client in list(self.clients):
            client.finish(max(0.0, deadline - time.monotonic()))
        if self._sock is not None:
            self._loop.remove(self._sock.fileno())
            self._sock.close()

    def _accept(self) -> None:
        assert self._sock is not None
        try:
            sock, _ = self._sock.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor to be had
            if self._spare is None or not self._spare.make_room():
                self._loop.rest(self._sock.fileno(), REST_S)
            return
        pid, uid = process.peer(sock)
        if uid not in (0, os.geteuid()):
            sock.close()
            return
        sock.setblocking(False)
        client = ControlClient(self._loop, sock, self.clients.discard, pid)
        self.clients.add(client)
        self._loop.add(sock.fileno(), lambda: self._serve(client))

    def _serve(self, client: ControlClient) -> None:
        client.flush()
        client.ready()
        if client.gone:
            return
        try:
            data = client.sock.recv(65536)
            if not data:
                client.drop()
                return
            client.lines.add(data)
            while (line := client.next_line()) is not None:
                self._answer(client, wire.decode(line))
        except BlockingIOError:
            return
        except ProtocolError as error:
            client.send({"op": "error", "ok": False, "error": str(error)})
            client.drop()
        except OSError:
            client.drop()

    def _answer(self, client: ControlClient, message: wire.Message) -> None:
        op = message["op"]
        reply: wire.Message | None
        if op == "hello":
            theirs = message.get("protocol")
            client.greeted = theirs == PROTOCOL
            reply = {"ok": client.greeted, "protocol": PROTOCOL, "pid": os.getpid()}
            if not client.greeted:
                reply["error"] = f"protocol {PROTOCOL} is spoken here, not {theirs}"
        elif not client.greeted:
            raise ProtocolError("say hello first")
        elif op in self._handlers:
            reply = self._handlers[op](message, client)
        else:
            reply = {"ok": False, "error": f"{wire.UNKNOWN} {op!r}"}
        if reply is not None:
            client.send({"op": op} | reply)


class JournalServer(ControlServer):
    """A supervisor's: watchers are sent how many bytes of the journal are on disk, the records that are owed to it
    (ledger.py), why it takes none, and what open gaps have lost by now (job_output.py), which needs no disk."""

    def __init__(self, loop: Loop, paths: Sequence[Path], spare: Spare) -> None:
        """Listens at the first of these paths where a socket can be made; tries again for as long as there is none.
        What it serves beside watchers is added by `serve`, before the loop runs."""
        super().__init__(loop, None, {"watch": self._watch}, spare)
        self._watchers: set[ControlClient] = set()
        self._size = 0
        self._owed: list[Record] = []
        self._sent = -1
        self._refusal = ""
        self._gaps: wire.Message = {"op": "gaps", "gaps": []}
        #: What was written so far, and behind which size, for the first watcher: it need not read the journal either.
        #: None: it has come, or they are many.
        self._first: list[Record] | None = []
        self._first_behind = -1
        self._paths = paths
        self._path: Path | None = None
        loop.attempt(self._listen)

    def _listen(self) -> None:
        """Raises OSError where there is no such path."""
        trouble: OSError | None = None
        for path in self._paths:
            try:
                path.parent.mkdir(mode=0o700, exist_ok=True)
                sock = listen(path)
            except OSError as error:
                trouble = trouble or error
                continue
            self._path = path
            self._begin(sock)
            return
        if trouble is not None:
            raise trouble

    @property
    def is_watched(self) -> bool:
        """Whether a daemon follows the journal."""
        return not self._watchers.isdisjoint(self.clients)

    def close(self) -> None:
        super().close()
        self._paths = ()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def publish(self, size: int, owed: list[Record], before: int, written: list[Record]) -> None:
        """`owed`: all that is owed now, in order; watchers are sent those records that are new. `written`: behind the
        size `before`; where they are few, watchers are sent them, too, and need not read the journal."""
        messages: list[wire.Message] = []
        if self._first is not None:
            self._first_behind = before if self._first_behind < 0 else self._first_behind
            self._first = self._first + written if size - self._first_behind <= wire.MAX_RECORDS else None
        if size != self._size or not owed:
            few = size - before <= wire.MAX_RECORDS
            messages.append({"op": "journal", "size": size} | ({"behind": before, "records": written} if few else {}))
        messages += [{"op": "owed", "record": record} for record in owed if record["n"] > self._sent]
        self._size, self._owed = size, owed
        self._sent = owed[-1]["n"] if owed else self._sent
        self._watchers &= self.clients
        for client in list(self._watchers):
            for message in messages:
                client.send(message)

    def publish_refusal(self, why: str) -> None:
        """Why the journal takes no record, while one waits for it; empty: none does."""
        if why == self._refusal:
            return
        self._refusal = why
        self._watchers &= self.clients
        for client in list(self._watchers):
            client.send({"op": "refused", "why": why})

    def publish_gaps(self, gaps: list[tuple[int, float, int]]) -> None:
        """What each open gap has lost by now: rank, since when (which tells one gap of a rank from the next), bytes."""
        self._gaps = {"op": "gaps", "gaps": gaps}
        self._watchers &= self.clients
        for client in list(self._watchers):
            client.send(self._gaps)

    def _watch(self, message: wire.Message, client: ControlClient) -> None:
        self._watchers.add(client)
        first, self._first = self._first, None
        on_disk: wire.Message = {"op": "journal", "size": self._size}
        if first and message.get("from") == self._first_behind:
            on_disk |= {"behind": self._first_behind, "records": first}
        client.send(on_disk)
        for record in self._owed:
            client.send({"op": "owed", "record": record})
        client.send({"op": "refused", "why": self._refusal})
        client.send(self._gaps)
