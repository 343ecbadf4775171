"""Posts a notification to a URL.

It uses http.client in its own thread: this needs no other library, costs under 1 MB and only with a webhook, and a name
that does not resolve blocks nothing else. It ignores proxies in the environment.
"""

import contextlib
import hashlib
import hmac
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

import anyio

import muster.agent
from muster.agent.notify.notification import Item, NotificationRefused, NotTaken
from muster.probes.calls import watched
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.rules.notify_rules import MAX_SECRET, shown, webhook_problem

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPConnection

#: Status codes that refuse the notification itself: a retry would get the same answer.
_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY})
#: Redirects that keep the method; the others would turn a POST into a GET.
_REDIRECTS = frozenset({HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT})
MAX_REDIRECTS = 3
#: Seconds that an aborted request may take to end before its thread is abandoned.
LINGER_S = 1.0
#: Bytes that are read of an answer's body, and the seconds for it, so that the sender sees no broken connection.
_DRAIN, _DRAIN_S = 4096, 0.2


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """The receiver. Without `secret` and `secret_file`, nothing is signed. `proxy`: the URL of an HTTP proxy;
    `ca_file`: certificates to trust instead of the system's; empty for none."""

    url: str
    timeout_s: float
    secret: str = ""
    secret_file: str = ""
    proxy: str = ""
    ca_file: str = ""


async def post(target: WebhookTarget, item: Item, body: bytes) -> None:
    """Sends the body once. Raises NotTaken, Refused; both show only the host of the URL."""
    request = _Request(target, item, body)
    where = shown(target.url)
    # A URL that hangs blocks no other.
    what = f"post to {where} ({hashlib.sha256(target.url.encode()).hexdigest()[:8]})"
    try:
        with anyio.fail_after(target.timeout_s):
            await watched.call(what, request.run, on_cancel=request.abort, linger_s=LINGER_S)
    except TimeoutError:
        if not request.status:
            raise NotTaken(f"{where}: did not answer within {target.timeout_s:g} s (timeout_s in [notify])") from None
    except watched.StillHanging as error:
        raise NotTaken(str(error)) from None
    except OSError as error:
        if not request.status:
            raise NotTaken(f"{where}: {error.strerror or error}") from None
    _judge(where, request)


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """The value of X-Muster-Signature: HMAC with SHA-256 over timestamp, full stop and body, hexadecimal."""
    return "sha256=" + hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def read_secret(path: str) -> bytes:
    """The secret in a file, without its newline. Blocks. Raises NotTaken: nothing is sent unsigned."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise NotTaken(f"secret_file: {path}: is not a regular file")
            if status.st_mode & (stat.S_IROTH | stat.S_IWOTH):
                mode = stat.S_IMODE(status.st_mode)
                raise NotTaken(
                    f"secret_file: {path}: mode {mode:04o} lets every user read or write it: run `chmod o= {path}`"
                )
            secret = file.read(MAX_SECRET + 1)
    except OSError as error:
        raise NotTaken(f"secret_file: {path}: cannot be read: {error.strerror}") from None
    if len(secret) > MAX_SECRET:
        raise NotTaken(f"secret_file: {path}: has over {MAX_SECRET} bytes: it holds one line, the secret")
    secret = secret.rstrip(b"\r\n")
    if not secret:
        raise NotTaken(f"secret_file: {path}: is empty: write the secret into it")
    return secret


def _without_waiting(path: str, flags: int) -> int:
    """A FIFO would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _trusted(ca_file: str) -> "ssl.SSLContext":
    import ssl  # only here: a daemon without webhooks does not need it

    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise NotTaken(f"ca_file: cannot use {ca_file or 'that of the system'}: {error.strerror or error}") from None


def _judge(where: str, answer: "_Request") -> None:
    if 200 <= answer.status < 300:
        return
    text = f"{where}: answered {answer.status} {answer.reason}".rstrip()
    if answer.status in _REFUSALS:
        raise NotificationRefused(text)
    if answer.problem:
        text += f": {answer.problem}"
    raise NotTaken(text, answer.retry_after)


class _Request:
    """One POST and the redirects that follow; `run` in a thread, `abort` in any other."""

    def __init__(self, target: WebhookTarget, item: Item, body: bytes) -> None:
        self._target = target
        self._item = item
        self._body = body
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._aborted = False
        #: The status of the answer; 0 before there is one.
        self.status = 0
        self.reason = ""
        self.problem = ""
        self.retry_after = 0.0

    def run(self) -> None:
        """Raises OSError, NotTaken."""
        from http.client import HTTPException

        secret = self._target.secret.encode()
        if self._target.secret_file:
            secret = read_secret(self._target.secret_file)
        url = self._target.url
        try:
            for _ in range(MAX_REDIRECTS + 1):
                status, location = self._once(url, secret)
                if not location:
                    self.status = status
                    return
                url = location
        except OSError:  # some are also ValueErrors: an untrusted certificate
            raise
        except UnicodeError:
            raise OSError("it is not a valid host name") from None
        except (HTTPException, ValueError) as error:
            raise OSError(f"it does not speak HTTP: {type(error).__name__}") from error
        self.status, self.problem = status, f"it sent more than {MAX_REDIRECTS} redirects in a row"

    def abort(self) -> None:
        """Makes `run` return soon."""
        with self._lock:
            self._aborted = True
            if self._socket is not None:
                # Not SSLSocket's own shutdown, which changes state that the other thread uses.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _once(self, url: str, secret: bytes) -> tuple[int, str]:
        """Sends the body to one URL. Returns the status of the answer, and the target of a redirect (empty: none)."""
        with self._connected(url) as (connection, path):
            timestamp = str(int(time.time()))
            headers = {
                "Content-Type": "application/json",
                "User-Agent": f"muster/{muster.agent.__version__}",
                "Connection": "close",
                "X-Muster-Event": self._item.event,
                "X-Muster-Id": self._item.id,
                "X-Muster-Timestamp": timestamp,
            }
            if secret:
                headers["X-Muster-Signature"] = signature(secret, timestamp, self._body)
            connection.request("POST", path, self._body, headers)
            with connection.getresponse() as response:
                after = response.headers.get("Retry-After", "")
                self.retry_after = float(after) if after.isascii() and after.isdigit() and len(after) < 9 else 0.0
                self.reason = response.reason[:100]
                onward = self._onward(url, response.status, response.headers.get("Location", ""))
                if not onward:
                    self.status = response.status  # the status counts; errors in the body do not
                with contextlib.suppress(OSError):
                    if self._socket is not None:
                        self._socket.settimeout(_DRAIN_S)
                    response.read1(_DRAIN)
                return response.status, onward

    def _onward(self, url: str, status: int, location: str) -> str:
        """The target of a redirect; empty for none."""
        from urllib.parse import urljoin

        if not 300 <= status < 400:
            return ""
        self.problem = "this kind of redirect drops the POST: configure the final URL"
        if status not in _REDIRECTS or not location:
            return ""
        onward = urljoin(url, location)
        if problem := webhook_problem(onward):
            self.problem = f"it redirects to an invalid webhook URL: {problem}"
        elif onward.split(":", 1)[0] != url.split(":", 1)[0]:
            self.problem = f"it redirects to {shown(onward)}, another scheme: configure the final URL"
        else:
            self.problem = ""
            return onward
        return ""

    @contextlib.contextmanager
    def _connected(self, url: str) -> "Iterator[tuple[HTTPConnection, str]]":
        """A connection, and what to ask it for."""
        from http.client import HTTPConnection, HTTPSConnection
        from urllib.parse import urlsplit

        to = urlsplit(url)
        proxy = urlsplit(self._target.proxy) if self._target.proxy else None
        host, port = ((proxy.hostname, proxy.port or 80) if proxy else (to.hostname, to.port)) or ("", None)
        path = (to.path or "/") + (f"?{to.query}" if to.query else "")
        limit = self._target.timeout_s
        connection: HTTPConnection
        if to.scheme == "https":
            trusted = _trusted(self._target.ca_file)
            connection = HTTPSConnection(host or "", port, timeout=limit, context=trusted)
            if proxy:
                connection.set_tunnel(to.hostname or "", to.port or 443)
        else:
            connection = HTTPConnection(host or "", port, timeout=limit)
            if proxy:
                path = f"http://{to.netloc}{path}"
        try:
            connection.connect()
            with self._lock:
                self._socket = connection.sock
                if self._aborted:
                    raise TimeoutError("it was given up")
            yield connection, path
        finally:
            with self._lock:
                self._socket = None
            connection.close()
