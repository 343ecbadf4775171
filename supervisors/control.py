"""The control socket of a supervisor: who may speak, and the messages of wire.py."""

import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from supervisors import PROTOCOL, wire
from supervisors.errors import ProtocolError
from supervisors.loop import Loop

#: A client that lets so much pile up does not read; it is dropped.
MAX_BACKLOG = 65536
#: How long nobody is accepted after there was no descriptor for it, in seconds.
REST_S = 1.0
_UCRED = struct.Struct("iII")

#: Answers a request: takes the message, returns the reply.
Handler = Callable[[wire.Message], wire.Message]


class _Client:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.lines = wire.Lines()
        self.greeted = False
        self.watching = False
        self.out = b""


class ControlServer:
    """Serves the socket on a `Loop`; every client has its own buffer, and none can make us wait."""

    def __init__(self, loop: Loop, path: Path, handlers: dict[str, Handler]) -> None:
        """Binds and listens, in place of a dead predecessor (the caller holds the job's lock). Raises OSError."""
        self._loop = loop
        self._handlers = handlers
        self._clients: dict[int, _Client] = {}
        self._size = 0
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with wire.SocketAt(path) as name:
            self._sock.bind(name)
        path.chmod(0o600)
        self._sock.listen(64)
        loop.add(self._sock.fileno(), self._accept)

    def publish(self, size: int) -> None:
        """Tells all watchers how many bytes of the journal are on disk."""
        if size == self._size:
            return
        self._size = size
        for client in list(self._clients.values()):
            if client.watching:
                self._send(client, {"op": "journal", "size": size})

    def close(self, deadline_s: float = 1.0) -> None:
        """Lets the clients have what is still in their buffers, then closes."""
        for client in list(self._clients.values()):
            if client.out:
                with contextlib.suppress(OSError):
                    client.sock.settimeout(deadline_s)
                    client.sock.sendall(client.out)
            self._drop(client)
        self._loop.remove(self._sock.fileno())
        self._sock.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor to be had
            self._loop.rest(self._sock.fileno(), REST_S)
            return
        _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        if uid not in (0, os.geteuid()):
            sock.close()
            return
        sock.setblocking(False)
        client = _Client(sock)
        self._clients[sock.fileno()] = client
        self._loop.add(sock.fileno(), lambda: self._serve(client))

    def _serve(self, client: _Client) -> None:
        try:
            if client.out:
                self._flush(client)
            data = client.sock.recv(65536)
            if not data:
                self._drop(client)
                return
            for line in client.lines.feed(data):
                self._answer(client, wire.decode(line))
                if client.sock.fileno() < 0:
                    return
        except BlockingIOError:
            return
        except ProtocolError as error:
            self._send(client, {"op": "error", "ok": False, "error": str(error)})
            self._drop(client)
        except OSError:
            self._drop(client)

    def _answer(self, client: _Client, message: wire.Message) -> None:
        op = message["op"]
        if op == "hello":
            theirs = message.get("protocol")
            client.greeted = theirs == PROTOCOL
            reply: wire.Message = {"op": "hello", "ok": client.greeted, "protocol": PROTOCOL, "pid": os.getpid()}
            if not client.greeted:
                reply["error"] = f"this supervisor speaks protocol {PROTOCOL}, not {theirs}"
            self._send(client, reply)
        elif not client.greeted:
            raise ProtocolError("say hello first")
        elif op == "watch":
            client.watching = True
            self._send(client, {"op": "journal", "size": self._size})
        elif op in self._handlers:
            self._send(client, {"op": op} | self._handlers[op](message))
        else:
            self._send(client, {"op": op, "ok": False, "error": f"unknown operation {op!r}"})

    def _send(self, client: _Client, message: wire.Message) -> None:
        if client.sock.fileno() < 0:
            return
        client.out += wire.encode(message)
        if len(client.out) > MAX_BACKLOG:
            self._drop(client)
            return
        self._flush(client)

    def _flush(self, client: _Client) -> None:
        try:
            sent = client.sock.send(client.out)
            client.out = client.out[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
            return
        events = select.EPOLLIN | (select.EPOLLOUT if client.out else 0)
        self._loop.want(client.sock.fileno(), events)

    def _drop(self, client: _Client) -> None:
        fd = client.sock.fileno()
        if fd < 0:
            return
        self._loop.remove(fd)
        self._clients.pop(fd, None)
        client.sock.close()
