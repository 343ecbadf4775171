"""Servers of tests: one of HTTP that breaks off, holds back or changes what it sends, and one of S3."""

import contextlib
import http.client
import http.server
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from tests.ports import free_port


class Web(http.server.ThreadingHTTPServer):
    """Serves one file at /file, in ranges."""

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        self.content = content
        #: Of the next answers: break off after so many bytes.
        self.breaks: list[int] = []
        #: Asked for: where each began.
        self.offsets: list[int] = []
        #: Once this is set, what lies behind this offset is sent, too.
        self.go = threading.Event()
        self.go.set()
        self.holds_from = 0
        self.tag = "first"
        self.password = ""
        super().__init__(("127.0.0.1", 0), _Handler)

    def go_once(self) -> None:
        """Sends what was asked for until now, and holds back what is asked for from now on."""
        before, self.go = self.go, threading.Event()
        before.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Web
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        if self._may():
            self._head(200, len(self.server.content))

    def do_GET(self) -> None:
        if not self._may():
            return
        web = self.server
        first, last = 0, len(web.content) - 1
        if asked := self.headers.get("Range"):
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end), last)
        go = web.go
        web.offsets.append(first)
        if first >= web.holds_from:
            go.wait(120)
        data = web.content[first : last + 1]
        self._head(206 if asked else 200, len(data), f"bytes {first}-{last}/{len(web.content)}" if asked else "")
        most = web.breaks.pop(0) if web.breaks else len(data)
        self.wfile.write(data[:most])
        if most < len(data):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _may(self) -> bool:
        if self.server.password and self.headers.get("Authorization") != self.server.password:
            self._head(403, 0)
            return False
        return True

    def _head(self, status: int, size: int, content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.send_header("ETag", f'"{self.server.tag}"')
        self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def web(content: bytes) -> Iterator[Web]:
    server = Web(content)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.go.set()
        server.shutdown()
        thread.join()
        server.server_close()


class Gate(http.server.ThreadingHTTPServer):
    """Before another server: hands requests on, refuses some, and holds some back for ever."""

    daemon_threads = True

    def __init__(self, behind: str) -> None:
        self.behind = behind.removeprefix("http://")
        #: In the path of a request: what is answered by 403; what is not answered.
        self.refused = self.held = ""
        #: Requests of this method wait for `go`; how many have come.
        self.slow, self.came, self.go = "", 0, threading.Event()
        self.paths: list[str] = []
        self.waits = False
        self.over = threading.Event()
        super().__init__(("127.0.0.1", 0), _GateHandler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def asked(self, part: str) -> bool:
        return any(part in path for path in self.paths)


class _GateHandler(http.server.BaseHTTPRequestHandler):
    server: Gate
    protocol_version = "HTTP/1.1"

    def _hand_on(self) -> None:
        gate = self.server
        gate.paths.append(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if gate.held and gate.held in self.path:
            gate.waits = True
            gate.over.wait(120)
            self.close_connection = True
            return
        if gate.slow == self.command:
            gate.came += 1
            gate.go.wait(120)
        if gate.refused and gate.refused in self.path:
            self._answer(403, [], b"<Error><Code>AccessDenied</Code><Message>Forbidden</Message></Error>")
            return
        behind = http.client.HTTPConnection(gate.behind, timeout=60)
        behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            behind.putheader(name, value)
        behind.endheaders(body)
        answer = behind.getresponse()
        self._answer(answer.status, answer.getheaders(), answer.read())
        behind.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _hand_on

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        size = {name.lower(): value for name, value in headers}.get("content-length", str(len(body)))
        self.send_header("Content-Length", size if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def gate(behind: str) -> Iterator[Gate]:
    server = Gate(behind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.go.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def s3() -> Iterator[str]:
    """The address of a server of S3 that is empty."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            url, end = f"http://127.0.0.1:{port}", time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(f"{url}/moto-api/", timeout=5).close()
                    break
                except OSError:
                    if time.monotonic() > end or server.poll() is not None:
                        raise
                    time.sleep(0.05)
            yield url
        finally:
            server.kill()
