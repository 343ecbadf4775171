"""Errors of a copy: those that another try may solve, and those that it cannot."""

import errno
import socket
import ssl
from collections.abc import Iterable
from http import HTTPStatus
from typing import TypeVar

from muster.supervisors.supervision_errors import remedy

#: Of a local file system: no other try helps.
_LOCAL = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.ENAMETOOLONG}
)
#: Answers of HTTP that may be other ones in a moment.
_PASSES = frozenset({408, 425, 429})
_ROOM = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = "access is refused: check staging_credentials"
_TRUST = "name a file with that of its authority: --env SSL_CERT_FILE=FILE, of s3 and obs --env AWS_CA_BUNDLE=FILE"
#: Errors that have led to one another, at most.
_MAX_CHAIN = 10

T = TypeVar("T", bound=BaseException)


class NotCopyable(Exception):
    """Raised when no other try can help: the text says what is wrong, and what to do about it."""


class NoRoomHere(NotCopyable):
    """Raised when a file system of this node is full, or would be."""


class TryAgain(Exception):
    """Raised when another try may help."""


class FileChanged(TryAgain):
    """Raised when a file changed while it was copied."""


def of_local(error: OSError, path: str) -> Exception:
    """What an error of this node's file system means for the copy of this file."""
    text = f"{path}: {str(error.strerror or error).lower()}"
    if error.errno in (errno.EACCES, errno.EPERM):
        text += ": the job's user may not access it"
    elif what := remedy(error):
        text += f": {what}"
    if error.errno in _ROOM:
        return NoRoomHere(text)
    if error.errno in _LOCAL or isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)):
        return NotCopyable(text)
    return TryAgain(text)


def of_remote(error: BaseException, url: str) -> Exception:
    """What an error of another place's file system means; `url` may be shown."""
    if isinstance(error, (NotCopyable, TryAgain)):
        return error
    error = _beneath(error)
    status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int) and 400 <= status < 600:
        return _of_status(status, url)
    if isinstance(error, FileNotFoundError):
        return NotCopyable(f"{url}: no such file or folder: check the URL")
    if isinstance(error, PermissionError):
        return NotCopyable(f"{url}: {_said(error)}: {_REFUSED}")
    if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        return NotCopyable(f"{url}: no keys for it: give a file with them as staging_credentials")
    if (of_certificate := _within(error, ssl.SSLCertVerificationError)) is not None:
        why = of_certificate.verify_message
        return NotCopyable(f"{url}: the certificate of the server is not trusted: {why}: {_TRUST}")
    if (of_tls := _within(error, ssl.SSLError)) is not None:
        return TryAgain(f"{url}: no TLS with the server: {of_tls.reason or of_tls}: is it https, or http?")
    if (of_name := _within(error, socket.gaierror)) is not None:
        return TryAgain(f"{url}: its host is not known: {of_name.strerror}: check the URL, and /etc/resolv.conf")
    text = f"{url}: {_said(error)}"
    if isinstance(error, (OSError, TimeoutError, EOFError)) or type(error).__module__.split(".")[0] in _NETWORK:
        return TryAgain(text)
    return NotCopyable(text)


def _of_status(status: int, url: str) -> Exception:
    """What an answer of HTTP means that is no success."""
    try:
        text = f"{url}: the server answers {status} {HTTPStatus(status).phrase}"
    except ValueError:
        text = f"{url}: the server answers {status}"
    if status in (401, 403):
        return NotCopyable(f"{text}: {_REFUSED}")
    if status in (404, 410):
        return NotCopyable(f"{text}: no such file or folder: check the URL")
    if status == 407:
        return NotCopyable(f"{text}: the proxy wants a user: --env HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT")
    return NotCopyable(f"{text}: check the URL") if status < 500 and status not in _PASSES else TryAgain(text)


def _beneath(error: BaseException) -> BaseException:
    """fsspec calls it a file that does not exist, whatever keeps a web server from telling about one."""
    cause = error.__cause__ or error.__context__
    if not isinstance(error, FileNotFoundError) or cause is None or isinstance(cause, FileNotFoundError):
        return error
    of_web = type(cause).__module__.startswith("aiohttp")
    return cause if of_web or isinstance(cause, (OSError, TimeoutError)) else error


def _within(error: BaseException | None, kind: type[T]) -> T | None:
    """The first of this kind of what has led to an error; aiohttp has errors that are of one, and lack what it has."""
    for _ in range(_MAX_CHAIN):
        if error is None or (isinstance(error, kind) and not type(error).__module__.startswith("aiohttp")):
            return error
        inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None)
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
    return None


_NETWORK = frozenset({"aiohttp", "aiobotocore", "botocore", "urllib3", "requests", "paramiko", "ftplib", "ssl"})


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    return f"{name}: {lines[0][:300]}" if lines and not isinstance(error, NotCopyable) else name


class SecretMask:
    """Takes secrets out of texts."""

    def __init__(self) -> None:
        self._secrets: list[str] = []

    def add(self, values: Iterable[str]) -> None:
        """Short ones are left: they would be found in every word."""
        self._secrets = sorted({*self._secrets, *(v for v in values if len(v) > 3)}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text with each secret as ***."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text
