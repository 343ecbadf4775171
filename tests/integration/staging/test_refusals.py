"""What a web server answers that gives no file: the copy says what happened, and what to do about it."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

pytest.importorskip("aiohttp", reason="needs aiohttp (pip install 'muster-agent[staging]')")

from muster.supervisors.staging import remote_files
from muster.supervisors.staging.remote_files import FileSystem, RemoteSource
from muster.supervisors.staging.troubles import NotCopyable, TryAgain

#: By path below /tree/: the page there.
PAGES = {"": '<a href="a">a</a><a href="sub/">sub</a>', "sub/": '<a href="b">b</a>'}


class _Handler(http.server.BaseHTTPRequestHandler):
    """/401 answers 401, and so on; /tree/ has pages with links, and /loop/ has no end."""

    def do_GET(self) -> None:
        _, top, rest = self.path.split("/", 2) if self.path.count("/") > 1 else ("", self.path[1:], "")
        body, status = b"x", 200
        if top.isdigit():
            status = int(top)
        elif top == "loop":
            body = b'<a href="on/">on</a>'
        elif self.path in self.server.broken:  # type: ignore[attr-defined]
            status = 503
        elif rest in PAGES:
            body = PAGES[rest].encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


def _serving(tls: ssl.SSLContext | None) -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.broken = set()  # type: ignore[attr-defined]
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def plain() -> Iterator[http.server.ThreadingHTTPServer]:
    yield from _serving(None)


def found(url: str) -> list[str]:
    """Names of the files."""
    return sorted(item.name for item in RemoteSource(FileSystem(url, {})).items(print))


@pytest.mark.parametrize(
    ("path", "kind", "said"),
    [
        ("401", NotCopyable, "401 Unauthorized: access is refused: check staging_credentials"),
        ("403", NotCopyable, "403 Forbidden: access is refused: check staging_credentials"),
        ("404", NotCopyable, "404 Not Found: no such file or folder: check the URL"),
        ("404/", NotCopyable, "no such file or folder: check the URL"),
        ("401/", NotCopyable, "401 Unauthorized: access is refused"),
        ("407", NotCopyable, "407 Proxy Authentication Required: the proxy wants a user"),
        ("418", NotCopyable, "418 I'm a Teapot: check the URL"),
        ("429", TryAgain, "429 Too Many Requests"),
        ("500", TryAgain, "500 Internal Server Error"),
        ("503", TryAgain, "503 Service Unavailable"),
        ("503/", TryAgain, "503 Service Unavailable"),
    ],
)
def test_an_answer_that_is_no_success(
    plain: http.server.ThreadingHTTPServer, path: str, kind: type[Exception], said: str
) -> None:
    url = f"http://127.0.0.1:{plain.server_address[1]}/{path}"
    with pytest.raises(kind) as refused:
        found(url)
    assert str(refused.value).startswith(f"{url}: ") and said in str(refused.value)


def test_a_folder_that_cannot_be_listed_is_not_left_out(
    plain: http.server.ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{plain.server_address[1]}"
    assert found(f"{url}/tree/") == ["a", "sub/b"]
    plain.broken.add("/tree/sub/")  # type: ignore[attr-defined]
    with pytest.raises(TryAgain, match="503 Service Unavailable"):
        found(f"{url}/tree/")
    monkeypatch.setattr(remote_files, "MAX_DEPTH", 3)
    with pytest.raises(NotCopyable, match="has folders in folders without end, as '/on/on/on/on/'"):
        found(f"{url}/loop/")


def test_no_connection(plain: http.server.ThreadingHTTPServer) -> None:
    with pytest.raises(TryAgain, match=r"https://127.*: no TLS with the server: .*: is it https, or http\?"):
        found(f"https://127.0.0.1:{plain.server_address[1]}/tree/a")
    with pytest.raises(TryAgain, match=r"its host is not known: .*: check the URL, and /etc/resolv\.conf"):
        found("http://no-such-host.invalid/x")


def test_a_certificate_that_nobody_trusts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    for server in _serving(context):
        url = f"https://127.0.0.1:{server.server_address[1]}/tree/a"
        with pytest.raises(NotCopyable, match=r"certificate of the server is not trusted: .*: name a file .* SSL_CERT"):
            found(url)
