"""A real receiver of notifications on the loopback, and parts of a daemon that has some."""

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

from muster.agent.config.notify_settings import NotifyTable
from muster.agent.errors import JobNotFound
from muster.agent.events.event_store import Event
from tests.ports import free_port


@dataclass
class Got:
    """A request."""

    path: str
    headers: dict[str, str]
    raw: bytes
    #: When it came (monotonic).
    at: float = field(default_factory=time.monotonic)

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class Answer:
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    text: bytes = b""


class Receiver:
    """Answers on a port of 127.0.0.1 as `answer` says of each request; may go away and come back."""

    def __init__(self, answer: Callable[[Got], Answer] | None = None, *, port: int = 0, tls: Any = None) -> None:
        self.answer = answer or (lambda got: Answer())
        self.got: list[Got] = []
        #: Requests wait here; set from the beginning.
        self.open = threading.Event()
        self.open.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                got = Got(self.path, dict(self.headers), raw)
                receiver.got.append(got)
                receiver.open.wait(60)
                answer = receiver.answer(got)
                with contextlib.suppress(OSError):
                    self.send_response(answer.status)
                    for name, value in {"Content-Length": str(len(answer.text)), **answer.headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(answer.text)

            def do_CONNECT(self) -> None:
                receiver.got.append(Got(self.path, dict(self.headers), b""))
                host, _, port = self.path.rpartition(":")
                with socket.create_connection((host, int(port))) as onward:
                    self.send_response(200)
                    self.end_headers()
                    back = threading.Thread(target=_relay, args=(onward, self.connection))
                    back.start()
                    _relay(self.connection, onward)
                    back.join(60)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: Any) -> None:  # a client that gave up
                pass

        self._server = Server(("127.0.0.1", port), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.scheme = "http" if tls is None else "https"
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook?token=letmein"

    @property
    def bodies(self) -> list[Any]:
        return [got.body for got in self.got]

    @property
    def messages(self) -> list[str]:
        return [body["message"] for body in self.bodies]

    def close(self) -> None:
        self.open.set()
        self._server.shutdown()
        self._thread.join(60)
        self._server.server_close()

    def __enter__(self) -> "Receiver":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _relay(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def nobody() -> Iterator[int]:
    """A port on which connections are refused. Behind the block, too, nobody else gets it."""
    port = free_port()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", port))
        yield port


def serving(certificate: Any, key: Any) -> ssl.SSLContext:
    """The server's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@dataclass
class Parts:
    """Settings and jobs of a daemon."""

    notify: NotifyTable = field(default_factory=NotifyTable)
    jobs: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> "Parts":
        return self

    async def get(self, job_id: str) -> Any:
        if job_id not in self.jobs:
            raise JobNotFound(job_id)
        return self.jobs[job_id]

    def add_job(self, job_id: str, webhook: str = "", events: tuple[str, ...] = ()) -> None:
        spec = SimpleNamespace(notify_webhook=webhook, notify_events=events, notify_secret="")
        self.jobs[job_id] = SimpleNamespace(spec=spec)


def ended(message: str, state: str = "FAILED", job: str = "job-1", at: float | None = None) -> Event:
    said = {"state": state, "exit_code": "1", "recommendation": "RETRY_HERE"}
    return Event(time.time() if at is None else at, "job.ended", job, message=message, attributes=said)
